//! Records that leave while their shard still takes writes, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::SeqNo;
use archipelago_base::budget::ByteBudget;
use archipelago_engine::key::Kind;
use archipelago_engine::memtable::{SealedImage, Shard, SlabPool};
use archipelago_engine::remote::{ActiveShard, ShardId, ShardStore};
use archipelago_fabric::sim::Model;
use archipelago_offload::shard_owner::OwnerFigures;

use crate::away::{MIB, SECOND, Sample, World, ask, expected, key_of, versions};

const VALUE_BYTES: usize = 200;
/// Bytes of a landing zone in these worlds.
const ZONE_BYTES: u64 = MIB;

/// A shard that takes writes, and the number of its records.
struct Filling {
    id: ShardId,
    shard: Arc<Shard>,
    records: u64,
}

impl Filling {
    /// A shard without records.
    fn new(memtable: u64) -> Self {
        let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
        Self { id: ShardId { memtable, shard: 0 }, shard, records: 0 }
    }

    /// A shard without records that is offered with this expected size of its image.
    fn offered(world: &World, memtable: u64, image_bytes: u64) -> Self {
        let filling = Self::new(memtable);
        filling.offer(world, image_bytes);
        filling
    }

    /// Offers the shard with this expected size of its image.
    fn offer(&self, world: &World, image_bytes: u64) {
        let (boundary, records) = (b"k".to_vec(), Arc::downgrade(&self.shard));
        world.store.offer(ActiveShard { id: self.id, boundary, image_bytes, records });
    }

    /// Writes this number of records.
    fn put(&mut self, count: u64) {
        for _ in 0..count {
            let seq = SeqNo(self.id.memtable * 10_000 + self.records);
            let value = vec![self.records as u8; VALUE_BYTES];
            self.shard.insert(&key_of(self.records), seq, Kind::Put, &value);
            self.records += 1;
        }
    }

    /// Bytes of the slabs that may leave.
    fn complete_bytes(&self) -> u64 {
        self.shard.complete_slabs(0).iter().map(|slab| slab.len() as u64).sum()
    }

    /// Writes records, 50 in each of some periods.
    fn fill(&mut self, world: &World, periods: u64, period: Duration) {
        for _ in 0..periods {
            self.put(50);
            world.wait(period);
            world.tick();
        }
    }

    /// The sealed shard.
    fn sealed(self) -> Sample {
        self.shard.seal();
        let mut sample = Sample::puts(self.id.memtable, 0, 0);
        sample.bytes.clear();
        self.shard.write_image(&mut sample.bytes).unwrap();
        sample.image = SealedImage::open(sample.bytes.clone()).unwrap();
        sample.last_seq = SeqNo(self.id.memtable * 10_000 + self.records);
        sample
    }
}

fn figures(world: &World) -> OwnerFigures {
    world.store.figures()
}

/// Number of grants at all nodes.
fn grants(world: &World) -> u64 {
    (0..world.nodes.len()).map(|index| world.figures(index).grants).sum()
}

/// Sends a shard, reads some of it back, and releases it. Returns the bytes that the send wrote.
fn send_and_read(world: &World, sample: &Sample) -> u64 {
    let before = figures(world).written_bytes;
    let node = world.send(sample).unwrap();
    let written = figures(world).written_bytes - before;
    let keys: Vec<Vec<u8>> = (0..100).map(|number| key_of(number * 17)).collect();
    let answer = world.store.lookup(&[ask(node, &[sample.id], &keys, SeqNo::MAX)]).remove(0);
    let answer = answer.unwrap();
    for (number, key) in keys.iter().enumerate() {
        let right = expected(&[sample], key, SeqNo::MAX, SeqNo(0));
        assert_eq!(versions(&answer, number), right);
    }
    world.store.release(&[sample.id], sample.id.memtable + 1);
    world.wait(SECOND);
    assert_eq!((grants(world), world.held()), (0, 0), "nothing is left");
    written
}

#[test]
fn most_records_have_left_before_the_seal() {
    let world = World::new(1, 1, 16 * MIB);
    let mut filling = Filling::offered(&world, 1, 640 << 10);
    filling.fill(&world, 40, Duration::from_millis(50));
    let data_bytes = filling.shard.data_bytes();
    let ahead_bytes = figures(&world).ahead_bytes;
    assert!(ahead_bytes >= data_bytes * 3 / 4, "{ahead_bytes} of {data_bytes} bytes");
    assert_eq!((grants(&world), figures(&world).active), (1, 1));
    assert_eq!((world.held(), figures(&world).shards), (0, 0), "no shard before the seal");
    let sample = filling.sealed();
    let written = send_and_read(&world, &sample);
    assert_eq!(written + ahead_bytes, sample.bytes.len() as u64, "each byte was written once");
    let figures = figures(&world);
    assert_eq!((figures.ahead_used, figures.ahead_used_bytes), (1, ahead_bytes));
    assert_eq!((figures.sent, figures.active), (1, 0));
}

#[test]
fn shards_leave_in_parallel_and_at_the_speed_of_writers() {
    // 100 MB/s.
    let model = Model { byte_ps: 10_000, ..Model::quick() };
    let world = World::over(&model, 2, 1, 64 * MIB);
    // The first image measures the link.
    world.send(&Sample::puts(1, 200, 4000)).unwrap();
    world.heard.load.lock().fill_bytes_per_s = 8 << 20;
    let mut filling: Vec<Filling> = (2..6).map(Filling::new).collect();
    filling.iter_mut().for_each(|filling| filling.put(2000));
    let data: u64 = filling.iter().map(|filling| filling.shard.data_bytes()).sum();
    let complete: u64 = filling.iter().map(Filling::complete_bytes).sum();
    assert!(complete >= data * 3 / 4, "{complete} of {data} bytes");
    // All records may leave at once, and they leave at the speed of the writers and a quarter more.
    let begin_ns = world.simulation.now_ns();
    filling.iter().for_each(|filling| filling.offer(&world, 640 << 10));
    for _ in 0..10_000 {
        if figures(&world).ahead_bytes == complete {
            break;
        }
        world.wait(Duration::from_millis(1));
    }
    let ahead = figures(&world);
    assert_eq!((ahead.ahead_bytes, ahead.active), (complete, 4));
    let took_ns = u128::from(world.simulation.now_ns() - begin_ns);
    // The last slice has no time of its own.
    let least_ns = u128::from(complete - (128 << 10)) * 1_000_000_000 / (10 << 20);
    assert!(took_ns >= least_ns, "{complete} bytes in {took_ns} ns");
    for filling in filling {
        let sample = filling.sealed();
        world.send(&sample).unwrap();
    }
    assert_eq!((figures(&world).ahead_used, grants(&world)), (4, 0));
}

#[test]
fn shard_that_outgrows_its_room_is_sent_as_a_whole() {
    for expected_bytes in [96 << 10, 440 << 10] {
        let world = World::new(3, 1, 16 * MIB);
        let mut filling = Filling::offered(&world, 1, expected_bytes);
        filling.fill(&world, 40, Duration::from_millis(50));
        let sample = filling.sealed();
        assert!(sample.bytes.len() as u64 > expected_bytes);
        assert_eq!(send_and_read(&world, &sample), sample.bytes.len() as u64);
        let figures = figures(&world);
        assert_eq!((figures.ahead_outgrown, figures.ahead_used, figures.sent), (1, 0, 1));
        assert_eq!(world.figures(0).counters.given_back, 1, "the name stays usable there");
    }
}

#[test]
fn shard_whose_node_is_lost_is_sent_to_another_one() {
    let mut world = World::new(4, 2, 16 * MIB);
    let mut filling = Filling::offered(&world, 1, 640 << 10);
    filling.fill(&world, 20, Duration::from_millis(50));
    let index = (0..2).find(|index| world.figures(*index).grants == 1).unwrap();
    world.kill(index);
    world.list();
    filling.fill(&world, 20, SECOND);
    assert_eq!((figures(&world).ahead_failed, figures(&world).active), (1, 0));
    let sample = filling.sealed();
    let node = world.send(&sample).unwrap();
    assert_ne!(world.index(node), index);
    assert_eq!(figures(&world).ahead_used, 0);
}

#[test]
fn sealed_shard_gets_the_room_of_an_active_one() {
    let world = World::new(5, 1, 16 * MIB);
    let mut filling = Filling::offered(&world, 2, ZONE_BYTES * 3 / 4);
    filling.fill(&world, 20, Duration::from_millis(50));
    assert_eq!(grants(&world), 1);
    let sealed = Sample::puts(1, 100, 5000);
    assert!(sealed.bytes.len() as u64 > ZONE_BYTES / 4);
    let free_bytes = world.store.room().free_bytes;
    assert!(free_bytes >= sealed.bytes.len() as u64, "the room of active shards counts as free");
    world.send(&sealed).unwrap();
    assert_eq!((figures(&world).ahead_no_room, figures(&world).active), (1, 0));
    world.store.release(&[sealed.id], 2);
    filling.fill(&world, 20, Duration::from_millis(50));
    let sample = filling.sealed();
    assert_eq!(send_and_read(&world, &sample), sample.bytes.len() as u64);
}

#[test]
fn shard_without_progress_gives_its_room_back() {
    let world = World::new(6, 1, 16 * MIB);
    let mut filling = Filling::offered(&world, 1, 640 << 10);
    filling.fill(&world, 10, Duration::from_millis(50));
    assert_eq!(grants(&world), 1);
    world.wait(Duration::from_secs(25));
    assert_eq!((grants(&world), figures(&world).ahead_unneeded), (0, 1));
    filling.fill(&world, 10, Duration::from_millis(50));
    let sample = filling.sealed();
    assert_eq!(send_and_read(&world, &sample), sample.bytes.len() as u64);
}

#[test]
fn shard_that_the_database_frees_gives_its_room_back() {
    let world = World::new(7, 1, 16 * MIB);
    let mut filling = Filling::offered(&world, 1, 640 << 10);
    filling.fill(&world, 10, Duration::from_millis(50));
    drop(filling);
    world.wait(2 * SECOND);
    assert_eq!((grants(&world), figures(&world).ahead_unneeded), (0, 1));
}

#[test]
fn host_keeps_the_grant_of_a_shard_that_fills_slowly() {
    let world = World::new(8, 1, 16 * MIB);
    let mut filling = Filling::offered(&world, 1, 640 << 10);
    filling.fill(&world, 40, 2 * SECOND);
    let sample = filling.sealed();
    assert!(send_and_read(&world, &sample) < sample.bytes.len() as u64 / 2);
    assert_eq!((figures(&world).ahead_used, world.figures(0).counters.unused), (1, 0));
}

#[test]
fn host_ends_the_grants_of_an_owner_that_has_crashed() {
    let world = World::new(9, 1, 16 * MIB);
    let mut filling = Filling::offered(&world, 1, 640 << 10);
    filling.fill(&world, 10, Duration::from_millis(50));
    assert_eq!(grants(&world), 1);
    world.owner.crash();
    for _ in 0..45 {
        world.simulation.run_for(SECOND);
        world.tick();
    }
    let host = world.figures(0);
    assert_eq!((host.grants, host.shards, host.counters.unused), (0, 0, 1));
    assert_eq!(host.region_bytes, 0, "the node has its memory back");
}

#[test]
fn close_gives_all_room_back() {
    let world = World::new(10, 1, 16 * MIB);
    let mut filling = Filling::offered(&world, 1, 640 << 10);
    filling.fill(&world, 10, Duration::from_millis(50));
    assert_eq!(grants(&world), 1);
    world.store.close();
    assert_eq!(grants(&world), 0);
}
