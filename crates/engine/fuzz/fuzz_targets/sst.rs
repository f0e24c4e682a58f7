//! Opens arbitrary bytes as a table and uses it: errors are fine, panics are not.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Error, Result, SeqNo};
use archipelago_engine::iter::InternalIterator;
use archipelago_engine::lookup::{Lookup, Visit};
use archipelago_engine::sst::{BlockCache, TableReadOptions, TableReader};
use archipelago_env::{IoContext, RandomFile};
use libfuzzer_sys::fuzz_target;

#[derive(Debug)]
struct Bytes(Vec<u8>);

impl RandomFile for Bytes {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _: IoContext) -> Result<()> {
        let start = offset as usize;
        let part = self.0.get(start..start.saturating_add(buf.len()));
        buf.copy_from_slice(part.ok_or_else(|| Error::invalid("read past the end"))?);
        Ok(())
    }
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

fuzz_target!(|bytes: &[u8]| {
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 20, &budget);
    let file = Arc::new(Bytes(bytes.to_vec()));
    let Ok(table) = TableReader::open(file, Path::new("fuzz.sst"), None, &cache, &budget) else {
        return;
    };
    let options = TableReadOptions::foreground();
    let _ = table.verify(options.context);
    let mut iter = table.iter(options);
    iter.seek_to_first();
    while iter.valid() {
        iter.next();
    }
    iter.seek_to_last();
    while iter.valid() {
        iter.prev();
    }
    let lookup = Lookup::new(b"apple", SeqNo::MAX);
    let _ = table.lookup(&lookup, &options, &mut |_| Visit::Continue(()));
});
