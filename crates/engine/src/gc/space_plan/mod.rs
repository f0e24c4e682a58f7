//! The bound on space: the division of garbage into exposed and hidden garbage, the share of it
//! that writers may use, and the events that exceed the bound. Pure functions and values.
//!
//! With `A` for `space_amplification_max`, the accounted bytes keep
//!
//! > live + exposed + hidden + in flight ≤ A · live + slack + debt
//!
//! The slack is one value file, one set of memtables and the shards at memory nodes, and the
//! outputs of running jobs. Writers stop where garbage alone reaches the *allowance*,
//! `(A − 1) · live` and one value file. Memtables and outputs are left out on both sides.
//! [`space_plan`] divides `A − 1` into a share `x` of exposed garbage and a share `h` of hidden
//! garbage, so that garbage collection and compactions together write least:
//!
//! > cost(x) = ρ_v · g(x), where g = p / (1 − p) and (1 − p) / (−ln p) = 1 / (1 + x)
//! > cost(h) = ρ_k · k / h
//!
//! `p` is the share of valid bytes in the file that greedy collection takes next under uniform
//! updates. `k` is the share of the data that tables hold, which is rewritten once while `h · live`
//! bytes are updated. `ρ` is the number of bytes that the file system writes per byte.
//!
//! Invariants:
//! 1. Debt rises only by a [`SpaceEvent`], and by no more than the event took from the margin.
//! 2. After an event, a tenth of the allowance is left, or the margin before it if that was less.
//!    So the event delays writers and does not stop them.
//! 3. Garbage exceeds the allowance and the debt by at most the bytes that left memtables since
//!    writers stopped. The memtables of that moment are one set, and those at memory nodes. A flush
//!    adds at most the bytes of its updates, because what its deletes hide beyond them is an event.
//! 4. The end of a job takes nothing from the margin, unless it is an event. So a job can always
//!    run to its end.
//!
//! Cost: a plan solves 64 equations by bisection, about 20 µs. Everything else is a few additions.

use archipelago_env::WriterRoom;

use crate::manifest::BoundFigures;

/// Number of hidden shares that a plan tries.
const HIDDEN_STEPS: u32 = 64;
/// Smallest hidden share that a plan tries.
const HIDDEN_SHARE_MIN: f64 = 0.01;
/// Bisections of the valid share; each halves the interval, and a double has 53 bits.
const BISECTIONS: u32 = 60;

/// Used share of the allowance from which on writers are delayed, in percent.
const SLOWDOWN_PERCENT: u64 = 80;
/// Garbage of one part in this many of the live bytes may exist in a pool without room. Greedy
/// collection rewrites about eight bytes per byte of uniform updates there, and more below.
const POOL_GARBAGE_PARTS: u64 = 16;

/// Used share of the allowance up to which an event becomes debt, in percent.
const EVENT_PERCENT: u64 = 90;

/// Bytes that greedy garbage collection rewrites per byte of uniform updates, if exposed garbage
/// may be `exposed_share` times the live bytes. Infinite for 0.
#[must_use]
pub(crate) fn rewritten_per_byte(exposed_share: f64) -> f64 {
    if exposed_share <= 0.0 {
        return f64::INFINITY;
    }
    let target = 1.0 / (1.0 + exposed_share);
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for _ in 0..BISECTIONS {
        let valid = f64::midpoint(low, high);
        // The left side grows with the valid share, from 0 to 1.
        let is_above = (1.0 - valid) / -valid.ln() > target;
        (low, high) = if is_above { (low, valid) } else { (valid, high) };
    }
    low / (1.0 - low)
}

/// Settings and measurements from which a plan follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlanInput {
    /// The bound of the family; 0 for none.
    pub amplification_max: f64,
    /// Bytes of tables as a share of the bytes of tables and value files.
    pub key_share: f64,
    /// Bytes that the file system writes per byte of a value file.
    pub value_redundancy: f64,
    /// Bytes that the file system writes per byte of a table.
    pub key_redundancy: f64,
}

/// Garbage that may exist, as shares of the live bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SpacePlan {
    /// Share of exposed garbage. Above it, garbage collection is due.
    pub exposed_share: f64,
    /// Share of hidden garbage at its peak. Above it, compactions become more urgent.
    pub hidden_share: f64,
}

impl SpacePlan {
    /// Bytes of exposed garbage that may exist in addition to `live_bytes`.
    #[must_use]
    pub(crate) fn exposed_bytes_max(&self, live_bytes: u64) -> u64 {
        (live_bytes as f64 * self.exposed_share) as u64
    }

    /// Factor for the urgency of the levels above the last, 1 or more, at an estimate of
    /// `hidden_bytes`.
    #[must_use]
    pub(crate) fn hidden_urgency(&self, hidden_bytes: u64, live_bytes: u64) -> f64 {
        let planned = live_bytes as f64 * self.hidden_share;
        if hidden_bytes == 0 {
            return 1.0;
        }
        (hidden_bytes as f64 / planned.max(1.0)).max(1.0)
    }
}

/// The division of the bound with the fewest written bytes; `None` without a bound. The shares add
/// up to the bound minus 1.
#[must_use]
pub(crate) fn space_plan(input: &PlanInput) -> Option<SpacePlan> {
    let garbage = input.amplification_max - 1.0;
    if garbage <= HIDDEN_SHARE_MIN {
        return None;
    }
    let plan_at = |step: u32| {
        let share = f64::from(step) / f64::from(HIDDEN_STEPS);
        let hidden_share = HIDDEN_SHARE_MIN + (garbage - HIDDEN_SHARE_MIN) * share;
        SpacePlan { exposed_share: garbage - hidden_share, hidden_share }
    };
    let cost = |plan: &SpacePlan| {
        input.value_redundancy * rewritten_per_byte(plan.exposed_share)
            + input.key_redundancy * input.key_share / plan.hidden_share
    };
    (0..HIDDEN_STEPS).map(plan_at).min_by(|one, other| cost(one).total_cmp(&cost(other)))
}

/// Bytes of exposed garbage that a family may have while its files lie in a pool with this `room`
/// of writers. `planned_bytes` is the limit without the pool, and `u64::MAX` without a bound.
///
/// Garbage may fill what is left before the pool slows writers down. So it is collected before they
/// are delayed for it. As the cost of collection grows without bound while garbage shrinks, a part
/// of `live_bytes` may exist in any case. A pool that slows nobody down changes nothing.
#[must_use]
pub(crate) fn exposed_bytes_in_pool(planned_bytes: u64, live_bytes: u64, room: WriterRoom) -> u64 {
    if room.slowdown_bytes == 0 {
        return planned_bytes;
    }
    let left = room.left_bytes.saturating_sub(room.slowdown_bytes);
    planned_bytes.min(left.max(live_bytes / POOL_GARBAGE_PARTS))
}

/// The accounted bytes of a version of a column family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceUsage {
    /// Bytes of the files of the newest version: tables and value files.
    pub version_bytes: u64,
    /// Bytes of exposed garbage among them.
    pub exposed_bytes: u64,
    /// Estimate of the bytes of hidden garbage among them.
    pub hidden_bytes: u64,
}

impl SpaceUsage {
    /// Bytes of the version that are not garbage.
    #[must_use]
    pub(crate) fn live_bytes(&self) -> u64 {
        self.version_bytes.saturating_sub(self.garbage_bytes())
    }

    /// Exposed and hidden bytes, at most the bytes of the version.
    #[must_use]
    pub(crate) fn garbage_bytes(&self) -> u64 {
        self.exposed_bytes.saturating_add(self.hidden_bytes).min(self.version_bytes)
    }

    /// Bytes of values that the deletes of a flush hide, beyond the bytes that its updates wrote.
    /// `before` is the usage before the install. `tombstone_bytes` is the part of the written bytes
    /// that are deletes.
    #[must_use]
    pub(crate) fn hidden_by_deletes(&self, before: &Self, tombstone_bytes: u64) -> u64 {
        let grown = self.garbage_bytes().saturating_sub(before.garbage_bytes());
        let written = self.version_bytes.saturating_sub(before.version_bytes);
        grown.saturating_sub(written.saturating_sub(tombstone_bytes))
    }
}

/// The bound of a family at one moment, and the bytes of it that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margin {
    /// Bytes of exposed and hidden garbage.
    pub used_bytes: u64,
    /// Used bytes that the bound allows without debt.
    pub allowance_bytes: u64,
    /// Further bytes that the bound allows until they are repaid.
    pub debt_bytes: u64,
}

impl Margin {
    /// The margin that an earlier open of the database kept.
    #[must_use]
    pub(crate) fn kept(figures: &BoundFigures) -> Self {
        Self {
            used_bytes: figures.used_bytes,
            allowance_bytes: figures.allowance_bytes,
            debt_bytes: figures.debt_bytes,
        }
    }

    /// The margin under the bound `amplification_max`, which must be at least 1. The room of
    /// `value_file_bytes` is for garbage collection, which may always write one full value file.
    #[must_use]
    pub(crate) fn new(
        amplification_max: f64,
        usage: &SpaceUsage,
        value_file_bytes: u64,
        debt: &SpaceDebt,
    ) -> Self {
        let garbage = usage.live_bytes() as f64 * (amplification_max - 1.0);
        Self {
            used_bytes: usage.garbage_bytes(),
            allowance_bytes: (garbage as u64).saturating_add(value_file_bytes),
            debt_bytes: debt.bytes,
        }
    }

    /// Bytes that may still be used; negative if the bound is exceeded.
    #[must_use]
    pub(crate) fn bytes(&self) -> i64 {
        let limit = i128::from(self.allowance_bytes) + i128::from(self.debt_bytes);
        let left = limit - i128::from(self.used_bytes);
        i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX })
    }

    /// Used bytes that no debt covers.
    fn uncovered_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.debt_bytes)
    }

    /// A share of the allowance in bytes.
    fn share_bytes(&self, percent: u64) -> u64 {
        self.allowance_bytes / 100 * percent
    }

    /// Whether writers are to be delayed because of the used bytes. Compactions then take levels
    /// with hidden garbage that are not due, and garbage collection takes any file with garbage.
    #[must_use]
    pub(crate) fn is_pressed(&self) -> bool {
        self.uncovered_bytes() >= self.share_bytes(SLOWDOWN_PERCENT).max(1)
    }
}

/// An event that may put garbage over the bound, at any speed of writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SpaceEvent {
    /// A flush or compaction installed range tombstones.
    RangeDelete,
    /// A flush installed deletes that hide more bytes than its updates wrote.
    Delete,
    /// Tables were ingested.
    Ingestion,
    /// A compaction found more garbage than was estimated, or raised the estimate.
    GarbageFound,
    /// A snapshot was released that had kept records of the last level.
    SnapshotReleased,
    /// The database was opened, or the family got its first value file since. Earlier settings may
    /// have had another bound, and the manifest does not keep the debt of the last install.
    Opened,
}

impl SpaceEvent {
    /// The event as reports spell it.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RangeDelete => "range_delete",
            Self::Delete => "delete",
            Self::Ingestion => "ingestion",
            Self::GarbageFound => "garbage_found",
            Self::SnapshotReleased => "snapshot_released",
            Self::Opened => "opened",
        }
    }

    /// Every event, in the order of its code, which begins with 1. A code is stored and never used
    /// again.
    const BY_CODE: [Self; 6] = [
        Self::RangeDelete,
        Self::Delete,
        Self::Ingestion,
        Self::GarbageFound,
        Self::SnapshotReleased,
        Self::Opened,
    ];

    /// The code of the event in the manifest.
    fn code(self) -> u8 {
        let at = Self::BY_CODE.iter().position(|event| *event == self);
        at.map_or(0, |at| at as u8 + 1)
    }

    /// The event with that code; `None` for 0 and for codes of newer programs.
    fn of_code(code: u8) -> Option<Self> {
        let at = usize::from(code).checked_sub(1)?;
        Self::BY_CODE.get(at).copied()
    }
}

/// What an install changed in the space of a family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceChange {
    /// The margin before the install, with the present debt.
    pub before: Margin,
    /// The margin after the install, with the present debt.
    pub after: Margin,
    /// The event that the install may be.
    pub event: Option<SpaceEvent>,
    /// Largest number of bytes of garbage that the event itself made. Updates made the rest.
    pub own_bytes: u64,
}

/// Bytes over the bound that events caused and that garbage collection has not repaid. A plain
/// value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceDebt {
    bytes: u64,
    last_event: Option<SpaceEvent>,
}

impl SpaceDebt {
    /// The debt that an earlier open of the database kept.
    #[must_use]
    pub(crate) fn kept(figures: &BoundFigures) -> Self {
        let last_event = SpaceEvent::of_code(figures.debt_event);
        Self { bytes: figures.debt_bytes, last_event }
    }

    /// The debt and the margin for the next open of the database.
    #[must_use]
    pub(crate) fn figures(&self, margin: &Margin) -> BoundFigures {
        BoundFigures {
            used_bytes: margin.used_bytes,
            allowance_bytes: margin.allowance_bytes,
            debt_bytes: self.bytes,
            debt_event: self.last_event.map_or(0, SpaceEvent::code),
        }
    }

    /// Bytes that are not repaid.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last event that raised the debt.
    #[must_use]
    pub(crate) fn last_event(&self) -> Option<SpaceEvent> {
        self.last_event
    }

    /// Repays debt with what an install freed, and adds what its event took from the margin.
    /// Garbage that updates made meanwhile is no debt.
    pub(crate) fn settle(&mut self, change: &SpaceChange) {
        let SpaceChange { before, after, event, own_bytes } = *change;
        let freed = before.used_bytes.saturating_sub(after.used_bytes);
        if freed > 0 {
            self.repay(freed, &after);
        }
        let Some(event) = event else { return };
        let grown = after.used_bytes.saturating_sub(before.used_bytes);
        let by_updates = grown.saturating_sub(own_bytes);
        let ordinary = Margin { used_bytes: before.used_bytes + by_updates, ..before };
        self.note(event, &ordinary, &Margin { debt_bytes: self.bytes, ..after });
    }

    /// Adds the bytes that `event` put over 90 % of the allowance. `before` and `after` are the
    /// margins around the event, both with the present debt.
    fn note(&mut self, event: SpaceEvent, before: &Margin, after: &Margin) {
        let tenth = after.allowance_bytes - after.share_bytes(EVENT_PERCENT);
        let left = before.bytes().min(i64::try_from(tenth).unwrap_or(i64::MAX));
        if let Ok(raised @ 1..) = u64::try_from(left.saturating_sub(after.bytes())) {
            self.bytes = self.bytes.saturating_add(raised);
            self.last_event = Some(event);
        }
    }

    /// Repays half of the `freed_bytes` that garbage collection or a compaction freed. The other
    /// half is room for writers. `after` is the margin after the job, with the present debt. Debt
    /// that is not needed to keep writers from being delayed lapses.
    fn repay(&mut self, freed_bytes: u64, after: &Margin) {
        let needed = after.used_bytes.saturating_sub(after.share_bytes(SLOWDOWN_PERCENT));
        self.bytes = self.bytes.saturating_sub(freed_bytes / 2).min(needed);
    }
}

/// Whether any job can lower the used bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceWork {
    /// A job runs, or a pick exists.
    Exists,
    /// No job runs, and none can be picked.
    Nothing,
}

/// Limit that the bound sets to writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterLimit {
    /// Writers go on at full speed.
    None,
    /// Writers slow down from `slowdown_bytes` on and stop at `stop_bytes`.
    Graded(SpaceLimit),
    /// Writers go on, although the bound cannot be kept, because no job can lower the used bytes.
    /// Reports say so.
    CannotKeep,
}

/// Used bytes and the thresholds between which writers slow down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceLimit {
    /// Used bytes that no debt covers.
    pub used_bytes: u64,
    /// Used bytes from which on writers are delayed.
    pub slowdown_bytes: u64,
    /// Used bytes at which writers stop: the margin is 0.
    pub stop_bytes: u64,
}

/// The limit for writers of a family with the given margin. A writer waits only while there is work
/// that ends the wait.
#[must_use]
pub(crate) fn writer_limit(margin: &Margin, work: SpaceWork) -> WriterLimit {
    if !margin.is_pressed() {
        return WriterLimit::None;
    }
    match work {
        SpaceWork::Nothing if margin.bytes() <= 0 => WriterLimit::CannotKeep,
        SpaceWork::Nothing => WriterLimit::None,
        SpaceWork::Exists => WriterLimit::Graded(SpaceLimit {
            used_bytes: margin.uncovered_bytes(),
            slowdown_bytes: margin.share_bytes(SLOWDOWN_PERCENT).max(1),
            stop_bytes: margin.allowance_bytes.max(1),
        }),
    }
}

#[cfg(test)]
mod tests;
