//! Tests of `tcp`: operations share packets.

use archipelago_fabric::{Batch, Link};

use crate::world::World;

fn packets(link: &dyn Link, post: impl FnOnce()) -> u64 {
    let before = link.stats().packets;
    post();
    link.stats().packets - before
}

#[test]
fn batch_of_sixteen_takes_a_sixteenth_of_the_packets() {
    const OPERATIONS: u64 = 640;
    let world = World::new("tcp");
    let (link, region) = world.attached();
    let run = |per_batch: u64| {
        packets(&*link, || {
            for _ in 0..OPERATIONS / per_batch {
                let mut batch = Batch::new();
                (0..per_batch).for_each(|at| _ = batch.read(region, at * 128, 128));
                link.post(batch).wait().check().unwrap();
            }
        })
    };
    assert_eq!(run(1), OPERATIONS);
    assert_eq!(run(16), OPERATIONS / 16);
}

#[test]
fn neighbouring_batches_share_packets() {
    let world = World::new("tcp");
    let (link, region) = world.attached();
    let sent = packets(&*link, || {
        let promises: Vec<_> = (0..16)
            .map(|at| {
                let mut batch = Batch::new();
                batch.read(region, at * 128, 128);
                link.post(batch)
            })
            .collect();
        for promise in promises {
            promise.wait().check().unwrap();
        }
    });
    assert_eq!(sent, 1, "the first wait rings the doorbell for all");
}

#[test]
fn many_bytes_leave_without_a_wait() {
    let world = World::new("tcp");
    let (link, region) = world.attached();
    let mut batch = Batch::new();
    batch.write_in_place(region, 0, 128 << 10).fill(7);
    let sent = packets(&*link, || {
        let promise = link.post(batch);
        assert!(link.stats().sent_bytes > 64 << 10);
        promise.wait().check().unwrap();
    });
    assert!(sent >= 1);
}
