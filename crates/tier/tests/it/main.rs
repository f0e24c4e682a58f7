//! Tests of tiers through their public interface, over disks in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod page_cache;
mod scheme_file;
mod slower;
mod world;
