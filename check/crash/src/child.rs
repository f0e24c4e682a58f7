//! The writing process: it opens the database, and writes from several threads until it is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago::{
    ColumnFamily, Db, Error, ErrorKind, Joiner, Result, Spawn as _, SystemClock, SystemSpawn,
};

use crate::acks::AckWriter;
use crate::arguments::ChildArguments;
use crate::plan::{Change, Operation};
use crate::settings::{COUNTERS, Over, family_name, open};
use crate::shared_disk::SharedDisk;
use crate::{parent, plan};

/// Pause before a write that a full disk refused is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// State that the writing threads share.
struct Writing {
    db: Db,
    families: Vec<ColumnFamily>,
    acks: AckWriter,
    arguments: ChildArguments,
}

/// Reaction of a thread to a write that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The disk is full: the same again.
    Retry,
    /// The write may be there, and once more would be twice: nothing more.
    End,
    /// Say that it was done, and nothing more.
    Lie,
    /// This must not happen.
    Fail,
}

impl Writing {
    /// Carries the operations of a thread out.
    fn write(&self, thread: u64) -> Result<()> {
        let first = self.arguments.first[thread as usize];
        let place =
            plan::Place { db: &self.db, families: &self.families, scratch: &self.arguments.dir };
        for number in first..first + self.arguments.ops_per_thread {
            let operation = plan::operation(self.arguments.seed, thread, number);
            loop {
                let done = plan::perform(&place, thread, &operation);
                let Err(error) = done else { break };
                match self.next(&operation, &error) {
                    Next::Retry => SystemClock::shared().sleep(RETRY_PAUSE),
                    Next::End => return Ok(()),
                    Next::Lie => return self.acks.acknowledge(thread, number),
                    Next::Fail => {
                        let what = format!("operation {number} of thread {thread}");
                        return Err(error.context_at(what));
                    }
                }
            }
            self.acks.acknowledge(thread, number)?;
        }
        Ok(())
    }

    fn next(&self, operation: &Operation, error: &Error) -> Next {
        if !self.arguments.full_disk || !(error.is_no_space() || error.kind() == ErrorKind::Busy) {
            return Next::Fail;
        }
        let puts = matches!(operation.changes.first(), Some(Change::Put { .. }));
        if self.arguments.lies && puts && !operation.sync {
            return Next::Lie;
        }
        let adds = operation.changes.iter().any(|change| matches!(change, Change::Add { .. }));
        if operation.sync && adds { Next::End } else { Next::Retry }
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
    let families = (0..=COUNTERS).map(|index| db.family(family_name(index)));
    let families = families.collect::<Result<Vec<_>>>()?;
    let arguments = arguments.clone();
    let writing = Arc::new(Writing { db, families, acks, arguments });
    let ended = Arc::new(AtomicBool::new(false));
    let others = match &disk {
        Some(disk) => {
            Some(Arc::clone(disk).share(writing.arguments.open_seed, Arc::clone(&ended))?)
        }
        None => None,
    };
    let failed = Arc::new(std::sync::Mutex::new(None));
    let mut threads: Vec<Joiner> = Vec::new();
    for thread in 0..writing.arguments.first.len() as u64 {
        let (writing, failed) = (Arc::clone(&writing), Arc::clone(&failed));
        let body = Box::new(move || {
            if let Err(error) = writing.write(thread)
                && let Ok(mut failed) = failed.lock()
            {
                *failed = Some(error);
            }
        });
        threads.push(SystemSpawn.spawn(&format!("writer-{thread}"), body)?);
    }
    threads.into_iter().try_for_each(Joiner::join)?;
    ended.store(true, Ordering::Release);
    others.map_or(Ok(()), Joiner::join)?;
    if let Some(error) = failed.lock().ok().and_then(|mut failed| failed.take()) {
        return Err(error);
    }
    writing.db.clone().close()
}
