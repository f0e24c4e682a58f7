//! Restarts after kills and power losses, at every sync.

use std::collections::BTreeSet;

use archipelago_base::random::Rng;
use parking_lot::Mutex;

use super::repairs::{begin, seal_for};
use super::*;

#[test]
fn sealed_chunk_survives_and_unsealed_one_vanishes() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    put(&node, chunk(2), 0, &bytes(2, 200 << 10)).unwrap();
    for seed in 0..20 {
        let crashed = fs.crash_clone(seed);
        let node = open(&crashed);
        assert!(is_whole(&node, 1, LEN), "seed {seed}");
        assert_eq!(read(&node, chunk(2), 0, 1), Err(RefusalWhy::NotThere));
        assert_eq!(list(&node, VOLUME).len(), 1);
        assert_eq!(files(&crashed, "/n").len(), 1, "nothing of the unsealed chunk is left");
        let used = node.report().space.used_bytes;
        assert!(used < 10 << 10, "{used} bytes are used");
    }
    let killed = open(&fs.kill_clone());
    assert!(is_whole(&killed, 1, LEN));
    assert_eq!(list(&killed, VOLUME).len(), 1);
}

#[test]
fn sealed_chunk_is_found_without_its_record() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    drop(node);
    fs.remove_dir_all(Path::new("/n/meta")).unwrap();
    let node = open(&fs);
    assert!(is_whole(&node, 1, LEN));
    assert_eq!(describe(&node, chunk(1).blob), [descriptor(&node, chunk(1), LEN)]);
}

/// State of the chunks that the answers so far have promised.
#[derive(Clone, Debug, Default)]
struct Promised {
    /// Chunks that are sealed, and whose release has not begun.
    sealed: BTreeSet<u8>,
    /// Chunks whose release was answered.
    released: BTreeSet<u8>,
}

#[test]
fn answers_hold_at_every_power_loss() {
    let fs = MemFs::new();
    let node = open(&fs);
    let promised: Arc<Mutex<Promised>> = Arc::default();
    let crashes: Arc<Mutex<Vec<(MemFs, Promised)>>> = Arc::default();
    let (seen, kept) = (Arc::clone(&promised), Arc::clone(&crashes));
    fs.on_sync(Arc::new(move |fs, _| {
        let mut kept = kept.lock();
        let seed = kept.len() as u64;
        kept.push((fs.crash_clone(seed), seen.lock().clone()));
    }));
    let rng = &mut Rng::with_seed(11);
    for number in 0..24u8 {
        let len = rng.usize(1..40_000);
        put(&node, chunk(number), 0, &bytes(number, len)).unwrap();
        if rng.u8(0..4) == 0 {
            continue;
        }
        seal(&node, chunk(number), len).unwrap();
        promised.lock().sealed.insert(number);
        let oldest = promised.lock().sealed.first().copied();
        if let Some(oldest) = oldest.filter(|_| rng.u8(0..3) == 0) {
            promised.lock().sealed.remove(&oldest);
            release(&node, oldest, STAMP).unwrap();
            promised.lock().released.insert(oldest);
        }
    }
    fs.clear_on_sync();
    crashes.lock().push((fs.crash_clone(99), promised.lock().clone()));
    for (at, (crashed, promised)) in crashes.lock().iter().enumerate() {
        check_promises(crashed, promised, at);
        // A second power loss, during or after the opening, changes nothing.
        check_promises(&crashed.crash_clone(at as u64), promised, at);
    }
}

fn check_promises(fs: &MemFs, promised: &Promised, at: usize) {
    let node = open(fs);
    for number in &promised.sealed {
        let found = describe(&node, chunk(*number).blob);
        let len = found.first().map_or(0, |chunk| chunk.blob_bytes as usize);
        assert!(len > 0 && is_whole(&node, *number, len), "crash {at} lost chunk {number}");
    }
    for number in &promised.released {
        let found = describe(&node, chunk(*number).blob);
        assert_eq!(found, [], "crash {at} brought chunk {number} back");
    }
    let listed = list(&node, VOLUME);
    assert!(listed.iter().all(|entry| entry.is_sealed), "crash {at} left an unsealed chunk");
    assert_eq!(files(fs, "/n").len(), listed.len(), "crash {at} left files");
    drop(node);
}

#[test]
fn opening_reads_no_data() {
    use archipelago_env::fault::{FaultFs, Operation};
    let memory = MemFs::new();
    let node = open(&memory);
    (1..=20).for_each(|number| write(&node, number, 100 << 10));
    drop(node);
    let counting = FaultFs::new(Arc::new(memory), 1);
    let empty = FaultFs::new(Arc::new(MemFs::new()), 1);
    let of_none = open_with(Arc::new(empty.clone()), &["/n"], options());
    let of_many = open_with(Arc::new(counting.clone()), &["/n"], options());
    let reads = |fs: &FaultFs| fs.seen(Operation::Open);
    assert!(reads(&counting) < reads(&empty) + 15, "{} opened files", reads(&counting));
    drop((of_none, of_many));
}

/// Writes and releases chunks. Requests may be refused. The function notes the promises of the
/// answers.
fn write_and_release(node: &StorageNode, promised: &mut Promised) {
    for number in 0..6u8 {
        let len = 3000 * (usize::from(number) + 1);
        let is_put = put(node, chunk(number), 0, &bytes(number, len)).is_ok();
        if is_put && seal(node, chunk(number), len).is_ok() {
            promised.sealed.insert(number);
        }
    }
    let blobs = vec![chunk(3).blob, chunk(4).blob];
    let stamp = Stamp { volume: OTHER, ..STAMP };
    let _refused = tell(node, StoreMessage::Retain { blobs, stamp });
    for number in [0, 2, 4] {
        promised.sealed.remove(&number);
        if release(node, number, STAMP).is_ok() && number != 4 {
            promised.released.insert(number);
        }
    }
}

#[test]
fn answers_hold_when_any_operation_of_the_disk_fails() {
    use archipelago_env::fault::{FaultFs, Operation, Rule};
    for operation in Operation::ALL {
        for nth in 1..20 {
            let memory = MemFs::new();
            let faulty = FaultFs::new(Arc::new(memory.clone()), nth);
            let node = open_with(Arc::new(faulty.clone()), &["/n"], options());
            let rule = faulty.add(Rule::on(operation).nth(nth));
            let mut promised = Promised::default();
            write_and_release(&node, &mut promised);
            drop(node);
            let has_failed = faulty.fired_by(rule) > 0;
            faulty.clear();
            check_sealed_and_released(&memory.crash_clone(nth), &promised);
            check_sealed_and_released(&memory.kill_clone(), &promised);
            if !has_failed {
                assert!(promised.sealed.len() + promised.released.len() == 5, "{operation:?}");
                break;
            }
        }
    }
}

fn check_sealed_and_released(fs: &MemFs, promised: &Promised) {
    let node = open(fs);
    for number in &promised.sealed {
        let len = 3000 * (usize::from(*number) + 1);
        assert!(is_whole(&node, *number, len), "chunk {number} is lost");
    }
    for number in &promised.released {
        assert_eq!(describe(&node, chunk(*number).blob), [], "chunk {number} is back");
    }
}

#[test]
fn damage_and_repair_hold_at_every_power_loss() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    drop(node);
    let path = files(&fs, "/n").pop().unwrap();
    let context =
        archipelago_env::IoContext::new(FileClass::Sst, archipelago_env::IoPurpose::Maintenance);
    let mut rotten = fs.read(&path, context).unwrap();
    rotten[10] ^= 1;
    fs.write_atomic(&path, &rotten, context).unwrap();
    let is_repaired: Arc<Mutex<bool>> = Arc::default();
    let crashes: Arc<Mutex<Vec<(MemFs, bool)>>> = Arc::default();
    let (repaired, kept) = (Arc::clone(&is_repaired), Arc::clone(&crashes));
    let node = open(&fs);
    fs.on_sync(Arc::new(move |fs, _| {
        let seed = kept.lock().len() as u64;
        kept.lock().push((fs.crash_clone(seed), *repaired.lock()));
    }));
    tell(&node, StoreMessage::ReportDamage { chunk: chunk(1), offset: 0 }).unwrap();
    write(&node, 1, LEN);
    *is_repaired.lock() = true;
    write(&node, 2, LEN);
    fs.clear_on_sync();
    let crashes = crashes.lock();
    assert!(crashes.iter().any(|(_, is_repaired)| *is_repaired));
    for (at, (crashed, is_repaired)) in crashes.iter().enumerate() {
        let node = open(crashed);
        match read(&node, chunk(1), 0, LEN) {
            Ok(found) => assert!(found == bytes(1, LEN), "crash {at}"),
            Err(why) => {
                assert!(!is_repaired, "crash {at}: {why:?}");
                assert!(matches!(why, RefusalWhy::Damaged | RefusalWhy::NotThere), "{why:?}");
            }
        }
    }
}

#[test]
fn repaired_chunk_survives_power_loss_beside_a_tombstone() {
    let give_up: [fn(&StorageNode); 2] = [
        |node| release(node, 1, STAMP).unwrap(),
        |node| {
            let (blob, stamp) = (chunk(1).blob, STAMP);
            tell(node, StoreMessage::AbandonBlob { blob, stamp }).unwrap();
        },
    ];
    for (case, give_up) in give_up.iter().enumerate() {
        let fs = MemFs::new();
        let node = open(&fs);
        give_up(&node);
        begin(&node, chunk(1), &bytes(1, LEN));
        seal_for(&node, chunk(1), LEN, &[OTHER]).unwrap();
        for seed in 0..20 {
            let node = open(&fs.crash_clone(seed));
            assert!(is_whole(&node, 1, LEN), "case {case}, seed {seed}");
        }
    }
}
