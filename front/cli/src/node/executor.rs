//! `archipelago node executor`: an executor of offloaded jobs in this process.

use std::path::PathBuf;

use archipelago_base::{Error, Result};
use archipelago_env::descriptors::raise_limit;
use archipelago_offload::net::{ExecutorServer, ExecutorSettings};

use super::{MANAGER, managers};
use crate::console::print_line;
use crate::secret::SecretArgs;
use crate::stop::Stop;

#[derive(clap::Args, Debug)]
pub(crate) struct ExecutorArgs {
    /// Directory below which the executor may read and write databases of other processes. It must
    /// exist, and those processes must have it under the same path. The flag may be repeated
    #[arg(long = "share", value_name = "DIR", required = true)]
    shares: Vec<PathBuf>,
    /// Jobs that run at the same time. Default: the number of cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: Option<u32>,
    /// Addresses of the cluster's managers, separated by commas
    #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
    manager: String,
    #[command(flatten)]
    secret: SecretArgs,
    /// Stop when standard input ends. A program that starts the node as a child process uses it, so
    /// that the node does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
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
    let settings = ExecutorSettings {
        managers: managers(&args.manager)?,
        slots,
        shares,
        secret: args.secret.read()?,
    };
    // Every input of a job takes a descriptor.
    raise_limit();
    let stop = Stop::watch(args.stop_with_stdin)?;
    let named: Vec<String> =
        settings.shares.iter().map(|share| share.display().to_string()).collect();
    let server = ExecutorServer::start(settings)?;
    print_line!("Executor with {slots} slots runs jobs of databases below {}", named.join(" "));
    print_line!("It asks the manager at {} for jobs", args.manager);
    stop.wait(|| false)?;
    let figures = server.figures();
    drop(server);
    print_line!("Stopped; {} jobs succeeded and {} failed", figures.succeeded, figures.failed);
    Ok(())
}
