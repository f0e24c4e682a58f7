//! Seeded runs of the writer and of recoveries over a model of nodes, and proofs that the runs
//! notice a protocol with a step left out.

mod model;

use self::model::{Run, Settings};
use super::AckRule;
use super::quorum::WriterSabotage;
use super::recovery::RecoverySabotage;

fn settings(ack: AckRule) -> Settings {
    Settings {
        ack,
        writer: WriterSabotage::default(),
        recovery: RecoverySabotage::default(),
        loses_power: true,
    }
}

/// The first seed below `seeds` whose run breaks a rule, and the rule.
fn first_problem(settings: Settings, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| Some((seed, Run::new(seed, settings).problem()?)))
}

#[test]
fn quorum_logs_keep_their_promises_in_every_run() {
    assert_eq!(first_problem(settings(AckRule::Quorum), 2000), None);
}

#[test]
fn manifests_keep_their_promises_in_every_run() {
    assert_eq!(first_problem(settings(AckRule::AllSynced), 1000), None);
}

#[test]
fn runs_reach_extents_recoveries_and_losses() {
    let mut seen = model::Coverage::default();
    for seed in 0..500 {
        let mut run = Run::new(seed, settings(AckRule::Quorum));
        assert_eq!(run.problem(), None, "seed {seed}");
        seen.add(&run.coverage);
    }
    assert!(seen.extents > 300, "{seen:?}");
    assert!(seen.recoveries > 500, "{seen:?}");
    assert!(seen.unsynced_losses > 3, "{seen:?}");
    assert!(seen.finished > 20, "{seen:?}");
    assert!(seen.fenced_writers > 100, "{seen:?}");
    assert!(seen.damaged_answers > 10, "{seen:?}");
}

fn assert_noticed(settings: Settings) {
    let found = first_problem(settings, 20_000);
    assert!(found.is_some(), "no run noticed it");
}

#[test]
fn recovery_without_fence_is_noticed() {
    let recovery = RecoverySabotage { no_fence: true, ..RecoverySabotage::default() };
    assert_noticed(Settings { recovery, ..settings(AckRule::Quorum) });
}

#[test]
fn recovery_that_believes_limbo_is_noticed() {
    let recovery = RecoverySabotage { no_limbo: true, ..RecoverySabotage::default() };
    assert_noticed(Settings { recovery, ..settings(AckRule::Quorum) });
}

#[test]
fn recovery_that_believes_damaged_replicas_is_noticed() {
    let recovery = RecoverySabotage { believes_damaged: true, ..RecoverySabotage::default() };
    // One damaged replica of a quorum log is never enough to choose a wrong end.
    assert_noticed(Settings { recovery, loses_power: false, ..settings(AckRule::AllSynced) });
}

#[test]
fn acknowledging_unrecorded_extents_is_noticed() {
    let writer = WriterSabotage { early_extent: true, ..WriterSabotage::default() };
    assert_noticed(Settings { writer, loses_power: false, ..settings(AckRule::Quorum) });
}

#[test]
fn acknowledging_at_one_answer_is_noticed() {
    let writer = WriterSabotage { ack_at_one: true, ..WriterSabotage::default() };
    assert_noticed(Settings { writer, loses_power: false, ..settings(AckRule::Quorum) });
}

#[test]
fn counting_late_answers_is_noticed() {
    let writer = WriterSabotage { late_answers: true, ..WriterSabotage::default() };
    assert_noticed(Settings { writer, loses_power: false, ..settings(AckRule::Quorum) });
}
