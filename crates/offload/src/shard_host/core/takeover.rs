//! Owners that begin, and the shards of earlier owners: listing, adopting and purging them.

use std::ops::Bound;

use archipelago_base::Epoch;
use archipelago_base::wire::Wire;

use super::{
    AllocateOrder, Database, HeldShard, HostCore, HostMemory, ListedShard, NextStep, Purpose,
    ShardMessage, ShardName, ShardRefusal, ShardWhy,
};
use crate::ids::OwnerStamp;
use crate::shard_host::ranges::ALIGN_BYTES;

/// Size in bytes after which a list of shards ends. The last shard may exceed it.
const LIST_BYTES_MAX: usize = 100 << 10;

impl HostCore {
    pub(super) fn begin(
        &mut self,
        memory: &mut dyn HostMemory,
        owner: OwnerStamp,
        landing_bytes: u64,
        guaranteed_bytes: u64,
    ) -> Result<NextStep, ShardRefusal> {
        self.admit(memory, owner)?;
        self.owned(owner)?;
        self.state_guarantee(owner.db, guaranteed_bytes);
        let database = self.owned(owner)?;
        let shards = database.shards.len() as u32;
        let Some((_, zone_bytes)) = database.landing.and_then(|zone| self.regions.key(zone)) else {
            return self.make_landing(memory, owner, landing_bytes);
        };
        Ok(NextStep::Answer(ShardMessage::Begun {
            life: self.life,
            landing_bytes: zone_bytes,
            image_bytes_max: self.limits.image_bytes_max().min(zone_bytes),
            share: self.node_share(memory, owner.db),
            shards,
        }))
    }

    /// Makes `owner` the owner of its database, if no newer one is known.
    fn admit(
        &mut self,
        memory: &mut dyn HostMemory,
        owner: OwnerStamp,
    ) -> Result<(), ShardRefusal> {
        let ended = self.ended.iter().rev().find(|ended| ended.db == owner.db).copied();
        let Some(database) = self.databases.get_mut(&owner.db) else {
            if let Some(ended) = ended.filter(|ended| ended.epoch > owner.epoch) {
                return Err(ShardRefusal::at(ShardWhy::OldEpoch, ended.epoch.0));
            }
            if self.databases.len() >= self.limits.databases_max {
                return Err(ShardWhy::Full.into());
            }
            self.databases.insert(owner.db, Database::new(owner, self.now_ns));
            self.counters.owners += 1;
            return Ok(());
        };
        if owner.epoch <= database.owner.epoch {
            // This is a later message of the same owner, or `owned` refuses it.
            return Ok(());
        }
        // From here on the earlier owner cannot change anything: its grants are void, and its
        // writes into the old landing zone reach no image.
        database.owner = owner;
        database.heard_ns = self.now_ns;
        database.oldest = 0;
        database.grants.clear();
        database.released.clear();
        database.used_up = None;
        let landing = database.landing.take();
        self.counters.owners += 1;
        if let Some(landing) = landing {
            self.regions.retire(memory, landing);
        }
        self.regions.settle(memory);
        Ok(())
    }

    fn make_landing(
        &mut self,
        memory: &mut dyn HostMemory,
        owner: OwnerStamp,
        bytes: u64,
    ) -> Result<NextStep, ShardRefusal> {
        if self.regions.is_making(owner.db, Purpose::Landing) {
            return Err(ShardWhy::Busy.into());
        }
        let bytes = bytes.clamp(ALIGN_BYTES, self.limits.image_bytes_max().max(ALIGN_BYTES));
        let bytes = bytes / ALIGN_BYTES * ALIGN_BYTES;
        if self.room(memory, owner.db) < bytes {
            self.regions.retire_empty(memory, false);
            self.regions.settle(memory);
        }
        // Every owner needs a landing zone, also one whose guarantee is smaller than that.
        let order = self.regions.order(memory, owner.db, Purpose::Landing, bytes);
        let order = order.map(NextStep::Allocate);
        order.ok_or_else(|| self.refuse_room(memory, owner.db, bytes))
    }

    /// Ends an order to make a region. If the system gave no memory, returns the answer to the
    /// message that caused the order. Otherwise the caller passes the message to the core again.
    pub(in crate::shard_host) fn on_allocated(
        &mut self,
        memory: &mut dyn HostMemory,
        order: &AllocateOrder,
        made: archipelago_base::Result<()>,
    ) -> Option<ShardMessage> {
        if !self.regions.made(memory, order, made) {
            let left = self.regions.left(memory);
            return Some(self.refuse(ShardRefusal::at(ShardWhy::Full, left)));
        }
        match (self.databases.get_mut(&order.db), order.purpose) {
            (Some(database), Purpose::Landing) if database.landing.is_none() => {
                database.landing = Some(order.region);
            }
            (Some(_), Purpose::Arena) => {}
            // The database ended meanwhile.
            _ => self.regions.retire(memory, order.region),
        }
        None
    }

    pub(super) fn list(
        &mut self,
        owner: OwnerStamp,
        after: Option<ShardName>,
    ) -> Result<NextStep, ShardRefusal> {
        let database = self.owned(owner)?;
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut shards, mut bytes, mut more) = (Vec::new(), Vec::new(), false);
        // A shard that the previous owner did not hold may have records that a power failure
        // removed from the log. Other records may now have the same sequence numbers.
        let is_recent = |epoch: Epoch| owner.epoch.0.saturating_sub(1) <= epoch.0;
        let is_held = |(name, held): &(&ShardName, &HeldShard)| {
            is_recent(name.epoch) || held.adopted_by.is_some_and(is_recent)
        };
        let held = database.shards.range((begin, Bound::Unbounded)).filter(is_held);
        for (name, held) in held {
            if bytes.len() >= LIST_BYTES_MAX {
                more = true;
                break;
            }
            let (info, place) = (held.info.clone(), held.place);
            let listed = ListedShard { name: *name, info, place };
            listed.put(&mut bytes);
            shards.push(listed);
        }
        Ok(NextStep::Answer(ShardMessage::Listed { shards, more }))
    }

    pub(super) fn adopt(
        &mut self,
        memory: &dyn HostMemory,
        owner: OwnerStamp,
        shards: &[ShardName],
    ) -> Result<NextStep, ShardRefusal> {
        let database = self.owned(owner)?;
        if let Some(unknown) = shards.iter().find(|name| !database.shards.contains_key(name)) {
            return Err(ShardRefusal::from(ShardWhy::UnknownShard).of(*unknown));
        }
        let mut adopted = 0;
        for name in shards {
            if let Some(held) = database.shards.get_mut(name) {
                let is_new = name.epoch < owner.epoch && held.adopted_by != Some(owner.epoch);
                adopted += u32::from(is_new);
                held.adopted_by = Some(owner.epoch);
            }
        }
        self.counters.adopted += u64::from(adopted);
        Ok(self.done(memory, owner, adopted))
    }

    pub(super) fn purge(
        &mut self,
        memory: &dyn HostMemory,
        owner: OwnerStamp,
    ) -> Result<NextStep, ShardRefusal> {
        let database = self.owned(owner)?;
        let before = database.shards.len();
        database
            .shards
            .retain(|name, held| name.epoch == owner.epoch || held.adopted_by == Some(owner.epoch));
        let purged = before - database.shards.len();
        self.counters.purged += purged as u64;
        Ok(self.done(memory, owner, purged as u32))
    }
}
