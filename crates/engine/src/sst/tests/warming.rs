//! Reads of blocks into the block cache for a caller that chooses them.

use std::sync::atomic::Ordering;

use super::*;

/// Wants every block, and ends the call after `reads_left` reads.
struct WantsAll {
    reads_left: usize,
}

impl WarmChoice for WantsAll {
    fn may_want(&mut self, _after: Option<&[u8]>, _last: &[u8]) -> bool {
        true
    }

    fn wants(&mut self, _after: Option<&[u8]>, _last: &[u8], _bytes: u64) -> bool {
        true
    }

    fn waits_for(&mut self, _bytes: u64) -> bool {
        let may_read = self.reads_left > 0;
        self.reads_left = self.reads_left.saturating_sub(1);
        may_read
    }
}

#[test]
fn warm_reads_stop_when_the_caller_ends_them() {
    for options in [TableOptions { block_bytes: 256, ..plain() }, tiny(Compression::None)] {
        let (bytes, meta) = build(&numbered(1000), &[], options);
        let (table, file) = open_with(&bytes, Some(&meta), 8 << 20).unwrap();
        let table = TableBlocks(&table);
        let before = file.reads.load(Ordering::Relaxed);
        assert_eq!(table.warm(None, &mut WantsAll { reads_left: 0 }).unwrap(), (0, 0));
        assert_eq!(file.reads.load(Ordering::Relaxed), before, "not even an index partition");
        let blocks = table.0.properties.data_blocks;
        let (read, _) = table.warm(None, &mut WantsAll { reads_left: usize::MAX }).unwrap();
        assert_eq!(read, blocks);
        assert!(table.spans().iter().all(|span| span.is_cached));
        assert_eq!(table.warm(None, &mut WantsAll { reads_left: 0 }).unwrap(), (0, 0));
    }
}

#[test]
fn warm_reads_before_the_end_stay_in_the_cache() {
    let (bytes, meta) = build(&numbered(1000), &[], tiny(Compression::None));
    let table = open(&bytes, &meta);
    let table = TableBlocks(&table);
    // A partition of the index, its blocks, and the next partition.
    let (read, _) = table.warm(None, &mut WantsAll { reads_left: 3 }).unwrap();
    assert!(read > 0 && read < table.0.properties.data_blocks, "{read}");
    let cached = table.spans().iter().filter(|span| span.is_cached).count();
    assert_eq!(cached as u64, read);
}

/// Wants nothing, and keeps the lower bound of the first question.
#[derive(Default)]
struct FirstBound(Option<Option<Vec<u8>>>);

impl WarmChoice for FirstBound {
    fn may_want(&mut self, after: Option<&[u8]>, _last: &[u8]) -> bool {
        self.0.get_or_insert_with(|| after.map(<[u8]>::to_vec));
        false
    }

    fn wants(&mut self, after: Option<&[u8]>, _last: &[u8], _bytes: u64) -> bool {
        self.0.get_or_insert_with(|| after.map(<[u8]>::to_vec));
        false
    }

    fn waits_for(&mut self, _bytes: u64) -> bool {
        false
    }
}

#[test]
fn first_block_has_the_lower_bound_of_the_caller() {
    for options in [TableOptions { block_bytes: 256, ..plain() }, tiny(Compression::None)] {
        let (bytes, meta) = build(&numbered(1000), &[], options);
        let table = open(&bytes, &meta);
        let mut choice = FirstBound::default();
        assert_eq!(TableBlocks(&table).warm(Some(b"a".to_vec()), &mut choice).unwrap(), (0, 0));
        assert_eq!(choice.0, Some(Some(b"a".to_vec())));
    }
}
