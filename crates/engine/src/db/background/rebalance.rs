//! Bucket boundaries that move with the load: carries out the decisions of `version::rebalance`.
//!
//! A family's [`Balance`] (window, wanted change, history) lies under the jobs lock and in memory
//! only.
//!
//! 1. When a sealed memtable is readied, a sample of its keys joins the window, and the decision is
//!    made again. At most one change is *wanted* at a time, by the newest window. A split may have
//!    many keys. A later decision keeps a key of a wanted split while the key is useful.
//! 2. New memtables are cut at the keys of a wanted split. Flushes and merges within L0 cut their
//!    files at these keys too. A compaction that clears its bucket runs in parts between them
//!    ([`crate::db::background::subcompaction`]), because the split waits for it.
//! 3. Before every background pick the scheduler asks which part of the wanted change is
//!    [`fitting`]. A worker makes that part, as a job of its own, by one manifest edit. The rest
//!    stays wanted. While the job runs, no flush of the touched buckets and no compaction of the
//!    family starts. Leaving the log (`db::background::leave_log`) waits for the job. Other work
//!    goes on, and no compaction runs for the sake of a change.
//!
//! Invariants:
//! 1. A map changes only under the manifest lock, after `fitting` or, on a user's request,
//!    `can_change_map` allowed it there.
//! 2. Every job that writes L0 files across the key of a split either cuts them there or is among
//!    the running jobs at that check, until it is installed.
//!
//! Thread-safety: one change of a family at a time.
//! Failure: a change that is refused stays wanted. A change that fails is counted and reported like
//! any job, and forgotten until the window asks for it again.
//! Cost: a family without a wanted change costs one look-up in a map for each pick.

use std::sync::Arc;

use archipelago_base::{CfId, Epoch, Error, ErrorKind, Result};

use crate::border::contained;
use crate::bucket::{BUCKETS_MAX, BucketMap};
use crate::db::background::compaction_pick::CompactionTask;
use crate::db::background::owners::InstallOwners;
use crate::db::background::scheduler::Task;
use crate::db::read::ReadView;
use crate::db::state::balance::{Balance, BucketChange};
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::{JobState, Jobs};
use crate::db::state::memtable::Memtable;
use crate::db::state::observers::Observers;
use crate::db::state::running_jobs::RunningKind;
use crate::event::Event;
use crate::key::KeyRange;
use crate::lock_order::{Before, JobsLock, Order};
use crate::manifest::{Change, VersionEdit};
use crate::options::CfOptions;
use crate::stats::Ticker;
use crate::version::Version;
use crate::version::rebalance::{
    ChangeKind, MapChange, RebalanceInput, SealSample, Window, can_change_map, fitting, rebalance,
};

/// Default of the largest number of buckets, as a multiple of the number that a family begins with.
const GROWTH_MAX: usize = 4;

/// A wanted change that is made now. It is among the running jobs.
pub(crate) struct MapTask {
    job_id: u64,
    pub(crate) family: Arc<Family>,
    change: MapChange,
    epoch: Epoch,
}

/// A few keys of a memtable that gets no more writes, for the window.
pub(crate) fn sample(memtable: &Memtable, buckets: usize) -> SealSample {
    let total = memtable.shards.iter().map(|shard| shard.data_bytes()).sum();
    let mut sample = SealSample::new();
    for shard in memtable.shards.iter().filter(|shard| shard.entries() > 0) {
        let bytes = shard.data_bytes();
        let wanted = SealSample::keys_wanted(buckets, bytes, total);
        sample.add_shard(shard.sample_keys(wanted), bytes);
    }
    sample
}

/// Number of buckets that a family begins with.
pub(crate) fn buckets_initial(context: &Context, options: &CfOptions) -> usize {
    let wanted = match options.buckets {
        0 => context.options().max_background_jobs,
        buckets => buckets,
    };
    wanted.min(buckets_most(wanted, options))
}

/// Largest number of buckets that splits may make.
fn buckets_most(initial: usize, options: &CfOptions) -> usize {
    match options.buckets_max {
        0 => initial.saturating_mul(GROWTH_MAX).min(BUCKETS_MAX),
        most => most,
    }
}

/// The figures of a decision for the family.
pub(crate) fn rebalance_input<'a>(
    context: &Context,
    family: &Family,
    version: &'a Version,
    window: &'a Window,
) -> RebalanceInput<'a> {
    let initial = buckets_initial(context, &family.options);
    let most = buckets_most(initial, &family.options);
    RebalanceInput { map: version.map(), window, initial, most, planned_cuts: &[] }
}

/// Adds the sample of a sealed memtable to the window, and makes the decision again (jobs lock
/// held).
pub(crate) fn note_seal(
    context: &Context,
    state: &mut JobState,
    family: &Family,
    seal: SealSample,
) {
    let version = Arc::clone(&family.current.load().version);
    let balance = state.balance_mut(family.id);
    balance.add_seal(seal);
    // The first map comes from the first memtable.
    if !family.options.buckets_dynamic || version.map().epoch() == Epoch(0) {
        return;
    }
    balance.decide(version.map().epoch(), |window, before| {
        rebalance(&RebalanceInput {
            planned_cuts: before.map_or(&[], |change| change.kind.cuts()),
            ..rebalance_input(context, family, &version, window)
        })
    });
}

/// Whether the bucket of a compaction out of L0 takes so much of the load that it is to be split,
/// or a split is wanted among the keys of the compaction (jobs lock held).
pub(crate) fn is_hot(context: &Context, state: &JobState, task: &CompactionTask) -> bool {
    let CompactionTask { family, version, pick, .. } = task;
    let range = pick.range();
    let is_cut = |cut: &Vec<u8>| *cut > range.start && range.contains(cut);
    if !family.options.buckets_dynamic || version.map().epoch() == Epoch(0) {
        return false;
    }
    let bucket = version.map().bucket_of(&range.start);
    let window = state.balances().get(&family.id).map(Balance::window);
    let is_hot = |window| rebalance_input(context, family, version, window).is_hot(bucket);
    window.is_some_and(is_hot) || state.planned_cuts(version).iter().any(is_cut)
}

/// A wanted change that may be made now.
fn fitting_change(view: &ReadView, state: &JobState) -> Option<(Arc<Family>, MapChange, Epoch)> {
    let wanting = state.balances().iter().filter(|(_, balance)| balance.wanted().is_some());
    wanting.into_iter().find_map(|(cf, _)| {
        let family = view.family(*cf)?;
        let version = Arc::clone(&family.current.load().version);
        let wanted = state.wanted(&version)?;
        let change = wanted.change.clone();
        let running = state.running().compactions_and_ingestions();
        let flushes = state.running_flushes(*cf);
        let now = fitting(&version, &change.kind, &running, &flushes).ok()?;
        Some((family, MapChange { kind: now, ..change }, wanted.epoch))
    })
}

/// Whether a wanted change may be made now.
pub(crate) fn is_rebalance_due(view: &ReadView, state: &JobState) -> bool {
    fitting_change(view, state).is_some()
}

/// The wanted change that may be made now, noted as running.
pub(crate) fn next_rebalance(view: &ReadView, state: &mut JobState) -> Option<Task> {
    let (family, change, epoch) = fitting_change(view, state)?;
    let range = {
        let current = family.current.load();
        let map = current.version.map();
        map.hull(&change.kind.touched(map))
    };
    let job_id = state.start(RunningKind::MapChange { cf: family.id, range });
    Some(Task::ChangeMap(MapTask { job_id, family, change, epoch }))
}

/// Makes a wanted change. Afterwards it is not running any more.
pub(crate) fn run_map_task(owners: InstallOwners<'_>, task: &MapTask) -> Result<()> {
    let what = format!("a change of the bucket map of \"{}\"", task.family.name);
    let result = contained(&what, || install_wanted(owners, task));
    // A file or job that came in between makes the change impossible now. It stays wanted.
    let refused = matches!(&result, Err(error) if error.kind() == ErrorKind::Busy);
    let mut state = owners.jobs.lock(Order::none());
    state.end(task.job_id);
    if let Some(balance) = state.known_balance_mut(task.family.id)
        && result.is_err()
        && !refused
    {
        balance.forget_wanted();
    }
    drop(state);
    owners.jobs.notify_progress();
    owners.jobs.wake();
    if refused { Ok(()) } else { result }
}

fn install_wanted(owners: InstallOwners<'_>, task: &MapTask) -> Result<()> {
    owners.context.fault_point("buckets.picked")?;
    install_map(owners, &task.family, |version, state| {
        if version.map().epoch() != task.epoch {
            return Err(Error::busy("the bucket map has changed meanwhile"));
        }
        let flushes = state.running_flushes(task.family.id);
        let kind = fitting(version, &task.change.kind, &state.running().compactions(), &flushes)?;
        let made = MapChange { kind, ..task.change.clone() };
        let reason = made.to_string();
        Ok((made.kind, reason))
    })
}

/// Makes a change on a user's request, which `decide` chooses from the present map. Fails with
/// `Busy` if background work is paused, or if the change does not fit now.
pub(crate) fn change_map(
    owners: InstallOwners<'_>,
    family: &Arc<Family>,
    decide: impl FnOnce(&BucketMap) -> Result<ChangeKind>,
) -> Result<()> {
    owners.context.check_open()?;
    owners.context.refuse_read_only()?;
    owners.observers.health().check_writable()?;
    let job_id = {
        let mut state = owners.jobs.lock(Order::none());
        if state.is_paused() {
            return Err(Error::busy(
                "background work is paused, by another change of buckets or while the log is \
                 left: try again",
            ));
        }
        state.pause();
        state.start(RunningKind::MapChange { cf: family.id, range: KeyRange::all() })
    };
    let install = || {
        install_map(owners, family, |version, state| {
            let kind = decide(version.map())?;
            let (running, flushes) = (state.running().compactions(), state.flush_ranges(family.id));
            can_change_map(version, kind.touched(version.map()), &running, &flushes)?;
            let reason = format!("{kind}: on request");
            Ok((kind, reason))
        })
    };
    let result = contained("a change of the bucket map on request", install);
    let mut state = owners.jobs.lock(Order::none());
    state.end(job_id);
    state.unpause();
    drop(state);
    owners.jobs.notify_progress();
    owners.jobs.wake();
    result
}

/// Changes the map by one edit, if `decide` says so (manifest and jobs locks held).
fn install_map(
    owners: InstallOwners<'_>,
    family: &Arc<Family>,
    decide: impl FnOnce(&Version, &JobState) -> Result<(ChangeKind, String)>,
) -> Result<()> {
    let mut manifest = owners.storage.lock_manifest(Order::none());
    family.check_alive()?;
    let version = Arc::clone(&family.current.load().version);
    let (kind, reason) = decide(&version, &owners.jobs.lock(manifest.order()))?;
    let map = kind.apply(version.map())?;
    owners.context.fault_point("buckets.before_change")?;
    let (epoch, buckets) = (map.epoch(), map.len());
    let mut edit = VersionEdit::new();
    edit.push(Change::SetBucketMap { cf: family.id, map });
    let built = manifest.apply(edit)?;
    {
        let mut state = owners.jobs.lock(manifest.order());
        owners.view.republish_built(&mut state, built);
        if let Some(balance) = state.known_balance_mut(family.id) {
            balance.note_made(&kind, epoch);
        }
    }
    drop(manifest);
    match &kind {
        ChangeKind::Split { keys } => {
            owners.observers.stats().add(Ticker::BucketSplits, keys.len() as u64);
        }
        ChangeKind::Merge { .. } => owners.observers.stats().add(Ticker::BucketMerges, 1),
    }
    let change = BucketChange { unix_ms: owners.context.clock().unix_ms(), epoch, buckets, reason };
    note_map_change(owners.observers, owners.jobs, Order::none(), family, change);
    Ok(())
}

/// Counts a change that was made, adds it to the history, and sends an event.
pub(crate) fn note_map_change<Held: Before<JobsLock>>(
    observers: &Observers,
    jobs: &Jobs,
    order: Order<Held>,
    family: &Family,
    change: BucketChange,
) {
    observers.stats().add(Ticker::BucketMapChanges, 1);
    let BucketChange { epoch, buckets, .. } = change;
    let reason = change.reason.clone();
    tracing::info!(family = family.name, %epoch, buckets, reason, "bucket map changed");
    jobs.lock(order).balance_mut(family.id).remember(change);
    observers.tell(&Event::BucketMapChanged { cf: family.id, epoch, buckets, reason });
}

/// The newest map changes since the open, oldest first.
pub(crate) fn bucket_changes(jobs: &Jobs, cf: CfId) -> Vec<BucketChange> {
    let state = jobs.lock(Order::none());
    state.balances().get(&cf).map_or_else(Vec::new, Balance::history)
}
