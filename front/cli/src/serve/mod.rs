//! `archipelago serve`: opens a database, or joins the store over remote memory, and serves it to
//! Redis clients.
//!
//! The process owns the store and the server. Invariants:
//! 1. Everything that can be refused (flags, settings, the port) is refused before a database is
//!    created or opened.
//! 2. On SIGTERM, SIGINT or a client's SHUTDOWN the jobs that the process runs for others end
//!    first. Then the server finishes the commands that it has received, and the store closes. On
//!    return everything acknowledged is in the files of the database, or in the memory of the
//!    cluster.
//! 3. No answer of a read leaves a server over a volume whose lease has ended. A server whose
//!    volume was taken over ends.
//!
//! Failure: a start that fails says which flag or file is wrong, and leaves no database behind.

mod flags;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago::{ComputeNode, Error, ErrorKind, Result, Settings, WriteOptions};
use archipelago_compute::flexkv::{FlexKvNode, FlexKvNodeSettings, FlexKvSettings};
use archipelago_compute::volume::VolumeStorage;
use archipelago_env::descriptors::raise_limit;
use archipelago_fabric::endpoint;
use archipelago_metrics::endpoint::{MetricsListener, MetricsServer};
use archipelago_metrics::sources;
use archipelago_offload::net::{ExecutorSettings, OffloadMode, OwnerSettings};
use archipelago_offload::shard_owner::{StayingMemtables, takeover_facts};
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::figures::ServerMonitor;
use archipelago_resp::flexkv_store::FlexKvStore;
use archipelago_resp::{Listening, Server, ServerOptions};
use parking_lot::Mutex;

use crate::access::{PasswordArgs, TlsArgs};
use crate::console::{print, print_line};
use crate::executor::{HostedExecutor, HostedPlan, JobFiles, SideArgs, process_address};
use crate::managers::{MANAGER, managers};
use crate::metrics::{self, MetricsArgs};
use crate::secret::SecretArgs;
use crate::stop::{Stop, StopCause, StopSignals, stdin_ended};
use crate::volume::VolumeArgs;

/// Longest interval at which a server asks whether its volume has another owner, and whether its
/// lease holds.
const OWNER_CHECK: Duration = Duration::from_millis(200);
/// Number of these questions per lease, at least. An owner stops reads an eighth of the lease
/// before its end, so clients with cached values are closed before another process is the owner.
const OWNER_CHECKS: u32 = 32;

/// Default address for other compute nodes.
const PEERS: &str = "127.0.0.1:0";

/// Store that `serve` serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// The database in --dir, or in a volume of a storage cluster (see --store): it keeps keys in
    /// order, and its data survives the process
    Lsm,
    /// The store over the memory of a cluster. This process becomes a compute node of the cluster
    /// (see --manager)
    #[value(name = "flexkv", alias = "flex")]
    FlexKv,
}

/// Work and memory that leave the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Offload {
    /// Everything stays here
    Off,
    /// Compactions and garbage collections, to executors (`archipelago node executor`)
    Compactions,
    /// Full memtables, to memory nodes (`archipelago node memory`), which search them
    Memtables,
    /// Full memtables, and their flushes, to executors
    Flushes,
    /// Full memtables, flushes, compactions and garbage collections
    All,
}

impl Offload {
    fn mode(self) -> OffloadMode {
        match self {
            Self::Off => OffloadMode::Off,
            Self::Compactions => OffloadMode::Compactions,
            Self::Memtables => OffloadMode::Memtables,
            Self::Flushes => OffloadMode::Flushes,
            Self::All => OffloadMode::All,
        }
    }
}

/// Serve a database, or the store of a cluster, to Redis clients.
///
/// The server runs until it gets SIGTERM or SIGINT (Ctrl-C), or until a client sends SHUTDOWN. Then
/// it finishes the commands that it has received and closes the store.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
                        archipelago serve --dir ./data\n  \
                        redis-cli -p 6379 set reef coral  (in another terminal)\n\n  \
                        archipelago serve --listen 0.0.0.0:6379 --password-file ./password\n  \
                        archipelago serve --store 10.0.0.1:7700 --volume reef --secret-file ./secret\n  \
                        archipelago serve --engine flexkv --manager 10.0.0.1:7700 --peers 10.0.0.5:7702")]
pub(crate) struct ServeArgs {
    /// Store that is served
    #[arg(long, value_enum, default_value_t = Engine::Lsm)]
    engine: Engine,
    /// Addresses of the cluster's managers, separated by commas (engine flexkv, --offload-mode and
    /// --executor-slots). Default: those of --store, or 127.0.0.1:7700
    #[arg(long, value_name = "HOST:PORT,...")]
    manager: Option<String>,
    #[command(flatten)]
    secret: SecretArgs,
    /// Address at which this compute node listens for other compute nodes. With port 0 the system
    /// chooses a free port (engine flexkv)
    #[arg(long, value_name = "HOST:PORT", default_value = PEERS)]
    peers: String,
    /// Address that other compute nodes connect to, if it differs from --peers: behind address
    /// translation, or if --peers is 0.0.0.0 (engine flexkv)
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Path of a socket through which compute nodes of this machine also reach this one by shared
    /// memory (engine flexkv)
    #[arg(long, value_name = "PATH")]
    shm: Option<String>,
    /// What leaves this process for the cluster of --manager. This process keeps whatever no node
    /// takes (engine lsm)
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Offload::Off)]
    offload_mode: Offload,
    /// Memory in MiB that full memtables may take at memory nodes; 0 for as much as the nodes have
    /// (needs --offload-mode memtables, flushes or all)
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    remote_memtables_mib: u64,
    /// Memory in MiB that memory nodes guarantee this server, whatever other servers use; each node
    /// guarantees an equal part. It includes the zone in which memtables arrive, up to 80 MiB at
    /// each node. 0 for an equal part of what other servers leave (needs --offload-mode memtables,
    /// flushes or all)
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    offload_guaranteed_mib: u64,
    /// Memory in MiB of the key-offset cache, which has the places of hot records at memory nodes.
    /// 0 for none. Default: 64 (needs --offload-mode memtables, flushes or all)
    #[arg(long, value_name = "MIB")]
    key_offset_cache_mib: Option<u64>,
    /// Number of memory nodes that get a copy of each full memtable, 1 or 2. With 2 nothing is
    /// rebuilt when one of them is lost. Default: 1 (needs --offload-mode memtables, flushes or
    /// all)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=2))]
    shard_copies: Option<u32>,
    /// Number of the newest full memtables that stay in the process, up to 16, or auto for the
    /// number with which reads take the least time. They leave when memory is short. Default: 0
    /// (needs --offload-mode memtables, flushes or all)
    #[arg(long, value_name = "auto|COUNT")]
    local_memtables: Option<StayingMemtables>,
    /// Let compactions note the separated values that they drop, so that garbage collections in
    /// executors need no look-up in this process. Each such compaction writes a small file more
    /// (needs --offload-mode compactions or all)
    #[arg(long)]
    gc_invalid_files: bool,
    #[command(flatten)]
    side: SideArgs,
    /// Directory of the database. The server creates it if it does not exist (engine lsm)
    #[arg(
        long,
        value_name = "DIR",
        default_value = "./archipelago-data",
        conflicts_with = "store"
    )]
    dir: PathBuf,
    #[command(flatten)]
    volume: VolumeArgs,
    /// Address at which Redis clients connect. With port 0 the system chooses a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    listen: String,
    /// Refused with a hint: redis-server has it
    #[arg(long, hide = true, value_name = "PORT")]
    port: Option<String>,
    /// Refused with a hint: redis-server has it
    #[arg(long, hide = true, value_name = "HOST", num_args = 1..)]
    bind: Option<Vec<String>>,
    /// TOML file with the settings of the database: tables [database], [families.NAME] and
    /// [[tiers]]. `--print-settings` shows those of the database and of the families that the file
    /// names, with their defaults (engine lsm)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Bytes of the log that are buffered before they leave for the storage nodes. A write is then
    /// answered when its record is in the buffer, and lost if this process is killed within about
    /// 100 ms. 1048576 is a good size. It replaces log_buffer_bytes of the settings file (engine
    /// lsm, needs --store)
    #[arg(long, value_name = "BYTES", requires = "store")]
    log_buffer_bytes: Option<u64>,
    /// Directory of this machine for the log, with nothing else in it: the log then lies neither in
    /// --dir nor in the volume. The place is chosen when the database is created. If this machine
    /// or the directory is lost, nobody can open the database. It replaces log_dir of the settings
    /// file (engine lsm)
    #[arg(long, value_name = "DIR", conflicts_with = "log_buffer_bytes")]
    log_dir: Option<PathBuf>,
    /// Acknowledge a write only after it is on the device, so that it survives power loss. By
    /// default an acknowledged write survives the end of the process (kill -9), but the last
    /// writes before a power loss may be lost (engine lsm)
    #[arg(long)]
    sync: bool,
    /// Highest number of connected clients. The server lowers it if the limit of open files
    /// (`ulimit -n`) does not allow so many
    #[arg(long, visible_alias = "max-clients", value_name = "N", default_value_t = 10_000)]
    clients_max: usize,
    /// Seconds without progress after which the server closes a connection; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u64,
    /// MiB of unread replies above which the server closes the connection of a client. With 0 only
    /// the common limit holds: the unread replies of all clients take at most a quarter of the
    /// memory budget
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    output_mib_max: usize,
    /// Seconds of silence after which the server sends a TCP keepalive probe, so that connections
    /// of vanished clients end; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    tcp_keepalive: u64,
    #[command(flatten)]
    password: PasswordArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Threads that serve clients. With 0 it is the number of cores, but at most one thread for
    /// each 16 MiB of the memory budget. Engine flexkv: with 0 it is half of the number of cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Memory budget of the process in MiB. With 0 it is memory_budget_bytes of the settings file,
    /// or half of the memory of the machine or of its control group. Engine flexkv: memory for
    /// index and cache; 0 for 128 MiB
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    memory_mib: u64,
    /// Allow clients to copy the database with `CHECKPOINT NAME`. Each copy is a directory NAME in
    /// this directory, which must exist and must not lie in the data directory. Without the flag
    /// the command is refused (engine lsm)
    #[arg(long, value_name = "DIR", conflicts_with = "store")]
    checkpoints: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Print the settings that the server would use, as TOML, and exit (engine lsm)
    #[arg(long)]
    print_settings: bool,
    /// Stop when standard input ends. A program that starts the server as a child process uses it,
    /// so that the server does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

impl ServeArgs {
    /// Whether the process serves a database on this machine.
    pub(crate) fn is_database(&self) -> bool {
        !matches!(self.engine, Engine::FlexKv)
    }

    /// Addresses of the managers: the given ones, or those of the storage cluster, which give out
    /// jobs as well.
    fn manager(&self) -> &str {
        self.manager.as_deref().or(self.volume.store()).unwrap_or(MANAGER)
    }
}

/// Serves until the process is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    flags::check(args)?;
    match args.engine {
        Engine::Lsm => database(args),
        Engine::FlexKv => remote_memory(args),
    }
}

fn database(args: &ServeArgs) -> Result<()> {
    let settings = settings(args)?;
    if args.print_settings {
        return print(&settings.to_toml()?);
    }
    // Invariant 1: flags and the port come before the database.
    let checkpoints = args.checkpoints.as_deref().map(|dir| checkpoints_in(dir, &args.dir));
    let mut options = ServerOptions { checkpoints: checkpoints.transpose()?, ..options(args)? };
    if options.worker_threads == 0 {
        options.worker_threads = threads_within(archipelago_compute::memory_bytes(&settings));
    }
    let volume = args.volume.settings("serve", &args.secret)?;
    let executor = hosted_plan(args)?;
    let ports = Ports::open(args, options)?;
    let offload = offload(args)?;
    let node = match (&volume, offload) {
        (Some(volume), None) => ComputeNode::open_volume(volume, &settings)?,
        (Some(volume), Some(offload)) => {
            ComputeNode::open_volume_offloading(volume, &settings, offload)?
        }
        (None, None) => ComputeNode::open(&args.dir, &settings)?,
        (None, Some(offload)) => {
            let dir = std::path::absolute(&args.dir)
                .map_err(|source| Error::io("find the absolute path of", &args.dir, source))?;
            ComputeNode::open_offloading(&dir, &settings, offload)?
        }
    };
    let served = serve_database(args, ports, executor, &node);
    let closed = node.close();
    match served? {
        End::Asked => closed?,
        // The new owner has everything that was acknowledged, and this process can add nothing.
        End::LostVolume(error) => {
            return Err(error.context_at("this server ended because it lost its volume"));
        }
    }
    print_line!("Stopped");
    Ok(())
}

/// Settings of the work and memory that leave this process; `None` if nothing leaves.
fn offload(args: &ServeArgs) -> Result<Option<OwnerSettings>> {
    let mode = args.offload_mode.mode();
    if mode == OffloadMode::Off {
        return Ok(None);
    }
    let (managers, secret) = (managers(args.manager())?, args.secret.read()?);
    let memtable_bytes_max = args.remote_memtables_mib.saturating_mul(1 << 20);
    let memtable_bytes_guaranteed = args.offload_guaranteed_mib.saturating_mul(1 << 20);
    let key_offset_cache_bytes = args.key_offset_cache_mib.map(|mib| mib.saturating_mul(1 << 20));
    Ok(Some(OwnerSettings {
        managers,
        mode,
        secret,
        memtable_bytes_max,
        memtable_bytes_guaranteed,
        key_offset_cache_bytes,
        shard_copies: args.shard_copies,
        staying: args.local_memtables,
        gc_invalid_files: args.gc_invalid_files,
        address: process_address(),
    }))
}

/// The executor in this process, if the flags want one. It reaches the volumes of --store and the
/// shared directories.
fn hosted_plan(args: &ServeArgs) -> Result<Option<HostedPlan>> {
    let Some(slots) = args.side.slots()? else { return Ok(None) };
    let store = args.volume.store().map(str::to_owned);
    if store.is_none() && args.side.shares().is_empty() {
        return Err(Error::invalid(
            "--executor-slots: jobs reach the files of databases in shared directories, or in the \
             storage cluster of --store: add --share DIR",
        ));
    }
    let settings = ExecutorSettings {
        managers: managers(args.manager())?,
        slots,
        secret: args.secret.read()?,
        ..ExecutorSettings::default()
    };
    let files = JobFiles {
        shares: args.side.shares().to_vec(),
        store,
        redundancy: args.volume.redundancy(),
        copies_min: args.volume.copies_min(),
    };
    HostedPlan::new(settings, files).map(Some)
}

/// Starts the executor in this process, if there is to be one.
fn host_executor(args: &ServeArgs, plan: Option<HostedPlan>) -> Result<Option<HostedExecutor>> {
    let address = format!("server {}", process_address());
    plan.map(|plan| plan.start(address, None, &args.secret)).transpose()
}

/// Serves the database of an open node. Returns why that ended.
fn serve_database(
    args: &ServeArgs,
    ports: Ports,
    executor: Option<HostedPlan>,
    node: &ComputeNode,
) -> Result<End> {
    let executor = host_executor(args, executor)?;
    let redis = ports.redis.with_budget(Arc::clone(node.budget()));
    let write_options = WriteOptions { sync: args.sync, ..WriteOptions::default() };
    let mut store = EngineStore::new(node.db().clone(), write_options)?;
    if let Some(facts) = tier_and_offload_facts(node) {
        store = store.with_facts(Box::new(facts));
    }
    let start = |store: EngineStore| -> Result<Running> {
        let server = redis.serve(Arc::new(store));
        let all = vec![
            sources::process("serve", None),
            sources::budget(Arc::clone(node.budget())),
            sources::redis(server.monitor()),
            sources::engine(node.db().clone()),
        ];
        let tiers = node.tiers().map(|tiers| sources::tiers(Arc::clone(tiers)));
        let volume = node.volume().cloned().map(sources::volume);
        let shards = node.remote_shards().cloned().map(sources::remote_shards);
        let jobs = node.offload().cloned().map(sources::offload_jobs);
        let executor = executor.as_ref().map(|executor| sources::executor(executor.monitor()));
        let all = all.into_iter().chain(tiers).chain(volume).chain(shards).chain(jobs);
        let all = all.chain(executor).collect();
        let metrics = metrics::serve(ports.metrics, all)?;
        Ok(Running { server, metrics })
    };
    let Some(volume) = node.volume() else {
        let (what, running) = (args.dir.display().to_string(), start(store)?);
        return serve(args, running, executor, &what, std::future::pending());
    };
    let (leased, named, offload) = (volume.clone(), volume.clone(), tier_and_offload_facts(node));
    let facts = move || {
        let away = offload.as_ref().map(|facts| facts()).unwrap_or_default();
        named.facts() + &away
    };
    let store =
        store.with_read_check(Box::new(move || leased.check_lease())).with_facts(Box::new(facts));
    let running = start(store)?;
    let watched = WatchedVolume { volume: volume.clone(), monitor: running.server.monitor() };
    let lost = watched.lost(args.volume.lease());
    serve(args, running, executor, &args.volume.describe(), lost)
}

/// Lines of INFO about the tiers, and about what leaves the process.
fn tier_and_offload_facts(
    node: &ComputeNode,
) -> Option<impl Fn() -> String + Send + Sync + 'static> {
    let (jobs, shards) = (node.offload().cloned(), node.remote_shards().cloned());
    let (tiers, db) = (node.tiers().cloned(), node.db().clone());
    let took_over = move || takeover_facts(db.statistics());
    let is_any = jobs.is_some() || shards.is_some() || tiers.is_some();
    let facts = move || {
        let tiers = tiers.as_ref().map(|tiers| tiers.stats().facts()).unwrap_or_default();
        let jobs = jobs.as_ref().map(|jobs| jobs.facts()).unwrap_or_default();
        let shards = shards.as_ref().map(|shards| shards.figures().facts() + &took_over());
        let shards = shards.unwrap_or_default();
        tiers + &jobs + &shards
    };
    is_any.then_some(facts)
}

/// A volume that is served, and the clients that may cache its values.
struct WatchedVolume {
    volume: VolumeStorage,
    monitor: ServerMonitor,
}

impl WatchedVolume {
    /// Returns the error of a volume that another process has taken over. Meanwhile, clients with
    /// cached values are closed whenever the lease has ended: another process may change the values
    /// then, and this one could not tell them.
    async fn lost(self, lease: Duration) -> Error {
        let pause = OWNER_CHECK.min(lease / OWNER_CHECKS);
        loop {
            tokio::time::sleep(pause).await;
            match self.volume.check_owner() {
                Err(error) if error.kind() == ErrorKind::Fenced => return error,
                _ => {}
            }
            if let Err(error) = self.volume.check_lease() {
                let closed = self.monitor.close_tracking_clients();
                if closed > 0 {
                    tracing::warn!(%error, closed, "clients that track keys are disconnected");
                }
            }
        }
    }
}

/// Memory in bytes that each thread that serves clients should have. The number of threads bounds
/// the values that are read and written at the same time.
const THREAD_MEMORY_BYTES: u64 = 16 << 20;

/// Number of threads of a server that may take `memory_bytes`. It is 0, which stands for the number
/// of cores, unless the memory allows fewer threads than that.
fn threads_within(memory_bytes: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let most = usize::try_from(memory_bytes / THREAD_MEMORY_BYTES).unwrap_or(usize::MAX).max(2);
    if most < cores { most } else { 0 }
}

/// Default number of threads of a compute node: half of the cores. Most calls end within a
/// microsecond under one lock of the node's cache. The kernel's network, the clients of this
/// machine and the threads of the fabric need the other half. On two cores a second thread slows a
/// stream of GETs and SETs down.
fn threads_of_node() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

fn remote_memory(args: &ServeArgs) -> Result<()> {
    let mut options = options(args)?;
    if options.worker_threads == 0 {
        options.worker_threads = threads_of_node();
    }
    let mut listen_at = vec![endpoint(&args.peers)?];
    let mut advertise = Vec::new();
    match &args.advertise {
        Some(told) => advertise.push(endpoint(told)?),
        None if args.peers.starts_with("0.0.0.0:") || args.peers.starts_with("[::]:") => {
            return Err(Error::invalid(format!(
                "--peers {}: others cannot connect to that address: name one that they can reach \
                 with --advertise HOST:PORT",
                args.peers
            )));
        }
        None => {}
    }
    listen_at.extend(args.shm.as_ref().map(|path| format!("shm:{path}")));
    let mut store = FlexKvSettings::default();
    if args.memory_mib > 0 {
        store.memory_limit = bytes_of(args.memory_mib)?;
    }
    let secret = args.secret.read()?;
    let executor = hosted_plan(args)?;
    let ports = Ports::open(args, options)?;
    let node = Arc::new(FlexKvNode::start(FlexKvNodeSettings {
        manager: managers(args.manager())?,
        listen: listen_at,
        advertise,
        secret,
        store,
    })?);
    let store = FlexKvStore::new(Arc::clone(&node));
    let what = format!("the store of the cluster at {}", args.manager());
    let executor = host_executor(args, executor)?;
    let server = ports.redis.serve(Arc::new(store));
    let mut all = vec![
        sources::process("compute", None),
        sources::redis(server.monitor()),
        sources::flexkv(Arc::clone(&node)),
    ];
    all.extend(executor.as_ref().map(|executor| sources::executor(executor.monitor())));
    let metrics = metrics::serve(ports.metrics, all)?;
    serve(args, Running { server, metrics }, executor, &what, std::future::pending())?;
    // With its last reference the node leaves, and other nodes take over its partitions.
    drop(node);
    print_line!("Stopped");
    Ok(())
}

fn options(args: &ServeArgs) -> Result<ServerOptions> {
    let seconds = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
    let mut options = ServerOptions {
        worker_threads: args.threads,
        clients_max: args.clients_max,
        idle_timeout: seconds(args.idle_timeout),
        output_bytes_max: args.output_mib_max.saturating_mul(1 << 20),
        tcp_keepalive: seconds(args.tcp_keepalive),
        tls: args.tls.options(),
        ..ServerOptions::default()
    };
    args.password.apply(&mut options)?;
    Ok(options)
}

/// Ports that are open before the store is.
struct Ports {
    redis: Listening,
    metrics: Option<MetricsListener>,
}

impl Ports {
    /// Opens the ports. The caller has checked all flags.
    fn open(args: &ServeArgs, options: ServerOptions) -> Result<Self> {
        Ok(Self { redis: listen(args, options)?, metrics: args.metrics.listen()? })
    }
}

/// A server, and the figures of its process. Both end before the store.
struct Running {
    server: Server,
    metrics: Option<MetricsServer>,
}

/// Listens on the port. The caller has checked all flags.
fn listen(args: &ServeArgs, options: ServerOptions) -> Result<Listening> {
    raise_limit();
    Server::listen(&args.listen, options).map_err(|error| match error.io_kind() {
        Some(std::io::ErrorKind::AddrInUse) => error.context_at(
            "another program has that port: end it, or choose another with --listen HOST:PORT",
        ),
        _ => error,
    })
}

/// Why a server ended.
#[derive(Debug)]
enum End {
    /// By a signal, by SHUTDOWN, or with its standard input.
    Asked,
    /// Another process has taken the volume over. The error names it.
    LostVolume(Error),
}

/// Serves until the process is told to stop, or until `lost` returns the error of a lost volume.
/// The jobs of the executor end before the server, which answers clients meanwhile. So `lost` is
/// watched until the server ends.
fn serve(
    args: &ServeArgs,
    running: Running,
    executor: Option<HostedExecutor>,
    what: &str,
    lost: impl Future<Output = Error> + Send + 'static,
) -> Result<End> {
    let Running { server, metrics } = running;
    let mut signals = server.within(StopSignals::watch)?;
    let mut told = stdin_ended(args.stop_with_stdin)?;
    let addr = server.local_addr();
    print_line!("Archipelago serves {what} on {addr}");
    let more = [args.tls.client_flags(), args.password.client_flags()].concat();
    print_line!("Connect with: redis-cli -h {} -p {}{more}", addr.ip(), addr.port());
    metrics::print_url(metrics.as_ref());
    if let Some(executor) = &executor {
        print_line!("{}", executor.describe());
    }
    if args.engine == Engine::FlexKv {
        args.secret.print_audience();
    }
    let loss = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&loss);
    let mut watch = server.within(|| {
        tokio::spawn(async move {
            let error = lost.await;
            *noted.lock() = Some(error);
        })
    });
    // A client's SHUTDOWN is a request like a signal.
    let mut cause = StopCause::Signal;
    server.wait_or(async {
        tokio::select! {
            () = signals.received() => {}
            _ = told.recv() => cause = StopCause::StdinEnded,
            _ = &mut watch => cause = StopCause::Over,
        }
    });
    if let Some(executor) = executor {
        // It watches for another signal, which cancels the jobs.
        executor.end(cause, &mut Stop::watch(false)?, || watch.is_finished());
    }
    print_line!("Stopping: finishing the commands that were received");
    if !server.shutdown() {
        print_line!("Some clients did not read their replies in time and were cut off");
    }
    drop(metrics);
    let lost = loss.lock().take();
    Ok(lost.map_or(End::Asked, End::LostVolume))
}

/// The directory for checkpoints as an absolute path without symbolic links. The server then
/// decides by the path alone whether a checkpoint lies in it.
fn checkpoints_in(dir: &Path, data: &Path) -> Result<PathBuf> {
    let whole = dir.canonicalize().map_err(|source| {
        Error::io("use", dir, source).context_at("--checkpoints (create the directory first)")
    })?;
    let data = std::path::absolute(data).map_err(|source| Error::io("find", data, source))?;
    let data = data.canonicalize().unwrap_or(data);
    if whole.starts_with(&data) {
        return Err(Error::invalid(format!(
            "--checkpoints {} lies in the directory of the data, {}: choose a directory outside it",
            dir.display(),
            data.display()
        )));
    }
    Ok(whole)
}

/// The settings of the file, or the defaults. Flags replace them.
fn settings(args: &ServeArgs) -> Result<Settings> {
    let mut settings = match &args.config {
        Some(path) => archipelago::load_settings(path)?,
        None => Settings::default(),
    };
    if args.memory_mib > 0 {
        settings.database.memory_budget_bytes = bytes_of(args.memory_mib)?;
    }
    if let Some(bytes) = args.log_buffer_bytes {
        settings.database.log_buffer_bytes = bytes;
    }
    if let Some(dir) = &args.log_dir {
        settings.log_dir = Some(dir.clone());
    }
    settings.validate().map_err(|error| match args.memory_mib {
        0 => error,
        mib => error.context_at(format!("with --memory-mib {mib}")),
    })?;
    if let (Some(dir), Some(flag)) = (&settings.log_dir, args.volume.about_log_or_owner()) {
        return Err(Error::invalid(format!(
            "{flag}: the log of this database lies in {}, and not on storage nodes: leave {flag} \
             out. After the end of the owner of the volume, only the machine with that log can \
             open the volume",
            dir.display()
        )));
    }
    Ok(settings)
}

fn bytes_of(mib: u64) -> Result<u64> {
    let too_much = || {
        Error::invalid(format!(
            "--memory-mib {mib} is too large: the number of bytes must fit into 64 bits"
        ))
    };
    mib.checked_mul(1 << 20).ok_or_else(too_much)
}
