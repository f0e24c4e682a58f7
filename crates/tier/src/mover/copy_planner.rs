//! Planning of copies: which copies a device gets in an iteration, and which it drops for them.
//!
//! The pure functions of [`crate::cache`] decide. This module gathers their inputs, drops copies
//! and queues jobs.
//!
//! Failure: a copy that cannot be dropped stays, and the next iteration decides again.
//! Cost: a pass over all files and their ranges for each device.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::control_loop::roomy;
use super::observed_file::{ObservedFile, served_by};
use crate::cache::hot_ranges::{CopyPlan, FileReads, plan, worth};
use crate::cache::payback::Payback;
use crate::cache::{
    CacheAction, CacheInput, Candidate, Held, Refill, choose, density, is_worth_renewing,
};
use crate::device::Device;
use crate::fs::entry::{CachedCopy, Entry};
use crate::fs::job_queue::{Job, JobKind};
use crate::fs::shared::OpenTiers;
use crate::history::Reason;
use crate::migrate::queue_room;
use crate::settings::CacheBy;

/// Largest number of queued copies to a device whose copies win back their cost.
const QUEUED_MAX: usize = 64;

/// Largest number of tables that leave the device for copies in one iteration. No table leaves
/// while a move to a slower device is queued or running: foreground reads use that device, and wait
/// for its writes.
const LEAVE_MAX: usize = 2;

/// Bytes that copies may still take on a device.
struct CacheRoom {
    /// Bytes that the device's share for copies allows. Negative if copies take more than that.
    by_share: i64,
    /// Bytes that the room which files leave allows. Negative if files need room of copies.
    by_files: i64,
}

fn cache_room(shared: &OpenTiers, device: &Device) -> CacheRoom {
    let load = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
    let (capacity, cached) = (load(&device.capacity), load(&device.cache_bytes));
    let part = |share: f64| (capacity as f64 * share) as i64;
    let by_share = part(device.cache_share) - cached as i64;
    let kept = part(shared.policy.force_below);
    let by_files = device.free().min(i64::MAX as u64) as i64 - cached as i64 - kept;
    CacheRoom { by_share, by_files }
}

/// The copies that a device could get, and the copies and files that it holds.
#[derive(Default)]
struct Copies<'a> {
    candidates: Vec<Candidate>,
    plans: HashMap<u64, CopyPlan>,
    held: Vec<Held>,
    by_number: HashMap<u64, (&'a ObservedFile, &'a Arc<CachedCopy>)>,
}

impl<'a> Copies<'a> {
    /// Gathers the state of the device at `index`. Candidates are gathered only if `room` is given:
    /// the bytes that copies may still take, and whether tables leave for them.
    fn of(
        shared: &OpenTiers,
        index: usize,
        seen: &'a [ObservedFile],
        variance: f64,
        room: Option<(i64, bool)>,
    ) -> Self {
        let mut copies = Self::default();
        let own_of =
            |file: &'a ObservedFile| file.copies.iter().find(|copy| copy.physical.device == index);
        // Accesses that copies on faster devices serve are no reason for another copy here.
        let reads: Vec<Cow<'a, FileReads>> = seen.iter().map(|file| file.left_to(index)).collect();
        let (mut cached, mut demotable) = (0, 0);
        for (file, reads) in seen.iter().zip(&reads) {
            if file.device == index && file.may_be_demoted(shared) {
                let number = file.entry.id;
                demotable += file.len as i64;
                copies.held.push(Held {
                    number,
                    is_file: true,
                    heat: file.reads.heat(),
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
        let could = seen.iter().zip(&reads).filter(|(file, reads)| {
            let own = own_of(file);
            // A file without accesses of its own is not copied because of the accesses of its
            // cohort.
            let is_below = file.served_by() > index && file.device > index;
            own.is_some() || (is_below && reads.is_read())
        });
        let room = cached + room + if demotes { demotable } else { 0 };
        // The accesses that the fastest device does not serve are spread almost evenly over a file.
        // And a copy of ranges would read the whole file from the slowest device.
        let by = match shared.policy.cache_by {
            CacheBy::Adaptive if index > 0 => CacheBy::File,
            by => by,
        };
        let room = u64::try_from(room).unwrap_or(0);
        let worth = worth(could.clone().map(|(_, reads)| &**reads), room);
        shared.devices[index].worth.store(worth.density.to_bits(), Ordering::Relaxed);
        for (file, reads) in could.filter(|(file, _)| file.may_move()) {
            let plan = plan(reads, worth, by);
            let statistics =
                AccessStatistics { variance: file.variance(variance), files: seen.len() };
            copies.consider(file, reads, own_of(file), plan, statistics);
        }
        copies
    }

    /// The copies on the device, the ones with the fewest accesses per byte last.
    fn coldest_last(&self) -> impl Iterator<Item = (&'a Arc<Entry>, &'a Arc<CachedCopy>)> {
        let mut held: Vec<&Held> = self.held.iter().filter(|held| !held.is_file).collect();
        held.sort_by(|a, b| density(b.heat, b.len).total_cmp(&density(a.heat, a.len)));
        let of =
            |held: &Held| self.by_number.get(&held.number).map(|&(file, copy)| (&file.entry, copy));
        held.into_iter().filter_map(of).collect::<Vec<_>>().into_iter()
    }

    /// Adds the file as a candidate if the planned copy is better than its present one.
    fn consider(
        &mut self,
        file: &ObservedFile,
        reads: &FileReads,
        own: Option<&Arc<CachedCopy>>,
        plan: Option<CopyPlan>,
        statistics: AccessStatistics,
    ) {
        let Some(mut plan) = plan else { return };
        let bytes = plan.bytes_taken();
        let AccessStatistics { variance, files } = statistics;
        let (held, held_bytes) = match own {
            Some(copy) if copy.whole => return,
            Some(copy) => (served_by(reads, copy), copy.physical.len()),
            None => (0.0, 0),
        };
        if own.is_some() && !is_worth_renewing(plan.reads, held, bytes, variance, files) {
            return;
        }
        let (id, heat) = (file.entry.id, plan.reads - held);
        plan.replaces = held_bytes;
        let len = plan.room();
        self.candidates.push(Candidate { file: id, heat, variance, len, bytes });
        self.plans.insert(id, plan);
    }
}

/// The effect of chance on the accesses of a file.
#[derive(Clone, Copy)]
struct AccessStatistics {
    /// Variance-to-mean ratio of the file's accesses by chance.
    variance: f64,
    /// Number of files that are compared.
    files: usize,
}

/// The need of a device for copies, as an iteration finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Whether the device needs more copies.
    pub(super) wanted: bool,
    /// Number of copies that were made, or files that left, since the last iteration.
    pub(super) finished: usize,
    /// Variance-to-mean ratio of aged accesses by chance.
    pub(super) variance: f64,
}

/// Queues copies to a device, drops the copies that they replace, and notes the order in which
/// copies are dropped if files need their room.
pub(super) fn fill_cache(
    shared: &Arc<OpenTiers>,
    index: usize,
    seen: &[ObservedFile],
    wish: Wish,
    payback: &mut Payback,
) {
    let Wish { wanted, finished, variance } = wish;
    let device = &shared.devices[index];
    let (waiting_moves, waiting_copies) = shared.queue.waiting(index);
    let busy = waiting_moves + waiting_copies + shared.queue.running(index);
    let threads = shared.threads_for(index, false);
    let slots = queue_room(threads, finished, busy);
    // While writers leave no thread to copies, no copy is queued. A queued copy would keep its file
    // from moving.
    let refill = match payback.won() {
        0 => Refill::default(),
        _ if threads == 0 => Refill::default(),
        bytes => Refill { copies: QUEUED_MAX.saturating_sub(busy), bytes },
    };
    let wanted = wanted && !device.is_failing(shared.now_ns()) && device.cache_share > 0.0;
    let CacheRoom { by_share, by_files } = cache_room(shared, device);
    // A table that leaves a device in the middle is written to a slower one, and the copy that
    // takes its place is read from there. Foreground reads would wait for both. So only the fastest
    // device demotes tables.
    let demotes = index == 0 && by_files < by_share;
    let room = by_share.min(by_files);
    let chooses = wanted && slots.max(refill.copies) > 0;
    let mut copies = Copies::of(shared, index, seen, variance, chooses.then_some((room, demotes)));
    shared.evictions.note(index, copies.coldest_last());
    let (candidates, held) = (&copies.candidates[..], &copies.held[..]);
    let leave = if shared.moves_below(index) { 0 } else { LEAVE_MAX };
    let coming = device.growth.load(Ordering::Relaxed);
    let waiting = shared.queue.waiting_bytes(index);
    let actions = choose(&CacheInput {
        room,
        wanted,
        demotes,
        leave,
        slots,
        refill,
        coming,
        waiting,
        candidates,
        held,
    });
    for action in actions {
        let (number, reason) = match action {
            CacheAction::Copy(id) => {
                payback.spend(queue_copy(shared, index, seen, id, copies.plans.remove(&id)));
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
fn queue_move(shared: &OpenTiers, from: usize, seen: &[ObservedFile], id: u64) {
    let Some(file) = seen.iter().find(|file| file.entry.id == id) else { return };
    let Some(to) = roomy(shared, from + 1, file.len) else { return };
    let entry = Arc::clone(&file.entry);
    shared.queue.push(Job { entry, to, kind: JobKind::Move, reason: Reason::Colder });
}

/// Queues a copy. Returns the bytes that will be copied, or 0 if the file has a job already.
fn queue_copy(
    shared: &OpenTiers,
    to: usize,
    seen: &[ObservedFile],
    id: u64,
    plan: Option<CopyPlan>,
) -> u64 {
    let (Some(file), Some(plan)) = (seen.iter().find(|file| file.entry.id == id), plan) else {
        return 0;
    };
    let (entry, bytes) = (Arc::clone(&file.entry), plan.bytes());
    let job = Job { entry, to, kind: JobKind::Copy(plan), reason: Reason::HitRatio };
    if shared.queue.push(job) { bytes } else { 0 }
}
