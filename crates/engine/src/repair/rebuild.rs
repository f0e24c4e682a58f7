//! Repair without a manifest: every column family is merged anew from all tables and the log.
//!
//! Without a manifest the levels are not known, and a table that a compaction has replaced looks
//! like a current one. Sequence numbers make a merge of all tables correct nevertheless. For each
//! key the record with the largest number counts, wherever it lies, and records that appear twice
//! count once. The merge does not know what a compaction has dropped. So a deleted key comes back
//! if its table was replaced but not yet removed. Therefore the report calls every rebuilt family
//! stale.
//!
//! Invariants:
//! 1. The output has the newest value of each key, or merge operands above the newest value or
//!    delete.
//! 2. A record that a newer range delete covers is not in the output.
//! 3. A record whose separated value is lost is not in the output; the report has its key
//!    ([`super::values`]).
//! 4. Outputs are disjoint, ascending, and lie in the last level of a bucket map with one bucket.
//!
//! The sequence number of an ingested table of an `SstWriter` stands in the manifest alone. If no
//! readable record of a manifest has it, the table's records count as older than all others.
//!
//! Cost: one write of all data. Memory: the range deletes, and one open table per layer of
//! overlapping tables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{CfId, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::{FileSystem, IoContext, IoPurpose, OpenOptions};

use super::report::{Loss, LossEffect, LossScope, RepairReport};
use super::survey::Facts;
use super::tables::{
    SalvageRequest, TableDamage, TableOutcome, last_seq_of, lost_values, reader_memory, salvage,
    table_range,
};
use super::values::{ValueFilter, ValueStore};
use super::write::{SortedRuns, TableFamily, Target};
use super::{RepairJob, RepairRun};
use crate::file_meta::{FileMeta, sst_name};
use crate::iter::{Child, FileOpener, InternalIterator, LevelIterator, MergingIterator};
use crate::key::{self, KeyRange, Kind};
use crate::manifest::{Change, DEFAULT_CF_NAME, VersionEdit};
use crate::options::{CfOptions, LEVELS};
use crate::sst::{
    BlockCache, Properties, TableBuilder, TableReadOptions, TableReader, read_foreign_table,
};
use crate::tombstone::{RangeTombstone, TombstoneSet};

/// Readahead in bytes for each open table of a merge.
const READAHEAD_BYTES: u64 = 256 << 10;

/// A table that takes part in the merge.
#[derive(Clone, Debug)]
struct MergeInput {
    path: PathBuf,
    meta: FileMeta,
    /// Whether this repair wrote the table, and removes it after the merge.
    is_temporary: bool,
}

/// A column family that is being rebuilt.
#[derive(Clone, Debug)]
struct RebuiltFamily {
    name: String,
    options: CfOptions,
    inputs: Vec<MergeInput>,
}

/// Rebuilds the database from its tables and logs. `why` is the reason for which the manifest is
/// unusable.
pub(super) fn rebuild(
    job: &RepairJob<'_>,
    why: String,
    mut target: Option<Target>,
    run: &mut RepairRun<'_>,
) -> Result<()> {
    run.report.manifest_lost = Some(why);
    run.report.losses.push(Loss {
        file: "MANIFEST".to_owned(),
        what:
            "without it, repair cannot tell which tables were replaced and which keys were deleted since"
                .to_owned(),
        effect: LossEffect::Stale,
        scope: LossScope { cf: None, range: KeyRange::all() },
    });
    let mut families = known_families(&job.survey.facts);
    let mut values = ValueStore::of_directory(job, &mut run.meter)?;
    let ingested = gather_tables(job, &mut families, &mut values, target.as_mut(), run)?;
    gather_log(job, &mut families, target.as_mut(), run)?;
    let report = &mut run.report;
    // The families are known only from here on.
    ingested.into_iter().for_each(|table| add_ingested(&mut families, table, report));
    for (&cf, family) in &families {
        report.family(cf, &family.name);
        report.last_seq =
            report.last_seq.max(last_seq_of(family.inputs.iter().map(|input| &input.meta)));
    }
    let Some(mut target) = target else { return Ok(()) };
    let mut edit = VersionEdit::new();
    for (&cf, family) in &families {
        let options = Box::new(family.options.clone());
        edit.push(Change::CreateCf { cf, name: family.name.clone(), options });
        let merged = merge_family(job.fs, cf, family, &mut values, &mut target)?;
        for no in value_files_of(&merged) {
            if let Some((meta, path)) = values.whole(no) {
                target.take_over_values(&path, meta.file_no())?;
                edit.add_value_file(cf, meta.clone());
                report.family(cf, &family.name).value_files_whole += 1;
            }
        }
        for meta in merged {
            edit.add_file(cf, LEVELS - 1, meta);
        }
        for input in family.inputs.iter().filter(|input| input.is_temporary) {
            target.remove(FileNo(input.meta.no))?;
        }
    }
    edit.push(Change::LastSeq(report.last_seq.max(job.survey.facts.last_seq)));
    target.finish(&edit)
}

/// The value files that `tables` refer to, ascending.
fn value_files_of(tables: &[FileMeta]) -> BTreeSet<u64> {
    tables.iter().flat_map(|meta| meta.refs.by_file().iter().map(|at| at.no)).collect()
}

/// The families that readable records of a manifest name. The default family always exists.
fn known_families(facts: &Facts) -> BTreeMap<CfId, RebuiltFamily> {
    let mut families = BTreeMap::new();
    for (&cf, known) in facts.families.iter().filter(|(_, known)| !known.is_dropped) {
        let (name, options) = (known.name.clone(), known.options.clone());
        families.insert(cf, RebuiltFamily { name, options, inputs: Vec::new() });
    }
    families.entry(CfId::DEFAULT).or_insert_with(|| RebuiltFamily {
        name: DEFAULT_CF_NAME.to_owned(),
        options: CfOptions::default(),
        inputs: Vec::new(),
    });
    families
}

/// The family `cf`, which is created if nothing has named it so far. `None` for a dropped family.
fn family_of<'a>(
    facts: &Facts,
    families: &'a mut BTreeMap<CfId, RebuiltFamily>,
    cf: CfId,
    name: &str,
    report: &mut RepairReport,
) -> Option<&'a mut RebuiltFamily> {
    if facts.families.get(&cf).is_some_and(|known| known.is_dropped) {
        return None;
    }
    if !families.contains_key(&cf) {
        let is_taken = families.values().any(|family| family.name == name);
        let name = match name {
            "" => format!("recovered-{cf}"),
            _ if is_taken => format!("{name}-recovered-{cf}"),
            _ => name.to_owned(),
        };
        report.notes.push(format!(
            "the settings of family \"{name}\" are lost: it has the default ones, without a merge \
             operator; give its settings at the next open"
        ));
        let options = CfOptions::default();
        families.insert(cf, RebuiltFamily { name, options, inputs: Vec::new() });
    }
    families.get_mut(&cf)
}

/// A table of the directory and its own properties.
struct FoundTable {
    meta: FileMeta,
    properties: Properties,
    reader: Arc<TableReader>,
}

/// Opens a table that no manifest describes, and checks all of it.
fn check_unknown(fs: &dyn FileSystem, path: &Path, no: FileNo) -> Result<FoundTable> {
    let context = IoContext::sst(IoPurpose::Maintenance, 0);
    let file = fs.open(path, context, OpenOptions::default())?;
    let meta = read_foreign_table(&file, path, no)?.meta;
    let (cache, budget) = reader_memory();
    let reader = TableReader::open(file, path, None, &cache, &budget)?;
    Ok(FoundTable { meta, properties: reader.properties().clone(), reader })
}

fn gather_tables(
    job: &RepairJob<'_>,
    families: &mut BTreeMap<CfId, RebuiltFamily>,
    values: &mut ValueStore<'_>,
    mut target: Option<&mut Target>,
    run: &mut RepairRun<'_>,
) -> Result<Vec<MergeInput>> {
    let RepairRun { report, meter } = run;
    let facts = &job.survey.facts;
    let mut ingested = Vec::new();
    let mut replaced = 0;
    for no in job.survey.numbers(sst_name) {
        let name = sst_name(no);
        meter.add(job.survey.len_of(&name).unwrap_or(0));
        if facts.removed.contains(&no.0) {
            replaced += 1;
            continue;
        }
        let path = job.survey.dir.join(&name);
        match check_unknown(&**job.fs, &path, no) {
            Ok(table) => ingested.extend(add_whole(job, families, values, table, report)?),
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(error) => {
                let what = error.to_string();
                let target = target.as_deref_mut();
                let table = DamagedTable { no, path, what };
                add_damaged(job, families, &table, Saving { values, target }, report)?;
            }
        }
    }
    if replaced > 0 {
        report
            .notes
            .push(format!("{replaced} tables that the manifest had replaced were left out"));
    }
    Ok(ingested)
}

/// Whether a table was made for ingestion: its records have no sequence numbers of their own.
fn is_ingested(properties: &Properties) -> bool {
    properties.largest_seq == 0
}

/// Adds a whole table to its family. Returns a table that was ingested into an unknown family.
fn add_whole(
    job: &RepairJob<'_>,
    families: &mut BTreeMap<CfId, RebuiltFamily>,
    values: &mut ValueStore<'_>,
    table: FoundTable,
    report: &mut RepairReport,
) -> Result<Option<MergeInput>> {
    let FoundTable { mut meta, properties, reader } = table;
    let path = reader.path().to_owned();
    let facts = job.survey.facts.tables.get(&meta.no);
    let facts = facts.filter(|facts| facts.meta.unique_id == meta.unique_id);
    let mut cf = properties.cf;
    if let Some(facts) = facts {
        cf = facts.cf;
        meta.global_seq = facts.meta.global_seq;
    } else if is_ingested(&properties) {
        return Ok(Some(MergeInput { path, meta, is_temporary: false }));
    }
    let facts = &job.survey.facts;
    if let Some(family) = family_of(facts, families, cf, &properties.cf_name, report) {
        let lost = lost_values(&reader, cf, values)?;
        family.inputs.push(MergeInput { path, meta, is_temporary: false });
        let name = family.name.clone();
        report.losses.extend(lost.losses);
        let family = report.family(cf, &name);
        family.tables_whole += 1;
        family.values_lost += lost.records;
    }
    Ok(None)
}

/// Adds an ingested table whose family and sequence number are unknown. It goes to the default
/// family if there is no other one.
fn add_ingested(
    families: &mut BTreeMap<CfId, RebuiltFamily>,
    mut input: MergeInput,
    report: &mut RepairReport,
) {
    let is_only = families.len() == 1;
    let (what, effect) = match is_only {
        false => (
            "it was ingested, and the manifest alone knew its family and its sequence number: it is \
             left out; ingest it again into its family",
            LossEffect::Lost,
        ),
        true => (
            "it was ingested, and the manifest alone knew its sequence number: its records count as \
             older than all others",
            LossEffect::Stale,
        ),
    };
    let scope = LossScope { cf: is_only.then_some(CfId::DEFAULT), range: table_range(&input.meta) };
    let file = sst_name(FileNo(input.meta.no));
    report.losses.push(Loss { file, what: what.to_owned(), effect, scope });
    if let Some(family) = families.get_mut(&CfId::DEFAULT).filter(|_| is_only) {
        input.meta.global_seq = Some(0);
        family.inputs.push(input);
        let name = family.name.clone();
        report.family(CfId::DEFAULT, &name).tables_whole += 1;
    }
}

/// A table that is damaged.
struct DamagedTable {
    no: FileNo,
    path: PathBuf,
    what: String,
}

/// Sources for the values of a damaged table, and the target of its records.
struct Saving<'s, 'a> {
    values: &'s mut ValueStore<'a>,
    target: Option<&'s mut Target>,
}

fn add_damaged(
    job: &RepairJob<'_>,
    families: &mut BTreeMap<CfId, RebuiltFamily>,
    table: &DamagedTable,
    saving: Saving<'_, '_>,
    report: &mut RepairReport,
) -> Result<()> {
    let Saving { values, target } = saving;
    let facts = &job.survey.facts;
    let known = facts.tables.get(&table.no.0);
    let meta = known.map(|known| &known.meta);
    let name = sst_name(table.no);
    // A first pass without writing determines the family of the table.
    let request = SalvageRequest { path: &table.path, meta, cf: None };
    let found = salvage(&**job.fs, &request, values, None)?.found;
    let said = found.properties.as_ref().filter(|said| !is_ingested(said) && !found.is_foreign);
    let cf = known.map(|known| known.cf).or_else(|| said.map(|said| said.cf));
    let Some(cf) = cf else {
        let what = format!("{} (nothing says which family it is of)", table.what);
        let scope = LossScope { cf: None, range: KeyRange::all() };
        report.losses.push(Loss { file: name, what, effect: LossEffect::Lost, scope });
        return Ok(());
    };
    let cf_name = said.map_or("", |said| said.cf_name.as_str());
    let Some(family) = family_of(facts, families, cf, cf_name, report) else { return Ok(()) };
    let whole = meta.map_or_else(KeyRange::all, table_range);
    let damage = TableDamage { cf, file: &name, what: &table.what, whole };
    report.losses.extend(damage.losses(&found));
    let options = family.options.clone();
    let family_name = family.name.clone();
    let into =
        target.map(|target| (target, TableFamily { cf, name: &family_name, options: &options }));
    let dir = into.as_ref().map(|(target, _)| target.dir.clone());
    let saved = salvage(&**job.fs, &SalvageRequest { cf: Some(cf), ..request }, values, into)?;
    report.losses.extend(saved.value_losses);
    let (is_lost, records) = match saved.outcome {
        TableOutcome::Lost => (true, 0),
        TableOutcome::Salvaged { records, meta } => {
            if let (Some(meta), Some(dir)) = (meta, dir) {
                let path = dir.join(sst_name(FileNo(meta.no)));
                family.inputs.push(MergeInput { path, meta: *meta, is_temporary: true });
            }
            (false, records)
        }
    };
    let family = report.family(cf, &family_name);
    family.tables_lost += u64::from(is_lost);
    family.tables_salvaged += u64::from(!is_lost);
    family.records_salvaged += records;
    family.values_lost += saved.values_lost;
    Ok(())
}

/// Writes the log into sorted tables, which take part in the merge.
fn gather_log(
    job: &RepairJob<'_>,
    families: &mut BTreeMap<CfId, RebuiltFamily>,
    target: Option<&mut Target>,
    run: &mut RepairRun<'_>,
) -> Result<()> {
    let RepairRun { report, meter } = run;
    let facts = &job.survey.facts;
    let log = job.log(facts.log_floor)?;
    let found = log.visit(|_, _| Ok(()))?;
    for &cf in found.operations.keys() {
        family_of(facts, families, cf, "", report);
    }
    report.log_records = found.records;
    report.last_seq = found.last_seq;
    report.losses.extend(found.losses.iter().cloned());
    meter.add(found.bytes);
    let Some(target) = target else { return Ok(()) };
    let mut runs = SortedRuns::default();
    let known: BTreeMap<CfId, (String, CfOptions)> = families
        .iter()
        .map(|(&cf, family)| (cf, (family.name.clone(), family.options.clone())))
        .collect();
    let family_of =
        |cf: CfId| known.get(&cf).map(|(name, options)| TableFamily { cf, name, options });
    log.visit(|seq, payload| runs.add(target, &family_of, seq, payload))?;
    for (cf, meta) in runs.finish(target, &family_of)? {
        let path = target.dir.join(sst_name(FileNo(meta.no)));
        if let Some(family) = families.get_mut(&cf) {
            family.inputs.push(MergeInput { path, meta, is_temporary: true });
        }
    }
    Ok(())
}

/// Tables that do not overlap, in key order; each is opened when the cursor reaches it.
struct TableRun {
    fs: Arc<dyn FileSystem>,
    inputs: Vec<MergeInput>,
    cache: Arc<BlockCache>,
    budget: Arc<ByteBudget>,
}

impl TableRun {
    fn reader(&self, index: usize) -> Result<Arc<TableReader>> {
        let input = &self.inputs[index];
        let context = IoContext::sst(IoPurpose::Maintenance, 0);
        let file = self.fs.open(&input.path, context, OpenOptions::default())?;
        TableReader::open(file, &input.path, Some(&input.meta), &self.cache, &self.budget)
    }
}

impl FileOpener for TableRun {
    fn count(&self) -> usize {
        self.inputs.len()
    }

    fn ends_before(&self, index: usize, key: &[u8]) -> bool {
        self.inputs[index].meta.ends_before(key)
    }

    fn smallest(&self, index: usize) -> &[u8] {
        &self.inputs[index].meta.smallest
    }

    fn open(&self, index: usize) -> Result<Box<dyn InternalIterator>> {
        let context = IoContext::sst(IoPurpose::Maintenance, 0);
        let options = TableReadOptions::job(context, READAHEAD_BYTES);
        Ok(Box::new(self.reader(index)?.iter(options)))
    }
}

/// Distributes tables over runs, as few as there are tables over one key.
fn runs_of(fs: &Arc<dyn FileSystem>, mut inputs: Vec<MergeInput>) -> Vec<TableRun> {
    let (cache, budget) = reader_memory();
    inputs.sort_by(|a, b| (&a.meta.smallest, a.meta.no).cmp(&(&b.meta.smallest, b.meta.no)));
    let mut runs: Vec<TableRun> = Vec::new();
    for input in inputs {
        let has_room = |run: &&mut TableRun| {
            let last = run.inputs.last();
            last.is_none_or(|last| last.meta.ends_before(&input.meta.smallest))
        };
        match runs.iter_mut().find(has_room) {
            Some(run) => run.inputs.push(input),
            None => runs.push(TableRun {
                fs: Arc::clone(fs),
                inputs: vec![input],
                cache: Arc::clone(&cache),
                budget: Arc::clone(&budget),
            }),
        }
    }
    runs
}

/// Merges all inputs of a family into tables of the target.
fn merge_family(
    fs: &Arc<dyn FileSystem>,
    cf: CfId,
    family: &RebuiltFamily,
    values: &mut ValueStore<'_>,
    target: &mut Target,
) -> Result<Vec<FileMeta>> {
    let runs = runs_of(fs, family.inputs.clone());
    let mut tombstones: Vec<RangeTombstone> = Vec::new();
    for run in &runs {
        for index in (0..run.count()).filter(|&at| run.inputs[at].meta.range_deletions > 0) {
            tombstones.extend(run.reader(index)?.tombstones().list());
        }
    }
    let into = TableFamily { cf, name: &family.name, options: &family.options };
    let mut output = MergeOutput {
        target,
        values: ValueFilter::new(values, cf),
        family: into,
        tombstones: TombstoneSet::new(&tombstones),
        open: None,
        files: Vec::new(),
        pending: None,
        user_key: None,
        is_decided: true,
    };
    let children = runs
        .into_iter()
        .map(|run| Child::new(Box::new(LevelIterator::new(run)), SeqNo::MAX))
        .collect();
    let mut merged = MergingIterator::new(children);
    merged.seek_to_first();
    while merged.valid() {
        output.record(merged.key(), merged.value())?;
        merged.next();
    }
    merged.status()?;
    output.finish()
}

/// A record that waits for others with its sequence number.
struct PendingRecord {
    seq: SeqNo,
    kind: Kind,
    value: Vec<u8>,
}

/// Writes the records of each key that count.
struct MergeOutput<'a, 'v> {
    target: &'a mut Target,
    /// Finds the values of records. The records that it drops are in the report already.
    values: ValueFilter<'a, 'v>,
    family: TableFamily<'a>,
    tombstones: TombstoneSet,
    open: Option<TableBuilder>,
    files: Vec<FileMeta>,
    pending: Option<PendingRecord>,
    /// The key of the records that are being merged.
    user_key: Option<Vec<u8>>,
    /// Whether older records of the key no longer count.
    is_decided: bool,
}

impl MergeOutput<'_, '_> {
    /// Takes the next record in internal-key order.
    fn record(&mut self, encoded: &[u8], value: &[u8]) -> Result<()> {
        let Some(record) = key::KeyRef::decode(encoded) else { return Ok(()) };
        if self.user_key.as_deref() != Some(record.user_key) {
            self.write_pending()?;
            self.user_key = Some(record.user_key.to_vec());
            self.is_decided = false;
        }
        if self.is_decided {
            return Ok(());
        }
        let (seq, kind) = (record.seq, record.kind);
        let fresh = PendingRecord { seq, kind, value: value.to_vec() };
        match &mut self.pending {
            // A compaction may have folded operands into a value that keeps their last number.
            // A value may have been separated or put back inline, and an inline copy is whole.
            Some(pending) if pending.seq == seq => {
                let is_folded = pending.kind == Kind::Merge && kind != Kind::Merge;
                let is_inline = matches!(kind, Kind::Put | Kind::PutExpiring);
                if is_folded || pending.kind == Kind::Indirect && is_inline {
                    *pending = fresh;
                }
                Ok(())
            }
            _ => {
                self.write_pending()?;
                if !self.is_decided {
                    self.pending = Some(fresh);
                }
                Ok(())
            }
        }
    }

    fn write_pending(&mut self) -> Result<()> {
        let Some(PendingRecord { seq, kind, value }) = self.pending.take() else { return Ok(()) };
        let user_key = self.user_key.clone().unwrap_or_default();
        let deleted = self.tombstones.max_covering(&user_key, SeqNo::MAX);
        self.is_decided = kind != Kind::Merge || deleted.is_some_and(|deleted| deleted > seq);
        if kind == Kind::Delete || deleted.is_some_and(|deleted| deleted > seq) {
            return Ok(());
        }
        let internal = key::encode(&user_key, seq, kind);
        let Some((internal, value)) = self.values.pass(&internal, &value) else { return Ok(()) };
        let starts_key = self
            .open
            .as_ref()
            .and_then(TableBuilder::last_user_key)
            .is_none_or(|last| last != user_key);
        let is_full =
            |table: &TableBuilder| table.estimated_bytes() >= self.family.options.target_file_bytes;
        if starts_key && self.open.as_ref().is_some_and(is_full) {
            self.close()?;
        }
        let table = match &mut self.open {
            Some(table) => table,
            None => self.open.insert(self.target.table(self.family)?),
        };
        table.add(&internal, &value)
    }

    fn close(&mut self) -> Result<()> {
        if let Some(table) = self.open.take() {
            self.files.push(table.finish()?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<FileMeta>> {
        self.write_pending()?;
        self.close()?;
        Ok(self.files)
    }
}
