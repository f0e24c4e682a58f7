//! `archipelago serve`: opens the database, or joins the store over remote memory, serves it over RESP, ends in good order on
//! SIGTERM, SIGINT or a client's SHUTDOWN.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago::{ComputeNode, Error, Result, Settings, WriteOptions};
use archipelago_compute::flex::{FlexNode, FlexNodeSettings, FlexSettings};
use archipelago_env::descriptors::raise_limit;
use archipelago_pool::endpoint;
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::flex_store::FlexStore;
use archipelago_resp::store::Store;
use archipelago_resp::{Server, ServerOptions};

use crate::node::MANAGER;
use crate::say::say;
use crate::stop::{StopSignals, stdin_ended};

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// The database in --dir: ordered, durable
    Lsm,
    /// The store over the memory of a cluster, of which this process becomes a compute node: see --manager
    Flex,
}

/// Runs the store until SIGTERM, SIGINT (Ctrl-C) or a client's SHUTDOWN, then ends it in order.
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// What is served
    #[arg(long, value_enum, default_value_t = Engine::Lsm)]
    engine: Engine,
    /// Where the cluster's manager is (engine flex)
    #[arg(long, value_name = "HOST:PORT", default_value = MANAGER)]
    manager: String,
    /// Where other compute nodes reach this one; port 0 lets the system choose (engine flex)
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    peers: String,
    /// What other compute nodes are told to connect to, if that is not where --peers says (engine flex)
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Also serve compute nodes of this machine through shared memory, by a socket at this path (engine flex)
    #[arg(long, value_name = "PATH")]
    shm: Option<String>,
    /// Directory of the data; created if it is not there
    #[arg(long, value_name = "DIR", default_value = "./archipelago-data")]
    dir: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    listen: String,
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
    /// Threads that serve clients; 0 for as many as there are cores. Engine flex: 0 for half as many
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Budget over all memory in MiB; 0 for what the settings say, or half of what the machine or
    /// its cgroup allows. Engine flex: memory for index and cache; 0 for 128
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    memory_mib: u64,
    /// Print the settings that it would run with, as TOML, and end
    #[arg(long)]
    print_settings: bool,
    /// End when standard input ends: for who starts it as a child
    #[arg(long)]
    stop_with_stdin: bool,
}

/// Serves until told to end. On return everything acknowledged is in the database's files, or in the cluster's memory.
impl ServeArgs {
    /// Whether it serves a database on this machine.
    pub(crate) fn is_database(&self) -> bool {
        !matches!(self.engine, Engine::Flex)
    }
}

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    match args.engine {
        Engine::Lsm => database(args),
        Engine::Flex => remote_memory(args),
    }
}

fn database(args: &ServeArgs) -> Result<()> {
    let settings = settings(args)?;
    if args.print_settings {
        print!("{}", settings.to_toml()?);
        return Ok(());
    }
    archipelago_resp::server::resolve(&args.listen)?;
    raise_limit();
    let node = ComputeNode::open(&args.dir, &settings)?;
    let options = ServerOptions { budget: Arc::clone(node.budget()), ..options(args) };
    options.validate()?;
    let write_options = WriteOptions { sync: args.sync, ..WriteOptions::default() };
    let mut store = EngineStore::new(node.db().clone(), write_options);
    if let Some(tiers) = node.tiers() {
        let tiers = Arc::clone(tiers);
        store = store.with_facts(Box::new(move || tiers.stats().facts()));
    }
    serve(args, Arc::new(store), options, &args.dir.display().to_string())?;
    node.close()?;
    say!("Stopped");
    Ok(())
}

/// Threads for a compute node that was not told how many: half of the cores. Most calls end within a microsecond, under one lock of the node's cache, and the
/// kernel's network, the clients of this machine and the fabric's threads need the other half: on two cores a second thread
/// makes a stream of GETs and SETs slower, not faster.
fn threads_of_node() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

fn remote_memory(args: &ServeArgs) -> Result<()> {
    let mut options = options(args);
    if options.worker_threads == 0 {
        options.worker_threads = threads_of_node();
    }
    options.validate()?;
    archipelago_resp::server::resolve(&args.listen)?;
    let mut listen = vec![endpoint(&args.peers)?];
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
    listen.extend(args.shm.as_ref().map(|path| format!("shm:{path}")));
    raise_limit();
    let mut store = FlexSettings::default();
    if args.memory_mib > 0 {
        store.memory_limit = bytes_of(args.memory_mib)?;
    }
    let node = Arc::new(FlexNode::start(FlexNodeSettings {
        manager: vec![endpoint(&args.manager)?],
        listen,
        advertise,
        store,
    })?);
    let store = FlexStore::new(Arc::clone(&node));
    let what = format!("the store of the cluster at {}", args.manager);
    serve(args, Arc::new(store), options, &what)?;
    // The last reference: it leaves, and others take what it served.
    drop(node);
    say!("Stopped");
    Ok(())
}

fn options(args: &ServeArgs) -> ServerOptions {
    ServerOptions {
        worker_threads: args.threads,
        clients_max: args.clients_max,
        idle_timeout: (args.idle_timeout > 0).then(|| Duration::from_secs(args.idle_timeout)),
        ..ServerOptions::default()
    }
}

fn serve(
    args: &ServeArgs,
    store: Arc<dyn Store>,
    options: ServerOptions,
    what: &str,
) -> Result<()> {
    let server = Server::start(&args.listen, store, options)?;
    let mut signals = server.within(StopSignals::watch)?;
    let mut told = stdin_ended(args.stop_with_stdin)?;
    let addr = server.local_addr();
    say!("Archipelago serves {what} on {addr}");
    say!("Connect with: redis-cli -h {} -p {}", addr.ip(), addr.port());
    if !addr.ip().is_loopback() {
        say!("Warning: there are no passwords; whoever reaches {addr} can read and write");
    }
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
