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

use super::{ClusterNotice, Devices};
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
