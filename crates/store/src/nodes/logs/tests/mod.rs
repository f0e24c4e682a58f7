//! The driver of logs over nodes in memory: the suite of the trait, and what happens when nodes
//! fail. Runs with seeds are in `runs.rs`.

mod holders;
mod model;
mod runs;
mod times;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_base::runtime::{Runtime, ThreadRuntime, wait_for};
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use parking_lot::Mutex;

use self::model::{Health, ModelPool};
use super::super::StorageId;
use super::super::wire::{ExtentAt, RefusalWhy, StoreMessage};
use super::{NodeLogOptions, NodeLogs, VolumeLog};
use crate::ids::{LogId, VolumeId};
use crate::log::{
    Layout, LayoutKeeper, LogStore, LogToRecover, LogWriter, LossKeeper, NewLog, NewOwner,
    RecoveredLog,
};
use crate::suite::{CountedLosses, logs_conform};

const VOLUME: VolumeId = VolumeId(*b"volume of a test");
const MS: u64 = 1_000_000;

fn log(number: u8) -> LogId {
    LogId([number; 16])
}

fn pattern(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Keeps layouts as an owner does, and refuses those of older owners.
#[derive(Debug, Default)]
struct Keeper {
    layouts: Mutex<BTreeMap<LogId, Layout>>,
    epoch: Mutex<u64>,
    /// Errors of the next calls.
    errors: Mutex<Vec<Error>>,
    calls: Mutex<u64>,
    /// Number of losses that were kept.
    losses: Mutex<u64>,
}

/// The keeper as the owner of one epoch uses it.
#[derive(Debug)]
struct OwnersKeeper {
    keeper: Arc<Keeper>,
    epoch: u64,
}

impl OwnersKeeper {
    /// Refuses a call that should fail, and those of older owners.
    fn check(&self) -> Result<()> {
        if let Some(error) = self.keeper.errors.lock().pop() {
            return Err(error);
        }
        if self.epoch < *self.keeper.epoch.lock() {
            return Err(Error::fenced("another owner"));
        }
        Ok(())
    }
}

impl LayoutKeeper for OwnersKeeper {
    fn keep(&self, log: LogId, layout: &Layout) -> Result<()> {
        *self.keeper.calls.lock() += 1;
        self.check()?;
        self.keeper.layouts.lock().insert(log, layout.clone());
        Ok(())
    }
}

impl LossKeeper for OwnersKeeper {
    fn keep_loss(&self) -> Result<()> {
        self.check()?;
        *self.keeper.losses.lock() += 1;
        Ok(())
    }
}

/// Nodes in virtual time, and the owner of a volume.
struct World {
    simulation: Simulation,
    host: Host,
    pool: ModelPool,
    keeper: Arc<Keeper>,
}

impl World {
    fn new(seed: u64, nodes: u64) -> Self {
        let simulation = Simulation::new(seed);
        let host = simulation.host("client");
        let pool = ModelPool::new(Arc::new(host.clone()), nodes, seed);
        Self { simulation, host, pool, keeper: Arc::default() }
    }

    /// A store of its own, as another process has it.
    fn store(&self, options: NodeLogOptions) -> NodeLogs {
        NodeLogs::over(Arc::new(self.pool.clone()), options)
    }

    fn new_log(&self, id: LogId, class: FileClass, epoch: u64) -> NewLog {
        let keeper = Arc::new(OwnersKeeper { keeper: Arc::clone(&self.keeper), epoch });
        NewLog { id, volume: VOLUME, epoch: Epoch(epoch), class, keeper }
    }

    fn create(&self, store: &NodeLogs, id: LogId, class: FileClass) -> Box<dyn LogWriter> {
        let (writer, layout) = store.create(self.new_log(id, class, 1)).expect("created");
        self.keeper.layouts.lock().insert(id, layout);
        writer
    }

    fn layout(&self, id: LogId) -> Layout {
        self.keeper.layouts.lock().get(&id).cloned().expect("a layout")
    }

    fn kept(&self, id: LogId) -> VolumeLog {
        VolumeLog::decode(&self.layout(id), &"log").expect("a layout")
    }

    /// Nodes of the last extent of a log, as it is kept.
    fn ensemble(&self, id: LogId) -> Vec<StorageId> {
        self.kept(id).layout.extents.last().expect("an extent").nodes.clone()
    }

    /// Recovers as the owner of `epoch`, keeps the layout, and reads everything.
    fn recover(&self, id: LogId, class: FileClass, epoch: u64) -> Result<(RecoveredLog, Vec<u8>)> {
        self.recover_with(&self.store(NodeLogOptions::default()), id, class, epoch)
    }

    fn recover_with(
        &self,
        store: &NodeLogs,
        id: LogId,
        class: FileClass,
        epoch: u64,
    ) -> Result<(RecoveredLog, Vec<u8>)> {
        *self.keeper.epoch.lock() = epoch;
        let losses = OwnersKeeper { keeper: Arc::clone(&self.keeper), epoch };
        let owner = NewOwner { epoch: Epoch(epoch), losses: &losses };
        let recovered = store.recover(id, class, &self.layout(id), owner)?;
        assert!(!recovered.may_miss_unsynced || *self.keeper.losses.lock() > 0, "a loss is kept");
        self.keeper.layouts.lock().insert(id, recovered.layout.clone());
        let bytes = self.read(store, id, class)?;
        Ok((recovered, bytes))
    }

    fn read(&self, store: &NodeLogs, id: LogId, class: FileClass) -> Result<Vec<u8>> {
        let context = IoContext::new(class, IoPurpose::Recovery);
        let reader = store.open(id, &self.layout(id), context)?;
        let mut bytes = vec![0; reader.len() as usize];
        reader.read_exact_at(0, &mut bytes, context)?;
        Ok(bytes)
    }

    fn sleep(&self, ms: u64) {
        let runtime: &dyn Runtime = &self.host;
        wait_for(runtime, runtime.sleep(Duration::from_millis(ms)));
    }

    fn now_ns(&self) -> u64 {
        self.simulation.now_ns()
    }
}

/// Appends the next `len` bytes of the pattern, and waits for them.
fn append(writer: &mut dyn LogWriter, len: u64) -> Result<()> {
    let start = writer.len_bytes();
    writer.submit(&[&pattern(start..start + len)])?;
    writer.position().wait(start + len)
}

fn quick() -> NodeLogOptions {
    NodeLogOptions {
        patience: Duration::from_millis(200),
        stall_max: Duration::from_secs(5),
        recovery_max: Duration::from_secs(10),
        ..NodeLogOptions::default()
    }
}

#[test]
fn driver_conforms_over_threads() {
    let runtime = ThreadRuntime::start(2).expect("threads");
    let pool = ModelPool::new(runtime, 5, 1);
    pool.set_delay(1000..50_000);
    logs_conform(&NodeLogs::over(Arc::new(pool), NodeLogOptions::default()), 7);
}

#[test]
fn appends_are_on_all_replicas_and_finish_seals_them() {
    let world = World::new(1, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    for _ in 0..10 {
        append(&mut *writer, 1000).expect("acknowledged");
    }
    let layout = writer.finish().expect("finished");
    world.keeper.layouts.lock().insert(log(1), layout);
    world.sleep(10);
    let holders = world.pool.holders(ExtentAt { log: log(1), extent: 1 });
    assert_eq!(holders.len(), 3);
    assert!(holders.iter().all(|(_, bytes, is_sealed)| *bytes == 10_000 && *is_sealed));
    assert_eq!(world.read(&store, log(1), FileClass::Wal).expect("bytes"), pattern(0..10_000));
    assert_eq!(*world.keeper.calls.lock(), 0, "the keeper does not get the end");
}

#[test]
fn submits_that_wait_travel_in_one_message() {
    let world = World::new(2, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 10).expect("acknowledged");
    for start in (10..20_010).step_by(10) {
        writer.submit(&[&pattern(start..start + 10)]).expect("submitted");
    }
    writer.position().wait(20_010).expect("acknowledged");
    let node = world.ensemble(log(1))[0];
    let is_append = |message: &&StoreMessage| matches!(message, StoreMessage::Append { .. });
    let appends = world.pool.received(node).iter().filter(is_append).count();
    assert!(appends < 10, "{appends} messages for 2000 submits");
}

#[test]
fn bytes_leave_the_budget_when_all_replicas_have_them() {
    let budget = ByteBudget::unlimited();
    let world = World::new(3, 3);
    let store = world.store(NodeLogOptions { budget: Some(Arc::clone(&budget)), ..quick() });
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    let third = world.ensemble(log(1))[2];
    world.pool.set_health(third, Health::Slow(50 * MS));
    append(&mut *writer, 100_000).expect("acknowledged");
    assert_eq!(budget.used_bytes(MemoryClass::Log), 100_000, "the third needs them");
    world.sleep(200);
    assert_eq!(budget.used_bytes(MemoryClass::Log), 0);
}

#[test]
fn quorum_does_not_wait_for_a_slow_third_node() {
    let world = World::new(4, 5);
    let options = NodeLogOptions { backlog_bytes_max: 50_000, ..quick() };
    let store = world.store(NodeLogOptions { patience: Duration::from_secs(5), ..options });
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    let third = world.ensemble(log(1))[2];
    world.pool.set_health(third, Health::Slow(500 * MS));
    let started_ns = world.now_ns();
    for _ in 0..20 {
        append(&mut *writer, 1000).expect("acknowledged");
    }
    assert!(world.now_ns() - started_ns < 50 * MS, "{} ns", world.now_ns() - started_ns);
    assert_eq!(world.kept(log(1)).layout.extents.len(), 1, "it is behind by less than the limit");
    for _ in 0..60 {
        append(&mut *writer, 1000).expect("acknowledged");
    }
    let extents = world.kept(log(1)).layout.extents;
    assert!(extents.len() > 1, "it is behind by more than the limit");
    assert!(!extents.last().expect("an extent").nodes.contains(&third));
    drop(writer);
    let (_, bytes) = world.recover(log(1), FileClass::Wal, 2).expect("recovered");
    assert_eq!(bytes, pattern(0..80_000));
}

#[test]
fn manifest_is_acknowledged_when_all_nodes_have_synced() {
    let world = World::new(5, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Manifest);
    append(&mut *writer, 5000).expect("acknowledged");
    world.pool.lose_all_power();
    let (recovered, bytes) = world.recover(log(1), FileClass::Manifest, 2).expect("recovered");
    assert_eq!((bytes, recovered.may_miss_unsynced), (pattern(0..5000), false));
}

#[test]
fn synced_bytes_survive_power_loss_of_all_nodes() {
    let mut has_lost = 0;
    for seed in 0..20 {
        let world = World::new(seed, 3);
        let store = world.store(quick());
        let mut writer = world.create(&store, log(1), FileClass::Wal);
        append(&mut *writer, 3000).expect("acknowledged");
        assert_eq!(writer.position().sync().expect("synced"), 3000);
        append(&mut *writer, 2000).expect("acknowledged");
        drop(writer);
        world.pool.lose_all_power();
        let (recovered, bytes) = world.recover(log(1), FileClass::Wal, 2).expect("recovered");
        assert!(bytes.len() >= 3000 && pattern(0..5000).starts_with(&bytes));
        assert!(recovered.may_miss_unsynced, "all nodes are in limbo");
        has_lost += u64::from(bytes.len() < 5000);
    }
    assert!(has_lost > 5, "{has_lost}");
}

#[test]
fn loss_is_kept_before_a_node_forgets_it() {
    let world = World::new(24, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 3000).expect("acknowledged");
    drop(writer);
    world.pool.lose_all_power();
    let (at, layout) = (ExtentAt { log: log(1), extent: 1 }, world.layout(log(1)));
    world.keeper.errors.lock().push(Error::busy("the register does not answer"));
    let error = world.recover(log(1), FileClass::Wal, 2).expect_err("the loss is not kept");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let holders = world.pool.holders(at);
    assert!(holders.iter().all(|(_, _, is_sealed)| !is_sealed), "{holders:?}");
    // The next owner dies after the seals, before it keeps the layout.
    let (recovered, bytes) = world.recover(log(1), FileClass::Wal, 3).expect("recovered");
    assert!(recovered.may_miss_unsynced, "nothing was forgotten");
    assert_eq!(*world.keeper.losses.lock(), 1);
    let holders = world.pool.holders(at);
    assert!(holders.iter().all(|(_, _, is_sealed)| *is_sealed), "{holders:?}");
    world.keeper.layouts.lock().insert(log(1), layout);
    let (again, same) = world.recover(log(1), FileClass::Wal, 4).expect("recovered");
    assert_eq!(same, bytes);
    assert!(!again.may_miss_unsynced, "the nodes do not know it any more, and the keeper does");
}

#[test]
fn loss_of_several_logs_is_kept_once() {
    let world = World::new(25, 6);
    let store = world.store(quick());
    let ids: Vec<LogId> = (1..=6).map(log).collect();
    let class = |at: usize| if at.is_multiple_of(2) { FileClass::Wal } else { FileClass::Manifest };
    for (at, id) in ids.iter().enumerate() {
        append(&mut *world.create(&store, *id, class(at)), 2000).expect("acknowledged");
    }
    world.pool.lose_all_power();
    let layouts: Vec<Layout> = ids.iter().map(|id| world.layout(*id)).collect();
    let logs = ids.iter().zip(&layouts).enumerate();
    let logs = logs.map(|(at, (id, layout))| LogToRecover { id: *id, class: class(at), layout });
    let logs: Vec<LogToRecover<'_>> = logs.collect();
    let losses = CountedLosses::default();
    let recovered = world.store(quick()).recover_all(&logs, losses.owner(2));
    for (at, recovered) in recovered.into_iter().enumerate() {
        let recovered = recovered.expect("recovered");
        assert_eq!(recovered.may_miss_unsynced, class(at) == FileClass::Wal, "log {at}");
        let layout = VolumeLog::decode(&recovered.layout, &"log").expect("a layout").layout;
        assert!(layout.is_ended && layout.ended_bytes() == recovered.len_bytes, "log {at}");
        assert!(recovered.len_bytes == 2000 || class(at) == FileClass::Wal, "log {at}");
    }
    assert_eq!(losses.count(), 1);
}

#[test]
fn loss_is_not_kept_while_another_log_fails() {
    let world = World::new(26, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 3000).expect("acknowledged");
    drop(writer);
    world.pool.lose_all_power();
    let layout = world.layout(log(1));
    // No node knows the other log.
    let (class, layout) = (FileClass::Wal, &layout);
    let logs = [1, 9].map(|number| LogToRecover { id: log(number), class, layout });
    let losses = CountedLosses::default();
    let outcomes = world.store(quick()).recover_all(&logs, losses.owner(2));
    let errors: Vec<Error> =
        outcomes.into_iter().map(|outcome| outcome.expect_err("not recovered")).collect();
    assert_eq!(errors[0].kind(), ErrorKind::Busy, "{}", errors[0]);
    assert!(errors[0].to_string().contains(&log(9).to_string()), "{}", errors[0]);
    assert_eq!(errors[1].kind(), ErrorKind::NotFound, "{}", errors[1]);
    assert_eq!(losses.count(), 0);
    let holders = world.pool.holders(ExtentAt { log: log(1), extent: 1 });
    assert!(holders.iter().all(|(_, _, is_sealed)| !is_sealed), "{holders:?}");
}

#[test]
fn one_node_in_limbo_loses_nothing() {
    for seed in 0..10 {
        let world = World::new(seed, 3);
        let store = world.store(quick());
        let mut writer = world.create(&store, log(1), FileClass::Wal);
        append(&mut *writer, 3000).expect("acknowledged");
        drop(writer);
        world.pool.lose_power(world.ensemble(log(1))[seed as usize % 3]);
        let (recovered, bytes) = world.recover(log(1), FileClass::Wal, 2).expect("recovered");
        assert_eq!((bytes, recovered.may_miss_unsynced), (pattern(0..3000), false));
    }
}

#[test]
fn node_in_limbo_costs_its_writer_an_extent() {
    let world = World::new(6, 4);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    let lost = world.ensemble(log(1))[0];
    world.pool.lose_power(lost);
    for _ in 0..5 {
        append(&mut *writer, 1000).expect("acknowledged");
    }
    let extents = world.kept(log(1)).layout.extents;
    assert!(extents.len() == 2 && !extents[1].nodes.contains(&lost), "{extents:?}");
}

#[test]
fn kill_of_any_node_at_any_step_loses_nothing() {
    for class in [FileClass::Wal, FileClass::Manifest] {
        for victim in 0..3 {
            for step in 0..40 {
                let world = World::new(step, 6);
                let store = world.store(quick());
                let mut writer = world.create(&store, log(1), class);
                let node = world.ensemble(log(1))[victim];
                world.pool.plan(step, node, Health::Down);
                for _ in 0..4 {
                    append(&mut *writer, 700).expect("acknowledged");
                }
                writer.position().sync().expect("synced");
                append(&mut *writer, 700).expect("acknowledged");
                drop(writer);
                let (recovered, bytes) = world.recover(log(1), class, 2).expect("recovered");
                assert_eq!(bytes, pattern(0..3500), "{class:?}, node {victim}, step {step}");
                assert!(!recovered.may_miss_unsynced);
            }
        }
    }
}

#[test]
fn kill_of_any_node_during_recovery_loses_nothing() {
    for victim in 0..3 {
        for step in 0..12 {
            let world = World::new(step, 4);
            let store = world.store(quick());
            let mut writer = world.create(&store, log(1), FileClass::Wal);
            append(&mut *writer, 2000).expect("acknowledged");
            writer.submit(&[&pattern(2000..2500)]).expect("submitted");
            drop(writer);
            let node = world.ensemble(log(1))[victim];
            world.pool.plan(step, node, Health::Down);
            let (_, bytes) = world.recover(log(1), FileClass::Wal, 2).expect("recovered");
            assert!(bytes.len() >= 2000 && pattern(0..2500).starts_with(&bytes), "step {step}");
            // A third process finds the same end.
            let (_, again) = world.recover(log(1), FileClass::Wal, 3).expect("recovered");
            assert_eq!(bytes, again, "node {victim}, step {step}");
        }
    }
}

#[test]
fn failed_node_changes_extent_and_repair_completes_the_old_one() {
    let world = World::new(7, 5);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 300_000).expect("acknowledged");
    let failed = world.ensemble(log(1))[1];
    world.pool.set_health(failed, Health::Down);
    world.pool.forget(failed);
    // Callers that wait keep the layouts: first the one with the new extent, then the repaired one.
    for _ in 0..4 {
        append(&mut *writer, 1000).expect("acknowledged");
        world.sleep(3000);
    }
    let extents = world.kept(log(1)).layout.extents;
    assert_eq!(extents.len(), 2, "{extents:?}");
    assert!(extents[0].is_sealed && extents[0].nodes.len() == 3);
    assert!(!extents[0].nodes.contains(&failed));
    let holders = world.pool.holders(ExtentAt { log: log(1), extent: 1 });
    let sealed: Vec<_> = holders.iter().filter(|(_, _, is_sealed)| *is_sealed).collect();
    assert_eq!(sealed.len(), 3, "{holders:?}");
}

#[test]
fn three_nodes_keep_writing_after_one_loss() {
    let world = World::new(8, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Manifest);
    append(&mut *writer, 1000).expect("acknowledged");
    world.pool.set_health(world.ensemble(log(1))[2], Health::Down);
    append(&mut *writer, 1000).expect("acknowledged");
    assert_eq!(world.ensemble(log(1)).len(), 2);
}

#[test]
fn log_fails_with_busy_when_the_pool_is_too_small_for_long() {
    let world = World::new(9, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    for node in world.pool.nodes().into_iter().take(2) {
        world.pool.set_health(node, Health::Down);
        world.pool.forget(node);
    }
    let started_ns = world.now_ns();
    let error = append(&mut *writer, 1000).expect_err("one node is too few");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let waited_ms = (world.now_ns() - started_ns) / MS;
    assert!((5000..12_000).contains(&waited_ms), "{waited_ms} ms");
    let position = writer.position();
    position.wait(1000).expect("acknowledged bytes stay so");
    assert!(position.sync().is_err() && writer.submit(&[b"x"]).is_err());
}

#[test]
fn log_that_waited_for_nodes_while_it_was_idle_fails_with_busy() {
    let world = World::new(19, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    let nodes = world.ensemble(log(1));
    nodes[1..].iter().for_each(|node| world.pool.forget(*node));
    world.pool.set_health(nodes[2], Health::Down);
    append(&mut *writer, 1000).expect("two nodes answer");
    // The log is idle now, and the pool lacks nodes for its next extent.
    world.sleep(1000);
    let (pool, host) = (world.pool.clone(), world.host.clone());
    let _healing = world.host.spawn("healing", async move {
        let runtime: &dyn Runtime = &host;
        runtime.sleep(Duration::from_secs(60)).await;
        nodes.iter().for_each(|node| pool.remember(*node));
    });
    let started_ns = world.now_ns();
    let error = append(&mut *writer, 1000).expect_err("one node is too few");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let waited_ms = (world.now_ns() - started_ns) / MS;
    assert!((5000..12_000).contains(&waited_ms), "{waited_ms} ms");
}

#[test]
fn short_silence_of_two_nodes_costs_time_only() {
    let world = World::new(10, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    let nodes = world.pool.nodes();
    nodes.iter().take(2).for_each(|node| world.pool.set_health(*node, Health::Silent));
    writer.submit(&[&pattern(1000..2000)]).expect("submitted");
    world.sleep(1000);
    world.pool.heal();
    writer.position().wait(2000).expect("acknowledged");
    drop(writer);
    let (_, bytes) = world.recover(log(1), FileClass::Wal, 2).expect("recovered");
    assert_eq!(bytes, pattern(0..2000));
}

#[test]
fn fence_ends_the_older_writer_once() {
    let world = World::new(11, 3);
    let (store, other) = (world.store(quick()), world.store(quick()));
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    let (_, bytes) = world.recover_with(&other, log(1), FileClass::Wal, 2).expect("recovered");
    assert_eq!(bytes, pattern(0..1000));
    let error = append(&mut *writer, 10).expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    let position = writer.position();
    for outcome in [position.wait(1010), position.sync().map(|_| ()), writer.finish().map(|_| ())] {
        assert_eq!(outcome.expect_err("sticky").kind(), ErrorKind::Fenced);
    }
    let arrivals = world.pool.arrivals();
    world.sleep(1000);
    assert_eq!(world.pool.arrivals(), arrivals, "a fenced writer sends nothing");
    let outcome = store.create(world.new_log(log(2), FileClass::Wal, 1));
    assert_eq!(outcome.expect_err("fenced").kind(), ErrorKind::Fenced);
    let (_, bytes) = world.recover_with(&other, log(1), FileClass::Wal, 3).expect("recovered");
    assert_eq!(bytes, pattern(0..1000));
}

#[test]
fn record_is_kept_before_its_extent_acknowledges() {
    let world = World::new(12, 6);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    // The keeper fails twice and then works: the append waits for it.
    let busy = || Error::busy("the namespace does not answer");
    world.keeper.errors.lock().extend([busy(), busy()]);
    world.pool.set_health(world.ensemble(log(1))[0], Health::Down);
    world.pool.set_health(world.ensemble(log(1))[1], Health::Down);
    append(&mut *writer, 1000).expect("acknowledged");
    assert!(*world.keeper.calls.lock() >= 3);
    assert_eq!(world.kept(log(1)).layout.extents.len(), 2);
    // A keeper that knows a later owner ends the writer.
    *world.keeper.epoch.lock() = 2;
    world.pool.set_health(world.ensemble(log(1))[0], Health::Down);
    world.pool.set_health(world.ensemble(log(1))[1], Health::Down);
    let error = append(&mut *writer, 1000).expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
}

#[test]
fn recovery_waits_for_nodes_unless_their_loss_is_accepted() {
    let world = World::new(13, 4);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    drop(writer);
    for node in world.ensemble(log(1)).into_iter().take(2) {
        world.pool.set_health(node, Health::Silent);
    }
    let error = world.recover_with(&store, log(1), FileClass::Wal, 2).expect_err("too few");
    assert_eq!(error.kind(), ErrorKind::Busy);
    let text = error.to_string();
    assert!(text.contains("node") && text.contains("accept the loss"), "{text}");
    let accepting = world.store(NodeLogOptions { accept_loss: true, ..quick() });
    let (recovered, bytes) =
        world.recover_with(&accepting, log(1), FileClass::Wal, 3).expect("accepted");
    assert!(recovered.may_miss_unsynced && pattern(0..1000).starts_with(&bytes));
}

#[test]
fn damaged_replicas_do_not_cut_a_manifest() {
    for damaged in 1..=3 {
        let world = World::new(20 + damaged, 4);
        let store = world.store(quick());
        let mut writer = world.create(&store, log(1), FileClass::Manifest);
        append(&mut *writer, 1000).expect("acknowledged");
        drop(writer);
        let nodes = world.ensemble(log(1));
        nodes.iter().take(damaged as usize).for_each(|node| world.pool.damage(*node, 300));
        let outcome = world.recover_with(&store, log(1), FileClass::Manifest, 2);
        if damaged < 3 {
            let (recovered, bytes) = outcome.expect("one replica is whole");
            assert!(bytes == pattern(0..1000) && !recovered.may_miss_unsynced, "{damaged}");
            continue;
        }
        let error = outcome.expect_err("every replica is damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(text.contains("has lost synced bytes") && text.contains("--accept-loss"), "{text}");
        let accepting = world.store(NodeLogOptions { accept_loss: true, ..quick() });
        let (recovered, bytes) =
            world.recover_with(&accepting, log(1), FileClass::Manifest, 3).expect("accepted");
        assert!(recovered.may_miss_unsynced && bytes == pattern(0..300));
    }
}

#[test]
fn recovery_goes_on_when_missing_nodes_come_back() {
    let world = World::new(14, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 1000).expect("acknowledged");
    drop(writer);
    let nodes = world.ensemble(log(1));
    nodes.iter().take(2).for_each(|node| world.pool.set_health(*node, Health::Down));
    let (pool, host) = (world.pool.clone(), world.host.clone());
    let _healing = world.host.spawn("healing", async move {
        let runtime: &dyn Runtime = &host;
        runtime.sleep(Duration::from_secs(3)).await;
        pool.heal();
    });
    let (_, bytes) = world.recover(log(1), FileClass::Wal, 2).expect("recovered");
    assert_eq!(bytes, pattern(0..1000));
}

#[test]
fn several_logs_are_recovered_in_the_time_of_one() {
    let world = World::new(15, 5);
    let store = world.store(quick());
    let ids: Vec<LogId> = (1..=8).map(log).collect();
    for id in &ids {
        let mut writer = world.create(&store, *id, FileClass::Wal);
        append(&mut *writer, 50_000).expect("acknowledged");
    }
    let layouts: Vec<Layout> = ids.iter().map(|id| world.layout(*id)).collect();
    let class = FileClass::Wal;
    let logs = ids.iter().zip(&layouts).map(|(id, layout)| LogToRecover { id: *id, class, layout });
    let logs: Vec<LogToRecover<'_>> = logs.collect();
    let started_ns = world.now_ns();
    let losses = CountedLosses::default();
    let one = world.store(quick()).recover_all(&logs[..1], losses.owner(2));
    let one_ns = world.now_ns() - started_ns;
    let all = world.store(quick()).recover_all(&logs, losses.owner(3));
    let all_ns = world.now_ns() - started_ns - one_ns;
    assert!(one.into_iter().chain(all).all(|log| log.expect("recovered").len_bytes == 50_000));
    assert!(all_ns < 4 * one_ns, "{all_ns} ns for eight, {one_ns} ns for one");
}

#[test]
fn creation_avoids_nodes_that_do_not_answer() {
    for health in [Health::Down, Health::Silent, Health::Refusing(RefusalWhy::Full)] {
        for class in [FileClass::Wal, FileClass::Manifest] {
            let world = World::new(16, 4);
            let store = world.store(quick());
            drop(world.create(&store, log(1), class));
            let failed = world.ensemble(log(1))[0];
            world.pool.set_health(failed, health);
            let id = log(1);
            store.remove(id, &world.layout(id), Epoch(1)).unwrap_or_default();
            let mut writer = world.create(&store, log(1), class);
            assert!(!world.ensemble(log(1)).contains(&failed), "{health:?}, {class:?}");
            append(&mut *writer, 100).expect("acknowledged");
        }
    }
}

#[test]
fn empty_log_leaves_nothing_on_its_nodes_when_it_is_removed() {
    let world = World::new(17, 3);
    let store = world.store(quick());
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    let layout = writer.finish().expect("finished");
    drop(writer);
    store.remove(log(1), &layout, Epoch(1)).expect("removed");
    assert_eq!(world.pool.holders(ExtentAt { log: log(1), extent: 1 }), []);
}

#[test]
fn removal_of_a_volume_removes_copies_that_repairs_make() {
    // A message takes 100 µs. The copy is made between list and removal, and after the removal.
    for at_us in [550, 650] {
        let world = World::new(19, 4);
        let store = world.store(quick());
        let mut writer = world.create(&store, log(1), FileClass::Wal);
        append(&mut *writer, 1000).expect("acknowledged");
        let _layout = writer.finish().expect("finished");
        drop(writer);
        world.sleep(10);
        let at = ExtentAt { log: log(1), extent: 1 };
        let held: Vec<StorageId> =
            world.pool.holders(at).into_iter().map(|(node, ..)| node).collect();
        let new = world.pool.nodes().into_iter().find(|node| !held.contains(node)).expect("one");
        let extent = world.pool.extent(at, held[0]);
        world.pool.set_delay(100_000..100_001);
        let (pool, host) = (world.pool.clone(), world.host.clone());
        let _repair = world.host.spawn("repair", async move {
            let runtime: &dyn Runtime = &host;
            runtime.sleep(Duration::from_micros(at_us)).await;
            pool.give(at, extent, new);
        });
        assert_eq!(store.release_volume(VOLUME, Epoch(2)).expect("removed"), 1);
        world.sleep(10);
        assert_eq!(world.pool.holders(at), [], "a copy was made after {at_us} µs");
    }
}

#[test]
fn another_process_reads_what_is_acknowledged() {
    let world = World::new(18, 3);
    let (store, other) = (world.store(quick()), world.store(quick()));
    let mut writer = world.create(&store, log(1), FileClass::Wal);
    append(&mut *writer, 2_500_000).expect("acknowledged");
    world.sleep(50);
    let bytes = world.read(&other, log(1), FileClass::Wal).expect("bytes");
    assert!(bytes == pattern(0..2_500_000), "{} bytes", bytes.len());
    let node = world.ensemble(log(1))[0];
    world.pool.set_health(node, Health::Down);
    let bytes = world.read(&other, log(1), FileClass::Wal).expect("bytes of the other replicas");
    assert!(bytes == pattern(0..2_500_000), "{} bytes", bytes.len());
}
