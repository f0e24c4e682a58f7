//! Shards that are read at another node than before, because the store has two copies of them.

use archipelago_engine::db::ReadOptions;
use archipelago_engine::stats::Ticker;

use super::Mood;
use super::world::{Change, World, check_rows, key};

#[test]
fn shards_that_move_are_read_and_flushed_and_nothing_is_rebuilt() {
    for tells in [true, false] {
        let mut world = World::with(Change::default());
        world.send_away(6);
        let cf = world.db.default_family().clone();
        let before = world.model.clone();
        let mut placed = world.db.iter(&cf, &ReadOptions::default()).unwrap();
        placed.seek(&key(100));
        world.store.move_some(tells);
        let mut fresh = world.db.iter(&cf, &ReadOptions::default()).unwrap();
        // A cursor from before goes on at the nodes of its shards.
        let (mut shown, mut expected) = (Vec::new(), before.range(key(100)..));
        while placed.valid() {
            shown.push((placed.key().to_vec(), placed.value().to_vec()));
            placed.next();
        }
        placed.status().unwrap();
        let expected: Vec<_> = expected.by_ref().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(shown == expected, "an iterator that stood on a row");
        check_rows(&mut fresh, &before);
        check_rows(&mut placed, &before);
        world.check();
        world.store.move_some(tells);
        world.send_away(3);
        world.check();
        if tells {
            assert_eq!(world.store.did().astray, 0, "questions go where the shards are");
        }
        world.db.flush(&cf).unwrap();
        world.check();
        for ticker in [Ticker::AwayShardsLost, Ticker::AwayShardsRebuilt, Ticker::AwayReadsBusy] {
            assert_eq!(world.ticker(ticker), 0, "{ticker:?}");
        }
        world.reopen(false);
        world.check();
    }
}

#[test]
fn shard_that_has_moved_may_be_lost_afterwards() {
    let mood = Mood { nodes: 1, ..Mood::default() };
    let mut world = World::with(Change { mood, ..Change::default() });
    world.send_away(5);
    world.store.move_some(true);
    let lost = world.store.held().len() as u64;
    world.store.lose_all(true);
    world.check();
    assert_eq!(world.ticker(Ticker::AwayShardsLost), lost);
    world.settle();
    world.check();
}
