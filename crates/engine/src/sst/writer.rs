//! Writes a table for ingestion: a user's sorted keys, outside of any database.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::{Rng, entropy_seed, unique_id};
use archipelago_base::{Error, FileNo, Result, SeqNo};
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

use super::builder::{TableBuilder, TableOptions};
use crate::file_meta::FileMeta;
use crate::key::{self, KEY_BYTES_MAX, Kind, VALUE_BYTES_MAX};
use crate::tombstone::RangeTombstone;

/// Writes one file of records with strictly ascending keys, one record a key. Ingesting the file
/// gives all of them one sequence number. A range delete in the file deletes records that the
/// database held before, never a record of the same file.
///
/// The file is marked as made for ingestion. `Db::ingest` accepts no other file, because records of
/// a database's own tables have sequence numbers that mean nothing elsewhere.
///
/// After an error the file is useless, and the caller should remove it.
#[derive(Debug)]
pub struct SstWriter {
    builder: TableBuilder,
    path: PathBuf,
    encoded: Vec<u8>,
}

impl SstWriter {
    /// Creates (or truncates) the file at `path`.
    pub fn create(fs: &Arc<dyn FileSystem>, path: &Path, options: TableOptions) -> Result<Self> {
        let context = IoContext::new(FileClass::Sst, IoPurpose::Ingest);
        let file = fs.create(path, context, CreateOptions::default())?;
        let id = unique_id(&mut Rng::with_seed(entropy_seed()));
        let builder = TableBuilder::new(file, path, FileNo(0), id, options).for_ingestion();
        Ok(Self { builder, path: path.to_owned(), encoded: Vec::new() })
    }

    /// Sets `key` to `value`. `InvalidArgument` if it does not follow the last key, or is too long.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.add(key, Kind::Put, value)
    }

    /// Adds a delete of `key`.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.add(key, Kind::Delete, b"")
    }

    /// Adds an operand for the merge operator of the column family that takes the file.
    pub fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.add(key, Kind::Merge, operand)
    }

    /// Deletes the keys from `start` (inclusive) to `end` (exclusive) that the database held before
    /// the file is ingested. Range deletes may come in any order.
    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        check_key(start)?;
        check_key(end)?;
        if start >= end {
            return Err(Error::invalid("delete_range: the start must lie before the end"));
        }
        let tombstone = RangeTombstone { start: start.into(), end: end.into(), seq: SeqNo::ZERO };
        self.builder.add_tombstone(&tombstone)
    }

    fn add(&mut self, key: &[u8], kind: Kind, value: &[u8]) -> Result<()> {
        check_key(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a value of {} bytes is too large (at most {VALUE_BYTES_MAX})",
                value.len()
            )));
        }
        if self.builder.last_user_key().is_some_and(|last| key <= last) {
            return Err(Error::invalid(format!(
                "{}: keys must be strictly ascending, \"{}\" is not behind the last one",
                self.path.display(),
                key.escape_ascii()
            )));
        }
        self.encoded.clear();
        key::encode_into(&mut self.encoded, key, SeqNo::ZERO, kind);
        self.builder.add(&self.encoded, value)
    }

    /// Approximate length of the file in bytes if it ended here.
    #[must_use]
    pub fn estimated_bytes(&self) -> u64 {
        self.builder.estimated_bytes()
    }

    /// Ends and syncs the file; the caller syncs the directory. `InvalidArgument` if nothing was
    /// added.
    pub fn finish(self) -> Result<FileMeta> {
        if self.builder.is_empty() {
            return Err(Error::invalid(format!("{}: nothing was added", self.path.display())));
        }
        self.builder.finish()
    }
}

fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a key of {} bytes is too long (at most {KEY_BYTES_MAX})",
            key.len()
        )));
    }
    Ok(())
}
