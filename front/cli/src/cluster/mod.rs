//! `archipelago cluster`: starts a cluster on this machine as child processes, and shows the status
//! of any cluster.

mod children;
mod up;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::entropy_seed;
use archipelago_base::runtime::block_on;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{Call, ClientId, Endpoints, Line, NodeId, Reach, Route, Secret};
use archipelago_flexkv::wire::{Message as Store, StoreStatus};
use archipelago_pool::wire::Message;

use crate::node::{MANAGER, managers};
use crate::secret::SecretArgs;
use crate::status;

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
    Up(up::UpArgs),
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

pub(crate) fn run(command: &ClusterCommand) -> Result<()> {
    match command {
        ClusterCommand::Up(args) => up::up(args),
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
