//! Write stalls: how much slower writers must go so that flushes and compactions keep up.
//!
//! [`stall`] is pure. Each cause has a debt between a *slowdown* and a *stop* threshold. Let `d` be
//! its position between the two, from 0 to 1. The allowed rate falls geometrically:
//!
//! > rate(d) = peak · (low / peak)^d
//!
//! It falls from `peak`, the ingest rate measured while nothing was delayed, to `low`. That is a
//! quarter of the rate at which background work was measured to drain the debt: compactions for L0
//! files and for compaction debt, flushes for memory. So there is no cliff. At the slowdown
//! threshold writers go as fast as before, and each further step of debt costs the same *factor*.
//! The rate falls below the drain rate well before `d` = 1, so the debt settles there and does not
//! reach the stop. The slowest cause decides.
//!
//! L0 counts the fullest bucket's files (as layers), not the total (BucketLSM §V-D). Over the byte
//! budget writers slow down but never stop. Caches free memory meanwhile, and a stop could wait for
//! memory that a waiting reader holds. The space of garbage has a drain rate of its own: the speed
//! at which garbage collection and compactions free space. So writers settle at that speed before
//! the bound on space is reached, and stop only at the bound itself.
//!
//! A storage pool that is nearly full delays writers over the last part of the room that it has for
//! them. Bytes that wait for their flush count as stored. No work of this database is certain to
//! free the pool, so the end of the slope is that of an unmeasured drain. Writers keep this rate
//! when the room is used up. They are refused only when the disk has no room
//! ([`crate::disk_space`]). Such a delay may last for days. The measured peak is forgotten while
//! writers pause, and delayed writers do not show it again. So the slope begins at the peak that is
//! assumed without a measurement, or above.
//!
//! A threshold of compaction debt that is 0 does not exist. Without a slowdown threshold writers go
//! at full speed until they stop. Without a stop threshold they slow down over the range from the
//! slowdown threshold to four times that, and then stay at `low`.
//!
//! Memtables have another rule, because the end of a flush is foreseeable. While `backlog` bytes of
//! sealed memtables wait to be flushed at a measured speed `v`, the remaining `space` is spread
//! over the remaining time of the flush:
//!
//! > rate = space / max(backlog / v − elapsed, backlog / 2v)
//!
//! If `v` is right, the space ends when the flush ends, and slower writers do not wait at all. If
//! `v` was too high, the rate decays with the space. It does not reach zero before the flush has
//! taken several times the expected time: many short waits instead of a long one.
//!
//! With memory nodes for memtable shards there are two stages, and the slower one decides. The
//! first is the space here, by the rule above. It drains at the speed of sends while the nodes have
//! room, and else at that of flushes. The second is the room of the nodes. It counts once the nodes
//! hold so much that the oldest memtables are due ([`StallInput::away_backlog_bytes`]). Flushes of
//! shards at nodes do not end all at once: each one makes room, and the next one begins. So writers
//! may always go as fast as flushes make room, and beyond that they may use the room that is left
//! while the backlog is flushed:
//!
//! > rate = v + space / (backlog / v)
//!
//! Full nodes only delay writers: shards that are not sent wait here, in the first stage.
//!
//! [`RateMeter`] measures both rates. [`DelayController`] turns decisions into waits: a token
//! bucket over the clock, in one atomic word. Thread-safety: any thread may use both. Cost: one
//! branch without a delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::Clock;
use parking_lot::Mutex;

use crate::options::CfOptions;
use crate::version::Version;

/// Smallest rate of a delay, in bytes a second.
const RATE_BYTES_PER_S_MIN: u64 = 256 << 10;
/// Peak rate in bytes a second that is assumed before one was measured.
const PEAK_BYTES_PER_S_DEFAULT: u64 = 64 << 20;
/// Ratio of the peak to `low` if no drain rate was measured.
const UNMEASURED_FALL: u64 = 64;
/// Smallest share of a flush's expected time that is assumed to remain, when the flush takes
/// longer.
const FLUSH_TIME_LEFT_MIN: f64 = 0.5;
/// Smallest job in bytes whose speed is measured. Smaller ones say little about the speed.
const SPEED_BYTES_MIN: u64 = 256 << 10;
/// Ratio of the drain rate to the rate at the end of the slope (`low`).
const DRAIN_SHARE: u64 = 4;
/// Without a stop threshold the slope ends at this many times the slowdown threshold.
const UNSTOPPED_RANGE: f64 = 4.0;
/// The largest debt that is not yet a stop.
const UNSTOPPED: f64 = 1.0 - f64::EPSILON;
/// Longest time that one write waits before it checks the state again.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// Shortest wait that is slept. Shorter waits are saved up, because a sleep takes longer than they
/// do.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Length of the window over which a database measures the rate of ingested bytes.
pub const INGEST_WINDOW: Duration = Duration::from_millis(100);
/// Length of the window over which a database measures the rate of drained bytes. It is longer,
/// because a flush ends in one step.
pub const DRAIN_WINDOW: Duration = Duration::from_secs(2);
/// Time in seconds in which a measured rate that is not reached again falls to 1/e.
const RATE_MEMORY_S: f64 = 60.0;

/// Cause for which writers are slowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StallCause {
    /// The fullest bucket has many L0 files.
    L0Files,
    /// Memtables wait for their flush.
    Memtables,
    /// The compaction debt is large.
    PendingBytes,
    /// Memory is over the byte budget.
    Budget,
    /// Garbage is close to the bound on space.
    Space,
    /// The storage pool is nearly full.
    Pool,
}

impl StallCause {
    /// Every cause, in the order in which reports list them.
    pub const ALL: [Self; 6] =
        [Self::L0Files, Self::Memtables, Self::PendingBytes, Self::Budget, Self::Space, Self::Pool];

    /// The cause as reports spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L0Files => "l0_files",
            Self::Memtables => "memtables",
            Self::PendingBytes => "pending_compaction_bytes",
            Self::Budget => "memory_budget",
            Self::Space => "space",
            Self::Pool => "pool",
        }
    }
}

/// Input of a decision: one column family's debt, and measured rates.
#[derive(Clone, Copy, Debug, Default)]
pub struct StallInput {
    /// L0 files of the fullest bucket, counted as [layers](crate::version::layers).
    pub l0_files: usize,
    /// Slowdown threshold for `l0_files`.
    pub l0_slowdown: usize,
    /// Stop threshold for `l0_files`.
    pub l0_stop: usize,
    /// Bytes of sealed memtables that are not in tables yet.
    pub flush_backlog_bytes: u64,
    /// Bytes that writers may still write before they must wait for a flush: the rest of the active
    /// memtable, and the memtables that may still be created.
    pub memtable_space_bytes: u64,
    /// Measured speed of flushes in bytes a second; 0 if none was measured.
    pub flush_bytes_per_s: u64,
    /// Time since the backlog last shrank, or began.
    pub flush_elapsed: Duration,
    /// Speed in bytes a second at which shards of sealed memtables are sent to memory nodes that
    /// have room; 0 if it was not measured. `None` if they are not sent, and wait for their flush.
    pub send_bytes_per_s: Option<u64>,
    /// Bytes at memory nodes that are to be flushed so that the nodes keep room.
    pub away_backlog_bytes: u64,
    /// Bytes that the memory nodes can still take.
    pub away_space_bytes: u64,
    /// Measured speed of flushes that take shards from memory nodes, in bytes a second; 0 if none
    /// was measured. The first flushes of a database take shards of this process, a few at a time,
    /// and say little about flushes by many executors.
    pub away_flush_bytes_per_s: u64,
    /// Compaction debt in bytes.
    pub pending_bytes: u64,
    /// Slowdown threshold for `pending_bytes`; 0 for none.
    pub pending_slowdown: u64,
    /// Stop threshold for `pending_bytes`; 0 for none.
    pub pending_stop: u64,
    /// Bytes charged to the budget.
    pub budget_used: u64,
    /// Limit of the budget in bytes; 0 or `u64::MAX` for none.
    pub budget_limit: u64,
    /// Bytes of exposed and hidden garbage, less the debt of events.
    pub space_used: u64,
    /// Slowdown threshold for `space_used`.
    pub space_slowdown: u64,
    /// Stop threshold for `space_used`; 0 without a bound on space.
    pub space_stop: u64,
    /// Measured speed at which garbage collection and compactions free space, in bytes a second; 0
    /// if it was not measured.
    pub space_freed_bytes_per_s: u64,
    /// Bytes of files that fit before the storage pool has reached the limit of writers.
    pub pool_left_bytes: u64,
    /// Value of `pool_left_bytes` below which writers slow down; 0 without a pool.
    pub pool_slowdown_bytes: u64,
    /// Rate of ingested bytes, from a [`RateMeter`] while writers were not delayed; 0 if not
    /// measured.
    pub peak_bytes_per_s: u64,
    /// Rate of ingested bytes that flushes write into tables, from a [`RateMeter`]; 0 if not
    /// measured.
    pub drain_bytes_per_s: u64,
    /// Measured speed at which compactions take ingested bytes out of L0, in bytes a second; 0 if
    /// none was measured.
    pub compaction_bytes_per_s: u64,
}

impl StallInput {
    /// The fields that follow from a version and its settings; the others are zero.
    #[must_use]
    pub fn of(version: &Version) -> Self {
        let options: &CfOptions = version.options();
        Self {
            l0_files: version.l0_layers_max(),
            l0_slowdown: options.l0_slowdown,
            l0_stop: options.l0_stop,
            pending_bytes: version.pending_compaction_bytes(),
            pending_slowdown: options.pending_bytes_slowdown,
            pending_stop: options.pending_bytes_stop,
            ..Self::default()
        }
    }

    /// Whether compactions are behind: writers are slowed or stopped for L0 files or compaction
    /// debt.
    pub(crate) fn is_compaction_behind(&self) -> bool {
        let is_of_compactions =
            |cause| matches!(cause, StallCause::L0Files | StallCause::PendingBytes);
        debts(self).into_iter().any(|(cause, debt)| is_of_compactions(cause) && debt.is_some())
    }
}

/// Limit for the writers of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallDecision {
    /// Writers go on at full speed.
    None,
    /// All writers together may write at most at this speed.
    Delay {
        /// The cause of the delay.
        cause: StallCause,
        /// Speed in bytes a second.
        bytes_per_s: u64,
    },
    /// Writers wait until the state has changed.
    Stop {
        /// The cause of the stop.
        cause: StallCause,
    },
}

/// Position of `debt` between the thresholds: `None` below the first, 1 from the second on.
fn between(debt: f64, slowdown: f64, stop: f64) -> Option<f64> {
    if debt < slowdown {
        None
    } else if debt >= stop {
        Some(1.0)
    } else {
        Some((debt - slowdown) / (stop - slowdown))
    }
}

/// Position of the compaction debt between its thresholds, of which either may be 0 for none.
fn pending_debt(input: &StallInput) -> Option<f64> {
    let debt = input.pending_bytes as f64;
    match (input.pending_slowdown, input.pending_stop) {
        (0, 0) => None,
        (0, stop) => (debt >= stop as f64).then_some(1.0),
        (slowdown, 0) => {
            let slowdown = slowdown as f64;
            between(debt, slowdown, slowdown * UNSTOPPED_RANGE).map(|debt| debt.min(UNSTOPPED))
        }
        (slowdown, stop) => between(debt, slowdown as f64, stop as f64),
    }
}

/// Position of each cause's debt between its thresholds, from 0 to 1; `None` below them.
fn debts(input: &StallInput) -> [(StallCause, Option<f64>); 3] {
    let limit = match input.budget_limit {
        0 => f64::INFINITY,
        limit => limit as f64,
    };
    let l0 = (input.l0_files as f64, input.l0_slowdown as f64, input.l0_stop as f64);
    [
        (StallCause::L0Files, between(l0.0, l0.1, l0.2)),
        (StallCause::PendingBytes, pending_debt(input)),
        (StallCause::Budget, between(input.budget_used as f64, limit, limit * 1.5)),
    ]
}

/// Position of the used space between its thresholds; `None` without a bound.
fn space_debt(input: &StallInput) -> Option<f64> {
    if input.space_stop == 0 {
        return None;
    }
    between(input.space_used as f64, input.space_slowdown as f64, input.space_stop as f64)
}

/// Part of the last room in the storage pool that is used, from 0 to less than 1; `None` before.
fn pool_debt(input: &StallInput) -> Option<f64> {
    let left = input.pool_left_bytes.saturating_sub(input.flush_backlog_bytes);
    let used = input.pool_slowdown_bytes.saturating_sub(left);
    (used > 0).then(|| (used as f64 / input.pool_slowdown_bytes as f64).min(UNSTOPPED))
}

/// The allowed rate at `debt` between 0 and 1, if background work drains `drain` bytes a second.
fn rate_at(debt: f64, input: &StallInput, drain: u64) -> f64 {
    let peak = match input.peak_bytes_per_s {
        0 => PEAK_BYTES_PER_S_DEFAULT.max(drain),
        peak => peak.max(RATE_BYTES_PER_S_MIN),
    };
    let low = match drain {
        0 => peak / UNMEASURED_FALL,
        drain => drain / DRAIN_SHARE,
    };
    let low = low.clamp(RATE_BYTES_PER_S_MIN, peak) as f64;
    peak as f64 * (low / peak as f64).powf(debt)
}

/// The allowed rate at this part of the last room in the storage pool.
fn pool_rate(debt: f64, input: &StallInput) -> f64 {
    let peak_bytes_per_s = input.peak_bytes_per_s.max(PEAK_BYTES_PER_S_DEFAULT);
    rate_at(debt, &StallInput { peak_bytes_per_s, ..*input }, 0)
}

/// Measured speed of the background work that lowers the debt of `cause`. Before the first
/// compaction of L0 has ended, the speed of flushes is used instead.
fn drain_of(cause: StallCause, input: &StallInput) -> u64 {
    match (cause, input.compaction_bytes_per_s) {
        (StallCause::L0Files | StallCause::PendingBytes, speed) if speed > 0 => speed,
        _ => input.drain_bytes_per_s,
    }
}

/// The rate at which the space of writers ends together with the flush, by the slower of the two
/// stages; `None` if nothing waits to be flushed.
fn memtable_rate(input: &StallInput) -> Option<f64> {
    let leaves_at = input.send_bytes_per_s.unwrap_or(input.flush_bytes_per_s);
    let (backlog, elapsed) = (input.flush_backlog_bytes, input.flush_elapsed);
    let here = stage_rate(backlog, input.memtable_space_bytes, leaves_at, elapsed);
    here.into_iter().chain(away_rate(input)).min_by(f64::total_cmp)
}

/// The rate at which the room of the memory nodes suffices while flushes make more; `None` without
/// a backlog there.
fn away_rate(input: &StallInput) -> Option<f64> {
    if input.away_backlog_bytes == 0 {
        return None;
    }
    let speed = speed_or_guess(input.away_flush_bytes_per_s);
    let backlog_s = input.away_backlog_bytes as f64 / speed;
    Some(speed + input.away_space_bytes as f64 / backlog_s)
}

/// A measured speed in bytes a second, or a guess if there is none yet.
fn speed_or_guess(measured: u64) -> f64 {
    match measured {
        0 => PEAK_BYTES_PER_S_DEFAULT as f64,
        measured => measured as f64,
    }
}

/// The rate at which `space` bytes end together with `backlog` bytes that drain at `speed`; `None`
/// without a backlog.
fn stage_rate(backlog: u64, space: u64, speed: u64, elapsed: Duration) -> Option<f64> {
    if backlog == 0 {
        return None;
    }
    let whole_s = backlog as f64 / speed_or_guess(speed);
    let left_s = (whole_s - elapsed.as_secs_f64()).max(whole_s * FLUSH_TIME_LEFT_MIN);
    Some(space as f64 / left_s)
}

/// Bytes to flush from memory nodes that hold `held_bytes` and may hold `limit_bytes`. If nine
/// tenths are exceeded, all but three quarters are flushed.
#[must_use]
pub fn away_excess_bytes(held_bytes: u64, limit_bytes: u64) -> u64 {
    match held_bytes > limit_bytes / 10 * 9 {
        // A limit of a few bytes is rounded down more here than above.
        true => held_bytes.saturating_sub(limit_bytes / 4 * 3),
        false => 0,
    }
}

/// Smoothed speed of flushes (or of compactions of L0) after one of `bytes` took `duration`, while
/// `at_once` of them ran. The measured speed is that of the job times `at_once`. `before` is the
/// speed so far, 0 if none was measured. A job of few bytes says little and changes nothing.
#[must_use]
pub fn job_speed(before: u64, bytes: u64, at_once: usize, duration: Duration) -> u64 {
    if bytes < SPEED_BYTES_MIN && before > 0 {
        return before;
    }
    let speed = bytes as f64 * at_once.max(1) as f64 / duration.as_secs_f64().max(1e-9);
    let speed = (speed as u64).max(1);
    if before == 0 { speed } else { before - before / 4 + speed / 4 }
}

/// Decides at which rate writers may go; the head of the module has the rules.
#[must_use]
pub fn stall(input: &StallInput) -> StallDecision {
    let mut worst: Option<(f64, StallCause)> = None;
    for (cause, debt) in debts(input) {
        let Some(debt) = debt else { continue };
        if debt >= 1.0 && cause != StallCause::Budget {
            return StallDecision::Stop { cause };
        }
        if worst.is_none_or(|(most, _)| debt > most) {
            worst = Some((debt, cause));
        }
    }
    let space = space_debt(input);
    if space.is_some_and(|debt| debt >= 1.0) {
        return StallDecision::Stop { cause: StallCause::Space };
    }
    let by_debt = worst.map(|(debt, cause)| (rate_at(debt, input, drain_of(cause, input)), cause));
    let freed = input.space_freed_bytes_per_s;
    let by_space = space.map(|debt| (rate_at(debt, input, freed), StallCause::Space));
    let by_pool = pool_debt(input).map(|debt| (pool_rate(debt, input), StallCause::Pool));
    let by_memtables = memtable_rate(input).map(|rate| (rate, StallCause::Memtables));
    if input.memtable_space_bytes == 0 && input.flush_backlog_bytes > 0 {
        return StallDecision::Stop { cause: StallCause::Memtables };
    }
    let rates = by_debt.into_iter().chain(by_memtables).chain(by_space).chain(by_pool);
    let slowest = rates.min_by(|a, b| a.0.total_cmp(&b.0));
    match slowest {
        None => StallDecision::None,
        Some((rate, cause)) => {
            StallDecision::Delay { cause, bytes_per_s: (rate as u64).max(RATE_BYTES_PER_S_MIN) }
        }
    }
}

/// Measures the rate that bytes reach: the largest over a window, which is slowly forgotten. One
/// meter serves the bytes that writers ingest while they are not delayed. Another one serves the
/// bytes that flushes drain, with a window of seconds, because a flush ends in one step. `add` is
/// one relaxed atomic add.
#[derive(Debug)]
pub struct RateMeter {
    clock: Arc<dyn Clock>,
    window: Duration,
    total: AtomicU64,
    state: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    since_ns: u64,
    total_before: u64,
    bytes_per_s: f64,
}

impl RateMeter {
    /// A meter that has measured nothing.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, window: Duration) -> Self {
        let since_ns = clock.now_ns();
        let state = Mutex::new(Window { since_ns, total_before: 0, bytes_per_s: 0.0 });
        Self { clock, window, total: AtomicU64::new(0), state }
    }

    /// Adds `bytes` to the count.
    pub fn add(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the number of bytes that were counted in all, for a count that is kept elsewhere.
    pub fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    /// The rate in bytes a second; 0 before the first window has ended. The call ends the window if
    /// it is over, so it must come from time to time, whenever a decision is made.
    pub fn rate(&self) -> u64 {
        let mut window = self.state.lock();
        let now = self.clock.now_ns();
        let elapsed = Duration::from_nanos(now.saturating_sub(window.since_ns));
        if elapsed >= self.window && !elapsed.is_zero() {
            let total = self.total.load(Ordering::Relaxed);
            let seconds = elapsed.as_secs_f64();
            let measured = total.wrapping_sub(window.total_before) as f64 / seconds;
            let remembered = window.bytes_per_s * (-seconds / RATE_MEMORY_S).exp();
            let bytes_per_s = measured.max(remembered);
            *window = Window { since_ns: now, total_before: total, bytes_per_s };
        }
        window.bytes_per_s as u64
    }

    /// Forgets the bytes that were counted since the window began. Call it while writers are
    /// delayed, because their rate then does not show their possible rate.
    pub fn restart_window(&self) {
        let mut window = self.state.lock();
        window.since_ns = self.clock.now_ns();
        window.total_before = self.total.load(Ordering::Relaxed);
    }
}

/// Spreads a rate over writers: a token bucket in one atomic word.
#[derive(Debug)]
pub struct DelayController {
    clock: Arc<dyn Clock>,
    /// Time at which the bytes admitted so far are paid for, in the clock's nanoseconds.
    paid_until_ns: AtomicU64,
}

impl DelayController {
    /// A controller without admitted bytes.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, paid_until_ns: AtomicU64::new(0) }
    }

    /// Whether the next write would have to wait for bytes that were admitted before.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        let paid = self.paid_until_ns.load(Ordering::Relaxed);
        Duration::from_nanos(paid.saturating_sub(self.clock.now_ns())) >= WAIT_MIN
    }

    /// Admits a write of `bytes` at `bytes_per_s` (of a [`StallDecision::Delay`]). Returns the time
    /// for which the writer must wait first, at most [`WAIT_MAX`].
    ///
    /// Cost beyond that limit is forgiven, so that one huge write does not delay all writers for
    /// minutes.
    #[must_use]
    pub fn admit(&self, bytes: u64, bytes_per_s: u64) -> Duration {
        let now = self.clock.now_ns();
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let most = now.saturating_add(WAIT_MAX.as_nanos() as u64);
        let pay = |paid: u64| Some(paid.max(now).saturating_add(cost).min(most));
        let update = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        let (Ok(paid) | Err(paid)) = update;
        let until = pay(paid).unwrap_or(now);
        let wait = Duration::from_nanos(until.saturating_sub(now));
        if wait < WAIT_MIN { Duration::ZERO } else { wait }
    }
}

#[cfg(test)]
mod tests;
