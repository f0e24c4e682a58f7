//! Taking a device out: nothing is lost at any step, and the directory is an empty one then.

use archipelago_base::ErrorKind;

use super::*;
use crate::fs::removal::forget_over;

type Model = BTreeMap<String, Vec<u8>>;
/// The disk at fault points, by their names: as a kill leaves it, and as power loss does.
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

/// Three devices with tables, a log and bookkeeping, and copies of what is read; closed logs.
fn filled_world(disk: &MemFs) -> (World, Model) {
    let mut world = World::new(Arc::new(disk.clone()), &[300 * KIB, 60 * KIB, 1 << 20]);
    world.policy.cache_by = crate::settings::CacheBy::File;
    let fs = world.open();
    for level in 0..6 {
        write(&fs, &format!("{level}.sst"), level, &filled(u64::from(level), 20_000));
    }
    // One that was moved on, so that each device has something.
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

/// The same world over another disk, without faults.
fn over(world: &World, disk: &MemFs) -> World {
    World {
        disk: Arc::new(disk.clone()),
        clock: Arc::new(ManualClock::new(0)),
        policy: world.policy.clone(),
        devices: world.devices.clone(),
        fault: None,
        scheme: None,
    }
}

fn without(world: &World, index: usize) -> World {
    let mut left = World { disk: Arc::clone(&world.disk), ..over(world, &MemFs::new()) };
    left.devices.remove(index);
    left
}

/// Empties the device and takes it out; what is left opens with everything.
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
fn each_device_can_be_taken_out_and_its_directory_is_an_empty_one() {
    for index in 0..3 {
        let (world, model) = filled_world(&MemFs::new());
        let root = &world.devices[index].path;
        let left = remove(&world, index, &model);
        let names: Vec<_> =
            world.disk.list(root).unwrap().into_iter().map(|entry| entry.name).collect();
        assert!(names.iter().all(|name| name == "LOCK"), "{names:?}");
        // It may come back, as a new one, and the next may go: in the end one has everything.
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
fn progress_counts_every_file_and_copies_of_what_came_up_go() {
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

#[test]
fn nothing_is_lost_by_a_kill_or_power_loss_at_any_step() {
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
            steps.extend(["home.begun", "home.taken", "home.left"]);
        }
        for step in steps {
            assert!(clones.iter().any(|(name, ..)| name == step), "{step} of {index}");
        }
        for (step, killed, lost) in &clones {
            for found in [killed, lost] {
                let at = format!("{index} at {step}");
                let still = over(&world, found);
                assert!(contents(&still.open()) == model, "{at}");
                // And then it is finished by another call.
                assert!(contents(&remove(&still, index, &model).open()) == model, "{at}");
            }
            // Once nothing lies there the others may be opened without it.
            if step == "home.left" || step == "forget.emptied" {
                let rest = World { disk: Arc::new(killed.clone()), ..over(&left, &disk) };
                assert!(contents(&rest.open()) == model, "without {index} at {step}");
            }
        }
    }
}

#[test]
fn of_two_homes_the_later_one_counts() {
    let disk = MemFs::new();
    let (mut world, model) = filled_world(&disk);
    let (clones, fault) = clones_of(&disk);
    world.fault = Some(fault);
    remove(&world, 0, &model);
    let taken = clones.lock().iter().find(|(name, ..)| name == "home.taken").unwrap().1.clone();
    // The new home goes on alone, and then the old one is there again.
    let both = over(&world, &taken.kill_clone());
    let fs = without(&both, 0).open();
    write(&fs, "later.sst", 1, &filled(8, 1_000));
    fs.close().unwrap();
    drop(fs);
    assert_eq!(contents(&both.open()).len(), model.len() + 1);
    // The old one does not go on alone: everything lies on the others.
    let alone = World { devices: vec![world.devices[0].clone()], ..over(&world, &taken) };
    let refused = alone.try_open().unwrap_err().to_string();
    assert!(refused.contains("files lie there"), "{refused}");
}

#[test]
fn two_homes_that_each_went_on_alone_are_refused() {
    let disk = MemFs::new();
    let mut world = World::new(Arc::new(disk.clone()), &[100 * KIB, 100 * KIB]);
    drop(world.open());
    let (clones, fault) = clones_of(&disk);
    world.fault = Some(fault);
    forget(&world, "dev0").unwrap();
    let taken = clones.lock().iter().find(|(name, ..)| name == "home.taken").unwrap().1.clone();
    let both = over(&world, &taken);
    drop(without(&both, 1).open());
    let refused = both.try_open().unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("\"dev0\"") && text.contains("\"dev1\""), "{text}");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn what_cannot_be_emptied_is_refused_with_the_reason() {
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
    capacities[..2].iter().for_each(|capacity| capacity.store(60_000, Ordering::Relaxed));
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
