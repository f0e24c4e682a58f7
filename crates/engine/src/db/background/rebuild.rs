//! Rebuilds lost memtable shards from the log while the database runs.
//!
//! A shard is lost if its node is lost. The log has its records, because a segment stays until all
//! of its records are in tables. A job rebuilds lost shards, the oldest first. Rebuilt shards that
//! are in no table take no more memory than two memtables, because the nodes may have held more
//! than the owner's memory. The steps of a job:
//!
//! 1. A buffered log is sent, so that its segments have every record of a sealed memtable.
//! 2. The segments are read once, in order, from the oldest one that a lost shard pins. The read
//!    ends when it has all records of the lost shards. Writers go on meanwhile, so a segment that
//!    looks damaged is read again before the damage counts.
//! 3. A record belongs to a lost shard if three conditions hold: its family and its key are the
//!    shard's, its sequence number is between the shard's smallest and largest one, and no table
//!    has it. No other shard has such a record, because the sequence numbers of a family's
//!    memtables follow each other without a gap. A table may have it if an open has kept the log.
//!    The memtables of such a log hold the records that were not flushed before, and the flushed
//!    key ranges may differ from the shards.
//! 4. Range tombstones are not read: those of an away shard are in memory.
//! 5. A rebuilt shard whose figures differ from those of the lost one is refused, because the log
//!    lacks records that it must have.
//! 6. Each rebuilt shard becomes the copy of the lost one, for readers that hold an old super
//!    version. It also takes the place of the lost one, by a new super version of its family.
//!
//! A rebuilt shard is not sent again, so its memtable is due. A flush leaves lost shards out. When
//! it has written the rebuilt ones, the next lost shards find room. Rebuilt shards of memtables
//! that are younger than the oldest lost shard do not count for that room, because their flushes
//! wait for that shard.
//!
//! Invariants:
//! 1. Between the pick and the swap no other job has the shards, so their log segments stay.
//! 2. Readers find the records of a shard in one place at any time.
//!
//! Thread-safety: one rebuild runs at a time.
//! Failure: if the log cannot be read, the job is tried again. If the log lacks records, the
//! database becomes read only, and reads of their shards get that error. The other shards are
//! rebuilt.
//! Cost: one read of the log from the oldest pinned segment on, and the memory of the shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::Pressure;
use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result, SeqNo};

use crate::border::contained;
use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::away::{AwayShard, ShardCopy};
use crate::db::state::context::Context;
use crate::db::state::family::Family;
use crate::db::state::jobs::JobState;
use crate::db::state::memtable::{SealedInfo, ShardHome};
use crate::db::state::running_jobs::RunningKind;
use crate::db::state::sealed::{FlushTracker, ShardState};
use crate::db::state::storage::Storage;
use crate::db::write::{self, WritePath, log_segments, stalling};
use crate::key::Kind;
use crate::lock_order::Order;
use crate::memtable::Shard;
use crate::remote::AwayError;
use crate::stats::Ticker;
use crate::version::FlushedThrough;
use crate::wal::{BatchView, LogChain, recover_beside};

/// Bound on rebuilt shards in memory, as a number of full memtables.
const MEMTABLES_MAX: u64 = 2;
/// Number of times that a log is read before its damage counts.
const READS_MAX: u32 = 5;
/// Pause between two reads of the log, so that a writer can end the step that it is in.
const READ_PAUSE: Duration = Duration::from_millis(2);

/// Lost shards that are to be rebuilt; they are marked running.
pub(crate) struct RebuildTask {
    job_id: u64,
    lost: Vec<LostShard>,
}

struct LostShard {
    family: Arc<Family>,
    memtable: Arc<SealedInfo>,
    shard: usize,
    away: Arc<AwayShard>,
}

/// Memory that rebuilt shards may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RebuildMemory {
    /// The memory of two memtables in all, which flushes free again.
    Bounded,
    /// The memory of two memtables for each job, because no flush runs before the caller goes on.
    ByJob,
}

/// Inputs of the decision whether one more lost shard is rebuilt.
#[derive(Clone, Copy, Debug)]
struct RebuildRoom {
    /// Bytes of rebuilt shards that are in no table.
    held_bytes: u64,
    bytes_max: u64,
    /// Whether the memory budget is exceeded.
    is_over: bool,
}

impl RebuildRoom {
    /// Whether a shard of `bytes` is rebuilt now. The first shard always is. So a large shard is
    /// rebuilt as well, and so is a shard while other memory fills the budget.
    fn may_rebuild(&self, bytes: u64) -> bool {
        self.held_bytes == 0 || !self.is_over && self.held_bytes + bytes <= self.bytes_max
    }
}

/// Bytes of rebuilt shards that a flush can take before the shards of memtable `oldest_lost` are
/// rebuilt.
fn held_bytes(state: &JobState, oldest_lost: u64) -> u64 {
    let sealed = state.flushes().values().flat_map(FlushTracker::queue);
    sealed
        .filter(|sealed| sealed.info().id <= oldest_lost)
        .map(|sealed| sealed.rebuilt_bytes())
        .sum()
}

/// The next lost shards, marked as running.
pub(crate) fn next_rebuild(
    context: &Context,
    view: &ReadView,
    state: &mut JobState,
    memory: RebuildMemory,
) -> Option<RebuildTask> {
    let link = context.away()?;
    if !link.has_lost() || state.running().has(RunningKind::is_rebuild) {
        return None;
    }
    let mut lost = Vec::new();
    let is_over = context.budget().pressure() == Pressure::Over;
    let mut room = match memory {
        RebuildMemory::Bounded => RebuildRoom { held_bytes: 0, bytes_max: 0, is_over },
        RebuildMemory::ByJob => RebuildRoom { held_bytes: 0, bytes_max: 0, is_over: false },
    };
    // The list is in the order of the names, and so the oldest memtable comes first.
    for away in link.lost() {
        if away.has_copy() {
            link.forget_lost(away.id());
            continue;
        }
        match find(view, state, &away) {
            Found::Pending(family, memtable) => {
                let size = context.memtable_bytes_max(&family.options);
                room.bytes_max = room.bytes_max.max(size.saturating_mul(MEMTABLES_MAX));
                if lost.is_empty() && memory == RebuildMemory::Bounded {
                    room.held_bytes = held_bytes(state, memtable.id);
                }
                let bytes = away.figures().data_bytes;
                if !room.may_rebuild(bytes) {
                    break;
                }
                room.held_bytes += bytes;
                let shard = away.id().shard as usize;
                lost.push(LostShard { family, memtable, shard, away });
            }
            // Another job has the shard. That job ends without it.
            Found::Busy => {}
            Found::Gone => away.set_copy(Err(Error::busy(
                "the memory node of a memtable shard that an older reader needs is lost, and the \
                 log is not needed for it any more, because tables have the records or the column \
                 family was dropped: read again, or make another iterator",
            ))),
        }
    }
    if lost.is_empty() {
        return None;
    }
    for LostShard { family, memtable, shard, .. } in &lost {
        let tracker = state.flushes_mut().get_mut(&family.id);
        if let Some(sealed) = tracker.and_then(|tracker| tracker.find_mut(memtable.id)) {
            sealed.begin(*shard..*shard + 1);
        }
    }
    Some(RebuildTask { job_id: state.start(RunningKind::Rebuild), lost })
}

enum Found {
    Pending(Arc<Family>, Arc<SealedInfo>),
    Busy,
    Gone,
}

/// The memtable of an away shard among the sealed ones.
fn find(view: &ReadView, state: &JobState, away: &Arc<AwayShard>) -> Found {
    let id = away.id();
    let all = state
        .flushes()
        .iter()
        .flat_map(|(cf, tracker)| tracker.queue().iter().map(move |sealed| (*cf, sealed)));
    for (cf, sealed) in all {
        let shard = id.shard as usize;
        if sealed.info().id != id.memtable {
            continue;
        }
        return match view.family(cf) {
            Some(family) => match sealed.shards()[shard] {
                ShardState::Pending => Found::Pending(family, Arc::clone(sealed.info())),
                ShardState::Running => Found::Busy,
                ShardState::Installed => Found::Gone,
            },
            None => Found::Gone,
        };
    }
    Found::Gone
}

/// Rebuilds the shards of the task. Afterwards they are pending, in memory if they were rebuilt.
pub(crate) fn run_rebuild_task(db: &DbInner, task: &RebuildTask) -> Result<()> {
    let mut shards: Vec<Option<Arc<Shard>>> = task.lost.iter().map(|_| None).collect();
    let ended = contained("rebuilding lost memtable shards", || rebuild(db, task, &mut shards));
    let is_any = shards.iter().any(Option::is_some);
    {
        let mut state = db.jobs.lock(Order::none());
        state.end(task.job_id);
        for (LostShard { family, memtable, shard, away }, rebuilt) in task.lost.iter().zip(&shards)
        {
            if let Some(here) = rebuilt {
                away.set_copy(Ok(ShardCopy::Rebuilt(Arc::clone(here))));
            }
            let tracker = state.flushes_mut().get_mut(&family.id);
            let found = tracker.and_then(|tracker| tracker.find_mut(memtable.id));
            let Some(sealed) = found else {
                // The family of the shard was dropped meanwhile.
                continue;
            };
            sealed.give_back(*shard);
            if let Some(here) = rebuilt {
                sealed.set_rebuilt(*shard, Arc::clone(here));
            }
        }
        let families = task.lost.iter().map(|lost| (lost.family.id, &lost.family));
        for (id, family) in BTreeMap::from_iter(families) {
            if is_any && state.flushes().contains_key(&id) {
                db.view.republish(&mut state, family, None);
            }
        }
    }
    let mut rebuilt = 0;
    for (lost, _) in task.lost.iter().zip(&shards).filter(|(_, shard)| shard.is_some()) {
        rebuilt += 1;
        lost.away.release();
        let family = &lost.family;
        stalling::recompute_stall(db.stall_owners(), family);
    }
    db.observers.stats().add(Ticker::AwayShardsRebuilt, rebuilt);
    db.jobs.notify_progress();
    db.jobs.wake();
    ended
}

/// Fills `rebuilt` with the shards of the task, from the log. Fails if the log does not give some
/// of them. The others are in `rebuilt` nevertheless.
fn rebuild(db: &DbInner, task: &RebuildTask, rebuilt: &mut [Option<Arc<Shard>>]) -> Result<()> {
    db.context.fault_point("rebuild.picked")?;
    write::flush_log(db)?;
    let pinned = |lost: &LostShard| {
        let figures = lost.memtable.shards().get(lost.shard);
        figures.and_then(|shard| shard.oldest_log).or(lost.memtable.oldest_log)
    };
    let oldest = task.lost.iter().filter_map(pinned).min();
    let is_damage =
        |error: &Error| matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound);
    let mut reads = 1;
    let shards = loop {
        let shards = read_shards(&db.context, &db.storage, &db.writes, task, oldest);
        let failed = shards.iter().find_map(|shard| shard.as_ref().err());
        match failed {
            Some(error) if !is_damage(error) => return Err(error.clone()),
            Some(_) if reads < READS_MAX => {}
            _ => break shards,
        }
        reads += 1;
        let mut state = db.jobs.lock(Order::none());
        db.jobs.wait_for_progress(&mut state, READ_PAUSE);
    };
    db.context.fault_point("rebuild.before_swap")?;
    let mut ended = Ok(());
    for ((lost, shard), rebuilt) in task.lost.iter().zip(shards).zip(rebuilt) {
        match shard {
            Ok(shard) => {
                if let Some(log) = pinned(lost) {
                    shard.note_log(log.0);
                }
                *rebuilt = Some(shard);
            }
            Err(error) => {
                lost.away.set_copy(Err(error.clone()));
                ended = Err(error);
            }
        }
    }
    ended
}

/// Reads the log once, from segment `oldest` on. Returns each shard that the log has in full, even
/// if the log cannot be read to its end, and an error for each other shard.
fn read_shards(
    context: &Context,
    storage: &Storage,
    writes: &WritePath,
    task: &RebuildTask,
    oldest: Option<FileNo>,
) -> Vec<Result<Arc<Shard>>> {
    let shards: Vec<_> = task.lost.iter().map(|_| Shard::new(writes.slab_pool())).collect();
    let mut replay = LostReplay::new(&task.lost, &shards);
    let read = match oldest.filter(|_| replay.missing > 0) {
        Some(oldest) => read_log(context, storage, oldest, &mut replay),
        None => Ok(()),
    };
    let finished = |(lost, shard): (&LostShard, Arc<Shard>)| {
        let tombstones = lost.away.tombstones().list();
        tombstones.into_iter().for_each(|tombstone| shard.insert_tombstone(tombstone));
        shard.seal();
        match (check(lost, &shard), &read) {
            (Ok(()), _) => Ok(shard),
            (Err(_), Err(error)) => Err(error.clone()),
            (Err(error), Ok(())) => Err(error),
        }
    };
    task.lost.iter().zip(shards.iter().cloned()).map(finished).collect()
}

/// Reads the log from segment `oldest` on, as far as the lost shards have records.
fn read_log(
    context: &Context,
    storage: &Storage,
    oldest: FileNo,
    replay: &mut LostReplay<'_>,
) -> Result<()> {
    let segments = log_segments::listed_segments(storage, oldest)?;
    let chain = LogChain {
        segments: &segments,
        floor: oldest,
        mode: context.options().recovery_mode,
        database_id: storage.database_id(),
    };
    let fs = Arc::clone(storage.fs());
    let mut visit = |first: SeqNo, batch: BatchView<'_>| {
        context.is_closing().then(closing).map_or(Ok(()), Err)?;
        replay.apply(first, batch)
    };
    let read = recover_beside(&*fs, &chain, &mut visit, &mut |_| Ok(()));
    match read {
        // The replay ends the read early by an error of its own.
        Err(_) if replay.is_done() => Ok(()),
        read => read.map(drop),
    }
}

fn closing() -> Error {
    Error::closed("the database is closing")
}

/// Checks that a rebuilt shard has the figures of the lost one. Fails with `Corrupt` otherwise.
fn check(lost: &LostShard, shard: &Shard) -> Result<()> {
    let wanted = lost.away.figures();
    let seqs = (shard.smallest_seq(), shard.largest_seq());
    let is_same = shard.entries() == wanted.entries
        && shard.deletions() == wanted.deletions
        && seqs == (wanted.smallest_seq, wanted.largest_seq);
    if is_same {
        return Ok(());
    }
    let keys = lost.memtable.map.range(lost.shard);
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "the log has {} of the {} records of a memtable shard of column family \"{}\" whose \
             memory node is lost, with the keys from \"{}\" on: restore the log segments from a \
             copy and open the database again",
            shard.entries(),
            wanted.entries,
            lost.family.name,
            keys.start.escape_ascii()
        ),
    ))
}

/// State of a read of the log that collects the records of lost shards.
struct LostReplay<'a> {
    /// The lost shards of each family and memtable.
    memtables: Vec<LostMemtable<'a>>,
    /// Number of records of lost shards that the read has not met yet.
    missing: u64,
    /// Largest sequence number of all lost shards.
    last: SeqNo,
    /// Whether the read has met a sequence number above `last`.
    is_past: bool,
}

struct LostMemtable<'a> {
    cf: CfId,
    info: &'a SealedInfo,
    /// Sequence numbers through which tables have the records of the family.
    flushed: FlushedThrough,
    /// Lost shards by their position in the memtable: smallest and largest sequence number, and the
    /// rebuilt shard.
    shards: BTreeMap<usize, (SeqNo, SeqNo, &'a Shard)>,
}

impl<'a> LostReplay<'a> {
    fn new(lost: &'a [LostShard], shards: &'a [Arc<Shard>]) -> Self {
        let mut memtables: Vec<LostMemtable<'a>> = Vec::new();
        let (mut last, mut missing) = (SeqNo::ZERO, 0);
        for (lost, shard) in lost.iter().zip(shards) {
            let figures = lost.away.figures();
            missing += figures.entries;
            last = last.max(figures.largest_seq);
            let known = memtables.iter().position(|memtable| memtable.info.id == lost.memtable.id);
            let at = known.unwrap_or_else(|| {
                let (cf, info) = (lost.family.id, &*lost.memtable);
                // An install from now on is that of an older memtable, so it changes nothing for
                // these shards.
                let flushed = lost.family.current.load().version.flushed_through().clone();
                memtables.push(LostMemtable { cf, info, flushed, shards: BTreeMap::new() });
                memtables.len() - 1
            });
            let seqs = (figures.smallest_seq, figures.largest_seq);
            memtables[at].shards.insert(lost.shard, (seqs.0, seqs.1, shard));
        }
        Self { memtables, missing, last, is_past: false }
    }

    /// Whether the rest of the log has no record of a lost shard.
    fn is_done(&self) -> bool {
        self.missing == 0 || self.is_past
    }

    /// Takes the records of lost shards from a batch. Fails, to end the read, if the rest of the
    /// log has none.
    fn apply(&mut self, first: SeqNo, batch: BatchView<'_>) -> Result<()> {
        self.is_past = first > self.last;
        if self.is_done() {
            return Err(Error::busy("the rest of the log has no record of a lost shard"));
        }
        let mut seq = first;
        for op in batch.iter() {
            let op = op?;
            if op.kind != Kind::RangeDelete {
                self.insert(op.cf, seq, op.kind, op.key, op.value);
            }
            seq = seq.next();
        }
        Ok(())
    }

    fn insert(&mut self, cf: CfId, seq: SeqNo, kind: Kind, key: &[u8], value: &[u8]) {
        for memtable in self.memtables.iter().filter(|memtable| memtable.cf == cf) {
            let bucket = memtable.info.map.bucket_of(key);
            if let Some((smallest, largest, shard)) = memtable.shards.get(&bucket)
                && is_in_memory((*smallest, *largest), &memtable.flushed, key, seq)
            {
                shard.insert(key, seq, kind, value);
                self.missing = self.missing.saturating_sub(1);
                return;
            }
        }
    }
}

/// Whether a record of a lost shard's keys belongs to the shard, whose smallest and largest
/// sequence numbers are `seqs`, and no table had the record before.
fn is_in_memory(seqs: (SeqNo, SeqNo), flushed: &FlushedThrough, key: &[u8], seq: SeqNo) -> bool {
    (seqs.0..=seqs.1).contains(&seq) && seq > flushed.get(key)
}

/// Rebuilds lost shards on the calling thread, which holds no lock. Shards that another job has are
/// left out. If the log lacks some shards, returns the last of their errors after all others are
/// rebuilt.
pub(crate) fn rebuild_here(db: &DbInner) -> Result<()> {
    let mut ended = Ok(());
    loop {
        let mut state = db.jobs.lock(Order::none());
        let task = next_rebuild(&db.context, &db.view, &mut state, RebuildMemory::ByJob);
        drop(state);
        let Some(task) = task else { return ended };
        match run_rebuild_task(db, &task) {
            Ok(()) => {}
            // Shards whose records are lost for good are not tried again.
            Err(error) if task.lost.iter().all(|lost| lost.away.has_copy()) => ended = Err(error),
            Err(error) => return Err(error),
        }
    }
}

/// Brings the records of all away shards into memory, before the log is left. The caller holds no
/// lock and has paused all picks. Fails with `Busy` if a node does not answer.
pub(crate) fn bring_home(db: &DbInner) -> Result<()> {
    if db.context.away().is_none() {
        return Ok(());
    }
    loop {
        let apart: Vec<Arc<AwayShard>> = {
            let state = db.jobs.lock(Order::none());
            let sealed = state.flushes().values().flat_map(FlushTracker::queue);
            let homes = sealed.flat_map(|sealed| sealed.view().homes());
            homes.filter(|home| home.is_apart()).filter_map(ShardHome::away).cloned().collect()
        };
        if apart.is_empty() {
            return Ok(());
        }
        for away in &apart {
            db.context.check_open()?;
            if let Err(error) = away.fetch()
                && !away.is_lost()
            {
                return Err(error);
            }
        }
        let mut state = db.jobs.lock(Order::none());
        let task = next_rebuild(&db.context, &db.view, &mut state, RebuildMemory::ByJob);
        drop(state);
        if let Some(task) = task {
            run_rebuild_task(db, &task)?;
        } else if apart.iter().any(|away| !away.has_copy()) {
            let why = AwayError::Lost("they are being rebuilt from the log".to_owned());
            let text = "memtable shards that a memory node has lost are not rebuilt yet: try again";
            return Err(Error::with_source(ErrorKind::Busy, text, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyRange;

    #[test]
    fn rebuilt_shards_have_a_bound() {
        let room = RebuildRoom { held_bytes: 0, bytes_max: 100, is_over: false };
        assert!(room.may_rebuild(101), "the first one in any case");
        let room = RebuildRoom { held_bytes: 40, ..room };
        assert!(room.may_rebuild(60) && !room.may_rebuild(61));
        assert!(!RebuildRoom { is_over: true, ..room }.may_rebuild(1));
        assert!(RebuildRoom { held_bytes: 0, is_over: true, ..room }.may_rebuild(1));
    }

    #[test]
    fn records_that_tables_had_before_are_not_rebuilt() {
        // An open has kept the log, after the keys below "m" were flushed through 7.
        let mut flushed = FlushedThrough::default();
        let low = KeyRange { start: Vec::new(), end: Some(b"m".to_vec()) };
        flushed.raise(&low, SeqNo(7));
        let seqs = (SeqNo(3), SeqNo(20));
        let is_in = |key: &[u8], seq| is_in_memory(seqs, &flushed, key, SeqNo(seq));
        assert!(!is_in(b"a", 5) && !is_in(b"a", 7), "a table has it");
        assert!(is_in(b"a", 8) && is_in(b"z", 5));
        assert!(!is_in(b"z", 2) && !is_in(b"z", 21), "other memtables have it");
    }
}
