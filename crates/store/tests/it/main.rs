//! Tests of storage pools: the pool in memory, and files on it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod conformance;
mod copies;
mod file_crashes;
mod files;
mod grants;
mod held_logs;
mod owner;
mod pool;
mod power_loss;
mod round_trips;
mod two_owners;
mod world;
