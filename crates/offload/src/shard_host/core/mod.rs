//! The protocol of a shard host: owners, grants and registered shards.
//!
//! [`HostCore`] is a state machine without clock, lock or I/O. A message gets its answer
//! immediately, or it leads to work for the caller. The caller does this work without the lock: it
//! makes a region, copies and checks an image, or searches shards.
//!
//! Invariants:
//! 1. Epochs only grow: a message of an earlier owner, or of another owner with the same epoch, is
//!    refused and changes nothing.
//! 2. A shard is registered at most once, from an image that was copied into the arena and checked
//!    there completely. A repeated message gets the first answer.
//! 3. A shard is registered only by an open grant. A release and a new owner void grants, also
//!    while the image is being copied, and no grant number is used twice in a life. A released
//!    shard gets no other grant, so a late message cannot bring it back.
//! 4. A grant has room in the landing zone and in the arena, so that a registration never lacks it.
//! 5. The answer to a search of a shard that the host does not have is a refusal, never "no
//!    versions".
//! 6. The host holds at most its limit of bytes ([`Regions`]).
//! 7. A database that is refused room below its guarantee lowers the shares of the others, and no
//!    other one gets the memory that becomes free (`shares.rs`). No shard is dropped for it.
//! 8. A database is dropped as a whole when its owner was silent for [`ShardLimits::orphans`]. A
//!    database without shards gives its memory back after ten seconds of silence.
//! 9. A grant that its owner neither uses nor requests again ends after [`ShardLimits::grants`]. A
//!    copy of a refused request may arrive late and get a grant, of which its owner does not know.
//!    Owners request the grant of a shard that still fills again while they write into it.
//!
//! Thread-safety: none; the caller holds a lock.
//! Failure: a restart loses everything. Owners rebuild their shards from their logs.
//! Cost: O(log shards) for a search. Other messages take O(regions + databases · log databases),
//! and the accounts O(shards + databases² · log databases).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_engine::memtable::SealedImage;

use super::limits::{HostCounters, HostFigures, ShardLimits};
use super::memory::{HostMemory, RegionNo};
use super::ranges::Lease;
use super::regions::{AllocateOrder, Purpose, Regions};
use super::sabotage::HostSabotage;
use crate::ids::{OffloadDb, OwnerStamp};
use crate::wire::shard::{
    ListedShard, Piece, ShardInfo, ShardMessage, ShardName, ShardPlace, ShardRefusal, ShardWhy,
};
use shares::RoomClaim;

mod grants;
mod shares;
mod takeover;

/// Number of dropped databases whose last owners the host remembers, so that an earlier owner
/// cannot return.
const ENDED_MAX: usize = 1024;

/// Silence of an owner without shards after which its memory is given back. An open owner sends a
/// beat every second.
const IDLE: Duration = Duration::from_secs(10);

/// A registered shard.
#[derive(Clone)]
pub(super) struct HeldShard {
    image: Arc<SealedImage>,
    info: ShardInfo,
    place: ShardPlace,
    /// Epoch of the owner that adopted the shard last.
    adopted_by: Option<Epoch>,
}

impl std::fmt::Debug for HeldShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldShard({:?})", self.place)
    }
}

#[derive(Debug)]
enum GrantStep {
    /// The owner writes into the landing zone.
    Open { landing: Lease, place: Lease },
    /// A thread copies the image. The leases are with the copy.
    Copying,
}

#[derive(Debug)]
struct Grant {
    number: u64,
    bytes: u64,
    /// Time of the latest request for it.
    asked_ns: u64,
    step: GrantStep,
}

#[derive(Debug)]
struct Database {
    owner: OwnerStamp,
    heard_ns: u64,
    landing: Option<RegionNo>,
    /// Number of the owner's oldest memtable that may have shards here.
    oldest: u64,
    grants: BTreeMap<ShardName, Grant>,
    shards: BTreeMap<ShardName, HeldShard>,
    /// Released shards of the owner's epoch that are not older than `oldest`.
    released: BTreeSet<ShardName>,
    /// Shards up to this name get no grant any more, because some of them were released and
    /// forgotten.
    used_up: Option<ShardName>,
    /// Guarantee of the database as far as it was admitted; `None` if it has stated none.
    admitted_bytes: Option<u64>,
    /// The latest refusal for want of room.
    claim: Option<RoomClaim>,
}

/// An order to copy an image from the landing zone into the arena and to check it there.
#[derive(Debug)]
pub(super) struct CopyOrder {
    pub(super) db: OffloadDb,
    pub(super) shard: ShardName,
    pub(super) grant: u64,
    pub(super) info: ShardInfo,
    pub(super) pieces: Vec<Piece>,
    pub(super) landing: Lease,
    pub(super) place: Lease,
}

/// An image that was copied and checked. It holds the lease of its range.
pub(super) struct CopiedImage {
    pub(super) image: Arc<SealedImage>,
    pub(super) region: RegionNo,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// The end of a copy.
pub(super) struct CopyEnd {
    pub(super) db: OffloadDb,
    pub(super) shard: ShardName,
    pub(super) grant: u64,
    pub(super) info: ShardInfo,
    pub(super) landing: Lease,
    /// The image; or the reason, and the lease of the range in the arena if the owner may write
    /// the image again.
    pub(super) result: Result<CopiedImage, (ShardRefusal, Option<Lease>)>,
}

/// Shards to search, in the order of the request.
pub(super) struct ReadOrder {
    /// `None` stands for a shard that the host does not have. Only the fault switch `no_unknown`
    /// permits it.
    pub(super) images: Vec<Option<Arc<SealedImage>>>,
    pub(super) ask: ShardMessage,
}

/// The next step of a request.
pub(super) enum NextStep {
    Answer(ShardMessage),
    /// Make a region, call [`HostCore::on_allocated`], and pass the message to the core again.
    Allocate(AllocateOrder),
    /// Copy an image, and call [`HostCore::on_copied`] for the answer.
    Copy(Box<CopyOrder>),
    /// Search images, and answer with the result.
    Read(ReadOrder),
}

/// The protocol of a shard host, as a state machine.
#[derive(Debug)]
pub(super) struct HostCore {
    life: Epoch,
    limits: ShardLimits,
    now_ns: u64,
    next_grant: u64,
    databases: BTreeMap<OffloadDb, Database>,
    ended: VecDeque<OwnerStamp>,
    regions: Regions,
    counters: HostCounters,
    /// Whether an operator drains the node: no database gets room for shards.
    is_draining: bool,
    sabotage: HostSabotage,
}

impl Database {
    fn new(owner: OwnerStamp, now_ns: u64) -> Self {
        Self {
            owner,
            heard_ns: now_ns,
            landing: None,
            oldest: 0,
            grants: BTreeMap::new(),
            shards: BTreeMap::new(),
            released: BTreeSet::new(),
            used_up: None,
            admitted_bytes: None,
            claim: None,
        }
    }
}

impl HostCore {
    pub(super) fn new(life: Epoch, limits: ShardLimits, sabotage: HostSabotage) -> Self {
        let bytes_max = if sabotage.no_limit() { u64::MAX } else { limits.bytes_max };
        Self {
            life,
            limits,
            now_ns: 0,
            next_grant: 1,
            databases: BTreeMap::new(),
            ended: VecDeque::new(),
            regions: Regions::new(bytes_max),
            counters: HostCounters::default(),
            is_draining: false,
            sabotage,
        }
    }

    /// Sets the time, which never goes back. The caller does this before each call of another
    /// method.
    pub(super) fn on_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Drops databases whose owners were silent for too long, ends unused grants, and gives memory
    /// back. The caller does this a few times a second.
    pub(super) fn on_timer(&mut self, memory: &mut dyn HostMemory) {
        let patience_ns = self.limits.orphans.as_nanos() as u64;
        let is_silent =
            |database: &Database| self.now_ns.saturating_sub(database.heard_ns) >= patience_ns;
        let silent = self.databases.iter().filter(|(_, database)| is_silent(database));
        let silent: Vec<OffloadDb> = silent.map(|(db, _)| *db).collect();
        for db in silent {
            if !self.sabotage.no_orphan_end() {
                self.end(memory, db);
            }
        }
        self.end_unused_grants();
        self.retire_idle(memory);
        self.regions.settle(memory);
        self.regions.retire_empty(memory, true);
        self.regions.settle(memory);
    }

    /// Gives back the memory of silent owners without shards, which have probably closed. If such
    /// an owner goes on after all, its next beat makes a landing zone again.
    fn retire_idle(&mut self, memory: &mut dyn HostMemory) {
        let now_ns = self.now_ns;
        for (db, database) in &mut self.databases {
            if database.is_idle(now_ns) {
                database.landing = None;
                self.regions.retire_all(memory, *db);
            }
        }
    }

    /// Drops a database with all its shards, and remembers its owner.
    fn end(&mut self, memory: &mut dyn HostMemory, db: OffloadDb) {
        let Some(database) = self.databases.remove(&db) else { return };
        tracing::info!(%db, shards = database.shards.len(), "the owner of shards was silent");
        self.counters.purged += database.shards.len() as u64;
        self.ended.push_back(database.owner);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
        self.regions.retire_all(memory, db);
    }

    /// Executes a request.
    pub(super) fn on_message(
        &mut self,
        memory: &mut dyn HostMemory,
        message: &ShardMessage,
    ) -> NextStep {
        self.regions.settle(memory);
        let next = match message {
            ShardMessage::Begin { owner, landing_bytes, guaranteed_bytes } => {
                self.begin(memory, *owner, *landing_bytes, *guaranteed_bytes)
            }
            ShardMessage::Land { owner, shard, bytes } => self.land(memory, *owner, *shard, *bytes),
            ShardMessage::Register { owner, shard, grant, info, pieces } => {
                self.register(*owner, *shard, *grant, (info, pieces))
            }
            ShardMessage::Release { owner, shards, oldest } => {
                self.release(memory, *owner, shards, *oldest)
            }
            ShardMessage::GiveBack { owner, shard, grant } => {
                self.take_back(memory, *owner, *shard, *grant)
            }
            ShardMessage::Get { owner, shards, .. }
            | ShardMessage::MultiGet { owner, shards, .. }
            | ShardMessage::Scan { owner, shards, .. } => self.read(*owner, shards, message),
            ShardMessage::List { owner, after } => self.list(*owner, *after),
            ShardMessage::Adopt { owner, shards } => self.adopt(memory, *owner, shards),
            ShardMessage::Purge { owner } => self.purge(memory, *owner),
            ShardMessage::Accounts {} => Ok(NextStep::Answer(self.accounted(memory))),
            ShardMessage::Drain { is_draining } => {
                self.is_draining = *is_draining;
                Ok(NextStep::Answer(self.accounted(memory)))
            }
            _ => Err(ShardWhy::Malformed.into()),
        };
        next.unwrap_or_else(|refusal| NextStep::Answer(self.refuse(refusal)))
    }

    /// Counts a refusal and returns its message. The caller does this for messages that cannot be
    /// read, too.
    pub(super) fn refuse(&mut self, refusal: ShardRefusal) -> ShardMessage {
        *self.counters.refusals.entry(refusal.why).or_default() += 1;
        ShardMessage::Refused { refusal }
    }

    /// Counts the answer of a search.
    pub(super) fn on_read(&mut self, answer: &ShardMessage) {
        match answer {
            ShardMessage::Versions { .. } => self.counters.keys += 1,
            ShardMessage::ManyVersions { found } => self.counters.keys += found.len() as u64,
            ShardMessage::Page { .. } => self.counters.pages += 1,
            ShardMessage::Refused { refusal } => {
                *self.counters.refusals.entry(refusal.why).or_default() += 1;
            }
            _ => {}
        }
    }

    /// Counts a request whose deadline passed in the queue.
    pub(super) fn on_expired(&mut self) {
        self.counters.expired += 1;
    }

    /// The state of the host, for statistics and checks.
    pub(super) fn figures(&self, memory: &dyn HostMemory) -> HostFigures {
        let databases = self.databases.values();
        let shards = databases.clone().flat_map(|database| database.shards.values());
        let grants = databases.flat_map(|database| database.grants.values());
        HostFigures {
            databases: self.databases.len() as u64,
            shards: shards.clone().count() as u64,
            shard_bytes: shards.map(|shard| shard.place.bytes).sum(),
            grants: grants.clone().count() as u64,
            oldest_grant_ns: grants.map(|grant| grant.asked_ns).min(),
            region_bytes: self.regions.bytes(),
            retired_regions: self.regions.retired() as u64,
            accounts: self.accounts(memory),
            counters: self.counters.clone(),
        }
    }

    /// The image of a registered shard, if it lies at that place.
    pub(super) fn image(
        &self,
        db: OffloadDb,
        name: ShardName,
        place: &ShardPlace,
    ) -> Option<Arc<SealedImage>> {
        let held = self.databases.get(&db)?.shards.get(&name)?;
        (held.place == *place).then(|| Arc::clone(&held.image))
    }

    /// The database of an owner that has begun. Notes the time of this sign of life.
    fn owned(&mut self, owner: OwnerStamp) -> Result<&mut Database, ShardRefusal> {
        let database = self.databases.get_mut(&owner.db).ok_or(ShardWhy::NotBegun)?;
        let known = database.owner;
        if owner.epoch < known.epoch && !self.sabotage.no_epoch_check() {
            return Err(ShardRefusal::at(ShardWhy::OldEpoch, known.epoch.0));
        }
        if owner.epoch > known.epoch {
            return Err(ShardWhy::NotBegun.into());
        }
        if owner.epoch == known.epoch && owner.token != known.token {
            return Err(ShardWhy::OtherToken.into());
        }
        database.heard_ns = self.now_ns;
        Ok(database)
    }

    fn read(
        &mut self,
        owner: OwnerStamp,
        shards: &[ShardName],
        ask: &ShardMessage,
    ) -> Result<NextStep, ShardRefusal> {
        let skips_unknown = self.sabotage.no_unknown();
        let database = self.owned(owner)?;
        let mut images = Vec::with_capacity(shards.len());
        for name in shards {
            let held = database.shards.get(name);
            if held.is_none() && !skips_unknown {
                return Err(ShardRefusal::from(ShardWhy::UnknownShard).of(*name));
            }
            images.push(held.map(|held| Arc::clone(&held.image)));
        }
        Ok(NextStep::Read(ReadOrder { images, ask: ask.clone() }))
    }
}

#[cfg(test)]
mod tests;
