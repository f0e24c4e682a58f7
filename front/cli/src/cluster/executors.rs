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
        "{}; {}; all jobs: {} installed, {} attempts failed, {} given back",
        waiting("Flushes", status.flushes_waiting, status.flushes_oldest_ms),
        waiting("other jobs", status.others_waiting, status.others_oldest_ms),
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

/// A queue with the number of its jobs and the age of the oldest one.
pub(super) fn waiting(queue: &str, count: u32, oldest_ms: u64) -> String {
    match count {
        0 => format!("{queue}: 0 wait"),
        1 => format!("{queue}: 1 waits (the oldest for {oldest_ms} ms)"),
        _ => format!("{queue}: {count} wait (the oldest for {oldest_ms} ms)"),
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
    fn verb_of_a_queue_agrees_with_the_number_of_jobs() {
        assert_eq!(waiting("flushes", 0, 0), "flushes: 0 wait");
        let one = "other jobs: 1 waits (the oldest for 20012 ms)";
        assert_eq!(waiting("other jobs", 1, 20_012), one);
        assert_eq!(waiting("flushes", 2, 7), "flushes: 2 wait (the oldest for 7 ms)");
    }

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
        let queues = "Flushes: 7 wait (the oldest for 80 ms); other jobs: 0 wait; ";
        let ended = "all jobs: 0 installed, 0 attempts failed, 0 given back";
        assert_eq!(lines[3], [queues, ended].concat());
        assert!(lines[4].starts_with("Last failure, 3 s ago: attempt"), "{text}");
        assert!(lines[4].ends_with(": full"), "{text}");
    }
}
