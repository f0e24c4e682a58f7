//! `archipelago node executor`: an executor of offloaded jobs in this process.

use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{Error, Result};
use archipelago_env::descriptors::raise_limit;
use archipelago_metrics::sources;
use archipelago_offload::net::{ExecutorServer, ExecutorSettings};

use super::reach::ReachArgs;
use crate::console::print_line;
use crate::managers::{MANAGER, managers};
use crate::metrics::{self, MetricsArgs};
use crate::process_address::process_address;
use crate::secret::SecretArgs;
use crate::stop::{Stop, StopCause};

/// Longest time for which a process that is told to stop waits for its jobs. Services that still
/// run after 90 s are killed by default (systemd). Jobs that are cut off are planned again.
const LEAVE_MAX: Duration = Duration::from_secs(60);

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
    let (shares, slots) = (args.reach.shares()?, args.reach.slots());
    let what = args.reach.describe(&shares);
    let manager = args.manager.as_deref().or(args.reach.store.as_deref()).unwrap_or(MANAGER);
    let settings = ExecutorSettings {
        managers: managers(manager)?,
        slots,
        shares,
        volumes: args.reach.volumes(&args.secret)?,
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

/// Waits until an executor that takes no more jobs can end. Another signal, the end of standard
/// input and [`LEAVE_MAX`] end the wait as well.
pub(super) fn wait_for_jobs(stop: &mut Stop, can_end: impl Fn() -> bool) {
    if can_end() {
        return;
    }
    print_line!(
        "It takes no more jobs, and ends when its jobs have ended, after {} s at the latest; \
         another signal cancels them",
        LEAVE_MAX.as_secs()
    );
    let clock = SystemClock::new();
    let is_late = || clock.now_ns() >= LEAVE_MAX.as_nanos() as u64;
    stop.wait_once(|| can_end() || is_late());
}
