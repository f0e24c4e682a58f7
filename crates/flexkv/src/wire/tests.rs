use archipelago_base::Epoch;
use archipelago_fabric::{NodeId, RegionId, RemoteKey, Rights};

use super::*;

fn hex(message: &Message) -> String {
    message.encode().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes() {
    let search = Message::Search { partition: 7, epoch: 3, hash: 0x0102, reads: 4 };
    assert_eq!(hex(&search), "86010700000003000000020100000000000004000000");
    let grant = Grant { session: 1, lease_us: 3, stamp_us: 2 };
    let slots = vec![Candidate { index: 8, word: 9, cache: true }];
    let found = Message::Found { slots, grant };
    assert_eq!(
        hex(&found),
        "86020108000000090000000000000001010000000000000003000000000000000200000000000000"
    );
    let key = RemoteKey {
        node: NodeId(1),
        epoch: Epoch(2),
        region: RegionId(3),
        tag: 4,
        len: 5,
        rights: Rights::READ,
    };
    let counted = Message::Metered { key, partitions: 6 };
    assert_eq!(Message::decode(&counted.encode()), Ok(counted.clone()));
    assert_eq!(
        hex(&counted),
        "86240100000000000000020000000000000003000000040000000000000005000000000000000106000000"
    );
    let place = Place { index: 8, word: 9 };
    let written = Message::Written { place, cache: true, yours: true, grant };
    assert_eq!(
        hex(&written),
        "86040800000009000000000000000101010000000000000003000000000000000200000000000000"
    );
    let (key, value) = (Payload(b"reef".to_vec()), Payload(b"co".to_vec()));
    let delegate = Message::Delegate { partition: 7, epoch: 3, key, value, expires_ms: 5 };
    assert_eq!(hex(&delegate), "860f0700000003000000047265656602636f0500000000000000");
    assert_eq!(hex(&Message::Stored { alone: true }), "861001");
    let not_stored = Message::NotStored { unknown: true, why: "no".to_owned() };
    assert_eq!(hex(&not_stored), "861101026e6f");
    assert_eq!(hex(&Message::Room { bytes: 64, expires: true }), "8626400000000000000001");
    assert_eq!(hex(&Message::Roomed { packed: 9 }), "86270900000000000000");
    let locate = Message::Locate { partition: 7, epoch: 3, hash: 0x0102 };
    assert_eq!(hex(&locate), "861207000000030000000201000000000000");
    let slots = Message::Slots { partition: 7, epoch: 3, bucket: 1, buckets: 2 };
    assert_eq!(hex(&slots), "862c07000000030000000100000002000000");
    let slots_are = Message::SlotsAre { words: vec![9, 0] };
    assert_eq!(hex(&slots_are), "862d0209000000000000000000000000000000");
    let declined = Message::Declined { why: Why::Resolve, grant };
    assert_eq!(hex(&declined), "860502010000000000000003000000000000000200000000000000");
}

#[test]
fn messages_round_trip_and_other_bytes_are_refused() {
    let write = Message::Write {
        partition: 1,
        epoch: 2,
        hash: 3,
        kind: WriteKind::Insert,
        index: 4,
        expect: 5,
        exact: true,
        new: 6,
        others: vec![Place { index: 1, word: 2 }; 3],
        stamp_us: 7,
        reads: 8,
    };
    let bytes = write.encode();
    assert_eq!(Message::decode(&bytes), Ok(write));
    for end in 0..bytes.len() {
        assert!(Message::decode(&bytes[..end]).is_err(), "{end} bytes");
    }
    let mut long = bytes.clone();
    long.push(0);
    assert!(Message::decode(&long).is_err());
    let mut other = bytes;
    other[0] = VERSION + 1;
    assert!(Message::decode(&other).is_err());
}

#[test]
fn no_message_passes_for_one_of_the_pools() {
    let ours = Message::Status {}.encode();
    let pools = archipelago_pool::wire::Message::Status {}.encode();
    assert!(is_ours(&ours) && !is_ours(&pools) && !is_ours(&[]));
    assert!(archipelago_pool::wire::Message::decode(&ours).is_err());
    assert!(Message::decode(&pools).is_err());
}
