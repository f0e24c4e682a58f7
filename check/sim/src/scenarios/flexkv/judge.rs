//! Who says whether a history could have happened one call after another. None of them was written
//! here.
//!
//! **Porcupine** (Go, as a child of this process: `porcupine/main.go`) judges histories of hundreds
//! of calls: it remembers which sets of calls led nowhere. What never returned is no call that is
//! in flight for good, which would double its work each time, but part of the state that its model
//! keeps: what may still happen. **Stateright's** tester does not, and takes minutes for some
//! histories of 160 calls; it stands in where there is no Go, and clients then make as few calls as
//! it can judge. So a run without Go proves less, and says so.
//!
//! Porcupine's answer may be that the time was over first: that is counted ([`Verdict::unknown`])
//! and is never taken for good.
//!
//! Thread-safety: one judge for the process, asked by one thread at a time. Failure: a judge that
//! cannot be understood, or is gone, panics: nothing was checked. Cost: some milliseconds for a
//! run's keys.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use parking_lot::Mutex;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::scenarios::flexkv::history::{Event, Op, Ret, told};

/// Calls of one client, at most, that stateright's tester can judge in time.
const CALLS_WITHOUT_PORCUPINE: u64 = 40;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Keys whose history could not have happened, with it.
    pub violations: Vec<String>,
    /// Keys of which nobody knows: the time was over first.
    pub unknown: u64,
}

struct Porcupine {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

enum Judge {
    Porcupine(Box<Porcupine>),
    /// And why it is not Porcupine.
    Stateright(String),
}

static JUDGE: LazyLock<Mutex<Judge>> = LazyLock::new(|| {
    Mutex::new(match Porcupine::start() {
        Ok(porcupine) => Judge::Porcupine(Box::new(porcupine)),
        Err(why) => Judge::Stateright(why),
    })
});

/// Why histories are judged by the weaker one; `None` if they are not.
#[must_use]
pub fn weaker() -> Option<String> {
    match &*JUDGE.lock() {
        Judge::Porcupine(_) => None,
        Judge::Stateright(why) => Some(format!(
            "Porcupine does not run ({why}): stateright judges, and clients make {CALLS_WITHOUT_PORCUPINE} calls at most"
        )),
    }
}

/// Calls of one client, at most.
#[must_use]
pub(crate) fn calls_max() -> u64 {
    match &*JUDGE.lock() {
        Judge::Porcupine(_) => u64::MAX,
        Judge::Stateright(_) => CALLS_WITHOUT_PORCUPINE,
    }
}

/// Judges each key's history.
#[must_use]
pub fn judge(keys: &BTreeMap<u64, Vec<Event>>) -> Verdict {
    let mut verdict = Verdict::default();
    let mut judge = JUDGE.lock();
    for (key, events) in keys {
        let found = match &mut *judge {
            Judge::Porcupine(porcupine) => porcupine.ask(*key, events),
            Judge::Stateright(_) => Some(is_linearizable(events)),
        };
        match found {
            Some(true) => {}
            Some(false) => {
                let what = format!("key {key} is not linearizable:\n{}", told(events));
                verdict.violations.push(what);
            }
            None => verdict.unknown += 1,
        }
    }
    verdict
}

/// What narrows the search, and changes no answer: of calls that never returned, a read is nothing
/// at all; a write whose value was seen did happen, before whoever saw it first was told.
#[derive(Debug, Default)]
struct Loose {
    /// Threads whose last call was a read that never returned.
    reads: BTreeSet<u64>,
    /// Threads whose last call was a write that never returned, by the place of the event before
    /// which it took effect.
    before: BTreeMap<usize, u64>,
}

fn loose(events: &[Event]) -> Loose {
    let mut open: BTreeMap<u64, (usize, Op)> = BTreeMap::new();
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Begin(thread, op) => {
                open.insert(*thread, (at, *op));
            }
            Event::End(thread, ret) => {
                let value = match (open.remove(thread), ret) {
                    (_, Ret::Value(value)) => *value,
                    (Some((_, Op::Swap(was, _))), Ret::Done(true)) => was,
                    _ => None,
                };
                if let Some(value) = value {
                    seen.entry(value).or_insert(at);
                }
            }
        }
    }
    let mut loose = Loose::default();
    for (thread, (began, op)) in open {
        match op {
            Op::Get => {
                loose.reads.insert(thread);
            }
            Op::Set(value) | Op::Insert(value) | Op::Update(value) | Op::Swap(_, value) => {
                if let Some(at) = seen.get(&value).filter(|at| **at > began) {
                    loose.before.insert(*at, thread);
                }
            }
            Op::Delete => {}
        }
    }
    loose
}

/// As `porcupine/main.go` reads it.
fn lines_of(key: u64, events: &[Event]) -> String {
    let mut lines = format!("history {key}\n");
    let loose = loose(events);
    let last = |at: usize, thread: u64| {
        let again = |event: &Event| matches!(event, Event::Begin(of, _) | Event::End(of, _) if *of == thread);
        !events[at + 1..].iter().any(again)
    };
    for (at, event) in events.iter().enumerate() {
        if let Some(thread) = loose.before.get(&at) {
            lines.push_str(&format!("return {thread} true\n"));
        }
        lines.push_str(&match *event {
            Event::Begin(thread, op) => match op {
                Op::Get if loose.reads.contains(&thread) && last(at, thread) => continue,
                Op::Get => format!("call {thread} get\n"),
                Op::Set(value) => format!("call {thread} set {value}\n"),
                Op::Insert(value) => format!("call {thread} insert {value}\n"),
                Op::Update(value) => format!("call {thread} update {value}\n"),
                Op::Delete => format!("call {thread} delete\n"),
                Op::Swap(was, value) => {
                    format!("call {thread} swap {} {value}\n", was.unwrap_or(0))
                }
            },
            Event::End(thread, Ret::Value(value)) => {
                format!("return {thread} value {}\n", value.unwrap_or(0))
            }
            Event::End(thread, Ret::Done(done)) => format!("return {thread} {done}\n"),
        });
    }
    lines.push_str("end\n");
    lines
}

impl Porcupine {
    /// Builds it beside this program, and starts it.
    fn start() -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("porcupine");
        let mut program = std::env::current_exe().map_err(|error| error.to_string())?;
        program.set_file_name(format!("flex-porcupine-{}", std::process::id()));
        let mut build = Command::new("go");
        build.current_dir(&source).args(["build", "-o"]).arg(&program).arg(".");
        match build.output() {
            Ok(built) if built.status.success() => {}
            Ok(built) => return Err(String::from_utf8_lossy(&built.stderr).trim().to_owned()),
            Err(error) => return Err(format!("go: {error}")),
        }
        let started = Self::run(&program);
        forget(&program);
        started
    }

    fn run(program: &PathBuf) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Self { _child: child, input, output: BufReader::new(output) })
            }
            _ => Err("it has no pipes".to_owned()),
        }
    }

    fn ask(&mut self, key: u64, events: &[Event]) -> Option<bool> {
        let lines = lines_of(key, events);
        let sent = self.input.write_all(lines.as_bytes()).and_then(|()| self.input.flush());
        sent.expect("porcupine takes histories");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("porcupine answers");
        match answer.trim_end().split_once(' ') {
            Some((of, "ok")) if of == key.to_string() => Some(true),
            Some((of, "illegal")) if of == key.to_string() => Some(false),
            Some((of, "unknown")) if of == key.to_string() => None,
            _ => panic!("porcupine answered `{answer}` about key {key}"),
        }
    }
}

/// The program runs on without its file.
#[expect(clippy::disallowed_methods, reason = "a file of the build, not of the store")]
fn forget(program: &Path) {
    if let Err(error) = std::fs::remove_file(program) {
        eprintln!("{}: {error}", program.display());
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What both say; they must agree.
    fn history(events: &[(u64, Result<Op, Ret>)]) -> bool {
        let event = |(thread, what): &(u64, Result<Op, Ret>)| match what {
            Ok(op) => Event::Begin(*thread, *op),
            Err(ret) => Event::End(*thread, *ret),
        };
        let events: Vec<Event> = events.iter().map(event).collect();
        let one = is_linearizable(&events);
        let verdict = judge(&BTreeMap::from([(7, events)]));
        assert_eq!((verdict.violations.is_empty(), verdict.unknown), (one, 0));
        one
    }

    const SET: Result<Op, Ret> = Ok(Op::Set(1));
    const DONE: Result<Op, Ret> = Err(Ret::Done(true));
    const NOT: Result<Op, Ret> = Err(Ret::Done(false));
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
        assert!(history(&[(1, swap(1)), (2, swap(2)), (1, NOT), (2, DONE)]));
    }

    #[test]
    fn every_operation_applies_when_it_should() {
        let (insert, update, delete) = (Ok(Op::Insert(1)), Ok(Op::Update(1)), Ok(Op::Delete));
        assert!(history(&[(1, update), (1, NOT), (1, insert), (1, DONE), (1, insert), (1, NOT)]));
        assert!(history(&[(1, delete), (1, NOT), (1, insert), (1, DONE), (1, update), (1, DONE)]));
        assert!(!history(&[(1, insert), (1, NOT)]));
        assert!(!history(&[(1, update), (1, DONE)]));
        assert!(!history(&[(1, delete), (1, DONE)]));
        let swap = Ok(Op::Swap(Some(1), 2));
        assert!(history(&[(1, swap), (1, NOT), (1, SET), (1, DONE), (1, swap), (1, DONE)]));
    }

    #[test]
    fn a_call_without_an_answer_may_have_happened_or_not_but_not_twice() {
        assert!(history(&[(1, SET), (2, GET), (2, OLD), (2, GET), (2, NEW)]));
        assert!(history(&[(1, SET), (2, GET), (2, OLD)]));
        let (other, deleted) = (Ok(Op::Delete), Err(Ret::Done(true)));
        let twice = [(1, SET), (2, GET), (2, NEW), (2, other), (2, deleted), (2, GET), (2, NEW)];
        assert!(!history(&twice));
    }

    /// What stateright's tester takes minutes for: two hundred calls, many at a time, a few of them
    /// without an answer.
    #[test]
    fn a_long_history_is_judged_by_porcupine() {
        if weaker().is_some() {
            return;
        }
        let mut events = Vec::new();
        for round in 0..100 {
            for thread in 0..4 {
                let value = round * 10 + thread + 1;
                events.push(Event::Begin(thread, Op::Set(value)));
            }
            (0..4).for_each(|thread| events.push(Event::End(thread, Ret::Done(true))));
            if round % 25 == 0 {
                events.push(Event::Begin(1000 + round, Op::Delete));
            }
        }
        events.push(Event::Begin(0, Op::Get));
        let mut wrong = events.clone();
        events.push(Event::End(0, Ret::Value(Some(991))));
        wrong.push(Event::End(0, Ret::Value(Some(981))));
        let verdict = judge(&BTreeMap::from([(1, events), (2, wrong)]));
        assert_eq!((verdict.violations.len(), verdict.unknown), (1, 0));
        assert!(verdict.violations[0].starts_with("key 2 "));
    }
}
