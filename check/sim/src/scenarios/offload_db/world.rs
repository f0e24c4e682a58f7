//! A run: the operations of the user, and faults of everything.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Simulation};
use archipelago_base::{Error, ErrorKind, Result as EngineResult};
use archipelago_engine::sabotage::Defect;
use archipelago_env::mem::MemFs;

use super::executors::ExecutorProcess;
use super::files::{Locks, ProcessFiles};
use super::machines::Machines;
use super::model::{COUNTERS, History, KEYS, State, Write, counter_of, differences, key_of};
use super::nodes::{Memory, Office};
use super::owner::{Answer, Ask, Owner, OwnerPlace, OwnerShape};
use crate::run::{RunOutcome, RunRequest, Trace};
use crate::scenarios::figures;
use crate::scenarios::shard_parts::KnownNodes;

/// Steps of the time of faults.
const STEPS: usize = 420;
/// Number of executors in processes of their own.
const LONE_EXECUTORS: usize = 2;
/// Largest number of managers.
const MANAGERS_MAX: u64 = 3;
/// Bytes of a memory node, of which a run draws one: little room, and enough.
const NODE_BYTES: [u64; 2] = [1 << 20, 4 << 20];
/// Longest time for which an answer may be missing.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) written: u64,
    pub(super) read: u64,
    pub(super) busy: u64,
    pub(super) owners: u64,
    pub(super) power_losses: u64,
    pub(super) faults: u64,
    pub(super) shards_sent: u64,
    pub(super) shards_lost: u64,
    pub(super) jobs_away: u64,
    pub(super) flushes_away: u64,
    pub(super) jobs_again: u64,
    /// Jobs that left again after their scheduler had ended, and those of them that executors then
    /// ended.
    pub(super) jobs_moved: u64,
    pub(super) jobs_moved_done: u64,
    pub(super) second_attempts: u64,
}

/// An executor, and the memory node in whose process it runs.
struct Placed {
    at: Option<usize>,
    process: ExecutorProcess,
}

/// A machine that stands still.
struct Stopped {
    host: Host,
    until_ns: u64,
}

/// Steps of background work after one of which the disk loses its power.
const INSTALLS: u8 = 30;

/// A run of one seed.
pub(super) struct World {
    pub(super) machines: Machines,
    pub(super) rng: Rng,
    disk: MemFs,
    locks: Locks,
    processes: u64,
    pub(super) offices: Vec<Office>,
    pub(super) memories: Vec<Memory>,
    executors: Vec<Placed>,
    listed: Arc<KnownNodes>,
    pub(super) owner: Option<Owner>,
    /// Whether the state that the owner found was compared.
    pub(super) is_settled: bool,
    /// Whether steps of background work begin by themselves.
    pub(super) steps_begin: bool,
    idle_until_ns: u64,
    old_owners: Vec<Owner>,
    /// Killed executors. Those of a memory node that lives end in good order.
    old_executors: Vec<Placed>,
    stopped: Vec<Stopped>,
    pub(super) history: History,
    /// The state at the snapshot that the user has.
    snapshot: Option<State>,
    /// The write whose outcome is unknown.
    pending: Option<Write>,
    lost_power: bool,
    /// Whether the disk loses its power in the next step.
    power_ends: bool,
    writes_drawn: u64,
    asked_ns: u64,
    shape: OwnerShape,
    pub(super) is_peace: bool,
    pub(super) counted: Counted,
}

impl World {
    pub(super) fn new(request: &RunRequest, defect: Option<Defect>) -> Self {
        let simulation = Simulation::new(request.seed);
        if request.trace {
            simulation.keep_notes();
        }
        let mut rng = simulation.rng("world");
        let mut machines = Machines::new(simulation);
        let managers = rng.u64(1..=MANAGERS_MAX);
        let offices = (1..=managers).map(|number| Office::start(&mut machines, number)).collect();
        let node_bytes = NODE_BYTES[rng.usize(..NODE_BYTES.len())];
        let nodes = rng.u64(1..=3);
        let memories =
            (1..=nodes).map(|number| Memory::start(&mut machines, number, 1, node_bytes)).collect();
        let shape = OwnerShape {
            copies: rng.u32(1..=2),
            offsets_bytes: [0, 64 << 10][rng.usize(..2)],
            separation_bytes: [0, 400][rng.usize(..2)],
            leaves_shards: rng.bool(),
            defect,
        };
        let mut world = Self {
            machines,
            rng,
            disk: MemFs::new(),
            locks: Locks::default(),
            processes: 0,
            offices,
            memories,
            executors: Vec::new(),
            listed: Arc::default(),
            owner: None,
            is_settled: false,
            steps_begin: true,
            idle_until_ns: 0,
            old_owners: Vec::new(),
            old_executors: Vec::new(),
            stopped: Vec::new(),
            history: History::default(),
            snapshot: None,
            pending: None,
            lost_power: false,
            power_ends: false,
            writes_drawn: 0,
            asked_ns: 0,
            shape,
            is_peace: false,
            counted: Counted::default(),
        };
        world.list();
        for at in 0..world.memories.len() {
            if world.rng.bool() {
                world.start_executor(Some(at));
            }
        }
        (0..LONE_EXECUTORS).for_each(|_| world.start_executor(None));
        world
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.machines.simulation.now_ns()
    }

    pub(super) fn run_for(&self, time: Duration) {
        self.machines.simulation.run_for(time);
    }

    /// Endpoints of the managers, for owners and executors.
    fn managers(&self) -> Vec<String> {
        self.offices.iter().map(|office| office.host().name().to_owned()).collect()
    }

    /// Number of jobs that all schedulers know.
    pub(super) fn jobs(&self) -> u64 {
        self.offices.iter().map(Office::jobs).sum()
    }

    fn list(&self) {
        *self.listed.lock() = self.memories.iter().map(Memory::member).collect();
    }

    fn process_files(&mut self) -> ProcessFiles {
        self.processes += 1;
        ProcessFiles::new(&self.disk, &self.locks, self.processes, self.rng.u64(..))
    }

    fn start_executor(&mut self, at: Option<usize>) {
        let there = match at {
            Some(at) => self.memories[at].machine().clone(),
            None => self.machines.join("executor"),
        };
        let (files, managers) = (self.process_files(), self.managers());
        let hosted = at.map(|at| &self.memories[at].life.shards.0);
        let started = ExecutorProcess::start(&there, files, managers, hosted, self.shape.defect);
        let process = started.expect("the settings are sound");
        self.executors.push(Placed { at, process });
    }

    /// Kills an executor, and starts another one in its place.
    fn replace_executor(&mut self, index: usize) {
        let placed = self.executors.remove(index);
        placed.process.kill();
        if placed.at.is_none() {
            self.machines.isolate(placed.process.host());
        }
        let at = placed.at;
        self.old_executors.push(placed);
        self.start_executor(at);
    }

    /// Begins the next life of a memory node, with that of the executor in its process.
    fn replace_memory(&mut self, at: usize) {
        let old_host = self.memories[at].machine().host().clone();
        old_host.go_on();
        let next = self.memories[at].next_life(&mut self.machines);
        drop(std::mem::replace(&mut self.memories[at], next));
        self.list();
        let here = |placed: &mut Placed| placed.at == Some(at);
        let ended: Vec<Placed> = self.executors.extract_if(.., here).collect();
        let had_executor = !ended.is_empty();
        for placed in ended {
            placed.process.kill();
            // Its machine ends with it.
            self.old_executors.push(Placed { at: None, process: placed.process });
        }
        // Executors of this life that had been killed before end with their machine as well.
        for placed in &mut self.old_executors {
            if placed.process.host().id() == old_host.id() {
                placed.at = None;
            }
        }
        let is_used = self.old_executors.iter().any(|old| old.process.host().id() == old_host.id());
        if !is_used {
            self.machines.bury(&old_host);
        }
        if had_executor {
            self.start_executor(Some(at));
        }
    }

    /// Starts an owner of the database.
    pub(super) fn open_owner(&mut self) {
        self.counted.owners += 1;
        let there = self.machines.join("owner");
        let place = OwnerPlace {
            there,
            files: self.process_files(),
            managers: self.managers(),
            listed: Arc::clone(&self.listed),
            shape: self.shape,
        };
        self.owner = Some(Owner::start(place));
        self.asked_ns = self.now_ns();
        (self.is_settled, self.idle_until_ns) = (false, 0);
    }

    /// Ends the owner's access to the disk, and with `is_cut` also to the network.
    pub(super) fn kill_owner(&mut self, is_cut: bool) {
        let Some(mut owner) = self.owner.take() else { return };
        self.machines.simulation.note(|| format!("{} is killed", owner.host().name()));
        owner.host().go_on();
        self.note_figures(&owner);
        owner.lose_files();
        if is_cut {
            self.machines.isolate(owner.host());
        }
        if let Some((Ask::Write(write), _)) = owner.asked.take() {
            self.pending = Some(write);
        }
        owner.close();
        self.snapshot = None;
        self.old_owners.push(owner);
    }

    pub(super) fn note_figures(&mut self, owner: &Owner) {
        let (jobs, shards) = owner.figures();
        self.counted.shards_sent += shards.sent;
        self.counted.shards_lost += shards.lost;
        self.counted.jobs_away += jobs.ran_away;
        self.counted.flushes_away += jobs.flushes.in_place + jobs.flushes.remote;
        self.counted.jobs_again += jobs.planned_again;
        self.counted.jobs_moved += jobs.moved;
        self.counted.jobs_moved_done += jobs.moved_done;
        self.counted.second_attempts += jobs.flushes.second_attempts;
    }

    /// The shared disk loses its power: all processes that use it end, and unsynced bytes are lost
    /// in part.
    fn lose_power(&mut self) {
        self.counted.power_losses += 1;
        self.machines.simulation.note(|| "the disk loses its power".to_owned());
        let is_cut = self.rng.bool();
        self.kill_owner(is_cut);
        self.disk = self.disk.crash_clone(self.rng.u64(..));
        self.locks = Locks::default();
        self.lost_power = true;
        for _ in 0..self.executors.len() {
            self.replace_executor(0);
        }
    }

    fn stop(&mut self, host: Host) {
        host.stop();
        let until_ns = self.now_ns() + self.rng.u64(10_000_000..9_000_000_000);
        self.stopped.push(Stopped { host, until_ns });
    }

    /// Ends the stops of machines, of all of them if `all` is set.
    pub(super) fn go_on(&mut self, all: bool) {
        let now_ns = self.now_ns();
        let over = |stopped: &mut Stopped| all || stopped.until_ns <= now_ns;
        self.stopped.extract_if(.., over).for_each(|stopped| stopped.host.go_on());
    }

    /// Ends all failures of the files of executors.
    pub(super) fn mend_files(&self) {
        self.executors.iter().for_each(|placed| placed.process.files().mend());
    }

    /// Runs with faults.
    pub(super) fn trouble(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.tend()?;
            self.step();
            let pause = match self.rng.u8(..20) {
                0 => Duration::from_millis(self.rng.u64(100..3_000)),
                _ => Duration::from_micros(20 << self.rng.u32(..11)),
            };
            self.run_for(pause);
        }
        self.tend()
    }

    fn step(&mut self) {
        if std::mem::take(&mut self.power_ends) {
            self.counted.faults += 1;
            return self.lose_power();
        }
        if self.owner.is_none() {
            return self.open_owner();
        }
        let fault = self.rng.u32(..100);
        if fault < 76 || self.rng.bool() {
            return self.operate();
        }
        self.counted.faults += 1;
        match fault {
            76..80 => self.machines.draw_weather(&mut self.rng),
            80..82 => self.machines.cut(&mut self.rng),
            82..86 => {
                self.machines.heal();
                self.offices.iter_mut().for_each(Office::restart_if_standing_by);
            }
            86..88 => {
                let is_cut = self.rng.bool();
                self.kill_owner(is_cut);
            }
            88 if self.rng.bool() => self.lose_power(),
            88 => {}
            89 => {
                let at = self.rng.usize(..self.memories.len());
                self.replace_memory(at);
            }
            90..92 => {
                let index = self.rng.usize(..self.executors.len());
                self.replace_executor(index);
            }
            92..94 => {
                let index = self.rng.usize(..self.executors.len());
                let host = self.executors[index].process.host().clone();
                self.stop(host);
            }
            94 => {
                let at = self.rng.usize(..self.memories.len());
                let host = self.memories[at].machine().host().clone();
                self.stop(host);
            }
            95 => {
                if let Some(owner) = &self.owner {
                    let host = owner.host().clone();
                    self.stop(host);
                }
            }
            96 | 97 => self.disturb_manager(fault == 96),
            98 => {
                let index = self.rng.usize(..self.executors.len());
                self.executors[index].process.files().disturb(0.05);
            }
            _ => self.mend_files(),
        }
    }

    /// Begins another life of a scheduler, or takes the scheduler or its machine away for a while.
    fn disturb_manager(&mut self, restarts: bool) {
        let at = self.rng.usize(..self.offices.len());
        let is_stopped = self.rng.bool();
        let office = &mut self.offices[at];
        if restarts {
            office.restart();
        } else if is_stopped {
            let host = office.host().clone();
            self.stop(host);
        } else {
            office.stand_by();
        }
    }

    /// Begins a call of the user, if there is none.
    fn operate(&mut self) {
        let is_ready = self.owner.as_ref().is_some_and(|owner| owner.asked.is_none());
        if !is_ready || !self.is_settled {
            return;
        }
        let is_stepping = self.owner.as_ref().is_some_and(Owner::is_stepping);
        let ask = match self.rng.u8(..40) {
            0..24 => self.draw_write(),
            24..32 => Ask::Get(self.draw_key()),
            32..34 => Ask::Scan { is_backward: self.rng.bool() },
            34 => Ask::TakeSnapshot,
            35 | 36 if self.snapshot.is_some() => Ask::GetAtSnapshot(self.draw_key()),
            37 if self.snapshot.is_some() => Ask::ScanAtSnapshot,
            38 if self.snapshot.is_some() => Ask::DropSnapshot,
            39 if !is_stepping => Ask::Flush,
            _ => self.draw_write(),
        };
        self.ask(ask);
    }

    pub(super) fn draw_write(&mut self) -> Ask {
        self.writes_drawn += 1;
        Ask::Write(Write::draw(&mut self.rng, self.writes_drawn))
    }

    fn draw_key(&mut self) -> Vec<u8> {
        match self.rng.u8(..6) {
            0 => counter_of(self.rng.u32(..COUNTERS)),
            _ => key_of(self.rng.u32(..KEYS)),
        }
    }

    pub(super) fn ask(&mut self, ask: Ask) {
        self.asked_ns = self.now_ns();
        if let Some(owner) = &mut self.owner {
            owner.ask(ask);
        }
    }

    /// Takes the results of calls and steps that have ended, and begins the steps that are due.
    pub(super) fn tend(&mut self) -> Result<(), String> {
        self.go_on(false);
        for placed in &mut self.executors {
            placed.process.tend();
        }
        self.tend_owner()?;
        self.bury()
    }

    fn tend_owner(&mut self) -> Result<(), String> {
        let now_ns = self.now_ns();
        let Some(owner) = &mut self.owner else { return Ok(()) };
        if let Some(text) = owner.panic_text() {
            return Err(format!("an owner panicked: {text}"));
        }
        let is_waiting = owner.asked.is_some() || !self.is_settled;
        if is_waiting && now_ns > self.asked_ns + ANSWER_MAX.as_nanos() as u64 {
            return Err(format!("{:?} did not return", owner.asked.as_ref().map(|asked| &asked.0)));
        }
        match owner.is_open() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return self.note_failure(&error, "the open"),
        }
        let (answer, step) = (owner.take_answer(), owner.take_step());
        if let Some((ask, answer)) = answer {
            self.take_answer(ask, answer)?;
        }
        match step {
            Some(Ok(false)) => {
                self.idle_until_ns = now_ns + self.rng.u64(1_000_000..200_000_000);
            }
            Some(Err(error)) => {
                self.idle_until_ns = now_ns + 100_000_000;
                self.note_background_failure(&error)?;
            }
            // If the inputs or outputs of a job were not durable, a loss of power shortly after its
            // install shows that best.
            Some(Ok(true)) => self.power_ends = !self.is_peace && self.rng.u8(..INSTALLS) == 0,
            None => {}
        }
        let Some(owner) = &mut self.owner else { return Ok(()) };
        // Two flushes at the same time could each wait for the room for fetched shards that the
        // other one has. Such a wait would keep the turn of the thread for ever.
        let flushes = matches!(owner.asked, Some((Ask::Flush, _)));
        if self.steps_begin && !flushes && now_ns >= self.idle_until_ns {
            owner.begin_step();
        }
        if !self.is_settled && owner.asked.is_none() {
            owner.ask(Ask::Scan { is_backward: false });
        }
        Ok(())
    }

    fn take_answer(&mut self, ask: Ask, answer: EngineResult<Answer>) -> Result<(), String> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.take_failure(ask, &error),
        };
        self.counted.read += 1;
        let (state, at_snapshot) = (self.history.state(), self.snapshot.as_ref());
        match (ask, answer) {
            (Ask::Write(write), _) => {
                (self.counted.written, self.counted.read) =
                    (self.counted.written + 1, self.counted.read - 1);
                self.history.acknowledge(write);
                Ok(())
            }
            (Ask::Get(key), Answer::Value(found)) => same_value(&key, found.as_ref(), state),
            (Ask::GetAtSnapshot(key), Answer::Value(found)) => match at_snapshot {
                Some(state) => same_value(&key, found.as_ref(), state),
                None => Ok(()),
            },
            (Ask::Scan { .. }, Answer::All(found)) if self.is_settled => same_state(&found, state),
            (Ask::Scan { .. }, Answer::All(found)) => {
                let lost_power = std::mem::take(&mut self.lost_power);
                self.is_settled = true;
                self.history.find(&found, self.pending.take(), lost_power)
            }
            (Ask::ScanAtSnapshot, Answer::All(found)) => match at_snapshot {
                Some(state) => same_state(&found, state),
                None => Ok(()),
            },
            (Ask::TakeSnapshot, _) => {
                self.snapshot = Some(state.clone());
                Ok(())
            }
            (Ask::DropSnapshot, _) => {
                self.snapshot = None;
                Ok(())
            }
            (Ask::Flush, _) => {
                self.history.note_synced();
                Ok(())
            }
            (ask, answer) => Err(format!("{ask:?} was answered by {answer:?}")),
        }
    }

    fn take_failure(&mut self, ask: Ask, error: &Error) -> Result<(), String> {
        self.machines.simulation.note(|| format!("a call failed: {error}"));
        if error.kind() == ErrorKind::Busy {
            // A write that is refused in this way has no effect.
            self.counted.busy += 1;
            return Ok(());
        }
        if let Ask::Write(write) = ask {
            self.pending = Some(write);
        }
        self.note_failure(error, "a call")
    }

    fn note_background_failure(&mut self, error: &Error) -> Result<(), String> {
        self.machines.simulation.note(|| format!("background work failed: {error}"));
        match error.kind() {
            ErrorKind::Busy => Ok(()),
            _ => self.note_failure(error, "background work"),
        }
    }

    /// Notes a failure after which another owner continues.
    fn note_failure(&mut self, error: &Error, what: &str) -> Result<(), String> {
        let is_wrong = matches!(
            error.kind(),
            ErrorKind::Corrupt
                | ErrorKind::Internal
                | ErrorKind::InvalidArgument
                | ErrorKind::NotFound
        );
        if is_wrong || self.is_peace {
            return Err(format!("{what} failed: {error}"));
        }
        self.kill_owner(true);
        Ok(())
    }

    /// Ends the machines of processes whose threads have ended.
    fn bury(&mut self) -> Result<(), String> {
        if let Some(text) = self.old_owners.iter().find_map(Owner::panic_text) {
            return Err(format!("an owner panicked: {text}"));
        }
        let mut all = self.executors.iter().chain(&self.old_executors);
        if let Some(text) = all.find_map(|placed| placed.process.defect_text()) {
            return Err(format!("an executor is defective: {text}"));
        }
        for owner in self.old_owners.extract_if(.., |owner| owner.has_ended()) {
            self.machines.bury(owner.host());
        }
        let ended = self.old_executors.extract_if(.., |placed| placed.process.has_ended());
        let ended: Vec<Placed> = ended.collect();
        for placed in ended {
            let host = placed.process.host().clone();
            let is_used = self.old_executors.iter().any(|old| old.process.host().id() == host.id());
            if placed.at.is_none() && !is_used {
                self.machines.bury(&host);
            }
            // A memory node that stands still would delay the end of the executor in its process.
            host.go_on();
            drop(placed);
        }
        Ok(())
    }

    /// Whether all killed processes have ended.
    pub(super) fn has_buried_all(&self) -> bool {
        self.old_owners.is_empty() && self.old_executors.is_empty()
    }

    /// Whether a close leaves shards at memory nodes.
    pub(super) fn leaves_shards(&self) -> bool {
        self.shape.leaves_shards
    }

    /// Whether no executor has a job.
    pub(super) fn executors_are_idle(&self) -> bool {
        self.executors.iter().all(|placed| placed.process.is_idle())
    }

    /// Kills the owner that is closed, and all executors, so that their threads end.
    pub(super) fn end_processes(&mut self) {
        self.kill_owner(true);
        for placed in std::mem::take(&mut self.executors) {
            placed.process.kill();
            self.old_executors.push(placed);
        }
    }

    /// The names in the directory of the database.
    pub(super) fn names(&self) -> Result<Vec<String>, String> {
        use archipelago_env::FileSystem;
        let entries = self.disk.list(std::path::Path::new(super::owner::DIR));
        let entries = entries.map_err(|error| error.to_string())?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    pub(super) fn outcome(mut self, ended: Result<(), String>) -> RunOutcome {
        let violations = ended.err().into_iter().collect();
        let counted = self.counted;
        self.end_processes();
        RunOutcome {
            violations,
            figures: figures([
                ("writes acknowledged", counted.written),
                ("reads compared", counted.read),
                ("calls refused as busy", counted.busy),
                ("shards sent", counted.shards_sent),
                ("shards lost", counted.shards_lost),
                ("jobs in executors", counted.jobs_away),
                ("of them flushes", counted.flushes_away),
                ("jobs planned again", counted.jobs_again),
                ("jobs that left again", counted.jobs_moved),
                ("jobs that another scheduler ended", counted.jobs_moved_done),
                ("second attempts of flushes", counted.second_attempts),
                ("owners", counted.owners),
                ("losses of power", counted.power_losses),
                ("faults", counted.faults),
            ]),
            notes: self.machines.simulation.notes(),
            trace: Trace::of(&self.machines.simulation),
        }
    }
}

fn same_value(key: &[u8], found: Option<&Vec<u8>>, state: &State) -> Result<(), String> {
    let expected = state.get(key);
    if found == expected {
        return Ok(());
    }
    let only = |value: Option<&Vec<u8>>| {
        value.map(|value| (key.to_vec(), value.clone())).into_iter().collect::<State>()
    };
    Err(format!("a read is wrong: {}", differences(&only(found), &only(expected))))
}

pub(super) fn same_state(found: &State, expected: &State) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("a scan is wrong: {}", differences(found, expected))),
    }
}
