//! Linearizability of histories, as an independent checker judges it.
//!
//! **Porcupine** is a Go program that runs as a child of this process (`porcupine/main.go`). It
//! judges histories of hundreds of calls, because it remembers which sets of calls cannot be
//! extended. A call that never returned would double its work if it stayed in flight. Instead, the
//! model keeps such calls in its state, as writes that may still happen.
//!
//! **Stateright's** tester replaces it on a machine without Go. It takes minutes for some histories
//! of 160 calls, so clients then make only as many calls as it can judge. Such a run proves less,
//! and the program says so.
//!
//! Invariants:
//! 1. A history that Porcupine did not finish in time is counted ([`Verdict::unknown`]). It never
//!    counts as linearizable.
//!
//! Thread-safety: the process has one judge, and one thread at a time uses it. Failure: if the
//! judge ends or its answer cannot be read, the caller panics, because no history was checked.
//! Cost: some milliseconds for the keys of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use parking_lot::Mutex;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::scenarios::flexkv::history::{Event, Op, Ret, told};

/// Calls per client that stateright's tester can judge in time.
const CALLS_WITHOUT_PORCUPINE: u64 = 40;

/// Result of judging a history.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Keys whose history is not linearizable, each with its history.
    pub violations: Vec<String>,
    /// Number of keys that the judge did not finish in time.
    pub unknown: u64,
}

struct Porcupine {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

enum Judge {
    Porcupine(Box<Porcupine>),
    /// The reason why Porcupine does not run.
    Stateright(String),
}

static JUDGE: LazyLock<Mutex<Judge>> = LazyLock::new(|| {
    Mutex::new(match Porcupine::start() {
        Ok(porcupine) => Judge::Porcupine(Box::new(porcupine)),
        Err(why) => Judge::Stateright(why),
    })
});

/// Reason why the weaker judge is in use, or `None` if Porcupine runs.
#[must_use]
pub fn weaker() -> Option<String> {
    match &*JUDGE.lock() {
        Judge::Porcupine(_) => None,
        Judge::Stateright(why) => Some(format!(
            "Porcupine does not run ({why}). Stateright judges the histories instead, so each \
             client makes at most {CALLS_WITHOUT_PORCUPINE} calls, and the run proves less."
        )),
    }
}

/// Largest number of calls of one client.
#[must_use]
pub(crate) fn calls_max() -> u64 {
    match &*JUDGE.lock() {
        Judge::Porcupine(_) => u64::MAX,
        Judge::Stateright(_) => CALLS_WITHOUT_PORCUPINE,
    }
}

/// Judges the history of each key.
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

/// Facts about calls that never returned. They narrow the search and change no verdict.
///
/// A read that never returned can be left out. If the value of a write that never returned was
/// read, the write did happen. It happened before the first call that read the value got its
/// answer.
#[derive(Debug, Default)]
struct Loose {
    /// Threads whose last call was a read without an answer.
    reads: BTreeSet<u64>,
    /// Threads whose last call was a write without an answer, by the index of the event before
    /// which the write took effect.
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

/// The history as `porcupine/main.go` reads it.
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
    /// Builds the program in the folder of this one, and starts it.
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

/// Removes the file of the program, which continues to run.
#[expect(clippy::disallowed_methods, reason = "a file of the build, not of the store")]
fn forget(program: &Path) {
    if let Err(error) = std::fs::remove_file(program) {
        eprintln!("{}: {error}", program.display());
    }
}

/// Model of a key.
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

    /// The verdict of both judges, which must agree.
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
    fn stale_read_and_lost_update_are_not_linearizable() {
        assert!(history(&[(1, SET), (2, GET), (2, OLD), (1, DONE), (2, GET), (2, NEW)]));
        assert!(!history(&[(1, SET), (1, DONE), (2, GET), (2, OLD)]), "stale");
        let back = [(1, SET), (2, GET), (2, NEW), (3, GET), (3, OLD), (1, DONE)];
        assert!(!history(&back), "seen, and then not");
        let swap = |value| Ok(Op::Swap(None, value));
        assert!(!history(&[(1, swap(1)), (2, swap(2)), (1, DONE), (2, DONE)]), "a lost update");
        assert!(history(&[(1, swap(1)), (2, swap(2)), (1, NOT), (2, DONE)]));
    }

    #[test]
    fn conditional_write_applies_by_its_condition() {
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
    fn call_without_an_answer_happens_at_most_once() {
        assert!(history(&[(1, SET), (2, GET), (2, OLD), (2, GET), (2, NEW)]));
        assert!(history(&[(1, SET), (2, GET), (2, OLD)]));
        let (other, deleted) = (Ok(Op::Delete), Err(Ret::Done(true)));
        let twice = [(1, SET), (2, GET), (2, NEW), (2, other), (2, deleted), (2, GET), (2, NEW)];
        assert!(!history(&twice));
    }

    /// A history of hundreds of calls, four at a time, of which a few have no answer. Stateright's
    /// tester would take minutes for it.
    #[test]
    fn porcupine_judges_a_long_history() {
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
