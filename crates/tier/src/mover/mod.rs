//! The mover: moves and copies files between devices in the background.
//!
//! One thread runs the control loop ([`control_loop`]) at every interval. It also removes condemned
//! files and maintains the namespace's ballast. Several other threads carry out the queued moves
//! and copies ([`transfer`]), as far as the writers of the devices allow. Without threads
//! (`Components::spawn` is `None`), [`crate::TieredFs::step`] does one round of this work.
//!
//! Invariants:
//! 1. A file has at most one job (`Entry::busy`).
//! 2. A failed job leaves the file where it was.
//!
//! Thread-safety: any thread may call any function. One thread at a time runs the control loop.
//! Failure: as long as its reason persists, a failed job is decided on again. Copies, and moves
//! that make room for copies, are decided on in the next iteration. A move after a change of level
//! is decided on ten seconds later, and then at growing intervals, until the tiers are closed.
//! Cost: an iteration is a pass over all files and their ranges. A job reads and writes each byte
//! once, and a move also reads its target back.

mod control_loop;
mod copy_planner;
mod observed_file;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::spawn::{Joiner, Spawn};
use archipelago_base::{Error, Result};
use archipelago_env::{IoContext, IoPurpose};
use parking_lot::Mutex;

use self::control_loop::Pace;
use self::transfer::JobEnd;
use crate::fs::entry::Entry;
use crate::fs::job_queue::{Job, JobKind};
use crate::fs::shared::{BackgroundWork, MoverStart, OpenTiers};
use crate::history::Reason;
use crate::namespace::ballast;
use crate::place::{AfterMove, Heat, place_after_move};

/// The background work of open tiers.
pub(crate) struct Mover {
    /// The state of the control loop. Held for one iteration.
    pace: Mutex<Pace>,
}

impl Mover {
    /// The mover of tiers that were just opened.
    pub(crate) fn new(start: &MoverStart) -> Self {
        Self { pace: Mutex::new(Pace::new(start)) }
    }
}

impl BackgroundWork for Mover {
    fn iterate(&self, shared: &Arc<OpenTiers>) {
        control_loop::tick(shared, &self.pace);
    }

    fn move_now(
        &self,
        shared: &Arc<OpenTiers>,
        entry: &Arc<Entry>,
        to: usize,
        reason: Reason,
    ) -> Result<()> {
        move_now(shared, entry, to, reason)
    }

    fn level_changed(&self, shared: &Arc<OpenTiers>, entry: &Arc<Entry>, context: IoContext) {
        entry.move_tries.store(0, Ordering::Relaxed);
        move_by_level(shared, entry, context);
    }

    fn read_ratios(&self) -> Vec<(u64, u64)> {
        self.pace.lock().ratios.clone()
    }
}

/// Runs the first job that may run. Returns whether there was one.
pub(crate) fn run_one(shared: &Arc<OpenTiers>) -> bool {
    let Some(job) = shared.queue.take(shared) else { return false };
    let end = transfer::run(shared, &job);
    shared.queue.done(&job);
    match end {
        JobEnd::Done => {}
        JobEnd::Obsolete(why) => {
            tracing::debug!(%why, "a move or copy between devices was given up");
        }
        JobEnd::Failed(error) => {
            shared.queue.failed.fetch_add(1, Ordering::Relaxed);
            *shared.queue.errors.lock() = Some(error.to_string());
            tracing::warn!(%error, reason = %job.reason, "a move or copy between devices failed");
        }
    }
    true
}

/// Moves a file on the calling thread, ahead of all queued jobs. A file that is being written stays
/// where it is. Errors: `Busy` if the file has a job; `Closed` if the tiers are closed meanwhile;
/// `NotFound` if the file is removed meanwhile; those of the devices.
fn move_now(shared: &Arc<OpenTiers>, entry: &Arc<Entry>, to: usize, reason: Reason) -> Result<()> {
    if !shared.queue.claim(entry) {
        return Err(Error::busy("the file is being moved or copied: try again"));
    }
    let job = Job { entry: Arc::clone(entry), to, kind: JobKind::Move, reason };
    shared.queue.begun(&job);
    let end = transfer::run(shared, &job);
    shared.queue.done(&job);
    match end {
        JobEnd::Done => Ok(()),
        JobEnd::Obsolete(why) => Err(why.into_error()),
        JobEnd::Failed(error) => Err(error),
    }
}

/// Pause, in milliseconds, after which a failed move is decided on again. The pause doubles after
/// each further attempt.
const MOVE_PAUSE_MS: u64 = 10_000;
/// Longest pause, in milliseconds, after which a failed move is decided on again.
const MOVE_PAUSE_MS_MAX: u64 = 3_600_000;

/// Notes the next attempt at a move that is decided on now. A successful move clears it.
fn owe_move(entry: &Entry, now_ms: u64) {
    let tries = entry.move_tries.fetch_add(1, Ordering::Relaxed).min(16);
    let at_ms = now_ms + (MOVE_PAUSE_MS << tries).min(MOVE_PAUSE_MS_MAX);
    entry.move_owed_ms.store(at_ms, Ordering::Relaxed);
}

/// Queues the move of a file whose level changed without a rewrite, if the file belongs on another
/// device now. A move that fails or finds no room is decided on again by later iterations.
fn move_by_level(shared: &Arc<OpenTiers>, entry: &Arc<Entry>, context: IoContext) {
    let (from, len) = {
        let inside = entry.inside.lock();
        if inside.missing {
            return entry.move_owed_ms.store(0, Ordering::Relaxed);
        }
        (inside.main.device, inside.main.len())
    };
    let devices = shared.views();
    let fastest = &shared.devices[0];
    let age_ms = shared.now_ms().saturating_sub(entry.born_ms.load(Ordering::Relaxed));
    let heat = Heat {
        density: entry.accesses.density(len),
        worth: f64::from_bits(fastest.worth.load(Ordering::Relaxed)),
        is_young: age_ms < shared.policy.half_life_ms,
        room: fastest.hot_room.load(Ordering::Relaxed),
    };
    let input = shared.place_input(context, len, &devices);
    let after = place_after_move(&input, from, &heat);
    match after {
        AfterMove::Stays => entry.move_owed_ms.store(0, Ordering::Relaxed),
        AfterMove::Goes(_) | AfterMove::Waits => {
            owe_move(entry, shared.now_ms());
        }
    }
    match after {
        AfterMove::Goes(to) => {
            let (entry, reason) = (Arc::clone(entry), Reason::LevelChanged);
            shared.queue.push(Job { entry, to, kind: JobKind::Move, reason });
            shared.wake_workers();
        }
        // The file may belong to the levels of the scheme. The next iteration counts this room
        // again.
        AfterMove::Stays if from == 0 => fastest.take_hot_room(len),
        AfterMove::Stays | AfterMove::Waits => {}
    }
}

/// Decides again on moves that failed or found no room, once they are due.
fn retry_moves<'a>(shared: &Arc<OpenTiers>, entries: impl Iterator<Item = &'a Arc<Entry>>) {
    let now_ms = shared.now_ms();
    for entry in entries {
        let owed_ms = entry.move_owed_ms.load(Ordering::Relaxed);
        if owed_ms == 0 || owed_ms > now_ms || entry.busy.load(Ordering::Acquire) {
            continue;
        }
        if let Some(level) = entry.level() {
            let from = level.saturating_sub(1);
            let purpose = IoPurpose::Compaction { from, to: level };
            let context = IoContext::sst(purpose, level);
            move_by_level(shared, entry, IoContext { family: entry.family(), ..context });
        }
    }
}

/// Queues the restoration of a file that its device lost: a whole copy is written back to the same
/// device. A failed restoration is tried again at growing intervals.
fn restore(shared: &Arc<OpenTiers>, entry: &Arc<Entry>) {
    let now_ms = shared.now_ms();
    let (is_lost, to) = {
        let inside = entry.inside.lock();
        (inside.is_lost(), inside.main.device)
    };
    if is_lost || now_ms < entry.move_owed_ms.load(Ordering::Relaxed) {
        return;
    }
    let job = Job { entry: Arc::clone(entry), to, kind: JobKind::Move, reason: Reason::Missing };
    if shared.queue.push(job) {
        owe_move(entry, now_ms);
    }
}

/// Starts the background threads: one for the control loop, and those for moves and copies. If one
/// cannot be started, the others are ended.
pub(crate) fn start(shared: &Arc<OpenTiers>, spawn: &dyn Spawn) -> Result<Vec<Joiner>> {
    let mut threads = Vec::new();
    let workers = if shared.is_tiered { shared.policy.threads_max } else { 0 };
    for number in 0..=workers {
        let one = Arc::clone(shared);
        let started = match number {
            0 => spawn.spawn("tier-look", Box::new(move || run_control_loop(&one))),
            _ => {
                spawn.spawn(&format!("tier-move-{}", number - 1), Box::new(move || run_jobs(&one)))
            }
        };
        match started {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                shared.closing.store(true, Ordering::Release);
                shared.wake_workers();
                threads.into_iter().try_for_each(Joiner::join)?;
                return Err(error);
            }
        }
    }
    Ok(threads)
}

/// Waits for a wake-up or until `interval` has passed. `seen` is the number of wake-ups that the
/// calling thread has noticed.
fn wait(shared: &OpenTiers, seen: &mut u64, interval: Duration) {
    let mut woken = shared.wake.0.lock();
    if *woken == *seen && !shared.closing.load(Ordering::Acquire) {
        let _timeout = shared.wake.1.wait_for(&mut woken, interval);
    }
    *seen = *woken;
}

/// Runs the control loop until the tiers are closed.
fn run_control_loop(shared: &Arc<OpenTiers>) {
    let interval = Duration::from_millis(shared.policy.interval_ms.max(1));
    let mut seen = 0;
    let mut next_ms = 0;
    while !shared.closing.load(Ordering::Acquire) {
        let now_ms = shared.now_ms();
        if now_ms >= next_ms {
            next_ms = now_ms + shared.policy.interval_ms.max(1);
            shared.mover.iterate(shared);
        }
        sweep(shared);
        let left = Duration::from_millis(next_ms.saturating_sub(shared.now_ms()).max(1));
        wait(shared, &mut seen, left.min(interval));
    }
}

/// Bytes that must be free on the home device, in addition to the ballast's, before the ballast is
/// written.
const FREE_BESIDE_BALLAST_BYTES: u64 = 1 << 20;
/// Pause, in milliseconds, after a failure to write the ballast.
const BALLAST_PAUSE_MS: u64 = 60_000;

/// Writes the namespace's ballast if it is too short and the home device has room for it. Fault
/// point: `ballast.written`.
fn keep_ballast(shared: &OpenTiers) {
    let now_ms = shared.now_ms();
    if now_ms < shared.ballast_at_ms.load(Ordering::Relaxed) {
        return;
    }
    let wanted = shared.names.lock().space.ballast_wanted();
    let Some((dir, bytes)) = wanted else { return };
    let home = &shared.devices[shared.home];
    if home.fs_free.load(Ordering::Relaxed) < bytes.saturating_add(FREE_BESIDE_BALLAST_BYTES) {
        return;
    }
    let made = ballast::of(&dir)
        .write(&*home.fs, bytes)
        .and_then(|()| shared.fault_point("ballast.written"))
        .and_then(|()| shared.names.lock().space.put_ballast(bytes));
    if let Err(error) = made {
        tracing::warn!(%error, "the namespace has no ballast for a full device");
        shared.ballast_at_ms.store(now_ms + BALLAST_PAUSE_MS, Ordering::Relaxed);
    }
}

/// Frees room for logs, removes condemned files and maintains the ballast. Syncs the namespace if
/// files wait for that.
pub(crate) fn sweep(shared: &Arc<OpenTiers>) {
    (0..shared.devices.len()).for_each(|index| shared.make_room(index, 0));
    if let Err(error) = shared.empty_trash(true) {
        tracing::warn!(%error, "the tier namespace could not be synced; removed files keep their space");
    }
    keep_ballast(shared);
}

/// Runs queued jobs until the tiers are closed.
fn run_jobs(shared: &Arc<OpenTiers>) {
    let mut seen = 0;
    let interval = Duration::from_millis(shared.policy.interval_ms.max(1));
    while !shared.closing.load(Ordering::Acquire) {
        if !run_one(shared) {
            wait(shared, &mut seen, interval);
        }
    }
}
