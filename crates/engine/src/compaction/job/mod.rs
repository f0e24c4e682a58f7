//! The compaction job: from input files and a spec to output files.
//!
//! [`crate::job`] says what holds for every job, and [`super::iterator`] says which records are
//! dropped. Inputs are read front to back with readahead, past the block cache. Each L0 file is a
//! child of the merge of its own. The files of another level are disjoint and form one child
//! together. So a job costs at most one comparison per record and L0 file more than its levels.
//! Only files with range tombstones are opened before their turn.
//!
//! Values that the inputs reference stay in their files. The exceptions are values that a merge
//! operator or a filter needs, and all values if the family no longer separates them
//! (`super::references`). References to moved values get their new offsets from the keys of the
//! heir if many are renamed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::{CfId, Error, ErrorKind, Result};
use archipelago_env::{FileSystem, IoContext, IoPurpose, OpenOptions};
use serde::{Deserialize, Serialize};

use super::cover::clip;
use super::drive;
use super::iterator::CompactionIterator;
use super::references::{DroppedReference, DroppedReferences, References};
use crate::file_meta::{FileMeta, sst_name};
use crate::gc::invalid::InvalidWriter;
use crate::iter::{Child, FileOpener, InternalIterator, LevelIterator, MergingIterator};
use crate::job::output::OutputWriter;
use crate::job::spec::{OutputSpec, Retention};
use crate::job::{
    Cancel, JobContext, JobOutput, MeteredRead, Progress, ValueInputs, heirs_to_walk,
};
use crate::key::KeyRange;
use crate::sst::{BlockCache, TableReadOptions, TableReader};
use crate::version::rows;

/// An input file and its level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Level that the file is in.
    pub level: u8,
    /// Metadata of the input file.
    pub meta: FileMeta,
}

/// A compaction as a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionSpec {
    /// The column family.
    pub cf: u32,
    /// Level of the upper inputs; the outputs' level is in `output`.
    pub from: u8,
    /// The input files, in the directory of the outputs. L0 files may stand in any order.
    pub inputs: Vec<Input>,
    /// Keys that the job has claimed. Every input lies within them.
    pub range: KeyRange,
    /// The part of the keys that this job handles, if several jobs share the inputs. Each has
    /// another part, and together they cover the range. The owner installs all outputs in one edit.
    pub subrange: Option<KeyRange>,
    /// Which records the job may drop.
    pub retention: Retention,
    /// Where and how the job writes its outputs.
    pub output: OutputSpec,
    /// Readahead of each input in bytes.
    pub readahead_bytes: u32,
    /// Bypass the page cache when reading.
    pub direct_reads: bool,
}

impl CompactionSpec {
    /// Bytes of all inputs.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.meta.size_bytes).sum()
    }

    /// The keys that this job reads and writes.
    #[must_use]
    pub fn keys(&self) -> &KeyRange {
        self.subrange.as_ref().unwrap_or(&self.range)
    }

    /// Number of point records of all inputs, from their metadata.
    #[must_use]
    pub fn input_records(&self) -> u64 {
        self.inputs.iter().map(|input| input.meta.entries).sum()
    }

    /// Largest number of inputs that are read at the same time: each L0 file, and one file of each
    /// other level.
    #[must_use]
    pub fn open_at_once(&self) -> u64 {
        let deeper: BTreeSet<u8> =
            self.inputs.iter().map(|input| input.level).filter(|&level| level > 0).collect();
        let l0 = self.inputs.iter().filter(|input| input.level == 0).count();
        (l0 + deeper.len()) as u64
    }

    /// Text that describes the job: "compaction of cf 0 from L0 to L6 (4 files)". A part of a
    /// compaction also names its keys.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!(
            "compaction of cf {} from L{} to L{} ({} files)",
            self.cf,
            self.from,
            self.output.level,
            self.inputs.len()
        );
        if let Some(KeyRange { start, end }) = &self.subrange {
            let _ = write!(text, ", its keys from \"{}\" on", start.escape_ascii());
            if let Some(end) = end {
                let _ = write!(text, ", before \"{}\"", end.escape_ascii());
            }
        }
        text
    }

    fn io(&self, level: u8) -> IoContext {
        let purpose = IoPurpose::Compaction { from: self.from, to: self.output.level };
        IoContext::sst(purpose, level).of_family(self.cf)
    }

    fn validate(&self) -> Result<()> {
        if self.inputs.is_empty() {
            return Err(Error::invalid("job spec: no inputs"));
        }
        for Input { level, meta } in &self.inputs {
            if !meta.within(&self.range) {
                return Err(Error::invalid(format!(
                    "job spec: input {} of L{level} reaches out of the keys that the job claims",
                    sst_name(meta.file_no())
                )));
            }
        }
        let inside = |part: &KeyRange| {
            let ends = match (&part.end, &self.range.end) {
                (Some(part), Some(whole)) => part <= whole,
                (None, Some(_)) => false,
                (_, None) => true,
            };
            !part.is_empty() && part.start >= self.range.start && ends
        };
        if !self.subrange.as_ref().is_none_or(inside) {
            return Err(Error::invalid("job spec: the part is not one of the keys that it claims"));
        }
        Ok(())
    }
}

/// Runs a compaction. On `Ok` the outputs survive power loss. [`crate::job`] lists the failures.
pub fn run_compaction(spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
    compact(spec, context).map_err(|error| error.context_at(spec.describe()))
}

fn compact(spec: &CompactionSpec, context: &JobContext<'_>) -> Result<JobOutput> {
    let started_ns = context.clock.now_ns();
    spec.validate()?;
    let range = spec.keys();
    let rules = spec.retention.rules(&spec.output.cf_name, range, context)?;
    let files = open_inputs(spec, range, context)?;
    let early = files.iter().filter_map(|file| file.early.as_ref());
    let tombstones = clip(early.flat_map(|table| table.tombstones().list()), range);
    let merged = MergingIterator::new(children(spec, files)?);
    let values = &spec.output.values;
    let io = spec.io(spec.output.level);
    let dir = spec.output.dir.clone();
    let refs = spec.inputs.iter().map(|input| &input.meta.refs);
    let source = ValueInputs::new(values, dir, io, spec.direct_reads, context)
        .walking(heirs_to_walk(values, refs));
    let dropped = RefCell::new(InvalidWriter::new(&spec.output, CfId(spec.cf), io, context));
    let mut noting = Noting(&dropped);
    let references = References::new(values, Box::new(source));
    let references = match values.invalid.count {
        0 => references,
        _ => references.dropping_into(&mut noting),
    };
    let mut input = CompactionIterator::new(merged, tombstones, rules).with_references(references);
    let _held = context.budget.hold(MemoryClass::Job, input.tombstone_bytes());
    let kept = input.take_tombstones();
    let writer = OutputWriter::new(&spec.output, CfId(spec.cf), range, kept, io, context)?
        .filtered_by(spec.retention.compaction_filter.as_deref());
    let written = drive(&mut input, writer, context, |input| {
        // The number of records in a part is not known; the owner adds up all parts.
        if spec.subrange.is_none() {
            check_complete(spec, input.counts().records_in)?;
        }
        dropped.borrow_mut().finish()
    })?;
    let counts = input.counts().clone();
    drop(input);
    let invalid_files = dropped.into_inner().release();
    Ok(JobOutput { invalid_files, ..context.output(written, counts, started_ns) })
}

/// Notes dropped references under the number that holds their values when the job starts.
struct Noting<'a, 'b>(&'a RefCell<InvalidWriter<'b>>);

impl DroppedReferences for Noting<'_, '_> {
    fn note(&mut self, dropped: DroppedReference<'_>) -> Result<()> {
        self.0.borrow_mut().note(dropped.current, dropped.internal_key)
    }
}

/// Checks that every reference of the inputs is in an output or in an invalid file. `output` is
/// that of a job over the whole range, or of all parts of one job together. A superfluous entry
/// would make a garbage collection remove a live value.
pub(crate) fn check_invalid(spec: &CompactionSpec, output: &JobOutput) -> Result<()> {
    let noted: u64 = output.invalid_files.iter().map(|file| file.records).sum();
    if spec.output.values.invalid.count == 0 && noted == 0 {
        return Ok(());
    }
    let is_new = |no: u64| output.value_files.iter().any(|file| file.no == no);
    let kept = output.files.iter().flat_map(|table| table.refs.by_file());
    let kept: u64 = kept.filter(|at| !is_new(at.no)).map(|at| at.records).sum();
    let before: u64 = spec.inputs.iter().map(|input| input.meta.refs.records()).sum();
    if kept.checked_add(noted) != Some(before) {
        return Err(Error::new(
            ErrorKind::Io,
            format!(
                "{before} references were read, {kept} kept and {noted} noted as dropped by the {}",
                spec.describe()
            ),
        ));
    }
    Ok(())
}

/// Checks that all records of the input files were read, by a job over the whole range or by all
/// parts of one together. `Corrupt` if records are missing.
pub(crate) fn check_complete(spec: &CompactionSpec, records_in: u64) -> Result<()> {
    let expected = spec.input_records();
    if records_in != expected {
        let names: Vec<_> = spec.inputs.iter().map(|i| sst_name(i.meta.file_no())).collect();
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{records_in} records were read of {expected} that the files' metadata tells of, \
                 in {}",
                names.join(", ")
            ),
        ));
    }
    Ok(())
}

/// Everything that opening an input needs. It is owned, because cursors are.
struct Tables {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    cache: Arc<BlockCache>,
    budget: Arc<ByteBudget>,
    cancel: Cancel,
    progress: Arc<Progress>,
    readahead_bytes: u64,
    direct: bool,
}

/// An input file while the job runs.
struct InputFile {
    level: u8,
    io: IoContext,
    meta: FileMeta,
    /// The reader of an input that is opened before its turn, because of its range tombstones.
    early: Option<Arc<TableReader>>,
    tables: Arc<Tables>,
}

impl InputFile {
    fn table(&self) -> Result<Arc<TableReader>> {
        if let Some(table) = &self.early {
            return Ok(Arc::clone(table));
        }
        let tables = &*self.tables;
        let path = tables.dir.join(sst_name(self.meta.file_no()));
        let file = tables.fs.open(&path, self.io, OpenOptions { direct: tables.direct })?;
        let (cancel, progress) = (tables.cancel.clone(), Arc::clone(&tables.progress));
        let file = Arc::new(MeteredRead::new(file, self.io.purpose, cancel, progress));
        TableReader::open(file, &path, Some(&self.meta), &tables.cache, &tables.budget)
    }

    fn cursor(&self) -> Result<Box<dyn InternalIterator>> {
        let options = TableReadOptions::job(self.io, self.tables.readahead_bytes);
        let options = TableReadOptions { late_values: true, ..options };
        Ok(Box::new(self.table()?.iter(options)))
    }
}

/// The inputs that have keys in `range`. Those with range tombstones are opened.
fn open_inputs(
    spec: &CompactionSpec,
    range: &KeyRange,
    context: &JobContext<'_>,
) -> Result<Vec<InputFile>> {
    let tables = Arc::new(Tables {
        fs: Arc::clone(&context.fs),
        dir: spec.output.dir.clone(),
        cache: Arc::clone(&context.cache),
        budget: Arc::clone(&context.budget),
        cancel: context.cancel.clone(),
        progress: Arc::clone(&context.progress),
        readahead_bytes: u64::from(spec.readahead_bytes),
        direct: spec.direct_reads,
    });
    let mut files = Vec::with_capacity(spec.inputs.len());
    for input in spec.inputs.iter().filter(|input| input.meta.overlaps(range)) {
        let mut file = InputFile {
            level: input.level,
            io: spec.io(input.level),
            meta: input.meta.clone(),
            early: None,
            tables: Arc::clone(&tables),
        };
        if file.meta.range_deletions > 0 {
            file.early = Some(file.table()?);
        }
        files.push(file);
    }
    Ok(files)
}

/// The children of the merge: each row of L0 files that share no key, and each other level.
fn children(spec: &CompactionSpec, files: Vec<InputFile>) -> Result<Vec<Child>> {
    let mut children = Vec::new();
    let mut levels: BTreeMap<u8, Vec<InputFile>> = BTreeMap::new();
    let (l0, below): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.level == 0);
    for row in rows(l0, |file| &file.meta) {
        let newest = row.iter().map(|file| file.meta.largest_seq()).max().unwrap_or_default();
        let cursor: Box<dyn InternalIterator> = match row.as_slice() {
            [only] => only.cursor()?,
            _ => Box::new(LevelIterator::new(Level(row))),
        };
        children.push(Child::new(cursor, newest));
    }
    for file in below {
        levels.entry(file.level).or_default().push(file);
    }
    for (level, mut files) in levels {
        files.sort_by(|a, b| a.meta.smallest.cmp(&b.meta.smallest));
        if files.windows(2).any(|pair| pair[0].meta.overlaps_file(&pair[1].meta)) {
            return Err(Error::invalid(format!(
                "job spec: inputs of L{level} of {} overlap",
                spec.describe()
            )));
        }
        let newest = files.iter().map(|file| file.meta.largest_seq()).max().unwrap_or_default();
        children.push(Child::new(Box::new(LevelIterator::new(Level(files))), newest));
    }
    Ok(children)
}

/// Disjoint inputs of one level, in key order, opened one after another.
struct Level(Vec<InputFile>);

impl FileOpener for Level {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        self.0[index].meta.ends_before(key)
    }

    fn smallest(&self, index: usize) -> &[u8] {
        &self.0[index].meta.smallest
    }

    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        self.0[index].cursor()
    }
}

#[cfg(test)]
mod tests;
