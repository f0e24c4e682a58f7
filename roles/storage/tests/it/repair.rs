//! Repairs over storage nodes: lost nodes, damage, drains, returns, missing domains, full nodes,
//! and a manager that is started again meanwhile.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Result};
use archipelago_env::{CreateOptions, FileClass, IoContext, IoPurpose, OpenOptions};
use archipelago_store::nodes::members::MemberTerms;
use archipelago_store::nodes::repairs::RepairTerms;
use archipelago_store::nodes::wire::{ExtentAt, MemberState, RepairStatus, Stamp, StoreMessage};
use archipelago_store::{
    BlobId, BlobOptions, BlobRef, Layout, LayoutKeeper, LogId, LogWriter, NewLog, Stores, VolumeId,
};

use crate::world::{World, WorldOptions};

const VOLUME: VolumeId = VolumeId([8; 16]);
const MIB: usize = 1 << 20;
/// Silence after which a node counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// Virtual time in which every repair of these tests must end.
const REPAIR_MAX: Duration = Duration::from_secs(600);

fn terms() -> MemberTerms {
    let repair = RepairTerms {
        scan_again: Duration::from_secs(1),
        scan_every: Duration::from_secs(30),
        ..RepairTerms::default()
    };
    MemberTerms { lost_after: LOST_AFTER, repair, ..MemberTerms::default() }
}

fn context() -> IoContext {
    IoContext::new(FileClass::Sst, IoPurpose::Flush)
}

/// A world with blobs, and their bytes.
struct Pool {
    world: World,
    stores: Stores,
    blobs: Vec<(BlobRef, Vec<u8>)>,
    rng: Rng,
}

impl Pool {
    fn new(nodes: usize, seed: u64) -> Self {
        Self::with(WorldOptions { terms: terms(), ..WorldOptions::new(nodes, seed) })
    }

    fn with(options: WorldOptions) -> Self {
        let rng = Rng::with_seed(options.seed);
        let mut world = World::founded_with(options);
        let stores = world.stores("client");
        Self { world, stores, blobs: Vec::new(), rng }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn write(&mut self, class: FileClass, len: usize) {
        let bytes = self.bytes(len);
        let id = BlobId::random(&mut self.rng);
        let options = BlobOptions {
            volume: VOLUME,
            epoch: Epoch(1),
            context: IoContext::new(class, IoPurpose::Flush),
            size_hint_bytes: len as u64,
        };
        let mut writer = self.stores.blobs.create(id, options).unwrap();
        bytes.chunks(300_000).for_each(|piece| writer.append(piece).unwrap());
        self.blobs.push((writer.seal().unwrap(), bytes));
    }

    /// Writes tables and value files of several sizes.
    fn fill(&mut self) {
        for class in [FileClass::Sst, FileClass::ValueSst] {
            for len in [5_000, MIB + 300_001, 3 * MIB + 17] {
                self.write(class, len);
            }
        }
    }

    fn read(&self, blob: &BlobRef) -> Result<Vec<u8>> {
        let reader = self.stores.blobs.open(blob, context())?;
        let mut bytes = vec![0; blob.len_bytes as usize];
        reader.read_exact_at(0, &mut bytes, context())?;
        Ok(bytes)
    }

    fn assert_readable(&self, label: &str) {
        for (blob, bytes) in &self.blobs {
            assert!(self.read(blob).unwrap() == *bytes, "{label}: blob {}", blob.id);
        }
    }

    fn chunk_file(&self, n: usize, blob: BlobId, index: usize) -> Option<PathBuf> {
        let name = format!("{blob}-{index}");
        let path = PathBuf::from("/device/chunks").join(&name[..2]).join(name);
        self.world.machine(n).fs().exists(&path).unwrap().then_some(path)
    }

    /// Damages a chunk while its node is down, and lets the node find the damage.
    fn damage(&mut self, n: usize, blob: BlobId, index: usize) {
        self.world.kill(n);
        let path = self.chunk_file(n, blob, index).unwrap();
        let fs = self.world.machine(n).fs();
        let old = fs.open(&path, context(), OpenOptions::default()).unwrap();
        let mut bytes = vec![0; old.len() as usize];
        old.read_exact_at(0, &mut bytes, context()).unwrap();
        bytes[77] ^= 1;
        let mut file = fs.create(&path, context(), CreateOptions::default()).unwrap();
        file.append(&bytes).unwrap();
        file.sync().unwrap();
        self.world.start(n);
        self.world.run_for(Duration::from_secs(2));
        self.world.scrub(n);
        assert_eq!(self.world.report(n).chunks_unreadable, 1);
    }

    /// Places that are up and have a chunk of the blob, with the index of the chunk.
    fn holders(&self, blob: BlobId) -> Vec<(usize, usize)> {
        let up = (0..self.world.node_count()).filter(|n| self.world.is_up(*n));
        let chunks = up.flat_map(|n| (0..6).map(move |index| (n, index)));
        chunks.filter(|(n, index)| self.chunk_file(*n, blob, *index).is_some()).collect()
    }

    /// Whether every blob has all its chunks on distinct nodes that are up, and no others.
    fn is_whole(&self) -> bool {
        self.blobs.iter().all(|(blob, _)| {
            let holders = self.holders(blob.id);
            let nodes: BTreeSet<usize> = holders.iter().map(|(n, _)| *n).collect();
            let indices: BTreeSet<usize> = holders.iter().map(|(_, index)| *index).collect();
            let is_coded = indices.len() == 6 && holders.len() == 6;
            let is_replicated = indices == BTreeSet::from([0]) && holders.len() == 3;
            nodes.len() == holders.len() && (is_coded || is_replicated)
        })
    }

    /// Lets time pass until `is_done`.
    fn wait(&self, what: &str, is_done: impl Fn(&Self) -> bool) {
        let step = Duration::from_millis(500);
        for _ in 0..(REPAIR_MAX.as_millis() / step.as_millis()) {
            if is_done(self) {
                return;
            }
            self.world.run_for(step);
        }
        let holders: Vec<_> = self.blobs.iter().map(|(blob, _)| self.holders(blob.id)).collect();
        let seed = self.world.options.seed;
        panic!("seed {seed}: {what} does not end: {:?}, {holders:?}", self.world.repairs());
    }

    fn wait_for_repair(&self) {
        self.wait("the repair", |pool| is_idle(&pool.world.repairs()) && pool.is_whole());
    }

    /// A place that holds chunks of most blobs.
    fn fullest(&self) -> usize {
        let chunks = |n: &usize| self.world.report(*n).chunks;
        (0..self.world.node_count()).max_by_key(chunks).unwrap()
    }

    fn wait_until_lost(&self, n: usize) {
        let storage = self.world.storage(n);
        self.wait("the loss", |pool| {
            let members = pool.world.members();
            members.member(storage).is_none_or(|member| member.state == MemberState::Lost)
        });
    }
}

/// Whether the manager knows of nothing that is left.
fn is_idle(status: &RepairStatus) -> bool {
    status.is_known && status.chunks_left == 0 && status.extents_left == 0
}

#[test]
fn after_the_repair_of_a_lost_node_two_more_may_be_lost() {
    let mut pool = Pool::new(9, 1);
    pool.fill();
    let lost = pool.fullest();
    pool.world.kill(lost);
    pool.wait_until_lost(lost);
    pool.wait_for_repair();
    let status = pool.world.repairs();
    assert!(status.chunks_repaired >= 4 && status.bytes_repaired > 0, "{status:?}");
    for pair in [[0, 1], [2, 3], [4, 5], [6, 7]] {
        let up = pair.into_iter().filter(|n| *n != lost);
        let pair: Vec<usize> = up.collect();
        pair.iter().for_each(|n| pool.world.kill(*n));
        pool.assert_readable(&format!("without {lost} and {pair:?}"));
        pair.iter().for_each(|n| pool.world.start(*n));
        pool.world.run_for(Duration::from_secs(3));
    }
}

#[test]
fn node_that_returns_during_its_repair_ends_it_and_keeps_no_surplus() {
    for seed in 0..4 {
        // One repair after the other, so that some have not begun when the node returns.
        let rate = 512 << 10;
        let repair = RepairTerms { cluster_bytes_per_s: rate, ..terms().repair };
        let terms = MemberTerms { repair, ..terms() };
        let mut pool = Pool::with(WorldOptions { terms, ..WorldOptions::new(9, 10 + seed) });
        pool.fill();
        let lost = pool.fullest();
        let held = pool.world.report(lost).chunks;
        pool.world.kill(lost);
        pool.wait_until_lost(lost);
        pool.wait("the first repair", |pool| pool.world.repairs().chunks_repaired > 0);
        pool.world.start(lost);
        pool.wait_for_repair();
        let repaired = pool.world.repairs().chunks_repaired;
        assert!(repaired < held, "seed {seed}: {repaired} of {held} chunks were made again");
        pool.assert_readable("after the return");
    }
}

#[test]
fn manager_that_is_started_again_finishes_the_repair() {
    for seed in 0..3 {
        let mut pool = Pool::new(9, 20 + seed);
        pool.fill();
        let lost = pool.fullest();
        pool.world.kill(lost);
        pool.wait_until_lost(lost);
        pool.world.run_for(Duration::from_millis(700 * seed));
        pool.world.kill_manager();
        pool.world.run_for(Duration::from_secs(1));
        pool.world.start_manager();
        pool.world.run_for(Duration::from_secs(2));
        // The new manager has never got a beat of the lost node, so it waits as long as the first
        // manager.
        pool.wait_for_repair();
        pool.assert_readable("after a new manager");
    }
}

#[test]
fn node_that_gets_a_chunk_may_die_meanwhile() {
    let mut pool = Pool::new(10, 30);
    pool.fill();
    let lost = pool.fullest();
    pool.world.kill(lost);
    pool.wait_until_lost(lost);
    pool.world.run_for(Duration::from_millis(300));
    let second = (0..10).find(|n| pool.world.is_up(*n)).unwrap();
    pool.world.lose_power(second);
    pool.wait_until_lost(second);
    pool.wait_for_repair();
    pool.assert_readable("after two losses");
}

#[test]
fn drained_node_has_no_chunks_left() {
    let mut pool = Pool::new(8, 40);
    pool.fill();
    let leaving = pool.fullest();
    let storage = pool.world.storage(leaving);
    pool.world.drain(storage);
    pool.wait("the drain", |pool| pool.world.report(leaving).chunks == 0);
    pool.wait_for_repair();
    pool.world.kill(leaving);
    pool.assert_readable("without the drained node");
}

#[test]
fn drain_without_a_free_domain_says_so_and_keeps_the_chunks() {
    let mut pool = Pool::new(3, 41);
    pool.write(FileClass::Sst, MIB);
    let storage = pool.world.storage(0);
    pool.world.drain(storage);
    pool.wait("the answer", |pool| pool.world.repairs().nodes.iter().any(|debt| debt.stuck > 0));
    let status = pool.world.repairs();
    assert_eq!((status.nodes.len(), status.nodes[0].storage), (1, storage));
    assert!(status.nodes[0].examples[0].contains("add nodes"), "{status:?}");
    assert_eq!(pool.world.report(0).chunks, 1);
    pool.world.add_node();
    pool.wait("the drain", |pool| pool.world.report(0).chunks == 0);
    pool.assert_readable("after the drain");
}

#[test]
fn blob_with_two_copies_is_completed_when_a_domain_returns() {
    let mut pool = Pool::new(3, 50);
    pool.world.kill(2);
    pool.world.run_for(Duration::from_secs(4));
    pool.write(FileClass::Sst, MIB + 1);
    pool.write(FileClass::Sst, 100);
    assert_eq!(pool.holders(pool.blobs[0].0.id).len(), 2);
    pool.wait("the count", |pool| pool.world.repairs().waiting_for_domains == 2);
    pool.world.start(2);
    pool.wait_for_repair();
    pool.world.kill(0);
    pool.world.kill(1);
    pool.assert_readable("on the third node alone");
}

#[test]
fn release_beside_a_repair_leaves_no_chunk() {
    for seed in 0..6 {
        let repair = RepairTerms { node_bytes_per_s: 1 << 20, ..terms().repair };
        let terms = MemberTerms { repair, ..terms() };
        let mut pool = Pool::with(WorldOptions { terms, ..WorldOptions::new(9, 60 + seed) });
        pool.fill();
        let lost = pool.fullest();
        pool.world.kill(lost);
        pool.wait_until_lost(lost);
        pool.world.run_for(Duration::from_millis(400 * seed));
        for (blob, _) in &pool.blobs {
            pool.stores.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap();
        }
        pool.world.run_for(Duration::from_secs(60));
        let stored = pool.world.stored_objects();
        assert_eq!((stored.chunks, stored.chunks_unsealed), (0, 0), "seed {seed}");
    }
}

#[test]
fn node_that_returns_brings_no_released_blob_back() {
    for seed in 0..4 {
        let mut pool = Pool::new(9, 100 + seed);
        pool.fill();
        let away = pool.fullest();
        pool.world.kill(away);
        pool.world.run_for(Duration::from_secs(4));
        for (blob, _) in &pool.blobs {
            pool.stores.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap();
        }
        pool.world.start(away);
        pool.world.run_for(Duration::from_secs(120));
        let status = pool.world.repairs();
        assert_eq!((status.chunks_repaired, status.failed), (0, 0), "seed {seed}: {status:?}");
        // The nodes that were asked to repair have forwarded the release.
        let stored = pool.world.stored_objects();
        assert_eq!((stored.chunks, stored.chunks_unsealed), (0, 0), "seed {seed}");
    }
}

#[test]
fn drain_of_a_node_with_released_blobs_ends() {
    let mut pool = Pool::new(9, 110);
    pool.fill();
    let away = pool.fullest();
    pool.world.kill(away);
    pool.world.run_for(Duration::from_secs(4));
    for (blob, _) in &pool.blobs {
        pool.stores.blobs.release(blob.id, VOLUME, Epoch(1)).unwrap();
    }
    pool.world.start(away);
    let storage = pool.world.storage(away);
    pool.world.run_for(Duration::from_secs(1));
    pool.world.drain(storage);
    pool.wait("the drain", |pool| pool.world.report(away).chunks == 0);
    assert_eq!(pool.world.repairs().chunks_repaired, 0);
}

#[test]
fn files_that_wait_for_an_erasure_code_are_counted_on_the_nodes() {
    let mut pool = Pool::new(5, 140);
    pool.write(FileClass::ValueSst, 3 * MIB);
    pool.write(FileClass::ValueSst, 2 * MIB);
    pool.write(FileClass::ValueSst, 5_000);
    pool.write(FileClass::Sst, 3 * MIB);
    let counted = |pool: &Pool| {
        let status = pool.world.repairs();
        (status.coding_files, status.coding_bytes) == (2, 5 * MIB as u64)
    };
    pool.wait("the count", counted);
    // The debt outlives the process that wrote the files, and a holder.
    let lost = pool.holders(pool.blobs[0].0.id)[0].0;
    pool.world.kill(lost);
    pool.wait_until_lost(lost);
    pool.wait_for_repair();
    pool.wait("the count after a repair", counted);
}

#[test]
fn chunks_leave_a_domain_that_a_new_label_crowds() {
    let mut pool = Pool::new(7, 130);
    pool.fill();
    let holders = pool.holders(pool.blobs[0].0.id);
    let (stays, moves) = (holders[0].0, holders[1].0);
    pool.world.move_to_domain_of(moves, stays);
    pool.wait("the moves", |pool| {
        let shares = |blob: &BlobRef| {
            let nodes: Vec<usize> = pool.holders(blob.id).iter().map(|(n, _)| *n).collect();
            nodes.contains(&stays) && nodes.contains(&moves)
        };
        !pool.blobs.iter().any(|(blob, _)| shares(blob))
    });
    pool.wait_for_repair();
    assert_eq!(pool.world.repairs().sharing_domains, 0);
    pool.world.kill(stays);
    pool.world.kill(moves);
    pool.assert_readable("without the shared domain");
    pool.world.start(stays);
    pool.world.start(moves);
    // Five domains cannot hold the six chunks of a coded blob apart.
    let others: Vec<usize> = (0..7).filter(|n| ![stays, moves].contains(n)).collect();
    pool.world.move_to_domain_of(others[0], others[1]);
    // While the labels are not settled, all files that share a domain count.
    pool.world.run_for(LOST_AFTER + Duration::from_secs(5));
    pool.wait("the moves that have a target", |pool| is_idle(&pool.world.repairs()));
    let status = pool.world.repairs();
    assert!(status.sharing_domains > 0, "{status:?}");
    pool.assert_readable("with two shared domains");
}

#[test]
fn damaged_chunk_is_made_again_in_its_place() {
    let mut pool = Pool::new(6, 70);
    pool.write(FileClass::ValueSst, MIB + 500);
    pool.write(FileClass::Sst, 50_000);
    for at in 0..2 {
        let blob = pool.blobs[at].0.id;
        let (n, index) = pool.holders(blob)[1];
        pool.damage(n, blob, index);
        pool.wait("the repair", |pool| pool.world.report(n).chunks_unreadable == 0);
        pool.wait_for_repair();
    }
    pool.assert_readable("after the damage");
}

/// An extent that has no owner, and the fields of requests for it.
const ORPHAN: ExtentAt = ExtentAt { log: LogId([6; 16]), extent: 1 };
const STAMP: Stamp = Stamp { volume: VOLUME, epoch: Epoch(1) };

/// Appends bytes to an extent of the node in place `n`.
fn append_orphan(pool: &Pool, n: usize, len: usize) {
    let (at, stamp, class) = (ORPHAN, STAMP, FileClass::Wal);
    let (extent_start, start, is_synced) = (0, 0, true);
    let append = StoreMessage::Append { at, stamp, class, extent_start, start, is_synced };
    let answer = pool.world.ask_node(n, append, &vec![7; len]);
    assert!(matches!(answer, StoreMessage::Progress { .. }), "{answer:?}");
}

fn seal_orphan(pool: &Pool, n: usize, end: u64) {
    let (at, stamp, class) = (ORPHAN, STAMP, FileClass::Wal);
    let seal = StoreMessage::SealLog { at, stamp, class, extent_start: 0, end };
    let answer = pool.world.ask_node(n, seal, &[]);
    assert!(matches!(answer, StoreMessage::Progress { .. }), "{answer:?}");
}

/// A pool of three nodes. Two have an extent that a recovery has sealed. The third one was away
/// then, and has more bytes of the extent, so it refuses a copy.
fn pool_with_a_longer_replica(seed: u64) -> Pool {
    let pool = Pool::new(3, seed);
    for (n, len) in [(0, 100), (1, 100), (2, 200)] {
        append_orphan(&pool, n, len);
    }
    for n in [0, 1] {
        seal_orphan(&pool, n, 100);
    }
    // If the labels or nodes that the manager knows change, the manager asks again.
    pool.world.run_for(LOST_AFTER * 2);
    pool.wait("the refusal", has_refused_copy);
    pool
}

/// Whether the only missing copy is one that its target has refused.
fn has_refused_copy(pool: &Pool) -> bool {
    let status = pool.world.repairs();
    is_idle(&status) && status.extents_refused == 1
}

#[test]
fn refused_copy_is_not_ordered_again_and_holds_no_drain_up() {
    let pool = pool_with_a_longer_replica(96);
    let refused = pool.world.report(2).counters.refused;
    assert!(refused > 0, "the node was asked");
    // Several rounds follow.
    pool.world.run_for(Duration::from_secs(120));
    assert_eq!(pool.world.report(2).counters.refused, refused);
    pool.world.drain(pool.world.storage(0));
    pool.wait("the drain", |pool| {
        let members = pool.world.members();
        let member = members.member(pool.world.storage(0)).expect("a member");
        member.state == MemberState::Draining && has_refused_copy(pool)
    });
    let status = pool.world.repairs();
    assert_eq!((status.failed, status.extents_repaired), (0, 0), "{status:?}");
    assert!(pool.world.is_drained(0), "{status:?}");
}

#[test]
fn log_that_was_removed_while_a_node_was_away_gets_no_copies() {
    let pool = Pool::new(3, 99);
    for n in 0..3 {
        append_orphan(&pool, n, 100);
        seal_orphan(&pool, n, 100);
    }
    // Node 2 does not get the removal.
    for n in 0..2 {
        let remove = StoreMessage::RemoveLog { log: ORPHAN.log, stamp: STAMP };
        assert_eq!(pool.world.ask_node(n, remove, &[]), StoreMessage::Done {});
    }
    pool.world.run_for(LOST_AFTER * 2);
    let refused =
        |pool: &Pool| -> u64 { (0..2).map(|n| pool.world.report(n).counters.refused).sum() };
    pool.wait("the refusal", |pool| refused(pool) > 0 && is_idle(&pool.world.repairs()));
    let before = refused(&pool);
    pool.world.run_for(Duration::from_secs(120));
    assert_eq!(refused(&pool), before, "the copy is ordered once");
    assert_eq!(pool.world.report(2).extents, 1, "the owner removes it with its strays");
    pool.world.drain(pool.world.storage(2));
    pool.wait("the drain", |pool| is_idle(&pool.world.repairs()) && pool.world.is_drained(2));
    assert_eq!(pool.world.repairs().failed, 0);
}

#[test]
fn node_is_not_drained_before_its_last_seals_are_compared() {
    let pool = Pool::new(4, 98);
    for n in 0..3 {
        append_orphan(&pool, n, 100);
    }
    pool.world.drain(pool.world.storage(0));
    // The rounds that follow the drain have ended, and no other change begins one.
    pool.world.run_for(LOST_AFTER * 2);
    pool.wait("the rounds", |pool| is_idle(&pool.world.repairs()));
    assert!(is_idle(&pool.world.repairs()) && !pool.world.is_drained(0), "the extent is open");
    for n in 0..3 {
        seal_orphan(&pool, n, 100);
    }
    for _ in 0..600 {
        if pool.world.is_drained(0) {
            break;
        }
        pool.world.run_for(Duration::from_millis(100));
    }
    assert!(pool.world.is_drained(0), "{:?}", pool.world.repairs());
    assert_eq!(pool.world.report(3).extents, 1, "the copy is on another node");
}

#[test]
fn node_that_refuses_a_copy_repairs_its_own_chunks() {
    let mut pool = pool_with_a_longer_replica(97);
    pool.write(FileClass::Sst, 50_000);
    let blob = pool.blobs[0].0.id;
    pool.damage(2, blob, 0);
    pool.wait("the repair", |pool| pool.world.report(2).chunks_unreadable == 0);
    pool.wait("the next refusal", has_refused_copy);
    pool.assert_readable("after the damage");
}

#[test]
fn chunks_leave_a_node_that_is_fuller_than_the_others() {
    let device_bytes = 64 << 20;
    let options = WorldOptions { terms: terms(), device_bytes, ..WorldOptions::new(3, 80) };
    let mut pool = Pool::with(options);
    for _ in 0..12 {
        pool.write(FileClass::Sst, MIB);
    }
    let n = pool.world.add_node();
    pool.wait("the move", |pool| pool.world.report(n).chunks >= 5);
    pool.wait_for_repair();
    pool.world.run_for(Duration::from_secs(30));
    let uses: Vec<u64> = (0..4).map(|n| pool.world.report(n).space.used_bytes).collect();
    let mean = uses.iter().sum::<u64>() / 4;
    let most = uses.iter().max().unwrap();
    assert!(*most <= mean + mean / 5, "the use is {uses:?}, and their mean {mean}");
    pool.assert_readable("after the moves");
}

#[test]
fn comparison_that_hangs_delays_no_repair() {
    let mut pool = Pool::new(9, 150);
    for n in 0..9 {
        pool.world.hang_checks(n);
    }
    pool.fill();
    pool.world.run_for(LOST_AFTER * 2);
    let lost = pool.fullest();
    pool.world.kill(lost);
    pool.wait_until_lost(lost);
    // The manager waits two minutes for the answer of a node that compares its chunks.
    pool.world.run_for(Duration::from_secs(30));
    assert!(pool.is_whole(), "{:?}", pool.world.repairs());
    pool.assert_readable("after the repair");
}

/// Keeps nothing: the tests use the layouts that the writers return.
#[derive(Debug)]
struct NoKeeper;

impl LayoutKeeper for NoKeeper {
    fn keep(&self, _log: LogId, _layout: &Layout) -> Result<()> {
        Ok(())
    }
}

#[test]
fn node_that_lists_nothing_stops_no_repair_for_ever() {
    // A domain is free for a coded blob beside the lost node and the hung one.
    let mut pool = Pool::new(8, 120);
    pool.fill();
    let id = LogId([9; 16]);
    let keeper = Arc::new(NoKeeper);
    let new = NewLog { id, volume: VOLUME, epoch: Epoch(1), class: FileClass::Wal, keeper };
    let (mut writer, _) = pool.stores.logs.create(new).unwrap();
    let bytes = pool.bytes(MIB);
    let at = writer.submit(&[bytes.as_slice()]).unwrap();
    writer.position().wait(at + bytes.len() as u64).unwrap();
    let layout = writer.finish().unwrap();
    pool.world.run_for(Duration::from_secs(5));
    let extents = |pool: &Pool, n: usize| pool.world.report(n).extents;
    let holder = (0..8).find(|n| extents(&pool, *n) > 0).expect("a holder of the log");
    let hung = (0..8).find(|n| extents(&pool, *n) == 0).expect("a node without the log");
    let whole = pool.world.stored_objects().extents;
    pool.world.hide_lists(hung, true);
    pool.world.kill(holder);
    pool.wait_until_lost(holder);
    let storage = pool.world.storage(hung);
    pool.wait("the notice", |pool| pool.world.repairs().unlisted == [storage]);
    // If the hung node is the first holder of a blob, the next holder lists the blob.
    pool.wait("the copies", |pool| pool.is_whole() && pool.world.stored_objects().extents == whole);
    assert_eq!(extents(&pool, hung), 0, "a node that lists nothing is no target");
    let context = IoContext::new(FileClass::Wal, IoPurpose::Recovery);
    let mut read = vec![0; bytes.len()];
    let reader = pool.stores.logs.open(id, &layout, context).unwrap();
    reader.read_exact_at(0, &mut read, context).unwrap();
    assert!(read == bytes);
    assert!(!pool.world.repairs().is_known, "a drain must not believe that nothing is left");
    pool.world.hide_lists(hung, false);
    pool.wait("the list", |pool| is_idle(&pool.world.repairs()));
}

#[test]
fn sealed_extents_of_lost_and_drained_nodes_are_copied_and_removed() {
    let mut pool = Pool::new(6, 90);
    let mut logs = Vec::new();
    for (number, class) in [FileClass::Wal, FileClass::Manifest].into_iter().enumerate() {
        let id = LogId([number as u8 + 1; 16]);
        let keeper = Arc::new(NoKeeper);
        let new = NewLog { id, volume: VOLUME, epoch: Epoch(1), class, keeper };
        let (mut writer, _) = pool.stores.logs.create(new).unwrap();
        let bytes = pool.bytes(2 * MIB + 99);
        for piece in bytes.chunks(100_000) {
            let at = writer.submit(&[piece]).unwrap();
            writer.position().wait(at + piece.len() as u64).unwrap();
        }
        let layout = writer.finish().unwrap();
        logs.push((id, class, layout, bytes));
    }
    let extents = pool.world.stored_objects().extents;
    let holders = |pool: &Pool| -> Vec<usize> {
        let up = (0..pool.world.node_count()).filter(|n| pool.world.is_up(*n));
        up.filter(|n| pool.world.report(*n).extents > 0).collect()
    };
    // The first three losses take every node that the layouts name, one after the other.
    for lost in holders(&pool) {
        pool.world.kill(lost);
        pool.wait_until_lost(lost);
        pool.wait("the copies", |pool| {
            let domains = (0..6).filter(|n| pool.world.is_up(*n)).count();
            let whole = pool.world.stored_objects().extents >= extents;
            is_idle(&pool.world.repairs()) && (whole || domains < 3)
        });
        for (id, class, layout, bytes) in &logs {
            let context = IoContext::new(*class, IoPurpose::Recovery);
            let reader = pool.stores.logs.open(*id, layout, context).unwrap();
            let mut read = vec![0; bytes.len()];
            reader.read_exact_at(0, &mut read, context).unwrap();
            assert!(read == *bytes, "log {id} without node {lost}");
        }
        if (0..6).filter(|n| pool.world.is_up(*n)).count() == 3 {
            break;
        }
    }
    for (id, _, layout, _) in &logs {
        pool.stores.logs.remove(*id, layout, Epoch(1)).unwrap();
    }
    assert_eq!(pool.world.stored_objects().extents, 0, "copies are removed with the others");
}

#[test]
fn open_extent_with_two_copies_gets_its_third_when_a_domain_returns() {
    let mut pool = Pool::new(3, 95);
    pool.world.kill(2);
    pool.world.run_for(Duration::from_secs(4));
    let (id, class, keeper) = (LogId([7; 16]), FileClass::Wal, Arc::new(NoKeeper));
    let new = NewLog { id, volume: VOLUME, epoch: Epoch(1), class, keeper };
    let (mut writer, _) = pool.stores.logs.create(new).unwrap();
    let append = |writer: &mut dyn LogWriter| {
        let at = writer.submit(&[b"coral"]).unwrap();
        writer.position().wait(at + 5).unwrap();
    };
    append(&mut *writer);
    // The log is idle from here on.
    pool.world.run_for(Duration::from_secs(20));
    assert_eq!(pool.world.stored_objects().extents, 2);
    pool.world.start(2);
    pool.wait("the third copy", |pool| {
        pool.stores.logs.keep_layouts(VOLUME);
        let reports = (0..3).map(|n| pool.world.report(n));
        reports.map(|report| report.extents - report.extents_open).sum::<u64>() == 3
    });
    append(&mut *writer);
    pool.world.run_for(Duration::from_secs(1));
    assert_eq!(pool.world.stored_objects().extents, 6, "the next extent has three copies as well");
}
