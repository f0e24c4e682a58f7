#![no_main]
//! Opens, searches and walks arbitrary bytes as the image of a sealed shard.

use std::ops::ControlFlow;
use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_engine::iter::InternalIterator;
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{SealedImage, SealedShard};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: Vec<u8>| {
    let Ok(image) = SealedImage::open(bytes) else { return };
    let mut steps = 0;
    let mut iter = SealedShard::verified_iter(Arc::clone(&image));
    iter.seek_to_first();
    while iter.valid() {
        let key = iter.key()[..iter.key().len() - 8].to_vec();
        let lookup = Lookup::new(&key, SeqNo::MAX);
        let _ = image.lookup(&lookup, |_| ControlFlow::Continue(()));
        steps += 1;
        assert!(steps <= image.entries());
        iter.next();
    }
});
