//! What clients asked and were told, key by key.
//!
//! Keys are registers of their own: a history is linearizable if each key's is. A call that ended
//! without an answer may have happened at any time after it began, or not at all: it stays in
//! flight for good, and its client goes on under another name. A write that ended with an error
//! which says that it did not happen is taken out: a value of it that is read later has no writer.
//!
//! Invariants: values are numbers above 0 that no two writes share; a thread has one call at a
//! time.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read.
    Get,
    /// Write, whether it is there or not.
    Set(u64),
    /// Write if it is not there.
    Insert(u64),
    /// Write if it is there.
    Update(u64),
    /// Remove.
    Delete,
    /// Write if it holds what was read.
    Swap(Option<u64>, u64),
}

/// What a call was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ret {
    /// What was read.
    Value(Option<u64>),
    /// Whether it took place.
    Done(bool),
}

/// Something that happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread calls.
    Begin(u64, Op),
    /// It is answered.
    End(u64, Ret),
}

/// See the module.
#[derive(Debug, Default)]
pub struct History {
    keys: Mutex<BTreeMap<u64, Vec<Event>>>,
    threads: Mutex<u64>,
    refused: Mutex<u64>,
}

/// A call that was begun.
#[derive(Debug)]
pub struct Call {
    key: u64,
    thread: u64,
}

impl History {
    /// A name for a client: one call at a time.
    pub fn thread(&self) -> u64 {
        let mut threads = self.threads.lock();
        *threads += 1;
        *threads
    }

    /// A call begins.
    pub fn begin(&self, thread: u64, key: u64, op: Op) -> Call {
        self.keys.lock().entry(key).or_default().push(Event::Begin(thread, op));
        Call { key, thread }
    }

    /// It was answered.
    pub fn end(&self, call: &Call, ret: Ret) {
        self.keys.lock().entry(call.key).or_default().push(Event::End(call.thread, ret));
    }

    /// It was refused, with the word that it did not happen.
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

    /// Writes that were refused with the word that they did not happen.
    pub fn refused(&self) -> u64 {
        *self.refused.lock()
    }

    /// Calls that were answered.
    pub fn answered(&self) -> u64 {
        let keys = self.keys.lock();
        keys.values().flatten().filter(|event| matches!(event, Event::End(..))).count() as u64
    }

    /// What happened to each key.
    pub fn keys(&self) -> BTreeMap<u64, Vec<Event>> {
        self.keys.lock().clone()
    }
}

/// A key's history, for who reads it.
pub(crate) fn told(events: &[Event]) -> String {
    let line = |event: &Event| match event {
        Event::Begin(thread, op) => format!("    {thread:>4} begins {op:?}\n"),
        Event::End(thread, ret) => format!("    {thread:>4} ends   {ret:?}\n"),
    };
    events.iter().map(line).collect()
}
