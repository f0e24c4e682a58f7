//! `archipelago-crash`: kills a writing process many times, and checks the database after each
//! kill.
//!
//! In each cycle, a child process (this program again) opens the database, writes from several
//! threads and records every acknowledged operation in a file. After a random time, the parent
//! kills the child with `SIGKILL`, opens the database and checks it.
//!
//! Invariants that each cycle checks:
//! 1. The database holds every acknowledged operation.
//! 2. Beyond these, it holds at most one operation of each thread, the one in progress. It holds
//!    that operation in all keys, buckets and column families or in none.
//! 3. Counters are exact, because no merge was applied twice or lost.
//! 4. Iterators return the same forward and backward, and every checksum holds.
//!
//! Every few cycles, the program begins a new database with other settings. All random choices
//! follow from one seed; only the moment of the kill depends on the machine. `--sabotage` damages
//! the database before the check, in three ways, and succeeds if the check notices each of them.
//! With `--full-disk`, other programs fill the disk at random moments ([`shared_disk`]). The fourth
//! sabotage then acknowledges a write that the full disk refused.
//!
//! With `--storage N`, the database lies on storage nodes. With `--offload`, its memtables and jobs
//! leave the process that writes. Then the faults hit every role of the cluster at every step
//! ([`storage`], [`offload`]). With `--messages`, the faults of a run with `--offload` hit at every
//! message. The summary is a table of the steps and messages at which faults hit, and names those
//! without a hit.

mod acks;
mod arguments;
mod check;
mod child;
mod children;
mod course;
mod cycles;
mod offload;
mod parent;
mod plan;
mod reads;
mod roles;
mod sabotage;
mod settings;
mod shared_disk;
mod storage;
mod writers;

use std::process::ExitCode;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|word| word == children::ROLE).is_some() {
        let role = words.next().unwrap_or_default();
        return roles::run(&role, words);
    }
    let result = match Arguments::parse(words) {
        Ok(Command::Help) => {
            println!("{}", arguments::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Command::Child(child)) => child::run(&child).map_err(|error| error.to_string()),
        Ok(Command::Parent(arguments)) if arguments.storage > 0 => storage::run(&arguments),
        Ok(Command::Parent(arguments)) if arguments.offload => offload::run(&arguments),
        Ok(Command::Parent(arguments)) => parent::run(&arguments),
        Err(problem) => Err(format!("{problem}\n\n{}", arguments::USAGE)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
