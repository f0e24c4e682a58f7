//! Plain SETs and GETs of a pipeline, which are executed and counted in groups.
//!
//! A group of SETs is one write of the store, and the store accepts or refuses all of it. GETs
//! become one read of a store that gains by it. Cost: one reading of the clock for each group.

use super::Session;
use crate::command::Command;
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::slowlog;
use crate::store::{Op, Unexecuted};

impl Session {
    /// Writes plain SETs of one pipeline as one batch, and answers each. If the writes of the store
    /// are atomic, all or none are written. After an error each SET is answered with it.
    pub(crate) fn set_batch(&self, ops: &[Op<'_>], reply: &mut Reply) {
        let started_ns = self.start_ns();
        let left = match self.store().write_now(ops) {
            Unexecuted::All => (0..ops.len()).collect(),
            Unexecuted::These(left) => left,
        };
        self.set_left_since(started_ns, ops, &left, reply);
    }

    /// Writes the plain SETs with the numbers `left`, and answers all of `ops`.
    pub(crate) fn set_left(&self, ops: &[Op<'_>], left: &[usize], reply: &mut Reply) {
        self.set_left_since(self.start_ns(), ops, left, reply);
    }

    fn set_left_since(&self, started_ns: u64, ops: &[Op<'_>], left: &[usize], reply: &mut Reply) {
        for op in ops {
            if let Op::Put { key, .. } = op {
                self.shared.access_times.note(key, started_ns);
            }
        }
        self.write_left(ops, left, reply);
        self.note_time(self.shared.set, ops.len() as u64, started_ns, || {
            let Some(Op::Put { key, value, .. }) = ops.first() else { return Vec::new() };
            batch_for_slowlog(&[b"SET", key, value], ops.len())
        });
    }

    fn write_left(&self, ops: &[Op<'_>], left: &[usize], reply: &mut Reply) {
        self.tally.add_commands(ops.len() as u64);
        if left.is_empty() {
            return ops.iter().for_each(|_| reply.ok());
        }
        let of_left: Vec<Op<'_>> = left.iter().map(|nth| ops[*nth]).collect();
        let write = || {
            let _guard = match &of_left[..] {
                [Op::Put { key, .. }] => self.shared.locks.lock_plain(key),
                _ => self.shared.locks.lock_many(of_left.iter().map(|op| match *op {
                    Op::Put { key, .. } | Op::Delete { key } => key,
                    Op::DeleteRange { start, .. } => start,
                })),
            };
            let done = self.store().write(&of_left);
            self.tell_written(&of_left, done.is_ok());
            done
        };
        let done = match self.store().would_stall(true) {
            true => tokio::task::block_in_place(write),
            false => write(),
        };
        let refusal = done.err().map(Refusal::Store);
        for nth in 0..ops.len() {
            match &refusal {
                Some(refusal) if left.contains(&nth) => {
                    self.refuse(self.shared.set, refusal, 1, reply);
                }
                _ => reply.ok(),
            }
        }
    }

    /// Answers a plain GET whose value was read already.
    pub(crate) fn got(&self, value: Option<&[u8]>, reply: &mut Reply) {
        self.tally.add_commands(1);
        self.shared.command_stats.ran(self.shared.get, 1, 0);
        self.client.last_command.note(self.shared.get);
        self.count_read(value.is_some());
        reply.bulk_or_null(value);
    }

    /// Reads and answers one plain GET, which [`Session::note_gets`] counts later. It belongs to a
    /// group of GETs that began at `started_ns`.
    pub(crate) fn get_plain(&self, key: &[u8], started_ns: u64, reply: &mut Reply) {
        self.tally.add_commands(1);
        match self.reading(|| self.store().get(key)) {
            Ok(entry) => {
                if entry.is_some() {
                    self.note_read(key, started_ns);
                }
                self.count_read(entry.is_some());
                reply.bulk_or_null(entry.as_ref().map(|entry| &entry.value[..]));
            }
            Err(error) => self.refuse(self.shared.get, &Refusal::Store(error), 1, reply),
        }
    }

    /// Counts `count` plain GETs that began at `started_ns` with the key `first`.
    pub(crate) fn note_gets(&self, first: &[u8], count: u64, started_ns: u64) {
        self.note_time(self.shared.get, count, started_ns, || {
            batch_for_slowlog(&[b"GET", first], count as usize)
        });
    }

    /// Calls `read`. If the read would wait, it leaves the worker threads of the runtime.
    fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        if self.store().would_stall(false) { tokio::task::block_in_place(read) } else { read() }
    }

    /// Reads the keys of the plain GETs of a pipeline together, and answers each GET.
    pub(crate) fn get_batch(&self, keys: &[&[u8]], reply: &mut Reply) {
        let started_ns = self.start_ns();
        keys.iter().for_each(|key| self.note_read(key, started_ns));
        self.read_batch(keys, reply);
        self.note_time(self.shared.get, keys.len() as u64, started_ns, || {
            batch_for_slowlog(&[b"GET", keys.first().copied().unwrap_or_default()], keys.len())
        });
    }

    fn read_batch(&self, keys: &[&[u8]], reply: &mut Reply) {
        self.tally.add_commands(keys.len() as u64);
        let (mark, mut hits) = (reply.len(), 0);
        let mut take = |value: Option<&[u8]>| {
            hits += u64::from(value.is_some());
            reply.bulk_or_null(value);
        };
        let left = &keys[self.store().get_now(keys, &mut take)..];
        let read = if left.is_empty() {
            Ok(())
        } else {
            let read = self.reading(|| self.store().multi_get(left));
            read.map(|values| values.iter().for_each(|value| take(value.as_deref())))
        };
        match read {
            Ok(()) => self.tally.add_reads(hits, keys.len() as u64 - hits),
            Err(error) => {
                reply.truncate(mark);
                self.refuse(self.shared.get, &Refusal::Store(error), keys.len(), reply);
            }
        }
    }

    /// Answers `calls` calls of a command with a refusal.
    fn refuse(
        &self,
        command: &'static Command,
        refusal: &Refusal,
        calls: usize,
        reply: &mut Reply,
    ) {
        self.tally.add_errors(calls as u64);
        let line = refusal.line();
        self.shared.command_stats.failed(command, calls as u64);
        self.shared.command_stats.told_error(&line, calls as u64);
        (0..calls).for_each(|_| reply.error(&line));
    }
}

/// Arguments for the slow log of plain commands that a pipeline executed together.
fn batch_for_slowlog(first: &[&[u8]], count: usize) -> Vec<Vec<u8>> {
    let mut args = slowlog::cut(first.iter().copied());
    if count > 1 {
        args.push(format!("... ({} more commands of one batch)", count - 1).into_bytes());
    }
    args
}
