//! Integration tests of the pool crate.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod client;
mod corpus;
