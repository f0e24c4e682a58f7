//! Processes that use the register of the cluster, and the judgement of what they saw.
//!
//! The version of a value orders all changes of a name, so a history is linearizable if it has
//! these properties:
//! 1. Each version has one value.
//! 2. No two changes made the same version, and a change made a larger version than it expected.
//! 3. An operation sees at least the version that an operation saw or made that ended before it
//!    began. A change makes a larger one.
//!
//! Thread-safety: the thread that runs the simulation owns the value.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::simulation::Host;
use archipelago_base::{ErrorKind, Result};
use archipelago_store::{Swap, Versioned};

use super::client::{ClientProcess, ClientSettings};
use super::cluster::Cluster;
use crate::scenarios::thread::{Call, SimThread};

/// Number of processes.
const PROCESSES: usize = 2;
/// Time between two checks whether threads have ended.
const LOOK: Duration = Duration::from_millis(100);
/// Number of such checks before a thread counts as stuck.
const LOOKS_MAX: u32 = 1_000;
/// Number of names.
const NAMES: u8 = 2;

/// Result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// The operation found this value.
    Found(Option<Versioned>),
    /// The operation made this version from the expected one.
    Made { expected: u64, version: u64 },
}

/// An operation with an outcome.
#[derive(Clone, Debug)]
struct RegisterRecord {
    name: String,
    value: Arc<Vec<u8>>,
    began_ns: u64,
    ended_ns: u64,
    seen: Seen,
}

impl RegisterRecord {
    /// The version that the operation saw or made.
    fn version(&self) -> u64 {
        match &self.seen {
            Seen::Found(found) => found.as_ref().map_or(0, |found| found.version),
            Seen::Made { version, .. } => *version,
        }
    }
}

/// An operation under way. Its result has the times at which it began and ended.
#[derive(Debug)]
struct RegisterCall {
    name: String,
    value: Arc<Vec<u8>>,
    call: Call<(u64, u64, Result<Seen>)>,
}

#[derive(Debug)]
struct RegisterProcess {
    thread: SimThread<ClientProcess>,
    host: Host,
    running: Option<RegisterCall>,
    /// Newest version of each name that the process saw.
    versions: BTreeMap<String, u64>,
}

/// The processes, and their history.
#[derive(Debug, Default)]
pub(crate) struct RegisterClients {
    processes: Vec<RegisterProcess>,
    history: Vec<RegisterRecord>,
    violations: Vec<String>,
    next: u64,
}

impl RegisterClients {
    /// Starts the processes.
    pub(crate) fn start(&mut self, cluster: &mut Cluster, settings: ClientSettings) {
        for _ in 0..PROCESSES {
            let sim = cluster.join_client();
            let host = sim.host().clone();
            let thread = SimThread::start(&host, ClientProcess::new(&sim, settings));
            let versions = BTreeMap::new();
            self.processes.push(RegisterProcess { thread, host, running: None, versions });
        }
    }

    /// Begins an operation of each process that has none.
    pub(crate) fn operate(&mut self, rng: &mut Rng) {
        for process in self.processes.iter_mut().filter(|process| process.running.is_none()) {
            self.next += 1;
            let name = format!("sim/{}", rng.u8(..NAMES));
            let value = Arc::new(self.next.to_le_bytes().to_vec());
            let expected = match rng.u8(..3) {
                0 => None,
                _ => Some(process.versions.get(&name).copied().unwrap_or(0)),
            };
            let (at, bytes, host) = (name.clone(), Arc::clone(&value), process.host.clone());
            let call = process.thread.call(move |client| {
                let began_ns = host.scheduler().now_ns();
                let seen = operation(client, &at, expected, &bytes);
                (began_ns, host.scheduler().now_ns(), seen)
            });
            process.running = Some(RegisterCall { name, value, call });
        }
    }

    /// Takes operations that have ended.
    pub(crate) fn take_ended(&mut self) {
        for process in &mut self.processes {
            let outcome = process.running.as_ref().and_then(|running| running.call.take());
            let Some((began_ns, ended_ns, seen)) = outcome else { continue };
            let Some(RegisterCall { name, value, .. }) = process.running.take() else { continue };
            let seen = match seen {
                Ok(seen) => seen,
                // The outcome is unknown. The next operation reads the version again.
                Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Io) => continue,
                Err(error) => {
                    self.violations.push(format!("the register {name}: {error}"));
                    continue;
                }
            };
            let record = RegisterRecord { name, value, began_ns, ended_ns, seen };
            process.versions.insert(record.name.clone(), record.version());
            self.history.push(record);
        }
    }

    /// Number of operations with an outcome.
    pub(crate) fn operations(&self) -> u64 {
        self.history.len() as u64
    }

    /// Waits for the operations under way, and ends the processes.
    pub(crate) fn finish(&mut self, cluster: &Cluster) {
        for process in &self.processes {
            process.thread.close();
        }
        for _ in 0..LOOKS_MAX {
            if self.processes.iter().all(|process| process.thread.has_ended()) {
                break;
            }
            cluster.run_for(LOOK);
        }
        self.take_ended();
        for process in &self.processes {
            if let Some(panic) = process.thread.panic_text() {
                self.violations.push(format!("a process of the register panicked: {panic}"));
            } else if !process.thread.has_ended() {
                let stuck = &process.running;
                self.violations.push(format!("a call of the register did not return: {stuck:?}"));
            }
        }
    }

    /// Violations, among them those of the history.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut violations = self.violations.clone();
        violations.extend(judge(&self.history).err());
        violations
    }
}

fn operation(
    client: &mut ClientProcess,
    name: &str,
    expected: Option<u64>,
    value: &[u8],
) -> Result<Seen> {
    let register = client.stores()?.register;
    let Some(expected) = expected else { return register.read(name).map(Seen::Found) };
    match register.compare_and_swap(name, expected, value)? {
        Swap::Done(version) => Ok(Seen::Made { expected, version }),
        Swap::Lost(found) => Ok(Seen::Found(found)),
    }
}

/// An error that says why the history is not linearizable.
fn judge(history: &[RegisterRecord]) -> Result<(), String> {
    let mut values: BTreeMap<(&str, u64), &[u8]> = BTreeMap::new();
    let mut makers: BTreeMap<(&str, u64), &RegisterRecord> = BTreeMap::new();
    for record in history {
        let version = record.version();
        let value: &[u8] = match &record.seen {
            Seen::Found(None) => continue,
            Seen::Found(Some(found)) => &found.value,
            Seen::Made { expected, .. } => {
                if version <= *expected {
                    return Err(format!("a change made no larger version: {record:?}"));
                }
                if let Some(other) = makers.insert((record.name.as_str(), version), record) {
                    return Err(format!("two changes made one version: {other:?} and {record:?}"));
                }
                &record.value
            }
        };
        let known = *values.entry((record.name.as_str(), version)).or_insert(value);
        if known != value {
            return Err(format!("a version has two values: {known:?}, and {record:?}"));
        }
    }
    for later in history {
        let is_before = |record: &&RegisterRecord| {
            record.name == later.name && record.ended_ns < later.began_ns
        };
        let is_change = matches!(later.seen, Seen::Made { .. });
        for earlier in history.iter().filter(is_before) {
            let is_stale = match is_change {
                true => later.version() <= earlier.version(),
                false => later.version() < earlier.version(),
            };
            if is_stale {
                return Err(format!(
                    "the register went back: {later:?} began after {earlier:?} had ended"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(began_ns: u64, seen: Seen) -> RegisterRecord {
        let value = Arc::new(vec![began_ns as u8]);
        let ended_ns = began_ns + 1;
        RegisterRecord { name: "a".to_owned(), value, began_ns, ended_ns, seen }
    }

    fn found(version: u64, value: u8) -> Seen {
        Seen::Found((version > 0).then(|| Versioned { version, value: vec![value] }))
    }

    #[test]
    fn judge_notices_each_kind_of_wrong_history() {
        let make = |expected, version| Seen::Made { expected, version };
        let sound = [record(1, make(0, 1)), record(3, found(1, 1)), record(5, make(1, 2))];
        assert_eq!(judge(&sound), Ok(()));
        let wrong = [
            (record(7, found(1, 1)), "went back"),
            (record(7, found(0, 0)), "went back"),
            (record(7, found(2, 9)), "two values"),
            (record(7, make(1, 2)), "one version"),
            (record(7, make(5, 5)), "no larger version"),
        ];
        for (record, text) in wrong {
            let mut history = sound.to_vec();
            history.push(record);
            let error = judge(&history).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
