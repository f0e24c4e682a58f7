//! Reads of the database. Each answer is compared with the model, and noted for comparisons of
//! runs.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use archipelago_base::ErrorKind;
use archipelago_engine::db::ReadOptions;

use super::super::iterator_rows::{Held, contents, rows_of};
use super::super::oracle::Row;
use super::super::ordered::Ordered;
use super::super::steps::{Bounds, KeyNo, Move};
use super::super::taken::{Read, Taken};
use super::Runner;

impl Runner {
    /// Notes an answer, without sequence numbers: the mark at a close takes one where the log has
    /// records, which depends on the settings. Each run checks them against the model.
    fn tell(&mut self, answer: &impl Debug) {
        let mut hasher = DefaultHasher::new();
        format!("{answer:#?}").hash(&mut hasher);
        self.transcript.push(hasher.finish());
    }

    /// Options to read as of a snapshot, and what a read of a family with them is.
    fn as_of(&self, cf: usize, snapshot: Option<usize>) -> (ReadOptions, Read<'_>) {
        let (model, handle) = &self.families[cf % self.families.len()];
        let (options, taken) = match snapshot {
            Some(at) if !self.snapshots.is_empty() => {
                let taken = &self.snapshots[at % self.snapshots.len()];
                (ReadOptions::new().snapshot(&taken.snapshot), Some(taken))
            }
            _ => (ReadOptions::default(), None),
        };
        let at = taken.map_or(self.seq, Taken::seq);
        (options, Read { model, cf: handle.id(), taken, at, now_ms: self.now_ms() })
    }

    /// Whether the rows of a family depend on the time at which its filter ran.
    fn is_filtered(&self, cf: usize) -> bool {
        self.families[cf % self.families.len()].0.filtered
    }

    pub(super) fn get(&mut self, cf: usize, key: KeyNo, snapshot: Option<usize>) {
        let (options, read) = self.as_of(cf, snapshot);
        let handle = self.handle(cf);
        let entry = self.db.get_entry(handle, self.key(key), &options).unwrap();
        let found = entry.map(|entry| Row {
            key: self.key(key).to_vec(),
            value: entry.value.to_vec(),
            expires_at_ms: entry.expires_at_ms,
            seq: entry.seq.0,
        });
        read.check(self.key(key), |row| row == found.as_ref());
        let contains = self.db.contains(handle, self.key(key), &options).unwrap();
        // The filter may run between two reads of the newest state.
        let may_differ = self.is_filtered(cf) && read.taken.is_none();
        assert!(contains == found.is_some() || may_differ, "contains");
        if read.is_settled(self.key(key)) {
            self.tell(&found);
        }
    }

    pub(super) fn multi_get(&mut self, cf: usize, keys: &[KeyNo], snapshot: Option<usize>) {
        let (options, read) = self.as_of(cf, snapshot);
        let keys: Vec<&[u8]> = keys.iter().map(|&key| self.key(key)).collect();
        let found = self.db.multi_get(self.handle(cf), &keys, &options).unwrap();
        let found: Vec<_> = found.into_iter().map(|value| value.map(|v| v.to_vec())).collect();
        for (key, found) in keys.iter().zip(&found) {
            read.check(key, |row| row.map(|row| &row.value) == found.as_ref());
        }
        let settled = keys.iter().zip(&found).filter(|(key, _)| read.is_settled(key));
        let settled: Vec<_> = settled.map(|(_, found)| found.clone()).collect();
        self.tell(&settled);
    }

    /// The newest write of a live key is known. That of a deleted key is known at least to the
    /// holder of a snapshot from before it.
    pub(super) fn latest_seq(&mut self, cf: usize, key: KeyNo) {
        let (model, handle) = &self.families[cf % self.families.len()];
        let found = self.db.latest_seq(handle, self.key(key)).unwrap().map(|seq| seq.0);
        let newest = model.newest(self.key(key));
        let live = model.read(self.key(key), self.seq, self.now_ms());
        if model.read_filtered(self.key(key), self.seq, self.now_ms()).is_some() {
            assert!(found <= newest, "{found:?} but {newest:?}");
        } else if live.is_some() {
            assert_eq!(found, newest);
        } else if let Some(newest) = newest {
            assert!(found.is_none_or(|found| found <= newest), "{found:?} but {newest}");
            let before = self.snapshots.iter().map(Taken::seq).filter(|s| *s < newest).max();
            if let Some(before) = before {
                assert!(found.is_some_and(|found| found > before), "{found:?} after {before}");
            }
        }
        self.tell(&live.is_some());
    }

    pub(super) fn scan(
        &mut self,
        cf: usize,
        snapshot: Option<usize>,
        bounds: &Bounds,
        moves: &[Move],
    ) {
        let (mut options, read) = self.as_of(cf, snapshot);
        options.lower_bound = bounds.lower.map(|key| self.key(key).to_vec());
        options.upper_bound = bounds.upper.map(|key| self.key(key).to_vec());
        options.prefix = bounds.prefix.map(|prefix| prefix.as_bytes().to_vec());
        let mut iter = match self.db.iter(self.handle(cf), &options) {
            Ok(iter) => iter,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(options.lower_bound > options.upper_bound, "{error}");
                return;
            }
        };
        let mut keys = self.keys.clone();
        keys.retain(|key| {
            options.lower_bound.as_ref().is_none_or(|lower| lower <= key)
                && options.upper_bound.as_ref().is_none_or(|upper| key < upper)
                && options.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
        });
        let rows = rows_of(&mut iter);
        assert!(rows.iter().all(|row| keys.contains(&row.key)), "out of bounds");
        read.check_rows(&rows, &keys);
        let filtered = self.is_filtered(cf);
        let mut held = Held { iter, rows, at: None, filtered };
        let shown = held.walk(moves, &self.keys);
        if !self.is_filtered(cf) {
            self.tell(&shown);
        }
    }

    pub(super) fn hold(&mut self, cf: usize, snapshot: Option<usize>) {
        let (options, read) = self.as_of(cf, snapshot);
        let mut iter = self.db.iter(self.handle(cf), &options).unwrap();
        let rows = rows_of(&mut iter);
        read.check_rows(&rows, &self.keys);
        let filtered = self.is_filtered(cf);
        if self.held.len() == 3 {
            self.held.remove(0);
        }
        self.held.push(Held { iter, rows, at: None, filtered });
    }

    pub(super) fn move_held(&mut self, iterator: usize, moves: &[Move]) {
        if self.held.is_empty() {
            return;
        }
        let at = iterator % self.held.len();
        let shown = self.held[at].walk(moves, &self.keys);
        if !self.held[at].filtered {
            self.tell(&shown);
        }
    }

    /// Compares all families completely, in both directions, now and at every snapshot.
    pub(crate) fn check_all(&mut self) {
        for snapshot in std::iter::once(None).chain((0..self.snapshots.len()).map(Some)) {
            for cf in 0..self.families.len() {
                let (options, read) = self.as_of(cf, snapshot);
                let mut iter = self.db.iter(self.handle(cf), &options).unwrap();
                let found = rows_of(&mut iter);
                read.check_rows(&found, &self.keys);
                if !self.is_filtered(cf) {
                    assert_eq!(contents(&self.db, self.handle(cf), &options), found);
                }
                let mut settled = found;
                settled.retain(|row| read.is_settled(&row.key));
                self.tell(&settled);
            }
            let (options, Read { at, now_ms, .. }) = self.as_of(0, snapshot);
            let Ordered { model, handle, .. } = &self.ordered;
            let found = contents(&self.db, handle, &options);
            assert_eq!(found, model.rows(at, now_ms), "family \"{}\" at {at}", model.name);
            self.tell(&found);
        }
        self.check_values();
    }
}
