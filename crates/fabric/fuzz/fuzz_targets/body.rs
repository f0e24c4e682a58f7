//! Decodes the bodies of every kind of frame, and keys.
#![no_main]

use archipelago_base::codec::Reader;
use archipelago_fabric::wire::{self, Ask, Challenge, Hello, Opened, Proof, Welcome};
use archipelago_fabric::{Attached, BULK_BYTES_MAX, Batch, RemoteKey};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hello) = Hello::decode(bytes) {
        let mut again = Vec::new();
        hello.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(ask) = Ask::decode(bytes) {
        let mut again = Vec::new();
        ask.encode(&mut again);
        assert_eq!(again, bytes);
        let _ = (ask.check_once(), ask.check_idempotent());
    }
    if let Ok(welcome) = Welcome::decode(bytes) {
        let mut again = Vec::new();
        welcome.encode(&mut again);
        assert_eq!(again, bytes);
    }
    let _ = (Challenge::decode(bytes), Proof::decode(bytes), Opened::decode(bytes));
    let _ = wire::decode_answer(bytes, BULK_BYTES_MAX);
    let _ = (RemoteKey::decode(&mut Reader::new(bytes)), wire::decode_key(bytes));
    let _ = wire::decode_goodbye(bytes);
    let mut ops = Vec::new();
    let _ = wire::decode_ops(bytes, &mut ops);
    let mut batch = Batch::new();
    batch.read(Attached::new(0, 0), 0, 8);
    batch.write(Attached::new(0, 0), 8, &[1, 2, 3]);
    batch.compare_swap(Attached::new(0, 0), 16, 1, 2);
    batch.fetch_add(Attached::new(0, 0), 16, 3);
    let _ = wire::decode_done(bytes, &mut batch);
});
