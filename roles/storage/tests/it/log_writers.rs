//! Writers of logs over storage nodes: kills at each step, power losses, limbo, take-overs and slow
//! nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime;
use archipelago_base::{Epoch, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use archipelago_storage::Sabotage;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::log::ExtentRecord;
use archipelago_store::nodes::logs::{
    LogWriting, NodeLogOptions, NodeLogs, StripedLogs, VolumeLog,
};
use archipelago_store::nodes::wire::stored::decode_enclosed;
use archipelago_store::suite::{CountedLosses, KeptLayouts, logs_conform};
use archipelago_store::{
    LayoutKeeper, LogId, LogPosition, LogStore, LogWriter, NewLog, RecoveredLog, VolumeId,
};

use crate::world::{ClientProcess, World, WorldOptions};

fn pattern(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Options under which a node that does not answer costs little virtual time.
fn quick() -> NodeLogOptions {
    NodeLogOptions { patience: Duration::from_millis(300), ..NodeLogOptions::default() }
}

/// A process that uses logs.
struct Logs {
    process: ClientProcess,
    store: Arc<dyn LogStore>,
}

impl Logs {
    fn new(world: &mut World, name: &str) -> Self {
        let process = world.client(name);
        // The members become known.
        process.stores();
        let client = Arc::clone(&process.client);
        let runtime: Arc<dyn Runtime> = Arc::new(process.host.clone());
        archipelago_base::runtime::wait_for(&*runtime, client.ready(Duration::from_secs(10)))
            .unwrap();
        let store = Arc::new(NodeLogs::new(&process.client, quick()));
        Self { process, store }
    }

    /// The same process with write-ahead logs of another form.
    fn writing(self, writing: LogWriting) -> Self {
        Self { store: Arc::new(StripedLogs::new(self.store, writing)), ..self }
    }
}

/// A log of a volume of its own, as its owners see it.
struct TestLog {
    id: LogId,
    volume: VolumeId,
    class: FileClass,
    kept: Arc<KeptLayouts>,
}

impl TestLog {
    fn new(number: u8, class: FileClass) -> Self {
        let (id, volume) = (LogId([number; 16]), VolumeId([number; 16]));
        Self { id, volume, class, kept: Arc::default() }
    }

    fn create(&self, logs: &Logs, epoch: u64) -> Box<dyn LogWriter> {
        let keeper = Arc::clone(&self.kept) as Arc<dyn LayoutKeeper>;
        let (id, volume, class) = (self.id, self.volume, self.class);
        let new = NewLog { id, volume, epoch: Epoch(epoch), class, keeper };
        let (writer, layout) = logs.store.create(new).unwrap();
        self.kept.keep(id, &layout).unwrap();
        writer
    }

    fn extents(&self) -> Vec<ExtentRecord> {
        let layout = self.kept.newest(self.id);
        let kept: VolumeLog = decode_enclosed(&"log", &layout.0).unwrap();
        kept.layout.extents
    }

    /// Nodes of the last extent.
    fn ensemble(&self) -> Vec<StorageId> {
        self.extents().last().unwrap().nodes.clone()
    }

    fn recover(&self, logs: &Logs, epoch: u64) -> Result<(RecoveredLog, Vec<u8>)> {
        let (layout, losses) = (self.kept.newest(self.id), CountedLosses::default());
        let recovered = logs.store.recover(self.id, self.class, &layout, losses.owner(epoch))?;
        assert_eq!(losses.count() > 0, recovered.may_miss_unsynced, "a loss is kept");
        self.kept.keep(self.id, &recovered.layout)?;
        let context = IoContext::new(self.class, IoPurpose::Recovery);
        let reader = logs.store.open(self.id, &recovered.layout, context)?;
        let mut bytes = vec![0; reader.len() as usize];
        reader.read_exact_at(0, &mut bytes, context)?;
        Ok((recovered, bytes))
    }
}

/// Appends the next `len` bytes of the pattern, and waits for them.
fn append(writer: &mut dyn LogWriter, len: u64) -> Result<()> {
    let start = writer.len_bytes();
    writer.submit(&[&pattern(start..start + len)])?;
    writer.position().wait(start + len)
}

/// Ends the process of a node after some time, while the test waits for something else.
fn crash_later(world: &World, logs: &Logs, n: usize, after: Duration) {
    let (host, victim) = (logs.process.host.clone(), world.host(n).clone());
    let _ends_by_itself = logs.process.host.spawn("crash", async move {
        let runtime: Arc<dyn Runtime> = Arc::new(host);
        runtime.sleep(after).await;
        victim.crash();
    });
}

/// Writes as the runs with kills need it: appends, a sync, and a bigger append.
fn write_some(writer: &mut dyn LogWriter) {
    for _ in 0..4 {
        append(writer, 700).unwrap();
    }
    writer.position().sync().unwrap();
    append(writer, 90_000).unwrap();
}

#[test]
fn kill_of_any_node_at_any_step_loses_nothing() {
    for class in [FileClass::Wal, FileClass::Manifest] {
        let whole_ns = {
            let mut world = World::founded(6, 1);
            let logs = Logs::new(&mut world, "writer");
            let mut writer = TestLog::new(1, class).create(&logs, 1);
            let begun_ns = world.simulation.now_ns();
            write_some(&mut *writer);
            world.simulation.now_ns() - begun_ns
        };
        for (victim, step) in (0..3).flat_map(|victim| (0..8).map(move |step| (victim, step))) {
            let mut world = World::founded(6, 1);
            let logs = Logs::new(&mut world, "writer");
            let log = TestLog::new(1, class);
            let mut writer = log.create(&logs, 1);
            let n = world.place_of(log.ensemble()[victim]);
            crash_later(&world, &logs, n, Duration::from_nanos(whole_ns * step / 8));
            write_some(&mut *writer);
            let old = writer.position();
            let taker = Logs::new(&mut world, "taker");
            let (recovered, bytes) = log.recover(&taker, 2).unwrap();
            assert!(bytes == pattern(0..92_800), "{class:?}, node {victim}, step {step}");
            assert!(!recovered.may_miss_unsynced);
            assert!(old.wait(92_800).is_ok(), "acknowledged bytes stay so");
            assert!(append(&mut *writer, 1).is_err(), "the old writer is fenced");
        }
    }
}

#[test]
fn restart_of_a_node_loses_nothing() {
    let mut world = World::founded(3, 2);
    let logs = Logs::new(&mut world, "writer");
    let log = TestLog::new(1, FileClass::Wal);
    let mut writer = log.create(&logs, 1);
    append(&mut *writer, 5000).unwrap();
    let n = world.place_of(log.ensemble()[0]);
    world.kill(n);
    world.start(n);
    append(&mut *writer, 5000).unwrap();
    writer.finish().unwrap();
    let taker = Logs::new(&mut world, "taker");
    let (_, bytes) = log.recover(&taker, 2).unwrap();
    assert!(bytes == pattern(0..10_000));
}

#[test]
fn synced_bytes_survive_power_loss_of_all_nodes() {
    for class in [FileClass::Wal, FileClass::Manifest] {
        for seed in 0..4 {
            let mut world = World::founded(6, seed);
            let logs = Logs::new(&mut world, "writer");
            let log = TestLog::new(1, class);
            let mut writer = log.create(&logs, 1);
            append(&mut *writer, 3000).unwrap();
            writer.position().sync().unwrap();
            append(&mut *writer, 2000).unwrap();
            for n in 0..world.node_count() {
                world.lose_power(n);
            }
            world.start_all();
            let taker = Logs::new(&mut world, "taker");
            let (recovered, bytes) = log.recover(&taker, 2).unwrap();
            let least = if class == FileClass::Manifest { 5000 } else { 3000 };
            assert!(bytes.len() >= least && pattern(0..5000).starts_with(&bytes), "seed {seed}");
            let is_manifest = class == FileClass::Manifest;
            assert!(recovered.may_miss_unsynced != is_manifest, "{class:?}: {recovered:?}");
        }
    }
}

#[test]
fn power_loss_of_one_node_loses_nothing() {
    for victim in 0..3 {
        let mut world = World::founded(6, 3);
        let logs = Logs::new(&mut world, "writer");
        let log = TestLog::new(1, FileClass::Wal);
        let mut writer = log.create(&logs, 1);
        append(&mut *writer, 3000).unwrap();
        let n = world.place_of(log.ensemble()[victim]);
        world.lose_power(n);
        world.start(n);
        // The node is in limbo and takes no appends, so the writer changes the extent.
        append(&mut *writer, 2000).unwrap();
        let taker = Logs::new(&mut world, "taker");
        let (recovered, bytes) = log.recover(&taker, 2).unwrap();
        assert!(bytes == pattern(0..5000), "node {victim}: {} bytes", bytes.len());
        assert!(!recovered.may_miss_unsynced);
    }
}

#[test]
fn loss_of_two_nodes_waits_for_an_operator() {
    let mut world = World::founded(6, 4);
    let logs = Logs::new(&mut world, "writer");
    let log = TestLog::new(1, FileClass::Wal);
    let mut writer = log.create(&logs, 1);
    append(&mut *writer, 3000).unwrap();
    writer.position().sync().unwrap();
    world.run_for(Duration::from_millis(100));
    for node in log.ensemble().into_iter().take(2) {
        let n = world.place_of(node);
        world.wipe(n);
    }
    let mut taker = Logs::new(&mut world, "taker");
    let options = NodeLogOptions { recovery_max: Duration::from_secs(5), ..quick() };
    taker.store = Arc::new(NodeLogs::new(&taker.process.client, options.clone()));
    let error = log.recover(&taker, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let options = NodeLogOptions { accept_loss: true, ..options };
    taker.store = Arc::new(NodeLogs::new(&taker.process.client, options));
    let (recovered, bytes) = log.recover(&taker, 3).unwrap();
    assert!(recovered.may_miss_unsynced);
    assert!(bytes == pattern(0..3000), "the third node had everything");
}

#[test]
fn stopped_third_node_costs_an_extent_and_no_time() {
    let mut world = World::founded(6, 5);
    let logs = Logs::new(&mut world, "writer");
    let log = TestLog::new(1, FileClass::Wal);
    let mut writer = log.create(&logs, 1);
    append(&mut *writer, 1000).unwrap();
    let third = log.ensemble()[2];
    let n = world.place_of(third);
    world.host(n).stop();
    let begun_ns = world.simulation.now_ns();
    for _ in 0..10 {
        append(&mut *writer, 1000).unwrap();
    }
    assert!(world.simulation.now_ns() - begun_ns < 100_000_000, "the quorum is two of three");
    world.run_for(Duration::from_secs(1));
    append(&mut *writer, 1000).unwrap();
    assert!(!log.ensemble().contains(&third), "{:?}", log.extents());
    world.host(n).go_on();
    // Others repair the ended extent meanwhile; callers that wait keep the layouts.
    for _ in 0..3 {
        world.run_for(Duration::from_secs(2));
        append(&mut *writer, 1000).unwrap();
    }
    let extents = log.extents();
    let ended = &extents[0];
    assert!(ended.is_sealed && ended.nodes.len() == 3 && !ended.nodes.contains(&third));
    let layout = writer.finish().unwrap();
    log.kept.keep(log.id, &layout).unwrap();
    let (_, bytes) = log.recover(&Logs::new(&mut world, "taker"), 2).unwrap();
    assert!(bytes == pattern(0..15_000));
}

/// Submits in the background, and returns the number of submitted bytes.
fn submit_in_background(logs: &Logs, mut writer: Box<dyn LogWriter>, seed: u64) -> Arc<AtomicU64> {
    let submitted = Arc::new(AtomicU64::new(writer.len_bytes()));
    let (noted, host) = (Arc::clone(&submitted), logs.process.host.clone());
    let mut rng = Rng::with_seed(seed);
    let _ends_by_itself = logs.process.host.spawn("old writer", async move {
        let runtime: Arc<dyn Runtime> = Arc::new(host);
        for _ in 0..100 {
            runtime.sleep(Duration::from_nanos(rng.u64(1..20_000))).await;
            let start = writer.len_bytes();
            if writer.submit(&[&pattern(start..start + 50)]).is_err() {
                break;
            }
            noted.store(start + 50, Ordering::Relaxed);
        }
    });
    submitted
}

/// Takes logs over while their writers go on, and returns the first acknowledgement that a recovery
/// missed.
fn missed_by_recoveries(sabotage: Sabotage, rounds: u8) -> Option<String> {
    let mut world = World::founded_with(WorldOptions { sabotage, ..WorldOptions::new(6, 6) });
    let (owner, taker) = (Logs::new(&mut world, "owner"), Logs::new(&mut world, "taker"));
    (1..=rounds).find_map(|round| {
        let log = TestLog::new(round, FileClass::Wal);
        let mut writer = log.create(&owner, 1);
        append(&mut *writer, 1000).unwrap();
        let position = writer.position();
        let submitted = submit_in_background(&owner, writer, u64::from(round));
        let (_, bytes) = log.recover(&taker, 2).unwrap();
        world.run_for(Duration::from_millis(20));
        let len = bytes.len() as u64;
        assert!(len >= 1000 && bytes == pattern(0..len), "round {round}: {len} bytes");
        let submitted = submitted.load(Ordering::Relaxed);
        let missed = (len + 1..=submitted).step_by(50).find(|end| position.wait(*end).is_ok());
        missed.map(|end| format!("round {round}: byte {end} was acknowledged behind {len}"))
    })
}

#[test]
fn take_over_of_a_busy_log_finds_every_acknowledgement() {
    assert_eq!(missed_by_recoveries(Sabotage::default(), 100), None);
}

#[test]
fn reads_that_do_not_fence_are_noticed() {
    let sabotage = Sabotage { no_fence_reads: true, ..Sabotage::default() };
    assert!(missed_by_recoveries(sabotage, 250).is_some(), "no recovery noticed it");
}

#[test]
fn striped_logs_over_nodes_conform() {
    let mut world = World::founded(6, 8);
    logs_conform(&*Logs::new(&mut world, "client").writing(LogWriting::Striped).store, 8);
}

#[test]
fn striped_groups_survive_the_kill_of_each_node() {
    for n in 0..6 {
        let mut world = World::founded(6, 9);
        let logs = Logs::new(&mut world, "writer").writing(LogWriting::Striped);
        let log = TestLog::new(1, FileClass::Wal);
        let mut writer = log.create(&logs, 1);
        crash_later(&world, &logs, n, Duration::from_micros(300 * n as u64));
        for len in [1000, 70_000, 300_000, 500_000] {
            append(&mut *writer, len).unwrap();
        }
        // The new owner reads striped logs, even if its own logs are serial.
        let taker = Logs::new(&mut world, "taker").writing(LogWriting::Serial);
        let (recovered, bytes) = log.recover(&taker, 2).unwrap();
        assert!(bytes == pattern(0..871_000), "node {n}: {} bytes", bytes.len());
        assert!(!recovered.may_miss_unsynced);
        let error = append(&mut *writer, 100_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    }
}

#[test]
fn position_is_usable_while_the_writer_is_elsewhere() {
    let mut world = World::founded(3, 7);
    let logs = Logs::new(&mut world, "writer");
    let log = TestLog::new(1, FileClass::Wal);
    let writer = log.create(&logs, 1);
    let position: Arc<dyn LogPosition> = writer.position();
    let submitted = submit_in_background(&logs, writer, 1);
    for _ in 0..10 {
        let end = submitted.load(Ordering::Relaxed);
        position.wait(end).unwrap();
        assert!(position.sync().unwrap() >= end);
    }
}
