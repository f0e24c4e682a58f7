//! Memtable shards at memory nodes, which a store in memory plays.
//!
//! | module | concept |
//! | --- | --- |
//! | `fake` | the store, and how it misbehaves |
//! | `leaving` | which shards leave, and when they are flushed |
//! | `losses` | lost shards come back from the log |
//! | `operations` | ingestion, checkpoints, close and other calls of an operator |
//! | `reads` | reads find what they found before |
//! | `takeover` | an open keeps the shards of the owner before |
//! | `world` | a database over the store, and its model |
//!
//! [`Mood`] is an option of the model and metamorphic runs as well.

mod fake;
mod leaving;
mod losses;
mod operations;
mod reads;
mod takeover;
mod world;

pub(crate) use fake::{FakeStore, Mood};
