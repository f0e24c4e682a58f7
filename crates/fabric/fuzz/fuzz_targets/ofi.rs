//! Decodes the further messages of `ofi`. A message that is decoded must be encoded as the same
//! bytes.
#![no_main]

use archipelago_fabric::wire::ofi::{Endpoints, HEADER_BYTES, Header, OpenedOnCard};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(endpoints) = Endpoints::decode(bytes) {
        endpoints.encode(&mut again);
        assert_eq!(again, bytes);
    }
    again.clear();
    if let Ok(opened) = OpenedOnCard::decode(bytes) {
        OpenedOnCard::encode(&opened, &mut again);
        assert_eq!(again, bytes);
    }
    if let Some(header) = bytes.first_chunk::<{ HEADER_BYTES as usize }>()
        && let Some(read) = Header::decode(header, bytes.len() as u64)
    {
        assert_eq!(read.encode(), *header);
        assert_eq!(HEADER_BYTES + u64::from(read.bytes), bytes.len() as u64);
    }
});
