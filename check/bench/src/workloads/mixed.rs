//! Benchmarks that read while one thread writes.

use super::{Worker, read, scan};
use crate::harness::store::Result;
use crate::harness::tally::{Counts, OpKind};

/// `readwhilewriting`: readers that are counted, and a writer that is not.
pub(super) fn read_while_writing(worker: &mut Worker<'_>) -> Result<()> {
    if worker.is_writer() { write_on(worker) } else { read::random(worker) }
}

/// `seekrandomwhilewriting`: readers that seek and are counted, and a writer that is not counted.
pub(super) fn seek_while_writing(worker: &mut Worker<'_>) -> Result<()> {
    if worker.is_writer() { write_on(worker) } else { scan::seek(worker) }
}

/// Writes as long as the other workers read.
fn write_on(worker: &mut Worker<'_>) -> Result<()> {
    while worker.others_work() {
        let key = worker.keys.set(worker.picker.next(&mut worker.rng));
        let value = worker.values.take(worker.value_sizes.next(&mut worker.rng));
        let entry_bytes = key.len() + value.len();
        worker.db.put_with(worker.cf, key, value, &worker.write_options)?;
        worker.pace_write(entry_bytes as u64);
    }
    Ok(())
}

/// `readrandomwriterandom`: rounds of a hundred operations, reads first.
pub(super) fn read_write(worker: &mut Worker<'_>) -> Result<()> {
    let flags = worker.bench.flags;
    let mut limit = worker.limit(flags.reads_and_writes());
    let (mut reads_left, mut writes_left) = (0, 0);
    while limit.more(1) {
        let number = worker.picker.next(&mut worker.rng);
        let key = worker.keys.set(number);
        if reads_left == 0 && writes_left == 0 {
            reads_left = flags.load.readwritepercent;
            writes_left = 100 - reads_left;
        }
        if reads_left > 0 {
            reads_left -= 1;
            worker.tally.counts.reads += 1;
            let value = worker.db.get_with(worker.cf, key, &worker.read_options)?;
            worker.tally.counts.found += u64::from(value.is_some());
            worker.tally.finished(1, OpKind::Read);
        } else {
            writes_left -= 1;
            worker.tally.counts.writes += 1;
            let value = worker.values.take(worker.value_sizes.next(&mut worker.rng));
            worker.db.put_with(worker.cf, key, value, &worker.write_options)?;
            worker.tally.finished(1, OpKind::Write);
        }
    }
    worker.tally.counts.looked = worker.tally.counts.reads;
    Ok(())
}

/// The message of `readrandomwriterandom`.
pub(super) fn message(counts: &Counts) -> String {
    let Counts { reads, writes, found, .. } = counts;
    format!("( reads:{reads} writes:{writes} total:{} found:{found})", reads + writes)
}
