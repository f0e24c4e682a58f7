//! Copies of good, damaged and wrong images.

use std::ops::ControlFlow;

use archipelago_base::budget::ByteBudget;
use archipelago_base::checksum;
use archipelago_base::{Epoch, SeqNo};
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{Shard, SlabPool};
use archipelago_fabric::{AtomicPath, Node, NodeId};

use super::*;
use crate::ids::OffloadDb;
use crate::shard_host::memory::RegionNo;
use crate::shard_host::ranges::Returns;
use crate::wire::shard::{KeySpan, ShardName};

const BYTES: u64 = 256 << 10;
const GRANT_AT: u64 = 4096;
const PLACE_AT: u64 = 64;

fn image() -> Vec<u8> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    for number in 0..2000u32 {
        let key = format!("key-{number:04}").into_bytes();
        shard.insert(&key, SeqNo(u64::from(number) + 1), Kind::Put, &number.to_le_bytes());
    }
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("sealed");
    bytes
}

fn info() -> ShardInfo {
    let keys = KeySpan(KeyRange { start: b"key-".to_vec(), end: Some(b"key-2".to_vec()) });
    ShardInfo { keys, last_seq: SeqNo(2000), ..ShardInfo::default() }
}

struct Setting {
    regions: CopyRegions,
    returns: Returns,
    bytes: u64,
}

impl Setting {
    /// Regions, and `bytes` in the landing zone.
    fn new(bytes: &[u8]) -> Self {
        let node = Node::new(NodeId(1), Epoch(1), None).expect("a node");
        let make = || Arc::new(node.allocate(BYTES as usize, AtomicPath::Processor).expect("room"));
        let regions = CopyRegions { landing: make(), arena: make() };
        regions.landing.write(GRANT_AT, bytes).expect("room");
        Self { regions, returns: Returns::default(), bytes: bytes.len() as u64 }
    }

    fn copy(&self, info: ShardInfo, pieces: Vec<Piece>) -> CopyEnd {
        let order = CopyOrder {
            db: OffloadDb([1; 16]),
            shard: ShardName::default(),
            grant: 1,
            info,
            pieces,
            landing: self.returns.lease(RegionNo(1), GRANT_AT, self.bytes),
            place: self.returns.lease(RegionNo(2), PLACE_AT, self.bytes),
        };
        copy_image(order, &self.regions, HostSabotage::default())
    }

    /// Reason of the refusal of a copy, and whether its lease came back with the refusal.
    fn refused(&self, info: ShardInfo, pieces: Vec<Piece>) -> (ShardWhy, bool) {
        match self.copy(info, pieces).result {
            Err((refusal, lease)) => (refusal.why, lease.is_some()),
            Ok(_) => panic!("a copy that must be refused"),
        }
    }
}

/// Pieces of some length that cover `bytes` in order.
fn pieces(bytes: &[u8], len: usize) -> Vec<Piece> {
    let piece = |(at, part): (usize, &[u8])| Piece {
        at: (at * len) as u64,
        len: part.len() as u64,
        sum: checksum::hash64(part),
    };
    bytes.chunks(len).enumerate().map(piece).collect()
}

#[test]
fn copied_image_is_searched_in_the_arena() {
    let bytes = image();
    for len in [bytes.len(), 100_000, 1000, 777] {
        let setting = Setting::new(&bytes);
        let end = setting.copy(info(), pieces(&bytes, len));
        let Ok(copied) = end.result else { panic!("a good image") };
        assert_eq!((copied.region, copied.at), (RegionNo(2), PLACE_AT));
        assert_eq!(copied.bytes, bytes.len() as u64);
        // A late write of the owner changes the landing zone, but not the image.
        setting.regions.landing.write(GRANT_AT, &vec![0; bytes.len()]).expect("room");
        let mut found = Vec::new();
        let lookup = Lookup::new(b"key-0123", SeqNo::MAX);
        let searched = copied.image.lookup(&lookup, |version| {
            found.push((version.seq, version.value.to_vec()));
            ControlFlow::Continue(())
        });
        searched.expect("an intact image");
        assert_eq!(found, [(SeqNo(124), 123u32.to_le_bytes().to_vec())]);
        assert!(setting.regions.arena.write(PLACE_AT, &[0]).is_err(), "it is frozen");
        assert_eq!(setting.returns.drain().len(), 0, "both leases live");
        drop(copied.image);
        assert_eq!(setting.returns.drain()[0].at, PLACE_AT, "its range came back");
        assert!(setting.regions.arena.write(PLACE_AT, &[0]).is_ok());
    }
}

#[test]
fn pieces_may_lie_in_any_order_in_the_grant() {
    let bytes = image();
    let (head, tail) = bytes.split_at(5000);
    let setting = Setting::new(&[tail, head].concat());
    let parts = [(tail.len(), head), (0, tail)];
    let pieces = parts.map(|(at, part)| Piece {
        at: at as u64,
        len: part.len() as u64,
        sum: checksum::hash64(part),
    });
    assert!(setting.copy(info(), pieces.to_vec()).result.is_ok());
}

#[test]
fn piece_with_another_checksum_is_refused_and_may_be_written_again() {
    let bytes = image();
    let setting = Setting::new(&bytes);
    let good = pieces(&bytes, 10_000);
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at].sum ^= 1;
        assert_eq!(setting.refused(info(), damaged), (ShardWhy::BadPiece, true));
    }
    setting.regions.landing.write(GRANT_AT + 20_000, &[0xa5]).expect("room");
    assert_eq!(setting.refused(info(), good.clone()), (ShardWhy::BadPiece, true));
    setting.regions.landing.write(GRANT_AT, &bytes).expect("room");
    assert!(setting.copy(info(), good).result.is_ok());
}

#[test]
fn bytes_that_are_no_image_are_refused() {
    let bytes = image();
    let cut = &bytes[..bytes.len() - 8];
    let setting = Setting::new(cut);
    assert_eq!(setting.refused(info(), pieces(cut, 5000)), (ShardWhy::BadImage, false));
    let mut damaged = bytes;
    damaged[3000] ^= 1;
    let setting = Setting::new(&damaged);
    assert_eq!(setting.refused(info(), pieces(&damaged, 5000)), (ShardWhy::BadImage, false));
    assert_eq!(setting.returns.drain().len(), 2, "both leases came back");
}

#[test]
fn image_of_other_records_is_refused() {
    let bytes = image();
    let setting = Setting::new(&bytes);
    let range = |start: &[u8], end: &[u8]| ShardInfo {
        keys: KeySpan(KeyRange { start: start.to_vec(), end: Some(end.to_vec()) }),
        ..info()
    };
    for other in [
        ShardInfo { last_seq: SeqNo(1999), ..info() },
        range(b"key-0001", b"key-2"),
        range(b"key-", b"key-1999"),
    ] {
        let refused = setting.refused(other.clone(), pieces(&bytes, 5000));
        assert_eq!(refused, (ShardWhy::OtherRecords, false), "{other:?}");
    }
    assert!(setting.copy(range(b"key-0000", b"key-1999a"), pieces(&bytes, 5000)).result.is_ok());
}
