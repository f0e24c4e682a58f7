//! The scenarios that tests and the program know.

mod copies;
mod election;
mod fabric;
pub mod flexkv;
mod offload;
mod offload_db;
mod offsets;
pub mod pool;
mod shard_parts;
mod shards;
mod shares;
pub mod storage;
mod thread;
mod words;

use std::sync::LazyLock;

use crate::run::{Figure, Scenario};

/// Expected result of a scenario's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Every run holds.
    Holds,
    /// Some seed fails, because the scenario is wrong on purpose.
    Fails,
}

/// All scenarios, each with its expected result.
pub static SCENARIOS: LazyLock<Vec<(Scenario, Expect)>> = LazyLock::new(|| {
    vec![
        (fabric::scenario(), Expect::Holds),
        (words::locked(), Expect::Holds),
        (election::scenario(), Expect::Holds),
        (pool::scenario(), Expect::Holds),
        (pool::office_scenario(), Expect::Holds),
        (flexkv::scenario(), Expect::Holds),
        (flexkv::scan_scenario(), Expect::Holds),
        (offload::scenario(), Expect::Holds),
        (offload_db::scenario(), Expect::Holds),
        (shards::scenario(), Expect::Holds),
        (offsets::scenario(), Expect::Holds),
        (shares::scenario(), Expect::Holds),
        (copies::scenario(), Expect::Holds),
        (storage::scenario(), Expect::Holds),
        (storage::database_scenario(), Expect::Holds),
        (storage::directed_scenario(), Expect::Holds),
        (words::lost_update(), Expect::Fails),
    ]
});

/// The scenario of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().map(|(scenario, _)| scenario).find(|scenario| scenario.name() == name)
}

fn figures<const N: usize>(counted: [(&'static str, u64); N]) -> Vec<Figure> {
    counted.map(|(name, count)| Figure { name, count }).into()
}
