//! A run with offloading: a manager, memory nodes, executors and owners in processes of their own.
//! Each of them is killed or stopped at each step of an owner's work.
//!
//! The database lies in a directory that all executors reach. Its sealed memtables, flushes,
//! compactions and garbage collections leave the owner (docs/design/offload.md).
//!
//! | module | purpose |
//! | --- | --- |
//! | `steps` | steps of an owner, by the fault points of the engine |
//! | `cases` | the faults of a run |
//! | `servers` | the manager, the memory nodes and the executors, as child processes |
//! | `owner` | the owner of the database, as a child process, and opening the database |
//! | `cluster` | the servers, taken away and brought back |
//! | `session` | the cycles: write, fault, check |
//! | `summary` | figures that show what left the owners of a run |
//!
//! Every choice follows from the seed, except the moments at which processes run. A directory has
//! one owner at a time, because the owner locks it. So no run has an owner that another one
//! replaced while it lived: scenario `offload` of `archipelago-sim` has those.

mod cases;
mod cluster;
mod owner;
mod servers;
mod session;
mod steps;
mod summary;

use std::path::Path;

use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;
use archipelago::{Result, SystemClock};

use self::owner::OwnerRole;
use self::servers::{ExecutorRole, ManagerRole, MemoryRole};
use self::session::Session;
use crate::arguments::Arguments;
use crate::children::Words;
use crate::sabotage::{SABOTAGES, is_of_damage};

/// Runs all cycles. `Err` tells of the violation, and how to repeat the run.
pub(crate) fn run(arguments: &Arguments) -> std::result::Result<(), String> {
    let seed = arguments.seed.unwrap_or_else(archipelago::entropy_seed);
    let base = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = base.join(format!("archipelago-crash-{}", std::process::id()));
    println!("seed {seed}; working in {}", dir.display());
    match run_in(arguments, seed, &dir) {
        Ok(summary) => {
            println!("passed: {summary}");
            LocalFs::new().remove_dir_all(&dir).map_err(|error| error.to_string())
        }
        Err(problem) => Err(format!(
            "FAILED: {problem}\nthe database and the messages of the processes are kept in {}\nto \
             run it again: {}",
            dir.display(),
            arguments.replay(seed)
        )),
    }
}

/// Runs everything that the arguments ask for. Returns the summary.
fn run_in(arguments: &Arguments, seed: u64, dir: &Path) -> std::result::Result<String, String> {
    let mut session = Session::start(arguments, seed, dir)?;
    if arguments.sabotage {
        for sabotage in SABOTAGES {
            session.begin_database()?;
            match session.damaged_cycle(sabotage) {
                Ok(()) => return Err(format!("{sabotage:?} was not seen")),
                Err(problem) if is_of_damage(&problem) => {
                    println!("{sabotage:?} is seen: {problem}");
                }
                Err(problem) => return Err(problem),
            }
        }
        return session.end();
    }
    let clock = SystemClock::shared();
    for cycle in 0..arguments.cycles {
        if cycle % arguments.cycles_per_database == 0 {
            session.begin_database()?;
        }
        let began_ns = clock.now_ns();
        let (case, hit) = session.cycle().map_err(|problem| format!("cycle {cycle}: {problem}"))?;
        println!(
            "cycle {} of {}: {case}{}, {:.1} s",
            cycle + 1,
            arguments.cycles,
            if hit { "" } else { " (not at the step)" },
            (clock.now_ns() - began_ns) as f64 / 1e9
        );
        let ends = (cycle + 1) % arguments.cycles_per_database == 0;
        if ends || cycle + 1 == arguments.cycles {
            session.check_rest().map_err(|problem| format!("at rest: {problem}"))?;
        }
    }
    session.end()
}

/// Runs a child process in a role of this module, and returns how it ended; `None` for a role of
/// another module. An error text tells of wrong words.
pub(crate) fn run_role(
    role: &str,
    words: &Words,
) -> Option<std::result::Result<Result<()>, String>> {
    match role {
        ManagerRole::NAME => Some(ManagerRole::parse(words).map(|role| role.run())),
        MemoryRole::NAME => Some(MemoryRole::parse(words).map(|role| role.run())),
        ExecutorRole::NAME => Some(ExecutorRole::parse(words).map(|role| role.run())),
        OwnerRole::NAME => Some(OwnerRole::parse(words).map(|role| role.run())),
        _ => None,
    }
}
