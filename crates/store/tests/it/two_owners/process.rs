//! One owner with its open files, and the operations that it performs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Epoch, Result};
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, OpenOptions,
    WritableFile,
};

use super::model::{Change, Expected, Model};
use crate::owner::Owner;

/// The directory of all files.
pub(super) const DIR: &str = "/db";

/// Bytes of a file, which a history does not print.
#[derive(Clone)]
pub(super) struct Payload(pub(super) Vec<u8>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// An operation that returns when its effect is durable.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// Replaces a small file.
    Replace {
        path: String,
        bytes: Payload,
    },
    /// Writes a table.
    WriteTable {
        path: String,
        bytes: Payload,
    },
    /// Begins a table, which stays pending.
    BeginTable {
        path: String,
        bytes: Payload,
    },
    /// Syncs the pending table, which names it.
    EndTable,
    Remove {
        path: String,
    },
    /// Removes a file that has a reader. The reader is dropped before the removal is durable.
    RemoveWhileRead {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    BeginLog {
        path: String,
    },
    AppendLog {
        bytes: Payload,
    },
    SyncLog,
    FinishLog,
    BeginManifest {
        path: String,
        bytes: Payload,
    },
    AppendManifest {
        bytes: Payload,
    },
    /// Releases strays, as a thread of the owner does.
    ReleaseStrays,
}

/// A table that its writer has not synced.
#[derive(Debug)]
struct PendingTable {
    path: String,
    bytes: Vec<u8>,
    writer: Box<dyn WritableFile>,
}

/// An owner with its open files.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) owner: Owner,
    log: Option<(String, Box<dyn LogFile>)>,
    manifest: Option<(String, Box<dyn WritableFile>)>,
    pending: Option<PendingTable>,
}

fn context(class: FileClass) -> IoContext {
    IoContext::new(class, IoPurpose::Maintenance)
}

impl Process {
    pub(super) fn new(owner: Owner) -> Self {
        Self { owner, log: None, manifest: None, pending: None }
    }

    /// Whether the process has the open file that `operation` uses.
    pub(super) fn can(&self, operation: &Operation) -> bool {
        match operation {
            Operation::EndTable => self.pending.is_some(),
            Operation::BeginTable { .. } => self.pending.is_none(),
            Operation::AppendLog { .. } | Operation::SyncLog | Operation::FinishLog => {
                self.log.is_some()
            }
            Operation::AppendManifest { .. } => self.manifest.is_some(),
            _ => true,
        }
    }

    /// The effect of `operation`, which must be possible, on a volume that is as `model` says.
    pub(super) fn changes(&self, operation: &Operation, model: &Model) -> Vec<Change> {
        let certain = |path: &str| model.certain(path).cloned().unwrap();
        match operation {
            Operation::Replace { path, bytes } | Operation::WriteTable { path, bytes } => {
                vec![Change::whole(path, Expected::Exact(bytes.0.clone()))]
            }
            Operation::EndTable => {
                let table = self.pending.as_ref().unwrap();
                vec![Change::whole(&table.path, Expected::Exact(table.bytes.clone()))]
            }
            Operation::Remove { path } | Operation::RemoveWhileRead { path } => {
                vec![Change::whole(path, Expected::Missing)]
            }
            // Two names of one file: POSIX says that nothing happens.
            Operation::Rename { from, to } if model.are_one_file(from, to) => Vec::new(),
            Operation::Rename { from, to } => {
                vec![Change::whole(to, certain(from)), Change::whole(from, Expected::Missing)]
            }
            Operation::Link { from, to } => vec![Change::whole(to, certain(from))],
            Operation::BeginLog { path } => vec![Change::whole(path, Expected::EMPTY)],
            Operation::AppendLog { bytes } => {
                let (path, _) = self.log.as_ref().unwrap();
                let during = certain(path).submitted(&bytes.0);
                vec![Change { path: path.clone(), after: during.acknowledged(), during }]
            }
            Operation::SyncLog => {
                let (path, _) = self.log.as_ref().unwrap();
                vec![Change {
                    path: path.clone(),
                    during: certain(path),
                    after: certain(path).synced(),
                }]
            }
            Operation::BeginManifest { path, bytes } => {
                let during = Expected::EMPTY.submitted(&bytes.0);
                vec![Change { path: path.clone(), after: during.synced(), during }]
            }
            Operation::AppendManifest { bytes } => {
                let (path, _) = self.manifest.as_ref().unwrap();
                let during = certain(path).submitted(&bytes.0);
                vec![Change { path: path.clone(), after: during.synced(), during }]
            }
            Operation::BeginTable { .. } | Operation::FinishLog | Operation::ReleaseStrays => {
                Vec::new()
            }
        }
    }

    /// Performs `operation`. On success its effect is durable, as far as the model knows.
    pub(super) fn perform(&mut self, operation: &Operation) -> Result<()> {
        let fs = Arc::clone(&self.owner.fs);
        match operation {
            Operation::Replace { path, bytes } => {
                fs.write_atomic(Path::new(path), &bytes.0, context(FileClass::Manifest))
            }
            Operation::WriteTable { path, bytes } => {
                self.begin_table(path, &bytes.0)?.writer.sync()?;
                fs.sync_dir(Path::new(DIR))
            }
            Operation::BeginTable { path, bytes } => {
                self.pending = Some(self.begin_table(path, &bytes.0)?);
                Ok(())
            }
            Operation::EndTable => {
                let Some(mut table) = self.pending.take() else { return Ok(()) };
                table.writer.sync()?;
                fs.sync_dir(Path::new(DIR))
            }
            Operation::Remove { path } => {
                fs.remove(Path::new(path))?;
                fs.sync_dir(Path::new(DIR))
            }
            Operation::RemoveWhileRead { path } => {
                let path = Path::new(path);
                let reader = fs.open(path, context(FileClass::Sst), OpenOptions::default())?;
                fs.remove(path)?;
                drop(reader);
                fs.sync_dir(Path::new(DIR))
            }
            Operation::Rename { from, to } => {
                fs.rename(Path::new(from), Path::new(to))?;
                fs.sync_dir(Path::new(DIR))
            }
            Operation::Link { from, to } => {
                fs.link(Path::new(from), Path::new(to))?;
                fs.sync_dir(Path::new(DIR))
            }
            Operation::BeginLog { path } => self.begin_log(path),
            Operation::AppendLog { .. } | Operation::SyncLog | Operation::FinishLog => {
                self.use_log(operation)
            }
            Operation::BeginManifest { path, bytes } => {
                let class = context(FileClass::Manifest);
                let mut file = fs.create(Path::new(path), class, CreateOptions::default())?;
                file.append(&bytes.0)?;
                file.sync()?;
                fs.sync_dir(Path::new(DIR))?;
                self.manifest = Some((path.clone(), file));
                Ok(())
            }
            Operation::AppendManifest { bytes } => {
                let Some((_, file)) = &mut self.manifest else { return Ok(()) };
                file.append(&bytes.0)?;
                file.sync()
            }
            Operation::ReleaseStrays => self.owner.volume.release_strays().map(|_| ()),
        }
    }

    fn begin_table(&self, path: &str, bytes: &[u8]) -> Result<PendingTable> {
        let options = CreateOptions::default();
        let class = context(FileClass::Sst);
        let mut writer = self.owner.fs.create(Path::new(path), class, options)?;
        writer.append(bytes)?;
        Ok(PendingTable { path: path.to_owned(), bytes: bytes.to_vec(), writer })
    }

    fn begin_log(&mut self, path: &str) -> Result<()> {
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
        let fs = &self.owner.fs;
        let log = fs.create_log(Path::new(path), context(FileClass::Wal), options)?;
        fs.sync_dir(Path::new(DIR))?;
        self.log = Some((path.to_owned(), log));
        Ok(())
    }

    fn use_log(&mut self, operation: &Operation) -> Result<()> {
        let Some((_, log)) = &mut self.log else { return Ok(()) };
        match operation {
            Operation::AppendLog { bytes } => log.append(&[&bytes.0]).map(|_| ()),
            Operation::SyncLog => log.sync_handle().sync().map(|_| ()),
            _ => {
                log.finish()?;
                self.log = None;
                Ok(())
            }
        }
    }

    /// The bytes at `path`; `None` if there is no file. A file that cannot be read is an error.
    pub(super) fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let (fs, path) = (&self.owner.fs, Path::new(path));
        if !fs.exists(path)? {
            return Ok(None);
        }
        fs.read(path, context(FileClass::Other)).map(Some)
    }
}
