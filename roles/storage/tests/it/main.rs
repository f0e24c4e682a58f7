//! Tests of storage nodes with their clients: the suites of the three traits, volumes and databases
//! over nodes that are killed, lose power, or are lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod blobs;
mod chunks;
mod cluster;
mod databases;
mod log_forms;
mod log_writers;
mod logs;
mod repair;
mod suites;
mod volumes;
mod world;
