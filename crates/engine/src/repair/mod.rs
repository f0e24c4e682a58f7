//! Repair: saves what is whole of a damaged database into a new one.
//!
//! [`repair`] reads a directory that may not open any more and writes a database beside it.
//! [`verify_files`] names everything that is damaged. Both open nothing for writing and leave the
//! original as it is.
//!
//! If the manifest is whole, the repaired database keeps the levels, the bucket maps and the
//! settings. Whole tables and whole value files are linked (`values.rs` says what becomes of the
//! others); of a damaged table the whole blocks are written anew at the
//! same level, and the ranges between them are reported. If the manifest is not whole, the column
//! families are put together from what tables and log say of themselves (`rebuild.rs`): all records
//! are merged by their sequence numbers, so that the newest wins and a delete stays one. The
//! original manifest knows more than that (which tables were replaced, what was deleted since), so
//! a rebuilt family is reported as stale as a whole.
//!
//! Invariants:
//! 1. No file of the original is created, changed or removed.
//! 2. Every key that no loss of the report covers ([`RepairReport::may_affect`]) reads as it did
//!    before the damage.
//! 3. The target becomes a database (`CURRENT`) only once everything in it is durable. A repair
//!    that fails removes what it has written.
//!
//! Thread-safety: one repair runs on its caller's thread; the lock file of the original is held
//! meanwhile. Failure: damage goes into the report; only a target that cannot be written, a source
//! that is open elsewhere, and files of another format version are errors. Cost: two reads of every
//! table; without a manifest everything is written once as well.

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
    /// Linked where the file system can, else copied. Fast, and needs no room. The default.
    #[default]
    Yes,
    /// Copied. For a device that is failing, and for a target that must not share it.
    No,
}

/// How a repair works.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepairOptions {
    /// Write nothing, only report. Default false.
    pub dry_run: bool,
    /// Whether whole tables are linked. Default yes.
    pub link_tables: LinkTables,
    /// What happens to writes behind a hole in the log. Default: they are kept.
    pub log_after_damage: LogAfterDamage,
    /// Seed of unique ids; `None` for entropy.
    pub seed: Option<u64>,
}

/// How far a repair has got: bytes of the original that were read, and of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairProgress {
    /// Bytes that were read.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes_total: u64,
}

/// Counts what was read, and says so.
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

/// Saves what is whole of the database in `source` into a new one in `target`, which must not
/// exist or be empty. On return the new database survives power loss. With `dry_run` nothing is
/// written, and the report says what would be saved and lost.
///
/// Errors: `Busy` if the database is open elsewhere; `NotFound` if `source` holds no file of a
/// database; `InvalidArgument` for a target that is not empty or lies in the source;
/// `Unsupported` for files of another format version; I/O errors of the target. After an error the
/// target has nothing.
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

/// What a repair has found and read so far.
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

    /// Repairs by the manifest, or without one. `target` is `None` for a dry run.
    fn run(&self, target: Option<Target>, meter: Meter<'_>) -> Result<RepairReport> {
        let mut run = RepairRun { report: RepairReport::default(), meter };
        match &self.survey.manifest {
            ManifestFound::Whole(state) => {
                let log = self.log(state.log_floor)?;
                // One look before anything is written: does the log fit the manifest?
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
