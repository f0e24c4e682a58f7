//! Bucket boundaries that move with the load: the decisions of `version::rebalance`, carried out.
//!
//! Who owns what: a family's [`Balance`] (window, wanted change, history) lies under the state
//! lock and in memory only; after an open the window is empty and nothing is decided before it has
//! half of its seals.
//!
//! 1. When a sealed memtable is readied, a sample of its keys joins the window, and the decision is
//!    made again: at most one change is *wanted* at a time, by the newest window; a split may have
//!    many keys. A key of a wanted split stays the same while it serves.
//! 2. Memtables are born with, flushes and merges within L0 cut their files also at, the keys of a
//!    wanted split; a compaction that clears its bucket runs in parts between them
//!    ([`crate::db::background::subcompaction`]), because the split waits for it.
//! 3. Before every background pick it is looked at which part of the wanted change is [`fitting`].
//!    That is made, by a worker, as a job of its own: a manifest edit; the rest stays wanted. While
//!    it runs, no flush of the touched buckets and no compaction of the family starts, and leaving
//!    the log (`db::background::leave_log`) waits for it. Nothing is held back otherwise, and
//!    nothing is compacted for it.
//!
//! Invariants: 1. A map changes only under the manifest lock, after `fitting` or, by hand,
//! `can_change_map` said so there. 2. Every job that writes L0 files across the key of a split
//! either cuts them there or is among the running jobs when that is asked, until it is installed.
//! Failure: a change that is refused stays wanted; one that fails is counted and told like any job,
//! and forgotten until the window asks for it again.
//! Cost: a family without a wanted change costs one look at a map per pick.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::{CfId, Epoch, Error, ErrorKind, Result};

use crate::border::contained;
use crate::bucket::{BUCKETS_MAX, BucketMap};
use crate::db::background::scheduler::Task;
use crate::db::inner::{DbInner, RunningJob, RunningKind, State};
use crate::db::state::family::Family;
use crate::db::state::memtable::Memtable;
use crate::event::Event;
use crate::key::KeyRange;
use crate::manifest::{Change, VersionEdit};
use crate::options::CfOptions;
use crate::stats::Ticker;
use crate::version::Version;
use crate::version::rebalance::{
    ChangeKind, MapChange, RebalanceInput, SealSample, Window, can_change_map, fitting, rebalance,
};

/// Map changes that are remembered.
const HISTORY_MAX: usize = 32;
/// Buckets that may be made for each one that a family begins with, if no setting says.
const GROWTH_MAX: usize = 4;

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
}

impl Balance {
    /// Forgets what `made`, which led to the map of `epoch`, has brought about.
    fn made(&mut self, made: &ChangeKind, epoch: Epoch) {
        let Some(wanted) = &mut self.wanted else { return };
        let cuts = made.cuts();
        match &mut wanted.change.kind {
            ChangeKind::Split { keys } if !cuts.is_empty() => {
                keys.retain(|key| !cuts.contains(key));
                wanted.epoch = epoch;
                if keys.is_empty() {
                    self.wanted = None;
                }
            }
            _ => self.wanted = None,
        }
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
    pub(crate) fn changing(&self, of: CfId) -> Option<&KeyRange> {
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

    /// Where L0 files are to be cut beside the boundaries of the map.
    pub(crate) fn planned_cuts(&self, version: &Version) -> Vec<Vec<u8>> {
        let wanted = self.balances.get(&version.cf()).and_then(|balance| balance.wanted.as_ref());
        let current = wanted.filter(|wanted| wanted.epoch == version.map().epoch());
        current.map_or_else(Vec::new, |wanted| wanted.change.kind.cuts().to_vec())
    }

    /// Where a job cuts the L0 files that it writes.
    pub(crate) fn l0_cuts(&self, version: &Version) -> Vec<Vec<u8>> {
        version.map().boundaries_and(&self.planned_cuts(version))
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
        RebalanceInput { map: version.map(), window, initial, most, planned_cuts: &[] }
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
        let epoch = version.map().epoch();
        let before = balance.wanted.take().filter(|wanted| wanted.epoch == epoch);
        let decided = rebalance(&RebalanceInput {
            planned_cuts: before.as_ref().map_or(&[], |wanted| wanted.change.kind.cuts()),
            ..self.rebalance_input(family, &version, &balance.window)
        });
        balance.wanted = decided.map(|change| Wanted { change, epoch });
    }

    /// A wanted change that may be made now.
    fn fitting(&self, state: &State) -> Option<(Arc<Family>, MapChange, Epoch)> {
        let wanting = state.balances.iter().filter(|(_, balance)| balance.wanted.is_some());
        wanting.into_iter().find_map(|(cf, _)| {
            let family = self.family(*cf)?;
            let version = Arc::clone(&family.current.load().version);
            let wanted = state.wanted(&version)?;
            let change = wanted.change.clone();
            let running = state.compactions_and_ingestions();
            let flushes = state.running_flushes(*cf);
            let now = fitting(&version, &change.kind, &running, &flushes).ok()?;
            Some((family, MapChange { kind: now, ..change }, wanted.epoch))
        })
    }

    /// Whether a wanted change may be made now.
    pub(crate) fn is_rebalance_due(&self, state: &State) -> bool {
        self.fitting(state).is_some()
    }

    /// The wanted change that may be made now, noted as running.
    pub(crate) fn next_rebalance(&self, state: &mut State) -> Option<Task> {
        let (family, change, epoch) = self.fitting(state)?;
        let range = {
            let current = family.current.load();
            let map = current.version.map();
            map.hull(&change.kind.touched(map))
        };
        let job_id = state.start_map_change(family.id, range);
        Some(Task::ChangeMap(MapTask { job_id, family, change, epoch }))
    }

    /// Makes a wanted change; afterwards it is not running any more.
    pub(crate) fn run_map_task(&self, task: &MapTask) -> Result<()> {
        let what = format!("a change of the bucket map of \"{}\"", task.family.name);
        let result = contained(&what, || self.install_wanted(task));
        // Refused because of a file or job that came in between: it is looked at again.
        let refused = matches!(&result, Err(error) if error.kind() == ErrorKind::Busy);
        let mut state = self.state.lock();
        state.running.retain(|job| job.id != task.job_id);
        if let Some(balance) = state.balances.get_mut(&task.family.id)
            && result.is_err()
            && !refused
        {
            balance.wanted = None;
        }
        drop(state);
        self.progress.notify_all();
        self.wake();
        if refused { Ok(()) } else { result }
    }

    fn install_wanted(&self, task: &MapTask) -> Result<()> {
        self.fault_point("buckets.picked")?;
        self.install_map(&task.family, |version, state| {
            if version.map().epoch() != task.epoch {
                return Err(Error::busy("the bucket map has changed meanwhile"));
            }
            let flushes = state.running_flushes(task.family.id);
            let kind = fitting(version, &task.change.kind, &state.compactions(), &flushes)?;
            let made = MapChange { kind, ..task.change.clone() };
            let reason = made.to_string();
            Ok((made.kind, reason))
        })
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
        let install = || {
            self.install_map(family, |version, state| {
                let kind = decide(version.map())?;
                let (running, flushes) = (state.compactions(), state.flush_ranges(family.id));
                can_change_map(version, kind.touched(version.map()), &running, &flushes)?;
                let reason = format!("{kind}: by hand");
                Ok((kind, reason))
            })
        };
        let result = contained("a change of the bucket map by hand", install);
        let mut state = self.state.lock();
        state.running.retain(|job| job.id != job_id);
        state.paused -= 1;
        drop(state);
        self.progress.notify_all();
        self.wake();
        result
    }

    /// Changes the map by one edit, if `decide` says so (manifest and state locks held).
    fn install_map(
        &self,
        family: &Arc<Family>,
        decide: impl FnOnce(&Version, &State) -> Result<(ChangeKind, String)>,
    ) -> Result<()> {
        let mut manifest = self.manifest.lock();
        family.check_alive()?;
        let version = Arc::clone(&family.current.load().version);
        let (kind, reason) = decide(&version, &self.state.lock())?;
        let map = kind.apply(version.map())?;
        self.fault_point("buckets.before_change")?;
        let (epoch, buckets) = (map.epoch(), map.len());
        let mut edit = VersionEdit::new();
        edit.push(Change::SetBucketMap { cf: family.id, map });
        let built = manifest.apply(edit)?;
        {
            let mut state = self.state.lock();
            self.republish_built(&mut state, built);
            if let Some(balance) = state.balances.get_mut(&family.id) {
                balance.made(&kind, epoch);
            }
        }
        drop(manifest);
        match &kind {
            ChangeKind::Split { keys } => {
                self.stats.add(Ticker::BucketSplits, keys.len() as u64);
            }
            ChangeKind::Merge { .. } => self.stats.add(Ticker::BucketMerges, 1),
        }
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
        self.tell(&Event::BucketMapChanged { cf: family.id, epoch, buckets, reason });
    }

    /// The newest map changes since the open, oldest first.
    pub(crate) fn bucket_changes(&self, cf: CfId) -> Vec<BucketChange> {
        let state = self.state.lock();
        state.balances.get(&cf).map_or_else(Vec::new, |b| b.history.iter().cloned().collect())
    }
}
