//! Space of the families that have separated values: the bound, the garbage, and what follows.
//!
//! [`crate::db::state::jobs::JobState`] owns one [`FamilySpace`] for each family that has had value
//! files since the database was opened. The jobs lock guards it. Garbage itself follows from the
//! version. The manifest keeps the share of shadowing records, and the margin and the debt before
//! the last install ([`SpaceFigures`]). A restart may lose the rest: failures, pauses, speeds, and
//! the results of the last examination ([`crate::db::background::space`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::compaction::pick::SpaceDemand;
use crate::gc::hidden::{HiddenGarbage, ShadowShare};
use crate::gc::pick::FailureLeave;
use crate::gc::space_plan::{Margin, SpaceDebt, SpaceLimit, SpacePlan, SpaceUsage};
use crate::manifest::SpaceFigures;
use crate::version::Version;

/// Divisor of a new measurement's weight in the average speed of garbage collection.
const SPEED_PARTS: u64 = 4;

/// Pause between two warnings, in nanoseconds: a minute.
const WARNING_PAUSE_NS: u64 = 60_000_000_000;

/// The used space of a family and its bound, as of the last examination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceView {
    pub(crate) usage: SpaceUsage,
    pub(crate) hidden: HiddenGarbage,
    /// Share of records that shadow something when they sink.
    pub(crate) shadow_share: f64,
    /// `None` without a bound.
    pub(crate) bound: Option<(SpacePlan, Margin)>,
}

/// Exposed garbage of a family compared with its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExposedGarbage {
    /// No garbage is due for space.
    #[default]
    WithinLimit,
    /// Garbage is due for space.
    OverLimit,
}

/// Bookkeeping of one family's space. A restart keeps its [`SpaceFigures`] alone.
#[derive(Debug, Default)]
pub(crate) struct FamilySpace {
    /// Inputs of garbage collections that failed.
    failures: FailureLeave,
    /// Inputs of merges of invalid files that failed.
    merge_failures: FailureLeave,
    /// The version in which the last pick found nothing to collect.
    at_rest: Weak<Version>,
    /// Time from which on a file that was left out after failures may be taken again, in
    /// nanoseconds of the clock.
    rest_until_ns: u64,
    /// The exposed garbage at the last pick that found nothing to collect.
    exposed_at_rest: ExposedGarbage,
    shadow_share: ShadowShare,
    debt: SpaceDebt,
    /// The margin that an earlier open kept, until the first examination.
    kept_margin: Option<Margin>,
    view: Option<SpaceView>,
    demand: Option<SpaceDemand>,
    /// Whether nothing runs and nothing can be picked that lowers the used bytes.
    has_no_work: bool,
    /// Time of the clock before which there is work, because it was just found, in nanoseconds.
    has_work_until_ns: u64,
    /// Whether the limit of the writers has changed since their throttle was last decided.
    is_limit_new: bool,
    /// Bytes of garbage that garbage collection frees in a second; 0 before the first measurement.
    freed_bytes_per_s: u64,
    /// Time of the clock before which no further warning is written, in nanoseconds.
    silent_until_ns: u64,
}

impl FamilySpace {
    /// Takes over what an earlier open of the database kept.
    pub(crate) fn restore(&mut self, figures: &SpaceFigures) {
        self.shadow_share = ShadowShare::kept(&figures.shadow);
        if let Some(bound) = &figures.bound {
            self.debt = SpaceDebt::kept(bound);
            self.kept_margin = Some(Margin::kept(bound));
        }
    }

    /// The margin that an earlier open kept; `None` from the second call on.
    pub(crate) fn take_kept_margin(&mut self) -> Option<Margin> {
        self.kept_margin.take()
    }

    /// Whether the next examination begins with the margin that an earlier open kept.
    pub(crate) fn has_kept_margin(&self) -> bool {
        self.kept_margin.is_some()
    }

    /// The figures for the next open, if the share of shadowing records is `share`. `None` without
    /// an examination since the first value file.
    pub(crate) fn figures(&self, share: &ShadowShare) -> Option<SpaceFigures> {
        let view = self.view.as_ref()?;
        let bound = view.bound.map(|(_, margin)| self.debt.figures(&margin));
        Some(SpaceFigures { shadow: share.figures(), bound })
    }

    /// Whether a warning may be written now. Each one begins a pause.
    pub(crate) fn may_warn(&mut self, now_ns: u64) -> bool {
        let may = now_ns >= self.silent_until_ns;
        if may {
            self.silent_until_ns = now_ns.saturating_add(WARNING_PAUSE_NS);
        }
        may
    }

    pub(crate) fn failures(&self) -> &FailureLeave {
        &self.failures
    }

    pub(crate) fn failures_mut(&mut self) -> &mut FailureLeave {
        &mut self.failures
    }

    /// Inputs of merges of invalid files that failed.
    pub(crate) fn merge_failures_mut(&mut self) -> &mut FailureLeave {
        &mut self.merge_failures
    }

    /// Whether nothing was to be collected in exactly this version. Garbage that has exceeded its
    /// limit since then ends the rest, because a limit falls with the room in a pool.
    pub(crate) fn is_at_rest(
        &self,
        version: &Arc<Version>,
        now_ns: u64,
        exposed: ExposedGarbage,
    ) -> bool {
        let is_newly_due = exposed > self.exposed_at_rest;
        let is_same = std::ptr::eq(self.at_rest.as_ptr(), Arc::as_ptr(version));
        now_ns < self.rest_until_ns && is_same && !is_newly_due
    }

    /// Notes that nothing is to be collected in this version before `until_ns`, with this garbage.
    pub(crate) fn note_rest(
        &mut self,
        version: &Arc<Version>,
        until_ns: u64,
        exposed: ExposedGarbage,
    ) {
        self.at_rest = Arc::downgrade(version);
        self.rest_until_ns = until_ns;
        self.exposed_at_rest = exposed;
    }

    /// The next pick examines the version again.
    pub(crate) fn end_rest(&mut self) {
        self.at_rest = Weak::new();
    }

    pub(crate) fn shadow_share(&self) -> &ShadowShare {
        &self.shadow_share
    }

    pub(crate) fn set_shadow_share(&mut self, share: ShadowShare) {
        self.shadow_share = share;
    }

    pub(crate) fn debt(&self) -> &SpaceDebt {
        &self.debt
    }

    pub(crate) fn debt_mut(&mut self) -> &mut SpaceDebt {
        &mut self.debt
    }

    /// Result of the last examination; `None` while the family has no value files.
    pub(crate) fn view(&self) -> Option<&SpaceView> {
        self.view.as_ref()
    }

    /// Keeps the result of an examination. Something changed, so there may be work again.
    pub(crate) fn set_view(&mut self, view: SpaceView, demand: Option<SpaceDemand>) {
        self.view = Some(view);
        self.demand = demand;
        self.has_no_work = false;
        self.has_work_until_ns = 0;
        self.end_rest();
    }

    /// Ends the bound, because the last value file of the family is gone. The debt and the result
    /// of the last examination end with it. The measured share and the failures stay.
    pub(crate) fn end_bound(&mut self) {
        self.debt = SpaceDebt::default();
        self.kept_margin = None;
        self.view = None;
        self.demand = None;
        self.has_no_work = false;
        self.has_work_until_ns = 0;
        self.end_rest();
    }

    /// Demands of the bound on compactions, without the turn of the family; `None` if there are
    /// none.
    pub(crate) fn demand(&self) -> Option<&SpaceDemand> {
        self.demand.as_ref()
    }

    /// Whether writers are close to the bound.
    pub(crate) fn is_pressed(&self) -> bool {
        self.demand.is_some_and(|demand| demand.is_pressed)
    }

    pub(crate) fn has_no_work(&self) -> bool {
        self.has_no_work
    }

    /// Notes that the limit of the writers has changed, so that their throttle is decided again.
    pub(crate) fn note_limit_change(&mut self) {
        self.is_limit_new = true;
    }

    /// Whether the limit of the writers has changed since the last call.
    pub(crate) fn take_limit_change(&mut self) -> bool {
        std::mem::take(&mut self.is_limit_new)
    }

    /// Notes that nothing runs and nothing can be picked that lowers the used bytes.
    pub(crate) fn note_no_work(&mut self) {
        self.has_no_work = true;
    }

    /// Notes that a job runs again that may lower the used bytes.
    pub(crate) fn note_work(&mut self) {
        self.has_no_work = false;
    }

    /// Notes that a job can be picked, so that none is looked for before `until_ns`.
    pub(crate) fn note_work_found(&mut self, until_ns: u64) {
        self.has_work_until_ns = until_ns;
    }

    /// Whether it is unknown if a job can be picked.
    pub(crate) fn may_lack_work(&self, now_ns: u64) -> bool {
        now_ns >= self.has_work_until_ns
    }

    /// Measures a garbage collection that freed `bytes` in `ns` nanoseconds.
    pub(crate) fn note_freed(&mut self, bytes: u64, ns: u64) {
        let speed = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
        let speed = u64::try_from(speed).unwrap_or(u64::MAX);
        self.freed_bytes_per_s = match self.freed_bytes_per_s {
            0 => speed,
            known => known - known / SPEED_PARTS + speed / SPEED_PARTS,
        };
    }

    pub(crate) fn freed_bytes_per_s(&self) -> u64 {
        self.freed_bytes_per_s
    }
}

/// The limit of a family's space as its writers see it, without a lock.
#[derive(Debug, Default)]
pub(crate) struct SpaceGauge {
    used_bytes: AtomicU64,
    slowdown_bytes: AtomicU64,
    /// Used bytes at which writers are stopped; 0 if no writer is to be stopped.
    stop_bytes: AtomicU64,
    freed_bytes_per_s: AtomicU64,
}

impl SpaceGauge {
    /// Replaces the limit; `None` if no writer is to be delayed or stopped. Returns whether it is
    /// another one than before.
    pub(crate) fn set(&self, limit: Option<SpaceLimit>, freed_bytes_per_s: u64) -> bool {
        let limit = limit.unwrap_or_default();
        let before = SpaceLimit {
            used_bytes: self.used_bytes(),
            slowdown_bytes: self.slowdown_bytes(),
            stop_bytes: self.stop_bytes(),
        };
        self.used_bytes.store(limit.used_bytes, Ordering::Relaxed);
        self.slowdown_bytes.store(limit.slowdown_bytes, Ordering::Relaxed);
        self.freed_bytes_per_s.store(freed_bytes_per_s, Ordering::Relaxed);
        self.stop_bytes.store(limit.stop_bytes, Ordering::Relaxed);
        limit != before
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn slowdown_bytes(&self) -> u64 {
        self.slowdown_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn stop_bytes(&self) -> u64 {
        self.stop_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn freed_bytes_per_s(&self) -> u64 {
        self.freed_bytes_per_s.load(Ordering::Relaxed)
    }
}
