//! Text of `archipelago cluster status`: executors, the jobs that wait for them, and the jobs that
//! ran in servers instead. Pure functions.

use std::fmt::Write;

use archipelago_offload::wire::{ExecutorStanding, OwnerStanding, RecentFailure, SchedulerStatus};

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
        let ExecutorStanding { executor: id, address, build, slots, taken, load, reach, .. } =
            executor;
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
    for executor in status.executors.iter().filter(|executor| executor.is_draining) {
        let (id, held) = (executor.executor.0, executor.held);
        writeln!(out, "(executor {id:x} is drained: it takes no jobs, and has {held})")?;
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
    if let Some(RecentFailure { attempt, age_ms }) = &status.last_failure {
        writeln!(out, "Last failure, {} s ago: {attempt}", age_ms / 1000)?;
    }
    match status.owners.is_empty() {
        true => Ok(()),
        false => write_servers(out, status),
    }
}

/// Writes a table of the servers whose jobs leave. A server has one line for each reason for which
/// jobs ran in it instead.
fn write_servers(out: &mut String, status: &SchedulerStatus) -> std::fmt::Result {
    let addresses = status.owners.iter().map(|owner| owner.report.address.as_str());
    let width = addresses.chain(["SERVER"]).map(|address| address.chars().count()).max();
    let width = width.unwrap_or(0);
    writeln!(
        out,
        "\n{:<width$}  {:<14}  {:>8} {:>8} {:>8} {:>8}  RAN IN THE SERVER BECAUSE",
        "SERVER", "DATABASE", "AWAY", "SECOND", "FLUSHES", "OTHERS"
    )?;
    for OwnerStanding { db, epoch, report, .. } in &status.owners {
        let (address, database) = (report.address.as_str(), format!("{db}/{epoch}"));
        let (away, second) = (report.away, report.second_attempts);
        let mut line = |flushes: u64, others: u64, why: &str| {
            writeln!(
                out,
                "{address:<width$}  {database:<14}  {away:>8} {second:>8} {flushes:>8} \
                 {others:>8}  {why}"
            )
        };
        for fallback in &report.fallbacks {
            line(fallback.flushes, fallback.others, fallback.why.text())?;
        }
        if report.fallbacks.is_empty() {
            line(0, 0, "-")?;
        }
    }
    let listed = status.owners.len();
    match listed < status.owners_total as usize {
        true => writeln!(out, "(the first {listed} of {} servers)", status.owners_total),
        false => Ok(()),
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
    use archipelago_offload::ids::{ExecutorId, NodeLife, OffloadDb};
    use archipelago_offload::job::LocalWhy;
    use archipelago_offload::wire::{FallbackCount, OwnerReport};

    use super::*;

    #[test]
    fn verb_of_a_queue_agrees_with_the_number_of_jobs() {
        assert_eq!(waiting("flushes", 0, 0), "flushes: 0 wait");
        let one = "other jobs: 1 waits (the oldest for 20012 ms)";
        assert_eq!(waiting("other jobs", 1, 20_012), one);
        assert_eq!(waiting("flushes", 2, 7), "flushes: 2 wait (the oldest for 7 ms)");
    }

    #[test]
    fn servers_have_a_line_for_each_reason_to_run_jobs_themselves() {
        let fallback = |why, flushes, others| FallbackCount { why, flushes, others };
        let report = OwnerReport {
            address: ShortText::new("reef (process 9)"),
            away: 12,
            second_attempts: 2,
            fallbacks: vec![fallback(LocalWhy::Failed, 3, 1), fallback(LocalWhy::Busy, 4, 0)],
        };
        let busy = OwnerStanding {
            db: OffloadDb([0xab; 16]),
            epoch: Epoch(7),
            report,
            ..OwnerStanding::default()
        };
        let owners = vec![busy, OwnerStanding::default()];
        let status = SchedulerStatus { owners, owners_total: 5, ..SchedulerStatus::default() };
        let text = text(&status).unwrap();
        let table: Vec<&str> = text.lines().skip_while(|line| !line.is_empty()).skip(1).collect();
        let columns = |line: usize| table[line].split_whitespace().collect::<Vec<_>>();
        let because = "RAN IN THE SERVER BECAUSE";
        assert!(table[0].starts_with("SERVER ") && table[0].ends_with(because), "{text}");
        let server = ["reef", "(process", "9)", "abababab/7", "12", "2"];
        assert_eq!(columns(1)[..8], [&server[..], &["3", "1"]].concat(), "{text}");
        assert!(table[1].ends_with("  all attempts have failed"), "{text}");
        assert_eq!(columns(2)[..8], [&server[..], &["4", "0"]].concat(), "{text}");
        assert_eq!(columns(3), ["00000000/0", "0", "0", "0", "0", "-"], "{text}");
        assert_eq!(table[4], "(the first 2 of 5 servers)");
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
        let (held, is_draining) = (2, true);
        let hosted = ExecutorStanding {
            executor,
            address,
            taken: 1,
            reach,
            held,
            is_draining,
            ..alone.clone()
        };
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
        assert_eq!(lines[3], "(executor cd is drained: it takes no jobs, and has 2)");
        assert_eq!(lines[4], [queues, ended].concat());
        assert!(lines[5].starts_with("Last failure, 3 s ago: attempt"), "{text}");
        assert!(lines[5].ends_with(": full"), "{text}");
    }
}
