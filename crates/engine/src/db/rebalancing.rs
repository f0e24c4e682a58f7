//! Bucket boundaries that move with the load: the decisions of `version::rebalance`, carried out.
//!
//! Who owns what: a family's [`Balance`] (window, wanted change, history) lies under the state
//! lock and in memory only; after an open the window is empty and nothing is decided before it has
//! half of its seals.
//!
//! 1. When a sealed memtable is readied, a sample of its keys joins the window, and the decision is
//!    made again: at most one change is *wanted* at a time, by the newest window.
//! 2. Before every background pick the wanted change is looked at ([`clearing`]): it is made, or
//!    an L0 compaction that clears its buckets is started, or flushes of its buckets wait for the one
//!    that runs. Meanwhile compactions from the base level down are kept out of its buckets, as
//!    long as there are tries left.
//! 3. The change is a manifest edit, made by a worker as a job of its own: while it runs, no flush of
//!    the touched buckets starts, and leaving the log (`db::resume`) waits for it.
//!
//! Invariants: 1. A map changes only under the manifest lock, after `can_change_map` said so.
//! 2. Between the claim of a change and its end no flush of its buckets runs, so no L0 file that
//! was cut by the old map can come after it.
//! Failure: a change that is refused stays wanted; one that fails is counted and told like any job,
//! and forgotten until the window asks for it again.
//! Cost: a family without a wanted change costs one look at a map per pick.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::{CfId, Epoch, Error, ErrorKind, Result};

use crate::bucket::{BUCKETS_MAX, BucketMap};
use crate::compaction::pick::{Pick, RangePick, Running, pick_range};
use crate::db::background::Task;
use crate::db::family::Family;
use crate::db::inner::{DbInner, RunningJob, RunningKind, State};
use crate::db::memtable::Memtable;
use crate::event::Event;
use crate::key::KeyRange;
use crate::manifest::{Change, VersionEdit};
use crate::options::CfOptions;
use crate::stats::Ticker;
use crate::version::rebalance::{
    ChangeKind, Clearing, ClearingInput, MapChange, RebalanceInput, SealSample, Window,
    can_change_map, clearing, rebalance,
};
use crate::version::{LAST_LEVEL, Version};

/// Map changes that are remembered.
const HISTORY_MAX: usize = 32;
/// Buckets that may be made for each one that a family begins with, if no setting says.
const GROWTH_MAX: usize = 4;
/// How often the L0 files of each touched bucket are compacted early for one change.
const TRIES: usize = 2;

/// A change of a bucket map that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketChange {
    /// When, in milliseconds of Unix time.
    pub unix_ms: u64,
    /// Epoch of the new map.
    pub epoch: Epoch,
    /// How many buckets it has.
    pub buckets: usize,
    /// What was changed and why.
    pub reason: String,
}

/// What is known of a family's load, and what is to be done about it.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    pub(crate) window: Window,
    wanted: Option<Wanted>,
    /// Oldest first.
    history: VecDeque<BucketChange>,
}

#[derive(Debug)]
struct Wanted {
    change: MapChange,
    /// Of the map that it changes.
    epoch: Epoch,
    /// How many compactions may still be started for it alone.
    tries: usize,
}

impl Balance {
    /// Takes over what the newest window asks for; the same change keeps its tries.
    fn want(&mut self, decided: Option<MapChange>, epoch: Epoch) {
        let before = self.wanted.take();
        self.wanted = decided.map(|change| {
            let touched = change.kind.touched();
            let tries = match before {
                Some(old) if old.epoch == epoch && old.change.kind.touched() == touched => {
                    old.tries
                }
                _ => TRIES * touched.len(),
            };
            Wanted { change, epoch, tries }
        });
    }

    fn remember(&mut self, change: BucketChange) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(change);
    }
}

/// A wanted change whose turn has come: it is among the running jobs.
pub(crate) struct MapTask {
    job_id: u64,
    pub(crate) family: Arc<Family>,
    change: MapChange,
    epoch: Epoch,
}

/// What can be done now for a wanted change.
enum Step {
    Apply(Arc<Family>, MapChange, Epoch),
    Compact(Arc<Family>, Arc<Version>, Pick),
}

/// The keys of neighbouring buckets.
fn hull(map: &BucketMap, buckets: &std::ops::Range<usize>) -> KeyRange {
    let end = buckets.end.checked_sub(1).and_then(|last| map.end(last));
    KeyRange { start: map.start(buckets.start).to_vec(), end: end.map(<[u8]>::to_vec) }
}

/// A few keys of a memtable that nobody writes to any more, for the window.
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

impl State {
    /// The range of a running map change of the family.
    fn changing(&self, of: CfId) -> Option<&KeyRange> {
        self.running.iter().find_map(|job| match &job.kind {
            RunningKind::MapChange { cf, range } if *cf == of => Some(range),
            _ => None,
        })
    }

    fn wanted(&self, version: &Version) -> Option<&Wanted> {
        let wanted = self.balances.get(&version.cf())?.wanted.as_ref()?;
        (wanted.epoch == version.map().epoch() && self.changing(version.cf()).is_none())
            .then_some(wanted)
    }

    fn clearing(&self, version: &Version) -> Option<(Clearing, &Wanted)> {
        let wanted = self.wanted(version)?;
        let clearing = clearing(&ClearingInput {
            version,
            touched: wanted.change.kind.touched(),
            running: &self.compactions(),
            flushes: &self.flush_ranges(version.cf()),
            sealed: self.flushes.get(&version.cf()).map_or(0, |tracker| tracker.queue.len()),
            may_compact: wanted.tries > 0,
        });
        Some((clearing, wanted))
    }

    /// Keys of which no flush may start now.
    pub(crate) fn held_range(&self, version: &Version) -> Option<KeyRange> {
        if let Some(range) = self.changing(version.cf()) {
            return Some(range.clone());
        }
        match self.clearing(version)? {
            (Clearing::Hold, wanted) => Some(hull(version.map(), &wanted.change.kind.touched())),
            _ => None,
        }
    }

    /// Entries for the list of running jobs that keep compactions below the base level out of
    /// buckets whose change is wanted.
    pub(crate) fn reservations(&self, version: &Version) -> Vec<Running> {
        let Some(wanted) = self.wanted(version).filter(|wanted| wanted.tries > 0) else {
            return Vec::new();
        };
        let range = hull(version.map(), &wanted.change.kind.touched());
        let from = version.base_level();
        (from + 1..=LAST_LEVEL)
            .map(|to| Running {
                cf: version.cf(),
                range: range.clone(),
                from,
                to,
                files: Vec::new(),
            })
            .collect()
    }

    /// Notes a map change as running.
    fn start_map_change(&mut self, cf: CfId, range: KeyRange) -> u64 {
        let id = self.next_job_id;
        self.next_job_id += 1;
        self.running.push(RunningJob { id, kind: RunningKind::MapChange { cf, range } });
        id
    }
}

impl DbInner {
    /// How many buckets a family begins with.
    pub(crate) fn buckets_initial(&self, options: &CfOptions) -> usize {
        let wanted = match options.buckets {
            0 => self.options.max_background_jobs,
            buckets => buckets,
        };
        wanted.min(self.buckets_most(wanted, options))
    }

    /// Most buckets that splits may make.
    fn buckets_most(&self, initial: usize, options: &CfOptions) -> usize {
        match options.buckets_max {
            0 => initial.saturating_mul(GROWTH_MAX).min(BUCKETS_MAX),
            most => most,
        }
    }

    /// The figures of a decision for the family.
    pub(crate) fn rebalance_input<'a>(
        &self,
        family: &Family,
        version: &'a Version,
        window: &'a Window,
    ) -> RebalanceInput<'a> {
        let initial = self.buckets_initial(&family.options);
        let most = self.buckets_most(initial, &family.options);
        RebalanceInput { map: version.map(), window, initial, most }
    }

    /// Takes a sealed memtable into the window and decides again (state lock held).
    pub(crate) fn note_seal(&self, state: &mut State, family: &Family, seal: SealSample) {
        let version = Arc::clone(&family.current.load().version);
        let balance = state.balances.entry(family.id).or_default();
        balance.window.push(seal);
        // The first map comes from the first memtable.
        if !family.options.buckets_dynamic || version.map().epoch() == Epoch(0) {
            return;
        }
        let decided = rebalance(&self.rebalance_input(family, &version, &balance.window));
        balance.want(decided, version.map().epoch());
    }

    fn next_step(&self, state: &State) -> Option<Step> {
        let wanting = state.balances.iter().filter(|(_, balance)| balance.wanted.is_some());
        for (cf, _) in wanting {
            let Some(family) = self.family(*cf) else { continue };
            let version = Arc::clone(&family.current.load().version);
            match state.clearing(&version) {
                Some((Clearing::Apply, wanted)) => {
                    return Some(Step::Apply(family, wanted.change.clone(), wanted.epoch));
                }
                Some((Clearing::Compact, wanted)) => {
                    let running = state.compactions();
                    let range = hull(version.map(), &wanted.change.kind.touched());
                    if running.len() < self.compactions_max()
                        && let RangePick::Ready(pick) = pick_range(&version, &running, 0, &range)
                    {
                        return Some(Step::Compact(family, version, pick));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Whether something can be done now for a wanted change.
    pub(crate) fn is_rebalance_due(&self, state: &State) -> bool {
        self.next_step(state).is_some()
    }

    /// What can be done now for a wanted change, noted as running.
    pub(crate) fn next_rebalance(&self, state: &mut State) -> Option<Task> {
        match self.next_step(state)? {
            Step::Apply(family, change, epoch) => {
                let range = hull(family.current.load().version.map(), &change.kind.touched());
                let job_id = state.start_map_change(family.id, range);
                Some(Task::ChangeMap(MapTask { job_id, family, change, epoch }))
            }
            Step::Compact(family, version, pick) => {
                let balance = state.balances.get_mut(&family.id);
                if let Some(wanted) = balance.and_then(|balance| balance.wanted.as_mut()) {
                    wanted.tries = wanted.tries.saturating_sub(1);
                }
                Some(Task::Compact(state.start_compaction(family, version, pick)))
            }
        }
    }

    /// Makes a wanted change; afterwards it is not running any more.
    pub(crate) fn run_map_task(&self, task: &MapTask) -> Result<()> {
        let result = self.install_map(&task.family, |map| {
            if map.epoch() != task.epoch {
                return Err(Error::busy("the bucket map has changed meanwhile"));
            }
            Ok((task.change.kind.clone(), task.change.to_string()))
        });
        // Refused because of a file or job that came in between: it is looked at again.
        let refused = matches!(&result, Err(error) if error.kind() == ErrorKind::Busy);
        let mut state = self.state.lock();
        state.running.retain(|job| job.id != task.job_id);
        if let Some(balance) = state.balances.get_mut(&task.family.id).filter(|_| !refused) {
            balance.wanted = None;
        }
        drop(state);
        self.progress.notify_all();
        self.wake();
        if refused { Ok(()) } else { result }
    }

    /// A change by hand: `decide` says which, from the map of now.
    pub(crate) fn change_map(
        &self,
        family: &Arc<Family>,
        decide: impl FnOnce(&BucketMap) -> Result<ChangeKind>,
    ) -> Result<()> {
        self.check_open()?;
        self.refuse_read_only()?;
        self.health.check_writable()?;
        let job_id = {
            let mut state = self.state.lock();
            if state.paused > 0 {
                return Err(Error::busy(
                    "background work is paused, by another change of buckets or while the log is \
                     left: try again",
                ));
            }
            state.paused += 1;
            state.start_map_change(family.id, KeyRange::all())
        };
        let result = self.install_map(family, |map| {
            let kind = decide(map)?;
            let reason = format!("{kind}: by hand");
            Ok((kind, reason))
        });
        let mut state = self.state.lock();
        state.running.retain(|job| job.id != job_id);
        state.paused -= 1;
        drop(state);
        self.progress.notify_all();
        self.wake();
        result
    }

    /// Changes the map by one edit, unless a touched bucket is in use (`Busy`).
    fn install_map(
        &self,
        family: &Arc<Family>,
        decide: impl FnOnce(&BucketMap) -> Result<(ChangeKind, String)>,
    ) -> Result<()> {
        let mut manifest = self.manifest.lock();
        family.check_alive()?;
        let version = Arc::clone(&family.current.load().version);
        let (kind, reason) = decide(version.map())?;
        let map = kind.apply(version.map())?;
        {
            let state = self.state.lock();
            let flushes = state.flush_ranges(family.id);
            can_change_map(&version, kind.touched(), &state.compactions(), &flushes)?;
        }
        self.fault_point("buckets.before_change")?;
        let (epoch, buckets) = (map.epoch(), map.len());
        let mut edit = VersionEdit::new();
        edit.push(Change::SetBucketMap { cf: family.id, map });
        let built = manifest.apply(edit)?;
        self.republish_built(&mut self.state.lock(), built);
        drop(manifest);
        self.stats.add(
            match kind {
                ChangeKind::Split { .. } => Ticker::BucketSplits,
                ChangeKind::Merge { .. } => Ticker::BucketMerges,
            },
            1,
        );
        self.note_map_change(family, epoch, buckets, reason);
        Ok(())
    }

    /// Counts, tells and remembers a change that was made.
    pub(crate) fn note_map_change(
        &self,
        family: &Family,
        epoch: Epoch,
        buckets: usize,
        reason: String,
    ) {
        self.stats.add(Ticker::BucketMapChanges, 1);
        tracing::info!(family = family.name, %epoch, buckets, reason, "bucket map changed");
        let unix_ms = self.clock.unix_ms();
        {
            let mut state = self.state.lock();
            let balance = state.balances.entry(family.id).or_default();
            balance.remember(BucketChange { unix_ms, epoch, buckets, reason: reason.clone() });
        }
        self.listeners.tell(&Event::BucketMapChanged { cf: family.id, epoch, buckets, reason });
    }

    /// The newest map changes since the open, oldest first.
    pub(crate) fn bucket_changes(&self, cf: CfId) -> Vec<BucketChange> {
        let state = self.state.lock();
        state.balances.get(&cf).map_or_else(Vec::new, |b| b.history.iter().cloned().collect())
    }
}
