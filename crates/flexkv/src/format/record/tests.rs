use archipelago_base::random::Rng;
use proptest::prelude::*;

use super::*;

const MAX: u64 = 16 << 20;

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut out = vec![0xee; record.bytes().expect("fits") as usize];
    assert_eq!(record.encode(&mut out), Some(out.len()));
    out
}

fn reseal(bytes: &mut [u8]) {
    let crc = checksum::crc(&bytes[CHECKED_FROM..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn head_has_the_key_without_the_value() {
    let record = Record { expires_ms: 7, ..Record::new(b"reef", &[1; 5000]) };
    let mut bytes = encoded(&record);
    let read = Head::bytes(4) as usize;
    assert_eq!(read, 64);
    let head = Head::decode(&bytes[..read]).expect("sound").expect("all of it");
    assert_eq!((head.key, head.header.expires_ms), (&b"reef"[..], 7));
    assert_eq!(Head::decode(&bytes[..51]), Ok(None), "a byte of the key is missing");
    assert_eq!(Head::bytes(17), 128);
    bytes[48] = b'l';
    assert_eq!(Head::decode(&bytes[..read]), Err(RecordRefused::Hash), "torn");
    bytes[0] = 0;
    assert!(matches!(Head::decode(&bytes[..read]), Err(RecordRefused::NotARecord(_))));
}

#[test]
fn golden_bytes() {
    let record = Record {
        expires_ms: 0x0605_0403_0201,
        previous: 0x0102_0304_0506_0708,
        writer: 0x1112_1314_1516_1718,
        ..Record::new(b"reef", b"coral")
    };
    let bytes = encoded(&record);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = [
        "464c585201000001",
        "482baa22",
        "05000000",
        "0400",
        "010203040506",
        "fce8e88e9e42ab23",
        "0807060504030201",
        "1817161514131211",
        "72656566",
        "636f72616c",
        &"00".repeat(64 - 57),
    ];
    assert_eq!(hex, expected.concat());
    assert_eq!(VALID_WORD ^ INVALID_WORD, 1 << 56);
}

#[test]
fn clearing_the_valid_bit_is_seen_and_changes_nothing_else() {
    let mut bytes = encoded(&Record::new(b"key", b"value"));
    bytes[..8].copy_from_slice(&INVALID_WORD.to_le_bytes());
    let expected = Record { valid: false, ..Record::new(b"key", b"value") };
    assert_eq!(Record::decode(&bytes, MAX), Ok(Decoded::Record(expected)));
}

#[test]
fn a_short_read_says_how_many_bytes_are_needed() {
    let value = vec![7; 20_000];
    let bytes = encoded(&Record::new(b"long", &value));
    assert_eq!(bytes.len(), 20_096);
    for cut in [0, 8, 47, 48, 64, 255 * 64, bytes.len() - 1] {
        let needs = if cut < 48 { 64 } else { 20_096 };
        assert_eq!(Record::decode(&bytes[..cut], MAX), Ok(Decoded::Needs(needs)), "{cut}");
    }
    assert_eq!(Record::decode(&bytes[..64], 4096), Err(RecordRefused::TooLong(20_096)));
    assert!(matches!(Record::decode(&bytes, MAX), Ok(Decoded::Record(_))));
}

#[test]
fn record_that_is_too_long_is_not_written() {
    let long = vec![1; KEY_BYTES_MAX + 1];
    assert_eq!(Record::new(&long, b"").bytes(), None);
    assert_eq!(Record::new(&long[1..], b"").bytes(), Some(65_600));
    assert_eq!(Record { expires_ms: 1 << 48, ..Record::new(b"", b"") }.bytes(), None);
    let mut small = [9; 63];
    assert_eq!(Record::new(b"", b"").encode(&mut small), None);
    assert_eq!(small, [9; 63], "nothing was written");
}

#[test]
fn each_reason_has_an_error() {
    let good = encoded(&Record::new(b"key", b"value"));
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let refused = |bytes: &[u8]| Record::decode(bytes, MAX).expect_err("refused");
    assert!(matches!(refused(&with(0, b'x')), RecordRefused::NotARecord(_)));
    assert!(matches!(refused(&with(7, 2)), RecordRefused::NotARecord(_)));
    assert_eq!(refused(&with(4, 2)), RecordRefused::Version(2));
    assert!(matches!(refused(&with(8, good[8] ^ 1)), RecordRefused::Checksum { .. }));
    assert!(matches!(refused(&with(63, 1)), RecordRefused::Checksum { .. }));
    let mut padded = with(63, 1);
    reseal(&mut padded);
    assert_eq!(refused(&padded), RecordRefused::Padding);
    let mut foreign = with(24, good[24] ^ 1);
    reseal(&mut foreign);
    assert_eq!(refused(&foreign), RecordRefused::Hash);
    assert!(refused(&[0; 64]).to_string().contains("no record"));
}

#[test]
fn flipped_bit_after_the_first_word_is_noticed() {
    let good = encoded(&Record::new(b"key", b"a value of some length, over one unit of 64 bytes"));
    for bit in 64..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let read = Record::decode(&bytes, MAX);
        assert!(!matches!(read, Ok(Decoded::Record(_))), "bit {bit}");
    }
}

#[test]
fn random_damage_never_panics() {
    let mut rng = Rng::with_seed(11);
    let good = encoded(&Record::new(b"key", &[5; 100]));
    for _ in 0..50_000 {
        let mut bytes = good.clone();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        if rng.bool() {
            reseal(&mut bytes);
        }
        bytes.truncate(rng.usize(..=bytes.len()));
        if let Ok(Decoded::Record(record)) = Record::decode(&bytes, MAX) {
            let len = record.bytes().expect("fits") as usize;
            assert_eq!(encoded(&record), bytes[..len]);
        }
    }
}

proptest! {
    #[test]
    fn written_bytes_are_read_back(
        key in proptest::collection::vec(any::<u8>(), 0..300),
        value in proptest::collection::vec(any::<u8>(), 0..3000),
        expires_ms in 0..=EXPIRY_MAX,
        valid: bool,
        previous: u64,
        writer: u64,
    ) {
        let record = Record { valid, key: &key, value: &value, expires_ms, previous, writer };
        let mut bytes = encoded(&record);
        prop_assert_eq!(bytes.len() % 64, 0);
        bytes.extend([0xaa; 64]);
        prop_assert_eq!(Record::decode(&bytes, MAX), Ok(Decoded::Record(record)));
        prop_assert_eq!(record.is_expired(expires_ms), expires_ms != 0);
    }
}
