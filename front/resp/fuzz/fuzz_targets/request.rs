//! Any bytes, in any pieces, through the request parser. The first byte chooses the pieces.
#![no_main]

use archipelago_resp::request::{Limits, Parser, Progress};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&step, input)) = data.split_first() else { return };
    let mut parser = Parser::new(Limits::default());
    let (mut buffer, mut start) = (Vec::new(), 0);
    for piece in input.chunks(usize::from(step).max(1)) {
        buffer.extend_from_slice(piece);
        while start < buffer.len() {
            match parser.advance(&mut buffer[start..]) {
                Ok(Progress::Complete { len }) => {
                    for &(from, to) in parser.spans() {
                        assert!(from <= to && to as usize <= len);
                    }
                    start += len;
                }
                Ok(Progress::Incomplete { wanted }) => {
                    assert!(wanted > 0);
                    break;
                }
                Err(_) => return,
            }
        }
        buffer.drain(..start);
        start = 0;
    }
});
