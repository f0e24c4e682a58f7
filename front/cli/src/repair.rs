//! `archipelago db verify` and `archipelago db repair`: find damage, and save undamaged data.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago::repair::{
    DamageReport, LinkTables, LogAfterDamage, RepairOptions, RepairProgress, repair, verify_files,
};
use archipelago::{Components, Db, DbOptions, Error, ErrorKind, Result, Storage};
use clap::Args;
use indicatif::ProgressBar;

use crate::console::{byte_bar, print, show_progress, warn_line};

/// Flags of `archipelago db repair`.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// Directory of the new database. It must not exist, or it must be empty. Default: the name of
    /// the damaged directory followed by "-repaired"
    #[arg(long, value_name = "DIR")]
    target: Option<PathBuf>,
    /// Write nothing. Print what would be saved and what would be lost
    #[arg(long)]
    dry_run: bool,
    /// Copy undamaged tables instead of linking them. Use it if the device is failing
    #[arg(long)]
    copy: bool,
    /// Drop the writes that follow a damaged part of the log. The result is a state that the
    /// database once had. By default these writes are saved
    #[arg(long)]
    drop_log_after_damage: bool,
}

/// Checks every file. If another process has the database open, it checks the state of one moment.
pub(crate) fn run_verify(storage: &Storage) -> Result<()> {
    let bar = byte_bar();
    let checked = verify_files(&storage.fs, &storage.dir, |progress| show_progress(&bar, progress));
    let report = match checked {
        Err(error) if error.kind() == ErrorKind::Busy => {
            warn_line!("{error}; this command checks the state that the database has now");
            verify_open_database(storage, &bar)?
        }
        checked => checked?,
    };
    bar.finish_and_clear();
    for error in &report.errors {
        warn_line!("{error}");
    }
    for note in &report.notes {
        warn_line!("note: {note}");
    }
    let result = match report.errors.len() {
        0 => "all undamaged".to_owned(),
        damaged => format!("{damaged} damaged"),
    };
    let DamageReport { tables, value_files, invalid_files, bytes, log_records, .. } = &report;
    let values = match value_files {
        0 => String::new(),
        files => format!("{files} value files, "),
    };
    let values = match invalid_files {
        0 => values,
        files => format!("{values}{files} invalid files, "),
    };
    print(&format!(
        "{tables} tables, {values}{bytes} bytes, {log_records} log records checked: {result}\n"
    ))?;
    if report.is_clean() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        "the files named above are damaged: restore the database from a checkpoint or a replica, or \
         save the undamaged data with `archipelago db repair` (first with --dry-run, which prints \
         what it would save)",
    ))
}

/// Checks a database that another process has open, through a read-only open.
fn verify_open_database(storage: &Storage, bar: &ProgressBar) -> Result<DamageReport> {
    let options = DbOptions { create_if_missing: false, read_only: true, ..DbOptions::default() };
    let components = Components { fs: Arc::clone(&storage.fs), ..Components::default() };
    let db = Db::open_with(&storage.dir, options, components)?;
    let report = db.verify(|bytes_done, bytes_total| {
        show_progress(bar, RepairProgress { bytes_done, bytes_total });
    })?;
    db.close()?;
    Ok(DamageReport {
        tables: report.files,
        value_files: report.value_files,
        invalid_files: report.invalid_files,
        bytes: report.bytes,
        log_records: report.log_records,
        errors: report.errors,
        notes: Vec::new(),
    })
}

/// The path of the damaged directory followed by "-repaired".
fn default_target(dir: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(dir).map_err(|source| Error::io("find", dir, source))?;
    let Some(name) = whole.file_name() else {
        return Err(Error::invalid(
            "name the directory of the repaired database with --target DIR",
        ));
    };
    let mut name = name.to_owned();
    name.push("-repaired");
    Ok(whole.with_file_name(name))
}

/// Repairs the database of the directory `dir`, whose files `storage` opens.
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
        show_progress(&bar, progress);
    })?;
    bar.finish_and_clear();
    print(&report.to_string())?;
    if args.dry_run {
        return print("Nothing was written (--dry-run).\n");
    }
    let (dir, target) = (dir.display(), target.display());
    let mut next = format!(
        "The repaired database is in {target}. {dir} was not changed.\n\
         Look at it: archipelago db --dir {target} stats\n"
    );
    match storage.tiers {
        None => next.push_str(&format!("Use it: mv {dir} {dir}-damaged && mv {target} {dir}\n")),
        Some(_) => next.push_str("It lies in one directory, not on tiers.\n"),
    }
    print(&next)
}
