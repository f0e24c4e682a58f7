//! Executors of offloaded jobs in processes of this program: the flags that they share, executors
//! in the process of another role, and their orderly end.
//!
//! `archipelago node executor` is an executor alone. `archipelago node memory`, `archipelago node
//! storage` and `archipelago serve` host one if their flags ask for it.

mod hosted;
mod reach;

use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};

use crate::console::print_line;
use crate::stop::Stop;

pub(crate) use hosted::{HostedExecutor, HostedPlan};
pub(crate) use reach::{JobFiles, ReachArgs, SideArgs};

/// Longest time for which a process that is told to stop waits for its jobs. Services that still
/// run after 90 s are killed by default (systemd). Jobs that are cut off are planned again.
const LEAVE_MAX: Duration = Duration::from_secs(60);

/// Host and process, which logs and `archipelago cluster status` show.
pub(crate) fn process_address() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host} (process {})", std::process::id())
}

/// Waits until an executor that takes no more jobs can end. Another signal, the end of standard
/// input and [`LEAVE_MAX`] end the wait as well.
pub(crate) fn wait_for_jobs(stop: &mut Stop, can_end: impl Fn() -> bool) {
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
