//! `archipelago cluster up`: starts a cluster on this machine as child processes.
//!
//! The command owns its child processes. Each ends when its standard input ends, so no process
//! outlives the command. Nodes end before the managers. The data of storage nodes stay in their
//! directories.

use std::path::{Path, PathBuf};

use archipelago_base::{Error, Result};
use archipelago_env::FileSystem;
use archipelago_env::local::LocalFs;
use archipelago_fabric::Secret;
use archipelago_resp::ServerOptions;
use archipelago_resp::server::resolve;

use super::children::{ChildProcess, Sockets};
use super::storage;
use crate::access::PasswordArgs;
use crate::console::print_line;
use crate::managers::MANAGER;
use crate::ports::{self, Wanted};
use crate::secret::SecretArgs;
use crate::stop::Stop;

/// Store that the compute nodes serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// A store over the memory of the cluster, which all compute nodes share
    #[value(name = "flexkv", alias = "flex")]
    FlexKv,
    /// A database for each compute node, on the storage nodes or below --dir. Its memtables,
    /// flushes and compactions leave the compute node
    Lsm,
}

#[derive(clap::Args, Debug)]
pub(crate) struct UpArgs {
    /// Store that the compute nodes serve
    #[arg(long, value_enum, default_value_t = Engine::FlexKv)]
    engine: Engine,
    /// Number of executors, which run jobs of databases. Memory nodes run jobs as well if there are
    /// executors. Default: 1 with the engine lsm, and else 0
    #[arg(long, value_name = "N")]
    executors: Option<u16>,
    /// Number of memory nodes. Default: 3, 1 with the engine lsm, or none if --storage is given
    /// with the engine flexkv
    #[arg(long, value_name = "N")]
    memory: Option<u64>,
    /// Number of storage nodes, which keep databases on disk (`archipelago serve --store`). Six
    /// have full redundancy, three survive the loss of one, and fewer are a trial. Each counts as
    /// a domain of its own
    #[arg(long, value_name = "N", default_value_t = 0)]
    storage: u64,
    /// Directory for the data of the storage nodes: storage1, storage2 and so on. Without storage
    /// nodes the databases of compute nodes lie there: compute1, compute2 and so on. They stay
    /// there when the cluster stops, and the next start finds them. Executors run jobs of all
    /// databases below the directory
    #[arg(long, value_name = "DIR", default_value = "./archipelago-cluster")]
    dir: PathBuf,
    /// Bytes that each storage node uses at most, such as 10GiB. Default: all that the file system
    /// has
    #[arg(long, value_name = "SIZE")]
    storage_size_max: Option<String>,
    /// Number of compute nodes, which serve Redis clients
    #[arg(long, value_name = "N", default_value_t = 0)]
    compute: u16,
    /// Address at which the first compute node serves Redis clients. The other compute nodes use
    /// the following ports. With port 0 the system chooses free ports
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    resp: String,
    #[command(flatten)]
    password: PasswordArgs,
    #[command(flatten)]
    secret: SecretArgs,
    /// Number of partitions of the store, a power of two
    #[arg(long, value_name = "N", default_value_t = 1024)]
    partitions: u32,
    /// Fixed share, in thousandths, of the partitions whose index lies at compute nodes. Without
    /// the flag the store follows the load
    #[arg(long, value_name = "N")]
    offload: Option<u32>,
    /// Memory that each memory node lends, such as 256MiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: String,
    /// Size of a block, a power of two such as 16MiB
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    block: String,
    /// Number of copies of every block. 0: three, or as many as there are memory nodes if these are
    /// fewer
    #[arg(long, value_name = "N", default_value_t = 0)]
    copies: u32,
    /// Address at which the first manager listens. The standby managers use the following ports.
    /// With port 0 the system chooses free ports
    #[arg(long, value_name = "HOST:PORT", default_value = MANAGER)]
    manager: String,
    /// Number of managers. One acts, and the others stand by and take over when it dies. 1: the
    /// manager runs alone. Default: 2, or 1 without memory nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=5))]
    managers: Option<u16>,
    /// Milliseconds of silence after which the manager declares a client dead
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    lease_ms: u64,
    /// Milliseconds of silence after which the manager declares a memory node dead
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    node_lease_ms: u64,
    /// Address at which Prometheus finds the figures of the first manager, as
    /// http://HOST:PORT/metrics. The other processes use the following ports: managers, memory
    /// nodes, storage nodes, executors and compute nodes, in this order. With port 0 the system
    /// chooses free ports. There is no TLS and no password. Without the flag there are no such
    /// ports
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Transport between compute nodes and memory nodes
    #[arg(long, value_enum, default_value_t = Provider::Shm)]
    provider: Provider,
    /// Stop when standard input ends. A program that starts the cluster as a child process uses it,
    /// so that the cluster does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

/// Slots of each executor.
const SLOTS: u32 = 2;

impl UpArgs {
    /// Number of memory nodes.
    fn memory(&self) -> u64 {
        self.memory.unwrap_or(match self.engine {
            Engine::Lsm => 1,
            Engine::FlexKv if self.storage > 0 => 0,
            Engine::FlexKv => 3,
        })
    }

    /// Number of executors in addition to those in memory nodes.
    fn executors(&self) -> u16 {
        self.executors.unwrap_or(u16::from(self.engine == Engine::Lsm))
    }

    /// Whether the processes of the cluster run jobs of databases.
    fn runs_jobs(&self) -> bool {
        self.executors() > 0 || self.engine == Engine::Lsm
    }

    /// Number of managers.
    fn managers(&self) -> u16 {
        self.managers.unwrap_or(if self.memory() > 0 { 2 } else { 1 })
    }

    /// Number of processes before the memory nodes, the storage nodes, the executors and the
    /// compute nodes, in the order of their ports for metrics.
    fn processes_before(&self) -> [u64; 4] {
        let managers = u64::from(self.managers());
        let memory = managers + self.memory();
        let storage = memory + self.storage;
        [managers, memory, storage, storage + u64::from(self.executors())]
    }

    /// The flag for writers on fewer storage nodes than a cluster should have, which are a trial.
    fn copies_words(&self) -> Vec<String> {
        match self.storage {
            1 => vec!["--copies-min".to_owned(), "1".to_owned()],
            _ => Vec::new(),
        }
    }

    /// The flag for the metrics of the process at this place; empty without metrics.
    fn metrics_words(&self, place: u64) -> Result<Vec<String>> {
        let Some(first) = &self.metrics else { return Ok(Vec::new()) };
        let wrong = || {
            Error::invalid(format!(
                "--metrics {first}: write it as HOST:PORT, such as 127.0.0.1:9100"
            ))
        };
        let (host, port) = first.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let offset = u16::try_from(place).unwrap_or(u16::MAX);
        // With port 0 the system chooses each port.
        let port = if port == 0 { Some(0) } else { port.checked_add(offset) };
        let port = port.ok_or_else(|| {
            let text = "--metrics: the last port would exceed 65535: choose a lower port";
            Error::invalid(text)
        })?;
        Ok(vec!["--metrics".to_owned(), format!("{host}:{port}")])
    }

    /// Refuses numbers of nodes that make no cluster.
    fn validate(&self) -> Result<()> {
        let (memory, storage) = (self.memory(), self.storage);
        if memory == 0 && storage == 0 {
            return Err(Error::invalid(
                "--memory 0: a cluster needs at least one memory node or storage nodes, so give 1 \
                 or more, or --storage N",
            ));
        }
        if memory == 0 && self.compute > 0 && self.engine == Engine::FlexKv {
            return Err(Error::invalid(format!(
                "--compute {}: compute nodes keep their data on memory nodes, so give --memory N",
                self.compute
            )));
        }
        if memory == 0 && self.managers() > 1 {
            return Err(Error::invalid(format!(
                "--managers {}: memory nodes decide which of several managers acts, so give \
                 --memory N or --managers 1; storage nodes serve without a manager for as long as \
                 no node changes",
                self.managers()
            )));
        }
        Ok(())
    }
}

/// Transport between processes of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Provider {
    /// Shared memory, and TCP for processes that cannot map it
    Shm,
    /// TCP without shared memory
    Tcp,
}

pub(super) fn up(args: &UpArgs) -> Result<()> {
    args.validate()?;
    let copies = match args.copies {
        0 => args.memory().clamp(1, 3) as u32,
        copies => copies,
    };
    check_ports(args)?;
    args.secret.read()?;
    let stop = Stop::watch(args.stop_with_stdin)?;
    let sockets = Sockets::create()?;
    let secret = cluster_secret(args, &sockets)?;
    let mut parts = start_managers(args, copies, &secret)?;
    let addresses: Vec<&str> =
        parts.iter().map(|part| part.address.trim_start_matches("tcp:")).collect();
    let at = addresses.join(",");
    let reach = executor_words(args, &at)?;
    let join = JoinArgs { manager: &at, secret: &secret, reach: &reach };
    print_line!("Manager          {}  (process {})", addresses[0], parts[0].id());
    let mut standbys = Vec::new();
    for (address, part) in addresses.iter().zip(&parts).skip(1) {
        standbys.push(format!("Standby manager  {address}  (process {})", part.id()));
    }
    start_nodes(args, &join, &sockets, &mut parts)?;
    for standby in standbys {
        print_line!("{standby}");
    }
    print_metrics(args, &parts);
    if secret.is_given() && !args.secret.is_given() {
        print_line!(
            "Others can reach the manager, so it and its clients need the new secret below"
        );
    }
    let flags: String = secret.words().iter().map(|word| format!(" {word}")).collect();
    print_line!("Look at it: archipelago cluster status --manager {at}{flags}");
    if args.storage > 0 {
        let trial = if args.storage == 1 { " --copies-min 1" } else { "" };
        print_line!("Use it: archipelago serve --store {at} --volume NAME{flags}{trial}");
    }
    print_line!("Ctrl-C stops it");
    let parts = std::cell::RefCell::new(parts);
    stop.wait(|| {
        let mut all = true;
        for part in parts.borrow_mut().iter_mut() {
            all &= part.report_end();
        }
        all
    });
    for part in parts.borrow_mut().iter_mut() {
        part.report_end();
    }
    print_line!("Stopping");
    drop(parts);
    print_line!("Stopped");
    Ok(())
}

/// Starts the nodes of the cluster, and puts them before the managers: the list is dropped from the
/// front, so nodes end before the managers.
fn start_nodes(
    args: &UpArgs,
    join: &JoinArgs<'_>,
    sockets: &Sockets,
    parts: &mut Vec<ChildProcess>,
) -> Result<()> {
    for node in 1..=args.memory() {
        let part = start_memory(args, join, node, &sockets.path("memory", node))?;
        print_line!("Memory node {node:<4} {}  (process {})", part.address, part.id());
        parts.insert(0, part);
    }
    for node in 1..=args.storage {
        let part = start_storage(args, join, node)?;
        print_line!("Storage node {node:<3} {}  (process {})", part.address, part.id());
        parts.insert(0, part);
    }
    if args.storage > 0 && args.runs_jobs() {
        storage::wait_until_founded(join.manager, join.secret)?;
    }
    for node in 1..=args.executors() {
        let part = start_executor(args, join, node)?;
        print_line!("Executor {node:<7} {}  (process {})", part.address, part.id());
        parts.insert(0, part);
    }
    for node in 1..=args.compute {
        let part = start_compute(args, join, node, &sockets.path("compute", node.into()))?;
        print_line!("Compute node {node:<3} {}  (process {})", part.address, part.id());
        parts.insert(0, part);
    }
    Ok(())
}

/// Prints the URLs of the metrics in the order of their ports. `parts` begins with the node that
/// was started last, and ends with the managers.
fn print_metrics(args: &UpArgs, parts: &[ChildProcess]) {
    let (nodes, managers) = parts.split_at(parts.len() - usize::from(args.managers()));
    managers.iter().chain(nodes.iter().rev()).for_each(ChildProcess::print_metrics);
}

/// Address of manager `number`. The managers after manager 0 use the following ports.
fn manager_address(args: &UpArgs, number: u16) -> Result<String> {
    let wrong = || {
        Error::invalid(format!(
            "--manager {}: write it as HOST:PORT, such as 127.0.0.1:7700",
            args.manager
        ))
    };
    let address = args.manager.trim_start_matches("tcp:");
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    // With port 0 the system chooses each port.
    let port = if port == 0 { Some(0) } else { port.checked_add(number) };
    let port = port.ok_or_else(|| Error::invalid("--manager: with these --managers the last port would exceed 65535: choose a lower port"))?;
    Ok(format!("{host}:{port}"))
}

/// The secret of the cluster's processes: that of the flag, or a new one if other machines can
/// reach the managers. Otherwise there is none.
fn cluster_secret(args: &UpArgs, sockets: &Sockets) -> Result<SecretArgs> {
    if args.secret.is_given() {
        return Ok(args.secret.clone());
    }
    let address = manager_address(args, 0)?;
    if resolve(&address)?.ip().is_loopback() {
        return Ok(SecretArgs::default());
    }
    let file = sockets.file("secret");
    Secret::create(&file)?;
    Ok(SecretArgs::of_file(&file))
}

/// Starts the managers. The first one is to act.
fn start_managers(args: &UpArgs, copies: u32, secret: &SecretArgs) -> Result<Vec<ChildProcess>> {
    let secret = secret.words();
    let secret = strs(&secret);
    let (copies, lease) = (copies.to_string(), args.lease_ms.to_string());
    let (node_lease, partitions) = (args.node_lease_ms.to_string(), args.partitions.to_string());
    let offload = args.offload.map(|offload| offload.to_string());
    let offload: Vec<&str> = offload.iter().flat_map(|share| ["--offload", share]).collect();
    // Several managers need the number of memory nodes, to count a majority of promises.
    let nodes = if args.managers() > 1 { args.memory() } else { 0 }.to_string();
    let mut parts = Vec::new();
    for number in 0..args.managers() {
        let listen = manager_address(args, number)?;
        let metrics = args.metrics_words(number.into())?;
        let words = [
            &["node", "manager", "--listen", &listen, "--copies", &copies][..],
            &["--lease-ms", &lease, "--node-lease-ms", &node_lease],
            &["--partitions", &partitions, "--memory-nodes", &nodes],
            &offload,
            // Fewer nodes are a trial, in which one node keeps all owners and leases.
            if matches!(args.storage, 1 | 2) { &["--root-nodes", "1"] } else { &[] },
            &secret,
            &strs(&metrics),
            if number > 0 { &["--standby"] } else { &[] },
        ]
        .concat();
        let name = if number > 0 { "Standby manager" } else { "Manager" };
        parts.push(ChildProcess::start(name, &words, " ")?);
    }
    Ok(parts)
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// What a node needs to join the cluster.
struct JoinArgs<'a> {
    /// Addresses of all managers, separated by commas.
    manager: &'a str,
    secret: &'a SecretArgs,
    /// Flags that name the files of an executor; empty if the cluster runs no jobs.
    reach: &'a [String],
}

fn start_memory(
    args: &UpArgs,
    join: &JoinArgs<'_>,
    node: u64,
    socket: &Path,
) -> Result<ChildProcess> {
    let (id, path) = (node.to_string(), socket.display().to_string());
    let secret = join.secret.words();
    let shared = ["--shm", &path];
    let metrics = args.metrics_words(args.processes_before()[0] + node - 1)?;
    let words = [
        &["node", "memory", "--id", &id, "--size", &args.size, "--block", &args.block][..],
        &["--manager", join.manager],
        if args.provider == Provider::Shm { &shared[..] } else { &[] },
        &strs(join.reach),
        &strs(&secret),
        &strs(&metrics),
    ]
    .concat();
    ChildProcess::start(&format!("Memory node {node}"), &words, " on ")
}

/// The flags that name the files of the cluster's executors: the volumes of its storage nodes, or
/// the directory with its databases, which is made.
fn executor_words(args: &UpArgs, managers: &str) -> Result<Vec<String>> {
    if !args.runs_jobs() {
        return Ok(Vec::new());
    }
    let mut words = vec!["--slots".to_owned(), SLOTS.to_string()];
    if args.storage > 0 {
        words.extend(["--store".to_owned(), managers.to_owned()]);
        words.extend(args.copies_words());
        return Ok(words);
    }
    LocalFs::new().create_dir_all(&args.dir)?;
    let dir = std::path::absolute(&args.dir)
        .map_err(|source| Error::io("find the absolute path of", &args.dir, source))?;
    words.extend(["--share".to_owned(), dir.display().to_string()]);
    Ok(words)
}

fn start_executor(args: &UpArgs, join: &JoinArgs<'_>, node: u16) -> Result<ChildProcess> {
    let secret = join.secret.words();
    let metrics = args.metrics_words(args.processes_before()[2] + u64::from(node) - 1)?;
    let node_words = ["node", "executor", "--manager", join.manager];
    let words = [&node_words[..], &strs(join.reach), &strs(&secret), &strs(&metrics)].concat();
    ChildProcess::start(&format!("Executor {node}"), &words, " runs ")
}

fn start_storage(args: &UpArgs, join: &JoinArgs<'_>, node: u64) -> Result<ChildProcess> {
    let dir = args.dir.join(format!("storage{node}")).display().to_string();
    let (id, domain) = (node.to_string(), format!("node{node}"));
    let secret = join.secret.words();
    let size_max: Vec<&str> =
        args.storage_size_max.iter().flat_map(|size| ["--size-max", size]).collect();
    let metrics = args.metrics_words(args.processes_before()[1] + node - 1)?;
    let words = [
        &["node", "storage", "--id", &id, "--dir", &dir, "--domain", &domain][..],
        &["--manager", join.manager],
        &size_max,
        &strs(&secret),
        &strs(&metrics),
    ]
    .concat();
    ChildProcess::start(&format!("Storage node {node}"), &words, " on ")
}

/// Returns an error if a port is taken, before any process starts.
fn check_ports(args: &UpArgs) -> Result<()> {
    let mut wanted = Vec::new();
    for number in 0..args.managers() {
        let choice = match number {
            0 => "choose another port with --manager HOST:PORT",
            _ => {
                "choose another first port with --manager HOST:PORT, or run one manager with --managers 1"
            }
        };
        wanted.push(Wanted {
            address: manager_address(args, number)?,
            listener: if number > 0 { "the standby manager" } else { "the manager" }.to_owned(),
            choice: choice.to_owned(),
        });
    }
    for node in 1..=args.compute {
        wanted.push(Wanted {
            address: resp_address(args, node)?,
            listener: format!("compute node {node}"),
            choice: format!(
                "choose another first port with --resp HOST:PORT; {} consecutive ports are needed, and with port 0 the system chooses",
                args.compute
            ),
        });
    }
    if args.metrics.is_some() {
        let [.., before_compute] = args.processes_before();
        for place in 0..before_compute + u64::from(args.compute) {
            let words = args.metrics_words(place)?;
            let Some(address) = words.get(1) else { continue };
            wanted.push(Wanted {
                address: address.clone(),
                listener: format!("the metrics of process {}", place + 1),
                choice: "choose another first port with --metrics HOST:PORT; each process takes \
                         one, and with port 0 the system chooses"
                    .to_owned(),
            });
        }
    }
    if args.compute > 0 {
        let mut options = ServerOptions::default();
        args.password.apply(&mut options)?;
        options.check_address(resolve(&resp_address(args, 1)?)?)?;
    }
    ports::check_free(&wanted)
}

/// Address at which compute node `node` serves Redis clients.
fn resp_address(args: &UpArgs, node: u16) -> Result<String> {
    let wrong = || {
        Error::invalid(format!(
            "--resp {}: write it as HOST:PORT, such as 127.0.0.1:6379",
            args.resp
        ))
    };
    let (host, port) = args.resp.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    // With port 0 the system chooses each port.
    let port = if port == 0 { Some(0) } else { port.checked_add(node - 1) };
    let port = port.ok_or_else(|| {
        Error::invalid(
            "--resp: with this --compute the last port would exceed 65535: choose a lower port",
        )
    })?;
    Ok(format!("{host}:{port}"))
}

fn start_compute(
    args: &UpArgs,
    join: &JoinArgs<'_>,
    node: u16,
    socket: &Path,
) -> Result<ChildProcess> {
    let (listen, path) = (resp_address(args, node)?, socket.display().to_string());
    let (shared, mut flags) = (["--shm", &path], args.password.words());
    flags.extend(join.secret.words());
    flags.extend(args.metrics_words(args.processes_before()[3] + u64::from(node) - 1)?);
    if args.engine == Engine::Lsm {
        let words = lsm_words(args, join, node, &listen)?;
        let words = [&strs(&words)[..], &strs(&flags)].concat();
        return ChildProcess::start(&format!("Compute node {node}"), &words, " on ");
    }
    let words = [
        &["serve", "--engine", "flexkv", "--manager", join.manager][..],
        &["--listen", &listen],
        if args.provider == Provider::Shm { &shared[..] } else { &[] },
        &strs(&flags),
    ]
    .concat();
    ChildProcess::start(&format!("Compute node {node}"), &words, " on ")
}

/// The words that start compute node `node` with a database, whose jobs and memtables leave it.
fn lsm_words(args: &UpArgs, join: &JoinArgs<'_>, node: u16, listen: &str) -> Result<Vec<String>> {
    let name = format!("compute{node}");
    let mut words: Vec<String> = ["serve", "--engine", "lsm", "--offload-mode", "all"]
        .into_iter()
        .chain(["--manager", join.manager, "--listen", listen])
        .map(str::to_owned)
        .collect();
    if args.storage > 0 {
        words.extend(["--store", join.manager, "--volume"].map(str::to_owned));
        words.push(name);
        words.extend(args.copies_words());
        return Ok(words);
    }
    let dir = std::path::absolute(args.dir.join(&name))
        .map_err(|source| Error::io("find the absolute path of", &args.dir, source))?;
    words.extend(["--dir".to_owned(), dir.display().to_string()]);
    Ok(words)
}
