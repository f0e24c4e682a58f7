//! Volumes and their files over storage nodes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::suite::conforms;
use archipelago_env::{
    CreateOptions, FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions,
};
use archipelago_store::nodes::NodeStoresOptions;
use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::volume::{Volume, list};
use archipelago_store::{CopyTarget, Register, StoreFs, Stores, Swap, Versioned};

use crate::world::{Owner, VOLUME, World, options};

const DIR: &str = "/db";

fn at(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn context(class: FileClass) -> IoContext {
    IoContext::new(class, IoPurpose::Maintenance)
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + salt) as u8).collect()
}

/// Writes a file of a class, durably.
fn put(owner: &Owner, name: &str, class: FileClass, bytes: &[u8]) {
    let mut file = owner.fs.create(&at(name), context(class), CreateOptions::default()).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
    owner.fs.sync_dir(Path::new(DIR)).unwrap();
}

fn get(owner: &Owner, name: &str) -> Vec<u8> {
    owner.fs.read(&at(name), context(FileClass::Other)).unwrap()
}

fn create_log(owner: &Owner, name: &str) -> Box<dyn LogFile> {
    let options = LogOptions { incarnation: Epoch(1), size_hint_bytes: 0, recycle: None };
    owner.fs.create_log(&at(name), context(FileClass::Wal), options).unwrap()
}

fn new_owner(world: &mut World) -> Owner {
    let owner = Owner::of_new_volume(world);
    owner.fs.create_dir_all(Path::new(DIR)).unwrap();
    owner
}

/// The durable files of a test: a table, a value file, a manifest that grew, and a small file.
const FILES: [(&str, FileClass, usize); 4] = [
    ("1.sst", FileClass::Sst, 300_000),
    ("1.vsst", FileClass::ValueSst, 3_000_000),
    ("MANIFEST-1", FileClass::Manifest, 40_000),
    ("CURRENT", FileClass::Manifest, 16),
];

fn put_all(owner: &Owner) {
    for (salt, (name, class, len)) in FILES.into_iter().enumerate() {
        put(owner, name, class, &pattern(len, salt));
    }
}

fn check_all(owner: &Owner, what: &str) {
    for (salt, (name, _, len)) in FILES.into_iter().enumerate() {
        assert!(get(owner, name) == pattern(len, salt), "{what}: {name} differs");
    }
}

#[test]
fn files_on_nodes_conform() {
    let mut world = World::founded(6, 1);
    let owner = Owner::of_new_volume(&mut world);
    conforms(&(Arc::clone(&owner.fs) as Arc<dyn FileSystem>), Path::new(DIR), false);
}

#[test]
fn files_on_nodes_conform_after_a_take_over() {
    let mut world = World::founded(3, 2);
    let first = Owner::of_new_volume(&mut world);
    conforms(&(Arc::clone(&first.fs) as Arc<dyn FileSystem>), Path::new("/first"), false);
    first.kill();
    let second = Owner::take_over(&mut world).unwrap();
    conforms(&(Arc::clone(&second.fs) as Arc<dyn FileSystem>), Path::new("/second"), true);
}

#[test]
fn tables_and_manifests_survive_the_loss_of_each_pair() {
    let mut world = World::founded(6, 3);
    let mut owner = new_owner(&mut world);
    put_all(&owner);
    for one in 0..6 {
        for other in one + 1..6 {
            world.kill(one);
            world.lose_power(other);
            check_all(&owner, &format!("without {one} and {other}"));
            owner.kill();
            owner = Owner::take_over(&mut world).unwrap();
            check_all(&owner, &format!("after a take-over without {one} and {other}"));
            world.start_all();
        }
    }
}

#[test]
fn acknowledged_appends_survive_each_node_and_the_owner() {
    let mut world = World::founded(6, 4);
    let mut owner = new_owner(&mut world);
    for lost in 0..6 {
        let name = format!("{lost}.log");
        let mut log = create_log(&owner, &name);
        owner.fs.sync_dir(Path::new(DIR)).unwrap();
        let bytes = pattern(50_000, lost);
        for part in bytes.chunks(5_000) {
            log.append(&[part]).unwrap();
        }
        std::mem::forget(log);
        owner.kill();
        world.kill(lost);
        owner = Owner::take_over(&mut world).unwrap();
        let found = get(&owner, &name);
        assert!(found == bytes, "without node {lost}: {} of {} bytes", found.len(), bytes.len());
        world.start_all();
    }
}

#[test]
fn synced_appends_survive_power_loss_of_all_nodes() {
    let mut world = World::founded(3, 5);
    let mut owner = new_owner(&mut world);
    for round in 0..5 {
        let name = format!("{round}.log");
        let mut log = create_log(&owner, &name);
        owner.fs.sync_dir(Path::new(DIR)).unwrap();
        let bytes = pattern(20_000, round);
        log.append(&[&bytes[..15_000]]).unwrap();
        log.sync_handle().sync().unwrap();
        log.append(&[&bytes[15_000..]]).unwrap();
        std::mem::forget(log);
        owner.kill();
        for n in 0..3 {
            world.lose_power(n);
        }
        world.start_all();
        owner = Owner::take_over(&mut world).unwrap();
        let found = get(&owner, &name);
        assert!(found.len() >= 15_000 && bytes.starts_with(&found), "{} bytes", found.len());
    }
}

/// A register that does some swaps and no others, as an opener finds it that dies after them.
#[derive(Debug)]
struct EndingRegister {
    register: Arc<dyn Register>,
    swaps_left: AtomicU64,
}

impl Register for EndingRegister {
    fn read(&self, name: &str) -> Result<Option<Versioned>> {
        self.register.read(name)
    }

    fn compare_and_swap(&self, name: &str, expected: u64, value: &[u8]) -> Result<Swap> {
        let left = self.swaps_left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(Error::busy("the register does not answer this process any more"));
        }
        self.swaps_left.store(left - 1, Ordering::SeqCst);
        self.register.compare_and_swap(name, expected, value)
    }

    fn remove(&self, name: &str, expected: u64) -> Result<Swap> {
        self.register.remove(name, expected)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.register.list(prefix)
    }
}

#[test]
fn loss_is_told_although_openers_die_after_the_seals() {
    let mut world = World::founded(3, 9);
    let owner = new_owner(&mut world);
    let before = owner.fs.boot_id();
    let mut log = create_log(&owner, "1.log");
    owner.fs.sync_dir(Path::new(DIR)).unwrap();
    log.append(&[b"acknowledged"]).unwrap();
    std::mem::forget(log);
    owner.kill();
    for n in 0..3 {
        world.lose_power(n);
    }
    world.start_all();
    // Each opener comes one swap further than the one before.
    let mut swaps = 0;
    let volume = loop {
        assert!(swaps < 8, "no opener has enough swaps");
        let stores = world.stores("opener");
        let (register, swaps_left) = (Arc::clone(&stores.register), AtomicU64::new(swaps));
        let register = Arc::new(EndingRegister { register, swaps_left });
        let stores = Stores { register, ..stores };
        match Volume::open(&stores, VOLUME, &options(&world)) {
            Ok(volume) => break volume,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
        swaps += 1;
    };
    // The swaps are the claim, the layout of the namespace, the loss, and the new namespace. The
    // opener with three of them dies after the seals.
    assert_eq!(swaps, 4, "the openers did not die at each of the four swaps");
    let boot_id = Some(volume.boot_id());
    assert_ne!(boot_id, before, "the loss is forgotten");
    drop(volume);
    let owner = Owner::take_over(&mut world).unwrap();
    assert_eq!(owner.fs.boot_id(), boot_id, "the loss is told once");
    assert!(b"acknowledged".starts_with(&get(&owner, "1.log")));
}

#[test]
fn only_an_orderly_end_keeps_open_extents_out_of_limbo() {
    let mut world = World::founded(3, 8);
    let owner = new_owner(&mut world);
    let mut log = create_log(&owner, "1.log");
    log.append(&[b"acknowledged"]).unwrap();
    std::mem::forget(log);
    owner.kill();
    for n in 0..3 {
        world.close(n);
    }
    world.start_all();
    assert_eq!(world.stored_objects().extents_in_limbo, 0);
    world.kill(0);
    world.lose_power(1);
    world.start_all();
    assert_eq!(world.report(0).extents_in_limbo, 0);
    assert!(world.report(1).extents_in_limbo > 0);
    let owner = Owner::take_over(&mut world).unwrap();
    assert_eq!(get(&owner, "1.log"), b"acknowledged");
    assert_eq!(world.stored_objects().extents_in_limbo, 0, "the recovery has sealed them");
}

#[test]
fn owner_that_was_taken_over_writes_nothing_more() {
    let mut world = World::founded(6, 6);
    let old = new_owner(&mut world);
    put_all(&old);
    let mut log = create_log(&old, "1.log");
    log.append(&[b"of the old owner"]).unwrap();
    let new = Owner::take_over(&mut world).unwrap();
    check_all(&new, "after the take-over");
    let late = log.append(&[b", late"]).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Fenced, "{late}");
    let name = at("late.sst");
    let table = old.fs.create(&name, context(FileClass::Sst), CreateOptions::default());
    let late = table.and_then(|mut table| {
        table.append(b"late")?;
        table.sync()
    });
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Fenced);
    assert!(!new.fs.exists(&name).unwrap());
    assert_eq!(get(&new, "1.log"), b"of the old owner");
    put(&new, "2.sst", FileClass::Sst, b"of the new owner");
    assert_eq!(get(&new, "2.sst"), b"of the new owner");
}

#[test]
fn removed_files_leave_no_bytes_on_nodes() {
    let mut world = World::founded(6, 7);
    let owner = new_owner(&mut world);
    put_all(&owner);
    let before = world.stored_objects();
    assert!(before.chunks >= 3 + 6, "{before:?}");
    for name in ["1.sst", "1.vsst"] {
        owner.fs.remove(&at(name)).unwrap();
    }
    owner.fs.sync_dir(Path::new(DIR)).unwrap();
    // The next commit releases the objects that are due.
    put(&owner, "CURRENT", FileClass::Manifest, b"next");
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.stored_objects().chunks, 0);
}

#[test]
fn striped_log_survives_its_owner_and_any_node() {
    let mut world = World::founded(6, 31);
    drop(new_owner(&mut world));
    for lost in 0..6 {
        let log_writing = LogWriting::Striped;
        let striped = NodeStoresOptions { log_writing, ..NodeStoresOptions::default() };
        let owner = Owner::take_over_with(&mut world, striped).unwrap();
        let name = format!("striped-{lost}.log");
        let mut log = create_log(&owner, &name);
        owner.fs.sync_dir(Path::new(DIR)).unwrap();
        // The long groups are cut over four logs, and the short ones are not.
        let bytes = pattern(400_000, lost);
        let mut at = 0;
        for len in [150_000, 5_000, 70_000, 100, 174_900] {
            log.append(&[&bytes[at..at + len]]).unwrap();
            at += len;
        }
        std::mem::forget(log);
        owner.kill();
        world.kill(lost);
        // A pool that writes serial logs reads striped ones.
        let next = Owner::take_over(&mut world).unwrap();
        let found = get(&next, &name);
        assert!(found == bytes, "without node {lost}: {} of {} bytes", found.len(), bytes.len());
        drop(next);
        world.start_all();
    }
}

#[test]
fn volume_is_copied_and_removed_on_nodes() {
    let mut world = World::founded(6, 21);
    let owner = new_owner(&mut world);
    put_all(&owner);
    let (name, dir) = ("copy".to_owned(), DIR.into());
    let target = CopyTarget { name, dir, options: options(&world) };
    owner.fs.copy_to_volume(Path::new(DIR), &target).unwrap();
    check_all(&owner, "after the copy");
    owner.kill();
    // A node that is down would keep its part of the volume.
    world.kill(1);
    let stores = world.stores("remover");
    let error = Volume::destroy(&stores, VOLUME, &options(&world)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("must answer"), "{error}");
    let refused = Volume::open(&stores, VOLUME, &options(&world)).unwrap_err();
    assert!(refused.to_string().contains("is being removed"), "{refused}");
    world.start_all();
    world.run_for(Duration::from_secs(2));
    Volume::destroy(&stores, VOLUME, &options(&world)).unwrap();
    let copied = Volume::open(&stores, "copy", &options(&world)).unwrap();
    let fs = StoreFs::new(copied);
    for (salt, (name, _, len)) in FILES.into_iter().enumerate() {
        let bytes = fs.read(&at(name), context(FileClass::Other)).unwrap();
        assert!(bytes == pattern(len, salt), "{name} of the copy differs");
    }
    drop(fs);
    Volume::destroy(&stores, "copy", &options(&world)).unwrap();
    for n in 0..world.node_count() {
        let report = world.report(n);
        let left = (report.chunks, report.chunks_unsealed, report.extents);
        assert_eq!(left, (0, 0, 0), "node {n} keeps something");
    }
    assert_eq!(list(&*stores.register).unwrap(), []);
}
