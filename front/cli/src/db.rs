//! `archipelago db`: an operator's tools for a database that no other process has open.
//!
//! Every tool but `verify` and `sst dump` takes the lock file, so it refuses a database that
//! another process has open. `verify` and `repair` read files and do not open the database. They
//! write nothing into it and remove nothing from it.
//!
//! The database lies in a directory, or in a volume of a storage cluster. A tool on a volume
//! becomes its owner and gives it up at the end, so every tool refuses a volume that another
//! process has open.
//!
//! Failure: a tool ends with the first error. Its output up to there is valid.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago::inspect::DumpedRecords;
use archipelago::volume::VolumeStorage;
use archipelago::{
    Cancel, ColumnFamily, CompactRangeOptions, Components, Db as Database, DbOptions, Error,
    GroupAccess, KeyRange, LastLevel, ReadOptions, Result, Storage, ValueFileInfo, ValuesReport,
    WriteOptions,
};
use archipelago_base::spawn::{Spawn, SystemSpawn};
use clap::{Args, Subcommand};

use crate::console::{byte_bar, print, write_failed};
use crate::escape::{escape, unescape};
use crate::repair::{RepairArgs, run_repair, run_verify};
use crate::restore::run_restore;
use crate::secret::SecretArgs;
use crate::stop::Stop;
use crate::volume::VolumeArgs;

/// Read, change, check, copy and repair a database that no server has open.
///
/// Keys and values are text. A byte that is not printable is written \xNN, in arguments and in
/// output. Every tool but `verify` and `sst dump` refuses a database that another process has
/// open. With --store and --volume the database lies in a volume of a storage cluster, and every
/// tool refuses a volume that another process has open.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        archipelago db --dir ./data get reef\n  \
                        archipelago db --dir ./data scan --prefix user: --limit 10\n  \
                        archipelago db --dir ./data verify\n  \
                        archipelago db --store 10.0.0.1:7700 --volume reef stats")]
pub(crate) struct Db {
    /// Directory of the database. Default: ./archipelago-data, unless --store is given.
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    volume: VolumeArgs,
    /// Directory of the log, if the database is served with --log-dir
    #[arg(long, value_name = "DIR", global = true)]
    log_dir: Option<PathBuf>,
    #[command(flatten)]
    secret: SecretArgs,
    /// Column family of the keys. The family `default` is keyspace 0: Redis database 0 until a
    /// SWAPDB.
    #[arg(long, value_name = "NAME", default_value = "default", global = true)]
    family: String,
    /// Access of the file group to files that a tool creates: none, read or write. Use the value of
    /// group_access in the table [database] of the server's settings.
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

/// Parses a value of `--group-access`.
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
    /// Print the value of a key. The command fails if the key does not exist.
    #[command(after_help = "Example:\n  archipelago db --dir ./data get reef")]
    Get {
        /// Key, with \xNN for bytes that are not printable.
        key: String,
    },
    /// Set a key. On return the write survives power loss.
    #[command(after_help = "Example:\n  archipelago db --dir ./data put reef coral")]
    Put {
        /// Key, with \xNN for bytes that are not printable.
        key: String,
        /// Value, with \xNN for bytes that are not printable.
        value: String,
    },
    /// Delete a key. On return the deletion survives power loss.
    #[command(after_help = "Example:\n  archipelago db --dir ./data delete reef")]
    Delete {
        /// Key, with \xNN for bytes that are not printable.
        key: String,
    },
    /// Print keys and values in the order of the keys, one pair per line, separated by a tab.
    #[command(
        after_help = "Example:\n  archipelago db --dir ./data scan --from a --to b --keys-only"
    )]
    Scan {
        /// First key. Default: the first key of the family.
        #[arg(long, value_name = "KEY")]
        from: Option<String>,
        /// First key after the range. Default: none, so the scan ends with the last key.
        #[arg(long, value_name = "KEY")]
        to: Option<String>,
        /// Print only keys that begin with this text.
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Highest number of printed keys. Default: no limit.
        #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
        limit: u64,
        /// Print from the last key to the first.
        #[arg(long)]
        reverse: bool,
        /// Print keys without values.
        #[arg(long)]
        keys_only: bool,
    },
    /// Print levels, buckets, memory and counters.
    #[command(after_help = "Example:\n  archipelago db --dir ./data stats")]
    Stats,
    /// Print the value files of a family, the one with the most garbage first.
    ///
    /// Value files hold values that are separated from the tables (value_separation_bytes). For
    /// each file the command prints its size, its valid bytes and its garbage, the records that
    /// refer to it, its age, and the files from which it inherited. The last lines show live,
    /// exposed, hidden and pinned bytes, and the bound.
    #[command(after_help = "Examples:\n  archipelago db --dir ./data values\n  \
                            archipelago db --dir ./data values --json")]
    Values {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Print the buckets of a family, or change a boundary between two buckets.
    #[command(after_help = "Examples:\n  archipelago db --dir ./data buckets\n  \
                      archipelago db --dir ./data buckets split 0 --at user:5000")]
    Buckets {
        #[command(subcommand)]
        change: Option<BucketChange>,
    },
    /// Read every file in full, check every checksum, and name every damaged file.
    ///
    /// The command changes nothing. It also works if the database cannot be opened, and while
    /// another process has it open. Then it checks the state of one moment. It fails if a file is
    /// damaged or missing.
    #[command(after_help = "Example:\n  archipelago db --dir ./data verify")]
    Verify,
    /// Save the undamaged data of a damaged database into a new database.
    ///
    /// Use it if `verify` names damage and there is no checkpoint or replica to restore. It never
    /// changes the damaged directory. It writes a new database next to it (see --target), and
    /// prints what it could not save, by column family and key range. Keys outside these ranges
    /// have their last values.
    ///
    /// Undamaged tables are linked, so the repair needs little space. Of a damaged table it saves
    /// every undamaged block. If the manifest is damaged as well, the repair merges all tables,
    /// which needs as much space as the data. Then settings of families may be lost, and deleted
    /// keys may return.
    ///
    /// Begin with --dry-run. Then stop every process that uses the database, repair it, look at
    /// the new database, and move it to the place of the old one. Keep the old one until you are
    /// sure.
    #[command(after_help = "Example:\n  archipelago db --dir ./data repair --dry-run")]
    Repair(RepairArgs),
    /// Compact a range of keys down to the last level. Ctrl-C stops it, and finished parts remain.
    #[command(
        after_help = "Example:\n  archipelago db --dir ./data compact --from user: --to 'user;'"
    )]
    Compact {
        /// First key. Default: the first key of the family.
        #[arg(long, value_name = "KEY")]
        from: Option<String>,
        /// First key after the range. Default: none, so the range ends with the last key.
        #[arg(long, value_name = "KEY")]
        to: Option<String>,
        /// Rewrite every table of the range, even if that frees no space.
        #[arg(long)]
        force: bool,
    },
    /// Make a copy of the database that can be opened on its own. Tables are linked if both
    /// directories lie on one file system, and copied otherwise.
    ///
    /// The copy of a database in a volume is a new volume of the same cluster (--to-volume). Both
    /// share their tables, and each stays whole when the other one is destroyed. If the command is
    /// interrupted, run it again: the new volume cannot be opened before it is complete.
    #[command(
        after_help = "Examples:\n  archipelago db --dir ./data checkpoint ./backups/monday\n  \
                            archipelago db --store 10.0.0.1:7700 --volume reef checkpoint \
                            --to-volume reef-monday"
    )]
    Checkpoint {
        /// Directory of the copy. It must not exist, or it must be empty.
        #[arg(required_unless_present = "to_volume", conflicts_with = "to_volume")]
        target: Option<PathBuf>,
        /// Name of the new volume with the copy (needs --store).
        #[arg(long, value_name = "NAME")]
        to_volume: Option<String>,
    },
    /// Remove a volume with its database, for good (needs --store).
    ///
    /// All its files are removed from the storage nodes, except for tables that a checkpoint in
    /// another volume shares. It is refused while a process has the volume open, and while a
    /// storage node does not answer that is not lost. If the command is interrupted, run it again.
    #[command(
        after_help = "Example:\n  archipelago db --store 10.0.0.1:7700 --volume reef destroy"
    )]
    Destroy,
    /// Make the database of --dir from a checkpoint, or from a copy of a stopped database.
    ///
    /// The command first checks the checkpoint in full, and does not change it. The directory of
    /// --dir must not exist, or it must be empty: move an existing database away first. Tables are
    /// linked if both directories lie on one file system, and copied otherwise.
    #[command(after_help = "Example:\n  archipelago db --dir ./data restore ./backups/monday")]
    Restore {
        /// Directory of the checkpoint.
        checkpoint: PathBuf,
    },
    /// Print the devices of the database: files, copies, space and placement scheme.
    #[command(after_help = "Example:\n  archipelago db --dir ./data tiers")]
    Tiers,
    /// Print the manifest, which lists the files of the database.
    #[command(after_help = "Example:\n  archipelago db --dir ./data manifest dump")]
    Manifest {
        #[command(subcommand)]
        action: Dump,
    },
    /// Print a table file or a value file.
    #[command(
        after_help = "Example:\n  archipelago db --dir ./data sst dump ./data/000012.sst --records 10"
    )]
    Sst {
        #[command(subcommand)]
        action: SstAction,
    },
}

#[derive(Debug, Subcommand)]
enum BucketChange {
    /// Split a bucket into two.
    Split {
        /// Index of the bucket, as `buckets` prints it.
        bucket: usize,
        /// First key of the right part. Default: the middle of the bucket's data.
        #[arg(long, value_name = "KEY")]
        at: Option<String>,
    },
    /// Merge a bucket with its right neighbour.
    Merge {
        /// Index of the left bucket, as `buckets` prints it.
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
    /// Print the properties of a table or of a value file, and records if --records is given.
    Dump {
        /// Path of the table file or value file. In a volume: its name, such as 000012.sst.
        file: PathBuf,
        /// Highest number of printed records.
        #[arg(long, value_name = "N", default_value_t = 0)]
        records: usize,
        /// Print the records of a value file with their values.
        #[arg(long)]
        values: bool,
    },
}

impl Db {
    pub(crate) fn run(self) -> Result<()> {
        let volume = self.volume.settings("db", &self.secret)?;
        let mut storage = match &volume {
            Some(volume) => {
                self.refuse_for_volume()?;
                if matches!(self.tool, Tool::Destroy) {
                    VolumeStorage::destroy(volume)?;
                    return print(&format!("The {} is destroyed\n", self.volume.describe()));
                }
                Storage::open_volume(volume)?
            }
            None if matches!(self.tool, Tool::Restore { .. }) => return self.restore(),
            None => {
                self.refuse_for_directory()?;
                Storage::open_for_group(&self.dir(), &[], self.group_access)?
            }
        };
        let separated = match &self.log_dir {
            Some(log_dir) => storage.separate_log(log_dir, self.group_access, false),
            None => Ok(()),
        };
        let result = separated.and_then(|()| self.run_on(&storage));
        result.and(storage.close())
    }

    /// Directory of a database that lies in one.
    fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(archipelago::default_dir)
    }

    fn restore(&self) -> Result<()> {
        let Tool::Restore { checkpoint } = &self.tool else { return Ok(()) };
        run_restore(checkpoint, &self.dir(), self.group_access)
    }

    /// Refuses tools that only a database in a volume has.
    fn refuse_for_directory(&self) -> Result<()> {
        let tool = match &self.tool {
            Tool::Destroy => {
                "destroy is for volumes: remove the directory of the database instead,"
            }
            Tool::Checkpoint { to_volume: Some(_), .. } => {
                "--to-volume is for databases in volumes: name a directory for the checkpoint,"
            }
            _ => return Ok(()),
        };
        Err(Error::unsupported(format!("{tool} or give --store HOST:PORT and --volume NAME")))
    }

    /// Refuses flags and tools that a database in a volume does not have.
    fn refuse_for_volume(&self) -> Result<()> {
        if let Some(dir) = &self.dir {
            return Err(Error::invalid(format!(
                "--dir {} and --store name two databases: leave one of them out",
                dir.display()
            )));
        }
        let (tool, advice) = match &self.tool {
            Tool::Tiers => ("tiers", "show its nodes with `archipelago cluster status`"),
            Tool::Repair(_) => (
                "repair",
                "`verify` names files that cannot be read; start the storage nodes that \
                 `archipelago cluster status` shows as silent or lost",
            ),
            Tool::Checkpoint { target: Some(_), .. } => {
                ("checkpoint in a directory", "make one in another volume with --to-volume NAME")
            }
            Tool::Restore { .. } => (
                "restore",
                "open the volume of the checkpoint itself, or copy that with --to-volume NAME",
            ),
            _ => return Ok(()),
        };
        Err(Error::unsupported(format!(
            "a database in a volume has no {tool}: {advice}, or name a directory with --dir"
        )))
    }

    fn run_on(&self, storage: &Storage) -> Result<()> {
        match &self.tool {
            Tool::Manifest { action: Dump::Dump } => return dump_manifest(storage),
            Tool::Sst { action: SstAction::Dump { file, records, values } } => {
                let shown = DumpedRecords { records_max: *records, with_values: *values };
                return dump_sst(storage, file, shown);
            }
            Tool::Verify => return run_verify(storage),
            Tool::Repair(args) => return run_repair(&self.dir(), storage, args),
            _ => {}
        }
        let access = self.group_access;
        let options =
            DbOptions { create_if_missing: false, group_access: access, ..DbOptions::default() };
        let components = Components { fs: Arc::clone(&storage.fs), ..Components::default() };
        let db = Database::open_with(&storage.dir, options, components)?;
        let result = db.family(&self.family).and_then(|cf| match &self.tool {
            Tool::Checkpoint { to_volume: Some(name), .. } => match &storage.volume {
                Some(volume) => volume.checkpoint_to(&db, name),
                None => self.refuse_for_directory(),
            },
            Tool::Tiers => show_tiers(&self.dir(), storage),
            Tool::Stats => print(&db.stats_text()).and_then(|()| match &storage.tiers {
                Some(tiers) => print(&format!("\n{}", tiers.stats())),
                None => Ok(()),
            }),
            tool => run_tool(&db, &cf, tool),
        });
        result.and(db.close())
    }
}

fn run_tool(db: &Database, cf: &ColumnFamily, tool: &Tool) -> Result<()> {
    match tool {
        Tool::Get { key } => get(db, cf, key),
        Tool::Put { key, value } => {
            db.put_with(cf, &unescape(key)?, &unescape(value)?, &WriteOptions::synced())
        }
        Tool::Delete { key } => db.delete_with(cf, &unescape(key)?, &WriteOptions::synced()),
        Tool::Scan { .. } => scan(db, cf, tool),
        Tool::Values { json: false } => print(&db.values(cf)?.to_string()),
        Tool::Values { json: true } => print(&values_json(&db.values(cf)?)),
        Tool::Buckets { change: None } => {
            print(&db.property(cf, "archipelago.bucketstats").unwrap_or_default())
        }
        Tool::Buckets { change: Some(BucketChange::Split { bucket, at }) } => {
            let at = at.as_deref().map(unescape).transpose()?;
            db.split_bucket(cf, *bucket, at.as_deref())
        }
        Tool::Buckets { change: Some(BucketChange::Merge { bucket }) } => {
            db.merge_buckets(cf, *bucket)
        }
        Tool::Compact { from, to, force } => {
            let start = from.as_deref().map(unescape).transpose()?.unwrap_or_default();
            let end = to.as_deref().map(unescape).transpose()?;
            let last_level = if *force { LastLevel::Always } else { LastLevel::WhereItGains };
            compact(db, cf, KeyRange { start, end }, last_level)
        }
        Tool::Checkpoint { target: Some(target), .. } => db.checkpoint(target),
        Tool::Checkpoint { target: None, .. }
        | Tool::Destroy
        | Tool::Stats
        | Tool::Tiers
        | Tool::Verify
        | Tool::Repair(_)
        | Tool::Restore { .. }
        | Tool::Manifest { .. }
        | Tool::Sst { .. } => Ok(()),
    }
}

/// A text as a JSON string.
fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// The report on value files as one JSON object and a line end.
fn values_json(report: &ValuesReport) -> String {
    let file = |file: &ValueFileInfo| {
        let age_ms = report.unix_ms.saturating_sub(file.created_unix_ms);
        format!(
            "{{\"no\":{},\"bytes\":{},\"value_bytes\":{},\"valid_bytes\":{},\"garbage_bytes\":{},\
             \"garbage_share\":{:.6},\"records\":{},\"references\":{},\"tables\":{},\"age_ms\":{age_ms},\
             \"ancestors\":{:?}}}",
            file.no,
            file.file_bytes,
            file.value_bytes,
            file.valid_bytes,
            file.garbage_bytes(),
            file.garbage_share(),
            file.records,
            file.references,
            file.tables,
            file.ancestors
        )
    };
    let files: Vec<String> = report.files.iter().map(file).collect();
    let space = report.space.map_or_else(
        || "null".to_owned(),
        |space| {
            format!(
                "{{\"live_bytes\":{},\"hidden_bytes\":{},\"hidden_bytes_max\":{},\
                 \"shadow_share\":{:.6},\"debt_bytes\":{},\"debt_event\":{},\
                 \"allowed_bytes\":{},\"cannot_keep_bound\":{}}}",
                space.live_bytes,
                space.hidden_bytes,
                space.hidden_bytes_max,
                space.shadow_share,
                space.debt_bytes,
                space.debt_event.map_or_else(|| "null".to_owned(), |event| format!("\"{event}\"")),
                space.allowed_bytes.map_or_else(|| "null".to_owned(), |bytes| bytes.to_string()),
                space.cannot_keep_bound
            )
        },
    );
    format!(
        "{{\"family\":{},\"value_separation_bytes\":{},\"space_amplification_max\":{},\
         \"table_bytes\":{},\"file_bytes\":{},\"valid_bytes\":{},\"exposed_bytes\":{},\
         \"references\":{},\"live_bytes\":{},\"in_flight_bytes\":{},\"pinned_bytes\":{},\
         \"pinned_snapshot_bytes\":{},\"pinned_under_minute_bytes\":{},\
         \"pinned_under_hour_bytes\":{},\"pinned_oldest_ms\":{},\
         \"oldest_snapshot_seq\":{},\"oldest_snapshot_ms\":{},\"space\":{space},\
         \"files\":[{}]}}\n",
        json_text(&report.family),
        report.separation_bytes,
        report.space_amplification_max,
        report.table_bytes,
        report.file_bytes(),
        report.valid_bytes(),
        report.exposed_bytes(),
        report.references(),
        report.live_bytes(),
        report.in_flight_bytes,
        report.pinned.bytes,
        report.pinned.snapshot_bytes,
        report.pinned.under_minute_bytes,
        report.pinned.under_hour_bytes,
        report.pinned.oldest_ms,
        report.oldest_snapshot.map_or_else(|| "null".to_owned(), |seq| seq.0.to_string()),
        report.oldest_snapshot_ms,
        files.join(",")
    )
}

fn get(db: &Database, cf: &ColumnFamily, key: &str) -> Result<()> {
    match db.get_with(cf, &unescape(key)?, &ReadOptions::default())? {
        Some(value) => print(&format!("{}\n", escape(&value))),
        None => Err(Error::not_found(format!("there is no key \"{key}\""))),
    }
}

fn scan(db: &Database, cf: &ColumnFamily, tool: &Tool) -> Result<()> {
    let Tool::Scan { from, to, prefix, limit, reverse, keys_only } = tool else { return Ok(()) };
    let (reverse, keys_only) = (*reverse, *keys_only);
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
    let mut left = *limit;
    while iter.valid() && left > 0 {
        if keys_only {
            writeln!(out, "{}", escape(iter.key())).map_err(write_failed)?;
        } else {
            writeln!(out, "{}\t{}", escape(iter.key()), escape(iter.value()))
                .map_err(write_failed)?;
        }
        left -= 1;
        if reverse {
            iter.prev();
        } else {
            iter.next();
        }
    }
    out.flush().map_err(write_failed)?;
    iter.status()
}

/// Compacts on another thread, so that this thread can wait for a signal and cancel the job.
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
            // The receiver lives until this thread has been joined.
            let _ = sender.send(db.compact_range_with(&cf, &range, &options));
            is_over.store(true, Ordering::Release);
        })
    };
    let job = SystemSpawn.spawn("compact", job)?;
    stop.wait(|| is_over.load(Ordering::Acquire));
    // This has an effect only after a signal, while the job still runs.
    cancel.cancel();
    job.join()?;
    bar.finish_and_clear();
    receiver.try_recv().unwrap_or_else(|_| {
        Err(Error::new(
            archipelago::ErrorKind::Internal,
            "the compaction ended without a result: please report this",
        ))
    })
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

/// Prints a table or value file of the database's file system, or any other file of the machine. In
/// a volume, the name of a file alone is one of the database.
fn dump_sst(storage: &Storage, path: &Path, shown: DumpedRecords) -> Result<()> {
    let path = match storage.volume {
        Some(_) => storage.dir.join(path),
        None => path.to_owned(),
    };
    let text = archipelago::inspect::dump_sst(&storage.fs, &path, shown)?;
    print(&text)
}
