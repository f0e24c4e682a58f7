//! Interface through which a cursor gets separated values.
//!
//! A record of kind [`Indirect`](crate::key::Kind::Indirect) holds a reference instead of a value.
//! [`ValueSource`] stands between the cursor, which knows records, and the reader of value files,
//! which knows versions and files.

use archipelago_base::{Result, SeqNo};

use crate::pinned::PinnedSlice;
use crate::value_ref::Reference;

/// A record whose separated value a reader wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedValue<'a> {
    /// User key of the record.
    pub(crate) key: &'a [u8],
    /// Sequence number of the record itself, which the value file knows.
    pub(crate) seq: SeqNo,
    /// The stored value of the record, decoded.
    pub(crate) reference: Reference,
}

/// Reads the values that the records of one version reference.
pub(crate) trait ValueSource: Send {
    /// The value of one record.
    fn fetch(&self, wanted: WantedValue<'_>) -> Result<PinnedSlice>;
    /// The values of several records, in the order of `wanted`. The source batches device reads. An
    /// error says nothing about which of the values could be read.
    fn fetch_many(&self, wanted: &[WantedValue<'_>]) -> Result<Vec<PinnedSlice>>;
}
