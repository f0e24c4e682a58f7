//! One iteration of the control loop: ages access counts, and decides on copies, moves and the
//! scheme.
//!
//! Pure functions of [`crate::cache`], [`crate::migrate`] and [`crate::scheme`] decide. This module
//! gathers their inputs and queues the jobs that they want.
//!
//! Thread-safety: the lock of [`Pace`] admits one iteration at a time. Failure: the only step of an
//! iteration that can fail is the record of the access counts, which a later iteration repeats.
//! Cost: a pass over all files and their ranges.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_env::FileClass;
use parking_lot::Mutex;

use super::copy_planner::{Wish, fill_cache};
use super::observed_file::{ObservedFile, judge, share_of_copies};
use super::{restore, retry_moves};
use crate::activity::Totals;
use crate::cache::ageing::{Ageing, Interval, drift};
use crate::cache::dispersion::Dispersion;
use crate::cache::payback::Payback;
use crate::cache::{READS_MIN, wants_copies};
use crate::device::{Count, Device};
use crate::fs::entry::Entry;
use crate::fs::job_queue::{Job, JobKind};
use crate::fs::shared::{MoverStart, OpenTiers};
use crate::history::Reason;
use crate::migrate::{Pressure, Resident, excess, pick, pressure};
use crate::scheme::{Follower, Name, ObservedLoad, SchemeInput};
use crate::slowness::{Watch, Wrote, limit_at};

/// Written bytes that count as one read if reads and writes are compared.
const BLOCK_BYTES: u64 = 4096;

/// Interval, in milliseconds, at which access counts are recorded in the namespace if there were
/// any reads. So the counts survive a kill. Each new generation records them as well.
const KEEP_HEAT_MS: u64 = 300_000;

/// The state of the control loop from one iteration to the next.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time of the last iteration, in milliseconds.
    at_ms: u64,
    /// Time at which access counts were last recorded in the namespace, in milliseconds.
    kept_ms: u64,
    /// Foreground reads since access counts were last recorded.
    reads_unkept: u64,
    ageing: Ageing,
    dispersion: Dispersion,
    /// Foreground reads that copies had served until the last iteration.
    hits: u64,
    /// Foreground reads that each device had served until the last iteration.
    foreground: Vec<u64>,
    /// Time that files had been open for writing until the last iteration.
    totals: Totals,
    /// Bytes written to all devices until the last iteration.
    written: u64,
    /// Number of copies that were made on each device, plus files that left it.
    done: Vec<u64>,
    payback: Vec<DevicePayback>,
    follower: Follower,
    writes: Vec<DeviceWrites>,
    /// Served and possible foreground reads of each device in the last interval.
    pub(super) ratios: Vec<(u64, u64)>,
    /// Recent peak, in bytes, of the files on the fastest device that belong there: logs,
    /// bookkeeping files and the levels of the scheme.
    peak: f64,
    /// Recent peak, in bytes, of all logs on all devices.
    log_peak: f64,
}

/// Whether the copies of one device win back their cost.
#[derive(Clone, Debug, Default)]
struct DevicePayback {
    /// Foreground reads that copies of the device had served until the last iteration.
    hits: u64,
    payback: Payback,
}

/// How fast one device is written.
#[derive(Clone, Debug, Default)]
struct DeviceWrites {
    /// Bytes of timed writes until the last iteration.
    bytes: u64,
    /// Time, in nanoseconds, that timed writes took until the last iteration.
    busy_ns: u64,
    watch: Watch,
}

impl Pace {
    /// The state of tiers that were just opened.
    pub(super) fn new(start: &MoverStart) -> Self {
        let devices = start.devices;
        Self {
            at_ms: 0,
            kept_ms: 0,
            reads_unkept: 0,
            ageing: Ageing::with_kept(start.kept_accesses),
            dispersion: Dispersion::default(),
            hits: 0,
            foreground: vec![0; devices],
            totals: start.totals,
            written: 0,
            done: vec![0; devices],
            payback: vec![DevicePayback::default(); devices],
            follower: Follower::new(start.fast_levels),
            writes: vec![DeviceWrites::default(); devices],
            ratios: vec![(0, 0); devices],
            peak: 0.0,
            log_peak: 0.0,
        }
    }

    /// Number of reads whose counts are to be recorded in the namespace now. 0 if it is too early.
    fn keeps_heat(&mut self, now_ms: u64) -> u64 {
        if self.kept_ms == 0 {
            self.kept_ms = now_ms;
        }
        if now_ms - self.kept_ms < KEEP_HEAT_MS {
            return 0;
        }
        self.kept_ms = now_ms;
        std::mem::take(&mut self.reads_unkept)
    }
}

/// Runs one iteration.
pub(super) fn tick(shared: &Arc<OpenTiers>, state: &Mutex<Pace>) {
    let mut pace = state.lock();
    let now_ms = shared.now_ms();
    let passed_ms = now_ms.saturating_sub(std::mem::replace(&mut pace.at_ms, now_ms));
    shared.devices.iter().for_each(Device::refresh_free);
    shared.devices.iter().for_each(Device::note_growth);
    if !shared.is_tiered {
        return;
    }
    let seen = look_at_files(shared, &mut pace, now_ms);
    note_hot_room(shared, &mut pace, &seen);
    note_log_room(shared, &mut pace, &seen);
    note_ratios(shared, &mut pace);
    note_slowness(shared, &mut pace, passed_ms);
    shared.queue.forget_removed();
    for index in 0..shared.devices.len() - 1 {
        relieve(shared, index, &seen, now_ms);
        let (served, possible) = pace.ratios[index];
        let wanted = wants_copies(served, possible, shared.policy.hit_ratio_target);
        let device = &shared.devices[index];
        if !wanted && possible >= READS_MIN {
            // All hot files have room on the device.
            device.worth.store(0.0f64.to_bits(), Ordering::Relaxed);
        }
        let done = device.get(Count::CopiesMade) + device.get(Count::FilesOut);
        let finished = done - std::mem::replace(&mut pace.done[index], done);
        let wish = Wish { wanted, finished: finished as usize, variance: pace.ageing.variance() };
        let payback = note_payback(device, &mut pace.payback[index]);
        if !device.leaves.load(Ordering::Relaxed) {
            fill_cache(shared, index, &seen, wish, payback);
        }
    }
    let (missing, there): (Vec<_>, Vec<_>) = seen.iter().partition(|file| file.missing);
    missing.iter().for_each(|file| restore(shared, &file.entry));
    retry_moves(shared, there.iter().map(|file| &file.entry));
    follow(shared, &mut pace, &seen);
    if shared.queue.has_jobs() {
        shared.wake_workers();
    }
    let reads = pace.keeps_heat(now_ms);
    // Statistics take this lock, and must not wait for the device.
    drop(pace);
    if reads > 0 && !shared.keep_heat() {
        state.lock().reads_unkept += reads;
    }
}

/// Takes the reads of every file since the last iteration, and ages the counts if that is due.
fn look_at_files(shared: &Arc<OpenTiers>, pace: &mut Pace, now_ms: u64) -> Vec<ObservedFile> {
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    let mut interval = Interval::default();
    let mut pairs = Vec::with_capacity(entries.len());
    for entry in &entries {
        let taken = entry.accesses.take();
        let reads = taken.reads;
        if reads > 0 {
            entry.last_read_ms.store(now_ms, Ordering::Relaxed);
        }
        interval.reads += reads;
        interval.ranges += entry.accesses.ranges() as u64;
        pairs.extend(taken.before.map(|before| (before, reads)));
    }
    pace.dispersion.look(pairs.into_iter());
    interval.dispersion = pace.dispersion.factor();
    pace.reads_unkept += interval.reads;
    let baselines = entries.iter().filter_map(|entry| entry.accesses.baseline());
    interval.drift = drift(baselines, pace.ageing.baseline_variance(), interval.dispersion);
    let hits = shared.devices.iter().map(|device| device.get(Count::CacheHits)).sum();
    interval.hits = hits - std::mem::replace(&mut pace.hits, hits);
    let look = pace.ageing.look(now_ms, shared.policy.half_life_ms, interval);
    tracing::debug!(
        reads = interval.reads,
        drift = interval.drift,
        dispersion = interval.dispersion,
        ages = look.ages,
        "tiers: an iteration of the control loop"
    );
    let mut deepest = vec![u8::MAX; shared.devices.len()];
    let mut seen = Vec::with_capacity(entries.len());
    for entry in entries {
        let inside = entry.inside.lock();
        let (device, len, copies) = (inside.main.device, inside.main.len(), inside.copies.clone());
        let missing = inside.missing;
        drop(inside);
        let reads = entry.accesses.look(len, look);
        if let Some(level) = entry.level() {
            let known = &mut deepest[device];
            *known = if *known == u8::MAX { level } else { level.max(*known) };
        }
        seen.push(ObservedFile { entry, device, len, reads, copies, missing });
    }
    for (device, deepest) in shared.devices.iter().zip(deepest) {
        device.deepest.store(deepest, Ordering::Relaxed);
    }
    judge(&mut seen, pace.ageing.variance(), interval.dispersion);
    pace.ageing.expect(share_of_copies(&seen));
    seen
}

/// Factor by which a peak decays from one iteration to the next: to one half within half a minute.
const PEAK_KEPT: f64 = 0.99;

/// Notes the room, in bytes, that hot tables of levels beyond the scheme may take of the fastest
/// device. This is the room that logs, bookkeeping files and the levels of the scheme leave at
/// their peak: levels are rewritten into each other, and need their room twice in the meantime. It
/// is at most the device's share for copies. So no table stays because it is hot on a device that
/// gets no copies.
fn note_hot_room(shared: &OpenTiers, pace: &mut Pace, seen: &[ObservedFile]) {
    let fastest = &shared.devices[0];
    let fast_levels = shared.fast_levels.load(Ordering::Relaxed);
    let base_levels = shared.base_levels.lock().clone();
    let is_beyond = |entry: &Entry| {
        let depth = entry.level().map(|level| base_levels.depth(entry.family(), level));
        depth.is_none_or(|depth| depth >= fast_levels)
    };
    let beyond = |file: &&ObservedFile| {
        file.device == 0 && file.entry.class.is_table() && is_beyond(&file.entry)
    };
    let hot: u64 = seen.iter().filter(beyond).map(|file| file.len).sum();
    let others = fastest.files_bytes.load(Ordering::Relaxed).saturating_sub(hot);
    pace.peak = (pace.peak * PEAK_KEPT).max(others as f64);
    let capacity = fastest.capacity.load(Ordering::Relaxed) as f64;
    let beside_others = capacity * (1.0 - shared.policy.migrate_below) - pace.peak;
    let most = beside_others.min(capacity * fastest.cache_share);
    let room = (most - hot as f64).max(0.0) as u64;
    fastest.hot_room.store(room, Ordering::Relaxed);
    tracing::debug!(hot, others, peak = pace.peak, room, "tiers: room for hot tables");
}

/// Notes the room, in bytes, that tables leave to logs on the fastest device. This is the recent
/// peak of all logs, plus the largest log, because an open log is counted as it grows. The logs
/// that lie there already are subtracted.
fn note_log_room(shared: &OpenTiers, pace: &mut Pace, seen: &[ObservedFile]) {
    let logs = || seen.iter().filter(|file| file.entry.class == FileClass::Wal);
    let all: u64 = logs().map(|file| file.len).sum();
    let one = logs().map(|file| file.len).max().unwrap_or(0);
    let here: u64 = logs().filter(|file| file.device == 0).map(|file| file.len).sum();
    pace.log_peak = (pace.log_peak * PEAK_KEPT).max((all + one) as f64);
    let room = (pace.log_peak as u64).saturating_sub(here);
    shared.devices[0].log_room.store(room, Ordering::Relaxed);
}

/// Counts the foreground reads that the device's copies served since the last iteration.
fn note_payback<'a>(device: &Device, state: &'a mut DevicePayback) -> &'a mut Payback {
    let all = device.get(Count::CacheHits);
    state.payback.look(all - std::mem::replace(&mut state.hits, all));
    &mut state.payback
}

/// Notes the foreground reads that each device served in this interval, and those that it could
/// have served.
fn note_ratios(shared: &OpenTiers, pace: &mut Pace) {
    let totals: Vec<u64> =
        shared.devices.iter().map(|device| device.get(Count::ForegroundReads)).collect();
    let served: Vec<u64> =
        totals.iter().zip(&pace.foreground).map(|(now, before)| now - before).collect();
    pace.foreground = totals;
    for index in 0..served.len() {
        pace.ratios[index] = (served[index], served[index..].iter().sum());
    }
}

/// Compares the write speed of devices with their profiles. A slower device takes fewer writers,
/// unless the settings fix their number.
fn note_slowness(shared: &OpenTiers, pace: &mut Pace, passed_ms: u64) {
    for (device, writes) in shared.devices.iter().zip(&mut pace.writes) {
        let DeviceWrites { bytes, busy_ns, watch } = writes;
        let Some(profile) = device.profile.get() else { continue };
        let now = device.get(Count::TimedBytes);
        let now_busy_ns = device.get(Count::WriteBusyNs);
        let wrote = Wrote {
            bytes: now - std::mem::replace(bytes, now),
            busy_ns: now_busy_ns - std::mem::replace(busy_ns, now_busy_ns),
            passed_ns: passed_ms.saturating_mul(1_000_000),
        };
        if !watch.look(&profile.writes, wrote) {
            continue;
        }
        let percent = (watch.part() * 100.0).round() as u32;
        device.pace_percent.store(percent, Ordering::Relaxed);
        if device.writers_set == 0 && profile.writers_max > 0 {
            device.limit.store(limit_at(watch.part(), profile.writers_max), Ordering::Relaxed);
        }
        let what =
            format!("{} takes {} writers", device.name, device.limit.load(Ordering::Relaxed));
        let reason = match percent {
            100.. => Reason::AsProfiled,
            _ => Reason::SlowerThanProfiled(percent),
        };
        shared.history.tell(shared.now_ms(), what, reason);
    }
}

/// Queues moves off a device that has little room.
fn relieve(shared: &Arc<OpenTiers>, index: usize, seen: &[ObservedFile], now_ms: u64) {
    let device = &shared.devices[index];
    let capacity = device.capacity.load(Ordering::Relaxed);
    let (low, forced) = (shared.policy.migrate_below, shared.policy.force_below);
    // Files that are moving away count as gone.
    let leaving: u64 = seen
        .iter()
        .filter(|file| file.device == index && file.entry.busy.load(Ordering::Acquire))
        .filter(|file| !file.entry.copying.load(Ordering::Acquire))
        .map(|file| file.len)
        .sum();
    let (_, waste) = shared.trash.waiting_on(index);
    let free = device.free();
    let reason = match pressure(free.saturating_add(waste), capacity, low, forced) {
        Pressure::None => return,
        Pressure::Low => Reason::SpaceLow,
        Pressure::Forced => Reason::SpaceForced,
    };
    let residents: Vec<Resident> = seen
        .iter()
        .filter(|file| file.device == index && file.may_move())
        .map(|file| Resident {
            file: file.entry.id,
            level: file.entry.level(),
            idle_ms: now_ms.saturating_sub(file.entry.last_read_ms.load(Ordering::Relaxed)),
            len: file.len,
        })
        .collect();
    let picked = pick(&residents, excess(free.saturating_add(waste + leaving), capacity, low));
    let picked: HashSet<u64> = picked.into_iter().collect();
    for file in seen.iter().filter(|file| picked.contains(&file.entry.id)) {
        let Some(to) = roomy(shared, index + 1, file.len) else { return };
        let entry = Arc::clone(&file.entry);
        shared.queue.push(Job { entry, to, kind: JobKind::Move, reason: reason.clone() });
    }
}

/// Index of the first device, from `from` on, that has room for `len` bytes.
pub(super) fn roomy(shared: &OpenTiers, from: usize, len: u64) -> Option<usize> {
    let now_ns = shared.now_ns();
    (from..shared.devices.len()).find(|&index| {
        let device = &shared.devices[index];
        let capacity = device.capacity.load(Ordering::Relaxed);
        let reserve = (capacity as f64 * shared.policy.force_below) as u64;
        let avoided = device.is_failing(now_ns) || device.leaves.load(Ordering::Relaxed);
        device.free() >= len.saturating_add(reserve) && !avoided
    })
}

/// Adapts the scheme to the observed writers, levels and reads.
fn follow(shared: &OpenTiers, pace: &mut Pace, seen: &[ObservedFile]) {
    let totals = shared.activity.totals(shared.now_ns());
    let (log_writers, level_writers) = totals.since(&pace.totals);
    pace.totals = totals;
    if !shared.policy.online || shared.policy.fast_levels.is_some() {
        return;
    }
    let tables =
        seen.iter().filter_map(|file| Some((file.entry.family(), file.entry.level()?, file.len)));
    let level_bytes = shared.base_levels.lock().bytes_by_depth(tables);
    let fast = &shared.devices[0];
    let capacity = fast.capacity.load(Ordering::Relaxed);
    let written: u64 = shared.devices.iter().map(|d| d.get(Count::WrittenBytes)).sum();
    let written_blocks = (written - std::mem::replace(&mut pace.written, written)) / BLOCK_BYTES;
    let reads = pace.ratios[0].1;
    let read_share = reads as f64 / (reads + written_blocks).max(1) as f64;
    let observed = ObservedLoad { log_writers, level_writers, level_bytes, read_share };
    let input = SchemeInput {
        observed,
        limit: fast.limit.load(Ordering::Relaxed),
        capacity_bytes: (capacity as f64 * (1.0 - shared.policy.migrate_below)) as u64,
    };
    if let Some(chosen) = pace.follower.observe(&input) {
        shared.fast_levels.store(chosen.fast_levels, Ordering::Relaxed);
        let what = format!("L0 to {} belong to {}", Name(chosen.fast_levels - 1), fast.name);
        shared.history.tell(shared.now_ms(), what, Reason::Scheme(chosen.to_string()));
    }
}
