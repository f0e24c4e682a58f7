//! `archipelago serve`: opens the database, or joins the store over remote memory, serves it over
//! RESP, ends in good order on SIGTERM, SIGINT or a client's SHUTDOWN.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago::{ComputeNode, Error, Result, Settings, WriteOptions};
use archipelago_compute::flexkv::{FlexKvNode, FlexKvNodeSettings, FlexKvSettings};
use archipelago_env::descriptors::raise_limit;
use archipelago_pool::endpoint;
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::flexkv_store::FlexKvStore;
use archipelago_resp::{Listening, Server, ServerOptions};

use crate::access::{PasswordArgs, TlsArgs};
use crate::console::say;
use crate::node::{MANAGER, managers};
use crate::stop::{StopSignals, stdin_ended};

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// The database in --dir: ordered, durable
    Lsm,
    /// The store over the memory of a cluster, of which this process becomes a compute node: see
    /// --manager
    #[value(name = "flexkv", alias = "flex")]
    FlexKv,
}

/// Runs the store until SIGTERM, SIGINT (Ctrl-C) or a client's SHUTDOWN, then ends it in order.
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// What is served
    #[arg(long, value_enum, default_value_t = Engine::Lsm)]
    engine: Engine,
    /// Where the cluster's managers are, with a comma between two (engine flexkv)
    #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
    manager: String,
    /// Where other compute nodes reach this one; port 0 lets the system choose (engine flexkv)
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    peers: String,
    /// What other compute nodes are told to connect to, if that is not where --peers says (engine
    /// flexkv)
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Also serve compute nodes of this machine through shared memory, by a socket at this path
    /// (engine flexkv)
    #[arg(long, value_name = "PATH")]
    shm: Option<String>,
    /// Directory of the data; created if it is not there
    #[arg(long, value_name = "DIR", default_value = "./archipelago-data")]
    dir: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    listen: String,
    /// Refused with a hint: redis-server has it
    #[arg(long, hide = true, value_name = "PORT")]
    port: Option<String>,
    /// Refused with a hint: redis-server has it
    #[arg(long, hide = true, value_name = "HOST", num_args = 1..)]
    bind: Option<Vec<String>>,
    /// A TOML file with settings ([database], [families.NAME], [[tiers]])
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Acknowledge a write only when it survives power loss, not only the end of the process
    #[arg(long)]
    sync: bool,
    /// Most clients at a time; fewer if the limit of open files leaves no more
    #[arg(long, visible_alias = "max-clients", value_name = "N", default_value_t = 10_000)]
    clients_max: usize,
    /// Close clients that say nothing for so many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u64,
    /// Close a client whose replies that it has not read exceed so many MiB; 0 for no limit but the
    /// quarter of the memory budget that all unread replies may take
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    output_mib_max: usize,
    /// Ask a client that says nothing for so many seconds whether it is still there (TCP
    /// keepalive); 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    tcp_keepalive: u64,
    #[command(flatten)]
    password: PasswordArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Threads that serve clients; 0 for as many as there are cores, at most one for each 16 MiB of
    /// the memory budget. Engine flexkv: 0 for half as many as cores
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Budget over all memory in MiB; 0 for what the settings say, or half of what the machine or
    /// its cgroup allows. Engine flexkv: memory for index and cache; 0 for 128
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    memory_mib: u64,
    /// Let clients make copies of the database with CHECKPOINT NAME, each in a directory NAME in
    /// this one, which must exist (engine lsm)
    #[arg(long, value_name = "DIR")]
    checkpoints: Option<PathBuf>,
    /// Print the settings that it would run with, as TOML, and end
    #[arg(long)]
    print_settings: bool,
    /// End when standard input ends: for who starts it as a child
    #[arg(long)]
    stop_with_stdin: bool,
}

/// Serves until told to end. On return everything acknowledged is in the database's files, or in
/// the cluster's memory.
impl ServeArgs {
    /// Whether it serves a database on this machine.
    pub(crate) fn is_database(&self) -> bool {
        !matches!(self.engine, Engine::FlexKv)
    }
}

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    refuse_flags_of_redis(args)?;
    match args.engine {
        Engine::Lsm => database(args),
        Engine::FlexKv => remote_memory(args),
    }
}

/// Says what the flags of redis-server are called here.
fn refuse_flags_of_redis(args: &ServeArgs) -> Result<()> {
    let hint = |flag: &str, host: &str, port: &str| {
        Err(Error::invalid(format!(
            "there is no {flag}: host and port are one flag here, --listen {host}:{port}"
        )))
    };
    match (&args.port, args.bind.as_ref().and_then(|hosts| hosts.first())) {
        (None, None) => Ok(()),
        (Some(port), None) => hint("--port", "127.0.0.1", port),
        (None, Some(host)) => hint("--bind", host, "6379"),
        (Some(port), Some(host)) => hint("--port and no --bind", host, port),
    }
}

fn database(args: &ServeArgs) -> Result<()> {
    let settings = settings(args)?;
    if args.print_settings {
        print!("{}", settings.to_toml()?);
        return Ok(());
    }
    // What can be refused is refused before a database is created.
    let checkpoints = args.checkpoints.as_deref().map(|dir| checkpoints_in(dir, &args.dir));
    let mut options = ServerOptions { checkpoints: checkpoints.transpose()?, ..options(args)? };
    if options.worker_threads == 0 {
        options.worker_threads = threads_within(archipelago_compute::memory_bytes(&settings));
    }
    let listening = listen(args, options)?;
    let node = ComputeNode::open(&args.dir, &settings)?;
    let listening = listening.with_budget(Arc::clone(node.budget()));
    let write_options = WriteOptions { sync: args.sync, ..WriteOptions::default() };
    let mut store = EngineStore::new(node.db().clone(), write_options)?;
    if let Some(tiers) = node.tiers() {
        let tiers = Arc::clone(tiers);
        store = store.with_facts(Box::new(move || tiers.stats().facts()));
    }
    let server = listening.serve(Arc::new(store));
    serve(args, server, &args.dir.display().to_string())?;
    node.close()?;
    say!("Stopped");
    Ok(())
}

/// Memory that each thread that serves clients should find: values that are being read and written
/// are bounded by the number of threads.
const THREAD_MEMORY_BYTES: u64 = 16 << 20;

/// Threads for a server that may take `memory_bytes`: 0, which stands for the number of cores, or
/// less than that where there is little memory for each.
fn threads_within(memory_bytes: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let most = usize::try_from(memory_bytes / THREAD_MEMORY_BYTES).unwrap_or(usize::MAX).max(2);
    if most < cores { most } else { 0 }
}

/// Threads for a compute node that was not told how many: half of the cores. Most calls end within
/// a microsecond, under one lock of the node's cache, and the kernel's network, the clients of this
/// machine and the fabric's threads need the other half: on two cores a second thread makes a
/// stream of GETs and SETs slower, not faster.
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
                "--peers {}: others cannot connect to that; say where with --advertise HOST:PORT",
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
    let listening = listen(args, options)?;
    let node = Arc::new(FlexKvNode::start(FlexKvNodeSettings {
        manager: managers(&args.manager)?,
        listen: listen_at,
        advertise,
        store,
    })?);
    let store = FlexKvStore::new(Arc::clone(&node));
    let what = format!("the store of the cluster at {}", args.manager);
    serve(args, listening.serve(Arc::new(store)), &what)?;
    // The last reference: it leaves, and others take what it served.
    drop(node);
    say!("Stopped");
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

/// Takes the port, once all flags have been looked at.
fn listen(args: &ServeArgs, options: ServerOptions) -> Result<Listening> {
    raise_limit();
    Server::listen(&args.listen, options).map_err(|error| match error.io_kind() {
        Some(std::io::ErrorKind::AddrInUse) => error.context_at(
            "another program has that port: end it, or choose another with --listen HOST:PORT",
        ),
        _ => error,
    })
}

fn serve(args: &ServeArgs, server: Server, what: &str) -> Result<()> {
    let mut signals = server.within(StopSignals::watch)?;
    let mut told = stdin_ended(args.stop_with_stdin)?;
    let addr = server.local_addr();
    say!("Archipelago serves {what} on {addr}");
    let more = [args.tls.client_flags(), args.password.client_flags()].concat();
    say!("Connect with: redis-cli -h {} -p {}{more}", addr.ip(), addr.port());
    server.wait_or(async {
        tokio::select! {
            () = signals.received() => {}
            _ = told.recv() => {}
        }
    });
    say!("Stopping: finishing commands in flight");
    if !server.shutdown() {
        say!("Some clients did not read their replies in time and were cut off");
    }
    Ok(())
}

/// The directory for checkpoints, with links followed, so that a path is below it or is not.
fn checkpoints_in(dir: &Path, data: &Path) -> Result<PathBuf> {
    let whole = dir.canonicalize().map_err(|source| {
        Error::io("use", dir, source).context_at("--checkpoints (create the directory first)")
    })?;
    let data = std::path::absolute(data).map_err(|source| Error::io("find", data, source))?;
    let data = data.canonicalize().unwrap_or(data);
    if whole.starts_with(&data) {
        return Err(Error::invalid(format!(
            "--checkpoints {}: it lies in the directory of the data, {}: choose one beside it",
            dir.display(),
            data.display()
        )));
    }
    Ok(whole)
}

/// The settings file, or defaults, with what the flags say over it.
fn settings(args: &ServeArgs) -> Result<Settings> {
    let mut settings = match &args.config {
        Some(path) => archipelago::load_settings(path)?,
        None => Settings::default(),
    };
    if args.memory_mib > 0 {
        settings.database.memory_budget_bytes = bytes_of(args.memory_mib)?;
    }
    settings.validate().map_err(|error| match args.memory_mib {
        0 => error,
        mib => error.context_at(format!("with --memory-mib {mib}")),
    })?;
    Ok(settings)
}

fn bytes_of(mib: u64) -> Result<u64> {
    let too_much = || Error::invalid(format!("--memory-mib {mib}: more than 64 bits of bytes"));
    mib.checked_mul(1 << 20).ok_or_else(too_much)
}
