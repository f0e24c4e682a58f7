//! Snapshots of a case and what their first reads found in the family with a filter: later reads
//! must find the same. Also snapshots that are taken in the middle of background jobs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::CfId;
use archipelago_engine::db::{Db, FaultPoint, ReadOptions, Snapshot};
use parking_lot::Mutex;

use super::iterator_rows::contents;
use super::oracle::{Family, Row};

/// One of this number of fault points of jobs takes a snapshot.
const MIDWAY_ONE_IN: u64 = 3;

/// A snapshot of a case.
pub(super) struct Taken {
    pub(super) snapshot: Snapshot,
    /// By family and key, whether the first read found the value removed by the filter.
    removed: RefCell<BTreeMap<(CfId, Vec<u8>), bool>>,
}

impl Taken {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, removed: RefCell::default() }
    }

    pub(super) fn seq(&self) -> u64 {
        self.snapshot.seq().0
    }

    /// Notes whether the filter had removed a value, which must not differ from what was noted.
    fn note(&self, cf: CfId, key: &[u8], removed: bool) {
        let mut noted = self.removed.borrow_mut();
        let first = *noted.entry((cf, key.to_vec())).or_insert(removed);
        let key = key.escape_ascii();
        assert_eq!(removed, first, "a read of {key} at {} was not repeated", self.seq());
    }
}

/// Circumstances of a read.
pub(super) struct Read<'a> {
    pub(super) model: &'a Family,
    pub(super) cf: CfId,
    /// The snapshot, if the read had one.
    pub(super) taken: Option<&'a Taken>,
    pub(super) at: u64,
    pub(super) now_ms: u64,
}

impl Read<'_> {
    /// Whether the result for `key` does not depend on the time at which the filter ran.
    pub(super) fn is_settled(&self, key: &[u8]) -> bool {
        self.model.read_filtered(key, self.at, self.now_ms).is_none()
    }

    /// Checks the result for `key`; `is` compares it with a possible row.
    pub(super) fn check(&self, key: &[u8], is: impl Fn(Option<&Row>) -> bool) {
        let kept = self.model.read(key, self.at, self.now_ms);
        let Some(removed) = self.model.read_filtered(key, self.at, self.now_ms) else {
            assert!(is(kept.as_ref()), "{} at {}: not {kept:?}", key.escape_ascii(), self.at);
            return;
        };
        let was_removed = is(removed.as_ref());
        assert!(
            was_removed || is(kept.as_ref()),
            "{} at {}: neither {kept:?} nor, filtered, {removed:?}",
            key.escape_ascii(),
            self.at
        );
        if let Some(taken) = self.taken {
            taken.note(self.cf, key, was_removed);
        }
    }

    /// Checks all rows of the family whose keys lie in bounds.
    pub(super) fn check_rows(&self, rows: &[Row], keys: &[Vec<u8>]) {
        for key in keys {
            let found = rows.iter().find(|row| row.key == *key);
            self.check(key, |row| row == found);
        }
    }
}

/// A snapshot of the middle of a job, and its rows at that time.
pub(super) struct Midway {
    pub(super) snapshot: Snapshot,
    pub(super) cf: CfId,
    pub(super) rows: Vec<Row>,
}

/// Takes snapshots at fault points of jobs.
#[derive(Default)]
pub(super) struct MidwayTaker {
    db: Mutex<Option<Db>>,
    calls: Mutex<u64>,
    taken: Mutex<Vec<Midway>>,
}

impl MidwayTaker {
    /// Takes snapshots of this database from now on. (Only for a database that the test steps: a
    /// worker must not drop the last handle.)
    pub(super) fn set(&self, db: Option<Db>) {
        *self.db.lock() = db;
        self.taken.lock().clear();
    }

    pub(super) fn take(&self) -> Vec<Midway> {
        std::mem::take(&mut *self.taken.lock())
    }

    pub(super) fn fault_point(self: &Arc<Self>) -> FaultPoint {
        let taker = Arc::clone(self);
        Arc::new(move |name| {
            let of_a_job = name.ends_with("before_install") || name == "flush.shard";
            let db = taker.db.lock().clone().filter(|_| of_a_job);
            let Some(db) = db else { return Ok(()) };
            let due = {
                let mut calls = taker.calls.lock();
                *calls += 1;
                calls.is_multiple_of(MIDWAY_ONE_IN)
            };
            if let Ok(family) = db.family("filtered")
                && due
            {
                let snapshot = db.snapshot();
                let rows = contents(&db, &family, &ReadOptions::new().snapshot(&snapshot));
                taker.taken.lock().push(Midway { snapshot, cf: family.id(), rows });
            }
            Ok(())
        })
    }
}
