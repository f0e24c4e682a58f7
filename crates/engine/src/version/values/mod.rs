//! Value files of a version: which exist, which file inherited from which, and which tables
//! reference them.
//!
//! A [`Version`](super::Version) owns one [`ValueFiles`]; versions between which nothing changed
//! share it. All figures are derived from the references that the tables of the version carry. None
//! is counted separately, so that a restart finds the same figures
//! (`docs/decisions/0066-references-to-separated-values.md`).
//!
//! Invariants ([`ValueFiles::check`]):
//! 1. Every number that a table names resolves to one live value file: the file itself, or its
//!    heir. The map of heirs is path-compressed, so that one step resolves a number.
//! 2. A live value file is no key of the map of heirs.
//! 3. A live value file has at least one reference, and no more records and bytes are referenced
//!    than it holds. An edit that removes the last reference removes the file as well.
//! 4. An entry of the map of heirs is pruned only if no table and no invalid file of the version
//!    names its key, no running job holds the number ([`HeldNumbers`]), and an earlier edit made
//!    it. The last condition closes the gap between a job's read of a version and its hold.
//!
//! Cost: an edit that changes value files copies the maps, which is linear in the number of value
//! files. Any other edit shares the maps. A look-up is a search in a B-tree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use archipelago_base::Result;

use super::{HeldNumbers, impossible};
use crate::live_file::{LiveFile, LiveInvalidFile, LiveValueFile, Trash};
use crate::sabotage::{Defect, has};
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};

/// References to a value file, or to a number that tables name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceSum {
    /// Number of tables with a reference.
    pub tables: u64,
    /// Number of records with a reference.
    pub records: u64,
    /// Bytes of the referenced value records, their trailers included.
    pub bytes: u64,
}

impl ReferenceSum {
    fn add(&mut self, other: Self) {
        self.tables = self.tables.saturating_add(other.tables);
        self.records = self.records.saturating_add(other.records);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// A value file and the references to it.
#[derive(Clone, Debug)]
struct ReferencedFile {
    file: Arc<LiveValueFile>,
    refs: ReferenceSum,
}

/// The value files of one version, their heirs, and the references to them.
#[derive(Clone, Debug, Default)]
pub struct ValueFiles {
    files: BTreeMap<u64, ReferencedFile>,
    /// The current number of each number that was replaced.
    heirs: BTreeMap<u64, u64>,
    /// References by the number that tables name.
    named: BTreeMap<u64, ReferenceSum>,
    invalid: BTreeMap<u64, Arc<LiveInvalidFile>>,
    exposed_bytes: u64,
    value_bytes: u64,
    /// Largest install number or basis so far.
    installs: u64,
}

impl ValueFiles {
    /// Whether the version has no separated value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Number of value files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Every value file with the references to it, ascending by number.
    pub fn files(&self) -> impl Iterator<Item = (&Arc<LiveValueFile>, ReferenceSum)> {
        self.files.values().map(|at| (&at.file, at.refs))
    }

    /// The live value file of exactly that number; numbers of ancestors do not count.
    #[must_use]
    pub fn get(&self, no: u64) -> Option<&Arc<LiveValueFile>> {
        self.files.get(&no).map(|at| &at.file)
    }

    /// The references to the live value file `no`.
    #[must_use]
    pub fn refs(&self, no: u64) -> ReferenceSum {
        self.files.get(&no).map_or_else(ReferenceSum::default, |at| at.refs)
    }

    /// The number of the file that holds the values of `named` now.
    #[inline]
    #[must_use]
    pub fn current(&self, named: u64) -> u64 {
        self.heirs.get(&named).copied().unwrap_or(named)
    }

    /// The file that holds the values of `named` now. `None` only if no table of the version names
    /// the number.
    #[inline]
    #[must_use]
    pub fn resolve(&self, named: u64) -> Option<&Arc<LiveValueFile>> {
        self.get(self.current(named))
    }

    /// Every replaced number with its heir, ascending.
    pub fn heirs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.heirs.iter().map(|(&old, &heir)| (old, heir))
    }

    /// The numbers whose values lie in the live file `no` now, without `no` itself.
    pub fn ancestors(&self, no: u64) -> impl Iterator<Item = u64> {
        self.heirs().filter(move |&(_, heir)| heir == no).map(|(old, _)| old)
    }

    /// The invalid files, ascending by number.
    pub fn invalid_files(&self) -> impl Iterator<Item = &Arc<LiveInvalidFile>> {
        self.invalid.values()
    }

    /// Install number of the latest invalid file, or the largest basis of a value file.
    #[must_use]
    pub fn installs(&self) -> u64 {
        self.installs
    }

    /// Bytes of the value areas of all value files.
    #[must_use]
    pub fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    /// Length of all value files in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files().fold(0, |sum: u64, (file, _)| sum.saturating_add(file.size_bytes))
    }

    /// Exposed garbage: bytes of the value areas that no table references.
    #[must_use]
    pub fn exposed_bytes(&self) -> u64 {
        self.exposed_bytes
    }

    /// Number of pairs of a table and a value file that it references.
    #[must_use]
    pub fn reference_entries(&self) -> u64 {
        self.named.values().fold(0, |sum: u64, at| sum.saturating_add(at.tables))
    }

    /// Number of records that tables reference.
    #[must_use]
    pub fn referenced_records(&self) -> u64 {
        self.named.values().fold(0, |sum: u64, at| sum.saturating_add(at.records))
    }

    /// Bytes that tables reference.
    #[must_use]
    pub fn referenced_bytes(&self) -> u64 {
        self.named.values().fold(0, |sum: u64, at| sum.saturating_add(at.bytes))
    }

    /// Value files for readers: those of `base`, and the value files of written shards. No edit
    /// names these `files` yet, and `tables` hold all references to them.
    pub(super) fn with_unnamed(
        base: &Arc<Self>,
        files: &[Arc<LiveValueFile>],
        tables: &[Arc<LiveFile>],
    ) -> Arc<Self> {
        if files.is_empty() {
            return Arc::clone(base);
        }
        let mut next = Self::clone(base);
        tables.iter().for_each(|table| add_refs(&mut next.named, table));
        for file in files {
            let at = ReferencedFile { file: Arc::clone(file), refs: ReferenceSum::default() };
            next.files.insert(file.no, at);
        }
        next.derive();
        Arc::new(next)
    }

    /// Checks the invariants of the module against `tables`. `Corrupt` names the first broken one.
    pub(super) fn check<'a>(&self, tables: impl Iterator<Item = &'a Arc<LiveFile>>) -> Result<()> {
        let mut named = BTreeMap::new();
        tables.for_each(|table| add_refs(&mut named, table));
        if named != self.named {
            return Err(impossible("the references of the tables do not sum up"));
        }
        if let Some((old, _)) = self.heirs().find(|(old, _)| self.files.contains_key(old)) {
            return Err(impossible(format!("value file {old} has an heir and exists")));
        }
        if let Some((old, _)) = self.heirs().find(|(_, heir)| self.heirs.contains_key(heir)) {
            return Err(impossible(format!("the heir of value file {old} has an heir")));
        }
        self.check_references()
    }

    /// Checks that references resolve and that files hold at least the referenced records and
    /// bytes.
    fn check_references(&self) -> Result<()> {
        for (&no, refs) in &self.named {
            if self.resolve(no).is_none() {
                return Err(impossible(format!(
                    "{} records reference value file {no}, which does not exist",
                    refs.records
                )));
            }
        }
        for (file, refs) in self.files() {
            if refs.records > file.records || refs.bytes > file.value_bytes() {
                return Err(impossible(format!(
                    "value file {} has {} records of {} bytes, but {} of {} are referenced",
                    file.no,
                    file.records,
                    file.value_bytes(),
                    refs.records,
                    refs.bytes
                )));
            }
        }
        Ok(())
    }

    /// Computes the figures that follow from files, heirs and named references.
    fn derive(&mut self) {
        for at in self.files.values_mut() {
            at.refs = ReferenceSum::default();
        }
        for (&no, &refs) in &self.named {
            let current = self.heirs.get(&no).copied().unwrap_or(no);
            if let Some(at) = self.files.get_mut(&current) {
                at.refs.add(refs);
            }
        }
        (self.value_bytes, self.exposed_bytes) = (0, 0);
        for at in self.files.values() {
            let bytes = at.file.value_bytes();
            self.value_bytes = self.value_bytes.saturating_add(bytes);
            let garbage = bytes.saturating_sub(at.refs.bytes);
            self.exposed_bytes = self.exposed_bytes.saturating_add(garbage);
        }
    }
}

fn add_refs(named: &mut BTreeMap<u64, ReferenceSum>, table: &LiveFile) {
    let skipped = usize::from(has(Defect::ForgottenReferences));
    for at in table.refs.by_file().iter().skip(skipped) {
        let sum = ReferenceSum { tables: 1, records: at.records, bytes: at.bytes };
        named.entry(at.no).or_default().add(sum);
    }
}

fn remove_refs(named: &mut BTreeMap<u64, ReferenceSum>, table: &LiveFile) {
    for at in table.refs.by_file() {
        if let Some(sum) = named.get_mut(&at.no) {
            sum.tables -= 1;
            sum.records = sum.records.saturating_sub(at.records);
            sum.bytes = sum.bytes.saturating_sub(at.bytes);
            if sum.tables == 0 {
                named.remove(&at.no);
            }
        }
    }
}

/// Files that an edit removed.
#[derive(Debug, Default)]
pub(super) struct RemovedValues {
    pub(super) values: Vec<Arc<LiveValueFile>>,
    pub(super) invalid: Vec<Arc<LiveInvalidFile>>,
    /// Numbers of those value files whose last reference was removed. No change names them yet.
    pub(super) unreferenced: Vec<u64>,
}

/// Collects the changes of edits to the value files of a version.
#[derive(Debug, Default)]
pub(super) struct ValueChanges {
    added: BTreeMap<u64, ValueFileMeta>,
    removed: BTreeSet<u64>,
    heirs: BTreeMap<u64, u64>,
    invalid_added: BTreeMap<u64, InvalidFileMeta>,
    invalid_removed: BTreeSet<u64>,
}

impl ValueChanges {
    /// Adds a value file.
    pub(super) fn add(&mut self, base: &ValueFiles, meta: ValueFileMeta) -> Result<()> {
        let no = meta.no;
        let is_sound = meta.smallest <= meta.largest
            && meta.smallest_seq <= meta.largest_seq
            && meta.records > 0
            && meta.keys_offset < meta.size_bytes;
        if !is_sound {
            return Err(impossible(format!("value file {no}: its bounds are swapped")));
        }
        if base.files.contains_key(&no) || self.added.insert(no, meta).is_some() {
            return Err(impossible(format!("value file {no} added twice")));
        }
        Ok(())
    }

    /// Removes a value file.
    pub(super) fn remove(&mut self, base: &ValueFiles, no: u64) -> Result<()> {
        if self.added.remove(&no).is_some() {
            return Ok(());
        }
        if !base.files.contains_key(&no) || !self.removed.insert(no) {
            return Err(impossible(format!("value file {no} to be removed does not exist")));
        }
        Ok(())
    }

    /// Notes that the values of `old` lie in `heir` now.
    pub(super) fn inherit(&mut self, base: &ValueFiles, old: u64, heir: u64) -> Result<()> {
        let known = base.heirs.contains_key(&old) || self.heirs.contains_key(&old);
        if known || old == heir {
            return Err(impossible(format!("value file {old} inherits twice, by {heir}")));
        }
        self.heirs.values_mut().filter(|at| **at == old).for_each(|at| *at = heir);
        self.heirs.insert(old, heir);
        Ok(())
    }

    /// Adds an invalid file.
    pub(super) fn add_invalid(&mut self, base: &ValueFiles, meta: InvalidFileMeta) -> Result<()> {
        let no = meta.no;
        if base.invalid.contains_key(&no) || self.invalid_added.insert(no, meta).is_some() {
            return Err(impossible(format!("invalid file {no} added twice")));
        }
        Ok(())
    }

    /// Removes an invalid file.
    pub(super) fn remove_invalid(&mut self, base: &ValueFiles, no: u64) -> Result<()> {
        if self.invalid_added.remove(&no).is_some() {
            return Ok(());
        }
        if !base.invalid.contains_key(&no) || !self.invalid_removed.insert(no) {
            return Err(impossible(format!("invalid file {no} to be removed does not exist")));
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.removed.is_empty()
            && self.heirs.is_empty()
            && self.invalid_added.is_empty()
            && self.invalid_removed.is_empty()
    }

    /// The value files after the changes, if `gone` tables left the version and `fresh` ones joined
    /// it. New files belong to `trash`.
    pub(super) fn finish(
        self,
        base: &Arc<ValueFiles>,
        gone: &[Arc<LiveFile>],
        fresh: &[Arc<LiveFile>],
        held: &HeldNumbers,
        trash: &Arc<Trash>,
    ) -> Result<(Arc<ValueFiles>, RemovedValues)> {
        let has_refs = |table: &Arc<LiveFile>| !table.refs.is_empty();
        let touches = gone.iter().chain(fresh).any(has_refs);
        let nothing = RemovedValues::default();
        if self.is_empty() && !touches && base.heirs.is_empty() {
            return Ok((Arc::clone(base), nothing));
        }
        let mut next = ValueFiles::clone(base);
        let mut removed = nothing;
        gone.iter().for_each(|table| remove_refs(&mut next.named, table));
        fresh.iter().for_each(|table| add_refs(&mut next.named, table));
        for no in self.removed {
            removed.values.extend(next.files.remove(&no).map(|at| at.file));
        }
        for (no, meta) in self.added {
            next.installs = next.installs.max(meta.basis);
            let file = LiveValueFile::named(meta, trash);
            next.files.insert(no, ReferencedFile { file, refs: ReferenceSum::default() });
        }
        for no in self.invalid_removed {
            removed.invalid.extend(next.invalid.remove(&no));
        }
        for (no, meta) in self.invalid_added {
            next.installs = next.installs.max(meta.install_no);
            next.invalid.insert(no, LiveInvalidFile::new(meta, Arc::clone(trash)));
        }
        for (&old, &heir) in &self.heirs {
            next.heirs.values_mut().filter(|at| **at == old).for_each(|at| *at = heir);
            next.heirs.insert(old, heir);
        }
        prune(&mut next, base, held);
        next.derive();
        let unreferenced = next.files().filter(|(_, refs)| refs.records == 0);
        removed.unreferenced = unreferenced.map(|(file, _)| file.no).collect();
        for no in &removed.unreferenced {
            removed.values.extend(next.files.remove(no).map(|at| at.file));
        }
        if !removed.unreferenced.is_empty() {
            next.derive();
        }
        next.check_references()?;
        Ok((Arc::new(next), removed))
    }
}

/// Prunes the heirs that nothing can name any more (invariant 4). A recovery starts from an empty
/// base and prunes nothing; the first edit after it does.
fn prune(next: &mut ValueFiles, base: &ValueFiles, held: &HeldNumbers) {
    if next.heirs.is_empty() {
        return;
    }
    let held = held.numbers();
    let naming = next.invalid.values().filter(|_| !has(Defect::PruningUnderInvalidFiles));
    let by_invalid: BTreeSet<u64> = naming.flat_map(|file| file.names.iter().copied()).collect();
    let prunable = |&(&old, &heir): &(&u64, &u64)| {
        let is_earlier = base.heirs.get(&old).is_some_and(|&at| at == heir);
        is_earlier
            && !next.named.contains_key(&old)
            && !held.contains(&old)
            && !by_invalid.contains(&old)
    };
    let unneeded: Vec<u64> = next.heirs.iter().filter(prunable).map(|(&old, _)| old).collect();
    for old in unneeded {
        next.heirs.remove(&old);
    }
}

#[cfg(test)]
mod tests;
