//! The background sweep: removes tables that no edit will ever install.
//!
//! Another process that runs a job may write its files after the owner has given the job up. No
//! other job uses the numbers of such files, so they only take room. [`crate::db::state::strays`]
//! defines which tables are strays. The open removes the strays that it finds. The sweep repeats
//! that, because a late process may still write.
//!
//! Invariants:
//! 1. The sweep rests while the outcome of an edit is unknown, because the next open might find the
//!    edit and what it names.
//! 2. It removes only tables, value files and invalid files, and none that the newest version
//!    names.
//!
//! Thread-safety: one thread at a time sweeps. A call meanwhile does nothing.
//! Failure: a file that cannot be removed is logged, and the next sweep tries again.
//! Cost: one list of the directory every ten minutes, and a minute after a failed job. Between
//! sweeps, one read of the clock after each background job.

use std::collections::HashSet;

use archipelago_base::{ErrorKind, FileNo, Result};
use archipelago_env::DirEntry;

use crate::border::contained;
use crate::db::state::context::Context;
use crate::db::state::observers::Observers;
use crate::db::state::storage::Storage;
use crate::file_meta::{invalid_file_name, sst_name, value_file_name};
use crate::lock_order::Order;
use crate::manifest::file_number;
use crate::stats::Ticker;

/// Renews the lot of file numbers if half of it is used, and sweeps if a sweep is due.
pub(crate) fn tend_numbers(context: &Context, storage: &Storage, observers: &Observers) {
    let now_ns = context.clock().now_ns();
    if context.options().read_only || context.is_closing() {
        return;
    }
    storage.renew_lot_early(now_ns);
    if !storage.strays().begin_sweep(now_ns) {
        return;
    }
    let swept = contained("the sweep of stray tables", || {
        context.fault_point("strays.sweep")?;
        sweep(storage, observers)
    });
    match swept {
        Ok(SweepResult::Done) => {}
        Ok(SweepResult::Unsettled) => storage.strays().put_off(now_ns),
        Err(error) => {
            tracing::warn!(%error, "stray tables could not be looked for");
            storage.strays().put_off(now_ns);
        }
    }
}

/// Outcome of a sweep without an error.
enum SweepResult {
    Done,
    /// The outcome of an edit is unknown, so nothing was removed.
    Unsettled,
}

fn sweep(storage: &Storage, observers: &Observers) -> Result<SweepResult> {
    let strays = storage.strays();
    // The numbers are read before the manifest is checked. If the install of one of these jobs
    // failed halfway and the manifest is settled now, its edit did not happen.
    let ended = strays.ended();
    if storage.lock_manifest(Order::none()).is_unsettled() {
        return Ok(SweepResult::Unsettled);
    }
    let is_stray = |entry: &DirEntry| {
        let no = table_number(&entry.name).filter(|_| !entry.is_dir);
        no.is_some_and(|no| strays.is_stray(no, &ended))
    };
    let mut found = storage.fs().list(storage.dir())?;
    found.retain(is_stray);
    if found.is_empty() {
        return Ok(SweepResult::Done);
    }
    let named: HashSet<u64> = {
        let manifest = storage.lock_manifest(Order::none());
        manifest.column_families().flat_map(|(_, _, version)| version.file_numbers()).collect()
    };
    for entry in found {
        if table_number(&entry.name).is_some_and(|no| named.contains(&no.0)) {
            tracing::error!(file = entry.name, "a table of the newest version seems to be a stray");
            continue;
        }
        match storage.fs().remove(&storage.path_of(&entry.name)) {
            Ok(()) => {
                tracing::info!(file = entry.name, "removed a table of a job that was given up");
                observers.stats().add(Ticker::StraysRemoved, 1);
            }
            // The process that wrote the file has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "a stray table could not be removed"),
        }
    }
    Ok(SweepResult::Done)
}

/// The number of a table, a value file or an invalid file with that name.
fn table_number(name: &str) -> Option<FileNo> {
    let no = file_number(name)?;
    let names = [sst_name(no), value_file_name(no), invalid_file_name(no)];
    names.iter().any(|known| known == name).then_some(no)
}
