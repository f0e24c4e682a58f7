use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, ErrorKind};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::Modes;
use super::layout::{FILE_BYTES, Header, INCARNATION_AT, PAGE_BYTES, RING_BYTES};
use super::segment::RingLog;
use super::{boot_id, clear_tails, create, ring, settle, tail};
use crate::context::{FileClass, IoContext, IoPurpose};
use crate::fs::{LogFile, LogOptions};

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn create(&self, name: &str, incarnation: u64, recycle: Option<&str>) -> Box<dyn LogFile> {
        let options = LogOptions {
            incarnation: Epoch(incarnation),
            size_hint_bytes: 0,
            recycle: recycle.map(|name| self.path(name)),
        };
        let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
        create(&self.path(name), context, &options, Modes::default()).unwrap()
    }

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// The bytes that recovery would find of the segment if the process were killed now.
    fn recovered(&self, name: &str, incarnation: u64) -> Vec<u8> {
        let tail = tail(&self.path(name), Epoch(incarnation)).unwrap();
        let mut bytes = self.file(name);
        if let Some(tail) = tail {
            bytes.truncate(tail.offset as usize);
            assert_eq!(bytes.len() as u64, tail.offset, "the file ends before the tail begins");
            bytes.extend_from_slice(&tail.bytes);
        }
        bytes
    }

    fn rings(&self) -> usize {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        entries
            .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == "ring"))
            .count()
    }
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

#[test]
fn every_appended_byte_is_found_at_every_moment() {
    let bench = Bench::new();
    let mut rng = Rng::with_seed(1);
    let mut log = bench.create("1.log", 7, None);
    let sync = log.sync_handle();
    let mut expected = Vec::new();
    for step in 0..900 {
        let len = match rng.u8(..25) {
            0 => rng.usize(..900_000),
            1..10 => rng.usize(..40_000),
            _ => rng.usize(..300),
        };
        let (a, b) = (bytes(&mut rng, 28), bytes(&mut rng, len));
        assert_eq!(log.append(&[&a, &b]).unwrap(), expected.len() as u64);
        expected.extend_from_slice(&a);
        expected.extend_from_slice(&b);
        if step % 100 == 50 {
            assert!(bench.recovered("1.log", 7) == expected, "step {step}");
        }
        if step % 151 == 7 {
            assert_eq!(sync.sync().unwrap(), expected.len() as u64);
            assert!(bench.file("1.log") == expected, "a sync leaves nothing in the ring");
        }
    }
    assert!(expected.len() > 2 * RING_BYTES, "the test must go round the ring");
    assert_eq!(tail(&bench.path("1.log"), Epoch(8)).unwrap(), None, "another use has no tail");
    log.finish().unwrap();
    assert_eq!(tail(&bench.path("1.log"), Epoch(7)).unwrap(), None);
    assert!(bench.file("1.log") == expected);
    assert_eq!(sync.sync().unwrap(), expected.len() as u64, "a handle outlives the finish");
    assert_eq!(log.append(&[b"late"]).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn settling_writes_only_the_given_ranges() {
    let bench = Bench::new();
    let mut log = bench.create("1.log", 7, None);
    log.append(&[&[1; 100]]).unwrap();
    assert_eq!(log.unwritten_bytes(), 0, "the first append is in the file");
    log.append(&[&[2; 300]]).unwrap();
    assert_eq!(log.unwritten_bytes(), 300);
    // The ring looks like that of a killed process.
    let left = Bench::new();
    for entry in std::fs::read_dir(bench.dir.path()).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, left.path(from.file_name().unwrap().to_str().unwrap())).unwrap();
    }
    let path = left.path("1.log");
    settle(&path, Epoch(7), &[]).unwrap();
    assert_eq!(left.file("1.log"), [1; 100], "the file may be newer than the tail");
    settle(&path, Epoch(7), &[50..150, 200..900]).unwrap();
    let expected = [&[1u8; 100][..], &[2; 50], &[0; 50], &[2; 200]].concat();
    assert_eq!(left.file("1.log"), expected);
    log.finish().unwrap();
    assert_eq!(log.unwritten_bytes(), 0);
}

#[test]
fn sync_during_appends_reports_only_bytes_in_the_file() {
    let bench = Bench::new();
    let mut log = bench.create("1.log", 7, None);
    let sync = log.sync_handle();
    let path = bench.path("1.log");
    let record = [5u8; 1000];
    std::thread::scope(|scope| {
        let syncer = scope.spawn(|| {
            let mut before = 0;
            while before < 12_000_000 {
                let now = sync.sync().unwrap();
                assert!(now >= before);
                assert!(std::fs::metadata(&path).unwrap().len() >= now);
                before = now;
            }
        });
        for _ in 0..12_000 {
            log.append(&[&record]).unwrap();
        }
        syncer.join().unwrap();
    });
    drop(log);
    assert!(bench.file("1.log") == vec![5u8; 12_000_000]);
}

#[test]
fn first_append_is_in_the_file_immediately() {
    let bench = Bench::new();
    let mut log = bench.create("1.log", 1, None);
    log.append(&[b"header"]).unwrap();
    assert_eq!(bench.file("1.log"), b"header");
    log.append(&[&[1u8; 100_000]]).unwrap();
    drop(log);
    let mut log = bench.create("2.log", 2, Some("1.log"));
    assert!(!bench.path("1.log").exists());
    log.append(&[b"second"]).unwrap();
    log.append(&[b" use"]).unwrap();
    log.finish().unwrap();
    let file = bench.file("2.log");
    assert_eq!((&file[..10], file.len()), (&b"second use"[..], 100_006));
    assert!(file[10..].iter().all(|&byte| byte == 1));
}

#[test]
fn ring_of_a_finished_segment_is_taken_over() {
    let bench = Bench::new();
    let mut first = bench.create("1.log", 1, None);
    first.append(&[b"one"]).unwrap();
    first.append(&[b"more"]).unwrap();
    first.finish().unwrap();
    let mut second = bench.create("2.log", 2, None);
    assert_eq!(bench.rings(), 1);
    drop(first);
    second.append(&[b"head"]).unwrap();
    second.append(&[b"two"]).unwrap();
    let mut third = bench.create("3.log", 3, None);
    third.append(&[b"head"]).unwrap();
    third.append(&[b"three"]).unwrap();
    assert_eq!(bench.rings(), 2);
    clear_tails(bench.dir.path()).unwrap();
    assert_eq!(bench.recovered("2.log", 2), b"headtwo", "open segments keep their tails");
    assert_eq!(bench.recovered("3.log", 3), b"headthree");
    drop((second, third));
    clear_tails(bench.dir.path()).unwrap();
    assert_eq!(bench.rings(), 1);
}

/// The ring file of an open segment, as a killed process would leave it in another directory.
fn leave_dirty_ring(bench: &Bench) -> Vec<u8> {
    let other = Bench::new();
    let mut log = other.create("1.log", 1, None);
    log.append(&[b"header"]).unwrap();
    log.append(&[b"acknowledged"]).unwrap();
    let left = other.file("wal-0.ring");
    std::fs::write(bench.path("wal-0.ring"), &left).unwrap();
    std::fs::write(bench.path("1.log"), other.file("1.log")).unwrap();
    left
}

#[test]
fn tail_of_a_killed_process_stays_until_cleared() {
    let bench = Bench::new();
    leave_dirty_ring(&bench);
    assert_eq!(bench.recovered("1.log", 1), b"headeracknowledged");
    let mut log = bench.create("2.log", 2, None);
    log.append(&[b"header"]).unwrap();
    log.append(&[b"next"]).unwrap();
    assert_eq!(bench.rings(), 2, "the dirty ring is left alone");
    assert_eq!(bench.recovered("1.log", 1), b"headeracknowledged");
    assert_eq!(bench.recovered("2.log", 2), b"headernext");
    clear_tails(bench.dir.path()).unwrap();
    assert_eq!(tail(&bench.path("1.log"), Epoch(1)).unwrap(), None);
    assert_eq!(bench.recovered("2.log", 2), b"headernext");
}

#[test]
fn foreign_ring_file_is_no_tail() {
    let bench = Bench::new();
    let good = leave_dirty_ring(&bench);
    let mut rng = Rng::with_seed(3);
    for round in 0..300 {
        let mut ring = good.clone();
        for _ in 0..=round % 4 {
            let at = rng.usize(..200);
            ring[at] ^= 1 << rng.u8(..8);
        }
        if round % 10 == 0 {
            ring.truncate(rng.usize(..FILE_BYTES));
        }
        // Only the start is rewritten, and the rest stays.
        let file = File::options().write(true).open(bench.path("wal-0.ring")).unwrap();
        file.set_len(ring.len() as u64).unwrap();
        file.write_all_at(&ring[..ring.len().min(256)], 0).unwrap();
        if let Some(tail) = tail(&bench.path("1.log"), Epoch(1)).unwrap() {
            assert!(tail.bytes.len() <= RING_BYTES);
        }
    }
    let mut page = [0; PAGE_BYTES];
    page.copy_from_slice(&good[..PAGE_BYTES]);
    page[INCARNATION_AT..INCARNATION_AT + 8].fill(0);
    assert!(!Header::decode(&page).unwrap().is_dirty());
    std::fs::write(bench.path("wal-0.ring"), b"short").unwrap();
    let mut log = bench.create("2.log", 2, None);
    log.append(&[b"header"]).unwrap();
    log.append(&[b"works"]).unwrap();
    assert_eq!(bench.recovered("2.log", 2), b"headerworks");
}

#[test]
fn failed_drain_is_sticky_and_loses_nothing() {
    let bench = Bench::new();
    let file = File::from(memfd_create("segment", MemfdFlags::ALLOW_SEALING).unwrap());
    let segment = file.try_clone().unwrap();
    let ring = ring::take(bench.dir.path(), Modes::default()).unwrap().unwrap();
    let mut log = RingLog::new(bench.path("1.log"), segment, Epoch(1), Arc::clone(&ring));
    log.append(&[b"header"]).unwrap();
    log.append(&[b"acknowledged"]).unwrap();
    // From here on every write to the segment's file fails.
    fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    let failed = log.sync_handle().sync().unwrap_err();
    assert!(failed.context().contains("1.log"), "{failed}");
    assert_eq!(log.append(&[b"more"]).unwrap_err().context(), failed.context());
    log.finish().unwrap_err();
    drop((log, ring));
    let kept = tail(&bench.path("1.log"), Epoch(1)).unwrap().unwrap();
    assert_eq!((kept.offset, kept.bytes.as_slice()), (6, &b"acknowledged"[..]));
    let mut next = bench.create("2.log", 2, None);
    next.append(&[b"goes on"]).unwrap();
    assert_eq!(bench.rings(), 2);
    assert!(tail(&bench.path("1.log"), Epoch(1)).unwrap().is_some());
}

#[test]
fn boot_id_stays_the_same() {
    assert!(boot_id().is_some());
    assert_eq!(boot_id(), boot_id());
}
