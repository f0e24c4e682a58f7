//! The script of a [`super::FaultFs`]: its rules, and the decision which rule fires.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::random::Rng;
use parking_lot::Mutex;

/// An operation that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Covers calls of `FileSystem::create`.
    Create,
    /// Covers `FileSystem::open` and `read`.
    Open,
    /// Covers reads of an open file, which have an offset.
    Read,
    /// Covers `WritableFile::append`, which has an offset.
    Append,
    /// Covers `WritableFile::flush` and `submit`.
    Flush,
    /// Covers calls of `WritableFile::sync`.
    Sync,
    /// Covers calls of `FileSystem::sync_dir`.
    SyncDir,
    /// Covers `FileSystem::rename`, which matches by either path.
    Rename,
    /// Covers calls of `FileSystem::remove`.
    Remove,
    /// Covers calls of `FileSystem::list`.
    List,
    /// Covers `FileSystem::link`, which matches by either path.
    Link,
    /// Covers `FileSystem::len`, `exists` and `free_bytes`.
    Stat,
    /// Covers calls of `FileSystem::create_dir_all`.
    CreateDir,
    /// Covers calls of `FileSystem::remove_dir_all`.
    RemoveDir,
    /// Covers calls of `FileSystem::lock`.
    Lock,
    /// Covers calls of `FileSystem::create_log`.
    CreateLog,
    /// Covers `LogFile::append` and `submit`, which have an offset.
    LogAppend,
    /// Covers calls of `LogSync::wait`.
    LogWait,
    /// Covers `LogSync::sync` and `FileSystem::settle_log`.
    LogSync,
    /// Covers calls of `LogSync::write_through`.
    LogWriteThrough,
    /// Covers `LogFile::finish` and `FileSystem::settle_log`.
    LogFinish,
    /// Covers calls of `LogFile::append_trailer`.
    LogTrailer,
    /// Covers `FileSystem::log_tail` and `clear_log_tails`.
    LogTail,
}

impl Operation {
    /// All operations, in the order of the counters.
    pub const ALL: [Self; 23] = [
        Self::Create,
        Self::Open,
        Self::Read,
        Self::Append,
        Self::Flush,
        Self::Sync,
        Self::SyncDir,
        Self::Rename,
        Self::Remove,
        Self::List,
        Self::Link,
        Self::Stat,
        Self::CreateDir,
        Self::RemoveDir,
        Self::Lock,
        Self::CreateLog,
        Self::LogAppend,
        Self::LogWait,
        Self::LogSync,
        Self::LogWriteThrough,
        Self::LogFinish,
        Self::LogTrailer,
        Self::LogTail,
    ];

    fn is_append(self) -> bool {
        matches!(self, Self::Append | Self::LogAppend)
    }
}

/// The way in which an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device reports an error (`EIO`), and nothing is done.
    Io,
    /// The device is full (`ENOSPC`), and nothing is done.
    NoSpace,
    /// The read succeeds with one changed byte. Only [`Operation::Read`] fails in this way.
    FlipByte,
    /// A random part of the bytes is appended, and then the device is full. Only appends fail in
    /// this way.
    ShortAppend,
}

/// The matching operations that fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Every matching operation fails.
    Every,
    /// The `n`th match, counted from 1, and later matches fail, as far as [`Rule::times`] permits.
    From(u64),
    /// Each match fails with this probability, which depends on the seed.
    Chance(f64),
}

/// A rule of a script. By default every operation of its kind fails with `EIO` on every path, for
/// ever.
#[derive(Clone, Debug)]
pub struct Rule {
    operations: Vec<Operation>,
    path: String,
    range: Option<Range<u64>>,
    when: When,
    times: u64,
    fault: Fault,
}

impl Rule {
    /// A rule for one kind of operation.
    #[must_use]
    pub fn on(operation: Operation) -> Self {
        Self::on_any(&[operation])
    }

    /// A rule for several kinds of operations.
    #[must_use]
    pub fn on_any(operations: &[Operation]) -> Self {
        Self {
            operations: operations.to_vec(),
            path: String::new(),
            range: None,
            when: When::Every,
            times: u64::MAX,
            fault: Fault::Io,
        }
    }

    /// Limits the rule to paths that contain `pattern`. With a leading `*` the path must end with
    /// the rest of it.
    #[must_use]
    pub fn path(mut self, pattern: &str) -> Self {
        pattern.clone_into(&mut self.path);
        self
    }

    /// Limits the rule to reads and appends that touch these offsets of the file.
    #[must_use]
    pub fn offsets(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Limits the rule to the `n`th match, counted from 1.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        (self.when, self.times) = (When::From(n), 1);
        self
    }

    /// Sets which matches fail.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Limits the rule to `times` failures.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Sets the way in which the operations fail.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.fault = fault;
        self
    }

    fn matches(&self, call: &Call<'_>) -> bool {
        let right_kind = match self.fault {
            Fault::Io | Fault::NoSpace => true,
            Fault::FlipByte => call.operation == Operation::Read && call.len > 0,
            Fault::ShortAppend => call.operation.is_append(),
        };
        right_kind
            && self.operations.contains(&call.operation)
            && self.touches(call)
            && call.paths.iter().flatten().any(|path| self.names(path))
    }

    fn names(&self, path: &Path) -> bool {
        let path = path.to_string_lossy();
        match self.path.strip_prefix('*') {
            Some(end) => path.ends_with(end),
            None => path.contains(&self.path),
        }
    }

    fn touches(&self, call: &Call<'_>) -> bool {
        match (&self.range, call.offset) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(range), Some(at)) => {
                range.start < at.saturating_add(call.len as u64) && at < range.end
            }
        }
    }
}

/// An operation before its execution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    pub(super) paths: [Option<&'a Path>; 2],
    pub(super) offset: Option<u64>,
    pub(super) len: usize,
}

/// The decision about an operation.
#[derive(Debug)]
pub(super) enum Verdict {
    Pass,
    Fail(io::Error),
    /// Change the byte at this index of the bytes that were read.
    Flip {
        at: usize,
        mask: u8,
    },
    /// Append this number of bytes, and then fail.
    Short {
        len: usize,
        cause: io::Error,
    },
}

/// Identifies a rule of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(usize);

#[derive(Debug)]
struct Counted {
    rule: Rule,
    matched: u64,
    fired: u64,
}

#[derive(Debug)]
struct Rules {
    rules: Vec<Counted>,
    rng: Rng,
}

#[derive(Debug)]
pub(super) struct Script {
    /// Whether there are rules, and they are switched on.
    armed: AtomicBool,
    enabled: AtomicBool,
    seen: [AtomicU64; Operation::ALL.len()],
    fired: [AtomicU64; Operation::ALL.len()],
    rules: Mutex<Rules>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            armed: AtomicBool::new(false),
            enabled: AtomicBool::new(true),
            seen: Default::default(),
            fired: Default::default(),
            rules: Mutex::new(Rules { rules: Vec::new(), rng: Rng::with_seed(seed) }),
        }
    }

    pub(super) fn add(&self, rule: Rule) -> RuleId {
        let mut rules = self.rules.lock();
        rules.rules.push(Counted { rule, matched: 0, fired: 0 });
        self.armed.store(self.enabled.load(Ordering::SeqCst), Ordering::SeqCst);
        RuleId(rules.rules.len() - 1)
    }

    pub(super) fn clear(&self) {
        self.rules.lock().rules.clear();
        self.armed.store(false, Ordering::SeqCst);
    }

    pub(super) fn set_enabled(&self, enabled: bool) {
        let rules = self.rules.lock();
        self.enabled.store(enabled, Ordering::SeqCst);
        self.armed.store(enabled && !rules.rules.is_empty(), Ordering::SeqCst);
    }

    /// Whether a rule could fire for any operation.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    pub(super) fn seen(&self, operation: Operation) -> u64 {
        self.seen[operation as usize].load(Ordering::SeqCst)
    }

    pub(super) fn fired(&self, operation: Operation) -> u64 {
        self.fired[operation as usize].load(Ordering::SeqCst)
    }

    pub(super) fn fired_by(&self, rule: RuleId) -> u64 {
        self.rules.lock().rules.get(rule.0).map_or(0, |counted| counted.fired)
    }

    /// The first rule that fires decides. All matching rules count the match.
    pub(super) fn judge(&self, call: &Call<'_>) -> Verdict {
        self.seen[call.operation as usize].fetch_add(1, Ordering::SeqCst);
        if !self.is_armed() {
            return Verdict::Pass;
        }
        let Rules { rules, rng } = &mut *self.rules.lock();
        let mut verdict = Verdict::Pass;
        for counted in rules.iter_mut().filter(|counted| counted.rule.matches(call)) {
            counted.matched += 1;
            let due = match counted.rule.when {
                When::Every => true,
                When::From(n) => counted.matched >= n,
                When::Chance(probability) => rng.f64() < probability,
            };
            if due && counted.fired < counted.rule.times && matches!(verdict, Verdict::Pass) {
                counted.fired += 1;
                self.fired[call.operation as usize].fetch_add(1, Ordering::SeqCst);
                verdict = strike(&counted.rule, call, rng);
            }
        }
        verdict
    }
}

fn strike(rule: &Rule, call: &Call<'_>, rng: &mut Rng) -> Verdict {
    let no_space = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
    match rule.fault {
        Fault::Io => {
            Verdict::Fail(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
        }
        Fault::NoSpace => Verdict::Fail(no_space()),
        Fault::FlipByte => {
            let start = call.offset.unwrap_or(0);
            let range = rule.range.clone().unwrap_or(0..u64::MAX);
            let low = range.start.saturating_sub(start) as usize;
            let high =
                call.len.min(range.end.saturating_sub(start).min(usize::MAX as u64) as usize);
            Verdict::Flip { at: rng.usize(low..high), mask: rng.u8(1..) }
        }
        Fault::ShortAppend => {
            Verdict::Short { len: rng.usize(..call.len.max(1)), cause: no_space() }
        }
    }
}
