//! `archipelago-crash`: kills a writing process again and again and looks at what is left.
//!
//! Each cycle: a child process (this program again) opens the database, writes from several
//! threads and records every acknowledged operation in a file; after a random time it is killed
//! with `SIGKILL`; then this process opens the database and checks that
//!
//! 1. every acknowledged operation is there;
//! 2. of each thread at most the one operation that was under way is there too, and wholly so, over
//!    all keys, buckets and column families that it touches;
//! 3. counters are exact: no merge was applied twice or lost;
//! 4. iterators see the same forward and backward, and every checksum holds.
//!
//! Every few cycles it starts a new database with other settings. Everything that is decided by
//! chance comes from one seed; only when the kill hits is up to the machine. `--sabotage` damages
//! the database before the check, in three ways, and succeeds if each of them is seen. With
//! `--full-disk` other programs fill the disk at random moments ([`shared_disk`]); the fourth
//! sabotage is a write that was refused for want of room and is acknowledged all the same.

mod acks;
mod arguments;
mod check;
mod child;
mod parent;
mod plan;
mod settings;
mod shared_disk;

use std::process::ExitCode;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let result = match Arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            println!("{}", arguments::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Command::Child(child)) => child::run(&child).map_err(|error| error.to_string()),
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
