//! Separated values: large values lie in value files, outside of the levels.
//!
//! The records of a table refer to them ([`crate::value_ref::Reference`]). Jobs and readers find
//! the files through this module. [`crate::sst::value_file`] implements them next to the tables,
//! because a value file ends with a table of handles in the same block frame. Paper: Terark-DS
//! §2.2.

mod key_list;

pub(crate) use crate::sst::value_file::{
    ValueBatch, ValueKey, ValueKeys, ValueTable, ValueTableBuilder,
};
pub(crate) use key_list::KeyList;
