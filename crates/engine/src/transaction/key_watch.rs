//! Watches: whether a key has changed since an earlier moment, without a transaction.
//!
//! A watch is a value. It holds no lock, no snapshot and no memory besides its key, and may be kept
//! for long. A transaction can require at its commit that watches still hold
//! ([`Transaction::expect_unchanged`](super::Transaction::expect_unchanged)).
//!
//! A watch of a key with a value notices every change, even a change to the same value. A watch of
//! a key without a value notices a change while its records exist. If the key was set and removed
//! again, and a compaction has dropped both records, the key counts as unchanged: it has no value,
//! as before.
//!
//! Thread-safety: a value. Failure: that of a read.
//! Cost: making a watch costs a read without the value. A check costs nothing if nothing was
//! written to the database since. Else it searches the newest record of the key and reads no value.

use archipelago_base::{Result, SeqNo};

use super::validation::key_has_changed;
use crate::concurrency::footprint::KeyRead;
use crate::db::{ColumnFamily, Db, ReadOptions, Since, newest_record};

/// A key as it was at one moment; see [`Db::watch`].
#[derive(Clone, Debug)]
pub struct KeyWatch {
    cf: ColumnFamily,
    key: Box<[u8]>,
    read: KeyRead,
    expires_at_ms: Option<u64>,
}

impl KeyWatch {
    /// The column family of the key.
    #[must_use]
    pub fn family(&self) -> &ColumnFamily {
        &self.cf
    }

    /// The key that is watched.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The record that the watch has found, and its moment.
    pub(super) fn read(&self) -> KeyRead {
        self.read
    }

    /// Time at which the value of the key expires (Unix milliseconds), if it does.
    pub(super) fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }
}

impl Db {
    /// Notes the present state of `key`, for [`Db::has_changed`] and for transactions.
    ///
    /// Errors: those of a read.
    pub fn watch(&self, cf: &ColumnFamily, key: &[u8]) -> Result<KeyWatch> {
        let as_of = self.latest_seq_of_all();
        let found = self.get_head(cf, key, &ReadOptions::default())?;
        let expires_at_ms = found.as_ref().and_then(|entry| entry.expires_at_ms);
        let read = KeyRead { as_of, exactly: found.map(|entry| entry.seq) };
        Ok(KeyWatch { cf: cf.clone(), key: key.into(), read, expires_at_ms })
    }

    /// Whether the key of `watch` has changed since. A write of any kind is a change, even one of
    /// the same value. So is a range delete, an ingestion, and the expiry of its value.
    ///
    /// ```
    /// # use archipelago_engine::{db::Db, options::DbOptions};
    /// # let dir = tempfile::tempdir()?;
    /// # let db = Db::open(dir.path(), DbOptions::default())?;
    /// let watch = db.watch(db.default_family(), b"reef")?;
    /// db.put(b"other", b"1")?;
    /// assert!(!db.has_changed(&watch)?);
    /// db.put(b"reef", b"coral")?;
    /// assert!(db.has_changed(&watch)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Errors: those of a read; `Closed` if the column family was dropped.
    pub fn has_changed(&self, watch: &KeyWatch) -> Result<bool> {
        self.check_family(&watch.cf)?;
        let now_ms = || self.inner.context.clock().unix_ms();
        if watch.expires_at_ms.is_some_and(|expiry| expiry <= now_ms()) {
            return Ok(true);
        }
        if self.latest_seq_of_all() <= watch.read.as_of {
            return Ok(false);
        }
        key_has_changed(self.inner.reader(), &watch.cf.family, &watch.key, &watch.read)
    }

    /// Whether a write with a sequence number after `seq` has changed `key`, as far as its records
    /// tell. A compaction may drop the record of a removal if no snapshot needs it. A [`Db::watch`]
    /// notices such a removal as well.
    ///
    /// Errors: those of a read; `Closed` if the column family was dropped.
    pub fn changed_since(&self, cf: &ColumnFamily, key: &[u8], seq: SeqNo) -> Result<bool> {
        self.check_family(cf)?;
        let newest = newest_record(self.inner.reader(), &cf.family, key, Since::After(seq))?;
        cf.family.check_alive()?;
        Ok(newest.is_some())
    }
}
