//! Verification of a directory that nobody has open, also one that cannot be opened.
//!
//! Every file is looked at, whatever is wrong with the others, so that one run names all damage.
//! Nothing is opened for writing, nothing is changed.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, FileNo, Result};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, OpenOptions};

use super::RepairProgress;
use super::log::{LogAfterDamage, LogSource};
use super::report::LossEffect;
use super::survey::{ManifestFound, Survey};
use super::tables::check_table;
use crate::file_meta::{
    CURRENT_NAME, FileMeta, IDENTITY_NAME, LOCK_NAME, sst_name, value_file_name,
};
use crate::manifest::Identity;
use crate::manifest::identity::current;
use crate::sst::{read_foreign_table, read_foreign_value_file, verify_value_file};
use crate::value_ref::ValueFileMeta;

/// What a verification of files found.
#[derive(Clone, Debug, Default)]
pub struct DamageReport {
    /// Tables and value files that were read.
    pub tables: u64,
    /// Size of those files together, in bytes.
    pub bytes: u64,
    /// Records of the log that were checked.
    pub log_records: u64,
    /// Everything that is damaged or missing, each with its file.
    pub errors: Vec<Error>,
    /// What is no damage, and an operator may want to know.
    pub notes: Vec<String>,
}

impl DamageReport {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    fn note<T>(&mut self, checked: Result<T>) -> Option<T> {
        match checked {
            Ok(value) => Some(value),
            Err(error) => {
                // A damaged identity also keeps the manifest from being read: one line is enough.
                let is_known =
                    self.errors.iter().any(|known| known.to_string() == error.to_string());
                if !is_known {
                    self.errors.push(error);
                }
                None
            }
        }
    }
}

/// Checks every file of the database in `dir`: `IDENTITY`, `CURRENT`, the manifest, every table
/// that it names (or, without a manifest, every table that is there) and the log. Damage is listed
/// in the report. Errors: `Busy` if the database is open elsewhere; `NotFound` if there is no
/// database; an error of listing the directory.
pub fn verify_files(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    mut progress: impl FnMut(RepairProgress),
) -> Result<DamageReport> {
    if !fs.exists(dir)? {
        return Err(Error::not_found(format!("{} does not exist", dir.display())));
    }
    let _lock = fs.hold(&dir.join(LOCK_NAME))?;
    let survey = Survey::take(&**fs, dir)?;
    let is_named = |name: &str| survey.len_of(name).is_some();
    if !survey.has_data() && !is_named(CURRENT_NAME) && !is_named(IDENTITY_NAME) {
        return Err(Error::not_found(format!("{} has no database", dir.display())));
    }
    let mut report = DamageReport::default();
    check_small_files(&**fs, &survey, &mut report);
    let tables: Vec<(usize, FileMeta)> = match &survey.manifest {
        ManifestFound::Whole(state) => state
            .cfs
            .values()
            .flat_map(|known| known.version.files())
            .map(|(level, file)| (level, file.meta().clone()))
            .collect(),
        ManifestFound::Unusable(_) => Vec::new(),
    };
    let value_files: Vec<ValueFileMeta> = match &survey.manifest {
        ManifestFound::Whole(state) => state
            .cfs
            .values()
            .flat_map(|known| known.version.values().files())
            .map(|(file, _)| file.meta().clone())
            .collect(),
        ManifestFound::Unusable(_) => Vec::new(),
    };
    let table_bytes: u64 = tables.iter().map(|(_, meta)| meta.size_bytes).sum();
    let value_bytes: u64 = value_files.iter().map(|meta| meta.size_bytes).sum();
    let mut told = RepairProgress { bytes_done: 0, bytes_total: table_bytes + value_bytes };
    match &survey.manifest {
        ManifestFound::Whole(_) => {
            for (level, meta) in &tables {
                check_named_table(&**fs, &survey, *level, meta, &mut report);
                told.bytes_done += meta.size_bytes;
                progress(told);
            }
            for meta in &value_files {
                check_named_value_file(&**fs, &survey, meta, &mut report);
                told.bytes_done += meta.size_bytes;
                progress(told);
            }
        }
        ManifestFound::Unusable(_) => check_all_tables(&**fs, &survey, &mut report)?,
    }
    let floor = match &survey.manifest {
        ManifestFound::Whole(state) => state.log_floor,
        ManifestFound::Unusable(_) => survey.facts.log_floor,
    };
    check_log(&**fs, &survey, floor, &mut report)?;
    Ok(report)
}

fn check_small_files(fs: &dyn FileSystem, survey: &Survey, report: &mut DamageReport) {
    let context = IoContext::manifest(IoPurpose::Maintenance);
    let path = survey.dir.join(IDENTITY_NAME);
    report.note(fs.read(&path, context).and_then(|bytes| Identity::decode(&path, &bytes)));
    report.note(current(fs, &survey.dir));
    if let ManifestFound::Unusable(why) = &survey.manifest {
        let is_known = report.errors.iter().any(|error| error.to_string() == *why);
        if !is_known {
            report.errors.push(Error::new(archipelago_base::ErrorKind::Corrupt, why.clone()));
        }
    }
}

fn check_named_table(
    fs: &dyn FileSystem,
    survey: &Survey,
    level: usize,
    meta: &FileMeta,
    report: &mut DamageReport,
) {
    let name = sst_name(FileNo(meta.no));
    let path = survey.dir.join(&name);
    let checked = match survey.len_of(&name) {
        None => Err(Error::corrupt(&path, 0, "the file is missing")),
        Some(len) if len != meta.size_bytes => {
            let what = format!("{len} bytes long instead of {}", meta.size_bytes);
            Err(Error::corrupt(&path, len.min(meta.size_bytes), what))
        }
        Some(_) => {
            let context = IoContext::sst(IoPurpose::Maintenance, level as u8);
            report.tables += 1;
            report.bytes += meta.size_bytes;
            check_table(fs, &path, meta, context)
        }
    };
    report.note(checked);
}

fn check_named_value_file(
    fs: &dyn FileSystem,
    survey: &Survey,
    meta: &ValueFileMeta,
    report: &mut DamageReport,
) {
    let name = value_file_name(meta.file_no());
    let path = survey.dir.join(&name);
    let checked = match survey.len_of(&name) {
        None => Err(Error::corrupt(&path, 0, "the file is missing")),
        Some(_) => {
            report.tables += 1;
            report.bytes += meta.size_bytes;
            let opened = fs.open(&path, value_context(), OpenOptions::default());
            opened.and_then(|file| verify_value_file(file, &path, meta, value_context()))
        }
    };
    report.note(checked);
}

fn value_context() -> IoContext {
    IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance)
}

/// Without a manifest: the tables and value files that exist, and the tables that its readable
/// records name.
fn check_all_tables(fs: &dyn FileSystem, survey: &Survey, report: &mut DamageReport) -> Result<()> {
    for no in survey.numbers(sst_name) {
        let path = survey.dir.join(sst_name(no));
        let context = IoContext::sst(IoPurpose::Maintenance, 0);
        report.tables += 1;
        report.bytes += survey.len_of(&sst_name(no)).unwrap_or(0);
        let opened = fs.open(&path, context, OpenOptions::default());
        report.note(opened.and_then(|file| read_foreign_table(&file, &path, no)));
    }
    for no in survey.numbers(value_file_name) {
        let name = value_file_name(no);
        let path = survey.dir.join(&name);
        report.tables += 1;
        report.bytes += survey.len_of(&name).unwrap_or(0);
        let opened = fs.open(&path, value_context(), OpenOptions::default());
        report.note(opened.and_then(|file| read_foreign_value_file(&file, &path, no)));
    }
    let mut missing: Vec<u64> = survey
        .facts
        .tables
        .keys()
        .copied()
        .filter(|&no| survey.len_of(&sst_name(FileNo(no))).is_none())
        .collect();
    missing.sort_unstable();
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|&no| sst_name(FileNo(no))).collect();
        report.notes.push(format!(
            "the readable part of the manifest names tables that are not there (a lost part may have \
             replaced them): {}",
            names.join(", ")
        ));
    }
    Ok(())
}

fn check_log(
    fs: &dyn FileSystem,
    survey: &Survey,
    floor: FileNo,
    report: &mut DamageReport,
) -> Result<()> {
    let log = LogSource::new(fs, survey, floor, LogAfterDamage::Keep)?;
    let found = log.visit(|_, _| Ok(()))?;
    report.log_records = found.records;
    for loss in &found.losses {
        let path = survey.dir.join(&loss.file);
        match loss.effect {
            LossEffect::TornEnd => report.notes.push(format!(
                "{}: {}, as a crash leaves it; the next open drops it",
                path.display(),
                loss.what
            )),
            LossEffect::Lost | LossEffect::Stale => report.errors.push(Error::new(
                archipelago_base::ErrorKind::Corrupt,
                format!("{}: {}", path.display(), loss.what),
            )),
        }
    }
    Ok(())
}
