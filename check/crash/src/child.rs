//! The writing process: it opens the database, and writes from several threads until it is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago::Result;
use archipelago::env::local::LocalFs;

use crate::acks::AckWriter;
use crate::arguments::ChildArguments;
use crate::parent;
use crate::reads::Reads;
use crate::settings::{Over, open};
use crate::shared_disk::SharedDisk;
use crate::writers::{Refusals, ThreadStart, WriterPlan, Writers};

/// Operations of the threads.
fn plan(arguments: &ChildArguments) -> WriterPlan {
    let starts = (0..).zip(&arguments.first);
    WriterPlan {
        seed: arguments.seed,
        ops_per_thread: arguments.ops_per_thread,
        threads: starts.map(|(thread, &first)| ThreadStart { thread, first }).collect(),
        refusals: match (arguments.full_disk, arguments.lies) {
            (false, _) => Refusals::Fail,
            (true, false) => Refusals::Retry,
            (true, true) => Refusals::Lie,
        },
        fs: Arc::new(LocalFs::new()),
        scratch: arguments.dir.clone(),
        reads: Reads::None,
    }
}

/// Writes, and returns only if the parent does not kill the process.
pub(crate) fn run(arguments: &ChildArguments) -> Result<()> {
    let acks = AckWriter::open(&parent::acks_path(&arguments.dir))?;
    let path = parent::database_path(&arguments.dir);
    let disk = match arguments.full_disk {
        true => Some(Arc::new(SharedDisk::new(&path, arguments.open_seed)?)),
        false => None,
    };
    let over = match &disk {
        Some(disk) => Over::Disk(disk),
        None if arguments.tiers => Over::Tiers { dies: true },
        None => Over::Plain,
    };
    let db = open(&path, arguments.seed, arguments.open_seed, over)?;
    let ended = Arc::new(AtomicBool::new(false));
    let others = match &disk {
        Some(disk) => Some(Arc::clone(disk).share(arguments.open_seed, Arc::clone(&ended))?),
        None => None,
    };
    let writers = Writers::new(db.clone(), acks, plan(arguments), Box::new(|| {}))?;
    let written = writers.run();
    ended.store(true, Ordering::Release);
    others.map_or(Ok(()), archipelago::Joiner::join)?;
    written?;
    db.close()
}
