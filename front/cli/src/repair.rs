//! `archipelago db verify` and `archipelago db repair`: what is damaged, and saving the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago::repair::{
    DamageReport, LinkTables, LogAfterDamage, RepairOptions, RepairProgress, repair, verify_files,
};
use archipelago::{Components, Db, DbOptions, Error, ErrorKind, Result, Storage};
use clap::Args;
use indicatif::ProgressBar;

use crate::db::{byte_bar, print};

/// How `archipelago db repair` works.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// Directory of the new database; must not exist or be empty. Default: the damaged directory's
    /// name with "-repaired" behind it
    #[arg(long, value_name = "DIR")]
    target: Option<PathBuf>,
    /// Write nothing: print what would be saved and what would be lost
    #[arg(long)]
    dry_run: bool,
    /// Copy whole tables instead of linking them: for a device that is failing
    #[arg(long)]
    copy: bool,
    /// Drop the writes behind a hole in the log, which gives a state of the past, instead of saving
    /// them
    #[arg(long)]
    drop_log_after_damage: bool,
}

pub(crate) fn show(bar: &ProgressBar, progress: RepairProgress) {
    bar.set_length(progress.bytes_total);
    bar.set_position(progress.bytes_done);
}

/// Checks every file. A database that another process has open is checked as of one moment.
pub(crate) fn run_verify(storage: &Storage) -> Result<()> {
    let bar = byte_bar();
    let checked = verify_files(&storage.fs, &storage.dir, |progress| show(&bar, progress));
    let report = match checked {
        Err(error) if error.kind() == ErrorKind::Busy => {
            eprintln!("{error}; it is checked as it was a moment ago");
            verify_beside_a_writer(storage, &bar)?
        }
        checked => checked?,
    };
    bar.finish_and_clear();
    for error in &report.errors {
        eprintln!("{error}");
    }
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    let result = match report.errors.len() {
        0 => "all whole".to_owned(),
        damaged => format!("{damaged} damaged"),
    };
    let DamageReport { tables, bytes, log_records, .. } = &report;
    print(&format!(
        "{tables} tables, {bytes} bytes, {log_records} log records checked: {result}\n"
    ))?;
    if report.is_clean() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        "the files named above are damaged. Restore the database from a checkpoint or a replica, or \
         save what is whole with `archipelago db repair` (with --dry-run it says what that is)",
    ))
}

fn verify_beside_a_writer(storage: &Storage, bar: &ProgressBar) -> Result<DamageReport> {
    let options = DbOptions { create_if_missing: false, read_only: true, ..DbOptions::default() };
    let components = Components { fs: Arc::clone(&storage.fs), ..Components::default() };
    let db = Db::open_with(&storage.dir, options, components)?;
    let report = db.verify(|bytes_done, bytes_total| {
        show(bar, RepairProgress { bytes_done, bytes_total });
    })?;
    db.close()?;
    Ok(DamageReport {
        tables: report.files,
        bytes: report.bytes,
        log_records: report.log_records,
        errors: report.errors,
        notes: Vec::new(),
    })
}

/// The damaged directory's name with "-repaired" behind it.
fn default_target(dir: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(dir).map_err(|source| Error::io("find", dir, source))?;
    let Some(name) = whole.file_name() else {
        return Err(Error::invalid("say with --target where the repaired database goes"));
    };
    let mut name = name.to_owned();
    name.push("-repaired");
    Ok(whole.with_file_name(name))
}

/// Repairs the database of `dir`, which lies at `storage`.
pub(crate) fn run_repair(dir: &Path, storage: &Storage, args: &RepairArgs) -> Result<()> {
    let target = match &args.target {
        Some(target) => target.clone(),
        None => default_target(dir)?,
    };
    let options = RepairOptions {
        dry_run: args.dry_run,
        link_tables: if args.copy { LinkTables::No } else { LinkTables::Yes },
        log_after_damage: match args.drop_log_after_damage {
            true => LogAfterDamage::Drop,
            false => LogAfterDamage::Keep,
        },
        ..RepairOptions::default()
    };
    let bar = byte_bar();
    let report = repair(&storage.fs, &storage.dir, &target, options, |progress| {
        show(&bar, progress);
    })?;
    bar.finish_and_clear();
    print(&report.to_string())?;
    if args.dry_run {
        return print("Nothing was written (--dry-run).\n");
    }
    let (dir, target) = (dir.display(), target.display());
    let mut next = format!(
        "The repaired database is in {target}; {dir} is as it was.\n\
         Look at it: archipelago db --dir {target} stats\n"
    );
    match storage.tiers {
        None => next.push_str(&format!("Use it: mv {dir} {dir}-damaged && mv {target} {dir}\n")),
        Some(_) => next.push_str("It lies in one directory, not on tiers.\n"),
    }
    print(&next)
}
