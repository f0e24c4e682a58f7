//! The small scenarios over some hundred seeds, the self-test of determinism, and the program: its
//! command line, and the command that replays a failure.

use std::process::{Command, Output};

use archipelago_sim::{
    Expect, RunOutcome, RunRequest, SCENARIOS, Scenario, Step, find, run_seeds, same_twice,
};

/// Seeds of each scenario in an ordinary test run.
const SEEDS: u64 = 200;
/// Scenarios that run for milliseconds. The others have tests of their own.
const SMALL: [&str; 3] = ["fabric", "lock", "election"];

fn small() -> impl Iterator<Item = &'static Scenario> {
    SMALL.iter().map(|name| find(name).expect("a scenario"))
}

#[test]
fn small_scenarios_hold_for_every_seed() {
    for scenario in small() {
        if let Err(failure) = run_seeds(scenario, 0..SEEDS) {
            panic!("{failure}");
        }
    }
}

#[test]
fn every_seed_gives_its_own_trace() {
    for scenario in small() {
        let hash = |seed| match same_twice(scenario, &RunRequest::new(seed)) {
            Ok(outcome) => outcome.trace.hash,
            Err(failure) => panic!("{failure}"),
        };
        let mut hashes: Vec<u64> = (1000..1010).map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 10, "{scenario:?}");
    }
}

#[test]
fn scenario_that_cannot_repeat_is_noticed() {
    let scenario = Scenario::new("unrepeatable", "asks for entropy", |simulation| {
        simulation.record(archipelago_base::random::entropy_seed());
        Ok(())
    });
    let failure = same_twice(&scenario, &RunRequest::new(1)).expect_err("the runs differ");
    assert!(failure.to_string().contains("two runs of one seed differ"), "{failure}");
}

#[test]
fn panic_is_a_failure_with_its_seed() {
    let scenario = Scenario::new("panics", "for seed 3", |simulation| {
        assert_ne!(simulation.seed(), 3, "three");
        Ok(())
    });
    let failure = run_seeds(&scenario, 0..10).expect_err("seed 3 panics");
    assert_eq!(failure.request.seed, 3);
    assert!(failure.to_string().contains("three"), "{failure}");
}

#[test]
fn panic_without_a_step_prints_the_command_that_repeats_it() {
    const STEPS: [Step; 2] =
        [Step { name: "fencing", about: "fences" }, Step { name: "fill", about: "fills" }];
    let body = |request: &RunRequest| -> RunOutcome {
        panic!("a copy too many: {}", request.leaves_out("fill"))
    };
    let scenario = Scenario::with_steps("panics", "for every seed", &STEPS, body);
    let request = RunRequest::new(4711).without(&["fill"]);
    let text = scenario.check(&request).expect_err("it panics").to_string();
    let command = "--scenario panics --from 4711 --seeds 1 --trace --without fill";
    for word in ["seed 4711", "a copy too many: true", command] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("fencing"), "{text}");
}

/// Runs the program and returns its output.
fn program(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_archipelago-sim")).args(words).output().expect("it starts")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// Begin of the command that the program prints after a failure.
const REPLAY: &str = concat!("replay: cargo run --quiet -p ", env!("CARGO_PKG_NAME"), " -- ");

/// The command that the program prints after a failure finds the same failure when it runs as
/// printed. The test runs the program that Cargo has built for it: a second Cargo, which builds
/// this package alone, would choose other features of its dependencies and build all of them again.
#[test]
fn printed_command_replays_the_failure() {
    let out = program(&["--scenario", "lost-update", "--from", "0", "--seeds", "50"]);
    assert_eq!(out.status.code(), Some(1), "a scenario that is wrong on purpose fails");
    let said = text(out.stderr);
    let found = said.lines().find(|line| line.starts_with("scenario lost-update, seed"));
    let found = found.expect("a failure with its seed");
    let command = said.lines().find_map(|line| line.strip_prefix(REPLAY)).expect("a command");
    let replay = program(&command.split(' ').collect::<Vec<_>>());
    let again = text(replay.stderr);
    assert_eq!(replay.status.code(), Some(1), "{again}");
    assert!(again.contains(found), "the same failure: {again}");
    assert!(again.contains("counts to"), "with notes: {again}");
}

#[test]
fn program_counts_failures_and_continues() {
    let out = program(&["--scenario", "lost-update", "--seeds", "50"]);
    let line = text(out.stdout);
    let failed = line.split(", ").find_map(|part| part.strip_suffix(" failed; 0 events"));
    assert!(failed.is_none(), "events are counted: {line}");
    assert!(line.starts_with("lost-update: 50 seeds from 0, "), "{line}");
    assert!(!line.contains(" 0 failed"), "{line}");
}

#[test]
fn program_without_a_step_fails_and_repeats_it() {
    let out = program(&["--scenario", "office", "--without", "majority", "--seeds", "10"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(out.stderr).contains(" --trace --without majority"), "the command repeats it");
}

#[test]
fn wrong_names_list_the_right_ones() {
    let out = program(&["--scenario", "flood"]);
    assert_eq!(out.status.code(), Some(2));
    let said = text(out.stderr);
    for (scenario, _) in SCENARIOS.iter() {
        assert!(said.contains(scenario.name()), "{}: {said}", scenario.name());
    }
    let out = program(&["--scenario", "pool", "--without", "lease"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(out.stderr).contains("its steps are fencing, fill, eviction"));
}

#[test]
fn list_names_every_scenario_and_step() {
    let said = text(program(&["--list"]).stdout);
    for (scenario, _) in SCENARIOS.iter() {
        assert!(said.contains(scenario.about()), "{said}");
        for step in scenario.steps() {
            assert!(said.contains(&format!("--without {}", step.name)), "{said}");
        }
    }
}

#[test]
fn one_scenario_is_wrong_on_purpose() {
    let wrong = SCENARIOS.iter().filter(|(_, expect)| *expect == Expect::Fails);
    assert_eq!(wrong.map(|(scenario, _)| scenario.name()).collect::<Vec<_>>(), ["lost-update"]);
}

#[test]
fn lost_update_fails_for_many_seeds() {
    // The lock without its guard, over the same network, fails for many seeds, not for one by luck.
    let wrong = find("lost-update").expect("a scenario");
    let failed = (0..50).filter(|&seed| run_seeds(wrong, seed..seed + 1).is_err()).count();
    assert!(failed > 10, "{failed} of 50");
}
