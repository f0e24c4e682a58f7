//! Owners: their silence, their return, and their successors.

use super::*;

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
