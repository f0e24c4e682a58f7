//! Puts, seals and reads of chunks, and their limits.

use archipelago_env::capacity::CapacityFs;
use archipelago_env::fault::{Fault, FaultFs, Operation, Rule};

use super::*;

#[test]
fn sealed_chunk_is_read_with_its_checksums() {
    let node = open(&MemFs::new());
    put(&node, chunk(1), 0, &bytes(1, LEN)[..8192]).unwrap();
    put(&node, chunk(1), 8192, &bytes(1, LEN)[8192..]).unwrap();
    seal(&node, chunk(1), LEN).unwrap();
    for (start, end) in [(0, LEN), (0, 1), (4095, 4097), (8192, LEN), (LEN - 1, LEN)] {
        assert_eq!(read(&node, chunk(1), start, end).unwrap(), bytes(1, LEN)[start..end]);
    }
    assert_eq!(describe(&node, chunk(1).blob), [descriptor(&node, chunk(1), LEN)]);
}

#[test]
fn several_ranges_are_read_in_one_request() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    let ranges = [(8192, LEN as u64), (10, 20)].map(|(start, end)| ChunkRange { start, end });
    let message = StoreMessage::ReadChunk { chunk: chunk(1), ranges: ranges.to_vec() };
    let (answer, payload) = ask(&node, message, &[]);
    let crcs = chunk(1).checksums().piece_crcs(0, &bytes(1, LEN));
    assert_eq!(answer, StoreMessage::ChunkBytes { crcs: vec![crcs[2], crcs[0]] });
    assert_eq!(payload, [&bytes(1, LEN)[8192..], &bytes(1, LEN)[..4096]].concat());
}

#[test]
fn ranges_outside_the_chunk_are_refused() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    for (start, end) in [(0, LEN + 1), (5, 5), (LEN, LEN + 1), (7, 6)] {
        assert_eq!(read(&node, chunk(1), start, end), Err(RefusalWhy::Malformed), "{start}..{end}");
    }
    assert_eq!(read(&node, chunk(2), 0, 1), Err(RefusalWhy::NotThere));
}

#[test]
fn repeated_put_changes_nothing() {
    let node = open(&MemFs::new());
    let all = bytes(1, LEN);
    put(&node, chunk(1), 0, &all[..4096]).unwrap();
    put(&node, chunk(1), 0, &all[..4096]).unwrap();
    put(&node, chunk(1), 0, &all[..8192]).unwrap();
    put(&node, chunk(1), 4096, &all[4096..]).unwrap();
    put(&node, chunk(1), 0, &all).unwrap();
    seal(&node, chunk(1), LEN).unwrap();
    seal(&node, chunk(1), LEN).unwrap();
    assert!(is_whole(&node, 1, LEN));
    assert_eq!(put(&node, chunk(1), 0, &all), Err(RefusalWhy::Sealed));
}

#[test]
fn put_out_of_order_names_the_length() {
    let node = open(&MemFs::new());
    let all = bytes(1, LEN);
    put(&node, chunk(1), 0, &all[..4096]).unwrap();
    let refused = put(&node, chunk(1), 8192, &all[8192..]);
    assert_eq!(refused, Err(RefusalWhy::OutOfOrder { len: 4096 }));
    assert_eq!(seal(&node, chunk(1), LEN), Err(RefusalWhy::OutOfOrder { len: 4096 }));
    assert_eq!(put(&node, chunk(2), 4096, &all[4096..]), Err(RefusalWhy::NotThere));
    put(&node, chunk(1), 4096, &all[4096..]).unwrap();
    let behind = put(&node, chunk(1), 12288, &[0; 10]);
    assert_eq!(behind, Err(RefusalWhy::OutOfOrder { len: LEN as u64 }), "the last piece is short");
}

#[test]
fn other_bytes_at_a_known_offset_are_refused() {
    let node = open(&MemFs::new());
    put(&node, chunk(1), 0, &bytes(1, 4096)).unwrap();
    assert_eq!(put(&node, chunk(1), 0, &bytes(2, 4096)), Err(RefusalWhy::Malformed));
}

#[test]
fn bytes_that_arrive_damaged_are_refused() {
    let node = open(&MemFs::new());
    let mut payload = bytes(1, LEN);
    let message = put_message(chunk(1), 0, &payload);
    payload[5000] ^= 1;
    let (answer, _) = ask(&node, message, &payload);
    assert!(matches!(answer, StoreMessage::Refuse { why: RefusalWhy::Damaged, .. }), "{answer:?}");
    let of_other_blob = put_message(chunk(2), 0, &bytes(1, LEN));
    let StoreMessage::PutChunk { crcs, stamp, class, purpose, .. } = of_other_blob else {
        panic!()
    };
    let moved = StoreMessage::PutChunk { chunk: chunk(1), stamp, class, purpose, offset: 0, crcs };
    let (answer, _) = ask(&node, moved, &bytes(1, LEN));
    assert!(matches!(answer, StoreMessage::Refuse { why: RefusalWhy::Damaged, .. }), "{answer:?}");
    put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
}

#[test]
fn checksum_of_another_offset_is_refused() {
    let node = open(&MemFs::new());
    let piece = bytes(1, 4096);
    put(&node, chunk(1), 0, &piece).unwrap();
    let StoreMessage::PutChunk { crcs, stamp, class, purpose, .. } =
        put_message(chunk(1), 0, &piece)
    else {
        panic!()
    };
    let moved =
        StoreMessage::PutChunk { chunk: chunk(1), stamp, class, purpose, offset: 4096, crcs };
    let (answer, _) = ask(&node, moved, &piece);
    assert!(matches!(answer, StoreMessage::Refuse { why: RefusalWhy::Damaged, .. }), "{answer:?}");
}

#[cfg(feature = "sabotage")]
#[test]
fn canary_of_checksums_lets_damage_pass() {
    let sabotage = crate::Sabotage { no_crc: true, ..Default::default() };
    let options = NodeOptions { sabotage, ..options() };
    let node = open_with(Arc::new(MemFs::new()), &["/n"], options);
    let message = put_message(chunk(1), 0, &bytes(1, LEN));
    let (answer, _) = ask(&node, message, &bytes(2, LEN));
    assert_eq!(answer, StoreMessage::Done {});
    seal(&node, chunk(1), LEN).unwrap();
    assert_eq!(read(&node, chunk(1), 0, LEN), Err(RefusalWhy::Damaged), "the reader notices");
}

#[test]
fn unsealed_chunk_can_be_read_and_abandoned() {
    let node = open(&MemFs::new());
    put(&node, chunk(1), 0, &bytes(1, 8192)).unwrap();
    assert_eq!(read(&node, chunk(1), 4000, 5000).unwrap(), bytes(1, 8192)[4000..5000]);
    assert_eq!(describe(&node, chunk(1).blob), []);
    let abandon = |epoch| StoreMessage::AbandonBlob {
        blob: chunk(1).blob,
        stamp: Stamp { epoch: Epoch(epoch), ..STAMP },
    };
    assert_eq!(tell(&node, abandon(2)), Err(RefusalWhy::Fenced));
    tell(&node, abandon(3)).unwrap();
    assert_eq!(read(&node, chunk(1), 0, 1), Err(RefusalWhy::NotThere));
    assert_eq!(seal(&node, chunk(1), 8192), Err(RefusalWhy::NotThere));
    write(&node, 2, LEN);
    let sealed = StoreMessage::AbandonBlob { blob: chunk(2).blob, stamp: STAMP };
    tell(&node, sealed).unwrap();
    assert!(is_whole(&node, 2, LEN), "a sealed chunk stays");
}

#[test]
fn chunk_without_bytes_is_sealed() {
    let fs = MemFs::new();
    let node = open(&fs);
    seal(&node, chunk(1), 0).unwrap();
    assert_eq!(describe(&node, chunk(1).blob).len(), 1);
    drop(node);
    let node = open(&fs.crash_clone(1));
    assert_eq!(describe(&node, chunk(1).blob).len(), 1);
}

#[test]
fn fenced_writer_is_refused_and_leaves_no_chunk() {
    let node = open(&MemFs::new());
    put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
    let newer = Stamp { volume: VOLUME, epoch: Epoch(4) };
    tell(&node, StoreMessage::PromiseEpoch { stamp: newer }).unwrap();
    assert_eq!(seal(&node, chunk(1), LEN), Err(RefusalWhy::Fenced));
    assert_eq!(put(&node, chunk(2), 0, &bytes(2, LEN)), Err(RefusalWhy::Fenced));
    let unsealed = BlobEntry { blob: chunk(1).blob, epoch: Epoch(3), is_sealed: false };
    assert_eq!(list(&node, VOLUME), [unsealed]);
    release(&node, 1, newer).unwrap();
    assert_eq!(list(&node, VOLUME), []);
}

#[test]
fn seal_of_another_volume_or_class_is_refused() {
    let node = open(&MemFs::new());
    put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
    let good = descriptor(&node, chunk(1), LEN);
    let other = Stamp { volume: OTHER, ..STAMP };
    for wrong in [
        ChunkDescriptor { written: other, ..good.clone() },
        ChunkDescriptor { class: FileClass::ValueSst, ..good.clone() },
        ChunkDescriptor { retaining: Vec::new(), ..good },
    ] {
        let message = StoreMessage::SealChunk { stamp: Some(STAMP), descriptor: wrong };
        assert_eq!(tell(&node, message), Err(RefusalWhy::Malformed));
    }
    seal(&node, chunk(1), LEN).unwrap();
}

#[test]
fn open_chunks_and_their_checksums_are_bounded() {
    use super::super::unsealed::{TABLE_BYTES_MAX, UNSEALED_MAX, UnsealedChunks};
    let node = open(&MemFs::new());
    let blob = |number: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64).to_be_bytes());
        ChunkId { blob: BlobId(id), index: 0 }
    };
    let mut begun = 0;
    while put(&node, blob(begun), 0, b"a").is_ok() {
        begun += 1;
    }
    assert!((16..=UNSEALED_MAX).contains(&begun), "{begun} chunks");
    assert_eq!(put(&node, blob(begun), 0, b"a"), Err(RefusalWhy::Busy));
    seal(&node, blob(0), 1).unwrap();
    put(&node, blob(begun), 0, b"a").unwrap();
    let chunks = UnsealedChunks::new(1);
    chunks.reserve(TABLE_BYTES_MAX / 4).unwrap();
    assert_eq!(chunks.reserve(1).unwrap_err().why, RefusalWhy::Busy);
    chunks.unreserve(1);
    chunks.reserve(1).unwrap();
}

#[test]
fn purposes_are_refused_by_fullness() {
    let options = NodeOptions { device_bytes_max: Some(1 << 20), ..options() };
    let node = open_with(Arc::new(MemFs::new()), &["/n"], options);
    write(&node, 1, 990 << 10);
    let put_for = |purpose, number: u8, kib: usize| {
        let payload = bytes(number, kib << 10);
        let StoreMessage::PutChunk { chunk, stamp, class, offset, crcs, .. } =
            put_message(chunk(number), 0, &payload)
        else {
            panic!()
        };
        let message = StoreMessage::PutChunk { chunk, stamp, class, purpose, offset, crcs };
        done(ask(&node, message, &payload).0)
    };
    assert_eq!(put_for(WritePurpose::Ingestion, 2, 4), Err(RefusalWhy::Full));
    assert_eq!(put_for(WritePurpose::Repair, 3, 4), Err(RefusalWhy::Full), "97 per cent");
    put_for(WritePurpose::Job, 4, 4).unwrap();
    assert_eq!(put_for(WritePurpose::Job, 5, 16), Err(RefusalWhy::Full), "98 per cent");
    release(&node, 1, STAMP).unwrap();
    put_for(WritePurpose::Ingestion, 2, 4).unwrap();
}

#[test]
fn quota_of_a_volume_is_kept() {
    let options = NodeOptions { volume_bytes_max: Some(100 << 10), ..options() };
    let node = open_with(Arc::new(MemFs::new()), &["/n"], options);
    write(&node, 1, 80 << 10);
    assert_eq!(put(&node, chunk(2), 0, &bytes(2, 40 << 10)), Err(RefusalWhy::Full));
    release(&node, 1, STAMP).unwrap();
    put(&node, chunk(2), 0, &bytes(2, 40 << 10)).unwrap();
}

#[test]
fn full_device_is_refused_as_full() {
    let memory = MemFs::new();
    memory.create_dir_all(Path::new("/n")).unwrap();
    let disk = Arc::new(CapacityFs::new(Arc::new(memory), Path::new("/n"), 64 << 20).unwrap());
    let node = open_with(Arc::clone(&disk) as _, &["/n"], options());
    put(&node, chunk(1), 0, &bytes(1, 1 << 20)).unwrap();
    disk.occupy(disk.free() + disk.used_bytes());
    assert_eq!(put(&node, chunk(2), 0, &bytes(2, 1 << 20)), Err(RefusalWhy::Full));
    disk.occupy(0);
    put(&node, chunk(2), 0, &bytes(2, 1 << 20)).unwrap();
    seal(&node, chunk(1), 1 << 20).unwrap();
    assert!(is_whole(&node, 1, 1 << 20));
}

#[test]
fn append_without_space_drops_the_chunk() {
    let memory = MemFs::new();
    let faulty = FaultFs::new(Arc::new(memory.clone()), 1);
    let node = open_with(Arc::new(faulty.clone()), &["/n"], options());
    put(&node, chunk(1), 0, &bytes(1, 4096)).unwrap();
    faulty.add(Rule::on(Operation::Append).path("/chunks/").fault(Fault::NoSpace));
    assert_eq!(put(&node, chunk(1), 4096, &bytes(1, 4096)), Err(RefusalWhy::Full));
    faulty.clear();
    assert_eq!(put(&node, chunk(1), 4096, &bytes(1, 4096)), Err(RefusalWhy::NotThere));
    assert_eq!(files(&memory, "/n"), [] as [PathBuf; 0]);
    assert_eq!(node.report().space.used_bytes, node.parts().devices.first().used_bytes());
    write(&node, 2, LEN);
}

#[test]
fn failed_seal_leaves_no_chunk() {
    for (operation, path) in [(Operation::Sync, "/chunks/"), (Operation::SyncDir, "/chunks/")] {
        let memory = MemFs::new();
        let faulty = FaultFs::new(Arc::new(memory.clone()), 1);
        let node = open_with(Arc::new(faulty.clone()), &["/n"], options());
        put(&node, chunk(1), 0, &bytes(1, LEN)).unwrap();
        faulty.add(Rule::on(operation).path(path));
        assert_eq!(seal(&node, chunk(1), LEN), Err(RefusalWhy::Failed), "{operation:?}");
        faulty.clear();
        assert_eq!(read(&node, chunk(1), 0, 1), Err(RefusalWhy::NotThere));
        assert_eq!(files(&memory, "/n"), [] as [PathBuf; 0]);
        assert!(node.report().devices[0].is_failed, "the device gets no more chunks");
    }
}

#[test]
fn space_is_reported_by_volume_and_class() {
    let node = open(&MemFs::new());
    write(&node, 1, LEN);
    write(&node, 2, LEN);
    let report = node.report();
    assert_eq!((report.chunks, report.chunks_unsealed), (2, 0));
    let space = &report.volumes[0];
    assert_eq!((space.volume, space.class, space.objects), (VOLUME, FileClass::Sst, 2));
    assert_eq!(space.logical_bytes, 2 * (LEN as u64 / 3));
    assert!(space.bytes > 2 * LEN as u64 && space.bytes < 2 * LEN as u64 + 600);
    let traffic = report.counters.traffic[0];
    assert_eq!((traffic.writes, traffic.written_bytes), (2, 2 * LEN as u64));
    release(&node, 1, STAMP).unwrap();
    release(&node, 2, STAMP).unwrap();
    assert_eq!(node.report().volumes, []);
}
