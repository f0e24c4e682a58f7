//! Hints to the page cache from moves and copies: bytes that they will read, and bytes that they
//! will not read again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::mem::MemFs;
use archipelago_env::{FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile, forward_fs};
use archipelago_tier::{CacheBy, Policy};
use parking_lot::Mutex;

use crate::world::{READ, World, filled, holders, path, table, write};

const MIB: u64 = 1 << 20;

/// A call of background work on an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Prefetch,
    Read,
    Forget,
}

/// Calls in order: the file, the call, and the bytes (start and end).
type Calls = Arc<Mutex<Vec<(PathBuf, Did, (u64, u64))>>>;

/// A file system that records the calls of background work on open files.
#[derive(Debug)]
struct RecordingFs {
    inner: MemFs,
    calls: Calls,
}

impl FileSystem for RecordingFs {
    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let inner = self.inner.open(path, context, options)?;
        let (path, calls) = (path.to_owned(), Arc::clone(&self.calls));
        Ok(Arc::new(RecordingFile { inner, path, calls }))
    }

    forward_fs!(inner: create, create_log, names);
}

#[derive(Debug)]
struct RecordingFile {
    inner: Arc<dyn RandomFile>,
    path: PathBuf,
    calls: Calls,
}

impl RecordingFile {
    fn note(&self, did: Did, offset: u64, len: u64) {
        self.calls.lock().push((self.path.clone(), did, (offset, offset + len)));
    }
}

impl RandomFile for RecordingFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        if context.purpose == IoPurpose::Maintenance {
            self.note(Did::Read, offset, buf.len() as u64);
        }
        self.inner.read_exact_at(offset, buf, context)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.note(Did::Prefetch, offset, len);
    }

    fn forget(&self, offset: u64, len: u64) {
        self.note(Did::Forget, offset, len);
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

/// Tiers over a file system that records calls.
fn recorded(policy: impl FnOnce(&mut Policy)) -> (World, Calls) {
    let calls = Calls::default();
    let disk = RecordingFs { inner: MemFs::new(), calls: Arc::clone(&calls) };
    let mut world = World::new(Arc::new(disk), &[16 * MIB, 64 * MIB]);
    policy(&mut world.policy);
    (world, calls)
}

/// Calls on the only file below `dir`.
fn of_dir(calls: &Calls, dir: &str) -> Vec<(Did, (u64, u64))> {
    let calls = calls.lock();
    let mut below = calls.iter().filter(|(path, ..)| path.starts_with(dir));
    let first = below.clone().next().map(|(path, ..)| path);
    assert!(below.all(|(path, ..)| Some(path) == first), "{calls:?}");
    calls.iter().filter(|(path, ..)| path.starts_with(dir)).map(|&(_, did, at)| (did, at)).collect()
}

/// The bytes of all calls of a kind, with adjacent ranges joined.
fn bytes_of<'a>(
    calls: impl IntoIterator<Item = &'a (Did, (u64, u64))>,
    did: Did,
) -> Vec<(u64, u64)> {
    let mut spans: Vec<_> =
        calls.into_iter().filter(|call| call.0 == did).map(|call| call.1).collect();
    spans.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in spans {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

fn covers(spans: &[(u64, u64)], wanted: (u64, u64)) -> bool {
    spans.iter().any(|span| span.0 <= wanted.0 && wanted.1 <= span.1)
}

/// Checks that every read of a source was prefetched before and forgotten afterwards. Returns the
/// number of reads.
fn check_source(calls: &[(Did, (u64, u64))]) -> usize {
    let mut reads = 0;
    for (index, &(_, span)) in calls.iter().enumerate().filter(|(_, call)| call.0 == Did::Read) {
        let (before, after) = calls.split_at(index);
        assert!(covers(&bytes_of(before, Did::Prefetch), span), "{span:?} in {calls:?}");
        assert!(covers(&bytes_of(after, Did::Forget), span), "{span:?} in {calls:?}");
        reads += 1;
    }
    reads
}

#[test]
fn move_reads_ahead_and_leaves_no_pages_cached() {
    let (world, calls) = recorded(|_| ());
    let fs = world.open();
    let len = 6 * MIB + 12_345;
    write(&fs, "1.sst", 2, &filled(1, len as usize));
    fs.reassign(&path("1.sst"), table(5));
    fs.settle();
    assert_eq!(holders(&fs.stats(), "L5"), [1]);
    let source = of_dir(&calls, "/dev0/files");
    assert_eq!(check_source(&source), 7, "a MiB at a time");
    let first_read = source.iter().position(|call| call.0 == Did::Read).unwrap();
    let ahead = bytes_of(&source[..first_read], Did::Prefetch);
    assert!(covers(&ahead, (0, 4 * MIB)), "several pieces ahead: {ahead:?}");
    let target = of_dir(&calls, "/dev1/files");
    assert_eq!(bytes_of(&target, Did::Read), [(0, len)], "it is read back");
    assert_eq!(target.last(), Some(&(Did::Forget, (0, len))));
}

#[test]
fn file_copy_reads_ahead_and_leaves_no_pages_cached() {
    let (world, calls) = recorded(|policy| policy.cache_by = CacheBy::File);
    let fs = world.open();
    let len = 6 * MIB + 12_345;
    write(&fs, "1.sst", 5, &filled(1, len as usize));
    let file = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    (0..100).for_each(|_| file.read_exact_at(0, &mut [0; 100], READ).unwrap());
    drop(file);
    world.pass(500);
    fs.step();
    let copies = fs.stats().devices[0].copies;
    assert_eq!(copies.files, 1, "{}", fs.stats());
    let source = of_dir(&calls, "/dev1/files");
    assert_eq!(check_source(&source), 7, "a MiB at a time");
    let first_read = source.iter().position(|call| call.0 == Did::Read).unwrap();
    let ahead = bytes_of(&source[..first_read], Did::Prefetch);
    assert!(covers(&ahead, (0, 4 * MIB)), "several pieces ahead: {ahead:?}");
    let copy = of_dir(&calls, "/dev0/cache");
    assert_eq!(bytes_of(&copy, Did::Forget), [(0, copies.bytes)]);
}

#[test]
fn range_copy_prefetches_and_forgets_its_reads_only() {
    let (world, calls) = recorded(|policy| policy.cache_by = CacheBy::Range);
    let fs = world.open();
    write(&fs, "1.sst", 5, &filled(1, 6 << 20));
    let file = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    // Ten ranges at a distance from each other.
    let hot = |index: u64| index * 600_000;
    for index in 0..10 {
        (0..50).for_each(|_| file.read_exact_at(hot(index), &mut [0; 100], READ).unwrap());
    }
    world.pass(500);
    fs.step();
    let copies = fs.stats().devices[0].copies;
    assert_eq!(copies.files, 1, "{}", fs.stats());
    let source = of_dir(&calls, "/dev1/files");
    assert_eq!(check_source(&source), 10, "{source:?}");
    let read = bytes_of(&source, Did::Read);
    assert!((0..10).all(|index| covers(&read, (hot(index), hot(index) + 100))), "{read:?}");
    assert_eq!(bytes_of(&source, Did::Prefetch), read);
    assert_eq!(bytes_of(&source, Did::Forget), read);
    assert!(covers(&bytes_of(&of_dir(&calls, "/dev0/cache"), Did::Forget), (0, copies.bytes)));
}
