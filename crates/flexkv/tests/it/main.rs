//! Integration tests of FlexKV's public interface and of its fuzz corpora.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod corpus;
