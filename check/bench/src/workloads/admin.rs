//! Benchmarks that are actions on the database, such as `flush` and `stats`.

use super::Worker;
use crate::harness::report::say;
use crate::harness::store::{Db, KeyRange, Result};

/// Runs `compact` over the whole key space, in the first worker only.
pub(super) fn compact(worker: &mut Worker<'_>) -> Result<()> {
    if worker.index > 0 {
        return Ok(());
    }
    worker.db.compact_range(worker.cf, &KeyRange::all())
}

/// Runs `waitforcompaction` on the database.
pub(super) fn wait_for_compaction(db: &Db) -> Result<()> {
    say(&format!("waitforcompaction({}): started", db.dir().display()));
    db.wait_for_background()?;
    say(&format!("waitforcompaction({}): finished", db.dir().display()));
    Ok(())
}

/// Runs `flush` on the database.
pub(super) fn flush(db: &Db) -> Result<()> {
    db.flush(db.default_family())?;
    say("flush memtable");
    Ok(())
}

/// Runs `stats` on the database.
pub(super) fn stats(db: &Db) -> Result<()> {
    say(&format!("\n{}", db.stats_text()));
    Ok(())
}

/// `levelstats`, as db_bench prints it.
pub(super) fn level_stats(db: &Db) -> Result<()> {
    let mut text = String::from("\nLevel Files Size(MB)\n--------------------\n");
    for level in db.report(db.default_family())?.levels {
        let mib = level.bytes as f64 / 1_048_576.0;
        text += &format!("{:3} {:8} {mib:8.0}\n", level.level, level.files);
    }
    say(&text);
    Ok(())
}

/// Runs `bucketstats` on the database.
pub(super) fn bucket_stats(db: &Db) -> Result<()> {
    let text = db.property(db.default_family(), "archipelago.bucketstats");
    say(&format!("\n{}", text.unwrap_or_default()));
    Ok(())
}
