//! Bit rot, missing files, and reports of damage.

use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::{IoContext, IoPurpose};
use archipelago_store::nodes::wire::UnservedBytes;

use super::*;

const CONTEXT: IoContext = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);

/// The only file of a chunk on the disk.
fn only_file(fs: &MemFs) -> PathBuf {
    files(fs, "/n").pop().unwrap()
}

fn flip(fs: &MemFs, path: &Path, at: usize) {
    let mut bytes = fs.read(path, CONTEXT).unwrap();
    bytes[at] ^= 0x40;
    fs.write_atomic(path, &bytes, CONTEXT).unwrap();
}

fn scrub(node: &StorageNode) {
    tell(node, StoreMessage::Scrub {}).unwrap();
    let rounds = node.report().scrub.rounds;
    for _ in 0..1000 {
        node.scrub_step(1);
        if node.report().scrub.rounds > rounds {
            return;
        }
    }
    panic!("the round does not end: {:?}", node.report().scrub);
}

#[test]
fn rot_of_any_byte_is_noticed_by_the_scrub() {
    let len = 60;
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, len);
    drop(node);
    let file_bytes = fs.len(&only_file(&fs)).unwrap() as usize;
    assert!(file_bytes > len + 60);
    for at in 0..file_bytes {
        let rotten = fs.kill_clone();
        flip(&rotten, &only_file(&rotten), at);
        let node = open(&rotten);
        scrub(&node);
        let report = node.report();
        assert_eq!((report.chunks, report.chunks_unreadable), (0, 1), "byte {at}");
        assert_eq!((report.scrub.damaged_chunks, report.counters.damaged), (1, 1), "byte {at}");
        assert_eq!(describe(&node, chunk(1).blob), []);
        assert_eq!(read(&node, chunk(1), 0, len), Err(RefusalWhy::Damaged), "byte {at}");
    }
}

#[test]
fn rot_of_any_byte_is_noticed_by_a_reader() {
    let len = 60;
    let fs = MemFs::new();
    drop({
        let node = open(&fs);
        write(&node, 1, len);
        node
    });
    for at in 0..fs.len(&only_file(&fs)).unwrap() as usize {
        let rotten = fs.kill_clone();
        flip(&rotten, &only_file(&rotten), at);
        assert_eq!(read(&open(&rotten), chunk(1), 0, len), Err(RefusalWhy::Damaged), "byte {at}");
    }
}

#[cfg(feature = "sabotage")]
#[test]
fn canary_of_checksums_hides_rot_from_the_scrub() {
    let fs = MemFs::new();
    drop({
        let node = open(&fs);
        write(&node, 1, LEN);
        node
    });
    flip(&fs, &only_file(&fs), 5000);
    let sabotage = crate::Sabotage { no_crc: true, ..Default::default() };
    let blind =
        open_with(Arc::new(fs.kill_clone()), &["/n"], NodeOptions { sabotage, ..options() });
    scrub(&blind);
    assert_eq!(blind.report().chunks_unreadable, 0);
    let node = open(&fs);
    scrub(&node);
    assert_eq!(node.report().chunks_unreadable, 1);
}

#[test]
fn reported_piece_is_checked_by_the_node() {
    let fs = MemFs::new();
    drop({
        let node = open(&fs);
        write(&node, 1, LEN);
        write(&node, 2, LEN);
        node
    });
    let path = files(&fs, "/n").into_iter().find(|path| path.to_string_lossy().contains("/01/"));
    flip(&fs, &path.unwrap(), 5000);
    let node = open(&fs);
    assert_eq!(read(&node, chunk(1), 0, 10).unwrap(), bytes(1, LEN)[..10]);
    let report = |number, offset| {
        tell(&node, StoreMessage::ReportDamage { chunk: chunk(number), offset }).unwrap();
    };
    report(2, 4096);
    report(1, 0);
    report(9, 0);
    report(1, 1 << 40);
    assert_eq!(node.report().chunks, 2, "false reports change nothing");
    report(1, 4096);
    assert_eq!(describe(&node, chunk(1).blob), []);
    assert_eq!(node.report().chunks, 1);
}

#[test]
fn damaged_chunk_stays_aside_until_a_repair_replaces_it() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    let path = only_file(&fs);
    drop(node);
    flip(&fs, &path, 1);
    let node = open(&fs);
    scrub(&node);
    let aside = |fs: &MemFs| fs.list(Path::new("/n/damaged")).unwrap().len();
    for seed in 0..4 {
        let crashed = fs.crash_clone(seed);
        let node = open(&crashed);
        assert_eq!(node.report().chunks_unreadable, 1);
        assert_eq!((files(&crashed, "/n").len(), aside(&crashed)), (0, 1));
    }
    let payload = bytes(1, LEN);
    let StoreMessage::PutChunk { chunk: id, class, offset, crcs, .. } =
        put_message(chunk(1), 0, &payload)
    else {
        panic!()
    };
    let (stamp, purpose) = (None, WritePurpose::Repair);
    let message = StoreMessage::PutChunk { chunk: id, stamp, class, purpose, offset, crcs };
    done(ask(&node, message, &payload).0).unwrap();
    let descriptor = descriptor(&node, chunk(1), LEN);
    tell(&node, StoreMessage::SealChunk { stamp: None, descriptor }).unwrap();
    assert!(is_whole(&node, 1, LEN));
    assert_eq!((node.report().chunks_unreadable, aside(&fs)), (0, 0));
    for seed in 0..8 {
        let node = open(&fs.crash_clone(seed));
        assert!(is_whole(&node, 1, LEN), "seed {seed}");
        assert_eq!(node.report().chunks_unreadable, 0);
    }
}

#[test]
fn damaged_chunk_is_released_with_its_file() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    drop(node);
    flip(&fs, &only_file(&fs), 1);
    let node = open(&fs);
    scrub(&node);
    assert_eq!(list(&node, VOLUME).len(), 1, "the owner still finds it");
    release(&node, 1, STAMP).unwrap();
    assert_eq!(fs.list(Path::new("/n/damaged")).unwrap().len(), 0);
    assert_eq!((list(&node, VOLUME).len(), node.report().chunks_unreadable), (0, 0));
}

#[test]
fn truncated_or_missing_file_is_reported() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    write(&node, 2, LEN);
    drop(node);
    let paths = files(&fs, "/n");
    fs.write_atomic(&paths[0], b"short", CONTEXT).unwrap();
    fs.remove(&paths[1]).unwrap();
    let node = open(&fs);
    let report = node.report();
    assert_eq!((report.chunks, report.chunks_unreadable), (0, 2));
    assert_eq!(read(&node, chunk(1), 0, 1), Err(RefusalWhy::Damaged));
    assert_eq!(read(&node, chunk(2), 0, 1), Err(RefusalWhy::NotThere));
    write(&node, 2, LEN);
    assert!(is_whole(&node, 2, LEN), "a repair may write it again");
}

/// A node on a disk that fails by a script, with chunk 1 from an earlier life.
fn faulty() -> (MemFs, FaultFs, Arc<StorageNode>) {
    let fs = MemFs::new();
    drop({
        let node = open(&fs);
        write(&node, 1, LEN);
        node
    });
    let faults = FaultFs::new(Arc::new(fs.clone()), 5);
    let node = open_with(Arc::new(faults.clone()), &["/n"], options());
    (fs, faults, node)
}

#[test]
fn chunk_that_cannot_be_read_is_no_damage() {
    for operation in [Operation::Open, Operation::Read] {
        let (_, faults, node) = faulty();
        let rule = faults.add(Rule::on(operation).path("/chunks/"));
        scrub(&node);
        assert_eq!(faults.fired_by(rule), 3, "{operation:?}");
        let report = node.report();
        assert_eq!((report.chunks, report.chunks_unreadable), (1, 0), "{operation:?}");
        assert_eq!((report.scrub.damaged_chunks, report.scrub.unread), (0, 1), "{operation:?}");
        faults.clear();
        scrub(&node);
        assert_eq!(node.report().scrub.unread, 0, "the next round reads it");
        assert!(is_whole(&node, 1, LEN));
    }
}

#[test]
fn passing_fault_is_tried_again_in_the_same_round() {
    let (_, faults, node) = faulty();
    faults.add(Rule::on(Operation::Open).path("/chunks/").times(2));
    scrub(&node);
    let scrub = node.report().scrub;
    assert_eq!((scrub.damaged_chunks, scrub.unread), (0, 0));
    assert!(scrub.read_bytes >= LEN as u64);
}

#[test]
fn recorded_place_inside_a_piece_is_no_damage() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    let (open, _) = node.chunks().begin_check(chunk(1)).unwrap().unwrap();
    for offset in [1, 4097, LEN as u64 - 1, LEN as u64, u64::MAX] {
        node.chunks().check_part(chunk(1), &open, offset, 1 << 20).unwrap().expect("whole");
    }
    assert!(is_whole(&node, 1, LEN));
}

#[test]
fn file_of_another_length_is_counted_as_it_is() {
    let fs = MemFs::new();
    drop({
        let node = open(&fs);
        write(&node, 1, LEN);
        node
    });
    let path = only_file(&fs);
    for bytes in [0, 1, 60, LEN / 2, 100_000] {
        let fs = fs.kill_clone();
        fs.write_atomic(&path, &vec![7; bytes], CONTEXT).unwrap();
        let node = open(&fs);
        let report = node.report();
        assert_eq!((report.chunks, report.chunks_unreadable), (0, 1), "{bytes} bytes");
        assert_eq!(report.space.used_bytes, bytes as u64);
        assert_eq!(read(&node, chunk(1), 0, 1), Err(RefusalWhy::Damaged), "{bytes} bytes");
        write(&node, 1, LEN);
        assert!(is_whole(&node, 1, LEN), "{bytes} bytes");
    }
}

#[test]
fn foreign_files_are_left_alone() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    drop(node);
    let letter = only_file(&fs).with_file_name("letter");
    fs.write_atomic(&letter, b"dear", CONTEXT).unwrap();
    assert!(is_whole(&open(&fs), 1, LEN));
    assert!(fs.exists(&letter).unwrap());
}

#[test]
fn bytes_of_chunks_that_are_not_served_are_known() {
    let fs = MemFs::new();
    let node = open(&fs);
    write(&node, 1, LEN);
    assert_eq!(node.report().unserved, UnservedBytes::default());
    drop(node);
    let file = only_file(&fs);
    let damaged = fs.len(&file).unwrap();
    flip(&fs, &file, 5000);
    let node = open(&fs);
    scrub(&node);
    assert_eq!(node.report().unserved, UnservedBytes { damaged, ..UnservedBytes::default() });
    assert_eq!(node.report().unserved.garbage_bytes(), damaged);
    put(&node, chunk(2), 0, &bytes(2, LEN)).unwrap();
    let unsealed = 3 * 4096;
    assert_eq!(node.report().unserved, UnservedBytes { damaged, unsealed, removed: 0 });
    drop(node);
    // The damage is remembered, and the chunk that was being written is gone.
    let node = open(&fs);
    assert_eq!(node.report().unserved, UnservedBytes { damaged, ..UnservedBytes::default() });
    // A repair replaces the damaged file.
    let repaired = node_with_repair(&fs.kill_clone());
    assert_eq!(repaired.report().unserved, UnservedBytes::default());
    // A release removes it.
    release(&node, 1, STAMP).unwrap();
    assert_eq!(node.report().unserved, UnservedBytes::default());
}

/// The node of a disk on which a repair has made chunk 1 again.
fn node_with_repair(fs: &MemFs) -> Arc<StorageNode> {
    let node = open(fs);
    repairs::begin(&node, chunk(1), &bytes(1, LEN));
    repairs::seal_for(&node, chunk(1), LEN, &[VOLUME]).unwrap();
    node
}
