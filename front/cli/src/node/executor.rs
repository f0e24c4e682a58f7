//! `archipelago node executor`: an executor of offloaded jobs in this process.

use std::path::PathBuf;

use archipelago_base::{Error, Result};
use archipelago_compute::volume::{NodeStoresOptions, pool_of_executor};
use archipelago_env::descriptors::raise_limit;
use archipelago_offload::net::{ExecutorServer, ExecutorSettings, VolumePool};

use crate::console::print_line;
use crate::managers::{MANAGER, managers};
use crate::secret::SecretArgs;
use crate::stop::Stop;
use crate::volume::Redundancy;

#[derive(clap::Args, Debug)]
pub(crate) struct ExecutorArgs {
    /// Directory below which the executor may read and write databases of other processes. It must
    /// exist, and those processes must have it under the same path. The flag may be repeated
    #[arg(long = "share", value_name = "DIR", required_unless_present = "store")]
    shares: Vec<PathBuf>,
    /// Addresses of the managers of a storage cluster, separated by commas. The executor then reads
    /// and writes databases in its volumes, as far as their owners grant it
    #[arg(long, value_name = "HOST:PORT,...")]
    store: Option<String>,
    /// Redundancy of the files that the executor writes: as in the processes that serve the
    /// databases (needs --store)
    #[arg(long, value_enum, default_value_t = Redundancy::ByClass, requires = "store")]
    redundancy: Redundancy,
    /// Fewest copies with which a file is written while domains are down: 2, or 1 for a trial on
    /// one storage node (needs --store)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=3),
        requires = "store"
    )]
    copies_min: u8,
    /// Jobs that run at the same time. Default: the number of cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: Option<u32>,
    /// Addresses of the managers that give out jobs, separated by commas. Default: those of
    /// --store, or 127.0.0.1:7700
    #[arg(long, value_name = "HOST:PORT,...")]
    manager: Option<String>,
    #[command(flatten)]
    secret: SecretArgs,
    /// Stop when standard input ends. A program that starts the node as a child process uses it, so
    /// that the node does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

/// Connects to the storage cluster, if the flags name one.
fn volumes(args: &ExecutorArgs) -> Result<Option<VolumePool>> {
    let Some(store) = &args.store else { return Ok(None) };
    let at = managers(store).map_err(|error| error.context_at(format!("--store {store}")))?;
    let options = NodeStoresOptions {
        mode: args.redundancy.into(),
        copies_min: args.copies_min,
        ..NodeStoresOptions::default()
    };
    pool_of_executor(at, args.secret.read()?, options).map(Some)
}

/// Runs an executor until the process is told to stop.
pub(crate) fn run(args: &ExecutorArgs) -> Result<()> {
    let mut shares = Vec::new();
    for share in &args.shares {
        if !share.is_dir() {
            return Err(Error::invalid(format!(
                "--share {}: there is no such directory",
                share.display()
            )));
        }
        let full = std::path::absolute(share)
            .map_err(|source| Error::io("find the absolute path of", share, source))?;
        shares.push(full);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let slots = args.slots.unwrap_or(u32::try_from(cores).unwrap_or(1));
    let manager = args.manager.as_deref().or(args.store.as_deref()).unwrap_or(MANAGER);
    let settings = ExecutorSettings {
        managers: managers(manager)?,
        slots,
        shares,
        volumes: volumes(args)?,
        secret: args.secret.read()?,
    };
    // Every input of a job takes a descriptor.
    raise_limit();
    let stop = Stop::watch(args.stop_with_stdin)?;
    let shares = settings.shares.iter().map(|share| format!("below {}", share.display()));
    let store = args.store.iter().map(|at| format!("in volumes of the storage cluster at {at}"));
    let places: Vec<String> = shares.chain(store).collect();
    let server = ExecutorServer::start(settings)?;
    print_line!("Executor with {slots} slots runs jobs of databases {}", places.join(", "));
    print_line!("It asks the manager at {manager} for jobs");
    stop.wait(|| false)?;
    let figures = server.figures();
    drop(server);
    print_line!("Stopped; {} jobs succeeded and {} failed", figures.succeeded, figures.failed);
    Ok(())
}
