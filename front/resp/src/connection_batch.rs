//! Plain SETs and GETs of several connections, done together.
//!
//! A client that sends one command and waits leaves nothing to overlap; fifty of them do. Where a
//! store does what it can without waiting faster for many keys than for one
//! ([`Store::overlaps_reads`]), a connection that has received a few plain commands puts them into
//! its thread's open batch and lets the other connections run, as it does anyway before it sends.
//! Who is the first to go on does all that came together; each then finds its answers.
//!
//! Invariants: 1. a command is done after it was received and before it is answered, so it is as
//! linearizable as by itself; 2. the commands of a batch are concurrent: sets are done before
//! reads, and what a connection sent before is done before it joins; 3. a batch that was done takes
//! nobody in. What the store cannot do at once is left to the connection. A connection that ends in
//! between leaves its commands to the others, or undone: nobody was told.
//!
//! Thread-safety: a batch is under a lock, which nobody waits for but connections that went on on
//! another thread. Cost: a copy of key and value, and two locks, per connection.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::{Left, Op, Store};

/// Commands of a batch, and bytes of their keys and values: beyond that a connection goes by
/// itself.
const COMMANDS_MAX: usize = 64;
const BYTES_MAX: usize = 32 << 10;
/// A longer value is left to who asked for it: no copy is made of it here.
const VALUE_BYTES_MAX: usize = 4 << 10;

thread_local! {
    /// What connections of this thread join.
    static OPEN: RefCell<Arc<ConnectionBatch>> = RefCell::default();
}

/// What came of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// Nothing was done.
    Left,
    /// The set took place.
    Set,
    /// What the key has.
    Value(Option<&'a [u8]>),
}

/// An answer as it is kept.
#[derive(Clone, Debug)]
enum Kept {
    Left,
    Set,
    Missing,
    /// Where the value lies.
    Value(Range<usize>),
}

#[derive(Debug)]
struct BatchedCommand {
    key: Range<usize>,
    /// Of a SET.
    value: Option<Range<usize>>,
}

#[derive(Debug, Default)]
struct BatchState {
    /// Keys and values, and those that were read.
    bytes: Vec<u8>,
    commands: Vec<BatchedCommand>,
    /// Of each command, once they were done.
    answers: Option<Vec<Kept>>,
    /// When they were done.
    done_ns: u64,
}

#[derive(Debug, Default)]
struct ConnectionBatch(Mutex<BatchState>);

/// A connection's commands in a batch.
#[derive(Debug)]
pub(crate) struct BatchMember {
    batch: Arc<ConnectionBatch>,
    commands: Range<usize>,
}

impl BatchMember {
    /// Puts keys, and the values of SETs, into this thread's batch. `None`: they are too many.
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
                // Somebody else did it just now.
                return None;
            }
            let from = state.commands.len();
            for (key, value) in commands {
                state.add(key, value);
            }
            Some(Self { batch: Arc::clone(open), commands: from..from + count })
        })
    }

    /// Has the batch done if nobody did yet, and hands out the answers of this connection's
    /// commands, in their order. Returns when the batch was done; `now_ns` is read once for all
    /// connections of the batch.
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
            // It lives as long as its members, and not until the next batch.
            OPEN.with_borrow_mut(|open| {
                if Arc::ptr_eq(open, &self.batch) {
                    *open = Arc::default();
                }
            });
        }
        let kept = state.answers.as_deref().unwrap_or_default();
        for kept in &kept[self.commands] {
            take(match kept {
                Kept::Left => Answer::Left,
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
        let mut answers = vec![Kept::Left; self.commands.len()];
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
        if let Left::These(left) = store.write_now(&ops) {
            of.iter().for_each(|nth| answers[*nth] = Kept::Set);
            left.into_iter().for_each(|at| answers[of[at]] = Kept::Left);
        }
    }

    /// Reads; the values, which `answers` say to lie behind what is in `bytes`.
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
                    Some(value) if value.len() > VALUE_BYTES_MAX => Kept::Left,
                    Some(value) => {
                        read.extend_from_slice(value);
                        Kept::Value(from..from + value.len())
                    }
                };
                next += 1;
            });
            // The one that it stopped at has to wait for something.
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

    /// Does at once what is of keys that do not begin with `w`.
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

        fn write_now(&self, ops: &[Op<'_>]) -> Left {
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
            Left::These(left)
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
                Answer::Left => "left".to_owned(),
                Answer::Set => "set".to_owned(),
                Answer::Value(None) => "none".to_owned(),
                Answer::Value(Some(value)) => String::from_utf8_lossy(value).into_owned(),
            });
        };
        assert_eq!(member.answers(store, || 7, take), 7);
        all
    }

    #[test]
    fn who_goes_on_first_does_what_all_joined_with() {
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
    fn a_full_batch_takes_nobody_in_and_the_next_one_does() {
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
