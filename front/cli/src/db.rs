//! `archipelago db`: an operator's tools over a database that nobody serves.
//!
//! Every tool but `verify` takes the lock file, so that it refuses a database that is open
//! elsewhere. `verify` and `repair` read files and do not open the database. They write nothing
//! into it and remove nothing from it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago::{
    Cancel, ColumnFamily, CompactRangeOptions, Components, Db as Database, DbOptions, Error,
    GroupAccess, KeyRange, LastLevel, ReadOptions, Result, Storage, WriteOptions,
};
use archipelago_base::spawn::{Spawn, SystemSpawn};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::escape::{escape, unescape};
use crate::repair::{RepairArgs, run_repair, run_verify};
use crate::restore::run_restore;
use crate::stop::Stop;

/// Tools for a database that nobody serves. Keys and values are text; bytes that are not
/// printable are written \xNN, in what you give and in what is printed.
#[derive(Debug, Args)]
pub(crate) struct Db {
    /// The database's directory.
    #[arg(long, value_name = "DIR", default_value = "./archipelago-data", global = true)]
    dir: PathBuf,
    /// The column family.
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    family: String,
    /// What the group may do with the files that a tool creates: none, read or write. Give what
    /// group_access in [database] says in the settings of the server.
    #[arg(
        long,
        value_name = "ACCESS",
        default_value = "none",
        value_parser = group_access,
        global = true
    )]
    group_access: GroupAccess,
    #[command(subcommand)]
    tool: Tool,
}

/// A value of `--group-access`.
fn group_access(text: &str) -> std::result::Result<GroupAccess, String> {
    match text {
        "none" => Ok(GroupAccess::None),
        "read" => Ok(GroupAccess::Read),
        "write" => Ok(GroupAccess::Write),
        _ => Err("it must be none, read or write".to_owned()),
    }
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Print the value of a key; fails if there is none.
    Get { key: String },
    /// Set a key. On return it survives power loss.
    Put { key: String, value: String },
    /// Delete a key. On return this survives power loss.
    Delete { key: String },
    /// Print keys and values in order, a pair a line, a tab between them.
    Scan {
        /// First key.
        #[arg(long)]
        from: Option<String>,
        /// First key that is not printed any more.
        #[arg(long)]
        to: Option<String>,
        /// Only keys that start with this.
        #[arg(long)]
        prefix: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
        limit: u64,
        /// From the last to the first.
        #[arg(long)]
        reverse: bool,
        /// Keys alone.
        #[arg(long)]
        keys_only: bool,
    },
    /// Print levels, buckets, memory and counters.
    Stats,
    /// Print the buckets, or change the bucket map by hand.
    Buckets {
        #[command(subcommand)]
        change: Option<BucketChange>,
    },
    /// Read every file in full, check every checksum, and name everything that is damaged.
    ///
    /// It changes nothing. It also works where the database cannot be opened any more, and while
    /// another process has it open (then it checks the state of one moment). It fails if anything
    /// is damaged or missing.
    Verify,
    /// Save what is whole of a damaged database into a new one.
    ///
    /// Use it when `verify` names damage and there is no checkpoint or replica to restore. It never
    /// changes the damaged directory: it writes a database beside it (see --target), and prints
    /// what it could not save, by column family and range of keys. Keys outside those ranges have
    /// their last values.
    ///
    /// Whole tables are linked, so that the repair needs little room; of a damaged table it saves
    /// every whole block. If the manifest is whole as well, that is all. If not, everything is
    /// merged anew, which needs as much room as the data: settings of families may be lost then,
    /// and keys that were deleted may be back.
    ///
    /// Begin with --dry-run. Then stop everything that uses the database, repair, look at the new
    /// one, and put it in the place of the old one. Keep the old one until you are sure.
    Repair(RepairArgs),
    /// Compact a range of keys (everything, unless told) down to the last level. Ctrl-C ends it;
    /// what was finished by then stays.
    Compact {
        /// First key.
        #[arg(long)]
        from: Option<String>,
        /// First key that is not compacted any more.
        #[arg(long)]
        to: Option<String>,
        /// Write every table of the range again, also where nothing is gained.
        #[arg(long)]
        force: bool,
    },
    /// Make a copy that can be opened on its own; tables are linked where that is possible.
    Checkpoint {
        /// Where; must not exist or be empty.
        target: PathBuf,
    },
    /// Make the database of --dir from a checkpoint, or from a copy of a stopped database.
    ///
    /// The checkpoint is checked in full before, and stays as it is. --dir must not exist or be
    /// empty: move a database that is there away first. Tables are linked where that is possible.
    Restore {
        /// The directory of the checkpoint.
        checkpoint: PathBuf,
    },
    /// Print the devices that the database lies on: files, copies, space, scheme.
    Tiers,
    /// The manifest: what the database consists of.
    Manifest {
        #[command(subcommand)]
        action: Dump,
    },
    /// A table.
    Sst {
        #[command(subcommand)]
        action: SstAction,
    },
}

#[derive(Debug, Subcommand)]
enum BucketChange {
    /// Cut a bucket in two.
    Split {
        /// Its index.
        bucket: usize,
        /// Where; in the middle of its data unless told.
        #[arg(long)]
        at: Option<String>,
    },
    /// Make a bucket and its right neighbour one.
    Merge {
        /// Index of the left one.
        bucket: usize,
    },
}

#[derive(Debug, Subcommand)]
enum Dump {
    /// Print every record.
    Dump,
}

#[derive(Debug, Subcommand)]
enum SstAction {
    /// Print properties, index and, if asked, records.
    Dump {
        /// The file.
        file: PathBuf,
        /// Print at most this many records too.
        #[arg(long, value_name = "N", default_value_t = 0)]
        records: usize,
    },
}

impl Db {
    pub(crate) fn run(self) -> Result<()> {
        let access = self.group_access;
        let storage = || Storage::open_for_group(&self.dir, &[], access);
        match &self.tool {
            Tool::Manifest { action: Dump::Dump } => return dump_manifest(&storage()?),
            Tool::Sst { action: SstAction::Dump { file, records } } => {
                return dump_sst(&storage()?, file, *records);
            }
            Tool::Verify => {
                let storage = storage()?;
                return run_verify(&storage).and(storage.close());
            }
            Tool::Restore { checkpoint } => return run_restore(checkpoint, &self.dir, access),
            Tool::Repair(args) => {
                let storage = storage()?;
                return run_repair(&self.dir, &storage, args).and(storage.close());
            }
            _ => {}
        }
        let options =
            DbOptions { create_if_missing: false, group_access: access, ..DbOptions::default() };
        let storage = storage()?;
        let components = Components { fs: Arc::clone(&storage.fs), ..Components::default() };
        let db = Database::open_with(&storage.dir, options, components)?;
        let cf = db.family(&self.family)?;
        let result = match &self.tool {
            Tool::Tiers => show_tiers(&self.dir, &storage),
            Tool::Stats => print(&db.stats_text()).and_then(|()| match &storage.tiers {
                Some(tiers) => print(&format!("\n{}", tiers.stats())),
                None => Ok(()),
            }),
            _ => run_tool(&db, &cf, self.tool),
        };
        result.and(db.close()).and(storage.close())
    }
}

fn run_tool(db: &Database, cf: &ColumnFamily, tool: Tool) -> Result<()> {
    match tool {
        Tool::Get { key } => get(db, cf, &key),
        Tool::Put { key, value } => {
            db.put_with(cf, &unescape(&key)?, &unescape(&value)?, &WriteOptions::synced())
        }
        Tool::Delete { key } => db.delete_with(cf, &unescape(&key)?, &WriteOptions::synced()),
        Tool::Scan { .. } => scan(db, cf, tool),
        Tool::Buckets { change: None } => {
            print(&db.property(cf, "archipelago.bucketstats").unwrap_or_default())
        }
        Tool::Buckets { change: Some(BucketChange::Split { bucket, at }) } => {
            let at = at.as_deref().map(unescape).transpose()?;
            db.split_bucket(cf, bucket, at.as_deref())
        }
        Tool::Buckets { change: Some(BucketChange::Merge { bucket }) } => {
            db.merge_buckets(cf, bucket)
        }
        Tool::Compact { from, to, force } => {
            let start = from.as_deref().map(unescape).transpose()?.unwrap_or_default();
            let end = to.as_deref().map(unescape).transpose()?;
            let last_level = if force { LastLevel::Always } else { LastLevel::WhereItGains };
            compact(db, cf, KeyRange { start, end }, last_level)
        }
        Tool::Checkpoint { target } => db.checkpoint(target),
        Tool::Stats
        | Tool::Tiers
        | Tool::Verify
        | Tool::Repair(_)
        | Tool::Restore { .. }
        | Tool::Manifest { .. }
        | Tool::Sst { .. } => Ok(()),
    }
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|source| Error::io("write to", Path::new("standard output"), source))
}

fn get(db: &Database, cf: &ColumnFamily, key: &str) -> Result<()> {
    match db.get_with(cf, &unescape(key)?, &ReadOptions::default())? {
        Some(value) => print(&format!("{}\n", escape(&value))),
        None => Err(Error::not_found(format!("there is no key \"{key}\""))),
    }
}

fn scan(db: &Database, cf: &ColumnFamily, tool: Tool) -> Result<()> {
    let Tool::Scan { from, to, prefix, limit, reverse, keys_only } = tool else { return Ok(()) };
    let options = ReadOptions {
        lower_bound: from.as_deref().map(unescape).transpose()?,
        upper_bound: to.as_deref().map(unescape).transpose()?,
        prefix: prefix.as_deref().map(unescape).transpose()?,
        fill_cache: false,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(cf, &options)?;
    if reverse {
        iter.seek_to_last();
    } else {
        iter.seek_to_first();
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let failed = |source| Error::io("write to", Path::new("standard output"), source);
    let mut left = limit;
    while iter.valid() && left > 0 {
        if keys_only {
            writeln!(out, "{}", escape(iter.key())).map_err(failed)?;
        } else {
            writeln!(out, "{}\t{}", escape(iter.key()), escape(iter.value())).map_err(failed)?;
        }
        left -= 1;
        if reverse {
            iter.prev();
        } else {
            iter.next();
        }
    }
    out.flush().map_err(failed)?;
    iter.status()
}

/// Compacts on another thread, so that this one sees a signal and cancels.
fn compact(db: &Database, cf: &ColumnFamily, range: KeyRange, last_level: LastLevel) -> Result<()> {
    let stop = Stop::watch(false)?;
    let bar = byte_bar();
    let shown = bar.clone();
    let options = CompactRangeOptions {
        last_level,
        cancel: Cancel::default(),
        on_progress: Some(Arc::new(move |done, total| {
            shown.set_length(total);
            shown.set_position(done);
        })),
    };
    let cancel = options.cancel.clone();
    let is_over = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = std::sync::mpsc::channel();
    let job = {
        let (db, cf, is_over) = (db.clone(), cf.clone(), Arc::clone(&is_over));
        Box::new(move || {
            // The receiver is dropped only after this thread was joined.
            let _ = sender.send(db.compact_range_with(&cf, &range, &options));
            is_over.store(true, Ordering::Release);
        })
    };
    let job = SystemSpawn.spawn("compact", job)?;
    let waited = stop.wait(|| is_over.load(Ordering::Acquire));
    // After a signal; without effect once it is over.
    cancel.cancel();
    job.join()?;
    bar.finish_and_clear();
    waited?;
    receiver.try_recv().unwrap_or_else(|_| Err(Error::invalid("the compaction gave no answer")))
}

/// A bar over bytes.
pub(crate) fn byte_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}

fn show_tiers(dir: &Path, storage: &Storage) -> Result<()> {
    match &storage.tiers {
        Some(tiers) => print(&tiers.stats().to_string()),
        None => print(&format!("{} does not lie on tiers\n", dir.display())),
    }
}

fn dump_manifest(storage: &Storage) -> Result<()> {
    let (fs, dir) = (&storage.fs, storage.dir.as_path());
    let lock = archipelago::inspect::lock(&**fs, dir)?;
    let mut text = String::new();
    let dumped = archipelago::inspect::dump_manifest(&**fs, dir, &mut text);
    drop(lock);
    print(&text)?;
    dumped
}

/// A table of the database's own file system, or any file of the machine.
fn dump_sst(storage: &Storage, path: &Path, records: usize) -> Result<()> {
    let text = archipelago::inspect::dump_sst(&storage.fs, path, records)?;
    print(&text)
}
