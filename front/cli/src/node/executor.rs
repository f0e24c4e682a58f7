//! `archipelago node executor`: an executor of offloaded jobs in this process.

use archipelago_base::{Error, Result};
use archipelago_env::descriptors::raise_limit;
use archipelago_metrics::sources;
use archipelago_offload::net::{ExecutorServer, ExecutorSettings};

use crate::console::print_line;
use crate::executor::{ReachArgs, process_address, wait_for_jobs};
use crate::managers::{MANAGER, managers};
use crate::metrics::{self, MetricsArgs};
use crate::secret::SecretArgs;
use crate::stop::{Stop, StopCause};

#[derive(clap::Args, Debug)]
pub(crate) struct ExecutorArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Addresses of the managers that give out jobs, separated by commas. Default: those of
    /// --store, or 127.0.0.1:7700
    #[arg(long, value_name = "HOST:PORT,...")]
    manager: Option<String>,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Stop when standard input ends. A program that starts the node as a child process uses it, so
    /// that the node does not outlive the program
    #[arg(long)]
    stop_with_stdin: bool,
}

/// Runs an executor until the process is told to stop.
pub(crate) fn run(args: &ExecutorArgs) -> Result<()> {
    if !args.reach.is_given() {
        return Err(Error::invalid(
            "an executor reaches the files of databases in shared directories or in a storage \
             cluster: give --share DIR or --store HOST:PORT",
        ));
    }
    let (files, slots) = (args.reach.files(), args.reach.slots());
    let shares = files.shares()?;
    let what = files.describe(&shares);
    let manager = args.manager.as_deref().or(args.reach.store.as_deref()).unwrap_or(MANAGER);
    let settings = ExecutorSettings {
        managers: managers(manager)?,
        slots,
        shares,
        volumes: files.volumes(&args.secret)?,
        hosted: None,
        secret: args.secret.read()?,
        address: process_address(),
    };
    // Every input of a job takes a descriptor.
    raise_limit();
    let mut stop = Stop::watch(args.stop_with_stdin)?;
    let metrics = args.metrics.listen()?;
    let server = ExecutorServer::start(settings)?;
    let monitor = server.monitor();
    let all =
        vec![sources::process("executor", None), sources::executor(move || monitor.figures())];
    let metrics = metrics::serve(metrics, all)?;
    print_line!("Executor with {slots} slots runs jobs of databases {what}");
    print_line!("It asks the manager at {manager} for jobs");
    metrics::print_url(metrics.as_ref());
    if stop.wait_once(|| false) == StopCause::Signal {
        server.leave();
        wait_for_jobs(&mut stop, || server.can_end());
    }
    drop(metrics);
    let figures = server.figures();
    drop(server);
    print_line!("Stopped; {} jobs succeeded and {} failed", figures.succeeded, figures.failed);
    Ok(())
}
