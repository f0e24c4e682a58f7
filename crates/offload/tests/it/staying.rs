//! The number of memtables that stay in the process follows measured reads, in virtual time: a real
//! database over simulated links to real shard hosts.

use std::sync::Arc;

use archipelago_base::clock::Clock;
use archipelago_engine::db::{BackgroundMode, Components, Db};
use archipelago_engine::options::{CfOptions, DbOptions};
use archipelago_env::mem::MemFs;
use archipelago_offload::shard_owner::{RemoteShards, StayingMemtables};

use crate::away::{MIB, SECOND, World, key_of};

/// A database whose store decides by this setting.
struct Staying {
    world: World,
    db: Db,
    shards: Arc<RemoteShards>,
    written: u64,
}

impl Staying {
    fn new(seed: u64, setting: StayingMemtables) -> Self {
        let world = World::for_database(seed, 2, 16 * MIB);
        let shards = world.staying_store(setting);
        let family =
            CfOptions { write_buffer_bytes: 16 << 10, buckets: 12, ..CfOptions::default() };
        let clock: Arc<dyn Clock> = world.simulation.clock();
        let components = Components {
            fs: Arc::new(MemFs::new()),
            families: [("default".to_owned(), family)].into_iter().collect(),
            shard_store: Some(Arc::clone(&shards) as _),
            background: BackgroundMode::Manual,
            clock,
            ..Components::default()
        };
        let db = Db::open_with("/db", DbOptions::default(), components).unwrap();
        world.wait(2 * SECOND);
        let mut staying = Self { world, db, shards, written: 0 };
        // The first memtable cuts the bucket map.
        (0..400).step_by(5).for_each(|number| staying.put(number));
        staying.db.flush(staying.db.default_family()).unwrap();
        staying.write(400);
        staying
    }

    fn settle(&self) {
        while self.db.step_background().unwrap() {}
    }

    fn put(&self, number: u64) {
        self.db.put(&key_of(number), &[b'v'; 60]).unwrap();
    }

    /// Puts the next keys.
    fn write(&mut self, count: u64) {
        for _ in 0..count {
            self.written += 1;
            self.put(self.written % 400);
            if self.written.is_multiple_of(20) {
                self.settle();
            }
        }
        self.settle();
    }

    /// Reads the newest keys.
    fn read_newest(&self, count: u64) {
        for back in 0..count {
            assert!(self.db.get(&key_of((self.written - back) % 400)).unwrap().is_some());
        }
    }

    /// Writes and reads for some seconds.
    fn work(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.write(150);
            self.read_newest(300);
            self.world.wait(SECOND);
            self.settle();
        }
    }
}

#[test]
fn memtables_that_are_read_stay_and_leave_without_reads() {
    let mut staying = Staying::new(1, StayingMemtables::Auto);
    staying.work(2);
    assert_eq!(staying.shards.figures().staying, 0, "two windows are not enough");
    staying.work(12);
    let figures = staying.shards.figures();
    assert!(figures.staying >= 1 && figures.staying_raised >= figures.staying, "{figures:?}");
    staying.write(300);
    let before = staying.shards.figures();
    staying.read_newest(100);
    let after = staying.shards.figures();
    assert_eq!(
        (after.keys, after.cache_reads),
        (before.keys, before.cache_reads),
        "no node is asked for the newest records"
    );
    for _ in 0..40 {
        staying.world.wait(9 * SECOND);
        staying.settle();
    }
    let idle = staying.shards.figures();
    assert_eq!((idle.staying, idle.staying_best), (0, 0), "{idle:?}");
    assert!(idle.sent > after.sent, "they have left");
}

#[test]
fn fixed_number_stays_whatever_is_read() {
    let mut staying = Staying::new(2, StayingMemtables::Fixed(2));
    staying.work(6);
    let figures = staying.shards.figures();
    assert_eq!(figures.staying, 2, "{figures:?}");
    let mut none = Staying::new(2, StayingMemtables::default());
    none.work(6);
    assert_eq!(none.shards.figures().staying, 0);
    assert!(none.shards.figures().sent > figures.sent, "{figures:?}");
}
