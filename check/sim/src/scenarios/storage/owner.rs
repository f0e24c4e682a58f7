//! An owner of the volume with its open files, and the operations that it performs.
//!
//! A value of this module lives on the thread of its process. The run decides the operations, and
//! knows their effects before they begin.
//!
//! Failure: an operation passes the error of the product on. The file that it used is closed then.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Epoch, Error, Result};
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, WritableFile,
};
use archipelago_store::StoreFs;

use super::client::{ClientProcess, OpenVolume};
use super::model::{Change, Content, Marks};

/// Directory of all files.
pub(crate) const DIR: &str = "/db";

/// An operation that returns when its effect is durable.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Replaces a file by one record.
    Replace {
        path: String,
        bytes: Arc<Vec<u8>>,
    },
    /// Writes a table or a value file.
    WriteTable {
        path: String,
        class: FileClass,
        bytes: Arc<Vec<u8>>,
    },
    /// Begins a table, which stays pending.
    BeginTable {
        path: String,
        bytes: Arc<Vec<u8>>,
    },
    /// Syncs the pending table, which names it.
    EndTable,
    Remove {
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
        marks: Arc<Marks>,
    },
    /// Submits parts to the open log, and then waits for them in order.
    AppendLog {
        parts: Vec<Vec<u8>>,
    },
    SyncLog,
    BeginManifest {
        path: String,
        bytes: Vec<u8>,
        marks: Arc<Marks>,
    },
    AppendManifest {
        bytes: Vec<u8>,
    },
    /// Releases strays, as a scrub does.
    ReleaseStrays,
    /// Renews the lease, as a thread of the owner does.
    RenewLease,
    /// Reads a file, and answers.
    Read {
        path: String,
    },
}

impl Operation {
    /// Whether a process that lost the volume may report success, because there is nothing to do.
    pub(crate) fn may_do_nothing(&self) -> bool {
        matches!(self, Self::BeginTable { .. } | Self::SyncLog | Self::ReleaseStrays)
    }

    /// The operation without its bytes.
    pub(crate) fn brief(&self) -> String {
        match self {
            Self::Replace { path, bytes } => format!("replace {path}, {} bytes", bytes.len()),
            Self::WriteTable { path, bytes, .. } => format!("write {path}, {} bytes", bytes.len()),
            Self::BeginTable { path, bytes } => format!("begin {path}, {} bytes", bytes.len()),
            Self::BeginLog { path, .. } => format!("begin {path}"),
            Self::AppendLog { parts } => {
                let lens: Vec<usize> = parts.iter().map(Vec::len).collect();
                format!("append {lens:?} bytes to the log")
            }
            Self::BeginManifest { path, bytes, .. } => {
                format!("begin {path}, {} bytes", bytes.len())
            }
            Self::AppendManifest { bytes } => format!("append {} bytes", bytes.len()),
            other => format!("{other:?}"),
        }
    }
}

/// A table that its writer has not synced.
#[derive(Debug)]
struct PendingTable {
    writer: Box<dyn WritableFile>,
}

#[derive(Debug)]
struct OpenLog {
    file: Box<dyn LogFile>,
    marks: Arc<Marks>,
}

#[derive(Debug)]
struct OpenManifest {
    file: Box<dyn WritableFile>,
    marks: Arc<Marks>,
}

/// A process that is to own the volume, or owns it.
#[derive(Debug)]
pub(crate) struct OwnerProcess {
    // The files call the stores in their drops, so they come first.
    log: Option<OpenLog>,
    manifest: Option<OpenManifest>,
    pending: Option<PendingTable>,
    open: Option<OpenVolume>,
    client: ClientProcess,
}

fn context(class: FileClass) -> IoContext {
    IoContext::new(class, IoPurpose::Maintenance)
}

impl OwnerProcess {
    /// A process without a volume.
    pub(crate) fn new(client: ClientProcess) -> Self {
        Self { log: None, manifest: None, pending: None, open: None, client }
    }

    /// Creates the volume.
    pub(crate) fn create_volume(&mut self) -> Result<()> {
        self.client.create_volume()
    }

    /// Becomes the owner. Returns the boot id of the volume.
    pub(crate) fn take_over(&mut self) -> Result<[u8; 16]> {
        let open = self.client.open_volume()?;
        let boot_id = open.volume.boot_id();
        self.open = Some(open);
        Ok(boot_id)
    }

    /// Creates the directory of all files.
    pub(crate) fn create_dir(&mut self) -> Result<()> {
        self.fs()?.create_dir_all(Path::new(DIR))
    }

    fn fs(&self) -> Result<Arc<StoreFs>> {
        let open = self.open.as_ref();
        open.map(|open| Arc::clone(&open.fs)).ok_or_else(|| Error::closed("no volume is open"))
    }

    /// Performs an operation. On success its effect is durable.
    pub(crate) fn perform(&mut self, operation: &Operation) -> Result<()> {
        let fs = self.fs()?;
        let dir = Path::new(DIR);
        match operation {
            Operation::Replace { path, bytes } => {
                fs.write_atomic(Path::new(path), bytes, context(FileClass::Manifest))
            }
            Operation::WriteTable { path, class, bytes } => {
                begin_table(&fs, path, *class, bytes)?.writer.sync()?;
                fs.sync_dir(dir)
            }
            Operation::BeginTable { path, bytes } => {
                self.pending = Some(begin_table(&fs, path, FileClass::Sst, bytes)?);
                Ok(())
            }
            Operation::EndTable => {
                let table = self.pending.take();
                table.ok_or_else(|| Error::closed("no table is pending"))?.writer.sync()?;
                fs.sync_dir(dir)
            }
            Operation::Remove { path } => {
                fs.remove(Path::new(path))?;
                fs.sync_dir(dir)
            }
            Operation::Rename { from, to } => {
                fs.rename(Path::new(from), Path::new(to))?;
                fs.sync_dir(dir)
            }
            Operation::Link { from, to } => {
                fs.link(Path::new(from), Path::new(to))?;
                fs.sync_dir(dir)
            }
            Operation::BeginLog { path, marks } => self.begin_log(&fs, path, marks),
            Operation::AppendLog { parts } => self.append_log(parts),
            Operation::SyncLog => self.sync_log(),
            Operation::BeginManifest { path, bytes, marks } => {
                self.begin_manifest(&fs, path, bytes, marks)
            }
            Operation::AppendManifest { bytes } => self.append_manifest(bytes),
            Operation::ReleaseStrays => self.release_strays(),
            Operation::RenewLease => self.renew_lease(),
            Operation::Read { path } => self.read(path).map(drop),
        }
    }

    fn begin_log(&mut self, fs: &Arc<StoreFs>, path: &str, marks: &Arc<Marks>) -> Result<()> {
        self.log = None;
        let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
        let file = fs.create_log(Path::new(path), context(FileClass::Wal), options)?;
        fs.sync_dir(Path::new(DIR))?;
        self.log = Some(OpenLog { file, marks: Arc::clone(marks) });
        Ok(())
    }

    fn append_log(&mut self, parts: &[Vec<u8>]) -> Result<()> {
        // A log that failed takes nothing more, so it is closed.
        let mut log = self.log.take().ok_or_else(|| Error::closed("no log is open"))?;
        let sync = log.file.sync_handle();
        let mut ends = Vec::new();
        for part in parts {
            log.file.submit(&[part])?;
            ends.push(log.file.len());
        }
        for end in ends {
            sync.wait(end)?;
            log.marks.acknowledge(end);
        }
        self.log = Some(log);
        Ok(())
    }

    fn sync_log(&mut self) -> Result<()> {
        let log = self.log.take().ok_or_else(|| Error::closed("no log is open"))?;
        let through = log.file.sync_handle().sync()?;
        log.marks.sync(through);
        self.log = Some(log);
        Ok(())
    }

    fn begin_manifest(
        &mut self,
        fs: &Arc<StoreFs>,
        path: &str,
        bytes: &[u8],
        marks: &Arc<Marks>,
    ) -> Result<()> {
        self.manifest = None;
        let class = context(FileClass::Manifest);
        let mut file = fs.create(Path::new(path), class, CreateOptions::default())?;
        file.append(bytes)?;
        file.sync()?;
        fs.sync_dir(Path::new(DIR))?;
        marks.sync(file.len());
        self.manifest = Some(OpenManifest { file, marks: Arc::clone(marks) });
        Ok(())
    }

    fn append_manifest(&mut self, bytes: &[u8]) -> Result<()> {
        let manifest = self.manifest.take();
        let mut manifest = manifest.ok_or_else(|| Error::closed("no manifest is open"))?;
        manifest.file.append(bytes)?;
        manifest.file.sync()?;
        manifest.marks.sync(manifest.file.len());
        self.manifest = Some(manifest);
        Ok(())
    }

    /// Gives up all objects of the volume without a name.
    pub(crate) fn release_strays(&mut self) -> Result<()> {
        let open = self.open.as_ref().ok_or_else(|| Error::closed("no volume is open"))?;
        open.volume.release_strays().map(drop)
    }

    fn renew_lease(&self) -> Result<()> {
        let open = self.open.as_ref().ok_or_else(|| Error::closed("no volume is open"))?;
        open.volume.renew_lease()
    }

    /// The content of a path.
    pub(crate) fn read(&mut self, path: &str) -> Result<Content> {
        let (fs, path) = (self.fs()?, Path::new(path));
        if !fs.exists(path)? {
            return Ok(None);
        }
        fs.read(path, context(FileClass::Other)).map(|bytes| Some(Arc::new(bytes)))
    }

    /// The names of all files.
    pub(crate) fn list(&mut self) -> Result<Vec<String>> {
        let entries = self.fs()?.list(Path::new(DIR))?;
        Ok(entries.into_iter().map(|entry| format!("{DIR}/{}", entry.name)).collect())
    }

    /// Removes all files.
    pub(crate) fn remove_all(&mut self) -> Result<()> {
        let fs = self.fs()?;
        for name in self.list()? {
            fs.remove(Path::new(&name))?;
        }
        fs.sync_dir(Path::new(DIR))
    }

    /// Closes all open files, without an error.
    pub(crate) fn close_files(&mut self) {
        (self.log, self.manifest, self.pending) = (None, None, None);
    }
}

fn begin_table(
    fs: &Arc<StoreFs>,
    path: &str,
    class: FileClass,
    bytes: &[u8],
) -> Result<PendingTable> {
    let mut writer = fs.create(Path::new(path), context(class), CreateOptions::default())?;
    writer.append(bytes)?;
    Ok(PendingTable { writer })
}

/// Files that an owner has open, as the run knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenPaths {
    pub(crate) log: Option<String>,
    pub(crate) manifest: Option<String>,
    /// The path and the bytes of the pending table.
    pub(crate) pending: Option<(String, Arc<Vec<u8>>)>,
}

/// The effects of an operation on paths that are written as a whole. `content` is the certain
/// content of a path.
pub(crate) fn changes(
    operation: &Operation,
    open: &OpenPaths,
    content: impl Fn(&str) -> Content,
) -> Vec<Change> {
    let change = |path: &str, after: Content| Change { path: path.to_owned(), after };
    match operation {
        Operation::Replace { path, bytes } | Operation::WriteTable { path, bytes, .. } => {
            vec![change(path, Some(Arc::clone(bytes)))]
        }
        Operation::EndTable => {
            let table = open.pending.as_ref();
            table.map(|(path, bytes)| change(path, Some(Arc::clone(bytes)))).into_iter().collect()
        }
        Operation::Remove { path } => vec![change(path, None)],
        Operation::Rename { from, to } => vec![change(to, content(from)), change(from, None)],
        Operation::Link { from, to } => vec![change(to, content(from))],
        _ => Vec::new(),
    }
}
