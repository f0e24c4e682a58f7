//! Which executor gets a job, and which jobs go back to their owner.

use archipelago_fabric::NodeId;

use super::*;
use crate::ids::NodeLife;
use crate::job::InputPlace;

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
