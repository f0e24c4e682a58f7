//! Value files: their place, their copies, and what garbage collection changes.

use archipelago_env::device::{DeviceSpec, ThrottledFs};

use super::*;

const KIB: u64 = 1024;

fn values(purpose: IoPurpose) -> IoContext {
    IoContext::new(FileClass::ValueSst, purpose)
}

fn write_values(fs: &TieredFs, name: &str, purpose: IoPurpose, bytes: &[u8]) {
    let mut file = fs.create(&path(name), values(purpose), CreateOptions::default()).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
}

fn copies(fs: &TieredFs, name: &str) -> usize {
    fs.shared.entry("find", &path(name)).unwrap().inside.lock().copies.len()
}

/// Two rounds of reads at the start of each file of 20,000 bytes, so that its ranges are hot.
fn make_hot(world: &World, fs: &TieredFs, names: &[&str]) {
    for _ in 0..2 {
        for name in names {
            let context = values(IoPurpose::ForegroundRead);
            let file = fs.open(&path(name), context, OpenOptions::default()).unwrap();
            for n in 0..4000 {
                file.read_exact_at(n * 20 % 19_000, &mut [0; 100], context).unwrap();
            }
        }
        world.pass(500);
        fs.step();
    }
}

#[test]
fn value_files_of_every_job_lie_on_the_capacity_device() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20, 1 << 20]);
    let fs = world.open();
    let compaction = IoPurpose::Compaction { from: 0, to: 1 };
    let jobs = [IoPurpose::Flush, compaction, IoPurpose::Gc, IoPurpose::Maintenance];
    for (n, purpose) in (0..).zip(jobs) {
        write_values(&fs, &format!("{n}.vsst"), purpose, &filled(n, 5000));
    }
    let expected = contents(&fs);
    let check = |fs: &TieredFs| {
        assert_eq!(holders(&fs.stats(), "values"), [1]);
        assert_eq!(fs.stats().devices[1].files["values"].files, 4);
        let found = fs.file_info(&path("2.vsst")).unwrap();
        assert_eq!((found.class, found.level, found.device), (FileClass::ValueSst, None, 1));
    };
    check(&fs);
    drop(fs);
    let fs = world.open();
    check(&fs);
    assert_eq!(contents(&fs), expected, "the namespace keeps the class");
}

#[test]
fn value_file_passes_over_a_full_capacity_device() {
    let world = World::new(Arc::new(MemFs::new()), &[1 << 20, 10 * KIB, 1 << 20]);
    let fs = world.open();
    let context = values(IoPurpose::Gc);
    let options = CreateOptions { size_hint_bytes: 20_000, ..CreateOptions::default() };
    drop(fs.create(&path("1.vsst"), context, options).unwrap());
    assert_eq!(holders(&fs.stats(), "values"), [2]);
}

#[test]
fn hot_value_files_are_copied_to_the_fastest_device() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = world.open();
    for (n, name) in (0..).zip(["hot.vsst", "cold.vsst"]) {
        write_values(&fs, name, IoPurpose::Flush, &filled(n, 20_000));
    }
    make_hot(&world, &fs, &["hot.vsst"]);
    assert_eq!((copies(&fs, "hot.vsst"), copies(&fs, "cold.vsst")), (1, 0));
    assert_eq!(fs.stats().devices[0].copies.files, 1);
    assert_eq!(
        fs.read(&path("hot.vsst"), values(IoPurpose::ForegroundRead)).unwrap()[..],
        filled(0, 20_000)
    );
}

#[test]
fn reads_of_garbage_collection_make_no_file_hot() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = world.open();
    write_values(&fs, "1.vsst", IoPurpose::Flush, &filled(1, 20_000));
    let file = fs.open(&path("1.vsst"), values(IoPurpose::Gc), OpenOptions::default()).unwrap();
    let mut buf = vec![0; 20_000];
    for _ in 0..2 {
        (0..500).for_each(|_| file.read_exact_at(0, &mut buf, values(IoPurpose::Gc)).unwrap());
        world.pass(500);
        fs.step();
    }
    assert_eq!(copies(&fs, "1.vsst"), 0);
}

/// A garbage collection looks keys up in tables. The heat of these tables does not pass to the
/// value files.
#[test]
fn heir_inherits_heat_of_the_value_files_only() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = world.open();
    write(&fs, "keys.sst", 5, &filled(1, 20_000));
    write_values(&fs, "old.vsst", IoPurpose::Flush, &filled(2, 20_000));
    let read = |name: &str, class: FileClass, purpose: IoPurpose, times: usize| {
        let context = IoContext::new(class, purpose);
        let file = fs.open(&path(name), context, OpenOptions::default()).unwrap();
        let mut buf = vec![0; 20_000];
        (0..times).for_each(|_| file.read_exact_at(0, &mut buf, context).unwrap());
    };
    read("keys.sst", FileClass::Sst, IoPurpose::ForegroundRead, 900);
    read("old.vsst", FileClass::ValueSst, IoPurpose::ForegroundRead, 300);
    world.pass(500);
    fs.step();
    read("keys.sst", FileClass::Sst, IoPurpose::Gc, 1);
    read("old.vsst", FileClass::ValueSst, IoPurpose::Gc, 1);
    write_values(&fs, "heir.vsst", IoPurpose::Gc, &filled(2, 20_000));
    let heat = |name: &str| fs.shared.entry("find", &path(name)).unwrap().accesses.heat();
    assert!((heat("heir.vsst") - 300.0).abs() < 1.0, "{}", heat("heir.vsst"));
}

/// A device with a latency, so that the number of round trips follows from its waiting time.
fn slow_disk() -> Arc<ThrottledFs> {
    let spec = DeviceSpec::from_toml(
        r#"
        name = "disk"
        source = "made up"
        total_bytes_per_s = 1_000_000_000_000
        read_bytes_per_s = 1_000_000_000_000
        write_bytes_per_s = 1_000_000_000_000
        read_latency_us = 1000
        "#,
    )
    .unwrap();
    ThrottledFs::new(Arc::new(MemFs::new()), spec, Arc::new(ManualClock::new(0)))
}

#[test]
fn batch_is_one_round_trip_to_each_device() {
    let disk = slow_disk();
    let world = World::new(Arc::<ThrottledFs>::clone(&disk), &[200 * KIB, 1 << 20]);
    let fs = world.open();
    let bytes = filled(1, 20_000);
    write_values(&fs, "1.vsst", IoPurpose::Flush, &bytes);
    let context = values(IoPurpose::ForegroundRead);
    let file = fs.open(&path("1.vsst"), context, OpenOptions::default()).unwrap();
    let trips = || {
        let before = disk.stats().of(IoPurpose::ForegroundRead);
        let mut buffers = vec![[0; 100]; 20];
        let mut requests: Vec<(u64, &mut [u8])> = Vec::new();
        for (n, buffer) in (0..).zip(&mut buffers) {
            requests.push((n * 900, &mut buffer[..]));
        }
        file.read_many(&mut requests, context).unwrap();
        for (n, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer[..], bytes[n * 900..n * 900 + 100]);
        }
        let now = disk.stats().of(IoPurpose::ForegroundRead);
        ((now.waited_ns - before.waited_ns) / 1_000_000, now.read_ops - before.read_ops)
    };
    assert_eq!(trips(), (1, 20), "the original");
    make_hot(&world, &fs, &["1.vsst"]);
    assert_eq!(copies(&fs, "1.vsst"), 1);
    let hits = fs.shared.devices[0].get(crate::device::Count::CacheHits);
    // Requests that share or touch chunks of the copy are fewer operations.
    assert_eq!(trips().0, 1, "the copy");
    assert_eq!(fs.shared.devices[0].get(crate::device::Count::CacheHits) - hits, 20);
}

#[test]
fn batch_of_a_damaged_copy_is_read_from_the_original() {
    let world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    let fs = world.open();
    let bytes = filled(1, 20_000);
    write_values(&fs, "1.vsst", IoPurpose::Flush, &bytes);
    make_hot(&world, &fs, &["1.vsst"]);
    let context = values(IoPurpose::ForegroundRead);
    let file = fs.open(&path("1.vsst"), context, OpenOptions::default()).unwrap();
    let copy = {
        let entry = fs.shared.entry("find", &path("1.vsst")).unwrap();
        let inside = entry.inside.lock();
        inside.copies[0].physical.path.clone()
    };
    let mut damaged = world.disk.read(&copy, READ).unwrap();
    damaged[5000] ^= 1;
    let index = damaged.split_off(5001);
    let mut written = world.disk.create(&copy, READ, CreateOptions::default()).unwrap();
    written.append(&damaged).and_then(|()| written.append(&index)).unwrap();
    written.sync().unwrap();
    let (mut first, mut second) = ([0; 100], [0; 3000]);
    let mut requests = [(0, &mut first[..]), (4000, &mut second[..])];
    file.read_many(&mut requests, context).unwrap();
    assert_eq!((&first[..], &second[..]), (&bytes[..100], &bytes[4000..7000]));
    assert_eq!(copies(&fs, "1.vsst"), 0, "the damaged copy is dropped");
}

#[test]
fn redundancy_is_that_of_the_device_of_the_class() {
    #[derive(Debug)]
    struct Replicated {
        inner: MemFs,
    }
    impl FileSystem for Replicated {
        fn redundancy(&self, _class: FileClass) -> f64 {
            3.0
        }
        fn recycles_logs(&self) -> bool {
            false
        }
        archipelago_env::forward_fs!(
            inner: create, open, create_log, remove, logs, looks, moves, dirs, host, space
        );
    }
    let world = World::new(Arc::new(Replicated { inner: MemFs::new() }), &[1 << 20, 1 << 20]);
    let fs = world.open();
    assert_eq!(fs.redundancy(FileClass::ValueSst), 3.0);
    assert!(!fs.recycles_logs());
    let of = device_of_class;
    let classes = [FileClass::Wal, FileClass::Manifest, FileClass::Sst, FileClass::ValueSst];
    assert_eq!(classes.map(|class| of(class, 3)), [0, 0, 1, 1]);
    assert_eq!(classes.map(|class| of(class, 1)), [0; 4]);
}
