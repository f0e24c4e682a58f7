//! `archipelago cluster`: starts a cluster on this machine as child processes, shows the status of
//! any cluster, and empties, checks and gives up its nodes.

mod children;
mod executor_drain;
mod executors;
mod jobs;
mod managers;
mod memory;
mod shares;
mod space_text;
mod storage;
mod storage_text;
mod up;

use std::path::PathBuf;

use archipelago_base::Result;
use archipelago_fabric::{NodeId, Secret};
use archipelago_offload::wire::{OffloadMessage, SchedulerStatus};
use archipelago_pool::wire::{Message, PoolStatus};

use self::managers::{Managers, ManagersArgs, other_version};
use self::storage::{Drain, NodeArgs};
use crate::console::{print, print_line};
use crate::status;

/// Parts of the status that are shown on request.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct StatusDetails {
    /// List every block. Without the flag only blocks with too few copies are listed
    #[arg(long)]
    blocks: bool,
    /// Show the space of each storage node by volume and class, against its limit and the quota of
    /// volumes
    #[arg(long)]
    by_node: bool,
}

/// Commands about a cluster.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum ClusterCommand {
    /// Start managers, memory nodes, storage nodes and compute nodes on this machine. Ctrl-C stops
    /// them.
    ///
    /// Each of them is a process (`archipelago node ...`, `archipelago serve --engine flexkv`), so
    /// you can stop or kill it alone. Clients of the pool connect to the managers. Redis clients
    /// connect to any compute node. Memory nodes and compute nodes reach each other through shared
    /// memory.
    ///
    /// With --storage N a database lies on storage nodes: serve it with `archipelago serve --store
    /// MANAGER --volume NAME`. The data stay in --dir when the cluster stops.
    ///
    /// With --engine lsm each compute node serves a database of its own. Its full memtables go to
    /// the memory nodes, and executors run its flushes and compactions.
    #[command(
        after_help = "Examples:\n  archipelago cluster up --compute 2 --memory 3 --size 256MiB\n  \
                            redis-cli -p 6379 set reef coral  (in another terminal)\n  \
                            redis-cli -p 6380 get reef\n  \
                            archipelago cluster status\n\n  \
                            archipelago cluster up --engine lsm --compute 2 --memory 1 --storage 6\n\n  \
                            archipelago cluster up --storage 6 --dir ./cluster\n  \
                            archipelago serve --store 127.0.0.1:7700 --volume reef"
    )]
    Up(Box<up::UpArgs>),
    /// Show the members of a cluster: memory nodes with their free memory, databases with their
    /// shares of it, clients, blocks with their copies, the store over it with its compute nodes,
    /// storage nodes with their space, volumes and missing copies, and executors with the jobs that
    /// wait for them.
    ///
    /// The last table has the servers that offload jobs, with counts since their databases were
    /// opened. AWAY has the jobs that executors ran, and SECOND the second attempts of flushes.
    /// FLUSHES and OTHERS have the jobs that ran in the server instead, in one line per reason.
    /// `archipelago cluster jobs` lists the jobs that wait or run now.
    #[command(after_help = "Examples:\n  archipelago cluster status --manager 127.0.0.1:7700\n  \
                            archipelago cluster status --by-node")]
    Status {
        #[command(flatten)]
        managers: ManagersArgs,
        #[command(flatten)]
        details: StatusDetails,
    },
    /// List the flushes, compactions and garbage collections that servers have handed to the
    /// cluster, as the schedulers in the managers know them.
    ///
    /// Running jobs come first, older ones before younger ones. A row has the job (database, owner
    /// epoch and number, as in the logs), its kind and state, the attempt, its executor, the time
    /// since the job arrived (AGE), the times for which the attempt waited and runs (QUEUED,
    /// RUNNING), the time without progress (IDLE), bytes read and written so far, and bytes of
    /// input. `running, waits` means that the job waits for room for memtables, or for its part of
    /// a rate limit.
    #[command(after_help = "Examples:\n  archipelago cluster jobs\n  \
                            archipelago cluster jobs --watch\n  \
                            archipelago cluster jobs --manager 10.0.0.1:7700,10.0.0.2:7700 \
                            --secret-file ./secret")]
    Jobs {
        #[command(flatten)]
        managers: ManagersArgs,
        /// Show the list each second, until Ctrl-C
        #[arg(long)]
        watch: bool,
    },
    /// Empty a storage node, or with --memory a memory node or with --executor an executor, so that
    /// it can be removed.
    ///
    /// A storage node gets no new files, and other nodes make copies of those that it has. A file
    /// that no other node can take is named, and keeps no other file back. A memory node takes no
    /// memtables, and the servers flush those that it has. An executor takes no more jobs, and the
    /// jobs that it has go on. If it runs in the process of another node or of a server, that
    /// process is not drained. The command shows what is left until the node can be stopped.
    #[command(after_help = "Examples:\n  archipelago cluster drain 3\n  \
                            archipelago cluster drain 3 --cancel\n  \
                            archipelago cluster drain --memory 2\n  \
                            archipelago cluster drain --memory 2 --cancel\n  \
                            archipelago cluster drain --executor 5be01f3a9c77d2e1\n  \
                            archipelago cluster drain --executor \"reef (process 4711)\"")]
    Drain {
        #[command(flatten)]
        node: NodeArgs,
        /// The node is a memory node
        #[arg(long)]
        memory: bool,
        /// The node is an executor
        #[arg(long, conflicts_with = "memory")]
        executor: bool,
        #[command(flatten)]
        managers: ManagersArgs,
        /// End after the start of the drain, and do not wait until the node is empty
        #[arg(long)]
        no_wait: bool,
        /// Use the node again
        #[arg(long, conflicts_with = "no_wait")]
        cancel: bool,
    },
    /// Read everything that a storage node holds, and check it.
    ///
    /// Every node does this by itself every 14 days. The command begins a round now, shows its
    /// progress, and fails if it finds damage.
    #[command(after_help = "Example:\n  archipelago cluster scrub 3")]
    Scrub {
        #[command(flatten)]
        node: NodeArgs,
        #[command(flatten)]
        managers: ManagersArgs,
    },
    /// Give up a node that will never return: a memory node, or with --storage a storage node.
    ///
    /// Blocks that wait for a memory node continue with the copies that are left. If the node does
    /// return, data that only this node held is lost. `archipelago cluster status` shows which
    /// blocks wait for which node, and which storage nodes are silent or lost. A storage node can
    /// be given up when it is lost, or if it was draining when it was stopped.
    #[command(after_help = "Examples:\n  archipelago cluster forget 2\n  \
                            archipelago cluster forget --storage 2")]
    Forget {
        #[command(flatten)]
        node: NodeArgs,
        /// The node is a storage node
        #[arg(long)]
        storage: bool,
        #[command(flatten)]
        managers: ManagersArgs,
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
        ClusterCommand::Status { managers, details } => {
            show_status(&managers.managers()?, *details)
        }
        ClusterCommand::Jobs { managers, watch } => jobs::show(&managers.managers()?, *watch),
        ClusterCommand::Drain { node, memory, executor, managers, no_wait, cancel } => {
            let drain = match (cancel, no_wait) {
                (true, _) => Drain::Cancel,
                (_, true) => Drain::Begin,
                _ => Drain::Wait,
            };
            let managers = managers.managers()?;
            match (memory, executor) {
                (true, _) => {
                    let pool = || pool_status(&managers);
                    memory::drain(&managers, pool, node.memory("leave out --memory")?, drain)
                }
                (_, true) => executor_drain::drain(&managers, node.name(), drain),
                _ => storage::drain(&managers, node, drain),
            }
        }
        ClusterCommand::Scrub { node, managers } => storage::scrub(&managers.managers()?, node),
        ClusterCommand::Secret { file } => {
            let made = Secret::create(file)?;
            print(&format!(
                "{} has the secret of the new cluster {}\n",
                file.display(),
                made.cluster()
            ))
        }
        ClusterCommand::Forget { node, storage: true, managers } => {
            storage::forget(&managers.managers()?, node)
        }
        ClusterCommand::Forget { node, storage: false, managers } => {
            forget_memory(&managers.managers()?, node.memory("give --storage")?)
        }
    }
}

/// The status of the memory nodes.
fn pool_status(managers: &Managers) -> Result<PoolStatus> {
    match managers.ask(&Message::Status {})? {
        Message::StatusIs { status } => Ok(status),
        Message::Refuse { refused } => Err(refused.error("the status")),
        _ => Err(other_version("the manager's answer")),
    }
}

/// Shows the parts of a cluster that exist.
fn show_status(managers: &Managers, details: StatusDetails) -> Result<()> {
    let pool = pool_status(managers)?;
    let storage = storage::status(managers)?;
    // A cluster of storage nodes alone has no pool.
    if storage.is_none() || !is_unused(&pool) {
        print(&status::show(&pool, details.blocks))?;
        print(&shares::text(managers, &pool))?;
        let store = managers.ask_flexkv()?;
        if store.version > 0 || !store.nodes.is_empty() {
            print(&status::show_store(&store))?;
        }
        if storage.is_some() {
            print("\n")?;
        }
    }
    if let Some(storage) = storage {
        print(&storage::text(managers, &storage, details))?;
    }
    let schedulers = scheduler_status(managers, &OffloadMessage::Status {})?;
    if let Some(text) = executors::text(&schedulers) {
        print(&format!("\n{text}"))?;
    }
    Ok(())
}

/// Sends a message to the schedulers of all managers. Returns the state of all of them.
fn scheduler_status(managers: &Managers, message: &OffloadMessage) -> Result<SchedulerStatus> {
    Ok(SchedulerStatus::merged(scheduler_statuses(managers, message)?))
}

/// Sends a message to the schedulers of all managers. Returns the state of each one that answers.
fn scheduler_statuses(
    managers: &Managers,
    message: &OffloadMessage,
) -> Result<Vec<SchedulerStatus>> {
    let read = |answer: OffloadMessage| match answer {
        OffloadMessage::StatusIs { status } => Ok(status),
        _ => Err(other_version("a manager's answer")),
    };
    managers.ask_each(message)?.into_iter().map(read).collect()
}

/// Whether no node and no client has joined the pool.
fn is_unused(pool: &PoolStatus) -> bool {
    pool.nodes.is_empty() && pool.clients.is_empty() && pool.blocks_total == 0 && pool.lost == 0
}

fn forget_memory(managers: &Managers, node: NodeId) -> Result<()> {
    match managers.ask(&Message::Forget { node })? {
        Message::Refuse { refused } => {
            Err(refused
                .error(format!("node {node} cannot be given up while it is up: stop it first")))
        }
        _ => {
            print_line!("Node {node} is given up; for the state see: archipelago cluster status");
            Ok(())
        }
    }
}
