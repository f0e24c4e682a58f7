//! A scenario of its own: the engine on a volume, with a writer and a reader in the owner's
//! process, faults of nodes and links, and owners that are cut off and killed.
//!
//! The writer gives each write a number, larger than all before. The run checks that every number
//! that was acknowledged, or that a reader has seen, is found by the next owner (or a later one of
//! the same key). A reader therefore must not see a write before its record is at the quorum.
//!
//! The engine opens a table under a lock, and holds it over the reads of the file. Two threads of a
//! run must not wait for each other's locks, so no write and no flush begins during a read, no read
//! begins during a flush, and memtables are large enough that a write never waits for a flush.
//!
//! Failure: a run stops at the first violations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::simulation::Host;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::db::{BackgroundMode, Components, Db};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_engine::sabotage::{Defect, with_defect};
use archipelago_engine::wal::WriteBatch;
use archipelago_env::FileSystem;
use archipelago_store::nodes::logs::LogWriting;
use archipelago_store::nodes::register::caspaxos::root_change::RootChangeSabotage;

use super::client::{ClientProcess, ClientSettings, OpenVolume};
use super::cluster::{Cluster, ClusterSettings, Losses};
use super::node::NodeSettings;
use super::{DEVICE_BYTES, client_settings, node_sabotage, shape_of};
use crate::run::{RunOutcome, RunRequest, Scenario, Step};
use crate::scenarios::figures;
use crate::scenarios::thread::{Call, ProcessClock, ProcessRuntime, SimThread};

const STEPS: [Step; 1] = [Step {
    name: "insertion-after-quorum",
    about: "a write is inserted and published only when its record is at the quorum",
}];

/// Number of steps of a run.
const RUN_STEPS: usize = 90;
/// Number of owners of a run, at most, before the one of the end.
const OWNERS_MAX: usize = 4;
/// Number of keys.
const KEYS: u32 = 12;
/// Virtual time after which a call that has not returned counts as stuck.
const CALL_MAX: Duration = Duration::from_secs(300);

pub(crate) fn scenario() -> Scenario {
    let about = "databases on storage nodes, whose owners are cut off and killed";
    Scenario::with_steps("storage-db", about, &STEPS, run)
}

/// The process of an owner: its client, its volume and its database.
#[derive(Debug)]
struct DbProcess {
    // The database calls the volume in its drop, and the volume the stores.
    db: Option<Arc<Db>>,
    open: Option<OpenVolume>,
    client: ClientProcess,
    inserts_early: bool,
}

fn family() -> CfOptions {
    CfOptions {
        write_buffer_bytes: 4 << 20,
        level_base_bytes: 64 << 10,
        target_file_bytes: 32 << 10,
        block_bytes: 512,
        buckets: 2,
        value_separation_bytes: 256,
        ..CfOptions::default()
    }
}

fn key_of(key: u32) -> Vec<u8> {
    format!("key{key:03}").into_bytes()
}

/// The value of a write: its number, and some bytes.
fn value_of(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (number % 700) as usize, number as u8);
    value
}

fn number_of(value: &[u8]) -> Result<u64> {
    let number = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let number = number.filter(|number| value_of(*number) == value);
    number.ok_or_else(|| Error::new(ErrorKind::Corrupt, "a value that nobody wrote"))
}

/// The number that a key has; 0 for none.
fn read_key(db: &Db, key: u32) -> Result<u64> {
    match db.get(&key_of(key))? {
        Some(value) => number_of(&value),
        None => Ok(0),
    }
}

impl DbProcess {
    fn new(client: ClientProcess, inserts_early: bool) -> Self {
        Self { db: None, open: None, client, inserts_early }
    }

    fn db(&self) -> Result<Arc<Db>> {
        self.db.clone().ok_or_else(|| Error::closed("no database is open"))
    }

    /// Takes the volume over, and opens its database.
    fn take_over(&mut self) -> Result<Arc<Db>> {
        let open = self.client.open_volume()?;
        let fs = Arc::clone(&open.fs) as Arc<dyn FileSystem>;
        self.open = Some(open);
        let runtime = ProcessRuntime(self.client.host().clone());
        let components = Components {
            fs,
            clock: Arc::new(ProcessClock(runtime)),
            families: [("default".to_owned(), family())].into_iter().collect(),
            background: BackgroundMode::Manual,
            seed: Some(self.client.host().scheduler().fresh_seed()),
            ..Components::default()
        };
        let options = DbOptions { wal_segment_bytes: 128 << 10, ..DbOptions::default() };
        let db = Arc::new(Db::open_with("/db", options, components)?);
        self.db = Some(Arc::clone(&db));
        Ok(db)
    }

    fn write(&mut self, key: u32, number: u64, sync: bool) -> Result<()> {
        let db = self.db()?;
        let mut batch = WriteBatch::new();
        batch.put_cf(db.default_family().id(), &key_of(key), &value_of(number));
        let options = WriteOptions { sync, ..WriteOptions::default() };
        let work = || db.write(&batch, &options).map(drop);
        if self.inserts_early { with_defect(Defect::InsertionBeforeQuorum, work) } else { work() }
    }

    fn flush(&mut self) -> Result<()> {
        let db = self.db()?;
        db.flush(db.default_family())?;
        while db.step_background()? {}
        Ok(())
    }

    /// The numbers of all keys.
    fn read_all(&mut self) -> Result<Vec<u64>> {
        let db = self.db()?;
        (0..KEYS).map(|key| read_key(&db, key)).collect()
    }

    fn verify(&mut self) -> Result<()> {
        let report = self.db()?.verify(|_, _| {})?;
        match report.is_clean() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Corrupt, format!("{:?}", report.errors))),
        }
    }
}

/// A write under way.
#[derive(Debug)]
struct RunningWrite {
    key: u32,
    number: u64,
    call: Call<Result<()>>,
}

/// An owner with its threads.
#[derive(Debug)]
struct DbOwner {
    number: usize,
    host: Host,
    writer: SimThread<DbProcess>,
    reader: Option<SimThread<Arc<Db>>>,
    write: Option<RunningWrite>,
    flush: Option<Call<Result<()>>>,
    read: Option<(u32, Call<Result<u64>>)>,
    is_dead: bool,
}

/// The run of one seed.
struct DbRun {
    cluster: Cluster,
    settings: ClientSettings,
    inserts_early: bool,
    next: u64,
    owners: usize,
    owner: Option<DbOwner>,
    old: Vec<DbOwner>,
    /// Largest number of a key that was acknowledged or seen, by the owner that wrote it.
    promised: BTreeMap<(usize, u32), u64>,
    /// Owner that wrote each number.
    writers: BTreeMap<u64, usize>,
    /// Numbers that each owner found, one for each key.
    found: BTreeMap<usize, Vec<u64>>,
    violations: Vec<String>,
    writes: u64,
    reads: u64,
}

/// Runs one seed.
fn run(request: &RunRequest) -> RunOutcome {
    let mut rng = shape_of(request);
    let losses = [Losses::Damage, Losses::OneMachine][rng.usize(..2)];
    let (sabotage, device_bytes) = (node_sabotage(request), DEVICE_BYTES);
    let node = NodeSettings { sabotage, device_bytes, devices: 1 };
    let root_change = RootChangeSabotage::default();
    let (nodes, has_repairs) = (rng.usize(6..=7), false);
    let settings = ClusterSettings { nodes, losses, node, root_change, has_repairs };
    let mut run = DbRun {
        cluster: Cluster::new(request, settings),
        settings: client_settings(request, LogWriting::Serial, rng.bool()),
        inserts_early: request.leaves_out("insertion-after-quorum"),
        next: 0,
        owners: 0,
        owner: None,
        old: Vec::new(),
        promised: BTreeMap::new(),
        writers: BTreeMap::new(),
        found: BTreeMap::new(),
        violations: Vec::new(),
        writes: 0,
        reads: 0,
    };
    if let Err(text) = run.whole() {
        run.violations.push(text);
    }
    RunOutcome {
        violations: std::mem::take(&mut run.violations),
        figures: figures([
            ("writes acknowledged", run.writes),
            ("reads", run.reads),
            ("owners", run.owners as u64),
            ("faults", run.cluster.faults),
        ]),
        notes: run.cluster.simulation.notes(),
        trace: run.cluster.trace(),
    }
}

impl DbRun {
    fn whole(&mut self) -> Result<(), String> {
        self.cluster.found()?;
        self.create()?;
        self.cluster.draw_weather();
        for _ in 0..RUN_STEPS {
            self.step()?;
        }
        self.cluster.make_peace();
        self.retire();
        self.end_old()?;
        self.open_owner(true)?;
        self.check_end()?;
        self.retire();
        self.end_old()
    }

    fn wait<T>(&mut self, call: &Call<T>, what: &str) -> Result<T, String> {
        let end_ns = self.cluster.simulation.now_ns() + CALL_MAX.as_nanos() as u64;
        let mut pause = Duration::from_micros(100);
        while self.cluster.simulation.now_ns() < end_ns {
            if let Some(result) = call.take() {
                return Ok(result);
            }
            self.cluster.run_for(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
        Err(format!("{what} did not return within {CALL_MAX:?}"))
    }

    fn create(&mut self) -> Result<(), String> {
        let sim = self.cluster.join_client();
        let mut client = ClientProcess::new(&sim, self.settings);
        let thread = SimThread::start(sim.host(), ());
        let call = thread.call(move |()| client.create_volume());
        let created = self.wait(&call, "the creation of the volume")?;
        created.map_err(|error| format!("the volume was not created: {error}"))?;
        thread.close();
        self.cluster.run_for(Duration::from_millis(1));
        self.open_owner(true)
    }

    /// Opens the database in a new process, and reads everything. Outside peace it may fail.
    fn open_owner(&mut self, is_peace: bool) -> Result<(), String> {
        let number = self.owners;
        self.owners += 1;
        let sim = self.cluster.join_client();
        let process = DbProcess::new(ClientProcess::new(&sim, self.settings), self.inserts_early);
        let mut owner = DbOwner {
            number,
            host: sim.host().clone(),
            writer: SimThread::start(sim.host(), process),
            reader: None,
            write: None,
            flush: None,
            read: None,
            is_dead: false,
        };
        let opened = owner.writer.call(DbProcess::take_over);
        let opened = self.wait(&opened, "the opening of the database")?;
        let all = owner.writer.call(DbProcess::read_all);
        let all = self.wait(&all, "a read of all keys")?;
        match opened.and_then(|db| all.map(|all| (db, all))) {
            Ok((db, all)) => {
                self.cluster.simulation.note(|| format!("owner {number} found {all:?}"));
                owner.reader = Some(SimThread::start(sim.host(), db));
                self.found.insert(number, all);
                self.owner = Some(owner);
                Ok(())
            }
            Err(error) => {
                self.old.push(owner);
                let is_wrong = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Internal);
                match is_peace || is_wrong {
                    true => Err(format!("the database was not opened: {error}")),
                    false => Ok(()),
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), String> {
        if self.owner.is_none() && self.owners <= OWNERS_MAX {
            return self.open_owner(false);
        }
        match self.cluster.rng.u8(..40) {
            0..22 => self.write(),
            22 => self.flush(),
            23..32 => self.read(),
            32..35 => self.cluster.disturb_node(),
            35 => self.cluster.draw_weather(),
            36 => self.cluster.heal(),
            37 => {
                if let Some(owner) = &self.owner {
                    self.cluster.cut_off(&owner.host);
                }
            }
            38 => self.cluster.replace_manager(),
            _ => self.kill()?,
        }
        let pause = match self.cluster.rng.u8(..24) {
            0 => Duration::from_millis(300),
            _ => Duration::from_nanos(500 << self.cluster.rng.u32(..12)),
        };
        self.cluster.run_for(pause);
        self.take_ended()
    }

    fn write(&mut self) {
        let Some(owner) = &mut self.owner else { return };
        if !owner.is_idle() {
            return;
        }
        self.next += 1;
        let (number, key) = (self.next, self.cluster.rng.u32(..KEYS));
        let sync = self.cluster.rng.u8(..8) == 0;
        self.writers.insert(number, owner.number);
        let call = owner.writer.call(move |process| process.write(key, number, sync));
        owner.write = Some(RunningWrite { key, number, call });
    }

    fn flush(&mut self) {
        let Some(owner) = &mut self.owner else { return };
        if owner.is_idle() {
            owner.flush = Some(owner.writer.call(DbProcess::flush));
        }
    }

    /// Begins a read, mostly of the key that a write in progress changes.
    fn read(&mut self) {
        let Some(owner) = &mut self.owner else { return };
        let may_read = owner.read.is_none() && owner.flush.is_none();
        if let Some(reader) = owner.reader.as_ref().filter(|_| may_read) {
            let key = match &owner.write {
                Some(write) => write.key,
                None => self.cluster.rng.u32(..KEYS),
            };
            owner.read = Some((key, reader.call(move |db| read_key(db, key))));
        }
    }

    /// Kills the owner, and lets another process take over.
    fn kill(&mut self) -> Result<(), String> {
        if self.owners > OWNERS_MAX {
            return Ok(());
        }
        if let Some(mut owner) = self.owner.take() {
            self.cluster.kill_client(&owner.host);
            // No other process sees what the dead process still does.
            owner.is_dead = true;
            owner.close();
            self.old.push(owner);
        }
        self.open_owner(false)
    }

    fn retire(&mut self) {
        self.old.extend(self.owner.take());
    }

    fn take_ended(&mut self) -> Result<(), String> {
        let mut ended = Vec::new();
        for owner in &mut self.old {
            ended.push(owner.take_ended());
            owner.bury();
        }
        if let Some(owner) = &mut self.owner {
            let work = owner.take_ended();
            // The engine takes no writes after some errors. Another process continues then.
            let is_over = work.is_over;
            ended.push(work);
            if is_over {
                self.retire();
            }
        }
        for work in ended {
            if let Some(wrong) = work.wrong {
                return Err(wrong);
            }
            self.writes += work.acknowledged.len() as u64;
            self.reads += work.seen.len() as u64;
            for (key, number) in work.acknowledged.into_iter().chain(work.seen) {
                self.promise(key, number)?;
            }
        }
        self.check_promises()
    }

    /// Notes that every later owner must find at least this number at the key.
    fn promise(&mut self, key: u32, number: u64) -> Result<(), String> {
        if number == 0 {
            return Ok(());
        }
        let writer = self.writers.get(&number).copied();
        let writer = writer.ok_or_else(|| format!("key {key} has {number}, never written"))?;
        let promised = self.promised.entry((writer, key)).or_default();
        *promised = number.max(*promised);
        Ok(())
    }

    /// Compares what each owner found with what was promised before it.
    fn check_promises(&self) -> Result<(), String> {
        for (&(writer, key), &number) in &self.promised {
            let next = self.found.range(writer + 1..).next();
            if let Some((owner, found)) = next
                && found[key as usize] < number
            {
                return Err(format!(
                    "owner {owner} found {} at key {key}, and {number} of owner {writer} was \
                     acknowledged or seen",
                    found[key as usize]
                ));
            }
        }
        Ok(())
    }

    /// Waits for everything that old owners do, and ends their threads.
    fn end_old(&mut self) -> Result<(), String> {
        let end_ns = self.cluster.simulation.now_ns() + CALL_MAX.as_nanos() as u64;
        self.old.iter().for_each(DbOwner::close);
        while !self.old.iter().all(DbOwner::has_ended) {
            if self.cluster.simulation.now_ns() > end_ns {
                return Err(format!("calls did not return within {CALL_MAX:?}: {:?}", self.old));
            }
            self.cluster.run_for(Duration::from_millis(200));
        }
        self.take_ended()?;
        let panics = self.old.iter().filter_map(|owner| owner.writer.panic_text());
        match panics.into_iter().next() {
            Some(panic) => Err(format!("a process panicked: {panic}")),
            None => Ok(()),
        }
    }

    /// In peace, writes succeed and the files are sound.
    fn check_end(&mut self) -> Result<(), String> {
        self.check_promises()?;
        self.next += 1;
        let number = self.next;
        let Some(owner) = &self.owner else { return Err("there is no owner".to_owned()) };
        let checked = owner.writer.call(move |process| -> Result<()> {
            process.write(0, number, true)?;
            process.flush()?;
            process.verify()
        });
        let checked = self.wait(&checked, "a write, a flush and a check of all files")?;
        checked.map_err(|error| format!("in peace, the database failed: {error}"))
    }
}

/// Work of an owner that has ended.
#[derive(Debug, Default)]
struct EndedWork {
    acknowledged: Vec<(u32, u64)>,
    seen: Vec<(u32, u64)>,
    /// Whether the owner takes no more writes.
    is_over: bool,
    wrong: Option<String>,
}

impl DbOwner {
    fn has_ended(&self) -> bool {
        self.writer.has_ended() && self.reader.as_ref().is_none_or(SimThread::has_ended)
    }

    /// Ends the threads after the calls under way.
    fn close(&self) {
        self.reader.iter().for_each(SimThread::close);
        self.writer.close();
    }

    /// Ends the background work of a killed process, once its last calls have returned.
    fn bury(&self) {
        if self.is_dead && self.has_ended() && self.host.is_up() {
            self.host.crash();
        }
    }

    /// Whether the process does nothing.
    fn is_idle(&self) -> bool {
        self.write.is_none() && self.flush.is_none() && self.read.is_none()
    }

    fn take_ended(&mut self) -> EndedWork {
        let mut ended = EndedWork::default();
        let write = self.write.take_if(|write| write.call.is_done());
        if let Some(RunningWrite { key, number, call }) = write {
            match call.take() {
                Some(Ok(())) => ended.acknowledged.push((key, number)),
                Some(Err(error)) => ended.note_error(&error),
                None => {}
            }
        }
        if let Some(Some(Err(error))) = self.flush.take_if(|it| it.is_done()).map(|it| it.take()) {
            ended.note_error(&error);
        }
        if let Some((key, call)) = self.read.take_if(|read| read.1.is_done()) {
            match call.take() {
                Some(Ok(number)) => ended.seen.push((key, number)),
                Some(Err(error)) => ended.note_error(&error),
                None => {}
            }
        }
        if self.is_dead {
            // No other process sees what a dead process still does.
            return EndedWork::default();
        }
        ended
    }
}

impl EndedWork {
    fn note_error(&mut self, error: &Error) {
        self.is_over |= matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Fenced);
        if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Internal) {
            self.wrong = Some(format!("an operation of the database failed: {error}"));
        }
    }
}
