//! Removals that overtake older puts, and failed syncs of directories.

use archipelago_env::fault::{FaultFs, Operation, Rule};
use archipelago_store::nodes::wire::UnservedBytes;

use super::*;

fn abandon(node: &StorageNode, number: u8) {
    let (blob, stamp) = (chunk(number).blob, STAMP);
    tell(node, StoreMessage::AbandonBlob { blob, stamp }).unwrap();
}

#[test]
fn late_put_does_not_bring_a_removed_blob_back() {
    let remove: [fn(&StorageNode); 2] =
        [|node| abandon(node, 1), |node| release(node, 1, STAMP).unwrap()];
    for (case, remove) in remove.iter().enumerate() {
        let fs = MemFs::new();
        let node = open(&fs);
        put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
        remove(&node);
        let late = put(&node, chunk(1), 0, &bytes(1, LEN));
        assert_eq!(late, Err(RefusalWhy::NotThere), "case {case}");
        for disk in [fs.kill_clone(), fs.crash_clone(3), fs.crash_clone(4)] {
            let node = open(&disk);
            let late = put(&node, chunk(1), 0, &bytes(1, LEN));
            assert_eq!(late, Err(RefusalWhy::NotThere), "case {case}");
            assert_eq!(seal(&node, chunk(1), 0), Err(RefusalWhy::NotThere), "case {case}");
            assert_eq!((list(&node, VOLUME).len(), node.report().chunks_unsealed), (0, 0));
            put(&node, chunk(2), 0, &bytes(2, LEN)).unwrap();
        }
    }
}

#[test]
fn removal_that_arrives_before_the_first_put_holds() {
    let node = open(&MemFs::new());
    abandon(&node, 1);
    assert_eq!(put(&node, chunk(1), 0, &bytes(1, LEN)), Err(RefusalWhy::NotThere));
    // A repair has no stamp. Its own protocol decides about released blobs.
    let StoreMessage::PutChunk { chunk: id, class, offset, crcs, .. } =
        put_message(chunk(1), 0, &bytes(1, LEN))
    else {
        panic!()
    };
    let (stamp, purpose) = (None, WritePurpose::Repair);
    let message = StoreMessage::PutChunk { chunk: id, stamp, class, purpose, offset, crcs };
    done(ask(&node, message, &bytes(1, LEN)).0).unwrap();
}

#[test]
fn nothing_is_sealed_after_a_failed_sync_of_a_directory() {
    let faults = FaultFs::new(Arc::new(MemFs::new()), 1);
    let node = open_with(Arc::new(faults.clone()), &["/n"], options());
    (1..=2).for_each(|number| put(&node, chunk(number), 0, &bytes(number, LEN)).unwrap());
    faults.add(Rule::on(Operation::SyncDir).path("/chunks/").times(1));
    assert_eq!(seal(&node, chunk(1), LEN), Err(RefusalWhy::Failed));
    // The next sync would succeed, although the kernel may have dropped the name of the second
    // file.
    assert_eq!(seal(&node, chunk(2), LEN), Err(RefusalWhy::Failed));
    assert_eq!(seal(&node, chunk(1), LEN), Err(RefusalWhy::NotThere));
    assert_eq!(node.report().chunks, 0);
}

#[test]
fn failed_sync_of_a_file_is_not_repeated_with_success() {
    let fs = MemFs::new();
    let faults = FaultFs::new(Arc::new(fs.clone()), 1);
    let node = open_with(Arc::new(faults.clone()), &["/n"], options());
    put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
    faults.add(Rule::on(Operation::Sync).path("/chunks/").times(1));
    assert_eq!(seal(&node, chunk(1), LEN), Err(RefusalWhy::Failed));
    assert_eq!(seal(&node, chunk(1), LEN), Err(RefusalWhy::NotThere));
    for seed in 0..8 {
        assert_eq!(list(&open(&fs.crash_clone(seed)), VOLUME), [], "seed {seed}");
    }
}

#[test]
fn removal_keeps_its_record_until_its_directory_is_synced() {
    let fs = MemFs::new();
    let faults = FaultFs::new(Arc::new(fs.clone()), 1);
    let node = open_with(Arc::new(faults.clone()), &["/n"], options());
    write(&node, 1, LEN);
    release(&node, 1, STAMP).unwrap();
    faults.add(Rule::on(Operation::SyncDir).path("/chunks/").times(1));
    // At its end the node tries to remove the record of the removal. It must keep that record.
    node.close().unwrap();
    drop(node);
    for seed in 0..20 {
        let node = open(&fs.crash_clone(seed));
        assert_eq!(describe(&node, chunk(1).blob), [], "seed {seed} brought the chunk back");
        assert_eq!(list(&node, VOLUME), []);
    }
}

#[test]
fn chunks_that_were_given_up_are_garbage_until_their_files_are_gone() {
    let fs = MemFs::new();
    let faults = FaultFs::new(Arc::new(fs.clone()), 1);
    let node = open_with(Arc::new(faults.clone()), &["/n"], options());
    write(&node, 1, LEN);
    let removed = node.report().space.used_bytes;
    faults.add(Rule::on(Operation::Remove).path("/chunks/").times(1));
    release(&node, 1, STAMP).unwrap();
    let unserved = node.report().unserved;
    assert_eq!(unserved, UnservedBytes { removed, ..UnservedBytes::default() });
    assert_eq!(unserved.garbage_bytes(), removed);
    // The node does not know whether the writer of an unsealed chunk continues.
    put(&node, chunk(2), 0, &bytes(2, LEN)).unwrap();
    let unserved = node.report().unserved;
    assert_eq!((unserved.unsealed, unserved.garbage_bytes()), (3 * 4096, removed));
    abandon(&node, 2);
    assert_eq!(node.report().unserved.unsealed, 0);
    drop(node);
    let node = open(&fs);
    assert_eq!(node.report().unserved, UnservedBytes::default());
    assert_eq!(node.report().space.used_bytes, 0);
    assert!(files(&fs, "/n").is_empty());
}
