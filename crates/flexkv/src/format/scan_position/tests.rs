//! Tests of scan positions, with a model of scans over tables that grow: every key that stays is
//! found.

use std::collections::BTreeSet;

use archipelago_base::random::Rng;

use super::*;
use crate::format::{
    BUCKET_SLOTS, Bucket, Candidates, KeyHash, PARTITION_BITS_DEFAULT, Slot, regrow,
};

#[test]
fn golden_numbers() {
    let at = ScanPosition::at_bucket(PartitionId(0x1234), 0xabc_def, 0x5_6789);
    assert_eq!(at.encode(), 0x1234_def5_6789);
    let geometry = Geometry::new(16).expect("16");
    assert_eq!(ScanPosition::decode(at.encode(), geometry), Some(at));
    assert_eq!(ScanPosition::START.encode(), 0);
    let begin = ScanPosition::at_partition(PartitionId(3));
    assert_eq!(begin, ScanPosition::at_bucket(PartitionId(3), 7, 0), "at bucket 0 all are alike");
    assert_eq!(begin.encode(), 3 << 32);
}

#[test]
fn numbers_that_no_scan_gives_out_are_refused() {
    let geometry = Geometry::default();
    let partitions = 1_u64 << PARTITION_BITS_DEFAULT;
    assert!(ScanPosition::decode((partitions - 1) << 32, geometry).is_some());
    for number in [partitions << 32, 1 << 53, u64::MAX, 1 << 20] {
        assert_eq!(ScanPosition::decode(number, geometry), None, "{number:#x}");
    }
}

#[test]
fn position_of_another_generation_means_the_first_bucket() {
    let at = ScanPosition::at_bucket(PartitionId(1), 5, 9);
    assert_eq!((at.bucket_in(5, 4), at.bucket_in(6, 5), at.bucket_in(5, 3)), (9, 0, 0));
    assert_eq!(
        at.bucket_in(5 + (1 << GENERATION_BITS), 4),
        9,
        "far beyond the doublings there are"
    );
}

/// Step that a scan of the model leaves out on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The scan continues at its old bucket in a table that has grown.
    NoRescan,
    /// The scan skips the bucket at which a step begins.
    SkipsBucket,
}

/// One partition's subtable, with the hashes of the keys that slots name.
struct Table {
    buckets: Vec<Bucket>,
    generation: u32,
    log2_buckets: u32,
}

impl Table {
    fn slot(hash: KeyHash) -> Slot {
        Slot::live(hash.0 & 0xffff_ffff, 64, hash.fingerprint()).expect("fits")
    }

    fn insert(&mut self, hash: KeyHash, all: &BTreeSet<KeyHash>) {
        let numbers = hash.buckets(self.log2_buckets);
        let images = numbers.map(|number| self.buckets[number as usize]);
        let free = Candidates::new(numbers, images).reusable(0, 0).next();
        match free {
            Some((at, _)) => {
                let bucket = &mut self.buckets[at.bucket() as usize];
                bucket.0[at.0 as usize % BUCKET_SLOTS] = Self::slot(hash);
            }
            None => {
                let there = all.iter().chain([&hash]);
                let grown = (1..4).find_map(|more| {
                    let log2 = self.log2_buckets + more;
                    let entries = there.clone().map(|hash| (*hash, Self::slot(*hash)));
                    Some((log2, regrow(entries, log2)?))
                });
                (self.log2_buckets, self.buckets) = grown.expect("a larger table");
                self.generation += 1;
            }
        }
    }

    fn remove(&mut self, hash: KeyHash) {
        let slots = self.buckets.iter_mut().flat_map(|bucket| &mut bucket.0);
        slots.filter(|slot| **slot == Self::slot(hash)).for_each(|slot| *slot = Slot::EMPTY);
    }
}

/// Scans a table of which other clients insert and delete keys between the steps. Returns whether
/// every key that stayed was found, and how often the table grew.
fn scan_while_keys_change(seed: u64, fault: Fault) -> (bool, u32) {
    let mut rng = Rng::with_seed(seed);
    let mut table = Table { buckets: vec![Bucket::default(); 2], generation: 1, log2_buckets: 1 };
    let (mut all, mut churning) = (BTreeSet::new(), Vec::new());
    let mut names = BTreeSet::new();
    let mut insert = |table: &mut Table, all: &mut BTreeSet<KeyHash>, rng: &mut Rng| {
        let hash = KeyHash(rng.u64(..));
        if names.insert(Table::slot(hash).0) {
            table.insert(hash, all);
            all.insert(hash);
        }
        hash
    };
    (0..40).for_each(|_| _ = insert(&mut table, &mut all, &mut rng));
    let staying = all.clone();
    let (mut found, generation) = (BTreeSet::new(), table.generation);
    let mut at = ScanPosition::at_partition(PartitionId(0));
    loop {
        let first = match fault {
            Fault::NoRescan => at.bucket().min((1 << table.log2_buckets) - 1),
            _ => at.bucket_in(table.generation, table.log2_buckets),
        };
        let skipped = usize::from(fault == Fault::SkipsBucket && first > 0);
        let end = (first + rng.u32(1..3)).min(1 << table.log2_buckets);
        for bucket in &table.buckets[first as usize..end as usize][skipped..] {
            let live = bucket.0.iter().filter(|slot| slot.is_live());
            found.extend(live.map(|slot| slot.0));
        }
        if end == 1 << table.log2_buckets {
            break;
        }
        at = ScanPosition::at_bucket(PartitionId(0), table.generation, end);
        at = ScanPosition::decode(at.encode(), Geometry::default()).expect("as it was given out");
        // A scan ends once the writers stop doubling the table. A real table doubles at most 20
        // times.
        for _ in 0..rng.u32(4..14).min(400_u32.saturating_sub(all.len() as u32)) {
            churning.push(insert(&mut table, &mut all, &mut rng));
        }
        if rng.bool() && !churning.is_empty() {
            let gone = churning.swap_remove(rng.usize(..churning.len()));
            table.remove(gone);
            all.remove(&gone);
        }
    }
    let is_found = |hash: &KeyHash| found.contains(&Table::slot(*hash).0);
    (staying.iter().all(is_found), table.generation - generation)
}

#[test]
fn keys_that_stay_are_found_while_the_table_grows() {
    let mut grown = 0;
    for seed in 0..300 {
        let (is_complete, times) = scan_while_keys_change(seed, Fault::Nothing);
        assert!(is_complete, "seed {seed}");
        grown += times;
    }
    assert!(grown > 300, "tables grow during scans: {grown}");
}

#[test]
fn scan_that_leaves_out_buckets_is_noticed() {
    for fault in [Fault::NoRescan, Fault::SkipsBucket] {
        let missed = (0..300).filter(|seed| !scan_while_keys_change(*seed, fault).0).count();
        assert!(missed > 30, "{fault:?}: {missed} of 300 scans missed a key");
    }
}
