//! Several devices: the choice of the device for a chunk, and the loss of a device.

use super::*;

const DIRS: [&str; 3] = ["/a", "/b", "/c"];

fn open_three(fs: &MemFs) -> Arc<StorageNode> {
    open_with(Arc::new(fs.clone()), &DIRS, options())
}

#[test]
fn chunks_go_to_the_device_with_most_room() {
    let fs = MemFs::new();
    let node = open_three(&fs);
    (0..30).for_each(|number| write(&node, number, LEN));
    for dir in DIRS {
        assert_eq!(files(&fs, dir).len(), 10, "{dir}");
    }
    assert_eq!(node.report().devices.len(), 3);
}

#[test]
fn lost_device_loses_its_chunks_only() {
    let fs = MemFs::new();
    let node = open_three(&fs);
    (0..30).for_each(|number| write(&node, number, LEN));
    drop(node);
    let lost = files(&fs, "/b").len() as u64;
    let without = fs.kill_clone();
    without.remove_dir_all(Path::new("/b")).unwrap();
    let node = open_three(&without);
    let report = node.report();
    assert_eq!((report.chunks, report.chunks_unreadable), (30 - lost, lost));
    assert_eq!(report.devices.iter().filter(|device| device.is_failed).count(), 1);
    let readable = (0..30).filter(|number| is_whole(&node, *number, LEN)).count() as u64;
    assert_eq!(readable, 30 - lost);
    assert_eq!(list(&node, VOLUME).len(), 30, "the owner can still release them");
}

#[test]
fn repaired_chunks_of_a_lost_device_end_the_loss() {
    let fs = MemFs::new();
    let node = open_three(&fs);
    (0..9).for_each(|number| write(&node, number, LEN));
    drop(node);
    fs.remove_dir_all(Path::new("/b")).unwrap();
    let node = open_three(&fs);
    let missing: Vec<u8> = (0..9).filter(|number| !is_whole(&node, *number, LEN)).collect();
    let (repaired, released) = missing.split_at(1);
    write(&node, repaired[0], LEN);
    for number in released {
        release(&node, *number, STAMP).unwrap();
    }
    drop(node);
    let node = open_three(&fs);
    let report = node.report();
    assert_eq!(report.chunks_unreadable, 0);
    assert!(report.devices.iter().all(|device| !device.is_failed), "the device is forgotten");
    assert!(is_whole(&node, repaired[0], LEN));
}

#[test]
fn returning_device_brings_back_what_was_not_released() {
    let fs = MemFs::new();
    let node = open_three(&fs);
    (0..9).for_each(|number| write(&node, number, LEN));
    drop(node);
    // The node runs without its last device for a while.
    let two = open_with(Arc::new(fs.clone()), &DIRS[..2], options());
    let missing: Vec<u8> = (0..9).filter(|number| !is_whole(&two, *number, LEN)).collect();
    assert!(missing.len() >= 2);
    release(&two, missing[0], STAMP).unwrap();
    drop(two);
    let node = open_three(&fs);
    assert_eq!(describe(&node, chunk(missing[0]).blob), [], "a release holds");
    assert!(is_whole(&node, missing[1], LEN));
    let report = node.report();
    assert_eq!((report.chunks, report.chunks_unreadable), (8, 0));
    let on_disk: usize = DIRS.iter().map(|dir| files(&fs, dir).len()).sum();
    assert_eq!(on_disk, 8);
}
