//! What a proxy knows of its partitions' keys beside the index.

mod metadata;

pub use metadata::{COUNTER_MAX, EXACT_NODES, METADATA_BYTES, Metadata, MetadataTable, Sharers};
