//! Steps of an owner at which a fault hits, and the file system that notes them.
//!
//! [`StepFs`] decorates the file system of a volume. It tells from the context of a file whether a
//! flush, a compaction, a garbage collection or a rotation of the log is at work. The
//! [`StepTrigger`] counts the moments of one step. At the moment that it waits for, the process
//! ends, stops, or lets its parent act.
//!
//! Invariants:
//! 1. A trigger fires at most once.
//! 2. The process prints [`AT_STEP`] before it ends, stops or waits.
//!
//! Thread-safety: any thread may note a step. Only the thread at the step waits for the parent.
//! Failure: a parent that has ended lets the waiting thread go on.
//! Cost: a comparison and an atomic addition per moment of the step.

use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago::Result;
use archipelago::env::{FileClass, FileSystem, IoContext, IoPurpose};
use archipelago_env::{CreateOptions, LogFile, LogOptions, WritableFile};
use rustix::process::{Signal, getpid, kill_process};

/// Line that a process prints when it is at the step.
pub(super) const AT_STEP: &str = "at the step";
/// Line with which the parent lets a waiting thread go on.
pub(super) const GO_ON: &str = "go on";

/// Work of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Write,
    Flush,
    Compaction,
    Gc,
    Rotation,
    TakeOver,
}

impl Step {
    /// All steps, in the order of the summary.
    pub(super) const ALL: [Self; 6] =
        [Self::Write, Self::Flush, Self::Compaction, Self::Gc, Self::Rotation, Self::TakeOver];

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
        })
    }
}

/// Action of a process at the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtStep {
    /// Nothing, at no step.
    Nothing,
    /// The process kills itself.
    Die,
    /// The process stops itself, until its parent lets it continue.
    Halt,
    /// The thread at the step waits until the parent has acted.
    Ask,
}

impl AtStep {
    /// All reactions, by their numbers on a command line.
    pub(super) const ALL: [Self; 4] = [Self::Nothing, Self::Die, Self::Halt, Self::Ask];
}

/// Moment that a run chose: the step, and the number of its moments that pass before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepMoment {
    pub(super) step: Step,
    pub(super) after: u64,
    pub(super) reaction: AtStep,
}

/// Waits for the chosen moment, and reacts.
#[derive(Debug)]
pub(super) struct StepTrigger {
    moment: StepMoment,
    seen: AtomicU64,
}

impl StepTrigger {
    pub(super) fn new(moment: StepMoment) -> Arc<Self> {
        Arc::new(Self { moment, seen: AtomicU64::new(0) })
    }

    /// The moment that the trigger waits for.
    pub(super) fn moment(&self) -> StepMoment {
        self.moment
    }

    /// Notes one moment of `step`, and reacts if it is the chosen one.
    pub(super) fn note(&self, step: Step) {
        let StepMoment { step: chosen, after, reaction } = self.moment;
        if step == chosen
            && reaction != AtStep::Nothing
            && self.seen.fetch_add(1, Ordering::Relaxed) == after
        {
            react(reaction);
        }
    }

    /// Reacts now, whatever moments were noted.
    pub(super) fn fire(&self) {
        if self.moment.reaction != AtStep::Nothing {
            react(self.moment.reaction);
        }
    }
}

fn react(reaction: AtStep) {
    say(AT_STEP);
    match reaction {
        AtStep::Nothing => {}
        AtStep::Die => {
            // The process kills itself as the parent does, so no other exit passes for a kill.
            let _dead = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
        AtStep::Halt => {
            // The call returns when the parent lets the process go on.
            let _stopped = kill_process(getpid(), Signal::STOP);
        }
        AtStep::Ask => {
            let mut answer = String::new();
            // The end of the input means that the parent has ended.
            let _read = std::io::stdin().read_line(&mut answer);
        }
    }
}

/// Prints a line for the parent.
pub(super) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that has ended reads nothing.
    let _told = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The file system of a volume, which notes the steps of its owner.
#[derive(Debug)]
pub(super) struct StepFs {
    inner: Arc<dyn FileSystem>,
    trigger: Arc<StepTrigger>,
}

impl StepFs {
    pub(super) fn new(inner: Arc<dyn FileSystem>, trigger: Arc<StepTrigger>) -> Self {
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

/// A file that a step writes. Its syncs are moments of the step as well.
#[derive(Debug)]
struct StepFile {
    inner: Box<dyn WritableFile>,
    step: Step,
    trigger: Arc<StepTrigger>,
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
}
