//! Tests of the store through its public interface, over a pool in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod pool;
