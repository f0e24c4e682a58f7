//! Decodes records. A decoded record is encoded as the same bytes. Each input is also tried with a
//! right checksum, so that the checks after the checksum run.
#![no_main]

use archipelago_flexkv::format::{Decoded, Head, Header, Record, key_hash};
use libfuzzer_sys::fuzz_target;

const BYTES_MAX: u64 = 16 << 20;

fn decode(bytes: &[u8]) {
    if let Ok(Decoded::Record(record)) = Record::decode(bytes, BYTES_MAX) {
        let mut again = vec![0; record.bytes().expect("it was read") as usize];
        record.encode(&mut again).expect("it was read");
        assert_eq!(again, bytes[..again.len()]);
        let head = Head::decode(bytes).expect("a record has one").expect("and all of it");
        assert_eq!((head.key, head.header.expires_ms), (record.key, record.expires_ms));
    }
    if let Ok(Some(head)) = Head::decode(bytes) {
        assert_eq!(head.header.hash, key_hash(head.key).0);
    }
}

fuzz_target!(|bytes: &[u8]| {
    decode(bytes);
    let mut bytes = bytes.to_vec();
    if let Ok(Some(header)) = Header::read(&bytes)
        && let Some(record) = bytes.get_mut(..header.record_bytes() as usize)
    {
        let crc = archipelago_base::checksum::crc(&record[12..]);
        record[8..12].copy_from_slice(&crc.to_le_bytes());
        decode(&bytes);
    }
});
