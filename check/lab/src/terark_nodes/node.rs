//! `archipelago-lab terark-storage-node`: a storage node as a process, on an emulated device.
//!
//! The laboratory starts it as a child ([`crate::role`]). Its state is its space and its processor
//! time.
//!
//! Failure: an error ends the process, which the parent notices at the next line.
//! Cost: one pass over chunks and extents per line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::clock::SystemClock;
use archipelago_bench::harness::flags::Stop;
use archipelago_bench::harness::process;
use archipelago_bench::harness::store::{
    DeviceSpec, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};
use archipelago_env::descriptors::raise_limit;
use archipelago_env::device::ThrottledFs;
use archipelago_fabric::{NodeId, endpoint};
use archipelago_storage::{NodeOptions, StorageServer, StorageSettings};
use clap::Parser;
use serde::{Deserialize, Serialize};

use super::link;
use crate::command_line;

/// Word that the program begins with to run a node.
pub(crate) const COMMAND: &str = "terark-storage-node";

/// Flags of the process.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "archipelago-lab terark-storage-node",
    bin_name = "archipelago-lab terark-storage-node",
    about = "Runs a storage node for `archipelago-lab terark-nodes`, until standard input ends.",
    rename_all = "snake_case",
    disable_version_flag = true
)]
struct NodeFlags {
    /// Number of the node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    id: u64,
    /// Directory of its data
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Address of the manager
    #[arg(long, value_name = "HOST:PORT")]
    manager: String,
    /// Description of the emulated device; without it the device is real
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Factor by which the times of the device are stretched
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    scale: f64,
}

/// Space of one class of files on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClassSpace {
    pub(super) class: String,
    /// Number of chunks and extents.
    pub(super) objects: u64,
    /// Bytes of the files of these chunks and extents.
    pub(super) bytes: u64,
    /// Share of these chunks and extents in the lengths of files, without copies and parity.
    pub(super) logical_bytes: u64,
}

/// State of a node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeState {
    /// Processor time of the process so far, if the kernel tells it.
    pub(super) cpu_s: Option<f64>,
    pub(super) spaces: Vec<ClassSpace>,
}

/// Runs the node with `args`, the words after [`COMMAND`].
pub(crate) fn serve(args: &[OsString]) -> std::result::Result<Result<()>, Stop> {
    let flags: NodeFlags = command_line::parse(COMMAND, args)?;
    Ok(run(&flags))
}

fn run(flags: &NodeFlags) -> Result<()> {
    // Every open chunk and extent takes a descriptor.
    raise_limit();
    let settings = StorageSettings {
        id: NodeId(flags.id),
        devices: vec![flags.dir.clone()],
        listen: vec!["tcp:127.0.0.1:0".to_owned()],
        advertise: Vec::new(),
        managers: vec![endpoint(&flags.manager)?],
        domain: format!("node{}", flags.id),
        secret: None,
        node: NodeOptions::default(),
    };
    // A node has many open extents, and rings would cost memory and a thread for each.
    let local: Arc<dyn FileSystem> = Arc::new(LocalFs::new().with_plain_logs());
    let fs = match &flags.device {
        Some(file) => {
            let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
            let text = local.read(file, context)?;
            let device = DeviceSpec::from_toml(&String::from_utf8_lossy(&text))?;
            let device = link::stretched(device, flags.scale)?;
            ThrottledFs::new(local, device, SystemClock::shared()) as Arc<dyn FileSystem>
        }
        None => local,
    };
    let server = StorageServer::start_on(fs, settings)?;
    crate::role::answer(|| state(&server))?;
    server.close()
}

fn state(server: &StorageServer) -> NodeState {
    let report = server.monitor().figures().report;
    let spaces = report.volumes.iter().map(|space| ClassSpace {
        class: class_name(space.class).to_owned(),
        objects: space.objects,
        bytes: space.bytes,
        logical_bytes: space.logical_bytes,
    });
    NodeState { cpu_s: process::cpu_seconds(), spaces: spaces.collect() }
}

/// Name of a class, as in the result file of the benchmark.
fn class_name(class: FileClass) -> &'static str {
    match class {
        FileClass::Wal => "wal",
        FileClass::Sst => "sst",
        FileClass::ValueSst => "value-sst",
        FileClass::Manifest => "manifest",
        FileClass::Other => "other",
    }
}
