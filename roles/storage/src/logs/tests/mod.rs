//! Tests of extents on one node, over a machine that is killed and loses power.

mod crashes;
mod damage;
mod failures;
mod model;
mod recovery;
mod removals;
mod replies;
mod sabotage;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Epoch, Result};
use archipelago_env::mem::MemFs;
use archipelago_env::{
    CreateOptions, FileClass, FileLock, FileSystem, GroupAccess, IoContext, IoPurpose,
};
use archipelago_fabric::ClientId;
use archipelago_store::nodes::repairs::RepairHost as _;
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, Stamp, StoreMessage};
use archipelago_store::{LogId, VolumeId};

use crate::meta::MetaThreads;
use crate::node::StorageNode;
use crate::parts::NodeOptions;
use crate::sabotage::Sabotage;

const VOLUME: VolumeId = VolumeId([9; 16]);
const LOG: LogId = LogId([1; 16]);
const AT: ExtentAt = ExtentAt { log: LOG, extent: 1 };
/// Offset at which [`AT`] begins.
const START: u64 = 1000;
const DEVICE: &str = "/device";

/// A disk in memory under one boot of its machine.
#[derive(Clone, Debug)]
struct Machine {
    disk: MemFs,
    boot: u8,
}

impl Machine {
    fn new() -> Self {
        Self { disk: MemFs::new(), boot: 1 }
    }

    fn killed(&self) -> Self {
        Self { disk: self.disk.kill_clone(), boot: self.boot }
    }

    fn without_power(&self, seed: u64) -> Self {
        Self { disk: self.disk.crash_clone(seed), boot: self.boot + 1 }
    }

    fn open(&self) -> Arc<StorageNode> {
        self.open_sabotaged(Sabotage::default())
    }

    fn open_sabotaged(&self, sabotage: Sabotage) -> Arc<StorageNode> {
        let options = NodeOptions { sabotage, ..node_options() };
        StorageNode::open(Arc::new(self.clone()), &[PathBuf::from(DEVICE)], options).unwrap()
    }

    /// Names of the files of extents.
    fn parts(&self) -> Vec<String> {
        let entries = self.disk.list(&Path::new(DEVICE).join("logs")).unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }
}

impl FileSystem for Machine {
    archipelago_env::forward_fs!(disk: create, open, create_log, remove, logs, looks, moves, dirs);
    archipelago_env::forward_fs!(disk: figures, space);

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.disk.lock(path)
    }

    fn hold(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        self.disk.hold(path)
    }

    fn boot_id(&self) -> Option<[u8; 16]> {
        Some([self.boot; 16])
    }

    fn group_access(&self) -> Option<GroupAccess> {
        self.disk.group_access()
    }

    fn reassign(&self, path: &Path, context: IoContext) {
        self.disk.reassign(path, context);
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        self.disk.free_bytes(dir)
    }
}

fn node_options() -> NodeOptions {
    NodeOptions { meta_threads: MetaThreads::Caller, seed: Some(5), ..NodeOptions::default() }
}

/// The bytes of every log in a range of offsets.
fn stream(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect()
}

fn stamp(epoch: u64) -> Stamp {
    Stamp { volume: VOLUME, epoch: Epoch(epoch) }
}

fn ask(node: &StorageNode, request: StoreMessage, payload: &[u8]) -> StoreMessage {
    node.handle(ClientId(1), request, payload).0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    Written,
    Synced,
}

/// Appends the bytes of the stream in `range` under `epoch`.
fn append(
    node: &StorageNode,
    epoch: u64,
    range: Range<u64>,
    durability: Durability,
) -> StoreMessage {
    let request = StoreMessage::Append {
        at: AT,
        stamp: stamp(epoch),
        class: FileClass::Wal,
        extent_start: START,
        start: range.start,
        is_synced: durability == Durability::Synced,
    };
    ask(node, request, &stream(range))
}

fn put(node: &StorageNode, epoch: u64, range: Range<u64>) -> StoreMessage {
    let request = StoreMessage::PutLog {
        at: AT,
        stamp: stamp(epoch),
        class: FileClass::Wal,
        extent_start: START,
        start: range.start,
    };
    ask(node, request, &stream(range))
}

fn seal(node: &StorageNode, epoch: u64, end: u64) -> StoreMessage {
    let (class, extent_start) = (FileClass::Wal, START);
    let request = StoreMessage::SealLog { at: AT, stamp: stamp(epoch), class, extent_start, end };
    ask(node, request, &[])
}

/// The answers to the put and to the seal of a repair that copies the bytes before `end`.
fn repair(node: &StorageNode, epoch: u64, end: u64) -> [StoreMessage; 2] {
    let (stamp, class, extent_start) = (stamp(epoch), FileClass::Wal, START);
    let put = StoreMessage::PutLog { at: AT, stamp, class, extent_start, start: START };
    let seal = StoreMessage::SealLog { at: AT, stamp, class, extent_start, end };
    [node.answer_copy(put, &stream(START..end), end).0, node.answer_copy(seal, &[], end).0]
}

fn sync(node: &StorageNode, epoch: u64) -> StoreMessage {
    ask(node, StoreMessage::SyncLog { at: AT, stamp: stamp(epoch) }, &[])
}

fn fence(node: &StorageNode, epoch: u64) -> StoreMessage {
    ask(node, StoreMessage::FenceLog { at: AT, stamp: stamp(epoch) }, &[])
}

fn inspect(node: &StorageNode) -> StoreMessage {
    ask(node, StoreMessage::InspectLog { at: AT }, &[])
}

fn remove(node: &StorageNode, epoch: u64) -> StoreMessage {
    ask(node, StoreMessage::RemoveLog { log: LOG, stamp: stamp(epoch) }, &[])
}

/// The bytes of the extent in `range`, as far as the node has them.
fn read(node: &StorageNode, range: Range<u64>) -> Result<Vec<u8>, RefusalWhy> {
    let Range { start, end } = range;
    let request = StoreMessage::ReadLog { at: AT, start, end };
    match node.handle(ClientId(1), request, &[]) {
        (StoreMessage::LogBytes {}, bytes) => Ok(bytes),
        (StoreMessage::Refuse { why, .. }, _) => Err(why),
        (other, _) => panic!("an unexpected answer: {other:?}"),
    }
}

fn progress(written: u64, synced: u64) -> StoreMessage {
    StoreMessage::Progress { written, synced }
}

fn replica(valid_end: u64, synced: u64, sealed: Option<u64>, is_in_limbo: bool) -> StoreMessage {
    StoreMessage::ReplicaIs { valid_end, synced, sealed, is_in_limbo }
}

/// The answer of a node that has lost synced bytes.
fn damaged(valid_end: u64, sealed: Option<u64>) -> StoreMessage {
    StoreMessage::ReplicaDamaged { valid_end, synced: valid_end, sealed }
}

/// Replaces the bytes of the only part of the machine.
fn change_part(machine: &Machine, change: impl FnOnce(&mut Vec<u8>)) {
    let path = Path::new(DEVICE).join("logs").join(&machine.parts()[0]);
    let context = IoContext::manifest(IoPurpose::Maintenance);
    let mut bytes = machine.disk.read(&path, context).unwrap();
    change(&mut bytes);
    let mut file = machine.disk.create(&path, context, CreateOptions::default()).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
}

fn why(answer: &StoreMessage) -> Option<RefusalWhy> {
    match answer {
        StoreMessage::Refuse { why, .. } => Some(*why),
        _ => None,
    }
}
