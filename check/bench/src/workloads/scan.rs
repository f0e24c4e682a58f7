//! Benchmarks that walk iterators.

use std::hint::black_box;

use super::Worker;
use crate::harness::store::Result;
use crate::harness::tally::OpKind;

/// Runs `readseq` in one thread.
pub(super) fn forward(worker: &mut Worker<'_>) -> Result<()> {
    walk(worker, false)
}

/// Runs `readreverse` in one thread.
pub(super) fn backward(worker: &mut Worker<'_>) -> Result<()> {
    walk(worker, true)
}

/// Reads at most `--reads` entries from one end.
fn walk(worker: &mut Worker<'_>, reverse: bool) -> Result<()> {
    let reads = worker.bench.flags.reads();
    let mut iter = worker.db.iter(worker.cf, &worker.read_options)?;
    if reverse {
        iter.seek_to_last();
    } else {
        iter.seek_to_first();
    }
    let mut read = 0;
    while read < reads && iter.valid() {
        worker.tally.add_bytes(iter.key().len() + iter.value().len());
        worker.tally.finished(1, OpKind::Read);
        read += 1;
        worker.pace_read(read);
        if reverse { iter.prev() } else { iter.next() }
    }
    iter.status()
}

/// `seekrandom`: a new iterator for each seek, because each request of a user makes one.
pub(super) fn seek(worker: &mut Worker<'_>) -> Result<()> {
    let load = &worker.bench.flags.load;
    let (nexts, reverse) = (load.seek_nexts, load.reverse_iterator);
    let mut limit = worker.limit(worker.bench.flags.reads());
    let mut read = 0;
    while limit.more(1) {
        let key = worker.keys.set(worker.picker.next(&mut worker.rng));
        let mut iter = worker.db.iter(worker.cf, &worker.read_options)?;
        iter.seek(key);
        read += 1;
        if iter.valid() && iter.key() == key {
            worker.tally.counts.found += 1;
        }
        for _ in 0..nexts {
            if !iter.valid() {
                break;
            }
            worker.tally.add_bytes(black_box(iter.key()).len() + black_box(iter.value()).len());
            if reverse { iter.prev() } else { iter.next() }
        }
        iter.status()?;
        worker.tally.finished(1, OpKind::Seek);
        worker.pace_read(read);
    }
    worker.tally.counts.looked += read;
    Ok(())
}
