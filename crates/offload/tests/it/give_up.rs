//! Transfers that are given up because flushes wait for their shards, in virtual time.

use std::sync::atomic::Ordering;

use archipelago_engine::remote::AwayError;

use crate::away::{MIB, SECOND, Sample, World};

#[test]
fn transfer_of_a_due_shard_is_given_up_before_half_has_left() {
    let world = World::new(21, 1, 64 * MIB);
    let (long, short) = (Sample::puts(1, 40, 100_000), Sample::puts(2, 10, 100));
    world.heard.due.store(true, Ordering::Relaxed);
    let sent = world.send(&long);
    assert!(matches!(sent, Err(AwayError::Busy(_))), "{sent:?}");
    world.wait(SECOND);
    assert_eq!((world.held(), world.store.figures().sent), (0, 0));
    assert_eq!(world.store.figures().sent_bytes, 0);
    // The requests that give a short one up would take as long as its transfer.
    assert!(world.send(&short).is_ok());
    // A shard that is not due leaves as a whole.
    world.heard.due.store(false, Ordering::Relaxed);
    assert!(world.send(&Sample::puts(3, 40, 100_000)).is_ok());
    assert_eq!(world.held(), 2);
}
