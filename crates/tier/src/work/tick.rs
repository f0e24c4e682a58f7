//! One look at the tiers: ages accesses, and decides on copies, moves and the scheme.
//!
//! What is decided is decided by the pure functions of [`crate::cache`], [`crate::migrate`] and
//! [`crate::scheme`]; this gathers their inputs and queues what they want. Cost: a pass over all files and their ranges.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_env::FileClass;

use super::{Job, JobKind, restore, retry_moves};
use crate::activity::Totals;
use crate::cache::ageing::{Ageing, Interval, drift};
use crate::cache::parts::{CopyPlan, FileReads, plan, trust, worth};
use crate::cache::{
    CacheAction, CacheInput, Candidate, Held, READS_MIN, choose, density, is_worth_renewing,
    wants_copies,
};
use crate::device::{Count, Device};
use crate::fs::entry::{CachedCopy, Entry};
use crate::fs::shared::Shared;
use crate::history::Reason;
use crate::migrate::{Pressure, Resident, excess, pick, pressure, queue_room};
use crate::scheme::{Follower, Name, Observed, SchemeInput};
use crate::settings::CacheBy;
use crate::slowness::{Watch, Wrote, limit_at};

/// A read counts as much as so many written bytes where reads and writes are compared.
const BLOCK_BYTES: u64 = 4096;

/// So many tables at most leave for copies at a look, and none while a file is on its way from the device or to one below: users read
/// from where they go, and wait for what is written there.
const LEAVE_MAX: usize = 2;

/// Accesses are put into the namespace this often while there are any, so that a killed process knows what was hot. In between they are with every new generation.
const KEEP_HEAT_MS: u64 = 300_000;

/// What is remembered from one look to the next.
#[derive(Debug)]
pub(crate) struct Pace {
    at_ms: u64,
    /// When accesses were put into the namespace last, and reads since.
    kept_ms: u64,
    reads_unkept: u64,
    ageing: Ageing,
    /// Reads of users that copies served.
    hits: u64,
    foreground: Vec<u64>,
    totals: Totals,
    written: u64,
    /// Copies that were made on each device, and files that left it.
    done: Vec<u64>,
    follower: Follower,
    /// Bytes and busy time of writes on each device until the last look, and what was concluded.
    writes: Vec<(u64, u64, Watch)>,
    /// Served and possible foreground reads of each device in the last interval with any.
    pub(crate) ratios: Vec<(u64, u64)>,
    /// What logs, bookkeeping and levels of the scheme took of the fastest device at their largest, lately; bytes.
    peak: f64,
    /// The same of logs alone, wherever they lie.
    log_peak: f64,
}

impl Pace {
    /// Of tiers whose files have `kept` accesses of before the restart.
    pub(crate) fn new(devices: usize, fast_levels: u8, totals: Totals, kept: f64) -> Self {
        Self {
            at_ms: 0,
            kept_ms: 0,
            reads_unkept: 0,
            ageing: Ageing::with_kept(kept),
            hits: 0,
            foreground: vec![0; devices],
            totals,
            written: 0,
            done: vec![0; devices],
            follower: Follower::new(fast_levels),
            writes: vec![(0, 0, Watch::default()); devices],
            ratios: vec![(0, 0); devices],
            peak: 0.0,
            log_peak: 0.0,
        }
    }

    /// The reads whose accesses are to be put into the namespace now; 0 if it is not time.
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

/// A file as this look sees it.
struct Seen {
    entry: Arc<Entry>,
    device: usize,
    len: u64,
    reads: FileReads,
    heat: f64,
    copies: Vec<Arc<CachedCopy>>,
    /// Its device lost it.
    missing: bool,
}

impl Seen {
    /// The fastest device that serves all of it.
    fn served_by(&self) -> usize {
        let whole = self.copies.iter().filter(|copy| copy.whole);
        whole.map(|copy| copy.physical.device).min().unwrap_or(self.device).min(self.device)
    }

    /// Its accesses, without those that copies on devices faster than this one serve.
    fn left_to(&self, index: usize) -> Cow<'_, FileReads> {
        let faster = self.copies.iter().filter(|copy| copy.physical.device < index);
        faster
            .filter_map(|copy| copy.ranges())
            .fold(Cow::Borrowed(&self.reads), |left, ranges| Cow::Owned(left.beside(&ranges)))
    }

    /// Whether it may leave for something hotter: a table below L0 that is old enough for its reads to tell.
    fn may_be_demoted(&self, shared: &Shared) -> bool {
        let age_ms = shared.now_ms().saturating_sub(self.entry.born_ms.load(Ordering::Relaxed));
        self.entry.level().is_some_and(|level| level > 0)
            && age_ms >= shared.policy.half_life_ms
            && self.may_move()
    }

    /// By how much of their mean its accesses vary by chance, where that is `aged` of files that were there when the baseline was taken last.
    fn variance(&self, aged: f64) -> f64 {
        let has_baseline = self.entry.baseline().is_some();
        self.reads.variance(if has_baseline { aged } else { 1.0 })
    }

    fn may_move(&self) -> bool {
        self.entry.class == FileClass::Sst
            && self.entry.writers.load(Ordering::Acquire) == 0
            && !self.entry.busy.load(Ordering::Acquire)
    }
}

pub(super) fn tick(shared: &Arc<Shared>) {
    let mut pace = shared.pace.lock();
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
    for index in 0..shared.devices.len() - 1 {
        relieve(shared, index, &seen, now_ms);
        let (served, possible) = pace.ratios[index];
        let wanted = wants_copies(served, possible, shared.policy.hit_ratio_target);
        let device = &shared.devices[index];
        if !wanted && possible >= READS_MIN {
            // All that is hot has room.
            device.worth.store(0.0f64.to_bits(), Ordering::Relaxed);
        }
        let done = device.get(Count::CopiesMade) + device.get(Count::FilesOut);
        let finished = done - std::mem::replace(&mut pace.done[index], done);
        let wish = Wish { wanted, finished: finished as usize, variance: pace.ageing.variance() };
        if !device.leaves.load(Ordering::Relaxed) {
            fill_cache(shared, index, &seen, wish);
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
    // Who asks for statistics does not wait for the device.
    drop(pace);
    if reads > 0 && !shared.keep_heat() {
        shared.pace.lock().reads_unkept += reads;
    }
}

/// Takes every file's reads since the last look.
fn look_at_files(shared: &Arc<Shared>, pace: &mut Pace, now_ms: u64) -> Vec<Seen> {
    let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
    let mut interval = Interval::default();
    for entry in &entries {
        let reads = entry.reads.swap(0, Ordering::Relaxed);
        if reads > 0 {
            entry.last_read_ms.store(now_ms, Ordering::Relaxed);
        }
        interval.reads += reads;
        interval.ranges += entry.ranges() as u64;
        entry.read_since.fetch_add(reads, Ordering::Relaxed);
    }
    pace.reads_unkept += interval.reads;
    let baselines = entries.iter().filter_map(|entry| entry.baseline());
    interval.drift = drift(baselines, pace.ageing.baseline_variance());
    let hits = shared.devices.iter().map(|device| device.get(Count::CacheHits)).sum();
    interval.hits = hits - std::mem::replace(&mut pace.hits, hits);
    let look = pace.ageing.look(now_ms, shared.policy.half_life_ms, interval);
    tracing::debug!(
        reads = interval.reads,
        drift = interval.drift,
        ages = look.ages,
        "tiers: a look"
    );
    let mut deepest = vec![u8::MAX; shared.devices.len()];
    let mut seen = Vec::with_capacity(entries.len());
    for entry in entries {
        let inside = entry.inside.lock();
        let (device, len, copies) = (inside.main.device, inside.main.len(), inside.copies.clone());
        let missing = inside.missing;
        drop(inside);
        let reads = entry.look(len, look);
        let heat = reads.heat();
        if let Some(level) = entry.level() {
            let known = &mut deepest[device];
            *known = if *known == u8::MAX { level } else { level.max(*known) };
        }
        seen.push(Seen { entry, device, len, reads, heat, copies, missing });
    }
    for (device, deepest) in shared.devices.iter().zip(deepest) {
        device.deepest.store(deepest, Ordering::Relaxed);
    }
    let trust = trust(seen.iter().map(|file| &file.reads));
    seen.iter_mut().for_each(|file| file.reads.believe(trust));
    pace.ageing.expect(share_of_copies(&seen));
    seen
}

/// The part of all aged accesses that the copies there are would serve.
fn share_of_copies(seen: &[Seen]) -> f64 {
    let served = |file: &Seen| {
        file.copies.iter().map(|copy| served_by(&file.reads, copy)).fold(0.0, f64::max)
    };
    let (held, all) =
        seen.iter().fold((0.0, 0.0), |(held, all), file| (held + served(file), all + file.heat));
    if all > 0.0 { held / all } else { 0.0 }
}

/// What the scheme's files needed at their largest counts so much less from look to look: half after half a minute.
const PEAK_KEPT: f64 = 0.99;

/// How much hot tables of levels beyond the scheme may take of the fastest device: what logs, bookkeeping and the levels of the scheme leave when they
/// need most (they are rewritten into each other, and have their room twice meanwhile), and no more than the share for what is read often: where there are to be no
/// copies, no table stays for being hot either.
fn note_hot_room(shared: &Shared, pace: &mut Pace, seen: &[Seen]) {
    let fastest = &shared.devices[0];
    let fast_levels = shared.fast_levels.load(Ordering::Relaxed);
    let base_levels = shared.base_levels.lock().clone();
    let is_beyond = |entry: &Entry| {
        let depth = entry.level().map(|level| base_levels.depth(entry.family(), level));
        depth.is_none_or(|depth| depth >= fast_levels)
    };
    let beyond = |file: &&Seen| {
        file.device == 0 && file.entry.class == FileClass::Sst && is_beyond(&file.entry)
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

/// How much room tables leave to logs on the fastest device: as much as logs took at their largest, and the one that is
/// open and counts as it grows, less those that lie there.
fn note_log_room(shared: &Shared, pace: &mut Pace, seen: &[Seen]) {
    let logs = || seen.iter().filter(|file| file.entry.class == FileClass::Wal);
    let all: u64 = logs().map(|file| file.len).sum();
    let one = logs().map(|file| file.len).max().unwrap_or(0);
    let here: u64 = logs().filter(|file| file.device == 0).map(|file| file.len).sum();
    pace.log_peak = (pace.log_peak * PEAK_KEPT).max((all + one) as f64);
    let room = (pace.log_peak as u64).saturating_sub(here);
    shared.devices[0].log_room.store(room, Ordering::Relaxed);
}

/// Foreground reads that each device served, of those that it could have served.
fn note_ratios(shared: &Shared, pace: &mut Pace) {
    let totals: Vec<u64> =
        shared.devices.iter().map(|device| device.get(Count::ForegroundReads)).collect();
    let served: Vec<u64> =
        totals.iter().zip(&pace.foreground).map(|(now, before)| now - before).collect();
    pace.foreground = totals;
    for index in 0..served.len() {
        pace.ratios[index] = (served[index], served[index..].iter().sum());
    }
}

/// Compares what devices wrote with their profiles; one that is slower takes fewer writers, unless the settings say how many.
fn note_slowness(shared: &Shared, pace: &mut Pace, passed_ms: u64) {
    for (device, (bytes, busy_ns, watch)) in shared.devices.iter().zip(&mut pace.writes) {
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
fn relieve(shared: &Arc<Shared>, index: usize, seen: &[Seen], now_ms: u64) {
    let device = &shared.devices[index];
    let capacity = device.capacity.load(Ordering::Relaxed);
    let (low, forced) = (shared.policy.migrate_below, shared.policy.force_below);
    // What is on its way out counts as gone.
    let leaving: u64 = seen
        .iter()
        .filter(|file| file.device == index && file.entry.busy.load(Ordering::Acquire))
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

/// The first device from `from` on that takes `len` bytes.
fn roomy(shared: &Shared, from: usize, len: u64) -> Option<usize> {
    let now_ns = shared.now_ns();
    (from..shared.devices.len()).find(|&index| {
        let device = &shared.devices[index];
        let capacity = device.capacity.load(Ordering::Relaxed);
        let reserve = (capacity as f64 * shared.policy.force_below) as u64;
        let avoided = device.is_failing(now_ns) || device.leaves.load(Ordering::Relaxed);
        device.free() >= len.saturating_add(reserve) && !avoided
    })
}

/// Bytes that copies may still take on a device: by their share, and by what files leave.
fn cache_room(shared: &Shared, device: &Device) -> (i64, i64) {
    let load = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
    let (capacity, cached) = (load(&device.capacity), load(&device.cache_bytes));
    let part = |share: f64| (capacity as f64 * share) as i64;
    let by_share = part(device.cache_share) - cached as i64;
    let kept = part(shared.policy.force_below);
    let by_files = device.free().min(i64::MAX as u64) as i64 - cached as i64 - kept;
    (by_share, by_files)
}

/// What of which files a device could copy, and what it holds.
#[derive(Default)]
struct Copies<'a> {
    candidates: Vec<Candidate>,
    plans: HashMap<u64, CopyPlan>,
    held: Vec<Held>,
    by_number: HashMap<u64, (&'a Seen, &'a Arc<CachedCopy>)>,
}

impl<'a> Copies<'a> {
    /// Of the device at `index`. Candidates only if they are wanted and it is told how many bytes copies may still take, and whether tables leave for them.
    fn of(
        shared: &Shared,
        index: usize,
        seen: &'a [Seen],
        variance: f64,
        room: Option<(i64, bool)>,
    ) -> Self {
        let mut copies = Self::default();
        let own_of = |file: &'a Seen| file.copies.iter().find(|copy| copy.physical.device == index);
        // What copies on faster devices serve is no reason for another one here.
        let reads: Vec<Cow<'a, FileReads>> = seen.iter().map(|file| file.left_to(index)).collect();
        let (mut cached, mut demotable) = (0, 0);
        for (file, reads) in seen.iter().zip(&reads) {
            if file.device == index && file.may_be_demoted(shared) {
                let number = file.entry.id;
                demotable += file.len as i64;
                copies.held.push(Held {
                    number,
                    is_file: true,
                    heat: file.heat,
                    variance: file.variance(variance),
                    len: file.len,
                });
            }
            if let Some(copy) = own_of(file) {
                let (number, len) = (copy.physical.number, copy.physical.len());
                let heat = served_by(reads, copy);
                let variance = file.variance(variance);
                copies.held.push(Held { number, is_file: false, heat, variance, len });
                copies.by_number.insert(number, (file, copy));
                cached += len as i64;
            }
        }
        let Some((room, demotes)) = room else { return copies };
        let could = seen.iter().zip(&reads).filter(|(file, _)| {
            let own = own_of(file);
            own.is_some() || (file.served_by() > index && file.device > index)
        });
        let room = cached + room + if demotes { demotable } else { 0 };
        // What the fastest device leaves is hardly hotter in one part than in another; to copy parts, all of a file is read from the slowest device.
        let by = match shared.policy.cache_by {
            CacheBy::Adaptive if index > 0 => CacheBy::File,
            by => by,
        };
        let room = u64::try_from(room).unwrap_or(0);
        let worth = worth(could.clone().map(|(_, reads)| &**reads), room);
        shared.devices[index].worth.store(worth.density.to_bits(), Ordering::Relaxed);
        for (file, reads) in could.filter(|(file, _)| file.may_move()) {
            let plan = plan(reads, worth, by);
            copies.consider((file, reads), own_of(file), plan, (variance, seen.len()));
        }
        copies
    }

    /// The copies that are held, those that serve the fewest accesses per byte last.
    fn coldest_last(&self) -> impl Iterator<Item = (&'a Arc<Entry>, &'a Arc<CachedCopy>)> {
        let mut held: Vec<&Held> = self.held.iter().filter(|held| !held.is_file).collect();
        held.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
        let of =
            |held: &Held| self.by_number.get(&held.number).map(|&(file, copy)| (&file.entry, copy));
        held.into_iter().filter_map(of).collect::<Vec<_>>().into_iter()
    }

    /// Makes a candidate of the file if what is planned is better than the copy that there is.
    fn consider(
        &mut self,
        (file, reads): (&Seen, &FileReads),
        own: Option<&Arc<CachedCopy>>,
        plan: Option<CopyPlan>,
        (aged, files): (f64, usize),
    ) {
        let Some(plan) = plan else { return };
        let bytes = plan.bytes_taken();
        let variance = file.variance(aged);
        let (held, held_bytes) = match own {
            Some(copy) if copy.whole => return,
            Some(copy) => (served_by(reads, copy), copy.physical.len()),
            None => (0.0, 0),
        };
        if own.is_some() && !is_worth_renewing(plan.reads, held, bytes, variance, files) {
            return;
        }
        let (id, heat) = (file.entry.id, plan.reads - held);
        let len = bytes.saturating_sub(held_bytes);
        self.candidates.push(Candidate { file: id, heat, variance, len, bytes });
        self.plans.insert(id, plan);
    }
}

/// Which of a file's aged accesses a copy serves.
fn served_by(reads: &FileReads, copy: &CachedCopy) -> f64 {
    match copy.ranges() {
        Some(ranges) if !copy.whole => reads.served_by(&ranges),
        _ => reads.heat(),
    }
}

/// What a look wants of a device's copies.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// Whether more shall be made.
    wanted: bool,
    /// How many were made, or files left for them, since the last look.
    finished: usize,
    /// By how much of their mean accesses vary by chance.
    variance: f64,
}

/// Queues copies to a device, drops what is in the way, and notes which would go next.
fn fill_cache(shared: &Arc<Shared>, index: usize, seen: &[Seen], wish: Wish) {
    let Wish { wanted, finished, variance } = wish;
    let device = &shared.devices[index];
    let (waiting_moves, waiting_copies) = shared.queue.waiting(index);
    let busy = waiting_moves + waiting_copies + shared.queue.running(index);
    let slots = queue_room(shared.threads_for(index, false), finished, busy);
    let wanted = wanted && !device.is_failing(shared.now_ns()) && device.cache_share > 0.0;
    let (by_share, by_files) = cache_room(shared, device);
    // From a device in the middle a table would leave for one that is slower still, and the copy that takes its place is read from there, too: users
    // then wait for both.
    let demotes = index == 0 && by_files < by_share;
    let room = by_share.min(by_files);
    let mut copies =
        Copies::of(shared, index, seen, variance, (wanted && slots > 0).then_some((room, demotes)));
    shared.giving_way.note(index, copies.coldest_last());
    let (candidates, held) = (&copies.candidates[..], &copies.held[..]);
    let leave = if shared.moves_below(index) { 0 } else { LEAVE_MAX };
    let coming = device.growth.load(Ordering::Relaxed);
    let input = CacheInput { room, wanted, demotes, leave, slots, coming, candidates, held };
    for action in choose(&input) {
        let (number, reason) = match action {
            CacheAction::Copy(id) => {
                queue_copy(shared, index, seen, id, copies.plans.remove(&id));
                continue;
            }
            CacheAction::Demote(id) => {
                queue_move(shared, index, seen, id);
                continue;
            }
            CacheAction::Evict(number) => (number, Reason::RoomForFiles),
            CacheAction::Replace(number) => (number, Reason::Colder),
        };
        let Some((file, copy)) = copies.by_number.get(&number) else { continue };
        if !shared.drop_copy(&file.entry, copy) {
            continue;
        }
        let what = format!("a copy ({} bytes) dropped from {}", copy.physical.len(), device.name);
        shared.history.tell(shared.now_ms(), what, reason);
    }
}

/// Queues the move of a cold file to a slower device.
fn queue_move(shared: &Shared, from: usize, seen: &[Seen], id: u64) {
    let Some(file) = seen.iter().find(|file| file.entry.id == id) else { return };
    let Some(to) = roomy(shared, from + 1, file.len) else { return };
    let entry = Arc::clone(&file.entry);
    shared.queue.push(Job { entry, to, kind: JobKind::Move, reason: Reason::Colder });
}

fn queue_copy(shared: &Shared, to: usize, seen: &[Seen], id: u64, plan: Option<CopyPlan>) {
    let (Some(file), Some(plan)) = (seen.iter().find(|file| file.entry.id == id), plan) else {
        return;
    };
    let entry = Arc::clone(&file.entry);
    shared.queue.push(Job { entry, to, kind: JobKind::Copy(plan), reason: Reason::HitRatio });
}

/// Follows what was observed with the scheme.
fn follow(shared: &Shared, pace: &mut Pace, seen: &[Seen]) {
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
    let observed = Observed { log_writers, level_writers, level_bytes, read_share };
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
