//! Sorted string tables: immutable files of records in internal-key order.
//!
//! [`TableBuilder`] writes a table. [`TableReader`] answers look-ups and makes cursors
//! ([`TableIter`]). [`SstWriter`] makes files for ingestion. [`crate::table_cache`] keeps a bounded
//! number of readers open. `docs/formats/sst.md` describes the format byte by byte.
//!
//! | module | concept |
//! | --- | --- |
//! | `format` | block frame, compression, footer |
//! | `data_block` | records with shared prefixes, restarts, hash index; search and cursor |
//! | `index` | separators and block handles; one level or two |
//! | `filter` | the blocked Bloom filter |
//! | `flat` | the Flat Index Cache: references of a table without its other records |
//! | `properties` | counts and bounds that a file stores |
//! | `block` | a block in memory, as the cache holds it |
//! | `builder`, `writer` | writing |
//! | `reader`, `multi`, `iter`, `readahead`, `verify`, `dump` | reading |
//! | `value_file` | files of separated values, whose keys are a table of handles |
//! | `anchors` | keys at which a compaction of the table may be cut |
//! | `salvage` | reading the undamaged blocks of a damaged table |

mod anchors;
mod block;
mod builder;
mod data_block;
mod dump;
pub mod filter;
mod flat;
mod format;
mod index;
mod iter;
mod multi;
mod properties;
mod readahead;
mod reader;
mod salvage;
mod sampling;
mod tail;
pub(crate) mod value_file;
mod verify;
mod warm;
mod writer;

pub use anchors::Anchor;
pub(crate) use anchors::anchors;
#[cfg(test)]
pub(crate) use block::block_of as tests_block;
pub use block::{Block, BlockCache};
pub use builder::{RecordRole, TableBuilder, TableOptions};
pub use dump::{DumpedRecords, dump_file};
pub(crate) use flat::lookup_references;
pub use format::FORMAT_VERSION;
pub use iter::TableIter;
pub use properties::Properties;
pub(crate) use reader::FileIdentity;
pub use reader::{TableReadOptions, TableReader};
pub use salvage::{RecordVisitor, TableSalvage, salvage_table};
pub(crate) use sampling::{SampledBlock, SampledKey};
pub use verify::{ForeignTable, read_foreign_table, read_foreign_value_file, verify_value_file};
pub(crate) use verify::{opened_meta, opened_value_meta};
pub(crate) use warm::{BlockSpan, TableBlocks, WarmChoice};
pub use writer::SstWriter;

#[cfg(test)]
mod tests;
