//! An executor with single messages.

use std::collections::BTreeSet;

use super::*;
use crate::ids::{Attempt, JobId};

const S: SchedulerId = SchedulerId(1);
const LIFE: SchedulerLife = SchedulerLife { scheduler: S, term: 3 };
const ME: ExecutorId = ExecutorId(9);

fn at(number: u64) -> AttemptId {
    AttemptId { job: JobId { number, ..JobId::default() }, attempt: Attempt(1) }
}

fn executor() -> Executor {
    let names = BTreeSet::from(["add".to_owned()]);
    let mut executor =
        Executor::new(ME, ExecutorOffer { slots: 1, names, ..ExecutorOffer::default() }, &[S]);
    let beats = executor.on_timer(0);
    assert!(matches!(sent(&beats)[..], [OffloadMessage::Beat { slots: 1, .. }]), "{beats:?}");
    executor
}

fn sent(steps: &[ExecutorStep]) -> Vec<OffloadMessage> {
    let of = |step: &ExecutorStep| match step {
        ExecutorStep::Send { message, .. } => Some(message.clone()),
        _ => None,
    };
    steps.iter().filter_map(of).collect()
}

fn assign(executor: &mut Executor, number: u64, needs: &[&str]) -> OffloadMessage {
    let needs = needs.iter().map(|name| (*name).to_owned()).collect();
    let order = JobOrder { id: at(number).job, needs, ..JobOrder::default() };
    let message = OffloadMessage::Assign { at: at(number), life: LIFE, order };
    sent(&executor.on_message(0, S, message)).remove(0)
}

fn pack(executor: &mut Executor, number: u64) -> Vec<ExecutorStep> {
    let numbers = NumberRange { first: 10, count: 2 };
    let spec = vec![1].into();
    let message = OffloadMessage::Package { at: at(number), life: LIFE, numbers, spec };
    executor.on_message(0, S, message)
}

fn is_run(step: &ExecutorStep) -> bool {
    matches!(step, ExecutorStep::Run { .. })
}

#[test]
fn an_attempt_runs_once_and_commits_until_the_verdict() {
    let mut executor = executor();
    assert_eq!(assign(&mut executor, 1, &["add"]), OffloadMessage::Accept { at: at(1), by: ME });
    let first = pack(&mut executor, 1);
    assert_eq!(first.iter().filter(|step| is_run(step)).count(), 1);
    // The package comes again, because the answer was lost.
    let again = pack(&mut executor, 1);
    assert!(!again.iter().any(is_run));
    assert_eq!(sent(&again), [OffloadMessage::Started { at: at(1), by: ME }]);

    let output = Payload::from(vec![7]);
    let commit = OffloadMessage::Commit { at: at(1), by: ME, output: output.clone() };
    let committed = executor.ended(1, at(1), Ok(output));
    assert!(sent(&committed).contains(&commit));
    assert!(sent(&executor.on_timer(REPEAT_NS + 1)).contains(&commit), "it is repeated");

    let decided = OffloadMessage::Decided { at: at(1), verdict: Verdict::Discard };
    let removed = executor.on_message(2, S, decided.clone());
    let numbers = NumberRange { first: 10, count: 2 };
    assert_eq!(removed, [ExecutorStep::Remove { at: at(1), numbers }]);
    assert_eq!(executor.on_message(3, S, decided), [], "the verdict came twice");
    assert!(executor.is_idle());
    // A late assignment and a late package do not run it again.
    assert_eq!(assign(&mut executor, 1, &[]), OffloadMessage::NotMine { at: at(1), by: ME });
    assert_eq!(sent(&pack(&mut executor, 1)), [OffloadMessage::NotMine { at: at(1), by: ME }]);
}

#[test]
fn outputs_stay_on_every_verdict_but_discard() {
    for verdict in [Verdict::Installed, Verdict::Forget] {
        let mut executor = executor();
        assign(&mut executor, 1, &[]);
        pack(&mut executor, 1);
        let decided = OffloadMessage::Decided { at: at(1), verdict };
        assert_eq!(executor.on_message(0, S, decided.clone()), [], "nothing is committed yet");
        executor.ended(1, at(1), Ok(Payload::default()));
        assert_eq!(executor.on_message(2, S, decided), [ExecutorStep::Keep { at: at(1) }]);
        assert!(executor.is_idle());
    }
}

#[test]
fn attempts_that_it_cannot_run_are_declined() {
    let mut executor = executor();
    let why = |message| match message {
        OffloadMessage::Decline { why, .. } => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(assign(&mut executor, 1, &["add", "max"])), DeclineWhy::Unknown);
    assign(&mut executor, 2, &[]);
    assert_eq!(why(assign(&mut executor, 3, &[])), DeclineWhy::Busy);
    executor.leave();
    assert_eq!(why(assign(&mut executor, 4, &[])), DeclineWhy::Leaving);
}

#[test]
fn executor_that_leaves_says_so_and_ends_its_jobs() {
    let mut executor = executor();
    assign(&mut executor, 1, &[]);
    pack(&mut executor, 1);
    assert_eq!(executor.on_timer(1), [], "no beat is due");
    executor.leave();
    let beats = sent(&executor.on_timer(1));
    let [OffloadMessage::Beat { slots: 0, running, .. }] = &beats[..] else { panic!("{beats:?}") };
    assert_eq!(running.len(), 1);
    assert!(!executor.is_idle(), "the job goes on");
    executor.ended(2, at(1), Ok(Payload::default()));
    let decided = OffloadMessage::Decided { at: at(1), verdict: Verdict::Installed };
    assert_eq!(executor.on_message(3, S, decided), [ExecutorStep::Keep { at: at(1) }]);
    assert!(executor.is_idle());
}

#[test]
fn drained_executor_declines_until_the_drain_is_cancelled() {
    let mut executor = executor();
    assign(&mut executor, 1, &[]);
    pack(&mut executor, 1);
    let drain = |executor, is_draining| OffloadMessage::Drain { executor, is_draining };
    executor.on_message(1, S, drain(ExecutorId(10), true));
    assert_eq!(executor.on_timer(1), [], "the order is for another executor");
    executor.on_message(1, S, drain(ME, true));
    let beats = sent(&executor.on_timer(1));
    let [OffloadMessage::Beat { is_draining: true, slots: 1, running, .. }] = &beats[..] else {
        panic!("{beats:?}")
    };
    assert_eq!(running.len(), 1, "the job goes on");
    executor.on_message(2, S, drain(ME, true));
    assert_eq!(executor.on_timer(2), [], "a repeated order causes no beat");
    executor.ended(3, at(1), Ok(Payload::default()));
    let declined = OffloadMessage::Decline { at: at(2), by: ME, why: DeclineWhy::Leaving };
    assert_eq!(assign(&mut executor, 2, &[]), declined);
    executor.on_message(4, S, drain(ME, false));
    assert_eq!(assign(&mut executor, 2, &[]), OffloadMessage::Accept { at: at(2), by: ME });
}

#[test]
fn a_slot_is_free_again_when_no_package_comes() {
    let mut executor = executor();
    assign(&mut executor, 1, &[]);
    executor.on_timer(OFFER_NS);
    assert!(executor.is_idle());
    assert_eq!(assign(&mut executor, 2, &[]), OffloadMessage::Accept { at: at(2), by: ME });
}

#[test]
fn an_older_life_of_a_scheduler_is_not_obeyed() {
    let mut executor = executor();
    let newer = SchedulerLife { term: 4, ..LIFE };
    executor.on_message(0, S, OffloadMessage::Heard { life: newer, next_ms: 100 });
    let order = JobOrder::default();
    let assign = OffloadMessage::Assign { at: at(1), life: LIFE, order };
    assert_eq!(executor.on_message(0, S, assign), []);
}

#[test]
fn a_failed_job_is_reported_until_it_is_noted() {
    let mut executor = executor();
    assign(&mut executor, 1, &[]);
    pack(&mut executor, 1);
    let cancel = OffloadMessage::Cancel { at: at(1), life: LIFE };
    assert_eq!(executor.on_message(0, S, cancel), [ExecutorStep::Stop { at: at(1) }]);
    let abort = OffloadMessage::Abort { at: at(1), by: ME, reason: ShortText::new("stopped") };
    let reported = executor.ended(1, at(1), Err(ShortText::new("stopped")));
    assert!(sent(&reported).contains(&abort));
    assert!(sent(&executor.on_timer(REPEAT_NS + 1)).contains(&abort));
    executor.on_message(2, S, OffloadMessage::Noted { at: at(1) });
    assert!(executor.is_idle());
}

#[test]
fn beat_names_the_attempts_of_its_scheduler_until_they_end() {
    let offer = ExecutorOffer { slots: 1, ..ExecutorOffer::default() };
    let mut executor = Executor::new(ME, offer, &[S, SchedulerId(2)]);
    assign(&mut executor, 1, &[]);
    pack(&mut executor, 1);
    let named = |executor: &mut Executor, now_ns| -> Vec<(SchedulerId, usize)> {
        let beat = |step: ExecutorStep| match step {
            ExecutorStep::Send { to, message: OffloadMessage::Beat { running, .. } } => {
                Some((to, running.len()))
            }
            _ => None,
        };
        executor.on_timer(now_ns).into_iter().filter_map(beat).collect()
    };
    assert_eq!(named(&mut executor, 0), [(S, 1), (SchedulerId(2), 0)]);
    // The answer to each beat repeats CANCEL, until the job has stopped.
    let cancel = OffloadMessage::Cancel { at: at(1), life: LIFE };
    for turn in 1..=2 {
        let stop = [ExecutorStep::Stop { at: at(1) }];
        assert_eq!(executor.on_message(0, S, cancel.clone()), stop);
        assert_eq!(named(&mut executor, turn * BEAT_NS)[0], (S, 1));
    }
    executor.ended(2 * BEAT_NS, at(1), Err(ShortText::new("stopped")));
    assert_eq!(executor.on_message(0, S, cancel), [], "a late one");
    assert_eq!(named(&mut executor, 3 * BEAT_NS)[0], (S, 0));
}

#[test]
fn a_commit_goes_to_other_schedulers_when_the_first_is_silent() {
    let offer = ExecutorOffer { slots: 1, ..ExecutorOffer::default() };
    let mut executor = Executor::new(ME, offer, &[S, SchedulerId(2)]);
    assign(&mut executor, 1, &[]);
    pack(&mut executor, 1);
    executor.ended(0, at(1), Ok(Payload::default()));
    let mut targets = BTreeSet::new();
    for turn in 1..=2 * PATIENCE_NS / REPEAT_NS {
        for step in executor.on_timer(turn * REPEAT_NS) {
            if let ExecutorStep::Send { to, message: OffloadMessage::Commit { .. } } = step {
                targets.insert(to);
            }
        }
    }
    assert_eq!(targets, BTreeSet::from([S, SchedulerId(2)]));
}

#[test]
fn commit_reaches_each_of_many_schedulers_in_turn() {
    let schedulers: Vec<SchedulerId> = (1..=5).map(SchedulerId).collect();
    let offer = ExecutorOffer { slots: 1, ..ExecutorOffer::default() };
    let mut executor = Executor::new(ME, offer, &schedulers);
    assign(&mut executor, 1, &[]);
    pack(&mut executor, 1);
    executor.ended(0, at(1), Ok(Payload::default()));
    let targets_of = |executor: &mut Executor, now_ns| -> Vec<SchedulerId> {
        let target = |step: &ExecutorStep| match step {
            ExecutorStep::Send { to, message: OffloadMessage::Commit { .. } } => Some(*to),
            _ => None,
        };
        executor.on_timer(now_ns).iter().filter_map(target).collect()
    };
    let mut targets = BTreeSet::new();
    let last = 5 * REPEAT_MAX_NS / REPEAT_NS;
    for turn in 1..=last {
        targets.extend(targets_of(&mut executor, turn * REPEAT_NS));
    }
    assert_eq!(targets, BTreeSet::from_iter(schedulers));
    // A new life of the first scheduler does not know the outputs, so it gets the next message.
    let now_ns = (last + 1) * REPEAT_NS;
    let life = SchedulerLife { term: LIFE.term + 1, ..LIFE };
    executor.on_message(now_ns, S, OffloadMessage::Heard { life, next_ms: 100 });
    assert_eq!(targets_of(&mut executor, now_ns), [S]);
}

#[test]
fn commit_is_repeated_ever_more_seldom_until_the_scheduler_has_a_new_life() {
    let mut executor = executor();
    assign(&mut executor, 1, &[]);
    pack(&mut executor, 1);
    executor.ended(0, at(1), Ok(Payload::default()));
    let is_sent = |executor: &mut Executor, now_ns| {
        let is_commit = |message: &OffloadMessage| matches!(message, OffloadMessage::Commit { .. });
        sent(&executor.on_timer(now_ns)).iter().any(is_commit)
    };
    let mut turns = Vec::new();
    for turn in 1..=100 {
        if is_sent(&mut executor, turn * REPEAT_NS) {
            turns.push(turn);
        }
    }
    assert_eq!(turns, [1, 3, 7, 15, 31, 56, 81]);
    let now_ns = 101 * REPEAT_NS;
    let heard = |term| {
        let life = SchedulerLife { term, ..LIFE };
        OffloadMessage::Heard { life, next_ms: 100 }
    };
    executor.on_message(now_ns, S, heard(LIFE.term));
    assert!(!is_sent(&mut executor, now_ns), "it is the same life");
    executor.on_message(now_ns, S, heard(LIFE.term + 1));
    assert!(is_sent(&mut executor, now_ns));
}
