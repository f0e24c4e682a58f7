//! `archipelago cluster jobs`: the offloaded jobs that the schedulers of the managers know.
//!
//! Failure: an error says that no manager answers, and ends the command.
//! Cost: one request to each manager, or one a second with `--watch`.

use std::fmt::Write;

use archipelago_base::{Result, size};
use archipelago_offload::job::JobKind;
use archipelago_offload::wire::{JobList, JobPhase, JobStanding, OffloadMessage, RecentFailure};

use super::executors::waiting;
use super::managers::{Managers, other_version};
use super::storage::watch;
use crate::console::print;

/// Titles of the columns, and whether their values are numbers, which stand on the right.
const COLUMNS: [(&str, bool); 12] = [
    ("JOB", false),
    ("KIND", false),
    ("STATE", false),
    ("ATTEMPT", true),
    ("EXECUTOR", false),
    ("AGE", true),
    ("QUEUED", true),
    ("RUNNING", true),
    ("IDLE", true),
    ("PROGRESS", true),
    ("INPUT", true),
    ("ADDRESS", false),
];

/// A value of each column.
type Row = [String; COLUMNS.len()];

/// Shows the jobs. With `repeats` it shows them each second and does not return.
pub(super) fn show(managers: &Managers, repeats: bool) -> Result<()> {
    let mut gap = "";
    watch(|| {
        let read = |answer: OffloadMessage| match answer {
            OffloadMessage::JobsAre { jobs } => Ok(jobs),
            _ => Err(other_version("a manager's answer")),
        };
        let answers = managers.ask_each(&OffloadMessage::Jobs {})?;
        let lists: Result<Vec<_>> = answers.into_iter().map(read).collect();
        print(&format!("{gap}{}", text(&JobList::merged(lists?))))?;
        gap = "\n";
        Ok(!repeats)
    })
}

/// The jobs as text.
fn text(list: &JobList) -> String {
    if list.jobs_total == 0 {
        return "No offloaded job waits or runs\n".to_owned();
    }
    let mut out = String::new();
    // Writing to a string does not fail.
    let _infallible = write(&mut out, list);
    out
}

fn write(out: &mut String, list: &JobList) -> std::fmt::Result {
    let titles = COLUMNS.map(|(title, _)| title.to_owned());
    let rows: Vec<Row> = list.jobs.iter().map(row).collect();
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|at| {
            let cells = rows.iter().chain([&titles]).map(|row| row[at].chars().count());
            cells.max().unwrap_or(0)
        })
        .collect();
    line(out, &titles, &widths)?;
    for (job, row) in list.jobs.iter().zip(&rows) {
        line(out, row, &widths)?;
        if let Some(why) = job.why {
            writeln!(out, "  its server runs it: {}", why.text())?;
        }
        if let Some(RecentFailure { attempt, age_ms }) = &job.failure {
            writeln!(out, "  last failure, {} ago: {attempt}", time(*age_ms))?;
        }
    }
    let listed = list.jobs.len() as u64;
    if listed < list.jobs_total {
        writeln!(out, "(the first {listed} of {} jobs)", list.jobs_total)?;
    }
    writeln!(
        out,
        "{}; {}",
        waiting("Flushes", list.flushes.waiting, list.flushes.oldest_ms),
        waiting("other jobs", list.others.waiting, list.others.oldest_ms)
    )
}

/// Writes one line of the table, without spaces at its end.
fn line(out: &mut String, row: &Row, widths: &[usize]) -> std::fmt::Result {
    let cells = row.iter().zip(COLUMNS).zip(widths);
    let cells = cells.map(|((cell, (_, is_number)), width)| match is_number {
        true => format!("{cell:>width$}"),
        false => format!("{cell:<width$}"),
    });
    writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())
}

/// The values of a job; `-` for those that it does not have in its phase.
fn row(job: &JobStanding) -> Row {
    let none = || "-".to_owned();
    let is_assigned = matches!(job.phase, JobPhase::Running | JobPhase::Committed);
    let is_known = job.kind.is_some();
    let or_none = |is_shown: bool, value: String| if is_shown { value } else { none() };
    let state = match job.phase {
        JobPhase::Running if job.waits => "running, waits",
        JobPhase::Running => "running",
        JobPhase::Committed => "installing",
        JobPhase::Offered => "offered",
        JobPhase::Queued => "queued",
        JobPhase::GivenBack => "given back",
    };
    let has_idle_time = is_assigned || job.phase == JobPhase::GivenBack;
    [
        job.at.job.to_string(),
        kind(job.kind).to_owned(),
        state.to_owned(),
        or_none(job.at.attempt.0 > 0, job.at.attempt.0.saturating_add(job.earlier).to_string()),
        job.executor.map_or_else(none, |executor| format!("{:x}", executor.0)),
        time(job.age_ms),
        or_none(is_known, time(job.queued_ms)),
        or_none(is_known && is_assigned, time(job.running_ms)),
        or_none(has_idle_time, time(job.idle_ms)),
        or_none(is_known && is_assigned, size::show(job.progress_bytes)),
        or_none(job.input_bytes > 0, size::show(job.input_bytes)),
        or_none(!job.address.as_str().is_empty(), job.address.to_string()),
    ]
}

/// The kind in one word. An earlier life of the scheduler gave out a job of an unknown kind.
fn kind(kind: Option<JobKind>) -> &'static str {
    match kind {
        Some(JobKind::Flush) => "flush",
        Some(JobKind::Compaction) => "compaction",
        Some(JobKind::Gc) => "gc",
        None => "unknown",
    }
}

/// A time in milliseconds, and from ten seconds on in seconds.
fn time(ms: u64) -> String {
    if ms < 10_000 { format!("{ms} ms") } else { format!("{} s", ms / 1000) }
}

#[cfg(test)]
mod tests {
    use archipelago_base::Epoch;
    use archipelago_offload::failure::{FailedAttempt, ShortText};
    use archipelago_offload::ids::{Attempt, AttemptId, ExecutorId, JobId, OffloadDb};
    use archipelago_offload::job::LocalWhy;
    use archipelago_offload::wire::QueueStanding;

    use super::*;

    fn at(number: u64, attempt: u32) -> AttemptId {
        let job = JobId { db: OffloadDb([0xab; 16]), epoch: Epoch(7), number };
        AttemptId { job, attempt: Attempt(attempt) }
    }

    fn runs() -> JobStanding {
        JobStanding {
            at: at(12, 2),
            kind: Some(JobKind::Compaction),
            phase: JobPhase::Running,
            input_bytes: 64 << 20,
            executor: Some(ExecutorId(0xcd)),
            address: ShortText::new("reef (process 7)"),
            age_ms: 61_500,
            queued_ms: 40,
            running_ms: 9_999,
            idle_ms: 250,
            progress_bytes: 3 << 20,
            ..JobStanding::default()
        }
    }

    fn list(jobs: Vec<JobStanding>) -> JobList {
        JobList { jobs_total: jobs.len() as u64, jobs, ..JobList::default() }
    }

    /// The columns of a line, which two spaces separate at least.
    fn columns(line: &str) -> Vec<&str> {
        line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect()
    }

    #[test]
    fn an_empty_list_is_a_sentence() {
        assert_eq!(text(&JobList::default()), "No offloaded job waits or runs\n");
    }

    #[test]
    fn a_running_job_has_executor_times_and_bytes() {
        let text = text(&list(vec![runs()]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(columns(lines[0]), COLUMNS.map(|(title, _)| title), "{text}");
        let expected = ["abababab/7/12", "compaction", "running", "2", "cd", "61 s", "40 ms"];
        let rest = ["9999 ms", "250 ms", "3 MiB", "64 MiB", "reef (process 7)"];
        assert_eq!(columns(lines[1]), [&expected[..], &rest].concat(), "{text}");
        assert_eq!(lines[2], "Flushes: 0 wait; other jobs: 0 wait");
        // Numbers end where their title ends.
        let end = |line: &str, part: &str| line.find(part).map(|at| at + part.len());
        assert_eq!(end(lines[0], "  QUEUED"), end(lines[1], "  40 ms"), "{text}");
    }

    #[test]
    fn states_and_missing_values_are_told_apart() {
        let of = |phase| row(&JobStanding { phase, ..runs() });
        assert_eq!(row(&JobStanding { waits: true, ..runs() })[2], "running, waits");
        assert_eq!((&of(JobPhase::Committed)[2][..], &of(JobPhase::Offered)[2][..]), {
            ("installing", "offered")
        });
        let queued = JobStanding {
            at: at(13, 1),
            phase: JobPhase::Queued,
            executor: None,
            address: ShortText::default(),
            ..runs()
        };
        let row = row(&queued);
        assert_eq!((&row[2][..], &row[6][..]), ("queued", "40 ms"));
        for at in [4, 7, 8, 9, 11] {
            assert_eq!(row[at], "-", "{}", COLUMNS[at].0);
        }
        let earlier = JobStanding { kind: None, phase: JobPhase::Committed, ..runs() };
        assert_eq!(super::row(&earlier)[1], "unknown");
        assert_eq!((&super::row(&earlier)[6][..], &super::row(&earlier)[8][..]), ("-", "250 ms"));
    }

    #[test]
    fn reasons_stand_below_their_job_and_cut_lists_say_so() {
        let reason = ShortText::new("full");
        let attempt = FailedAttempt { at: at(12, 1), reason, ..FailedAttempt::default() };
        let back = JobStanding {
            phase: JobPhase::GivenBack,
            why: Some(LocalWhy::Failed),
            failure: Some(RecentFailure { attempt, age_ms: 12_000 }),
            ..runs()
        };
        let flushes = QueueStanding { waiting: 7, oldest_ms: 80 };
        let text = text(&JobList { jobs_total: 5_000, flushes, ..list(vec![back]) });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("  given back  "), "{text}");
        assert_eq!(lines[2], "  its server runs it: all attempts have failed");
        assert!(
            lines[3].starts_with("  last failure, 12 s ago: attempt abababab/7/12#1"),
            "{text}"
        );
        assert!(lines[3].ends_with(": full"), "{text}");
        assert_eq!(lines[4], "(the first 1 of 5000 jobs)");
        assert_eq!(lines[5], "Flushes: 7 wait (the oldest for 80 ms); other jobs: 0 wait");
    }
}
