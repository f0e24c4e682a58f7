//! Repair: saves the undamaged parts of a damaged database into a new one.
//!
//! [`repair`] reads a directory that may not open any more, and writes a database into another
//! directory. [`verify_files`] names everything that is damaged. Both open nothing for writing and
//! leave the original as it is.
//!
//! If the manifest is whole, the repaired database keeps the levels, the bucket maps and the
//! settings. Whole tables and whole value files are linked (`values.rs` handles the others). The
//! whole blocks of a damaged table are written anew at the same level, and the ranges between them
//! are reported.
//!
//! If the manifest is not whole, the column families are rebuilt from the properties of tables and
//! from the log (`rebuild.rs`). All records are merged by their sequence numbers. So the newest
//! record wins, and a delete stays a delete. The original manifest knows more than that: which
//! tables were replaced, and what was deleted since. So a rebuilt family is reported as stale as a
//! whole.
//!
//! Invariants:
//! 1. No file of the original is created, changed or removed.
//! 2. Every key that no loss of the report covers ([`RepairReport::may_affect`]) reads as it did
//!    before the damage.
//! 3. The target becomes a database (`CURRENT`) only once everything in it is durable. A failed
//!    repair removes its files.
//!
//! Thread-safety: one repair runs on its caller's thread and holds the lock file of the original
//! meanwhile.
//! Failure: damage goes into the report. Only a target that cannot be written, a source that is
//! open elsewhere, and files of another format version are errors.
//! Cost: two reads of every table; without a manifest everything is also written once.

mod log;
mod rebuild;
mod report;
mod survey;
mod tables;
mod values;
mod verify;
mod write;

use std::path::Path;
use std::sync::Arc;

use archipelago_base::random::entropy_seed;
use archipelago_base::{Error, FileNo, Result};
use archipelago_env::FileSystem;

pub use self::log::LogAfterDamage;
use self::log::LogSource;
pub use self::report::{Loss, LossEffect, LossScope, RepairReport, RepairedFamily};
use self::survey::{ManifestFound, Survey};
use self::tables::repair_by_manifest;
pub use self::verify::{DamageReport, verify_files};
use self::write::Target;
use crate::file_meta::LOCK_NAME;

/// Whether whole tables are linked into the repaired database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LinkTables {
    /// Linked if the file system can do so, else copied. Fast, and needs no room. The default.
    #[default]
    Yes,
    /// Copied. For a device that is failing, and for a target that must not share data with it.
    No,
}

/// Options of a repair.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepairOptions {
    /// Write nothing, only report. Default false.
    pub dry_run: bool,
    /// Whether whole tables are linked. Default yes.
    pub link_tables: LinkTables,
    /// Treatment of writes after a hole in the log. Default: they are kept.
    pub log_after_damage: LogAfterDamage,
    /// Seed of the unique ids; `None` draws a random one.
    pub seed: Option<u64>,
}

/// Progress of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairProgress {
    /// Bytes of the original that were read so far.
    pub bytes_done: u64,
    /// Bytes of the original in all.
    pub bytes_total: u64,
}

/// Counts the bytes that were read, and reports them.
struct Meter<'a> {
    progress: RepairProgress,
    tell: &'a mut dyn FnMut(RepairProgress),
}

impl Meter<'_> {
    fn add(&mut self, bytes: u64) {
        self.progress.bytes_done += bytes;
        (self.tell)(self.progress);
    }
}

/// Saves the undamaged parts of the database in `source` into a new one in `target`, which must not
/// exist or must be empty. On return the new database survives power loss. With `dry_run` nothing
/// is written, and the report says what would be saved and lost. `progress` is called as the repair
/// goes on.
///
/// Errors: `Busy` if the database is open elsewhere; `NotFound` if `source` holds no file of a
/// database; `InvalidArgument` for a target that is not empty or lies in the source; `Unsupported`
/// for files of another format version; I/O errors of the target. After an error the target holds
/// nothing.
///
/// ```
/// use archipelago_engine::db::Db;
/// use archipelago_engine::options::DbOptions;
/// use archipelago_engine::repair::{RepairOptions, repair};
/// use archipelago_env::local::LocalFs;
///
/// let base = tempfile::tempdir()?;
/// let (source, target) = (base.path().join("db"), base.path().join("db-repaired"));
/// let db = Db::open(&source, DbOptions::default())?;
/// db.put(b"reef", b"coral")?;
/// db.close()?;
/// let report = repair(&LocalFs::shared(), &source, &target, RepairOptions::default(), |_| {})?;
/// assert!(report.is_lossless(), "{report}");
/// assert_eq!(Db::open(&target, DbOptions::default())?.get(b"reef")?.as_deref(), Some(&b"coral"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn repair(
    fs: &Arc<dyn FileSystem>,
    source: &Path,
    target: &Path,
    options: RepairOptions,
    mut progress: impl FnMut(RepairProgress),
) -> Result<RepairReport> {
    let _lock = fs.hold(&source.join(LOCK_NAME))?;
    let survey = Survey::take(&**fs, source)?;
    if !survey.has_data() {
        return Err(Error::not_found(format!("{} has no file of a database", source.display())));
    }
    check_target(&**fs, source, target)?;
    let bytes_total = survey.entries.iter().map(|entry| entry.len).sum();
    let progress_now = RepairProgress { bytes_done: 0, bytes_total };
    let meter = Meter { progress: progress_now, tell: &mut progress };
    let job = RepairJob { fs, survey: &survey, options };
    if options.dry_run {
        return job.run(None, meter);
    }
    let existed = fs.exists(target)?;
    fs.create_dir_all(target)?;
    let seed = options.seed.unwrap_or_else(entropy_seed);
    let made = Target::new(fs, target, options.link_tables, survey.next_file_no(), seed);
    let report = job.run(Some(made), meter);
    if report.is_err() {
        remove_half_made(&**fs, target, existed);
    }
    report
}

/// Report and progress of a repair that runs.
struct RepairRun<'a> {
    report: RepairReport,
    meter: Meter<'a>,
}

/// Inputs and options of one repair.
struct RepairJob<'a> {
    fs: &'a Arc<dyn FileSystem>,
    survey: &'a Survey,
    options: RepairOptions,
}

impl RepairJob<'_> {
    fn log(&self, floor: FileNo) -> Result<LogSource<'_>> {
        LogSource::new(&**self.fs, self.survey, floor, self.options.log_after_damage)
    }

    /// Repairs with the manifest, or without it if it is unusable. `target` is `None` for a dry
    /// run.
    fn run(&self, target: Option<Target>, meter: Meter<'_>) -> Result<RepairReport> {
        let mut run = RepairRun { report: RepairReport::default(), meter };
        match &self.survey.manifest {
            ManifestFound::Whole(state) => {
                let log = self.log(state.log_floor)?;
                // A first pass, before anything is written, checks whether the log fits the
                // manifest.
                let found = log.visit(|_, _| Ok(()))?;
                match found.operations.keys().find(|&&cf| cf >= state.next_cf_id) {
                    None => {
                        run.report.losses = found.losses;
                        repair_by_manifest(self, state, &log, target, &mut run)?;
                    }
                    Some(cf) => {
                        let why = format!("the log writes to family {cf}, which it does not know");
                        rebuild::rebuild(self, why, target, &mut run)?;
                    }
                }
            }
            ManifestFound::Unusable(why) => {
                rebuild::rebuild(self, why.clone(), target, &mut run)?;
            }
        }
        run.report.losses.sort_by_key(|loss| loss.effect);
        Ok(run.report)
    }
}

fn check_target(fs: &dyn FileSystem, source: &Path, target: &Path) -> Result<()> {
    if target.starts_with(source) {
        return Err(Error::invalid(format!(
            "the target {} lies in the damaged database: choose a directory beside it",
            target.display()
        )));
    }
    if fs.exists(target)? && !fs.list(target)?.is_empty() {
        return Err(Error::invalid(format!(
            "the target {} exists and is not empty: choose another one, or remove it if an earlier \
             repair has left it",
            target.display()
        )));
    }
    Ok(())
}

fn remove_half_made(fs: &dyn FileSystem, target: &Path, existed: bool) {
    let removed = match existed {
        false => fs.remove_dir_all(target),
        true => fs.list(target).and_then(|entries| {
            entries.iter().try_for_each(|entry| fs.remove(&target.join(&entry.name)))
        }),
    };
    if let Err(error) = removed {
        tracing::warn!(%error, "the half-made repaired database could not be removed");
    }
}
