//! The server over memory, as a client sees it on the wire.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "the network under test runs in real time")]

mod access;
mod access_times;
mod bitmaps;
mod client;
mod commands;
mod concurrency;
mod connection;
mod databases;
mod engine;
mod expiry;
mod full_disk;
mod lifecycle;
mod memory;
mod monitoring;
mod ordered;
mod protocol;
mod records;
mod scan;
mod store_faults;
mod tls;
mod tracking;
mod transactions;
