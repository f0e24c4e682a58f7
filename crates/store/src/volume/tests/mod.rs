//! Tests of a volume over the pool in memory.

mod crashes;
mod generations;
mod objects;
mod ownership;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};

use super::record::{Content, FileKey, FileRecord, Record};
use super::{Moment, Volume, VolumeOptions};
use crate::Stores;
use crate::blob::BlobRef;
use crate::ids::{BlobId, LogId};
use crate::log::{Layout, LogWriter};
use crate::memory::MemoryPool;

/// Name of the volume of most tests.
const NAME: &str = "reef";
/// Length of the lease of most tests.
const LEASE: Duration = Duration::from_secs(8);
/// Context of the blobs of most tests.
const TABLE: IoContext = IoContext::new(FileClass::Sst, IoPurpose::Flush);

/// Starts threads that do nothing, so that the test renews the lease itself.
#[derive(Debug)]
struct IdleSpawn;

impl Spawn for IdleSpawn {
    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        SystemSpawn.spawn(name, Box::new(|| {}))
    }
}

/// A pool with a volume, and the clock of its owners.
struct Harness {
    pool: MemoryPool,
    clock: Arc<ManualClock>,
}

impl Harness {
    /// A pool with an empty volume.
    fn new() -> Self {
        let harness = Self::over(MemoryPool::new(1));
        Volume::create(&harness.stores(), NAME, &harness.options("nobody")).expect("new");
        harness
    }

    /// The volume of a pool that has one.
    fn over(pool: MemoryPool) -> Self {
        Self { pool, clock: Arc::new(ManualClock::new(1_000)) }
    }

    fn stores(&self) -> Stores {
        self.pool.stores()
    }

    fn options(&self, owner: &str) -> VolumeOptions {
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as _;
        VolumeOptions {
            lease: LEASE,
            clock,
            spawn: Arc::new(IdleSpawn),
            ..VolumeOptions::new(owner)
        }
    }

    fn open(&self, owner: &str) -> Result<Arc<Volume>> {
        Volume::open(&self.stores(), NAME, &self.options(owner))
    }

    fn take_over(&self, owner: &str) -> Result<Arc<Volume>> {
        let options = VolumeOptions { take_over: true, ..self.options(owner) };
        Volume::open(&self.stores(), NAME, &options)
    }
}

/// A new file at `path`.
fn file(volume: &Volume, path: &str, class: FileClass, content: Content) -> Record {
    let (key, modified_ms) = (volume.allocate(), volume.unix_ms());
    Record::File(FileRecord { key, class, names: vec![PathBuf::from(path)], content, modified_ms })
}

/// Commits a file at `path` with the bytes of its path.
fn submit(volume: &Volume, path: &str) -> Result<Moment> {
    let content = Content::Inline(path.as_bytes().to_vec());
    volume.commit(&[file(volume, path, FileClass::Other, content)])
}

/// As [`submit`], and waits.
fn put(volume: &Volume, path: &str) -> Result<()> {
    volume.wait(submit(volume, path)?)
}

fn remove(path: &str) -> Record {
    Record::Remove { path: PathBuf::from(path) }
}

/// Names of all files of the root.
fn names(volume: &Volume) -> Vec<String> {
    let entries = volume.look(|state| state.list(Path::new("/"))).expect("a directory");
    entries.into_iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
}

/// Writes and seals a blob.
fn sealed(volume: &Volume, bytes: &[u8]) -> BlobRef {
    let (_, mut writer) = volume.begin_blob(TABLE, 0).expect("room");
    writer.append(bytes).expect("room");
    writer.seal().expect("room")
}

/// Commits a table at `path`.
fn put_table(volume: &Volume, path: &str) -> BlobRef {
    let blob = sealed(volume, path.as_bytes());
    let table = file(volume, path, FileClass::Sst, Content::Blob(blob.clone()));
    volume.wait(volume.commit(&[table]).expect("committed")).expect("durable");
    blob
}

/// Identities of all blobs of the pool.
fn blobs(pool: &MemoryPool) -> Vec<BlobId> {
    pool.blob_list().into_iter().map(|blob| blob.id).collect()
}

/// A log file that is written.
struct OpenLog {
    writer: Box<dyn LogWriter>,
    key: FileKey,
    id: LogId,
}

/// Commits a log at `path`, and waits.
fn put_log(volume: &Arc<Volume>, path: &str, class: FileClass) -> OpenLog {
    let key = volume.allocate();
    let (writer, id, layout) = volume.begin_log(key, class).expect("room");
    volume.wait(commit_log(volume, path, class, (key, id, layout))).expect("durable");
    OpenLog { writer, key, id }
}

/// Commits a log that was begun.
fn commit_log(
    volume: &Volume,
    path: &str,
    class: FileClass,
    log: (FileKey, LogId, Layout),
) -> Moment {
    let (key, id, layout) = log;
    let content = Content::Log { head: Vec::new(), id, layout, len_bytes: None };
    let names = vec![PathBuf::from(path)];
    let record = FileRecord { key, class, names, content, modified_ms: 0 };
    volume.commit(&[Record::File(record)]).expect("committed")
}

/// Appends to a log, and waits until it is acknowledged.
fn append(log: &mut OpenLog, bytes: &[u8]) -> Result<()> {
    log.writer.submit(&[bytes])?;
    log.writer.position().wait(log.writer.len_bytes())
}

/// The recorded content of a log file: its layout, and its length if it has ended.
fn recorded_log(volume: &Volume, path: &str) -> (LogId, Layout, Option<u64>) {
    volume.look(|state| match &state.file(Path::new(path)).expect("a file").content {
        Content::Log { id, layout, len_bytes, .. } => (*id, layout.clone(), *len_bytes),
        content => panic!("{path} is no log: {content:?}"),
    })
}

/// The bytes of a log file, as its record finds them.
fn read_log(volume: &Volume, path: &str) -> Vec<u8> {
    let (id, layout, _) = recorded_log(volume, path);
    let context = IoContext::new(FileClass::Wal, IoPurpose::Recovery);
    let reader = volume.stores().logs.open(id, &layout, context).expect("a log");
    let mut bytes = vec![0; reader.len() as usize];
    reader.read_exact_at(0, &mut bytes, context).expect("bytes");
    bytes
}

/// Checks the kind of an error.
fn expect_kind<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) -> String {
    let error = result.expect_err("an error");
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}
