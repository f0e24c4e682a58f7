//! Seeded runs of every scenario, and real processes that are killed and cut off.

mod copies;
mod cuts;
mod full_memory;
mod keys;
mod linearizability;
mod office;
mod offload;
mod offload_db;
mod offsets;
mod pool;
mod processes;
mod scans;
mod scenarios;
mod seeds;
mod shards;
mod shares;
mod standby;
mod storage;
mod unanswered;
