//! Compactions that find hidden garbage while writers are delayed for space. Pure functions.
//!
//! A record above the last level shadows an older version further down, whose separated value is
//! garbage that only a compaction can find. Garbage in a small L0, or in levels within their
//! targets, would be found late or never. So each family may state a [`SpaceDemand`]: the scores of
//! its levels rise with the hidden garbage that exceeds the plan.
//!
//! While its writers are delayed for space, the picker also takes L0 files below their trigger and
//! levels whose score is below 1. The level with the most bytes that may shadow something goes
//! first. After these it rewrites tables of the last level that hold records for a snapshot only,
//! once the snapshot is gone.
//!
//! Every such pick moves records down or loses garbage for certain, so it ends when all records lie
//! in the last level.
//!
//! Cost: a pass over the files above the last level, and only while writers are delayed for space.

use std::cmp::Reverse;
use std::sync::Arc;

use archipelago_base::CfId;

use super::picker::Picker;
use super::{Pick, PickInput, Running};
use crate::live_file::LiveFile;
use crate::version::LAST_LEVEL;

/// Demand of the bound on space on the compactions of one column family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpaceDemand {
    /// The column family.
    pub cf: CfId,
    /// Factor for the scores of the levels, 1 or more: estimated hidden garbage over the planned.
    pub urgency: f64,
    /// Share of records that shadow something when they sink into the last level.
    pub shadow_share: f64,
    /// Whether its writers are delayed for space.
    pub is_pressed: bool,
    /// Turn of the family among those whose writers are delayed, while these go before all others:
    /// the smallest number goes first. `None` if the next compaction is picked by urgency alone.
    pub turn: Option<u64>,
}

impl PickInput<'_> {
    /// The demand of the version's family. There is none without separated values or without a
    /// bound.
    pub(super) fn space_demand(&self) -> Option<&SpaceDemand> {
        self.space.iter().find(|demand| demand.cf == self.version.cf())
    }

    /// Whether writers of the version's family are delayed for space.
    pub(super) fn is_pressed(&self) -> bool {
        self.space_demand().is_some_and(|demand| demand.is_pressed)
    }

    /// The turn of the version's family, if its writers are delayed for space.
    pub(super) fn turn(&self) -> Option<u64> {
        self.space_demand().filter(|demand| demand.is_pressed)?.turn
    }

    /// The factor for the scores of the version's levels.
    pub(super) fn space_urgency(&self) -> f64 {
        self.space_demand().map_or(1.0, |demand| demand.urgency.max(1.0))
    }
}

/// Picks that run only while writers are delayed for space.
impl Picker<'_> {
    /// The job that finds most hidden garbage, although no level is due.
    pub(super) fn pick_hidden(&self, input: &PickInput<'_>) -> Option<Pick> {
        let demand = input.space_demand().filter(|demand| demand.is_pressed)?;
        let sinks = if demand.shadow_share > 0.0 { self.pick_shadowing() } else { None };
        sinks.or_else(|| self.pick_unneeded(input))
    }

    /// Largest number of bytes that the records of `files` may shadow.
    fn shadowing_bytes<'f>(&self, files: impl Iterator<Item = &'f Arc<LiveFile>>) -> u64 {
        let mean = self.version.referenced_mean_bytes();
        files.filter(|file| self.is_idle(file)).fold(0, |sum: u64, file| {
            let deletes = file.deletions.saturating_mul(mean);
            sum.saturating_add(file.compensated_bytes()).saturating_add(deletes)
        })
    }

    /// The job that takes files down from the level whose records may shadow most.
    fn pick_shadowing(&self) -> Option<Pick> {
        let version = self.version;
        let buckets = 0..version.map().len();
        let l0 = buckets.flat_map(|bucket| version.l0(bucket));
        let mut order = vec![(self.shadowing_bytes(l0), 0)];
        for level in version.base_level()..LAST_LEVEL {
            order.push((self.shadowing_bytes(version.level(level).files().iter()), level));
        }
        order.retain(|&(bytes, _)| bytes > 0);
        order.sort_unstable_by_key(|&(bytes, level)| (Reverse(bytes), level));
        order.into_iter().find_map(|(_, level)| match level {
            0 => self.pick_shadowing_l0(),
            _ => self.pick_level(level, &self.due_l0()),
        })
    }

    fn pick_shadowing_l0(&self) -> Option<Pick> {
        let version = self.version;
        let mut order: Vec<(u64, usize)> = (0..version.map().len())
            .map(|bucket| (self.shadowing_bytes(version.l0(bucket).iter()), bucket))
            .collect();
        order.sort_unstable_by_key(|&(bytes, bucket)| (Reverse(bytes), bucket));
        let job = order.into_iter().find_map(|(_, bucket)| self.l0_job(bucket))?;
        Some(self.moved_if_possible(job))
    }

    /// The rewrite of the last-level table with the most bytes that were kept only for snapshots
    /// which are gone. At most one rewrite of the family runs at a time, whatever its reason.
    /// Rewrites of other families do not count, because they free no space of this one.
    fn pick_unneeded(&self, input: &PickInput<'_>) -> Option<Pick> {
        let is_own_rewrite = |job: &Running| job.cf == self.version.cf() && job.is_rewrite();
        if input.running.iter().any(is_own_rewrite) {
            return None;
        }
        let is_unneeded = |file: &LiveFile| {
            file.largest_seq() <= input.visible
                && file.content.unneeded_shadowed(input.snapshots) > 0
        };
        let last = self.version.reclaimable().iter().filter(|(level, _)| *level == LAST_LEVEL);
        let tables = last.map(|(_, file)| file);
        let tables = tables.filter(|file| is_unneeded(file) && self.may_rewrite(file));
        let most = tables.max_by_key(|file| (file.content.shadowed_bytes, Reverse(file.no)))?;
        Some(Pick::Rewrite { level: LAST_LEVEL, files: vec![Arc::clone(most)] })
    }
}
