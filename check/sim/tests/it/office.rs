//! Seeds of the protocol by which one of several managers acts, and proof that the check would see
//! what is wrong.

use archipelago_manager::office::OfficeSabotage;
use archipelago_memory::promise::PromiseSabotage;
use archipelago_sim::pool::{OfficeOutcome, run_office};

const SEEDS: u64 = 400;

fn sound(seed: u64) -> OfficeOutcome {
    run_office(seed, OfficeSabotage::default(), PromiseSabotage::default())
}

#[test]
fn one_manager_at_a_time_holds_office_in_every_seed() {
    let mut terms = 0;
    for seed in 0..SEEDS {
        let outcome = sound(seed);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        terms += outcome.terms;
    }
    // A run in which office does not change hands proves nothing.
    assert!(terms > 4 * SEEDS, "{terms}");
}

fn is_noticed(of_managers: OfficeSabotage, of_nodes: PromiseSabotage) -> bool {
    (0..SEEDS).any(|seed| !run_office(seed, of_managers, of_nodes).violations.is_empty())
}

#[test]
fn manager_that_acts_with_one_promise_is_noticed() {
    let sabotage = OfficeSabotage { no_majority: true, ..OfficeSabotage::default() };
    assert!(is_noticed(sabotage, PromiseSabotage::default()));
}

#[test]
fn manager_that_counts_from_the_answer_is_noticed() {
    let sabotage = OfficeSabotage { counts_from_answer: true, ..OfficeSabotage::default() };
    assert!(is_noticed(sabotage, PromiseSabotage::default()));
}

#[test]
fn node_that_promises_again_after_a_restart_is_noticed() {
    let sabotage = PromiseSabotage { no_grace: true, ..PromiseSabotage::default() };
    assert!(is_noticed(OfficeSabotage::default(), sabotage));
}

#[test]
fn node_that_promises_while_a_promise_lasts_is_noticed() {
    let sabotage = PromiseSabotage { no_patience: true, ..PromiseSabotage::default() };
    assert!(is_noticed(OfficeSabotage::default(), sabotage));
}
