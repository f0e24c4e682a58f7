//! Databases whose memtables rest at memory nodes and are flushed by executors, over real links.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_engine::db::{Components, Db};
use archipelago_engine::executor::{JobExecutor, JobKind};
use archipelago_engine::options::{CfOptions, DbOptions};
use archipelago_engine::stats::Ticker;
use archipelago_offload::net::{
    ExecutorServer, ExecutorSettings, OffloadCounters, OffloadExecutor, OffloadMode, OwnerSettings,
};
use archipelago_offload::shard_host::ShardHost;
use archipelago_offload::shard_owner::{OwnerFigures, RemoteShards};
use tempfile::TempDir;

use crate::memories::{Listed, Listening, Memory, shard_store, shard_store_that};
use crate::office::Office;
use crate::rounds::{Loaded, key, wait_until};

/// Number of rounds after which a test gives up, because no job leaves.
const ROUNDS_MAX: u32 = 1000;

/// A cluster and a database in a directory.
struct World {
    office: Office,
    base: TempDir,
    listening: Listening,
    nodes: Vec<Memory>,
    listed: Arc<Listed>,
    shards: Arc<RemoteShards>,
    away: Loaded,
    rounds: u32,
}

fn executor(office: &Office, share: &Path, hosted: Option<&Arc<ShardHost>>) -> ExecutorServer {
    let settings = ExecutorSettings {
        managers: office.managers(),
        slots: 2,
        shares: vec![share.to_path_buf()],
        hosted: hosted.cloned(),
        ..ExecutorSettings::default()
    };
    ExecutorServer::start(settings).unwrap()
}

fn dir_of(base: &TempDir) -> PathBuf {
    base.path().join("db")
}

fn open(
    base: &TempDir,
    office: &Office,
    listed: &Arc<Listed>,
    mode: OffloadMode,
) -> (Loaded, Arc<RemoteShards>) {
    let shards = shard_store(listed);
    let settings = OwnerSettings { managers: office.managers(), mode, ..OwnerSettings::default() };
    let jobs = OffloadExecutor::over(settings, None, Some(Arc::clone(&shards)));
    let shard_store = Some(Arc::clone(&shards) as _);
    let components = Components { shard_store, ..Components::default() };
    (Loaded::open(&dir_of(base), jobs, components), shards)
}

impl World {
    fn new(nodes: u64, mode: OffloadMode, listening: impl Fn(&Path) -> Listening) -> Self {
        let (base, office) = (tempfile::tempdir().unwrap(), Office::start());
        let listening = listening(base.path());
        let nodes = (1..=nodes).map(|number| Memory::start(&listening, number, 1)).collect();
        let listed = Arc::new(Listed::default());
        let (away, shards) = open(&base, &office, &listed, mode);
        let world = Self { office, base, listening, nodes, listed, shards, away, rounds: 0 };
        world.list();
        wait_until(|| world.shards.figures().nodes == world.nodes.len() as u64);
        world
    }

    fn list(&self) {
        *self.listed.0.lock() = self.nodes.iter().map(Memory::member).collect();
    }

    /// Ends a node and starts its next life.
    fn restart(&mut self, index: usize) {
        let (number, life) = (self.nodes[index].number, self.nodes[index].life);
        self.nodes[index].end();
        self.nodes[index] = Memory::start(&self.listening, number, life + 1);
        self.list();
    }

    fn executor(&self, hosted: Option<usize>) -> ExecutorServer {
        let hosted = hosted.map(|index| &self.nodes[index].host);
        executor(&self.office, self.base.path(), hosted)
    }

    /// Writes rounds until a condition holds.
    fn write_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            self.away.write(self.rounds);
            self.rounds += 1;
            let counters = self.away.jobs.counters();
            assert!(self.rounds < ROUNDS_MAX, "{counters:?}, {:?}", self.shards.figures());
        }
    }

    /// Checks the database, closes it, and checks that memory nodes hold nothing of it and that the
    /// next open finds everything.
    fn finish(self) {
        self.away.check(self.rounds);
        self.away.db.close().unwrap();
        let held = |node: &Memory| node.host.figures().unwrap().shards;
        assert_eq!(self.nodes.iter().map(held).sum::<u64>(), 0);
        let (away, _shards) = open(&self.base, &self.office, &self.listed, OffloadMode::Off);
        away.check(self.rounds);
        away.db.close().unwrap();
    }
}

#[test]
fn flushes_read_images_in_place() {
    let mut world = World::new(1, OffloadMode::Flushes, |_| Listening::Tcp);
    let executor = world.executor(Some(0));
    world.write_until(|world| world.away.jobs.counters().flushes.in_place >= 3);
    let flushes = world.away.jobs.counters().flushes;
    assert_eq!((flushes.remote, flushes.images_fetched), (0, 0), "{flushes:?}");
    assert!(flushes.images_in_place >= 3 && flushes.run_ns > 0, "{flushes:?}");
    assert!(flushes.packages >= 3 && flushes.package_bytes / flushes.packages < 4096);
    let figures = executor.figures();
    assert!(figures.flushes >= 3 && figures.images_fetched == 0, "{figures:?}");
    let facts = world.away.jobs.facts();
    assert!(facts.contains("offload_flushes_in_place:"), "{facts}");
    // The mode keeps compactions here.
    world.away.compact();
    world.away.db.wait_for_background().unwrap();
    let counters = world.away.jobs.counters();
    assert_eq!(counters.ran_away, counters.flushes.in_place + counters.flushes.remote);
    world.finish();
}

#[test]
fn flushes_fetch_images_over_tcp() {
    fetches_images(|_| Listening::Tcp);
}

#[test]
fn flushes_fetch_images_over_shared_memory() {
    fetches_images(|base| Listening::Shm(base.to_owned()));
}

fn fetches_images(listening: impl Fn(&Path) -> Listening) {
    let mut world = World::new(2, OffloadMode::All, listening);
    let executor = world.executor(None);
    world.write_until(|world| world.away.jobs.counters().flushes.remote >= 3);
    let flushes = world.away.jobs.counters().flushes;
    assert_eq!(flushes.in_place, 0, "{flushes:?}");
    assert!(flushes.images_fetched >= 3 && flushes.image_bytes_fetched > 0, "{flushes:?}");
    assert!(executor.figures().image_bytes_fetched >= flushes.image_bytes_fetched);
    // Compactions leave as well.
    world.write_until(|world| {
        world.away.compact();
        world.away.db.wait_for_background().unwrap();
        let counters = world.away.jobs.counters();
        counters.ran_away > counters.flushes.remote
    });
    world.finish();
}

/// Opens a database with several buckets, whose close leaves its shards at their nodes.
fn open_leaving(
    base: &TempDir,
    office: &Office,
    listed: &Arc<Listed>,
    mode: OffloadMode,
) -> (Db, Arc<OffloadExecutor>, Arc<RemoteShards>) {
    let shards = shard_store_that(listed, true);
    let settings = OwnerSettings { managers: office.managers(), mode, ..OwnerSettings::default() };
    let jobs = OffloadExecutor::over(settings, None, Some(Arc::clone(&shards)));
    let family = CfOptions { write_buffer_bytes: 64 << 10, buckets: 4, ..CfOptions::default() };
    let components = Components {
        families: [("default".to_owned(), family)].into_iter().collect(),
        executor: Arc::clone(&jobs) as _,
        shard_store: Some(Arc::clone(&shards) as _),
        ..Components::default()
    };
    (Db::open_with(dir_of(base), DbOptions::default(), components).unwrap(), jobs, shards)
}

#[test]
fn executor_in_place_flushes_shards_of_the_open_before() {
    flushes_kept_shards(true);
}

#[test]
fn executor_elsewhere_flushes_shards_of_the_open_before() {
    flushes_kept_shards(false);
}

/// Whether a busy machine has brought a flush back or has cost shards of a node.
fn was_late(counters: &OffloadCounters, shards: &OwnerFigures) -> bool {
    let came_back = |why: &&str| counters.flushes.here.contains_key(*why);
    counters.planned_again > 0
        || shards.lost > 0
        || ["no_executor", "silent", "failed", "busy"].iter().any(came_back)
}

fn flushes_kept_shards(is_hosted: bool) {
    let (base, office) = (tempfile::tempdir().unwrap(), Office::start());
    let node = Memory::start(&Listening::Tcp, 1, 1);
    let listed = Arc::new(Listed::default());
    *listed.0.lock() = vec![node.member()];
    let hosted = is_hosted.then_some(&node.host);
    let executor = executor(&office, base.path(), hosted);
    let open = |mode| open_leaving(&base, &office, &listed, mode);
    let (mut rng, mut written, mut tries) = (Rng::with_seed(7), BTreeMap::new(), 0);
    let (db, counters, sent) = loop {
        let (db, _jobs, shards) = open(OffloadMode::Memtables);
        wait_until(|| shards.figures().nodes == 1);
        while shards.figures().shards < 4 {
            let (key, value) = (key(rng.u32(0..50_000)), vec![rng.u8(..); 100]);
            db.put(&key, &value).unwrap();
            written.insert(key, value);
        }
        db.close().unwrap();
        let failed_before = executor.figures().failed;
        let (db, jobs, shards) = open(OffloadMode::Flushes);
        // A flush of the first open may have taken all of them before its end.
        if db.statistics().get(Ticker::AwayShardsKept) > 0 {
            wait_until(|| jobs.room(JobKind::Flush) > 0);
            db.flush(db.default_family()).unwrap();
            let (counters, figures) = (jobs.counters(), shards.figures());
            let has_failed = executor.figures().failed > failed_before;
            if !has_failed && !was_late(&counters, &figures) {
                break (db, counters, figures.sent);
            }
        }
        db.close().unwrap();
        tries += 1;
        assert!(tries < 20, "{:?}, {:?}", jobs.counters(), shards.figures());
    };
    let flushes = &counters.flushes;
    let (used, other) = match is_hosted {
        true => (flushes.images_in_place, flushes.images_fetched),
        false => (flushes.images_fetched, flushes.images_in_place),
    };
    assert!(used > sent && other == 0, "{counters:?}, {sent} sent");
    for (key, value) in &written {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    db.close().unwrap();
}

#[test]
fn flushes_without_a_slot_run_here() {
    // The manager knows no executor.
    let mut world = World::new(1, OffloadMode::Flushes, |_| Listening::Tcp);
    world.write_until(|world| {
        world.away.jobs.counters().flushes.here.get("no_executor").is_some_and(|here| *here >= 3)
    });
    let flushes = world.away.jobs.counters().flushes;
    assert_eq!(flushes.packages, 0, "{flushes:?}");
    world.finish();
}

#[test]
fn failed_flush_gets_a_second_attempt_at_another_executor() {
    // No executor reaches the directory of the database, so each attempt fails.
    let mut world = World::new(1, OffloadMode::Flushes, |_| Listening::Tcp);
    let elsewhere = tempfile::tempdir().unwrap();
    let one = executor(&world.office, elsewhere.path(), None);
    // With one executor, no other executor is left for a second attempt.
    world.write_until(|world| world.away.jobs.counters().failed_away >= 2);
    let flushes = world.away.jobs.counters().flushes;
    assert_eq!(flushes.second_attempts_done, 0, "{flushes:?}");
    let other = executor(&world.office, elsewhere.path(), None);
    let (before, failed_before) = (flushes.second_attempts, one.figures().failed);
    world.write_until(|world| {
        let flushes = world.away.jobs.counters().flushes;
        let ran_here = flushes.here.get("failed").is_some_and(|here| *here > 0);
        let both_failed = one.figures().failed > failed_before && other.figures().failed > 0;
        ran_here && both_failed && flushes.second_attempts > before
    });
    let counters = world.away.jobs.counters();
    assert_eq!(counters.flushes.second_attempts_done, 0, "{counters:?}");
    world.finish();
}

#[test]
fn flush_leaves_again_through_the_next_life_of_its_manager() {
    let mut world = World::new(1, OffloadMode::Flushes, |_| Listening::Tcp);
    // A busy machine may run a flush here.
    while world.away.jobs.counters().moved == 0 {
        let executor = world.executor(None);
        wait_until(|| world.away.jobs.room(JobKind::Flush) > 0);
        world.office.end_scheduler();
        drop(executor);
        let packages = || world.away.jobs.counters().flushes.packages;
        let before = packages();
        let written = std::thread::scope(|scope| {
            let writing = scope.spawn(|| world.away.write(world.rounds));
            wait_until(|| packages() > before || writing.is_finished());
            // The next life knows no executor when the flush leaves again.
            world.office.restart();
            writing.join()
        });
        written.unwrap();
        world.rounds += 1;
        assert!(world.rounds < 100, "{:?}", world.away.jobs.counters());
    }
    let counters = world.away.jobs.counters();
    assert!(counters.planned_again > 0, "{counters:?}");
    world.finish();
}

#[test]
fn memtables_in_this_process_are_flushed_here() {
    let (base, office) = (tempfile::tempdir().unwrap(), Office::start());
    let _executor = executor(&office, base.path(), None);
    let listed = Arc::new(Listed::default());
    let (away, _shards) = open(&base, &office, &listed, OffloadMode::Flushes);
    for round in 0..3 {
        away.write(round);
    }
    away.check(3);
    let flushes = away.jobs.counters().flushes;
    assert!(flushes.here.get("in_process").is_some_and(|count| *count > 0), "{flushes:?}");
    assert_eq!(flushes.packages, 0, "{flushes:?}");
    away.db.close().unwrap();
}

#[test]
fn executors_and_memory_nodes_end_while_they_flush() {
    let mut world = World::new(2, OffloadMode::All, |_| Listening::Tcp);
    let mut hosted = vec![world.executor(Some(0)), world.executor(Some(1))];
    world.write_until(|world| world.away.jobs.counters().flushes.in_place >= 2);
    let mut turn = 0;
    while turn < 12 {
        let remote = world.executor(None);
        let before = world.rounds;
        match turn % 4 {
            // A memory node ends with the executor in its process.
            0 => {
                let index = turn / 4 % 2;
                drop(hosted.remove(index));
                world.restart(index);
                hosted.insert(index, world.executor(Some(index)));
            }
            // A memory node ends, and an executor elsewhere has the places of its images.
            1 => world.restart(turn / 4 % 2),
            2 => world.office.restart(),
            _ => drop(remote),
        }
        world.write_until(|world| world.rounds > before);
        world.away.check(world.rounds);
        turn += 1;
    }
    // The executors in the process know the new lives of their nodes by their hosts.
    hosted.clear();
    hosted.extend([world.executor(Some(0)), world.executor(Some(1))]);
    let before = world.away.jobs.counters().flushes.in_place;
    world.write_until(|world| world.away.jobs.counters().flushes.in_place > before);
    world.finish();
}
