//! A scheduler with single messages.

mod assignment;
mod beats;
mod declines;
mod figures;
mod owners;
mod status;

use archipelago_base::Epoch;

use super::*;
use crate::decide::{InputReach, Load};
use crate::ids::{Attempt, NumberRange, SchedulerId, Token};
use crate::job::{JobKind, JobOrder, PreparedAttempt};

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

/// A time at which the owner was silent for too long, if its last message came at `LATER_NS`.
fn orphaned_ns() -> u64 {
    LATER_NS + SchedulerTerms::default().orphan_ns
}

fn commit(scheduler: &mut Scheduler, now_ns: u64, at: AttemptId, by: ExecutorId) -> Vec<Sent> {
    let output = Payload::default();
    scheduler.on_executor(now_ns, by, OffloadMessage::Commit { at, by, output })
}

/// Whether the answer to a beat of an executor that runs an attempt ends this attempt.
fn is_ended_by_beat(scheduler: &mut Scheduler, now_ns: u64, at: AttemptId, by: ExecutorId) -> bool {
    let now = Running { at, ..Running::default() };
    let sent = scheduler.on_executor(now_ns, by, beat_of(by, vec![now]));
    has(&sent, Party::Executor(by), &OffloadMessage::Cancel { at, life: LIFE })
}

/// A beat of the executor that runs an attempt, and the timer.
fn tell_of(scheduler: &mut Scheduler, now_ns: u64, now: Running) -> Vec<Sent> {
    scheduler.on_executor(now_ns, X, beat_of(X, vec![now]));
    scheduler.on_timer(now_ns)
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
