//! Beats of executors: silence, lost attempts, and progress.

use super::*;

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
