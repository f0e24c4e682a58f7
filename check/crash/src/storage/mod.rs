//! A run over storage nodes: a manager, nodes and owners in processes of their own. Each of them is
//! killed or stopped at each step of an owner's work.
//!
//! | module | purpose |
//! | --- | --- |
//! | `words` | the command line of a child process |
//! | `steps` | steps of an owner, and the file system that notes them |
//! | `process` | a child process: its lines, its signals and its end |
//! | `servers` | the manager and the storage nodes, as child processes |
//! | `owner` | the owner of a volume, as a child process, and opening a volume |
//! | `cluster` | the processes of a cluster, taken away and brought back |
//! | `cases` | the faults of a run, and how often each was hit |
//! | `session` | the cycles: write, fault, check |
//! | `losses` | the loss of each pair of nodes |
//!
//! Every choice follows from the seed, except the moments at which processes run.

mod cases;
mod cluster;
mod losses;
mod owner;
mod process;
mod servers;
mod session;
mod steps;
mod words;

use std::path::Path;
use std::process::ExitCode;

use archipelago::env::FileSystem as _;
use archipelago::env::local::LocalFs;
use archipelago::{ErrorKind, SystemClock};
use rustix::process::{Signal, set_parent_process_death_signal};

use self::owner::OwnerRole;
use self::servers::{ManagerRole, NodeRole};
use self::session::{BUSY, FENCED, Session};
use self::words::Words;
use crate::arguments::Arguments;
use crate::sabotage::SABOTAGES;

pub(crate) use self::words::ROLE;

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

/// Whether a check found that the database does not hold what was acknowledged.
fn is_of_damage(problem: &str) -> bool {
    problem.contains("operations acknowledged") || problem.contains("shared counters")
}

/// Runs a child process in its role.
pub(crate) fn run_role(role: &str, words: impl Iterator<Item = String>) -> ExitCode {
    // A stopped process notices the end of its parent by this signal only.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("cannot ask for the end of this process with its parent: {error}");
        return ExitCode::FAILURE;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let parsed = Words::parse(words);
    let ended = match role {
        ManagerRole::NAME => {
            parsed.and_then(|words| ManagerRole::parse(&words)).map(|role| role.run())
        }
        NodeRole::NAME => parsed.and_then(|words| NodeRole::parse(&words)).map(|role| role.run()),
        OwnerRole::NAME => parsed.and_then(|words| OwnerRole::parse(&words)).map(|role| role.run()),
        _ => Err(format!("{ROLE}: there is no role \"{role}\"")),
    };
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error}");
            match error.kind() {
                ErrorKind::Fenced => ExitCode::from(FENCED),
                ErrorKind::Busy => ExitCode::from(BUSY),
                _ => ExitCode::FAILURE,
            }
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
