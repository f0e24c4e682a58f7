//! Checks of [`BlobStore`].

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileClass;

use super::{assert_fails, context, pattern};
use crate::blob::{BlobOptions, BlobReader, BlobRef, BlobStore, BlobWriter};
use crate::ids::{BlobId, VolumeId};

/// A store under test, and the source of identities.
struct Bench<'a> {
    blobs: &'a dyn BlobStore,
    rng: Rng,
}

impl Bench<'_> {
    fn volume(&mut self) -> VolumeId {
        VolumeId::random(&mut self.rng)
    }

    fn id(&mut self) -> BlobId {
        BlobId::random(&mut self.rng)
    }

    fn begin(&mut self, volume: VolumeId, epoch: u64) -> (BlobId, Box<dyn BlobWriter>) {
        let id = self.id();
        (id, self.blobs.create(id, options(volume, epoch)).unwrap())
    }

    fn sealed(&mut self, volume: VolumeId, epoch: u64, bytes: &[u8]) -> BlobRef {
        let (_, mut writer) = self.begin(volume, epoch);
        writer.append(bytes).unwrap();
        writer.seal().unwrap()
    }

    fn open(&self, blob: &BlobRef) -> Arc<dyn BlobReader> {
        self.blobs.open(blob, context(FileClass::Sst)).unwrap()
    }

    fn read(&self, blob: &BlobRef) -> Vec<u8> {
        let reader = self.open(blob);
        let mut bytes = vec![0; reader.len_bytes() as usize];
        reader.read_exact_at(0, &mut bytes, context(FileClass::Sst)).unwrap();
        bytes
    }

    fn assert_gone(&self, blob: &BlobRef) {
        let outcome = self.blobs.open(blob, context(FileClass::Sst));
        // A backend may notice it at the first read only.
        let outcome = outcome.and_then(|reader| {
            let mut first = [0; 1];
            reader.read_exact_at(0, &mut first, context(FileClass::Sst))
        });
        assert_fails(outcome, ErrorKind::NotFound, "the read of a blob that was given up");
    }
}

fn options(volume: VolumeId, epoch: u64) -> BlobOptions {
    options_of(FileClass::Sst, volume, epoch)
}

fn options_of(class: FileClass, volume: VolumeId, epoch: u64) -> BlobOptions {
    BlobOptions { volume, epoch: Epoch(epoch), context: context(class), size_hint_bytes: 0 }
}

/// Checks everything that the head of [`blob`](crate::blob) promises. `seed` decides the
/// identities.
///
/// # Panics
///
/// It panics if the backend breaks a promise.
pub fn blobs_conform(blobs: &dyn BlobStore, seed: u64) {
    let mut bench = Bench { blobs, rng: Rng::with_seed(seed) };
    let checks: [fn(&mut Bench<'_>); 12] = [
        sealed_bytes_are_read_back,
        ranges_are_read_and_reads_past_the_end_fail,
        blob_is_not_found_before_its_seal,
        sealed_writer_takes_no_bytes,
        identity_is_used_once,
        outdated_hint_finds_the_blob,
        blob_is_deleted_with_its_last_volume,
        retained_blob_survives_its_first_volume,
        older_epoch_is_fenced,
        strays_are_released_and_kept_blobs_stay,
        blob_begun_during_a_release_of_strays_stays,
        figures_are_sane,
    ];
    checks.iter().for_each(|check| check(&mut bench));
}

fn sealed_bytes_are_read_back(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let whole = pattern(1_500_000);
    for class in [FileClass::Sst, FileClass::ValueSst, FileClass::Other] {
        for (len, piece_bytes) in
            [(0, 1), (1, 1), (4096, 4095), (70_001, 9_999), (1_500_000, 300_000)]
        {
            let id = bench.id();
            let mut writer = bench.blobs.create(id, options_of(class, volume, 1)).unwrap();
            for piece in whole[..len].chunks(piece_bytes) {
                writer.append(piece).unwrap();
            }
            assert_eq!(writer.len_bytes(), len as u64);
            let blob = writer.seal().unwrap();
            drop(writer);
            assert_eq!((blob.id, blob.len_bytes), (id, len as u64));
            assert_eq!(bench.open(&blob).len_bytes(), len as u64);
            assert!(bench.read(&blob) == whole[..len], "{len} bytes in pieces of {piece_bytes}");
        }
    }
}

fn ranges_are_read_and_reads_past_the_end_fail(bench: &mut Bench<'_>) {
    let whole = pattern(600_001);
    for class in [FileClass::Sst, FileClass::ValueSst] {
        let (volume, id) = (bench.volume(), bench.id());
        let mut writer = bench.blobs.create(id, options_of(class, volume, 1)).unwrap();
        writer.append(&whole).unwrap();
        let blob = writer.seal().unwrap();
        let reader = bench.open(&blob);
        let context = context(class);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (reader, whole) = (&reader, &whole);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(thread);
                    for _ in 0..50 {
                        let start = rng.usize(..whole.len());
                        let len = rng.usize(..=(whole.len() - start).min(40_000));
                        let mut buf = vec![0; len];
                        reader.read_exact_at(start as u64, &mut buf, context).unwrap();
                        assert!(buf == whole[start..start + len], "{len} bytes at {start}");
                    }
                });
            }
        });
        // The ranges lie within one cell of 256 KiB, across two of them, and at the end.
        let ranges = [(0, 16), (262_140, 8), (599_001, 1_000), (100, 300_000), (600_001, 0)];
        let mut bufs: Vec<_> = ranges.iter().map(|range| vec![0; range.1]).collect();
        let starts = ranges.iter().map(|range| range.0 as u64);
        let mut requests: Vec<_> = starts.zip(bufs.iter_mut().map(Vec::as_mut_slice)).collect();
        reader.read_many(&mut requests, context).unwrap();
        for (range, buf) in ranges.iter().zip(&bufs) {
            assert!(*buf == whole[range.0..range.0 + range.1], "{range:?}");
        }
        for (offset, len) in [(600_000, 2), (600_001, 1), (u64::MAX - 1, 8), (0, 600_002)] {
            let outcome = reader.read_exact_at(offset, &mut vec![0; len], context);
            let error = assert_fails(outcome, ErrorKind::Io, "a read past the end");
            assert!(error.to_string().contains("past the end"), "{error}");
        }
    }
}

fn blob_is_not_found_before_its_seal(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let (id, mut writer) = bench.begin(volume, 1);
    writer.append(b"early").unwrap();
    let early = BlobRef { id, len_bytes: 5, hint: Vec::new() };
    bench.assert_gone(&early);
    assert_fails(bench.blobs.retain(&early, volume), ErrorKind::NotFound, "an early retain");
    let blob = writer.seal().unwrap();
    assert_eq!(bench.read(&blob), b"early");
}

fn sealed_writer_takes_no_bytes(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let (_, mut writer) = bench.begin(volume, 1);
    writer.append(b"all").unwrap();
    let blob = writer.seal().unwrap();
    assert!(writer.append(b"more").is_err(), "a sealed blob took bytes");
    drop(writer);
    assert_eq!(bench.read(&blob), b"all");
}

fn identity_is_used_once(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let blob = bench.sealed(volume, 1, b"first");
    // A backend may notice it at the seal only, when it reaches the holders.
    let again = bench.blobs.create(blob.id, options(volume, 1));
    let again = again.and_then(|mut writer| {
        writer.append(b"second")?;
        writer.seal()
    });
    assert!(again.is_err(), "an identity was used twice");
    assert_eq!(bench.read(&blob), b"first");
}

fn outdated_hint_finds_the_blob(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let blob = bench.sealed(volume, 1, b"found");
    let other = bench.sealed(volume, 1, b"another blob");
    for hint in [Vec::new(), other.hint] {
        assert_eq!(bench.read(&BlobRef { hint, ..blob.clone() }), b"found");
    }
}

fn blob_is_deleted_with_its_last_volume(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let blob = bench.sealed(volume, 1, b"bytes");
    let stranger = bench.volume();
    bench.blobs.release(blob.id, stranger, Epoch(1)).unwrap();
    assert_eq!(bench.read(&blob), b"bytes", "another volume released it");
    for _ in 0..2 {
        bench.blobs.release(blob.id, volume, Epoch(1)).unwrap();
        bench.assert_gone(&blob);
    }
    assert_fails(bench.blobs.retain(&blob, volume), ErrorKind::NotFound, "a late retain");

    let (id, mut writer) = bench.begin(volume, 1);
    writer.append(b"unsealed").unwrap();
    bench.blobs.release(id, volume, Epoch(1)).unwrap();
    assert!(writer.seal().is_err(), "a blob that was given up was sealed");
    bench.assert_gone(&BlobRef { id, len_bytes: 8, hint: Vec::new() });
}

fn retained_blob_survives_its_first_volume(bench: &mut Bench<'_>) {
    let (first, second) = (bench.volume(), bench.volume());
    let blob = bench.sealed(first, 1, b"shared");
    for _ in 0..2 {
        bench.blobs.retain(&blob, second).unwrap();
    }
    bench.blobs.release(blob.id, first, Epoch(1)).unwrap();
    assert_eq!(bench.read(&blob), b"shared");
    assert_eq!(bench.blobs.release_strays(first, Epoch(2), &|_| false).unwrap(), 0);
    assert_eq!(bench.read(&blob), b"shared");
    bench.blobs.release(blob.id, second, Epoch(1)).unwrap();
    bench.assert_gone(&blob);
}

fn older_epoch_is_fenced(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let named = bench.sealed(volume, 1, b"named");
    let (old, mut late) = bench.begin(volume, 1);
    late.append(b"late").unwrap();
    bench.blobs.release_strays(volume, Epoch(2), &|_| true).unwrap();
    let id = bench.id();
    // A backend may notice it at the seal only, when it reaches the holders.
    let outcome = bench.blobs.create(id, options(volume, 1));
    let outcome = outcome.and_then(|mut writer| {
        writer.append(b"of an old owner")?;
        writer.seal()
    });
    assert_fails(outcome, ErrorKind::Fenced, "a creation under an old epoch");
    let outcome = bench.blobs.release(named.id, volume, Epoch(1));
    assert_fails(outcome, ErrorKind::Fenced, "a release under an old epoch");
    let outcome = bench.blobs.release_strays(volume, Epoch(1), &|_| false);
    assert_fails(outcome, ErrorKind::Fenced, "a release of strays under an old epoch");
    let outcome = bench.blobs.retain_all(std::slice::from_ref(&named), volume, Epoch(1));
    assert_fails(outcome, ErrorKind::Fenced, "a retain under an old epoch");
    assert_fails(late.seal(), ErrorKind::Fenced, "a seal under an old epoch");
    bench.assert_gone(&BlobRef { id: old, len_bytes: 4, hint: Vec::new() });
    assert_eq!(bench.read(&named), b"named");
    let other = bench.volume();
    let unrelated = bench.sealed(other, 1, b"of another volume");
    assert_eq!(bench.read(&unrelated), b"of another volume");
}

fn strays_are_released_and_kept_blobs_stay(bench: &mut Bench<'_>) {
    let (volume, other) = (bench.volume(), bench.volume());
    let named = bench.sealed(volume, 1, b"named");
    let stray = bench.sealed(volume, 1, b"stray");
    let (unsealed, writer) = bench.begin(volume, 1);
    let (pending, mut pending_writer) = bench.begin(volume, 2);
    let unrelated = bench.sealed(other, 1, b"unrelated");
    let keeps = |id| id == named.id || id == pending;
    assert_eq!(bench.blobs.release_strays(volume, Epoch(2), &keeps).unwrap(), 2);
    assert_eq!(bench.blobs.release_strays(volume, Epoch(2), &keeps).unwrap(), 0);
    assert_eq!(bench.read(&named), b"named");
    assert_eq!(bench.read(&unrelated), b"unrelated");
    bench.assert_gone(&stray);
    bench.assert_gone(&BlobRef { id: unsealed, len_bytes: 0, hint: Vec::new() });
    drop(writer);
    pending_writer.append(b"pending").unwrap();
    let blob = pending_writer.seal().unwrap();
    assert_eq!(bench.read(&blob), b"pending");
}

fn blob_begun_during_a_release_of_strays_stays(bench: &mut Bench<'_>) {
    let volume = bench.volume();
    let stray = bench.sealed(volume, 1, b"stray");
    let id = bench.id();
    let begun = std::cell::RefCell::new(None);
    let blobs = bench.blobs;
    let keeps = |_: BlobId| {
        let mut begun = begun.borrow_mut();
        if begun.is_none() {
            *begun = Some(blobs.create(id, options(volume, 2)).unwrap());
        }
        false
    };
    assert_eq!(blobs.release_strays(volume, Epoch(2), &keeps).unwrap(), 1);
    bench.assert_gone(&stray);
    let mut writer = begun.into_inner().unwrap();
    writer.append(b"new").unwrap();
    let blob = writer.seal().unwrap();
    assert_eq!(bench.read(&blob), b"new");
}

fn figures_are_sane(bench: &mut Bench<'_>) {
    for class in [FileClass::Sst, FileClass::ValueSst, FileClass::Manifest, FileClass::Other] {
        let redundancy = bench.blobs.redundancy(class);
        assert!((1.0..=10.0).contains(&redundancy), "{class:?}: {redundancy}");
    }
    if let Some(bytes) = bench.blobs.free_bytes().unwrap() {
        assert!(bytes < 1 << 60, "{bytes}");
    }
}
