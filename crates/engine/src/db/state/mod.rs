//! State that every other part of the database builds on: owners, families, memtables, jobs.
//!
//! The modules of this folder name no other folder of `db`.
//!
//! Thread-safety, failure and cost: see the modules.

pub(crate) mod away;
pub(crate) mod background_mode;
pub(crate) mod balance;
pub(crate) mod compaction_turns;
pub(crate) mod context;
pub(crate) mod delay_credit;
pub(crate) mod family;
pub(crate) mod family_space;
pub(crate) mod health;
pub(crate) mod job_threads;
pub(crate) mod jobs;
pub(crate) mod memtable;
pub(crate) mod observers;
pub(crate) mod pacing;
pub(crate) mod read_watch;
pub(crate) mod running_jobs;
pub(crate) mod sealed;
pub(crate) mod storage;
pub(crate) mod strays;
pub(crate) mod thread_group;
