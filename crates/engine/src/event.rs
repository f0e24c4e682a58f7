//! Events of a database and the listeners that receive them.

use std::sync::Arc;

use archipelago_base::{CfId, Epoch, Error};

use crate::border::Border;
use crate::key::KeyRange;

/// Something that happened. A listener gets it afterwards, outside all locks of the write path.
/// Events of one thread arrive in their order; those of several threads may arrive in parallel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A memtable was sealed.
    MemtableSealed {
        /// Id of the column family.
        cf: CfId,
        /// Bytes of its records.
        bytes: u64,
    },
    /// A flush was installed.
    FlushInstalled {
        /// Id of the column family.
        cf: CfId,
        /// Keys that it covered.
        range: KeyRange,
        /// Numbers of the files it made.
        files: Vec<u64>,
        /// Size of those files together, in bytes.
        bytes: u64,
        /// How long the job ran, in nanoseconds.
        duration_ns: u64,
    },
    /// A compaction was installed (a trivial move is one that wrote nothing).
    CompactionInstalled {
        /// Id of the column family.
        cf: CfId,
        /// Level of the upper inputs.
        from: usize,
        /// Level of the outputs.
        to: usize,
        /// Bucket, when the inputs came from L0.
        bucket: Option<usize>,
        /// Numbers of the inputs.
        inputs: Vec<u64>,
        /// Numbers of the outputs.
        outputs: Vec<u64>,
        /// Size of the input files together, in bytes.
        bytes_read: u64,
        /// Size of the output files together, in bytes.
        bytes_written: u64,
        /// How long the job ran, in nanoseconds.
        duration_ns: u64,
        /// Busy time of each thread of the job, in nanoseconds: one entry, or one per
        /// subcompaction.
        threads_ns: Vec<u64>,
    },
    /// A garbage collection of value files began.
    GcStarted {
        /// Id of the column family.
        cf: CfId,
        /// Why it was picked: "space", "small_files" or "runs".
        reason: &'static str,
        /// Numbers of its value files.
        inputs: Vec<u64>,
    },
    /// A garbage collection of value files was installed.
    GcInstalled {
        /// Id of the column family.
        cf: CfId,
        /// Why it was picked: "space", "small_files" or "runs".
        reason: &'static str,
        /// Numbers of the value files that it replaced.
        replaced: Vec<u64>,
        /// Number of the file with the values that remain.
        heir: u64,
        /// Bytes read by the job.
        bytes_read: u64,
        /// Bytes written by the job.
        bytes_written: u64,
        /// Bytes of values that were garbage.
        bytes_freed: u64,
        /// How long the job ran, in nanoseconds.
        duration_ns: u64,
    },
    /// The bucket map of a family changed.
    BucketMapChanged {
        /// Id of the column family.
        cf: CfId,
        /// The new map's epoch.
        epoch: Epoch,
        /// How many buckets there are now.
        buckets: usize,
        /// What was changed and why, with figures, for people: `split at "k": bucket 3 has
        /// temperature 2.40 over 8 seals, 154 MiB of 64 MiB ideal`.
        reason: String,
    },
    /// The stall state of writes changed.
    StallChanged {
        /// What writers do now ("none", "delay l0", "stop memtables", …).
        state: String,
    },
    /// A column family was created or dropped.
    ColumnFamilyChanged {
        /// Id of the column family.
        cf: CfId,
        /// Whether the family was created; false if it was dropped.
        created: bool,
    },
    /// Files were ingested.
    Ingested {
        /// Id of the column family.
        cf: CfId,
        /// Numbers of the files.
        files: Vec<u64>,
    },
    /// A background job failed. Either it will be tried again, or the database is read-only now.
    BackgroundError {
        /// Description of the job that failed.
        job: String,
        /// The error that ended the job.
        error: Error,
    },
}

/// Receives events. The calls come from background and writer threads: they must be quick and must
/// not call back into the database.
///
/// A listener should not panic. If it does, the other listeners still get the event, and the caller
/// goes on. The panic is counted (`listener.panics`), logged, and named in the database's health.
pub trait EventListener: Send + Sync + 'static {
    /// Name of the listener in logs and health. Default: the name of its type.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }
    /// Receives one event, on the thread that caused it.
    fn on_event(&self, event: &Event);
}

/// All listeners of a database.
#[derive(Clone, Default)]
pub struct Listeners(Vec<(Arc<dyn EventListener>, Arc<Border>)>);

impl Listeners {
    /// Adds a listener.
    pub fn add(&mut self, listener: Arc<dyn EventListener>) {
        let border = Arc::new(Border::new("event listener", listener.name(), None));
        self.0.push((listener, border));
    }

    /// Calls every listener with `event`. Returns an error for each one that panicked.
    pub(crate) fn tell(&self, event: &Event) -> Vec<Error> {
        let tell = |(listener, border): &(Arc<dyn EventListener>, Arc<Border>)| {
            border.call(|| listener.on_event(event)).err()
        };
        self.0.iter().filter_map(tell).collect()
    }
}

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}
