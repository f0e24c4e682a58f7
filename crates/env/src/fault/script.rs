//! The script of a [`super::FaultFs`]: rules, and which of them fires when.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::random::Rng;
use parking_lot::Mutex;

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `FileSystem::create`.
    Create,
    /// `FileSystem::open`, `read`.
    Open,
    /// Reading from an open file; has an offset.
    Read,
    /// `WritableFile::append`; has an offset.
    Append,
    /// `WritableFile::flush`.
    Flush,
    /// `WritableFile::sync`.
    Sync,
    /// `FileSystem::sync_dir`.
    SyncDir,
    /// `FileSystem::rename`; matches by either path.
    Rename,
    /// `FileSystem::remove`.
    Remove,
    /// `FileSystem::list`.
    List,
    /// `FileSystem::link`; matches by either path.
    Link,
    /// `FileSystem::len`, `exists`, `free_bytes`.
    Stat,
    /// `FileSystem::create_dir_all`.
    CreateDir,
    /// `FileSystem::remove_dir_all`.
    RemoveDir,
    /// `FileSystem::lock`.
    Lock,
    /// `FileSystem::create_log`.
    CreateLog,
    /// `LogFile::append`; has an offset.
    LogAppend,
    /// `LogSync::sync`, `FileSystem::settle_log`.
    LogSync,
    /// `LogSync::write_through`.
    LogWriteThrough,
    /// `LogFile::finish`, `FileSystem::settle_log`.
    LogFinish,
    /// `LogFile::append_trailer`.
    LogTrailer,
    /// `FileSystem::log_tail`, `clear_log_tails`.
    LogTail,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 22] = [
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

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device reports an error (`EIO`); nothing is done.
    Io,
    /// The device is full (`ENOSPC`); nothing is done.
    NoSpace,
    /// The read succeeds, with one byte changed. Fires on [`Operation::Read`] only.
    FlipByte,
    /// A random part of the bytes is appended, then the device is full. Fires on appends only.
    ShortAppend,
}

/// Which of the matching operations fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All.
    Every,
    /// The `n`th match (the first is 1) and those after it, as far as [`Rule::times`] allows.
    From(u64),
    /// Each with this probability, decided by the seed.
    Chance(f64),
}

/// One line of a script. By default: every operation of its kind on any path fails with `EIO`,
/// for ever.
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
    /// A rule for one operation.
    #[must_use]
    pub fn on(operation: Operation) -> Self {
        Self::on_any(&[operation])
    }

    /// A rule for several operations.
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

    /// Only paths that contain `pattern`, or, if it begins with `*`, that end in the rest of it.
    #[must_use]
    pub fn path(mut self, pattern: &str) -> Self {
        pattern.clone_into(&mut self.path);
        self
    }

    /// Only reads and appends that touch these offsets of the file.
    #[must_use]
    pub fn offsets(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Only the `n`th match; the first is 1.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        (self.when, self.times) = (When::From(n), 1);
        self
    }

    /// Which matches fail.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// At most `times` failures.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// How they fail.
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

/// An operation about to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    pub(super) paths: [Option<&'a Path>; 2],
    pub(super) offset: Option<u64>,
    pub(super) len: usize,
}

/// What to do about it.
#[derive(Debug)]
pub(super) enum Verdict {
    Pass,
    Fail(io::Error),
    /// Change the byte at this place of what was read.
    Flip {
        at: usize,
        mask: u8,
    },
    /// Append this many bytes, then fail.
    Short {
        len: usize,
        cause: io::Error,
    },
}

/// Names a rule of a script.
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
    /// Whether there are rules and they count.
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

    /// Whether a rule could fire at all.
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

    /// The first rule that fires decides; all rules that match count the match.
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
