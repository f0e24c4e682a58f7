//! What an operator calls: families, buckets, checkpoints, ingestion, reports and verification.

pub(crate) mod buckets;
pub(crate) mod checkpoint;
pub(crate) mod compact_range;
pub(crate) mod families;
pub(crate) mod ingest;
pub(crate) mod report;
pub(crate) mod verify;
