//! `archipelago db restore`: makes a database from a checkpoint.

use std::path::Path;
use std::sync::Arc;

use archipelago::repair::verify_files;
use archipelago::{Components, Db, DbOptions, Error, ErrorKind, GroupAccess, Result, Storage};

use crate::console::{byte_bar, print, show_progress, warn_line};

/// Makes the database of `target` from `checkpoint`. The last file that it writes turns the
/// directory into a database, so an interrupted restore leaves no database behind.
pub(crate) fn run_restore(checkpoint: &Path, target: &Path, access: GroupAccess) -> Result<()> {
    let storage = Storage::open_for_group(checkpoint, &[], access)?;
    if storage.fs.exists(target)? && !storage.fs.list(target)?.is_empty() {
        return Err(Error::invalid(format!(
            "{0} exists and is not empty: move it away first (mv {0} {0}-old), or restore into \
             another directory with --dir",
            target.display()
        )));
    }
    let bar = byte_bar();
    let report = verify_files(&storage.fs, &storage.dir, |progress| show_progress(&bar, progress))?;
    bar.finish_and_clear();
    if !report.is_clean() {
        report.errors.iter().for_each(|error| warn_line!("{error}"));
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "the checkpoint is damaged, and nothing was restored: take another one, or save \
                 its undamaged data with `archipelago db --dir {} repair`",
                checkpoint.display()
            ),
        ));
    }
    let options = DbOptions {
        create_if_missing: false,
        read_only: true,
        group_access: access,
        ..DbOptions::default()
    };
    let components = Components { fs: Arc::clone(&storage.fs), ..Components::default() };
    let db = Db::open_with(&storage.dir, options, components)?;
    db.checkpoint(target).and(db.close()).and(storage.close())?;
    print(&format!(
        "Restored {} into {}: {} tables, {} bytes.\n",
        checkpoint.display(),
        target.display(),
        report.tables,
        report.bytes
    ))
}
