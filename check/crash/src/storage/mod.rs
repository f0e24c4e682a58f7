//! A run over storage nodes: a manager, nodes and owners in processes of their own. Each of them is
//! killed or stopped at each step of an owner's work.
//!
//! | module | purpose |
//! | --- | --- |
//! | `steps` | steps of an owner, and the file system that notes them |
//! | `servers` | the manager and the storage nodes, as child processes |
//! | `owner` | the owner of a volume, as a child process, and opening a volume |
//! | `cluster` | the processes of a cluster, taken away and brought back |
//! | `cases` | the faults of a run |
//! | `session` | the cycles: write, fault, check |
//! | `losses` | the loss of each pair of nodes |
//!
//! Every choice follows from the seed, except the moments at which processes run.

mod cases;
mod cluster;
mod losses;
mod owner;
mod servers;
mod session;
mod steps;

use std::path::Path;

use archipelago::SystemClock;
use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;

use self::owner::OwnerRole;
use self::servers::{ManagerRole, NodeRole};
use self::session::Session;
use crate::arguments::Arguments;
use crate::children::Words;
use crate::sabotage::{SABOTAGES, is_of_damage};

/// Runs all cycles. `Err` tells of the violation, and how to repeat the run.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
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
            "FAILED: {problem}\nthe cluster and the messages of its processes are kept in {}\nto run \
             it again: {}",
            dir.display(),
            arguments.replay(seed)
        )),
    }
}

/// Runs everything that the arguments ask for. Returns the summary.
fn run_in(arguments: &Arguments, seed: u64, dir: &Path) -> Result<String, String> {
    let mut session = Session::start(arguments, seed, dir)?;
    if arguments.sabotage {
        session.begin_database()?;
        for sabotage in SABOTAGES {
            match session.damaged_cycle(sabotage) {
                Ok(()) => return Err(format!("{sabotage:?} was not seen")),
                Err(problem) if is_of_damage(&problem) => {
                    println!("{sabotage:?} is seen: {problem}");
                }
                Err(problem) => return Err(problem),
            }
            session.begin_database()?;
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
    }
    let mut summary = String::new();
    if arguments.losses > 0 {
        if arguments.cycles == 0 {
            session.begin_database()?;
        }
        let pairs = losses::try_pairs(&mut session, arguments.losses)?;
        summary = format!("{pairs} pairs of nodes lost, ");
    }
    Ok(summary + &session.end()?)
}

/// Runs a child process in a role of this module, and returns how it ended; `None` for a role of
/// another module. An error text tells of wrong words.
pub(crate) fn run_role(
    role: &str,
    words: &Words,
) -> Option<Result<archipelago::Result<()>, String>> {
    match role {
        ManagerRole::NAME => Some(ManagerRole::parse(words).map(|role| role.run())),
        NodeRole::NAME => Some(NodeRole::parse(words).map(|role| role.run())),
        OwnerRole::NAME => Some(OwnerRole::parse(words).map(|role| role.run())),
        _ => None,
    }
}
