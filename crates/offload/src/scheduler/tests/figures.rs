//! The figures of a scheduler for metrics.

use super::*;

/// Figures of the jobs of a kind: those that wait, the longest wait, those that executors have, and
/// those whose outputs wait.
fn jobs(scheduler: &Scheduler, now_ns: u64, kind: JobKind) -> [u64; 4] {
    let figures = scheduler.figures(now_ns);
    let of_kind = figures.jobs.into_iter().find(|jobs| jobs.kind == kind).unwrap();
    [of_kind.waiting, of_kind.waited_ms_max, of_kind.running, of_kind.committed]
}

#[test]
fn figures_have_the_jobs_of_each_kind_and_the_longest_wait() {
    let mut scheduler = scheduler();
    assert_eq!(jobs(&scheduler, LATER_NS, JobKind::Gc), [0; 4]);
    beat(&mut scheduler, LATER_NS, X);
    let kinds = [JobKind::Compaction, JobKind::Gc, JobKind::Gc, JobKind::Flush];
    for (number, kind) in (1..).zip(kinds) {
        prepare(&mut scheduler, LATER_NS + number * MS, number, kind);
    }
    let now_ns = LATER_NS + 10 * MS;
    // The only slot has the job that arrived first.
    assert_eq!(jobs(&scheduler, now_ns, JobKind::Compaction), [0, 0, 1, 0]);
    assert_eq!(jobs(&scheduler, now_ns, JobKind::Gc), [2, 8, 0, 0]);
    assert_eq!(jobs(&scheduler, now_ns, JobKind::Flush), [1, 6, 0, 0]);
    let figures = scheduler.figures(now_ns);
    assert_eq!((figures.executors, figures.slots), (1, 1));
    assert_eq!((figures.counters.arrived, figures.counters.assigned), (4, 1));
    // The commit frees the slot for the flush.
    accept(&mut scheduler, at(1, 1), X);
    let commit = OffloadMessage::Commit { at: at(1, 1), by: X, output: Payload::default() };
    scheduler.on_executor(now_ns, X, commit);
    assert_eq!(jobs(&scheduler, now_ns, JobKind::Compaction), [0, 0, 0, 1]);
    assert_eq!(jobs(&scheduler, now_ns, JobKind::Flush), [0, 0, 1, 0]);
    assert_eq!(jobs(&scheduler, now_ns, JobKind::Gc), [2, 8, 0, 0]);
    // An executor without an order to take more jobs offers no slots.
    scheduler.drain(now_ns, X, true);
    let figures = scheduler.figures(now_ns);
    assert_eq!((figures.executors, figures.slots), (1, 0));
}

#[test]
fn time_of_a_failed_attempt_is_no_wait() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    accept(&mut scheduler, at(1, 1), X);
    // The executor ends, and the only other one runs a job.
    let gone_ns = LATER_NS + SchedulerTerms::default().gone_ns;
    beat(&mut scheduler, gone_ns - 2 * MS, Y);
    prepare(&mut scheduler, gone_ns - MS, 2, JobKind::Compaction);
    assert_eq!(assigned(&scheduler.on_timer(gone_ns)), []);
    let now_ns = gone_ns + 3 * MS;
    assert_eq!(jobs(&scheduler, now_ns, JobKind::Compaction), [1, 3, 1, 0]);
    assert_eq!(scheduler.figures(now_ns).counters.failed, 1);
    let age_ms = (now_ns - LATER_NS) / MS;
    assert_eq!(scheduler.job_list(now_ns).others.oldest_ms, age_ms, "the list has its age");
}
