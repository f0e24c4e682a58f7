//! Tests of storage pools: the pool in memory, and files on it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod file_crashes;
mod files;
mod pool;
mod round_trips;
mod world;
