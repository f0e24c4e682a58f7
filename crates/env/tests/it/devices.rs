//! Emulated devices in virtual time: the bandwidth and the latency of their callers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::clock::{Clock, ManualClock};
use archipelago_env::device::{DeviceSpec, Direction, ThrottledFs};
use archipelago_env::mem::MemFs;
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions, OpenOptions,
    WritableFile,
};

use crate::virtual_time::VirtualClock;

const MB: u64 = 1_000_000;
const COMPACTION: IoPurpose = IoPurpose::Compaction { from: 0, to: 1 };

/// A device with 1,000 MB/s in total, 800 per direction and 100 per stream, without other costs.
fn spec() -> DeviceSpec {
    DeviceSpec::from_toml(
        r#"
        name = "test"
        source = "made up"
        total_bytes_per_s = 1_000_000_000
        read_bytes_per_s = 800_000_000
        write_bytes_per_s = 800_000_000
        stream_bytes_per_s = 100_000_000
        io_bytes_max = 250_000
        "#,
    )
    .unwrap()
}

/// A device with pieces so small that the order of the callers hardly matters.
fn fine_spec() -> DeviceSpec {
    DeviceSpec { io_bytes_max: 50_000, ..spec() }
}

fn sst(purpose: IoPurpose) -> IoContext {
    IoContext::new(FileClass::Sst, purpose)
}

fn throttled(spec: DeviceSpec, clock: Arc<dyn Clock>) -> Arc<ThrottledFs> {
    ThrottledFs::new(Arc::new(MemFs::new()), spec, clock)
}

fn write(fs: &dyn FileSystem, name: &str, bytes: u64) {
    let context = sst(IoPurpose::Flush);
    let mut file = fs.create(Path::new(name), context, CreateOptions::default()).unwrap();
    let chunk = vec![7; 50_000];
    for _ in 0..bytes / 50_000 {
        file.append(&chunk).unwrap();
    }
    file.flush().unwrap();
}

fn read(fs: &dyn FileSystem, name: &str, times: u64, bytes: usize) {
    let file = fs.open(Path::new(name), sst(COMPACTION), OpenOptions::default()).unwrap();
    let mut buf = vec![0; bytes];
    for _ in 0..times {
        file.read_exact_at(0, &mut buf, sst(COMPACTION)).unwrap();
    }
}

type Actor = Box<dyn FnOnce() -> f64 + Send>;

/// Moves 5 MB per stream with `readers` and `writers` in parallel. Returns MB/s of each, readers
/// first.
fn rates(spec: &DeviceSpec, readers: usize, writers: usize) -> Vec<f64> {
    let clock = Arc::new(VirtualClock::default());
    let inner: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    write(&*inner, "input", MB);
    let fs = ThrottledFs::new(inner, spec.clone(), Arc::<VirtualClock>::clone(&clock));
    let actor = |index: usize| -> Actor {
        let (fs, clock) = (Arc::clone(&fs), Arc::clone(&clock));
        Box::new(move || {
            match index < readers {
                true => read(&*fs, "input", 5, MB as usize),
                false => write(&*fs, &format!("output{index}"), 5 * MB),
            }
            5e9 / clock.now_ns() as f64
        })
    };
    let rates = clock.run((0..readers + writers).map(actor).collect());
    let stats = fs.stats();
    assert_eq!(stats.total().read_bytes, readers as u64 * 5 * MB);
    assert_eq!(stats.total().write_bytes, writers as u64 * 5 * MB);
    assert_eq!((stats.readers_max, stats.writers_max), (readers, writers));
    assert_eq!((stats.readers, stats.writers), (0, 0));
    assert_eq!(stats.of(IoPurpose::Flush).write_ops, writers as u64 * (5 * MB / spec.io_bytes_max));
    rates
}

fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= expected * 0.02, "{value} is not about {expected}");
}

#[test]
fn streams_get_their_share_alone_and_in_parallel() {
    let spec = fine_spec();
    for (readers, writers) in [(1, 0), (0, 1), (0, 4), (4, 4), (10, 0), (0, 16), (10, 10)] {
        let rates = rates(&spec, readers, writers);
        for (index, rate) in rates.iter().enumerate() {
            let direction = if index < readers { Direction::Read } else { Direction::Write };
            assert_near(*rate, spec.rate(direction, readers, writers) / 1e6);
        }
    }
}

#[test]
fn stream_without_a_limit_gets_the_whole_direction() {
    let spec = DeviceSpec { stream_bytes_per_s: 0, ..spec() };
    assert_near(rates(&spec, 1, 0)[0], 800.0);
    assert_near(rates(&spec, 0, 1)[0], 800.0);
    for rate in rates(&spec, 1, 1) {
        // The stream that ends last has the device alone for its last piece.
        assert!((490.0..=520.0).contains(&rate), "{rate}");
    }
}

#[test]
fn write_bandwidth_follows_the_curve() {
    let curve = vec![(8, 1.0), (16, 0.5)];
    let spec = DeviceSpec { write_curve: curve, ..fine_spec() };
    assert_near(rates(&spec, 0, 8).iter().sum(), 800.0);
    assert_near(rates(&spec, 0, 12).iter().sum(), 600.0);
    assert_near(rates(&spec, 0, 16).iter().sum(), 400.0);
}

#[test]
fn large_operation_counts_as_several() {
    let spec = DeviceSpec { operations_per_s: 2000, ..fine_spec() };
    assert_near(rates(&spec, 0, 1)[0], 100.0);
    assert_near(rates(&spec, 0, 8).iter().sum(), 100.0);
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    write(&*fs, "file", MB);
    let before = clock.now_ns();
    read(&*fs, "file", 5000, 100);
    assert_near((clock.now_ns() - before) as f64 / 1e9, 2.5);
}

#[test]
fn operation_pays_its_latency_once() {
    let spec = DeviceSpec {
        read_latency_us: 1000,
        write_latency_us: 2000,
        sync_latency_us: 3000,
        metadata_latency_us: 500,
        ..spec()
    };
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    let took = |what: &mut dyn FnMut()| {
        let before = clock.now_ns();
        what();
        Duration::from_nanos(clock.now_ns() - before).as_secs_f64() * 1e3
    };
    let path = Path::new("file");
    let mut file = None;
    let ms = took(&mut || {
        file = fs.create(path, sst(IoPurpose::Flush), CreateOptions::default()).ok();
    });
    assert_near(ms, 0.5);
    let mut file = file.unwrap();
    assert_eq!(took(&mut || file.append(&[1; 249_999]).unwrap()), 0.0, "gathered");
    assert_near(took(&mut || file.append(&[1; 750_001]).unwrap()), 10.0 + 2.0);
    assert_near(took(&mut || file.append(&[1; 100_000]).unwrap()) + 1.0, 1.0);
    assert_near(took(&mut || file.sync().unwrap()), 1.0 + 2.0 + 3.0);
    assert_near(took(&mut || file.sync().unwrap()), 3.0);
    assert_near(took(&mut || read(&*fs, "file", 1, 1_000_000)), 10.0 + 1.0);
    assert_near(took(&mut || read(&*fs, "file", 100, 1000)), 101.0);
    let reader = fs.open(path, sst(COMPACTION), OpenOptions::default()).unwrap();
    let (mut a, mut b, mut c) = ([0; 1000], [0; 1000], [0; 1000]);
    let mut requests = [(0, &mut a[..]), (1000, &mut b[..]), (500_000, &mut c[..])];
    let ms = took(&mut || reader.read_many(&mut requests, sst(COMPACTION)).unwrap());
    assert_near(ms, 1.03);
    assert_near(took(&mut || fs.sync_dir(Path::new("")).unwrap()), 3.0);
    assert_near(took(&mut || fs.rename(path, Path::new("other")).unwrap()), 0.5);
    assert_eq!(took(&mut || assert!(fs.exists(Path::new("other")).unwrap())), 0.0);
    let compaction = fs.stats().of(COMPACTION);
    assert_eq!((compaction.read_ops, compaction.read_bytes), (4 + 100 + 2, 1_103_000));
    assert_near(compaction.waited_ns as f64 / 1e6, 11.0 + 101.0 + 1.03);
    assert_eq!(fs.stats().of(IoPurpose::Flush).syncs, 2);
}

/// Reads `count` ranges of `bytes` with gaps between them, in one call. Returns milliseconds.
fn read_many_ms(fs: &ThrottledFs, clock: &ManualClock, count: u64, bytes: usize) -> f64 {
    let file = fs.open(Path::new("file"), sst(IoPurpose::Gc), OpenOptions::default()).unwrap();
    let mut buffers = vec![vec![0; bytes]; count as usize];
    let mut requests: Vec<(u64, &mut [u8])> = Vec::new();
    for (index, buffer) in (0..count).zip(&mut buffers) {
        requests.push((index * 2 * bytes as u64, &mut buffer[..]));
    }
    let before = clock.now_ns();
    file.read_many(&mut requests, sst(IoPurpose::Gc)).unwrap();
    (clock.now_ns() - before) as f64 / 1e6
}

fn batch_device(spec: DeviceSpec) -> (Arc<ThrottledFs>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    write(&*fs, "file", 4 * MB);
    // The clock passes the time that the writer may be behind or ahead.
    clock.advance(Duration::from_secs(1));
    (fs, clock)
}

#[test]
fn ranges_of_one_call_pay_the_latency_once() {
    let (fs, clock) = batch_device(DeviceSpec { read_latency_us: 2000, ..spec() });
    // 100 ranges of 10,000 bytes at the rate of one stream, 100 MB/s.
    assert_near(read_many_ms(&fs, &clock, 100, 10_000), 10.0 + 2.0);
    let gc = fs.stats().of(IoPurpose::Gc);
    assert_eq!((gc.read_ops, gc.read_bytes), (100, MB));
    assert_near(gc.waited_ns as f64 / 1e6, 12.0);
    let before = clock.now_ns();
    read(&*fs, "file", 100, 10_000);
    assert_near((clock.now_ns() - before) as f64 / 1e6, 100.0 * 2.1);
}

#[test]
fn ranges_of_one_call_keep_the_operation_rate() {
    let spec = DeviceSpec { read_latency_us: 2000, operations_per_s: 1000, ..spec() };
    let (fs, clock) = batch_device(spec);
    assert_near(read_many_ms(&fs, &clock, 200, 100), 200.0 + 2.0);
    assert_eq!(fs.stats().of(IoPurpose::Gc).read_ops, 200);
    // A range above `io_bytes_max` counts as several operations.
    assert_near(read_many_ms(&fs, &clock, 2, 500_000), 4.0f64.max(10.0) + 2.0);
    assert_eq!(fs.stats().of(IoPurpose::Gc).read_ops, 204);
}

#[test]
fn empty_ranges_of_a_call_cost_nothing() {
    let (fs, clock) = batch_device(DeviceSpec { read_latency_us: 2000, ..spec() });
    assert_eq!(read_many_ms(&fs, &clock, 5, 0), 0.0);
    assert_eq!(read_many_ms(&fs, &clock, 0, 1), 0.0);
    assert_eq!(fs.stats().of(IoPurpose::Gc).read_ops, 0);
}

/// Batches of several callers share the bandwidth of the device like other streams.
#[test]
fn batches_of_several_callers_share_the_device() {
    let spec = DeviceSpec { read_bytes_per_s: 200 * MB, read_latency_us: 1000, ..fine_spec() };
    let clock = Arc::new(VirtualClock::default());
    let inner: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    write(&*inner, "file", 4 * MB);
    let fs = ThrottledFs::new(inner, spec, Arc::<VirtualClock>::clone(&clock));
    let actor = |_: usize| -> Actor {
        let (fs, clock) = (Arc::clone(&fs), Arc::clone(&clock));
        Box::new(move || {
            let file = fs.open(Path::new("file"), sst(COMPACTION), OpenOptions::default()).unwrap();
            let mut buffers = vec![vec![0; 10_000]; 100];
            let mut requests: Vec<(u64, &mut [u8])> = Vec::new();
            for (index, buffer) in (0..).zip(&mut buffers) {
                requests.push((index * 20_000, &mut buffer[..]));
            }
            file.read_many(&mut requests, sst(COMPACTION)).unwrap();
            clock.now_ns() as f64 / 1e6
        })
    };
    // Four callers move 1 MB each over 200 MB/s.
    let ends = clock.run((0..4).map(actor).collect());
    let last = ends.iter().copied().fold(0.0, f64::max);
    assert!((20.5..=21.5).contains(&last), "{ends:?}");
}

#[test]
fn log_write_passes_between_smaller_writes() {
    let spec = DeviceSpec { write_latency_us: 2000, stream_bytes_per_s: 0, ..spec() };
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    let options = CreateOptions { io_bytes_max: 100_000, ..CreateOptions::default() };
    let mut file = fs.create(Path::new("file"), sst(IoPurpose::Flush), options).unwrap();
    let wait = |bytes: usize, file: &mut dyn WritableFile| {
        let before = clock.now_ns();
        file.append(&vec![1; bytes]).unwrap();
        (clock.now_ns() - before) as f64 / 1e6
    };
    assert_eq!(wait(99_999, &mut *file), 0.0, "gathered");
    let one = 100_000.0 / fs.spec().direction_rate(Direction::Write, 1) * 1e3 + 2.0;
    assert_near(wait(1, &mut *file), one);
    assert_near(wait(950_000, &mut *file), 9.0 * one);
    file.sync().unwrap();
    assert_eq!(fs.stats().of(IoPurpose::Flush).write_bytes, 1_050_000);
}

#[test]
fn short_waits_are_collected_and_not_lost() {
    let spec = DeviceSpec { read_latency_us: 10, stream_bytes_per_s: 0, ..spec() };
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    write(&*fs, "file", MB);
    let before = clock.now_ns();
    read(&*fs, "file", 10_000, 8_000);
    assert_near((clock.now_ns() - before) as f64 / 1e6, 10_000.0 * 0.020);
}

/// A thread that alternates between devices owes each of them its time, although no single wait is
/// long enough for a sleep.
#[test]
fn short_waits_follow_the_thread_to_other_devices() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(0));
    let fine = DeviceSpec { read_latency_us: 50, stream_bytes_per_s: 0, ..spec() };
    let [a, b] = [(); 2].map(|()| throttled(fine.clone(), Arc::clone(&clock)));
    for fs in [&a, &b] {
        write(&**fs, "file", 50_000);
    }
    let before = clock.now_ns();
    for _ in 0..500 {
        read(&*a, "file", 1, 10);
        read(&*b, "file", 1, 10);
    }
    let passed_us = (clock.now_ns() - before) as f64 / 1e3;
    assert!((49_500.0..50_500.0).contains(&passed_us), "1000 reads of 50 us each: {passed_us}");
}

fn append(log: &mut dyn LogFile, times: usize, record: &[u8]) {
    for _ in 0..times {
        log.append(&[record]).unwrap();
    }
}

fn log_options() -> LogOptions {
    LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None }
}

#[test]
fn log_is_written_in_the_background_until_a_sync() {
    let spec = DeviceSpec { sync_latency_us: 5000, write_latency_us: 9000, ..spec() };
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let mut log = fs.create_log(Path::new("log"), context, log_options()).unwrap();
    let sync = log.sync_handle();
    let record = vec![1; 100_000];
    append(&mut *log, 100, &record);
    assert_eq!(clock.now_ns(), 0, "appends do not wait");
    assert_eq!(fs.stats().log_dirty_bytes, 10 * MB);
    assert_eq!(sync.sync().unwrap(), 10 * MB);
    assert_near(clock.now_ns() as f64 / 1e6, 100.0 + 9.0 + 5.0);

    let before = clock.now_ns();
    append(&mut *log, 100, &record);
    clock.advance(Duration::from_millis(60));
    // A piece counts as dirty until all of it is written.
    let dirty = fs.stats().log_dirty_bytes;
    assert!((4 * MB..4 * MB + 250_000).contains(&dirty), "{dirty}");
    clock.advance(Duration::from_millis(60));
    assert_eq!(sync.sync().unwrap(), 20 * MB);
    assert_near((clock.now_ns() - before) as f64 / 1e6, 120.0 + 9.0 + 5.0);
    let took_ms = |act: &mut dyn FnMut()| {
        let before = clock.now_ns();
        act();
        (clock.now_ns() - before) as f64 / 1e6
    };
    append(&mut *log, 1, &record);
    let through = took_ms(&mut || assert_eq!(sync.write_through().unwrap(), 20 * MB + 100_000));
    assert_near(through, 1.0 + 9.0);
    assert_near(took_ms(&mut || assert_eq!(sync.sync().unwrap(), 20 * MB + 100_000)), 5.0);
    let again = took_ms(&mut || assert_eq!(sync.write_through().unwrap(), 20 * MB + 100_000));
    assert_eq!(again, 0.0, "the device has it all");
    log.finish().unwrap();
    drop((log, sync));
    let stats = fs.stats();
    assert_eq!((stats.log_dirty_bytes, stats.of(context.purpose).syncs), (0, 3));
    assert_eq!(stats.of(context.purpose).write_bytes, 20 * MB + 100_000);
}

#[test]
fn append_waits_only_beyond_the_dirty_limit() {
    let spec = DeviceSpec { log_dirty_bytes_max: 5 * MB, ..spec() };
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let mut log = fs.create_log(Path::new("log"), context, log_options()).unwrap();
    let record = vec![1; 100_000];
    append(&mut *log, 50, &record);
    assert_eq!(clock.now_ns(), 0);
    append(&mut *log, 500, &record);
    let ms = clock.now_ns() as f64 / 1e6;
    assert_near(ms, 500.0);
    assert!(fs.stats().log_dirty_bytes <= 5 * MB);
    // The rest drains without a caller that waits, and without its handle.
    drop(log);
    clock.advance(Duration::from_millis(60));
    assert_eq!(fs.stats().log_dirty_bytes, 0);
}

#[test]
fn log_takes_its_share_of_the_bandwidth() {
    let spec = DeviceSpec { write_bytes_per_s: 500 * MB, stream_bytes_per_s: 0, ..spec() };
    let spec = DeviceSpec { total_bytes_per_s: 900 * MB, ..spec };
    let clock = Arc::new(ManualClock::new(0));
    let fs = throttled(spec, Arc::<ManualClock>::clone(&clock));
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let mut log = fs.create_log(Path::new("log"), context, log_options()).unwrap();
    let record = vec![1; 1_000_000];
    append(&mut *log, 50, &record);
    write(&*fs, "table", 50 * MB);
    assert_near(clock.now_ns() as f64 / 1e6, 200.0);
}

#[test]
fn described_devices_are_valid() {
    let file = |text| DeviceSpec::from_toml(text).unwrap();
    let nvme = file(include_str!("../../../../docs/devices/nvme.toml"));
    let volume = file(include_str!("../../../../docs/devices/network-volume.toml"));
    let sata = file(include_str!("../../../../docs/devices/sata.toml"));
    for spec in [&nvme, &volume, &sata] {
        assert_eq!(spec.scale, 1.0, "{}: figures are those of the sources", spec.name);
        assert!(spec.source.contains("https://"), "{} cites no page", spec.name);
    }
    assert_eq!([&nvme.name, &volume.name, &sata.name], ["nvme", "network-volume", "sata"]);
    let nvmm = file(include_str!("../../../../docs/devices/keigo-nvmm.toml"));
    let keigo_nvme = file(include_str!("../../../../docs/devices/keigo-nvme.toml"));
    let keigo_sata = file(include_str!("../../../../docs/devices/keigo-sata.toml"));
    // The paper's text gives these figures in thousands of 4 KiB writes a second.
    let thousands = |spec: &DeviceSpec, writers| {
        (spec.direction_rate(Direction::Write, writers) / 4096.0 / 1000.0).round()
    };
    assert_eq!([4, 16, 32, 64].map(|n| thousands(&nvmm, n)), [500.0, 226.0, 194.0, 188.0]);
    assert_eq!([16, 32, 64].map(|n| thousands(&keigo_nvme, n)), [235.0, 210.0, 210.0]);
    for writers in 1..=64 {
        let of = |spec: &DeviceSpec| spec.direction_rate(Direction::Write, writers);
        assert!(of(&keigo_sata) < of(&keigo_nvme).min(of(&nvmm)) * 1.31, "{writers}");
        assert_eq!(of(&keigo_sata), of(&keigo_sata).max(490e6), "no number slows it down");
    }
    // Longer writes spend more time on their bytes than on the latency of the device.
    let best = [&nvmm, &keigo_nvme].map(DeviceSpec::write_bytes_best);
    assert_eq!(best, [12_288, 61_603], "whatever the scale");
    // One stream gets at most an eighth of the network volume.
    let one = volume.rate(Direction::Write, 0, 1);
    assert!(one * 8.0 <= volume.total_rate(), "{one}");
    assert_eq!(volume.rate(Direction::Write, 0, 8), one);
    assert!(volume.rate(Direction::Write, 0, 16) < one);
    assert!(sata.rate(Direction::Write, 0, 1) < nvme.rate(Direction::Write, 0, 1));
}
