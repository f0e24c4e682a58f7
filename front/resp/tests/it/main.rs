//! The server over memory, as a client sees it on the wire.

mod client;
mod commands;
mod concurrency;
mod connection;
mod expiry;
mod lifecycle;
mod ordered;
mod protocol;
mod scan;
