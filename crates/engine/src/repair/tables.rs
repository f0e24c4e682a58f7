//! Repair with a manifest that is whole: each table keeps its level.
//!
//! Invariants: a rewritten table has records of one table of the original only. So it lies within
//! the bounds of that table, and levels stay free of overlaps. Sequence numbers stay as they are.
//! The log is written anew, and the next open recovers it as usual.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{CfId, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::{FileSystem, IoContext, IoPurpose, OpenOptions};

use super::log::LogSource;
use super::report::{Loss, LossEffect, LossScope, RepairReport};
use super::values::{ValueFilter, ValueStore};
use super::write::{TableFamily, Target};
use super::{RepairJob, RepairRun};
use crate::file_meta::{FileMeta, sst_name, value_file_name};
use crate::iter::InternalIterator;
use crate::key::KeyRange;
use crate::manifest::{Change, State, VersionEdit};
use crate::sst::{
    BlockCache, TableBuilder, TableReadOptions, TableReader, TableSalvage, salvage_table,
};

/// Readahead in bytes of a walk over a table.
const READAHEAD_BYTES: u64 = 256 << 10;

/// Reads a whole table and checks all of it. The error names the damage. Returns the open table.
pub(super) fn check_table(
    fs: &dyn FileSystem,
    path: &Path,
    meta: &FileMeta,
    context: IoContext,
) -> Result<Arc<TableReader>> {
    let file = fs.open(path, context, OpenOptions::default())?;
    let (cache, budget) = reader_memory();
    let table = TableReader::open(file, path, Some(meta), &cache, &budget)?;
    table.verify(context)?;
    Ok(table)
}

/// The range of keys about which a table says something.
pub(super) fn table_range(meta: &FileMeta) -> KeyRange {
    let mut end = meta.largest.clone();
    if !meta.largest_exclusive {
        end.push(0);
    }
    KeyRange { start: meta.smallest.clone(), end: Some(end) }
}

/// Result of the repair of a damaged table.
pub(super) enum TableOutcome {
    /// Nothing was saved.
    Lost,
    /// A part was saved. `meta` is the new table, unless nothing is written.
    Salvaged { records: u64, meta: Option<Box<FileMeta>> },
}

/// Result of saving a table.
pub(super) struct SavedTable {
    pub(super) found: TableSalvage,
    pub(super) outcome: TableOutcome,
    /// Losses of values in value files.
    pub(super) value_losses: Vec<Loss>,
    /// Records that were dropped because their values are lost.
    pub(super) values_lost: u64,
}

/// A request to write a table anew.
pub(super) struct SalvageRequest<'a> {
    pub(super) path: &'a Path,
    /// Metadata of the table from a manifest, if one has it.
    pub(super) meta: Option<&'a FileMeta>,
    /// Family of the table's values. `None` if only the table's properties matter: then no value is
    /// searched.
    pub(super) cf: Option<CfId>,
}

/// Saves the undamaged part of a table: the records of its whole blocks whose values survive.
pub(super) fn salvage(
    fs: &dyn FileSystem,
    request: &SalvageRequest<'_>,
    values: &mut ValueStore<'_>,
    mut target: Option<(&mut Target, TableFamily<'_>)>,
) -> Result<SavedTable> {
    let SalvageRequest { path, meta, cf } = *request;
    let context = IoContext::sst(IoPurpose::Maintenance, 0);
    let file = fs.open(path, context, OpenOptions::default())?;
    let mut table: Option<TableBuilder> = None;
    let mut filter = cf.map(|cf| ValueFilter::new(values, cf));
    let found = salvage_table(&*file, path, meta, &mut |key, value| {
        let Some(filter) = &mut filter else { return Ok(()) };
        let Some((key, value)) = filter.pass(key, value) else { return Ok(()) };
        let Some((target, family)) = &mut target else { return Ok(()) };
        let builder = match &mut table {
            Some(builder) => builder,
            None => table.insert(target.table(*family)?),
        };
        builder.add(&key, &value)
    })?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let value_losses = filter.as_ref().map(|filter| filter.losses(&name)).unwrap_or_default();
    let values_lost = filter.as_ref().map_or(0, ValueFilter::lost_records);
    let records = filter.as_ref().map_or(found.records, |filter| filter.kept);
    let tombstones = found.tombstones.as_deref().unwrap_or_default();
    if records == 0 && tombstones.is_empty() {
        return Ok(SavedTable { found, outcome: TableOutcome::Lost, value_losses, values_lost });
    }
    let mut saved = None;
    if let Some((target, family)) = target {
        let mut builder = match table {
            Some(builder) => builder,
            None => target.table(family)?,
        };
        tombstones.iter().try_for_each(|tombstone| builder.add_tombstone(tombstone))?;
        saved = Some(Box::new(builder.finish()?));
    }
    let outcome = TableOutcome::Salvaged { records, meta: saved };
    Ok(SavedTable { found, outcome, value_losses, values_lost })
}

/// Losses of an undamaged table in value files.
pub(super) struct LostOfTable {
    /// Whether every record keeps its value and its reference.
    pub(super) is_unchanged: bool,
    pub(super) losses: Vec<Loss>,
    pub(super) records: u64,
}

/// Searches the value of every reference of an undamaged table.
pub(super) fn lost_values(
    table: &Arc<TableReader>,
    cf: CfId,
    values: &mut ValueStore<'_>,
) -> Result<LostOfTable> {
    let mut filter = ValueFilter::new(values, cf);
    if !table.properties().refs.is_empty() {
        let context = IoContext::sst(IoPurpose::Maintenance, 0);
        let mut records = table.iter(TableReadOptions::job(context, READAHEAD_BYTES));
        records.seek_to_first();
        while records.valid() {
            filter.pass(records.key(), records.value());
            records.next();
        }
        records.status()?;
    }
    let name = table.path().file_name().unwrap_or_default().to_string_lossy();
    Ok(LostOfTable {
        is_unchanged: filter.is_unchanged,
        losses: filter.losses(&name),
        records: filter.lost_records(),
    })
}

/// A damaged table.
pub(super) struct TableDamage<'a> {
    pub(super) cf: CfId,
    pub(super) file: &'a str,
    /// Description of the damage.
    pub(super) what: &'a str,
    /// All keys about which the table may say something.
    pub(super) whole: KeyRange,
}

impl TableDamage<'_> {
    /// The losses of the table, of which `found` was saved.
    pub(super) fn losses(&self, found: &TableSalvage) -> Vec<Loss> {
        let loss = |what: String, effect: LossEffect, range: KeyRange| {
            let scope = LossScope { cf: Some(self.cf), range };
            Loss { file: self.file.to_owned(), what, effect, scope }
        };
        let lost = found.lost.iter();
        let mut losses: Vec<Loss> =
            lost.map(|range| loss(self.what.to_owned(), LossEffect::Lost, range.clone())).collect();
        if found.tombstones.is_none() {
            let what = format!("its range deletes are damaged ({})", self.what);
            losses.push(loss(what, LossEffect::Stale, self.whole.clone()));
        }
        losses
    }
}

/// Repairs the tables one by one, then the log, then writes the manifest.
pub(super) fn repair_by_manifest(
    job: &RepairJob<'_>,
    state: &State,
    log: &LogSource<'_>,
    mut target: Option<Target>,
    run: &mut RepairRun<'_>,
) -> Result<()> {
    let RepairRun { report, meter } = run;
    let mut values = ValueStore::of_manifest(job, state, report, meter)?;
    let mut edit = VersionEdit::new();
    for change in state.snapshot().changes {
        let Change::AddFile { cf, level, meta } = change else {
            keep_change(change, &values, target.as_ref(), &mut edit)?;
            continue;
        };
        let Some(known) = state.cfs.get(&cf) else { continue };
        report.family(cf, &known.name);
        let family = TableFamily { cf, name: &known.name, options: known.version.options() };
        let damaged = NamedTable { meta: &meta, level, family };
        let kept = repair_table(job, damaged, &mut values, target.as_mut(), report)?;
        meter.add(meta.size_bytes);
        if let Some(kept) = kept {
            edit.add_file(cf, level, kept);
        }
    }
    for (&cf, known) in &state.cfs {
        report.family(cf, &known.name);
    }
    note_strays(job, state, report);
    let found = match target.as_mut() {
        None => log.visit(|_, _| Ok(()))?,
        Some(target) => {
            let mut writer = None;
            let found = log.visit(|seq, payload| {
                let writer = match &mut writer {
                    Some(writer) => writer,
                    None => writer.insert(target.log()?),
                };
                writer.append(target, seq, payload)
            })?;
            writer.map_or(Ok(()), super::write::TargetLog::finish)?;
            found
        }
    };
    meter.add(found.bytes);
    report.log_records = found.records;
    report.last_seq = state.last_seq.max(found.last_seq);
    match target {
        Some(target) => target.finish(&edit),
        None => Ok(()),
    }
}

/// Takes over a change of the original's manifest that adds no table. Damaged value files and their
/// inheritance are left out, because no reference to them is kept. Invalid files are left out as
/// well: garbage collection looks keys up without them.
fn keep_change(
    change: Change,
    values: &ValueStore<'_>,
    target: Option<&Target>,
    edit: &mut VersionEdit,
) -> Result<()> {
    let value_file = match &change {
        Change::AddInvalidFile { .. } => return Ok(()),
        Change::AddValueFile { meta, .. } => Some(meta.no),
        Change::Inherit { heir, .. } => Some(heir.0),
        _ => None,
    };
    let whole = value_file.map(|no| values.whole(no));
    if matches!(whole, Some(None)) {
        return Ok(());
    }
    if let (Change::AddValueFile { meta, .. }, Some(Some((_, path))), Some(target)) =
        (&change, whole, target)
    {
        target.take_over_values(&path, meta.file_no())?;
    }
    edit.push(change);
    Ok(())
}

/// A table that the manifest names.
#[derive(Clone, Copy)]
struct NamedTable<'a> {
    meta: &'a FileMeta,
    level: usize,
    family: TableFamily<'a>,
}

/// The table that replaces one table of the original; `None` if nothing of it is left.
fn repair_table(
    job: &RepairJob<'_>,
    NamedTable { meta, level, family }: NamedTable<'_>,
    values: &mut ValueStore<'_>,
    mut target: Option<&mut Target>,
    report: &mut RepairReport,
) -> Result<Option<FileMeta>> {
    let name = sst_name(FileNo(meta.no));
    let path = job.survey.dir.join(&name);
    let context = IoContext::sst(IoPurpose::Maintenance, level as u8);
    let checked = check_table(&**job.fs, &path, meta, context)
        .and_then(|table| lost_values(&table, family.cf, values));
    let error = match checked {
        Ok(lost) if lost.is_unchanged => {
            if let Some(target) = target {
                target.take_over(&path, FileNo(meta.no))?;
            }
            report.family(family.cf, family.name).tables_whole += 1;
            return Ok(Some(meta.clone()));
        }
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => Some(error),
    };
    let whole = table_range(meta);
    if job.survey.len_of(&name).is_none() {
        let scope = LossScope { cf: Some(family.cf), range: whole };
        let what = format!("the table of level {level} is missing, with {} records", meta.entries);
        report.losses.push(Loss { file: name, what, effect: LossEffect::Lost, scope });
        report.family(family.cf, family.name).tables_lost += 1;
        return Ok(None);
    }
    let into = target.as_mut().map(|target| (&mut **target, family));
    let request = SalvageRequest { path: &path, meta: Some(meta), cf: Some(family.cf) };
    let saved = salvage(&**job.fs, &request, values, into)?;
    if let Some(error) = error {
        let what = format!("{error} (level {level})");
        let damage = TableDamage { cf: family.cf, file: &name, what: &what, whole };
        report.losses.extend(damage.losses(&saved.found));
    }
    report.losses.extend(saved.value_losses);
    let family = report.family(family.cf, family.name);
    family.values_lost += saved.values_lost;
    match saved.outcome {
        TableOutcome::Lost => {
            family.tables_lost += 1;
            Ok(None)
        }
        TableOutcome::Salvaged { records, meta } => {
            family.tables_salvaged += 1;
            family.records_salvaged += records;
            Ok(meta.map(|meta| *meta))
        }
    }
}

fn note_strays(job: &RepairJob<'_>, state: &State, report: &mut RepairReport) {
    let live: std::collections::HashSet<u64> = state
        .cfs
        .values()
        .flat_map(|known| known.version.files().map(|(_, file)| file.no))
        .collect();
    let strays = job.survey.numbers(sst_name).iter().filter(|no| !live.contains(&no.0)).count();
    if strays > 0 {
        report.notes.push(format!(
            "{strays} tables that the manifest does not name were left out: outputs of interrupted \
             work, or tables that were replaced"
        ));
    }
    let named: std::collections::HashSet<u64> = state
        .cfs
        .values()
        .flat_map(|known| known.version.values().files().map(|(file, _)| file.no))
        .collect();
    let files = job.survey.numbers(value_file_name);
    let strays = files.iter().filter(|no| !named.contains(&no.0)).count();
    if strays > 0 {
        report.notes.push(format!(
            "{strays} value files that the manifest does not name were left out: outputs of \
             interrupted work, or files that were replaced"
        ));
    }
}

/// The largest sequence number of all records that were saved.
pub(super) fn last_seq_of<'a>(metas: impl Iterator<Item = &'a FileMeta>) -> SeqNo {
    metas
        .map(|meta| SeqNo(meta.largest_seq.max(meta.global_seq.unwrap_or(0))))
        .max()
        .unwrap_or_default()
}

/// A shared budget and cache for readers that keep nothing.
pub(super) fn reader_memory() -> (Arc<BlockCache>, Arc<ByteBudget>) {
    let budget = ByteBudget::unlimited();
    (BlockCache::new(0, &budget), budget)
}
