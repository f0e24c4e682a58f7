//! Decodes frames. A frame that is decoded must be encoded as the same bytes.
#![no_main]

use archipelago_fabric::wire::{frame_at, put_frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((frame, len))) = frame_at(bytes) {
        let mut again = Vec::new();
        put_frame(&mut again, frame.kind, frame.number, |out| out.extend_from_slice(frame.body));
        assert_eq!(again, bytes[..len]);
    }
});
