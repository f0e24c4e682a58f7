//! Verification of a directory that no process has open, even of one that cannot be opened.
//!
//! Every file is checked, whatever is wrong with the others, so that one run names all damage.
//! Nothing is opened for writing, and nothing is changed.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::{Error, FileNo, Result};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, OpenOptions};

use super::RepairProgress;
use super::log::{LogAfterDamage, LogSource};
use super::report::LossEffect;
use super::survey::{ManifestFound, Survey};
use super::tables::check_table;
use crate::file_meta::{
    CURRENT_NAME, FileMeta, IDENTITY_NAME, LOCK_NAME, invalid_file_name, sst_name, value_file_name,
};
use crate::gc::invalid::verify_invalid_file;
use crate::live_file::LiveValueFile;
use crate::manifest::identity::current;
use crate::manifest::{Identity, State};
use crate::sst::{TableReader, read_foreign_table, read_foreign_value_file};
use crate::value_check::{OpenedFile, ValueCheck};
use crate::value_ref::InvalidFileMeta;
use crate::version::Version;

/// Result of a verification of files.
#[derive(Clone, Debug, Default)]
pub struct DamageReport {
    /// Number of tables that were read, without value files.
    pub tables: u64,
    /// Number of value files that were read.
    pub value_files: u64,
    /// Number of invalid files that were read. They name garbage in value files, so damage there
    /// costs no data.
    pub invalid_files: u64,
    /// Size of those tables, value files and invalid files together, in bytes.
    pub bytes: u64,
    /// Records of the log that were checked.
    pub log_records: u64,
    /// Everything that is damaged or missing, each with its file.
    pub errors: Vec<Error>,
    /// Findings that are no damage, for an operator.
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
                // A damaged identity also prevents reading the manifest: one line is enough.
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

/// Checks every file of the database in `dir`: `IDENTITY`, `CURRENT`, the manifest, the log, and
/// every table, value file and invalid file that the manifest names. Without a manifest it checks
/// every table and value file in the directory. With a manifest it also resolves every reference to
/// a separated value. The report lists the damage.
///
/// Errors: `Busy` if the database is open elsewhere; `NotFound` if there is no database; an error
/// of listing the directory.
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
    match &survey.manifest {
        ManifestFound::Whole(state) => {
            check_named_files(&**fs, &survey, state, &mut report, &mut progress);
        }
        ManifestFound::Unusable(_) => {
            check_all_tables(&**fs, &survey, &mut report)?;
            check_all_value_files(&**fs, &survey, &mut report);
        }
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

/// Checks the tables, value files and invalid files that the manifest names, and resolves all
/// references.
fn check_named_files(
    fs: &dyn FileSystem,
    survey: &Survey,
    state: &State,
    report: &mut DamageReport,
    progress: &mut dyn FnMut(RepairProgress),
) {
    let versions = || state.cfs.values().map(|known| &known.version);
    let table_bytes =
        |version: &Arc<Version>| -> u64 { version.files().map(|(_, file)| file.size_bytes).sum() };
    let invalid_bytes = |version: &Arc<Version>| -> u64 {
        version.values().invalid_files().map(|file| file.size_bytes).sum()
    };
    let bytes_of = |version: &Arc<Version>| {
        table_bytes(version) + version.values().file_bytes() + invalid_bytes(version)
    };
    let bytes_total = versions().map(bytes_of).sum();
    let mut told = RepairProgress { bytes_done: 0, bytes_total };
    let open = |file: &LiveValueFile| open_named(fs, survey, file).map(Some);
    for version in versions() {
        let mut values = ValueCheck::new(version, &open, &ByteBudget::unlimited());
        for (file, refs) in version.values().files() {
            report.value_files += 1;
            report.bytes += file.size_bytes;
            report.note(values.file(file, refs));
            told.bytes_done += file.size_bytes;
            progress(told);
        }
        for (level, file) in version.files() {
            let context = IoContext::sst(IoPurpose::Maintenance, level as u8);
            if let Some(table) = check_named_table(fs, survey, level, file, report) {
                report.errors.extend(values.table(&table, file, context));
            }
            told.bytes_done += file.size_bytes;
            progress(told);
        }
        for file in version.values().invalid_files() {
            report.invalid_files += 1;
            report.bytes += file.size_bytes;
            report.note(check_invalid_file(fs, survey, file.meta()));
            told.bytes_done += file.size_bytes;
            progress(told);
        }
    }
}

/// Checks an invalid file that the manifest names.
fn check_invalid_file(fs: &dyn FileSystem, survey: &Survey, meta: &InvalidFileMeta) -> Result<()> {
    let name = invalid_file_name(meta.file_no());
    let path = survey.dir.join(&name);
    if survey.len_of(&name).is_none() {
        return Err(Error::corrupt(&path, 0, "the file is missing"));
    }
    let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
    let file = fs.open(&path, context, OpenOptions::default())?;
    verify_invalid_file(file, &path, meta)
}

/// Opens a value file that the manifest names.
fn open_named(fs: &dyn FileSystem, survey: &Survey, file: &LiveValueFile) -> Result<OpenedFile> {
    let name = value_file_name(file.file_no());
    let path = survey.dir.join(&name);
    if survey.len_of(&name).is_none() {
        return Err(Error::corrupt(&path, 0, "the file is missing"));
    }
    let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
    let file = fs.open(&path, context, OpenOptions::default())?;
    Ok(OpenedFile { path, file })
}

/// Checks a table that the manifest names. Returns it if it is undamaged.
fn check_named_table(
    fs: &dyn FileSystem,
    survey: &Survey,
    level: usize,
    meta: &FileMeta,
    report: &mut DamageReport,
) -> Option<Arc<TableReader>> {
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
    report.note(checked)
}

/// Checks all value files of the directory, if the manifest is unusable.
fn check_all_value_files(fs: &dyn FileSystem, survey: &Survey, report: &mut DamageReport) {
    for no in survey.numbers(value_file_name) {
        let name = value_file_name(no);
        let path = survey.dir.join(&name);
        let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
        report.value_files += 1;
        report.bytes += survey.len_of(&name).unwrap_or(0);
        let opened = fs.open(&path, context, OpenOptions::default());
        report.note(opened.and_then(|file| read_foreign_value_file(&file, &path, no)));
    }
}

/// Checks all tables of the directory, and that the tables of readable records of the manifest
/// exist. Used if the manifest is unusable.
fn check_all_tables(fs: &dyn FileSystem, survey: &Survey, report: &mut DamageReport) -> Result<()> {
    for no in survey.numbers(sst_name) {
        let path = survey.dir.join(sst_name(no));
        let context = IoContext::sst(IoPurpose::Maintenance, 0);
        report.tables += 1;
        report.bytes += survey.len_of(&sst_name(no)).unwrap_or(0);
        let opened = fs.open(&path, context, OpenOptions::default());
        report.note(opened.and_then(|file| read_foreign_table(&file, &path, no)));
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
