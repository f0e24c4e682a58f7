//! Tests of the crate that a program embeds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod exports;
