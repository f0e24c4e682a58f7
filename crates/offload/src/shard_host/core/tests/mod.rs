//! The rules of a shard host, one per test, over memory that is only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Epoch, Error, Result, SeqNo};
use archipelago_engine::key::Kind;
use archipelago_engine::memtable::{SealedImage, Shard, SlabPool};
use archipelago_engine::pinned::PinOwner;
use archipelago_fabric::{NodeId, RegionId, RemoteKey, Rights};

use super::*;
use crate::ids::Token;
use crate::wire::shard::NodeShare;

mod shares;

const LIMIT: u64 = 64 << 10;
const LANDING: u64 = 8 << 10;
const LIFE: Epoch = Epoch(5);
const SECOND_NS: u64 = 1_000_000_000;

/// Simulated memory that only counts reserved bytes.
#[derive(Default)]
struct Counted {
    reserved: u64,
    /// Bytes that other users of the node have reserved.
    others: u64,
    regions: BTreeSet<RegionNo>,
    valid: BTreeMap<u64, RegionNo>,
    /// Keys by which a process has memory mapped, revoked or not.
    held: BTreeSet<u64>,
    next: u64,
    /// Whether the system has no memory, although the node is not full.
    exhausted: bool,
}

impl HostMemory for Counted {
    fn reserve(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.left();
        self.reserved += if fits { bytes } else { 0 };
        fits
    }

    fn give_back(&mut self, bytes: u64) {
        self.reserved -= bytes;
    }

    fn left(&self) -> u64 {
        (2 * LIMIT).saturating_sub(self.reserved + self.others)
    }

    fn grant(&mut self, region: RegionNo, rights: Rights) -> Result<RemoteKey> {
        assert!(self.regions.contains(&region));
        self.next += 1;
        self.valid.insert(self.next, region);
        let (node, number) = (NodeId(1), RegionId(region.0 as u32));
        Ok(RemoteKey { node, epoch: LIFE, region: number, tag: self.next, len: 64, rights })
    }

    fn revoke(&mut self, key: &RemoteKey) {
        self.valid.remove(&key.tag);
    }

    fn is_held(&self, key: &RemoteKey) -> bool {
        self.held.contains(&key.tag)
    }

    fn release(&mut self, region: RegionNo) {
        self.regions.remove(&region);
        assert!(self.valid.values().all(|of| *of != region), "released under a valid key");
    }
}

struct OwnedBytes(Vec<u8>, #[expect(dead_code, reason = "its drop gives the range back")] Lease);

impl PinOwner for OwnedBytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn image_bytes() -> Vec<u8> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    shard.insert(b"k", SeqNo(1), Kind::Put, b"value");
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("sealed");
    bytes
}

fn owner(epoch: u64) -> OwnerStamp {
    OwnerStamp { db: OffloadDb([1; 16]), epoch: Epoch(epoch), token: Token([epoch as u8; 16]) }
}

fn name(memtable: u64) -> ShardName {
    ShardName { epoch: Epoch(1), memtable, shard: 0 }
}

struct Host {
    core: HostCore,
    memory: Counted,
}

impl Host {
    fn new() -> Self {
        let limits = ShardLimits { arena_bytes: 16 << 10, ..ShardLimits::new(LIMIT) };
        let core = HostCore::new(LIFE, limits, HostSabotage::default());
        Self { core, memory: Counted::default() }
    }

    /// A host on which the owner of epoch 1 has begun.
    fn begun() -> Self {
        let mut host = Self::new();
        assert!(matches!(host.begin(owner(1)), ShardMessage::Begun { shards: 0, .. }));
        host
    }

    fn begin(&mut self, owner: OwnerStamp) -> ShardMessage {
        self.tell(&ShardMessage::Begin { owner, landing_bytes: LANDING, guaranteed_bytes: 0 })
    }

    /// Executes a message to its end.
    fn tell(&mut self, message: &ShardMessage) -> ShardMessage {
        for _ in 0..4 {
            match self.core.on_message(&mut self.memory, message) {
                NextStep::Answer(ShardMessage::Done { shards, .. }) => return done(shards),
                NextStep::Answer(answer) => return answer,
                NextStep::Allocate(order) => {
                    let made = match self.memory.exhausted {
                        true => Err(Error::busy("no memory")),
                        false => Ok(()),
                    };
                    self.memory.regions.insert(order.region);
                    if let Some(answer) = self.core.on_allocated(&mut self.memory, &order, made) {
                        return answer;
                    }
                    self.check();
                }
                NextStep::Copy(order) => return self.copied(*order),
                NextStep::Read(read) => {
                    let found = read.images.iter().flatten().count() as u32;
                    return done(found);
                }
            }
        }
        panic!("{message:?} does not end");
    }

    /// Ends a copy with success.
    fn copied(&mut self, order: CopyOrder) -> ShardMessage {
        let CopyOrder { db, shard, grant, info, landing, mut place, .. } = order;
        let bytes = image_bytes();
        place.shrink(bytes.len() as u64);
        let (region, at) = (place.region(), place.at());
        let len = bytes.len() as u64;
        let image = SealedImage::open_owner(Arc::new(OwnedBytes(bytes, place))).expect("an image");
        let result = Ok(CopiedImage { image, region, at, bytes: len });
        self.core.on_copied(&mut self.memory, CopyEnd { db, shard, grant, info, landing, result })
    }

    fn failed(&mut self, order: CopyOrder, why: ShardWhy, keeps: bool) -> ShardMessage {
        let CopyOrder { db, shard, grant, info, landing, place, .. } = order;
        let result = Err((why.into(), keeps.then_some(place)));
        self.core.on_copied(&mut self.memory, CopyEnd { db, shard, grant, info, landing, result })
    }

    fn check(&self) {
        let figures = self.core.figures(&self.memory);
        assert!(figures.region_bytes <= LIMIT, "{figures:?}");
        assert_eq!(figures.region_bytes, self.memory.reserved);
    }

    fn land(&mut self, shard: ShardName, bytes: u64) -> ShardMessage {
        self.tell(&ShardMessage::Land { owner: owner(1), shard, bytes })
    }

    /// The number of a new grant.
    fn granted(&mut self, shard: ShardName, bytes: u64) -> u64 {
        match self.land(shard, bytes) {
            ShardMessage::Landing { grant, .. } => grant,
            other => panic!("{other:?}"),
        }
    }

    fn order(&mut self, message: &ShardMessage) -> CopyOrder {
        match self.core.on_message(&mut self.memory, message) {
            NextStep::Copy(order) => *order,
            NextStep::Answer(answer) => panic!("{answer:?}"),
            _ => panic!("no copy"),
        }
    }

    /// A shard that is registered.
    fn registered(&mut self, shard: ShardName) -> ShardPlace {
        let grant = self.granted(shard, image_bytes().len() as u64);
        match self.tell(&register(shard, grant)) {
            ShardMessage::Registered { place } => place,
            other => panic!("{other:?}"),
        }
    }

    fn search(&mut self, owner: OwnerStamp, shards: &[ShardName]) -> ShardMessage {
        let (shards, key) = (shards.to_vec(), Default::default());
        let (floor, snapshot) = (SeqNo::ZERO, SeqNo::MAX);
        let (inline_max, wants_place) = (0, false);
        self.tell(&ShardMessage::Get {
            owner,
            shards,
            key,
            floor,
            snapshot,
            inline_max,
            wants_place,
        })
    }

    fn release(&mut self, shards: &[ShardName], oldest: u64) -> ShardMessage {
        self.tell(&ShardMessage::Release { owner: owner(1), shards: shards.to_vec(), oldest })
    }
}

fn register(shard: ShardName, grant: u64) -> ShardMessage {
    let pieces = vec![Piece { at: 0, len: 100, sum: 0 }];
    ShardMessage::Register { owner: owner(1), shard, grant, info: ShardInfo::default(), pieces }
}

/// An answer about this number of shards, without its figures of memory.
fn done(shards: u32) -> ShardMessage {
    ShardMessage::Done { shards, share: NodeShare::default() }
}

fn why(answer: &ShardMessage) -> Option<ShardWhy> {
    match answer {
        ShardMessage::Refused { refusal } => Some(refusal.why),
        _ => None,
    }
}

#[test]
fn owner_hears_how_much_room_is_left() {
    let mut host = Host::begun();
    let limit = |host: &mut Host| match host.begin(owner(1)) {
        ShardMessage::Begun { share, .. } => share.limit_bytes,
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(&mut host), LIMIT - LANDING);
    host.registered(name(1));
    assert_eq!(limit(&mut host), LIMIT - LANDING, "images that it has are within the limit");
    // Blocks of the pool reserve bytes of the same limit.
    host.memory.others = 2 * LIMIT - host.memory.reserved - 100;
    assert_eq!(limit(&mut host), (16 << 10) + 100);
    host.memory.others = 0;
    host.release(&[name(1)], 2);
    assert_eq!(limit(&mut host), LIMIT - LANDING);
}

#[test]
fn database_must_begin_first() {
    let mut host = Host::new();
    assert_eq!(why(&host.land(name(1), 100)), Some(ShardWhy::NotBegun));
    assert_eq!(why(&host.search(owner(1), &[])), Some(ShardWhy::NotBegun));
    let first = host.begin(owner(1));
    assert!(matches!(first, ShardMessage::Begun { life: LIFE, landing_bytes: LANDING, .. }));
    assert_eq!(host.begin(owner(1)), first, "a sign of life changes nothing");
    assert_eq!(why(&host.search(owner(2), &[])), Some(ShardWhy::NotBegun));
}

#[test]
fn earlier_owner_and_other_token_are_refused() {
    let mut host = Host::new();
    host.begin(owner(2));
    let other = OwnerStamp { token: Token([9; 16]), ..owner(2) };
    for (stamp, expected) in [(owner(1), ShardWhy::OldEpoch), (other, ShardWhy::OtherToken)] {
        assert_eq!(why(&host.begin(stamp)), Some(expected));
        assert_eq!(why(&host.search(stamp, &[])), Some(expected));
        let release = ShardMessage::Release { owner: stamp, shards: vec![], oldest: 7 };
        assert_eq!(why(&host.tell(&release)), Some(expected));
    }
}

#[test]
fn new_owner_voids_grants_and_revokes_the_landing_zone() {
    let mut host = Host::begun();
    let grant = host.granted(name(1), 1000);
    let ShardMessage::Landing { key, .. } = host.land(name(1), 1000) else { panic!("a grant") };
    let order = host.order(&register(name(1), grant));
    // A process of the old owner has the zone mapped.
    host.memory.held.insert(key.tag);
    let zones = |host: &Host| host.core.figures(&host.memory).region_bytes;
    let before = zones(&host);
    assert!(matches!(host.begin(owner(2)), ShardMessage::Begun { shards: 0, .. }));
    assert!(!host.memory.valid.contains_key(&key.tag), "its key is not valid");
    assert_eq!(zones(&host), before + LANDING, "the old zone counts as long as it is mapped");
    let answer = host.copied(order);
    assert_eq!(why(&answer), Some(ShardWhy::UnknownGrant), "the copy came too late");
    assert_eq!(why(&host.tell(&register(name(1), grant))), Some(ShardWhy::OldEpoch));
    host.memory.held.clear();
    host.core.on_timer(&mut host.memory);
    assert_eq!((zones(&host), host.core.figures(&host.memory).retired_regions), (before, 0));
}

#[test]
fn repeated_grant_is_the_same() {
    let mut host = Host::begun();
    let first = host.land(name(1), 1000);
    assert_eq!(host.land(name(1), 1000), first);
    assert_eq!(why(&host.land(name(1), 1001)), Some(ShardWhy::HasGrant));
    assert_eq!(why(&host.land(name(2), LIMIT)), Some(ShardWhy::TooLarge));
    assert_eq!(
        why(&host.land(ShardName { epoch: Epoch(0), ..name(2) }, 9)),
        Some(ShardWhy::Malformed)
    );
    assert_eq!(host.core.figures(&host.memory).grants, 1);
}

/// A copy of a request that was refused for lack of room arrives after a release. It gets a grant
/// of which its owner does not know.
#[test]
fn grant_that_nobody_uses_ends() {
    let mut host = Host::begun();
    let patience_ns = host.core.limits.grants.as_nanos() as u64;
    let at = |host: &mut Host, now_ns: u64| {
        host.core.on_time(now_ns);
        host.core.on_timer(&mut host.memory);
        let figures = host.core.figures(&host.memory);
        // A database without shards and grants is not listed after a while.
        let image_bytes: u64 = figures.accounts.iter().map(|account| account.image_bytes).sum();
        assert_eq!(image_bytes > 0, figures.grants > 0);
        (figures.grants, figures.oldest_grant_ns, figures.counters.unused)
    };
    host.memory.others = 2 * LIMIT - host.memory.reserved;
    assert_eq!(why(&host.land(name(1), 1000)), Some(ShardWhy::Full));
    host.memory.others = 0;
    host.granted(name(1), 1000);
    assert_eq!(at(&mut host, patience_ns - 1), (1, Some(0), 0));
    // Another request for it begins the time anew.
    let grant = host.granted(name(1), 1000);
    assert_eq!(at(&mut host, 2 * patience_ns - 2), (1, Some(patience_ns - 1), 0));
    assert_eq!(at(&mut host, 2 * patience_ns - 1), (0, None, 1));
    assert_eq!(why(&host.tell(&register(name(1), grant))), Some(ShardWhy::UnknownGrant));
    // The owner may send the shard after all. A grant that is used does not end. The host has given
    // the landing zone back meanwhile, because the owner was silent.
    host.begin(owner(1));
    let grant = host.granted(name(1), image_bytes().len() as u64);
    let order = host.order(&register(name(1), grant));
    assert_eq!(at(&mut host, 4 * patience_ns), (1, Some(2 * patience_ns - 1), 1));
    assert!(matches!(host.copied(order), ShardMessage::Registered { .. }));
    assert_eq!(host.core.figures(&host.memory).shards, 1);
}

#[test]
fn grants_of_a_zone_do_not_overlap_and_end_with_it() {
    let mut host = Host::begun();
    let mut ranges = Vec::new();
    for memtable in 1.. {
        match host.land(name(memtable), 1000) {
            ShardMessage::Landing { at, bytes, credit_bytes, .. } => {
                assert!(ranges.iter().all(|&from| at >= from + bytes || from >= at + bytes));
                assert!(at + bytes <= LANDING && credit_bytes < LANDING);
                ranges.push(at);
            }
            other => {
                assert_eq!(why(&other), Some(ShardWhy::Busy), "the node is not full");
                break;
            }
        }
        assert!(memtable < 100, "no zone is that large");
    }
    assert_eq!(ranges.len(), 8);
    host.release(&[name(3)], 0);
    assert!(matches!(host.land(name(50), 1000), ShardMessage::Landing { .. }));
}

#[test]
fn shard_is_registered_once() {
    let mut host = Host::begun();
    let grant = host.granted(name(1), 1000);
    assert_eq!(why(&host.tell(&register(name(1), grant + 1))), Some(ShardWhy::UnknownGrant));
    let order = host.order(&register(name(1), grant));
    assert_eq!(why(&host.search(owner(1), &[name(1)])), Some(ShardWhy::UnknownShard), "not yet");
    assert_eq!(why(&host.tell(&register(name(1), grant))), Some(ShardWhy::Busy));
    assert_eq!(why(&host.land(name(1), 1000)), Some(ShardWhy::Busy));
    let first = host.copied(order);
    assert!(matches!(first, ShardMessage::Registered { .. }));
    assert_eq!(host.tell(&register(name(1), grant)), first, "the message came again");
    assert_eq!(host.land(name(1), 1000), first, "a late request for a grant");
    assert_eq!(host.search(owner(1), &[name(1)]), done(1));
    assert_eq!(host.core.figures(&host.memory).counters.registered, 1);
}

#[test]
fn pieces_must_lie_within_the_grant() {
    let mut host = Host::begun();
    let grant = host.granted(name(1), 1000);
    let with = |pieces| match register(name(1), grant) {
        ShardMessage::Register { owner, shard, grant, info, .. } => {
            ShardMessage::Register { owner, shard, grant, info, pieces }
        }
        other => other,
    };
    let piece = |at, len| Piece { at, len, sum: 0 };
    for pieces in [
        vec![],
        vec![piece(0, 0)],
        vec![piece(1, 1000)],
        vec![piece(u64::MAX, 2)],
        vec![piece(0, 600), piece(0, 600)],
        vec![piece(0, u64::MAX), piece(0, 2)],
        vec![piece(0, 0); 5000],
    ] {
        assert_eq!(why(&host.tell(&with(pieces))), Some(ShardWhy::BadPiece));
    }
    assert!(matches!(host.tell(&with(vec![piece(500, 500)])), ShardMessage::Registered { .. }));
}

#[test]
fn owner_may_write_damaged_pieces_again() {
    let mut host = Host::begun();
    let grant = host.granted(name(1), 1000);
    let order = host.order(&register(name(1), grant));
    assert_eq!(why(&host.failed(order, ShardWhy::BadPiece, true)), Some(ShardWhy::BadPiece));
    let order = host.order(&register(name(1), grant));
    assert_eq!(why(&host.failed(order, ShardWhy::BadImage, false)), Some(ShardWhy::BadImage));
    assert_eq!(why(&host.tell(&register(name(1), grant))), Some(ShardWhy::UnknownGrant));
    assert_eq!(host.core.figures(&host.memory).shards, 0);
}

#[test]
fn released_shard_does_not_come_back() {
    let mut host = Host::begun();
    let (open, copying) = (host.granted(name(1), 1000), host.granted(name(2), 1000));
    let order = host.order(&register(name(2), copying));
    host.registered(name(3));
    let names = [name(1), name(2), name(3), name(4)];
    assert_eq!(host.release(&names, 0), done(1));
    assert_eq!(host.release(&names, 0), done(0), "it came again");
    assert_eq!(why(&host.copied(order)), Some(ShardWhy::UnknownGrant));
    assert_eq!(why(&host.tell(&register(name(1), open))), Some(ShardWhy::UnknownGrant));
    for name in names {
        assert_eq!(why(&host.land(name, 1000)), Some(ShardWhy::Retired));
        assert_eq!(why(&host.search(owner(1), &[name])), Some(ShardWhy::UnknownShard));
    }
    let figures = host.core.figures(&host.memory);
    assert_eq!((figures.shards, figures.grants), (0, 0));
}

#[test]
fn retired_memtables_leave_nothing() {
    let mut host = Host::begun();
    host.registered(name(1));
    host.granted(name(2), 1000);
    host.registered(name(3));
    assert_eq!(host.release(&[], 3), done(1));
    let figures = host.core.figures(&host.memory);
    assert_eq!((figures.shards, figures.grants), (1, 0));
    assert_eq!(why(&host.land(name(2), 1000)), Some(ShardWhy::Retired));
    assert_eq!(host.search(owner(1), &[name(3)]), done(1));
}

#[test]
fn bytes_stay_within_the_limit_and_come_back() {
    let mut host = Host::begun();
    let mut memtable = 0;
    let last = loop {
        memtable += 1;
        let answer = host.land(name(memtable), LANDING);
        host.check();
        let ShardMessage::Landing { grant, .. } = answer else { break answer };
        // The image is small, so that the rest of its range is free again.
        assert!(matches!(
            host.tell(&register(name(memtable), grant)),
            ShardMessage::Registered { .. }
        ));
        assert!(memtable < 1000, "no limit");
    };
    assert_eq!(why(&last), Some(ShardWhy::Full));
    let full = host.core.figures(&host.memory);
    assert!(full.shards > 6, "{full:?}");
    let names: Vec<ShardName> = (1..memtable).map(name).collect();
    host.release(&names, 0);
    host.core.on_timer(&mut host.memory);
    let figures = host.core.figures(&host.memory);
    assert_eq!(figures.shard_bytes, 0);
    assert!(figures.region_bytes <= LANDING + (16 << 10), "one empty region is kept: {figures:?}");
}

#[test]
fn owner_that_retires_no_memtable_for_long_can_send_the_next_ones() {
    const COUNT: u64 = 70_000;
    let mut host = Host::begun();
    let old = host.registered(name(2));
    let released: Vec<ShardName> = (3..COUNT).map(name).collect();
    for some in released.chunks(4096) {
        host.release(some, 1);
    }
    // A memtable that was never sent becomes unusable together with the forgotten names above it.
    for memtable in [1, 3, COUNT - 1] {
        assert_eq!(why(&host.land(name(memtable), 1000)), Some(ShardWhy::Retired), "{memtable}");
    }
    let known = host.land(name(2), 1000);
    assert_eq!(known, ShardMessage::Registered { place: old }, "it was not released");
    host.registered(name(COUNT));
    host.begin(owner(2));
    let land = ShardMessage::Land {
        owner: owner(2),
        shard: ShardName { epoch: Epoch(2), ..name(1) },
        bytes: 1000,
    };
    assert!(matches!(host.tell(&land), ShardMessage::Landing { .. }), "names of its own");
}

#[test]
fn memory_of_others_is_not_taken() {
    let mut host = Host::begun();
    host.memory.others = 2 * LIMIT - LANDING - 4096;
    let ShardMessage::Landing { .. } = host.land(name(1), 4000) else { panic!("4096 are left") };
    assert_eq!(why(&host.land(name(2), 4000)), Some(ShardWhy::Full));
    assert_eq!(host.memory.left(), 0);
}

#[test]
fn refusal_names_the_largest_image_that_fits() {
    let mut host = Host::begun();
    let full = |bytes| ShardMessage::Refused { refusal: ShardRefusal::at(ShardWhy::Full, bytes) };
    // Ranges are multiples of 64 bytes.
    host.memory.others = 2 * LIMIT - LANDING - 4095;
    assert_eq!(host.land(name(1), 4095), full(4032));
    host.memory.others -= 1;
    host.granted(name(1), 3000);
    // No memory is left for another arena, and the rest of the first one is free.
    assert_eq!(host.memory.left(), 0);
    assert_eq!(host.land(name(2), 2000), full(4096 - 3008));
    host.granted(name(2), 4096 - 3008);
    assert_eq!(host.land(name(3), 1), full(0));
}

#[test]
fn system_without_memory_is_a_full_node() {
    let mut host = Host::begun();
    host.memory.exhausted = true;
    assert_eq!(why(&host.land(name(1), 1000)), Some(ShardWhy::Full));
    host.check();
    host.memory.exhausted = false;
    host.registered(name(1));
}

#[test]
fn search_keeps_an_image_that_is_released() {
    let mut host = Host::begun();
    host.registered(name(1));
    let shards = vec![name(1)];
    let (owner, key, floor, snapshot) = (owner(1), Default::default(), SeqNo::ZERO, SeqNo::MAX);
    let (inline_max, wants_place) = (0, false);
    let get = ShardMessage::Get { owner, shards, key, floor, snapshot, inline_max, wants_place };
    let NextStep::Read(read) = host.core.on_message(&mut host.memory, &get) else {
        panic!("a search");
    };
    host.release(&[name(1)], 0);
    let first = host.registered(name(2)).at;
    assert_ne!(first, 0, "the range of the first image is in use");
    drop(read);
    assert_eq!(host.registered(name(3)).at, 0, "it came back with the search");
}

#[test]
fn silent_owner_loses_its_shards() {
    let mut host = Host::begun();
    host.registered(name(1));
    host.core.on_time(599 * SECOND_NS);
    host.core.on_timer(&mut host.memory);
    assert_eq!(host.search(owner(1), &[name(1)]), done(1));
    host.core.on_time(1198 * SECOND_NS);
    host.core.on_timer(&mut host.memory);
    assert_eq!(host.core.figures(&host.memory).shards, 1, "each message begins the time anew");
    host.core.on_time(1199 * SECOND_NS);
    host.core.on_timer(&mut host.memory);
    let figures = host.core.figures(&host.memory);
    assert_eq!((figures.databases, figures.shards, figures.region_bytes), (0, 0, 0));
    assert_eq!((figures.counters.purged, host.memory.reserved), (1, 0));
    assert_eq!(why(&host.search(owner(1), &[name(1)])), Some(ShardWhy::NotBegun));
    assert_eq!(why(&host.begin(owner(0))), Some(ShardWhy::OldEpoch), "it is remembered");
    assert!(matches!(host.begin(owner(1)), ShardMessage::Begun { shards: 0, .. }));
}

#[test]
fn owner_that_has_closed_leaves_no_memory() {
    let bytes_after = |host: &mut Host, seconds| {
        host.core.on_time(seconds * SECOND_NS);
        host.core.on_timer(&mut host.memory);
        host.check();
        host.core.figures(&host.memory).region_bytes
    };
    let mut host = Host::begun();
    host.registered(name(1));
    assert!(bytes_after(&mut host, 11) > 0, "it has a shard");
    host.release(&[name(1)], 0);
    let open = host.granted(name(2), 1000);
    assert!(bytes_after(&mut host, 22) > 0, "it has a grant");
    assert!(matches!(host.tell(&register(name(2), open)), ShardMessage::Registered { .. }));
    host.release(&[name(2)], 0);
    assert!(bytes_after(&mut host, 31) > 0, "it was heard nine seconds ago");
    assert_eq!(bytes_after(&mut host, 33), 0);
    assert_eq!(
        host.core.figures(&host.memory).databases,
        1,
        "its epoch and its names are remembered"
    );
    // An owner that goes on after all begins again.
    assert_eq!(why(&host.land(name(3), 1000)), Some(ShardWhy::NotBegun));
    assert!(matches!(host.begin(owner(1)), ShardMessage::Begun { .. }));
    assert_eq!(why(&host.land(name(2), 1000)), Some(ShardWhy::Retired));
    host.registered(name(3));
}

#[test]
fn new_owner_adopts_shards_and_purges_the_others() {
    let mut host = Host::begun();
    for memtable in 1..=3 {
        host.registered(name(memtable));
    }
    host.begin(owner(2));
    let list = |host: &mut Host, owner, after| match host.tell(&ShardMessage::List { owner, after })
    {
        ShardMessage::Listed { shards, more: false } => {
            shards.iter().map(|listed| listed.name.memtable).collect::<Vec<u64>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(list(&mut host, owner(2), None), [1, 2, 3]);
    assert_eq!(list(&mut host, owner(2), Some(name(2))), [3]);
    let adopt = |owner, memtables: &[u64]| {
        let shards = memtables.iter().copied().map(name).collect();
        ShardMessage::Adopt { owner, shards }
    };
    assert_eq!(why(&host.tell(&adopt(owner(2), &[2, 9]))), Some(ShardWhy::UnknownShard));
    assert_eq!(host.tell(&adopt(owner(2), &[1, 2])), done(2));
    assert_eq!(host.tell(&adopt(owner(2), &[1, 2])), done(0));
    let purge = |owner| ShardMessage::Purge { owner };
    assert_eq!(host.tell(&purge(owner(2))), done(1));
    assert_eq!(list(&mut host, owner(2), None), [1, 2]);
    host.begin(owner(3));
    host.tell(&adopt(owner(3), &[2]));
    assert_eq!(host.tell(&purge(owner(3))), done(1));
    assert_eq!(list(&mut host, owner(3), None), [2], "each owner adopts for itself");
    assert_eq!(host.search(owner(3), &[name(2)]), done(1));
    host.begin(owner(5));
    assert_eq!(list(&mut host, owner(5), None), [0u64; 0], "the fourth owner did not hold it");
    assert_eq!(host.tell(&purge(owner(5))), done(1));
}

#[test]
fn search_of_an_unknown_shard_names_it() {
    let mut host = Host::begun();
    host.registered(name(1));
    let answer = host.search(owner(1), &[name(1), name(2)]);
    let refusal = ShardRefusal::from(ShardWhy::UnknownShard).of(name(2));
    assert_eq!(answer, ShardMessage::Refused { refusal });
    assert_eq!(host.core.figures(&host.memory).counters.refusals[&ShardWhy::UnknownShard], 1);
}

#[test]
fn databases_are_bounded() {
    let mut host = Host::new();
    host.core.limits.databases_max = 2;
    host.core.limits.orphans = Duration::from_secs(1);
    let stamp = |db: u8| OwnerStamp { db: OffloadDb([db; 16]), ..owner(1) };
    host.begin(stamp(1));
    host.begin(stamp(2));
    assert_eq!(why(&host.begin(stamp(3))), Some(ShardWhy::Full));
    host.core.on_time(2 * SECOND_NS);
    host.core.on_timer(&mut host.memory);
    assert!(matches!(host.begin(stamp(3)), ShardMessage::Begun { .. }));
}

#[test]
fn grant_that_is_given_back_leaves_the_name_usable() {
    let mut host = Host::begun();
    let grant = host.granted(name(1), 1000);
    let give_back = |grant| ShardMessage::GiveBack { owner: owner(1), shard: name(1), grant };
    assert_eq!(host.tell(&give_back(grant + 1)), done(0), "another grant");
    assert_eq!(host.tell(&give_back(grant)), done(1));
    assert_eq!(why(&host.tell(&register(name(1), grant))), Some(ShardWhy::UnknownGrant));
    let next = host.granted(name(1), image_bytes().len() as u64);
    assert_eq!(host.tell(&give_back(grant)), done(0), "a late message");
    let order = host.order(&register(name(1), next));
    assert_eq!(host.tell(&give_back(next)), done(0), "its image is being copied");
    assert!(matches!(host.copied(order), ShardMessage::Registered { .. }));
    let figures = host.core.figures(&host.memory);
    assert_eq!((figures.shards, figures.grants, figures.counters.given_back), (1, 0, 1));
    host.check();
}
