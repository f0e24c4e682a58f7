//! Grants and registrations: the way of an image from the landing zone into the arena.

use std::collections::btree_map::Entry;

use super::{
    CopiedImage, CopyEnd, CopyOrder, Grant, GrantStep, HeldShard, HostCore, HostMemory, NextStep,
    Purpose,
};
use crate::ids::{OffloadDb, OwnerStamp};
use crate::shard_host::ranges::ALIGN_BYTES;
use crate::wire::shard::{
    Piece, ShardInfo, ShardMessage, ShardName, ShardPlace, ShardRefusal, ShardWhy,
};

/// Largest number of pieces of one image.
const PIECES_MAX: usize = 4096;
/// Largest number of released shards that the host remembers for an owner. Beyond it, the host
/// forgets the smallest name and takes no shard up to that name any more.
const RELEASED_MAX: usize = 1 << 16;

impl HostCore {
    pub(super) fn land(
        &mut self,
        memory: &mut dyn HostMemory,
        owner: OwnerStamp,
        shard: ShardName,
        bytes: u64,
    ) -> Result<NextStep, ShardRefusal> {
        let (image_bytes_max, now_ns) = (self.limits.image_bytes_max(), self.now_ns);
        let database = self.owned(owner)?;
        let landing = database.landing.ok_or(ShardWhy::NotBegun)?;
        if shard.epoch != owner.epoch || bytes == 0 {
            return Err(ShardWhy::Malformed.into());
        }
        if shard.memtable < database.oldest || database.released.contains(&shard) {
            return Err(ShardRefusal::from(ShardWhy::Retired).of(shard));
        }
        if let Some(held) = database.shards.get(&shard) {
            return Ok(NextStep::Answer(ShardMessage::Registered { place: held.place }));
        }
        if let Some(grant) = database.grants.get_mut(&shard) {
            let (number, granted) = (grant.number, grant.bytes);
            grant.asked_ns = now_ns;
            return match &grant.step {
                GrantStep::Open { landing: lease, .. } if granted == bytes => {
                    let at = lease.at();
                    self.landing(memory, owner, landing, (number, at, bytes))
                }
                GrantStep::Open { .. } => Err(ShardRefusal::at(ShardWhy::HasGrant, granted)),
                GrantStep::Copying => Err(ShardWhy::Busy.into()),
            };
        }
        if database.used_up >= Some(shard) {
            return Err(ShardRefusal::from(ShardWhy::Retired).of(shard));
        }
        let (_, zone_bytes) = self.regions.key(landing).ok_or(ShardWhy::NotBegun)?;
        if bytes > image_bytes_max.min(zone_bytes) {
            let limit = image_bytes_max.min(zone_bytes);
            return Err(ShardRefusal::at(ShardWhy::TooLarge, limit));
        }
        let longest = self.regions.longest(landing);
        if longest < bytes.next_multiple_of(ALIGN_BYTES) {
            // Other images of the owner are in the landing zone, and leave it soon.
            return Err(ShardRefusal::at(ShardWhy::Busy, longest));
        }
        if self.is_above_share(memory, owner.db) {
            return Err(self.refuse_room(memory, owner.db, bytes));
        }
        let Some(place) = self.regions.lease_arena(owner.db, bytes) else {
            return self.grow(memory, owner, bytes);
        };
        let lease = self.regions.lease(landing, bytes).ok_or(ShardWhy::NotBegun)?;
        let (number, at) = (self.next_grant, lease.at());
        self.next_grant += 1;
        self.counters.grants += 1;
        let step = GrantStep::Open { landing: lease, place };
        let grant = Grant { number, bytes, asked_ns: now_ns, step };
        self.owned(owner)?.grants.insert(shard, grant);
        self.end_claim(memory, owner.db, bytes);
        self.landing(memory, owner, landing, (number, at, bytes))
    }

    /// Ends the grants that no owner has used or requested for too long. Their ranges come back
    /// with the next [`Regions::settle`](super::Regions::settle).
    pub(super) fn end_unused_grants(&mut self) {
        if self.sabotage.no_grant_end() {
            return;
        }
        let (now_ns, patience_ns) = (self.now_ns, self.limits.grants.as_nanos() as u64);
        let is_unused = |grant: &Grant| {
            let is_open = matches!(grant.step, GrantStep::Open { .. });
            is_open && now_ns.saturating_sub(grant.asked_ns) >= patience_ns
        };
        for (db, database) in &mut self.databases {
            let before = database.grants.len();
            database.grants.retain(|_, grant| !is_unused(grant));
            let unused = before - database.grants.len();
            if unused > 0 {
                tracing::info!(%db, unused, "an owner did not use its grants");
            }
            self.counters.unused += unused as u64;
        }
    }

    /// The answer that describes a grant: its number, its offset and its bytes.
    fn landing(
        &self,
        memory: &dyn HostMemory,
        owner: OwnerStamp,
        region: super::RegionNo,
        grant: (u64, u64, u64),
    ) -> Result<NextStep, ShardRefusal> {
        let (key, _) = self.regions.key(region).ok_or(ShardWhy::NotBegun)?;
        let (grant, at, bytes) = grant;
        let credit_bytes = self.regions.longest(region);
        let share = self.node_share(memory, owner.db);
        let landing = ShardMessage::Landing { grant, key, at, bytes, credit_bytes, share };
        Ok(NextStep::Answer(landing))
    }

    /// Orders a new arena for an image of `bytes`.
    fn grow(
        &mut self,
        memory: &mut dyn HostMemory,
        owner: OwnerStamp,
        bytes: u64,
    ) -> Result<NextStep, ShardRefusal> {
        if self.regions.is_making(owner.db, Purpose::Arena) {
            return Err(ShardWhy::Busy.into());
        }
        let least = bytes.next_multiple_of(ALIGN_BYTES);
        if self.room(memory, owner.db) < least {
            self.regions.retire_empty(memory, false);
            self.regions.settle(memory);
        }
        let room = self.room(memory, owner.db);
        if room < least {
            return Err(self.refuse_image(memory, owner.db, bytes));
        }
        let wanted = self.limits.arena_bytes.min(room / ALIGN_BYTES * ALIGN_BYTES).max(least);
        let order = self.regions.order(memory, owner.db, Purpose::Arena, wanted);
        let order = order.map(NextStep::Allocate);
        order.ok_or_else(|| self.refuse_image(memory, owner.db, bytes))
    }

    /// A refusal of an image that fits neither into an arena of the database nor into a new one. It
    /// names the size of the largest image that fits into either, so that the owner sends a smaller
    /// image.
    fn refuse_image(&mut self, memory: &dyn HostMemory, db: OffloadDb, bytes: u64) -> ShardRefusal {
        let refusal = self.refuse_room(memory, db, bytes);
        let new_bytes = refusal.number / ALIGN_BYTES * ALIGN_BYTES;
        ShardRefusal { number: new_bytes.max(self.regions.longest_in_arenas(db)), ..refusal }
    }

    pub(super) fn register(
        &mut self,
        owner: OwnerStamp,
        shard: ShardName,
        number: u64,
        image: (&ShardInfo, &[Piece]),
    ) -> Result<NextStep, ShardRefusal> {
        let repeats = self.sabotage.no_idempotence();
        let database = self.owned(owner)?;
        if let Some(held) = database.shards.get(&shard)
            && !repeats
        {
            return Ok(NextStep::Answer(ShardMessage::Registered { place: held.place }));
        }
        let (info, pieces) = image;
        let unknown = || ShardRefusal::at(ShardWhy::UnknownGrant, number).of(shard);
        let Some(grant) = database.grants.get_mut(&shard).filter(|grant| grant.number == number)
        else {
            return Err(unknown());
        };
        let fits =
            |piece: &Piece| piece.at.checked_add(piece.len).is_some_and(|end| end <= grant.bytes);
        let whole = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        let is_sound = whole.is_some_and(|whole| (1..=grant.bytes).contains(&whole))
            && pieces.len() <= PIECES_MAX
            && pieces.iter().all(fits);
        if !is_sound {
            return Err(ShardRefusal::from(ShardWhy::BadPiece).of(shard));
        }
        if info.keys.0.is_empty() || info.after_seq > info.last_seq {
            return Err(ShardRefusal::from(ShardWhy::Malformed).of(shard));
        }
        match std::mem::replace(&mut grant.step, GrantStep::Copying) {
            GrantStep::Copying => Err(ShardWhy::Busy.into()),
            GrantStep::Open { landing, place } => Ok(NextStep::Copy(Box::new(CopyOrder {
                db: owner.db,
                shard,
                grant: number,
                info: info.clone(),
                pieces: pieces.to_vec(),
                landing,
                place,
            }))),
        }
    }

    /// Ends a copy. Returns the answer to the registration that caused it.
    pub(in crate::shard_host) fn on_copied(
        &mut self,
        memory: &mut dyn HostMemory,
        end: CopyEnd,
    ) -> ShardMessage {
        let CopyEnd { db, shard, grant: number, info, landing, result } = end;
        let database = self.databases.get_mut(&db);
        let grant = database.map(|database| (database.grants.entry(shard), &mut database.shards));
        let Some((Entry::Occupied(mut grant), shards)) = grant else {
            return self.refuse(ShardRefusal::at(ShardWhy::UnknownGrant, number).of(shard));
        };
        if grant.get().number != number {
            return self.refuse(ShardRefusal::at(ShardWhy::UnknownGrant, number).of(shard));
        }
        let CopiedImage { image, region, at, bytes } = match result {
            Ok(copied) => copied,
            Err((refusal, Some(place))) => {
                // The owner may write the image again.
                grant.get_mut().step = GrantStep::Open { landing, place };
                return self.refuse(refusal.of(shard));
            }
            Err((refusal, None)) => {
                grant.remove();
                return self.refuse(refusal.of(shard));
            }
        };
        let Some((key, _)) = self.regions.key(region) else {
            return self.refuse(ShardRefusal::at(ShardWhy::UnknownGrant, number).of(shard));
        };
        let place = ShardPlace { key, at, bytes };
        grant.remove();
        shards.insert(shard, HeldShard { image, info, place, adopted_by: None });
        self.counters.registered += 1;
        self.counters.registered_bytes += bytes;
        drop(landing);
        self.regions.settle(memory);
        ShardMessage::Registered { place }
    }

    /// Ends an open grant that its owner gives back. Its ranges come back immediately, and the
    /// shard may get another grant.
    pub(super) fn take_back(
        &mut self,
        memory: &mut dyn HostMemory,
        owner: OwnerStamp,
        shard: ShardName,
        number: u64,
    ) -> Result<NextStep, ShardRefusal> {
        let grants = &mut self.owned(owner)?.grants;
        let is_open = grants.get(&shard).is_some_and(|grant| {
            grant.number == number && matches!(grant.step, GrantStep::Open { .. })
        });
        if is_open {
            grants.remove(&shard);
            self.counters.given_back += 1;
        }
        self.settle_share(memory, owner);
        Ok(self.done(memory, owner, u32::from(is_open)))
    }

    pub(super) fn release(
        &mut self,
        memory: &mut dyn HostMemory,
        owner: OwnerStamp,
        shards: &[ShardName],
        oldest: u64,
    ) -> Result<NextStep, ShardRefusal> {
        let keeps_grants = self.sabotage.no_void();
        let database = self.owned(owner)?;
        database.oldest = database.oldest.max(oldest);
        let first = ShardName { epoch: owner.epoch, memtable: 0, shard: 0 };
        let kept = ShardName { memtable: database.oldest, ..first };
        let mut named = shards.to_vec();
        named.extend(database.shards.range(first..kept).map(|(name, _)| *name));
        named.extend(database.grants.range(first..kept).map(|(name, _)| *name));
        let mut released = 0;
        for name in named {
            released += u32::from(database.shards.remove(&name).is_some());
            if keeps_grants {
                continue;
            }
            database.grants.remove(&name);
            if name.epoch == owner.epoch {
                database.released.insert(name);
            }
        }
        database.released = database.released.split_off(&kept);
        while database.released.len() > RELEASED_MAX {
            database.used_up = database.used_up.max(database.released.pop_first());
        }
        self.counters.released += u64::from(released);
        self.settle_share(memory, owner);
        Ok(self.done(memory, owner, released))
    }

    /// Takes back the ranges of ended grants and shards now, so that the answer includes the room
    /// that they leave. Empty arenas of an owner above its share go back to the node.
    fn settle_share(&mut self, memory: &mut dyn HostMemory, owner: OwnerStamp) {
        self.regions.settle(memory);
        if self.is_above_share(memory, owner.db) {
            self.regions.retire_empty(memory, false);
            self.regions.settle(memory);
        }
    }

    /// The answer to a request that has changed this number of shards.
    pub(super) fn done(&self, memory: &dyn HostMemory, owner: OwnerStamp, shards: u32) -> NextStep {
        let share = self.node_share(memory, owner.db);
        NextStep::Answer(ShardMessage::Done { shards, share })
    }
}
