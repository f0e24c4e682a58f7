//! What clients asked and were told, and whether it could have happened one after another.
//!
//! Keys are registers of their own: a history is linearizable if each key's is. A call that ended without an answer may have
//! happened at any time after it began, or not at all: it stays in flight for good, and its client goes on under another name.
//!
//! Invariants: values are numbers that no two writes share. Cost: the tester tries orders; histories of some tens of calls per
//! key, with a few at a time, take milliseconds.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

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

/// A key, as it should behave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Register(Option<u64>);

impl SequentialSpec for Register {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        let applies = match op {
            Op::Get => return Ret::Value(self.0),
            Op::Set(_) => true,
            Op::Insert(_) => self.0.is_none(),
            Op::Update(_) | Op::Delete => self.0.is_some(),
            Op::Swap(read, _) => self.0 == *read,
        };
        if applies {
            self.0 = match op {
                Op::Set(value) | Op::Insert(value) | Op::Update(value) | Op::Swap(_, value) => {
                    Some(*value)
                }
                Op::Get | Op::Delete => None,
            };
        }
        Ret::Done(applies)
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Begin(u64, Op),
    End(u64, Ret),
}

/// See the module.
#[derive(Debug, Default)]
pub struct History {
    keys: Mutex<BTreeMap<u64, Vec<Event>>>,
    threads: Mutex<u64>,
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

    /// Calls that were answered.
    pub fn answered(&self) -> u64 {
        let keys = self.keys.lock();
        keys.values().flatten().filter(|event| matches!(event, Event::End(..))).count() as u64
    }

    /// Keys whose history could not have happened, with it.
    pub fn violations(&self) -> Vec<String> {
        let keys = self.keys.lock();
        let wrong = keys.iter().filter(|(_, events)| !is_linearizable(events));
        wrong
            .map(|(key, events)| format!("key {key} is not linearizable:\n{}", told(events)))
            .collect()
    }
}

fn is_linearizable(events: &[Event]) -> bool {
    let mut tester = LinearizabilityTester::new(Register::default());
    for event in events {
        let taken = match event {
            Event::Begin(thread, op) => tester.on_invoke(*thread, *op).map(|_| ()),
            Event::End(thread, ret) => tester.on_return(*thread, *ret).map(|_| ()),
        };
        taken.expect("a client has one call at a time");
    }
    tester.is_consistent()
}

fn told(events: &[Event]) -> String {
    let line = |event: &Event| match event {
        Event::Begin(thread, op) => format!("    {thread:>4} begins {op:?}\n"),
        Event::End(thread, ret) => format!("    {thread:>4} ends   {ret:?}\n"),
    };
    events.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(events: &[(u64, Result<Op, Ret>)]) -> bool {
        let event = |(thread, what): &(u64, Result<Op, Ret>)| match what {
            Ok(op) => Event::Begin(*thread, *op),
            Err(ret) => Event::End(*thread, *ret),
        };
        is_linearizable(&events.iter().map(event).collect::<Vec<_>>())
    }

    const SET: Result<Op, Ret> = Ok(Op::Set(1));
    const DONE: Result<Op, Ret> = Err(Ret::Done(true));
    const GET: Result<Op, Ret> = Ok(Op::Get);
    const NEW: Result<Op, Ret> = Err(Ret::Value(Some(1)));
    const OLD: Result<Op, Ret> = Err(Ret::Value(None));

    #[test]
    fn a_stale_read_a_lost_update_and_a_value_that_goes_back_are_seen() {
        assert!(history(&[(1, SET), (2, GET), (2, OLD), (1, DONE), (2, GET), (2, NEW)]));
        assert!(!history(&[(1, SET), (1, DONE), (2, GET), (2, OLD)]), "stale");
        let back = [(1, SET), (2, GET), (2, NEW), (3, GET), (3, OLD), (1, DONE)];
        assert!(!history(&back), "seen, and then not");
        let swap = |value| Ok(Op::Swap(None, value));
        assert!(!history(&[(1, swap(1)), (2, swap(2)), (1, DONE), (2, DONE)]), "a lost update");
        let one = Err(Ret::Done(false));
        assert!(history(&[(1, swap(1)), (2, swap(2)), (1, one), (2, DONE)]));
    }

    #[test]
    fn a_call_without_an_answer_may_have_happened_or_not_but_not_twice() {
        assert!(history(&[(1, SET), (2, GET), (2, OLD), (2, GET), (2, NEW)]));
        assert!(history(&[(1, SET), (2, GET), (2, OLD)]));
        let (other, deleted) = (Ok(Op::Delete), Err(Ret::Done(true)));
        let twice = [(1, SET), (2, GET), (2, NEW), (2, other), (2, deleted), (2, GET), (2, NEW)];
        assert!(!history(&twice));
    }
}
