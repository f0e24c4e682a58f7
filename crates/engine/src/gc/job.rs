//! The garbage collection job: from value files and a validity set to their heir (Terark-DS §4.4,
//! GC-Read and GC-Write).
//!
//! A job is a value ([`GcSpec`]) that can run in any process
//! ([`crate::executor::JobExecutor::gc`]). It reads the keys of its inputs and forms windows over
//! the valid records ([`super::windows`]). It reads the windows of one step with one call, merges
//! the records of all inputs by internal key, and writes them into one new file, the heir. Payloads
//! are copied as they are stored, so the lengths in references stay correct. Only the owner
//! installs the heir.
//!
//! Invariants:
//! 1. The heir holds exactly the valid records of the inputs, each once.
//! 2. The offset, checksum and lengths of a record are checked before it is copied.
//! 3. When the job returns `Ok`, the heir survives power loss. When it fails or is cancelled, it
//!    has removed the heir, as far as the file system let it.
//!
//! Thread-safety: one thread runs a job. Failure: a damaged record is `Corrupt` and names file and
//! offset; nothing else of the file is affected.
//! Cost: one read of each input's keys, unless the owner read them in this process; one
//! `read_many` for each step of an input, so one for an input whose windows fit into a step
//! (`step_bytes_max`); one write of the heir. Memory: the keys of all inputs, and a step of each
//! input that has not ended. Both are charged to `MemoryClass::Job`.

use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, Charge, MemoryClass};
use archipelago_base::{CfId, Error, ErrorKind, FileNo, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions};
use serde::{Deserialize, Serialize};

use super::invalid::{InvalidInput, InvalidSource, valid_by_entries};
use super::valid_bits::ValidBits;
use super::windows::{ReadWindow, ReadaheadLimits, ValueSpan, read_windows};
use crate::file_meta::value_file_name;
use crate::job::output::Written;
use crate::job::spec::OutputSpec;
use crate::job::{Counts, GcFigures, JobContext, JobOutput, MeteredRead, MeteredWrite, creation};
use crate::value::{KeyList, ValueTable, ValueTableBuilder};
use crate::value_ref::{InvalidFileMeta, ValueFileMeta};

/// Largest number of window bytes that one step reads of one input.
const STEP_BYTES_MAX: u64 = 4 << 20;
/// Smallest number of window bytes that one step reads of one input, if the input has as many.
const STEP_BYTES_MIN: u64 = 256 << 10;
/// Window bytes that the inputs of a job hold together, unless the minimum of each exceeds it.
/// Inputs with few window bytes leave their part to the others ([`step_bytes_max`]).
const STEPS_BYTES: u64 = 8 << 20;

/// Which records of an input are valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Validity {
    /// One bit for each record.
    Bits(ValidBits),
    /// The records for which no entry of the spec's invalid files counts are valid.
    Invalid {
        /// Numbers of files whose values lie in the input now, without its own number.
        ancestors: Vec<u64>,
        /// Number of records that the tables reference. The job fails if it finds another number.
        records: u64,
    },
}

impl Validity {
    /// Number of valid records.
    #[must_use]
    pub fn valid_records(&self) -> u64 {
        match self {
            Self::Bits(bits) => bits.valid_records(),
            Self::Invalid { records, .. } => *records,
        }
    }
}

/// An input file and its valid records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcInput {
    /// Metadata of the value file.
    pub meta: ValueFileMeta,
    /// Which of its records are valid.
    pub valid: Validity,
}

/// A garbage collection as a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcSpec {
    /// Id of the column family.
    pub cf: u32,
    /// The value files, in the directory of the output.
    pub inputs: Vec<GcInput>,
    /// The invalid files that may name an input or an ancestor; none if validity is given in bits.
    pub invalid: Vec<InvalidFileMeta>,
    /// Where and how the heir is written. It gets the first file number.
    pub output: OutputSpec,
    /// Basis of the heir: the counter of invalid files in the version from which validity was
    /// determined.
    pub basis: u64,
    /// How reads of neighbouring records are combined.
    pub readahead: ReadaheadLimits,
    /// Bypass the page cache when reading.
    pub direct_reads: bool,
}

impl GcSpec {
    /// Text that describes the job in errors and logs.
    #[must_use]
    pub fn describe(&self) -> String {
        let names: Vec<_> = self.inputs.iter().map(|at| at.meta.no.to_string()).collect();
        format!("garbage collection of value files {} of cf {}", names.join(", "), self.cf)
    }

    /// Number of records that the heir must contain.
    #[must_use]
    pub fn valid_records(&self) -> u64 {
        self.inputs.iter().map(|input| input.valid.valid_records()).sum()
    }

    /// File number of the heir.
    #[must_use]
    pub fn heir(&self) -> FileNo {
        FileNo(self.output.file_numbers.first)
    }

    fn io(&self) -> IoContext {
        IoContext::new(FileClass::ValueSst, IoPurpose::Gc).of_family(self.cf)
    }

    fn validate(&self) -> Result<()> {
        self.output.validate()?;
        if self.inputs.is_empty() || self.output.file_numbers.count == 0 {
            return Err(Error::invalid("job spec: garbage collection without input or output"));
        }
        for input in &self.inputs {
            let records = match &input.valid {
                Validity::Bits(bits) if bits.is_sound() => bits.records(),
                Validity::Bits(_) => 0,
                Validity::Invalid { .. } => input.meta.records,
            };
            if records != input.meta.records {
                return Err(Error::invalid(format!(
                    "job spec: value file {} has {} records, but validity is given for {}",
                    input.meta.no, input.meta.records, records
                )));
            }
        }
        Ok(())
    }
}

/// Runs a garbage collection. On `Ok` the heir survives power loss. [`crate::job`] lists the
/// failures.
pub fn run_gc(spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
    collect(spec, context).map_err(|error| error.context_at(spec.describe()))
}

fn collect(spec: &GcSpec, context: &JobContext<'_>) -> Result<JobOutput> {
    let started_ns = context.clock.now_ns();
    spec.validate()?;
    let mut figures = GcFigures::default();
    let mut sources = open_sources(spec, context, &mut figures)?;
    let mut heir = Heir::create(spec, context)?;
    let copying_ns = context.clock.now_ns();
    let mut records = 0;
    while let Some(at) = least(&sources) {
        heir.copy(&mut sources[at], &mut figures, context)?;
        records += 1;
    }
    // Reads of values are timed as a whole, so no record needs a look at the clock.
    let copied_ns = context.clock.now_ns().saturating_sub(copying_ns);
    figures.write_ns = copied_ns.saturating_sub(figures.value_read_ns);
    if records != spec.valid_records() {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("{records} records were copied of {} valid ones", spec.valid_records()),
        ));
    }
    let meta = heir.finish(spec, &mut figures, context)?;
    let written = Written { tables: Vec::new(), value_files: vec![meta] };
    let output = context.output(written, Counts::default(), started_ns);
    Ok(JobOutput { gc: figures, ..output })
}

/// An open input: its keys, and the windows of the current step.
struct Source {
    table: Arc<ValueTable>,
    keys: Arc<KeyList>,
    valid: ValidBits,
    io: IoContext,
    windows: Vec<ReadWindow>,
    /// Index of the first window that no step has read. It ends the current step.
    next_window: usize,
    /// Index of the window that holds `record`, once a step has read it.
    window: usize,
    /// Position of that window's bytes in the step.
    window_at: usize,
    /// The bytes of the windows of the current step, one window after another.
    step: StepBytes,
    step_bytes_max: u64,
    /// Index of the next valid record.
    record: usize,
    /// Charge for the memory of the keys.
    _held: Charge,
}

impl Source {
    /// Moves to the next valid record from `record` on. Frees the step after the last one.
    fn settle(&mut self) {
        while self.record < self.keys.len() && !self.valid.is_valid(self.record) {
            self.record += 1;
        }
        if self.is_done() {
            self.step.free();
        }
    }

    fn is_done(&self) -> bool {
        self.record >= self.keys.len()
    }

    /// The bytes of the value record at `record`, which a step has read.
    fn record_bytes(&self) -> &[u8] {
        let handle = self.keys.handle(self.record);
        let in_window = (handle.offset - self.windows[self.window].offset) as usize;
        let from = self.window_at + in_window;
        &self.step.bytes[from..from + handle.record_bytes() as usize]
    }

    /// Makes the bytes of `record` available: moves within the step, or reads the next one.
    fn load(&mut self, figures: &mut GcFigures, context: &JobContext<'_>) -> Result<()> {
        let record = self.record;
        let holds =
            |window: &ReadWindow| (window.first..window.first + window.records).contains(&record);
        while self.window < self.next_window {
            let window = &self.windows[self.window];
            if holds(window) {
                return Ok(());
            }
            self.window_at += window.bytes as usize;
            self.window += 1;
        }
        let started_ns = context.clock.now_ns();
        let mut end = self.next_window;
        let mut bytes = 0;
        for window in &self.windows[self.next_window..] {
            if end > self.next_window && bytes + window.bytes > self.step_bytes_max {
                break;
            }
            end += 1;
            bytes += window.bytes;
        }
        let windows = &self.windows[self.next_window..end];
        let mut rest = self.step.room_for(bytes);
        let mut requests: Vec<(u64, &mut [u8])> = Vec::with_capacity(windows.len());
        for window in windows {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(window.bytes as usize);
            requests.push((window.offset, part));
            rest = others;
        }
        self.table.read_ranges(&mut requests, self.io)?;
        figures.value_reads += 1;
        figures.value_ranges += windows.len() as u64;
        figures.value_bytes_read += bytes;
        figures.value_read_ns += context.clock.now_ns().saturating_sub(started_ns);
        if !windows.first().is_some_and(holds) {
            return Err(Error::new(ErrorKind::Internal, "a valid record lies in no window"));
        }
        // The first window of the step is the one after the last step, at which `window` is.
        (self.window_at, self.next_window) = (0, end);
        Ok(())
    }
}

/// Memory for the bytes of one step of an input. A single record that is longer than a step gets
/// its length for its own step alone.
struct StepBytes {
    bytes: Vec<u8>,
    /// Length of a step, at most. It is charged from the beginning.
    step_bytes: u64,
    charge: Charge,
}

impl StepBytes {
    fn new(step_bytes: u64, budget: &Arc<ByteBudget>) -> Self {
        let charge = budget.hold(MemoryClass::Job, step_bytes);
        Self { bytes: Vec::new(), step_bytes, charge }
    }

    /// Memory for a step of `bytes` bytes. Its content is arbitrary.
    fn room_for(&mut self, bytes: u64) -> &mut [u8] {
        let len = bytes.max(self.step_bytes);
        if self.bytes.len() as u64 != len {
            self.free();
            self.charge.resize(len);
            self.bytes = vec![0; len as usize];
        }
        &mut self.bytes[..bytes as usize]
    }

    /// Frees the memory until the next step.
    fn free(&mut self) {
        self.bytes = Vec::new();
        self.charge.resize(0);
    }
}

/// Position of the source with the smallest internal key; `None` if all are done. A job has few
/// inputs, so a scan costs less than a heap.
fn least(sources: &[Source]) -> Option<usize> {
    let order = |one: &Source, other: &Source| -> Ordering {
        let key = one.keys.user_key(one.record).cmp(other.keys.user_key(other.record));
        key.then_with(|| other.keys.seq(other.record).cmp(&one.keys.seq(one.record)))
    };
    let open = sources.iter().enumerate().filter(|(_, source)| !source.is_done());
    open.min_by(|(_, one), (_, other)| order(one, other)).map(|(at, _)| at)
}

/// Bytes of all windows of an input.
fn window_bytes(windows: &[ReadWindow]) -> u64 {
    windows.iter().map(|window| window.bytes).sum()
}

/// Limit on the bytes of a window of `inputs` inputs: an even part of what all steps may hold. A
/// larger single record exceeds it, so a limit of one byte makes each record a window of its own.
fn window_bytes_max(inputs: usize) -> u64 {
    if super::BY_KEY {
        return 1;
    }
    (STEPS_BYTES / inputs.max(1) as u64).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
}

/// Limit on the window bytes that one step reads of an input, for inputs with these window bytes.
/// An input below the limit is read with one call, and the others share what it leaves. The limit
/// is never below [`window_bytes_max`], because a window is a part of a step.
fn step_bytes_max(inputs: &[u64]) -> u64 {
    if super::BY_KEY {
        return window_bytes_max(inputs.len());
    }
    let mut ascending = inputs.to_vec();
    ascending.sort_unstable();
    let mut room = STEPS_BYTES;
    for (at, &bytes) in ascending.iter().enumerate() {
        let even = room / (ascending.len() - at) as u64;
        if bytes > even {
            return even.clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
        }
        room -= bytes;
    }
    STEP_BYTES_MAX
}

/// An open input and its keys.
struct OpenInput {
    table: Arc<ValueTable>,
    keys: Arc<KeyList>,
    /// Charge for the memory of the keys. It is empty for keys that the owner has read, because the
    /// owner charges them.
    held: Charge,
}

fn open_sources(
    spec: &GcSpec,
    context: &JobContext<'_>,
    figures: &mut GcFigures,
) -> Result<Vec<Source>> {
    let started_ns = context.clock.now_ns();
    let inputs = open_inputs(spec, context, figures)?;
    figures.key_read_ns += context.clock.now_ns().saturating_sub(started_ns);
    let started_ns = context.clock.now_ns();
    let valid = valid_records(spec, &inputs, context)?;
    figures.lookup_ns += context.clock.now_ns().saturating_sub(started_ns);
    let window_bytes_max = spec.readahead.window_bytes_max.min(window_bytes_max(inputs.len()));
    let readahead = ReadaheadLimits { window_bytes_max, ..spec.readahead };
    let windows_of = |(input, valid): (&OpenInput, &ValidBits)| {
        let spans = (0..input.keys.len()).map(|record| {
            let handle = input.keys.handle(record);
            let is_valid = valid.is_valid(record);
            ValueSpan { offset: handle.offset, bytes: handle.record_bytes(), is_valid }
        });
        read_windows(spans, &readahead)
    };
    let windows: Vec<Vec<ReadWindow>> = inputs.iter().zip(&valid).map(windows_of).collect();
    let lengths: Vec<u64> = windows.iter().map(|windows| window_bytes(windows)).collect();
    let step_bytes_max = step_bytes_max(&lengths);
    let mut sources = Vec::with_capacity(inputs.len());
    for ((OpenInput { table, keys, held }, valid), windows) in
        inputs.into_iter().zip(valid).zip(windows)
    {
        let step_bytes = window_bytes(&windows).min(step_bytes_max);
        let mut source = Source {
            table,
            keys,
            valid,
            io: spec.io(),
            windows,
            next_window: 0,
            window: 0,
            window_at: 0,
            step: StepBytes::new(step_bytes, &context.budget),
            step_bytes_max,
            record: 0,
            _held: held,
        };
        source.settle();
        sources.push(source);
    }
    Ok(sources)
}

fn open_inputs(
    spec: &GcSpec,
    context: &JobContext<'_>,
    figures: &mut GcFigures,
) -> Result<Vec<OpenInput>> {
    let mut inputs = Vec::with_capacity(spec.inputs.len());
    for (at, input) in spec.inputs.iter().enumerate() {
        let path = spec.output.dir.join(value_file_name(input.meta.file_no()));
        let table = open_input(spec, &input.meta, context)?;
        let mut held = context.budget.hold(MemoryClass::Job, 0);
        let keys = match context.value_keys.get(at) {
            Some(known) => Arc::clone(known),
            None => {
                figures.key_reads += 1;
                figures.key_bytes_read += input.meta.keys_bytes();
                let keys = KeyList::read(table.keys(spec.io())?)?;
                held.resize(keys.memory_bytes());
                Arc::new(keys)
            }
        };
        if keys.len() as u64 != input.meta.records {
            let what = format!("{} keys, but the manifest says {}", keys.len(), input.meta.records);
            return Err(Error::corrupt(&path, input.meta.keys_offset, what));
        }
        inputs.push(OpenInput { table, keys, held });
    }
    Ok(inputs)
}

/// The valid records of each input, from the spec or from the invalid files.
fn valid_records(
    spec: &GcSpec,
    inputs: &[OpenInput],
    context: &JobContext<'_>,
) -> Result<Vec<ValidBits>> {
    let mut valid = Vec::with_capacity(inputs.len());
    let mut asked = Vec::new();
    for (input, open) in spec.inputs.iter().zip(inputs) {
        match &input.valid {
            Validity::Bits(bits) => valid.push(bits.clone()),
            Validity::Invalid { ancestors, records } => asked.push(InvalidInput {
                meta: &input.meta,
                ancestors,
                keys: &open.keys,
                records: *records,
            }),
        }
    }
    if asked.is_empty() {
        return Ok(valid);
    }
    if !valid.is_empty() {
        return Err(Error::invalid("job spec: validity is given in two ways"));
    }
    let (dir, direct_reads) = (spec.output.dir(), spec.direct_reads);
    let source = InvalidSource { cf: spec.cf, dir, direct_reads, context };
    valid_by_entries(&spec.invalid, &asked, source)
}

fn open_input(
    spec: &GcSpec,
    meta: &ValueFileMeta,
    context: &JobContext<'_>,
) -> Result<Arc<ValueTable>> {
    let path = spec.output.dir.join(value_file_name(meta.file_no()));
    let file = context.fs.open(&path, spec.io(), OpenOptions { direct: spec.direct_reads })?;
    let (cancel, progress) = (context.cancel.clone(), Arc::clone(&context.progress));
    let file = Arc::new(MeteredRead::new(file, IoPurpose::Gc, cancel, progress));
    ValueTable::open(file, &path, meta, &context.cache, &context.budget)
}

/// The file that a job writes. If it is dropped before its end, it removes the file.
struct Heir<'a> {
    builder: Option<ValueTableBuilder>,
    path: PathBuf,
    context: &'a JobContext<'a>,
    is_whole: bool,
}

impl<'a> Heir<'a> {
    fn create(spec: &GcSpec, context: &'a JobContext<'a>) -> Result<Self> {
        let no = spec.heir();
        let path = spec.output.dir.join(value_file_name(no));
        let file = context.fs.create(&path, spec.io(), creation(&spec.output))?;
        let mut heir = Self { builder: None, path, context, is_whole: false };
        let file = Box::new(MeteredWrite::new(file, IoPurpose::Gc, context));
        let options = spec.output.table_options(CfId(spec.cf));
        let id = spec.output.unique_id(no);
        let builder = ValueTableBuilder::new(file, &heir.path, no, id, options);
        heir.builder = Some(builder.charged_to(&context.budget));
        Ok(heir)
    }

    /// Copies the current record of `source`, and moves the source on.
    fn copy(
        &mut self,
        source: &mut Source,
        figures: &mut GcFigures,
        context: &JobContext<'_>,
    ) -> Result<()> {
        source.load(figures, context)?;
        let at = source.record;
        let stored = source.table.stored(source.keys.handle(at), source.record_bytes())?;
        if let Some(builder) = &mut self.builder {
            builder.add_stored(source.keys.user_key(at), source.keys.seq(at), &stored)?;
        }
        source.record += 1;
        source.settle();
        Ok(())
    }

    fn finish(
        mut self,
        spec: &GcSpec,
        figures: &mut GcFigures,
        context: &JobContext<'_>,
    ) -> Result<ValueFileMeta> {
        let started_ns = context.clock.now_ns();
        let builder = self.builder.take();
        let builder = builder.ok_or_else(|| Error::new(ErrorKind::Internal, "heir ends twice"))?;
        let mut meta = builder.finish()?;
        context.fs.sync_dir(spec.output.dir())?;
        context.check_cancelled()?;
        meta.basis = spec.basis;
        self.is_whole = true;
        figures.records_copied += meta.records;
        figures.finish_ns += context.clock.now_ns().saturating_sub(started_ns);
        Ok(meta)
    }
}

impl Drop for Heir<'_> {
    fn drop(&mut self) {
        self.builder = None;
        if !self.is_whole
            && let Err(error) = self.context.fs.remove(&self.path)
        {
            tracing::warn!(%error, "cannot remove the output of a failed garbage collection");
        }
    }
}

#[cfg(all(test, not(feature = "gc-by-key")))]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Number of calls that read the values of inputs with these window bytes, if windows fill
    /// their steps.
    fn calls(inputs: &[u64]) -> u64 {
        let most = step_bytes_max(inputs);
        inputs.iter().map(|bytes| bytes.div_ceil(most)).sum()
    }

    /// Bytes that the steps of these inputs hold together.
    fn held_bytes(inputs: &[u64]) -> u64 {
        let most = step_bytes_max(inputs);
        inputs.iter().map(|bytes| most.min(*bytes)).sum()
    }

    #[test]
    fn inputs_that_fit_together_take_one_call_each() {
        // An heir of an earlier job, and files of flushes.
        let inputs = [3 * MIB, 800 * KIB, 800 * KIB, 800 * KIB, 800 * KIB, 800 * KIB];
        assert_eq!((calls(&inputs), held_bytes(&inputs)), (6, 7072 * KIB));
        assert_eq!(calls(&[MIB; 8]), 8);
        assert_eq!(calls(&[4 * MIB, 4 * MIB]), 2);
    }

    #[test]
    fn inputs_that_do_not_fit_share_the_room_evenly() {
        assert_eq!(step_bytes_max(&[64 * MIB, 64 * MIB]), 4 * MIB);
        assert_eq!(step_bytes_max(&[64 * MIB; 4]), 2 * MIB);
        // Two inputs leave 7 MiB to the others.
        assert_eq!(step_bytes_max(&[64 * MIB, 512 * KIB, 64 * MIB, 512 * KIB]), 3584 * KIB);
        assert_eq!(step_bytes_max(&[64 * MIB; 256]), STEP_BYTES_MIN);
        assert_eq!(step_bytes_max(&[64 * MIB]), STEP_BYTES_MAX);
        assert_eq!(step_bytes_max(&[]), STEP_BYTES_MAX);
    }

    #[test]
    fn record_longer_than_a_step_takes_memory_for_its_own_step_alone() {
        let budget = ByteBudget::unlimited();
        let charged = || budget.used_bytes(MemoryClass::Job);
        let mut step = StepBytes::new(KIB, &budget);
        assert_eq!((charged(), step.room_for(700).len()), (KIB, 700));
        assert_eq!((step.room_for(MIB).len() as u64, charged()), (MIB, MIB));
        assert_eq!((step.room_for(KIB).len() as u64, charged()), (KIB, KIB));
        assert_eq!(step.bytes.capacity() as u64, KIB, "the long record is gone");
        step.free();
        assert_eq!((step.bytes.capacity(), charged()), (0, 0));
    }

    #[test]
    fn steps_hold_no_more_than_even_parts_would() {
        let mut rng = Rng::with_seed(5);
        for _ in 0..2000 {
            let bytes_max = [64 * KIB, MIB, 16 * MIB][rng.usize(0..3)];
            let inputs: Vec<u64> = (0..rng.usize(1..40)).map(|_| rng.u64(0..bytes_max)).collect();
            let even = window_bytes_max(inputs.len());
            let held_max = STEPS_BYTES.max(inputs.len() as u64 * STEP_BYTES_MIN);
            assert!(step_bytes_max(&inputs) >= even, "a window is a part of a step: {inputs:?}");
            assert!(held_bytes(&inputs) <= held_max, "{inputs:?}");
            let evenly: u64 = inputs.iter().map(|bytes| bytes.div_ceil(even)).sum();
            assert!(calls(&inputs) <= evenly, "{inputs:?}");
        }
    }
}
