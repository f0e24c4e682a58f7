//! Removal of a device: no step loses a file, and an empty directory remains.

use archipelago_base::ErrorKind;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};

use super::*;
use crate::fs::removal::forget_over;

type Model = BTreeMap<String, Vec<u8>>;
/// Clones of the disk by the name of the fault point: after a kill, and after a power loss.
type Clones = Arc<Mutex<Vec<(String, MemFs, MemFs)>>>;

const KIB: u64 = 1024;

fn clones_of(disk: &MemFs) -> (Clones, FaultPoint) {
    let (clones, disk) = (Clones::default(), disk.clone());
    let told = Arc::clone(&clones);
    let fault: FaultPoint = Arc::new(move |name: &str| {
        let mut clones = told.lock();
        let seed = clones.len() as u64;
        clones.push((name.to_owned(), disk.kill_clone(), disk.crash_clone(seed)));
        Ok(())
    });
    (clones, fault)
}

/// Three devices with tables, a closed log, bookkeeping files, and copies of files that are read.
fn filled_world(disk: &MemFs) -> (World, Model) {
    let mut world = World::new(Arc::new(disk.clone()), &[300 * KIB, 60 * KIB, 1 << 20]);
    world.policy.cache_by = crate::settings::CacheBy::File;
    let fs = world.open();
    for level in 0..6 {
        write(&fs, &format!("{level}.sst"), level, &filled(u64::from(level), 20_000));
    }
    // This table moves on, so that each device has a file.
    fs.reassign(&path("2.sst"), table(5));
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    let mut log = fs.create_log(&path("1.log"), context, options).unwrap();
    log.append(&[&filled(9, 3_000)]).unwrap();
    log.sync_handle().sync().unwrap();
    log.finish().unwrap();
    drop(log);
    fs.write_atomic(&path("CURRENT"), b"MANIFEST-1", IoContext::manifest(IoPurpose::Flush))
        .unwrap();
    write(&fs, "empty", 1, &[]);
    fs.link(&path("4.sst"), &path("linked.sst")).unwrap();
    let file = fs.open(&path("5.sst"), READ, OpenOptions::default()).unwrap();
    (0..400).for_each(|n| file.read_exact_at(n * 40, &mut [0; 40], READ).unwrap());
    drop(file);
    world.pass(500);
    fs.step();
    assert!(fs.stats().devices[0].copies.files > 0);
    let model = contents(&fs);
    assert_eq!(model.len(), 10);
    fs.close().unwrap();
    (world, model)
}

fn parts_of(world: &World) -> Vec<DeviceParts> {
    let part = |settings: &DeviceSettings| DeviceParts {
        settings: settings.clone(),
        fs: Arc::clone(&world.disk),
        is_local: false,
    };
    world.devices.iter().map(part).collect()
}

fn forget(world: &World, name: &str) -> Result<bool> {
    forget_over(parts_of(world), None, name, world.fault.as_ref())
}

fn without(world: &World, index: usize) -> World {
    let mut left = World { disk: Arc::clone(&world.disk), ..world.over(&MemFs::new()) };
    left.devices.remove(index);
    left
}

/// Empties and removes the device. The other devices then open with all files.
fn remove(world: &World, index: usize, model: &Model) -> World {
    let name = &world.devices[index].name;
    let fs = world.open();
    fs.empty_device(name, |_| {}).unwrap();
    assert!(&contents(&fs) == model, "{name} is empty");
    fs.close().unwrap();
    drop(fs);
    forget(world, name).unwrap();
    let left = without(world, index);
    assert!(&contents(&left.open()) == model, "without {name}");
    left
}

#[test]
fn any_device_can_be_removed_and_leaves_an_empty_directory() {
    for index in 0..3 {
        let (world, model) = filled_world(&MemFs::new());
        let root = &world.devices[index].path;
        let left = remove(&world, index, &model);
        assert_eq!(world.disk.list(root).unwrap(), []);
        // The device may come back as a new one, and the next one is removed. In the end one device
        // has all files.
        let mut again = left;
        again
            .devices
            .push(DeviceSettings { capacity_bytes: 1 << 20, ..world.devices[index].clone() });
        let fs = again.open();
        assert_eq!(contents(&fs), model);
        drop(fs);
        let one = remove(&remove(&again, 0, &model), 0, &model);
        assert_eq!(one.devices.len(), 1);
        let name = one.devices[0].name.clone();
        let fs = one.open();
        let refused = fs.empty_device(&name, |_| {}).unwrap_err().to_string();
        assert!(refused.contains("the only one"), "{refused}");
    }
}

#[test]
fn emptying_reports_progress_and_admits_no_new_file() {
    let (world, _) = filled_world(&MemFs::new());
    let fs = world.open();
    let before = fs.stats().devices[2].files.values().map(|count| count.files).sum::<u64>();
    let mut told = Vec::new();
    let done = fs.empty_device("dev2", |done| told.push(done)).unwrap();
    assert_eq!((done.files, told.len() as u64), (before, before));
    assert_eq!((done.bytes, told.last().unwrap()), (done.bytes_in_all, &done));
    let stats = fs.stats();
    assert!(stats.devices[2].files.is_empty());
    assert!(stats.events.iter().any(|event| event.reason == crate::Reason::DeviceLeaves));
    write(&fs, "new.sst", 5, &filled(7, 5_000));
    assert!(fs.stats().devices[2].files.is_empty(), "nothing new goes there");
}

/// An open with any subset of the devices is refused or finds all files, and has no other effect.
/// An open with all devices finds all files.
fn check_any_devices(world: &World, disk: &MemFs, model: &Model, at: &str) {
    let all = world.devices.len();
    for chosen in 1..1 << all {
        let disk = disk.kill_clone();
        let mut some = world.over(&disk);
        let mut index = 0;
        some.devices.retain(|_| {
            index += 1;
            chosen & (1 << (index - 1)) != 0
        });
        // The open is repeated, as by a server that is restarted several times.
        for _ in 0..3 {
            if let Ok(fs) = some.try_open() {
                assert!(&contents(&fs) == model, "{chosen:b} {at}");
            }
        }
        assert!(&contents(&world.over(&disk).open()) == model, "all after {chosen:b} {at}");
    }
}

#[test]
fn removal_survives_kill_and_power_loss_at_any_step() {
    for index in 0..3 {
        let disk = MemFs::new();
        let (mut world, model) = filled_world(&disk);
        let (clones, fault) = clones_of(&disk);
        world.fault = Some(fault);
        let left = remove(&world, index, &model);
        let clones = std::mem::take(&mut *clones.lock());
        let mut steps = vec!["move.begin", "move.before_publish", "move.published"];
        steps.extend(["trash.remove", "forget.emptied"]);
        if index == 0 {
            steps.extend(["home.moves", "home.begun", "home.taken", "home.told", "home.left"]);
        }
        for step in steps {
            assert!(clones.iter().any(|(name, ..)| name == step), "{step} of {index}");
        }
        for (step, killed, lost) in &clones {
            for found in [killed, lost] {
                let at = format!("of {index} at {step}");
                check_any_devices(&world, found, &model, &at);
                // Once the namespace lies on another device, the other devices open without this
                // one.
                if ["home.taken", "home.told", "home.left", "forget.emptied"].contains(&&step[..]) {
                    let rest = left.over(&found.kill_clone());
                    assert!(contents(&rest.open()) == model, "without {at}");
                }
                // Another call completes the removal, also after an open in between.
                let again = world.over(&found.kill_clone());
                assert!(contents(&remove(&again, index, &model).open()) == model, "{at}");
                let after_kill = world.over(&found.kill_clone());
                if step.starts_with("home") || step == "forget.emptied" {
                    forget(&after_kill, &world.devices[index].name).unwrap();
                    assert!(contents(&without(&after_kill, index).open()) == model, "{at}");
                    assert_eq!(after_kill.disk.list(&world.devices[index].path).unwrap(), []);
                }
            }
        }
    }
}

#[test]
fn slower_home_passes_its_scheme_on() {
    let (mut world, model) = filled_world(&MemFs::new());
    world.devices.rotate_left(1);
    let scheme = "version = 1\nfast_levels = 4\n";
    Scheme::from_toml(scheme).unwrap();
    let context = IoContext::manifest(IoPurpose::Maintenance);
    world.disk.write_atomic(Path::new("/dev0/scheme.toml"), scheme.as_bytes(), context).unwrap();
    remove(&world, 2, &model);
    let kept = world.disk.read(Path::new("/dev1/scheme.toml"), context).unwrap();
    assert_eq!(kept, scheme.as_bytes());
    assert_eq!(world.disk.list(Path::new("/dev0")).unwrap(), []);
}

#[test]
fn second_home_is_refused() {
    let disk = MemFs::new();
    let (mut world, model) = filled_world(&disk);
    let identity = Path::new("/dev0/DEVICE");
    let before = disk.read(identity, READ).unwrap();
    let (clones, fault) = clones_of(&disk);
    world.fault = Some(fault);
    remove(&world, 0, &model);
    let left = clones.lock().iter().find(|(name, ..)| name == "home.left").unwrap().1.clone();
    left.write_atomic(identity, &before, READ).unwrap();
    let refused = world.over(&left).try_open().unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("\"dev0\"") && text.contains("\"dev1\""), "{text}");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

/// The disk of two devices without files, as it was at a step of removing the first one.
fn stopped_at(step: &str) -> (World, MemFs) {
    let disk = MemFs::new();
    let mut world = World::new(Arc::new(disk.clone()), &[100 * KIB, 100 * KIB]);
    drop(world.open());
    let (clones, fault) = clones_of(&disk);
    world.fault = Some(fault);
    forget(&world, "dev0").unwrap();
    let stopped = clones.lock().iter().find(|(name, ..)| name == step).unwrap().1.clone();
    (world.over(&stopped), stopped)
}

#[test]
fn interrupted_namespace_move_ends_before_the_next() {
    // The target of the interrupted move is removed.
    let (world, _) = stopped_at("home.moves");
    forget(&world, "dev1").unwrap();
    assert!(without(&world, 1).open().exists(Path::new(ROOT)).unwrap());
    // The target of the move, which was opened alone, is removed. The process is killed during the
    // move back.
    let (mut world, disk) = stopped_at("home.taken");
    world.devices.reverse();
    let alone = without(&world, 1).open();
    alone.create_dir_all(&path("later")).unwrap();
    alone.close().unwrap();
    drop(alone);
    let (clones, fault) = clones_of(&disk);
    world.fault = Some(fault);
    forget(&world, "dev1").unwrap();
    for (step, killed, lost) in clones.lock().iter() {
        for found in [killed, lost] {
            let fs = world.over(found).open();
            assert!(fs.exists(&path("later")).unwrap(), "at {step}");
        }
    }
}

#[test]
fn new_device_does_not_disturb_a_removal() {
    let (mut world, model) = filled_world(&MemFs::new());
    let fs = world.open();
    fs.empty_device("dev2", |_| {}).unwrap();
    fs.close().unwrap();
    drop(fs);
    let joins =
        DeviceSettings { name: "new".to_owned(), path: "/new".into(), ..world.devices[2].clone() };
    world.devices.insert(0, joins);
    assert!(!forget(&world, "new").unwrap(), "it is none yet");
    assert!(forget(&world, "dev2").unwrap());
    assert!(contents(&without(&world, 3).open()) == model);
}

#[test]
fn emptying_drops_copies_and_respects_capacities() {
    let mut world = World::new(Arc::new(MemFs::new()), &[200 * KIB, 1 << 20]);
    world.policy.cache_by = crate::settings::CacheBy::File;
    let fs = world.open();
    for n in 0..3 {
        write(&fs, &format!("fast{n}.sst"), 0, &filled(n, 20_000));
        write(&fs, &format!("slow{n}.sst"), 5, &filled(10 + n, 30_000));
    }
    for n in 0..3 {
        let file = path(&format!("slow{n}.sst"));
        let file = fs.open(&file, READ, OpenOptions::default()).unwrap();
        (0..400).for_each(|n| file.read_exact_at(n * 70, &mut [0; 70], READ).unwrap());
    }
    for _ in 0..3 {
        world.pass(500);
        fs.step();
    }
    let model = contents(&fs);
    assert_eq!(fs.stats().devices[0].copies.files, 3);
    fs.close().unwrap();
    drop(fs);
    // No iteration of the control loop ran before this.
    let fs = world.open();
    let device = &fs.shared.devices[0];
    let used = || {
        let load = |bytes: &std::sync::atomic::AtomicU64| bytes.load(Ordering::Relaxed);
        load(&device.files_bytes) + load(&device.cache_bytes)
    };
    let mut most = used();
    fs.empty_device("dev1", |_| most = most.max(used())).unwrap();
    assert!(most <= 200 * KIB, "{most} bytes");
    assert_eq!(fs.stats().devices[0].copies.files, 0, "nothing slower is left");
    assert_eq!(contents(&fs), model);
}

#[test]
fn unmovable_file_does_not_keep_others_there() {
    let disk = FaultFs::new(Arc::new(MemFs::new()), 1);
    let world = World::new(Arc::new(disk.clone()), &[1 << 20, 1 << 20]);
    let fs = world.open();
    (0..4).for_each(|n| write(&fs, &format!("{n}.sst"), 5, &filled(n, 1_000 * (n as usize + 1))));
    let entry = fs.shared.entry("look at", &path("2.sst")).unwrap();
    let lies = entry.inside.lock().main.path.clone();
    disk.add(Rule::on(Operation::Read).path(lies.to_str().unwrap()).fault(Fault::Io));
    let refused = fs.empty_device("dev1", |_| {}).unwrap_err().to_string();
    assert!(refused.contains("1 files could not") && refused.contains("3 were"), "{refused}");
    assert_eq!(fs.stats().devices[1].files["L5"].files, 1);
    disk.clear();
    fs.empty_device("dev1", |_| {}).unwrap();
    assert_eq!(contents(&fs).len(), 4);
}

#[test]
fn impossible_emptying_is_refused_with_the_reason() {
    let (world, model) = filled_world(&MemFs::new());
    let fs = world.open();
    let refused = |name: &str, words: &[&str]| {
        let error = fs.empty_device(name, |_| {}).unwrap_err();
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        error.kind()
    };
    assert_eq!(refused("dev9", &["dev9", "dev0", "dev2"]), ErrorKind::InvalidArgument);
    let capacities: Vec<_> = fs.shared.devices.iter().map(|device| &device.capacity).collect();
    capacities[..2].iter().for_each(|capacity| capacity.store(40_000, Ordering::Relaxed));
    assert_eq!(refused("dev2", &["dev2", "room for", "nothing was moved"]), ErrorKind::Io);
    capacities[0].store(300 * KIB, Ordering::Relaxed);
    let mut open = fs.create(&path("open.sst"), table(5), CreateOptions::default()).unwrap();
    open.append(b"begun").unwrap();
    let device = holders(&fs.stats(), "L5").into_iter().max().unwrap();
    assert_eq!(refused(&format!("dev{device}"), &["open.sst", "written"]), ErrorKind::Busy);
    drop(open);
    fs.remove(&path("open.sst")).unwrap();
    let reader = fs.open(&path("0.sst"), READ, OpenOptions::default()).unwrap();
    fs.empty_device("dev0", |_| {}).unwrap();
    assert!(contents(&fs) == model, "what is read is led to where it went");
    drop(reader);
    fs.close().unwrap();
    drop(fs);
    let files = forget(&world, "dev2").unwrap_err();
    assert!(files.to_string().contains("files lie on device \"dev2\""), "{files}");
    let fs = world.open();
    let busy = forget(&world, "dev0").unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    drop(fs);
}
