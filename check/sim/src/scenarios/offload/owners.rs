//! Owners: the driver of [`Owner`] over a database of the model.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Epoch;
use archipelago_fabric::NodeId;
use archipelago_offload::ids::{
    Attempt, AttemptId, NodeLife, NumberRange, OffloadDb, OwnerStamp, SchedulerId, Token,
};
use archipelago_offload::job::{InputPlace, JobAsk, JobKind, Payload};
use archipelago_offload::owner::{ATTEMPTS, Owner, OwnerStep, OwnerTerms};
use archipelago_offload::wire::OffloadMessage;

use super::Omitted;
use super::storage::{Database, WriterId};

/// Number of files that each job writes.
pub(super) const FILES: u64 = 2;
/// Largest number of jobs that an owner has at a time.
const JOBS_MAX: usize = 4;

/// Number of memory nodes that hold images of flushes.
pub(super) const MEMORIES: usize = 2;

/// The memory node with the image of an item.
pub(super) fn memory_of(item: u64) -> usize {
    // The kind of a job follows from its item as well.
    (item / 3) as usize % MEMORIES
}

/// A life of a memory node.
pub(super) fn memory_life(memory: usize, life: u64) -> NodeLife {
    NodeLife { node: NodeId(memory as u64 + 1), life: Epoch(life) }
}

/// Spec and output of a job in the model: its item, the life of the memory node that holds its
/// image (0 for a job without one), and the numbers of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) item: u64,
    pub(super) image: u64,
    pub(super) files: Vec<u64>,
}

impl Output {
    pub(super) fn encode(&self) -> Payload {
        let words = [&self.item, &self.image].into_iter().chain(&self.files);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        bytes.into()
    }

    pub(super) fn decode(payload: &Payload) -> Self {
        let word = |bytes: &[u8]| {
            bytes.iter().rev().fold(0, |word: u64, byte| word << 8 | u64::from(*byte))
        };
        let mut words = payload.0.chunks(8).map(word);
        let mut next = || words.next().unwrap_or(0);
        let (item, image) = (next(), next());
        Self { item, image, files: words.collect() }
    }
}

/// Action that the world carries out for an owner, now or later.
#[derive(Clone, Debug)]
pub(super) enum OwnerDeed {
    Send {
        to: SchedulerId,
        message: OffloadMessage,
    },
    /// The edit of an install, after the outputs were opened.
    Edit {
        at: AttemptId,
        numbers: NumberRange,
        output: Output,
    },
    /// A run of the job in the owner's process.
    RunHere {
        job: u64,
    },
}

/// One open of a database.
pub(super) struct OwnerHost {
    /// Index of the database.
    pub(super) db: usize,
    pub(super) machine: Owner,
    pub(super) life: u64,
    /// Time in nanoseconds until which the process neither receives nor does anything.
    pub(super) stopped_until_ns: u64,
    /// Items of jobs that have not ended, by job.
    items: BTreeMap<u64, u64>,
    /// Lives of the memory nodes that hold the images of these jobs, by job.
    images: BTreeMap<u64, u64>,
    /// Schedulers that got the attempts of jobs.
    given_to: BTreeMap<(u64, Attempt), SchedulerId>,
    /// Schedulers that got the first attempt at an item.
    firsts: BTreeMap<u64, SchedulerId>,
    /// Whether a job has numbers for one session only, as a call of the engine has.
    draws_once: bool,
    next_no: u64,
    lot_end: u64,
    /// First number of this epoch, and the files below it that the manifest named at the open.
    first_no: u64,
    recovered: BTreeSet<u64>,
    abandoned: Vec<NumberRange>,
    ignores_lots: bool,
}

impl OwnerHost {
    /// Opens a database, which raises its epoch.
    pub(super) fn open(
        db: usize,
        life: u64,
        database: &mut Database,
        schedulers: Vec<SchedulerId>,
        omitted: Omitted,
    ) -> Self {
        database.epoch += 1;
        let mut token = [0; 16];
        token[..8].copy_from_slice(&life.to_le_bytes());
        let stamp = OwnerStamp { db: id_of(db), epoch: Epoch(database.epoch), token: Token(token) };
        let first_no = database.first_free(omitted.lots);
        let machine = Owner::new(stamp, OwnerTerms::default(), schedulers);
        Self {
            db,
            machine: machine.sabotaged(omitted.protocol),
            life,
            stopped_until_ns: 0,
            items: BTreeMap::new(),
            images: BTreeMap::new(),
            given_to: BTreeMap::new(),
            firsts: BTreeMap::new(),
            draws_once: life.is_multiple_of(2),
            next_no: first_no,
            lot_end: first_no,
            first_no,
            recovered: database.live(),
            abandoned: Vec::new(),
            ignores_lots: omitted.lots,
        }
    }

    /// Whether a newer owner has opened the database.
    pub(super) fn is_fenced(&self, database: &Database) -> bool {
        self.machine.epoch().0 != database.epoch
    }

    /// Draws numbers, of which the manifest knows before they are used. A fenced owner gets none.
    fn draw(&mut self, database: &mut Database, count: u64) -> NumberRange {
        while self.next_no + count > self.lot_end && !self.ignores_lots {
            if self.is_fenced(database) {
                return NumberRange::default();
            }
            self.lot_end = database.reserve();
        }
        let numbers = NumberRange { first: self.next_no, count };
        self.next_no += count;
        numbers
    }

    /// Plans jobs for items that are not installed. `memories` are the lives of the memory nodes.
    pub(super) fn plan(
        &mut self,
        now_ns: u64,
        database: &mut Database,
        memories: &[u64; MEMORIES],
        kind: impl Fn(u64) -> JobKind,
    ) -> Vec<OwnerDeed> {
        let mut deeds = Vec::new();
        for item in 0..database.items {
            let is_planned = self.items.values().any(|planned| *planned == item);
            if self.items.len() >= JOBS_MAX || self.is_fenced(database) {
                break;
            }
            if is_planned || database.is_done(item) {
                continue;
            }
            let (kind, bytes, memory) = (kind(item), 1 << 20, memory_of(item));
            let is_flush = kind == JobKind::Flush;
            let image = if is_flush { memories[memory] } else { 0 };
            let at = memory_life(memory, image);
            let places = is_flush.then_some(InputPlace { at, bytes }).into_iter().collect();
            let spec = Output { item, image, files: Vec::new() }.encode();
            let ask = JobAsk { kind, bytes, places, ..JobAsk::default() };
            let (job, steps) = self.machine.submit(now_ns, ask, spec);
            self.items.insert(job, item);
            self.images.insert(job, image);
            deeds.extend(self.take(now_ns, database, steps));
        }
        deeds
    }

    /// Takes the steps of the machine.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        database: &mut Database,
        steps: Vec<OwnerStep>,
    ) -> Vec<OwnerDeed> {
        let mut deeds = Vec::new();
        for step in steps {
            match step {
                OwnerStep::Send { to, message } => {
                    self.note_prepare(to, &message);
                    deeds.push(OwnerDeed::Send { to, message });
                }
                OwnerStep::Prepare { job } if self.draws_once && self.has_drawn(job) => {
                    let steps = self.machine.without_numbers(now_ns, job);
                    deeds.extend(self.take(now_ns, database, steps));
                }
                OwnerStep::PlanAgain { job } => self.end(job),
                OwnerStep::Prepare { job } => {
                    let mut ranges = [NumberRange::default(); ATTEMPTS];
                    for range in &mut ranges {
                        *range = self.draw(database, FILES);
                    }
                    if ranges.iter().all(|range| range.count == FILES) {
                        let steps = self.machine.prepared(now_ns, job, &ranges);
                        deeds.extend(self.take(now_ns, database, steps));
                    }
                }
                OwnerStep::RunHere { job, .. } => deeds.push(OwnerDeed::RunHere { job }),
                OwnerStep::Check { at, numbers, output } => {
                    let output = Output::decode(&output);
                    deeds.push(OwnerDeed::Edit { at, numbers, output });
                }
                OwnerStep::Abandon { numbers } => self.abandoned.push(numbers),
            }
        }
        deeds
    }

    /// Notes the schedulers that get attempts.
    fn note_prepare(&mut self, to: SchedulerId, message: &OffloadMessage) {
        let OffloadMessage::Prepare { order, attempts, .. } = message else { return };
        let job = order.id.number;
        let Some(item) = self.items.get(&job) else { return };
        self.firsts.entry(*item).or_insert(to);
        for prepared in attempts {
            self.given_to.insert((job, prepared.attempt), to);
        }
    }

    /// Whether attempts of a job were prepared.
    fn has_drawn(&self, job: u64) -> bool {
        let attempts = (job, Attempt(0))..=(job, Attempt(u32::MAX));
        self.given_to.range(attempts).next().is_some()
    }

    /// Whether an attempt went to another scheduler than the first attempt at its item, although
    /// its owner has numbers for one session only. Then the item was planned again.
    pub(super) fn has_left_again(&self, at: AttemptId) -> bool {
        if !self.draws_once {
            return false;
        }
        let number = at.job.number;
        let first = self.items.get(&number).and_then(|item| self.firsts.get(item));
        let latest = self.given_to.get(&(number, at.attempt));
        first.zip(latest).is_some_and(|(first, latest)| first != latest)
    }

    /// Checks the outputs of an attempt and installs them. Returns the answer for the machine and
    /// violations.
    pub(super) fn edit(
        &mut self,
        database: &mut Database,
        job: u64,
        numbers: NumberRange,
        output: &Output,
    ) -> (bool, Vec<String>) {
        let is_right = output.files.iter().all(|file| {
            (numbers.contains(*file) || numbers.count == 0) && database.files.contains_key(file)
        });
        if !is_right {
            return (false, Vec::new());
        }
        match database.install(self.machine.epoch().0, output.item, &output.files) {
            Some(mut violations) => {
                if self.images.get(&job).is_some_and(|image| *image != output.image) {
                    violations.push(format!("item {} comes from another image", output.item));
                }
                (true, violations)
            }
            None => (false, Vec::new()),
        }
    }

    /// The numbers and the item of a job that runs here; `None` if the job is not known any more.
    pub(super) fn begin_here(
        &mut self,
        database: &mut Database,
        job: u64,
    ) -> Option<(u64, NumberRange)> {
        let item = *self.items.get(&job)?;
        let numbers = self.draw(database, FILES);
        (numbers.count == FILES).then_some((item, numbers))
    }

    /// Notes that a job has ended.
    pub(super) fn end(&mut self, job: u64) {
        self.items.remove(&job);
        self.images.remove(&job);
    }

    /// Removes files of abandoned attempts, and files below the first number of this epoch that the
    /// manifest did not name at the open (docs/design/offload.md, rule 3).
    pub(super) fn sweep(&self, database: &mut Database) -> Vec<String> {
        let mut violations = Vec::new();
        for numbers in &self.abandoned {
            violations.extend(database.remove(*numbers, None));
        }
        let old: Vec<u64> = database.files.range(..self.first_no).map(|(no, _)| *no).collect();
        for number in old {
            if !self.recovered.contains(&number) {
                let numbers = NumberRange { first: number, count: 1 };
                violations.extend(database.remove(numbers, None));
            }
        }
        violations
    }

    /// Writes the files of a job that this process runs, and installs them.
    pub(super) fn finish_here(
        &mut self,
        database: &mut Database,
        item: u64,
        numbers: NumberRange,
    ) -> Vec<String> {
        let writer = WriterId(self.life << 32 | numbers.first);
        let files: Vec<u64> = (numbers.first..numbers.first + numbers.count).collect();
        let mut violations = Vec::new();
        for file in &files {
            match database.create(*file, writer) {
                Ok(again) => violations.extend(again),
                Err(()) => violations.push(format!("number {file} of a local run was taken")),
            }
        }
        match database.install(self.machine.epoch().0, item, &files) {
            Some(found) => violations.extend(found),
            None => self.abandoned.push(numbers),
        }
        violations
    }

    /// Whether the owner has no job that has not ended.
    pub(super) fn is_idle(&self) -> bool {
        self.machine.jobs() == 0 && self.items.is_empty()
    }
}

/// Identity of a database by its index.
pub(super) fn id_of(db: usize) -> OffloadDb {
    let mut id = [0; 16];
    id[0] = db as u8;
    OffloadDb(id)
}
