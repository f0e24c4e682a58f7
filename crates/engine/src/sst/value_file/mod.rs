//! Value files: separated values in key order, then their keys as an ordinary table of handles.
//!
//! [`ValueTableBuilder`] writes a file, [`ValueTable`] reads values and finds handles, and
//! [`ValueKeys`] walks over all keys of a file. `docs/formats/value-file.md` describes the format
//! byte by byte. Paper: Terark-DS §2.2 and §4.4.1, which keeps the keys of a value file apart from
//! the values, so that garbage collection loads them with one read.
//!
//! | module | concept |
//! | --- | --- |
//! | `writer` | writing, with the keys in memory until the values are complete |
//! | `reader` | values by handle, handles by key |
//! | `keys` | all keys of a file in order |

mod keys;
mod reader;
mod writer;

pub(crate) use keys::ValueKeys;
pub(super) use reader::unpack;
pub(crate) use reader::{
    DescribedValues, StoredValue, ValueBatch, ValueKey, ValueTable, described_values,
};
pub(crate) use writer::ValueTableBuilder;

#[cfg(test)]
mod tests;
