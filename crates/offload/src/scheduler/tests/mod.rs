//! A scheduler with single messages.

mod declines;
mod figures;

use archipelago_base::Epoch;
use archipelago_fabric::NodeId;

use super::*;
use crate::decide::{InputReach, Load};
use crate::ids::{Attempt, NodeLife, NumberRange, SchedulerId, Token};
use crate::job::{InputPlace, JobKind, JobOrder, PreparedAttempt};

const LIFE: SchedulerLife = SchedulerLife { scheduler: SchedulerId(1), term: 5 };
/// The session of the first owner of a scheduler.
const SESSION: OwnerSession = OwnerSession { life: LIFE, number: 1 };
const DB: OffloadDb = OffloadDb([3; 16]);
const ME: OwnerStamp = OwnerStamp { db: DB, epoch: Epoch(7), token: Token([0; 16]) };
const X: ExecutorId = ExecutorId(10);
const Y: ExecutorId = ExecutorId(11);
/// A time at which a scheduler does not wait for executors any more.
const LATER_NS: u64 = 10_000 * MS;

fn job(number: u64) -> JobId {
    JobId { db: DB, epoch: Epoch(7), number }
}

fn at(number: u64, attempt: u32) -> AttemptId {
    AttemptId { job: job(number), attempt: Attempt(attempt) }
}

fn scheduler() -> Scheduler {
    Scheduler::new(0, LIFE, SchedulerTerms::default())
}

fn beat(scheduler: &mut Scheduler, now_ns: u64, executor: ExecutorId) -> Vec<Sent> {
    scheduler.on_executor(now_ns, executor, beat_of(executor, Vec::new()))
}

/// A beat of an executor with one slot.
fn beat_of(executor: ExecutorId, running: Vec<Running>) -> OffloadMessage {
    OffloadMessage::Beat {
        executor,
        names: vec!["add".to_owned()],
        address: ShortText::new("reef:7"),
        slots: 1,
        load: Load::default(),
        reach: InputReach::default(),
        running,
        is_draining: false,
    }
}

fn prepare_for(
    number: u64,
    kind: JobKind,
    needs: &[&str],
    session: OwnerSession,
) -> OffloadMessage {
    let needs = needs.iter().map(|name| (*name).to_owned()).collect();
    let order = JobOrder { id: job(number), kind, bytes: 1, needs, ..JobOrder::default() };
    let attempts = (1..=3).map(|attempt| PreparedAttempt {
        attempt: Attempt(attempt),
        numbers: NumberRange { first: 100 * number + u64::from(attempt), count: 1 },
    });
    OffloadMessage::Prepare {
        order,
        session,
        attempts: attempts.collect(),
        oldest: 1,
        spec: Some(Payload::default()),
    }
}

fn prepare(scheduler: &mut Scheduler, now_ns: u64, number: u64, kind: JobKind) -> Vec<Sent> {
    scheduler.on_owner(now_ns, ME, prepare_for(number, kind, &[], SESSION))
}

/// The attempts that were assigned, and their executors.
fn assigned(sent: &[Sent]) -> Vec<(AttemptId, ExecutorId)> {
    let of = |sent: &Sent| match (&sent.message, sent.to) {
        (OffloadMessage::Assign { at, .. }, Party::Executor(to)) => Some((*at, to)),
        _ => None,
    };
    sent.iter().filter_map(of).collect()
}

fn has(sent: &[Sent], to: Party, message: &OffloadMessage) -> bool {
    sent.iter().any(|sent| sent.to == to && sent.message == *message)
}

fn accept(scheduler: &mut Scheduler, at: AttemptId, by: ExecutorId) -> Vec<Sent> {
    scheduler.on_executor(LATER_NS, by, OffloadMessage::Accept { at, by })
}

#[test]
fn a_job_goes_from_its_owner_to_an_executor_and_its_output_back() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    let sent = prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    let queued = OffloadMessage::Queued { job: job(1), session: SESSION, slots: 1 };
    assert!(has(&sent, Party::Owner(DB), &queued));
    assert_eq!(assigned(&sent), [(at(1, 1), X)]);
    let sent = accept(&mut scheduler, at(1, 1), X);
    let numbers = NumberRange { first: 101, count: 1 };
    let spec = Payload::default();
    let package = OffloadMessage::Package { at: at(1, 1), life: LIFE, numbers, spec };
    assert!(has(&sent, Party::Executor(X), &package));
    let output = Payload::from(vec![5]);
    let commit = OffloadMessage::Commit { at: at(1, 1), by: X, output: output.clone() };
    let sent = scheduler.on_executor(LATER_NS, X, commit);
    assert!(has(&sent, Party::Owner(DB), &OffloadMessage::Done { at: at(1, 1), output }));
    let decided = OffloadMessage::Decided { at: at(1, 1), verdict: Verdict::Installed };
    let sent = scheduler.on_owner(LATER_NS, ME, decided.clone());
    assert!(has(&sent, Party::Executor(X), &decided));
    assert!(scheduler.is_idle());
    // PREPARE comes again, late. The job does not run again.
    assert_eq!(assigned(&prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction)), []);
    assert!(scheduler.is_idle());
    let counters = scheduler.counters();
    assert_eq!((counters.arrived, counters.assigned, counters.installed), (1, 1, 1));
}

#[test]
fn flushes_go_before_other_jobs_and_each_queue_keeps_its_order() {
    let mut scheduler = scheduler();
    for (number, kind) in [(1, JobKind::Compaction), (2, JobKind::Gc), (3, JobKind::Flush)] {
        assert_eq!(assigned(&prepare(&mut scheduler, 0, number, kind)), []);
    }
    assert_eq!(assigned(&beat(&mut scheduler, 0, X)), [(at(3, 1), X)]);
    let cancel = OffloadMessage::CancelJob { job: job(3) };
    assert_eq!(assigned(&scheduler.on_owner(0, ME, cancel)), [(at(1, 1), X)]);
    assert_eq!(scheduler.take_started(), [job(3), job(1)]);
}

#[test]
fn attempts_of_another_life_are_not_given_out() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, 0, X);
    let earlier = OwnerSession { life: SchedulerLife { term: 4, ..LIFE }, ..SESSION };
    let message = prepare_for(1, JobKind::Flush, &[], earlier);
    let sent = scheduler.on_owner(0, ME, message);
    assert!(has(&sent, Party::Owner(DB), &OffloadMessage::Lives { session: SESSION, slots: 1 }));
    assert_eq!(assigned(&sent), []);
    assert!(scheduler.is_idle());
}

#[test]
fn job_is_known_only_with_its_package() {
    let mut scheduler = scheduler();
    let mut message = prepare_for(1, JobKind::Compaction, &[], SESSION);
    let whole = message.clone();
    let OffloadMessage::Prepare { spec, .. } = &mut message else { panic!("{message:?}") };
    *spec = None;
    let queued = OffloadMessage::Queued { job: job(1), session: SESSION, slots: 0 };
    let sent = scheduler.on_owner(0, ME, message.clone());
    assert!(!has(&sent, Party::Owner(DB), &queued) && scheduler.is_idle(), "{sent:?}");
    for known in [whole, message] {
        let sent = scheduler.on_owner(0, ME, known);
        assert!(has(&sent, Party::Owner(DB), &queued), "{sent:?}");
    }
}

#[test]
fn outputs_are_repeated_ever_more_seldom() {
    let mut scheduler = scheduler();
    let owner = OffloadMessage::Greet { owner: ME, needs: Vec::new() };
    scheduler.on_owner(0, ME, owner.clone());
    commit(&mut scheduler, 0, at(1, 1), X);
    let done = OffloadMessage::Done { at: at(1, 1), output: Payload::default() };
    let mut sent = Vec::new();
    for turn in 1..=40 {
        let now_ns = turn * SchedulerTerms::default().answer_ns;
        scheduler.on_owner(now_ns, ME, owner.clone());
        if has(&scheduler.on_timer(now_ns), Party::Owner(DB), &done) {
            sent.push(turn);
        }
    }
    assert_eq!(sent, [1, 2, 4, 8, 16, 24, 32, 40]);
    // Another owner of the database gets them immediately.
    let newer = OwnerStamp { epoch: Epoch(8), ..ME };
    let now_ns = 41 * SchedulerTerms::default().answer_ns;
    scheduler.on_owner(now_ns, newer, OffloadMessage::Greet { owner: newer, needs: Vec::new() });
    assert!(has(&scheduler.on_timer(now_ns), Party::Owner(DB), &done));
}

/// A time at which the owner was silent for too long, if its last message came at `LATER_NS`.
fn orphaned_ns() -> u64 {
    LATER_NS + SchedulerTerms::default().orphan_ns
}

/// A scheduler whose owner has a running job, a committed one and one that was offered.
fn with_three_jobs() -> Scheduler {
    let mut scheduler = scheduler();
    for executor in [X, Y] {
        beat(&mut scheduler, LATER_NS, executor);
    }
    for number in 1..=3 {
        prepare(&mut scheduler, LATER_NS, number, JobKind::Compaction);
    }
    accept(&mut scheduler, at(1, 1), X);
    accept(&mut scheduler, at(2, 1), Y);
    commit(&mut scheduler, LATER_NS, at(2, 1), Y);
    scheduler
}

fn commit(scheduler: &mut Scheduler, now_ns: u64, at: AttemptId, by: ExecutorId) -> Vec<Sent> {
    let output = Payload::default();
    scheduler.on_executor(now_ns, by, OffloadMessage::Commit { at, by, output })
}

#[test]
fn jobs_of_an_owner_that_never_returns_are_dropped() {
    let mut scheduler = with_three_jobs();
    let forgotten = |at| OffloadMessage::Decided { at, verdict: Verdict::Forget };
    let cancel = |at| OffloadMessage::Cancel { at, life: LIFE };
    for executor in [X, Y] {
        beat(&mut scheduler, orphaned_ns() - 1, executor);
    }
    let sent = scheduler.on_timer(orphaned_ns() - 1);
    assert!(!has(&sent, Party::Executor(Y), &forgotten(at(2, 1))), "the owner may return");
    assert_eq!(scheduler.owner_of(DB), Some(ME));
    let sent = scheduler.on_timer(orphaned_ns());
    assert!(has(&sent, Party::Executor(Y), &forgotten(at(2, 1))), "{sent:?}");
    assert_eq!(assigned(&sent), []);
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.owner_of(DB), None);
    // The executor of the first job has missed CANCEL. It commits nevertheless.
    let now = Running { at: at(1, 1), ..Running::default() };
    let sent = scheduler.on_executor(orphaned_ns(), X, beat_of(X, vec![now]));
    assert!(has(&sent, Party::Executor(X), &cancel(at(1, 1))), "{sent:?}");
    let sent = commit(&mut scheduler, orphaned_ns(), at(1, 1), X);
    assert!(has(&sent, Party::Executor(X), &forgotten(at(1, 1))), "{sent:?}");
    assert!(scheduler.is_idle());
}

#[test]
fn owner_that_greets_keeps_its_jobs() {
    let mut scheduler = with_three_jobs();
    let greet = OffloadMessage::Greet { owner: ME, needs: Vec::new() };
    scheduler.on_owner(orphaned_ns() - 1, ME, greet);
    scheduler.on_timer(orphaned_ns());
    assert_eq!(scheduler.owner_of(DB), Some(ME));
    assert_eq!(scheduler.job_list(orphaned_ns()).jobs_total, 3);
}

#[test]
fn owner_that_returns_late_prepares_its_jobs_again() {
    let mut scheduler = with_three_jobs();
    scheduler.on_timer(orphaned_ns());
    let now_ns = orphaned_ns() + MS;
    beat(&mut scheduler, now_ns, Y);
    // Attempts of the first session may be with an executor, so they are not given out again.
    let next = OwnerSession { number: 2, ..SESSION };
    for _ in 0..2 {
        let sent = prepare(&mut scheduler, now_ns, 1, JobKind::Compaction);
        assert!(has(&sent, Party::Owner(DB), &OffloadMessage::Lives { session: next, slots: 1 }));
        assert_eq!(assigned(&sent), []);
    }
    let mut message = prepare_for(1, JobKind::Compaction, &[], next);
    let OffloadMessage::Prepare { attempts, .. } = &mut message else { panic!("{message:?}") };
    attempts.iter_mut().for_each(|one| one.attempt.0 += 3);
    let sent = scheduler.on_owner(now_ns, ME, message);
    assert_eq!(assigned(&sent), [(at(1, 4), Y)]);
    // The owner decides about outputs that arrive now.
    let sent = commit(&mut scheduler, now_ns, at(2, 1), Y);
    let done = OffloadMessage::Done { at: at(2, 1), output: Payload::default() };
    assert!(has(&sent, Party::Owner(DB), &done), "{sent:?}");
}

#[test]
fn outputs_for_an_owner_that_a_new_life_never_hears_are_forgotten() {
    let mut scheduler = scheduler();
    let sent = commit(&mut scheduler, 0, at(1, 1), X);
    let done = OffloadMessage::Done { at: at(1, 1), output: Payload::default() };
    assert!(has(&sent, Party::Owner(DB), &done), "{sent:?}");
    let forgotten = OffloadMessage::Decided { at: at(1, 1), verdict: Verdict::Forget };
    let orphan_ns = SchedulerTerms::default().orphan_ns;
    let sent = scheduler.on_timer(orphan_ns - 1);
    assert!(!has(&sent, Party::Executor(X), &forgotten), "the owner may not know the life yet");
    assert!(!is_ended_by_beat(&mut scheduler, orphan_ns - 1, at(2, 1), Y));
    let sent = scheduler.on_timer(orphan_ns);
    assert!(has(&sent, Party::Executor(X), &forgotten), "{sent:?}");
    assert!(scheduler.is_idle());
    assert!(is_ended_by_beat(&mut scheduler, orphan_ns, at(2, 1), Y));
}

#[test]
fn outputs_of_a_newer_owner_are_forgotten_while_an_older_one_lives() {
    let mut scheduler = scheduler();
    let of_newer = |number| {
        let job = JobId { epoch: Epoch(8), ..job(number) };
        AttemptId { job, attempt: Attempt(1) }
    };
    let greet = || OffloadMessage::Greet { owner: ME, needs: Vec::new() };
    let forgotten = |at| OffloadMessage::Decided { at, verdict: Verdict::Forget };
    // The session of the older owner begins late. Until its end the newer owner may still greet.
    scheduler.on_owner(LATER_NS, ME, greet());
    commit(&mut scheduler, LATER_NS, of_newer(1), X);
    commit(&mut scheduler, LATER_NS, at(1, 1), Y);
    scheduler.on_owner(orphaned_ns() - 1, ME, greet());
    let sent = scheduler.on_timer(orphaned_ns() - 1);
    assert!(!has(&sent, Party::Executor(X), &forgotten(of_newer(1))), "{sent:?}");
    assert!(!is_ended_by_beat(&mut scheduler, orphaned_ns() - 1, of_newer(2), X));
    let sent = scheduler.on_timer(orphaned_ns());
    assert!(has(&sent, Party::Executor(X), &forgotten(of_newer(1))), "{sent:?}");
    assert!(!has(&sent, Party::Executor(Y), &forgotten(at(1, 1))), "its owner lives");
    assert_eq!(scheduler.owner_of(DB), Some(ME));
    let sent = commit(&mut scheduler, orphaned_ns(), of_newer(2), X);
    assert!(has(&sent, Party::Executor(X), &forgotten(of_newer(2))), "{sent:?}");
    assert!(is_ended_by_beat(&mut scheduler, orphaned_ns(), of_newer(2), X));
    assert!(!is_ended_by_beat(&mut scheduler, orphaned_ns(), at(2, 1), Y));
}

#[test]
fn an_executor_that_is_silent_loses_its_attempt_to_another() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    prepare(&mut scheduler, LATER_NS, 1, JobKind::Flush);
    accept(&mut scheduler, at(1, 1), X);
    let gone_ns = LATER_NS + SchedulerTerms::default().gone_ns;
    beat(&mut scheduler, gone_ns, Y);
    let sent = scheduler.on_timer(gone_ns);
    assert_eq!(assigned(&sent), [(at(1, 2), Y)]);
    // The first executor accepts too late, or wakes up and commits.
    let sent = accept(&mut scheduler, at(1, 1), X);
    let cancel = OffloadMessage::Cancel { at: at(1, 1), life: LIFE };
    assert!(has(&sent, Party::Executor(X), &cancel));
    let output = Payload::default();
    let commit = OffloadMessage::Commit { at: at(1, 1), by: X, output: output.clone() };
    let sent = scheduler.on_executor(gone_ns, X, commit);
    let forwarded = OffloadMessage::Done { at: at(1, 1), output };
    assert!(has(&sent, Party::Owner(DB), &forwarded), "the owner decides");
}

/// Whether the answer to a beat of an executor that runs an attempt ends this attempt.
fn is_ended_by_beat(scheduler: &mut Scheduler, now_ns: u64, at: AttemptId, by: ExecutorId) -> bool {
    let now = Running { at, ..Running::default() };
    let sent = scheduler.on_executor(now_ns, by, beat_of(by, vec![now]));
    has(&sent, Party::Executor(by), &OffloadMessage::Cancel { at, life: LIFE })
}

#[test]
fn beat_of_an_executor_that_lost_its_attempt_is_answered_with_cancel() {
    let mut scheduler = scheduler();
    let ended = |scheduler: &mut Scheduler, now_ns, attempt, by| {
        is_ended_by_beat(scheduler, now_ns, at(1, attempt), by)
    };
    beat(&mut scheduler, LATER_NS, X);
    prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    accept(&mut scheduler, at(1, 1), X);
    assert!(!ended(&mut scheduler, LATER_NS, 1, X), "it has the job");
    // Without another executor the job goes back to its owner.
    let gone_ns = LATER_NS + SchedulerTerms::default().gone_ns;
    scheduler.on_timer(gone_ns);
    assert!(ended(&mut scheduler, gone_ns, 1, X), "nobody has the job");
    // Another executor gets the second attempt of another job.
    let of_two = |scheduler: &mut Scheduler, attempt, by| {
        is_ended_by_beat(scheduler, gone_ns, at(2, attempt), by)
    };
    let sent = prepare(&mut scheduler, gone_ns, 2, JobKind::Compaction);
    assert_eq!(assigned(&sent), [(at(2, 1), X)]);
    scheduler.on_executor(gone_ns, X, OffloadMessage::Accept { at: at(2, 1), by: X });
    beat(&mut scheduler, gone_ns, Y);
    let reason = ShortText::new("full");
    let abort = OffloadMessage::Abort { at: at(2, 1), by: X, reason };
    assert_eq!(assigned(&scheduler.on_executor(gone_ns, X, abort)), [(at(2, 2), Y)]);
    assert!(of_two(&mut scheduler, 1, X) && !of_two(&mut scheduler, 2, Y));
    assert!(of_two(&mut scheduler, 2, X), "it is with another executor");
    // The executor has committed. A beat from before that is late.
    let output = Payload::default();
    let commit = OffloadMessage::Commit { at: at(2, 2), by: Y, output };
    scheduler.on_executor(gone_ns, Y, commit);
    assert!(!of_two(&mut scheduler, 2, Y), "the owner decides");
}

#[test]
fn beat_that_names_an_attempt_of_an_ended_job_is_answered_with_cancel() {
    let mut scheduler = scheduler();
    let ended =
        |scheduler: &mut Scheduler, number| is_ended_by_beat(scheduler, LATER_NS, at(number, 1), X);
    beat(&mut scheduler, LATER_NS, X);
    prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    accept(&mut scheduler, at(1, 1), X);
    assert!(!ended(&mut scheduler, 9), "an earlier life may have given it out");
    // The second job is one of an earlier life.
    for number in [1, 2] {
        assert!(!ended(&mut scheduler, number), "job {number}");
        scheduler.on_owner(LATER_NS, ME, OffloadMessage::CancelJob { job: job(number) });
        assert!(ended(&mut scheduler, number), "job {number}, whose first CANCEL was lost");
    }
    // The owner has ended all jobs before the fifth.
    let mut message = prepare_for(5, JobKind::Compaction, &[], SESSION);
    let OffloadMessage::Prepare { oldest, .. } = &mut message else { panic!("{message:?}") };
    *oldest = 5;
    scheduler.on_owner(LATER_NS, ME, message);
    for number in 1..5 {
        assert!(ended(&mut scheduler, number), "job {number}");
    }
    assert!(!ended(&mut scheduler, 5) && !ended(&mut scheduler, 9));
    let newer = OwnerStamp { epoch: Epoch(8), ..ME };
    scheduler.on_owner(LATER_NS, newer, OffloadMessage::Greet { owner: newer, needs: Vec::new() });
    for number in [1, 5, 9] {
        assert!(ended(&mut scheduler, number), "job {number} of an earlier owner");
    }
}

#[test]
fn attempt_of_an_earlier_life_goes_on_until_another_one_has_the_job() {
    let mut scheduler = scheduler();
    let mut message = prepare_for(1, JobKind::Compaction, &[], SESSION);
    let OffloadMessage::Prepare { attempts, .. } = &mut message else { panic!("{message:?}") };
    attempts.remove(0);
    scheduler.on_owner(0, ME, message);
    let ended = |scheduler: &mut Scheduler| is_ended_by_beat(scheduler, 0, at(1, 1), Y);
    let mut full = beat_of(Y, vec![Running { at: at(1, 1), ..Running::default() }]);
    let OffloadMessage::Beat { slots, .. } = &mut full else { panic!("{full:?}") };
    *slots = 0;
    let sent = scheduler.on_executor(0, Y, full);
    let cancel = OffloadMessage::Cancel { at: at(1, 1), life: LIFE };
    assert!(!has(&sent, Party::Executor(Y), &cancel), "the job waits");
    assert_eq!(assigned(&beat(&mut scheduler, 0, X)), [(at(1, 2), X)]);
    assert!(!ended(&mut scheduler), "{X:?} may decline the offer");
    scheduler.on_executor(0, X, OffloadMessage::Accept { at: at(1, 2), by: X });
    assert!(ended(&mut scheduler), "{X:?} has the job");
}

#[test]
fn a_job_without_progress_is_cancelled_and_one_with_progress_is_not() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, 0, X);
    prepare(&mut scheduler, 0, 1, JobKind::Flush);
    scheduler.on_executor(0, X, OffloadMessage::Accept { at: at(1, 1), by: X });
    let step_ns = 400 * MS;
    let tell = |scheduler: &mut Scheduler, now_ns, progress_bytes| {
        tell_of(scheduler, now_ns, Running { at: at(1, 1), progress_bytes, waits: false })
    };
    let cancel = OffloadMessage::Cancel { at: at(1, 1), life: LIFE };
    for turn in 1..30 {
        let sent = tell(&mut scheduler, turn * step_ns, turn);
        assert!(!has(&sent, Party::Executor(X), &cancel), "it moves");
    }
    let mut is_cancelled = false;
    for turn in 30..60 {
        let sent = tell(&mut scheduler, turn * step_ns, 29);
        is_cancelled |= has(&sent, Party::Executor(X), &cancel);
    }
    assert!(is_cancelled);
}

/// A beat of the executor that runs an attempt, and the timer.
fn tell_of(scheduler: &mut Scheduler, now_ns: u64, now: Running) -> Vec<Sent> {
    scheduler.on_executor(now_ns, X, beat_of(X, vec![now]));
    scheduler.on_timer(now_ns)
}

#[test]
fn a_job_that_waits_for_something_bounded_lives_for_a_bounded_time() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, 0, X);
    prepare(&mut scheduler, 0, 1, JobKind::Flush);
    scheduler.on_executor(0, X, OffloadMessage::Accept { at: at(1, 1), by: X });
    let cancel = OffloadMessage::Cancel { at: at(1, 1), life: LIFE };
    let (step_ns, wait_ns) = (400 * MS, SchedulerTerms::default().wait_ns);
    let mut now_ns = 0;
    let mut tell = |progress_bytes, waits| {
        now_ns += step_ns;
        // The owner lives.
        let greet = OffloadMessage::Greet { owner: ME, needs: Vec::new() };
        scheduler.on_owner(now_ns, ME, greet);
        let now = Running { at: at(1, 1), progress_bytes, waits };
        has(&tell_of(&mut scheduler, now_ns, now), Party::Executor(X), &cancel)
    };
    // Each wait may take a minute. A wait without bytes in between is the same one.
    for round in 1..=2 {
        for turn in 1..wait_ns / step_ns {
            assert!(!tell(round, turn % 3 > 0), "round {round}, turn {turn}");
        }
    }
    let progress_ns = SchedulerTerms::default().progress_ns;
    assert!((0..=progress_ns / step_ns + 1).any(|_| tell(2, true)), "it waits for ever");
}

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
fn jobs_that_nobody_can_run_go_back() {
    let mut scheduler = scheduler();
    prepare(&mut scheduler, 0, 1, JobKind::Flush);
    let back = |sent: &[Sent], number, why| {
        let message =
            OffloadMessage::GiveBack { job: job(number), why, is_untouched: true, failure: None };
        has(sent, Party::Owner(DB), &message)
    };
    let sent = scheduler.on_timer(1);
    assert!(!back(&sent, 1, LocalWhy::NoExecutor), "executors may come after the start");
    let sent = scheduler.on_timer(LATER_NS);
    assert!(back(&sent, 1, LocalWhy::NoExecutor));
    beat(&mut scheduler, LATER_NS, X);
    let message = prepare_for(2, JobKind::Flush, &["max"], SESSION);
    let sent = scheduler.on_owner(LATER_NS, ME, message);
    assert!(back(&sent, 2, LocalWhy::Unknown));
    // The scheduler repeats the message until the owner cancels the job.
    let sent = scheduler.on_timer(LATER_NS + SchedulerTerms::default().answer_ns);
    assert!(back(&sent, 2, LocalWhy::Unknown));
    for number in [1, 2] {
        scheduler.on_owner(LATER_NS, ME, OffloadMessage::CancelJob { job: job(number) });
    }
    assert!(scheduler.is_idle());
}

#[test]
fn no_job_waits_for_an_executor_that_leaves() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    accept(&mut scheduler, at(1, 1), X);
    prepare(&mut scheduler, LATER_NS, 2, JobKind::Compaction);
    let mut leaving = beat_of(X, vec![Running { at: at(1, 1), ..Running::default() }]);
    let OffloadMessage::Beat { slots, .. } = &mut leaving else { panic!("{leaving:?}") };
    *slots = 0;
    scheduler.on_executor(LATER_NS, X, leaving);
    let sent = scheduler.on_timer(LATER_NS);
    let back = |number| OffloadMessage::GiveBack {
        job: job(number),
        why: LocalWhy::NoExecutor,
        is_untouched: true,
        failure: None,
    };
    assert!(has(&sent, Party::Owner(DB), &back(2)), "{sent:?}");
    // The job that it has goes on.
    let sent = commit(&mut scheduler, LATER_NS, at(1, 1), X);
    let done = OffloadMessage::Done { at: at(1, 1), output: Payload::default() };
    assert!(has(&sent, Party::Owner(DB), &done), "{sent:?}");
}

#[test]
fn drained_executor_gets_no_job_and_keeps_those_that_it_has() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    accept(&mut scheduler, at(1, 1), X);
    let order = OffloadMessage::Drain { executor: X, is_draining: true };
    assert!(has(&scheduler.drain(LATER_NS, X, true), Party::Executor(X), &order));
    assert_eq!(scheduler.drain(LATER_NS, Y, true), [], "an unknown executor");
    // The order is repeated until a beat agrees.
    assert!(has(&beat(&mut scheduler, LATER_NS, X), Party::Executor(X), &order));
    let confirmed = |is_draining: bool, running: &[Running]| {
        let mut agreed = beat_of(X, running.to_vec());
        let OffloadMessage::Beat { is_draining: told, .. } = &mut agreed else { panic!() };
        *told = is_draining;
        agreed
    };
    let running = [Running { at: at(1, 1), ..Running::default() }];
    let sent = scheduler.on_executor(LATER_NS, X, confirmed(true, &running));
    assert!(!has(&sent, Party::Executor(X), &order), "{sent:?}");
    let standing = |scheduler: &Scheduler| {
        let executor = scheduler.status(LATER_NS).executors.remove(0);
        (executor.is_draining, executor.held)
    };
    assert_eq!(standing(&scheduler), (true, 1));
    beat(&mut scheduler, LATER_NS, Y);
    prepare(&mut scheduler, LATER_NS, 2, JobKind::Compaction);
    let phase = |scheduler: &Scheduler, number: u64| {
        let jobs = scheduler.job_list(LATER_NS).jobs;
        let job = jobs.into_iter().find(|job| job.at.job.number == number).expect("a job");
        (job.phase, job.executor)
    };
    assert_eq!(phase(&scheduler, 2), (JobPhase::Offered, Some(Y)));
    // The outputs count until their owner has decided.
    commit(&mut scheduler, LATER_NS, at(1, 1), X);
    scheduler.on_executor(LATER_NS, X, confirmed(true, &[]));
    assert_eq!(standing(&scheduler), (true, 1));
    let decided = OffloadMessage::Decided { at: at(1, 1), verdict: Verdict::Installed };
    scheduler.on_owner(LATER_NS, ME, decided);
    assert_eq!(standing(&scheduler), (true, 0));
    // A cancelled drain has an effect immediately.
    prepare(&mut scheduler, LATER_NS, 3, JobKind::Compaction);
    assert_eq!(phase(&scheduler, 3), (JobPhase::Queued, None));
    let sent = scheduler.drain(LATER_NS, X, false);
    assert_eq!(assigned(&sent), [(at(3, 1), X)]);
    assert_eq!(standing(&scheduler), (false, 1));
}

#[test]
fn a_flush_waits_for_a_slot_for_a_second() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    let sent = prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    assert_eq!(assigned(&sent), [(at(1, 1), X)]);
    accept(&mut scheduler, at(1, 1), X);
    let back = |sent: &[Sent], number, is_untouched| {
        let (job, why) = (job(number), LocalWhy::Busy);
        has(
            sent,
            Party::Owner(DB),
            &OffloadMessage::GiveBack { job, why, is_untouched, failure: None },
        )
    };
    let step_ns = 250 * MS;
    for turn in 0..=4 {
        let now_ns = LATER_NS + turn * step_ns;
        beat(&mut scheduler, now_ns, X);
        // The owner repeats PREPARE, which does not make the flush younger.
        prepare(&mut scheduler, now_ns, 2, JobKind::Flush);
        prepare(&mut scheduler, now_ns, 3, JobKind::Compaction);
        let sent = scheduler.on_timer(now_ns);
        assert_eq!(back(&sent, 2, true), turn == 4, "after {turn} quarters of a second");
        assert!(!back(&sent, 3, true), "nobody waits for a compaction");
    }
    // A flush whose package an executor has may run for longer. When it has failed, its wait begins
    // again.
    for number in [2, 3] {
        scheduler.on_owner(LATER_NS, ME, OffloadMessage::CancelJob { job: job(number) });
    }
    let sent = prepare(&mut scheduler, LATER_NS, 4, JobKind::Flush);
    assert_eq!(assigned(&sent), []);
    let now_ns = LATER_NS + 5 * step_ns;
    scheduler.on_timer(now_ns);
    let sent = scheduler.on_owner(now_ns, ME, OffloadMessage::CancelJob { job: job(1) });
    assert_eq!(assigned(&sent), [(at(4, 1), X)]);
    accept(&mut scheduler, at(4, 1), X);
    let now_ns = now_ns + 4 * step_ns;
    let reason = ShortText::new("full");
    let abort = OffloadMessage::Abort { at: at(4, 1), by: X, reason };
    beat(&mut scheduler, now_ns, X);
    scheduler.on_executor(now_ns, X, abort);
    let sent = scheduler.on_timer(now_ns);
    assert_eq!(assigned(&sent), [(at(4, 2), X)]);
    assert!(!back(&sent, 4, false), "it waits since now");
}

#[test]
fn a_job_goes_back_when_its_attempts_are_used_up() {
    let mut scheduler = scheduler();
    let mut now_ns = LATER_NS;
    beat(&mut scheduler, now_ns, X);
    let mut sent = prepare(&mut scheduler, now_ns, 1, JobKind::Flush);
    for attempt in 1..=3 {
        assert_eq!(assigned(&sent), [(at(1, attempt), X)]);
        scheduler.on_executor(now_ns, X, OffloadMessage::Accept { at: at(1, attempt), by: X });
        let abort =
            OffloadMessage::Abort { at: at(1, attempt), by: X, reason: ShortText::new("full") };
        scheduler.on_executor(now_ns, X, abort);
        now_ns += 100 * MS;
        sent = beat(&mut scheduler, now_ns, X);
    }
    assert_eq!(assigned(&sent), []);
    sent = scheduler.on_timer(now_ns);
    let (why, is_untouched) = (LocalWhy::Failed, false);
    let (address, reason) = (ShortText::new("reef:7"), ShortText::new("full"));
    let last = FailedAttempt { at: at(1, 3), executor: X, address, reason };
    let failure = Some(last.clone());
    let back = OffloadMessage::GiveBack { job: job(1), why, is_untouched, failure };
    assert!(has(&sent, Party::Owner(DB), &back));
    let shown = scheduler.status(now_ns).last_failure;
    assert_eq!(shown, Some(RecentFailure { attempt: last, age_ms: 100 }));
}

#[test]
fn a_newer_owner_ends_the_jobs_of_the_older() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, 0, X);
    prepare(&mut scheduler, 0, 1, JobKind::Flush);
    let newer = OwnerStamp { db: DB, epoch: Epoch(8), token: Token::default() };
    let sent =
        scheduler.on_owner(0, newer, OffloadMessage::Greet { owner: newer, needs: Vec::new() });
    let cancel = OffloadMessage::Cancel { at: at(1, 1), life: LIFE };
    assert!(has(&sent, Party::Executor(X), &cancel));
    assert!(scheduler.is_idle());
    let sent = prepare(&mut scheduler, 0, 2, JobKind::Flush);
    assert!(has(&sent, Party::Owner(DB), &OffloadMessage::Stale { newest: newer }));
    let copied = OwnerStamp { token: Token([1; 16]), ..newer };
    let sent =
        scheduler.on_owner(0, copied, OffloadMessage::Greet { owner: copied, needs: Vec::new() });
    let stale = OffloadMessage::Stale { newest: newer };
    assert!(has(&sent, Party::Owner(DB), &stale), "an equal epoch with another token");
}

#[test]
fn an_old_owner_cannot_cancel_the_job_of_a_newer_one() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, 0, X);
    let newer = OwnerStamp { epoch: Epoch(8), ..ME };
    scheduler.on_owner(0, ME, OffloadMessage::Greet { owner: ME, needs: Vec::new() });
    let session = OwnerSession { number: 2, ..SESSION };
    let mut message = prepare_for(1, JobKind::Flush, &[], session);
    let OffloadMessage::Prepare { order, .. } = &mut message else { panic!("{message:?}") };
    order.id.epoch = newer.epoch;
    let job = order.id;
    scheduler.on_owner(0, newer, message);
    scheduler.on_owner(0, ME, OffloadMessage::CancelJob { job });
    assert!(!scheduler.is_idle(), "the old owner decides nothing");
    scheduler.on_owner(0, newer, OffloadMessage::CancelJob { job });
    assert!(scheduler.is_idle());
}

#[test]
fn a_flush_goes_where_its_images_lie_unless_that_is_busy() {
    let mut scheduler = scheduler();
    let home = NodeLife { node: NodeId(4), life: Epoch(2) };
    let beat = |executor, home| OffloadMessage::Beat {
        executor,
        names: Vec::new(),
        address: ShortText::default(),
        slots: 2,
        load: Load::default(),
        reach: InputReach { home, fetch: 100 },
        running: Vec::new(),
        is_draining: false,
    };
    // Among equals the lower number would get the job.
    assert!(X < Y);
    scheduler.on_executor(0, X, beat(X, None));
    scheduler.on_executor(0, Y, beat(Y, Some(home)));
    let prepare = |number| match prepare_for(number, JobKind::Flush, &[], SESSION) {
        OffloadMessage::Prepare { order, session, attempts, oldest, spec } => {
            let places = vec![InputPlace { at: home, bytes: 1 << 20 }];
            let order = JobOrder { places, ..order };
            OffloadMessage::Prepare { order, session, attempts, oldest, spec }
        }
        other => other,
    };
    let sent = scheduler.on_owner(0, ME, prepare(1));
    assert_eq!(assigned(&sent), [(at(1, 1), Y)], "it reads the images in place");
    let queued = OffloadMessage::Queued { job: job(1), session: SESSION, slots: 4 };
    assert!(has(&sent, Party::Owner(DB), &queued), "{sent:?}");
    let sent = scheduler.on_owner(0, ME, prepare(2));
    assert_eq!(assigned(&sent), [(at(2, 1), X)], "half of the other one's slots are taken");
}

/// A flush with one attempt, as a call of the engine has. Earlier attempts have failed at `avoids`,
/// as jobs of their own.
fn prepare_once(number: u64, avoids: Vec<ExecutorId>) -> OffloadMessage {
    let mut message = prepare_for(number, JobKind::Flush, &[], SESSION);
    if let OffloadMessage::Prepare { order, attempts, .. } = &mut message {
        order.avoids = avoids;
        attempts.truncate(1);
    }
    message
}

#[test]
fn second_attempt_of_a_flush_goes_elsewhere_or_back_to_its_owner() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    let back = |number| OffloadMessage::GiveBack {
        job: job(number),
        why: LocalWhy::Busy,
        is_untouched: true,
        failure: None,
    };
    let sent = scheduler.on_owner(LATER_NS, ME, prepare_once(1, vec![X]));
    assert_eq!(assigned(&sent), [], "the only executor has failed");
    assert!(has(&sent, Party::Owner(DB), &back(1)), "{sent:?}");
    beat(&mut scheduler, LATER_NS, Y);
    let sent = scheduler.on_owner(LATER_NS, ME, prepare_once(2, vec![X]));
    assert_eq!(assigned(&sent), [(at(2, 1), Y)]);
    assert_eq!(scheduler.job_list(LATER_NS).jobs[0].earlier, 1);
    // The other executor has its only slot taken now, and the job does not wait for it.
    let sent = scheduler.on_owner(LATER_NS, ME, prepare_once(3, vec![X]));
    assert!(has(&sent, Party::Owner(DB), &back(3)), "{sent:?}");
}

#[test]
fn flush_whose_only_attempt_fails_goes_back_as_failed() {
    let mut scheduler = scheduler();
    for executor in [X, Y] {
        beat(&mut scheduler, LATER_NS, executor);
    }
    // A compaction keeps the slot of one executor, so the flush would wait for it in vain.
    let sent = prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    assert_eq!(assigned(&sent), [(at(1, 1), X)]);
    accept(&mut scheduler, at(1, 1), X);
    for (number, avoids) in [(2, Vec::new()), (3, vec![X])] {
        let sent = scheduler.on_owner(LATER_NS, ME, prepare_once(number, avoids));
        assert_eq!(assigned(&sent), [(at(number, 1), Y)]);
        accept(&mut scheduler, at(number, 1), Y);
        let reason = ShortText::new("full");
        let abort = OffloadMessage::Abort { at: at(number, 1), by: Y, reason };
        scheduler.on_executor(LATER_NS, Y, abort);
        let (why, is_untouched) = (LocalWhy::Failed, false);
        let failure = scheduler.status(LATER_NS).last_failure.map(|failure| failure.attempt);
        let back = OffloadMessage::GiveBack { job: job(number), why, is_untouched, failure };
        let sent = scheduler.on_timer(LATER_NS);
        assert!(has(&sent, Party::Owner(DB), &back), "{sent:?}");
    }
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
