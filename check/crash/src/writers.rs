//! The writing threads of a process: each carries its operations out, and records every operation
//! that the database has acknowledged.
//!
//! Thread-safety: [`Writers::run`] starts one thread for each entry of [`WriterPlan::threads`].
//! Failure: a write that the plan does not permit to fail ends its thread, and the first such error
//! is that of the run.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago::env::FileSystem;
use archipelago::{
    ColumnFamily, Db, Error, ErrorKind, Joiner, Result, Spawn as _, SystemClock, SystemSpawn,
};

use crate::acks::AckWriter;
use crate::plan::{self, Change, Operation, Place};
use crate::reads::{ReadCheck, Reads};
use crate::settings::{COUNTERS, family_name};

/// Pause before a write that a full disk refused is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Meaning of a write that a full disk refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Refusals {
    /// No write may be refused.
    #[default]
    Fail,
    /// The write is tried again.
    Retry,
    /// The write is tried again, unless it adds to a counter: over a network, the refused write may
    /// have happened.
    RetryAllButAdditions,
    /// The thread claims that a refused put was done, and ends. Other writes are tried again.
    Lie,
}

/// A thread, and the number of its first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadStart {
    pub(crate) thread: u64,
    pub(crate) first: u64,
}

impl ThreadStart {
    /// Writes threads for a command line.
    pub(crate) fn words(threads: &[Self]) -> String {
        let words: Vec<String> =
            threads.iter().map(|start| format!("{}:{}", start.thread, start.first)).collect();
        words.join(",")
    }

    /// Reads threads from a command line.
    pub(crate) fn parse(words: &str) -> std::result::Result<Vec<Self>, String> {
        words.split(',').map(Self::parse_one).collect()
    }

    fn parse_one(text: &str) -> std::result::Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(thread, first)| {
            Some(Self { thread: thread.parse().ok()?, first: first.parse().ok()? })
        });
        parsed.ok_or_else(|| format!("\"{text}\" names no thread with its first operation"))
    }
}

/// Operations of the threads, and the way in which they are written.
#[derive(Clone, Debug)]
pub(crate) struct WriterPlan {
    /// Seed of the operations.
    pub(crate) seed: u64,
    /// Largest number of operations of a thread.
    pub(crate) ops_per_thread: u64,
    pub(crate) threads: Vec<ThreadStart>,
    pub(crate) refusals: Refusals,
    /// File system of the tables that are ingested.
    pub(crate) fs: Arc<dyn FileSystem>,
    /// Directory for the tables that are ingested.
    pub(crate) scratch: PathBuf,
    pub(crate) reads: Reads,
}

/// Reaction of a thread to a write that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    /// The disk is full, so the thread tries the write again.
    Retry,
    /// The write may exist, and a repetition would apply it twice. So the thread ends.
    End,
    /// The thread claims that the write was done, and ends.
    Lie,
    /// The error must not happen, and fails the run.
    Fail,
}

/// The threads that write to one database.
pub(crate) struct Writers {
    db: Db,
    families: Vec<ColumnFamily>,
    acks: AckWriter,
    plan: WriterPlan,
    /// Invoked before each operation.
    observer: Box<dyn Fn() + Send + Sync>,
    /// Number of reads that were compared.
    reads: AtomicU64,
}

impl Writers {
    /// Writers to `db`, which has all families. Each invokes `observer` before an operation.
    pub(crate) fn new(
        db: Db,
        acks: AckWriter,
        plan: WriterPlan,
        observer: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Arc<Self>> {
        let families = (0..=COUNTERS).map(|index| db.family(family_name(index)));
        let families = families.collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Self { db, families, acks, plan, observer, reads: AtomicU64::new(0) }))
    }

    /// Number of reads that were compared so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Runs all threads to their ends.
    pub(crate) fn run(self: &Arc<Self>) -> Result<()> {
        let failed = Arc::new(Mutex::new(None));
        let mut threads: Vec<Joiner> = Vec::new();
        for start in self.plan.threads.clone() {
            let (writers, failed) = (Arc::clone(self), Arc::clone(&failed));
            let body = Box::new(move || {
                if let Err(error) = writers.write(start)
                    && let Ok(mut failed) = failed.lock()
                {
                    failed.get_or_insert(error);
                }
            });
            threads.push(SystemSpawn.spawn(&format!("writer-{}", start.thread), body)?);
        }
        threads.into_iter().try_for_each(Joiner::join)?;
        failed.lock().ok().and_then(|mut failed| failed.take()).map_or(Ok(()), Err)
    }

    /// Carries the operations of a thread out.
    fn write(&self, start: ThreadStart) -> Result<()> {
        let ThreadStart { thread, first } = start;
        let WriterPlan { fs, scratch, seed, .. } = &self.plan;
        let place = Place { db: &self.db, families: &self.families, fs, scratch };
        let mut check = match self.plan.reads {
            Reads::None => None,
            Reads::Compared { limit } => Some(ReadCheck::new(*seed, thread, first, limit)),
        };
        for number in first..first + self.plan.ops_per_thread {
            (self.observer)();
            let operation = plan::operation(*seed, thread, number);
            while let Err(error) = plan::perform(&place, thread, &operation) {
                match reaction(self.plan.refusals, &operation, &error) {
                    Reaction::Retry => SystemClock::shared().sleep(RETRY_PAUSE),
                    Reaction::End => return Ok(()),
                    Reaction::Lie => return self.acks.acknowledge(thread, number),
                    Reaction::Fail => {
                        let what = format!("operation {number} of thread {thread}");
                        return Err(error.context_at(what));
                    }
                }
            }
            self.acks.acknowledge(thread, number)?;
            if let Some(check) = &mut check {
                let read = check.note(&self.db, &self.families, number, &operation);
                let what = || format!("after operation {number} of thread {thread}");
                let read = read.map_err(|error| error.context_at(what()))?;
                self.reads.fetch_add(read, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Reaction of a thread to the error of an operation.
fn reaction(refusals: Refusals, operation: &Operation, error: &Error) -> Reaction {
    let is_refused = error.is_no_space() || error.kind() == ErrorKind::Busy;
    if refusals == Refusals::Fail || !is_refused {
        return Reaction::Fail;
    }
    let puts = matches!(operation.changes.first(), Some(Change::Put { .. }));
    if refusals == Refusals::Lie && puts && !operation.sync {
        return Reaction::Lie;
    }
    let adds = operation.changes.iter().any(|change| matches!(change, Change::Add { .. }));
    let may_be_there = operation.sync || refusals == Refusals::RetryAllButAdditions;
    if may_be_there && adds { Reaction::End } else { Reaction::Retry }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(changes: Vec<Change>, sync: bool) -> Operation {
        Operation { changes, sync, ingest: false }
    }

    #[test]
    fn refused_additions_are_repeated_only_if_they_cannot_have_happened() {
        let busy = Error::busy("full");
        let add = vec![Change::Add { key: b"k".to_vec(), count: 1 }];
        let once = |refusals, sync| reaction(refusals, &operation(add.clone(), sync), &busy);
        assert_eq!(once(Refusals::Retry, false), Reaction::Retry);
        assert_eq!(once(Refusals::Retry, true), Reaction::End);
        assert_eq!(once(Refusals::RetryAllButAdditions, false), Reaction::End);
        assert_eq!(once(Refusals::Fail, false), Reaction::Fail);
    }

    #[test]
    fn only_refusals_are_repeated() {
        let put = Change::Put { family: 0, key: b"k".to_vec(), value: b"v".to_vec() };
        let put = operation(vec![put], false);
        let fenced = Error::fenced("another owner");
        let busy = Error::busy("full");
        assert_eq!(reaction(Refusals::Retry, &put, &fenced), Reaction::Fail);
        assert_eq!(reaction(Refusals::Retry, &put, &busy), Reaction::Retry);
        assert_eq!(reaction(Refusals::Lie, &put, &busy), Reaction::Lie);
    }
}
