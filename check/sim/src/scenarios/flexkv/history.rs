//! The history of a run: the calls of all clients and their answers, key by key.
//!
//! Each key is a register of its own, so the whole history is linearizable if the history of every
//! key is. A call that ended without an answer may have happened at any time after it began, or not
//! at all. It stays in flight for ever, and its client continues under another name. A write that
//! ended with an error which says that it had no effect is removed. If a client reads its value
//! later, that value has no writer, and the judge reports it.
//!
//! Invariants:
//! 1. Values are numbers above 0, and no two writes share one.
//! 2. A thread has at most one call in flight.
//!
//! Thread-safety: any thread may call any method.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read the value.
    Get,
    /// Write in any case.
    Set(u64),
    /// Write if the key does not exist.
    Insert(u64),
    /// Write if the key exists.
    Update(u64),
    /// Remove the key.
    Delete,
    /// Write if the key holds the value that was read.
    Swap(Option<u64>, u64),
}

/// Answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ret {
    /// Value that was read.
    Value(Option<u64>),
    /// Whether the write took place.
    Done(bool),
}

/// Begin or end of a call of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread begins a call.
    Begin(u64, Op),
    /// A thread gets the answer.
    End(u64, Ret),
}

/// Calls and answers of all clients, key by key.
#[derive(Debug, Default)]
pub struct History {
    keys: Mutex<BTreeMap<u64, Vec<Event>>>,
    threads: Mutex<u64>,
    refused: Mutex<u64>,
}

/// A call that has begun.
#[derive(Debug)]
pub struct Call {
    key: u64,
    thread: u64,
}

impl History {
    /// A new name for a client, which has one call at a time.
    pub fn thread(&self) -> u64 {
        let mut threads = self.threads.lock();
        *threads += 1;
        *threads
    }

    /// Records that a call begins.
    pub fn begin(&self, thread: u64, key: u64, op: Op) -> Call {
        self.keys.lock().entry(key).or_default().push(Event::Begin(thread, op));
        Call { key, thread }
    }

    /// Records the answer of a call.
    pub fn end(&self, call: &Call, ret: Ret) {
        self.keys.lock().entry(call.key).or_default().push(Event::End(call.thread, ret));
    }

    /// Removes a call that was refused without effect.
    pub fn never(&self, call: &Call) {
        let mut keys = self.keys.lock();
        let events = keys.get_mut(&call.key).expect("the call was begun");
        let of_thread = |event: &Event| match event {
            Event::Begin(thread, _) | Event::End(thread, _) => *thread == call.thread,
        };
        let at = events.iter().rposition(of_thread).expect("the call was begun");
        let begun = events.remove(at);
        assert!(matches!(begun, Event::Begin(..)), "a call that ended ends again");
        *self.refused.lock() += 1;
    }

    /// Number of writes that were refused without effect.
    pub fn refused(&self) -> u64 {
        *self.refused.lock()
    }

    /// Number of calls that were answered.
    pub fn answered(&self) -> u64 {
        let keys = self.keys.lock();
        keys.values().flatten().filter(|event| matches!(event, Event::End(..))).count() as u64
    }

    /// The events of each key, in order.
    pub fn keys(&self) -> BTreeMap<u64, Vec<Event>> {
        self.keys.lock().clone()
    }
}

/// The history of a key as text.
pub(crate) fn told(events: &[Event]) -> String {
    let line = |event: &Event| match event {
        Event::Begin(thread, op) => format!("    {thread:>4} begins {op:?}\n"),
        Event::End(thread, ret) => format!("    {thread:>4} ends   {ret:?}\n"),
    };
    events.iter().map(line).collect()
}
