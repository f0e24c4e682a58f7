//! Blobs on nodes that are killed, lose power, are full, stop, or have damaged disks.

use std::path::PathBuf;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, ErrorKind, Result};
use archipelago_env::{CreateOptions, FileClass, IoContext, IoPurpose, OpenOptions};
use archipelago_storage::Sabotage;
use archipelago_store::nodes::blobs::{BlobSabotage, BlobTiming, BlobsOptions, NodeBlobs};
use archipelago_store::nodes::client::StoreEvent;
use archipelago_store::nodes::layout::RedundancyMode;
use archipelago_store::suite::blobs_conform;
use archipelago_store::{BlobId, BlobOptions, BlobRef, BlobStore, BlobWriter, VolumeId};

use crate::world::{ClientProcess, DEVICE_BYTES, World, WorldOptions};

const VOLUME: VolumeId = VolumeId([8; 16]);
const MIB: usize = 1 << 20;
const CLASSES: [FileClass; 2] = [FileClass::Sst, FileClass::ValueSst];

/// A world, and a client that writes blobs there.
struct Bench {
    world: World,
    process: ClientProcess,
    blobs: NodeBlobs,
    rng: Rng,
}

impl Bench {
    fn new(nodes: usize, seed: u64) -> Self {
        Self::with(WorldOptions::new(nodes, seed), BlobsOptions::default())
    }

    fn with(mut world: WorldOptions, options: BlobsOptions) -> Self {
        let rng = Rng::with_seed(world.seed);
        world.repairs = false;
        let mut world = World::founded_with(world);
        let process = world.client("client");
        let blobs = NodeBlobs::new(&process.client, options).unwrap();
        Self { world, process, blobs, rng }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn begin(&mut self, class: FileClass, hint: usize) -> Box<dyn BlobWriter> {
        let id = BlobId::random(&mut self.rng);
        self.blobs.create(id, options(class, hint)).unwrap()
    }

    fn write(&mut self, class: FileClass, bytes: &[u8]) -> BlobRef {
        let mut writer = self.begin(class, bytes.len());
        bytes.chunks(200_000).for_each(|piece| writer.append(piece).unwrap());
        writer.seal().unwrap()
    }

    fn read(&self, blob: &BlobRef) -> Result<Vec<u8>> {
        let reader = self.blobs.open(blob, context(FileClass::Sst))?;
        let mut bytes = vec![0; blob.len_bytes as usize];
        reader.read_exact_at(0, &mut bytes, context(FileClass::Sst))?;
        Ok(bytes)
    }

    fn event(&self, event: StoreEvent) -> u64 {
        self.process.client.stats().snapshot().of(event)
    }

    /// The file of a chunk on the disk of a node.
    fn chunk_file(&self, n: usize, blob: BlobId, index: usize) -> Option<PathBuf> {
        let name = format!("{blob}-{index}");
        let path = PathBuf::from("/device/chunks").join(&name[..2]).join(name);
        self.world.machine(n).fs().exists(&path).unwrap().then_some(path)
    }

    /// Places with a chunk of the blob, and the index of the chunk.
    fn holders(&self, blob: BlobId) -> Vec<(usize, usize)> {
        let places = 0..self.world.node_count();
        let chunks = places.flat_map(|n| (0..6).map(move |index| (n, index)));
        chunks.filter(|(n, index)| self.chunk_file(*n, blob, *index).is_some()).collect()
    }

    /// Changes a byte of a chunk while its node is down.
    fn rot(&mut self, holder: (usize, usize), blob: BlobId, at: usize) {
        let (n, index) = holder;
        self.world.kill(n);
        let path = self.chunk_file(n, blob, index).unwrap();
        let fs = self.world.machine(n).fs();
        let context = context(FileClass::Sst);
        let old = fs.open(&path, context, OpenOptions::default()).unwrap();
        let mut bytes = vec![0; old.len() as usize];
        old.read_exact_at(0, &mut bytes, context).unwrap();
        bytes[at] ^= 1;
        let mut file = fs.create(&path, context, CreateOptions::default()).unwrap();
        file.append(&bytes).unwrap();
        file.sync().unwrap();
        self.world.start(n);
        self.world.run_for(Duration::from_secs(2));
    }

    /// Checks that the blob is read back without each pair of its holders. Returns their number.
    fn assert_survives_pairs(&mut self, blob: &BlobRef, bytes: &[u8]) -> usize {
        let holders = self.holders(blob.id);
        let mut pairs = 0;
        for (at, one) in holders.iter().enumerate() {
            for other in &holders[at + 1..] {
                self.world.kill(one.0);
                self.world.lose_power(other.0);
                assert!(self.read(blob).unwrap() == bytes, "without {one:?} and {other:?}");
                self.world.start_all();
                pairs += 1;
            }
        }
        pairs
    }
}

fn context(class: FileClass) -> IoContext {
    IoContext::new(class, IoPurpose::Flush)
}

fn options(class: FileClass, hint: usize) -> BlobOptions {
    let context = context(class);
    BlobOptions { volume: VOLUME, epoch: Epoch(1), context, size_hint_bytes: hint as u64 }
}

#[test]
fn every_mode_conforms() {
    for mode in [RedundancyMode::AllReplicated, RedundancyMode::AllCoded] {
        let options = BlobsOptions { mode, ..BlobsOptions::default() };
        let bench = Bench::with(WorldOptions::new(6, 1), options);
        blobs_conform(&bench.blobs, 1);
    }
}

#[test]
fn sealed_blob_survives_every_pair_of_lost_nodes() {
    let mut bench = Bench::new(6, 2);
    let bytes = bench.bytes(MIB + 300_001);
    let table = bench.write(FileClass::Sst, &bytes);
    let values = bench.write(FileClass::ValueSst, &bytes);
    assert_eq!(bench.assert_survives_pairs(&table, &bytes), 3);
    assert_eq!(bench.assert_survives_pairs(&values, &bytes), 15);
}

#[test]
fn sealed_blob_survives_power_loss_of_all_nodes() {
    let mut bench = Bench::new(6, 3);
    let bytes = bench.bytes(MIB + 5);
    let blobs = CLASSES.map(|class| bench.write(class, &bytes));
    for n in 0..6 {
        bench.world.lose_power(n);
    }
    bench.world.start_all();
    for blob in blobs {
        assert!(bench.read(&blob).unwrap() == bytes);
        assert_eq!(bench.assert_survives_pairs(&blob, &bytes) % 3, 0);
    }
}

/// Writes a blob, during which a node dies after `lost_after` steps. Returns whether it held a
/// chunk then.
fn write_with_a_loss(class: FileClass, lost_after: usize, is_power_lost: bool) -> bool {
    let mut bench = Bench::new(8, 4 + lost_after as u64);
    let bytes = bench.bytes(4 * MIB + 1000);
    let mut writer = bench.begin(class, 0);
    let mut lost = None;
    let mut lose = |bench: &mut Bench, id: BlobId| {
        let holder = bench.holders(id).get(lost_after % 3).copied();
        if let Some((n, _)) = holder {
            if is_power_lost { bench.world.lose_power(n) } else { bench.world.kill(n) }
        }
        lost = holder;
    };
    // The blob has this identity, since the bench has drawn no other one.
    let id = {
        let mut rng = Rng::with_seed(4 + lost_after as u64);
        rng.fill(&mut vec![0; 4 * MIB + 1000]);
        BlobId::random(&mut rng)
    };
    for (step, piece) in bytes.chunks(MIB).enumerate() {
        if step == lost_after {
            lose(&mut bench, id);
        }
        writer.append(piece).unwrap();
    }
    if lost_after == 5 {
        lose(&mut bench, id);
    }
    let blob = writer.seal().unwrap();
    assert_eq!(blob.id, id);
    bench.world.start_all();
    let label = format!("{class:?}: a loss after {lost_after} steps");
    assert!(bench.read(&blob).unwrap() == bytes, "{label}");
    let pairs = bench.assert_survives_pairs(&blob, &bytes);
    assert_eq!(pairs, if class == FileClass::Sst { 3 } else { 15 }, "{label}");
    if lost.is_some() {
        assert!(bench.event(StoreEvent::ReplacedNode) > 0, "{label}");
    }
    lost.is_some()
}

#[test]
fn node_lost_at_any_step_of_a_write_is_replaced() {
    for class in CLASSES {
        for is_power_lost in [false, true] {
            let steps = (0..=5).filter(|step| write_with_a_loss(class, *step, is_power_lost));
            assert!(steps.count() >= 4, "{class:?}: the node had a chunk in most runs");
        }
    }
}

#[test]
fn damage_in_any_chunk_is_read_around() {
    for class in CLASSES {
        let mut bench = Bench::new(6, 20);
        let bytes = bench.bytes(2 * MIB);
        for slot in 0..if class == FileClass::Sst { 3 } else { 6 } {
            let blob = bench.write(class, &bytes);
            let holder = bench.holders(blob.id)[slot];
            bench.rot(holder, blob.id, 9000);
            for _ in 0..3 {
                assert!(bench.read(&blob).unwrap() == bytes, "{class:?}: damage in {holder:?}");
            }
            // The node has set the chunk aside after the report, unless no reader has read the
            // chunk.
            bench.world.run_for(Duration::from_secs(10));
            let is_read = class == FileClass::Sst || holder.1 < 4;
            assert_eq!(bench.holders(blob.id).contains(&holder), !is_read, "{class:?}: {holder:?}");
        }
        assert!(bench.event(StoreEvent::DamagedPiece) > 0, "{class:?}");
    }
}

#[test]
fn reads_without_checks_are_noticed() {
    let run = |node_checks: bool, client_checks: bool| {
        let sabotage = Sabotage { no_crc: !node_checks, ..Sabotage::default() };
        let world = WorldOptions { sabotage, ..WorldOptions::new(6, 21) };
        let sabotage = BlobSabotage { no_client_crc: !client_checks, ..BlobSabotage::default() };
        let mut bench = Bench::with(world, BlobsOptions { sabotage, ..BlobsOptions::default() });
        let bytes = bench.bytes(2 * MIB);
        let blob = bench.write(FileClass::ValueSst, &bytes);
        // A read needs the chunk of this index. It does not touch chunks of parity.
        let holder = bench.holders(blob.id).into_iter().find(|(_, index)| *index == 0).unwrap();
        bench.rot(holder, blob.id, 9000);
        bench.read(&blob).is_ok_and(|read| read == bytes)
    };
    assert!(run(true, true));
    assert!(run(false, true), "the client alone protects the reader");
    assert!(!run(false, false), "nobody checks");
}

#[test]
fn seal_before_all_chunks_are_durable_is_noticed() {
    let run = |early_seal: bool| {
        let sabotage = BlobSabotage { early_seal, ..BlobSabotage::default() };
        let options = BlobsOptions { sabotage, ..BlobsOptions::default() };
        let mut bench = Bench::with(WorldOptions::new(3, 22), options);
        let bytes = bench.bytes(MIB / 2);
        let blob = bench.write(FileClass::Sst, &bytes);
        for n in 0..3 {
            bench.world.lose_power(n);
        }
        bench.world.start_all();
        bench.holders(blob.id).len() == 3
    };
    assert!(run(false));
    assert!(!run(true));
}

#[test]
fn stopped_node_is_hedged_and_replaced() {
    let timing = BlobTiming { read_deadline: Duration::from_secs(60), ..BlobTiming::default() };
    let options = BlobsOptions { timing, ..BlobsOptions::default() };
    let mut bench = Bench::with(WorldOptions::new(8, 23), options);
    let bytes = bench.bytes(3 * MIB);
    let blobs = CLASSES.map(|class| bench.write(class, &bytes));
    for (blob, class) in blobs.iter().zip(CLASSES) {
        let (n, _) = bench.holders(blob.id)[0];
        bench.world.host(n).stop();
        let begun_ns = bench.world.simulation.now_ns();
        for _ in 0..5 {
            assert!(bench.read(blob).unwrap() == bytes, "{class:?}");
        }
        let took_ns = bench.world.simulation.now_ns() - begun_ns;
        assert!(took_ns < 5_000_000_000, "{class:?}: five reads took {took_ns} ns");
        let mut writer = bench.begin(class, 0);
        for _ in 0..8 {
            writer.append(&bytes).unwrap();
        }
        let written = writer.seal().unwrap();
        assert_eq!(bench.read(&written).unwrap().len(), 24 * MIB);
        bench.world.host(n).go_on();
        bench.world.run_for(Duration::from_secs(5));
    }
    assert!(bench.event(StoreEvent::HedgedRead) > 0);
}

#[test]
fn full_nodes_are_replaced_and_then_refuse() {
    let world = WorldOptions { device_bytes: 24 << 20, ..WorldOptions::new(4, 24) };
    assert!(world.device_bytes < DEVICE_BYTES);
    let mut bench = Bench::with(world, BlobsOptions::default());
    let bytes = bench.bytes(2 * MIB);
    let mut written = Vec::new();
    let error = loop {
        assert!(written.len() < 20, "four nodes of 24 MiB hold at most 15 blobs of 2 MiB");
        let mut writer = bench.begin(FileClass::Sst, bytes.len());
        match writer.append(&bytes).and_then(|()| writer.seal()) {
            Ok(blob) => written.push(blob),
            Err(error) => break error,
        }
    };
    assert!(error.is_no_space(), "{error:?}");
    assert!(written.len() >= 8, "{} blobs: {error}", written.len());
    for blob in &written {
        assert!(bench.read(blob).unwrap() == bytes);
    }
    // Releases make room.
    for blob in written {
        bench.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap();
    }
    bench.world.run_for(Duration::from_secs(5));
    let blob = bench.write(FileClass::Sst, &bytes);
    assert!(bench.read(&blob).unwrap() == bytes);
}

#[test]
fn network_bytes_are_those_of_the_scheme() {
    for (class, factor) in [(FileClass::Sst, 3.0), (FileClass::ValueSst, 1.5)] {
        let mut bench = Bench::new(6, 25);
        let bytes = bench.bytes(32 * MIB);
        let sent = |bench: &Bench| {
            let calls = bench.process.client.stats().snapshot().calls;
            calls.iter().map(|calls| calls.sent_bytes).sum::<u64>()
        };
        let before = sent(&bench);
        bench.write(class, &bytes);
        let per_byte = (sent(&bench) - before) as f64 / bytes.len() as f64;
        assert!((factor..factor * 1.01).contains(&per_byte), "{class:?}: {per_byte} per byte");
    }
}

#[test]
fn straddling_and_random_ranges_are_read_with_and_without_a_node() {
    let mut bench = Bench::new(6, 26);
    let bytes = bench.bytes(5 * MIB + 777);
    for class in CLASSES {
        let blob = bench.write(class, &bytes);
        let reader = bench.blobs.open(&blob, context(class)).unwrap();
        let check = |rng: &mut Rng, label: &str| {
            let cell = 256 << 10;
            let mut starts: Vec<usize> = (1..20).map(|at| at * cell - 3000).collect();
            starts.extend((0..20).map(|_| rng.usize(..bytes.len())));
            let lens: Vec<usize> =
                starts.iter().map(|start| rng.usize(..40_000).min(bytes.len() - start)).collect();
            let mut bufs: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
            let requests = starts.iter().map(|start| *start as u64);
            let mut requests: Vec<_> =
                requests.zip(bufs.iter_mut().map(Vec::as_mut_slice)).collect();
            reader.read_many(&mut requests, context(class)).unwrap();
            for ((start, len), buf) in starts.iter().zip(&lens).zip(&bufs) {
                assert!(*buf == bytes[*start..start + len], "{class:?} {label}: at {start}");
            }
        };
        let mut rng = Rng::with_seed(1);
        check(&mut rng, "with all nodes");
        for (n, _) in bench.holders(blob.id) {
            bench.world.kill(n);
            check(&mut rng, "without a node");
            bench.world.start(n);
            bench.world.run_for(Duration::from_secs(2));
        }
    }
}

#[test]
fn executor_writes_under_the_epoch_of_the_owner() {
    let mut bench = Bench::new(6, 27);
    let bytes = bench.bytes(2 * MIB);
    let executor = bench.world.client("executor");
    let other = NodeBlobs::new(&executor.client, BlobsOptions::default()).unwrap();
    let id = BlobId::random(&mut bench.rng);
    let mut writer = other.create(id, options(FileClass::ValueSst, 0)).unwrap();
    writer.append(&bytes).unwrap();
    let blob = writer.seal().unwrap();
    assert!(bench.read(&blob).unwrap() == bytes, "the owner reads it by the returned reference");
    // The owner gives up a blob that another executor is still writing.
    let late = BlobId::random(&mut bench.rng);
    let mut writer = other.create(late, options(FileClass::Sst, 0)).unwrap();
    writer.append(&bytes).unwrap();
    let kept = blob.id;
    assert_eq!(bench.blobs.release_strays(VOLUME, Epoch(2), &|id| id == kept).unwrap(), 1);
    let outcome = writer.append(&bytes).and_then(|()| writer.seal());
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Fenced);
    assert!(bench.holders(late).is_empty());
    assert!(bench.read(&blob).unwrap() == bytes);
}
