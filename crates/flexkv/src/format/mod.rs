//! Formats of the data in the pool: slots, records, subtables and the directory of partitions
//! (`docs/formats/flexkv.md`).
//!
//! Everything is little-endian. The decoders take any bytes that a one-sided read may bring, torn
//! or hostile, and answer with a value or a reason. They never panic and allocate nothing.

mod growth;
mod load_counters;
mod partition;
mod record;
mod roster;
mod scan_position;
mod slot;
mod table;

pub(crate) use growth::growth_sizes;
pub use load_counters::{Counts, counters_bytes};
pub(crate) use load_counters::{READS_OFFSET, WRITES_OFFSET, counter_place, counters_magic};
pub use partition::{
    Access, ENTRY_BYTES, EntryRefused, LOG2_BUCKETS_MAX, Owner, PartitionEntry, Shape, entry_offset,
};
pub use record::{
    Decoded, EXPIRY_MAX, HEADER_BYTES, Head, Header, INVALID_WORD, KEY_BYTES_MAX, Record,
    RecordRefused, VALID_WORD, record_bytes,
};
pub use roster::{ROSTER_BYTES, ROSTER_CLIENTS, Roster, roster_head, roster_offset};
pub use scan_position::ScanPosition;
pub use slot::{LENGTH_UNITS_MAX, Slot, SlotState, TIME_MASK, UNIT_BYTES, packing};
pub(crate) use table::HashedKey;
pub use table::{
    BUCKET_BYTES, BUCKET_SLOTS, Bucket, Candidates, Geometry, KeyHash, PARTITION_BITS_DEFAULT,
    PARTITION_BITS_MAX, SlotIndex, key_hash, regrow,
};
