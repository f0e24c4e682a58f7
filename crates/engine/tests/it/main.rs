//! Tests of the database through its public API.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod basics;
mod corruption;
mod crash;
mod faults;
mod model;
mod support;
