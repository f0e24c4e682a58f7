//! Reads of a writing thread, compared with the thread's own writes.
//!
//! A [`ReadCheck`] follows the operations of one thread. Only that thread writes its keys, so each
//! read of such a key has one right answer.

use std::time::Duration;

use archipelago::{ColumnFamily, Db, Error, ReadOptions, Result, Rng, SystemClock};

use crate::plan::{self, Model, Operation};
use crate::settings::{COUNTERS, family_name};

/// One operation in this number is followed by a read of one key.
const GET_ONE_IN: u64 = 4;
/// One operation in this number is followed by a scan.
const SCAN_ONE_IN: u64 = 64;
/// Most entries of a scan.
const SCAN_MAX: usize = 60;

/// Reads between the writes of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reads {
    /// The process reads nothing.
    #[default]
    None,
    /// The threads compare the bytes that they read with their own writes. A read takes at most
    /// `limit`; `None` for a process that is stopped at times.
    Compared { limit: Option<Duration> },
}

/// The state of one thread, and the choices of its reads.
pub(crate) struct ReadCheck {
    thread: u64,
    model: Model,
    rng: Rng,
    /// Longest time of a read; `None` for a process that is stopped at times.
    limit: Option<Duration>,
}

impl ReadCheck {
    /// The check of `thread`, which has carried out its first operations of `seed`.
    pub(crate) fn new(seed: u64, thread: u64, first: u64, limit: Option<Duration>) -> Self {
        let mut model = Model::default();
        // The check before has settled which of these operations exist: all of them.
        for number in 0..first {
            model.apply(&plan::operation(seed, thread, number));
        }
        let rng = Rng::with_seed(seed ^ 0x4ead ^ (thread << 32) ^ first);
        Self { thread, model, rng, limit }
    }

    /// Follows an operation that was acknowledged, and reads at times. Returns the number of reads.
    pub(crate) fn note(
        &mut self,
        db: &Db,
        families: &[ColumnFamily],
        number: u64,
        operation: &Operation,
    ) -> Result<u64> {
        self.model.apply(operation);
        if number % SCAN_ONE_IN == SCAN_ONE_IN - 1 {
            return self.timed(|check| check.scan(db, families));
        }
        if number % GET_ONE_IN == GET_ONE_IN - 1 {
            return self.timed(|check| check.get(db, families));
        }
        Ok(0)
    }

    fn timed(&mut self, read: impl FnOnce(&mut Self) -> Result<()>) -> Result<u64> {
        let clock = SystemClock::shared();
        let began_ns = clock.now_ns();
        read(self)?;
        let took = Duration::from_nanos(clock.now_ns() - began_ns);
        match self.limit {
            Some(limit) if took > limit => {
                Err(Error::invalid(format!("a read took {took:?}, and {limit:?} is the limit")))
            }
            _ => Ok(1),
        }
    }

    /// Reads a key that was written at some time.
    fn get(&mut self, db: &Db, families: &[ColumnFamily]) -> Result<()> {
        let (family, key) =
            (self.rng.usize(..=COUNTERS), plan::any_key(&mut self.rng, self.thread));
        let found = db.get_with(&families[family], &key, &ReadOptions::default())?;
        let expected = self.model.own.get(&(family, key.clone()));
        match found.as_deref() == expected.map(Vec::as_slice) {
            true => Ok(()),
            false => Err(wrong(family, &key, found.as_deref(), expected)),
        }
    }

    /// Reads entries from a key on, and compares those of the thread.
    fn scan(&mut self, db: &Db, families: &[ColumnFamily]) -> Result<()> {
        let (family, from) =
            (self.rng.usize(..=COUNTERS), plan::any_key(&mut self.rng, self.thread));
        let mut iter = db.iter(&families[family], &ReadOptions::default())?;
        iter.seek(&from);
        let mut expected =
            self.model.own.range((family, from)..).map(|((_, key), value)| (key, value));
        for _ in 0..SCAN_MAX {
            if !iter.valid() {
                break;
            }
            if plan::owner(iter.key()) == Some(self.thread) {
                let wanted = expected.next();
                if wanted.map(|(key, value)| (key.as_slice(), value.as_slice()))
                    != Some((iter.key(), iter.value()))
                {
                    return Err(wrong(family, iter.key(), Some(iter.value()), wanted.map(|w| w.1)));
                }
            }
            iter.next();
        }
        iter.status()
    }
}

fn wrong(family: usize, key: &[u8], found: Option<&[u8]>, expected: Option<&Vec<u8>>) -> Error {
    let show = |value: Option<&[u8]>| match value {
        None => "nothing".to_owned(),
        Some(value) => {
            format!("\"{}…\" of {} bytes", value[..value.len().min(14)].escape_ascii(), value.len())
        }
    };
    Error::invalid(format!(
        "a wrong read: {}/{} is {}, and {} was acknowledged",
        family_name(family),
        key.escape_ascii(),
        show(found),
        show(expected.map(Vec::as_slice))
    ))
}
