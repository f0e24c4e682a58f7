//! Steps at which a fault hits, and the file systems that note them.
//!
//! [`StepFs`] decorates the file system of a volume. The context of a file shows whether a flush, a
//! compaction, a garbage collection or a rotation of the log is at work. A [`StepTrigger`] counts
//! the moments. Jobs that run elsewhere write no file of the owner, so the fault points of the
//! engine note these. [`CopyFs`] decorates the file system of a storage node. It reports to the
//! parent when the node begins a copy of a chunk.
//!
//! Thread-safety: any thread may use the file system.
//! Failure: that of the file system below.
//! Cost: that of the trigger.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use archipelago::Result;
use archipelago::env::{FileClass, FileSystem, IoContext, IoPurpose};
use archipelago_env::{CreateOptions, LogFile, LogOptions, WritableFile};

use crate::children::{StepTrigger, say};

/// Line of a storage node that begins to make a copy of a chunk.
pub(super) const COPIES: &str = "copies a chunk";

/// Work of an owner, or of the nodes while an owner works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Write,
    Flush,
    Compaction,
    Gc,
    Rotation,
    TakeOver,
    /// Nodes make the chunks of a lost node again.
    Repair,
    /// The chunks of a node move away because an operator empties it.
    Drain,
    /// Chunks move away from a node that is fuller than the others.
    Rebalance,
}

impl Step {
    /// All steps, in the order of the summary.
    pub(super) const ALL: [Self; 9] = [
        Self::Write,
        Self::Flush,
        Self::Compaction,
        Self::Gc,
        Self::Rotation,
        Self::TakeOver,
        Self::Repair,
        Self::Drain,
        Self::Rebalance,
    ];

    /// Whether nodes copy chunks at the step. Then a node is at the step, and not the owner.
    pub(super) fn is_copy(self) -> bool {
        matches!(self, Self::Repair | Self::Drain | Self::Rebalance)
    }

    /// The step of a fault point of the engine, for an owner whose compactions and garbage
    /// collections run elsewhere; `None` for other points.
    pub(super) fn of_point(point: &str) -> Option<Self> {
        match point {
            "compaction.picked" | "compaction.before_install" => Some(Self::Compaction),
            "gc.picked" | "gc.after_write" | "gc.before_install" => Some(Self::Gc),
            _ => None,
        }
    }

    /// The step of a file that is written for `context`; `None` for work without a step.
    fn of(context: IoContext) -> Option<Self> {
        match (context.purpose, context.class) {
            (IoPurpose::Flush, _) => Some(Self::Flush),
            (IoPurpose::Compaction { .. }, _) => Some(Self::Compaction),
            (IoPurpose::Gc, _) => Some(Self::Gc),
            (_, FileClass::Wal) => Some(Self::Rotation),
            _ => None,
        }
    }

    /// Number of moments of the step among which a run chooses one.
    pub(super) fn moments(self) -> u64 {
        match self {
            Self::Write => 1500,
            Self::Flush => 12,
            Self::Compaction | Self::Rotation => 8,
            Self::Gc => 4,
            // The moment is a time after the begin of the opening, in milliseconds.
            Self::TakeOver => 150,
            // The owner notes none of them.
            Self::Repair | Self::Drain | Self::Rebalance => 1,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::Gc => "gc",
            Self::Rotation => "rotation",
            Self::TakeOver => "take-over",
            Self::Repair => "repair",
            Self::Drain => "drain",
            Self::Rebalance => "rebalance",
        })
    }
}

/// The file system of a volume, which notes the steps of its owner.
#[derive(Debug)]
pub(super) struct StepFs {
    inner: Arc<dyn FileSystem>,
    trigger: Arc<StepTrigger<Step>>,
}

impl StepFs {
    pub(super) fn new(inner: Arc<dyn FileSystem>, trigger: Arc<StepTrigger<Step>>) -> Self {
        Self { inner, trigger }
    }

    fn note(&self, context: IoContext) {
        if let Some(step) = Step::of(context) {
            self.trigger.note(step);
        }
    }
}

impl FileSystem for StepFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        self.note(context);
        let inner = self.inner.create(path, context, options)?;
        let Some(step) = Step::of(context) else { return Ok(inner) };
        Ok(Box::new(StepFile { inner, step, trigger: Arc::clone(&self.trigger) }))
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        self.note(context);
        let log = self.inner.create_log(path, context, options)?;
        self.note(context);
        Ok(log)
    }

    fn write_atomic(&self, path: &Path, bytes: &[u8], context: IoContext) -> Result<()> {
        self.inner.write_atomic(path, bytes, context)
    }

    archipelago_env::forward_fs!(inner: open, names);
}

/// The file system of a storage node, which reports copies of chunks to the parent.
#[derive(Debug)]
pub(super) struct CopyFs {
    inner: Arc<dyn FileSystem>,
}

impl CopyFs {
    pub(super) fn new(inner: Arc<dyn FileSystem>) -> Self {
        Self { inner }
    }

    /// Whether a file that is created for `context` is the copy of a chunk. The metadata database
    /// of a node creates no table for maintenance.
    fn is_copy(context: IoContext) -> bool {
        let is_of_database =
            matches!(context.class, FileClass::Sst | FileClass::ValueSst | FileClass::Other);
        context.purpose == IoPurpose::Maintenance && is_of_database
    }
}

impl FileSystem for CopyFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let file = self.inner.create(path, context, options)?;
        if Self::is_copy(context) {
            say(COPIES);
        }
        Ok(file)
    }

    fn write_atomic(&self, path: &Path, bytes: &[u8], context: IoContext) -> Result<()> {
        self.inner.write_atomic(path, bytes, context)
    }

    archipelago_env::forward_fs!(inner: open, create_log, names);
}

/// A file that a step writes. Its syncs are moments of the step as well.
#[derive(Debug)]
struct StepFile {
    inner: Box<dyn WritableFile>,
    step: Step,
    trigger: Arc<StepTrigger<Step>>,
}

impl WritableFile for StepFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.inner.append(data)
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }

    fn submit(&mut self) -> Result<()> {
        self.inner.submit()
    }

    fn sync(&mut self) -> Result<()> {
        self.trigger.note(self.step);
        self.inner.sync()?;
        self.trigger.note(self.step);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_follows_from_purpose_and_class() {
        let of = |class, purpose| Step::of(IoContext::new(class, purpose));
        assert_eq!(of(FileClass::Sst, IoPurpose::Flush), Some(Step::Flush));
        assert_eq!(of(FileClass::ValueSst, IoPurpose::Gc), Some(Step::Gc));
        let compaction = IoPurpose::Compaction { from: 0, to: 1 };
        assert_eq!(of(FileClass::Sst, compaction), Some(Step::Compaction));
        assert_eq!(of(FileClass::Wal, IoPurpose::ForegroundWrite), Some(Step::Rotation));
        assert_eq!(of(FileClass::Manifest, IoPurpose::ForegroundWrite), None);
    }

    #[test]
    fn copies_of_chunks_differ_from_writes_of_owners() {
        let of = |class, purpose| CopyFs::is_copy(IoContext::new(class, purpose));
        assert!(of(FileClass::Sst, IoPurpose::Maintenance));
        assert!(!of(FileClass::Sst, IoPurpose::Flush), "a job of an owner");
        assert!(!of(FileClass::Wal, IoPurpose::Maintenance));
    }

    #[test]
    fn jobs_that_run_elsewhere_have_steps_by_fault_points() {
        assert_eq!(Step::of_point("gc.picked"), Some(Step::Gc));
        assert_eq!(Step::of_point("flush.picked"), None, "flushes stay with the owner");
    }
}
