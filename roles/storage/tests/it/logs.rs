//! Logs over storage nodes that are killed and lose power: seeded runs of a writer and of
//! recoveries.
//!
//! A run checks that a recovery finds every acknowledged byte, unless power losses may have taken
//! unsynced ones and the recovery says so. It finds every synced byte in any case. Two recoveries
//! must agree, and the old writer must be fenced. Each switch of a node's sabotage breaks one of
//! these.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime;
use archipelago_base::simulation::Host;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, FileSystem as _, IoContext, IoPurpose};
use archipelago_storage::Sabotage;
use archipelago_store::nodes::stores::NodeStoresOptions;
use archipelago_store::suite::CountedLosses;
use archipelago_store::{
    Layout, LayoutKeeper, LogId, LogPosition, LogWriter, NewLog, Stores, VolumeId,
};
use parking_lot::Mutex;

use crate::world::{World, WorldOptions};

const LOG: LogId = LogId([7; 16]);
const VOLUME: VolumeId = VolumeId([8; 16]);
/// Number of nodes.
const NODES: usize = 6;
/// Number of nodes that are down at most, so that a new extent always finds three.
const DOWN_MAX: usize = 2;

/// Keeps the layout of the log until another owner takes over.
#[derive(Debug, Default)]
struct Keeper {
    layout: Mutex<Layout>,
    is_taken_over: AtomicBool,
}

impl LayoutKeeper for Keeper {
    fn keep(&self, _log: LogId, layout: &Layout) -> Result<()> {
        if self.is_taken_over.load(Ordering::SeqCst) {
            return Err(Error::fenced("the log: another owner took over"));
        }
        *self.layout.lock() = layout.clone();
        Ok(())
    }
}

/// When nodes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    /// Processes are killed while the writer writes.
    Kills,
    /// Processes are killed and machines lose power while the writer writes.
    PowerLosses,
    /// All machines lose power after the writer has ended.
    AtTheEnd,
}

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    seed: u64,
    class: FileClass,
    faults: Faults,
    sabotage: Sabotage,
}

/// A log while it is written.
struct OpenLog {
    writer: Box<dyn LogWriter>,
    bytes: Vec<u8>,
    /// Ends of the groups.
    ends: Vec<u64>,
}

impl OpenLog {
    fn submit(&mut self, rng: &mut Rng) -> Result<()> {
        let len = if rng.u8(0..4) == 0 { rng.usize(1..60_000) } else { rng.usize(1..900) };
        let mut group = vec![0; len];
        group.fill_with(|| rng.u8(..));
        assert_eq!(self.writer.submit(&[&group])?, self.bytes.len() as u64);
        self.bytes.extend(group);
        self.ends.push(self.bytes.len() as u64);
        Ok(())
    }
}

/// The writer of a run, and the outcomes of its calls.
struct Written {
    open: Arc<Mutex<OpenLog>>,
    position: Arc<dyn LogPosition>,
    keeper: Arc<Keeper>,
    acknowledged: u64,
    synced: u64,
}

impl Written {
    fn begin(stores: &Stores, class: FileClass) -> Self {
        let keeper = Arc::new(Keeper::default());
        let new = NewLog {
            id: LOG,
            volume: VOLUME,
            epoch: Epoch(1),
            class,
            keeper: Arc::clone(&keeper) as Arc<dyn LayoutKeeper>,
        };
        let (writer, layout) = stores.logs.create(new).unwrap();
        *keeper.layout.lock() = layout;
        let position = writer.position();
        let open = OpenLog { writer, bytes: Vec::new(), ends: Vec::new() };
        let open = Arc::new(Mutex::new(open));
        Self { open, position, keeper, acknowledged: 0, synced: 0 }
    }

    fn submit(&self, rng: &mut Rng) -> Result<()> {
        self.open.lock().submit(rng)
    }

    fn wait(&mut self) -> Result<()> {
        let end = self.open.lock().bytes.len() as u64;
        self.position.wait(end)?;
        self.acknowledged = end;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.synced = self.position.sync()?;
        self.acknowledged = self.acknowledged.max(self.synced);
        Ok(())
    }

    /// Goes on writing while the caller does something else.
    fn write_on(&self, host: &Host, seed: u64) {
        let (open, host_of_task) = (Arc::clone(&self.open), host.clone());
        let task = async move {
            let mut rng = Rng::with_seed(seed);
            for _ in 0..300 {
                let pause = Duration::from_micros(rng.u64(1..400));
                Runtime::sleep(&host_of_task, pause).await;
                if open.lock().submit(&mut rng).is_err() {
                    return;
                }
            }
        };
        Runtime::spawn(host, "writer", Box::pin(task));
    }

    /// Counts the groups that are acknowledged by now.
    fn count_acknowledged(&mut self) {
        let ends = self.open.lock().ends.clone();
        let acknowledged = ends.into_iter().take_while(|end| self.position.wait(*end).is_ok());
        self.acknowledged = acknowledged.max().unwrap_or(0).max(self.acknowledged);
    }
}

/// Changes the state of a random node. Returns whether power was lost.
fn fault(world: &mut World, rng: &mut Rng, loses_power: bool) -> bool {
    let n = rng.usize(0..NODES);
    if !world.is_up(n) {
        world.start(n);
        return false;
    }
    let down = (0..NODES).filter(|n| !world.is_up(*n)).count();
    let takes_power = loses_power && rng.bool();
    if takes_power {
        world.lose_power(n);
    } else {
        world.kill(n);
    }
    if down == DOWN_MAX || rng.bool() {
        world.start(n);
    }
    takes_power
}

/// Writes for a while. Returns whether machines lost power.
fn write(world: &mut World, log: &mut Written, rng: &mut Rng, faults: Faults) -> bool {
    let mut has_lost_power = false;
    for _ in 0..rng.u32(5..30) {
        match rng.u8(0..10) {
            0..4 => log.submit(rng).unwrap(),
            4..7 => log.wait().unwrap(),
            7 => log.sync().unwrap(),
            8 if faults != Faults::AtTheEnd => {
                has_lost_power |= fault(world, rng, faults == Faults::PowerLosses);
            }
            _ => world.run_for(Duration::from_millis(rng.u64(0..300))),
        }
    }
    has_lost_power
}

/// The rule that a run broke, if any.
fn problem(run: Run) -> Option<String> {
    let mut rng = Rng::with_seed(run.seed);
    let options = WorldOptions { sabotage: run.sabotage, ..WorldOptions::new(NODES, run.seed) };
    let mut world = World::founded_with(options);
    let owner = world.client("owner");
    let mut log = Written::begin(&owner.stores(), run.class);
    let mut has_lost_power = write(&mut world, &mut log, &mut rng, run.faults);
    if run.faults == Faults::AtTheEnd {
        log.wait().unwrap();
        owner.host.crash();
        (0..NODES).for_each(|n| world.lose_power(n));
        has_lost_power = true;
    }
    world.start_all();
    // The old owner lives on, and writes during the take-over.
    let lives_on = run.faults != Faults::AtTheEnd;
    if lives_on {
        log.write_on(&owner.host, run.seed);
        world.run_for(Duration::from_micros(rng.u64(0..3000)));
    }
    // Far away, so that the old owner gets answers between its fence and its seals.
    let new_owner = world.client_at("new owner", Duration::from_millis(2)).stores();
    log.keeper.is_taken_over.store(true, Ordering::SeqCst);
    let layout = log.keeper.layout.lock().clone();
    let losses = CountedLosses::default();
    let recovered = new_owner.logs.recover(LOG, run.class, &layout, losses.owner(2)).unwrap();
    world.run_for(Duration::from_secs(1));
    if lives_on {
        if log.submit(&mut rng).and_then(|()| log.wait()).is_ok() {
            return Some("an append was acknowledged after the fence".to_owned());
        }
        log.count_acknowledged();
    }
    let len = recovered.len_bytes;
    if len < log.synced {
        return Some(format!("{len} bytes were recovered, {} were synced", log.synced));
    }
    if len < log.acknowledged && !recovered.may_miss_unsynced {
        return Some(format!("{len} bytes were recovered, {} acknowledged", log.acknowledged));
    }
    if recovered.may_miss_unsynced && !has_lost_power {
        return Some("bytes may be missing although no machine lost power".to_owned());
    }
    if recovered.may_miss_unsynced && losses.count() == 0 {
        return Some("nodes have forgotten a loss that was not kept".to_owned());
    }
    let context = IoContext::new(run.class, IoPurpose::Recovery);
    let reader = new_owner.logs.open(LOG, &recovered.layout, context).unwrap();
    let mut bytes = vec![0; len as usize];
    reader.read_exact_at(0, &mut bytes, context).unwrap();
    if log.open.lock().bytes.get(..bytes.len()) != Some(&bytes) {
        return Some("the recovered bytes are others".to_owned());
    }
    let again = new_owner.logs.recover(LOG, run.class, &recovered.layout, losses.owner(3));
    let again = again.unwrap();
    let found = again.len_bytes;
    (found != len).then(|| format!("a second recovery found {found} bytes instead of {len}"))
}

fn first_problem(run: Run, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| Some((seed, problem(Run { seed, ..run })?)))
}

const RUN: Run = Run {
    seed: 0,
    class: FileClass::Wal,
    faults: Faults::PowerLosses,
    sabotage: Sabotage {
        no_epoch_check: false,
        no_fence_reads: false,
        no_limbo: false,
        no_crc: false,
        release_ignores_sets: false,
    },
};

#[test]
fn write_ahead_logs_keep_their_promise_over_faults() {
    assert_eq!(first_problem(RUN, 0..40), None);
}

#[test]
fn manifests_keep_their_promise_over_faults() {
    let run = Run { class: FileClass::Manifest, ..RUN };
    assert_eq!(first_problem(run, 100..130), None);
}

#[test]
fn killed_processes_alone_lose_nothing() {
    let run = Run { faults: Faults::Kills, ..RUN };
    assert_eq!(first_problem(run, 200..230), None);
}

#[test]
fn power_loss_of_all_nodes_is_told_by_the_recovery() {
    let run = Run { faults: Faults::AtTheEnd, ..RUN };
    assert_eq!(first_problem(run, 300..320), None);
}

/// The files of extents on a node that does not run.
fn log_files(world: &World, n: usize) -> Vec<PathBuf> {
    let dir = Path::new("/device/logs");
    let entries = world.machine(n).disk.list(dir).unwrap();
    entries.into_iter().map(|entry| dir.join(entry.name)).collect()
}

/// Cuts the files of extents on a node that does not run, as a damaged disk may.
fn damage(world: &World, n: usize) {
    let disk = &world.machine(n).disk;
    let context = IoContext::manifest(IoPurpose::Maintenance);
    for path in log_files(world, n) {
        let bytes = disk.read(&path, context).unwrap();
        disk.write_atomic(&path, &bytes[..bytes.len() / 2], context).unwrap();
    }
}

#[test]
fn damaged_replicas_do_not_cut_a_manifest() {
    let class = FileClass::Manifest;
    for damaged in 1..=3 {
        let mut rng = Rng::with_seed(damaged);
        let mut world = World::founded(NODES, 400 + damaged);
        let owner = world.client("owner");
        let mut log = Written::begin(&owner.stores(), class);
        for _ in 0..6 {
            log.submit(&mut rng).unwrap();
            log.wait().unwrap();
        }
        owner.host.crash();
        let layout = log.keeper.layout.lock().clone();
        let holders: Vec<usize> =
            (0..NODES).filter(|n| !log_files(&world, *n).is_empty()).collect();
        assert_eq!(holders.len(), 3);
        holders.iter().for_each(|n| world.lose_power(*n));
        holders.iter().take(damaged as usize).for_each(|n| damage(&world, *n));
        world.start_all();
        let stores = world.stores("new owner");
        let losses = CountedLosses::default();
        let outcome = stores.logs.recover(LOG, class, &layout, losses.owner(2));
        if damaged < 3 {
            let recovered = outcome.unwrap();
            assert_eq!(recovered.len_bytes, log.acknowledged, "{damaged} are damaged");
            assert!(!recovered.may_miss_unsynced);
            continue;
        }
        let error = outcome.map(|recovered| recovered.len_bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("has lost synced bytes"), "{error}");
        let options = NodeStoresOptions { accept_loss: true, ..NodeStoresOptions::default() };
        let accepting = world.client("accepting owner").stores_with(options);
        assert_eq!(losses.count(), 0, "nothing was given up so far");
        let recovered = accepting.logs.recover(LOG, class, &layout, losses.owner(3)).unwrap();
        assert_eq!(losses.count(), 1);
        assert!(recovered.may_miss_unsynced && recovered.len_bytes < log.acknowledged);
    }
}

#[test]
fn nodes_without_limbo_are_noticed() {
    let sabotage = Sabotage { no_limbo: true, ..RUN.sabotage };
    let run = Run { sabotage, faults: Faults::AtTheEnd, ..RUN };
    assert!(first_problem(run, 0..50).is_some(), "no run noticed it");
}

#[test]
fn nodes_without_epoch_check_are_noticed() {
    let sabotage = Sabotage { no_epoch_check: true, ..RUN.sabotage };
    let run = Run { sabotage, faults: Faults::Kills, ..RUN };
    assert!(first_problem(run, 0..100).is_some(), "no run noticed it");
}

#[test]
fn nodes_without_fence_reads_are_noticed() {
    let sabotage = Sabotage { no_fence_reads: true, ..RUN.sabotage };
    let run = Run { sabotage, faults: Faults::Kills, ..RUN };
    assert!(first_problem(run, 0..100).is_some(), "no run noticed it");
}
