//! `archipelago cluster`: a cluster on this machine as child processes; the status of any.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::entropy_seed;
use archipelago_base::runtime::block_on;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::Call;
use archipelago_flexkv::wire::{Message as Store, StoreStatus};
use archipelago_pool::wire::Message;
use archipelago_pool::{ClientId, Endpoints, Line, NodeId, Reach, Route};
use archipelago_resp::ServerOptions;
use archipelago_resp::server::resolve;

use crate::access::PasswordArgs;
use crate::console::say;
use crate::node::{MANAGER, managers};
use crate::ports::{self, Wanted};
use crate::status;
use crate::stop::Stop;

/// The manager has answered by then.
const DEADLINE: Duration = Duration::from_secs(3);

/// What can be done with a cluster.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum ClusterCommand {
    /// Start managers, memory nodes and compute nodes on this machine; Ctrl-C stops them.
    ///
    /// Each is a process of its own (`archipelago node ...`, `archipelago serve --engine flexkv`),
    /// so it can be stopped and killed like one. Clients of the pool join at the managers'
    /// addresses; Redis clients talk to any compute node. Processes reach each other through shared
    /// memory.
    #[command(
        after_help = "Example:\n  archipelago cluster up --compute 2 --memory 3 --size 256MiB\n  \
                            redis-cli -p 6379 set reef coral  (in another terminal)\n  \
                            redis-cli -p 6380 get reef\n  \
                            archipelago cluster status"
    )]
    Up(UpArgs),
    /// Say who is there: nodes, what they hold and have left, clients, blocks and their copies; the
    /// store and its compute nodes.
    Status {
        /// Where the managers are, with a comma between two
        #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
        manager: String,
        /// List every block, not only those that want attention
        #[arg(long)]
        blocks: bool,
    },
    /// Tell the manager that a memory node will never come back with what it held.
    ///
    /// Blocks that wait for it go on with the copies that are left. To say it of a node that does
    /// come back loses what only that node had.
    Forget {
        /// The node's number
        node: u64,
        /// Where the managers are, with a comma between two
        #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
        manager: String,
    },
}

#[derive(clap::Args, Debug)]
pub(crate) struct UpArgs {
    /// Memory nodes
    #[arg(long, value_name = "N", default_value_t = 3)]
    memory: u64,
    /// Compute nodes of a store over that memory, which serve Redis clients
    #[arg(long, value_name = "N", default_value_t = 0)]
    compute: u16,
    /// Where the first compute node serves Redis clients, the others on the ports after it; port 0
    /// lets the system choose
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    resp: String,
    #[command(flatten)]
    password: PasswordArgs,
    /// Partitions of the store, a power of two
    #[arg(long, value_name = "N", default_value_t = 1024)]
    partitions: u32,
    /// Share of them whose index lies at compute nodes, in a thousand, for good; without it the
    /// load decides
    #[arg(long, value_name = "N")]
    offload: Option<u32>,
    /// Memory that each lends
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: String,
    /// Size of a block
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    block: String,
    /// Copies of every block; 0: three, or one if there is one node
    #[arg(long, value_name = "N", default_value_t = 0)]
    copies: u32,
    /// Where the manager listens, the one that stands by on the port after it; port 0 lets the
    /// system choose
    #[arg(long, value_name = "HOST:PORT", default_value = MANAGER)]
    manager: String,
    /// Managers: one acts, the others stand by and take over when it dies; 1: it runs alone
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=5))]
    managers: u16,
    /// See `archipelago node manager --help`
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    lease_ms: u64,
    /// See `archipelago node manager --help`
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    node_lease_ms: u64,
    /// How compute and memory nodes reach each other
    #[arg(long, value_enum, default_value_t = Provider::Shm)]
    provider: Provider,
    /// End when standard input ends: for who starts it as a child
    #[arg(long)]
    stop_with_stdin: bool,
}

/// How processes of one machine reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Provider {
    /// Shared memory; TCP for those who cannot
    Shm,
    /// TCP alone
    Tcp,
}

pub(crate) fn run(command: &ClusterCommand) -> Result<()> {
    match command {
        ClusterCommand::Up(args) => up(args),
        ClusterCommand::Status { manager, blocks } => {
            let answer = ask(manager, &Message::Status {})?;
            let status = match answer {
                Message::StatusIs { status } => status,
                Message::Refuse { refused } => return Err(refused.error("the status")),
                _ => return Err(Error::unsupported("the manager's answer is of another version")),
            };
            print!("{}", status::show(&status, *blocks));
            let store = ask_store(manager)?;
            if store.version > 0 || !store.nodes.is_empty() {
                print!("{}", status::show_store(&store));
            }
            Ok(())
        }
        ClusterCommand::Forget { node, manager } => {
            match ask(manager, &Message::Forget { node: NodeId(*node) })? {
                Message::Refuse { refused } => Err(refused.error(format!(
                    "forget node {node} (it is up: stop it first, or leave it alone)"
                ))),
                _ => {
                    println!("Node {node} is forgotten; see: archipelago cluster status");
                    Ok(())
                }
            }
        }
    }
}

fn ask(manager: &str, message: &Message) -> Result<Message> {
    let ways = managers(manager)?;
    let endpoints = Arc::new(Endpoints::new());
    let count = ways.len();
    let line = Line::new(&endpoints, ways, ClientId(entropy_seed()), None);
    // Each of them may stand by.
    let mut asked = line.ask(message, DEADLINE);
    for _ in 1..count {
        asked = asked.or_else(|_| line.ask(message, DEADLINE));
    }
    asked.map_err(|error| {
        error.context_at(format!(
            "no manager answers at {manager}: start a cluster with `archipelago cluster up`, or say where it is with --manager"
        ))
    })
}

/// What the manager's coordinator knows of the store.
fn ask_store(manager: &str) -> Result<StoreStatus> {
    let reach: Arc<dyn Reach> = Arc::new(Endpoints::new());
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
    Err(Error::unsupported("no manager told of the store, or its answer is of another version"))
}

/// A child process of this command. Dropped, it is told to end, and waited for.
struct Part {
    name: String,
    child: Child,
    address: String,
    told: bool,
}

impl Part {
    /// Starts `archipelago ...` and waits until it says where it listens, behind `before`.
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
            // What else it says nobody reads; the pipe holds it.
            std::mem::forget(output);
        }
        let Some((_, address)) = line.trim_end().rsplit_once(before) else {
            // It has said why on standard error.
            let status = child.wait().map_err(fail)?;
            return Err(Error::new(ErrorKind::Io, format!("{name} did not start: {status}")));
        };
        let address = address.to_owned();
        Ok(Self { name: name.to_owned(), child, address, told: false })
    }

    /// Says so once if it has ended by itself.
    fn look(&mut self) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                if !self.told {
                    self.told = true;
                    say!("{} (process {}) ended: {status}", self.name, self.child.id());
                }
                true
            }
            _ => false,
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Its standard input ends: so does it.
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, name = self.name, "it was not waited for");
        }
    }
}

/// A directory for sockets that only this user may enter; removed with what the nodes left in it.
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
            tracing::warn!(%error, dir = %self.0.display(), "it stays");
        }
    }
}

fn up(args: &UpArgs) -> Result<()> {
    if args.memory == 0 {
        return Err(Error::invalid("--memory 0: a cluster needs at least one memory node"));
    }
    let copies = match args.copies {
        0 => args.memory.min(3) as u32,
        copies => copies,
    };
    check_ports(args)?;
    let stop = Stop::watch(args.stop_with_stdin)?;
    let sockets = Sockets::create()?;
    let mut parts = start_managers(args, copies)?;
    let addresses: Vec<&str> =
        parts.iter().map(|part| part.address.trim_start_matches("tcp:")).collect();
    let at = addresses.join(",");
    say!("Manager          {}  (process {})", addresses[0], parts[0].child.id());
    let mut standbys = Vec::new();
    for (address, part) in addresses.iter().zip(&parts).skip(1) {
        standbys.push(format!("Standby manager  {address}  (process {})", part.child.id()));
    }
    for node in 1..=args.memory {
        let part = start_memory(args, &at, node, &sockets.path("memory", node))?;
        say!("Memory node {node:<4} {}  (process {})", part.address, part.child.id());
        // In front of the manager, so that nodes end first.
        parts.insert(0, part);
    }
    for node in 1..=args.compute {
        let part = start_compute(args, &at, node, &sockets.path("compute", node.into()))?;
        say!("Compute node {node:<3} {}  (process {})", part.address, part.child.id());
        parts.insert(0, part);
    }
    for standby in standbys {
        say!("{standby}");
    }
    say!("Look at it: archipelago cluster status --manager {at}");
    say!("Ctrl-C stops it");
    let parts = std::cell::RefCell::new(parts);
    stop.wait(|| {
        let mut all = true;
        for part in parts.borrow_mut().iter_mut() {
            all &= part.look();
        }
        all
    })?;
    for part in parts.borrow_mut().iter_mut() {
        part.look();
    }
    say!("Stopping");
    drop(parts);
    say!("Stopped");
    Ok(())
}

/// Where a manager listens: the first one, 0, as asked for, the others on the ports after it.
fn manager_address(args: &UpArgs, number: u16) -> Result<String> {
    let wrong = || Error::invalid(format!("--manager {}: it must be HOST:PORT", args.manager));
    let address = args.manager.trim_start_matches("tcp:");
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    // Port 0 stays so.
    let port = if port == 0 { Some(0) } else { port.checked_add(number) };
    let port = port.ok_or_else(|| Error::invalid("--manager: there are not so many ports"))?;
    Ok(format!("{host}:{port}"))
}

/// The managers; the first is to act.
fn start_managers(args: &UpArgs, copies: u32) -> Result<Vec<Part>> {
    let (copies, lease) = (copies.to_string(), args.lease_ms.to_string());
    let (node_lease, partitions) = (args.node_lease_ms.to_string(), args.partitions.to_string());
    let offload = args.offload.map(|offload| offload.to_string());
    let offload: Vec<&str> = offload.iter().flat_map(|share| ["--offload", share]).collect();
    // A manager among several knows which memory nodes there are.
    let nodes = if args.managers > 1 { args.memory } else { 0 }.to_string();
    let mut parts = Vec::new();
    for number in 0..args.managers {
        let listen = manager_address(args, number)?;
        let words = [
            &["node", "manager", "--listen", &listen, "--copies", &copies][..],
            &["--lease-ms", &lease, "--node-lease-ms", &node_lease],
            &["--partitions", &partitions, "--memory-nodes", &nodes],
            &offload,
            if number > 0 { &["--standby"] } else { &[] },
        ]
        .concat();
        let name = if number > 0 { "Standby manager" } else { "Manager" };
        parts.push(Part::start(name, &words, " ")?);
    }
    Ok(parts)
}

fn start_memory(args: &UpArgs, manager: &str, node: u64, socket: &Path) -> Result<Part> {
    let (id, path) = (node.to_string(), socket.display().to_string());
    let shared = ["--shm", &path];
    let words = [
        &["node", "memory", "--id", &id, "--size", &args.size, "--block", &args.block][..],
        &["--manager", manager],
        if args.provider == Provider::Shm { &shared[..] } else { &[] },
    ]
    .concat();
    Part::start(&format!("Memory node {node}"), &words, " on ")
}

/// Refuses ports that are taken, before anything is started.
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
            who: if number > 0 { "the standby manager" } else { "the manager" }.to_owned(),
            choice: choice.to_owned(),
        });
    }
    for node in 1..=args.compute {
        wanted.push(Wanted {
            address: resp_address(args, node)?,
            who: format!("compute node {node}"),
            choice: format!(
                "choose another first port with --resp HOST:PORT; {} in a row are needed, and port 0 lets the system choose",
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

/// Where a compute node serves Redis clients.
fn resp_address(args: &UpArgs, node: u16) -> Result<String> {
    let wrong = || Error::invalid(format!("--resp {}: it must be HOST:PORT", args.resp));
    let (host, port) = args.resp.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    // Port 0 stays so.
    let port = if port == 0 { Some(0) } else { port.checked_add(node - 1) };
    let port = port.ok_or_else(|| Error::invalid("--resp: there are not so many ports"))?;
    Ok(format!("{host}:{port}"))
}

fn start_compute(args: &UpArgs, manager: &str, node: u16, socket: &Path) -> Result<Part> {
    let (listen, path) = (resp_address(args, node)?, socket.display().to_string());
    let (shared, password) = (["--shm", &path], args.password.words());
    let words = [
        &["serve", "--engine", "flexkv", "--manager", manager][..],
        &["--listen", &listen],
        if args.provider == Provider::Shm { &shared[..] } else { &[] },
        &password.iter().map(String::as_str).collect::<Vec<_>>(),
    ]
    .concat();
    Part::start(&format!("Compute node {node}"), &words, " on ")
}
