//! Seeds of a scenario: sums over sound runs, and runs that leave steps out.

use std::ops::Range;

use archipelago_sim::{RunRequest, find, run_seeds, same_twice};

/// Sums of the figures over the seeds, by name. A failure panics with the command that repeats it.
pub(crate) fn sums(scenario: &str, seeds: Range<u64>) -> impl Fn(&str) -> u64 + use<> {
    let found = run_seeds(find(scenario).expect("a scenario"), seeds);
    let summary = found.unwrap_or_else(|failure| panic!("{failure}"));
    move |name| {
        let sum = summary.figures.iter().find(|figure| figure.name == name);
        sum.unwrap_or_else(|| panic!("no figure {name} in {summary:?}")).count
    }
}

/// Asserts that two runs of one seed are equal, and that runs of two seeds differ.
pub(crate) fn assert_seed_decides(scenario: &str) {
    let found = find(scenario).expect("a scenario");
    let trace = |seed| match same_twice(found, &RunRequest::new(seed)) {
        Ok(outcome) => outcome.trace,
        Err(failure) => panic!("{failure}"),
    };
    assert_ne!(trace(3), trace(11), "{scenario}");
}

/// Violations of one run without some steps. A panic is one of them.
pub(crate) fn violations(scenario: &str, seed: u64, without: &[&'static str]) -> Vec<String> {
    let request = RunRequest::new(seed).without(without);
    find(scenario).expect("a scenario").run(&request).violations
}

/// Whether some seed notices that steps are left out. A panic does not count.
pub(crate) fn is_noticed(scenario: &str, seeds: Range<u64>, without: &[&'static str]) -> bool {
    is_noticed_with(scenario, seeds, without, "")
}

/// Whether some seed notices, by a violation that contains `text`, that steps are left out. A panic
/// does not count.
pub(crate) fn is_noticed_with(
    scenario: &str,
    mut seeds: Range<u64>,
    without: &[&'static str],
    text: &str,
) -> bool {
    seeds.any(|seed| {
        let found = violations(scenario, seed, without);
        let panicked = found.iter().find(|violation| violation.starts_with("panicked"));
        assert_eq!(panicked, None, "scenario {scenario}, seed {seed} without {without:?}");
        found.iter().any(|violation| violation.contains(text))
    })
}
