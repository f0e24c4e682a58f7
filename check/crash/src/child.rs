//! The writing process: opens the database, writes from several threads until it is killed.

use std::sync::Arc;

use archipelago::{Joiner, Result, Spawn as _, SystemSpawn};

use crate::acks::AckWriter;
use crate::arguments::ChildArguments;
use crate::settings::{COUNTERS, Over, family_name, open};
use crate::{parent, plan};

/// Writes; returns only if nobody kills it.
pub(crate) fn run(arguments: &ChildArguments) -> Result<()> {
    let acks = Arc::new(AckWriter::open(&parent::acks_path(&arguments.dir))?);
    let over = if arguments.tiers { Over::Tiers { dies: true } } else { Over::Plain };
    let db =
        open(&parent::database_path(&arguments.dir), arguments.seed, arguments.open_seed, over)?;
    let families = (0..=COUNTERS).map(|index| db.family(family_name(index)));
    let families = Arc::new(families.collect::<Result<Vec<_>>>()?);
    let failed = Arc::new(std::sync::Mutex::new(None));
    let mut threads: Vec<Joiner> = Vec::new();
    for (thread, &first) in arguments.first.iter().enumerate() {
        let (db, families, acks) = (db.clone(), Arc::clone(&families), Arc::clone(&acks));
        let (seed, count, failed) = (arguments.seed, arguments.ops_per_thread, Arc::clone(&failed));
        let scratch = arguments.dir.clone();
        let body = Box::new(move || {
            let thread = thread as u64;
            let place = plan::Place { db: &db, families: &families, scratch: &scratch };
            for number in first..first + count {
                let operation = plan::operation(seed, thread, number);
                let done = plan::perform(&place, thread, &operation)
                    .and_then(|()| acks.acknowledge(thread, number));
                if let Err(error) = done {
                    let error = error.context_at(format!("operation {number} of thread {thread}"));
                    if let Ok(mut failed) = failed.lock() {
                        *failed = Some(error);
                    }
                    return;
                }
            }
        });
        threads.push(SystemSpawn.spawn(&format!("writer-{thread}"), body)?);
    }
    threads.into_iter().try_for_each(Joiner::join)?;
    if let Some(error) = failed.lock().ok().and_then(|mut failed| failed.take()) {
        return Err(error);
    }
    db.close()
}
