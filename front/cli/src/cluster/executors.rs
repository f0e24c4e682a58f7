//! Text of `archipelago cluster status`: executors and the jobs that wait for them. Pure functions.

use std::fmt::Write;

use archipelago_offload::wire::{ExecutorStanding, SchedulerStatus};

/// The status of the scheduler as text; `None` if the cluster has no executors and no jobs.
pub(super) fn text(status: &SchedulerStatus) -> Option<String> {
    let is_idle = *status == SchedulerStatus::default();
    let mut out = String::new();
    // Writing to a string does not fail.
    let _infallible = write(&mut out, status);
    (!is_idle).then_some(out)
}

fn write(out: &mut String, status: &SchedulerStatus) -> std::fmt::Result {
    writeln!(
        out,
        "{:<18} {:>6} {:>8} {:>6}  IN MEMORY NODE",
        "EXECUTOR", "SLOTS", "RUNNING", "LOAD"
    )?;
    for executor in &status.executors {
        let ExecutorStanding { executor: id, slots, taken, load, reach } = executor;
        let home = reach.home.map_or_else(|| "-".to_owned(), |home| home.node.to_string());
        let percent = load.cpu / 10;
        writeln!(out, "{:<18x} {slots:>6} {taken:>8} {percent:>4} %  {home}", id.0)?;
    }
    if status.executors.is_empty() {
        writeln!(out, "(none)")?;
    }
    writeln!(
        out,
        "Jobs: {} flushes and {} others wait; {} installed, {} attempts failed, {} given back",
        status.flushes_waiting,
        status.others_waiting,
        status.installed,
        status.failed,
        status.given_back
    )
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_fabric::NodeId;
    use archipelago_offload::decide::{InputReach, Load};
    use archipelago_offload::ids::{ExecutorId, NodeLife};

    use super::*;

    #[test]
    fn status_names_executors_and_the_memory_nodes_that_host_them() {
        assert_eq!(text(&SchedulerStatus::default()), None);
        let home = Some(NodeLife { node: NodeId(3), life: Epoch(8) });
        let alone = ExecutorStanding {
            executor: ExecutorId(0xab),
            slots: 2,
            load: Load { cpu: 500, io: 0, queue: 0 },
            ..ExecutorStanding::default()
        };
        let reach = InputReach { home, ..InputReach::default() };
        let hosted = ExecutorStanding { executor: ExecutorId(0xcd), taken: 1, reach, ..alone };
        let executors = vec![alone, hosted];
        let status =
            SchedulerStatus { executors, flushes_waiting: 7, ..SchedulerStatus::default() };
        let text = text(&status).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("ab ") && lines[1].ends_with("50 %  -"), "{text}");
        assert!(lines[2].starts_with("cd ") && lines[2].ends_with("50 %  3"), "{text}");
        assert!(lines[3].starts_with("Jobs: 7 flushes"), "{text}");
    }
}
