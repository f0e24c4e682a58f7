//! Kinds of devices on the real file system: each is opened by its settings and stores its tables
//! in its own way.

use std::os::unix::fs::OpenOptionsExt as _;

use archipelago_env::device::DeviceSpec;
use archipelago_env::local::LocalFs;
use rustix::fs::OFlags;

use super::*;

const SMALL: IoContext = IoContext::new(FileClass::Manifest, IoPurpose::Recovery);

/// Tiers of one device of a kind, and a plain directory as the slower device.
struct Real {
    base: tempfile::TempDir,
    clock: Arc<ManualClock>,
    first: DeviceSettings,
}

impl Real {
    fn new(kind: DeviceKind) -> Self {
        // The path as /proc names it, even if the temporary directory is a link.
        let base = tempfile::tempdir_in(std::env::temp_dir().canonicalize().unwrap()).unwrap();
        let first = DeviceSettings::new(base.path().join("first"), kind).creating();
        Self { base, clock: Arc::new(ManualClock::new(0)), first }
    }

    fn open(&self) -> Arc<TieredFs> {
        let plain =
            DeviceSettings::new(self.base.path().join("plain"), DeviceKind::Directory).creating();
        let components = Components {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            spawn: None,
            policy: Policy { fast_levels: Some(3), ..Policy::default() },
            seed: Some(1),
            ..Components::default()
        };
        let tiers = TieredFs::open(ROOT, &[self.first.clone(), plain], components).unwrap();
        tiers.create_dir_all(Path::new(ROOT)).unwrap();
        tiers
    }

    /// Writes tables and a small file, and reads them again, also after the tiers were closed and
    /// opened.
    fn check_files_are_kept(&self, kind: DeviceKind, writers_max: u32) {
        let fs = self.open();
        // Less than a block, a few blocks, and more than is mapped or gathered in one step.
        let mut before = BTreeMap::from([("CURRENT".to_owned(), b"M-1".to_vec())]);
        for (n, len) in [1, 100_000, 5 << 20].into_iter().enumerate() {
            for (level, name) in [(1, format!("{n}.sst")), (5, format!("deep-{n}.sst"))] {
                let bytes = filled(n as u64, len);
                write(&fs, &name, level, &bytes);
                before.insert(name, bytes);
            }
        }
        fs.write_atomic(&path("CURRENT"), b"M-1", IoContext::manifest(IoPurpose::Flush)).unwrap();
        fs.close().unwrap();
        drop(fs);
        let fs = self.open();
        assert!(contents(&fs) == before, "other files than were written");
        let stats = fs.stats();
        assert_eq!((holders(&stats, "L1"), holders(&stats, "L5")), (vec![0], vec![1]), "{stats}");
        assert_eq!(fs.shared.devices[0].kind, kind);
        assert_eq!([0, 1].map(|index| stats.devices[index].limit), [writers_max, 16], "{stats}");
        assert_eq!(stats.devices.iter().map(|device| device.errors).sum::<u64>(), 0, "{stats}");
        // Tables of this device move like those of any other device.
        fs.reassign(&path("2.sst"), table(5));
        fs.settle();
        assert_eq!(fs.stats().devices[1].moved.0, 1, "{}", fs.stats());
        assert!(contents(&fs) == before, "other files than before the move");
    }

    /// Path on the real file system of a file of the first device.
    fn really(&self, fs: &TieredFs, name: &str) -> PathBuf {
        let entry = fs.shared.entry("find", &path(name)).unwrap();
        let real = entry.inside.lock().main.path.clone();
        assert!(real.starts_with(&self.first.path), "{}", real.display());
        real
    }
}

/// Text of a file of the kernel about this process. Empty for a file that no longer exists.
fn kernel_says(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The flags of every open descriptor of a file.
fn open_flags(file: &Path) -> Vec<OFlags> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_of = |link: &PathBuf| std::fs::read_link(link).is_ok_and(|target| target == file);
    let flags = |link: PathBuf| {
        let info = kernel_says(Path::new("/proc/self/fdinfo").join(link.file_name()?));
        let octal = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        Some(OFlags::from_bits_retain(u32::from_str_radix(octal, 8).ok()?))
    };
    descriptors
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_of)
        .filter_map(flags)
        .collect()
}

#[test]
fn mapped_device_maps_its_tables() {
    let real = Real::new(DeviceKind::Mapped);
    real.check_files_are_kept(DeviceKind::Mapped, 4);
    let fs = real.open();
    let is_mapped = |file: &Path| kernel_says("/proc/self/maps").contains(file.to_str().unwrap());
    let file = real.really(&fs, "1.sst");
    assert!(!is_mapped(&file), "nobody reads it");
    let handle = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    assert!(is_mapped(&file));
    assert_eq!(handle.len(), 100_000);
    let small = fs.open(&path("CURRENT"), SMALL, OpenOptions::default()).unwrap();
    assert!(!is_mapped(&real.really(&fs, "CURRENT")), "tables only");
    assert_eq!(small.len(), 3);
}

#[test]
fn direct_device_bypasses_the_page_cache() {
    let real = Real::new(DeviceKind::Direct);
    real.check_files_are_kept(DeviceKind::Direct, 16);
    let mut how = std::fs::OpenOptions::new();
    how.write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
    if let Err(refused) = how.open(real.base.path().join("probe")) {
        // Tables then go through the page cache. The test has still shown that they are kept.
        println!("skipped: {} takes no O_DIRECT: {refused}", real.base.path().display());
        return;
    }
    let fs = real.open();
    let handle = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    let flags = open_flags(&real.really(&fs, "1.sst"));
    assert!(!flags.is_empty() && flags.iter().all(|flags| flags.contains(OFlags::DIRECT)));
    assert_eq!(handle.len(), 100_000);
    let writer = fs.create(&path("new.sst"), table(1), CreateOptions::default()).unwrap();
    let flags = open_flags(&real.really(&fs, "new.sst"));
    assert!(!flags.is_empty() && flags.iter().all(|flags| flags.contains(OFlags::DIRECT)));
    drop(writer);
    let small = fs.open(&path("CURRENT"), SMALL, OpenOptions::default()).unwrap();
    let flags = open_flags(&real.really(&fs, "CURRENT"));
    assert!(!flags.is_empty() && !flags.iter().any(|flags| flags.contains(OFlags::DIRECT)));
    assert_eq!(small.len(), 3);
}

#[test]
fn emulated_device_is_as_slow_as_described() {
    let mut real = Real::new(DeviceKind::Emulated);
    let spec = real.base.path().join("slow.toml");
    let text = "name = \"slow\"\nsource = \"a test\"\ntotal_bytes_per_s = 100_000_000\n\
                read_bytes_per_s = 100_000_000\nwrite_bytes_per_s = 50_000_000\n\
                read_latency_us = 20_000\n";
    DeviceSpec::from_toml(text).unwrap();
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    LocalFs::new().write_atomic(&spec, text.as_bytes(), context).unwrap();
    real.first.spec = Some(spec);
    real.check_files_are_kept(DeviceKind::Emulated, 16);
    let fs = real.open();
    let took_ms = |work: &mut dyn FnMut()| {
        let begun_ns = real.clock.now_ns();
        work();
        (real.clock.now_ns() - begun_ns) / 1_000_000
    };
    let handle = fs.open(&path("1.sst"), READ, OpenOptions::default()).unwrap();
    let mut buf = vec![0; 100_000];
    let read_ms = took_ms(&mut || handle.read_exact_at(0, &mut buf, READ).unwrap());
    // The emulation adds up waits of less than a fifth of a millisecond.
    assert!((20..=22).contains(&read_ms), "a millisecond and the latency: {read_ms} ms");
    let write_ms = took_ms(&mut || write(&fs, "new.sst", 1, &filled(7, 5_000_000)));
    assert!((99..=102).contains(&write_ms), "{write_ms} ms");
    let elsewhere = took_ms(&mut || write(&fs, "deep.sst", 5, &filled(7, 5_000_000)));
    assert_eq!(elsewhere, 0, "the other device is not emulated");
}

#[test]
fn wrong_device_description_is_refused_by_file_name() {
    let mut real = Real::new(DeviceKind::Emulated);
    let spec = real.base.path().join("slow.toml");
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    LocalFs::new().write_atomic(&spec, b"name = \"slow\"\nspeed = 3\n", context).unwrap();
    real.first.spec = Some(spec);
    let refused = TieredFs::open(ROOT, &[real.first.clone()], Components::default()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("slow.toml") && text.contains("speed"), "{text}");
    assert!(!LocalFs::new().exists(&real.first.path).unwrap());
}
