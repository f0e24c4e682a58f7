//! Separated values of a damaged database: which of them survive, and in which file.
//!
//! A repair owns one [`ValueStore`]. An undamaged value file is taken over unchanged, and
//! references to it stay. Every readable value of a damaged value file is read, and the repaired
//! table holds it inline. A record whose value is lost is dropped, counted and reported ([`Loss`]).
//!
//! With the manifest each number resolves as in the database. Without it, nothing says for certain
//! which file inherited from which. Then a reference resolves to the first of these that exists:
//! the named file, the heir that readable records of a manifest name, or any value file of the
//! family that holds the record (key, sequence number) with the same lengths. The repaired
//! reference names that file.
//!
//! Invariants:
//! 1. A reference is kept only if the file holds the record that it names.
//! 2. Every dropped record lies in a range of a loss.
//!
//! Cost: two reads of every value file, and reads of their key blocks in the order of the tables.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use archipelago_base::budget::ByteBudget;
use archipelago_base::{CfId, ErrorKind, FileNo, Result};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, OpenOptions};

use super::report::{Loss, LossEffect, LossScope, RepairReport};
use super::{Meter, RepairJob};
use crate::file_meta::value_file_name;
use crate::key::{self, KeyRange, KeyRef, Kind};
use crate::manifest::State;
use crate::pinned::PinnedSlice;
use crate::sst::value_file::{DescribedValues, described_values};
use crate::sst::{read_foreign_value_file, verify_value_file};
use crate::value::ValueKey;
use crate::value_check::{OpenedFile, ValueTables, key_options};
use crate::value_ref::{Reference, ValueFileMeta};

/// Largest number of ranges in one loss of a table. Further ones are joined with their neighbour.
const RANGES_MAX: usize = 128;

/// Method by which references resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolution {
    /// By the manifest.
    Manifest,
    /// By number, by known heirs, and by a search for the key.
    Search,
}

/// A value file of the directory.
#[derive(Clone, Debug)]
struct FoundValueFile {
    meta: ValueFileMeta,
    /// Family of the file; `None` if it is not known.
    cf: Option<CfId>,
    /// Description of the damage; `None` if the file is undamaged.
    damage: Option<String>,
}

/// Result of searching the value of one record.
enum ValueFate {
    /// The reference stays as it is.
    Kept,
    /// The value lies in another file than the named one.
    Moved(Reference),
    /// The value was read from a damaged file.
    Read(PinnedSlice),
    /// The value is lost with this file.
    Lost(FileNo),
}

/// The value files of a damaged database.
pub(super) struct ValueStore<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    resolution: Resolution,
    files: BTreeMap<u64, FoundValueFile>,
    heirs: BTreeMap<u64, u64>,
    tables: ValueTables,
}

impl<'a> ValueStore<'a> {
    fn new(job: &RepairJob<'a>, resolution: Resolution) -> Self {
        Self {
            fs: &**job.fs,
            dir: &job.survey.dir,
            resolution,
            files: BTreeMap::new(),
            heirs: BTreeMap::new(),
            tables: ValueTables::new(&ByteBudget::unlimited()),
        }
    }

    /// Reads every value file that the manifest names.
    pub(super) fn of_manifest(
        job: &RepairJob<'a>,
        state: &State,
        report: &mut RepairReport,
        meter: &mut Meter<'_>,
    ) -> Result<Self> {
        let mut store = Self::new(job, Resolution::Manifest);
        for (&cf, known) in &state.cfs {
            let values = known.version.values();
            store.heirs.extend(values.heirs());
            for (file, _) in values.files() {
                let damage = store.damage_of(file.meta())?;
                meter.add(file.size_bytes);
                let family = report.family(cf, &known.name);
                match damage {
                    None => family.value_files_whole += 1,
                    Some(_) => family.value_files_damaged += 1,
                }
                let found = FoundValueFile { meta: file.meta().clone(), cf: Some(cf), damage };
                store.files.insert(file.no, found);
            }
        }
        Ok(store)
    }

    /// Reads every value file in the directory.
    pub(super) fn of_directory(job: &RepairJob<'a>, meter: &mut Meter<'_>) -> Result<Self> {
        let mut store = Self::new(job, Resolution::Search);
        let facts = &job.survey.facts;
        store.heirs.clone_from(&facts.heirs);
        for no in job.survey.numbers(value_file_name) {
            meter.add(job.survey.len_of(&value_file_name(no)).unwrap_or(0));
            let known = facts.values.get(&no.0);
            if let Some(found) = store.describe(no, known.map(|known| (known.cf, &known.meta)))? {
                store.files.insert(no.0, found);
            }
        }
        Ok(store)
    }

    /// Metadata of the value file `no`, from a manifest or else from the file itself. `None` if
    /// neither describes it.
    fn describe(
        &self,
        no: FileNo,
        known: Option<(CfId, &ValueFileMeta)>,
    ) -> Result<Option<FoundValueFile>> {
        if let Some((cf, meta)) = known {
            let damage = self.damage_of(meta)?;
            return Ok(Some(FoundValueFile { meta: meta.clone(), cf: Some(cf), damage }));
        }
        let path = self.path_of(no);
        let opened = self.open(no).map(|opened| opened.file);
        let described = opened.and_then(|file| Ok((described_values(&file, &path, no)?, file)));
        match described {
            Ok((DescribedValues { meta, cf }, file)) => {
                let (meta, damage) = match read_foreign_value_file(&file, &path, no) {
                    Ok(meta) => (meta, None),
                    Err(error) => (meta, Some(error.to_string())),
                };
                Ok(Some(FoundValueFile { meta, cf: Some(cf), damage }))
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn path_of(&self, no: FileNo) -> PathBuf {
        self.dir.join(value_file_name(no))
    }

    fn open(&self, no: FileNo) -> Result<OpenedFile> {
        let path = self.path_of(no);
        let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
        let file = self.fs.open(&path, context, OpenOptions::default())?;
        Ok(OpenedFile { path, file })
    }

    /// Description of a value file's damage; `None` if it is undamaged. Errors: files of another
    /// format version.
    fn damage_of(&self, meta: &ValueFileMeta) -> Result<Option<String>> {
        let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
        let checked = self
            .open(meta.file_no())
            .and_then(|OpenedFile { path, file }| verify_value_file(file, &path, meta, context));
        match checked {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == ErrorKind::Unsupported => Err(error),
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    /// The undamaged value file `no` and its path.
    pub(super) fn whole(&self, no: u64) -> Option<(&ValueFileMeta, PathBuf)> {
        let found = self.files.get(&no).filter(|found| found.damage.is_none())?;
        Some((&found.meta, self.path_of(FileNo(no))))
    }

    fn fate(&mut self, cf: CfId, key: ValueKey<'_>, reference: &Reference) -> ValueFate {
        let named = reference.file_no.0;
        let current = self.heirs.get(&named).copied().unwrap_or(named);
        let mut places = vec![current];
        if self.resolution == Resolution::Search {
            places.push(named);
        }
        for no in places {
            if let Some(fate) = self.in_file(no, key, reference) {
                return fate;
            }
        }
        if self.resolution == Resolution::Search {
            let may_hold = |found: &FoundValueFile| {
                let meta = &found.meta;
                found.cf.is_none_or(|of| of == cf)
                    && meta.smallest.as_slice() <= key.user_key
                    && key.user_key <= meta.largest.as_slice()
                    && (meta.smallest_seq..=meta.largest_seq).contains(&key.seq.0)
            };
            let others: Vec<u64> = self
                .files
                .iter()
                .filter(|(no, found)| **no != named && **no != current && may_hold(found))
                .map(|(&no, _)| no)
                .collect();
            if let Some(fate) = others.iter().find_map(|&no| self.in_file(no, key, reference)) {
                return fate;
            }
        }
        ValueFate::Lost(FileNo(current))
    }

    /// The fate of the value if it lies in file `no`. `None` if the file does not hold it or cannot
    /// return it.
    fn in_file(&mut self, no: u64, key: ValueKey<'_>, reference: &Reference) -> Option<ValueFate> {
        let found = self.files.get(&no)?.clone();
        let (fs, path) = (self.fs, self.path_of(FileNo(no)));
        let open = || {
            let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
            let file = fs.open(&path, context, OpenOptions::default())?;
            Ok(Some(OpenedFile { path: path.clone(), file }))
        };
        let table = self.tables.get(&found.meta, open).ok().flatten()?;
        let options = key_options();
        let located = table.checked_handle(reference, key, &options);
        if found.damage.is_none() {
            let at = located.ok()?;
            let stays = no == reference.file_no.0 || self.resolution == Resolution::Manifest;
            return Some(if stays {
                ValueFate::Kept
            } else {
                let (file_no, offset) = (FileNo(no), Some(at.offset));
                ValueFate::Moved(Reference { file_no, offset, ..*reference })
            });
        }
        // If the key blocks are damaged, the hint may still locate the value.
        let value = match located {
            Ok(at) => table.read_at(at, &options),
            Err(_) => table.read(reference, key, &options),
        };
        value.ok().map(ValueFate::Read)
    }

    fn damage(&self, no: FileNo) -> String {
        let missing = || "the value file is missing, or nothing describes it".to_owned();
        let found = self.files.get(&no.0).and_then(|found| found.damage.clone());
        match self.files.contains_key(&no.0) {
            false => missing(),
            true => found.unwrap_or_else(|| "it does not hold the record".to_owned()),
        }
    }
}

/// Records of one table whose values were lost with one value file.
struct LostValues {
    records: u64,
    ranges: Vec<KeyRange>,
    /// Position in the table of the last of these records.
    last: u64,
}

impl LostValues {
    fn add(&mut self, position: u64, user_key: &[u8]) {
        let end = [user_key, &[0]].concat();
        let follows = self.last + 1 == position || self.ranges.len() >= RANGES_MAX;
        self.records += 1;
        self.last = position;
        match self.ranges.last_mut().filter(|_| follows) {
            Some(range) => range.end = Some(end),
            None => self.ranges.push(KeyRange { start: user_key.to_vec(), end: Some(end) }),
        }
    }
}

/// A record as the repaired database stores it: encoded internal key and stored value.
pub(super) type SavedRecord<'r> = (Cow<'r, [u8]>, Cow<'r, [u8]>);

/// Passes on the records of one table whose values survive.
pub(super) struct ValueFilter<'s, 'a> {
    store: &'s mut ValueStore<'a>,
    cf: CfId,
    position: u64,
    /// Number of records that passed.
    pub(super) kept: u64,
    /// Whether all records passed unchanged.
    pub(super) is_unchanged: bool,
    lost: BTreeMap<u64, LostValues>,
}

impl<'s, 'a> ValueFilter<'s, 'a> {
    pub(super) fn new(store: &'s mut ValueStore<'a>, cf: CfId) -> Self {
        Self { store, cf, position: 0, kept: 0, is_unchanged: true, lost: BTreeMap::new() }
    }

    /// The record as the repaired database stores it; `None` if its value is lost.
    pub(super) fn pass<'r>(
        &mut self,
        internal: &'r [u8],
        stored: &'r [u8],
    ) -> Option<SavedRecord<'r>> {
        self.position += 1;
        let as_it_is = (Cow::Borrowed(internal), Cow::Borrowed(stored));
        let record = KeyRef::decode(internal).filter(|record| record.kind == Kind::Indirect);
        let Some(record) = record else {
            self.kept += 1;
            return Some(as_it_is);
        };
        let key = ValueKey { user_key: record.user_key, seq: record.seq };
        let fate = match Reference::decode(stored) {
            Ok(reference) => (self.store.fate(self.cf, key, &reference), reference),
            Err(_) => return self.lose(FileNo(0), record.user_key),
        };
        let saved = match fate {
            (ValueFate::Kept, _) => as_it_is,
            (ValueFate::Moved(reference), _) => {
                self.is_unchanged = false;
                let mut stored = Vec::with_capacity(reference.encoded_bytes());
                reference.encode(&mut stored);
                (Cow::Borrowed(internal), Cow::Owned(stored))
            }
            (ValueFate::Read(value), reference) => {
                self.is_unchanged = false;
                let (kind, expiry) = match reference.expiry_unix_ms {
                    None => (Kind::Put, Vec::new()),
                    Some(ms) => (Kind::PutExpiring, ms.to_le_bytes().to_vec()),
                };
                let internal = key::encode(record.user_key, record.seq, kind);
                (Cow::Owned(internal), Cow::Owned([&expiry, &*value].concat()))
            }
            (ValueFate::Lost(no), _) => return self.lose(no, record.user_key),
        };
        self.kept += 1;
        Some(saved)
    }

    fn lose<'r>(&mut self, no: FileNo, user_key: &[u8]) -> Option<SavedRecord<'r>> {
        self.is_unchanged = false;
        let fresh = LostValues { records: 0, ranges: Vec::new(), last: u64::MAX - 1 };
        self.lost.entry(no.0).or_insert(fresh).add(self.position, user_key);
        None
    }

    /// Number of records that were dropped.
    pub(super) fn lost_records(&self) -> u64 {
        self.lost.values().map(|lost| lost.records).sum()
    }

    /// The losses of the table with the file name `table`.
    pub(super) fn losses(&self, table: &str) -> Vec<Loss> {
        let of_file = |(&no, lost): (&u64, &LostValues)| {
            let damage = self.store.damage(FileNo(no));
            let what = format!(
                "{damage}; {} records of {table} are dropped, because their values are lost",
                lost.records
            );
            let cf = Some(self.cf);
            lost.ranges
                .iter()
                .map(|range| Loss {
                    file: value_file_name(FileNo(no)),
                    what: what.clone(),
                    effect: LossEffect::Lost,
                    scope: LossScope { cf, range: range.clone() },
                })
                .collect::<Vec<_>>()
        };
        self.lost.iter().flat_map(of_file).collect()
    }
}
