//! Fetches of images by another process than the owner, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind};
use archipelago_engine::memtable::{SealedImage, SealedShard};
use archipelago_engine::remote::{ShardId, ShardStore};
use archipelago_fabric::sim::Model;
use archipelago_offload::parcel::{ImageNode, ImagePlace};
use archipelago_offload::shard_owner::{ImageFetcher, Waits};

use crate::away::{MIB, SECOND, Sample, World, samples};

/// A fetcher of another process on the owner's machine.
fn fetcher(world: &World) -> ImageFetcher {
    let reach = world.network.join(&world.owner, Model::quick());
    ImageFetcher::new(Arc::new(reach), Arc::new(world.owner.clone()), Waits::InRuntime)
}

/// Sends an image of some mebibytes, and finds it.
fn large(world: &World) -> (ImageNode, ImagePlace) {
    let sample = Sample::puts(1, 1500, 2000);
    world.send(&sample).unwrap();
    let images = world.store.images(&[sample.id]).unwrap();
    (images.nodes[0].clone(), images.images[0])
}

#[test]
fn fetch_tells_each_part_and_ends_when_it_is_not_wanted() {
    let world = World::new(1, 1, 64 * MIB);
    let (node, image) = large(&world);
    assert!(image.place.bytes > 2 * MIB, "{image:?}");
    let fetcher = fetcher(&world);
    let (parts, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let on_part = |part: u64| {
        assert!(part <= MIB);
        parts.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(part, Ordering::Relaxed);
        Ok(())
    };
    fetcher.fetch(&node, &[image], &on_part).unwrap();
    assert_eq!(parts.load(Ordering::Relaxed), image.place.bytes.div_ceil(MIB));
    assert_eq!(bytes.load(Ordering::Relaxed), image.place.bytes);
    let count = AtomicU64::new(0);
    let cancelled = |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Error::closed("the job was cancelled")),
    };
    let error = fetcher.fetch(&node, &[image], &cancelled).err().unwrap();
    assert_eq!((error.kind(), count.load(Ordering::Relaxed)), (ErrorKind::Closed, 2));
    fetcher.fetch(&node, &[image], &|_| Ok(())).unwrap();
}

#[test]
fn place_outside_of_its_region_is_refused() {
    let world = World::new(2, 1, 64 * MIB);
    let (node, image) = large(&world);
    let fetcher = fetcher(&world);
    let with = |at: u64, bytes: u64| {
        let mut wrong = image;
        (wrong.place.at, wrong.place.bytes) = (at, bytes);
        wrong
    };
    let (at, bytes) = (image.place.at, image.place.bytes);
    for wrong in [with(at, u64::MAX), with(u64::MAX, bytes), with(at, 1 << 50), with(at, 0)] {
        let error = fetcher.fetch(&node, &[wrong], &|_| Ok(())).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }
    // A key whose length was changed as well.
    let mut longer = with(at, 1 << 50);
    longer.place.key.len = u64::MAX;
    let error = fetcher.fetch(&node, &[longer], &|_| Ok(())).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    fetcher.fetch(&node, &[image], &|_| Ok(())).unwrap();
}

#[test]
fn fetch_after_a_cut_makes_the_link_anew() {
    let world = World::new(3, 1, 64 * MIB);
    let (node, image) = large(&world);
    let fetcher = fetcher(&world);
    fetcher.fetch(&node, &[image], &|_| Ok(())).unwrap();
    world.network.cut(&world.owner, &world.nodes[0].host);
    let begin_ns = world.simulation.now_ns();
    let error = fetcher.fetch(&node, &[image], &|_| Ok(())).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let waited_ns = u128::from(world.simulation.now_ns() - begin_ns);
    assert!(waited_ns < (15 * SECOND).as_nanos(), "{waited_ns} ns");
    world.network.heal_all();
    // The owner has given up the life of the node, but the node still has the image.
    fetcher.fetch(&node, &[image], &|_| Ok(())).unwrap();
}

/// Whether two images have the same records.
fn are_equal(one: &Arc<SealedImage>, other: &Arc<SealedImage>) -> bool {
    let records = |image: &Arc<SealedImage>| {
        let mut iter = SealedShard::verified_iter(Arc::clone(image));
        let mut records = Vec::new();
        iter.seek_to_first();
        while iter.valid() {
            records.push((iter.key().to_vec(), iter.value().to_vec()));
            iter.next();
        }
        iter.status().map(|()| records)
    };
    records(one).unwrap() == records(other).unwrap()
}

/// Sends samples, the last one first.
fn send_all(world: &World, samples: &[Sample]) {
    for sample in samples.iter().rev() {
        world.send(sample).unwrap();
    }
}

#[test]
fn image_for_another_process_is_the_one_that_was_sent_or_an_error() {
    let mut rng = Rng::with_seed(12);
    let mut world = World::new(12, 1, 4 * MIB);
    let all = samples(&mut rng, 6, 200, 5_000);
    let ids: Vec<ShardId> = all.iter().map(|sample| sample.id).collect();
    assert!(world.store.images(&ids[..1]).is_none(), "nothing was sent");
    send_all(&world, &all[..3]);
    assert!(world.store.images(&ids).is_none(), "half of them were not sent");
    let images = world.store.images(&ids[..3]).unwrap();
    let [node] = &images.nodes[..] else { panic!("one node") };
    let fetcher = fetcher(&world);
    let fetch = |places: &[ImagePlace]| fetcher.fetch(node, places, &|_| Ok(()));
    for (fetched, sample) in fetch(&images.images).unwrap().iter().zip(&all) {
        assert!(are_equal(fetched, &sample.image));
    }
    let wrong = ImagePlace { head_sum: 7, ..images.images[0] };
    assert_eq!(fetch(&[wrong]).err().unwrap().kind(), ErrorKind::Io);
    // An executor in the process of the node keeps the bytes that it reads, also after the release.
    let host = Arc::clone(&world.nodes[0].shards);
    let in_place = |place: &ImagePlace| host.image(images.db, place.name, &place.place);
    assert_eq!(host.life().unwrap(), node.at);
    let elsewhere = ImagePlace { place: images.images[1].place, ..images.images[0] };
    assert!(in_place(&elsewhere).is_none(), "the place is that of another image");
    let kept = in_place(&images.images[0]).unwrap();
    world.store.release(&ids[..3], 4);
    world.wait(SECOND);
    assert!(images.images.iter().all(|place| in_place(place).is_none()), "they were released");
    // Other images take the place of unused ones.
    send_all(&world, &all[3..]);
    let later = world.store.images(&ids[3..]).unwrap();
    assert_eq!(later.images.len(), 3);
    for (place, sample) in images.images.iter().zip(&all) {
        if let Ok(fetched) = fetch(&[*place]) {
            assert!(are_equal(&fetched[0], &sample.image), "{}", place.name);
        }
    }
    assert!(are_equal(&kept, &all[0].image));
    world.kill(0);
    world.revive(0);
    world.list();
    let failed = fetch(&images.images[..1]).err().unwrap();
    assert_eq!(failed.kind(), ErrorKind::Io, "the life of the node is over: {failed}");
}
