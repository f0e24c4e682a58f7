//! Rows in time order that expire, in a separate family, as logs and measurements have them.
//!
//! The family gets only new keys after all others. Tables of expired rows therefore have nothing
//! older below, and no reader of a settled database needs them.

use archipelago_engine::db::ColumnFamily;
use archipelago_engine::wal::WriteBatch;

use super::oracle::{Event, Family, Version};
use super::runner::Runner;

/// The family's name.
pub(super) const NAME: &str = "ordered";
/// Bytes of a row's value.
const VALUE_BYTES: usize = 100;

/// The family, its model, and the number of its rows.
pub(super) struct Ordered {
    pub(super) model: Family,
    pub(super) handle: ColumnFamily,
    rows: u64,
}

impl Ordered {
    pub(super) fn new(handle: ColumnFamily) -> Self {
        Self { model: Family::new(NAME, false), handle, rows: 0 }
    }
}

impl Runner {
    pub(super) fn write_ordered(&mut self, rows: u64, ms_ahead: u64) {
        let expiry_ms = self.now_ms() + ms_ahead;
        let first = self.ordered.rows;
        let row = |row: u64| (format!("{row:012}").into_bytes(), vec![row as u8; VALUE_BYTES]);
        let mut batch = WriteBatch::new();
        for (key, value) in (first..first + rows).map(row) {
            batch.put_expiring_cf(self.ordered.handle.id(), &key, &value, expiry_ms);
        }
        self.patiently(|| self.db.write(&batch, &Default::default()));
        self.ordered.rows += rows;
        for (key, value) in (first..first + rows).map(row) {
            let seq = self.advance_seq();
            let event = Event::Expiring(value, expiry_ms);
            self.ordered.model.add(&key, Version { seq, event, logged: true });
        }
    }

    /// After all rows have expired, and without readers, background work alone removes all of their
    /// tables.
    pub(crate) fn check_ordered_space(&mut self) {
        self.forget_readers();
        self.clock.advance(std::time::Duration::from_millis(4000));
        self.db.flush(&self.ordered.handle).unwrap();
        self.db.wait_for_background().unwrap();
        let levels = self.db.report(&self.ordered.handle).unwrap().levels;
        assert!(levels.iter().all(|level| level.files == 0), "expired rows are left: {levels:?}");
    }
}
