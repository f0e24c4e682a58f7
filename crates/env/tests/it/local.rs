//! Properties of the operating system's files: full devices, other devices, reserved space.

use std::path::Path;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::local::LocalFs;
use archipelago_env::{CreateOptions, FileSystem, LogOptions, OpenOptions};
use rustix::fs::stat;
use tempfile::TempDir;

use crate::any;

/// A device on which every write fails for lack of space. It also refuses direct I/O.
const FULL: &str = "/dev/full";

#[test]
fn error_of_a_full_device_names_the_file_and_is_sticky() {
    let fs = LocalFs::new();
    for direct in [false, true] {
        let options =
            CreateOptions { direct, size_hint_bytes: 1 << 20, ..CreateOptions::default() };
        let mut file = fs.create(Path::new(FULL), any(), options).unwrap();
        file.append(b"fits the buffer").unwrap();
        let first = file.flush().unwrap_err();
        assert!(first.is_no_space() && first.to_string().contains(FULL), "{first}");
        for again in [file.flush(), file.append(b"more"), file.sync()] {
            assert_eq!(again.unwrap_err().to_string(), first.to_string());
        }
        let mut file = fs.create(Path::new(FULL), any(), options).unwrap();
        assert!(file.append(&vec![0; 3 << 20]).unwrap_err().is_no_space());
    }
}

#[test]
fn reserved_space_that_was_not_needed_is_freed() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fs = LocalFs::new();
    for direct in [false, true] {
        let path = dir.path().join("file");
        let options =
            CreateOptions { direct, size_hint_bytes: 8 << 20, ..CreateOptions::default() };
        let mut file = fs.create(&path, any(), options).unwrap();
        file.append(&[1; 100_000]).unwrap();
        file.sync().unwrap();
        drop(file);
        let stat = stat(&path).unwrap();
        assert_eq!(stat.st_size, 100_000);
        assert!(stat.st_blocks * 512 < 1 << 20, "{} blocks stay reserved", stat.st_blocks);
    }
}

#[test]
fn small_writes_make_the_same_file() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fs = LocalFs::new();
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    for direct in [false, true] {
        for io_bytes_max in [1, 5000, 16 << 10, 8 << 20] {
            let path = dir.path().join("file");
            let options = CreateOptions { direct, io_bytes_max, ..CreateOptions::default() };
            let mut file = fs.create(&path, any(), options).unwrap();
            bytes.chunks(7001).for_each(|chunk| file.append(chunk).unwrap());
            file.sync().unwrap();
            drop(file);
            assert_eq!(fs.read(&path, any()).unwrap(), bytes, "{direct} {io_bytes_max}");
        }
    }
}

#[test]
fn link_to_another_device_is_unsupported() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file");
    LocalFs::new().write_atomic(&path, b"x", any()).unwrap();
    let error = LocalFs::new().link(&path, Path::new("/dev/archipelago-test-link")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn read_of_a_shortened_file_fails() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    for direct in [false, true] {
        LocalFs::new().write_atomic(&path, &[5; 10_000], any()).unwrap();
        let file = LocalFs::new().open(&path, any(), OpenOptions { direct }).unwrap();
        drop(LocalFs::new().create(&path, any(), CreateOptions::default()).unwrap());
        let error = file.read_exact_at(5000, &mut [0; 100], any()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("file"), "{error}");
    }
}

#[test]
fn log_syncs_on_one_thread_while_another_appends() {
    let dir = TempDir::new().unwrap();
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 1 << 20, recycle: None };
    let path = dir.path().join("log");
    let mut log = LocalFs::new().create_log(&path, any(), options).unwrap();
    let syncs: Vec<_> = (0..2).map(|_| log.sync_handle()).collect();
    std::thread::scope(|scope| {
        for sync in &syncs {
            scope.spawn(move || {
                let mut through = 0;
                for _ in 0..10 {
                    let now = sync.sync().unwrap();
                    assert!(now >= through, "what is durable only grows");
                    through = now;
                }
            });
        }
        for index in 0..2000u32 {
            assert_eq!(log.append(&[&index.to_le_bytes()]).unwrap(), u64::from(index) * 4);
        }
    });
    assert_eq!(syncs[0].sync().unwrap(), 8000);
    log.finish().unwrap();
    drop(log);
    let bytes = LocalFs::new().read(&path, any()).unwrap();
    let expected: Vec<u8> = (0..2000u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(bytes[..8000], expected);
}
