//! Scans of all keys while clients add and remove keys, partitions grow and move, and nodes die.
//!
//! All nodes work on one iteration. A node takes the cursor, makes a step, and publishes the next
//! cursor for all nodes. So an iteration survives the death of a node. If two nodes make a step
//! from the same cursor, the first step counts. Some keys **stay**: after they are set, clients
//! only overwrite them.
//!
//! Invariants that the run checks:
//! 1. An iteration returns every key that stayed before its first step began.
//! 2. A scan returns no key that no client ever wrote.
//!
//! Thread-safety: all nodes share one [`Scans`], whose lock is never held over a call of the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime as _;
use archipelago_base::simulation::Host;
use archipelago_flexkv::wire::Assigned;
use archipelago_flexkv::{ComputeNode, ScanLimits, ScanStep};
use parking_lot::Mutex;

use crate::run::Figure;
use crate::scenarios::figures;

/// Largest number of staying keys.
const STAYING_MAX: u64 = 60;
/// Number of keys that clients add and remove, enough for a few doublings of each partition.
const CHANGING: u64 = 300;

/// Counts of a run's scans.
#[derive(Clone, Copy, Debug, Default)]
struct ScanCounts {
    /// Iterations that reached their end.
    iterations: u64,
    /// Steps that counted.
    steps: u64,
    /// Steps that ended with an error.
    errors: u64,
}

/// The iteration in progress.
#[derive(Debug, Default)]
struct Iteration {
    number: u64,
    cursor: u64,
    /// Staying keys that the iteration must return. `None` before its first step.
    expected: Option<Vec<u64>>,
    found: BTreeSet<Vec<u8>>,
}

#[derive(Debug, Default)]
struct ScansState {
    staying: Vec<u64>,
    /// Number of staying keys that clients began to set.
    begun: u64,
    iteration: Iteration,
    counts: ScanCounts,
    violations: Vec<String>,
}

/// Scans of a run, which all its nodes share.
#[derive(Debug, Default)]
pub(crate) struct Scans(Mutex<ScansState>);

fn staying_key(number: u64) -> Vec<u8> {
    format!("stay-{number}").into_bytes()
}

impl Scans {
    /// Counts of the scans, and the number of times that partitions of `map` were doubled.
    pub(crate) fn figures(&self, map: &[Assigned]) -> Vec<Figure> {
        let counts = self.0.lock().counts;
        let grown = map.iter().map(|entry| u64::from(entry.shape.generation.saturating_sub(1)));
        figures([
            ("scan iterations", counts.iterations),
            ("scan steps", counts.steps),
            ("scan steps with an error", counts.errors),
            ("partitions doubled", grown.sum()),
        ])
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    /// Begins a step: the number of the iteration and its cursor.
    fn begin_step(&self) -> (u64, u64) {
        let mut state = self.0.lock();
        let staying = state.staying.clone();
        state.iteration.expected.get_or_insert(staying);
        (state.iteration.number, state.iteration.cursor)
    }

    fn end_step(&self, began: (u64, u64), step: ScanStep) {
        let mut state = self.0.lock();
        if (state.iteration.number, state.iteration.cursor) != began {
            return;
        }
        state.counts.steps += 1;
        let known =
            |key: &[u8]| [&b"stay-"[..], b"change-", b"key-"].iter().any(|p| key.starts_with(p));
        for found in step.keys {
            if !known(&found.key) {
                let key = String::from_utf8_lossy(&found.key).into_owned();
                state.violations.push(format!("a scan returned {key}, which no client wrote"));
            }
            state.iteration.found.insert(found.key);
        }
        if let Some(cursor) = step.next {
            state.iteration.cursor = cursor;
            return;
        }
        state.counts.iterations += 1;
        let next = Iteration { number: began.0 + 1, ..Iteration::default() };
        let Iteration { number, expected, found, .. } =
            std::mem::replace(&mut state.iteration, next);
        for missed in expected.unwrap_or_default() {
            if !found.contains(&staying_key(missed)) {
                state.violations.push(format!("iteration {number} of a scan missed stay-{missed}"));
            }
        }
    }
}

/// A node that scans, and a client of it that adds and removes keys.
#[derive(Clone)]
pub(crate) struct Scanner {
    pub(crate) node: ComputeNode,
    pub(crate) host: Host,
    pub(crate) scans: Arc<Scans>,
    /// Whether the run's time of faults lasts.
    pub(crate) working: Arc<Mutex<bool>>,
}

impl Scanner {
    /// Makes steps of the iteration that is in progress.
    pub(crate) async fn scan(self, mut rng: Rng) {
        let Self { node, host, scans, working } = self;
        while *working.lock() {
            host.sleep(Duration::from_micros(rng.u64(20..1500))).await;
            let began = scans.begin_step();
            let limits = ScanLimits { records: rng.usize(1..8), key_bytes: usize::MAX };
            let stepped = node.scan(began.1, limits).await;
            host.scheduler().note(|| format!("scan {began:?}: {stepped:?}"));
            match stepped {
                Ok(Some(step)) => scans.end_step(began, step),
                Ok(None) => {
                    let what = format!("cursor {:#x} is refused", began.1);
                    scans.0.lock().violations.push(what);
                }
                Err(_) => scans.0.lock().counts.errors += 1,
            }
        }
    }

    /// Sets staying keys, and adds and removes changing keys.
    pub(crate) async fn change_keys(self, mut rng: Rng) {
        let Self { node, host, scans, working } = self;
        while *working.lock() {
            host.sleep(Duration::from_micros(rng.u64(50..400))).await;
            let changing = format!("change-{}", rng.u64(..CHANGING)).into_bytes();
            let done = match rng.u32(..10) {
                0 => set_staying(&node, &scans).await,
                1 => {
                    let some = {
                        let state = scans.0.lock();
                        let nth = rng.usize(..state.staying.len().max(1));
                        state.staying.get(nth).copied()
                    };
                    match some {
                        Some(number) => node.set(&staying_key(number), b"again", 0).await,
                        None => Ok(()),
                    }
                }
                2..8 => node.set(&changing, b"coral", 0).await,
                _ => node.delete(&changing).await.map(drop),
            };
            if done.is_err() {
                host.sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

async fn set_staying(
    node: &ComputeNode,
    scans: &Arc<Scans>,
) -> Result<(), archipelago_flexkv::WriteError> {
    let number = {
        let mut state = scans.0.lock();
        if state.begun >= STAYING_MAX {
            return Ok(());
        }
        state.begun += 1;
        state.begun
    };
    node.set(&staying_key(number), b"reef", 0).await?;
    scans.0.lock().staying.push(number);
    Ok(())
}
