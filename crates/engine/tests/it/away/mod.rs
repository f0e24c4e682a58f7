//! Memtable shards at memory nodes, for which a store in memory stands.
//!
//! | module | concept |
//! | --- | --- |
//! | `canaries` | defects that reads and recoveries must notice |
//! | `deadlines` | reads of silent nodes end at their deadline |
//! | `executor` | an executor that flushes shards at the nodes, and how it misbehaves |
//! | `fake` | the store, and how it misbehaves |
//! | `flushing` | flushes that the executor runs |
//! | `leaving` | which shards are sent to nodes, and when they are flushed |
//! | `losses` | lost shards are rebuilt from the log |
//! | `operations` | ingestion, checkpoints, close and other calls of an operator |
//! | `reads` | reads have the same results as before |
//! | `staying` | the newest memtables stay as long as the store wants it and memory suffices |
//! | `takeover` | an open keeps the shards of the previous owner |
//! | `world` | a database over the store, and its model |
//!
//! [`Mood`] is an option of the model and metamorphic runs as well.

mod canaries;
mod deadlines;
mod executor;
mod fake;
mod flushing;
mod leaving;
mod losses;
mod moves;
mod operations;
mod reads;
mod staying;
mod takeover;
mod world;

pub(crate) use executor::{FakeExecutor, Whim};
pub(crate) use fake::{FakeStore, Mood, SendHold, Stall, Stays};
pub(crate) use world::with_executor;
