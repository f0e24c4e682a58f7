//! Text of `archipelago cluster status`: executors and the jobs that wait for them. Pure functions.

use std::fmt::Write;

use archipelago_offload::wire::{ExecutorStanding, RecentFailure, SchedulerStatus};

/// The status of the scheduler as text; `None` if the cluster has no executors and no jobs.
pub(super) fn text(status: &SchedulerStatus) -> Option<String> {
    let is_idle = *status == SchedulerStatus::default();
    let mut out = String::new();
    // Writing to a string does not fail.
    let _infallible = write(&mut out, status);
    (!is_idle).then_some(out)
}

fn write(out: &mut String, status: &SchedulerStatus) -> std::fmt::Result {
    let addresses = status.executors.iter().map(|executor| executor.address.as_str());
    let width = addresses.chain(["ADDRESS"]).map(|address| address.chars().count()).max();
    let width = width.unwrap_or(0);
    writeln!(
        out,
        "{:<18} {:>6} {:>8} {:>6} {:>6}  {:<14}  {:<width$}  BUILD",
        "EXECUTOR", "SLOTS", "RUNNING", "LOAD", "QUEUE", "IN MEMORY NODE", "ADDRESS"
    )?;
    for executor in &status.executors {
        let ExecutorStanding { executor: id, address, build, slots, taken, load, reach } = executor;
        let home = reach.home.map_or_else(|| "-".to_owned(), |home| home.node.to_string());
        let (busy, queue, address) = (load.cpu / 10, load.queue / 10, address.as_str());
        writeln!(
            out,
            "{:<18x} {slots:>6} {taken:>8} {busy:>4} % {queue:>4} %  {home:<14}  \
             {address:<width$}  {build}",
            id.0
        )?;
    }
    if status.executors.is_empty() {
        writeln!(out, "(none)")?;
    }
    writeln!(
        out,
        "Jobs: {} and {} wait; {} installed, {} attempts failed, {} given back",
        waiting(status.flushes_waiting, "flushes", status.flushes_oldest_ms),
        waiting(status.others_waiting, "others", status.others_oldest_ms),
        status.installed,
        status.failed,
        status.given_back
    )?;
    match &status.last_failure {
        Some(RecentFailure { attempt, age_ms }) => {
            writeln!(out, "Last failure, {} s ago: {attempt}", age_ms / 1000)
        }
        None => Ok(()),
    }
}

/// A queue with the age of its oldest job.
pub(super) fn waiting(count: u32, what: &str, oldest_ms: u64) -> String {
    match count {
        0 => format!("0 {what}"),
        _ => format!("{count} {what} (the oldest for {oldest_ms} ms)"),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_fabric::NodeId;
    use archipelago_offload::decide::{InputReach, Load};
    use archipelago_offload::failure::{FailedAttempt, ShortText};
    use archipelago_offload::ids::{ExecutorId, NodeLife};

    use super::*;

    #[test]
    fn status_names_executors_and_the_memory_nodes_that_host_them() {
        assert_eq!(text(&SchedulerStatus::default()), None);
        let home = Some(NodeLife { node: NodeId(3), life: Epoch(8) });
        let alone = ExecutorStanding {
            executor: ExecutorId(0xab),
            address: ShortText::new("reef (process 7)"),
            build: ShortText::new("build 1"),
            slots: 2,
            load: Load { cpu: 500, io: 0, queue: 0 },
            ..ExecutorStanding::default()
        };
        let reach = InputReach { home, ..InputReach::default() };
        let address = ShortText::new("reef (process 10)");
        let executor = ExecutorId(0xcd);
        let hosted = ExecutorStanding { executor, address, taken: 1, reach, ..alone.clone() };
        let executors = vec![alone, hosted];
        let reason = ShortText::new("full");
        let attempt = FailedAttempt { reason, ..FailedAttempt::default() };
        let last_failure = Some(RecentFailure { attempt, age_ms: 3_000 });
        let status = SchedulerStatus {
            executors,
            flushes_waiting: 7,
            flushes_oldest_ms: 80,
            last_failure,
            ..SchedulerStatus::default()
        };
        let text = text(&status).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("  ADDRESS            BUILD"), "{text}");
        assert!(lines[1].starts_with("ab ") && lines[1].contains("50 %    0 %  - "), "{text}");
        assert!(lines[1].ends_with("  reef (process 7)   build 1"), "{text}");
        assert!(lines[2].ends_with("  reef (process 10)  build 1"), "{text}");
        assert!(lines[2].starts_with("cd ") && lines[2].contains(" 0 %  3 "), "{text}");
        let jobs = "Jobs: 7 flushes (the oldest for 80 ms) and 0 others wait; 0 installed";
        assert!(lines[3].starts_with(jobs), "{text}");
        assert!(lines[4].starts_with("Last failure, 3 s ago: attempt"), "{text}");
        assert!(lines[4].ends_with(": full"), "{text}");
    }
}
