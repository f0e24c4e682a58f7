//! Files over vectors, and a directory of them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Epoch, Error, Result};
use archipelago_env::{
    CreateOptions, DirEntry, FileLock, FileSystem, IoContext, LogFile, LogOptions, LogTail,
    OpenOptions, RandomFile, WritableFile,
};
use parking_lot::Mutex;

pub(in crate::sst) type Bytes = Arc<Mutex<Vec<u8>>>;

#[derive(Debug)]
pub(in crate::sst) struct VecWriter(pub(in crate::sst) Bytes);

impl WritableFile for VecWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.0.lock().extend_from_slice(data);
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }
}

/// Reads the present content of the vector, and counts the reads.
#[derive(Debug)]
pub(in crate::sst) struct VecFile {
    bytes: Bytes,
    pub(in crate::sst) reads: AtomicU64,
    pub(in crate::sst) batches: AtomicU64,
    pub(in crate::sst) prefetched: AtomicU64,
}

impl VecFile {
    pub(in crate::sst) fn new(bytes: &Bytes) -> Arc<Self> {
        Arc::new(Self {
            bytes: Arc::clone(bytes),
            reads: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            prefetched: AtomicU64::new(0),
        })
    }
}

impl RandomFile for VecFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _: IoContext) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.lock();
        let start = offset as usize;
        let part = bytes.get(start..start + buf.len());
        buf.copy_from_slice(part.ok_or_else(|| Error::invalid("read past the end"))?);
        Ok(())
    }
    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        for (offset, buf) in requests {
            self.read_exact_at(*offset, buf, context)?;
        }
        Ok(())
    }
    fn prefetch(&self, _: u64, len: u64) {
        self.prefetched.fetch_add(len, Ordering::Relaxed);
    }
    fn len(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
}

/// A flat directory: create, open, remove.
#[derive(Debug, Default)]
pub(in crate::sst) struct VecFs {
    pub(in crate::sst) files: Mutex<HashMap<PathBuf, Bytes>>,
    pub(in crate::sst) opens: AtomicU64,
}

impl FileSystem for VecFs {
    fn create(&self, path: &Path, _: IoContext, _: CreateOptions) -> Result<Box<dyn WritableFile>> {
        let bytes = Bytes::default();
        self.files.lock().insert(path.to_owned(), Arc::clone(&bytes));
        Ok(Box::new(VecWriter(bytes)))
    }
    fn open(&self, path: &Path, _: IoContext, _: OpenOptions) -> Result<Arc<dyn RandomFile>> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        match self.files.lock().get(path) {
            Some(bytes) => Ok(VecFile::new(bytes)),
            None => Err(Error::not_found(format!("no file {}", path.display()))),
        }
    }
    fn create_log(&self, _: &Path, _: IoContext, _: LogOptions) -> Result<Box<dyn LogFile>> {
        unimplemented!()
    }
    fn log_tail(&self, _: &Path, _: Epoch) -> Result<Option<LogTail>> {
        unimplemented!()
    }
    fn clear_log_tails(&self, _: &Path) -> Result<()> {
        unimplemented!()
    }
    fn settle_log(&self, path: &Path, _: Epoch, _: &[Range<u64>]) -> Result<()> {
        Err(Error::unsupported(format!("{}: this directory holds tables alone", path.display())))
    }
    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        unimplemented!()
    }
    fn link(&self, _: &Path, _: &Path) -> Result<()> {
        unimplemented!()
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.files.lock().remove(path);
        Ok(())
    }
    fn list(&self, _: &Path) -> Result<Vec<DirEntry>> {
        unimplemented!()
    }
    fn len(&self, path: &Path) -> Result<u64> {
        Ok(self.files.lock()[path].lock().len() as u64)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.files.lock().contains_key(path))
    }
    fn create_dir_all(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn remove_dir_all(&self, _: &Path) -> Result<()> {
        unimplemented!()
    }
    fn sync_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn lock(&self, _: &Path) -> Result<Box<dyn FileLock>> {
        unimplemented!()
    }
    fn free_bytes(&self, _: &Path) -> Result<Option<u64>> {
        Ok(None)
    }
}
