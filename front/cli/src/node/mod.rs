//! `archipelago node`: one role of a cluster in this process. The storage node has a file of its
//! own.
//!
//! Each role is a library with threads of its own. This module reads the flags, starts the role and
//! waits for a signal.

mod executor;
mod storage;

use std::time::Duration;

use archipelago_base::{Error, Result, size};
use archipelago_env::descriptors::raise_limit;
use archipelago_fabric::endpoint;
use archipelago_manager::core::Terms;
use archipelago_manager::{ManagerServer, ManagerSettings, StorePlan};
use archipelago_memory::{MemoryServer, MemorySettings};
use archipelago_metrics::sources;
use archipelago_offload::net::ExecutorSettings;
use archipelago_store::nodes::members::MemberTerms;
use archipelago_store::nodes::repairs::RepairTerms;

use crate::console::print_line;
use crate::executor::{HostedPlan, ReachArgs};
use crate::managers::{MANAGER, managers};
use crate::metrics::{self, MetricsArgs};
use crate::secret::SecretArgs;
use crate::stop::Stop;

/// Roles that a process can take. Each runs until SIGTERM or SIGINT.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// Run a memory node, which lends memory to the cluster in blocks.
    ///
    /// The node registers with the manager, which places copies of blocks on it. It also holds full
    /// memtables of databases (`archipelago serve --offload-mode all`), and with --share or --store
    /// it runs their flushes and compactions. Its memory ends with the process. Blocks survive
    /// because other nodes hold further copies. Start the node with the same --id after a restart.
    /// It runs until SIGTERM or SIGINT (Ctrl-C). If it has jobs, it ends as an executor does.
    #[command(
        after_help = "Example, three nodes on one machine:\n  archipelago node manager &\n  \
                      for n in 1 2 3; do archipelago node memory --id $n --size 1GiB & done\n  \
                      archipelago cluster status"
    )]
    Memory(MemoryArgs),
    /// Run a manager, which knows the members of the cluster and places blocks of memory.
    ///
    /// Clients of the pool, of FlexKV and of storage nodes ask it for the nodes. It founds a
    /// cluster of storage nodes when they have registered in three domains. The manager stores
    /// nothing. After a start it asks the nodes for their state, and it acts after one lease.
    /// Without a manager, clients of the pool and of FlexKV read and write until their leases end
    /// (--lease-ms); then their calls wait, and fail after 5 s. Open volumes on storage nodes go
    /// on, and no volume can be opened.
    ///
    /// Run two or more managers, so that the cluster survives the death of one. Each of them gives
    /// out jobs of databases (`archipelago serve --offload-mode`). Give each of them the same
    /// --memory-nodes N, where the memory nodes have the numbers 1 to N. The manager that a
    /// majority of the memory nodes has promised to obey acts. The others stand by, and one of them
    /// takes over within a node lease (--node-lease-ms). Give the addresses of all managers to
    /// nodes and clients: --manager HOST:PORT,HOST:PORT. A manager without --memory-nodes runs
    /// alone.
    #[command(
        after_help = "Example, two managers:\n  archipelago node manager --listen 127.0.0.1:7700 --memory-nodes 3 &\n  \
                      archipelago node manager --listen 127.0.0.1:7701 --memory-nodes 3 --standby &\n  \
                      for n in 1 2 3; do archipelago node memory --id $n --manager 127.0.0.1:7700,127.0.0.1:7701 & done"
    )]
    Manager(ManagerArgs),
    /// Run a storage node, which keeps a part of the files of databases on its disks.
    ///
    /// The node registers with the manager. Databases lie on storage nodes if they are served with
    /// `archipelago serve --store MANAGER --volume NAME`. A cluster needs three storage nodes in
    /// three domains, and six for its full redundancy. Its data survive the end of the process and
    /// power loss. Start the node with the same --dir after a restart. With --executor-slots it
    /// also runs jobs of databases, as an executor does. It runs until SIGTERM or SIGINT (Ctrl-C).
    /// If it has jobs, it ends as an executor does.
    #[command(
        after_help = "Example, three nodes on one machine:\n  archipelago node manager &\n  \
                      for n in 1 2 3; do archipelago node storage --id $n --dir ./storage$n --domain $n & done\n  \
                      archipelago cluster status\n  \
                      archipelago serve --store 127.0.0.1:7700 --volume reef"
    )]
    Storage(storage::StorageArgs),
    /// Run an executor, which flushes and compacts databases of other processes.
    ///
    /// A server that runs with `--offload-mode compactions`, `flushes` or `all` sends jobs to the
    /// executors of its cluster, which read and write the files of its database.
    /// So every executor must reach them: a directory under the same path (--share), on this
    /// machine or over a shared file system, or a volume of a storage cluster (--store). It listens
    /// nowhere and stores nothing. If it ends, its jobs run elsewhere. On SIGTERM or SIGINT
    /// (Ctrl-C) it takes no more jobs, and ends when those that it has have ended, after a minute
    /// at the latest. A second signal ends it immediately.
    #[command(after_help = "Examples, on one machine:\n  archipelago node manager &\n  \
                      archipelago node executor --share /data &\n  \
                      archipelago serve --dir /data/reef --offload-mode compactions\n\n  \
                      archipelago cluster up --storage 6 &\n  \
                      archipelago node executor --store 127.0.0.1:7700 &\n  \
                      archipelago serve --store 127.0.0.1:7700 --volume reef --offload-mode compactions")]
    Executor(executor::ExecutorArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct MemoryArgs {
    /// Number of this node, 1 to 8191. No other memory node of the cluster may have it. Use the
    /// same number after a restart
    #[arg(long, value_name = "N", default_value_t = 1)]
    id: u64,
    /// Memory that the node lends at most, such as 512MiB or 1GiB. The node reserves it block by
    /// block
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: String,
    /// Size of a block, a power of two such as 16MiB. All nodes of a cluster need the same size
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    block: String,
    /// Address at which the node listens. With port 0 the system chooses a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Address that others connect to, if it differs from --listen: behind address translation, or
    /// if --listen is 0.0.0.0
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Path of a socket through which clients of this machine also reach the node by shared memory
    #[arg(long, value_name = "PATH")]
    shm: Option<String>,
    /// Addresses of the cluster's managers, separated by commas
    #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
    manager: String,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Seconds after which the node kills (SIGKILL) a process that still maps shared memory whose
    /// lease was revoked. Other clients can use the blocks only then. 0: wait for the process
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    end_holders_after: u64,
    #[command(flatten)]
    reach: ReachArgs,
    /// Stop when standard input ends. A program that starts the node as a child process uses it, so
    /// that the node does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ManagerArgs {
    /// Address at which the manager listens. Nodes and clients know it, so keep it over restarts
    #[arg(long, value_name = "HOST:PORT", default_value = MANAGER)]
    listen: String,
    /// Number of copies of every block. There are fewer while fewer memory nodes are up
    #[arg(long, value_name = "N", default_value_t = 3)]
    copies: u32,
    /// Milliseconds of silence after which the manager declares a client dead. Then other clients
    /// may take over its blocks
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    lease_ms: u64,
    /// Milliseconds of silence after which the manager declares a memory node dead. Then it makes
    /// new copies of the node's blocks on other nodes
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    node_lease_ms: u64,
    /// Number of memory nodes, whose numbers are 1 to N, if there are several managers. 0: this
    /// manager runs alone
    #[arg(long, value_name = "N", default_value_t = 0)]
    memory_nodes: u32,
    /// Wait for another manager to act first, and take over when that one is silent
    #[arg(long)]
    standby: bool,
    /// Number of partitions of the store over the cluster's memory, a power of two. It takes effect
    /// when the store is created
    #[arg(long, value_name = "N", default_value_t = 8192)]
    partitions: u32,
    /// Fixed share, in thousandths, of the partitions whose index lies at compute nodes. Without
    /// the flag the store follows the load
    #[arg(long, value_name = "N")]
    offload: Option<u32>,
    /// Seconds of silence after which a storage node counts as lost: another one takes its place in
    /// the root set, and copies of its files are made on other nodes
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    lost_after: u64,
    /// Bytes per second that repairs read and write on one storage node, such as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    repair_rate: String,
    /// Bytes per second that repairs read and write on all storage nodes together
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    repair_rate_total: String,
    /// Number of storage nodes that keep owners and leases of volumes: 3 or 5, or 1 for a trial on
    /// one node. Default: 3, or 5 if there are five domains. It takes effect when the cluster is
    /// founded
    #[arg(long, value_name = "N")]
    root_nodes: Option<u8>,
    /// Number of storage nodes of a new cluster. It is founded only when more than half of them
    /// have confirmed it, so two managers cannot found two clusters. Give the same number to all
    /// managers. Default: the nodes that this manager knows. It takes effect when the cluster is
    /// founded
    #[arg(long, value_name = "N")]
    storage_nodes: Option<u32>,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Stop when standard input ends. A program that starts the node as a child process uses it, so
    /// that the node does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

pub(crate) fn run(command: &NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Memory(args) => memory(args),
        NodeCommand::Manager(args) => manager(args),
        NodeCommand::Storage(args) => storage::run(args),
        NodeCommand::Executor(args) => executor::run(args),
    }
}

fn memory(args: &MemoryArgs) -> Result<()> {
    let mut settings = MemorySettings::new(
        archipelago_pool::NodeId(args.id),
        size::parse(&args.size)?,
        endpoint(&args.listen)?,
        String::new(),
    );
    settings.manager = managers(&args.manager)?;
    settings.block_bytes = size::parse(&args.block)?;
    settings.listen.extend(args.shm.as_ref().map(|path| format!("shm:{path}")));
    if let Some(advertise) = &args.advertise {
        settings.advertise.push(endpoint(advertise)?);
    } else if args.listen.starts_with("0.0.0.0:") || args.listen.starts_with("[::]:") {
        return Err(Error::invalid(format!(
            "--listen {}: others cannot connect to that address: name one that they can reach with \
             --advertise HOST:PORT",
            args.listen
        )));
    }
    if args.end_holders_after > 0 {
        settings.end_holders_after = Some(Duration::from_secs(args.end_holders_after));
    }
    settings.secret = args.secret.read()?;
    let executor = hosted_plan(args, &settings)?;
    let limits = settings.validate()?;
    // Every region of memory takes a descriptor.
    raise_limit();
    let mut stop = Stop::watch(args.stop_with_stdin)?;
    let metrics = args.metrics.listen()?;
    let server = MemoryServer::start(settings)?;
    let start = |plan: HostedPlan| {
        let address = format!("memory node {} at {}", args.id, server.addresses().join(" "));
        plan.start(address, Some(server.shard_host()), &args.secret)
    };
    let hosted = executor.map(start).transpose()?;
    let mut all =
        vec![sources::process("memory", Some(args.id)), sources::memory_node(server.monitor())];
    all.extend(hosted.as_ref().map(|hosted| sources::executor(hosted.monitor())));
    let metrics = metrics::serve(metrics, all)?;
    print_line!(
        "Memory node {} lends {} in {} blocks of {} on {}",
        args.id,
        size::show(limits.blocks_max * limits.block_bytes),
        limits.blocks_max,
        size::show(limits.block_bytes),
        server.addresses().join(" ")
    );
    print_line!(
        "It registers with the manager at {}; for the state see: archipelago cluster status",
        args.manager
    );
    metrics::print_url(metrics.as_ref());
    args.secret.print_audience();
    if let Some(hosted) = &hosted {
        print_line!("{}", hosted.describe());
    }
    let cause = stop.wait_once(|| false);
    // Jobs read the memory of the node, so they end first.
    if let Some(hosted) = hosted {
        hosted.end(cause, &mut stop, || false);
    }
    drop(metrics);
    print_line!("Stopped; {} blocks had a copy here", server.blocks_used());
    Ok(())
}

/// The executor in the process of a memory node, if the flags want one.
fn hosted_plan(args: &MemoryArgs, node: &MemorySettings) -> Result<Option<HostedPlan>> {
    if args.reach.has_slots() && !args.reach.is_given() {
        return Err(Error::invalid(
            "--slots is for a memory node that runs jobs: add --share DIR or --store HOST:PORT",
        ));
    }
    if !args.reach.is_given() {
        return Ok(None);
    }
    let settings = ExecutorSettings {
        managers: node.manager.clone(),
        slots: args.reach.slots(),
        secret: node.secret.clone(),
        ..ExecutorSettings::default()
    };
    HostedPlan::new(settings, args.reach.files()).map(Some)
}

fn manager(args: &ManagerArgs) -> Result<()> {
    let terms = Terms {
        copies: args.copies,
        lease: Duration::from_millis(args.lease_ms),
        node_lease: Duration::from_millis(args.node_lease_ms),
        ..Terms::default()
    };
    let offload = args.offload.unwrap_or(StorePlan::default().offload);
    if !args.partitions.is_power_of_two() || offload > 1000 {
        return Err(Error::invalid(format!(
            "--partitions {} --offload {}: the number of partitions must be a power of two, and \
             --offload at most 1000",
            args.partitions, offload
        )));
    }
    let store = StorePlan {
        partition_bits: args.partitions.trailing_zeros(),
        offload,
        fixed: args.offload.is_some(),
        ..StorePlan::default()
    };
    let (memory_nodes, standby) = (args.memory_nodes, args.standby);
    let listen = vec![endpoint(&args.listen)?];
    let secret = args.secret.read()?;
    let repair = RepairTerms {
        node_bytes_per_s: size::parse(&args.repair_rate)?,
        cluster_bytes_per_s: size::parse(&args.repair_rate_total)?,
        ..RepairTerms::default()
    };
    let storage = MemberTerms {
        lost_after: Duration::from_secs(args.lost_after),
        root_nodes: args.root_nodes,
        expected_nodes: args.storage_nodes,
        repair,
        ..MemberTerms::default()
    };
    let settings = ManagerSettings { listen, terms, store, memory_nodes, standby, storage, secret };
    // Every region of memory takes a descriptor.
    raise_limit();
    let stop = Stop::watch(args.stop_with_stdin)?;
    let metrics = args.metrics.listen()?;
    let server = ManagerServer::start(&settings)?;
    let all = vec![sources::process("manager", None), sources::manager(server.monitor())];
    let metrics = metrics::serve(metrics, all)?;
    print_line!("Manager listens on {}", server.addresses().join(" "));
    if args.memory_nodes > 0 {
        print_line!(
            "It acts while a majority of the memory nodes 1 to {} has promised to obey it",
            args.memory_nodes
        );
    }
    print_line!("It keeps {} copies; clients may be silent for {} ms", args.copies, args.lease_ms);
    metrics::print_url(metrics.as_ref());
    args.secret.print_audience();
    stop.wait(|| server.is_deposed());
    drop(metrics);
    if server.is_deposed() {
        let what = "another manager has taken over, so this one ends: to run several managers, start \
                    each with the same --memory-nodes N, and this one with --standby";
        return Err(Error::fenced(what));
    }
    print_line!("Stopped; nodes and clients go on without it");
    Ok(())
}
