//! `archipelago-lab o3-node`: an executor, a memory node or a Redis server as a process, over an
//! emulated link to the storage.
//!
//! The laboratory starts it as a child ([`crate::role`]). Only processes of the laboratory have
//! emulated links; the program that people run has no setting for them.
//!
//! Failure: an error ends the process, which the parent notices at the next line.
//! Cost: a state reads some counters.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::clock::SystemClock;
use archipelago_bench::harness::flags::{Offload, Stop};
use archipelago_bench::harness::local_log::LocalLogFs;
use archipelago_bench::harness::process;
use archipelago_bench::harness::store::{
    DeviceSpec, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result, WriteOptions,
};
use archipelago_compute::{ComputeNode, Storage};
use archipelago_env::descriptors::raise_limit;
use archipelago_env::device::ThrottledFs;
use archipelago_fabric::{NodeId, endpoint};
use archipelago_memory::{MemoryServer, MemorySettings};
use archipelago_offload::net::{ExecutorServer, ExecutorSettings, OwnerSettings};
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::command_line;

/// Word that the program begins with to run a role.
pub(crate) const COMMAND: &str = "o3-node";

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Executor,
    Memory,
    Server,
}

/// Flags of the process.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "archipelago-lab o3-node",
    bin_name = "archipelago-lab o3-node",
    about = "Runs a role for `archipelago-lab o3`, until standard input ends.",
    rename_all = "snake_case",
    disable_version_flag = true
)]
struct NodeFlags {
    /// Role of the process
    #[arg(long, value_enum)]
    role: Role,
    /// Address of the manager
    #[arg(long, value_name = "HOST:PORT")]
    manager: String,
    /// Directory of the shared storage
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Description of the link to the storage
    #[arg(long, value_name = "FILE")]
    device: PathBuf,
    /// Factor on its rates
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    speed: f64,
    /// Number of a memory node
    #[arg(long, value_name = "N", default_value_t = 1)]
    id: u64,
    /// Jobs that an executor runs at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    slots: u32,
    /// Bytes of shards that a memory node takes
    #[arg(long, value_name = "N", default_value_t = 1 << 30)]
    shard_bytes: u64,
    /// Path of a socket through which a memory node is reached by shared memory
    #[arg(long, value_name = "PATH")]
    shm: Option<PathBuf>,
    /// Jobs and memtables that leave a server
    #[arg(long, value_enum, default_value_t = Offload::Off)]
    offload_mode: Offload,
    /// Bytes that the memtables of a server may take at memory nodes
    #[arg(long, value_name = "N", default_value_t = 0)]
    remote_memtables_bytes: u64,
    /// Settings of the database of a server
    #[arg(long, value_name = "FILE", required_if_eq("role", "server"))]
    config: Option<PathBuf>,
}

/// State of a role at one moment. Counters are those since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RoleState {
    /// Processor time of the process, if the kernel tells it.
    pub(super) cpu_s: Option<f64>,
    /// Bytes over the link from and to the storage.
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    /// Jobs of an executor.
    pub(super) jobs_succeeded: u64,
    pub(super) jobs_failed: u64,
    /// Bytes of shards that a memory node has now.
    pub(super) shard_bytes: u64,
    /// Address of a server for Redis clients.
    pub(super) address: Option<String>,
    /// Counters of what left a server.
    pub(super) offload: BTreeMap<String, u64>,
}

/// Runs a role with `args`, the words after [`COMMAND`].
pub(crate) fn serve(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags: NodeFlags = command_line::parse(COMMAND, args)?;
    Ok(run(&flags))
}

fn run(flags: &NodeFlags) -> Result<()> {
    // Every input of a job and every region of memory takes a descriptor.
    raise_limit();
    let link = link(&flags.device, flags.speed)?;
    let managers = vec![endpoint(&flags.manager)?];
    match flags.role {
        Role::Executor => executor(flags, managers, &link),
        Role::Memory => memory(flags, managers, &link),
        Role::Server => server(flags, managers, &link),
    }
}

/// The local file system behind the described link.
fn link(device: &Path, speed: f64) -> Result<Arc<ThrottledFs>> {
    let local = Arc::new(LocalFs::new());
    let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
    let text = local.read(device, context)?;
    let mut spec = DeviceSpec::from_toml(&String::from_utf8_lossy(&text))?;
    spec.scale *= speed;
    spec.validate()?;
    Ok(ThrottledFs::new(local, spec, SystemClock::shared()))
}

/// The part of a state that every role has.
fn state(link: &ThrottledFs) -> RoleState {
    let moved = link.stats().total();
    RoleState {
        cpu_s: process::cpu_seconds(),
        read_bytes: moved.read_bytes,
        written_bytes: moved.write_bytes,
        ..RoleState::default()
    }
}

fn executor(flags: &NodeFlags, managers: Vec<String>, link: &Arc<ThrottledFs>) -> Result<()> {
    let settings = ExecutorSettings {
        managers,
        slots: flags.slots,
        shares: vec![flags.dir.clone()],
        ..ExecutorSettings::default()
    };
    let fs = Arc::clone(link) as Arc<dyn FileSystem>;
    let server = ExecutorServer::start_on(fs, settings)?;
    crate::role::answer(|| {
        let figures = server.figures();
        RoleState { jobs_succeeded: figures.succeeded, jobs_failed: figures.failed, ..state(link) }
    })
}

fn memory(flags: &NodeFlags, managers: Vec<String>, link: &ThrottledFs) -> Result<()> {
    // Blocks of the pool are not used here, but a node has at least one.
    let mut settings = MemorySettings::new(
        NodeId(flags.id),
        flags.shard_bytes + (1 << 20),
        "tcp:127.0.0.1:0".to_owned(),
        String::new(),
    );
    settings.manager = managers;
    settings.block_bytes = 1 << 20;
    settings.shard_bytes_max = flags.shard_bytes;
    settings.listen.extend(flags.shm.as_ref().map(|path| format!("shm:{}", path.display())));
    let server = MemoryServer::start(settings)?;
    let monitor = server.monitor();
    crate::role::answer(|| {
        let shard_bytes = monitor.figures().map_or(0, |figures| figures.shards.shard_bytes);
        RoleState { shard_bytes, ..state(link) }
    })
}

fn server(flags: &NodeFlags, managers: Vec<String>, link: &Arc<ThrottledFs>) -> Result<()> {
    let settings = match &flags.config {
        Some(path) => archipelago_compute::load_settings(path)?,
        None => archipelago_compute::Settings::default(),
    };
    let local: Arc<dyn FileSystem> = Arc::new(LocalFs::new());
    let fs = LocalLogFs::new(Arc::clone(link) as _, local);
    let storage = Storage { fs, dir: flags.dir.clone(), tiers: None, volume: None };
    let offload = flags.offload_mode.mode().map(|mode| OwnerSettings {
        managers,
        mode,
        secret: None,
        memtable_bytes_max: flags.remote_memtables_bytes,
        memtable_bytes_guaranteed: 0,
        key_offset_cache_bytes: None,
        shard_copies: None,
        staying: None,
        gc_invalid_files: false,
        address: String::new(),
    });
    let node = ComputeNode::open_over(storage, &settings, offload)?;
    let store = Arc::new(EngineStore::new(node.db().clone(), WriteOptions::default())?);
    let server = Server::start("127.0.0.1:0", store, ServerOptions::default())?;
    let address = server.local_addr().to_string();
    let told = crate::role::answer(|| RoleState {
        address: Some(address.clone()),
        offload: node.offload_counters(),
        ..state(link)
    });
    server.shutdown();
    told.and(node.close())
}
