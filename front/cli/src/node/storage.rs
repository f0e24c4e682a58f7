//! `archipelago node storage`: a storage node in this process.
//!
//! The role is a library with threads of its own. This module reads the flags, starts the role and
//! waits for a signal.

use std::path::PathBuf;

use archipelago_base::{Error, Result, size};
use archipelago_env::descriptors::raise_limit;
use archipelago_fabric::{NodeId, endpoint};
use archipelago_metrics::sources;
use archipelago_offload::net::ExecutorSettings;
use archipelago_storage::{NodeOptions, StorageServer, StorageSettings};

use crate::console::print_line;
use crate::executor::{HostedPlan, JobFiles, SideArgs};
use crate::managers::{MANAGER, managers};
use crate::metrics::{self, MetricsArgs};
use crate::secret::SecretArgs;
use crate::stop::Stop;
use crate::volume::Redundancy;

#[derive(clap::Args, Debug)]
pub(crate) struct StorageArgs {
    /// Number of this node, at least 1, by which operators name it. No other storage node of the
    /// cluster should have it. Use the same number after a restart
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..u64::MAX))]
    id: u64,
    /// Directory for the node's data, one per disk. The first one also holds the node's metadata.
    /// The node creates them, and keeps its identity in them: start it with the same directories
    /// after a restart
    #[arg(long = "dir", value_name = "DIR", required = true, num_args = 1..)]
    dirs: Vec<PathBuf>,
    /// Address at which the node listens. With port 0 the system chooses a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Address that others connect to, if it differs from --listen: behind address translation, or
    /// if --listen is 0.0.0.0
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Addresses of the cluster's managers, separated by commas
    #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
    manager: String,
    /// Name of the nodes that fail together with this one, such as its rack. The parts of a file
    /// lie in distinct domains. Default: the name of this machine
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Bytes that the node uses at most in each directory, such as 500GiB. Default: all that the
    /// file system has
    #[arg(long, value_name = "SIZE")]
    size_max: Option<String>,
    /// Bytes that the files of each volume may occupy on this node. Default: no limit
    #[arg(long, value_name = "SIZE")]
    volume_size_max: Option<String>,
    #[command(flatten)]
    side: SideArgs,
    /// Redundancy of the files that jobs write: as in the processes that serve the databases (needs
    /// --executor-slots)
    #[arg(
        long,
        value_enum,
        default_value_t = Redundancy::ByClass,
        requires = "executor_slots"
    )]
    redundancy: Redundancy,
    /// Fewest copies with which jobs write a file while domains are down: 2, or 1 for a trial on
    /// one storage node (needs --executor-slots)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=3),
        requires = "executor_slots"
    )]
    copies_min: u8,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Stop when standard input ends. A program that starts the node as a child process uses it, so
    /// that the node does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

impl StorageArgs {
    fn settings(&self) -> Result<StorageSettings> {
        let size = |flag: &Option<String>| flag.as_deref().map(size::parse).transpose();
        let advertise = match &self.advertise {
            Some(told) => vec![endpoint(told)?],
            None if self.listen.starts_with("0.0.0.0:") || self.listen.starts_with("[::]:") => {
                return Err(Error::invalid(format!(
                    "--listen {}: others cannot connect to that address: name one that they can \
                     reach with --advertise HOST:PORT",
                    self.listen
                )));
            }
            None => Vec::new(),
        };
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(StorageSettings {
            id: NodeId(self.id),
            devices: self.dirs.clone(),
            listen: vec![endpoint(&self.listen)?],
            advertise,
            managers: managers(&self.manager)?,
            domain: self.domain.clone().unwrap_or_else(machine),
            secret: self.secret.read()?,
            node: NodeOptions {
                device_bytes_max: size(&self.size_max)?,
                volume_bytes_max: size(&self.volume_size_max)?,
                ..NodeOptions::default()
            },
        })
    }

    /// The executor in the process of the node, if the flags want one. It reaches the volumes of
    /// the node's own cluster.
    fn hosted_plan(&self, node: &StorageSettings) -> Result<Option<HostedPlan>> {
        let Some(slots) = self.side.slots()? else { return Ok(None) };
        let settings = ExecutorSettings {
            managers: node.managers.clone(),
            slots,
            secret: node.secret.clone(),
            ..ExecutorSettings::default()
        };
        let files = JobFiles {
            shares: self.side.shares().to_vec(),
            store: Some(self.manager.clone()),
            redundancy: self.redundancy,
            copies_min: self.copies_min,
        };
        HostedPlan::new(settings, files).map(Some)
    }
}

/// Runs a storage node until the process is told to stop.
pub(crate) fn run(args: &StorageArgs) -> Result<()> {
    let settings = args.settings()?;
    let executor = args.hosted_plan(&settings)?;
    let domain = settings.domain.clone();
    // Every open chunk and extent takes a descriptor.
    raise_limit();
    let mut stop = Stop::watch(args.stop_with_stdin)?;
    let metrics = args.metrics.listen()?;
    let server = StorageServer::start(settings)?;
    let start = |plan: HostedPlan| {
        let address = format!("storage node {} at {}", args.id, server.addresses().join(" "));
        plan.start(address, None, &args.secret)
    };
    let hosted = executor.map(start).transpose()?;
    let mut all =
        vec![sources::process("storage", Some(args.id)), sources::storage_node(server.monitor())];
    all.extend(hosted.as_ref().map(|hosted| sources::executor(hosted.monitor())));
    let metrics = metrics::serve(metrics, all)?;
    let dirs: Vec<String> = args.dirs.iter().map(|dir| dir.display().to_string()).collect();
    print_line!(
        "Storage node {} ({}) of domain {domain} keeps {} on {}",
        args.id,
        server.storage(),
        dirs.join(" "),
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
    // Jobs may read and write files of this node, so they end first.
    if let Some(hosted) = hosted {
        hosted.end(cause, &mut stop, || false);
    }
    drop(metrics);
    server.close()?;
    print_line!("Stopped; its data stay in {}", dirs.join(" "));
    Ok(())
}
