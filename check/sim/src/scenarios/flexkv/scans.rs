//! Scans of all keys while keys come and go, partitions grow and move, and nodes die.
//!
//! All nodes work on one iteration: each takes its cursor, makes a step, and gives the next cursor
//! to all, so that an iteration goes on over nodes and over their deaths. Of two steps from one
//! cursor the first one counts. Some keys **stay**: once they are set they are only overwritten.
//! An iteration must return every key that stayed before its first step began, and no key that
//! nobody ever wrote.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime as _;
use archipelago_base::simulation::Host;
use archipelago_flexkv::{ComputeNode, ScanLimits, ScanStep};
use parking_lot::Mutex;

use crate::scenarios::flexkv::node::Shared;

/// Keys that stay, at most.
const STAYING_MAX: u64 = 60;
/// Keys that come and go: enough for a few doublings of each partition.
const CHANGING: u64 = 300;

/// What the scans of a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanFigures {
    /// Iterations that came to their end.
    pub iterations: u64,
    /// Steps that counted.
    pub steps: u64,
    /// Steps that ended with an error.
    pub errors: u64,
    /// Doublings of partitions in the run.
    pub grown: u64,
}

/// The iteration that is under way.
#[derive(Debug, Default)]
struct Iteration {
    number: u64,
    cursor: u64,
    /// The keys that it must return; `None` before its first step.
    expected: Option<Vec<u64>>,
    found: BTreeSet<Vec<u8>>,
}

#[derive(Debug, Default)]
struct ScansState {
    staying: Vec<u64>,
    /// Number of keys that were begun to be set as staying ones.
    begun: u64,
    iteration: Iteration,
    figures: ScanFigures,
    violations: Vec<String>,
}

/// What all nodes of a run share.
#[derive(Debug, Default)]
pub(crate) struct Scans(Mutex<ScansState>);

fn staying_key(number: u64) -> Vec<u8> {
    format!("stay-{number}").into_bytes()
}

impl Scans {
    pub(crate) fn figures(&self) -> ScanFigures {
        self.0.lock().figures
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    /// The iteration's number and the cursor to go on with.
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
        state.figures.steps += 1;
        let known =
            |key: &[u8]| [&b"stay-"[..], b"change-", b"key-"].iter().any(|p| key.starts_with(p));
        for found in step.keys {
            if !known(&found.key) {
                let key = String::from_utf8_lossy(&found.key).into_owned();
                state.violations.push(format!("a scan returned {key}, which nobody wrote"));
            }
            state.iteration.found.insert(found.key);
        }
        if let Some(cursor) = step.next {
            state.iteration.cursor = cursor;
            return;
        }
        state.figures.iterations += 1;
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

/// Makes steps of the iteration that is under way.
pub(crate) async fn scan(node: ComputeNode, host: Host, shared: Shared, mut rng: Rng) {
    let Some(scans) = shared.scans.clone() else { return };
    while *shared.working.lock() {
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
            Err(_) => scans.0.lock().figures.errors += 1,
        }
    }
}

/// Sets keys that stay, and has others come and go.
pub(crate) async fn change_keys(node: ComputeNode, host: Host, shared: Shared, mut rng: Rng) {
    let Some(scans) = shared.scans.clone() else { return };
    while *shared.working.lock() {
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
