//! Reads of silent memory nodes end when the time of their reader has passed, in virtual time.

use std::time::Duration;

use archipelago_base::SeqNo;
use archipelago_base::random::Rng;
use archipelago_engine::remote::{
    AwayError, LookupAsk, ScanAsk, ScanDirection, ShardStore, StoreNode,
};

use crate::away::{MIB, SECOND, Sample, World, ask, key_of};

/// Pause between two attempts of a read. The read may end later than its deadline by this time.
const PAUSE: Duration = Duration::from_millis(10);

/// A shard at a node that is cut off from its owner.
fn cut_off(world: World) -> (World, Sample, StoreNode) {
    let sample = Sample::new(&mut Rng::with_seed(1), 1, 20, 500);
    let node = world.send(&sample).unwrap();
    world.wait(SECOND);
    world.network.cut(&world.owner, &world.nodes[world.index(node)].host);
    (world, sample, node)
}

/// Virtual time of a call, and its result.
fn timed<T>(world: &World, call: impl FnOnce() -> T) -> (Duration, T) {
    let begin_ns = world.simulation.now_ns();
    let result = call();
    (Duration::from_nanos(world.simulation.now_ns() - begin_ns), result)
}

#[test]
fn reads_of_a_silent_node_end_when_their_time_has_passed() {
    // Longer silence would lose the shards instead.
    for left in [300, 1500, 3000].map(Duration::from_millis) {
        let (world, sample, node) = cut_off(World::new(11, 1, 16 * MIB));
        let (keys, ids) = ([key_of(1)], [sample.id]);
        let question = LookupAsk { time_left: left, ..ask(node, &ids, &keys, SeqNo::MAX) };
        let (taken, answers) = timed(&world, || world.store.lookup(&[question]));
        assert!(matches!(answers[0], Err(AwayError::Busy(_))), "{answers:?}");
        assert!(taken <= left + PAUSE, "a look-up took {taken:?} of {left:?}");

        let (world, sample, node) = cut_off(World::new(11, 1, 16 * MIB));
        let ids = [sample.id];
        let page = ScanAsk {
            node,
            shards: &ids,
            keys: &sample.keys,
            resume: None,
            direction: ScanDirection::Forward,
            snapshot: SeqNo::MAX,
            bytes_max: 1000,
            keys_only: false,
            time_left: left,
        };
        let (taken, answer) = timed(&world, || world.store.scan(&page));
        assert!(matches!(answer, Err(AwayError::Busy(_))), "{answer:?}");
        assert!(taken <= left + PAUSE, "a page took {taken:?} of {left:?}");
    }
}

#[test]
fn other_copy_answers_within_the_time_of_the_reader() {
    let (world, sample, node) = cut_off(World::with_copies(12, 2, 16 * MIB));
    let (keys, ids, left) = ([key_of(1)], [sample.id], 4 * SECOND);
    let question = LookupAsk { time_left: left, ..ask(node, &ids, &keys, SeqNo::MAX) };
    let (taken, answers) = timed(&world, || world.store.lookup(&[question]));
    assert!(answers[0].is_ok() && taken <= left, "{answers:?} after {taken:?}");
    assert_eq!(world.store.figures().copies_used, 1);
}

#[test]
fn time_that_passes_says_nothing_about_the_node() {
    let (world, sample, node) = cut_off(World::with_copies(13, 2, 16 * MIB));
    let (keys, ids) = ([key_of(1)], [sample.id]);
    // The link to the node goes down after seven milliseconds, and then the other copy is read.
    let left = Duration::from_millis(5);
    let question = LookupAsk { time_left: left, ..ask(node, &ids, &keys, SeqNo::MAX) };
    let answer = world.store.lookup(&[question]).remove(0);
    assert!(matches!(answer, Err(AwayError::Busy(_))), "{answer:?}");
    let figures = world.store.figures();
    assert_eq!(
        (figures.copies_used, figures.lost),
        (0, 0),
        "the time is too short to judge a node"
    );
}
