//! Prefixes that SCAN cursors refer to, in a column family of the served database.
//!
//! The store of the engine owns the table. The rows lie in the database, because a cursor has to be
//! valid as long as the data, over restarts, copies and checkpoints
//! (`docs/formats/scan-prefixes.md` has the bytes). Invariants:
//!
//! 1. One write contains both rows of a prefix. It has survived power loss before the number is
//!    given out.
//! 2. Rows are never changed and never removed.
//!
//! Thread-safety: one mutex serialises the calls that add a prefix. Searches take no lock. Failure:
//! errors of the engine are returned. A row that no version of this program writes is an error that
//! names the row. Cost: a search is a point read of a small family. Adding a prefix is one synced
//! write, and the first one also creates the family.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{ColumnFamily, Db, ReadOptions};
use archipelago_engine::options::{CfOptions, WriteOptions};
use archipelago_engine::wal::WriteBatch;
use parking_lot::Mutex;

use crate::prefixes::{PREFIXES_MAX, PrefixTable, prefixes_full};

/// Name of the column family. The number at its end is the version of its rows.
const PREFIX_FAMILY: &str = "archipelago.scan-prefixes.1";

/// First byte of a row from a number to its prefix.
const BY_NUMBER: u8 = b'n';
/// First byte of a row from a prefix to its number.
const BY_PREFIX: u8 = b'p';

/// The prefixes of one open database.
pub(crate) struct EnginePrefixes {
    db: Db,
    /// The family, once it was found.
    family: OnceLock<ColumnFamily>,
    keeping: Mutex<()>,
    /// The number of rows of each kind plus one; 0 before they were counted.
    counted: AtomicU32,
}

fn number_row(number: u32) -> Vec<u8> {
    let mut row = vec![BY_NUMBER];
    row.extend_from_slice(&number.to_be_bytes());
    row
}

fn prefix_row(prefix: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(1 + prefix.len());
    row.push(BY_PREFIX);
    row.extend_from_slice(prefix);
    row
}

fn number_of(bytes: &[u8]) -> Result<u32> {
    let number = bytes.try_into().ok().map(u32::from_be_bytes);
    number.filter(|number| (1..PREFIXES_MAX).contains(number)).ok_or_else(|| {
        let shown = bytes.escape_ascii();
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "column family \"{PREFIX_FAMILY}\" has \"{shown}\" instead of a prefix number: \
                 drop the family, SCAN then makes a new one"
            ),
        )
    })
}

impl EnginePrefixes {
    pub(crate) fn new(db: Db) -> Self {
        let (family, keeping) = (OnceLock::new(), Mutex::default());
        Self { db, family, keeping, counted: AtomicU32::new(0) }
    }

    /// The family. `None` if the database does not have it yet.
    fn family(&self) -> Result<Option<&ColumnFamily>> {
        if let Some(family) = self.family.get() {
            return Ok(Some(family));
        }
        if !self.db.list_families().iter().any(|name| name == PREFIX_FAMILY) {
            return Ok(None);
        }
        let family = self.db.family(PREFIX_FAMILY)?;
        Ok(Some(self.family.get_or_init(|| family)))
    }

    /// The largest number in use; 0 if there is none.
    fn last_number(&self) -> Result<u32> {
        let Some(family) = self.family()? else { return Ok(0) };
        let options = ReadOptions::default().prefix([BY_NUMBER]);
        let mut iter = self.db.iter(family, &options)?;
        iter.seek_to_last();
        iter.status()?;
        if iter.valid() { number_of(&iter.key()[1..]) } else { Ok(0) }
    }
}

impl PrefixTable for EnginePrefixes {
    fn number(&self, prefix: &[u8]) -> Result<Option<u32>> {
        let Some(family) = self.family()? else { return Ok(None) };
        let found = self.db.get_with(family, &prefix_row(prefix), &ReadOptions::default())?;
        let Some(number) = found.map(|bytes| number_of(&bytes)).transpose()? else {
            return Ok(None);
        };
        // A larger number belongs to a row that is being written, and may not be durable yet.
        Ok((number <= self.len()?).then_some(number))
    }

    fn prefix(&self, number: u32) -> Result<Option<Vec<u8>>> {
        let Some(family) = self.family()? else { return Ok(None) };
        let found = self.db.get_with(family, &number_row(number), &ReadOptions::default())?;
        Ok(found.map(|prefix| prefix.to_vec()))
    }

    fn keep(&self, prefix: &[u8]) -> Result<u32> {
        let _one_at_a_time = self.keeping.lock();
        if let Some(number) = self.number(prefix)? {
            return Ok(number);
        }
        let family = match self.family()? {
            Some(family) => family,
            None => {
                let made = self.db.create_family(PREFIX_FAMILY, CfOptions::default())?;
                self.family.get_or_init(|| made)
            }
        };
        let number = self.len()? + 1;
        if number >= PREFIXES_MAX {
            return Err(prefixes_full());
        }
        let mut batch = WriteBatch::new();
        batch.put_cf(family.id(), &number_row(number), prefix);
        batch.put_cf(family.id(), &prefix_row(prefix), &number.to_be_bytes());
        if let Err(error) = self.db.write(&batch, &WriteOptions::synced()) {
            // The rows may have been written nevertheless, so they are counted again.
            self.counted.store(0, Ordering::Release);
            return Err(error);
        }
        self.counted.store(number + 1, Ordering::Release);
        Ok(number)
    }

    fn len(&self) -> Result<u32> {
        match self.counted.load(Ordering::Acquire) {
            0 => {
                let last = self.last_number()?;
                // A number that was given out meanwhile is larger.
                self.counted.fetch_max(last + 1, Ordering::AcqRel);
                Ok(self.counted.load(Ordering::Acquire) - 1)
            }
            counted => Ok(counted - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use archipelago_engine::db::Components;
    use archipelago_engine::options::DbOptions;
    use archipelago_env::mem::MemFs;

    use super::*;

    fn open(fs: &Arc<MemFs>) -> Db {
        let components = Components { fs: Arc::clone(fs) as _, ..Components::default() };
        Db::open_with("/data", DbOptions::default(), components).unwrap()
    }

    fn table(fs: &Arc<MemFs>) -> (Db, EnginePrefixes) {
        let db = open(fs);
        (db.clone(), EnginePrefixes::new(db))
    }

    #[test]
    fn rows_have_the_documented_bytes() {
        let fs = Arc::new(MemFs::new());
        let (db, table) = table(&fs);
        assert!(table.is_empty().unwrap());
        assert_eq!(table.number(b"user").unwrap(), None);
        assert_eq!(db.list_families().len(), 1, "searches create no family");
        assert_eq!(table.keep(b"user").unwrap(), 1);
        assert_eq!(table.keep(b"item:000").unwrap(), 2);
        assert_eq!(table.keep(b"user").unwrap(), 1);
        let family = db.family("archipelago.scan-prefixes.1").unwrap();
        let mut iter = db.iter(&family, &ReadOptions::default()).unwrap();
        let mut rows = Vec::new();
        iter.seek_to_first();
        while iter.valid() {
            rows.push((iter.key().to_vec(), iter.value().to_vec()));
            iter.next();
        }
        let row = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        let expected = [
            row(b"n\x00\x00\x00\x01", b"user"),
            row(b"n\x00\x00\x00\x02", b"item:000"),
            row(b"pitem:000", b"\x00\x00\x00\x02"),
            row(b"puser", b"\x00\x00\x00\x01"),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn numbers_survive_power_loss() {
        let fs = Arc::new(MemFs::new());
        let (_db, first) = table(&fs);
        assert_eq!(first.keep(b"user").unwrap(), 1);
        let fs = Arc::new(fs.crash_clone(1));
        let (_db, second) = table(&fs);
        assert_eq!(second.prefix(1).unwrap().as_deref(), Some(&b"user"[..]));
        assert_eq!(second.number(b"user").unwrap(), Some(1));
        assert_eq!(second.keep(b"item").unwrap(), 2);
        assert_eq!((second.len().unwrap(), second.prefix(3).unwrap()), (2, None));
    }

    #[test]
    fn damaged_row_is_an_error_that_names_the_family() {
        let fs = Arc::new(MemFs::new());
        let (db, table) = table(&fs);
        table.keep(b"user").unwrap();
        let family = db.family(PREFIX_FAMILY).unwrap();
        db.put_with(&family, b"puser", b"12345", &WriteOptions::default()).unwrap();
        let error = table.number(b"user").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.context().contains(PREFIX_FAMILY), "{error}");
    }
}
