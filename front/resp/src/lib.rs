//! The Redis server of Archipelago: it speaks RESP2 and RESP3 over TCP, on top of a
//! [`store::Store`]. The store is a database, or the store over remote memory.
//!
//! Layer 7. Async code ends here: the network is tokio's, and commands are synchronous functions
//! over a synchronous store. One task serves one connection (`connection` → `pipeline` → `session`
//! → `commands`). Striped key locks make read-modify-write commands atomic (`locks`).
//!
//! Cost: a command allocates nothing until it runs ([`request`]), and its reply is written directly
//! into the output of the connection (`reply`). One write to the socket answers a pipeline, and its
//! consecutive SETs are one write of the store. If the store answers immediately, replies are sent
//! when all connections that have received something have run it (`connection`). An idle connection
//! holds 4 KiB and its task. Store calls run on the worker threads of the runtime, because most of
//! them answer from memory within microseconds. Commands that may take long (many keys, whole
//! ranges, stalled writes) first leave the worker threads, so that other connections go on
//! (`worker_threads`). A call of the store over remote memory leaves them if another node does not
//! answer soon.
//!
//! A server may require a password ([`access`]) and may speak TLS. A plain connection pays for
//! neither.
//!
//! Strings are the only type of values. DBSIZE is as exact as the count of the store.

pub mod access;
mod access_times;
mod args;
mod clients;
mod command;
mod command_stats;
mod commands;
mod connection;
mod connection_batch;
mod cursors;
pub mod databases;
mod decimal;
mod engine_databases;
mod engine_prefixes;
pub mod engine_store;
pub mod figures;
pub mod flexkv_store;

mod glob;
mod growing_reply;
mod invalidations;
mod locks;
mod log_limit;
pub mod mem_store;
mod memory;
mod numbers;
pub mod options;
mod overlay;
mod overlays;
mod pipeline;
pub mod prefixes;
mod refusal;
mod reply;
pub mod request;
pub mod server;
mod server_state;
mod session;
mod settings;
mod slowlog;
pub mod store;
mod tls;
mod tracking;
mod watches;
mod worker_threads;

pub use options::ServerOptions;
pub use server::{Listening, Server, ShutdownHandle};
pub use tls::TlsOptions;
