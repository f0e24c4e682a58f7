//! The files of a grant, as the executor of the job sees them.
//!
//! A [`GrantedFs`] is a file system of one directory. It opens the inputs of the grant, and creates
//! tables, each under the next identity of the grant. It neither sees nor changes the names of the
//! volume. It refuses every other operation.
//!
//! Invariants:
//! 1. Each identity is begun at most once, in the order of the grant.
//! 2. A file is written when its sync has sealed the blob. [`GrantedFs::written`] names such files
//!    only.
//!
//! Thread-safety: any thread may call any method. A short lock guards the list of the outputs.
//! Failure: errors name the path. `Fenced` means that the volume has a later owner.
//! Cost: that of the blobs. A file that is removed stays in the pool until the owner gives it up.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Epoch, Error, Result};
use archipelago_env::failure::past_end;
use archipelago_env::{
    CreateOptions, DirEntry, FileClass, FileLock, FileSystem, IoContext, LogFile, LogOptions,
    LogTail, OpenOptions, RandomFile, WritableFile,
};
use parking_lot::Mutex;

use super::super::failure::{missing, named, refused};
use super::{BlobGrant, WrittenBlobs, WrittenFile};
use crate::Stores;
use crate::blob::{BlobOptions, BlobReader, BlobRef, BlobWriter};
use crate::ids::{BlobId, VolumeId};

/// The files that the process has created, and how many identities it has begun.
#[derive(Debug, Default)]
struct CreatedFiles {
    begun: usize,
    /// The sealed blobs by the names of the files; `None` for a file that is being written.
    files: BTreeMap<String, Option<(FileClass, BlobRef)>>,
}

/// File system of an executor: the inputs and outputs of one grant, in one directory.
#[derive(Debug)]
pub struct GrantedFs {
    stores: Stores,
    dir: PathBuf,
    volume: VolumeId,
    epoch: Epoch,
    inputs: HashMap<String, BlobRef>,
    outputs: Vec<BlobId>,
    created: Arc<Mutex<CreatedFiles>>,
}

impl GrantedFs {
    /// Creates the file system of `grant`, whose files lie in the directory `dir`.
    #[must_use]
    pub fn new(stores: Stores, dir: &Path, grant: BlobGrant) -> Arc<Self> {
        let BlobGrant { volume, epoch, inputs, outputs } = grant;
        let inputs = inputs.into_iter().map(|input| (input.name, input.blob)).collect();
        let (dir, created) = (dir.to_owned(), Arc::default());
        Arc::new(Self { stores, dir, volume, epoch, inputs, outputs, created })
    }

    /// The files that were written and not removed, for the owner of the volume.
    #[must_use]
    pub fn written(&self) -> WrittenBlobs {
        let created = self.created.lock();
        let sealed = created.files.iter().filter_map(|(name, sealed)| {
            let (class, blob) = sealed.clone()?;
            Some(WrittenFile { name: name.clone(), class, blob })
        });
        // The cast loses nothing: a message carries the grant, so the number of its identities fits
        // into 32 bits.
        WrittenBlobs { begun: created.begun as u32, files: sealed.collect() }
    }

    /// The name of a file in the directory. Errors: `NotFound` for a path elsewhere.
    fn name(&self, doing: &str, path: &Path) -> Result<String> {
        let name = path.strip_prefix(&self.dir).ok().filter(|name| name.components().count() == 1);
        let name = name.and_then(Path::to_str).map(str::to_owned);
        name.ok_or_else(|| refused(doing, path, io::ErrorKind::NotFound))
    }

    /// The blob of an input or of a written file.
    fn blob(&self, doing: &str, path: &Path) -> Result<BlobRef> {
        let name = self.name(doing, path)?;
        if let Some(blob) = self.inputs.get(&name) {
            return Ok(blob.clone());
        }
        let sealed = self.created.lock().files.get(&name).cloned().flatten();
        sealed.map(|(_, blob)| blob).ok_or_else(|| missing(doing, path, false))
    }

    /// Takes the next identity for a new file.
    fn begin(&self, path: &Path, class: FileClass) -> Result<(String, BlobId)> {
        let doing = "create";
        let name = self.name(doing, path)?;
        if !class.is_table() {
            return Err(not_granted(doing, path));
        }
        let mut created = self.created.lock();
        if self.inputs.contains_key(&name) || created.files.contains_key(&name) {
            return Err(refused(doing, path, io::ErrorKind::AlreadyExists));
        }
        let Some(blob) = self.outputs.get(created.begun).copied() else {
            return Err(Error::invalid(format!(
                "cannot create {}: the job has used all {} identities of its grant; grant it more",
                path.display(),
                self.outputs.len()
            )));
        };
        created.begun += 1;
        created.files.insert(name.clone(), None);
        Ok((name, blob))
    }
}

/// The error of an operation that needs the owner of the volume.
fn not_granted(doing: &str, path: &Path) -> Error {
    Error::unsupported(format!(
        "cannot {doing} {}: only the owner of the volume can; this process has a grant for the \
         tables of a job",
        path.display()
    ))
}

impl FileSystem for GrantedFs {
    fn create(
        &self,
        path: &Path,
        context: IoContext,
        options: CreateOptions,
    ) -> Result<Box<dyn WritableFile>> {
        let (name, blob) = self.begin(path, context.class)?;
        let (volume, epoch) = (self.volume, self.epoch);
        let size_hint_bytes = options.size_hint_bytes;
        let begun = BlobOptions { volume, epoch, context, size_hint_bytes };
        let writer = self.stores.blobs.create(blob, begun).map_err(|error| {
            self.created.lock().files.remove(&name);
            named(&error, "create", path)
        })?;
        Ok(Box::new(GrantedWriter {
            path: path.to_owned(),
            name,
            class: context.class,
            writer,
            created: Arc::clone(&self.created),
            is_sealed: false,
        }))
    }

    fn open(
        &self,
        path: &Path,
        context: IoContext,
        _options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let blob = self.blob("open", path)?;
        let reader = self.stores.blobs.open(&blob, context);
        let reader = reader.map_err(|error| named(&error, "open", path))?;
        Ok(Arc::new(GrantedReader { path: path.to_owned(), reader }))
    }

    fn create_log(
        &self,
        path: &Path,
        _context: IoContext,
        _options: LogOptions,
    ) -> Result<Box<dyn LogFile>> {
        Err(not_granted("create log", path))
    }

    fn log_tail(&self, path: &Path, _incarnation: Epoch) -> Result<Option<LogTail>> {
        Err(not_granted("find the end of log", path))
    }

    fn clear_log_tails(&self, dir: &Path) -> Result<()> {
        Err(not_granted("clear the ends of logs in", dir))
    }

    fn settle_log(&self, path: &Path, _: Epoch, _: &[Range<u64>]) -> Result<()> {
        Err(not_granted("settle log", path))
    }

    fn write_atomic(&self, path: &Path, _bytes: &[u8], _context: IoContext) -> Result<()> {
        Err(not_granted("write", path))
    }

    fn allocate(&self, path: &Path, _bytes: u64) -> Result<()> {
        Err(not_granted("allocate", path))
    }

    fn rename(&self, from: &Path, _to: &Path) -> Result<()> {
        Err(not_granted("rename", from))
    }

    fn link(&self, from: &Path, _to: &Path) -> Result<()> {
        Err(not_granted("link", from))
    }

    /// Removes a file from the outputs of the job. The owner gives up its blob.
    fn remove(&self, path: &Path) -> Result<()> {
        let name = self.name("remove", path)?;
        if self.inputs.contains_key(&name) {
            return Err(not_granted("remove", path));
        }
        let removed = self.created.lock().files.remove(&name);
        removed.map(drop).ok_or_else(|| missing("remove", path, false))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        if dir != self.dir {
            return Err(refused("list", dir, io::ErrorKind::NotFound));
        }
        let entry = |name: &String, blob: &BlobRef| DirEntry {
            name: name.clone(),
            is_dir: false,
            len: blob.len_bytes,
        };
        let mut entries: Vec<DirEntry> =
            self.inputs.iter().map(|(name, blob)| entry(name, blob)).collect();
        let created = self.created.lock();
        let sealed = created.files.iter();
        entries.extend(
            sealed.filter_map(|(name, sealed)| sealed.as_ref().map(|(_, blob)| entry(name, blob))),
        );
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn len(&self, path: &Path) -> Result<u64> {
        self.blob("find the length of", path).map(|blob| blob.len_bytes)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(path == self.dir || self.blob("examine", path).is_ok())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        if dir == self.dir { Ok(()) } else { Err(not_granted("create directory", dir)) }
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<()> {
        Err(not_granted("remove directory", dir))
    }

    /// Does nothing: a sealed blob is durable, and the owner makes its name durable.
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        match dir == self.dir {
            true => Ok(()),
            false => Err(refused("sync directory", dir, io::ErrorKind::NotFound)),
        }
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        Err(not_granted("lock", path))
    }

    fn redundancy(&self, class: FileClass) -> f64 {
        self.stores.blobs.redundancy(class)
    }

    /// Returns `false`, because there are no logs.
    fn recycles_logs(&self) -> bool {
        false
    }

    fn free_bytes(&self, dir: &Path) -> Result<Option<u64>> {
        let free = self.stores.blobs.free_bytes();
        free.map_err(|error| named(&error, "find the free space of", dir))
    }
}

/// A table that the job writes.
#[derive(Debug)]
struct GrantedWriter {
    path: PathBuf,
    name: String,
    class: FileClass,
    writer: Box<dyn BlobWriter>,
    created: Arc<Mutex<CreatedFiles>>,
    is_sealed: bool,
}

impl WritableFile for GrantedWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.writer.append(data).map_err(|error| named(&error, "append to", &self.path))
    }

    /// Does nothing, because the bytes of a table that is not sealed do not survive a kill.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if self.is_sealed {
            return Ok(());
        }
        let blob = self.writer.seal().map_err(|error| named(&error, "sync", &self.path))?;
        self.is_sealed = true;
        // A file that was removed meanwhile stays removed.
        if let Some(sealed) = self.created.lock().files.get_mut(&self.name) {
            *sealed = Some((self.class, blob));
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.writer.len_bytes()
    }
}

/// A file that the job reads.
#[derive(Debug)]
struct GrantedReader {
    path: PathBuf,
    reader: Arc<dyn BlobReader>,
}

impl GrantedReader {
    /// Refuses a read past the end.
    fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        let whole = self.reader.len_bytes();
        match offset.checked_add(len as u64) {
            Some(end) if end <= whole => Ok(()),
            _ => Err(past_end(&self.path, offset, len, whole)),
        }
    }
}

impl RandomFile for GrantedReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.check_range(offset, buf.len())?;
        let len = buf.len();
        self.reader.read_exact_at(offset, buf, context).map_err(|error| {
            named(&error, format_args!("read {len} bytes at {offset} of"), &self.path)
        })
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        for (offset, buf) in requests.iter() {
            self.check_range(*offset, buf.len())?;
        }
        let ranges = requests.len();
        self.reader
            .read_many(requests, context)
            .map_err(|error| named(&error, format_args!("read {ranges} ranges of"), &self.path))
    }

    fn len(&self) -> u64 {
        self.reader.len_bytes()
    }
}
