//! Events, messages and faults of a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use archipelago_base::random::Rng;
use archipelago_offload::executor::ExecutorStep;
use archipelago_offload::failure::ShortText;
use archipelago_offload::ids::{
    AttemptId, ExecutorId, JobId, NumberRange, OffloadDb, SchedulerId, SchedulerLife,
};
use archipelago_offload::job::JobKind;
use archipelago_offload::owner::OwnerStep;
use archipelago_offload::scheduler::{Party, Scheduler, SchedulerTerms, Sent};
use archipelago_offload::wire::{Correspondent, OffloadMessage, Running};

use super::Omitted;
use super::executors::{ExecutorDeed, ExecutorHost};
use super::owners::{MEMORIES, Output, OwnerDeed, OwnerHost, id_of, memory_of};
use super::storage::Database;
use crate::run::{RunRequest, Trace};

const MS: u64 = 1_000_000;
const TICK_NS: u64 = 50 * MS;
const TROUBLE_NS: u64 = 20_000 * MS;
/// Time without faults within which everything must end.
const PEACE_NS: u64 = 120_000 * MS;
/// Largest number of events of a run, so that an endless exchange ends as a violation.
const EVENTS_MAX: u64 = 400_000;
/// Wait of a job for a bounded resource.
const WAIT_NS: std::ops::Range<u64> = 6_000 * MS..9_000 * MS;
/// Time after which a scheduler knows that a job waits.
const TOLD_NS: u64 = 1_000 * MS;
/// Percentage of messages that take long.
const SLOW_PERCENT: u32 = 5;
/// Silence after which a scheduler drops an owner. Some stops of owners are longer, so that owners
/// also return late.
const ORPHAN_NS: u64 = 6_000 * MS;
/// Time at which the last database loses its owner for good.
const ABANDONED_NS: std::ops::Range<u64> = 1_000 * MS..15_000 * MS;

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) installed: u64,
    pub(super) by_executors: u64,
    /// Items of these whose first attempt went to another scheduler, and whose owner has to plan a
    /// job again for that.
    pub(super) by_other_schedulers: u64,
    pub(super) assigned: u64,
    pub(super) owners_ended: u64,
    pub(super) schedulers_ended: u64,
    pub(super) executors_ended: u64,
    pub(super) memories_ended: u64,
    /// Steps of executors that found another image than that of their package.
    pub(super) images_gone: u64,
    /// Jobs that waited for longer than a scheduler waits for progress.
    pub(super) waits: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Tick,
    Fault,
    /// The last database loses its owner, and gets no other one.
    Abandon,
    ToOwner {
        db: OffloadDb,
        from: SchedulerId,
        message: OffloadMessage,
    },
    ToScheduler {
        to: SchedulerId,
        from: Correspondent,
        message: OffloadMessage,
    },
    ToExecutor {
        to: ExecutorId,
        from: SchedulerId,
        message: OffloadMessage,
    },
    /// An owner opens the outputs of an attempt and makes its edit.
    Edit {
        owner: u64,
        at: AttemptId,
        numbers: NumberRange,
        output: Output,
    },
    /// An owner learns the result of its edit.
    Checked {
        owner: u64,
        at: AttemptId,
        is_installed: bool,
    },
    RunHere {
        owner: u64,
        job: u64,
    },
    FinishHere {
        owner: u64,
        job: u64,
        item: u64,
        numbers: NumberRange,
    },
    /// An executor takes the next step of a run.
    Go {
        executor: ExecutorId,
        at: AttemptId,
    },
}

#[derive(Clone, Copy)]
struct Arrival {
    job: JobId,
    is_flush: bool,
}

struct SchedulerHost {
    machine: Scheduler,
    stopped_until_ns: u64,
    /// Jobs in the order of their arrival, and the last one of each queue that was offered.
    arrivals: Vec<Arrival>,
    offered: BTreeMap<bool, usize>,
}

/// A run of one seed.
pub(super) struct World {
    rng: Rng,
    now_ns: u64,
    next: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    /// The last one is abandoned during the run.
    databases: Vec<Database>,
    /// Living owners. An old owner may live in parallel with its successor for a while.
    owners: Vec<OwnerHost>,
    schedulers: Vec<SchedulerHost>,
    executors: Vec<ExecutorHost>,
    /// Lives of the memory nodes.
    memories: [u64; MEMORIES],
    next_life: u64,
    omitted: Omitted,
    is_peace: bool,
    is_noting: bool,
    notes: Vec<String>,
    violations: Vec<String>,
    counted: Counted,
    trace: Trace,
}

impl World {
    pub(super) fn new(request: &RunRequest, omitted: Omitted) -> Self {
        let mut rng = Rng::with_seed(request.seed);
        let databases = (0..=rng.usize(1..=2)).map(|_| Database::new(rng.u64(20..60))).collect();
        let mut world = Self {
            rng,
            now_ns: 0,
            next: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            databases,
            owners: Vec::new(),
            schedulers: Vec::new(),
            executors: Vec::new(),
            memories: [1; MEMORIES],
            next_life: 1,
            omitted,
            is_peace: false,
            is_noting: request.trace,
            notes: Vec::new(),
            violations: Vec::new(),
            counted: Counted::default(),
            trace: Trace::default(),
        };
        for at in 0..world.rng.usize(1..=2) {
            let machine = world.new_scheduler(at, 1);
            let (arrivals, offered) = (Vec::new(), BTreeMap::new());
            let host = SchedulerHost { machine, stopped_until_ns: 0, arrivals, offered };
            world.schedulers.push(host);
        }
        for db in 0..world.databases.len() {
            world.open(db);
        }
        for _ in 0..world.rng.usize(1..=4) {
            let host = world.new_executor();
            world.executors.push(host);
        }
        world.after(0, Event::Tick);
        world.after(500 * MS, Event::Fault);
        let abandoned_ns = world.rng.u64(ABANDONED_NS);
        world.after(abandoned_ns, Event::Abandon);
        world
    }

    pub(super) fn trouble(&mut self) {
        self.run_until(TROUBLE_NS);
    }

    /// Ends all faults, waits until all jobs have ended, and checks that no state is left.
    pub(super) fn peace(&mut self) {
        self.is_peace = true;
        self.owners.iter_mut().for_each(|owner| owner.stopped_until_ns = 0);
        self.schedulers.iter_mut().for_each(|host| host.stopped_until_ns = 0);
        self.executors.iter_mut().for_each(|host| host.stopped_until_ns = 0);
        let databases = &self.databases;
        self.owners.retain(|owner| !owner.is_fenced(&databases[owner.db]));
        let end_ns = self.now_ns + PEACE_NS;
        while self.now_ns < end_ns && !self.is_at_rest() && self.violations.is_empty() {
            self.run_until(self.now_ns + 500 * MS);
        }
        if !self.is_at_rest() {
            let done: Vec<u64> = self.databases.iter().map(Database::done).collect();
            let of = |owner: &OwnerHost| owner.machine.jobs();
            let jobs: Vec<usize> = self.owners.iter().map(of).collect();
            let idle: Vec<bool> =
                self.schedulers.iter().map(|host| host.machine.is_idle()).collect();
            let what = format!("no rest: items {done:?}, jobs {jobs:?}, schedulers {idle:?}");
            self.violations.push(what);
            return;
        }
        // The next open of the abandoned database removes what executors have left.
        self.open(self.abandoned());
        for at in 0..self.owners.len() {
            self.sweep(at);
        }
        for database in &self.databases {
            self.violations.extend(database.leftovers());
        }
    }

    /// Index of the database that is abandoned.
    fn abandoned(&self) -> usize {
        self.databases.len() - 1
    }

    fn is_at_rest(&self) -> bool {
        let abandoned = self.abandoned();
        let has_forgotten = |machine: &Scheduler| machine.owner_of(id_of(abandoned)).is_none();
        self.databases[..abandoned].iter().all(|database| database.done() == database.items)
            && self.owners.iter().all(OwnerHost::is_idle)
            && self.schedulers.iter().all(|host| host.machine.is_idle())
            && self.schedulers.iter().all(|host| has_forgotten(&host.machine))
            && self.executors.iter().all(ExecutorHost::is_idle)
    }

    pub(super) fn counted(&self) -> Counted {
        let installed = self.databases.iter().map(Database::done).sum();
        Counted { installed, ..self.counted }
    }

    pub(super) fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }

    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    pub(super) fn trace(&self) -> Trace {
        self.trace
    }

    fn new_scheduler(&self, at: usize, term: u64) -> Scheduler {
        let life = SchedulerLife { scheduler: SchedulerId(at as u64 + 1), term };
        let terms = SchedulerTerms { orphan_ns: ORPHAN_NS, ..SchedulerTerms::default() };
        let scheduler = Scheduler::new(self.now_ns, life, terms);
        scheduler.sabotaged(self.omitted.protocol)
    }

    fn scheduler_ids(&self) -> Vec<SchedulerId> {
        (1..=self.schedulers.len() as u64).map(SchedulerId).collect()
    }

    fn new_executor(&mut self) -> ExecutorHost {
        let id = ExecutorId(self.next_life);
        self.next_life += 1;
        let slots = self.rng.u32(1..=3);
        ExecutorHost::new(id, slots, &self.scheduler_ids(), &self.memories)
    }

    fn open(&mut self, db: usize) {
        let life = self.next_life;
        self.next_life += 1;
        let schedulers = self.scheduler_ids();
        let database = &mut self.databases[db];
        let owner = OwnerHost::open(db, life, database, schedulers, self.omitted);
        self.owners.push(owner);
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.next += 1;
        self.queue.push(Reverse((self.now_ns + ns, self.next)));
        self.events.insert(self.next, event);
    }

    /// Sends a message, which is lost or arrives once or twice, after a delay.
    fn send(&mut self, event: &Event) {
        let copies = match self.rng.u32(..20) {
            0 if !self.is_peace => 0,
            1 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let is_slow = !self.is_peace && self.rng.u32(..100) < SLOW_PERCENT;
            let delay_ns = self.rng.u64(..if is_slow { 4_000 * MS } else { 2 * MS });
            self.after(delay_ns, event.clone());
        }
    }

    fn run_until(&mut self, end_ns: u64) {
        while let Some(Reverse((at_ns, number))) = self.queue.peek().copied() {
            if at_ns > end_ns || !self.violations.is_empty() {
                break;
            }
            if self.trace.events >= EVENTS_MAX {
                self.violations.push(format!("more than {EVENTS_MAX} events"));
                break;
            }
            self.queue.pop();
            self.now_ns = at_ns;
            if let Some(event) = self.events.remove(&number) {
                self.record(number, &event);
                self.step(event);
            }
        }
        self.now_ns = self.now_ns.max(end_ns);
    }

    /// Adds an event to the fingerprint and, if they are kept, to the notes.
    fn record(&mut self, number: u64, event: &Event) {
        let hash = [self.now_ns, number].into_iter().fold(self.trace.hash, |hash, word| {
            (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        });
        self.trace = Trace { hash, events: self.trace.events + 1, virtual_ns: self.now_ns };
        if self.is_noting && !matches!(event, Event::Tick) {
            self.notes.push(format!("{:>12} ns  {event:?}", self.now_ns));
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Fault => self.fault(),
            Event::Abandon => self.abandon(),
            Event::ToOwner { db, from, message } => self.reach_owners(db, from, &message),
            Event::ToScheduler { to, from, message } => self.reach_scheduler(to, from, message),
            Event::ToExecutor { to, from, message } => self.reach_executor(to, from, message),
            Event::Edit { owner, at, numbers, output } => self.edit(owner, at, numbers, &output),
            Event::Checked { owner, at, is_installed } => {
                let Some(place) = self.owner_at(owner) else { return };
                let now_ns = self.now_ns;
                let steps = self.owners[place].machine.checked(now_ns, at, is_installed);
                if is_installed {
                    self.owners[place].end(at.job.number);
                }
                self.take_owner(place, steps);
            }
            Event::RunHere { owner, job } => {
                let Some(place) = self.owner_at(owner) else { return };
                let host = &mut self.owners[place];
                match host.begin_here(&mut self.databases[host.db], job) {
                    Some((item, numbers)) => {
                        let delay_ns = self.rng.u64(10 * MS..500 * MS);
                        self.after(delay_ns, Event::FinishHere { owner, job, item, numbers });
                    }
                    None => self.end_here(place, job),
                }
            }
            Event::FinishHere { owner, job, item, numbers } => {
                let Some(place) = self.owner_at(owner) else { return };
                let host = &mut self.owners[place];
                let found = host.finish_here(&mut self.databases[host.db], item, numbers);
                self.violations.extend(found);
                self.end_here(place, job);
            }
            Event::Go { executor, at } => self.go(executor, at),
        }
    }

    /// Index of the owner of that life; `None` if it has ended. A stopped owner does everything
    /// later.
    fn owner_at(&self, life: u64) -> Option<usize> {
        self.owners.iter().position(|owner| owner.life == life)
    }

    fn end_here(&mut self, place: usize, job: u64) {
        let steps = self.owners[place].machine.ran_here(job);
        self.owners[place].end(job);
        self.take_owner(place, steps);
    }

    fn edit(&mut self, owner: u64, at: AttemptId, numbers: NumberRange, output: &Output) {
        let Some(place) = self.owner_at(owner) else { return };
        let stopped_ns = self.owners[place].stopped_until_ns;
        if stopped_ns > self.now_ns {
            let event = Event::Edit { owner, at, numbers, output: output.clone() };
            return self.after(stopped_ns - self.now_ns, event);
        }
        let host = &mut self.owners[place];
        let (is_installed, found) = {
            let database = &mut self.databases[host.db];
            host.edit(database, at.job.number, numbers, output)
        };
        let is_moved = is_installed && host.has_left_again(at);
        self.violations.extend(found);
        self.counted.by_executors += u64::from(is_installed);
        self.counted.by_other_schedulers += u64::from(is_moved);
        let delay_ns = self.rng.u64(..20 * MS);
        self.after(delay_ns, Event::Checked { owner, at, is_installed });
    }

    fn tick(&mut self) {
        self.after(TICK_NS, Event::Tick);
        let now_ns = self.now_ns;
        for place in 0..self.owners.len() {
            if self.owners[place].stopped_until_ns > now_ns {
                continue;
            }
            let host = &mut self.owners[place];
            let kinds = [JobKind::Flush, JobKind::Compaction, JobKind::Gc];
            let kind = |item: u64| kinds[item as usize % kinds.len()];
            let database = &mut self.databases[host.db];
            let mut deeds = host.plan(now_ns, database, &self.memories, kind);
            let steps = host.machine.on_timer(now_ns);
            deeds.extend(host.take(now_ns, &mut self.databases[host.db], steps));
            self.do_for_owner(place, deeds);
            if self.rng.u32(..20) == 0 {
                self.sweep(place);
            }
        }
        for place in 0..self.schedulers.len() {
            if self.schedulers[place].stopped_until_ns <= now_ns {
                let sent = self.schedulers[place].machine.on_timer(now_ns);
                self.check_waits(&sent);
                self.send_all(place, sent);
            }
        }
        for place in 0..self.executors.len() {
            if self.executors[place].stopped_until_ns <= now_ns {
                let steps = self.executors[place].machine.on_timer(now_ns);
                self.take_executor(place, None, steps);
            }
        }
        self.check_given_up();
    }

    fn sweep(&mut self, place: usize) {
        let host = &self.owners[place];
        let found = host.sweep(&mut self.databases[host.db]);
        self.violations.extend(found);
    }

    fn reach_owners(&mut self, db: OffloadDb, from: SchedulerId, message: &OffloadMessage) {
        for place in (0..self.owners.len()).rev() {
            let host = &mut self.owners[place];
            if id_of(host.db) != db || host.stopped_until_ns > self.now_ns {
                continue;
            }
            let steps = host.machine.on_message(self.now_ns, from, message.clone());
            self.take_owner(place, steps);
        }
    }

    fn take_owner(&mut self, place: usize, steps: Vec<OwnerStep>) {
        let host = &mut self.owners[place];
        let deeds = host.take(self.now_ns, &mut self.databases[host.db], steps);
        self.do_for_owner(place, deeds);
    }

    fn do_for_owner(&mut self, place: usize, deeds: Vec<OwnerDeed>) {
        let owner = self.owners[place].life;
        let from = Correspondent::Owner(self.owners[place].machine.stamp());
        for deed in deeds {
            match deed {
                OwnerDeed::Send { to, message } => {
                    self.send(&Event::ToScheduler { to, from, message });
                }
                OwnerDeed::Edit { at, numbers, output } => {
                    let delay_ns = self.rng.u64(..100 * MS);
                    self.after(delay_ns, Event::Edit { owner, at, numbers, output });
                }
                OwnerDeed::RunHere { job } => self.after(0, Event::RunHere { owner, job }),
            }
        }
    }

    fn reach_scheduler(&mut self, to: SchedulerId, from: Correspondent, message: OffloadMessage) {
        let place = to.0 as usize - 1;
        let host = &mut self.schedulers[place];
        if host.stopped_until_ns > self.now_ns {
            return;
        }
        let prepared = match &message {
            OffloadMessage::Prepare { order, .. } => {
                Some(Arrival { job: order.id, is_flush: order.kind == JobKind::Flush })
            }
            _ => None,
        };
        let is_unanswered = self.omitted.cancel && matches!(message, OffloadMessage::Beat { .. });
        let arrived = host.machine.counters().arrived;
        let mut sent = match from {
            Correspondent::Owner(owner) => host.machine.on_owner(self.now_ns, owner, message),
            Correspondent::Executor(executor) => {
                host.machine.on_executor(self.now_ns, executor, message)
            }
        };
        if host.machine.counters().arrived > arrived {
            host.arrivals.extend(prepared);
        }
        if is_unanswered {
            sent.retain(|one| !matches!(one.message, OffloadMessage::Cancel { .. }));
        }
        self.send_all(place, sent);
    }

    fn send_all(&mut self, place: usize, sent: Vec<Sent>) {
        self.check_order(place);
        let from = SchedulerId(place as u64 + 1);
        for Sent { to, message } in sent {
            self.counted.assigned += u64::from(matches!(message, OffloadMessage::Assign { .. }));
            let event = match to {
                Party::Owner(db) => Event::ToOwner { db, from, message },
                Party::Executor(to) => Event::ToExecutor { to, from, message },
            };
            self.send(&event);
        }
    }

    /// Checks that a scheduler does not give up a job of which it must know that the job waits.
    /// Before the time without faults, beats may have been lost. Jobs of the abandoned database are
    /// given up.
    fn check_waits(&mut self, sent: &[Sent]) {
        for Sent { to, message } in sent {
            let (Party::Executor(to), OffloadMessage::Cancel { at, .. }) = (to, message) else {
                continue;
            };
            if at.job.db == id_of(self.abandoned()) {
                continue;
            }
            let host = self.executors.iter().find(|host| host.machine.id() == *to);
            let run = host.and_then(|host| host.runs.get(at));
            let since_ns = run.and_then(|run| run.waits_since_ns);
            if since_ns.is_some_and(|since| {
                since >= TROUBLE_NS && since + TOLD_NS <= self.now_ns && self.is_peace
            }) {
                self.violations.push(format!("attempt {at} was given up while it waited"));
            }
        }
    }

    /// Checks that executors soon stop attempts that their schedulers have given up. Before the
    /// time without faults, beats and their answers may have been lost.
    fn check_given_up(&mut self) {
        if !self.is_peace {
            return;
        }
        let (schedulers, now_ns) = (&self.schedulers, self.now_ns);
        let is_given_up = |scheduler: SchedulerId, at: AttemptId, by: ExecutorId| {
            let host = schedulers.iter().find(|host| host.machine.life().scheduler == scheduler);
            host.is_some_and(|host| host.machine.has_given_up(now_ns, at, by))
        };
        for host in &mut self.executors {
            self.violations.extend(host.check_given_up(now_ns, is_given_up));
        }
    }

    /// Whether a run begins to wait now, before its first file.
    fn begins_to_wait(&mut self, place: usize, at: AttemptId) -> bool {
        let begins = self.rng.u32(..8) == 0;
        let host = &mut self.executors[place];
        let Some(run) = host.runs.get_mut(&at) else { return false };
        if !begins || !run.written.is_empty() || run.is_stopped || run.has_waited {
            return false;
        }
        (run.waits_since_ns, run.has_waited) = (Some(self.now_ns), true);
        host.machine.note_progress(Running { at, progress_bytes: 0, waits: true });
        self.counted.waits += 1;
        true
    }

    /// Checks that first offers follow the order of arrival. A job arrives again if its owner was
    /// dropped and has returned.
    fn check_order(&mut self, place: usize) {
        let host = &mut self.schedulers[place];
        for job in host.machine.take_started() {
            let Some(arrival) = host.arrivals.iter().rposition(|arrived| arrived.job == job) else {
                self.violations.push(format!("job {job} was offered and never arrived"));
                continue;
            };
            let last = host.offered.insert(host.arrivals[arrival].is_flush, arrival);
            if let Some(last) = last.filter(|last| *last > arrival) {
                let what = format!("job {job} arrived as {arrival} and was offered after {last}");
                self.violations.push(what);
            }
        }
    }

    fn reach_executor(&mut self, to: ExecutorId, from: SchedulerId, message: OffloadMessage) {
        let place = self.executors.iter().position(|host| host.machine.id() == to);
        let Some(place) = place else { return };
        if self.executors[place].stopped_until_ns > self.now_ns {
            return;
        }
        let steps = self.executors[place].machine.on_message(self.now_ns, from, message);
        self.take_executor(place, Some(from), steps);
    }

    /// Carries out the steps of an executor. `from` is the scheduler whose message caused them.
    fn take_executor(&mut self, place: usize, from: Option<SchedulerId>, steps: Vec<ExecutorStep>) {
        let deeds = self.executors[place].take(from, steps);
        let executor = self.executors[place].machine.id();
        for deed in deeds {
            match deed {
                ExecutorDeed::Send { to, message } => {
                    let from = Correspondent::Executor(executor);
                    self.send(&Event::ToScheduler { to, from, message });
                }
                ExecutorDeed::Go { at } => {
                    let delay_ns = self.rng.u64(..200 * MS);
                    self.after(delay_ns, Event::Go { executor, at });
                }
                ExecutorDeed::Remove { db, numbers } => {
                    let found = self.databases[usize::from(db.0[0])].remove(numbers, None);
                    self.violations.extend(found);
                }
            }
        }
    }

    /// Lets a run create its next file, or end.
    fn go(&mut self, executor: ExecutorId, at: AttemptId) {
        let place = self.executors.iter().position(|host| host.machine.id() == executor);
        let Some(place) = place else { return };
        let stopped_ns = self.executors[place].stopped_until_ns;
        if stopped_ns > self.now_ns {
            return self.after(stopped_ns - self.now_ns, Event::Go { executor, at });
        }
        if self.begins_to_wait(place, at) {
            let delay_ns = self.rng.u64(WAIT_NS);
            return self.after(delay_ns, Event::Go { executor, at });
        }
        let host = &mut self.executors[place];
        let Some(run) = host.runs.get_mut(&at) else { return };
        run.waits_since_ns = None;
        let database = &mut self.databases[usize::from(at.job.db.0[0])];
        let number = run.numbers.first + run.written.len() as u64;
        let life = if run.image > 0 { self.memories[memory_of(run.item)] } else { 0 };
        let is_gone = *run.read.get_or_insert(life) != run.image && !self.omitted.image;
        self.counted.images_gone += u64::from(is_gone);
        let fails = is_gone || run.is_stopped || (!self.is_peace && self.rng.u32(..40) == 0);
        let result = if fails {
            Some(Err(ShortText::new("the job has failed")))
        } else if run.numbers.contains(number) {
            match database.create(number, run.writer) {
                Ok(again) => {
                    self.violations.extend(again);
                    run.written.push(number);
                    let progress_bytes = run.written.len() as u64;
                    host.machine.note_progress(Running { at, progress_bytes, waits: false });
                    None
                }
                Err(()) => Some(Err(ShortText::new(&format!("file {number} exists")))),
            }
        } else {
            let (image, files) = (run.read.unwrap_or(0), run.written.clone());
            let output = Output { item: run.item, image, files };
            Some(Ok(output.encode()))
        };
        let Some(result) = result else {
            let delay_ns = self.rng.u64(..400 * MS);
            return self.after(delay_ns, Event::Go { executor, at });
        };
        if result.is_err() {
            let found = database.remove(run.numbers, Some(run.writer));
            self.violations.extend(found);
        }
        host.runs.remove(&at);
        let steps = host.machine.ended(self.now_ns, at, result);
        self.take_executor(place, None, steps);
    }

    fn fault(&mut self) {
        if self.is_peace {
            return;
        }
        let (owner, scheduler, executor) = (
            self.rng.usize(..self.owners.len()),
            self.rng.usize(..self.schedulers.len()),
            self.rng.usize(..self.executors.len()),
        );
        let until_ns = self.now_ns + self.rng.u64(..8_000 * MS);
        match self.rng.u32(..10) {
            0 => self.end_owner(owner),
            // Another process opens the database, while the old owner is stopped or slow.
            1 => {
                let db = self.owners[owner].db;
                let databases = &self.databases;
                self.owners.retain(|host| host.db != db || !host.is_fenced(&databases[db]));
                self.owners.iter_mut().filter(|host| host.db == db).for_each(|host| {
                    host.stopped_until_ns = until_ns;
                });
                self.open(db);
            }
            2 => self.owners[owner].stopped_until_ns = until_ns,
            3 => {
                let term = self.schedulers[scheduler].machine.life().term + 1;
                let machine = self.new_scheduler(scheduler, term);
                let host = &mut self.schedulers[scheduler];
                host.machine = machine;
                host.arrivals.clear();
                host.offered.clear();
                self.counted.schedulers_ended += 1;
            }
            4 => self.schedulers[scheduler].stopped_until_ns = until_ns,
            5 => self.end_memory(),
            6 => {
                self.executors[executor] = self.new_executor();
                self.counted.executors_ended += 1;
            }
            _ => self.executors[executor].stopped_until_ns = until_ns,
        }
        let pause_ns = self.rng.u64(100 * MS..2_000 * MS);
        self.after(pause_ns, Event::Fault);
    }

    /// A memory node begins another life. Executors in its process end with it.
    fn end_memory(&mut self) {
        let memory = self.rng.usize(..MEMORIES);
        self.memories[memory] += 1;
        self.counted.memories_ended += 1;
        for place in 0..self.executors.len() {
            if self.executors[place].home == Some(memory) {
                self.executors[place] = self.new_executor();
                self.counted.executors_ended += 1;
            }
        }
    }

    /// The last database loses all of its owners.
    fn abandon(&mut self) {
        let (abandoned, before) = (self.abandoned(), self.owners.len());
        self.owners.retain(|host| host.db != abandoned);
        self.counted.owners_ended += (before - self.owners.len()) as u64;
    }

    fn end_owner(&mut self, place: usize) {
        let db = self.owners[place].db;
        let was_newest = !self.owners[place].is_fenced(&self.databases[db]);
        self.owners.remove(place);
        self.counted.owners_ended += 1;
        if was_newest {
            self.open(db);
        }
    }
}
