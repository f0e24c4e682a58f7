//! Fetches of images by another process than the owner, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Error, ErrorKind};
use archipelago_fabric::sim::Model;
use archipelago_offload::parcel::{ImageNode, ImagePlace};
use archipelago_offload::shard_owner::{ImageFetcher, Waits};

use crate::away::{MIB, SECOND, Sample, World};

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
