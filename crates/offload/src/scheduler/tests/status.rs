//! What operators see: executors, queues, jobs and the reports of owners.

use super::*;

#[test]
fn status_shows_executors_and_the_age_of_the_queues() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    for (number, kind) in [(1, JobKind::Gc), (2, JobKind::Gc), (3, JobKind::Flush)] {
        prepare(&mut scheduler, LATER_NS + number * MS, number, kind);
    }
    let status = scheduler.status(LATER_NS + 10 * MS);
    let [standing] = &status.executors[..] else { panic!("{status:?}") };
    assert_eq!((standing.address.as_str(), standing.taken), ("reef:7", 1));
    assert_eq!((status.flushes_waiting, status.flushes_oldest_ms), (1, 7));
    assert_eq!((status.others_waiting, status.others_oldest_ms), (1, 8));
}

#[test]
fn list_of_jobs_shows_phase_and_executor_and_failure_of_each() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    for (number, kind) in [(1, JobKind::Compaction), (2, JobKind::Gc), (3, JobKind::Flush)] {
        prepare(&mut scheduler, LATER_NS + number * MS, number, kind);
    }
    let row = |job: &JobStanding| (job.at, job.phase, job.executor);
    let rows = |list: &JobList| list.jobs.iter().map(row).collect::<Vec<_>>();
    let list = scheduler.job_list(LATER_NS + 9 * MS);
    let waiting = [(at(2, 1), JobPhase::Queued, None), (at(3, 1), JobPhase::Queued, None)];
    assert_eq!(rows(&list), [(at(1, 1), JobPhase::Offered, Some(X)), waiting[0], waiting[1]]);
    assert_eq!((list.flushes.waiting, list.others.waiting, list.jobs_total), (1, 1, 3));
    assert_eq!((list.jobs[1].kind, list.jobs[1].queued_ms), (Some(JobKind::Gc), 7));
    accept(&mut scheduler, at(1, 1), X);
    tell_of(&mut scheduler, LATER_NS, Running { at: at(1, 1), progress_bytes: 70, waits: true });
    let list = scheduler.job_list(LATER_NS + 9 * MS);
    assert_eq!(rows(&list), [(at(1, 1), JobPhase::Running, Some(X)), waiting[0], waiting[1]]);
    let first = &list.jobs[0];
    assert_eq!((first.address.as_str(), first.input_bytes, first.waits), ("reef:7", 1, true));
    assert_eq!((first.progress_bytes, first.running_ms, first.idle_ms), (70, 9, 9));
    // The attempt fails, and the flush gets the slot.
    let abort = OffloadMessage::Abort { at: at(1, 1), by: X, reason: ShortText::new("full") };
    let failed_ns = LATER_NS + 9 * MS;
    assert_eq!(assigned(&scheduler.on_executor(failed_ns, X, abort)), [(at(3, 1), X)]);
    let output = Payload::default();
    for attempt in [at(3, 1), at(9, 1)] {
        let commit = OffloadMessage::Commit { at: attempt, by: X, output: output.clone() };
        scheduler.on_executor(failed_ns, X, commit);
    }
    // The commit frees the slot, and the job that has failed is first in its queue.
    let list = scheduler.job_list(failed_ns + 5 * MS);
    let held = |attempt, phase| (attempt, phase, Some(X));
    let expected = [
        held(at(3, 1), JobPhase::Committed),
        held(at(9, 1), JobPhase::Committed),
        held(at(1, 2), JobPhase::Offered),
        (at(2, 1), JobPhase::Queued, None),
    ];
    assert_eq!(rows(&list), expected);
    assert_eq!((list.jobs[1].kind, list.jobs[1].idle_ms), (None, 5), "of an earlier life");
    let failure = list.jobs[2].failure.as_ref().unwrap();
    assert_eq!((failure.attempt.at, failure.age_ms), (at(1, 1), 5));
    assert_eq!((list.jobs[2].queued_ms, list.jobs[2].progress_bytes), (5, 0));
    // The executor leaves, and its job goes back to the owner.
    let gone_ns = failed_ns + SchedulerTerms::default().gone_ns;
    scheduler.on_timer(gone_ns);
    let list = scheduler.job_list(gone_ns);
    let back: Vec<&JobStanding> =
        list.jobs.iter().filter(|job| job.phase == JobPhase::GivenBack).collect();
    assert_eq!(back.len(), 2, "{list:?}");
    assert!(back.iter().all(|job| job.why == Some(LocalWhy::NoExecutor)), "{back:?}");
}

#[test]
fn status_has_the_reports_of_owners_until_their_sessions_end() {
    let mut scheduler = scheduler();
    let report = OwnerReport { away: 3, ..OwnerReport::default() };
    let message = OffloadMessage::Report { owner: ME, report: report.clone() };
    scheduler.on_owner(LATER_NS, ME, message);
    let status = scheduler.status(LATER_NS + 7 * MS);
    let listed = OwnerStanding { db: DB, epoch: ME.epoch, age_ms: 7, report };
    assert_eq!((status.owners, status.owners_total), (vec![listed], 1));
    scheduler.on_timer(orphaned_ns());
    assert_eq!(scheduler.status(orphaned_ns()).owners, []);
}
