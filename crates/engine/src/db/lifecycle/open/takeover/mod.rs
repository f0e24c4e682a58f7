//! Takeover: an open keeps the memtable shards that the previous owner has sent to memory nodes
//! ([decision 0088](../../../../../../docs/decisions/0088-takeover-of-memtable-shards.md)).
//!
//! Without a takeover, an open brings the whole log to tables, also the records of shards at nodes.
//! With it, the kept shards stay at their nodes, and only the other records are replayed, into
//! memory. Steps:
//!
//! 1. The owner epoch is raised and synced, and the store is told the owner. The store finds the
//!    shards of the previous owner ([`ShardStore::list`](crate::remote::ShardStore::list)). For the
//!    shards that may be kept, it reads figures, filters and range tombstones.
//! 2. The log is read. Records that tables or kept shards have are skipped. The others go to the
//!    memtable of the previous owner to which they belong ([`inherited`]), or to younger memtables.
//!    They pin their log segment. If the log ends before the last record of a kept shard, the log
//!    is read once more without that shard.
//! 3. The segments of the log are made durable where they are, as for a log that is kept
//!    ([`super::kept_log`]).
//! 4. One edit stores the last sequence number and the log floor: the oldest segment that a kept
//!    shard or a replayed record pins.
//! 5. The kept shards get names of this open, and their memtables take them as homes. The first log
//!    segment begins. All other shards of earlier owners are given up when the store is opened.
//!
//! Invariants:
//! 1. No node is told of this owner before its epoch is durable.
//! 2. A record is in one place: a table, a kept shard, or a memtable in memory.
//! 3. Before step 4 only the epoch in the manifest has changed. Step 4 changes no data. So a crash
//!    at any point leaves everything that the next open needs, and that open starts from the
//!    beginning.
//! 4. The first segment has a number above those of all segments that the shards name. A shard that
//!    was not kept may still be at its node at a later open. It then never seems to belong to a
//!    segment of this open.
//!
//! Thread-safety: the thread that opens the database calls the functions.
//! Failure: if nodes fail, or memory or room on the disk is short, the open replays all of the log
//! into tables, and counts the cause. A damaged log is an error, as without nodes.
//! Cost: a second for nodes that do not answer, two reads for each kept shard, one read of the log
//! (two after a power failure), and one edit.

mod inherited;
mod keep;

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{CfId, FileNo, Result, SeqNo};

use super::kept_log;
use super::replay::Replay;
use crate::db::inner::DbInner;
use crate::db::lifecycle::open;
use crate::db::read::ReadView;
use crate::db::state::away::{Remainder, StoreLink};
use crate::db::state::context::Context;
use crate::db::state::memtable::ShardHome;
use crate::db::state::observers::Observers;
use crate::db::state::sealed::Sealed;
use crate::db::state::storage::Storage;
use crate::db::write::stalling::StallOwners;
use crate::db::write::{log_segments, stalling};
use crate::lock_order::Order;
use crate::manifest::{Change, OwnerClaim, VersionEdit};
use crate::memtable::ImageHead;
use crate::remote::{FoundShard, ShardId, StoreNode};
use crate::stats::Ticker;
use crate::version::FlushedThrough;
use crate::wal::{LogChain, RecoveredLog, SegmentEnd};

pub(super) use inherited::Inherited;
use keep::{Candidate, Kept, Unkept, kept};

/// Distance by which the log segment that a shard names may exceed the known numbers. A power
/// failure can take the directory entries of the youngest segments.
const LOGS_LOST_MAX: u64 = 1 << 20;

/// Shards of the previous owner, and the parts of each that the database keeps in memory.
pub(super) struct LeftShards {
    link: Arc<StoreLink>,
    found: Vec<FoundShard>,
    heads: Vec<Option<ImageHead>>,
    /// The largest number of a log segment that a found shard names, kept or not.
    largest_log: FileNo,
    started_ns: u64,
    /// Number of shards that were not kept, by cause.
    unkept: BTreeMap<Unkept, u64>,
}

/// For each segment, the last sequence number of the log up to its end.
struct LogEnds(Vec<(FileNo, SeqNo)>);

impl LogEnds {
    fn of(segments: &[SegmentEnd]) -> Self {
        let end = |segment: &SegmentEnd| (segment.no, segment.last_seq.unwrap_or_default());
        Self(segments.iter().map(end).collect())
    }

    fn through(&self, segment: FileNo) -> SeqNo {
        let up_to = self.0.iter().filter(|(no, _)| *no <= segment);
        up_to.map(|(_, seq)| *seq).max().unwrap_or_default()
    }
}

/// Finds the shards of the previous owner: step 1 of the module. `None` if there is nothing to
/// keep. Errors: those of the edit, and of a store that refuses the owner.
pub(super) fn find(
    context: &Context,
    storage: &Storage,
    view: &ReadView,
    claim: OwnerClaim,
) -> Result<Option<LeftShards>> {
    let Some(link) = context.away().cloned() else { return Ok(None) };
    if storage.lock_manifest(Order::none()).owner().is_none() {
        // No owner has sent any shard.
        return Ok(None);
    }
    let started_ns = context.clock().now_ns();
    open::claim_ownership(storage)?;
    let Some(owner) = open::owner_by(storage, claim) else { return Ok(None) };
    link.tell_owner(&owner)?;
    context.fault_point("takeover.told")?;
    let mut found = link.store().list();
    context.fault_point("takeover.listed")?;
    if found.is_empty() {
        return Ok(None);
    }
    let listed = found.len();
    let possible_log = storage.file_numbers().allocate().0.saturating_add(LOGS_LOST_MAX);
    found.retain(|shard| shard.oldest_log <= shard.seal_log && shard.seal_log.0 < possible_log);
    let unkept = BTreeMap::from([(Unkept::Unusable, (listed - found.len()) as u64)]);
    let largest_log = found.iter().map(|found| found.seal_log).max().unwrap_or(FileNo(0));
    let heads = vec![None; found.len()];
    let mut left = LeftShards { link, found, heads, largest_log, started_ns, unkept };
    left.read_heads(view);
    Ok(Some(left))
}

impl LeftShards {
    /// The shards that are kept. Without `ends`, the log counts as long enough.
    fn kept(&self, flushed: &BTreeMap<CfId, FlushedThrough>, ends: Option<&LogEnds>) -> Kept {
        let candidate = |(found, head): (_, &Option<ImageHead>)| {
            let found: &FoundShard = found;
            Candidate {
                family: found.family,
                keys: &found.keys,
                after_seq: found.after_seq,
                last_seq: found.last_seq,
                seal_log: found.seal_log,
                seqs: head.as_ref().map(|head| (head.smallest_seq, head.largest_seq)),
            }
        };
        let candidates: Vec<_> = self.found.iter().zip(&self.heads).map(candidate).collect();
        kept(&candidates, flushed, |log| ends.map_or(SeqNo::MAX, |ends| ends.through(log)))
    }

    /// Reads the heads of the shards that may be kept, and forgets all others.
    fn read_heads(&mut self, view: &ReadView) {
        let wanted: Vec<usize> = {
            let kept = self.kept(&flushed_through(view), None);
            self.note_unkept(&kept);
            kept.positions().collect()
        };
        let found: Vec<FoundShard> = wanted.iter().map(|at| self.found[*at].clone()).collect();
        let heads = self.link.store().heads(&found);
        (self.found, self.heads) = (Vec::new(), Vec::new());
        for (found, head) in found.into_iter().zip(heads) {
            match head {
                Ok(head) => {
                    self.found.push(found);
                    self.heads.push(Some(head));
                }
                Err(error) => {
                    tracing::warn!(shard = %found.name, %error, "a memtable shard of the owner \
                        before cannot be kept");
                    *self.unkept.entry(Unkept::Unusable).or_default() += 1;
                }
            }
        }
    }

    fn note_unkept(&mut self, kept: &Kept) {
        for unkept in kept.verdicts.iter().filter_map(|verdict| verdict.err()) {
            *self.unkept.entry(unkept).or_default() += 1;
        }
    }

    /// Adds the shards that are not kept to the statistics.
    fn count(&self, observers: &Observers) {
        for (unkept, number) in &self.unkept {
            let ticker = match unkept {
                Unkept::Flushed => Ticker::AwayDroppedFlushed,
                Unkept::Gap => Ticker::AwayDroppedGap,
                Unkept::BeyondLog => Ticker::AwayDroppedBeyondLog,
                Unkept::Unusable => Ticker::AwayDroppedUnusable,
            };
            observers.stats().add(ticker, *number);
        }
    }
}

/// For each family, the sequence numbers through which tables have its records.
fn flushed_through(view: &ReadView) -> BTreeMap<CfId, FlushedThrough> {
    let families = view.live_families().into_iter();
    let flushed = |version: &crate::version::Version| version.flushed_through().clone();
    families.map(|family| (family.id, flushed(&family.current.load().version))).collect()
}

/// Recovers the database around the kept shards: steps 2 to 5 of the module. Returns `false` if
/// nothing was kept, and recovery must begin again.
pub(super) fn recover(db: &DbInner, chain: &LogChain<'_>, mut left: LeftShards) -> Result<bool> {
    let log = match read_log(db, chain, &mut left)? {
        // If the disk has no room to make the log durable, everything goes to tables.
        Some(log) => match kept_log::settle(&db.storage, &log.recovered) {
            Ok(()) => Some(log),
            Err(error) if error.is_no_space() => {
                give_up(&db.observers, &left, &error);
                None
            }
            Err(error) => return Err(error),
        },
        None => None,
    };
    left.count(&db.observers);
    let Some(log) = log else {
        forget(db);
        raise_log_numbers(&db.storage, &left);
        return Ok(false);
    };
    db.context.fault_point("takeover.before_edit")?;
    db.writes.committer().start_at(&db.view, log.last_seq);
    raise_log_numbers(&db.storage, &left);
    let next_log = db.storage.file_numbers().allocate();
    note_floor(db, chain, &left, &log, next_log)?;
    db.context.fault_point("takeover.before_adopt")?;
    let shards = adopt(db.stall_owners(), &db.view, &left, log.inherited);
    db.context.fault_point("takeover.adopted")?;
    db.storage.fs().clear_log_tails(db.storage.dir())?;
    kept_log::start_log(db, next_log, log.recovered.previous)?;
    let spent_ns = db.context.clock().now_ns().saturating_sub(left.started_ns);
    let stats = db.observers.stats();
    stats.add(Ticker::AwayShardsKept, shards);
    stats.add(Ticker::AwayRecordsSpared, log.spared);
    stats.add(Ticker::AwayTakeoverNs, spent_ns);
    tracing::info!(
        shards,
        records_spared = log.spared,
        records_replayed = log.replayed,
        ms = spent_ns / 1_000_000,
        "memtable shards of the owner before are kept at their memory nodes"
    );
    Ok(true)
}

/// A log that was read around kept shards.
struct ReadLog {
    recovered: RecoveredLog,
    inherited: Inherited,
    last_seq: SeqNo,
    /// Number of records that kept shards have.
    spared: u64,
    /// Number of records that went to memory.
    replayed: u64,
}

/// Reads the log around the kept shards: step 2 of the module. `None` if nothing is kept.
fn read_log(db: &DbInner, chain: &LogChain<'_>, left: &mut LeftShards) -> Result<Option<ReadLog>> {
    let flushed = flushed_through(&db.view);
    let mut ends: Option<LogEnds> = None;
    // Memtables that the replay fills are sealed within this log.
    if let Some(last) = chain.segments.last() {
        db.logs.set_open(last.no);
    }
    loop {
        let kept = left.kept(&flushed, ends.as_ref());
        if kept.positions().next().is_none() {
            left.note_unkept(&kept);
            return Ok(None);
        }
        let positions: Vec<usize> = kept.positions().collect();
        let covered = kept.covered.clone();
        let inherited = Inherited::new(
            &db.context,
            &db.view,
            &db.writes,
            &left.found,
            positions.iter().copied(),
            covered,
        );
        // The memtables that are made from here on are younger.
        forget(db);
        let mut replay = Replay::into_memory(db, &inherited);
        let recovered = match replay.read(chain) {
            Ok(recovered) => recovered,
            Err(error) if replay.lacks_memory() => {
                give_up(&db.observers, left, &error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        db.context.fault_point("takeover.replayed")?;
        let manifest = db.storage.lock_manifest(Order::none());
        open::check_log(&db.storage, &manifest, chain.floor, &recovered)?;
        drop(manifest);
        let known = LogEnds::of(&recovered.segments);
        let is_whole = |at: &usize| {
            let found = &left.found[*at];
            found.last_seq <= known.through(found.seal_log)
        };
        if positions.iter().all(is_whole) {
            left.note_unkept(&kept);
            let (spared, replayed) = replay.spared_and_replayed();
            let last_seq = replay.last_seq_of(&recovered);
            drop(replay);
            return Ok(Some(ReadLog { recovered, inherited, last_seq, spared, replayed }));
        }
        tracing::warn!("the log ends before memtable shards at memory nodes do: it is read again");
        ends = Some(known);
    }
}

/// Notes that no shard can be kept for want of memory or of room on the disk.
fn give_up(observers: &Observers, left: &LeftShards, why: &archipelago_base::Error) {
    tracing::warn!(%why, "memtable shards of the owner before cannot be kept: the log goes to \
        tables");
    observers.stats().add(Ticker::AwayDroppedNoMemory, left.found.len() as u64);
}

/// Forgets the records that were replayed.
fn forget(db: &DbInner) {
    {
        let mut state = db.jobs.lock(Order::none());
        state.flushes_mut().clear();
    }
    kept_log::forget_replayed(&db.context, &db.jobs, &db.view, &db.writes);
}

/// Raises the file numbers above the log segments that the shards name: invariant 4 of the module.
fn raise_log_numbers(storage: &Storage, left: &LeftShards) {
    while storage.file_numbers().allocate() < left.largest_log {}
}

/// Stores the last sequence number and the log floor: step 4 of the module. A disk without room
/// does no harm, because the next open finds both by the log.
fn note_floor(
    db: &DbInner,
    chain: &LogChain<'_>,
    left: &LeftShards,
    log: &ReadLog,
    next_log: FileNo,
) -> Result<()> {
    db.logs.set_open(next_log);
    let pinned =
        log_segments::log_floor(&db.logs, &db.view, &db.jobs.lock(Order::none()), |_, _, _| false);
    let kept = log.inherited.oldest_log(&left.found).unwrap_or(next_log);
    let floor = pinned.min(kept).max(chain.floor);
    let mut edit = VersionEdit::new();
    edit.push(Change::LastSeq(log.last_seq));
    edit.push(Change::LogFloor(floor));
    let noted = crate::db::background::scheduler::apply_edit(&db.storage, &db.jobs, &db.view, edit);
    let floor = match noted {
        Ok(()) => floor,
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "the disk has no room to note how far the log is needed");
            chain.floor
        }
        Err(error) => return Err(error),
    };
    db.logs.add_closed(kept_log::closed_segments(chain, &log.recovered, floor));
    Ok(())
}

/// Makes the kept shards the homes of their memtables: step 5 of the module. Returns their number.
fn adopt(owners: StallOwners<'_>, view: &ReadView, left: &LeftShards, inherited: Inherited) -> u64 {
    let memtables = inherited.memtables.values().flatten();
    let named: Vec<(ShardId, usize)> = memtables
        .flat_map(|inherited| {
            let id = inherited.memtable.id;
            let name = move |(bucket, at): (&usize, &usize)| {
                (ShardId { memtable: id, shard: *bucket as u32 }, *at)
            };
            inherited.kept.iter().map(name)
        })
        .collect();
    let asked: Vec<_> = named.iter().map(|(id, at)| (*id, &left.found[*at])).collect();
    let adopted = left.link.store().adopt(&asked);
    let mut homes: BTreeMap<ShardId, ShardHome> = BTreeMap::new();
    for ((id, at), adopted) in named.into_iter().zip(adopted) {
        let Some(head) = left.heads[at].clone() else { continue };
        let rest = Remainder::of_head(head, left.found[at].image_bytes);
        let node = adopted.as_ref().map_or(StoreNode(0), |node| *node);
        let away = left.link.register(id, node, rest);
        if let Err(error) = adopted {
            away.note_lost(&error.to_string());
        }
        homes.insert(id, ShardHome::Away(away));
    }
    let count = homes.len() as u64;
    for (cf, memtables) in inherited.memtables {
        let Some(family) = view.family(cf) else { continue };
        let seal = |inherited: &inherited::InheritedMemtable| {
            let data_bytes = |at: usize| left.heads[at].as_ref().map_or(0, |head| head.data_bytes);
            let (info, mut places) = inherited.finish(&left.found, data_bytes);
            for bucket in inherited.kept.keys() {
                places[*bucket] =
                    homes.remove(&ShardId { memtable: info.id, shard: *bucket as u32 });
            }
            Sealed::inherited(info, places)
        };
        let sealed: Vec<Sealed> = memtables.iter().map(seal).collect();
        {
            let mut state = owners.jobs.lock(Order::none());
            state.flushes_mut().entry(cf).or_default().inherit(sealed);
            view.republish(&mut state, &family, None);
        }
        stalling::recompute_stall(owners, &family);
    }
    count
}
