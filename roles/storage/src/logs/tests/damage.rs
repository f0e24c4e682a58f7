//! Lost bytes that were synced: the node distinguishes them from lost unsynced bytes, and takes new
//! bytes in their place.

use archipelago_base::ErrorKind;
use archipelago_env::FileClass;
use archipelago_env::FileSystem as _;
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, StoreMessage};

use super::super::format::tests::set_version;
use super::Durability::{Synced, Written};
use super::*;

/// A synced append to the manifest whose first byte has offset [`START`].
fn append_manifest(node: &StorageNode, range: Range<u64>) -> StoreMessage {
    let request = StoreMessage::Append {
        at: AT,
        stamp: stamp(1),
        class: FileClass::Manifest,
        extent_start: START,
        start: range.start,
        is_synced: true,
    };
    ask(node, request, &stream(range))
}

/// A machine whose node was killed after two synced appends to a manifest.
fn killed_manifest() -> Machine {
    let machine = Machine::new();
    let node = machine.open();
    append_manifest(&node, START..1200);
    assert_eq!(append_manifest(&node, 1200..1400), progress(1400, 1400));
    machine.killed()
}

/// Checks that the node on `machine` says that it has the bytes before `end` and has lost others.
fn assert_damaged(machine: &Machine, end: u64, what: &str) {
    let node = machine.open();
    assert_eq!(inspect(&node), damaged(end, None), "{what}");
    assert_eq!(fence(&node, 2), damaged(end, None), "{what}");
    assert_eq!(read(&node, START..1400), Ok(stream(START..end)), "{what}");
    let appended = append(&node, 2, end..1500, Written);
    assert_eq!(why(&appended), Some(RefusalWhy::Damaged), "{what}: {appended:?}");
    assert_eq!(why(&sync(&node, 2)), Some(RefusalWhy::Damaged), "{what}");
    assert_eq!(why(&seal(&node, 2, 1400)), Some(RefusalWhy::OutOfOrder { len: end }), "{what}");
}

#[test]
fn lost_synced_bytes_are_damage_after_kill_or_power_loss() {
    for seed in 0..4 {
        let machine = killed_manifest();
        change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
        assert_damaged(&machine, 1200, "a bad checksum of the last append");
        assert_damaged(&machine.without_power(seed), 1200, "and no power");
        let machine = killed_manifest();
        change_part(&machine, |bytes| bytes.truncate(bytes.len() - 150));
        assert_damaged(&machine, 1200, "a truncated file");
        assert_damaged(&machine.without_power(seed), 1200, "a truncated file and no power");
        let machine = killed_manifest();
        let dir = Path::new(DEVICE).join("logs");
        machine.disk.remove(&dir.join(&machine.parts()[0])).unwrap();
        machine.disk.sync_dir(&dir).unwrap();
        assert_damaged(&machine.without_power(seed), START, "a missing file");
    }
}

#[test]
fn every_lost_byte_of_a_manifest_is_damage() {
    let len = {
        let mut len = 0;
        change_part(&killed_manifest(), |bytes| len = bytes.len());
        len
    };
    for at in (0..len).step_by(7) {
        let machine = killed_manifest();
        change_part(&machine, |bytes| bytes[at] ^= 0x40);
        let answer = inspect(&machine.without_power(at as u64).open());
        assert!(matches!(answer, StoreMessage::ReplicaDamaged { .. }), "byte {at}: {answer:?}");
        let machine = killed_manifest();
        change_part(&machine, |bytes| bytes.truncate(at));
        let answer = inspect(&machine.open());
        assert!(matches!(answer, StoreMessage::ReplicaDamaged { .. }), "{at} bytes: {answer:?}");
    }
}

#[test]
fn rotten_version_of_a_file_is_damage() {
    for at in 8..12 {
        let machine = killed_manifest();
        change_part(&machine, |bytes| bytes[at] ^= 0x40);
        let node = machine.open();
        assert_eq!(inspect(&node), damaged(START, None), "byte {at}");
        assert_eq!(node.report().extents_in_limbo, 1, "an operator sees it");
        assert_eq!(repair(&node, 1, 1400)[1], progress(1400, 1400));
        assert_eq!(read(&node, START..1400), Ok(stream(START..1400)), "byte {at}");
    }
}

#[test]
fn file_of_another_version_is_refused() {
    let machine = killed_manifest();
    change_part(&machine, |bytes| set_version(bytes, 2));
    let devices = [PathBuf::from(DEVICE)];
    let opened = StorageNode::open(Arc::new(machine.clone()), &devices, node_options());
    let error = opened.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let machine = machine.killed();
    change_part(&machine, |bytes| set_version(bytes, 1));
    assert_eq!(inspect(&machine.open()), replica(1400, 1400, None, false), "nothing has changed");
}

#[test]
fn lost_unsynced_bytes_are_limbo() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    append(&node, 1, 1200..9000, Written);
    for seed in 0..20 {
        let answer = inspect(&machine.without_power(seed).open());
        assert!(matches!(answer, StoreMessage::ReplicaIs { is_in_limbo: true, .. }), "{answer:?}");
    }
    let machine = machine.without_power(1);
    change_part(&machine, |bytes| bytes.truncate(150));
    let answer = inspect(&machine.open());
    assert_eq!(answer, damaged(START, None), "the first synced append of a file is marked");
}

#[test]
fn loss_after_a_close_is_damage() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Written);
    node.close().unwrap();
    drop(node);
    let machine = machine.without_power(3);
    change_part(&machine, |bytes| bytes.truncate(bytes.len() - 1));
    assert_eq!(inspect(&machine.open()), damaged(START, None));
}

#[test]
fn damaged_extent_is_healed_by_a_recovery() {
    let machine = killed_manifest();
    change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let node = machine.open();
    assert_eq!(node.report().extents_in_limbo, 1, "an operator sees it");
    let request = StoreMessage::PutLog {
        at: AT,
        stamp: stamp(2),
        class: FileClass::Manifest,
        extent_start: START,
        start: 1200,
    };
    assert_eq!(ask(&node, request, &stream(1200..1500)), progress(1500, 1200));
    assert_eq!(seal(&node, 2, 1500), progress(1500, 1500));
    for node in [node, machine.killed().open(), machine.without_power(2).open()] {
        assert_eq!(inspect(&node), replica(1500, 1500, Some(1500), false));
        assert_eq!(read(&node, START..1500), Ok(stream(START..1500)));
    }
}

#[test]
fn repair_heals_a_damaged_extent_only_if_it_cuts_no_synced_byte() {
    let machine = killed_manifest();
    change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let node = machine.open();
    // The bytes before 1400 were durable, and another node was sealed at an earlier end.
    for answer in repair(&node, 1, 1300) {
        assert_eq!(why(&answer), Some(RefusalWhy::LongerReplica), "{answer:?}");
    }
    assert_eq!(inspect(&node), damaged(1200, None));
    assert_eq!(repair(&node, 1, 1400)[1], progress(1400, 1400));
    assert_eq!(inspect(&node), replica(1400, 1400, Some(1400), false));
}

/// A machine whose node was killed after a synced append to each of two parts.
fn killed_with_two_parts() -> Machine {
    let machine = Machine::new();
    append(&machine.open(), 1, START..1200, Synced);
    let machine = machine.killed();
    assert_eq!(append(&machine.open(), 1, 1200..1400, Synced), progress(1400, 1400));
    let machine = machine.killed();
    assert_eq!(machine.parts().len(), 2);
    machine
}

/// Checks that a repair cuts none of the bytes before 1400, of which the node has those before
/// `end`.
fn assert_cuts_nothing(node: &StorageNode, end: u64) {
    assert_eq!(inspect(node), damaged(end, None));
    for answer in repair(node, 1, 1300) {
        assert_eq!(why(&answer), Some(RefusalWhy::LongerReplica), "{answer:?}");
    }
    assert_eq!(inspect(node), damaged(end, None));
}

#[test]
fn repair_knows_the_synced_bytes_of_a_missing_part() {
    let machine = killed_with_two_parts();
    let last = Path::new(DEVICE).join("logs").join(&machine.parts()[1]);
    machine.disk.remove(&last).unwrap();
    let node = machine.open();
    assert_cuts_nothing(&node, 1200);
    // A read finds more damage, and the record that it writes does not name the missing part.
    change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
    assert_eq!(read(&node, START..1200), Err(RefusalWhy::Damaged));
    let node = machine.killed().open();
    assert_cuts_nothing(&node, START);
    assert_eq!(repair(&node, 1, 1400)[1], progress(1400, 1400));
    assert_eq!(inspect(&node), replica(1400, 1400, Some(1400), false));
}

#[test]
fn repair_knows_the_synced_bytes_behind_a_rotten_part() {
    let machine = killed_with_two_parts();
    change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let node = machine.open();
    assert_cuts_nothing(&node, START);
    assert_eq!(repair(&node, 1, 1400)[1], progress(1400, 1400));
    assert_eq!(inspect(&node), replica(1400, 1400, Some(1400), false));
}

#[test]
fn mark_costs_a_sync_per_edit_of_a_manifest_and_none_per_group_of_a_log() {
    let syncs_of = |class: FileClass| {
        let machine = Machine::new();
        let node = machine.open();
        let mut counts = Vec::new();
        for number in 0..4 {
            let before = machine.disk.sync_count();
            let request = StoreMessage::Append {
                at: AT,
                stamp: stamp(1),
                class,
                extent_start: START,
                start: START + number * 100,
                is_synced: true,
            };
            let end = START + (number + 1) * 100;
            assert_eq!(ask(&node, request, &stream(end - 100..end)), progress(end, end));
            counts.push(machine.disk.sync_count() - before);
        }
        counts
    };
    // The first append syncs the promise, the record, the file, its directory and the mark.
    assert_eq!(syncs_of(FileClass::Wal), [5, 1, 1, 1]);
    assert_eq!(syncs_of(FileClass::Manifest), [5, 2, 2, 2]);
}

fn scrub(node: &StorageNode) {
    ask(node, StoreMessage::Scrub {}, &[]);
    let rounds = node.report().scrub.rounds;
    for _ in 0..100 {
        node.scrub_step(1);
        if node.report().scrub.rounds > rounds {
            return;
        }
    }
    panic!("the round does not end: {:?}", node.report().scrub);
}

#[test]
fn scrub_finds_damage_of_open_and_sealed_extents() {
    for is_sealed in [false, true] {
        let machine = Machine::new();
        let node = machine.open();
        append(&node, 1, START..1200, Synced);
        append(&node, 1, 1200..1400, Synced);
        let sealed = is_sealed.then_some(1400);
        if is_sealed {
            seal(&node, 1, 1400);
        }
        change_part(&machine, |bytes| *bytes.last_mut().unwrap() ^= 1);
        scrub(&node);
        let report = node.report();
        assert_eq!((report.scrub.damaged_chunks, report.scrub.unread), (1, 0));
        let answer = StoreMessage::ReplicaDamaged { valid_end: 1200, synced: 1400, sealed };
        assert_eq!(inspect(&node), answer);
        assert!(why(&append(&node, 1, 1400..1500, Written)).is_some());
        scrub(&node);
        assert_eq!(node.report().scrub.damaged_chunks, 0, "known damage is not counted again");
        // The damage is known after a restart, without another read, and a repair ends it.
        let machine = machine.killed();
        let node = machine.open();
        let answer = inspect(&node);
        assert!(
            matches!(answer, StoreMessage::ReplicaDamaged { valid_end: 1200, .. }),
            "{answer:?}"
        );
        put(&node, 2, 1200..1400);
        assert_eq!(seal(&node, 2, 1400), progress(1400, 1400));
        scrub(&node);
        assert_eq!(node.report().scrub.damaged_chunks, 0);
        assert_eq!(inspect(&machine.killed().open()), replica(1400, 1400, Some(1400), false));
    }
}

#[test]
fn extent_that_cannot_be_read_is_no_damage() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    seal(&node, 1, 1200);
    drop(node);
    let fs = FaultFs::new(Arc::new(machine.killed()), 3);
    let devices = [PathBuf::from(DEVICE)];
    let node = StorageNode::open(Arc::new(fs.clone()), &devices, node_options()).unwrap();
    fs.add(Rule::on(Operation::Open).path("/logs/"));
    scrub(&node);
    let report = node.report();
    assert_eq!((report.scrub.damaged_chunks, report.scrub.unread), (0, 1));
    assert_eq!(inspect(&node), replica(1200, 1200, Some(1200), false));
    fs.clear();
    scrub(&node);
    assert_eq!(node.report().scrub.unread, 0, "the next round reads it");
}

#[test]
fn files_of_other_extents_are_not_believed() {
    let machine = Machine::new();
    let node = machine.open();
    append(&node, 1, START..1200, Synced);
    let other = ExtentAt { extent: 2, ..AT };
    let request = StoreMessage::Append {
        at: other,
        stamp: stamp(1),
        class: FileClass::Wal,
        extent_start: START,
        start: START,
        is_synced: true,
    };
    ask(&node, request, &stream(START..1200));
    drop(node);
    let machine = machine.killed();
    let dir = Path::new(DEVICE).join("logs");
    let parts = machine.parts();
    let context = IoContext::manifest(IoPurpose::Maintenance);
    let bytes = machine.disk.read(&dir.join(&parts[1]), context).unwrap();
    machine.disk.write_atomic(&dir.join(&parts[0]), &bytes, context).unwrap();
    assert_eq!(inspect(&machine.open()), damaged(START, None));
}
