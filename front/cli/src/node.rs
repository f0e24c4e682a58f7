//! `archipelago node memory` and `archipelago node manager`: one role in this process.

use std::time::Duration;

use archipelago_base::{Error, Result, size};
use archipelago_env::descriptors::raise_limit;
use archipelago_manager::core::Terms;
use archipelago_manager::{ManagerServer, ManagerSettings, StorePlan};
use archipelago_memory::{MemoryServer, MemorySettings};
use archipelago_pool::endpoint;

use crate::console::say;
use crate::stop::Stop;

/// Where the manager listens unless told otherwise.
pub(crate) const MANAGER: &str = "127.0.0.1:7700";

/// Runs until SIGTERM or SIGINT.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum NodeCommand {
    /// A memory node: lends memory to clients, in blocks.
    ///
    /// It registers with the manager and serves what the manager places on it. Its memory does not
    /// outlive the process: blocks survive by their copies on other nodes. Start it with the same
    /// --id after a restart.
    #[command(
        after_help = "Example, three nodes on one machine:\n  archipelago node manager &\n  \
                      for n in 1 2 3; do archipelago node memory --id $n --size 1GiB & done\n  \
                      archipelago cluster status"
    )]
    Memory(MemoryArgs),
    /// The manager: knows the members, places blocks, acts when somebody is gone.
    ///
    /// It stores nothing. After a start it asks the nodes, and acts when it has waited for as long
    /// as a lease lasts. Without a manager clients read and write until their leases are over
    /// (--lease-ms), then calls wait, and end with an error after 5 s.
    ///
    /// Run two or more so that one may die: each with the same --memory-nodes N, the memory nodes
    /// being 1 to N. One of them acts, which a majority of the memory nodes has promised to obey;
    /// the others stand by, and one takes over within a node lease (--node-lease-ms). Give all of
    /// their addresses to nodes and clients: --manager HOST:PORT,HOST:PORT. A manager without
    /// --memory-nodes runs alone.
    #[command(
        after_help = "Example, two managers:\n  archipelago node manager --listen 127.0.0.1:7700 --memory-nodes 3 &\n  \
                      archipelago node manager --listen 127.0.0.1:7701 --memory-nodes 3 --standby &\n  \
                      for n in 1 2 3; do archipelago node memory --id $n --manager 127.0.0.1:7700,127.0.0.1:7701 & done"
    )]
    Manager(ManagerArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct MemoryArgs {
    /// This node's number, 1 to 8191: its own in the cluster, the same after a restart
    #[arg(long, value_name = "N", default_value_t = 1)]
    id: u64,
    /// Memory that it lends, at most; reserved block by block
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: String,
    /// Size of a block, a power of two; the same on all nodes of a cluster
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    block: String,
    /// Where it listens; port 0 lets the system choose
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// What others are told to connect to, if that is not where it listens
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Also serve clients of this machine through shared memory, by a socket at this path
    #[arg(long, value_name = "PATH")]
    shm: Option<String>,
    /// Where the managers are, with a comma between two
    #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
    manager: String,
    /// End a process (SIGKILL) that keeps shared memory mapped for so long after its right to it
    /// was revoked, so that others get its blocks; 0: wait for it
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    end_holders_after: u64,
    /// End when standard input ends: for who starts it as a child
    #[arg(long)]
    stop_with_stdin: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ManagerArgs {
    /// Where it listens; keep it over restarts, nodes and clients know it
    #[arg(long, value_name = "HOST:PORT", default_value = MANAGER)]
    listen: String,
    /// Copies of every block; fewer while fewer nodes are up
    #[arg(long, value_name = "N", default_value_t = 3)]
    copies: u32,
    /// A client that is silent for longer is taken for dead, and its blocks go to others
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    lease_ms: u64,
    /// A memory node that is silent for longer is left behind, and its copies are made anew
    /// elsewhere
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    node_lease_ms: u64,
    /// Of one of several managers: the memory nodes are 1 to N; 0: this manager runs alone
    #[arg(long, value_name = "N", default_value_t = 0)]
    memory_nodes: u32,
    /// Leave it to another manager to act first
    #[arg(long)]
    standby: bool,
    /// Partitions of a store over the cluster's memory, a power of two; counts when the store is
    /// made
    #[arg(long, value_name = "N", default_value_t = 8192)]
    partitions: u32,
    /// Share of them whose index lies at compute nodes, in a thousand, for good; without it the
    /// load decides
    #[arg(long, value_name = "N")]
    offload: Option<u32>,
    /// End when standard input ends: for who starts it as a child
    #[arg(long)]
    stop_with_stdin: bool,
}

/// The managers' addresses, as --manager has them.
pub(crate) fn managers(text: &str) -> Result<Vec<String>> {
    text.split(',').map(endpoint).collect()
}

pub(crate) fn run(command: &NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Memory(args) => memory(args),
        NodeCommand::Manager(args) => manager(args),
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
            "--listen {}: others cannot connect to that; say where with --advertise HOST:PORT",
            args.listen
        )));
    }
    if args.end_holders_after > 0 {
        settings.end_holders_after = Some(Duration::from_secs(args.end_holders_after));
    }
    let limits = settings.validate()?;
    // A region is a descriptor.
    raise_limit();
    let stop = Stop::watch(args.stop_with_stdin)?;
    let server = MemoryServer::start(settings)?;
    say!(
        "Memory node {} lends {} in {} blocks of {} on {}",
        args.id,
        size::show(limits.blocks_max * limits.block_bytes),
        limits.blocks_max,
        size::show(limits.block_bytes),
        server.addresses().join(" ")
    );
    say!("It registers with the manager at {}; see: archipelago cluster status", args.manager);
    stop.wait(|| false)?;
    say!("Stopped; {} blocks had a copy here", server.blocks_used());
    Ok(())
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
            "--partitions {} --offload {}: a power of two, and at most 1000",
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
    let settings = ManagerSettings { listen, terms, store, memory_nodes, standby };
    // A region is a descriptor.
    raise_limit();
    let stop = Stop::watch(args.stop_with_stdin)?;
    let server = ManagerServer::start(&settings)?;
    say!("Manager listens on {}", server.addresses().join(" "));
    if args.memory_nodes > 0 {
        say!(
            "It acts while a majority of the memory nodes 1 to {} has promised to obey it",
            args.memory_nodes
        );
    }
    say!("It keeps {} copies; clients may be silent for {} ms", args.copies, args.lease_ms);
    stop.wait(|| server.is_deposed())?;
    if server.is_deposed() {
        let what = "another manager has taken over; this one is of no use any more";
        return Err(Error::fenced(what));
    }
    say!("Stopped; nodes and clients go on without it");
    Ok(())
}
