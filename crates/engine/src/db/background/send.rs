//! Sends memtable shards to memory nodes (O³-LSM §4.2).
//!
//! A job sends one shard, of a sealed memtable that is ready, not due
//! ([`crate::db::background::due`]), and not one of the newest that stay by choice
//! ([`crate::db::background::staying`]):
//!
//! 1. The pick marks the shard as running, so that no flush takes it.
//! 2. The image is built, and the store sends it to a node. The shard stays here meanwhile.
//! 3. When the node can answer for the shard, its home becomes away, by one super version under the
//!    jobs lock. Its memory is freed when no older super version has it.
//!
//! Invariants:
//! 1. Until step 3 nothing depends on the node, so a send that fails changes nothing.
//! 2. A shard is sent a bounded number of times. Then it stays, and its memtable is due. A shard
//!    also stays if a node has taken it and the send failed afterwards, because a name is used
//!    once. A node without room costs no attempt: no image of that size is sent until the store has
//!    more room, or a pause is over. Younger shards wait meanwhile. So a store answers as busy, and
//!    not for want of room, if it will never take a shard.
//! 3. No lock is held while an image is built or sent.
//!
//! If a flush waits for a shard that is being sent, the store may give the transfer up
//! ([`crate::remote::StoreWatcher::is_due`]). That costs an attempt, so a shard that becomes due
//! again and again is not sent without end.
//!
//! Thread-safety: any number of sends run in parallel, each for another shard.
//! Failure: errors of nodes are counted, and are no failures of background work.
//! Cost: a copy of the shard for the time of the send, and two walks over its keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::budget::MemoryClass;
use archipelago_base::{CfId, Result, SeqNo};

use crate::border::contained;
use crate::db::background::due::{self, DueInput, Leave};
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::away::{AwayShard, Remainder, StoreLink};
use crate::db::state::family::Family;
use crate::db::state::jobs::JobState;
use crate::db::state::memtable::{SealedInfo, ShardHome};
use crate::db::state::running_jobs::RunningKind;
use crate::db::state::sealed::{FlushTracker, Sealed, ShardState};
use crate::db::write::stalling::{self, StallOwners};
use crate::key::KeyRange;
use crate::lock_order::Order;
use crate::memtable::Shard;
use crate::remote::{AwayError, NewShard, ShardId};
use crate::sabotage::{Defect, has};
use crate::stats::Ticker;

/// A shard that is to leave; it is marked running.
pub(crate) struct SendTask {
    job_id: u64,
    pub(crate) family: Arc<Family>,
    memtable: Arc<SealedInfo>,
    shard: usize,
    here: Arc<Shard>,
    /// Sequence number up to which older shards and tables have all records of its keys.
    after_seq: SeqNo,
    /// Whether a node has taken the shard, whose name is then used up.
    is_taken: AtomicBool,
    link: Arc<StoreLink>,
}

/// The first shard of a family that may be sent, or waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    memtable: u64,
    cf: CfId,
    /// Position of the memtable in the queue.
    position: usize,
    shard: usize,
    has_room: bool,
}

/// The candidate that is sent next: the oldest one of all families. If it waits for room, the
/// others wait for it. Otherwise small shards could take all room that becomes free, and a large
/// one would wait for ever. Such a shard would not become due either, because sends run all the
/// time.
fn next_in_turn(candidates: &[Candidate]) -> Option<Candidate> {
    let oldest = candidates.iter().min_by_key(|candidate| candidate.memtable)?;
    oldest.has_room.then_some(*oldest)
}

/// The first shard of a family that may be sent, or waits for room.
fn candidate_of(state: &JobState, input: &DueInput, cf: CfId) -> Option<Candidate> {
    let tracker = state.flushes().get(&cf)?;
    let due_below = input.due_below(cf, tracker);
    let queue = tracker.queue().iter().enumerate();
    let mut resting = queue.filter(|(position, sealed)| {
        sealed.is_ready() && sealed.info().id >= due_below && !input.stays(tracker, *position)
    });
    resting.find_map(|(position, sealed)| {
        let mut shards = (0..sealed.shards().len()).filter_map(|shard| {
            let verdict = input.may_leave(cf, sealed, shard)?;
            (verdict != Leave::Never).then_some((shard, verdict == Leave::Yes))
        });
        let (shard, has_room) = shards.next()?;
        Some(Candidate { memtable: sealed.info().id, cf, position, shard, has_room })
    })
}

/// The shard that is sent next. `None` if none may be sent, or the next one waits for room.
fn next_candidate(view: &ReadView, state: &JobState, input: &DueInput) -> Option<Candidate> {
    let families = state.flushes().keys().filter(|cf| view.family(**cf).is_some());
    let candidates: Vec<_> = families.filter_map(|cf| candidate_of(state, input, *cf)).collect();
    next_in_turn(&candidates)
}

/// Whether a shard could be sent now.
pub(crate) fn may_send(view: &ReadView, state: &JobState, input: &DueInput) -> bool {
    next_candidate(view, state, input).is_some()
}

/// The next shard that may leave, marked as running.
pub(crate) fn next_send(db: &DbInner, state: &mut JobState) -> Option<SendTask> {
    let link = Arc::clone(db.context.away()?);
    if !state.has_sealed() {
        return None;
    }
    let input = DueInput::now(db, state)?;
    note_oldest(&db.view, state, &link);
    let Candidate { cf, position, shard, .. } = next_candidate(&db.view, state, &input)?;
    let family = db.view.family(cf)?;
    let tracker = state.flushes_mut().get_mut(&cf)?;
    let keys = tracker.queue()[position].info().map.range(shard);
    let after_seq = match has(Defect::ForgottenAfterSeq) {
        true => SeqNo::ZERO,
        false => after_seq(tracker.queue().range(..position), &keys),
    };
    let sealed = tracker.range_mut(position..position + 1).next()?;
    let here = Arc::clone(sealed.view().homes[shard].as_ref().and_then(ShardHome::here)?);
    let memtable = Arc::clone(sealed.info());
    sealed.begin(shard..shard + 1);
    let job_id = state.start(RunningKind::Send { cf });
    let is_taken = AtomicBool::new(false);
    Some(SendTask { job_id, family, memtable, shard, here, after_seq, is_taken, link })
}

/// Reports to the link the oldest memtable of which a shard may still be sent.
fn note_oldest(view: &ReadView, state: &JobState, link: &StoreLink) {
    let sealed = state.flushes().values().flat_map(FlushTracker::queue);
    let sealed = sealed.map(|sealed| sealed.info().id);
    let families = view.live_families();
    let active = families.iter().map(|family| family.current.load().active.id);
    if let Some(oldest) = sealed.chain(active).min() {
        link.note_oldest(oldest);
    }
}

/// The last sequence number of the youngest memtable that has records of these keys outside of
/// tables; 0 if none has. `older` lists the memtables, oldest first.
fn after_seq<'a>(older: impl DoubleEndedIterator<Item = &'a Sealed>, keys: &KeyRange) -> SeqNo {
    let has_records = |sealed: &&Sealed| {
        let mut buckets = sealed.info().map.buckets_of(keys);
        buckets.any(|bucket| sealed.shards()[bucket] != ShardState::Installed)
    };
    older.rev().find(has_records).map_or(SeqNo::ZERO, |sealed| sealed.info().last_seq)
}

/// Sends a shard. Afterwards the shard is pending again, away or here.
pub(crate) fn run_send_task(
    owners: StallOwners<'_>,
    view: &ReadView,
    task: &SendTask,
) -> Result<()> {
    let what = format!("sending a memtable shard of \"{}\"", task.family.name);
    let sent = contained(&what, || send_shard(owners, task));
    let (away, ended) = match sent {
        Ok(away) => (away, Ok(())),
        Err(error) => (Err(NotSent::Failed), Err(error)),
    };
    let has_left = away.is_ok();
    {
        let mut state = owners.jobs.lock(Order::none());
        state.end(task.job_id);
        let tracker = state.flushes_mut().get_mut(&task.family.id);
        let found = tracker.and_then(|tracker| tracker.find_mut(task.memtable.id));
        if let Some(sealed) = found {
            sealed.give_back(task.shard);
            match away {
                Ok(away) => sealed.set_home(task.shard, ShardHome::Away(away)),
                Err(_) if task.is_taken.load(Ordering::Relaxed) => sealed.keep_here(task.shard),
                Err(NotSent::NoRoom) => {}
                Err(NotSent::Failed) => sealed.note_failed_send(task.shard),
            }
            if has_left {
                view.republish(&mut state, &task.family, None);
            }
        }
    }
    if has_left {
        task.family.backlog_since_ns.store(owners.context.clock().now_ns(), Ordering::Relaxed);
    }
    stalling::recompute_stall(owners, &task.family);
    owners.jobs.notify_progress();
    owners.jobs.wake();
    ended
}

/// Reason for which a shard is still here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotSent {
    NoRoom,
    Failed,
}

/// Sends the image of a shard. Returns the shard at its node, or the reason for which no node took
/// it.
fn send_shard(owners: StallOwners<'_>, task: &SendTask) -> Result<Result<Arc<AwayShard>, NotSent>> {
    owners.context.fault_point("send.picked")?;
    let bytes_max = due::image_bytes_max(&task.here);
    let _held = owners.context.budget().hold(MemoryClass::Job, bytes_max);
    let started_ns = owners.context.clock().now_ns();
    let mut image = Vec::with_capacity(bytes_max as usize);
    task.here.write_image(&mut image)?;
    let bytes = image.len() as u64;
    let rest = Remainder::of(&task.here, bytes);
    owners.context.fault_point("send.before_send")?;
    let id = ShardId { memtable: task.memtable.id, shard: task.shard as u32 };
    let keys = task.memtable.map.range(task.shard);
    let figures = task.memtable.shards().get(task.shard);
    let seal_log = task.memtable.seal_log;
    let oldest_log = figures.and_then(|shard| shard.oldest_log).unwrap_or(seal_log);
    let new = NewShard {
        id,
        family: task.family.id,
        keys: &keys,
        after_seq: task.after_seq,
        last_seq: task.memtable.last_seq,
        oldest_log,
        // The memtables of a log that an open has kept are sealed before its first segment.
        seal_log: seal_log.max(oldest_log),
    };
    let stats = owners.observers.stats();
    match task.link.store().send(&new, &image) {
        Ok(node) => {
            task.is_taken.store(true, Ordering::Relaxed);
            let away = task.link.register(id, node, rest);
            owners.context.fault_point("send.sent")?;
            stats.add(Ticker::AwayShardsSent, 1);
            stats.add(Ticker::AwayBytesSent, bytes);
            stats.add(Ticker::AwayKeptBytes, away.kept_bytes());
            let duration_ns = owners.context.clock().now_ns().saturating_sub(started_ns);
            let sends = owners.jobs.lock(Order::none()).running().count(RunningKind::is_send);
            stats.add(Ticker::AwaySendNs, duration_ns);
            owners.pacing.measure_send(bytes, sends, Duration::from_nanos(duration_ns));
            Ok(Ok(away))
        }
        Err(error) => {
            let (ticker, why) = match error {
                AwayError::NoRoom(_) => (Ticker::AwaySendsRefused, NotSent::NoRoom),
                AwayError::Busy(_) if task.link.is_send_due(id) => {
                    (Ticker::AwaySendsGivenUp, NotSent::Failed)
                }
                AwayError::Busy(_) | AwayError::Lost(_) => {
                    (Ticker::AwaySendsFailed, NotSent::Failed)
                }
            };
            if why == NotSent::NoRoom {
                task.link.note_no_room(bytes_max);
            }
            stats.add(ticker, 1);
            tracing::debug!(shard = %id, %error, "a memtable shard was not taken by a node");
            Ok(Err(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_shard_goes_first_and_the_others_wait_for_it() {
        let candidate = |memtable, cf, has_room| Candidate {
            memtable,
            cf: CfId(cf),
            position: 0,
            shard: 0,
            has_room,
        };
        let (old, young) = (candidate(5, 2, true), candidate(7, 1, true));
        assert_eq!(next_in_turn(&[young, old]), Some(old), "whatever its family is");
        assert_eq!(next_in_turn(&[young, candidate(5, 2, false)]), None);
        assert_eq!(next_in_turn(&[candidate(7, 1, false), old]), Some(old));
        assert_eq!(next_in_turn(&[]), None);
    }
}
