//! Accounts: which database uses how much memory of the node, and how much it may use.
//!
//! The decision is [`share`]. A database that was refused room **claims** memory for a while: its
//! guarantee, or the bytes of one image if it has its guarantee. The shares of the others fall.
//! Every answer about memory tells an owner its share, and the owner flushes the shards that exceed
//! it. The host never drops a shard for another database. The answer also has the number of
//! databases, so that an owner whose writers pause gives memory back only if others can use it.
//!
//! Memory is counted by regions, because the node reserves whole regions: an arena with one image
//! counts as a whole, and so does the landing zone. Regions that wait to be unmapped count for no
//! database.
//!
//! Invariants:
//! 1. The guarantees of all databases sum up to at most what shards may use at the node.
//! 2. Memory that a database claims within its guarantee is given to no database beyond its own,
//!    except for landing zones.
//! 3. While an operator drains the node, the share of every database is zero. So their owners flush
//!    all shards that the node has, and those that were arriving when the drain began.
//!
//! Thread-safety: as that of [`HostCore`].
//! Failure: an owner that does not flush, because it has ended, keeps its memory until the host
//! drops its database.
//! Cost: O(regions + databases · log databases) for an answer with a share, and O(shards +
//! databases² · log databases) for the accounts.

use super::{Database, HostCore, HostMemory, IDLE};
use crate::decide::{Claim, admitted, guarantees, share};
use crate::ids::OffloadDb;
use crate::wire::shard::{DatabaseAccount, NodeShare, ShardMessage, ShardRefusal, ShardWhy};

/// Accounts of one answer at most: the usual limit of databases.
const ACCOUNTS_MAX: usize = 256;

/// A refusal for want of room.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomClaim {
    bytes: u64,
    until_ns: u64,
}

/// Claims of all databases, by their order.
struct Claims {
    total_bytes: u64,
    databases: Vec<(OffloadDb, Claim)>,
}

impl Claims {
    fn of(&self, db: OffloadDb) -> Claim {
        let found = self.databases.iter().find(|(other, _)| *other == db);
        found.map(|(_, claim)| *claim).unwrap_or_default()
    }

    fn others(&self, db: OffloadDb) -> Vec<Claim> {
        let others = self.databases.iter().filter(|(other, _)| *other != db);
        others.map(|(_, claim)| *claim).collect()
    }
}

impl Database {
    /// Bytes of the images that the host has, and of those that are arriving.
    fn image_bytes(&self) -> u64 {
        let held: u64 = self.shards.values().map(|shard| shard.place.bytes).sum();
        let arriving: u64 = self.grants.values().map(|grant| grant.bytes).sum();
        held + arriving
    }

    /// Whether the owner has closed, so that nothing is guaranteed to it any more.
    pub(super) fn is_idle(&self, now_ns: u64) -> bool {
        let is_empty = self.shards.is_empty() && self.grants.is_empty();
        is_empty && now_ns.saturating_sub(self.heard_ns) >= IDLE.as_nanos() as u64
    }
}

impl HostCore {
    /// Takes the guarantee that an owner states. Earlier promises to other databases stay valid. So
    /// a beat after the end of another database may admit more.
    pub(super) fn state_guarantee(&mut self, db: OffloadDb, stated_bytes: u64) {
        let now_ns = self.now_ns;
        let others = self
            .databases
            .iter()
            .filter(|(other, database)| **other != db && !database.is_idle(now_ns));
        let promised = others.map(|(_, other)| other.admitted_bytes.unwrap_or(0));
        let promised = promised.fold(0, u64::saturating_add);
        let total_bytes = self.limits.bytes_max;
        if let Some(database) = self.databases.get_mut(&db) {
            let stated = (stated_bytes > 0).then_some(stated_bytes);
            database.admitted_bytes = stated.map(|stated| admitted(stated, total_bytes, promised));
        }
    }

    fn claims(&self, memory: &dyn HostMemory) -> Claims {
        let now_ns = self.now_ns;
        let total_bytes = self.regions.bytes().saturating_add(self.regions.left(memory));
        let live = |database: &Database| !database.is_idle(now_ns);
        let databases = || self.databases.iter().filter(|(_, database)| live(database));
        // No owner gives its landing zone back, so each has its zone, and the rest is promised.
        let zone = |database: &Database| {
            let zone = database.landing.and_then(|zone| self.regions.key(zone));
            zone.map_or(0, |(_, bytes)| bytes)
        };
        let zones: u64 = databases().map(|(_, database)| zone(database)).sum();
        let beyond_zone = |database: &Database| {
            database.admitted_bytes.map(|admitted| admitted.saturating_sub(zone(database)))
        };
        let admitted: Vec<Option<u64>> =
            databases().map(|(_, database)| beyond_zone(database)).collect();
        let guaranteed = guarantees(total_bytes.saturating_sub(zones), &admitted);
        let used = self.regions.bytes_by_database();
        let claim = |(entry, guaranteed_bytes): ((&OffloadDb, &Database), u64)| {
            let (db, database) = entry;
            let guaranteed_bytes = guaranteed_bytes.saturating_add(zone(database));
            let used_bytes = used.get(db).copied().unwrap_or(0);
            let refused = database.claim.filter(|claim| now_ns < claim.until_ns);
            let missing = guaranteed_bytes.saturating_sub(used_bytes);
            let wanted_bytes = refused.map_or(0, |refused| refused.bytes.max(missing));
            (*db, Claim { used_bytes, guaranteed_bytes, wanted_bytes })
        };
        Claims { total_bytes, databases: databases().zip(guaranteed).map(claim).collect() }
    }

    /// Largest number of bytes of memory that a database may use, given the memory that the others
    /// use and claim.
    fn share_of(&self, claims: &Claims, db: OffloadDb) -> u64 {
        match self.is_draining {
            true => 0,
            false => share(claims.total_bytes, claims.of(db).guaranteed_bytes, &claims.others(db)),
        }
    }

    /// Bytes of memory that a database may still get now, beyond its regions: its share, as far as
    /// the node has memory that no other database claims by its guarantee.
    pub(super) fn room(&self, memory: &dyn HostMemory, db: OffloadDb) -> u64 {
        let left = self.regions.left(memory);
        if self.is_draining {
            return 0;
        }
        if self.sabotage.no_guarantees() {
            return left;
        }
        let claims = self.claims(memory);
        let (own, others) = (claims.of(db), claims.others(db));
        let owed = others.iter().map(Claim::owed_bytes).fold(0, u64::saturating_add);
        let share = self.share_of(&claims, db);
        let borrows = left.saturating_sub(owed).min(share.saturating_sub(own.used_bytes));
        let own_bytes = own.guaranteed_bytes.saturating_sub(own.used_bytes).min(left);
        own_bytes.max(borrows)
    }

    /// Whether a database must give memory back before it gets any, also in its own arenas.
    pub(super) fn is_above_share(&self, memory: &dyn HostMemory, db: OffloadDb) -> bool {
        let claims = self.claims(memory);
        let is_above = claims.of(db).used_bytes > self.share_of(&claims, db);
        is_above && (self.is_draining || !self.sabotage.no_guarantees())
    }

    /// The figures of a database's memory that answers to its owner contain.
    pub(super) fn node_share(&self, memory: &dyn HostMemory, db: OffloadDb) -> NodeShare {
        let claims = self.claims(memory);
        let own = claims.of(db);
        let share = match self.sabotage.no_guarantees() && !self.is_draining {
            true => claims.total_bytes,
            false => self.share_of(&claims, db),
        };
        let (arena_bytes, free_bytes) = self.regions.arenas(db);
        let (used_bytes, guaranteed_bytes) = (own.used_bytes, own.guaranteed_bytes);
        let limit_bytes = match used_bytes.checked_sub(share) {
            // The database can only give back whole arenas that are empty. So the limit counts the
            // used bytes of its arenas, and not the free ones.
            Some(surplus) if surplus > 0 => (arena_bytes - free_bytes).saturating_sub(surplus),
            _ if self.is_draining => 0,
            _ => {
                // The limit includes the whole guarantee, even while other databases still use a
                // part of it. Only a request of this database begins its claim, and the limit must
                // permit that request.
                let owed = guaranteed_bytes.saturating_sub(used_bytes);
                arena_bytes.saturating_add(self.room(memory, db).max(owed))
            }
        };
        let databases = claims.databases.len() as u32;
        NodeShare { used_bytes, guaranteed_bytes, limit_bytes, databases }
    }

    /// Ends the claim of a database that has its guarantee and has got `bytes`, so that the others
    /// need not make more room. A claim of more bytes stays.
    pub(super) fn end_claim(&mut self, memory: &dyn HostMemory, db: OffloadDb, bytes: u64) {
        let own = self.claims(memory).of(db);
        if own.used_bytes >= own.guaranteed_bytes
            && let Some(database) = self.databases.get_mut(&db)
        {
            database.claim = database.claim.filter(|claim| claim.bytes > bytes);
        }
    }

    /// A refusal for want of room, from which a claim follows.
    pub(super) fn refuse_room(
        &mut self,
        memory: &dyn HostMemory,
        db: OffloadDb,
        bytes: u64,
    ) -> ShardRefusal {
        let until_ns = self.now_ns.saturating_add(self.limits.claims.as_nanos() as u64);
        let is_new = self.databases.get_mut(&db).is_some_and(|database| {
            let is_new = database.claim.is_none_or(|claim| claim.until_ns <= self.now_ns);
            database.claim = Some(RoomClaim { bytes, until_ns });
            is_new
        });
        self.counters.claims += u64::from(is_new);
        ShardRefusal::at(ShardWhy::Full, self.room(memory, db))
    }

    /// Answer to [`ShardMessage::Accounts`] and [`ShardMessage::Drain`]: the accounts of the node.
    pub(super) fn accounted(&self, memory: &dyn HostMemory) -> ShardMessage {
        let mut databases = self.accounts(memory);
        databases.truncate(ACCOUNTS_MAX);
        let limit_bytes = self.regions.bytes().saturating_add(self.regions.left(memory));
        let image_bytes = self.databases.values().map(Database::image_bytes).sum();
        let is_draining = self.is_draining;
        ShardMessage::Accounted { limit_bytes, is_draining, image_bytes, databases }
    }

    /// The accounts of all databases, by their names.
    pub(super) fn accounts(&self, memory: &dyn HostMemory) -> Vec<DatabaseAccount> {
        let claims = self.claims(memory);
        let account = |(db, claim): &(OffloadDb, Claim)| {
            let share = self.share_of(&claims, *db);
            let image_bytes = self.databases.get(db).map_or(0, Database::image_bytes);
            DatabaseAccount {
                db: *db,
                image_bytes,
                used_bytes: claim.used_bytes,
                guaranteed_bytes: claim.guaranteed_bytes,
                borrowed_bytes: claim.used_bytes.saturating_sub(claim.guaranteed_bytes),
                share_bytes: share,
                claimed_bytes: claim.wanted_bytes,
            }
        };
        claims.databases.iter().map(account).collect()
    }
}
