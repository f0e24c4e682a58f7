//! Benchmarks of point reads.

use super::Worker;
use crate::harness::store::Result;
use crate::harness::tally::{Counts, OpKind};
use crate::keys::KeyMaker;

/// Runs `readrandom` or `readmissing` in one thread.
pub(super) fn random(worker: &mut Worker<'_>) -> Result<()> {
    random_of(worker, worker.bench.flags.reads())
}

/// Runs `ops` random reads in one thread.
pub(super) fn random_of(worker: &mut Worker<'_>, ops: u64) -> Result<()> {
    let mut limit = worker.limit(ops);
    let (mut read, mut found) = (0, 0);
    while limit.more(1) {
        worker.pace_read(read);
        let key = worker.keys.set(worker.picker.next(&mut worker.rng));
        read += 1;
        if let Some(value) = worker.db.get_with(worker.cf, key, &worker.read_options)? {
            found += 1;
            worker.tally.add_bytes(key.len() + value.len());
        }
        worker.tally.finished(1, OpKind::Read);
    }
    worker.tally.counts.looked += read;
    worker.tally.counts.found += found;
    Ok(())
}

/// `multireadrandom`: `--batch_size` keys in one batch.
pub(super) fn many(worker: &mut Worker<'_>) -> Result<()> {
    let at_once = worker.bench.flags.load.batch_size;
    let mut limit = worker.limit(worker.bench.flags.reads());
    let mut keys: Vec<KeyMaker> = (0..at_once).map(|_| worker.keys.clone()).collect();
    while limit.more(at_once) {
        for key in &mut keys {
            key.set(worker.picker.next(&mut worker.rng));
        }
        let slices: Vec<&[u8]> = keys.iter().map(KeyMaker::get).collect();
        let values = worker.db.multi_get(worker.cf, &slices, &worker.read_options)?;
        for value in values.iter().flatten() {
            worker.tally.counts.found += 1;
            worker.tally.add_bytes(slices[0].len() + value.len());
        }
        worker.tally.counts.looked += at_once;
        worker.tally.finished(at_once, OpKind::Read);
        worker.pace_reads(at_once);
    }
    Ok(())
}

/// Message of the result line, such as "(63 of 100 found)".
pub(super) fn found(counts: &Counts) -> String {
    format!("({} of {} found)", counts.found, counts.looked)
}

/// Message of the result line, such as "(63 of 100 found)", and an empty line.
pub(super) fn found_line(counts: &Counts) -> String {
    found(counts) + "\n"
}
