//! Decides which key ranges of sealed memtables are flushed while memory nodes can keep shards.
//!
//! Without a store of shards every sealed memtable is due. With one, shards may rest at memory
//! nodes, and the decision is made for each key range that could be one flush
//! ([`crate::db::background::flush_plan::ranges`]). A range is due if one of these holds
//! ([`flush_due`], O³-LSM §4.4):
//!
//! 1. It is *wanted*, for one of these reasons:
//!    - A caller waits for the flush of one of its memtables, or for the end of all background
//!      work.
//!    - No shard of its family may leave.
//!    - One of its shards cannot rest: it has records that no log has, its keys cut the first
//!      bucket map, its image is too large, its sends have failed several times, or no node has
//!      room.
//!    - A memtable of the family must be flushed as a whole.
//!    - A failed flush has written a part of its memtables.
//!    - A shard of other keys that is wanted waits for it
//!      ([`crate::db::background::flush_plan::needs`]).
//! 2. Its shards have the bytes of one memtable, or younger shards that have them wait for it.
//! 3. It pins a log segment that must be removed so that the log keeps its bound.
//! 4. All images together exceed nine tenths of the bytes that the nodes may hold, and it has the
//!    largest images. The largest ranges are due until three quarters of those bytes are left.
//! 5. The memory budget is nearly spent, and the parts of away shards that stay here take more than
//!    a small share of it. Such parts are filters, samples of keys and range tombstones. The ranges
//!    with most of that memory are due.
//! 6. The disk is nearly full. Then the tables are written while there is room for them.
//! 7. The writers pause, other databases share the nodes, and it has images there. All images are
//!    given back, so that a burst of another database finds the memory free (decision 0105). Two
//!    conditions put this off:
//!    - Compactions are behind, so that writers of a family are slowed or stopped. Stopped writers
//!      look like a pause, and only compactions release them. Flushes would go before these.
//!    - Shards are being sent, or could be sent now. Each of them would else be flushed alone when
//!      it arrives, as a small table. A shard that waits for room at the nodes puts nothing off.
//!
//! At nodes that no other database shares, a pause of the writers is no reason for a flush. Shards
//! that rest are readable and logged. A flush of few records makes a small table, and later writes
//! would make it larger (decision 0084).
//!
//! The model of many nodes in `check/lab` calls [`flush_due`], too.
//!
//! Thread-safety: pure, except for [`DueInput`], which reads the state under the jobs lock.
//! Cost: O(ranges × log ranges).

use std::sync::Arc;

use archipelago_base::{CfId, FileNo};

use crate::db::background::flush_plan::needs::RangeFigures;
use crate::db::background::rebalance;
use crate::db::background::staying;
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::JobState;
use crate::db::state::memtable::ShardHome;
use crate::db::state::running_jobs::RunningKind;
use crate::db::state::sealed::{FlushTracker, Sealed, ShardState};
use crate::db::write::log_segments;
use crate::disk_space::SpaceState;
use crate::memtable::Shard;
use crate::remote::StoreRoom;
use crate::stall::{StallInput, away_excess_bytes};

/// Bytes of an image in addition to its records and its index.
const IMAGE_FIXED_BYTES: u64 = 4 << 10;
/// Largest number of bytes that an image has for each record in addition to the stored record:
/// padding, index and filter.
const IMAGE_RECORD_BYTES: u64 = 32;

/// Divisor of the memory budget: the parts of away shards that stay here may take this share of it.
const KEPT_SHARE: u64 = 16;

/// Whether a shard may leave for a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Yes,
    /// The shard must wait until the store has more room.
    NoRoom,
    Never,
}

/// A sealed shard in memory, as [`may_leave`] sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaveInput {
    /// Whether the memtable of the shard has records that no log has.
    pub(crate) unlogged: bool,
    /// Whether its keys are to cut the first bucket map.
    pub(crate) cuts_map: bool,
    /// Number of times that it may still be sent.
    pub(crate) sends_left: u8,
    /// Largest size of its image, in bytes.
    pub(crate) image_bytes: u64,
    /// Whether the database takes writes and its log is whole.
    pub(crate) is_writable: bool,
    pub(crate) room: StoreRoom,
}

/// Whether a shard may leave. All of its records must be logged, because only the log gives them
/// back if the node is lost. A memtable whose keys cut the first bucket map stays.
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

/// Largest size of a shard's image, in bytes.
pub(crate) fn image_bytes_max(shard: &Shard) -> u64 {
    shard.data_bytes() + shard.entries() * IMAGE_RECORD_BYTES + IMAGE_FIXED_BYTES
}

/// Sums over all sealed memtables, and their limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestBounds {
    /// Bytes of all images at nodes.
    pub held_bytes: u64,
    /// Bytes of those images that running flushes take.
    pub leaving_bytes: u64,
    /// Bytes that may be at all nodes together.
    pub limit_bytes: u64,
    /// Bytes of memory of the parts that stay here of shards at nodes.
    pub kept_bytes: u64,
    /// The youngest log segment that must be removed; `None` if the log keeps its bound.
    pub excess_log: Option<FileNo>,
    /// Bytes charged to the memory budget.
    pub used_bytes: u64,
    /// Bytes of the memory budget.
    pub budget_bytes: u64,
    /// Whether all images at nodes are due, because the writers pause and other databases share the
    /// nodes.
    pub gives_back: bool,
}

impl RestBounds {
    /// Bytes of images that are to be flushed in addition to those of running flushes. If the nodes
    /// are nearly full, the running flushes are too slow for the writers, and do not count.
    fn excess_at_nodes(&self) -> u64 {
        let excess = away_excess_bytes(self.held_bytes, self.limit_bytes);
        match self.held_bytes > self.limit_bytes / 20 * 19 {
            true => excess,
            false => excess.saturating_sub(self.leaving_bytes),
        }
    }

    /// Bytes of images that are to be flushed, in addition to those of running flushes, because the
    /// writers pause.
    fn given_back(&self) -> u64 {
        match self.gives_back {
            true => self.held_bytes.saturating_sub(self.leaving_bytes),
            false => 0,
        }
    }

    /// Bytes of memory here that flushes of shards at nodes are to free.
    fn excess_here(&self) -> u64 {
        let kept = self.kept_bytes.saturating_sub(self.budget_bytes / KEPT_SHARE);
        self.used_bytes.saturating_sub(self.budget_bytes / 10 * 9).min(kept)
    }
}

/// Reason for which a key range is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueReason {
    /// A caller waits for the flush, or a shard cannot rest.
    Wanted,
    /// The range has the bytes of a memtable.
    Full,
    /// The range pins a log segment that must be removed.
    Log,
    /// Memory nodes are nearly full.
    Nodes,
    /// The parts of away shards that stay here take too much memory.
    Memory,
    /// The writers pause, and other databases share the nodes.
    Pause,
}

/// A key range that could be one flush, and the size of a memtable of its family.
#[derive(Clone, Copy, Debug)]
pub struct DueRange {
    /// Figures of the range over all sealed memtables.
    pub figures: RangeFigures,
    /// Bytes of a full memtable of its family.
    pub full_bytes: u64,
}

/// A shard that is being sent to a node, as [`is_send_due`] sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendingShard {
    /// Number of its memtable.
    pub(crate) memtable: u64,
    /// Oldest log segment that the shard pins; `None` if it pins none.
    pub(crate) oldest_log: Option<FileNo>,
}

/// Whether a flush waits for a shard that is being sent: its memtable must not rest, because its
/// number is below `due_below`, or it pins a log segment that must be removed.
pub(crate) fn is_send_due(
    shard: &SendingShard,
    due_below: u64,
    excess_log: Option<FileNo>,
) -> bool {
    let pins_excess = match (shard.oldest_log, excess_log) {
        (Some(oldest), Some(excess)) => oldest <= excess,
        _ => false,
    };
    shard.memtable < due_below || pins_excess
}

/// For each of the ranges, of all families, the reason for which it is due; `None` if it is not.
#[must_use]
pub fn flush_due(ranges: &[DueRange], bounds: &RestBounds) -> Vec<Option<DueReason>> {
    let pins = |figures: &RangeFigures| match (figures.oldest_log, bounds.excess_log) {
        (Some(oldest), Some(excess)) => oldest <= excess,
        _ => false,
    };
    let alone = |range: &DueRange| match &range.figures {
        figures if figures.is_wanted => Some(DueReason::Wanted),
        figures if pins(figures) => Some(DueReason::Log),
        figures if figures.is_full || figures.data_bytes >= range.full_bytes => {
            Some(DueReason::Full)
        }
        _ => None,
    };
    let mut due: Vec<Option<DueReason>> = ranges.iter().map(alone).collect();
    let apart: Vec<u64> = ranges.iter().map(|range| range.figures.apart_bytes).collect();
    add_largest(&mut due, &apart, bounds.excess_at_nodes(), DueReason::Nodes);
    let kept: Vec<u64> = ranges.iter().map(|range| range.figures.kept_bytes).collect();
    add_largest(&mut due, &kept, bounds.excess_here(), DueReason::Memory);
    add_largest(&mut due, &apart, bounds.given_back(), DueReason::Pause);
    due
}

/// Makes the ranges with the most bytes due, until all that are due have `excess` together.
fn add_largest(due: &mut [Option<DueReason>], bytes: &[u64], excess: u64, reason: DueReason) {
    let already = due.iter().zip(bytes).filter(|(due, _)| due.is_some());
    let already = already.fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let mut excess = excess.saturating_sub(already);
    let mut largest_first: Vec<usize> = (0..due.len()).filter(|at| bytes[*at] > 0).collect();
    largest_first.sort_by_key(|at| std::cmp::Reverse(bytes[*at]));
    for at in largest_first {
        if excess == 0 {
            return;
        }
        if due[at].is_none() {
            due[at] = Some(reason);
            excess = excess.saturating_sub(bytes[at]);
        }
    }
}

/// State of the database at one moment that decides about shards.
pub(crate) struct DueInput {
    room: StoreRoom,
    is_writable: bool,
    is_sending: bool,
    is_flushing: bool,
    pub(crate) bounds: RestBounds,
    /// Families with memtables whose keys are yet to cut the first bucket map.
    uncut: Vec<CfId>,
    /// Families of which everything is due.
    wholly_due: Vec<CfId>,
    /// Number of the newest sealed memtables of each family that stay here by choice.
    staying: usize,
}

impl DueInput {
    /// The present state; `None` if everything is due.
    pub(crate) fn now(db: &DbInner, state: &JobState) -> Option<Self> {
        let away = db.context.away()?;
        let is_tight = db.disk.state() != SpaceState::Roomy;
        let is_hurried = db.jobs.is_awaited() || is_tight;
        away.note_hurry(is_hurried);
        if is_hurried {
            return None;
        }
        let staying = staying::staying_now(db.reader(), &db.writes, state, away);
        // Memtables that must leave because memory is short leave at full speed.
        away.note_hurry(staying < away.staying());
        let budget = db.context.budget();
        let room = away.room();
        // A pause is observed at each pick, whether nodes are shared at that moment or not.
        let is_pause = away.note_newest(db.view.visible());
        let mut bounds = RestBounds {
            limit_bytes: away.limit_bytes(),
            excess_log: log_segments::excess_segment(&db.context, &db.logs, &db.view),
            used_bytes: budget.total_bytes(),
            budget_bytes: budget.limit_bytes(),
            gives_back: is_pause && room.is_shared && !is_compaction_behind(&db.view),
            ..RestBounds::default()
        };
        for sealed in state.flushes().values().flat_map(FlushTracker::queue) {
            for (home, progress) in sealed.view().homes.iter().zip(sealed.shards()) {
                let away = home.as_ref().filter(|home| home.is_apart()).and_then(ShardHome::away);
                let Some(away) = away else { continue };
                bounds.held_bytes += away.figures().image_bytes;
                bounds.kept_bytes += away.kept_bytes();
                if *progress == ShardState::Running {
                    bounds.leaving_bytes += away.figures().image_bytes;
                }
            }
        }
        Some(Self {
            room,
            is_writable: !db.logs.must_leave() && !db.observers.health().is_read_only(),
            is_sending: state.running().has(RunningKind::is_send),
            is_flushing: state.running().flushes_len() > 0,
            bounds,
            uncut: uncut_families(&db.context, &db.view, state),
            wholly_due: away.wholly_due(),
            staying,
        })
    }

    /// Whether a shard of a sealed memtable may leave; `None` if it has left or a job has it.
    pub(crate) fn may_leave(&self, cf: CfId, sealed: &Sealed, shard: usize) -> Option<Leave> {
        let Some(ShardHome::Here(here)) = &sealed.view().homes[shard] else { return None };
        (sealed.shards()[shard] == ShardState::Pending).then(|| {
            may_leave(&LeaveInput {
                unlogged: sealed.info().unlogged,
                cuts_map: sealed.info().map.epoch().0 == 0 && self.uncut.contains(&cf),
                sends_left: sealed.sends_left(shard),
                image_bytes: image_bytes_max(here),
                is_writable: self.is_writable,
                room: self.room,
            })
        })
    }

    /// Number of the newest memtables of a queue that flushes leave out, because they stay here by
    /// choice. `is_wanted` says whether the memtable at a position must be flushed. If images are
    /// given back, a memtable with shards at nodes must be flushed as well.
    pub(crate) fn left_out(
        &self,
        tracker: &FlushTracker,
        is_wanted: impl Fn(usize) -> bool,
    ) -> usize {
        let is_given_back = |position: usize| {
            self.bounds.gives_back
                && tracker.queue()[position].view().homes().any(ShardHome::is_apart)
        };
        let must_flush = |position: usize| is_wanted(position) || is_given_back(position);
        staying::left_out(tracker, self.staying, self.bounds.excess_log, must_flush)
    }

    /// Whether the memtable at `position` of the queue stays here by choice.
    pub(crate) fn stays(&self, tracker: &FlushTracker, position: usize) -> bool {
        position.saturating_add(self.staying) >= tracker.queue().len()
    }

    /// Whether a shard cannot rest. A shard without room at the nodes waits for running sends and
    /// flushes. If memory has no room for more shards either (`is_crowded`), it does not wait for
    /// flushes.
    pub(crate) fn is_stuck(
        &self,
        cf: CfId,
        sealed: &Sealed,
        shard: usize,
        is_crowded: bool,
    ) -> bool {
        let stays = match self.may_leave(cf, sealed, shard) {
            None | Some(Leave::Yes) => false,
            // Sends and flushes that run now may leave room.
            Some(Leave::NoRoom) => !self.is_sending && (is_crowded || !self.is_flushing),
            Some(Leave::Never) => true,
        };
        stays && sealed.is_ready()
    }

    /// The number below which memtables of a family do not rest, and are not sent.
    pub(crate) fn due_below(&self, cf: CfId, tracker: &FlushTracker) -> u64 {
        if self.wholly_due.contains(&cf) {
            return u64::MAX;
        }
        let written = tracker.written().iter().flat_map(|written| &written.memtables).max();
        let unlogged = tracker.queue().iter().rfind(|sealed| sealed.info().unlogged);
        let by_written = written.map_or(0, |memtable| memtable + 1);
        let by_unlogged = unlogged.map_or(0, |sealed| sealed.info().id + 1);
        by_written.max(by_unlogged).max(tracker.due_below())
    }
}

/// Whether the writers of a family are slowed or stopped because compactions are behind.
fn is_compaction_behind(view: &ReadView) -> bool {
    let is_behind = |family: &Arc<Family>| {
        StallInput::of(&family.current.load().version).is_compaction_behind()
    };
    view.live_families().iter().any(is_behind)
}

/// The families with a sealed memtable whose keys are to cut the first bucket map. A family with
/// one bucket keeps the map that it began with.
fn uncut_families(context: &Context, view: &ReadView, state: &JobState) -> Vec<CfId> {
    let has_first = |sealed: &Sealed| sealed.info().map.epoch().0 == 0;
    let first = state.flushes().iter().filter(|(_, tracker)| tracker.queue().iter().any(has_first));
    let families = first.filter_map(|(cf, _)| view.family(*cf));
    let is_cut = |family: &Arc<Family>| rebalance::buckets_initial(context, &family.options) > 1;
    families.filter(is_cut).map(|family| family.id).collect()
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

    fn range(data_bytes: u64, apart_bytes: u64, oldest_log: Option<u64>) -> DueRange {
        let oldest_log = oldest_log.map(FileNo);
        let figures =
            RangeFigures { data_bytes, apart_bytes, oldest_log, kept_bytes: 10, ..figures() };
        DueRange { figures, full_bytes: 1000 }
    }

    fn figures() -> RangeFigures {
        RangeFigures { oldest_memtable: 3, ..RangeFigures::default() }
    }

    fn bounds(held_bytes: u64, limit_bytes: u64) -> RestBounds {
        RestBounds { held_bytes, limit_bytes, kept_bytes: 40, budget_bytes: 100, ..NONE }
    }

    const NONE: RestBounds = RestBounds {
        held_bytes: 0,
        leaving_bytes: 0,
        limit_bytes: 0,
        kept_bytes: 0,
        excess_log: None,
        used_bytes: 0,
        budget_bytes: 0,
        gives_back: false,
    };

    /// Positions of the ranges that are due for this reason.
    fn due_for(ranges: &[DueRange], bounds: &RestBounds, reason: DueReason) -> Vec<usize> {
        let due = flush_due(ranges, bounds);
        (0..due.len()).filter(|at| due[*at] == Some(reason)).collect()
    }

    #[test]
    fn send_is_due_if_its_memtable_must_not_rest_or_pins_too_old_a_log() {
        let shard =
            |oldest: Option<u64>| SendingShard { memtable: 5, oldest_log: oldest.map(FileNo) };
        assert!(is_send_due(&shard(None), 6, None) && !is_send_due(&shard(None), 5, None));
        let excess = Some(FileNo(8));
        assert!(is_send_due(&shard(Some(8)), 0, excess));
        assert!(!is_send_due(&shard(Some(9)), 0, excess));
        assert!(!is_send_due(&shard(None), 0, excess) && !is_send_due(&shard(Some(8)), 0, None));
    }

    #[test]
    fn range_with_the_bytes_of_a_memtable_is_due() {
        let ranges = [range(999, 90, None), range(1000, 90, None), range(0, 0, None)];
        assert_eq!(due_for(&ranges, &bounds(180, 1000), DueReason::Full), [1]);
        let wanted = RangeFigures { is_wanted: true, ..figures() };
        let ranges = [range(10, 9, None), DueRange { figures: wanted, full_bytes: 1000 }];
        assert_eq!(due_for(&ranges, &bounds(9, 1000), DueReason::Wanted), [1]);
    }

    #[test]
    fn largest_ranges_are_due_when_the_nodes_fill() {
        let ranges = [90, 130, 70, 110].map(|bytes| range(bytes, bytes, None));
        let due = |bounds: &RestBounds| due_for(&ranges, bounds, DueReason::Nodes);
        assert!(due(&bounds(400, 1000)).is_empty());
        assert!(due(&bounds(400, 450)).is_empty(), "nine tenths are not exceeded");
        // Three quarters of 440 bytes are 330 bytes.
        assert_eq!(due(&bounds(400, 440)), [1]);
        assert_eq!(due(&RestBounds { held_bytes: 410, leaving_bytes: 70, ..bounds(0, 440) }), [1]);
        let leaves = RestBounds { leaving_bytes: 80, ..bounds(400, 440) };
        assert!(due(&leaves).is_empty(), "running flushes free enough");
        let is_nearly_full = RestBounds { leaving_bytes: 130, ..bounds(430, 440) };
        assert_eq!(due(&is_nearly_full), [1], "running flushes are too slow");
        assert_eq!(due(&bounds(400, 0)), [0, 1, 2, 3], "without any room all are due");
        assert!(flush_due(&[], &bounds(0, 0)).is_empty());
    }

    #[test]
    fn what_is_due_anyway_counts_for_the_nodes() {
        let ranges = [range(90, 90, None), range(1200, 130, None), range(110, 110, None)];
        let due = flush_due(&ranges, &bounds(400, 440));
        assert_eq!(due, [None, Some(DueReason::Full), None]);
    }

    #[test]
    fn pause_at_shared_nodes_makes_all_images_due() {
        let ranges = [range(90, 90, None), range(1200, 130, None), range(5, 0, None)];
        let full = Some(DueReason::Full);
        assert_eq!(flush_due(&ranges, &bounds(220, 1000)), [None, full, None]);
        let gives_back = RestBounds { gives_back: true, ..bounds(220, 1000) };
        assert_eq!(flush_due(&ranges, &gives_back), [Some(DueReason::Pause), full, None]);
        let ranges = [90, 70, 110].map(|bytes| range(bytes, bytes, None));
        let due = |leaving_bytes, held_bytes| {
            let bounds = RestBounds { held_bytes, leaving_bytes, ..gives_back };
            due_for(&ranges, &bounds, DueReason::Pause)
        };
        assert_eq!((due(0, 270), due(300, 570)), (vec![0, 1, 2], vec![0, 1, 2]));
        assert_eq!(due(160, 270), [2], "running flushes take the rest");
        assert!(due(270, 270).is_empty());
    }

    #[test]
    fn memory_of_the_owner_makes_the_largest_due() {
        let ranges = [range(1, 1, None); 4];
        let due = |used_bytes, budget_bytes| {
            let bounds = RestBounds { used_bytes, budget_bytes, ..bounds(4, 1000) };
            due_for(&ranges, &bounds, DueReason::Memory).len()
        };
        assert_eq!(due(90, 100), 0, "the budget is not spent");
        assert_eq!(due(101, 100), 2);
        // Other memory fills the budget. A sixteenth of it may be kept.
        assert_eq!(due(1000, 100), 4);
        assert_eq!(due(1000, 480), 1);
        assert_eq!(due(2000, 640), 0);
        assert_eq!(due(u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn ranges_that_pin_a_log_over_its_bound_are_due() {
        let ranges = [range(1, 1, Some(20)), range(1, 1, Some(11)), range(1, 1, None)];
        let due = |excess: Option<u64>| {
            let bounds = RestBounds { excess_log: excess.map(FileNo), ..bounds(3, 1000) };
            due_for(&ranges, &bounds, DueReason::Log)
        };
        assert!(due(None).is_empty() && due(Some(10)).is_empty());
        assert_eq!(due(Some(11)), [1]);
        assert_eq!(due(Some(20)), [0, 1]);
    }
}
