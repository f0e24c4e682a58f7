//! Many nodes, modelled: Figure 17 and Tables 9 and 10 of O³-LSM (§5.5).
//!
//! One machine cannot run five databases behind links of their own, so these rows come from a model
//! in virtual time. Memtables that fill, images that leave, flushes and compactions are flows of
//! bytes. Flows share links and streams by max-min fairness, with the factors of decision 0087. The
//! model calls the functions of the product for these decisions, and has no copies of them:
//!
//! | decision | function |
//! | --- | --- |
//! | the speed of writers | `stall`, with `RateMeter`, `job_speed` and `away_excess_bytes` |
//! | the key ranges to flush | `flush_due` |
//! | the executor of a job | `choose` |
//! | the memory node of a shard | `place` |
//! | the memory that an owner may use | `share`, `guarantees`, `Claim` |
//!
//! | module | purpose |
//! | --- | --- |
//! | `fair` | rates of flows |
//! | `memory` | rooms of owners at memory nodes |
//! | `jobs` | jobs, and the executors that may run them |
//! | `owner` | one database: memtables, L0, writers and their limit |
//! | `cluster` | the run in virtual time |
//! | `load` | the settings of the rows |
//! | `rows` | rows, tables and charts |
//!
//! Invariants:
//! 1. A run follows from its setting and its seed. No real clock is read.
//! 2. No figure of the paper is an input, except sizes and the shares of Table 10.
//!
//! The assumptions are those of decision 0103.

mod cluster;
mod fair;
mod jobs;
mod load;
mod memory;
mod owner;
mod rows;
#[cfg(test)]
mod tests;

pub(super) use rows::{ModelFigures, measure};

/// MB of a full memtable.
const MEMTABLE_MB: f64 = 64.0;
/// Buckets of each database, which are equally hot.
const BUCKETS: usize = 16;
/// L0 layers (in the fullest bucket) at which compactions begin, writers slow down, and stop.
const L0_TRIGGERS: [usize; 3] = [4, 32, 48];
/// MB/s of the link between a compute or memory node and the others, without the storage (§5.1).
const MEMORY_LINK: f64 = 5000.0;
/// MB/s of a writer that nothing limits: 1,040 B in the microsecond that the profile of `model`
/// has.
const WRITER_PEAK: f64 = 1040.0;

/// MB as bytes.
fn bytes(megabytes: f64) -> u64 {
    (megabytes * 1e6).round() as u64
}

/// Bytes as MB.
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
