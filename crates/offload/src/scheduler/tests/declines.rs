//! Attempts that executors decline.

use super::*;

fn decline(at: AttemptId, by: ExecutorId) -> OffloadMessage {
    OffloadMessage::Decline { at, by, why: DeclineWhy::Busy }
}

#[test]
fn a_declined_attempt_goes_to_another_executor() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, 0, X);
    beat(&mut scheduler, 0, Y);
    assert_eq!(assigned(&prepare(&mut scheduler, 0, 1, JobKind::Flush)), [(at(1, 1), X)]);
    let sent = scheduler.on_executor(0, X, decline(at(1, 1), X));
    assert_eq!(assigned(&sent), [(at(1, 1), Y)], "no package was sent, so it is the same attempt");
    let sent = scheduler.on_executor(0, X, decline(at(1, 1), X));
    assert_eq!(assigned(&sent), [], "the answer came twice");
}

#[test]
fn executor_without_a_slot_gets_a_job_after_its_next_beat() {
    let mut scheduler = scheduler();
    beat(&mut scheduler, LATER_NS, X);
    let sent = prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    assert_eq!(assigned(&sent), [(at(1, 1), X)]);
    let sent = scheduler.on_executor(LATER_NS, X, decline(at(1, 1), X));
    assert_eq!(assigned(&sent), []);
    for _ in 0..3 {
        assert_eq!(assigned(&scheduler.on_timer(LATER_NS)), [], "it would decline each time");
    }
    assert_eq!(assigned(&beat(&mut scheduler, LATER_NS, X)), [(at(1, 1), X)]);
}

#[test]
fn job_does_not_wait_for_one_executor_while_another_has_a_slot_again() {
    let mut scheduler = scheduler();
    for executor in [X, Y] {
        beat(&mut scheduler, LATER_NS, executor);
    }
    prepare(&mut scheduler, LATER_NS, 1, JobKind::Compaction);
    accept(&mut scheduler, at(1, 1), X);
    let sent = prepare(&mut scheduler, LATER_NS, 2, JobKind::Compaction);
    assert_eq!(assigned(&sent), [(at(2, 1), Y)]);
    // A job of another scheduler has the slot of this executor, and then ends.
    scheduler.on_executor(LATER_NS, Y, decline(at(2, 1), Y));
    assert_eq!(assigned(&beat(&mut scheduler, LATER_NS, Y)), [(at(2, 1), Y)]);
}
