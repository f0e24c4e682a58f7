//! Which sealed memtables are to be flushed while memory nodes can keep shards: a pure decision.
//!
//! Without a store of shards every sealed memtable is due. With one, a memtable may rest at memory
//! nodes until one of these holds:
//!
//! 1. A caller waits for its flush, or for the end of all background work, or nothing of its family
//!    may leave.
//! 2. It has a shard that cannot leave: records that no log has, keys that cut the first bucket
//!    map, an image that is too large, a node that has failed several times, or no room.
//! 3. All images together exceed nine tenths of what the nodes may hold. The oldest memtables are
//!    due, until three quarters are left.
//! 4. It pins a log segment that must go for the log to keep its bound.
//! 5. A flush that failed has written a part of its shards. They hold the bucket map in their
//!    range.
//! 6. The memory budget is nearly spent, and what stays here of the shards (filters, samples of
//!    keys, range tombstones) takes more than a small share of it. The oldest memtables are due,
//!    until enough of it is freed.
//! 7. The disk is nearly full: then the room for its tables is used while it is there.
//!
//! Installs of a key range follow memtable order, so all memtables of a family that are older than
//! a due one are due as well. The decision is a number: memtables below it are due.
//!
//! Thread-safety: pure, except for [`due_below`], which reads the state under the jobs lock.
//! Cost: O(sealed memtables × buckets).

use std::sync::Arc;

use archipelago_base::{CfId, FileNo};

use crate::db::background::rebalance;
use crate::db::inner::DbInner;
use crate::db::state::family::Family;
use crate::db::state::jobs::{JobState, RunningKind, Sealed, ShardState};
use crate::db::state::memtable::ShardHome;
use crate::db::write::log_segments;
use crate::disk_space::SpaceState;
use crate::memtable::Shard;
use crate::remote::StoreRoom;
use crate::stall::away_excess_bytes;

/// Bytes of an image beside its records and its index.
const IMAGE_FIXED_BYTES: u64 = 4 << 10;
/// Bytes that an image has for each record beside the stored record, at most: padding, index and
/// filter.
const IMAGE_RECORD_BYTES: u64 = 32;

/// What stays here of away shards may take this share of the memory budget.
const KEPT_SHARE: u64 = 16;

/// Whether a shard may leave for a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Yes,
    /// Not before the store has more room.
    NoRoom,
    Never,
}

/// A sealed shard in memory, as [`may_leave`] sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaveInput {
    /// Whether its memtable has records that no log has.
    pub(crate) unlogged: bool,
    /// Whether its keys are to cut the first bucket map.
    pub(crate) cuts_map: bool,
    /// Number of times that it may still be sent.
    pub(crate) sends_left: u8,
    /// Bytes of its image at most.
    pub(crate) image_bytes: u64,
    /// Whether the database takes writes and its log is whole.
    pub(crate) is_writable: bool,
    pub(crate) room: StoreRoom,
}

/// Whether a shard may leave. Only a logged record may: the log alone gives it back if its node is
/// lost. A memtable whose keys cut the first bucket map stays.
pub(crate) fn may_leave(input: &LeaveInput) -> Leave {
    let must_stay = input.unlogged
        || input.cuts_map
        || input.sends_left == 0
        || !input.is_writable
        || input.image_bytes > input.room.image_bytes_max;
    match (must_stay, input.image_bytes <= input.room.free_bytes) {
        (true, _) => Leave::Never,
        (false, false) => Leave::NoRoom,
        (false, true) => Leave::Yes,
    }
}

/// Bytes of a shard's image at most.
pub(crate) fn image_bytes_max(shard: &Shard) -> u64 {
    shard.data_bytes() + shard.entries() * IMAGE_RECORD_BYTES + IMAGE_FIXED_BYTES
}

/// A sealed memtable of any family, as [`due_by_bounds`] sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestingMemtable {
    pub(crate) id: u64,
    /// Bytes of its images at memory nodes.
    pub(crate) away_bytes: u64,
    /// Bytes in memory of what stays here of these shards.
    pub(crate) kept_bytes: u64,
    /// Oldest log segment that it pins.
    pub(crate) oldest_log: Option<FileNo>,
}

/// What makes resting memtables due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestBounds {
    /// Bytes that may be at all nodes together.
    pub(crate) limit_bytes: u64,
    /// The youngest log segment that must go.
    pub(crate) excess_log: Option<FileNo>,
    /// Bytes charged to the memory budget.
    pub(crate) used_bytes: u64,
    /// Bytes of the memory budget.
    pub(crate) budget_bytes: u64,
}

/// The number below which memtables are due for the sake of the nodes' memory (rule 3), of the log
/// (rule 4) and of the owner's memory (rule 6).
pub(crate) fn due_by_bounds(memtables: &[RestingMemtable], bounds: &RestBounds) -> u64 {
    let pins = |memtable: &&RestingMemtable| match (memtable.oldest_log, bounds.excess_log) {
        (Some(oldest), Some(excess)) => oldest <= excess,
        _ => false,
    };
    let by_log = memtables.iter().filter(pins).map(|memtable| memtable.id + 1).max();
    let held = memtables.iter().map(|memtable| memtable.away_bytes).sum();
    let excess = away_excess_bytes(held, bounds.limit_bytes);
    let by_bytes = oldest_with(memtables, excess, |memtable| memtable.away_bytes);
    let kept: u64 = memtables.iter().map(|memtable| memtable.kept_bytes).sum();
    let kept_excess = kept.saturating_sub(bounds.budget_bytes / KEPT_SHARE);
    let excess = bounds.used_bytes.saturating_sub(bounds.budget_bytes / 10 * 9).min(kept_excess);
    let by_memory = oldest_with(memtables, excess, |memtable| memtable.kept_bytes);
    by_bytes.max(by_memory).max(by_log.unwrap_or(0))
}

/// The number below which the oldest memtables have `wanted` bytes together.
fn oldest_with(
    memtables: &[RestingMemtable],
    mut wanted: u64,
    bytes: impl Fn(&RestingMemtable) -> u64,
) -> u64 {
    let mut oldest_first: Vec<&RestingMemtable> = memtables.iter().collect();
    oldest_first.sort_by_key(|memtable| memtable.id);
    let mut below = 0;
    for memtable in oldest_first {
        if wanted == 0 {
            break;
        }
        wanted = wanted.saturating_sub(bytes(memtable));
        below = memtable.id + 1;
    }
    below
}

/// What of the database decides about shards, at one moment.
pub(crate) struct DueInput {
    room: StoreRoom,
    is_writable: bool,
    is_sending: bool,
    /// Memtables with smaller numbers are due, of all families.
    by_bounds: u64,
    /// Families whose first bucket map is not cut yet, and will be.
    uncut: Vec<CfId>,
    /// Families of which everything is due.
    staying: Vec<CfId>,
}

impl DueInput {
    /// As of now; `None` if everything is due.
    pub(crate) fn now(db: &DbInner, state: &JobState) -> Option<Self> {
        let away = db.context.away()?;
        let is_tight = db.disk.state() != SpaceState::Roomy;
        let is_hurried = db.jobs.is_awaited() || is_tight;
        away.note_hurry(is_hurried);
        if is_hurried {
            return None;
        }
        let sealed = state.flushes().values().flat_map(|tracker| &tracker.queue);
        let resting: Vec<RestingMemtable> = sealed.map(resting).collect();
        let excess_log = log_segments::excess_segment(&db.context, &db.logs, &db.view);
        let bounds = RestBounds {
            limit_bytes: away.limit_bytes(),
            excess_log,
            used_bytes: db.context.budget().total_bytes(),
            budget_bytes: db.context.budget().limit_bytes(),
        };
        Some(Self {
            room: away.room(),
            is_writable: !db.logs.must_leave() && !db.observers.health().is_read_only(),
            is_sending: state.is_running(RunningKind::is_send),
            by_bounds: due_by_bounds(&resting, &bounds),
            uncut: uncut_families(db, state),
            staying: away.staying(),
        })
    }

    /// Whether a shard of a sealed memtable may leave; `None` if it has left or a job has it.
    pub(crate) fn may_leave(&self, cf: CfId, sealed: &Sealed, shard: usize) -> Option<Leave> {
        let Some(ShardHome::Here(here)) = &sealed.view.homes[shard] else { return None };
        (sealed.shards[shard] == ShardState::Pending).then(|| {
            may_leave(&LeaveInput {
                unlogged: sealed.info.unlogged,
                cuts_map: sealed.info.map.epoch().0 == 0 && self.uncut.contains(&cf),
                sends_left: sealed.sends_left[shard],
                image_bytes: image_bytes_max(here),
                is_writable: self.is_writable,
                room: self.room,
            })
        })
    }

    /// The number below which memtables of a family are due.
    pub(crate) fn due_below(&self, state: &JobState, cf: CfId) -> u64 {
        let Some(tracker) = state.flushes().get(&cf) else { return 0 };
        if self.staying.contains(&cf) {
            return u64::MAX;
        }
        let is_stuck = |sealed: &&Sealed| {
            let verdicts = (0..sealed.shards.len()).filter_map(|at| self.may_leave(cf, sealed, at));
            let stays = |verdict: Leave| match verdict {
                Leave::Yes => false,
                // What is on its way now may leave room.
                Leave::NoRoom => !self.is_sending,
                Leave::Never => true,
            };
            sealed.is_ready() && verdicts.into_iter().any(stays)
        };
        let stuck = tracker.queue.iter().filter(is_stuck).map(|sealed| sealed.info.id + 1).max();
        let written = tracker.written.iter().flat_map(|written| &written.memtables).max();
        let by_written = written.map_or(0, |memtable| memtable + 1);
        stuck.unwrap_or(0).max(by_written).max(self.by_bounds).max(tracker.due_below())
    }
}

/// The families with a sealed memtable whose keys are to cut the first bucket map. A family with
/// one bucket keeps the map that it began with.
fn uncut_families(db: &DbInner, state: &JobState) -> Vec<CfId> {
    let has_first = |sealed: &Sealed| sealed.info.map.epoch().0 == 0;
    let first = state.flushes().iter().filter(|(_, tracker)| tracker.queue.iter().any(has_first));
    let families = first.filter_map(|(cf, _)| db.view.family(*cf));
    let is_cut =
        |family: &Arc<Family>| rebalance::buckets_initial(&db.context, &family.options) > 1;
    families.filter(is_cut).map(|family| family.id).collect()
}

fn resting(sealed: &Sealed) -> RestingMemtable {
    let apart = || sealed.view.homes().filter(|home| home.is_apart()).filter_map(ShardHome::away);
    let stays = |shard: usize| sealed.shards[shard] != ShardState::Installed;
    RestingMemtable {
        id: sealed.info.id,
        away_bytes: apart().map(|away| away.figures().image_bytes).sum(),
        kept_bytes: apart().map(|away| away.kept_bytes()).sum(),
        oldest_log: sealed.info.pinned_log(stays),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave() -> LeaveInput {
        LeaveInput {
            unlogged: false,
            cuts_map: false,
            sends_left: 1,
            image_bytes: 100,
            is_writable: true,
            room: StoreRoom { free_bytes: 100, image_bytes_max: 100, ..StoreRoom::default() },
        }
    }

    #[test]
    fn only_a_logged_shard_that_fits_leaves() {
        assert_eq!(may_leave(&leave()), Leave::Yes);
        assert_eq!(may_leave(&LeaveInput { unlogged: true, ..leave() }), Leave::Never);
        assert_eq!(may_leave(&LeaveInput { cuts_map: true, ..leave() }), Leave::Never);
        assert_eq!(may_leave(&LeaveInput { sends_left: 0, ..leave() }), Leave::Never);
        assert_eq!(may_leave(&LeaveInput { is_writable: false, ..leave() }), Leave::Never);
        assert_eq!(may_leave(&LeaveInput { image_bytes: 101, ..leave() }), Leave::Never);
        let room = StoreRoom { free_bytes: 99, ..leave().room };
        assert_eq!(may_leave(&LeaveInput { room, ..leave() }), Leave::NoRoom);
        assert_eq!(may_leave(&LeaveInput { room: StoreRoom::default(), ..leave() }), Leave::Never);
    }

    fn memtable(id: u64, away_bytes: u64, oldest_log: Option<u64>) -> RestingMemtable {
        RestingMemtable { id, away_bytes, kept_bytes: 10, oldest_log: oldest_log.map(FileNo) }
    }

    fn bounds(limit_bytes: u64, excess_log: Option<FileNo>) -> RestBounds {
        RestBounds { limit_bytes, excess_log, used_bytes: 90, budget_bytes: 100 }
    }

    #[test]
    fn memory_of_the_owner_makes_the_oldest_due() {
        let all: Vec<_> = [9, 3, 5, 7].map(|id| memtable(id, 1, None)).into();
        let due = |used_bytes, budget_bytes| {
            due_by_bounds(&all, &RestBounds { used_bytes, budget_bytes, ..bounds(1000, None) })
        };
        assert_eq!(due(90, 100), 0, "the budget is not spent");
        assert_eq!(due(101, 100), 6);
        // Others fill the budget: a sixteenth of it may be kept.
        assert_eq!(due(1000, 100), 10);
        assert_eq!(due(1000, 480), 4);
        assert_eq!(due(2000, 640), 0);
        assert_eq!(due(u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn oldest_memtables_are_due_when_the_nodes_fill() {
        let all: Vec<_> = [9, 3, 5, 7].map(|id| memtable(id, 100, None)).into();
        assert_eq!(due_by_bounds(&all, &bounds(1000, None)), 0);
        assert_eq!(due_by_bounds(&all, &bounds(450, None)), 0, "nine tenths are not exceeded");
        // Of 400 bytes 300 are three quarters.
        assert_eq!(due_by_bounds(&all, &bounds(400, None)), 4);
        assert_eq!(due_by_bounds(&all, &bounds(200, None)), 8);
        assert_eq!(due_by_bounds(&all, &bounds(0, None)), 10, "without any room all are due");
        assert_eq!(due_by_bounds(&[], &bounds(0, None)), 0);
    }

    #[test]
    fn memtables_that_pin_a_log_over_its_bound_are_due() {
        let all = [memtable(3, 1, Some(20)), memtable(5, 1, Some(11)), memtable(7, 1, None)];
        assert_eq!(due_by_bounds(&all, &bounds(1000, None)), 0);
        assert_eq!(due_by_bounds(&all, &bounds(1000, Some(FileNo(10)))), 0);
        assert_eq!(due_by_bounds(&all, &bounds(1000, Some(FileNo(11)))), 6);
        assert_eq!(due_by_bounds(&all, &bounds(1000, Some(FileNo(20)))), 6);
    }
}
