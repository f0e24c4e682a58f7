//! The contract of [`FileSystem`]: a list of checks that runs over every implementation.
//!
//! Thread-safety: the checks use one thread. Failure: a check panics and says what differs.
//! Cost: about 10 MB of writes, and few hundred operations.

use std::io::ErrorKind as ErrorCause;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::clock::SystemClock;
use archipelago_base::{Epoch, Error, ErrorKind};

use super::any;
use crate::context::{FileClass, IoContext};
use crate::fs::{CreateOptions, FileSystem, LogOptions, OpenOptions};

/// A file system under test, an empty directory on it, and whether to ask for direct I/O.
struct Bench {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    direct: bool,
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn create(&self, size_hint_bytes: u64) -> CreateOptions {
        CreateOptions { direct: self.direct, size_hint_bytes, ..CreateOptions::default() }
    }

    fn open(&self) -> OpenOptions {
        OpenOptions { direct: self.direct }
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let mut file = self.fs.create(&self.path(name), any(), self.create(0)).unwrap();
        file.append(bytes).unwrap();
        file.sync().unwrap();
    }

    fn get(&self, name: &str) -> Vec<u8> {
        self.fs.read(&self.path(name), any()).unwrap()
    }
}

fn error_of<T>(outcome: Result<T, Error>) -> Error {
    outcome.err().expect("should have failed")
}

fn assert_names(error: &Error, path: &Path) {
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "{text} does not name {}", path.display());
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn written_bytes_are_read_back(bench: &Bench) {
    let whole = pattern(1_500_000);
    for piece_bytes in [1_000, 4_096, 70_001, 300_000, 1_500_000] {
        let path = bench.path("data");
        let mut file = bench.fs.create(&path, any(), bench.create(2_000_000)).unwrap();
        for (index, piece) in whole.chunks(piece_bytes).enumerate() {
            file.append(piece).unwrap();
            if index == 3 {
                file.flush().unwrap();
                let expected = &whole[..(4 * piece_bytes).min(whole.len())];
                assert_eq!(bench.get("data"), expected, "after flush");
            }
        }
        assert_eq!(file.len(), whole.len() as u64);
        file.sync().unwrap();
        file.flush().unwrap();
        drop(file);
        assert_eq!(bench.fs.len(&path).unwrap(), whole.len() as u64);
        assert_eq!(bench.get("data"), whole);
    }
}

fn reads_may_begin_and_end_anywhere(bench: &Bench) {
    let whole = pattern(50_001);
    bench.put("data", &whole);
    let file = bench.fs.open(&bench.path("data"), any(), bench.open()).unwrap();
    assert_eq!(file.len(), 50_001);
    file.prefetch(0, 50_001);
    for (start, len) in
        [(0, 0), (0, 1), (1, 4096), (4096, 8192), (8191, 2), (50_000, 1), (50_001, 0)]
    {
        let mut buf = vec![0; len];
        file.read_exact_at(start as u64, &mut buf, any()).unwrap();
        assert_eq!(buf, whole[start..start + len], "{len} at {start}");
        let new = file.read_new(start as u64, len, any()).unwrap();
        assert_eq!(new, whole[start..start + len], "{len} at {start}");
    }
    let mut bufs: Vec<_> = [10, 4096, 90, 5000, 7, 1].map(|len| vec![0u8; len]).into();
    let starts = [0u64, 10, 4106, 20_000, 19_000, 50_000];
    let mut requests: Vec<_> =
        starts.iter().copied().zip(bufs.iter_mut().map(Vec::as_mut_slice)).collect();
    file.read_many(&mut requests, any()).unwrap();
    for (start, buf) in starts.iter().zip(&bufs) {
        assert_eq!(*buf, whole[*start as usize..][..buf.len()], "at {start}");
    }
    for lens in [vec![10, 4096, 90, 5000, 7, 1], vec![10, 90, 4096], vec![1, 2, 3, 0, 5]] {
        let mut ranges: Vec<(u64, usize)> = vec![(40_000, 3)];
        let mut at = 100;
        for len in lens {
            ranges.push((at, len));
            at += len as u64;
        }
        ranges.push((50_000, 1));
        let found = file.read_many_new(&ranges, any()).unwrap();
        let wanted: Vec<_> =
            ranges.iter().map(|&(start, len)| &whole[start as usize..][..len]).collect();
        assert_eq!(found, wanted, "{ranges:?}");
    }
}

fn reading_past_the_end_is_an_error_that_says_so(bench: &Bench) {
    bench.put("short", b"0123456789");
    let path = bench.path("short");
    let file = bench.fs.open(&path, any(), bench.open()).unwrap();
    for (offset, len) in [(9, 2), (10, 1), (11, 1), (u64::MAX - 1, 8), (4096, 1), (0, 4096)] {
        let error = error_of(file.read_exact_at(offset, &mut vec![0; len], any()));
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_names(&error, &path);
        let error = error_of(file.read_new(offset, len, any()));
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_names(&error, &path);
        if offset < 1 << 60 {
            assert!(error.to_string().contains("past the end"), "{error}");
        }
    }
    let (mut a, mut b) = ([0; 5], [0; 6]);
    error_of(file.read_many(&mut [(0, &mut a[..]), (5, &mut b[..])], any()));
    error_of(file.read_many_new(&[(0, 5), (5, 6)], any()));
}

fn creating_over_a_file_empties_it(bench: &Bench) {
    bench.put("again", b"a long first content");
    bench.put("again", b"short");
    assert_eq!(bench.get("again"), b"short");
}

fn exclusive_creations_refuse_a_file_that_exists(bench: &Bench) {
    let exclusive = CreateOptions { exclusive: true, ..bench.create(0) };
    for (name, class) in [("other", FileClass::Other), ("table", FileClass::Sst)] {
        let (path, io) = (bench.path(name), IoContext { class, ..any() });
        let refuse = |moment: &str| {
            let error = error_of(bench.fs.create(&path, io, exclusive));
            assert_eq!(error.io_kind(), Some(ErrorCause::AlreadyExists), "{moment}: {error}");
            assert_names(&error, &path);
        };
        let mut file = bench.fs.create(&path, io, exclusive).unwrap();
        refuse("while it is written");
        file.append(b"the first").unwrap();
        file.sync().unwrap();
        refuse("after its sync");
        drop(file);
        refuse("after its end");
        assert_eq!(bench.fs.read(&path, io).unwrap(), b"the first", "a refusal changes nothing");
        bench.fs.remove(&path).unwrap();
        // A file that ends without a sync exists until it is removed.
        drop(bench.fs.create(&path, io, exclusive).unwrap());
        refuse("after an end without a sync");
        bench.fs.remove(&path).unwrap();
        let mut file = bench.fs.create(&path, io, exclusive).unwrap();
        file.append(b"the second").unwrap();
        file.sync().unwrap();
        drop(file);
        assert_eq!(bench.fs.read(&path, io).unwrap(), b"the second");
    }
    bench.fs.create_dir_all(&bench.path("dir")).unwrap();
    error_of(bench.fs.create(&bench.path("dir"), any(), exclusive));
    assert!(bench.fs.list(&bench.path("dir")).unwrap().is_empty());
}

fn missing_things_are_not_found_and_named(bench: &Bench) {
    let (fs, path) = (&bench.fs, bench.path("missing"));
    let inside = path.join("file");
    let log = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: Some(path.clone()) };
    let errors = [
        error_of(fs.open(&path, any(), bench.open())),
        error_of(fs.read(&path, any())),
        error_of(fs.len(&path)),
        error_of(fs.remove(&path)),
        error_of(fs.rename(&path, &bench.path("other"))),
        error_of(fs.link(&path, &bench.path("other"))),
        error_of(fs.list(&path)),
        error_of(fs.sync_dir(&path)),
        error_of(fs.remove_dir_all(&path)),
        error_of(fs.create(&inside, any(), bench.create(0))),
        error_of(fs.lock(&inside)),
        error_of(fs.create_log(&bench.path("log"), any(), log)),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_names(&error, &path);
    }
    assert!(!fs.exists(&path).unwrap());
}

fn directories_are_made_listed_and_removed(bench: &Bench) {
    let fs = &bench.fs;
    let deep = bench.path("tree/a/b");
    fs.create_dir_all(&deep).unwrap();
    fs.create_dir_all(&deep).unwrap();
    bench.put("tree/z", b"zz");
    bench.put("tree/a/b/deep", b"1");
    let seen: Vec<_> = fs.list(&bench.path("tree")).unwrap();
    let seen: Vec<_> = seen.iter().map(|e| (e.name.as_str(), e.is_dir, e.len)).collect();
    assert_eq!(seen, [("a", true, 0), ("z", false, 2)]);
    assert!(fs.exists(&deep).unwrap());
    fs.sync_dir(&bench.path("tree")).unwrap();
    error_of(fs.create_dir_all(&bench.path("tree/z")));
    error_of(fs.create(&deep, any(), bench.create(0)));
    error_of(fs.open(&deep, any(), bench.open()));
    fs.remove_dir_all(&bench.path("tree")).unwrap();
    assert!(!fs.exists(&deep).unwrap());
    assert!(!fs.exists(&bench.path("tree")).unwrap());
}

fn renames_replace_and_links_share(bench: &Bench) {
    let fs = &bench.fs;
    bench.put("from", b"new");
    bench.put("to", b"old content");
    let before = fs.open(&bench.path("to"), any(), bench.open()).unwrap();
    fs.rename(&bench.path("from"), &bench.path("to")).unwrap();
    assert_eq!(bench.get("to"), b"new");
    assert!(!fs.exists(&bench.path("from")).unwrap());
    let mut old = [0; 11];
    before.read_exact_at(0, &mut old, any()).unwrap();
    assert_eq!(&old, b"old content", "an open file outlives its name");

    fs.link(&bench.path("to"), &bench.path("link")).unwrap();
    error_of(fs.link(&bench.path("to"), &bench.path("link")));
    fs.remove(&bench.path("to")).unwrap();
    assert_eq!(bench.get("link"), b"new");
}

fn a_file_has_the_time_of_now_where_one_is_known(bench: &Bench) {
    bench.put("young", b"1");
    let known = bench.fs.modified_ms(&bench.path("young")).unwrap();
    assert!(known.is_some() || !bench.dir.exists(), "it lies on the local file system");
    if let Some(at_ms) = known {
        let now_ms = SystemClock::shared().unix_ms();
        assert!(at_ms.abs_diff(now_ms) < 3_600_000, "{at_ms} at {now_ms}");
        let error = error_of(bench.fs.modified_ms(&bench.path("none")));
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

fn an_atomic_write_replaces_and_leaves_nothing_behind(bench: &Bench) {
    let path = bench.path("pointer");
    bench.fs.write_atomic(&path, b"one", any()).unwrap();
    bench.fs.write_atomic(&path, b"two!", any()).unwrap();
    assert_eq!(bench.get("pointer"), b"two!");
    assert!(!bench.fs.exists(&bench.path("pointer.tmp")).unwrap());
}

fn a_lock_is_exclusive_until_dropped(bench: &Bench) {
    let path = bench.path("LOCK");
    let held = bench.fs.lock(&path).unwrap();
    let error = error_of(bench.fs.lock(&path));
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_names(&error, &path);
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(held);
    drop(bench.fs.lock(&path).unwrap());
    assert!(bench.fs.exists(&path).unwrap());
}

fn a_log_is_appended_synced_and_recycled(bench: &Bench) {
    let fs = &bench.fs;
    let options = |incarnation, recycle| LogOptions {
        incarnation: Epoch(incarnation),
        size_hint_bytes: 1 << 16,
        recycle,
    };
    let first = bench.path("1.log");
    let mut log = fs.create_log(&first, any(), options(1, None)).unwrap();
    let sync = log.sync_handle();
    assert!(log.is_empty());
    assert_eq!(log.append(&[b"head", b"", b"body"]).unwrap(), 0);
    assert_eq!(log.append(&[b"second record"]).unwrap(), 8);
    assert_eq!(sync.sync().unwrap(), 21);
    assert_eq!(sync.write_through().unwrap(), 21);
    let many = [&b"x"[..]; 3000];
    assert_eq!(log.append(&many).unwrap(), 21);
    assert_eq!(log.len(), 3021);
    assert_eq!(sync.write_through().unwrap(), 3021);
    assert_eq!(sync.sync().unwrap(), 3021);
    log.finish().unwrap();
    assert_eq!(sync.sync().unwrap(), 3021);
    assert_eq!(sync.write_through().unwrap(), 3021);
    drop((log, sync));
    let whole = bench.get("1.log");
    assert!(whole.starts_with(b"headbodysecond recordxxx"));

    let second = bench.path("2.log");
    let mut log = fs.create_log(&second, any(), options(2, Some(first.clone()))).unwrap();
    assert!(!fs.exists(&first).unwrap());
    assert_eq!(log.append(&[b"NEW!"]).unwrap(), 0);
    assert_eq!(log.len(), 4);
    assert_eq!(log.sync_handle().sync().unwrap(), 4);
    log.finish().unwrap();
    drop(log);
    fs.sync_dir(&bench.dir).unwrap();
    let recycled = bench.get("2.log");
    assert!(recycled.starts_with(b"NEW!"));
    assert_eq!(fs.log_tail(&second, Epoch(2)).unwrap(), None, "a finished log has no tail");
    fs.clear_log_tails(&bench.dir).unwrap();
}

fn the_free_space_is_sane(bench: &Bench) {
    if let Some(bytes) = bench.fs.free_bytes(&bench.dir).unwrap() {
        assert!(bytes < 1 << 60, "{bytes}");
    }
}

/// Runs all checks over `fs`, each in a directory of its own below `dir`. `direct` asks for direct
/// I/O.
///
/// # Panics
///
/// It panics if the file system breaks the contract.
pub fn conforms(fs: &Arc<dyn FileSystem>, dir: &Path, direct: bool) {
    let checks = [
        written_bytes_are_read_back,
        reads_may_begin_and_end_anywhere,
        reading_past_the_end_is_an_error_that_says_so,
        creating_over_a_file_empties_it,
        exclusive_creations_refuse_a_file_that_exists,
        missing_things_are_not_found_and_named,
        directories_are_made_listed_and_removed,
        renames_replace_and_links_share,
        a_file_has_the_time_of_now_where_one_is_known,
        an_atomic_write_replaces_and_leaves_nothing_behind,
        a_lock_is_exclusive_until_dropped,
        a_log_is_appended_synced_and_recycled,
        the_free_space_is_sane,
    ];
    for (index, check) in checks.iter().enumerate() {
        let dir = dir.join(format!("check{index}"));
        fs.create_dir_all(&dir).unwrap();
        check(&Bench { fs: Arc::clone(fs), dir, direct });
    }
}
