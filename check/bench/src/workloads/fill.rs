//! Benchmarks that only write.

use archipelago_base::random::Rng;

use super::{Worker, ycsb};
use crate::harness::store::{Result, WriteBatch};
use crate::harness::tally::{Counts, OpKind};
use crate::keys::KeyPicker;
use crate::pace::Limit;

/// `fillseq`: keys in their order. Runs to the end, whatever `--duration` says.
pub(super) fn sequential(worker: &mut Worker<'_>) -> Result<()> {
    let limit = Limit::new(worker.bench.clock, worker.bench.flags.writes(), 0, 1);
    let mut next = 0;
    put(worker, limit, |_, _| {
        next += 1;
        next - 1
    })
}

/// `fillrandom`, `fillsync`, `overwrite`: keys at random.
pub(super) fn random(worker: &mut Worker<'_>) -> Result<()> {
    let limit = worker.limit(worker.bench.flags.writes());
    put(worker, limit, |picker, rng| picker.next(rng))
}

/// `filluniquerandom`: each key once, in scattered order.
pub(super) fn unique(worker: &mut Worker<'_>) -> Result<()> {
    let sizes = worker.value_sizes;
    ycsb::load_with(worker, |_, rng| sizes.next(rng))
}

/// Message of `fillsync`: the size of its key space.
pub(super) fn ops_message(counts: &Counts) -> String {
    format!("({} ops)", counts.looked)
}

fn put(
    worker: &mut Worker<'_>,
    mut limit: Limit<'_>,
    mut next: impl FnMut(KeyPicker, &mut Rng) -> u64,
) -> Result<()> {
    let load = &worker.bench.flags.load;
    let (sizes, key_bytes, batch_size) = (worker.value_sizes, load.key_size, load.batch_size);
    if worker.bench.spec.synced && worker.index == 0 {
        worker.tally.counts.looked = (load.num / 1000).max(1);
    }
    if batch_size == 1 {
        while limit.more(1) {
            let number = next(worker.picker, &mut worker.rng);
            let key = worker.keys.set(number);
            let value = worker.values.take(sizes.next(&mut worker.rng));
            let entry_bytes = key_bytes + value.len();
            let turn = worker.bench.write_rate.request(worker.bench.clock, entry_bytes as u64);
            worker.tally.starts(turn);
            worker.db.put_with(worker.cf, key, value, &worker.write_options)?;
            worker.tally.add_bytes(entry_bytes);
            worker.tally.finished(1, OpKind::Write);
        }
        return Ok(());
    }
    let mut batch = WriteBatch::new();
    while limit.more(batch_size) {
        batch.clear();
        let mut batch_bytes = 0;
        for _ in 0..batch_size {
            let number = next(worker.picker, &mut worker.rng);
            let value = worker.values.take(sizes.next(&mut worker.rng));
            batch_bytes += key_bytes + value.len();
            batch.put_cf(worker.cf.id(), worker.keys.set(number), value);
        }
        worker.pace_write(batch_bytes as u64);
        worker.db.write(&batch, &worker.write_options)?;
        worker.tally.add_bytes(batch_bytes);
        worker.tally.finished(batch_size, OpKind::Write);
    }
    Ok(())
}

/// Runs `deleterandom` in one thread.
pub(super) fn delete(worker: &mut Worker<'_>) -> Result<()> {
    let batch_size = worker.bench.flags.load.batch_size;
    let mut limit = worker.limit(worker.bench.flags.deletes());
    let mut batch = WriteBatch::new();
    while limit.more(batch_size) {
        if batch_size == 1 {
            let key = worker.keys.set(worker.picker.next(&mut worker.rng));
            worker.db.delete_with(worker.cf, key, &worker.write_options)?;
        } else {
            batch.clear();
            for _ in 0..batch_size {
                let number = worker.picker.next(&mut worker.rng);
                batch.delete_cf(worker.cf.id(), worker.keys.set(number));
            }
            worker.db.write(&batch, &worker.write_options)?;
        }
        worker.tally.finished(batch_size, OpKind::Delete);
    }
    Ok(())
}
