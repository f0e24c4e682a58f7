//! A run: a volume with one owner after the other, processes that use the register, a time of
//! faults, and a time of peace.
//!
//! One [`Run`] owns everything. In each step it draws one event: an operation, a fault, the kill of
//! a process, or a take-over. Then it lets time pass and takes what has ended. Everything follows
//! from the seed. `peace` has the checks of the end.

use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::{ErrorKind, Result};

use super::choose::{OperationSource, draw_read};
use super::client::{ClientSettings, LEASE_LONG};
use super::cluster::Cluster;
use super::model::{Content, Model};
use super::owner::{OpenPaths, Operation, OwnerProcess, changes};
use super::process::{Process, RunningOperation};
use super::register::RegisterClients;
use super::sharing::SharedBlobs;
use crate::scenarios::thread::Call;

/// Number of steps of a run.
const STEPS: usize = 110;
/// Largest number of processes that own the volume one after the other in a run.
const OWNERS_MAX: usize = 10;
/// Virtual time after which a call that has not returned counts as stuck.
const CALL_MAX: Duration = Duration::from_secs(180);
/// Violations that a run keeps. The first ones say most.
const VIOLATIONS_MAX: usize = 8;

/// Pauses of an owner that does nothing but renew its lease: a short lease, and a half more.
const LEASE_PAUSES: u32 = 30;
const LEASE_PAUSE: Duration = Duration::from_millis(100);
/// Time between two renewals of a lease, a quarter of a short one.
const RENEWAL_PAUSE: Duration = Duration::from_millis(500);
/// Largest number of appends that an owner makes one after the other.
const APPENDS_MAX: usize = 300;

/// Draws an operation of a process that has these files open.
pub(super) type DrawOperation =
    fn(&mut OperationSource, &mut Rng, &mut Model, &OpenPaths) -> Option<Operation>;

/// Counters of the run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) operations: u64,
    pub(super) failed: u64,
    pub(super) take_overs: u64,
    pub(super) reads: u64,
    /// 1 if the repairs of the run gave every recovered log all its copies.
    pub(super) whole_logs: u64,
    pub(super) renewals: u64,
    /// Openers that were kept away by an owner that lived all the time and renews its lease.
    pub(super) living_leases: u64,
}

/// Kinds of events that only some runs have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunOptions {
    /// Whether nodes may be full, and then refuse blobs.
    pub(super) has_full_disks: bool,
    /// Whether the root set changes often.
    pub(super) changes_roots: bool,
}

/// A path and what a new owner has read there.
type ReadFile = (String, Result<Content>);

/// Files that a new owner finds.
#[derive(Debug)]
struct FoundFiles {
    names: Result<Vec<String>>,
    files: Vec<ReadFile>,
}

/// A take-over that is under way.
#[derive(Debug)]
struct TakeOver {
    process: Process,
    /// Number of the owner at its begin; `None` if no owner lived.
    owner: Option<usize>,
    call: Call<Result<[u8; 16]>>,
}

/// A run of the scenario.
pub(super) struct Run {
    pub(super) model: Model,
    pub(super) owner: Option<Process>,
    pub(super) counts: Counts,
    pub(super) registers: RegisterClients,
    pub(super) sharing: SharedBlobs,
    pub(super) violations: Vec<String>,
    pub(super) cluster: Cluster,
    source: OperationSource,
    settings: ClientSettings,
    taker: Option<TakeOver>,
    /// Read of all files by the present owner, while it is in progress.
    reading: Option<Call<FoundFiles>>,
    /// Processes that were killed, or lost the volume, or failed to take it.
    old: Vec<Process>,
    owners: usize,
    boot_id: Option<[u8; 16]>,
    is_peace: bool,
    options: RunOptions,
}

/// All paths, and the names in the directory, as the process reads them.
fn read_all(owner: &mut OwnerProcess, paths: Vec<String>) -> FoundFiles {
    let names = owner.list();
    let files = paths.into_iter().map(|path| {
        let found = owner.read(&path);
        (path, found)
    });
    FoundFiles { files: files.collect(), names }
}

impl Run {
    pub(super) fn new(
        cluster: Cluster,
        settings: ClientSettings,
        source: OperationSource,
        options: RunOptions,
    ) -> Self {
        Self {
            model: Model::default(),
            owner: None,
            counts: Counts::default(),
            registers: RegisterClients::default(),
            sharing: SharedBlobs::default(),
            violations: Vec::new(),
            cluster,
            source,
            settings,
            taker: None,
            reading: None,
            old: Vec::new(),
            owners: 0,
            boot_id: None,
            is_peace: false,
            options,
        }
    }

    pub(super) fn violation(&mut self, text: String) {
        self.cluster.simulation.note(|| format!("VIOLATION: {text}"));
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    /// Waits for a call. Errors: it does not return.
    pub(super) fn wait<T>(&mut self, call: &Call<T>, what: &str) -> Result<T, String> {
        let end_ns = self.cluster.simulation.now_ns() + CALL_MAX.as_nanos() as u64;
        let mut pause = Duration::from_micros(100);
        loop {
            if let Some(result) = call.take() {
                return Ok(result);
            }
            if self.cluster.simulation.now_ns() > end_ns {
                return Err(format!("{what} did not return within {CALL_MAX:?}"));
            }
            self.cluster.run_for(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Founds the cluster, and creates the volume with its first owner.
    pub(super) fn begin(&mut self) -> Result<(), String> {
        self.cluster.found()?;
        let settings = self.settings_of_opener();
        let creator = Process::start(&mut self.cluster, settings, self.owners);
        let call = creator.thread.call(|owner| -> Result<[u8; 16]> {
            owner.create_volume()?;
            let boot_id = owner.take_over()?;
            owner.create_dir()?;
            Ok(boot_id)
        });
        let created = self.wait(&call, "the creation of the volume")?;
        let boot_id = created.map_err(|error| format!("the volume was not created: {error}"))?;
        self.boot_id = Some(boot_id);
        self.owner = Some(creator);
        self.registers.start(&mut self.cluster, self.settings);
        self.sharing.start(&mut self.cluster, self.settings);
        Ok(())
    }

    /// Runs the time of faults.
    pub(super) fn trouble(&mut self) {
        self.cluster.draw_weather();
        for _ in 0..STEPS {
            self.step();
            if !self.violations.is_empty() {
                return;
            }
        }
    }

    fn step(&mut self) {
        if self.options.changes_roots && self.cluster.rng.bool() {
            return self.change_roots();
        }
        // Most openers come after a kill of the owner, which renews no lease.
        let can_keep = self.owner.is_some() && self.taker.is_none() && self.owners < OWNERS_MAX;
        if self.settings.renews && can_keep && self.cluster.rng.u8(..12) == 0 {
            return self.keep_lease();
        }
        match self.cluster.rng.u8(..100) {
            0..55 => self.operate(),
            55..60 => self.operate_stale(),
            60..65 => self.registers.operate(&mut self.cluster.rng),
            65..70 => self.sharing.operate(&mut self.cluster.rng),
            70..81 => {
                self.cluster.disturb_node();
                if self.cluster.rng.u8(..4) == 0 {
                    self.append_while(1 << 17, |_| true);
                }
            }
            81..84 => self.cluster.draw_weather(),
            84 => self.cluster.replace_manager(),
            85 => self.cluster.toggle_drain(),
            86..90 => self.cut_owner(),
            90..92 => self.cluster.heal(),
            92..96 => self.kill_owner(),
            _ => {
                self.begin_take_over();
                if self.cluster.rng.bool() {
                    self.race();
                }
            }
        }
        let pause = self.draw_pause();
        self.pass(pause);
        // An owner that dies in the middle of an operation is the most interesting one.
        let is_busy = self.owner.as_ref().is_some_and(|owner| owner.running.is_some());
        if is_busy && self.cluster.rng.u8(..16) == 0 {
            self.kill_owner();
        }
    }

    /// Lets the owner append while another process takes its volume over. Each append must be found
    /// by the next owner, or fail.
    fn race(&mut self) {
        let pause_ns_max = 1 << self.cluster.rng.u32(11..17);
        self.append_while(pause_ns_max, |run| run.taker.is_some());
    }

    /// Begins a take-over, and lets time pass for the owner. If the opener waits for the end of the
    /// owner's lease, the owner may renew it.
    fn keep_lease(&mut self) {
        self.begin_take_over();
        for _ in 0..LEASE_PAUSES {
            if self.taker.is_none() || !self.violations.is_empty() {
                return;
            }
            self.pass(LEASE_PAUSE);
        }
    }

    /// Lets the owner append while `goes_on`.
    fn append_while(&mut self, pause_ns_max: u64, goes_on: impl Fn(&Self) -> bool) {
        for _ in 0..APPENDS_MAX {
            if !goes_on(self) || self.owner.is_none() || !self.violations.is_empty() {
                return;
            }
            self.begin_operation(OperationSource::draw_append);
            let pause = Duration::from_nanos(self.cluster.rng.u64(500..pause_ns_max));
            self.pass(pause);
        }
    }

    /// A step of a run whose root set changes often.
    fn change_roots(&mut self) {
        match self.cluster.rng.u8(..10) {
            0 | 1 => self.cluster.toggle_drain(),
            2 => self.cluster.disturb_node(),
            _ => self.registers.operate(&mut self.cluster.rng),
        }
        let pause = Duration::from_micros(self.cluster.rng.u64(10..200_000));
        self.pass(pause);
    }

    fn draw_pause(&mut self) -> Duration {
        let rng = &mut self.cluster.rng;
        match rng.u8(..32) {
            0 => Duration::from_millis(rng.u64(500..1_500)),
            1..=3 => Duration::from_millis(rng.u64(20..200)),
            _ => Duration::from_nanos(500 << rng.u32(..14)),
        }
    }

    /// Lets time pass, and takes what has ended.
    pub(super) fn pass(&mut self, time: Duration) {
        self.cluster.run_for(time);
        self.registers.take_ended();
        self.sharing.take_ended();
        let wrong = self.sharing.take_violations();
        wrong.into_iter().for_each(|text| self.violation(text));
        self.take_read_files();
        self.take_operations();
        self.take_take_over();
        self.take_read_files();
        self.renew_lease();
        self.old.iter().for_each(Process::bury);
        for process in self.old.iter().chain(&self.owner) {
            if let Some(panic) = process.thread.panic_text() {
                self.violations.push(format!("a process panicked: {panic}"));
            }
        }
    }

    /// Begins an operation of the owner.
    pub(super) fn operate(&mut self) {
        self.begin_operation(OperationSource::draw);
    }

    /// Begins an operation of the owner, unless it has one or still reads all files.
    pub(super) fn begin_operation(&mut self, draw: DrawOperation) {
        if self.reading.is_some() {
            return;
        }
        let Some(owner) = self.owner.as_mut().filter(|it| it.running.is_none()) else { return };
        let rng = &mut self.cluster.rng;
        let drawn = draw(&mut self.source, rng, &mut self.model, &owner.open);
        let Some(operation) = drawn else { return };
        let certain = |path: &str| self.model.certain(path).flatten();
        let changes = changes(&operation, &owner.open, certain);
        self.cluster.simulation.note(|| format!("{}: {}", owner.host().name(), operation.brief()));
        self.model.begin(&changes);
        if let Operation::Rename { from, to } = &operation {
            self.model.begin_move(from, to);
        }
        self.counts.operations += 1;
        owner.begin(operation, changes, false);
    }

    /// Lets the owner renew its lease, if that is due and the owner has nothing else to do.
    fn renew_lease(&mut self) {
        if !self.settings.renews || self.is_peace || self.reading.is_some() {
            return;
        }
        let now_ns = self.cluster.simulation.now_ns();
        let Some(owner) = self.owner.as_mut().filter(|it| it.running.is_none()) else { return };
        if now_ns >= owner.renewal_ns {
            owner.renewal_ns = now_ns + RENEWAL_PAUSE.as_nanos() as u64;
            owner.begin(Operation::RenewLease, Vec::new(), false);
        }
    }

    /// Begins an operation of a process that lost the volume.
    fn operate_stale(&mut self) {
        let idle = |process: &Process| {
            !process.is_dead && process.running.is_none() && !process.thread.has_ended()
        };
        let idle: Vec<usize> = (0..self.old.len()).filter(|at| idle(&self.old[*at])).collect();
        if idle.is_empty() || self.owner.is_none() || self.reading.is_some() {
            return;
        }
        let has_waited = self.owner.as_ref().is_some_and(|owner| owner.waits_for_lease);
        let rng = &mut self.cluster.rng;
        let process = &mut self.old[idle[rng.usize(..idle.len())]];
        // An owner that was taken over within its lease may still serve reads.
        let read = if has_waited && rng.bool() { draw_read(rng, &self.model) } else { None };
        let renews = self.settings.renews && rng.u8(..4) == 0;
        let read_or_renewal = if renews { Some(Operation::RenewLease) } else { read };
        let drawn =
            read_or_renewal.or_else(|| self.source.draw(rng, &mut self.model, &process.open));
        let Some(operation) = drawn else { return };
        let note = || format!("{} (stale): {}", process.host().name(), operation.brief());
        self.cluster.simulation.note(note);
        // Its effects are not expected, so the model does not learn them.
        process.begin(operation, Vec::new(), true);
    }

    fn cut_owner(&mut self) {
        if let Some(owner) = &self.owner {
            self.cluster.cut_client(owner.host());
        }
    }

    /// Kills the owner, or the process that takes the volume over, and begins a take-over.
    pub(super) fn kill_owner(&mut self) {
        if let Some(mut owner) = self.owner.take() {
            owner.kill(&mut self.cluster);
            self.old.push(owner);
            self.reading = None;
        } else if let Some(mut taker) = self.taker.take() {
            taker.process.kill(&mut self.cluster);
            self.old.push(taker.process);
        }
        self.begin_take_over();
    }

    /// The settings of the next process that opens the volume.
    fn settings_of_opener(&mut self) -> ClientSettings {
        if self.is_peace {
            return ClientSettings { lease: LEASE_LONG, takes_over: true, ..self.settings };
        }
        let has_short_lease = self.settings.lease < LEASE_LONG;
        let takes_over = !has_short_lease || self.cluster.rng.bool();
        ClientSettings { takes_over, ..self.settings }
    }

    /// Begins a take-over, unless one is under way.
    pub(super) fn begin_take_over(&mut self) {
        if self.taker.is_some() || (self.owners >= OWNERS_MAX && !self.is_peace) {
            return;
        }
        self.owners += 1;
        let settings = self.settings_of_opener();
        let process = Process::start(&mut self.cluster, settings, self.owners);
        self.cluster.simulation.note(|| format!("{} takes over", process.host().name()));
        let call = process.thread.call(OwnerProcess::take_over);
        let owner = self.owner.as_ref().map(|owner| owner.number);
        self.taker = Some(TakeOver { process, owner, call });
    }

    /// Takes operations that have ended.
    fn take_operations(&mut self) {
        let is_taken = self.taker.is_some();
        let is_alone = self.owner.as_ref().is_some_and(|owner| owner.number == self.owners);
        if let Some((running, outcome)) = self.owner.as_mut().and_then(Process::take_ended) {
            self.note_outcome(&running, &outcome, "the owner");
            // Only a later opener gives up what this owner is about to name.
            if is_alone && outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound)
            {
                let brief = running.operation.brief();
                self.violation(format!("the owner has lost an object: {brief}: {outcome:?}"));
            }
            let is_fenced = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced);
            // An opener that failed or was killed may have raised the epoch.
            if is_fenced && !is_taken && self.old.is_empty() {
                self.violation(format!("fenced without another owner: {outcome:?}"));
            }
            if is_fenced {
                self.begin_take_over();
            }
        }
        let mut ended = Vec::new();
        for process in &mut self.old {
            ended.extend(process.take_ended());
        }
        for (running, outcome) in ended {
            self.note_outcome(&running, &outcome, "an old owner");
        }
    }

    fn note_outcome(&mut self, running: &RunningOperation, outcome: &Result<()>, whose: &str) {
        let brief = running.operation.brief();
        self.cluster.simulation.note(|| format!("{whose}: {brief}: {outcome:?}"));
        let error = match outcome {
            Ok(()) => return self.note_success(running, whose),
            Err(error) => error,
        };
        // Renewals do not count as operations, so failed ones do not either.
        let is_renewal = matches!(running.operation, Operation::RenewLease);
        self.counts.failed += u64::from(!is_renewal);
        let is_wrong = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Internal);
        let may_refuse = self.options.has_full_disks && error.kind() == ErrorKind::Busy;
        if is_wrong || self.is_peace && !may_refuse {
            self.violation(format!("{whose}: {brief} failed: {error}"));
        }
    }

    fn note_success(&mut self, running: &RunningOperation, whose: &str) {
        let brief = running.operation.brief();
        if running.is_stale {
            if !running.operation.may_do_nothing() {
                self.violation(format!("{whose}, which had lost the volume before, did: {brief}"));
            }
            return;
        }
        self.counts.renewals += u64::from(matches!(running.operation, Operation::RenewLease));
        if let Operation::Rename { from, .. } = &running.operation {
            self.model.end_move(from);
        }
        for change in &running.changes {
            match running.found.get(&change.path) {
                None => self.model.succeed(std::slice::from_ref(change)),
                Some(found) if *found == change.after => {}
                Some(_) => self.violation(format!(
                    "{whose}: {brief} succeeded, and the next owner had not found its effect"
                )),
            }
        }
        if let Some(path) = running.created_path() {
            match running.found.get(path) {
                Some(None) => self.violation(format!("{whose}: {brief} succeeded and is lost")),
                Some(_) => {}
                None => self.model.growth_exists(path),
            }
        }
    }

    /// Takes a take-over that has ended.
    fn take_take_over(&mut self) {
        let Some(outcome) = self.taker.as_ref().and_then(|taker| taker.call.take()) else { return };
        let Some(TakeOver { process, owner, .. }) = self.taker.take() else { return };
        let name = process.host().name().to_owned();
        self.cluster.simulation.note(|| format!("{name}: take-over: {outcome:?}"));
        let boot_id = match outcome {
            Ok(boot_id) => boot_id,
            Err(error) => {
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Internal) {
                    self.violation(format!("a take-over failed: {error}"));
                }
                let number = self.owner.as_ref().map(|owner| owner.number);
                let is_alive = self.settings.renews && number.is_some() && number == owner;
                let is_kept_away = process.waits_for_lease
                    && error.kind() == ErrorKind::Busy
                    && error.to_string().contains("whose lease is valid");
                self.counts.living_leases += u64::from(is_alive && is_kept_away);
                // The failed opener may have fenced the owner.
                self.old.push(process);
                return;
            }
        };
        self.counts.take_overs += 1;
        if self.boot_id.replace(boot_id) != Some(boot_id) {
            if !self.cluster.may_miss_unsynced() {
                self.violation("the boot id changed, and no two machines lost memory".to_owned());
            }
            self.model.note_power_loss();
        }
        self.old.extend(self.owner.take());
        let paths = self.model.paths();
        self.reading = Some(process.thread.call(move |owner| read_all(owner, paths)));
        self.owner = Some(process);
    }

    /// Whether a take-over is in progress, or the present owner still reads all files.
    pub(super) fn is_settling(&self) -> bool {
        self.taker.is_some() || self.reading.is_some()
    }

    /// Takes the files that a new owner has read, and compares them with the model.
    fn take_read_files(&mut self) {
        let Some(found) = self.reading.as_ref().and_then(Call::take) else { return };
        self.reading = None;
        for (path, content) in found.files {
            self.counts.reads += 1;
            match content {
                Ok(content) => {
                    for process in &mut self.old {
                        note_found(process, &path, &content);
                    }
                    if let Err(wrong) = self.model.settle(&path, content) {
                        self.violation(wrong);
                    }
                }
                Err(error) if self.is_peace || is_loss(error.kind()) => {
                    self.violation(format!("{path} cannot be read: {error}"));
                }
                // Too few nodes answer now.
                Err(_) => {}
            }
        }
        for torn in self.model.settle_moves() {
            self.violation(torn);
        }
        let known = self.model.paths();
        let unknown = |name: &&String| !known.contains(name);
        if let Some(name) = found.names.iter().flatten().find(unknown) {
            self.violation(format!("there is a file {name} that nobody wrote"));
        }
        for late in self.model.late_acknowledgements() {
            self.violation(late);
        }
    }

    /// All processes that do not own the volume.
    pub(super) fn old(&self) -> &[Process] {
        &self.old
    }

    /// Notes that nothing fails from now on.
    pub(super) fn note_peace(&mut self) {
        self.is_peace = true;
    }

    /// Gives the volume up, as the owner's kill does.
    pub(super) fn retire_owner(&mut self) {
        self.old.extend(self.owner.take());
    }
}

/// Whether a read that ends with this kind of error has lost its bytes.
pub(super) fn is_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Internal)
}

fn note_found(process: &mut Process, path: &str, content: &Content) {
    if let Some(running) = &mut process.running
        && running.paths().iter().any(|it| it == path)
    {
        running.found.insert(path.to_owned(), content.clone());
    }
}
