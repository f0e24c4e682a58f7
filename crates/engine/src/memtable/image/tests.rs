//! Images at another address, in another process, damaged, hostile, and compared byte by byte.

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_base::{ErrorKind, Result, SeqNo, checksum};

use crate::iter::InternalIterator;
use crate::key::{self, Kind};
use crate::lookup::Lookup;
use crate::memtable::*;
use crate::tombstone::RangeTombstone;

const GOLDEN: &[u8] = include_bytes!("../../../fuzz/corpus/sealed_shard/golden");
const IMAGE_VARIABLE: &str = "ARCHIPELAGO_TEST_IMAGE";
const RECORDS: u64 = if cfg!(miri) { 300 } else { 20_000 };

fn image_of(shard: &Shard) -> Vec<u8> {
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).unwrap();
    bytes
}

fn small_shard() -> Arc<Shard> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    shard.insert(b"key-b", SeqNo(2), Kind::Put, b"second");
    shard.insert(b"key-a", SeqNo(1), Kind::Put, b"first");
    shard.insert(b"key-b", SeqNo(5), Kind::Delete, b"");
    shard.insert(b"", SeqNo(3), Kind::Merge, b"+1");
    let tombstone =
        RangeTombstone { start: b"key-c"[..].into(), end: b"key-d"[..].into(), seq: SeqNo(4) };
    shard.insert_tombstone(tombstone);
    shard
}

fn key_of(number: u64) -> Vec<u8> {
    format!("user{:012}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24).into_bytes()
}

fn large_shard() -> Arc<Shard> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    for number in 0..RECORDS {
        shard.insert(&key_of(number), SeqNo(number + 1), Kind::Put, &number.to_le_bytes());
    }
    shard.insert(b"large", SeqNo(RECORDS + 1), Kind::Put, &[7; 400_000]);
    shard
}

/// Finds every record by look-up and by cursor. Returns the number of records.
fn verify_large(image: &Arc<SealedImage>) -> u64 {
    for number in 0..RECORDS {
        let mut found = 0;
        let lookup = Lookup::new(&key_of(number), SeqNo::MAX).key.to_vec();
        image
            .lookup(&Lookup::new(&lookup, SeqNo::MAX), |version| {
                assert_eq!(version.seq, SeqNo(number + 1));
                assert_eq!(version.value, number.to_le_bytes());
                found += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(found, 1);
    }
    let mut iter = SealedShard::verified_iter(Arc::clone(image));
    let mut count = 0;
    let mut last = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        assert!(last.is_empty() || key::compare(&last, iter.key()).is_lt());
        last = iter.key().to_vec();
        count += 1;
        iter.next();
    }
    iter.status().unwrap();
    count
}

#[test]
fn an_image_is_searched_where_it_lands() {
    let bytes = {
        let shard = large_shard();
        image_of(&shard)
    };
    for shift in [0, 1, 7] {
        let mut moved = vec![0xa5; shift];
        moved.extend_from_slice(&bytes);
        struct Shifted(Vec<u8>, usize);
        impl AsRef<[u8]> for Shifted {
            fn as_ref(&self) -> &[u8] {
                &self.0[self.1..]
            }
        }
        let image = SealedImage::open(Shifted(moved, shift)).unwrap();
        assert_eq!(verify_large(&image), RECORDS + 1, "even unaligned");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
#[expect(clippy::disallowed_methods, reason = "the file is how the image gets to the process")]
fn another_process_searches_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.image");
    std::fs::write(&path, image_of(&large_shard())).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memtable::image::tests::as_the_other_process", "--nocapture"])
        .env(IMAGE_VARIABLE, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}\n{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains(&format!("the other process found {} records", RECORDS + 1)), "{said}");
}

/// Does nothing unless [`another_process_searches_the_image`] started it.
#[test]
#[expect(clippy::disallowed_methods, reason = "the file is how the image gets to the process")]
fn as_the_other_process() {
    let Some(path) = std::env::var_os(IMAGE_VARIABLE) else { return };
    let image = SealedImage::open(std::fs::read(path).unwrap()).unwrap();
    println!("the other process found {} records", verify_large(&image));
}

#[test]
fn the_bytes_of_the_format_do_not_change() {
    assert_eq!(image_of(&small_shard()), GOLDEN);
}

/// Reads everything in an image. Errors are allowed; panics and endless loops are not.
fn read_all(bytes: Vec<u8>) -> Result<()> {
    let image = SealedImage::open(bytes)?;
    for probe in [&b""[..], b"key-a", b"key-b", b"zzz"] {
        let mut steps = 0;
        image.lookup(&Lookup::new(probe, SeqNo::MAX), |version| {
            steps += version.pin().len().min(1) + 1;
            ControlFlow::Continue(())
        })?;
        assert!(steps as u64 <= 2 * image.entries());
        let mut iter = image.iter();
        iter.seek(&key::encode(probe, SeqNo(3), Kind::SEEK));
        iter.status()?;
        iter.seek_for_prev(&key::encode(probe, SeqNo(3), Kind::SEEK));
        iter.status()?;
    }
    let (mut forward, mut backward) =
        (SealedShard::verified_iter(Arc::clone(&image)), image.iter());
    forward.seek_to_first();
    backward.seek_to_last();
    for iter in [&mut forward as &mut dyn InternalIterator, &mut backward] {
        let mut steps = 0;
        while iter.valid() {
            assert!(iter.key().len() >= key::TRAILER_BYTES && iter.value().len() < 1 << 30);
            steps += 1;
            assert!(steps <= image.entries());
            iter.prev();
        }
        iter.status()?;
    }
    forward.seek_to_first();
    while forward.valid() {
        forward.next();
    }
    forward.status()
}

#[test]
fn every_flipped_bit_and_every_cut_is_detected() {
    for at in 0..GOLDEN.len() {
        for bit in 0..8 {
            let mut bytes = GOLDEN.to_vec();
            bytes[at] ^= 1 << bit;
            let error = SealedImage::open(bytes).err().expect("no byte may be changed");
            assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
        }
        assert!(SealedImage::open(GOLDEN[..at].to_vec()).is_err());
    }
    assert!(SealedImage::open([GOLDEN, &[0]].concat()).is_err());
    read_all(GOLDEN.to_vec()).unwrap();
}

/// Mixes two images whose records have the same positions and lengths, as a late write into the
/// memory of the newer one does. Every record of the mixture has a correct checksum.
#[test]
fn record_of_another_image_is_noticed() {
    let image_with = |value: &[u8]| {
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        shard.insert(b"key-a", SeqNo(1), Kind::Put, value);
        shard.insert(b"key-b", SeqNo(2), Kind::Put, b"same");
        image_of(&shard)
    };
    let (old, new) = (image_with(b"old"), image_with(b"new"));
    assert_eq!(old.len(), new.len());
    let records = u64::from_le_bytes(new[96..104].try_into().unwrap()) as usize;
    let record = records..records + 32;
    let mut mixed = new.clone();
    mixed[record.clone()].copy_from_slice(&old[record]);
    assert_ne!(mixed, new);
    assert!(SealedImage::open(new).is_ok() && SealedImage::open(old).is_ok());
    assert_eq!(SealedImage::open(mixed).err().unwrap().kind(), ErrorKind::Corrupt);
}

/// Corrects the checksums, so that the damage passes them.
fn forge(bytes: &mut [u8]) {
    for section in 0..5 {
        let at = 72 + section * 24;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let (start, len) = (word(at), word(at + 8));
        if let Some(part) = start.checked_add(len).and_then(|end| bytes.get(start..end)) {
            let sum = checksum::hash64(part);
            bytes[at + 16..at + 24].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let crc = checksum::crc(&bytes[..192]);
    bytes[192..196].copy_from_slice(&crc.to_le_bytes());
}

/// The fuzz corpus and thousands of seeded mutations of it, with and without forged checksums.
#[test]
fn hostile_images_give_errors_or_wrong_answers_but_no_panic() {
    let shard = small_shard_of(300);
    let many = image_of(&shard);
    let mut rng = Rng::with_seed(11);
    let (mut opened, mut refused) = (0, 0);
    let rounds = if cfg!(miri) { 200 } else { 6000 };
    for round in 0..rounds {
        let mut bytes = if round % 2 == 0 { GOLDEN.to_vec() } else { many.clone() };
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            match rng.u8(..4) {
                0 => bytes[at] ^= 1 << rng.u8(..8),
                1 => bytes[at] = rng.u8(..),
                2 => bytes[at] = 0xff,
                _ => {
                    let from = rng.usize(..bytes.len().min(at + 1));
                    let len = rng.usize(..16).min(bytes.len() - at.max(from));
                    bytes.copy_within(from..from + len, at);
                }
            }
        }
        if round % 16 != 0 {
            forge(&mut bytes);
        }
        match read_all(bytes) {
            Ok(()) => opened += 1,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported));
                refused += 1;
            }
        }
    }
    let least = rounds / 60;
    assert!(opened > least && refused > least, "{opened} read through, {refused} refused");
}

fn small_shard_of(count: u64) -> Arc<Shard> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    (0..count).for_each(|at| shard.insert(&key_of(at), SeqNo(at), Kind::Put, b"v"));
    shard
}

#[test]
fn an_open_shard_has_no_image() {
    let error = small_shard().write_image(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn record_that_is_fetched_alone_is_verified() {
    let bytes = image_of(&large_shard());
    let image = SealedImage::open(bytes.clone()).unwrap();
    let (wanted, mut fetched) = (key_of(77), Vec::new());
    let visited = image.lookup_records(&Lookup::new(&wanted, SeqNo::MAX), |found, span| {
        assert_eq!(found.value, 77u64.to_le_bytes());
        fetched = bytes[span.at as usize..(span.at + span.len) as usize].to_vec();
        ControlFlow::Continue(())
    });
    visited.unwrap();
    let (found, value) = decode_record(&fetched).unwrap();
    assert_eq!((found.user_key, found.seq, found.kind), (&wanted[..], SeqNo(78), Kind::Put));
    assert_eq!(value, 77u64.to_le_bytes());
    for at in 0..fetched.len() {
        assert!(decode_record(&fetched[..at]).is_none(), "{at} bytes of it");
        let mut damaged = fetched.clone();
        damaged[at] ^= 1;
        assert!(decode_record(&damaged).is_none(), "byte {at} was changed");
    }
    assert!(decode_record(&[fetched, vec![0]].concat()).is_none(), "a byte too many");
}
