//! What every part of the database shares: families, memtables, health and job threads.

pub(crate) mod background_mode;
pub(crate) mod delay_credit;
pub(crate) mod family;
pub(crate) mod health;
pub(crate) mod job_threads;
pub(crate) mod memtable;
