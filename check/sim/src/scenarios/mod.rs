//! The scenarios that tests and program know.

mod election;
mod fabric;
pub mod flexkv;
pub mod pool;
mod words;

use std::sync::LazyLock;

use crate::run::Scenario;

/// Whether a scenario must hold, or is there to show that failures are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// In every run.
    Holds,
    /// It is wrong on purpose: some seed finds it.
    Fails,
}

/// All of them.
pub static SCENARIOS: LazyLock<Vec<(Scenario, Expect)>> = LazyLock::new(|| {
    vec![
        (fabric::scenario(), Expect::Holds),
        (words::locked(), Expect::Holds),
        (election::scenario(), Expect::Holds),
        (words::lost_update(), Expect::Fails),
    ]
});

/// The scenario of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().map(|(scenario, _)| scenario).find(|scenario| scenario.name() == name)
}
