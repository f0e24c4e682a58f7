//! Integration tests of the offload crate.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod ahead;
mod away;
mod away_database;
mod away_images;
mod away_offsets;
mod copies;
mod corpus;
mod databases;
mod deadlines;
mod flushes;
mod give_up;
mod memories;
mod office;
mod rounds;
mod shards;
mod shares;
mod staying;
mod takeover;
mod volumes;
