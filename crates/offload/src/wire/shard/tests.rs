//! Golden bytes of the messages, and messages that are encoded and decoded.

use archipelago_base::random::Rng;
use archipelago_base::{CfId, Epoch, SeqNo};
use archipelago_engine::key::{KeyRange, Kind};
use archipelago_fabric::{NodeId, RegionId, RemoteKey, Rights};

use super::*;
use crate::ids::{OffloadDb, OwnerStamp, Token};
use crate::job::Payload;
use crate::wire::is_offload_message;

fn owner() -> OwnerStamp {
    OwnerStamp { db: OffloadDb([0xd0; 16]), epoch: Epoch(2), token: Token([0xaa; 16]) }
}

fn name() -> ShardName {
    ShardName { epoch: Epoch(2), memtable: 0x0304, shard: 5 }
}

fn place() -> ShardPlace {
    let (node, epoch, region) = (NodeId(1), Epoch(9), RegionId(7));
    let key = RemoteKey { node, epoch, region, tag: 0x1122, len: 64, rights: Rights::READ };
    ShardPlace { key, at: 0x40, bytes: 0x30 }
}

fn info() -> ShardInfo {
    ShardInfo {
        family: CfId(6),
        keys: span(),
        after_seq: SeqNo(10),
        last_seq: SeqNo(20),
        oldest_log: 3,
        seal_log: 4,
    }
}

fn span() -> KeySpan {
    KeySpan(KeyRange { start: b"a".to_vec(), end: Some(b"m".to_vec()) })
}

fn bytes(text: &str) -> Payload {
    text.as_bytes().to_vec().into()
}

fn inline() -> Version {
    Version { seq: SeqNo(8), kind: Kind::Merge, value: StoredValue::Inline(bytes("+1")) }
}

fn by_place() -> Version {
    let value = StoredValue::At(RecordPlace { shard: 1, at: 0x20, len: 0x10 });
    Version { seq: SeqNo(7), kind: Kind::Put, value }
}

fn placed() -> Version {
    let place = RecordPlace { shard: 1, at: 0x20, len: 0x10 };
    let value = StoredValue::Placed { value: bytes("kelp"), place };
    Version { seq: SeqNo(6), kind: Kind::Put, value }
}

fn share() -> NodeShare {
    let (used_bytes, guaranteed_bytes, limit_bytes) = (0x2000, 0x5000, 0x3000);
    NodeShare { used_bytes, guaranteed_bytes, limit_bytes, databases: 4 }
}

fn account() -> DatabaseAccount {
    DatabaseAccount {
        db: OffloadDb([0xd0; 16]),
        image_bytes: 1,
        used_bytes: 2,
        guaranteed_bytes: 3,
        borrowed_bytes: 4,
        share_bytes: 5,
        claimed_bytes: 6,
    }
}

fn resume() -> ResumeAt {
    ResumeAt { key: bytes("k"), seq: Some(SeqNo(6)) }
}

/// Little-endian number of eight bytes, whose low bytes are given.
fn word(low: &str) -> String {
    format!("{low:0<16}")
}

/// Number of four bytes.
fn half(low: &str) -> String {
    format!("{low:0<8}")
}

fn owner_bytes() -> String {
    ["d0".repeat(16), word("02"), "aa".repeat(16)].concat()
}

fn name_bytes() -> String {
    [word("02"), word("0403"), half("05")].concat()
}

fn place_bytes() -> String {
    let key = [word("01"), word("09"), half("07"), word("2211"), word("40"), "01".to_owned()];
    [key.concat(), word("40"), word("30")].concat()
}

fn share_bytes() -> String {
    [word("0020"), word("0050"), word("0030"), half("04")].concat()
}

fn account_bytes() -> String {
    let fields = ["01", "02", "03", "04", "05", "06"].map(word);
    "d0".repeat(16) + &fields.concat()
}

fn info_bytes() -> String {
    [half("06"), "0161".into(), "01".into(), "016d".into(), word("0a"), word("14")].concat()
        + &word("03")
        + &word("04")
}

fn inline_bytes() -> String {
    [word("08"), "02".into(), "01".into(), "022b31".into()].concat()
}

fn by_place_bytes() -> String {
    [word("07"), "01".into(), "02".into(), half("01"), word("20"), word("10")].concat()
}

fn placed_bytes() -> String {
    let place = [half("01"), word("20"), word("10")].concat();
    [word("06"), "01".into(), "03".into(), place, "046b656c70".into()].concat()
}

/// A message, its version and code, and the bytes of its fields.
type Golden = (ShardMessage, &'static str, Vec<String>);

fn names() -> String {
    "01".to_owned() + &name_bytes()
}

/// Requests that change something or list. The bytes of the owner come before the others.
fn changes() -> Vec<Golden> {
    let (owner, shard, shards) = (owner(), name(), vec![name()]);
    let piece = Piece { at: 0x10, len: 0x20, sum: 0x01020304 };
    vec![
        (
            ShardMessage::Begin { owner, landing_bytes: 0x1000, guaranteed_bytes: 0x5000 },
            "7701",
            vec![word("0010"), word("0050")],
        ),
        (
            ShardMessage::Land { owner, shard, bytes: 0x2000 },
            "7702",
            vec![name_bytes(), word("0020")],
        ),
        (
            ShardMessage::Register { owner, shard, grant: 11, info: info(), pieces: vec![piece] },
            "7703",
            vec![
                name_bytes(),
                word("0b"),
                info_bytes(),
                "01".into(),
                word("10"),
                word("20"),
                word("04030201"),
            ],
        ),
        (
            ShardMessage::Release { owner, shards: shards.clone(), oldest: 3 },
            "7704",
            vec![names(), word("03")],
        ),
        (ShardMessage::List { owner, after: Some(shard) }, "7708", vec!["01".into(), name_bytes()]),
        (ShardMessage::Adopt { owner, shards }, "7709", vec![names()]),
        (ShardMessage::Purge { owner }, "770a", Vec::new()),
        (
            ShardMessage::GiveBack { owner, shard, grant: 11 },
            "770d",
            vec![name_bytes(), word("0b")],
        ),
    ]
}

/// Requests that search.
fn searches() -> Vec<Golden> {
    let (owner, shards) = (owner(), vec![name()]);
    let (key, snapshot, inline_max) = (bytes("k"), SeqNo(9), 512);
    let ask = KeyAsk { key: bytes("k"), floor: SeqNo(4), within: vec![0, 1] };
    vec![
        (
            ShardMessage::Get {
                owner,
                shards: shards.clone(),
                key,
                floor: SeqNo(4),
                snapshot,
                inline_max,
                wants_place: true,
            },
            "7705",
            vec![names(), "016b".into(), word("04"), word("09"), half("0002"), "01".into()],
        ),
        (
            ShardMessage::MultiGet {
                owner,
                shards: shards.clone(),
                asks: vec![ask],
                snapshot,
                inline_max,
                wants_place: false,
            },
            "7706",
            vec![
                names(),
                "01".into(),
                "016b".into(),
                word("04"),
                "02".into(),
                half("00"),
                half("01"),
                word("09"),
                half("0002"),
                "00".into(),
            ],
        ),
        (
            ShardMessage::Scan {
                owner,
                shards,
                keys: span(),
                resume: Some(resume()),
                direction: Direction::Backward,
                snapshot,
                bytes_max: 0x100,
                inline_max,
            },
            "7707",
            vec![
                names(),
                "016101016d".into(),
                "01016b01".into(),
                word("06"),
                "02".into(),
                word("09"),
                half("0001"),
                half("0002"),
            ],
        ),
    ]
}

/// Answers of the host.
fn answers() -> Vec<Golden> {
    let found = KeyVersions { versions: vec![inline()], resume: Some(SeqNo(5)) };
    let whole = KeyVersions { versions: vec![placed()], resume: None };
    let place_of_key = place_bytes()[..74].to_owned();
    let record = PageRecord { key: bytes("k"), version: by_place() };
    let listed = ListedShard { name: name(), info: info(), place: place() };
    let begun = ShardMessage::Begun {
        life: Epoch(9),
        landing_bytes: 0x1000,
        image_bytes_max: 0x800,
        share: share(),
        shards: 2,
    };
    let landing = ShardMessage::Landing {
        grant: 11,
        key: place().key,
        at: 0x40,
        bytes: 0x30,
        credit_bytes: 0x90,
        share: share(),
    };
    let refusal = ShardRefusal::at(ShardWhy::Full, 12).of(name());
    vec![
        (begun, "7720", vec![word("09"), word("0010"), word("0008"), share_bytes(), half("02")]),
        (
            landing,
            "7721",
            vec![word("0b"), place_of_key, word("40"), word("30"), word("90"), share_bytes()],
        ),
        (ShardMessage::Registered { place: place() }, "7722", vec![place_bytes()]),
        (ShardMessage::Done { shards: 3, share: share() }, "7723", vec![half("03"), share_bytes()]),
        (
            ShardMessage::Versions { found: found.clone() },
            "7724",
            vec!["01".into(), inline_bytes(), "01".into(), word("05")],
        ),
        (
            ShardMessage::Versions { found: whole },
            "7724",
            vec!["01".into(), placed_bytes(), "00".into()],
        ),
        (
            ShardMessage::ManyVersions { found: vec![found, KeyVersions::default()] },
            "7725",
            vec!["02".into(), "01".into(), inline_bytes(), "01".into(), word("05"), "0000".into()],
        ),
        (
            ShardMessage::Page { records: vec![record], end: PageEnd::At(resume()) },
            "7726",
            vec![
                "01".into(),
                "016b".into(),
                by_place_bytes(),
                "03".into(),
                "016b01".into(),
                word("06"),
            ],
        ),
        (
            ShardMessage::Listed { shards: vec![listed], more: true },
            "7727",
            vec!["01".into(), name_bytes(), info_bytes(), place_bytes(), "01".into()],
        ),
        (
            ShardMessage::Refused { refusal },
            "7728",
            vec!["02".into(), word("0c"), "01".into(), name_bytes()],
        ),
    ]
}

/// The answer to an operator.
fn accounted() -> Golden {
    let databases = vec![account()];
    let (limit_bytes, is_draining, image_bytes) = (0x7000, true, 0x900);
    let message = ShardMessage::Accounted { limit_bytes, is_draining, image_bytes, databases };
    (message, "7729", vec![word("0070"), "01".into(), word("0009"), "01".into(), account_bytes()])
}

fn samples() -> Vec<ShardMessage> {
    let more = [
        ShardMessage::Page { records: Vec::new(), end: PageEnd::Finished },
        ShardMessage::Page { records: Vec::new(), end: PageEnd::AfterLast },
        ShardMessage::List { owner: owner(), after: None },
        ShardMessage::Accounts {},
        ShardMessage::Drain { is_draining: true },
    ];
    let all = changes().into_iter().chain(searches()).chain(answers()).chain([accounted()]);
    all.map(|(message, ..)| message).chain(more).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn requests_have_golden_bytes() {
    for (message, head, fields) in changes().into_iter().chain(searches()) {
        let expected = [head.to_owned(), owner_bytes(), fields.concat()].concat();
        assert_eq!(hex(&message.encode()), expected, "{}", message.name());
    }
}

#[test]
fn messages_of_an_operator_have_golden_bytes() {
    assert_eq!(hex(&ShardMessage::Accounts {}.encode()), "770b");
    assert_eq!(hex(&ShardMessage::Drain { is_draining: true }.encode()), "770c01");
    assert_eq!(hex(&ShardMessage::Drain { is_draining: false }.encode()), "770c00");
}

#[test]
fn answers_have_golden_bytes() {
    for (message, head, fields) in answers().into_iter().chain([accounted()]) {
        let expected = [head.to_owned(), fields.concat()].concat();
        assert_eq!(hex(&message.encode()), expected, "{}", message.name());
    }
}

#[test]
fn every_message_is_equal_after_encoding_and_decoding() {
    for message in samples() {
        let (bytes, name) = (message.encode(), message.name());
        assert!(is_shard_message(&bytes), "{name}");
        assert_eq!(ShardMessage::decode(&bytes), Ok(message.clone()), "{name}");
        for cut in 0..bytes.len() {
            assert!(ShardMessage::decode(&bytes[..cut]).is_err(), "{name} of {cut} bytes");
        }
        assert!(ShardMessage::decode(&[bytes, vec![0]].concat()).is_err(), "{name} and a byte");
    }
}

#[test]
fn damaged_messages_are_refused_or_read_as_others() {
    let mut rng = Rng::with_seed(42);
    for message in samples() {
        for _ in 0..200 {
            let mut bytes = message.encode();
            let at = rng.usize(..bytes.len());
            bytes[at] ^= rng.u32(1..256) as u8;
            if let Ok(other) = ShardMessage::decode(&bytes) {
                assert_eq!(ShardMessage::decode(&other.encode()), Ok(other));
            }
        }
    }
}

#[test]
fn searches_and_notices_are_told_apart() {
    for message in samples() {
        let notices =
            ["Begin", "Release", "List", "Adopt", "Purge", "Accounts", "Drain", "GiveBack"];
        let notices = notices.contains(&message.name());
        assert_eq!(is_shard_notice(&message.encode()), notices, "{}", message.name());
        let searches = ["Get", "MultiGet", "Scan"].contains(&message.name());
        assert_eq!(is_shard_read(&message.encode()), searches, "{}", message.name());
    }
    assert!(!is_shard_read(&[SHARD_VERSION]) && !is_shard_read(&[]));
}

#[test]
fn first_byte_tells_shards_from_other_protocols() {
    assert_eq!(SHARD_VERSION, 0x77);
    // First bytes of the pool, of storage nodes, of jobs, of FlexKV, and of no protocol.
    for first in [0x03, 0x41, 0x61, 0x81, 0xf1] {
        assert!(!is_shard_message(&[first, 1]), "{first:#x}");
    }
    assert!(!is_shard_message(&[]));
    assert!(is_shard_message(&[0x7f]), "another version of these messages");
    assert!(!is_offload_message(&[0x72]), "a manager refuses it as a message of the pool");
}

#[test]
fn kinds_that_no_memtable_holds_are_refused() {
    let page = |kind: u8| {
        let record = PageRecord { key: bytes("k"), version: by_place() };
        let page = ShardMessage::Page { records: vec![record], end: PageEnd::Finished };
        let mut bytes = page.encode();
        // Version, code, count, key of two bytes, sequence number.
        assert_eq!(bytes[13], Kind::Put as u8);
        bytes[13] = kind;
        ShardMessage::decode(&bytes).is_ok()
    };
    let read: Vec<u8> = (0..=255).filter(|kind| page(*kind)).collect();
    assert_eq!(read, [0, 1, 2, 3]);
}

#[test]
fn next_page_begins_after_the_last_record() {
    let record = |seq, kind| {
        let version = Version { seq: SeqNo(seq), kind, value: StoredValue::Inline(bytes("")) };
        [PageRecord { key: bytes("k"), version }]
    };
    let after = |records: &[PageRecord]| PageEnd::AfterLast.resume(records).map(|at| at.seq);
    assert_eq!(after(&record(5, Kind::Merge)), Some(Some(SeqNo(4))), "operands go on");
    assert_eq!(after(&record(0, Kind::Merge)), Some(None), "no older one can exist");
    assert_eq!(after(&record(5, Kind::Put)), Some(None), "older ones are shadowed");
    assert_eq!(PageEnd::At(resume()).resume(&[]), Some(resume()));
    assert_eq!(PageEnd::Finished.resume(&record(5, Kind::Put)), None);
}

#[test]
fn refusals_say_what_is_wrong() {
    let refusal = ShardRefusal::at(ShardWhy::Full, 12).of(name());
    assert_eq!(refusal.to_string(), "the node has room for 12 bytes only (shard 2/772/5)");
}
