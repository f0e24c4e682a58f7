//! Tests of the devices of a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{ErrorKind, Result};
use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_env::mem::MemFs;
use archipelago_env::{FileSystem, IoContext, IoPurpose};
use archipelago_fabric::ClusterId;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::register::caspaxos::RootSet;

use super::{ClusterNotice, Device, Devices};
use crate::identity::KnownCluster;

fn dirs() -> Vec<PathBuf> {
    ["/a", "/b", "/c"].map(PathBuf::from).to_vec()
}

fn open(fs: &MemFs, dirs: &[PathBuf], seed: u64) -> Result<Devices> {
    Devices::open(Arc::new(fs.clone()), dirs, None, &mut Rng::with_seed(seed))
}

fn cluster(number: u64) -> KnownCluster {
    KnownCluster {
        id: ClusterId([7; 16]),
        root_set: RootSet { number, members: vec![StorageId(number)] },
    }
}

#[test]
fn identity_stays_over_restarts() {
    let fs = MemFs::new();
    let first = open(&fs, &dirs(), 1).unwrap();
    let (node, ids) = (first.storage(), first.present().iter().map(|d| d.id).collect::<Vec<_>>());
    assert!(node.0 > 0 && ids.iter().all(|id| id.0 > 0));
    drop(first);
    let again = open(&fs.crash_clone(3), &dirs(), 2).unwrap();
    assert_eq!(again.storage(), node);
    assert_eq!(again.present().iter().map(|d| d.id).collect::<Vec<_>>(), ids);
    assert!(again.lost().is_empty());
}

#[test]
fn emptied_node_has_another_identity() {
    let fs = MemFs::new();
    let before = open(&fs, &dirs(), 1).unwrap().storage();
    assert_ne!(open(&MemFs::new(), &dirs(), 2).unwrap().storage(), before);
}

#[test]
fn missing_device_is_reported_until_forgotten() {
    let fs = MemFs::new();
    let first = open(&fs, &dirs(), 1).unwrap();
    let id = first.present()[1].id;
    drop(first);
    fs.remove_dir_all(Path::new("/b")).unwrap();
    let without = open(&fs, &dirs(), 2).unwrap();
    assert_eq!(without.lost(), [id], "an empty directory is a new device");
    assert_eq!(without.present().len(), 3);
    without.forget_lost(|_| true).unwrap();
    assert_eq!(without.lost(), [id]);
    without.forget_lost(|_| false).unwrap();
    drop(without);
    assert!(open(&fs, &dirs(), 3).unwrap().lost().is_empty());
}

#[test]
fn unreadable_device_is_left_out() {
    let memory = MemFs::new();
    let id = open(&memory, &dirs(), 1).unwrap().present()[2].id;
    let faulty = FaultFs::new(Arc::new(memory), 1);
    faulty.add(Rule::on(Operation::Open).path("/c/"));
    let fs: Arc<dyn FileSystem> = Arc::new(faulty.clone());
    let devices = Devices::open(Arc::clone(&fs), &dirs(), None, &mut Rng::with_seed(2)).unwrap();
    assert_eq!((devices.lost(), devices.present().len()), (vec![id], 2));
    drop(devices);
    faulty.clear();
    faulty.add(Rule::on(Operation::Open).path("/a/"));
    let error = Devices::open(fs, &dirs(), None, &mut Rng::with_seed(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "the first device has the metadata");
}

#[test]
fn node_is_refused_without_its_first_device() {
    let fs = MemFs::new();
    drop(open(&fs, &dirs(), 1).unwrap());
    fs.remove_dir_all(Path::new("/a")).unwrap();
    let error = open(&fs, &dirs(), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("/b"), "{error}");
}

#[test]
fn foreign_directories_are_not_touched() {
    let fs = MemFs::new();
    let context = IoContext::manifest(IoPurpose::Maintenance);
    fs.create_dir_all(Path::new("/b")).unwrap();
    fs.write_atomic(Path::new("/b/letter"), b"dear", context).unwrap();
    let error = open(&fs, &dirs(), 1).unwrap_err();
    assert!(error.to_string().contains("letter"), "{error}");
    assert_eq!(fs.list(Path::new("/b")).unwrap().len(), 1);
    let other = MemFs::new();
    drop(open(&other, &[PathBuf::from("/b")], 5).unwrap());
    drop(open(&other, &[PathBuf::from("/a")], 6).unwrap());
    let error = open(&other, &dirs(), 7).unwrap_err();
    assert!(error.to_string().contains("storage node"), "{error}");
}

#[test]
fn second_process_is_refused() {
    let fs = MemFs::new();
    let _first = open(&fs, &dirs(), 1).unwrap();
    assert_eq!(open(&fs, &dirs(), 1).unwrap_err().kind(), ErrorKind::Busy);
}

#[test]
fn cluster_is_known_durably_and_never_replaced() {
    let fs = MemFs::new();
    let devices = open(&fs, &dirs(), 1).unwrap();
    assert_eq!(devices.learn_cluster(cluster(2)).unwrap(), ClusterNotice::Known);
    assert_eq!(devices.learn_cluster(cluster(1)).unwrap(), ClusterNotice::Known);
    let other = KnownCluster { id: ClusterId([8; 16]), ..cluster(9) };
    assert_eq!(devices.learn_cluster(other).unwrap(), ClusterNotice::Other);
    let again = open(&fs.crash_clone(1), &dirs(), 2).unwrap();
    assert_eq!(again.cluster(), Some(cluster(2)), "an older root set changes nothing");
}

#[test]
fn failed_device_is_not_chosen() {
    let fs = MemFs::new();
    let devices = open(&fs, &dirs(), 1).unwrap();
    devices.present()[0].add_used(10);
    assert_ne!(devices.roomiest().unwrap().0.id, devices.present()[0].id);
    let error = archipelago_base::Error::internal("a test");
    devices.present()[1].fail(&error);
    assert_ne!(devices.roomiest().unwrap().0.id, devices.present()[1].id);
    devices.present().iter().for_each(|device| device.fail(&error));
    assert_eq!(devices.roomiest().unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn failed_sync_of_a_directory_is_remembered() {
    let fs = MemFs::new();
    let faults = FaultFs::new(Arc::new(fs), 1);
    let mut rng = Rng::with_seed(1);
    let devices = Devices::open(Arc::new(faults.clone()), &dirs(), None, &mut rng).unwrap();
    let (first, second) = (&devices.present()[0], &devices.present()[1]);
    let sync = |device: &Device| device.sync_dir(&faults, &device.dir);
    sync(first).unwrap();
    assert!(first.sync_dir(&faults, Path::new("/nowhere")).is_err());
    sync(first).expect("a directory that does not exist has lost nothing");
    faults.add(Rule::on(Operation::SyncDir).times(1));
    sync(first).unwrap_err();
    sync(first).unwrap_err();
    assert!(first.has_failed());
    sync(second).expect("the other device has not failed");
}

#[test]
fn room_that_was_seen_is_not_asked_for_again() {
    let faults = FaultFs::new(Arc::new(MemFs::new()), 1);
    let mut rng = Rng::with_seed(1);
    let devices = Devices::open(Arc::new(faults.clone()), &dirs(), None, &mut rng).unwrap();
    (0..devices.present().len()).for_each(|place| devices.look_at_room(place));
    let asked = faults.seen(Operation::Stat);
    devices.roomiest().unwrap();
    devices.fullness(&devices.present()[0]).unwrap();
    assert_eq!(faults.seen(Operation::Stat), asked, "no request waits for a device");
    faults.add(Rule::on(Operation::Stat));
    (0..devices.present().len()).for_each(|place| devices.look_at_room(place));
    assert_eq!(devices.roomiest().unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn device_that_was_chosen_is_kept_unless_it_failed() {
    let devices = open(&MemFs::new(), &dirs(), 1).unwrap();
    let last = devices.present().last().unwrap();
    assert_eq!(devices.chosen(Some(last.id)).unwrap().id, last.id);
    last.fail(&archipelago_base::Error::internal("a test"));
    assert_ne!(devices.chosen(Some(last.id)).unwrap().id, last.id);
    let is_first = |id| id == devices.present()[0].id;
    assert!(is_first(devices.roomiest_of(is_first).unwrap().0.id));
}

#[test]
fn lack_of_descriptors_is_no_failure_of_a_device() {
    let devices = open(&MemFs::new(), &dirs(), 1).unwrap();
    let device = &devices.present()[0];
    let error = |code| {
        let cause = std::io::Error::from_raw_os_error(code);
        archipelago_base::Error::io("open", Path::new("/a/file"), cause)
    };
    let (too_many_files, device_error) = (error(24), error(5));
    device.fail(&too_many_files);
    assert!(!device.has_failed());
    device.fail(&device_error);
    assert!(device.has_failed());
}
