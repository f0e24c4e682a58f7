//! A storage node of a run, over its lives: the role's state machine on a disk in memory.
//!
//! A place has a host and a disk. The node that runs there answers requests in the steps of the
//! simulation. A slow node works off its requests one after the other, and each takes its time.
//!
//! Thread-safety: the thread that runs the simulation calls everything.
//! Failure: a node that does not open on a sound disk ends the run by a panic.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::Host;
use archipelago_base::{Epoch, Result};
use archipelago_env::mem::MemFs;
use archipelago_env::{
    CreateOptions, FileClass, FileLock, FileSystem, GroupAccess, IoContext, IoPurpose, OpenOptions,
};
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{
    ClientId, ClusterId, Handler, Listener, NodeId, Provider, Reach, Reply, Request, Route,
};
use archipelago_storage::beats::{Beats, NodeAddress};
use archipelago_storage::{MetaThreads, NodeOptions, Sabotage, StorageNode};
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::client::NodeClient;
use archipelago_store::nodes::repairs::{RepairExecutor, RepairHost};
use archipelago_store::nodes::wire::{StorageReport, StoreMessage, envelope};

use super::manager::MANAGER;

/// Directories of the devices of a node. The first one also has the node's metadata.
const DEVICES: [&str; 2] = ["/device", "/device2"];
/// Name of the directory of sealed chunks on a device.
const CHUNKS: &str = "chunks";
/// Name of the directory of the files of extents on a device.
const LOGS: &str = "logs";
/// Bytes of the header of a file of an extent.
const EXTENT_HEADER_BYTES: usize = 112;
/// Bytes of the length of a group, with which the group begins.
const GROUP_LEN_BYTES: usize = 4;
/// Bytes of a group before those of the log.
const GROUP_HEADER_BYTES: usize = 8;
/// Time after which a beat counts as lost.
const BEAT_ANSWER: Duration = Duration::from_millis(200);
/// Time to the next beat after one that failed.
const BEAT_AGAIN: Duration = Duration::from_millis(100);
/// Number of steps within which a round of the scrub ends.
const SCRUB_STEPS_MAX: u32 = 100_000;

/// A disk in memory under one boot of its machine.
#[derive(Clone, Debug)]
struct Machine {
    disk: MemFs,
    boot: u64,
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
        Some(u128::from(self.boot).to_le_bytes())
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

/// How the process of a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeEnd {
    /// As by `kill -9`: the unsynced bytes stay.
    Kill,
    /// The machine loses its power, and with it a share of the unsynced bytes.
    PowerLoss,
    /// The second device is replaced by an empty one.
    LostDevice,
    /// All devices are replaced by empty ones.
    Wipe,
}

/// Settings of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// Steps that the node leaves out.
    pub(crate) sabotage: Sabotage,
    /// Bytes that the node may use on each device.
    pub(crate) device_bytes: u64,
    /// Number of devices, 1 or 2.
    pub(crate) devices: usize,
}

/// Time that a node takes for each request, and the end of its present work.
#[derive(Debug, Default)]
struct Slowness {
    request_ns: AtomicU64,
    busy_until_ns: AtomicU64,
}

/// A place: its host, its disk, and the node that runs there.
pub(crate) struct NodePlace {
    n: usize,
    host: Host,
    sim: Sim,
    machine: Machine,
    settings: NodeSettings,
    slowness: Arc<Slowness>,
    lives: u64,
    running: Option<RunningNode>,
}

struct RunningNode {
    node: Arc<StorageNode>,
    beats: Arc<Beats>,
    _listener: Box<dyn Listener>,
}

impl fmt::Debug for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodePlace({}, runs: {})", self.n, self.is_up())
    }
}

struct NodeHandler {
    node: Arc<StorageNode>,
    executor: Arc<RepairExecutor>,
    host: Host,
    slowness: Arc<Slowness>,
}

impl Handler for NodeHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (message, _) = envelope::open(request.body).expect("a message of the store");
        if RepairExecutor::is_order(&message) {
            let executor = Arc::clone(&self.executor);
            let _ends_with_the_host = self.host.spawn("repair", async move {
                reply.send(envelope::seal(&executor.carry_out(message).await, &[]));
            });
            return;
        }
        let took_ns = self.slowness.request_ns.load(Ordering::Relaxed);
        if took_ns == 0 {
            return answer(&self.node, request.client, request.body, reply);
        }
        let scheduler = self.host.scheduler().clone();
        let begins_ns = self.slowness.busy_until_ns.load(Ordering::Relaxed).max(scheduler.now_ns());
        let ends_ns = begins_ns + took_ns;
        self.slowness.busy_until_ns.store(ends_ns, Ordering::Relaxed);
        let (node, from, body) = (Arc::clone(&self.node), request.client, request.body.to_vec());
        scheduler.at(ends_ns, self.host.life(), move || answer(&node, from, &body, reply));
    }
}

fn answer(node: &StorageNode, from: ClientId, body: &[u8], reply: Reply) {
    let (message, payload) = envelope::open(body).expect("a message of the store");
    let (answer, bytes) = node.handle(from, message, payload);
    reply.send(envelope::seal(&answer, &bytes));
}

impl NodePlace {
    /// A place with an empty disk, on which nothing runs.
    pub(crate) fn new(n: usize, sim: Sim, settings: NodeSettings, seed: u64) -> Self {
        Self {
            n,
            host: sim.host().clone(),
            sim,
            machine: Machine { disk: MemFs::new(), boot: seed },
            settings,
            slowness: Arc::default(),
            lives: 0,
            running: None,
        }
    }

    /// The host of the place.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Whether a node runs here, stopped or not.
    pub(crate) fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// The time that each request takes from now on.
    pub(crate) fn set_request_time(&self, time: Duration) {
        self.slowness.request_ns.store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Starts the node on the disk of the place.
    pub(crate) fn start(&mut self) {
        assert!(self.running.is_none(), "node {} runs", self.n);
        if !self.host.is_up() {
            self.host.restart();
        }
        self.slowness.busy_until_ns.store(0, Ordering::Relaxed);
        self.lives += 1;
        let domain = format!("rack {}", self.n);
        let options = NodeOptions {
            meta_threads: MetaThreads::Caller,
            device_bytes_max: Some(self.settings.device_bytes),
            sabotage: self.settings.sabotage,
            life: Epoch(self.lives),
            domain: domain.clone(),
            seed: Some(self.host.scheduler().fresh_seed()),
            ..NodeOptions::default()
        };
        let fs: Arc<dyn FileSystem> = Arc::new(self.machine.clone());
        let opened = StorageNode::open(fs, &self.devices(), options);
        let node = opened.unwrap_or_else(|error| panic!("node {} does not open: {error}", self.n));
        let address = NodeAddress {
            node: NodeId(self.n as u64 + 1),
            life: Epoch(self.lives),
            endpoints: vec![self.host.name().to_owned()],
            domain,
        };
        let (id, life) = (address.node, address.life);
        let handler = NodeHandler {
            node: Arc::clone(&node),
            executor: Arc::new(self.executor(&node)),
            host: self.host.clone(),
            slowness: Arc::clone(&self.slowness),
        };
        let fabric = self.sim.network().node(id, life, Some(Box::new(handler)));
        let fabric = fabric.expect("a node of the fabric");
        let listener = self.sim.serve(&fabric, self.host.name()).expect("a host serves its name");
        let beats = Beats::new(Arc::clone(&node), address).expect("the node keeps its state");
        let beats = Arc::new(beats);
        let reach: Arc<dyn Reach> = Arc::new(self.sim.clone());
        let work = beat(self.host.clone(), reach, Arc::clone(&beats));
        let _ends_with_the_host = self.host.spawn("beats", work);
        self.running = Some(RunningNode { node, beats, _listener: listener });
    }

    /// Directories of the devices.
    fn devices(&self) -> Vec<PathBuf> {
        DEVICES[..self.settings.devices].iter().map(PathBuf::from).collect()
    }

    /// The files in the directories `name` of all devices.
    fn files_in(&self, name: &str) -> Vec<PathBuf> {
        let devices = self.devices().into_iter();
        devices.flat_map(|device| files_below(&self.machine.disk, &device.join(name))).collect()
    }

    /// The executor of the manager's orders on this node.
    fn executor(&self, node: &Arc<StorageNode>) -> RepairExecutor {
        let reach: Arc<dyn Reach> = Arc::new(self.sim.clone());
        let runtime: Arc<dyn Runtime> = Arc::new(self.host.clone());
        let client = NodeClient::new(reach, runtime, vec![MANAGER.to_owned()]);
        let host: Arc<dyn RepairHost> = Arc::<StorageNode>::clone(node);
        RepairExecutor::new(client, host, node.storage()).expect("the matrix of the code")
    }

    /// Runs a whole round of the scrub, if the node runs.
    pub(crate) fn scrub(&self) {
        let Some(running) = &self.running else { return };
        let (answer, _) = running.node.handle(ClientId(0), StoreMessage::Scrub {}, &[]);
        assert_eq!(answer, StoreMessage::Done {}, "node {}", self.n);
        let rounds = self.report().scrub.rounds;
        for _ in 0..SCRUB_STEPS_MAX {
            let _pause = running.node.scrub_step(0);
            if self.report().scrub.rounds > rounds {
                return;
            }
        }
        panic!("the scrub of node {} does not end", self.n);
    }

    /// Ends the process of the node.
    pub(crate) fn end(&mut self, how: NodeEnd) {
        let seed = self.host.scheduler().fresh_seed();
        self.host.crash();
        self.running = None;
        let Machine { disk, boot } = &self.machine;
        self.machine = match how {
            NodeEnd::Kill => Machine { disk: disk.kill_clone(), boot: *boot },
            NodeEnd::PowerLoss => {
                Machine { disk: disk.crash_clone(seed), boot: boot.wrapping_add(1) }
            }
            NodeEnd::LostDevice => {
                let disk = disk.kill_clone();
                empty_device(&disk, Path::new(DEVICES[1])).expect("a disk in memory");
                Machine { disk, boot: *boot }
            }
            NodeEnd::Wipe => Machine { disk: MemFs::new(), boot: seed },
        };
    }

    /// Identity of the node that runs here.
    pub(crate) fn storage(&self) -> Option<StorageId> {
        self.running.as_ref().map(|running| match running.beats.beat(0) {
            StoreMessage::StorageBeat { storage, .. } => storage,
            other => panic!("a beat is no {}", other.name()),
        })
    }

    /// Whether the node has kept this cluster.
    pub(crate) fn knows(&self, cluster: Option<ClusterId>) -> bool {
        let Some(running) = &self.running else { return false };
        match running.beats.beat(0) {
            StoreMessage::StorageBeat { cluster: known, .. } => known == cluster,
            other => panic!("a beat is no {}", other.name()),
        }
    }

    /// The report of the node; empty if it does not run.
    pub(crate) fn report(&self) -> StorageReport {
        let Some(running) = &self.running else { return StorageReport::default() };
        match running.beats.beat(0) {
            StoreMessage::StorageBeat { report, .. } => report,
            other => panic!("a beat is no {}", other.name()),
        }
    }

    /// Changes one byte of each sealed chunk on the disk, whose node must be down. `draw` chooses
    /// the byte of a chunk by its length. Returns the number of damaged chunks.
    pub(crate) fn rot_chunks(&self, draw: &mut dyn FnMut(usize) -> usize) -> u64 {
        assert!(self.running.is_none(), "node {} runs", self.n);
        let mut damaged = 0;
        for path in self.files_in(CHUNKS) {
            let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
            let mut bytes = read(&self.machine.disk, &path, context).expect("a file in memory");
            if bytes.is_empty() {
                continue;
            }
            let at = draw(bytes.len());
            bytes[at] ^= 1;
            rewrite(&self.machine.disk, &path, &bytes, context).expect("a file in memory");
            damaged += 1;
        }
        damaged
    }

    /// Changes one byte of about half of the files of extents on the disk, whose node may run.
    /// `draw` returns a number below its argument. Returns the number of damaged files.
    pub(crate) fn rot_extents(&self, draw: &mut dyn FnMut(usize) -> usize) -> u64 {
        let mut damaged = 0;
        for path in self.files_in(LOGS) {
            let context = IoContext::new(FileClass::Wal, IoPurpose::Maintenance);
            let mut bytes = read(&self.machine.disk, &path, context).expect("a file in memory");
            if bytes.is_empty() || draw(2) == 0 {
                continue;
            }
            let at = rotten_byte(&bytes, draw(bytes.len()));
            let Some(byte) = bytes.get_mut(at) else { continue };
            *byte ^= 1;
            // The file stays the same one, so a node that runs goes on with its appends.
            rewrite(&self.machine.disk, &path, &bytes, context).expect("a file in memory");
            damaged += 1;
        }
        damaged
    }
}

/// The byte of a file of an extent that rots if `at` was drawn. If another byte of the group rots
/// later, a wrong length looks like an append that a kill tore. So no length rots, but a byte
/// behind it.
fn rotten_byte(bytes: &[u8], at: usize) -> usize {
    let mut group = EXTENT_HEADER_BYTES;
    while let Some(len) = bytes.get(group..).and_then(<[u8]>::first_chunk::<GROUP_LEN_BYTES>) {
        if at < group + GROUP_LEN_BYTES {
            return if at < group { at } else { at + GROUP_LEN_BYTES };
        }
        group += GROUP_HEADER_BYTES + u32::from_le_bytes(*len) as usize;
    }
    at
}

fn read(disk: &MemFs, path: &Path, context: IoContext) -> Result<Vec<u8>> {
    let file = disk.open(path, context, OpenOptions::default())?;
    let mut bytes = vec![0; file.len() as usize];
    file.read_exact_at(0, &mut bytes, context)?;
    Ok(bytes)
}

fn rewrite(disk: &MemFs, path: &Path, bytes: &[u8], context: IoContext) -> Result<()> {
    let mut file = disk.create(path, context, CreateOptions::default())?;
    file.append(bytes)?;
    file.sync()
}

/// Removes a device with all its files durably, so that no power loss brings some of them back.
fn empty_device(disk: &MemFs, device: &Path) -> Result<()> {
    sync_tree(disk, device)?;
    disk.remove_dir_all(device)?;
    disk.sync_dir(Path::new("/"))
}

/// Makes all names below `dir` durable.
fn sync_tree(disk: &MemFs, dir: &Path) -> Result<()> {
    for entry in disk.list(dir)?.into_iter().filter(|entry| entry.is_dir) {
        sync_tree(disk, &dir.join(entry.name))?;
    }
    disk.sync_dir(dir)
}

/// All files below `dir`, sorted.
fn files_below(disk: &MemFs, dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in disk.list(dir).unwrap_or_default() {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            files.extend(files_below(disk, &path));
        } else {
            files.push(path);
        }
    }
    files
}

/// Carries the beats of a node to the manager.
async fn beat(host: Host, reach: Arc<dyn Reach>, beats: Arc<Beats>) {
    let runtime: Arc<dyn Runtime> = Arc::new(host);
    let route = Route::new(&reach, ClientId(runtime.seed()), None);
    let managers = [MANAGER.to_owned()];
    let mut version = 0;
    loop {
        let asked = route.ask(&managers, &beats.beat(version), BEAT_ANSWER).await;
        let pause = match asked.and_then(|answer| beats.take_answer(version, answer)) {
            Ok(answer) => {
                version = answer.version;
                answer.pause
            }
            Err(_) => {
                version = 0;
                BEAT_AGAIN
            }
        };
        runtime.sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rot_spares_the_lengths_of_groups() {
        let mut bytes = vec![7; EXTENT_HEADER_BYTES];
        for len in [3_u32, 5] {
            bytes.extend(len.to_le_bytes());
            bytes.extend(vec![0xee; GROUP_HEADER_BYTES - GROUP_LEN_BYTES + len as usize]);
        }
        let second = EXTENT_HEADER_BYTES + GROUP_HEADER_BYTES + 3;
        let spared = |at: usize| {
            let lengths = [EXTENT_HEADER_BYTES, second];
            let is_length = |group: &usize| (*group..*group + GROUP_LEN_BYTES).contains(&at);
            lengths.iter().any(is_length)
        };
        for at in 0..bytes.len() {
            let rotten = rotten_byte(&bytes, at);
            assert!(!spared(rotten) && rotten < bytes.len(), "{at}: {rotten}");
            assert!(spared(at) || rotten == at, "{at}: {rotten}");
        }
    }
}
