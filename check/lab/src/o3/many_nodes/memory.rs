//! Memory of the memory nodes: the room and the limit of each owner.
//!
//! The shares are those of the product ([`share`], [`guarantees`], [`Claim`]). Their use follows
//! `HostCore` and `NodeState` of `crates/offload`, without landing zones, arenas and the time until
//! an owner learns its share. A fixed part of the memory is the limit that an owner can set itself
//! (`--remote-memtables-mib`).
//!
//! The functions are pure. Cost: O(nodes · owners² · log owners).

use archipelago_offload::decide::{Claim, guarantees, share};

use super::{bytes, megabytes};

/// Divisor of the bytes that an owner above its share holds. The quotient is the room that its
/// limit has beyond them, as in the product.
const SURPLUS_SLACK_PART: f64 = 16.0;

/// Memory that all owners share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pool {
    pub(super) nodes: usize,
    /// MB of each node.
    pub(super) node_mb: f64,
    /// MB that each owner may have at all nodes together; infinite if the shares alone decide.
    pub(super) owner_mb_max: f64,
    /// MB of the image that an owner asks room for.
    pub(super) image_mb: f64,
}

/// Memory of one owner at all nodes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tenant {
    /// MB that it uses at each node.
    pub(super) used_mb: Vec<f64>,
    /// Whether it was refused room a short time ago.
    pub(super) is_refused: bool,
}

/// Room of one owner at all nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Room {
    pub(super) held_mb: f64,
    /// MB that it may hold.
    pub(super) limit_mb: f64,
    /// MB that each node would take now.
    pub(super) free_mb: Vec<f64>,
}

impl Room {
    /// Largest room at one node, in MB.
    pub(super) fn largest_mb(&self) -> f64 {
        self.free_mb.iter().copied().fold(0.0, f64::max)
    }
}

impl Pool {
    /// The rooms of all owners.
    pub(super) fn rooms(&self, tenants: &[Tenant]) -> Vec<Room> {
        let claims: Vec<Vec<Claim>> =
            (0..self.nodes).map(|node| self.claims(node, tenants)).collect();
        (0..tenants.len()).map(|owner| self.room(owner, &claims)).collect()
    }

    fn claims(&self, node: usize, tenants: &[Tenant]) -> Vec<Claim> {
        let guaranteed = guarantees(bytes(self.node_mb), &vec![None; tenants.len()]);
        let claim = |(tenant, guaranteed_bytes): (&Tenant, u64)| {
            let used_bytes = bytes(tenant.used_mb[node]);
            let missing = guaranteed_bytes.saturating_sub(used_bytes);
            let wanted_bytes =
                if tenant.is_refused { missing.max(bytes(self.image_mb)) } else { 0 };
            Claim { used_bytes, guaranteed_bytes, wanted_bytes }
        };
        tenants.iter().zip(guaranteed).map(claim).collect()
    }

    fn room(&self, owner: usize, claims: &[Vec<Claim>]) -> Room {
        let mut room = Room::default();
        let mut surplus = 0;
        for claims in claims {
            let own = claims[owner];
            let others: Vec<Claim> = [&claims[..owner], &claims[owner + 1..]].concat();
            let share = share(bytes(self.node_mb), own.guaranteed_bytes, &others);
            let used: u64 = claims.iter().map(|claim| claim.used_bytes).sum();
            let left = bytes(self.node_mb).saturating_sub(used);
            let missing = own.guaranteed_bytes.saturating_sub(own.used_bytes);
            let owed: u64 = others.iter().map(Claim::owed_bytes).sum();
            let free = match own.used_bytes > share {
                true => 0,
                false => {
                    let borrows = left.saturating_sub(owed).min(share - own.used_bytes);
                    missing.min(left).max(borrows)
                }
            };
            surplus += own.used_bytes.saturating_sub(share);
            room.held_mb += megabytes(own.used_bytes);
            room.limit_mb += megabytes(own.used_bytes + free.max(missing));
            room.free_mb.push(megabytes(free));
        }
        if surplus > 0 {
            room.limit_mb = room.held_mb + room.held_mb / SURPLUS_SLACK_PART;
        }
        room.limit_mb = room.limit_mb.min(self.owner_mb_max);
        let left_mb = (self.owner_mb_max - room.held_mb).max(0.0);
        room.free_mb.iter_mut().for_each(|free| *free = free.min(left_mb));
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Pool =
        Pool { nodes: 1, node_mb: 500.0, owner_mb_max: f64::INFINITY, image_mb: 4.0 };

    fn tenant(used_mb: f64, is_refused: bool) -> Tenant {
        Tenant { used_mb: vec![used_mb], is_refused }
    }

    fn room(pool: &Pool, tenants: &[Tenant]) -> (f64, f64) {
        let room = &pool.rooms(tenants)[0];
        (room.limit_mb, room.largest_mb())
    }

    #[test]
    fn owner_borrows_what_the_others_do_not_use() {
        let idle = || tenant(0.0, false);
        assert_eq!(room(&SHARED, &[tenant(100.0, true), idle(), idle()]), (500.0, 400.0));
        assert_eq!(room(&SHARED, &[tenant(100.0, true), tenant(250.0, false)]), (250.0, 150.0));
        // Two owners that want everything have halves.
        let greedy = tenant(250.0, true);
        assert_eq!(room(&SHARED, &[greedy.clone(), greedy]), (250.0, 0.0));
    }

    #[test]
    fn fixed_part_is_a_limit_also_in_an_empty_pool() {
        let fixed = Pool { owner_mb_max: 100.0, ..SHARED };
        let idle = || tenant(0.0, false);
        assert_eq!(room(&fixed, &[tenant(40.0, true), idle()]), (100.0, 60.0));
        assert_eq!(room(&fixed, &[tenant(100.0, true), idle()]), (100.0, 0.0));
    }

    #[test]
    fn borrower_above_its_share_has_a_limit_near_what_it_holds() {
        // The other one claims its half, of which the borrower has 150 MB.
        let tenants = [tenant(400.0, false), tenant(100.0, true)];
        assert_eq!(room(&SHARED, &tenants), (425.0, 0.0));
        assert_eq!(SHARED.rooms(&tenants)[1].largest_mb(), 0.0, "nothing is free yet");
    }

    #[test]
    fn rooms_of_several_nodes_add_up() {
        let pool = Pool { nodes: 2, ..SHARED };
        let alone = Tenant { used_mb: vec![100.0, 300.0], is_refused: false };
        let room = &pool.rooms(&[alone])[0];
        assert_eq!((room.held_mb, room.limit_mb), (400.0, 1000.0));
        assert_eq!(room.free_mb, [400.0, 200.0]);
    }
}
