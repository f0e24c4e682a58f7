//! Devices that fail or are full.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::{FileClass, FileLock, FileSystem, IoContext, OpenOptions, RandomFile};
use archipelago_fabric::ClientId;
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, StoreMessage};

use super::super::format::HEADER_BYTES;
use super::Durability::{Synced, Written};
use super::{
    AT, DEVICE, LOG, Machine, START, append, ask, damaged, fence, inspect, node_options, progress,
    put, read, replica, seal, stamp, stream, sync, why,
};
use crate::node::{Begun, StorageNode};

/// Another extent of the log.
const SECOND: ExtentAt = ExtentAt { log: LOG, extent: 2 };

fn append_to_second(node: &StorageNode) {
    let request = StoreMessage::Append {
        at: SECOND,
        stamp: stamp(1),
        class: FileClass::Wal,
        extent_start: 0,
        start: 0,
        is_synced: false,
    };
    assert_eq!(ask(node, request, b"bytes"), progress(5, 0));
}

fn sync_message() -> StoreMessage {
    StoreMessage::SyncLog { at: AT, stamp: stamp(1) }
}

/// The machine with a file system whose operations fail by a script.
fn faulty(machine: &Machine) -> FaultFs {
    FaultFs::new(Arc::new(machine.clone()), 7)
}

/// A faulty file system under the boot of [`Machine::new`], because a [`FaultFs`] itself has no
/// boot id.
#[derive(Debug)]
struct FirstBoot {
    fs: FaultFs,
}

impl FileSystem for FirstBoot {
    archipelago_env::forward_fs!(fs: create, open, create_log, remove, logs, looks, moves, dirs);
    archipelago_env::forward_fs!(fs: figures, space);

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.fs.lock(path)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        Machine::new().boot_id()
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        self.fs.free_bytes(dir)
    }
}

fn open(fs: &FaultFs, devices: &[&str]) -> Arc<StorageNode> {
    let devices: Vec<PathBuf> = devices.iter().map(PathBuf::from).collect();
    let fs = Arc::new(FirstBoot { fs: fs.clone() });
    StorageNode::open(fs, &devices, node_options()).unwrap()
}

#[test]
fn full_device_ends_an_extent_and_keeps_its_bytes() {
    let machine = Machine::new();
    let fs = faulty(&machine);
    let node = open(&fs, &["/device"]);
    append(&node, 1, START..1200, Written);
    let rule = Rule::on(Operation::LogAppend).path("/logs/").fault(Fault::ShortAppend);
    fs.add(rule.times(1));
    assert_eq!(why(&append(&node, 1, 1200..1900, Written)), Some(RefusalWhy::Full));
    assert_eq!(why(&append(&node, 1, 1200..1300, Written)), Some(RefusalWhy::Failed));
    assert_eq!(inspect(&node), replica(1200, START, None, false));
    assert_eq!(read(&node, START..1900), Ok(stream(START..1200)));
    let killed = machine.killed().open();
    assert_eq!(inspect(&killed), replica(1200, 1200, None, false), "the torn group is dropped");
    assert_eq!(append(&killed, 1, 1200..1300, Written), progress(1300, 1200));
    assert_eq!(seal(&node, 1, 1200), progress(1200, 1200));
}

#[test]
fn failed_sync_puts_the_extent_into_limbo() {
    let machine = Machine::new();
    let fs = faulty(&machine);
    let node = open(&fs, &["/device"]);
    append(&node, 1, START..1200, Synced);
    fs.add(Rule::on(Operation::LogSync).path("/logs/").times(1));
    assert_eq!(why(&append(&node, 1, 1200..1300, Synced)), Some(RefusalWhy::Failed));
    assert_eq!(inspect(&node), replica(1300, 1200, None, true));
    assert_eq!(why(&sync(&node, 1)), Some(RefusalWhy::InLimbo));
    assert_eq!(why(&append(&node, 1, 1300..1400, Written)), Some(RefusalWhy::InLimbo));
    // The page cache may have the bytes while the device lacks them, so a restart does not count
    // them as durable.
    let killed = machine.killed().open();
    assert_eq!(inspect(&killed), replica(1300, 1200, None, true), "the limbo is durable");
    assert_eq!(seal(&node, 1, 1300), progress(1300, 1300));
    assert_eq!(machine.parts().len(), 2, "the unsynced bytes were written anew");
    for seed in 0..8 {
        let node = machine.without_power(seed).open();
        assert_eq!(inspect(&node), replica(1300, 1300, Some(1300), false), "seed {seed}");
        assert_eq!(read(&node, START..1300), Ok(stream(START..1300)));
    }
}

#[test]
fn failed_sync_of_the_directory_is_not_forgotten() {
    let machine = Machine::new();
    let fs = faulty(&machine);
    let node = open(&fs, &["/device"]);
    append(&node, 1, START..1200, Written);
    append_to_second(&node);
    fs.add(Rule::on(Operation::SyncDir).path("/logs").times(1));
    let first = append(&node, 1, 1200..1300, Synced);
    assert_eq!(why(&first), Some(RefusalWhy::Failed));
    // A second sync of the directory would succeed, but the names of both files may be lost.
    assert_eq!(why(&sync(&node, 1)), Some(RefusalWhy::InLimbo));
    let second = StoreMessage::SyncLog { at: SECOND, stamp: stamp(1) };
    assert_eq!(why(&ask(&node, second, &[])), Some(RefusalWhy::Failed));
    assert_eq!(inspect(&node), replica(1300, START, None, true));
}

#[test]
fn waiting_syncs_share_the_failure_of_the_first() {
    let machine = Machine::new();
    let fs = faulty(&machine);
    let node = open(&fs, &["/device"]);
    append(&node, 1, START..1200, Written);
    let begin = || match node.begin(ClientId(1), sync_message(), &[], None) {
        Begun::NeedsSync(wanted) => wanted,
        Begun::Answered(..) => panic!("the bytes are not synced"),
    };
    let (first, second) = (begin(), begin());
    fs.add(Rule::on(Operation::SyncDir).path("/logs").times(1));
    for wanted in [first, second] {
        let (answer, _) = node.finish(ClientId(1), &wanted);
        assert_eq!(why(&answer), Some(RefusalWhy::Failed), "{answer:?}");
    }
}

#[test]
fn limbo_that_was_not_durable_is_written_again() {
    let machine = Machine::new();
    let fs = faulty(&machine);
    let node = open(&fs, &["/device"]);
    append(&node, 1, START..1200, Synced);
    append(&node, 1, 1200..1300, Written);
    fs.add(Rule::on(Operation::LogSync).path("/logs/").times(1));
    fs.add(Rule::on(Operation::LogAppend).path("/meta/").fault(Fault::NoSpace).times(1));
    assert!(why(&sync(&node, 1)).is_some());
    assert!(why(&append(&node, 1, 1300..1400, Written)).is_some());
    assert_eq!(inspect(&machine.killed().open()), replica(1300, 1200, None, true));
}

#[test]
fn refused_record_leaves_the_extent_as_it_was() {
    for nth in 1..12 {
        let machine = Machine::new();
        let fs = faulty(&machine);
        let node = open(&fs, &["/device"]);
        append(&node, 1, START..1200, Synced);
        put(&node, 2, 1100..1500);
        let operations = [Operation::LogAppend, Operation::LogSync];
        let rule = fs.add(Rule::on_any(&operations).path("/meta/").nth(nth));
        let sealed = seal(&node, 2, 1500);
        let has_failed = fs.fired_by(rule) > 0;
        if why(&sealed).is_none() {
            assert_eq!(sealed, progress(1500, 1500));
            break;
        }
        assert!(has_failed, "{sealed:?}");
        // A restart may find the old record or the new one. In both cases it finds the synced
        // bytes.
        for machine in [machine.killed(), machine.without_power(nth)] {
            let bytes = read(&machine.open(), START..1200);
            assert_eq!(bytes, Ok(stream(START..1200)), "failure {nth}");
        }
        fs.clear();
        assert_eq!(read(&node, START..1200), Ok(stream(START..1200)));
    }
}

#[test]
fn fence_without_a_durable_promise_is_refused() {
    let machine = Machine::new();
    let fs = faulty(&machine);
    let node = open(&fs, &["/device"]);
    append(&node, 1, START..1200, Written);
    fs.add(Rule::on(Operation::LogSync).path("/meta/"));
    assert!(why(&fence(&node, 2)).is_some());
    assert!(why(&fence(&node, 2)).is_some(), "also the second time");
}

/// A killed machine whose extent has one part on each of two devices, with the bytes before 1300.
/// The file of the first part is missing. Returns its path, and the path to which it was moved.
fn without_first_part(sealed: Option<u64>) -> (Machine, PathBuf, PathBuf) {
    let machine = Machine::new();
    let node = open(&faulty(&machine), &["/device", "/second"]);
    // The first part goes to the first device, and the next one after a kill to the second.
    append(&node, 1, START..1200, Synced);
    drop(node);
    let machine = machine.killed();
    let node = open(&faulty(&machine), &["/device", "/second"]);
    append(&node, 1, 1200..1300, Synced);
    if let Some(end) = sealed {
        assert_eq!(seal(&node, 1, end), progress(end, end));
    }
    drop(node);
    let machine = machine.killed();
    let names = |dir: &str| machine.disk.list(&Path::new(dir).join("logs")).unwrap();
    let (first, second) = (names("/device"), names("/second"));
    assert_eq!((first.len(), second.len()), (1, 1));
    let (there, aside) =
        (Path::new("/device/logs").join(&first[0].name), Path::new("/device").join(&first[0].name));
    machine.disk.rename(&there, &aside).unwrap();
    (machine, there, aside)
}

/// Number of times that the opening of a node clears the tails of the second device.
fn clears_of_second(machine: &Machine) -> u64 {
    let fs = faulty(machine);
    let cleared = fs.add(Rule::on(Operation::LogTail).path("*/second/logs"));
    drop(open(&fs, &["/device", "/second"]));
    fs.fired_by(cleared)
}

#[test]
fn tails_of_a_healthy_device_stay_for_one_start_alone() {
    let (machine, ..) = without_first_part(None);
    assert_eq!(clears_of_second(&machine), 0, "its file was not read");
    let machine = machine.killed();
    assert_eq!(clears_of_second(&machine), 1, "the limbo of the extent is durable");
    let (machine, ..) = without_first_part(Some(1300));
    assert_eq!(clears_of_second(&machine), 1, "a sealed extent has no bytes in tails");
}

#[test]
fn part_behind_a_missing_one_waits_for_its_device() {
    let (machine, there, aside) = without_first_part(None);
    let fs = faulty(&machine);
    let tails = fs.add(Rule::on(Operation::LogTail).path("/second/logs"));
    let node = open(&fs, &["/device", "/second"]);
    assert_eq!(inspect(&node), damaged(START, None));
    assert_eq!(fs.fired_by(tails), 0, "its file was not read, so its tails stay");
    drop(node);
    let machine = machine.killed();
    machine.disk.rename(&aside, &there).unwrap();
    let node = open(&faulty(&machine), &["/device", "/second"]);
    // When the device disappeared, it may have lost bytes that it had not written yet.
    assert_eq!(inspect(&node), replica(1300, 1300, None, true));
    assert_eq!(read(&node, START..1300), Ok(stream(START..1200)), "what is on one device");
    assert_eq!(read(&node, 1200..1300), Ok(stream(1200..1300)));
}

#[test]
fn limbo_of_bytes_that_could_not_be_read_is_durable() {
    let machine = Machine::new();
    append(&machine.open(), 1, START..1200, Written);
    let machine = machine.killed();
    let fs = faulty(&machine);
    fs.add(Rule::on(Operation::Open).path("/logs/").times(1));
    assert_eq!(inspect(&open(&fs, &["/device"])), replica(START, START, None, true));
    // The bytes that return may be older than the bytes that the node has acknowledged.
    let node = machine.killed().open();
    assert_eq!(inspect(&node), replica(1200, 1200, None, true));
    assert_eq!(why(&append(&node, 1, 1200..1300, Written)), Some(RefusalWhy::InLimbo));
}

#[test]
fn tails_stay_until_the_limbo_is_durable() {
    let operations = [Operation::LogAppend, Operation::LogSync];
    let mut has_ended = false;
    for nth in 1..30 {
        let machine = Machine::new();
        append(&machine.open(), 1, START..1200, Written);
        let machine = machine.killed();
        let fs = faulty(&machine);
        // The bytes of the group are bad once. The opening clears the tails of readable devices.
        let bad = Rule::on(Operation::Read).path("/logs/").offsets(HEADER_BYTES as u64..u64::MAX);
        fs.add(bad.fault(Fault::FlipByte).times(1));
        let refused = fs.add(Rule::on_any(&operations).path("/meta/").nth(nth));
        let cleared = fs.add(Rule::on(Operation::LogTail).path("*/logs"));
        let opening = Arc::new(FirstBoot { fs: fs.clone() });
        let opened = StorageNode::open(opening, &[PathBuf::from(DEVICE)], node_options());
        assert!(opened.is_err(), "failure {nth}");
        has_ended = fs.fired_by(refused) == 0;
        if fs.fired_by(cleared) > 0 {
            let node = machine.killed().open();
            assert_eq!(inspect(&node), replica(1200, 1200, None, true), "failure {nth}");
        }
        if has_ended {
            assert_eq!(fs.fired_by(cleared), 1);
            break;
        }
    }
    assert!(has_ended, "every opening failed in the metadata");
}

#[test]
fn bytes_whose_sync_failed_at_the_opening_are_written_anew() {
    let devices = ["/device", "/second"];
    let machine = Machine::new();
    let node = open(&faulty(&machine), &devices);
    append(&node, 1, START..1200, Synced);
    append(&node, 1, 1200..1300, Written);
    drop(node);
    let machine = machine.killed();
    let fs = faulty(&machine);
    fs.add(Rule::on(Operation::LogSync).path("/logs/").times(1));
    let cleared = fs.add(Rule::on(Operation::LogTail).path("*/device/logs"));
    let node = open(&fs, &devices);
    assert_eq!(fs.fired_by(cleared), 0, "they may have bytes that the file lacks");
    assert_eq!(inspect(&node), replica(1300, 1200, None, true));
    let again = open(&faulty(&machine.killed()), &devices);
    assert_eq!(inspect(&again), replica(1300, 1200, None, true), "a later sync proves nothing");
    assert_eq!(seal(&node, 2, 1300), progress(1300, 1300));
    for seed in 0..8 {
        let node = open(&faulty(&machine.without_power(seed)), &devices);
        assert_eq!(inspect(&node), replica(1300, 1300, Some(1300), false), "seed {seed}");
        assert_eq!(read(&node, START..1200), Ok(stream(START..1200)), "seed {seed}");
        assert_eq!(read(&node, 1200..1300), Ok(stream(1200..1300)), "seed {seed}");
    }
}

/// The machine of a process that has no descriptor left for the files of extents.
#[derive(Debug)]
struct FewDescriptors {
    machine: Machine,
}

impl FileSystem for FewDescriptors {
    archipelago_env::forward_fs!(machine: create, create_log, remove, logs, looks, moves, dirs);
    archipelago_env::forward_fs!(machine: figures, space);

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        if path.to_string_lossy().contains("/logs/") {
            let cause = io::Error::from_raw_os_error(24);
            return Err(Error::io("open", path, cause));
        }
        self.machine.disk.open(path, context, options)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.machine.lock(path)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        self.machine.boot_id()
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        self.machine.free_bytes(dir)
    }
}

#[test]
fn lack_of_descriptors_ends_the_opening_and_is_no_loss() {
    let machine = Machine::new();
    append(&machine.open(), 1, START..1200, Written);
    let machine = machine.killed();
    let few = Arc::new(FewDescriptors { machine: machine.clone() });
    let opened = StorageNode::open(few, &[PathBuf::from(DEVICE)], node_options());
    assert_eq!(opened.map(drop).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(inspect(&machine.killed().open()), replica(1200, 1200, None, false));
}

#[test]
fn tails_of_a_device_that_cannot_be_listed_stay() {
    let machine = Machine::new();
    drop(open(&faulty(&machine), &["/device", "/second"]));
    let machine = machine.killed();
    let fs = faulty(&machine);
    fs.add(Rule::on(Operation::List).path("/second/logs"));
    let cleared = fs.add(Rule::on(Operation::LogTail).path("/second/logs"));
    drop(open(&fs, &["/device", "/second"]));
    assert_eq!(fs.fired_by(cleared), 0, "they may have bytes of its files");
}

#[test]
fn node_opens_without_a_device_that_failed() {
    let machine = Machine::new();
    let fs = faulty(&machine);
    let node = open(&fs, &["/device", "/second"]);
    // The node does not learn how much room the first device has, so it chooses the second one.
    fs.add(Rule::on(Operation::Stat).path("*/device"));
    append(&node, 1, START..1200, Written);
    seal(&node, 1, 1200);
    let request = StoreMessage::ReadLog { at: AT, start: START, end: 1200 };
    let second = node.devices().present()[1].id;
    assert_eq!(node.device_of(&request), Some(second));
    drop(node);
    let machine = machine.killed();
    let fs = faulty(&machine);
    fs.add(Rule::on(Operation::List).path("/second/logs"));
    let node = open(&fs, &["/device", "/second"]);
    assert_eq!(inspect(&node), damaged(START, Some(1200)));
    drop(node);
    let node = open(&faulty(&machine.killed()), &["/device", "/second"]);
    assert_eq!(inspect(&node), replica(1200, 1200, Some(1200), false), "the device came back");
}
