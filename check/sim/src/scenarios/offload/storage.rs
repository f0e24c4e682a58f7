//! The shared storage: for each database its files by number, and its manifest.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_offload::ids::NumberRange;

/// Number of file numbers that one edit of the manifest makes durable.
const LOT: u64 = 64;

/// The writer of a file: an executor's attempt, or an owner's own run. No two writers are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WriterId(pub(super) u64);

/// The durable state of one database.
#[derive(Clone, Debug, Default)]
pub(super) struct Database {
    /// Existing files with their writers.
    pub(super) files: BTreeMap<u64, WriterId>,
    /// Writers of all files that ever existed.
    created: BTreeMap<u64, WriterId>,
    /// Files that the manifest names.
    live: BTreeSet<u64>,
    /// Items whose outputs are installed.
    done: BTreeSet<u64>,
    /// Owner epoch of the manifest.
    pub(super) epoch: u64,
    /// End of the numbers that the manifest has given out.
    lot_end: u64,
    /// Number of items to install.
    pub(super) items: u64,
}

impl Database {
    /// An empty database with `items` items to install.
    pub(super) fn new(items: u64) -> Self {
        Self { items, lot_end: 1, ..Self::default() }
    }

    /// Makes a lot of numbers durable. Returns the end of all lots.
    pub(super) fn reserve(&mut self) -> u64 {
        self.lot_end += LOT;
        self.lot_end
    }

    /// The first number that an open of the database may use.
    pub(super) fn first_free(&self, ignores_lots: bool) -> u64 {
        match ignores_lots {
            true => self.live.last().map_or(1, |last| last + 1),
            false => self.lot_end,
        }
    }

    /// Creates a file exclusively. The error says that the file exists. A number that had another
    /// writer before is a violation.
    pub(super) fn create(&mut self, number: u64, writer: WriterId) -> Result<Option<String>, ()> {
        if self.files.contains_key(&number) {
            return Err(());
        }
        self.files.insert(number, writer);
        let before = self.created.insert(number, writer);
        let again = before.filter(|before| *before != writer);
        Ok(again.map(|before| format!("file {number} of {before:?} was created by {writer:?}")))
    }

    /// Removes the files of these numbers. If `by` is given, removes only the files of that writer.
    /// Returns a violation for each live file.
    pub(super) fn remove(&mut self, numbers: NumberRange, by: Option<WriterId>) -> Vec<String> {
        let is_chosen = |number: &u64, writer: &WriterId| {
            numbers.contains(*number) && by.is_none_or(|by| by == *writer)
        };
        let chosen = self.files.iter().filter(|(number, writer)| is_chosen(number, writer));
        let chosen: Vec<u64> = chosen.map(|(number, _)| *number).collect();
        let mut violations = Vec::new();
        for number in chosen {
            self.files.remove(&number);
            if self.live.contains(&number) {
                violations.push(format!("live file {number} was removed"));
            }
        }
        violations
    }

    /// Installs the outputs of an item, if the epoch is that of the manifest. `None` if it is not.
    pub(super) fn install(&mut self, epoch: u64, item: u64, files: &[u64]) -> Option<Vec<String>> {
        if epoch != self.epoch {
            return None;
        }
        let mut violations = Vec::new();
        if !self.done.insert(item) {
            violations.push(format!("item {item} was installed twice"));
        }
        for file in files {
            if !self.files.contains_key(file) {
                violations.push(format!("file {file} of item {item} does not exist"));
            }
            self.live.insert(*file);
        }
        Some(violations)
    }

    /// The files that the manifest names.
    pub(super) fn live(&self) -> BTreeSet<u64> {
        self.live.clone()
    }

    /// Whether an item is installed.
    pub(super) fn is_done(&self, item: u64) -> bool {
        self.done.contains(&item)
    }

    /// Number of installed items.
    pub(super) fn done(&self) -> u64 {
        self.done.len() as u64
    }

    /// Stray files, and live files that are missing, as violations.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let stray = self.files.keys().filter(|number| !self.live.contains(number));
        let lost = self.live.iter().filter(|number| !self.files.contains_key(number));
        let stray = stray.map(|number| format!("file {number} belongs to nobody"));
        stray.chain(lost.map(|number| format!("live file {number} is missing"))).collect()
    }
}
