//! Slabs of records that are complete while their shard still takes writes.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::memtable::search::Target;

fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:08}").into_bytes()
}

/// Inserts a record with a value of this length.
fn insert(shard: &Shard, number: u64, value_bytes: usize) {
    let value = vec![number as u8; value_bytes];
    shard.insert(&key_of(number), SeqNo(number + 1), Kind::Put, &value);
}

/// Appends the complete slabs that `copied` does not have yet.
fn copy_more(shard: &Shard, slabs: &mut usize, copied: &mut Vec<u8>) {
    for slab in shard.complete_slabs(*slabs) {
        copied.extend_from_slice(slab);
        *slabs += 1;
    }
}

/// The records section of the image of a shard, which is sealed.
fn records_of(shard: &Shard) -> Vec<u8> {
    shard.seal();
    let image = image_of(shard);
    let at = ImageHead::records_at(&image, image.len() as u64).unwrap();
    image[at as usize..].to_vec()
}

#[test]
fn complete_slabs_are_the_beginning_of_the_records() {
    let shard = Shard::new(&pool());
    let (mut slabs, mut copied) = (0, Vec::new());
    for number in 0..20_000 {
        // A large record has a slab of its own, which is complete before the slab in use.
        let value_bytes = if number % 1500 == 700 { 400_000 } else { number as usize % 90 };
        insert(&shard, number, value_bytes);
        copy_more(&shard, &mut slabs, &mut copied);
    }
    let before = copied.len() as u64;
    assert!(before >= shard.data_bytes() / 2, "{before} of {}", shard.data_bytes());
    copy_more(&shard, &mut slabs, &mut copied);
    assert!(records_of(&shard).starts_with(&copied));
}

#[test]
fn slab_with_a_record_that_is_not_published_is_not_complete() {
    let shard = Shard::new(&pool());
    let trailer = key::pack(SeqNo(0), Kind::Put);
    let held = shard.kv().append(b"held", trailer, b"value");
    for number in 0..1000 {
        insert(&shard, number, 100);
    }
    assert!(shard.complete_slabs(0).is_empty(), "the record lies in the first slab");
    assert!(!shard.complete_slabs(1).is_empty(), "a later slab is complete");
    let target = Target::new(b"held", trailer);
    shard.tree().insert(&target, held.record, shard.kv(), || held.note_published());
    assert!(shard.complete_slabs(0).len() > 1);
}

#[test]
fn open_slab_is_not_complete() {
    let shard = Shard::new(&pool());
    assert!(shard.complete_slabs(0).is_empty());
    insert(&shard, 0, 10);
    assert!(shard.complete_slabs(0).is_empty() && shard.complete_slabs(7).is_empty());
}

#[test]
fn slabs_are_copied_while_writers_insert() {
    const WRITERS: u64 = 3;
    let per_writer = if cfg!(miri) { 60 } else { 8000 };
    let shard = Shard::new(&pool());
    let are_done = AtomicBool::new(false);
    let (mut slabs, mut copied) = (0, Vec::new());
    std::thread::scope(|scope| {
        let write = |writer: u64| {
            let shard = &shard;
            scope.spawn(move || {
                for at in 0..per_writer {
                    let number = at * WRITERS + writer;
                    insert(shard, number, 20 + number as usize % 200);
                }
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        let copier = scope.spawn(|| {
            while !are_done.load(Ordering::Acquire) {
                copy_more(&shard, &mut slabs, &mut copied);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        are_done.store(true, Ordering::Release);
        copier.join().unwrap();
    });
    copy_more(&shard, &mut slabs, &mut copied);
    assert!(!copied.is_empty());
    assert!(records_of(&shard).starts_with(&copied));
}
