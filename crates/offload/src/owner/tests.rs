//! An owner with single messages.

use super::*;
use crate::failure::ShortText;
use crate::ids::{ExecutorId, OffloadDb, SchedulerLife, Token};

const S: SchedulerId = SchedulerId(1);
const OTHER: SchedulerId = SchedulerId(2);
const SESSION: OwnerSession = session(5, 1);
const MINE: OwnerStamp =
    OwnerStamp { db: OffloadDb([3; 16]), epoch: Epoch(7), token: Token([1; 16]) };

const fn session(term: u64, number: u64) -> OwnerSession {
    OwnerSession { life: SchedulerLife { scheduler: S, term }, number }
}

fn owner(schedulers: &[SchedulerId]) -> Owner {
    Owner::new(MINE, OwnerTerms::default(), schedulers.to_vec())
}

fn ranges(first: u64) -> [NumberRange; ATTEMPTS] {
    [0, 1, 2].map(|at| NumberRange { first: first + 10 * at, count: 10 })
}

fn at(number: u64, attempt: u32) -> AttemptId {
    let job = JobId { db: MINE.db, epoch: MINE.epoch, number };
    AttemptId { job, attempt: Attempt(attempt) }
}

fn ask(kind: JobKind) -> JobAsk {
    JobAsk { kind, bytes: 9, ..JobAsk::default() }
}

/// An owner with one job, whose first three attempts are prepared.
fn with_job() -> Owner {
    let mut owner = owner(&[S]);
    let (job, steps) = owner.submit(0, ask(JobKind::Compaction), Payload::default());
    assert_eq!(job, 1);
    let greet = OffloadMessage::Greet { owner: MINE, needs: Vec::new() };
    assert_eq!(steps, [OwnerStep::Send { to: S, message: greet }]);
    let steps = owner.on_message(0, S, OffloadMessage::Lives { session: SESSION, slots: 0 });
    assert_eq!(steps, [OwnerStep::Prepare { job: 1 }]);
    let steps = owner.prepared(0, 1, &ranges(100));
    assert!(is_prepare(&steps[0], 3), "{steps:?}");
    owner
}

fn is_prepare(step: &OwnerStep, count: usize) -> bool {
    matches!(step, OwnerStep::Send { message: OffloadMessage::Prepare { attempts, .. }, .. }
        if attempts.len() == count)
}

fn done(owner: &mut Owner, at: AttemptId) -> Vec<OwnerStep> {
    owner.on_message(0, S, OffloadMessage::Done { at, output: Payload::default() })
}

fn verdict(steps: &[OwnerStep]) -> Verdict {
    match steps {
        [OwnerStep::Send { message: OffloadMessage::Decided { verdict, .. }, .. }, ..] => *verdict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_attempt_that_commits_is_installed_and_the_others_are_abandoned() {
    let mut owner = with_job();
    let [OwnerStep::Check { numbers, .. }] = done(&mut owner, at(1, 2))[..] else {
        panic!("a check")
    };
    assert_eq!(numbers, ranges(100)[1]);
    assert_eq!(done(&mut owner, at(1, 1)), [], "another attempt waits for the check");
    let steps = owner.checked(0, at(1, 2), true);
    assert_eq!(verdict(&steps), Verdict::Installed);
    let abandoned = [ranges(100)[0], ranges(100)[2]];
    for numbers in abandoned {
        assert!(steps.contains(&OwnerStep::Abandon { numbers }), "{steps:?}");
    }
    assert_eq!(verdict(&done(&mut owner, at(1, 1))), Verdict::Discard);
    assert_eq!(verdict(&done(&mut owner, at(1, 2))), Verdict::Installed, "it came twice");
    assert_eq!(owner.jobs(), 0);
}

#[test]
fn nothing_unknown_is_discarded() {
    let mut owner = with_job();
    assert_eq!(verdict(&done(&mut owner, at(99, 1))), Verdict::Forget);
    let mut earlier = at(1, 1);
    earlier.job.epoch = Epoch(6);
    assert_eq!(verdict(&done(&mut owner, earlier)), Verdict::Forget);
    let mut later = at(1, 1);
    later.job.epoch = Epoch(8);
    assert_eq!(done(&mut owner, later), [], "an old owner decides nothing");
}

#[test]
fn another_session_gets_fresh_attempts() {
    // The scheduler begins another life, or drops the owner and goes on in the same life.
    for next in [session(6, 1), session(5, 2)] {
        let mut owner = with_job();
        let steps = owner.on_message(0, S, OffloadMessage::Lives { session: next, slots: 0 });
        assert_eq!(steps, [OwnerStep::Prepare { job: 1 }]);
        let again = owner.on_message(0, S, OffloadMessage::Lives { session: next, slots: 0 });
        assert_eq!(again, [], "the numbers are being drawn");
        let steps = owner.prepared(0, 1, &ranges(200));
        let OwnerStep::Send { message: OffloadMessage::Prepare { session, attempts, .. }, .. } =
            &steps[0]
        else {
            panic!("{steps:?}")
        };
        assert_eq!(
            (*session, attempts[0].attempt, attempts[0].numbers),
            (next, Attempt(4), ranges(200)[0])
        );
        // An answer of the earlier session comes late.
        assert_eq!(
            owner.on_message(0, S, OffloadMessage::Lives { session: SESSION, slots: 0 }),
            []
        );
        // An executor of the earlier session may still commit.
        assert!(matches!(done(&mut owner, at(1, 1))[..], [OwnerStep::Check { .. }]));
    }
}

/// Whether the PREPARE among the steps has the package of the job.
fn has_package(steps: &[OwnerStep]) -> bool {
    let prepare = steps.iter().find_map(|step| match step {
        OwnerStep::Send { message: OffloadMessage::Prepare { spec, .. }, .. } => Some(spec),
        _ => None,
    });
    prepare.unwrap_or_else(|| panic!("no PREPARE in {steps:?}")).is_some()
}

#[test]
fn package_is_repeated_until_the_scheduler_has_the_job() {
    let mut owner = with_job();
    let repeat_ns = OwnerTerms::default().repeat_ns;
    let queued = |session| OffloadMessage::Queued { job: at(1, 1).job, session, slots: 1 };
    assert!(has_package(&owner.on_timer(repeat_ns)), "nothing was answered");
    owner.on_message(repeat_ns, S, queued(session(4, 1)));
    assert!(has_package(&owner.on_timer(2 * repeat_ns)), "an earlier life has answered");
    owner.on_message(2 * repeat_ns, S, queued(SESSION));
    for turn in 3..6 {
        assert!(!has_package(&owner.on_timer(turn * repeat_ns)));
    }
    let next = session(6, 1);
    owner.on_message(5 * repeat_ns, S, OffloadMessage::Lives { session: next, slots: 1 });
    assert!(has_package(&owner.prepared(5 * repeat_ns, 1, &ranges(200))));
}

#[test]
fn a_job_that_comes_back_runs_here_and_its_attempts_are_abandoned() {
    let mut owner = with_job();
    let job = at(1, 1).job;
    let (why, is_untouched) = (LocalWhy::NoExecutor, true);
    let back = OffloadMessage::GiveBack { job, why, is_untouched, failure: None };
    let steps = owner.on_message(0, S, back.clone());
    assert!(steps.contains(&OwnerStep::RunHere { job: 1, why, is_untouched, failure: None }));
    let count = steps.iter().filter(|step| matches!(step, OwnerStep::Abandon { .. })).count();
    assert_eq!(count, ATTEMPTS);
    assert_eq!(verdict(&done(&mut owner, at(1, 1))), Verdict::Discard);
    let steps = owner.on_message(0, S, back);
    let cancel = OffloadMessage::CancelJob { job };
    assert_eq!(steps, [OwnerStep::Send { to: S, message: cancel }], "it runs once");
    owner.ran_here(1);
    assert_eq!(owner.jobs(), 0);
    assert_eq!(verdict(&done(&mut owner, at(1, 2))), Verdict::Discard);
}

#[test]
fn job_that_waits_for_its_scheduler_is_not_cancelled_at_another() {
    // A manager with two addresses is two schedulers here, and gives the job back as either.
    let mut owner = owner(&[S, OTHER]);
    owner.on_message(0, S, OffloadMessage::Lives { session: SESSION, slots: 1 });
    let (number, _) = owner.submit(0, ask(JobKind::Compaction), Payload::default());
    owner.prepared(0, number, &ranges(100));
    let (job, why, is_untouched) = (at(number, 1).job, LocalWhy::Failed, false);
    let back = OffloadMessage::GiveBack { job, why, is_untouched, failure: None };
    assert_eq!(owner.on_message(0, OTHER, back.clone()), []);
    let steps = owner.on_message(0, S, back);
    let here = OwnerStep::RunHere { job: number, why, is_untouched, failure: None };
    assert!(steps.contains(&here), "{steps:?}");
    // A scheduler that had the job before it moved gets the order at its end.
    let (number, _) = owner.submit(0, ask(JobKind::Compaction), Payload::default());
    owner.on_timer(OwnerTerms::default().silent_ns);
    let job = at(number, 1).job;
    let ended = owner.ran_here(number);
    for to in [S, OTHER] {
        let message = OffloadMessage::CancelJob { job };
        assert!(ended.contains(&OwnerStep::Send { to, message }), "{ended:?}");
    }
}

#[test]
fn reason_of_a_failed_attempt_comes_with_its_job() {
    for (failed, is_told) in [(at(1, 1), true), (at(9, 1), false)] {
        let mut owner = with_job();
        let (job, why, is_untouched) = (at(1, 1).job, LocalWhy::Failed, false);
        let reason = ShortText::new("full");
        let failure = Some(FailedAttempt { at: failed, reason, ..FailedAttempt::default() });
        let back = OffloadMessage::GiveBack { job, why, is_untouched, failure: failure.clone() };
        let steps = owner.on_message(0, S, back.clone());
        let failure = failure.filter(|_| is_told);
        let here = OwnerStep::RunHere { job: 1, why, is_untouched, failure };
        assert!(steps.contains(&here), "{steps:?}");
        // The scheduler repeats the message.
        let steps = owner.on_message(0, S, back);
        assert!(!steps.iter().any(|step| matches!(step, OwnerStep::RunHere { .. })));
    }
}

#[test]
fn a_job_runs_here_when_no_scheduler_answers() {
    let mut owner = owner(&[S, OTHER]);
    owner.submit(0, ask(JobKind::Flush), Payload::default());
    let silent_ns = OwnerTerms::default().silent_ns;
    let steps = owner.on_timer(silent_ns);
    assert!(!steps.iter().any(|step| matches!(step, OwnerStep::RunHere { .. })), "the second one");
    let steps = owner.on_timer(2 * silent_ns);
    assert!(steps.contains(&OwnerStep::RunHere {
        job: 1,
        why: LocalWhy::Silent,
        is_untouched: true,
        failure: None,
    }));
}

#[test]
fn new_jobs_go_to_the_first_scheduler_that_answers() {
    let [first, second] = [SchedulerId(1), SchedulerId(2)];
    let mut owner = owner(&[first, second]);
    let lives = |scheduler, slots| OffloadMessage::Lives {
        session: OwnerSession { life: SchedulerLife { scheduler, term: 1 }, number: 1 },
        slots,
    };
    let drawn = |owner: &mut Owner, now_ns| {
        let (number, _) = owner.submit(now_ns, ask(JobKind::Compaction), Payload::default());
        let steps = owner.prepared(now_ns, number, &ranges(100 * number));
        let to = steps.iter().find_map(|step| match step {
            OwnerStep::Send { to, message: OffloadMessage::Prepare { .. } } => Some(*to),
            _ => None,
        });
        (number, to)
    };
    owner.on_message(0, first, lives(first, 4));
    owner.on_message(0, second, lives(second, 0));
    assert_eq!(owner.room(JobKind::Compaction), 4, "the second one has just begun");
    assert_eq!(drawn(&mut owner, 0).1, Some(first));
    // The first one is silent, and the second one is not.
    let later = OwnerTerms::default().silent_ns;
    owner.on_message(later, second, lives(second, 3));
    let (number, to) = drawn(&mut owner, later);
    assert_eq!(to, Some(second));
    let cancels = owner.ran_here(number);
    let cancel = OffloadMessage::CancelJob { job: at(number, 1).job };
    assert!(cancels.contains(&OwnerStep::Send { to: second, message: cancel }), "{cancels:?}");
    owner.on_message(later, first, lives(first, 4));
    assert_eq!(drawn(&mut owner, later).1, Some(first), "it answers again");
}

#[test]
fn outputs_that_are_refused_twice_end_the_offload() {
    let mut owner = with_job();
    for attempt in 1..=2 {
        done(&mut owner, at(1, attempt));
        let steps = owner.checked(0, at(1, attempt), false);
        assert_eq!(verdict(&steps), Verdict::Discard);
        let here = OwnerStep::RunHere {
            job: 1,
            why: LocalWhy::Refused,
            is_untouched: false,
            failure: None,
        };
        assert_eq!(steps.contains(&here), attempt == 2, "{steps:?}");
    }
}

#[test]
fn numbers_for_a_job_that_has_ended_are_abandoned() {
    let mut owner = with_job();
    done(&mut owner, at(1, 1));
    owner.checked(0, at(1, 1), true);
    let steps = owner.prepared(0, 1, &ranges(300));
    assert_eq!(steps, ranges(300).map(|numbers| OwnerStep::Abandon { numbers }));
}

#[test]
fn an_owner_that_was_replaced_takes_its_jobs_back() {
    let mut owner = with_job();
    let newest = OwnerStamp { epoch: Epoch(8), ..MINE };
    let steps = owner.on_message(0, S, OffloadMessage::Stale { newest });
    assert!(owner.is_superseded());
    assert!(steps.contains(&OwnerStep::RunHere {
        job: 1,
        why: LocalWhy::Superseded,
        is_untouched: false,
        failure: None,
    }));
}

#[test]
fn numbers_of_an_earlier_life_are_never_untouched() {
    let mut owner = with_job();
    let next = session(6, 1);
    owner.on_message(0, S, OffloadMessage::Lives { session: next, slots: 0 });
    owner.prepared(0, 1, &ranges(200));
    let (job, why) = (at(1, 1).job, LocalWhy::NoExecutor);
    let back = OffloadMessage::GiveBack { job, why, is_untouched: true, failure: None };
    let steps = owner.on_message(0, S, back);
    assert!(steps.contains(&OwnerStep::RunHere {
        job: 1,
        why,
        is_untouched: false,
        failure: None
    }));
}

#[test]
fn an_old_owner_cancels_nothing_of_a_newer_one() {
    let mut owner = with_job();
    let (mut job, why, is_untouched) = (at(1, 1).job, LocalWhy::NoExecutor, true);
    job.epoch = Epoch(8);
    let back = OffloadMessage::GiveBack { job, why, is_untouched, failure: None };
    assert_eq!(owner.on_message(0, S, back), []);
    job.epoch = Epoch(6);
    let back = OffloadMessage::GiveBack { job, why, is_untouched, failure: None };
    let cancel = OffloadMessage::CancelJob { job };
    assert_eq!(owner.on_message(0, S, back), [OwnerStep::Send { to: S, message: cancel }]);
}

#[test]
fn room_is_what_executors_have_less_other_jobs() {
    let mut owner = with_job();
    assert_eq!(owner.room(JobKind::Compaction), 0, "no scheduler has said anything");
    let queued = |number| {
        let job = at(number, 1).job;
        OffloadMessage::Queued { job, session: SESSION, slots: 4 }
    };
    owner.on_message(1, S, queued(1));
    assert_eq!(owner.room(JobKind::Compaction), 4);
    assert_eq!(owner.room(JobKind::Flush), 0, "slots are known by kind");
    owner.on_message(1, S, OffloadMessage::Lives { session: SESSION, slots: 9 });
    // An answer to a greeting has the slots for all kinds of jobs. The owner's compaction takes one
    // of them.
    assert_eq!((owner.room(JobKind::Flush), owner.room(JobKind::Compaction)), (8, 9));
    owner.submit(1, ask(JobKind::Flush), Payload::default());
    owner.on_message(1, S, queued(1));
    owner.on_message(1, S, queued(2));
    assert_eq!((owner.room(JobKind::Flush), owner.room(JobKind::Compaction)), (3, 3));
    let (job, is_untouched) = (at(2, 1).job, true);
    let message =
        OffloadMessage::GiveBack { job, why: LocalWhy::NoExecutor, is_untouched, failure: None };
    owner.on_message(2, S, message);
    assert_eq!(owner.room(JobKind::Compaction), 0, "the executors are gone");
}

#[test]
fn flushes_have_no_room_while_other_jobs_have_all_slots() {
    let mut owner = with_job();
    let lives = |slots| OffloadMessage::Lives { session: SESSION, slots };
    owner.on_message(1, S, lives(0));
    assert_eq!(owner.lacks_room(JobKind::Flush), Some(LocalWhy::NoExecutor));
    owner.on_message(1, S, lives(1));
    assert_eq!(owner.lacks_room(JobKind::Flush), Some(LocalWhy::Busy), "a compaction has it");
    assert_eq!(owner.lacks_room(JobKind::Compaction), None, "compactions may wait");
    owner.on_message(1, S, lives(2));
    assert_eq!(owner.lacks_room(JobKind::Flush), None);
    // Jobs of another owner hold that slot. The executors are alive, so the next flush may leave.
    let (number, _) = owner.submit(1, ask(JobKind::Flush), Payload::default());
    owner.prepared(1, number, &ranges(200));
    let (job, why, is_untouched) = (at(number, 1).job, LocalWhy::Busy, true);
    let steps =
        owner.on_message(2, S, OffloadMessage::GiveBack { job, why, is_untouched, failure: None });
    assert!(steps.contains(&OwnerStep::RunHere { job: number, why, is_untouched, failure: None }));
    owner.ran_here(number);
    assert_eq!(owner.lacks_room(JobKind::Flush), None);
}

#[test]
fn late_commit_of_a_failed_attempt_is_refused_before_and_after_the_second_one() {
    let mut owner = owner(&[S]);
    owner.on_message(0, S, OffloadMessage::Lives { session: SESSION, slots: 2 });
    let (first, _) = owner.submit(0, ask(JobKind::Flush), Payload::default());
    owner.prepared(0, first, &ranges(100)[..1]);
    let failure = FailedAttempt {
        at: at(first, 1),
        executor: ExecutorId(7),
        address: ShortText::default(),
        reason: ShortText::new("no beat"),
    };
    let message = OffloadMessage::GiveBack {
        job: at(first, 1).job,
        why: LocalWhy::Failed,
        is_untouched: false,
        failure: Some(failure),
    };
    let steps = owner.on_message(0, S, message);
    assert!(steps.contains(&OwnerStep::Abandon { numbers: ranges(100)[0] }), "{steps:?}");
    owner.ran_here(first);
    // The second attempt is a job of its own, with numbers of its own.
    let again = JobAsk { avoids: vec![ExecutorId(7)], ..ask(JobKind::Flush) };
    let (second, _) = owner.submit(0, again, Payload::default());
    let steps = owner.prepared(0, second, &ranges(200)[..1]);
    let OwnerStep::Send { message: OffloadMessage::Prepare { order, .. }, .. } = &steps[0] else {
        panic!("{steps:?}")
    };
    assert_eq!(order.avoids, [ExecutorId(7)]);
    assert_eq!(verdict(&done(&mut owner, at(first, 1))), Verdict::Discard);
    assert!(matches!(done(&mut owner, at(second, 1))[..], [OwnerStep::Check { .. }]));
    assert_eq!(verdict(&done(&mut owner, at(first, 1))), Verdict::Discard, "during the check");
    assert_eq!(verdict(&owner.checked(0, at(second, 1), true)), Verdict::Installed);
    assert_eq!(verdict(&done(&mut owner, at(first, 1))), Verdict::Discard, "after the install");
}

#[test]
fn report_follows_each_greeting_of_all_schedulers() {
    let reports = |steps: Vec<OwnerStep>| {
        let is_report = |step: &&OwnerStep| {
            matches!(step, OwnerStep::Send { message: OffloadMessage::Report { .. }, .. })
        };
        steps.iter().filter(is_report).count()
    };
    let mut owner = owner(&[S]);
    assert_eq!(reports(owner.on_timer(0)), 0, "there is none yet");
    owner.set_report(OwnerReport { away: 3, ..OwnerReport::default() });
    let refresh_ns = OwnerTerms::default().refresh_ns;
    assert_eq!(reports(owner.on_timer(refresh_ns - 1)), 0);
    assert_eq!(reports(owner.on_timer(2 * refresh_ns)), 1);
}

fn lives_at(scheduler: SchedulerId, term: u64) -> OffloadMessage {
    let life = SchedulerLife { scheduler, term };
    OffloadMessage::Lives { session: OwnerSession { life, number: 1 }, slots: 4 }
}

/// The scheduler that gets a PREPARE among the steps.
fn prepared_for(steps: &[OwnerStep]) -> Option<SchedulerId> {
    steps.iter().find_map(|step| match step {
        OwnerStep::Send { to, message: OffloadMessage::Prepare { .. } } => Some(*to),
        _ => None,
    })
}

/// Submits a job and prepares one attempt, as the calls of the engine do. Returns the number of the
/// job and the scheduler that gets it.
fn submit_one(owner: &mut Owner, now_ns: u64, first_no: u64) -> (u64, Option<SchedulerId>) {
    let (job, steps) = owner.submit(now_ns, ask(JobKind::Compaction), Payload::default());
    assert!(steps.contains(&OwnerStep::Prepare { job }), "{steps:?}");
    let steps = owner.prepared(now_ns, job, &ranges(first_no)[..1]);
    (job, prepared_for(&steps))
}

/// An owner with these schedulers, all of which live at time 0. The first one has job 1.
fn with_job_at_first(schedulers: &[SchedulerId]) -> Owner {
    let mut owner = owner(schedulers);
    for &scheduler in schedulers {
        owner.on_message(0, scheduler, lives_at(scheduler, 5));
    }
    assert_eq!(submit_one(&mut owner, 0, 100), (1, Some(schedulers[0])));
    owner
}

#[test]
fn job_whose_scheduler_ends_is_planned_again_for_one_that_lives() {
    let silent_ns = OwnerTerms::default().silent_ns;
    // The scheduler ends before ASSIGN, or while an executor runs the attempt.
    for is_queued in [false, true] {
        let mut owner = with_job_at_first(&[S, OTHER]);
        if is_queued {
            let message = OffloadMessage::Queued { job: at(1, 1).job, session: SESSION, slots: 4 };
            owner.on_message(0, S, message);
        }
        owner.on_message(silent_ns - 1, OTHER, lives_at(OTHER, 5));
        let early = owner.on_timer(silent_ns - 1);
        assert!(!early.contains(&OwnerStep::Prepare { job: 1 }), "{early:?}");
        let steps = owner.on_timer(silent_ns);
        assert!(steps.contains(&OwnerStep::Prepare { job: 1 }), "{steps:?}");
        let steps = owner.without_numbers(silent_ns, 1);
        assert!(steps.contains(&OwnerStep::PlanAgain { job: 1 }), "{steps:?}");
        assert!(steps.contains(&OwnerStep::Abandon { numbers: ranges(100)[0] }), "{steps:?}");
        let cancel = OffloadMessage::CancelJob { job: at(1, 1).job };
        assert!(steps.contains(&OwnerStep::Send { to: S, message: cancel }), "{steps:?}");
        assert!(!steps.iter().any(|step| matches!(step, OwnerStep::RunHere { .. })), "{steps:?}");
        assert_eq!((owner.jobs(), owner.without_numbers(silent_ns, 1)), (0, Vec::new()));

        assert_eq!(submit_one(&mut owner, silent_ns, 200), (2, Some(OTHER)));
        // The executor of the first attempt sends its outputs through the other scheduler.
        let done = |owner: &mut Owner, number| {
            let message = OffloadMessage::Done { at: at(number, 1), output: Payload::default() };
            owner.on_message(silent_ns, OTHER, message)
        };
        assert_eq!(verdict(&done(&mut owner, 1)), Verdict::Discard, "before the second attempt");
        let [OwnerStep::Check { numbers, .. }] = done(&mut owner, 2)[..] else { panic!("a check") };
        assert_eq!(numbers, ranges(200)[0]);
        assert_eq!(verdict(&done(&mut owner, 1)), Verdict::Discard, "during the check");
        assert_eq!(verdict(&owner.checked(silent_ns, at(2, 1), true)), Verdict::Installed);
        assert_eq!(verdict(&done(&mut owner, 1)), Verdict::Discard, "after the install");
    }
}

#[test]
fn job_whose_numbers_went_to_no_scheduler_keeps_them_when_it_moves() {
    let mut owner = owner(&[S, OTHER]);
    owner.submit(0, ask(JobKind::Compaction), Payload::default());
    let silent_ns = OwnerTerms::default().silent_ns;
    owner.on_message(silent_ns, OTHER, lives_at(OTHER, 5));
    let steps = owner.on_timer(silent_ns);
    assert!(steps.contains(&OwnerStep::Prepare { job: 1 }), "{steps:?}");
    assert_eq!(prepared_for(&owner.prepared(silent_ns, 1, &ranges(100)[..1])), Some(OTHER));
}

#[test]
fn job_runs_here_when_all_schedulers_have_ended() {
    let silent_ns = OwnerTerms::default().silent_ns;
    let (job, why, is_untouched) = (1, LocalWhy::Silent, false);
    let here = OwnerStep::RunHere { job, why, is_untouched, failure: None };
    let mut owner = with_job_at_first(&[S, OTHER]);
    let steps = owner.on_timer(silent_ns);
    assert!(steps.contains(&OwnerStep::Prepare { job: 1 }), "{steps:?}");
    // A driver with numbers tries the other scheduler.
    let mut with_numbers = owner.clone();
    let steps = with_numbers.prepared(silent_ns, 1, &ranges(200)[..1]);
    assert_eq!(prepared_for(&steps), Some(OTHER));
    assert!(with_numbers.on_timer(2 * silent_ns).contains(&here));
    // A driver without numbers has no scheduler for another plan.
    let steps = owner.without_numbers(silent_ns, 1);
    assert!(steps.contains(&here), "{steps:?}");
    assert!(steps.contains(&OwnerStep::Abandon { numbers: ranges(100)[0] }), "{steps:?}");
    assert!(!steps.contains(&OwnerStep::PlanAgain { job: 1 }), "{steps:?}");
    assert_eq!(verdict(&done(&mut owner, at(1, 1))), Verdict::Discard);
}

#[test]
fn job_moves_to_a_scheduler_that_lives_before_the_next_one() {
    const THIRD: SchedulerId = SchedulerId(3);
    let silent_ns = OwnerTerms::default().silent_ns;
    let mut owner = with_job_at_first(&[S, OTHER, THIRD]);
    owner.on_message(silent_ns, THIRD, lives_at(THIRD, 5));
    owner.on_timer(silent_ns);
    assert_eq!(prepared_for(&owner.prepared(silent_ns, 1, &ranges(200)[..1])), Some(THIRD));
    // No scheduler but those that had the job gets the order to end it.
    let ended = owner.ran_here(1);
    let cancelled = ended.iter().filter_map(|step| match step {
        OwnerStep::Send { to, message: OffloadMessage::CancelJob { .. } } => Some(*to),
        _ => None,
    });
    assert_eq!(cancelled.collect::<Vec<_>>(), [S, THIRD]);
}

#[test]
fn job_is_planned_again_for_the_next_life_of_its_scheduler() {
    let mut owner = with_job_at_first(&[S]);
    let steps = owner.on_message(1, S, lives_at(S, 6));
    assert_eq!(steps, [OwnerStep::Prepare { job: 1 }]);
    let steps = owner.without_numbers(1, 1);
    assert!(steps.contains(&OwnerStep::PlanAgain { job: 1 }), "{steps:?}");
    assert_eq!(submit_one(&mut owner, 1, 200), (2, Some(S)));
    assert_eq!(verdict(&done(&mut owner, at(1, 1))), Verdict::Discard);
}

/// Whether the steps end job 1 for another plan, and do not run it here.
fn plans_first_job_again(steps: &[OwnerStep]) -> bool {
    let runs_here = steps.iter().any(|step| matches!(step, OwnerStep::RunHere { .. }));
    let abandons = steps.contains(&OwnerStep::Abandon { numbers: ranges(100)[0] });
    steps.contains(&OwnerStep::PlanAgain { job: 1 }) && abandons && !runs_here
}

/// An owner whose other scheduler has never answered. Job 1 has left the first one for it.
fn with_job_at_mute_scheduler() -> Owner {
    let mut owner = owner(&[S, OTHER]);
    owner.on_message(0, S, lives_at(S, 5));
    assert_eq!(submit_one(&mut owner, 0, 100), (1, Some(S)));
    let steps = owner.on_timer(OwnerTerms::default().silent_ns);
    assert_eq!((prepared_for(&steps), owner.jobs()), (None, 1), "{steps:?}");
    owner
}

#[test]
fn job_at_a_mute_scheduler_is_planned_again_when_another_one_answers() {
    let now_ns = OwnerTerms::default().silent_ns * 3 / 2;
    let mut owner = with_job_at_mute_scheduler();
    // An answer of an earlier life comes late.
    assert_eq!(owner.on_message(now_ns, S, lives_at(S, 4)), []);
    let steps = owner.on_message(now_ns, S, lives_at(S, 6));
    assert!(plans_first_job_again(&steps), "{steps:?}");
    for to in [S, OTHER] {
        let message = OffloadMessage::CancelJob { job: at(1, 1).job };
        assert!(steps.contains(&OwnerStep::Send { to, message }), "{steps:?}");
    }
    assert_eq!(submit_one(&mut owner, now_ns, 200), (2, Some(S)));
    assert_eq!(verdict(&done(&mut owner, at(1, 1))), Verdict::Discard);
}

#[test]
fn job_without_a_scheduler_is_planned_again_if_one_lives() {
    let silent_ns = OwnerTerms::default().silent_ns;
    let queued = OffloadMessage::Queued { job: at(1, 1).job, session: SESSION, slots: 4 };
    // The first scheduler answers again, with a message that begins no session.
    let mut mute = with_job_at_mute_scheduler();
    mute.on_message(silent_ns * 3 / 2, S, queued.clone());
    let steps = mute.on_timer(2 * silent_ns);
    assert!(plans_first_job_again(&steps), "{steps:?}");
    // Both schedulers have had the job, and the first one answers again.
    let mut tried = with_job_at_first(&[S, OTHER]);
    tried.on_timer(silent_ns);
    let steps = tried.prepared(silent_ns, 1, &ranges(200)[..1]);
    assert_eq!(prepared_for(&steps), Some(OTHER));
    tried.on_message(silent_ns * 3 / 2, S, queued);
    let steps = tried.on_timer(2 * silent_ns);
    assert!(plans_first_job_again(&steps), "{steps:?}");
    // No executor can have the numbers of a job without a session, so it runs here under them.
    let mut unprepared = owner(&[S, OTHER]);
    unprepared.submit(0, ask(JobKind::Compaction), Payload::default());
    unprepared.on_timer(silent_ns);
    unprepared.on_message(silent_ns * 3 / 2, S, lives_at(S, 5));
    let (job, why, is_untouched) = (1, LocalWhy::Silent, true);
    let here = OwnerStep::RunHere { job, why, is_untouched, failure: None };
    assert!(unprepared.on_timer(2 * silent_ns).contains(&here));
}

#[test]
fn job_whose_outputs_are_refused_asks_for_numbers_of_the_next_session() {
    let mut owner = with_job_at_first(&[S]);
    let steps = owner.on_message(0, S, lives_at(S, 6));
    assert_eq!(steps, [OwnerStep::Prepare { job: 1 }]);
    assert!(matches!(done(&mut owner, at(1, 1))[..], [OwnerStep::Check { .. }]));
    assert_eq!(owner.without_numbers(0, 1), [], "an output is checked");
    assert_eq!(verdict(&owner.checked(0, at(1, 1), false)), Verdict::Discard);
    let steps = owner.on_timer(OwnerTerms::default().repeat_ns);
    assert!(steps.contains(&OwnerStep::Prepare { job: 1 }), "{steps:?}");
}

#[test]
fn scheduler_that_was_silent_for_a_job_gets_no_other_one_before_its_next_message() {
    let silent_ns = OwnerTerms::default().silent_ns;
    let mut owner = with_job_at_first(&[S, OTHER]);
    // It answers a greeting, but not the PREPARE of the job.
    owner.on_message(silent_ns - 1, S, lives_at(S, 5));
    owner.on_message(silent_ns - 1, OTHER, lives_at(OTHER, 5));
    owner.on_timer(silent_ns);
    owner.without_numbers(silent_ns, 1);
    assert_eq!(submit_one(&mut owner, silent_ns, 200), (2, Some(OTHER)));
    owner.on_message(silent_ns, S, lives_at(S, 5));
    assert_eq!(submit_one(&mut owner, silent_ns, 300), (3, Some(S)));
}
