//! `archipelago node storage`: a storage node in this process.
//!
//! The role is a library with threads of its own. This module reads the flags, starts the role and
//! waits for a signal.

use std::path::PathBuf;

use archipelago_base::{Error, Result, size};
use archipelago_env::descriptors::raise_limit;
use archipelago_fabric::{NodeId, endpoint};
use archipelago_metrics::sources;
use archipelago_storage::{NodeOptions, StorageServer, StorageSettings};

use crate::console::print_line;
use crate::managers::{MANAGER, managers};
use crate::metrics::{self, MetricsArgs};
use crate::secret::SecretArgs;
use crate::stop::Stop;

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
}

/// Runs a storage node until the process is told to stop.
pub(crate) fn run(args: &StorageArgs) -> Result<()> {
    let settings = args.settings()?;
    let domain = settings.domain.clone();
    // Every open chunk and extent takes a descriptor.
    raise_limit();
    let stop = Stop::watch(args.stop_with_stdin)?;
    let metrics = args.metrics.listen()?;
    let server = StorageServer::start(settings)?;
    let all =
        vec![sources::process("storage", Some(args.id)), sources::storage_node(server.monitor())];
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
    stop.wait(|| false);
    drop(metrics);
    server.close()?;
    print_line!("Stopped; its data stay in {}", dirs.join(" "));
    Ok(())
}
