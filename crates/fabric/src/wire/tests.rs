//! Golden bytes of every frame, refusals of wrong bytes, and round trips.

use archipelago_base::Epoch;
use proptest::prelude::*;

use super::*;
use crate::batch::{Attached, Batch, Outcome};
use crate::body::Body;
use crate::ids::{ClientId, ClusterId, NodeId, RegionId, RemoteKey, Rights};
use crate::refusal::{Reason, Refusal};

const REGION: Attached = Attached::new(1, 0);
const KEY: (RegionId, u64) = (RegionId(3), 0x0001_0203_0405_0607);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn frame(kind: Kind, number: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, kind, number, fill);
    out
}

fn sample() -> Batch {
    let mut batch = Batch::new();
    batch.read(REGION, 64, 8);
    batch.write(REGION, 72, b"coral");
    batch.compare_swap(REGION, 8, 1, 2);
    batch.fetch_add(REGION, 16, 3);
    batch
}

fn encoded(batch: &mut Batch) -> Vec<u8> {
    let keys = vec![KEY; batch.len()];
    let mut body = Vec::new();
    encode_ops(&mut body, batch, &keys);
    body
}

/// Ascending bytes from `first` on.
fn counted<const BYTES: usize>(first: u8) -> [u8; BYTES] {
    std::array::from_fn(|at| first + at as u8)
}

fn outcomes() -> Vec<u8> {
    let mut body = Vec::new();
    let at = put_done_read(&mut body, 8);
    body[at..].copy_from_slice(b"bytes!!!");
    put_done(&mut body, None);
    put_done(&mut body, Some(1));
    put_refused(&mut body, Refusal::at(Reason::OutOfRange, 4096));
    body
}

#[test]
fn frames_have_golden_bytes() {
    let hello = Hello {
        client: ClientId(7),
        resumed: true,
        node: Some(NodeId(1)),
        epoch: None,
        introduction: None,
    };
    let welcome = Welcome { node: NodeId(1), epoch: Epoch(2), proof: None };
    let cluster = ClusterId(counted(0xc0));
    let introduction = Some(Introduction { cluster, nonce: Nonce(counted(0)) });
    let challenge = Challenge { node: NodeId(1), epoch: Epoch(2), nonce: Nonce(counted(0x40)) };
    let proof = Proof(counted(0x80));
    let key = RemoteKey {
        node: NodeId(1),
        epoch: Epoch(2),
        region: KEY.0,
        tag: KEY.1,
        len: 4096,
        rights: Rights::ALL,
    };
    let deadline = std::time::Duration::from_secs(1);
    let ask = Ask { oldest: 4, retry: true, deadline, answer_bytes_max: 256 << 10, body: b"reef" };
    let idempotent = Ask { oldest: 0, retry: false, answer_bytes_max: 4096, ..ask };
    let frames = [
        frame(Kind::Hello, 0, |out| hello.encode(out)),
        frame(Kind::Welcome, 0, |out| welcome.encode(out)),
        frame(Kind::Goodbye, 0, |out| put_refused(out, Reason::Protocol.into())),
        frame(Kind::Attach, 1, |out| key.encode(out)),
        frame(Kind::Attached, 1, |out| {
            Opened::encode(&Ok(Opened { len: 4096, rights: Rights::READ }), out);
        }),
        frame(Kind::Batch, 2, |out| out.extend(encoded(&mut sample()))),
        frame(Kind::Done, 2, |out| out.extend(outcomes())),
        frame(Kind::Request, 5, |out| ask.encode(out)),
        frame(Kind::Answer, 5, |out| put_answer(out, &Ok(Body::copy(b"feer")))),
        frame(Kind::Answer, 6, |out| put_answer(out, &Err(Reason::Unanswered.into()))),
        frame(Kind::Idempotent, 3, |out| idempotent.encode(out)),
        frame(Kind::IdempotentAnswer, 3, |out| put_answer(out, &Ok(Body::copy(b"feer")))),
        frame(Kind::Hello, 0, |out| Hello { introduction, ..hello }.encode(out)),
        frame(Kind::Challenge, 0, |out| challenge.encode(out)),
        frame(Kind::Proof, 0, |out| proof.encode(out)),
        frame(Kind::Welcome, 0, |out| Welcome { proof: Some(proof), ..welcome }.encode(out)),
    ];
    let text: Vec<String> = frames.iter().map(|frame| hex(frame)).collect();
    assert_eq!(text, GOLDEN);
}

const GOLDEN: [&str; 16] = [
    "2600000001000000000000000000000042debd781164c01641524348464142000300000007000000\
     00000000010100000000000000ffffffffffffffff00",
    "1d0000000200000000000000000000000794588b9049bd5441524348464142000300000001000000\
     00000000020000000000000000",
    "0900000003000000000000000000000063c40b6adf3e53c20d0000000000000000",
    "250000000400000001000000000000006647cfd69d894dd001000000000000000200000000000000\
     030000000706050403020100001000000000000007",
    "0a0000000500000001000000000000001721eb97082d89b300001000000000000001",
    "7d0000000700000002000000000000003b1942996028de1904000000010300000007060504030201\
     0040000000000000000800000002030000000706050403020100480000000000000005000000636f\
     72616c03030000000706050403020100080000000000000001000000000000000200000000000000\
     0403000000070605040302010010000000000000000300000000000000",
    "20000000080000000200000000000000abe62672f81e556a00080000006279746573212121000001\
     00000000000000050010000000000000",
    "150000000900000005000000000000004bef6cb7b3abf7bc040000000000000001e8030000000004\
     0072656566",
    "050000000a0000000500000000000000a4bbd8f27d68bba70066656572",
    "090000000a000000060000000000000001bf7d663bbca468120000000000000000",
    "150000000c00000003000000000000009813bff0ed0f939a000000000000000000e8030000001000\
     0072656566",
    "050000000d000000030000000000000017efe8d74f9a059f0066656572",
    "560000000100000000000000000000007f054f1af1e44cb141524348464142000300000007000000\
     00000000010100000000000000ffffffffffffffff01c0c1c2c3c4c5c6c7c8c9cacbcccdcecf0001\
     02030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    "300000000e0000000000000000000000facc5c514e03d7d601000000000000000200000000000000\
     404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f",
    "200000000f000000000000000000000075300b76b64bb1d4808182838485868788898a8b8c8d8e8f\
     909192939495969798999a9b9c9d9e9f",
    "3d00000002000000000000000000000079c514a785e76f5841524348464142000300000001000000\
     00000000020000000000000001808182838485868788898a8b8c8d8e8f909192939495969798999a\
     9b9c9d9e9f",
];

#[test]
fn batch_and_its_outcomes_round_trip() {
    let mut batch = sample();
    let body = encoded(&mut batch);
    let mut ops = Vec::new();
    decode_ops(&body, &mut ops).expect("sound");
    let actions: Vec<WireAction<'_>> = ops.iter().map(|op| op.action).collect();
    let expected = [
        WireAction::Read(8),
        WireAction::Write(b"coral"),
        WireAction::CompareSwap(1, 2),
        WireAction::FetchAdd(3),
    ];
    assert_eq!(actions, expected);
    assert!(ops.iter().all(|op| (op.region, op.tag) == KEY));
    batch.begin().expect("small");
    decode_done(&outcomes(), &mut batch).expect("sound");
    assert_eq!(batch.data(0), b"bytes!!!");
    assert_eq!(batch.outcome(1), Outcome::Visible);
    assert_eq!(batch.word(2), Some(1));
    let refusal = Refusal::at(Reason::OutOfRange, 4096);
    assert_eq!(batch.refusal(), Some((3, refusal)));
}

#[test]
fn cut_or_flipped_message_is_refused() {
    let whole = frame(Kind::Batch, 9, |out| out.extend(encoded(&mut sample())));
    for len in 0..whole.len() {
        assert_eq!(frame_at(&whole[..len]), Ok(None), "{len}");
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(frame_at(&bytes).is_err(), "bit {bit}");
    }
    let body = encoded(&mut sample());
    for len in 0..body.len() {
        assert!(decode_ops(&body[..len], &mut Vec::new()).is_err(), "{len}");
    }
    let done = outcomes();
    for len in 0..done.len() {
        assert!(decode_done(&done[..len], &mut sample()).is_err(), "{len}");
    }
}

#[test]
fn request_with_fields_of_the_other_sort_is_refused() {
    let deadline = std::time::Duration::from_secs(1);
    let once = Ask { oldest: 4, retry: true, deadline, answer_bytes_max: 1, body: b"" };
    let free = Ask { oldest: 0, retry: false, answer_bytes_max: 4 << 20, ..once };
    assert_eq!((once.check_once(), free.check_idempotent()), (Ok(()), Ok(())));
    assert!(free.check_once().is_err(), "the node would have to keep the answer");
    assert!(Ask { oldest: 1, ..free }.check_idempotent().is_err());
    assert!(Ask { retry: true, ..free }.check_idempotent().is_err());
}

#[test]
fn answer_beyond_its_limit_is_refused() {
    let mut body = Vec::new();
    put_answer(&mut body, &Ok(Body::copy(&[7; 9])));
    assert!(decode_answer(&body, 9).is_ok());
    assert!(decode_answer(&body, 8).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = frame_at(&bytes);
        let mut ops = Vec::new();
        let _ = decode_ops(&bytes, &mut ops);
        let _ = (Hello::decode(&bytes), Welcome::decode(&bytes), Opened::decode(&bytes));
        let _ = (Challenge::decode(&bytes), Proof::decode(&bytes));
        let _ = (Ask::decode(&bytes), decode_answer(&bytes, 100), decode_done(&bytes, &mut sample()));
    }

    #[test]
    fn any_frame_round_trips(
        number in any::<u64>(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
        behind in proptest::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut bytes = frame(Kind::Request, number, |out| out.extend_from_slice(&body));
        let len = bytes.len();
        bytes.extend_from_slice(&behind);
        let (read, taken) = frame_at(&bytes).expect("sound").expect("whole");
        prop_assert_eq!(taken, len);
        prop_assert_eq!(read, Frame { kind: Kind::Request, number, body: &body[..] });
    }
}
