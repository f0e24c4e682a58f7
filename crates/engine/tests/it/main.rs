//! Tests of the database through its public API.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
mod away;
mod basics;
mod beside;
mod buckets;
mod checkpoints;
mod concurrent;
mod corruption;
mod counting;
mod crash;
mod crash_model;
mod descriptors;
mod families;
mod faults;
mod fencing;
mod file_modes;
mod followers;
mod fragile;
mod full_disk;
mod ingestion;
mod job_threads;
mod keys_only;
mod later_log;
mod log_in_pool;
mod lost_edits;
mod memory;
mod metamorphic;
mod model;
mod panics;
mod range_deletes;
mod remote_jobs;
mod repair;
mod repair_faults;
mod separation;
mod settings;
mod snapshots;
mod space;
mod store;
mod subcompactions;
mod support;
mod tiers;
mod transactions;
mod warm;
mod written_shards;
