//! Background work: one thread looks at the tiers every interval and decides ([`control_loop`]),
//! removes what may go, and keeps the namespace's ballast, and several copy and move ([`transfer`])
//! as far as the devices' writers allow.
//!
//! Without threads (`Components::spawn` is `None`) [`crate::TieredFs::step`] does one round of all
//! of it. A job that fails leaves the file where it was and is decided anew if its reason persists:
//! copies and what leaves for them at the next look, moves after a change of level ten seconds
//! later and at growing intervals from then on, until the tiers are closed. A file has at most one
//! job at a time (`Entry::busy`).

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
use crate::fs::shared::{BackgroundWork, MoverStart, Shared};
use crate::history::Reason;
use crate::namespace::ballast;
use crate::place::{AfterMove, Heat, place_after_move};

/// What the tiers do in the background, with what it remembers from one iteration of the control
/// loop to the next.
pub(crate) struct Mover {
    pace: Mutex<Pace>,
}

impl Mover {
    pub(crate) fn new(start: &MoverStart) -> Self {
        Self { pace: Mutex::new(Pace::new(start)) }
    }
}

impl BackgroundWork for Mover {
    fn iterate(&self, shared: &Arc<Shared>) {
        control_loop::tick(shared, &self.pace);
    }

    fn move_now(
        &self,
        shared: &Arc<Shared>,
        entry: &Arc<Entry>,
        to: usize,
        reason: Reason,
    ) -> Result<()> {
        move_now(shared, entry, to, reason)
    }

    fn level_changed(&self, shared: &Arc<Shared>, entry: &Arc<Entry>, context: IoContext) {
        entry.move_tries.store(0, Ordering::Relaxed);
        move_by_level(shared, entry, context);
    }

    fn read_ratios(&self) -> Vec<(u64, u64)> {
        self.pace.lock().ratios.clone()
    }
}

/// Runs the first job that may run; whether there was one.
pub(crate) fn run_one(shared: &Arc<Shared>) -> bool {
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

/// Moves a file on this thread, whatever waits. Errors: `Busy` if it has a job; `Closed`
/// if the tiers are closed meanwhile; `NotFound` if the file is removed meanwhile; those of the
/// devices. A file that is being written stays.
fn move_now(shared: &Arc<Shared>, entry: &Arc<Entry>, to: usize, reason: Reason) -> Result<()> {
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

/// A move after a change of level that was not made is decided anew after this long, then after
/// twice as long each time…
const MOVE_PAUSE_MS: u64 = 10_000;
/// …up to this.
const MOVE_PAUSE_MS_MAX: u64 = 3_600_000;

/// A move that is decided on now is decided anew later, unless it is made.
fn owe_move(entry: &Entry, now_ms: u64) {
    let tries = entry.move_tries.fetch_add(1, Ordering::Relaxed).min(16);
    let at_ms = now_ms + (MOVE_PAUSE_MS << tries).min(MOVE_PAUSE_MS_MAX);
    entry.move_owed_ms.store(at_ms, Ordering::Relaxed);
}

/// Queues the move of a file whose level changed without a rewrite, if it belongs further down.
/// What fails, or finds no room, is decided anew by later looks.
fn move_by_level(shared: &Arc<Shared>, entry: &Arc<Entry>, context: IoContext) {
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
        // It may be one of the scheme's own all the same: the next look counts anew.
        AfterMove::Stays if from == 0 => fastest.take_hot_room(len),
        AfterMove::Stays | AfterMove::Waits => {}
    }
}

/// Decides anew on the moves that were not made, and are due again.
fn retry_moves<'a>(shared: &Arc<Shared>, entries: impl Iterator<Item = &'a Arc<Entry>>) {
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

/// Queues that a file which its device lost is made anew, where it was, from a whole copy; again
/// and again at growing intervals.
fn restore(shared: &Arc<Shared>, entry: &Arc<Entry>) {
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

/// Starts the background threads: the one that looks, and those that copy and move. If one cannot
/// be started, those that were end again.
pub(crate) fn start(shared: &Arc<Shared>, spawn: &dyn Spawn) -> Result<Vec<Joiner>> {
    let mut threads = Vec::new();
    let workers = if shared.is_tiered { shared.policy.threads_max } else { 0 };
    for number in 0..=workers {
        let one = Arc::clone(shared);
        let started = match number {
            0 => spawn.spawn("tier-look", Box::new(move || look(&one))),
            _ => spawn.spawn(&format!("tier-move-{}", number - 1), Box::new(move || work(&one))),
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

/// Waits until somebody wakes or `interval` has passed. `seen` is how often it was woken before.
fn wait(shared: &Shared, seen: &mut u64, interval: Duration) {
    let mut woken = shared.wake.0.lock();
    if *woken == *seen && !shared.closing.load(Ordering::Acquire) {
        let _timeout = shared.wake.1.wait_for(&mut woken, interval);
    }
    *seen = *woken;
}

fn look(shared: &Arc<Shared>) {
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

/// The namespace's ballast is made where so much is free beside it…
const BESIDE_BALLAST: u64 = 1 << 20;
/// …and after a failure not again for this long.
const BALLAST_PAUSE_MS: u64 = 60_000;

/// Sees to it that the namespace has a ballast that is long enough, while the home device has room
/// for it. Fault point: `ballast.written`.
fn keep_ballast(shared: &Shared) {
    let now_ms = shared.now_ms();
    if now_ms < shared.ballast_at_ms.load(Ordering::Relaxed) {
        return;
    }
    let wanted = shared.names.lock().space.ballast_wanted();
    let Some((dir, bytes)) = wanted else { return };
    let home = &shared.devices[shared.home];
    if home.fs_free.load(Ordering::Relaxed) < bytes.saturating_add(BESIDE_BALLAST) {
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

/// Makes way for logs, and removes what may go; syncs the namespace for it.
pub(crate) fn sweep(shared: &Arc<Shared>) {
    (0..shared.devices.len()).for_each(|index| shared.make_way(index, 0));
    if let Err(error) = shared.empty_trash(true) {
        tracing::warn!(%error, "the tier namespace could not be synced; removed files keep their space");
    }
    keep_ballast(shared);
}

fn work(shared: &Arc<Shared>) {
    let mut seen = 0;
    let interval = Duration::from_millis(shared.policy.interval_ms.max(1));
    while !shared.closing.load(Ordering::Acquire) {
        if !run_one(shared) {
            wait(shared, &mut seen, interval);
        }
    }
}
