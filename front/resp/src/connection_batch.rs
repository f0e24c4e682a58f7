//! Batch of plain SETs and GETs of several connections, which one of the connections executes for
//! all.
//!
//! A client that sends one command and waits leaves nothing to overlap, but fifty such clients do.
//! Some stores execute many keys faster than one key at a time, as far as they need not wait
//! ([`Store::overlaps_reads`]). With such a store a connection that has received a few plain
//! commands adds them to the open batch of its thread, and lets the other connections run. The
//! first connection that resumes executes the whole batch. The other connections then pick up their
//! replies.
//!
//! Invariants:
//! 1. A command is executed after it was received and before it is answered. Each command alone is
//!    therefore linearizable.
//! 2. The commands of a batch are concurrent. Sets are executed before reads. Earlier commands of a
//!    connection are executed before it joins.
//! 3. A batch that was executed accepts no further commands.
//! 4. Commands that would have to wait are left to their connection.
//! 5. If a connection ends before it picks up its replies, its commands may have been executed or
//!    not. It has acknowledged none of them.
//!
//! Thread-safety: a mutex guards the batch. A connection waits for it only if it resumes on another
//! thread. Cost: each connection copies its keys and values, and takes two locks.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::{Op, Store, Unexecuted};

/// Highest number of commands of a batch, and highest number of bytes of their keys and values. A
/// connection with more does not join.
const COMMANDS_MAX: usize = 64;
const BYTES_MAX: usize = 32 << 10;
/// Longest value in bytes that the batch copies. A longer value is left to its connection.
const VALUE_BYTES_MAX: usize = 4 << 10;

thread_local! {
    /// The batch that connections of this thread join.
    static OPEN: RefCell<Arc<ConnectionBatch>> = RefCell::default();
}

/// Result of a command of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// The command was not executed.
    NotExecuted,
    /// The SET was executed.
    Set,
    /// The value of the key.
    Value(Option<&'a [u8]>),
}

/// Result of a command as the batch stores it.
#[derive(Clone, Debug)]
enum Kept {
    NotExecuted,
    Set,
    Missing,
    /// Position of the value in the bytes of the batch.
    Value(Range<usize>),
}

#[derive(Debug)]
struct BatchedCommand {
    key: Range<usize>,
    /// Position of the value of a SET.
    value: Option<Range<usize>>,
}

#[derive(Debug, Default)]
struct BatchState {
    /// Keys and values of the commands, followed by the values that were read.
    bytes: Vec<u8>,
    commands: Vec<BatchedCommand>,
    /// Result of each command, once the batch was executed.
    answers: Option<Vec<Kept>>,
    /// Time at which the batch was executed, in nanoseconds of the server's clock.
    done_ns: u64,
}

#[derive(Debug, Default)]
struct ConnectionBatch(Mutex<BatchState>);

/// The commands of one connection in a batch.
#[derive(Debug)]
pub(crate) struct BatchMember {
    batch: Arc<ConnectionBatch>,
    commands: Range<usize>,
}

impl BatchMember {
    /// Adds keys, and the values of SETs, to the batch of this thread. `None`: they do not fit.
    pub(crate) fn join<'a>(
        commands: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) -> Option<Self> {
        let more = commands.clone().map(|(key, value)| key.len() + value.map_or(0, <[u8]>::len));
        let (count, more) = (commands.clone().count(), more.sum::<usize>());
        if count > COMMANDS_MAX || more > BYTES_MAX {
            return None;
        }
        OPEN.with_borrow_mut(|open| {
            let has_room = |state: &BatchState| {
                state.answers.is_none()
                    && state.commands.len() + count <= COMMANDS_MAX
                    && state.bytes.len() + more <= BYTES_MAX
            };
            if !has_room(&open.0.lock()) {
                *open = Arc::default();
            }
            let mut state = open.0.lock();
            if !has_room(&state) {
                // A connection on another thread has executed the batch since.
                return None;
            }
            let from = state.commands.len();
            for (key, value) in commands {
                state.add(key, value);
            }
            Some(Self { batch: Arc::clone(open), commands: from..from + count })
        })
    }

    /// Executes the batch unless another connection has, and calls `take` with the results of this
    /// connection's commands in their order. Returns the time of the execution. `now_ns` is called
    /// once for all connections of the batch.
    pub(crate) fn answers(
        self,
        store: &dyn Store,
        now_ns: impl FnOnce() -> u64,
        mut take: impl FnMut(Answer<'_>),
    ) -> u64 {
        let mut state = self.batch.0.lock();
        if state.answers.is_none() {
            state.done_ns = now_ns();
            state.run(store);
            // A batch lives as long as its members, not until the next batch.
            OPEN.with_borrow_mut(|open| {
                if Arc::ptr_eq(open, &self.batch) {
                    *open = Arc::default();
                }
            });
        }
        let kept = state.answers.as_deref().unwrap_or_default();
        for kept in &kept[self.commands] {
            take(match kept {
                Kept::NotExecuted => Answer::NotExecuted,
                Kept::Set => Answer::Set,
                Kept::Missing => Answer::Value(None),
                Kept::Value(range) => Answer::Value(Some(&state.bytes[range.clone()])),
            });
        }
        state.done_ns
    }
}

impl BatchState {
    fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        let mut put = |bytes: &[u8]| {
            let from = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            from..self.bytes.len()
        };
        let (key, value) = (put(key), value.map(put));
        self.commands.push(BatchedCommand { key, value });
    }

    fn run(&mut self, store: &dyn Store) {
        let mut answers = vec![Kept::NotExecuted; self.commands.len()];
        self.set(store, &mut answers);
        let read = self.get(store, &mut answers);
        self.bytes.extend(read);
        self.answers = Some(answers);
    }

    fn set(&self, store: &dyn Store, answers: &mut [Kept]) {
        let (mut ops, mut of) = (Vec::with_capacity(self.commands.len()), Vec::new());
        for (nth, command) in self.commands.iter().enumerate() {
            if let Some(value) = &command.value {
                let (key, value) = (&self.bytes[command.key.clone()], &self.bytes[value.clone()]);
                ops.push(Op::Put { key, value, expires_at_ms: None });
                of.push(nth);
            }
        }
        if ops.is_empty() {
            return;
        }
        if let Unexecuted::These(left) = store.write_now(&ops) {
            of.iter().for_each(|nth| answers[*nth] = Kept::Set);
            left.into_iter().for_each(|at| answers[of[at]] = Kept::NotExecuted);
        }
    }

    /// Executes the reads. Returns the values, to which `answers` refer as if they followed
    /// `bytes`.
    fn get(&self, store: &dyn Store, answers: &mut [Kept]) -> Vec<u8> {
        let (mut keys, mut of) = (Vec::with_capacity(self.commands.len()), Vec::new());
        for (nth, command) in self.commands.iter().enumerate() {
            if command.value.is_none() {
                keys.push(&self.bytes[command.key.clone()]);
                of.push(nth);
            }
        }
        let (mut read, mut at) = (Vec::new(), 0);
        while at < keys.len() {
            let mut next = at;
            store.get_now(&keys[at..], &mut |value| {
                let from = self.bytes.len() + read.len();
                answers[of[next]] = match value {
                    None => Kept::Missing,
                    Some(value) if value.len() > VALUE_BYTES_MAX => Kept::NotExecuted,
                    Some(value) => {
                        read.extend_from_slice(value);
                        Kept::Value(from..from + value.len())
                    }
                };
                next += 1;
            });
            // The command at which the store stopped would have to wait.
            at = next + 1;
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ops::ControlFlow;

    use archipelago_base::{Error, Result};

    use super::*;
    use crate::store::{KeyRange, Keyspace, PinnedSlice, StoredValue, Visit};

    /// A store that executes commands immediately unless the key begins with `w`.
    #[derive(Default)]
    struct Quick(Mutex<Held>);

    #[derive(Default)]
    struct Held {
        values: HashMap<Vec<u8>, Vec<u8>>,
        calls: usize,
    }

    impl Store for Quick {
        fn get(&self, _: &[u8]) -> Result<Option<StoredValue>> {
            Err(Error::unsupported("not asked for"))
        }

        fn multi_get(&self, _: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
            Err(Error::unsupported("not asked for"))
        }

        fn get_now(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
            let mut state = self.0.lock();
            state.calls += 1;
            let quick = keys.iter().take_while(|key| !key.starts_with(b"w"));
            quick.map(|key| take(state.values.get(*key).map(|value| &value[..]))).count()
        }

        fn write_now(&self, ops: &[Op<'_>]) -> Unexecuted {
            let mut state = self.0.lock();
            state.calls += 1;
            let mut left = Vec::new();
            for (nth, op) in ops.iter().enumerate() {
                match op {
                    Op::Put { key, value, .. } if !key.starts_with(b"w") => {
                        state.values.insert(key.to_vec(), value.to_vec());
                    }
                    _ => left.push(nth),
                }
            }
            Unexecuted::These(left)
        }

        fn write(&self, _: &[Op<'_>]) -> Result<()> {
            Err(Error::unsupported("not asked for"))
        }

        fn scan(&self, _: KeyRange<'_>, _: bool, visit: &mut Visit<'_>) -> Result<()> {
            assert_eq!(visit(b"", b"", None), ControlFlow::Continue(()));
            Err(Error::unsupported("not asked for"))
        }

        fn approximate_count(&self) -> Result<u64> {
            Ok(0)
        }

        fn keyspace(&self) -> Result<Keyspace> {
            Err(Error::unsupported("not asked for"))
        }

        fn expired_keys(&self) -> u64 {
            0
        }

        fn info(&self) -> String {
            String::new()
        }
    }

    fn join(commands: &[(&str, Option<&str>)]) -> BatchMember {
        let commands = commands.iter();
        let bytes = commands.map(|(key, value)| (key.as_bytes(), value.map(str::as_bytes)));
        BatchMember::join(bytes).expect("few")
    }

    fn answers(member: BatchMember, store: &Quick) -> Vec<String> {
        let mut all = Vec::new();
        let take = |answer: Answer<'_>| {
            all.push(match answer {
                Answer::NotExecuted => "left".to_owned(),
                Answer::Set => "set".to_owned(),
                Answer::Value(None) => "none".to_owned(),
                Answer::Value(Some(value)) => String::from_utf8_lossy(value).into_owned(),
            });
        };
        assert_eq!(member.answers(store, || 7, take), 7);
        all
    }

    #[test]
    fn first_connection_executes_the_whole_batch() {
        let store = Quick::default();
        let set = join(&[("reef", Some("coral")), ("w", Some("late"))]);
        let get = join(&[("reef", None), ("w", None), ("cay", None), ("reef", None)]);
        let again = join(&[("cay", Some("sand"))]);
        assert_eq!(answers(get, &store), ["coral", "left", "sand", "coral"], "sets come before");
        assert_eq!(store.0.lock().calls, 3, "one write, and two reads: one was in the way");
        assert_eq!(answers(set, &store), ["set", "left"]);
        assert_eq!(answers(again, &store), ["set"]);
        assert_eq!(store.0.lock().calls, 3);
        assert_eq!(answers(join(&[("cay", None)]), &store), ["sand"], "a new batch");
    }

    #[test]
    fn full_batch_accepts_no_connection_and_the_next_batch_does() {
        let store = Quick::default();
        let first = join(&[("a", Some("1")); COMMANDS_MAX]);
        let second = join(&[("a", Some("2"))]);
        assert_eq!(answers(second, &store), ["set"]);
        assert_eq!(answers(first, &store).len(), COMMANDS_MAX);
        assert_eq!(answers(join(&[("a", None)]), &store), ["1"], "by itself, and later");
        let large = vec![0; BYTES_MAX];
        assert!(BatchMember::join([(&large[..], Some(&b"1"[..]))].into_iter()).is_none());
    }
}
