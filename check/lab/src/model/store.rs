//! The modelled store: a real `Version` without files behind it, and sealed memtables.
//!
//! Invariant: the records of all files are those flushed less those dropped
//! ([`Store::check`]); the version's own invariants hold after every edit that a test looks at.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::{CfId, Epoch};
use archipelago_engine::bucket::BucketMap;
use archipelago_engine::compaction::pick::Pick;
use archipelago_engine::db::flush_plan::{FlushPlan, SealedView, ShardState, plan_flush};
use archipelago_engine::file_meta::FileMeta;
use archipelago_engine::live_file::Trash;
use archipelago_engine::options::Compression;
use archipelago_engine::table_content::TableContent;
use archipelago_engine::value_ref::ValueRefs;
use archipelago_engine::version::{Version, VersionBuilder};

use super::keyspace::{self, Run, key};
use super::setting::Setting;
use super::split::normal;
use archipelago_bench::harness::store::{Error, Result};

/// The column family that is modelled.
pub(super) const CF: CfId = CfId(0);

/// A sealed memtable.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) id: u64,
    map: Arc<BucketMap>,
    shards: Vec<ShardState>,
    /// Records that were written to it, and the last one's number.
    drawn: u64,
    last_seq: u64,
}

/// Memtables that one flush takes.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) plan: FlushPlan,
    pub(super) memtables: Vec<u64>,
    /// Records written to its shards.
    pub(super) drawn: u64,
    pub(super) seqs: (u64, u64),
}

/// The modelled store: memtables, files and their sizes.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) version: Arc<Version>,
    pub(super) sealed: VecDeque<Sealed>,
    /// Bucket map that cuts the active memtable.
    active_map: Arc<BucketMap>,
    trash: Arc<Trash>,
    next_no: u64,
    next_memtable: u64,
    space: u64,
    file_bytes_per_record: f64,
    /// Number of records that flushes took out of memtables.
    pub(super) flushed: u64,
    /// Records that flushes and compactions found overwritten.
    pub(super) dropped: i64,
}

impl Store {
    pub(super) fn new(setting: &Setting) -> Self {
        let version = Version::empty(CF, Arc::new(setting.options()));
        Self {
            active_map: Arc::clone(version.map()),
            version,
            sealed: VecDeque::new(),
            trash: Arc::default(),
            next_no: 1,
            next_memtable: 1,
            space: setting.records,
            file_bytes_per_record: setting.cost.file_bytes_per_record,
            flushed: 0,
            dropped: 0,
        }
    }

    /// Seals the active memtable, which has `drawn` records up to number `last_seq`.
    pub(super) fn seal(&mut self, drawn: u64, last_seq: u64) {
        let map = std::mem::replace(&mut self.active_map, Arc::clone(self.version.map()));
        let shards = vec![ShardState::Pending; map.len()];
        self.sealed.push_back(Sealed { id: self.next_memtable, map, shards, drawn, last_seq });
        self.next_memtable += 1;
    }

    /// Number of records of sealed memtables that are not in tables yet.
    pub(super) fn backlog(&self) -> u64 {
        let shards = self.sealed.iter().flat_map(|sealed| {
            let waiting = |shard: &usize| sealed.shards[*shard] != ShardState::Installed;
            (0..sealed.shards.len()).filter(waiting).map(move |shard| (sealed, shard))
        });
        shards.map(|(sealed, shard)| shard_records(sealed, shard, self.space)).sum()
    }

    /// Chooses the next flush by the engine's plan, and marks its shards as running.
    pub(super) fn take_flush(&mut self) -> Option<Taken> {
        let views: Vec<SealedView<'_>> = self
            .sealed
            .iter()
            .map(|s| SealedView { map: &s.map, shards: &s.shards, ready: true, unlogged: false })
            .collect();
        let plan = plan_flush(&views, &[], None)?;
        let mut taken = Taken { memtables: Vec::new(), drawn: 0, seqs: (u64::MAX, 0), plan };
        for sealed in self.sealed.range_mut(taken.plan.memtables.clone()) {
            for shard in taken.plan.shards.clone() {
                if sealed.shards[shard] == ShardState::Pending {
                    sealed.shards[shard] = ShardState::Running;
                }
                taken.drawn += shard_records(sealed, shard, self.space);
            }
            taken.memtables.push(sealed.id);
            taken.seqs.0 = taken.seqs.0.min(sealed.last_seq + 1 - sealed.drawn);
            taken.seqs.1 = taken.seqs.1.max(sealed.last_seq);
        }
        Some(taken)
    }

    /// Cuts the key space by the first memtable's keys, as the engine does when it flushes it: the
    /// quantiles of `drawn` random keys.
    pub(super) fn set_first_map(
        &mut self,
        wanted: usize,
        drawn: u64,
        rng: &mut archipelago_base::random::Rng,
    ) -> Result<()> {
        let version = &self.version;
        if wanted <= 1 || version.map().epoch().0 > 0 || version.l0_layers_max() > 0 {
            return Ok(());
        }
        let mut cuts: Vec<u64> = (1..wanted)
            .map(|at| {
                let share = at as f64 / wanted as f64;
                let spread = (share * (1.0 - share) / drawn.max(1) as f64).sqrt();
                ((share + spread * normal(rng)).clamp(0.0, 1.0) * self.space as f64) as u64
            })
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        let map = BucketMap::new(Epoch(1), cuts.into_iter().map(key).collect())?;
        let mut builder = VersionBuilder::new(&self.version);
        builder.set_map(map)?;
        self.version = builder.finish(&self.trash)?.version;
        Ok(())
    }

    /// Replaces the inputs of a flush or a compaction by its outputs.
    pub(super) fn install(
        &mut self,
        removed: &[(usize, u64)],
        added: Vec<(usize, FileMeta)>,
    ) -> Result<()> {
        let mut builder = VersionBuilder::new(&self.version);
        for &(level, no) in removed {
            builder.remove(level, no)?;
        }
        for (level, meta) in added {
            builder.add(level, meta)?;
        }
        self.version = builder.finish(&self.trash)?.version;
        Ok(())
    }

    /// Marks the shards of a flush as written to files.
    pub(super) fn mark_installed(&mut self, taken: &Taken) {
        for sealed in self.sealed.iter_mut().filter(|s| taken.memtables.contains(&s.id)) {
            for shard in taken.plan.shards.clone() {
                sealed.shards[shard] = ShardState::Installed;
            }
        }
        self.sealed.retain(|s| s.shards.iter().any(|shard| *shard != ShardState::Installed));
    }

    /// A new file's metadata.
    pub(super) fn file(&mut self, run: &Run, seqs: (u64, u64)) -> FileMeta {
        let no = self.next_no;
        self.next_no += 1;
        let entries = (run.records.round() as u64).max(1);
        FileMeta {
            no,
            unique_id: u128::from(no).to_le_bytes(),
            size_bytes: (entries as f64 * self.file_bytes_per_record) as u64,
            checksum: 0,
            smallest: key(run.lo),
            largest: key(run.hi - 1),
            largest_exclusive: false,
            smallest_seq: seqs.0,
            largest_seq: seqs.1,
            entries,
            deletions: 0,
            range_deletions: 0,
            raw_bytes: 0,
            global_seq: None,
            median_key: key(run.lo + (run.hi - run.lo) / 2),
            created_unix_ms: 0,
            content: TableContent { compression: Compression::None, ..TableContent::default() },
            refs: ValueRefs::default(),
        }
    }

    /// The boundaries of the bucket map as numbers.
    pub(super) fn boundaries(&self) -> Vec<u64> {
        self.version.map().boundaries().iter().map(|key| keyspace::number(key)).collect()
    }

    /// Records in all files.
    pub(super) fn records(&self) -> u64 {
        self.version.files().map(|(_, file)| file.entries).sum()
    }

    /// Checks that every flushed record is in a file or was dropped.
    pub(super) fn check(&self) -> Result<()> {
        let expected = self.flushed as i64 - self.dropped;
        if self.records() as i64 != expected {
            return Err(Error::invalid(format!(
                "the model lost records: {} in files, {expected} expected",
                self.records()
            )));
        }
        self.version.check()
    }
}

/// Number of records of a shard. Keys are spread evenly, so it follows from the shard's part of the
/// key space.
fn shard_records(sealed: &Sealed, shard: usize, space: u64) -> u64 {
    let (lo, hi) = keyspace::numbers(&sealed.map.range(shard), space);
    let before = |number: u64| {
        (u128::from(sealed.drawn) * u128::from(number) / u128::from(space.max(1))) as u64
    };
    before(hi) - before(lo)
}

/// The smallest and largest sequence number of a compaction's inputs.
pub(super) fn seqs_of(pick: &Pick) -> (u64, u64) {
    let files = || pick.inputs().map(|(_, file)| file);
    let smallest = files().map(|file| file.smallest_seq).min().unwrap_or(0);
    (smallest, files().map(|file| file.largest_seq).max().unwrap_or(0))
}
