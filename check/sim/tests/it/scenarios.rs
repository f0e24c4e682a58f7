//! The scenarios over some hundred seeds, the self-test of determinism, and the command that
//! replays a failure.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::process::Command;

use archipelago_sim::{Expect, SCENARIOS, Scenario, find, run_seeds, same_twice};

/// Seeds of each scenario in an ordinary test run.
const SEEDS: u64 = 200;

fn all(expect: Expect) -> impl Iterator<Item = &'static Scenario> {
    SCENARIOS.iter().filter(move |(_, is)| *is == expect).map(|(scenario, _)| scenario)
}

#[test]
fn what_must_hold_holds() {
    for scenario in all(Expect::Holds) {
        if let Err(failure) = run_seeds(scenario, 0..SEEDS) {
            panic!("{failure}");
        }
    }
}

#[test]
fn one_seed_gives_one_trace_and_others_give_others() {
    for scenario in all(Expect::Holds) {
        let hash = |seed| match same_twice(scenario, seed) {
            Ok(report) => report.trace_hash,
            Err(failure) => panic!("{failure}"),
        };
        let mut hashes: Vec<u64> = (1000..1010).map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 10, "{scenario:?}");
    }
}

#[test]
fn what_is_not_repeatable_is_found() {
    let scenario = Scenario::new("unrepeatable", "asks for entropy", |simulation| {
        simulation.record(archipelago_base::random::entropy_seed());
        Ok(())
    });
    let failure = same_twice(&scenario, 1).unwrap_err();
    assert!(failure.message.contains("two runs of one seed differ"), "{failure}");
}

#[test]
fn a_panic_is_a_failure_with_its_seed() {
    let scenario = Scenario::new("panics", "for seed 3", |simulation| {
        assert_ne!(simulation.seed(), 3, "three");
        Ok(())
    });
    let failure = run_seeds(&scenario, 0..10).unwrap_err();
    assert_eq!(failure.seed, 3);
    assert!(failure.message.contains("three"), "{failure}");
}

/// The command that the program prints when it finds something, run as it is printed, finds the
/// same again.
#[test]
fn the_printed_command_replays_the_failure() {
    let program = env!("CARGO_BIN_EXE_archipelago-sim");
    let many = ["--scenario", "lost-update", "--seed", "0", "--seeds", "50"];
    let out = Command::new(program).args(many).output().unwrap();
    assert!(!out.status.success(), "a program that is wrong on purpose is found");
    let said = String::from_utf8(out.stderr).unwrap();
    let found = said.lines().find(|line| line.starts_with("scenario lost-update, seed")).unwrap();
    let command = said.lines().find_map(|line| line.strip_prefix("replay: ")).unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some("cargo"));
    let replay = Command::new(env!("CARGO")).args(words).current_dir(root).output().unwrap();
    let again = String::from_utf8(replay.stderr).unwrap();
    assert!(!replay.status.success(), "{again}");
    assert!(again.contains(found), "the same again: {again}");
    assert!(again.contains("counts to"), "with what happened: {again}");
}

#[test]
fn a_failure_of_the_fabric_would_be_found() {
    // The lock without its guard, over the same network, fails for many seeds, not for one by luck.
    let wrong = find("lost-update").unwrap();
    let failed = (0..50).filter(|&seed| run_seeds(wrong, seed..seed + 1).is_err()).count();
    assert!(failed > 10, "{failed} of 50");
}
