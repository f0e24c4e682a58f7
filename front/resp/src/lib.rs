//! The Redis face of Archipelago: a server that speaks RESP2 and RESP3 over TCP, on top of an
//! [`store::Store`]: a database, or the store over remote memory.
//!
//! Layer 6. Async stops here: the network is tokio's, commands are synchronous functions over the
//! synchronous store. One task serves one connection (`connection` → `pipeline` → `session` →
//! `commands`); read-modify-write commands are atomic by striped key locks (`locks`).
//!
//! Costs: a command allocates nothing on its way in ([`request`]) and its reply is written
//! straight into the connection's output (`reply`); a pipeline is answered by one write to the
//! socket, and its consecutive SETs are one write of the store. Of a store that answers at once
//! replies leave when all connections that have received something have run it (`connection`). An
//! idle connection holds 4 KiB and its task. Store calls run on the runtime's workers, because most
//! answer from memory within microseconds; commands that may take long (many keys, whole ranges,
//! stalled writes) are moved off the workers first, so that other connections go on.
//!
//! A client may have to give a password ([`access`]), and a connection may be TLS; a plain one pays
//! nothing for either.
//!
//! Strings are the only type. DBSIZE is about right where the store's count is.

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

pub use options::ServerOptions;
pub use server::{Listening, Server, ShutdownHandle};
pub use tls::TlsOptions;
