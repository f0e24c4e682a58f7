//! Golden bytes of the messages, and messages that are encoded and decoded.

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::{ClientId, NodeId};

use super::{BlockAt, Message, NodeCounters, Refused, RefusedFor, VERSION, Why};
use crate::address::BlockId;
use crate::config::{Config, Place, Sharing};

fn config() -> Config {
    Config {
        block: BlockId { home: NodeId(3), number: 9 },
        epoch: Epoch(0x12),
        born: Epoch(0x11),
        owner: Some(ClientId(0xabcd)),
        label: 7,
        request: 1,
        sharing: Sharing::All,
        wanted: 3,
        copies: vec![Place { node: NodeId(3), life: Epoch(5) }],
    }
}

fn beat() -> Message {
    Message::Beat {
        node: NodeId(3),
        life: Epoch(5),
        endpoints: vec!["a.b".into()],
        block_bytes: 0x1000,
        blocks_max: 8,
        blocks_used: 2,
        term: 0x0102,
        held_ms: 0x0304,
        counters: NodeCounters {
            operations: 0x21,
            requests: 0x22,
            duplicates: 0x23,
            refused: 0x24,
            malformed: 0x25,
            given: 0x26,
            freed: 0x27,
            filled: 0x28,
            filled_bytes: 0x29,
            refusals: vec![
                RefusedFor { why: Why::Full, count: 0x2a },
                RefusedFor { why: Why::Malformed, count: 0x2b },
            ],
        },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes() {
    let word = |low: &str| format!("{low:0<16}");
    let install = Message::Install { term: 0x0102, config: config() };
    let expected = [
        "0314",
        &word("0201"),
        &word("03"),
        "09000000",
        &word("12"),
        &word("11"),
        "01",
        &word("cdab"),
        &word("07"),
        &word("01"),
        "01",
        "03000000",
        "01",
        &word("03"),
        &word("05"),
    ];
    assert_eq!(hex(&install.encode()), expected.concat());
    let refuse = Message::refuse(Refused::at(Why::Full, 0x1000));
    assert_eq!(hex(&refuse.encode()), ["031a01", &word("0010")].concat());
    let clients = vec![ClientId(4), ClientId(5)];
    let fence = Message::Fence { term: 1, clients, tell: true };
    let bytes = ["0316", &word("01"), "02", &word("04"), &word("05"), "01"].concat();
    assert_eq!(hex(&fence.encode()), bytes);
    let fenced = vec![ClientId(4)];
    let is = Message::FenceIs { life: Epoch(7), held: Vec::new(), fenced };
    assert_eq!(hex(&is.encode()), ["0317", &word("07"), "00", "01", &word("04")].concat());
    let gone = Message::Gone { client: ClientId(4) };
    assert_eq!(hex(&gone.encode()), ["031b", &word("04")].concat());
    assert_eq!(hex(&Message::Find { label: 4 }.encode()), ["031c", &word("04")].concat());
    let at = BlockAt { block: BlockId { home: NodeId(3), number: 9 }, epoch: Epoch(7) };
    let found = Message::Found { blocks: vec![at] };
    let bytes = ["031d", "01", &word("03"), "09000000", &word("07")].concat();
    assert_eq!(hex(&found.encode()), bytes);
    let claim = Message::Claim { term: 1, after: None };
    assert_eq!(hex(&claim.encode()), ["0310", &word("01"), "00"].concat());
    assert_eq!(hex(&Message::Done {}.encode()), "0319");
    let expected = [
        "030c",
        &word("03"),
        &word("05"),
        "0103612e62",
        &word("0010"),
        &word("08"),
        &word("02"),
        &word("0201"),
        &word("0403"),
        &word("21"),
        &word("22"),
        &word("23"),
        &word("24"),
        &word("25"),
        &word("26"),
        &word("27"),
        &word("28"),
        &word("29"),
        "02",
        "01",
        &word("2a"),
        "0b",
        &word("2b"),
    ];
    assert_eq!(hex(&beat().encode()), expected.concat());
}

#[test]
fn golden_bytes_of_promises() {
    let word = |low: &str| format!("{low:0<16}");
    let (term, manager, beat_ms) = (1, ClientId(2), 3);
    let beat_is = Message::BeatIs { term, manager, beat_ms, alone: true };
    let bytes = ["030d", &word("01"), &word("02"), &word("03"), "01"].concat();
    assert_eq!(hex(&beat_is.encode()), bytes);
    let promise = Message::Promise { term: 1, lease_ms: 2 };
    assert_eq!(hex(&promise.encode()), ["031e", &word("01"), &word("02")].concat());
    assert_eq!(hex(&Message::Promised { term: 1 }.encode()), ["031f", &word("01")].concat());
}

#[test]
fn truncated_extended_or_foreign_message_is_refused() {
    let bytes = Message::Located { config: config() }.encode();
    assert_eq!(Message::decode(&bytes), Ok(Message::Located { config: config() }));
    for cut in 0..bytes.len() {
        assert!(Message::decode(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(Message::decode(&longer).is_err());
    let mut other = bytes;
    other[0] = VERSION + 1;
    let refused = Message::decode(&other).expect_err("another version");
    assert!(refused.to_string().contains("version"));
    // A count that exceeds the bytes allocates nothing and is refused.
    let mut lies = Message::Located { config: Config { copies: Vec::new(), ..config() } }.encode();
    lies.pop();
    lies.extend([0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert!(Message::decode(&lies).is_err());
}

#[test]
fn random_bytes_are_refused_or_encoded_as_before() {
    let mut rng = Rng::with_seed(4);
    let seeds = [
        Message::Install { term: 1, config: config() }.encode(),
        Message::Renew { client: ClientId(1), label: 2, first: true, view: 0, owned: 0 }.encode(),
        Message::Status {}.encode(),
        beat().encode(),
    ];
    for _ in 0..20_000 {
        let mut bytes = seeds[rng.usize(..seeds.len())].clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        if let Ok(message) = Message::decode(&bytes) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
}

#[test]
fn only_refusals_of_lost_ownership_are_fenced() {
    let kind = |why: Why| Refused::from(why).kind();
    for why in [Why::OldEpoch, Why::OldTerm, Why::Evicted] {
        assert_eq!(kind(why), ErrorKind::Fenced, "{why:?}");
    }
    for why in [Why::Full, Why::Changing, Why::NotReady, Why::Standby] {
        assert_eq!(kind(why), ErrorKind::Busy, "{why:?}");
    }
    assert_eq!(kind(Why::UnknownBlock), ErrorKind::NotFound);
}
