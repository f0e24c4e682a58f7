//! Tests of the promises of all providers, and of the properties of each provider.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod auth;
mod conformance;
mod corpus;
mod malformed;
#[cfg(feature = "ofi")]
mod ofi;
mod paced;
mod ports;
mod process;
mod processes;
mod reach;
mod requests;
mod shm;
mod sim;
mod tcp;
mod world;
