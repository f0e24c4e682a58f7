//! `archipelago cluster`: starts a cluster on this machine as child processes, and shows the status
//! of any cluster.
//!
//! `cluster up` owns its child processes. Each ends when its standard input ends, so no process
//! outlives the command. Memory nodes and compute nodes end before the managers.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::entropy_seed;
use archipelago_base::runtime::block_on;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{Call, ClientId, Endpoints, Line, NodeId, Reach, Route, Secret};
use archipelago_flexkv::wire::{Message as Store, StoreStatus};
use archipelago_pool::wire::Message;
use archipelago_resp::ServerOptions;
use archipelago_resp::server::resolve;

use crate::access::PasswordArgs;
use crate::console::print_line;
use crate::node::{MANAGER, managers};
use crate::ports::{self, Wanted};
use crate::secret::SecretArgs;
use crate::status;
use crate::stop::Stop;

/// Time limit for an answer of a manager.
const DEADLINE: Duration = Duration::from_secs(3);

/// Commands about a cluster.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum ClusterCommand {
    /// Start managers, memory nodes and compute nodes on this machine. Ctrl-C stops them.
    ///
    /// Each of them is a process (`archipelago node ...`, `archipelago serve --engine flexkv`), so
    /// you can stop or kill it alone. Clients of the pool connect to the managers. Redis clients
    /// connect to any compute node. The processes reach each other through shared memory.
    #[command(
        after_help = "Example:\n  archipelago cluster up --compute 2 --memory 3 --size 256MiB\n  \
                            redis-cli -p 6379 set reef coral  (in another terminal)\n  \
                            redis-cli -p 6380 get reef\n  \
                            archipelago cluster status"
    )]
    Up(UpArgs),
    /// Show the members of a cluster: memory nodes with their free memory, clients, blocks with
    /// their copies, and the store with its compute nodes.
    #[command(after_help = "Example:\n  archipelago cluster status --manager 127.0.0.1:7700")]
    Status {
        /// Addresses of the cluster's managers, separated by commas
        #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
        manager: String,
        #[command(flatten)]
        secret: SecretArgs,
        /// List every block. Without the flag only blocks with too few copies are listed
        #[arg(long)]
        blocks: bool,
    },
    /// Give up a memory node that will never return with its memory.
    ///
    /// Blocks that wait for the node continue with the copies that are left. If the node does
    /// return, data that only this node held is lost. `archipelago cluster status` shows which
    /// blocks wait for which node.
    #[command(after_help = "Example:\n  archipelago cluster forget 2")]
    Forget {
        /// Number of the memory node
        node: u64,
        /// Addresses of the cluster's managers, separated by commas
        #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
        manager: String,
        #[command(flatten)]
        secret: SecretArgs,
    },
    /// Make a new secret for a cluster, and write it to a new file that only you may read.
    ///
    /// Copy the file to every machine of the cluster, and give it to each process with
    /// --secret-file FILE.
    #[command(after_help = "Example:\n  archipelago cluster secret ./secret\n  \
                            archipelago node manager --listen 10.0.0.1:7700 --secret-file ./secret")]
    Secret {
        /// File that is written. It must not exist
        file: PathBuf,
    },
}

#[derive(clap::Args, Debug)]
pub(crate) struct UpArgs {
    /// Number of memory nodes
    #[arg(long, value_name = "N", default_value_t = 3)]
    memory: u64,
    /// Number of compute nodes, which serve Redis clients from a store over that memory
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
    /// manager runs alone
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=5))]
    managers: u16,
    /// Milliseconds of silence after which the manager declares a client dead
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    lease_ms: u64,
    /// Milliseconds of silence after which the manager declares a memory node dead
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    node_lease_ms: u64,
    /// Transport between compute nodes and memory nodes
    #[arg(long, value_enum, default_value_t = Provider::Shm)]
    provider: Provider,
    /// Stop when standard input ends. A program that starts the cluster as a child process uses it,
    /// so that the cluster does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

/// Transport between processes of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Provider {
    /// Shared memory, and TCP for processes that cannot map it
    Shm,
    /// TCP without shared memory
    Tcp,
}

pub(crate) fn run(command: &ClusterCommand) -> Result<()> {
    match command {
        ClusterCommand::Up(args) => up(args),
        ClusterCommand::Status { manager, secret, blocks } => {
            let endpoints = Arc::new(Endpoints::new().with_secret(secret.read()?));
            let answer = ask(&endpoints, manager, &Message::Status {})?;
            let status = match answer {
                Message::StatusIs { status } => status,
                Message::Refuse { refused } => return Err(refused.error("the status")),
                _ => {
                    return Err(Error::unsupported(
                        "the manager's answer is of another version: run the program of the same \
                         version as the cluster",
                    ));
                }
            };
            print!("{}", status::show(&status, *blocks));
            let store = ask_store(&endpoints, manager)?;
            if store.version > 0 || !store.nodes.is_empty() {
                print!("{}", status::show_store(&store));
            }
            Ok(())
        }
        ClusterCommand::Secret { file } => {
            let made = Secret::create(file)?;
            println!("{} has the secret of the new cluster {}", file.display(), made.cluster());
            Ok(())
        }
        ClusterCommand::Forget { node, manager, secret } => {
            let endpoints = Arc::new(Endpoints::new().with_secret(secret.read()?));
            match ask(&endpoints, manager, &Message::Forget { node: NodeId(*node) })? {
                Message::Refuse { refused } => Err(refused.error(format!(
                    "node {node} cannot be given up while it is up: stop it first"
                ))),
                _ => {
                    println!(
                        "Node {node} is given up; for the state see: archipelago cluster status"
                    );
                    Ok(())
                }
            }
        }
    }
}

fn ask(endpoints: &Arc<Endpoints>, manager: &str, message: &Message) -> Result<Message> {
    let ways = managers(manager)?;
    let count = ways.len();
    let line = Line::new(endpoints, ways, ClientId(entropy_seed()), None);
    // A manager that stands by does not answer.
    let mut asked = line.ask(message, DEADLINE);
    for _ in 1..count {
        asked = asked.or_else(|_| line.ask(message, DEADLINE));
    }
    asked.map_err(|error| match error.kind() {
        // The error names what is wrong with the address or the secret.
        ErrorKind::InvalidArgument => error,
        _ => error.context_at(format!(
            "no manager answers at {manager}: start a cluster with `archipelago cluster up`, or name \
             the managers' addresses with --manager HOST:PORT,..."
        )),
    })
}

/// Status of the store, from the coordinator in the acting manager.
fn ask_store(endpoints: &Arc<Endpoints>, manager: &str) -> Result<StoreStatus> {
    let reach: Arc<dyn Reach> = Arc::clone(endpoints) as Arc<dyn Reach>;
    let route = Route::new(&reach, ClientId(entropy_seed()), None);
    let (ways, question) = (managers(manager)?, Store::Status {}.encode());
    for _ in 0..ways.len() {
        let link = block_on(route.link(&ways, DEADLINE))?;
        let answer = link.request(Call::new(&question, DEADLINE)).wait();
        let answer = answer.map_err(|refusal| refusal.error("the store's status"))?;
        match Store::decode(&answer) {
            Ok(Store::StatusIs { status }) => return Ok(status),
            Ok(Store::Declined { .. }) => route.go_on(&ways),
            _ => break,
        }
    }
    Err(Error::unsupported(
        "no manager knows the status of the store, or its answer is of another version: run the \
         program of the same version as the cluster",
    ))
}

/// A child process of this command. Dropping it ends the process and waits for its end.
struct ChildProcess {
    name: String,
    child: Child,
    address: String,
    is_reported: bool,
}

impl ChildProcess {
    /// Starts `archipelago` with `args`, and waits for the line with the address at which it
    /// listens. The address follows the text `before`.
    fn start(name: &str, args: &[&str], before: &str) -> Result<Self> {
        let fail =
            |source| Error::with_source(ErrorKind::Io, format!("cannot start {name}"), source);
        let program = std::env::current_exe().map_err(fail)?;
        let mut child = Command::new(program)
            .args(args)
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            output.read_line(&mut line).map_err(fail)?;
            // The pipe holds the few further lines, which nothing reads.
            std::mem::forget(output);
        }
        let Some((_, address)) = line.trim_end().rsplit_once(before) else {
            // The child has printed the reason to standard error.
            let status = child.wait().map_err(fail)?;
            return Err(Error::new(
                ErrorKind::Io,
                format!("{name} did not start ({status}): its error is printed above"),
            ));
        };
        let address = address.to_owned();
        Ok(Self { name: name.to_owned(), child, address, is_reported: false })
    }

    /// Whether the process has ended by itself. The first call that finds it prints a line.
    fn report_end(&mut self) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                if !self.is_reported {
                    self.is_reported = true;
                    print_line!("{} (process {}) ended: {status}", self.name, self.child.id());
                }
                true
            }
            _ => false,
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The child ends when its standard input ends.
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, name = self.name, "cannot wait for the end of a child process");
        }
    }
}

/// A directory for sockets that only this user may enter. Dropping it removes it with its files.
struct Sockets(PathBuf);

impl Sockets {
    fn create() -> Result<Self> {
        let name = format!("archipelago-{}-{:x}", std::process::id(), entropy_seed() >> 32);
        let dir = std::env::temp_dir().join(name);
        let created = std::fs::DirBuilder::new().mode(0o700).create(&dir);
        created.map_err(|source| Error::io("create", &dir, source))?;
        Ok(Self(dir))
    }

    fn path(&self, role: &str, node: u64) -> PathBuf {
        self.0.join(format!("{role}{node}.sock"))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        #[expect(clippy::disallowed_methods, reason = "sockets of processes, not files of a store")]
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, dir = %self.0.display(), "cannot remove the directory of the sockets");
        }
    }
}

fn up(args: &UpArgs) -> Result<()> {
    if args.memory == 0 {
        return Err(Error::invalid(
            "--memory 0: a cluster needs at least one memory node, so give 1 or more",
        ));
    }
    let copies = match args.copies {
        0 => args.memory.min(3) as u32,
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
    let join = JoinArgs { manager: &at, secret: &secret };
    print_line!("Manager          {}  (process {})", addresses[0], parts[0].child.id());
    let mut standbys = Vec::new();
    for (address, part) in addresses.iter().zip(&parts).skip(1) {
        standbys.push(format!("Standby manager  {address}  (process {})", part.child.id()));
    }
    for node in 1..=args.memory {
        let part = start_memory(args, &join, node, &sockets.path("memory", node))?;
        print_line!("Memory node {node:<4} {}  (process {})", part.address, part.child.id());
        // The list is dropped from the front, so nodes end before the managers.
        parts.insert(0, part);
    }
    for node in 1..=args.compute {
        let part = start_compute(args, &join, node, &sockets.path("compute", node.into()))?;
        print_line!("Compute node {node:<3} {}  (process {})", part.address, part.child.id());
        parts.insert(0, part);
    }
    for standby in standbys {
        print_line!("{standby}");
    }
    if secret.is_given() && !args.secret.is_given() {
        print_line!(
            "Others can reach the manager, so it and its clients need the new secret below"
        );
    }
    let flags: String = secret.words().iter().map(|word| format!(" {word}")).collect();
    print_line!("Look at it: archipelago cluster status --manager {at}{flags}");
    print_line!("Ctrl-C stops it");
    let parts = std::cell::RefCell::new(parts);
    stop.wait(|| {
        let mut all = true;
        for part in parts.borrow_mut().iter_mut() {
            all &= part.report_end();
        }
        all
    })?;
    for part in parts.borrow_mut().iter_mut() {
        part.report_end();
    }
    print_line!("Stopping");
    drop(parts);
    print_line!("Stopped");
    Ok(())
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
    let file = sockets.0.join("secret");
    Secret::create(&file)?;
    Ok(SecretArgs::of_file(&file))
}

/// Starts the managers. The first one is to act.
fn start_managers(args: &UpArgs, copies: u32, secret: &SecretArgs) -> Result<Vec<ChildProcess>> {
    let secret = secret.words();
    let secret: Vec<&str> = secret.iter().map(String::as_str).collect();
    let (copies, lease) = (copies.to_string(), args.lease_ms.to_string());
    let (node_lease, partitions) = (args.node_lease_ms.to_string(), args.partitions.to_string());
    let offload = args.offload.map(|offload| offload.to_string());
    let offload: Vec<&str> = offload.iter().flat_map(|share| ["--offload", share]).collect();
    // Several managers need the number of memory nodes, to count a majority of promises.
    let nodes = if args.managers > 1 { args.memory } else { 0 }.to_string();
    let mut parts = Vec::new();
    for number in 0..args.managers {
        let listen = manager_address(args, number)?;
        let words = [
            &["node", "manager", "--listen", &listen, "--copies", &copies][..],
            &["--lease-ms", &lease, "--node-lease-ms", &node_lease],
            &["--partitions", &partitions, "--memory-nodes", &nodes],
            &offload,
            &secret,
            if number > 0 { &["--standby"] } else { &[] },
        ]
        .concat();
        let name = if number > 0 { "Standby manager" } else { "Manager" };
        parts.push(ChildProcess::start(name, &words, " ")?);
    }
    Ok(parts)
}

/// What a node needs to join the cluster.
struct JoinArgs<'a> {
    /// Addresses of all managers, separated by commas.
    manager: &'a str,
    secret: &'a SecretArgs,
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
    let words = [
        &["node", "memory", "--id", &id, "--size", &args.size, "--block", &args.block][..],
        &["--manager", join.manager],
        if args.provider == Provider::Shm { &shared[..] } else { &[] },
        &secret.iter().map(String::as_str).collect::<Vec<_>>(),
    ]
    .concat();
    ChildProcess::start(&format!("Memory node {node}"), &words, " on ")
}

/// Returns an error if a port is taken, before any process starts.
fn check_ports(args: &UpArgs) -> Result<()> {
    let mut wanted = Vec::new();
    for number in 0..args.managers {
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
    let words = [
        &["serve", "--engine", "flexkv", "--manager", join.manager][..],
        &["--listen", &listen],
        if args.provider == Provider::Shm { &shared[..] } else { &[] },
        &flags.iter().map(String::as_str).collect::<Vec<_>>(),
    ]
    .concat();
    ChildProcess::start(&format!("Compute node {node}"), &words, " on ")
}
