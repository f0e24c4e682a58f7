//! Fault injection: a decorator that makes operations of any file system fail, as a script says.
//!
//! A [`Rule`] selects operations by kind, path and offset. It selects the matches that fail (every
//! one, the nth, a seeded chance, a limited number) and the way ([`Fault`]). Rules may be added,
//! cleared and switched off while files are open. Counters tell how often each operation was
//! executed and failed, so that a test can count the operations of a run and then fail each of them
//! in turn.
//!
//! Invariants:
//! 1. An operation that fails has no effect on the decorated file system, except a short append.
//! 2. A writer, a log or a log's sync fails permanently after its first failure.
//! 3. The same operations, script and seed fail in the same way.
//!
//! Thread-safety: any thread may call any method. Clones are handles of one script.
//! Cost: an atomic addition per operation if there are no rules.
//!
//! ```
//! use std::{path::Path, sync::Arc};
//! use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};
//! use archipelago_env::{FileSystem, mem::MemFs};
//!
//! let fs = FaultFs::new(Arc::new(MemFs::new()), 0);
//! fs.add(Rule::on(Operation::CreateDir).path("*db").fault(Fault::NoSpace).nth(2));
//! assert!(fs.create_dir_all(Path::new("/a/db")).is_ok());
//! assert!(fs.create_dir_all(Path::new("/b/db")).is_err_and(|error| error.is_no_space()));
//! assert!(fs.create_dir_all(Path::new("/b/db")).is_ok());
//! ```

mod handles;
mod script;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Epoch, Error, Result};

use self::handles::{FaultLog, FaultReader, FaultWriter, Gate};
use self::script::{Call, Script, Verdict};
pub use self::script::{Fault, Operation, Rule, RuleId, When};
use crate::access::GroupAccess;
use crate::context::IoContext;
use crate::fs::{
    CreateOptions, DirEntry, FileLock, FileSystem, LogFile, LogOptions, LogTail, OpenOptions,
    RandomFile, WritableFile,
};

/// A file system whose operations fail as a script says.
#[derive(Clone, Debug)]
pub struct FaultFs {
    inner: Arc<dyn FileSystem>,
    script: Arc<Script>,
}

impl FaultFs {
    /// Decorates `inner`, without rules. `seed` determines the choices of [`When::Chance`],
    /// [`Fault::FlipByte`] and [`Fault::ShortAppend`].
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>, seed: u64) -> Self {
        Self { inner, script: Arc::new(Script::new(seed)) }
    }

    /// Adds a rule. If several rules would fire, the first one decides.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.script.add(rule)
    }

    /// Removes every rule. Their ids become invalid.
    pub fn clear(&self) {
        self.script.clear();
    }

    /// Switches all rules off or on. Rules that are off count no matches.
    pub fn set_enabled(&self, enabled: bool) {
        self.script.set_enabled(enabled);
    }

    /// Number of these operations so far, including failed ones.
    #[must_use]
    pub fn seen(&self, operation: Operation) -> u64 {
        self.script.seen(operation)
    }

    /// Number of these operations that failed because of the script.
    #[must_use]
    pub fn fired(&self, operation: Operation) -> u64 {
        self.script.fired(operation)
    }

    /// Number of all operations that failed because of the script.
    #[must_use]
    pub fn fired_total(&self) -> u64 {
        Operation::ALL.iter().map(|&operation| self.fired(operation)).sum()
    }

    /// Number of times that `rule` fired.
    #[must_use]
    pub fn fired_by(&self, rule: RuleId) -> u64 {
        self.script.fired_by(rule)
    }

    fn gate(&self, path: &Path) -> Gate {
        Gate { script: Arc::clone(&self.script), path: path.to_owned() }
    }

    fn pass(&self, operation: Operation, doing: &str, path: &Path) -> Result<()> {
        self.pass_pair(operation, doing, path, None)
    }

    fn pass_pair(
        &self,
        operation: Operation,
        doing: &str,
        path: &Path,
        to: Option<&Path>,
    ) -> Result<()> {
        let call = Call { operation, paths: [Some(path), to], offset: None, len: 0 };
        match (self.script.judge(&call), to) {
            (Verdict::Fail(cause), None) => Err(Error::io(doing, path, cause)),
            (Verdict::Fail(cause), Some(to)) => {
                Err(Error::io(&format!("{doing} to {} the file", to.display()), path, cause))
            }
            _ => Ok(()),
        }
    }
}

impl FileSystem for FaultFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        self.pass(Operation::Create, "create", path)?;
        let inner = self.inner.create(path, context, options)?;
        Ok(Box::new(FaultWriter { inner, gate: self.gate(path), failed: None }))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        self.pass(Operation::Open, "open", path)?;
        let inner = self.inner.open(path, context, options)?;
        Ok(Arc::new(FaultReader { inner, gate: self.gate(path) }))
    }

    fn create_log(
        &self,
        path: &Path,
        context: IoContext,
        options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        self.pass(Operation::CreateLog, "create log", path)?;
        let inner = self.inner.create_log(path, context, options)?;
        Ok(Box::new(FaultLog::new(inner, &self.script, path)))
    }

    fn log_tail(&self, path: &Path, incarnation: Epoch) -> Result<Option<LogTail>> {
        self.pass(Operation::LogTail, "read the tail of log", path)?;
        self.inner.log_tail(path, incarnation)
    }

    fn clear_log_tails(&self, dir: &Path) -> Result<()> {
        self.pass(Operation::LogTail, "clear the log tails in", dir)?;
        self.inner.clear_log_tails(dir)
    }

    fn settle_log(&self, path: &Path, incarnation: Epoch, ranges: &[Range<u64>]) -> Result<()> {
        self.pass(Operation::LogFinish, "settle log", path)?;
        self.pass(Operation::LogSync, "sync log", path)?;
        self.inner.settle_log(path, incarnation, ranges)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.pass_pair(Operation::Rename, "rename", from, Some(to))?;
        self.inner.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.pass_pair(Operation::Link, "link", from, Some(to))?;
        self.inner.link(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.pass(Operation::Remove, "remove", path)?;
        self.inner.remove(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.pass(Operation::List, "list", dir)?;
        self.inner.list(dir)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        self.pass(Operation::Stat, "find the length of", path)?;
        self.inner.len(path)
    }

    fn modified_ms(&self, path: &Path) -> Result<Option<u64>> {
        self.pass(Operation::Stat, "find the time of", path)?;
        self.inner.modified_ms(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.pass(Operation::Stat, "examine", path)?;
        self.inner.exists(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.pass(Operation::CreateDir, "create directory", dir)?;
        self.inner.create_dir_all(dir)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        self.pass(Operation::RemoveDir, "remove directory", dir)?;
        self.inner.remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.pass(Operation::SyncDir, "sync directory", dir)?;
        self.inner.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.pass(Operation::Lock, "lock", path)?;
        self.inner.lock(path)
    }

    fn group_access(&self) -> Option<GroupAccess> {
        self.inner.group_access()
    }

    fn reassign(&self, path: &Path, context: IoContext) {
        self.inner.reassign(path, context);
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        self.pass(Operation::Stat, "find the free space of", dir)?;
        self.inner.free_bytes(dir)
    }

    crate::forward_fs!(inner: figures);
}
