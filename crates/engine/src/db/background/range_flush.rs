//! Chooses the next flush of a key range, for memtables whose shards may rest at memory nodes.
//!
//! [`crate::db::background::flush_plan::ranges`] says which flushes are possible, and
//! [`crate::db::background::due`] which of them are due. Of the due flushes of all families, the
//! one with the oldest memtable begins. Several flushes of one family run in parallel, each over
//! other keys.
//!
//! A flush whose shards are all at memory nodes may run on an executor that reads them there. Such
//! a flush takes no shards that are here. The bytes of the images of one flush are bounded, more
//! tightly for a flush that runs in this process ([`crate::db::background::taken`]).
//!
//! Thread-safety: the functions run under the jobs lock.
//! Failure: none.
//! Cost: O(sealed memtables × shards) for each pick.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_base::CfId;

use crate::db::background::due::{
    DueInput, DueRange, DueReason, Leave, SendingShard, flush_due, is_send_due,
};
use crate::db::background::flush;
use crate::db::background::flush_plan::SealedView;
use crate::db::background::flush_plan::needs::{needed_shards, range_figures};
use crate::db::background::flush_plan::ranges::{
    HomeRule, JoinBounds, RangePlan, RestingView, ShardFigures, range_plans,
};
use crate::db::background::flush_task::{FlushCut, FlushTask, TakenMemtable};
use crate::db::background::send;
use crate::db::inner::DbInner;
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::memtable::ShardHome;
use crate::db::state::running_jobs::{JobSlot, RunningKind};
use crate::db::state::sealed::{FlushTracker, Sealed, ShardState};
use crate::db::write::seal;
use crate::executor::JobKind;
use crate::remote::ShardId;
use crate::stats::Ticker;
use crate::version::rebalance::RunningFlush;

/// Bound on the images that a flush in this process fetches, as a number of full memtables. A flush
/// of a single memtable may fetch more.
pub(crate) const FETCHED_MEMTABLES_MAX: u64 = 2;

/// Bound on the images that a flush at an executor takes, as a number of full memtables. An
/// executor that is not the node of the images fetches all of them.
const AWAY_MEMTABLES_MAX: u64 = 8;

/// A flush that could begin.
struct Offer {
    family: Arc<Family>,
    plan: RangePlan,
    range: DueRange,
}

/// The next due flush of any family. Its shards are marked running. In a place of the executor,
/// only a flush whose shards are all at memory nodes is chosen.
pub(crate) fn next_range_flush(
    db: &DbInner,
    state: &mut JobState,
    slot: JobSlot,
) -> Option<FlushTask> {
    let mut input = DueInput::now(db, state);
    if let Some(input) = &mut input
        && input.bounds.gives_back
    {
        // Shards that are still to arrive at nodes are flushed together with the others there.
        let is_sending = state.running().has(RunningKind::is_send);
        input.bounds.gives_back = !is_sending && !send::may_send(&db.view, state, input);
    }
    note_due_sends(&db.context, state, input.as_ref());
    let families: Vec<CfId> = state.flushes().keys().copied().collect();
    let families = families.into_iter().filter_map(|cf| db.view.family(cf));
    let mut offers: Vec<Offer> = Vec::new();
    for family in families {
        offers.extend(offers_of(&db.context, &db.jobs, state, &family, input.as_ref()));
    }
    let ranges: Vec<DueRange> = offers.iter().map(|offer| offer.range).collect();
    let due = match &input {
        Some(input) => flush_due(&ranges, &input.bounds),
        None => vec![Some(DueReason::Wanted); offers.len()],
    };
    let due = offers.into_iter().zip(due).filter(|(_, due)| due.is_some());
    // Flushes that the executor can take in a place of its own are left to it, so that the workers
    // have time for the other jobs.
    let leaves_apart = !db.context.is_manual() && db.jobs.has_extra_room(state, JobKind::Flush);
    let fits = |plan: &RangePlan| match slot {
        JobSlot::Own => !(leaves_apart && plan.is_apart),
        JobSlot::Extra => plan.is_apart,
    };
    let fitting = due.filter(|(offer, _)| fits(&offer.plan));
    let (offer, reason) = fitting.min_by_key(|(offer, _)| offer.range.figures.oldest_memtable)?;
    let Offer { family, plan, range } = offer;
    tracing::debug!(
        family = family.name,
        ?reason,
        memtables = plan.memtables.len(),
        bytes = range.figures.data_bytes,
        is_apart = plan.is_apart,
        "a range of memtables is flushed"
    );
    let task = take(state, family, plan)?;
    if reason == Some(DueReason::Pause) {
        db.observers.stats().add(Ticker::AwayFlushesPause, 1);
    }
    Some(task)
}

/// Notes the shards of running sends for which flushes wait, so that a store may give up transfers
/// that have just begun. Without `input` everything is due.
fn note_due_sends(context: &Context, state: &JobState, input: Option<&DueInput>) {
    let Some(link) = context.away() else { return };
    let mut due = BTreeSet::new();
    let is_sending = state.running().has(RunningKind::is_send);
    for (cf, tracker) in state.flushes().iter().filter(|_| is_sending) {
        let due_below = input.map_or(u64::MAX, |input| input.due_below(*cf, tracker));
        let excess_log = input.and_then(|input| input.bounds.excess_log);
        for sealed in tracker.queue() {
            let running = sealed.shards().iter().enumerate();
            let running = running.filter(|(_, progress)| **progress == ShardState::Running);
            due.extend(running.filter_map(|(shard, _)| {
                let figures = sealed.info().shards().get(shard);
                let oldest_log = figures.and_then(|shard| shard.oldest_log);
                let memtable = sealed.info().id;
                let oldest_log = oldest_log.or(sealed.info().oldest_log);
                let sending = SendingShard { memtable, oldest_log };
                let id = ShardId { memtable, shard: shard as u32 };
                is_send_due(&sending, due_below, excess_log).then_some(id)
            }));
        }
    }
    link.note_due_sends(due);
}

/// The flushes of a family that could begin. Without `input` everything is due.
fn offers_of(
    context: &Context,
    jobs: &Jobs,
    state: &JobState,
    family: &Arc<Family>,
    input: Option<&DueInput>,
) -> Vec<Offer> {
    let Some(tracker) = state.flushes().get(&family.id) else { return Vec::new() };
    let has_lost = context.away().is_some_and(|away| away.has_lost());
    let states: Vec<_> =
        tracker.queue().iter().map(|sealed| flush::states_for_flush(sealed, has_lost)).collect();
    let figures = figures_of(family, tracker, input);
    let is_wanted = |position: usize| {
        let figures: &Vec<ShardFigures> = &figures[position];
        figures.iter().any(|shard| shard.is_wanted)
    };
    let left_out = input.map_or(0, |input| input.left_out(tracker, is_wanted));
    let views = tracker.queue().iter().take(tracker.queue().len() - left_out);
    let views = views.zip(states.iter().zip(&figures));
    let queue: Vec<RestingView<'_>> = views
        .map(|(sealed, (states, figures))| RestingView {
            id: sealed.info().id,
            sealed: SealedView {
                map: &sealed.info().map,
                shards: states,
                ready: sealed.is_ready(),
                unlogged: sealed.info().unlogged,
            },
            figures,
        })
        .collect();
    let full_bytes = context.memtable_bytes_max(&family.options);
    let runs_away = jobs.executor().room(JobKind::Flush) > 0 && !state.is_planning_for_here();
    let version = Arc::clone(&family.current.load().version);
    let bounds = JoinBounds {
        map: version.map(),
        held: state.running().changing(family.id),
        fetch_bytes_max: match runs_away {
            true => full_bytes.saturating_mul(AWAY_MEMTABLES_MAX),
            false => full_bytes.saturating_mul(FETCHED_MEMTABLES_MAX),
        },
        homes: if runs_away { HomeRule::Alike } else { HomeRule::Mixed },
    };
    let needs = needed_shards(&queue, bounds.map, full_bytes);
    let plans = range_plans(&queue, &bounds).into_iter();
    plans
        .map(|plan| {
            let range = DueRange { figures: range_figures(&queue, &plan, &needs), full_bytes };
            Offer { family: Arc::clone(family), plan, range }
        })
        .collect()
}

/// The figures of the shards of each sealed memtable of a family.
fn figures_of(
    family: &Family,
    tracker: &FlushTracker,
    input: Option<&DueInput>,
) -> Vec<Vec<ShardFigures>> {
    let is_crowded = !seal::may_seal(family);
    let due_below = input.map_or(u64::MAX, |input| input.due_below(family.id, tracker));
    // A memtable that stays by choice needs no room at the nodes.
    let waits = |input: &DueInput, position: usize, shard: usize| {
        let verdict = input.may_leave(family.id, &tracker.queue()[position], shard);
        input.stays(tracker, position) && verdict == Some(Leave::NoRoom)
    };
    let of_shard = |position: usize, sealed: &Sealed, shard: usize| {
        let is_due = sealed.info().id < due_below;
        let is_stuck = || {
            input.is_some_and(|input| {
                input.is_stuck(family.id, sealed, shard, is_crowded)
                    && !waits(input, position, shard)
            })
        };
        let home = sealed.view().homes[shard].as_ref();
        let apart = home.filter(|home| home.is_apart()).and_then(ShardHome::away);
        let figures = sealed.info().shards().get(shard);
        ShardFigures {
            data_bytes: figures.map_or(0, |shard| shard.data_bytes),
            apart_bytes: apart.map_or(0, |away| away.figures().image_bytes),
            kept_bytes: apart.map_or(0, |away| away.kept_bytes()),
            oldest_log: figures.and_then(|shard| shard.oldest_log),
            is_wanted: is_due || is_stuck(),
        }
    };
    let of_memtable = |(position, sealed): (usize, &Sealed)| {
        (0..sealed.shards().len()).map(|shard| of_shard(position, sealed, shard)).collect()
    };
    tracker.queue().iter().enumerate().map(of_memtable).collect()
}

/// Marks the shards of a plan as running.
fn take(state: &mut JobState, family: Arc<Family>, plan: RangePlan) -> Option<FlushTask> {
    let planned_cuts = state.planned_cuts(&family.current.load().version);
    let RangePlan { memtables, shards, range, is_unlogged, .. } = plan;
    let tracker = state.flushes_mut().get_mut(&family.id)?;
    let mut taken = Vec::with_capacity(shards.len());
    for (sealed, shards) in tracker.range_mut(memtables).zip(shards) {
        sealed.begin(shards.clone());
        taken.push(TakenMemtable { info: Arc::clone(sealed.info()), shards });
    }
    let cut = if is_unlogged { FlushCut::ByShard } else { FlushCut::Uncut };
    let ends = taken.first().filter(|_| is_unlogged);
    let ends = ends.map_or(&[][..], |taken| taken.info.map.boundaries());
    let cuts = [ends, &planned_cuts].concat();
    let flush = RunningFlush { range: range.clone(), planned_cuts: cuts };
    let job_id = state.start(RunningKind::Flush { cf: family.id, flush });
    state.note_planned();
    Some(FlushTask { job_id, family, memtables: taken, cut, range, planned_cuts })
}
