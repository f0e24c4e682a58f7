//! Offloading: jobs of a database that run on other nodes, and sealed memtable shards that memory
//! nodes hold (O³-LSM, docs/design/offload.md).
//!
//! Three state machines share the protocol of jobs. The **owner** of a database plans jobs, and
//! only the owner installs outputs. The **scheduler** queues jobs and chooses executors. An
//! **executor** runs jobs over a shared directory, or over a storage cluster by grants of the
//! owner.
//!
//! | part | folder |
//! | --- | --- |
//! | jobs of an owner that run elsewhere | [`owner`] |
//! | queues, attempts and executors of a scheduler | [`scheduler`] |
//! | attempts of an executor | [`executor`] |
//! | pure decisions | [`decide`] |
//! | messages, and their reasons of failed attempts | [`wire`], [`failure`] |
//! | the payloads of messages that only owner and executor read | [`parcel`] |
//! | threads, mail and the seams of the engine | [`net`] |
//! | points at which a checker kills processes | [`message_points`] |
//! | memtable shards on a memory node | [`shard_host`] |
//! | the same at their owner | [`shard_owner`] |
//!
//! Invariants:
//! 1. The manifest of the database stays the only boundary of visibility. A scheduler that loses
//!    its state loses no data (docs/design/offload.md, rule 6).
//! 2. A file number belongs permanently to one attempt, so a late executor cannot touch a live
//!    file.
//! 3. Each message may arrive twice, late, or never.
//!
//! Thread-safety: the state machines have no locks; their drivers lock them.
//! Failure: each failure ends in another attempt or in a run at the owner, and is counted.
//! Cost: four messages in each direction for a job, and two small messages for a beat.
//!
//! `archipelago-sim --scenario offload` runs the protocol of jobs under faults.

pub mod decide;
pub mod executor;
pub mod failure;
pub mod ids;
pub mod job;
pub mod message_points;
pub mod net;
pub mod owner;
pub mod parcel;
pub mod sabotage;
pub mod scheduler;
pub mod shard_host;
pub mod shard_owner;
pub mod wire;
