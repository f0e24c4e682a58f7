//! Foreground first in virtual time, on a disk that serves one operation at a time in the order of
//! their arrival.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_env::device::{DeviceSpec, ThrottledFs};
use archipelago_env::foreground::{Foreground, ForegroundFs, PIECE_BYTES, WAIT_NS_MAX, YieldStats};
use archipelago_env::mem::MemFs;
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile,
};

use crate::virtual_time::VirtualClock;

const COMPACTION: IoPurpose = IoPurpose::Compaction { from: 1, to: 2 };
const READAHEAD_BYTES: usize = 2 << 20;
/// Time of a piece at 200 MB/s.
const PIECE_MS: f64 = PIECE_BYTES as f64 / 200e3;
const READAHEAD_MS: f64 = READAHEAD_BYTES as f64 / 200e3;
/// Time of a block of 4 KiB with its latency.
const BLOCK_MS: f64 = 0.02 + 1.0;

fn sst(purpose: IoPurpose) -> IoContext {
    IoContext::new(FileClass::Sst, purpose)
}

/// A disk with a file of 2 MiB, with 200 MB/s and 1 ms of latency per read.
fn disk(clock: Arc<dyn Clock>) -> Arc<ThrottledFs> {
    let spec = DeviceSpec::from_toml(
        r#"
        name = "disk"
        source = "made up"
        total_bytes_per_s = 200_000_000
        read_bytes_per_s = 200_000_000
        write_bytes_per_s = 200_000_000
        io_bytes_max = 4_194_304
        read_latency_us = 1000
        "#,
    )
    .unwrap();
    let inner = MemFs::new();
    let context = sst(IoPurpose::Flush);
    let mut file = inner.create(Path::new("f"), context, CreateOptions::default()).unwrap();
    file.append(&vec![1; READAHEAD_BYTES]).unwrap();
    file.sync().unwrap();
    ThrottledFs::new(Arc::new(inner), spec, clock)
}

fn open(fs: &dyn FileSystem) -> Arc<dyn RandomFile> {
    fs.open(Path::new("f"), sst(COMPACTION), OpenOptions::default()).unwrap()
}

fn read(file: &dyn RandomFile, bytes: usize, purpose: IoPurpose) {
    file.read_exact_at(0, &mut vec![0; bytes], sst(purpose)).unwrap();
}

/// Results of a scan and of compactions that ran in parallel.
struct Outcome {
    scan_ms_max: f64,
    scan_ms_mean: f64,
    compacted_bytes: u64,
    yielded: YieldStats,
    clock_ns: u64,
}

const COMPACTIONS: u64 = 2;
const BLOCKS: u32 = 1000;

/// A scan of 1,000 blocks in parallel with two compactions that read ahead without a pause.
fn scan_beside_compactions(foreground_first: bool, urgent: bool) -> Outcome {
    let clock = Arc::new(VirtualClock::default());
    let disk = disk(Arc::<VirtualClock>::clone(&clock));
    let gauge = Foreground::new(Arc::<VirtualClock>::clone(&clock));
    let fs: Arc<dyn FileSystem> = match foreground_first {
        true => Arc::new(ForegroundFs::new(disk, Arc::clone(&gauge))),
        false => disk,
    };
    let (done, compacted) = (AtomicBool::new(false), AtomicU64::new(0));
    let (max_ns, sum_ns) = (AtomicU64::new(0), AtomicU64::new(0));
    let scan = || {
        let file = open(&*fs);
        // These are large reads that began before the gauge knew that the disk is being read.
        for _ in 0..20 {
            if urgent {
                gauge.mark_urgent();
            }
            read(&*file, 4096, IoPurpose::ForegroundRead);
        }
        for _ in 0..BLOCKS {
            if urgent {
                gauge.mark_urgent();
            }
            let before = clock.now_ns();
            read(&*file, 4096, IoPurpose::ForegroundRead);
            let took = clock.now_ns() - before;
            max_ns.fetch_max(took, Ordering::Relaxed);
            sum_ns.fetch_add(took, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
    };
    let compaction = || {
        let file = open(&*fs);
        while !done.load(Ordering::Relaxed) {
            read(&*file, READAHEAD_BYTES, COMPACTION);
            compacted.fetch_add(READAHEAD_BYTES as u64, Ordering::Relaxed);
        }
    };
    clock.run::<()>(vec![Box::new(scan), Box::new(compaction), Box::new(compaction)]);
    Outcome {
        scan_ms_max: max_ns.into_inner() as f64 / 1e6,
        scan_ms_mean: sum_ns.into_inner() as f64 / 1e6 / f64::from(BLOCKS),
        compacted_bytes: compacted.into_inner(),
        yielded: gauge.stats(),
        clock_ns: clock.now_ns(),
    }
}

#[test]
fn short_ranges_of_garbage_collection_share_a_round_trip() {
    let clock = Arc::new(ManualClock::new(0));
    let disk = disk(Arc::<ManualClock>::clone(&clock));
    let gauge = Foreground::new(Arc::<ManualClock>::clone(&clock));
    let fs = ForegroundFs::new(Arc::<ThrottledFs>::clone(&disk), Arc::clone(&gauge));
    let file = open(&fs);
    read(&*file, 4096, IoPurpose::ForegroundRead);
    assert!(gauge.is_active(), "the device is being read");
    clock.advance(Duration::from_millis(1));
    let mut buffers = vec![vec![0; PIECE_BYTES / 8]; 20];
    let mut requests: Vec<(u64, &mut [u8])> = Vec::new();
    for (index, buffer) in (0..).zip(&mut buffers) {
        requests.push((index * PIECE_BYTES as u64 / 4, &mut buffer[..]));
    }
    let before = clock.now_ns();
    file.read_many(&mut requests, sst(IoPurpose::Gc)).unwrap();
    let ms = (clock.now_ns() - before) as f64 / 1e6;
    // 20 ranges of an eighth of a piece are three batches, each with 1 ms of latency.
    let expected = 3.0 + 2.5 * PIECE_MS;
    assert!((ms - expected).abs() < expected * 0.02, "{ms} ms, not {expected}");
    assert_eq!(disk.stats().of(IoPurpose::Gc).read_ops, 20);
}

#[test]
fn scan_waits_for_at_most_one_piece_per_compaction() {
    let without = scan_beside_compactions(false, false);
    assert!(without.scan_ms_max > READAHEAD_MS, "{} ms", without.scan_ms_max);
    let with = scan_beside_compactions(true, false);
    let most = COMPACTIONS as f64 * PIECE_MS + BLOCK_MS;
    let (max, mean) = (with.scan_ms_max, with.scan_ms_mean);
    assert!(max <= most * 1.01, "{max} ms of {most}");
    assert!(mean * 3.0 < without.scan_ms_mean, "{mean} ms, {} ms", without.scan_ms_mean);

    let seconds = with.clock_ns as f64 / 1e9;
    let waited_s = with.yielded.waited_ns as f64 / 1e9;
    assert!(with.yielded.yields > 0);
    assert!(waited_s <= COMPACTIONS as f64 * seconds * 0.55, "{waited_s} s of {seconds}");
    // Two compactions alone would have the whole disk.
    let share = with.compacted_bytes as f64 / seconds / 200e6;
    assert!(share >= 0.4, "the compactions got {share} of the disk");
}

#[test]
fn urgent_work_does_not_yield() {
    let urgent = scan_beside_compactions(true, true);
    assert_eq!(urgent.yielded, YieldStats::default());
    assert!(urgent.compacted_bytes > 0);
}

struct Bench {
    clock: Arc<ManualClock>,
    disk: Arc<ThrottledFs>,
    gauge: Arc<Foreground>,
    fs: ForegroundFs,
}

fn bench() -> Bench {
    let clock = Arc::new(ManualClock::new(0));
    let disk = disk(Arc::<ManualClock>::clone(&clock));
    let gauge = Foreground::new(Arc::<ManualClock>::clone(&clock));
    let inner = Arc::<ThrottledFs>::clone(&disk);
    Bench { clock, disk, fs: ForegroundFs::new(inner, Arc::clone(&gauge)), gauge }
}

#[test]
fn pieces_are_small_only_while_the_device_is_read() {
    let Bench { clock, disk, gauge, fs } = bench();
    let file = open(&fs);
    let ops = || disk.stats().of(COMPACTION).read_ops;
    read(&*file, READAHEAD_BYTES, COMPACTION);
    assert_eq!(ops(), 1, "nobody reads");
    read(&*file, 4096, IoPurpose::ForegroundRead);
    assert!(gauge.is_active());
    read(&*file, READAHEAD_BYTES, COMPACTION);
    assert_eq!(ops(), 1 + (READAHEAD_BYTES / PIECE_BYTES) as u64);
    clock.advance(Duration::from_secs(1));
    assert!(!gauge.is_active());
    read(&*file, READAHEAD_BYTES, COMPACTION);
    assert_eq!(ops(), 2 + (READAHEAD_BYTES / PIECE_BYTES) as u64);
    // No foreground read was in progress, except for the time after the read.
    assert!(gauge.stats().waited_ns <= 200_000);
}

#[test]
fn compaction_does_not_wait_for_reads_from_memory() {
    let clock = Arc::new(ManualClock::new(0));
    let gauge = Foreground::new(Arc::<ManualClock>::clone(&clock));
    gauge.read(|| clock.advance(Duration::from_micros(49)));
    assert!(!gauge.is_active());
    gauge.read(|| clock.advance(Duration::from_micros(50)));
    assert!(gauge.is_active());
}

#[test]
fn endless_foreground_read_delays_for_a_limited_time() {
    let Bench { clock, gauge, fs, .. } = bench();
    let file = open(&fs);
    read(&*file, 4096, IoPurpose::ForegroundRead);
    gauge.read(|| {
        let before = clock.now_ns();
        read(&*file, READAHEAD_BYTES, COMPACTION);
        let waited = gauge.stats().waited_ns;
        assert!(waited > 0 && waited * 2 <= clock.now_ns() - before + 2 * WAIT_NS_MAX);
        assert!(waited <= 8 * WAIT_NS_MAX, "{waited}");
    });
}

#[test]
fn compaction_writes_in_pieces_and_flush_does_not_wait() {
    let Bench { gauge, fs, disk, .. } = bench();
    let file = open(&fs);
    read(&*file, 4096, IoPurpose::ForegroundRead);
    let write = |name: &str, purpose| {
        let before = gauge.stats().yields;
        let mut out = fs.create(Path::new(name), sst(purpose), CreateOptions::default()).unwrap();
        out.append(&vec![3; 8 << 20]).unwrap();
        out.sync().unwrap();
        assert_eq!(out.len(), 8 << 20);
        assert_eq!(disk.len(Path::new(name)).unwrap(), 8 << 20);
        gauge.stats().yields - before
    };
    gauge.read(|| {
        assert_eq!(write("flushed", IoPurpose::Flush), 0);
        assert!(write("compacted", COMPACTION) > 0);
        gauge.mark_urgent();
        assert_eq!(write("urgent", COMPACTION), 0);
    });
}
