//! Devices that fail or are full.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
use archipelago_env::{FileLock, FileSystem};
use archipelago_store::nodes::wire::{RefusalWhy, StoreMessage};

use super::Durability::{Synced, Written};
use super::{
    AT, Machine, START, append, fence, inspect, node_options, progress, read, replica, seal,
    stream, sync, why,
};
use crate::node::StorageNode;

/// The machine with a file system whose operations fail by a script.
fn faulty(machine: &Machine) -> FaultFs {
    FaultFs::new(Arc::new(machine.clone()), 7)
}

/// A faulty file system under the boot of [`Machine::new`], which a [`FaultFs`] does not tell.
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
    assert_eq!(why(&seal(&node, 1, 1300)), Some(RefusalWhy::Failed), "the bytes may be lost");
    let StoreMessage::ReplicaIs { is_in_limbo, .. } = inspect(&machine.killed().open()) else {
        panic!("no replica");
    };
    assert!(is_in_limbo, "the limbo is durable");
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
    assert_eq!(node.device_of(&request), 1);
    drop(node);
    let machine = machine.killed();
    let fs = faulty(&machine);
    fs.add(Rule::on(Operation::List).path("/second/logs"));
    let node = open(&fs, &["/device", "/second"]);
    assert_eq!(inspect(&node), replica(START, START, None, true));
    drop(node);
    let node = open(&faulty(&machine.killed()), &["/device", "/second"]);
    assert_eq!(inspect(&node), replica(1200, 1200, Some(1200), false), "the device came back");
}
