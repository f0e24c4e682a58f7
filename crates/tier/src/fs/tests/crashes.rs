//! Power losses and kills at every sync, and kills at every fault point, compared with a simple
//! map.

use archipelago_base::random::Rng;

use super::*;

type Model = BTreeMap<String, Vec<u8>>;

/// The disk at a sync, with the operations that may and must be on it.
struct Moment {
    disk: MemFs,
    seed: u64,
    /// Number of finished operations, and number of those that were reported as durable.
    finished: usize,
    promised: usize,
}

#[derive(Default)]
struct Progress {
    finished: usize,
    promised: usize,
    moments: Vec<Moment>,
}

/// Random operations on the tiers and on the map, with the map after each of them.
struct Script {
    rng: Rng,
    model: Model,
    next: u64,
    /// Present name of a directory.
    dir: String,
}

impl Script {
    fn name(&mut self) -> Option<String> {
        let names: Vec<_> = self.model.keys().cloned().collect();
        (!names.is_empty()).then(|| names[self.rng.usize(..names.len())].clone())
    }

    /// Does one operation. Returns whether it was a sync of names.
    fn act(&mut self, fs: &TieredFs, world: &World) -> bool {
        self.next += 1;
        let dir = if self.rng.bool() { format!("{}/", self.dir) } else { String::new() };
        let fresh = format!("{dir}{:04}", self.next);
        match (self.rng.u32(..15), self.name()) {
            (0..4, _) | (_, None) => {
                let bytes = filled(self.next, self.rng.usize(1..30_000));
                write(fs, &fresh, self.rng.u8(..6), &bytes);
                self.model.insert(fresh, bytes);
            }
            (4, Some(name)) => {
                let bytes = filled(self.next, self.rng.usize(1..5000));
                write(fs, &name, self.rng.u8(..6), &bytes);
                self.model.insert(name, bytes);
            }
            (5, Some(name)) => {
                let to = self.name().filter(|_| self.rng.bool()).unwrap_or(fresh);
                fs.rename(&path(&name), &path(&to)).unwrap();
                if let Some(bytes) = self.model.get(&name).cloned()
                    && name != to
                    && !self.same_file(fs, &name, &to)
                {
                    self.model.remove(&name);
                    self.model.insert(to, bytes);
                }
            }
            (6, Some(name)) => {
                fs.remove(&path(&name)).unwrap();
                self.model.remove(&name);
            }
            (7, Some(name)) => {
                fs.reassign(&path(&name), table(self.rng.u8(3..6)));
                fs.settle();
            }
            (8 | 9, Some(name)) => {
                let file = fs.open(&path(&name), READ, OpenOptions::default()).unwrap();
                for _ in 0..50 {
                    let at = self.rng.u64(..file.len());
                    file.read_exact_at(at, &mut [0; 1], READ).unwrap();
                }
                world.pass(500);
                fs.step();
            }
            (14, Some(_)) => {
                let from = std::mem::replace(&mut self.dir, format!("dir{}", self.next));
                fs.rename_dir(&path(&from), &path(&self.dir)).unwrap();
                let renamed = |name: String| match name.strip_prefix(&from) {
                    Some(rest) => format!("{}{rest}", self.dir),
                    None => name,
                };
                let before = std::mem::take(&mut self.model).into_iter();
                self.model = before.map(|(name, bytes)| (renamed(name), bytes)).collect();
            }
            // Files that are not settled must stay.
            (12 | 13, _) => drop(fs.shared.empty_trash(false).unwrap()),
            _ => {
                fs.sync_dir(Path::new(ROOT)).unwrap();
                return true;
            }
        }
        false
    }

    /// Whether a rename did nothing, because both names are of one file. The test makes no links.
    fn same_file(&self, fs: &TieredFs, from: &str, _to: &str) -> bool {
        fs.exists(&path(from)).unwrap()
    }
}

/// Opens the disk and returns its files. Checks that no other file lies there, and that another
/// power loss or kill after that changes nothing.
fn recovered(disk: &MemFs, world: &World) -> Model {
    let found = recovered_once(disk, world);
    for again in [disk.crash_clone(found.len() as u64), disk.kill_clone()] {
        assert_eq!(recovered_once(&again, world), found);
    }
    found
}

fn recovered_once(disk: &MemFs, world: &World) -> Model {
    let world = world.over(disk);
    let fs = world.try_open().unwrap();
    if !fs.exists(Path::new(ROOT)).unwrap() {
        return Model::new();
    }
    let found = contents(&fs);
    let stats = fs.stats();
    let copies: u64 = stats.devices.iter().map(|device| device.copies.files).sum();
    assert_eq!(
        physical(&*world.disk, 2),
        (found.len(), copies as usize),
        "one copy counts, no strays"
    );
    let load = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
    let devices = fs.shared.devices.iter();
    let used: u64 =
        devices.map(|device| load(&device.files_bytes) + load(&device.cache_bytes)).sum();
    let files: usize = found.values().map(Vec::len).sum();
    let copied: u64 = stats.devices.iter().map(|device| device.copies.bytes).sum();
    assert_eq!(used, files as u64 + copied, "capacity counts real bytes");
    assert!(stats.devices.iter().all(|device| device.copies_made.2 == 0), "no copy was damaged");
    found
}

fn run(seed: u64, operations: usize) {
    let disk = MemFs::new();
    let world = World::new(Arc::new(disk.clone()), &[150 << 10, 1 << 20]);
    let fs = world.open();
    let progress: Arc<Mutex<Progress>> = Arc::default();
    let told = Arc::clone(&progress);
    disk.on_sync(Arc::new(move |disk, _| {
        let mut progress = told.lock();
        let seed = progress.moments.len() as u64;
        let (finished, promised) = (progress.finished, progress.promised);
        let disk = if seed.is_multiple_of(4) { disk.kill_clone() } else { disk.crash_clone(seed) };
        progress.moments.push(Moment { disk, seed, finished, promised });
    }));
    let mut script =
        Script { rng: Rng::with_seed(seed), model: Model::new(), next: 0, dir: "dir".to_owned() };
    fs.create_dir_all(&path(&script.dir)).unwrap();
    let mut history = vec![Model::new()];
    for _ in 0..operations {
        let synced = script.act(&fs, &world);
        history.push(script.model.clone());
        let mut progress = progress.lock();
        progress.finished = history.len() - 1;
        if synced {
            progress.promised = history.len() - 1;
        }
    }
    disk.clear_on_sync();
    assert_eq!(contents(&fs), script.model);
    let moments = std::mem::take(&mut progress.lock().moments);
    assert!(moments.len() > operations / 2, "{} moments", moments.len());
    for moment in &moments {
        let killed = moment.seed.is_multiple_of(4);
        let found = recovered(&moment.disk, &world);
        let first = if killed { moment.finished } else { moment.promised };
        // The operation in progress may have been done as well.
        let last = (moment.finished + 1).min(history.len() - 1);
        let fits =
            (first..=last).any(|at| history[at] == found || is_between(&history, at, &found));
        assert!(
            fits,
            "seed {seed}, moment {}: {:?} is no state from {first} to {last}: {:?} … {:?}",
            moment.seed,
            found.keys(),
            history[first].keys(),
            history[last].keys()
        );
    }
    drop(fs);
    assert_eq!(recovered(&disk, &world), script.model);
}

/// Whether `found` is the state after operation `at`, except for a file that was being written: its
/// name exists before its bytes do.
fn is_between(history: &[Model], at: usize, found: &Model) -> bool {
    let Some(next) = history.get(at + 1) else { return false };
    let same_names = found.keys().eq(next.keys());
    let differing: Vec<_> =
        next.iter().filter(|(name, bytes)| found.get(*name) != Some(bytes)).collect();
    same_names
        && differing.len() <= 1
        && differing.iter().all(|(name, _)| history[at].get(*name) != next.get(*name))
}

#[test]
fn files_survive_power_loss_or_kill_at_every_sync() {
    for seed in 0..12 {
        run(seed, 60);
    }
}

/// Clones of the disk by the name of the fault point: after a kill, and after a power loss.
type Clones = Arc<Mutex<Vec<(String, MemFs, MemFs)>>>;

/// Tiers that clone the disk at every step of background work.
fn cloned_at_steps(capacities: &[u64]) -> (World, Clones) {
    let disk = MemFs::new();
    let mut world = World::new(Arc::new(disk.clone()), capacities);
    let clones = Clones::default();
    let told = Arc::clone(&clones);
    world.fault = Some(Arc::new(move |name| {
        let mut clones = told.lock();
        let seed = clones.len() as u64;
        clones.push((name.to_owned(), disk.kill_clone(), disk.crash_clone(seed)));
        Ok(())
    }));
    (world, clones)
}

#[test]
fn files_survive_a_kill_at_every_step_of_moves_and_copies() {
    let (world, clones) = cloned_at_steps(&[150 << 10, 1 << 20]);
    let fs = world.open();
    let mut expected = Model::new();
    for n in 0..8u64 {
        let bytes = filled(n, 20_000);
        write(&fs, &n.to_string(), (n % 6) as u8, &bytes);
        expected.insert(n.to_string(), bytes);
    }
    fs.sync_dir(Path::new(ROOT)).unwrap();
    clones.lock().clear();
    for n in 0..8u64 {
        fs.reassign(&path(&n.to_string()), table(5));
        let file = fs.open(&path(&n.to_string()), READ, OpenOptions::default()).unwrap();
        for at in 0..60 {
            file.read_exact_at(at * 300, &mut [0; 10], READ).unwrap();
        }
        drop(file);
        world.pass(500);
        fs.step();
    }
    // Copies are dropped, as for a growing table.
    let growing = clones.lock().len();
    let device = &fs.shared.devices[0];
    device.capacity.store(device.files_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    fs.shared.make_room(0, 0);
    assert_eq!(fs.stats().devices[0].copies.files, 0);
    let clones = std::mem::take(&mut *clones.lock());
    let steps: std::collections::BTreeSet<_> = clones.iter().map(|(name, ..)| &name[..]).collect();
    for kind in ["move", "copy"] {
        for step in ["begin", "copied", "synced", "before_publish", "published"] {
            assert!(steps.contains(format!("{kind}.{step}").as_str()), "{kind}.{step}: {steps:?}");
        }
    }
    for step in ["ballast.written", "trash.remove"] {
        assert!(steps.contains(step), "{step}: {steps:?}");
    }
    for step in ["drop.begin", "drop.recorded", "drop.removed"] {
        let seen = clones[growing..].iter().any(|(name, ..)| name == step);
        assert!(seen, "{step}: {steps:?}");
    }
    for (name, killed, lost) in &clones {
        assert!(recovered(killed, &world) == expected, "killed at {name}");
        assert!(recovered(lost, &world) == expected, "power lost at {name}");
    }
}

#[test]
fn removed_file_is_gone_or_whole_after_a_kill_at_every_step() {
    let (world, clones) = cloned_at_steps(&[1 << 20, 1 << 20]);
    let fs = world.open();
    let all: Model = (0..6u64).map(|n| (n.to_string(), filled(n, 3_000))).collect();
    for (n, (name, bytes)) in all.iter().enumerate() {
        write(&fs, name, n as u8, bytes);
    }
    fs.sync_dir(Path::new(ROOT)).unwrap();
    clones.lock().clear();
    // Files are removed one by one, and in directories.
    for names in [&["0"][..], &["1", "2", "3"]] {
        names.iter().for_each(|name| fs.remove(&path(name)).unwrap());
        fs.settle();
    }
    let left: Model = all.clone().split_off("4");
    assert_eq!(contents(&fs), left);
    let clones = std::mem::take(&mut *clones.lock());
    let count = |step: &str| clones.iter().filter(|(name, ..)| name == step).count();
    assert_eq!((count("names.changed"), count("trash.remove")), (4, 4));
    for (name, killed, lost) in &clones {
        for found in [recovered(killed, &world), recovered(lost, &world)] {
            // Every name that exists leads to all bytes of its file.
            assert!(found.iter().all(|(name, bytes)| all.get(name) == Some(bytes)), "at {name}");
            assert!(left.keys().all(|name| found.contains_key(name)), "at {name}");
        }
    }
}

#[test]
fn changes_during_a_sync_are_not_settled_by_it() {
    for seed in 0..40 {
        let disk = MemFs::new();
        let mut world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
        let tiers: Arc<Mutex<Option<Arc<TieredFs>>>> = Arc::default();
        let inside = Arc::clone(&tiers);
        world.fault = Some(Arc::new(move |name| {
            let fs = inside.lock().take();
            if let Some(fs) = fs.filter(|_| name == "sync.after_names") {
                write(&fs, "new", 5, &filled(2, 100));
                fs.remove(&path("old"))?;
            }
            Ok(())
        }));
        let fs = world.open();
        // The old file lies in another directory than the new one. So a power loss may undo one of
        // the two changes alone.
        write(&fs, "old", 0, &filled(1, 100));
        fs.sync_dir(Path::new(ROOT)).unwrap();
        write(&fs, "other", 5, &filled(3, 100));
        *tiers.lock() = Some(Arc::clone(&fs));
        fs.sync_dir(Path::new(ROOT)).unwrap();
        assert!(fs.exists(&path("new")).unwrap() && !fs.exists(&path("old")).unwrap());
        fs.shared.empty_trash(false).unwrap();
        let found = recovered(&disk.crash_clone(seed), &world);
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert!(
            [&["new", "other"][..], &["new", "old", "other"], &["old", "other"]]
                .contains(&&names[..]),
            "{names:?}"
        );
    }
}

#[test]
fn number_of_a_lost_record_is_not_used_again() {
    let disk: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let world = World::new(Arc::clone(&disk), &[1 << 30, 1 << 30]);
    world.open().close().unwrap();
    // A power loss took the records of these logs, but not their files. The test leaves the files
    // twice, because a power loss may also undo the removal of files without a record.
    let leave_strays = || {
        let dir = Path::new("/dev0/logs-00000000000000aa");
        disk.create_dir_all(dir).unwrap();
        for number in 0..32 {
            let stray = dir.join(format!("{number:016x}.log"));
            let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
            let mut file = disk.create(&stray, context, CreateOptions::default()).unwrap();
            file.append(&filled(number, 4000)).unwrap();
        }
    };
    leave_strays();
    let fs = world.open();
    let bytes = filled(7, 500);
    write(&fs, "7.sst", 0, &bytes);
    fs.close().unwrap();
    drop(fs);
    leave_strays();
    assert_eq!(contents(&world.open()), BTreeMap::from([("7.sst".to_owned(), bytes)]));
}
