//! Seeded runs of the memory-disaggregated store: compute nodes, memory nodes, the pool's manager
//! and the store's coordinator over the fabric in virtual time, with crashes, restarts, cuts,
//! stops, clocks that run apart, loss, delay and doubled messages, all from one seed.
//!
//! The runs execute the code of the product; only threads and clocks are the simulation's. The run
//! records every answer that a client gets (`history.rs`), and an independent linearizability
//! checker judges the history of each key (`judge.rs`). Clients call while faults happen. In runs
//! with scans, nodes also list all keys while clients add and remove keys (`scans.rs`). At the end
//! the faults stop, every node reads every key, and the run counts the memory in use (`audit.rs`).

mod audit;
mod coordinator;
mod history;
mod judge;
mod node;
mod scans;
mod world;

pub use history::{Event, History, Op, Ret};
pub use judge::{Verdict, judge, weaker};
pub use node::Cached;
pub use scans::ScanFigures;
pub use world::{Outcome, Settings, run};

/// The command that repeats one seed's run and prints what happens in it.
#[must_use]
pub fn replay_command(
    seed: u64,
    sabotage: archipelago_memory::core::Sabotage,
    flex: archipelago_flexkv::Sabotage,
) -> String {
    let flag = |left_out, flag| if left_out { flag } else { "" };
    format!(
        "cargo run -p archipelago-sim --bin archipelago-flex-check -- --from {seed} --seeds 1 --trace{}{}{}{}{}{}{}{}",
        crate::seeds::words_of(sabotage),
        flag(flex.no_lease, " --no-lease"),
        flag(flex.early_commit, " --early-commit"),
        flag(flex.no_repair, " --no-repair"),
        flag(flex.no_invalidation, " --no-invalidation"),
        flag(flex.no_clearing, " --no-clearing"),
        flag(flex.skip_bucket, " --scans --skip-bucket"),
        flag(flex.no_rescan, " --scans --no-rescan")
    )
}
