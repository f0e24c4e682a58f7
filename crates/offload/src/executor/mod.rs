//! The attempts of an executor, as a state machine without clock, lock or I/O.
//!
//! | state of an attempt | next state and its cause |
//! | --- | --- |
//! | offered | running, on the package; given up, when the package does not come in time |
//! | running | committed, when the outputs are durable; failed, when the job has failed |
//! | committed | done, on the verdict; COMMIT is repeated until then, ever more seldom |
//! | failed | done, when the scheduler has noted it; ABORT is repeated in the same way |
//!
//! Invariants:
//! 1. An executor removes outputs after COMMIT only on the verdict [`Verdict::Discard`] of their
//!    attempt (docs/design/offload.md, rule 4). The outputs may be live tables, because the owner
//!    may have ended after its edit.
//! 2. An executor obeys only the newest life that it knows of each scheduler.
//! 3. An attempt runs at most once in the life of an executor.
//!
//! Thread-safety: none; the driver holds a lock.
//! Failure: an executor that ends forgets its attempts. Its successor has another number, and its
//! beats do not name the attempts. So the scheduler gives them to other executors. An attempt that
//! its scheduler has given up ends on the answer to the next beat.
//! Cost: O(attempts) for each call of the timer, and O(log attempts) for each message.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::{InputReach, Load};
use crate::failure::ShortText;
use crate::ids::{AttemptId, ExecutorId, NumberRange, SchedulerId, SchedulerLife};
use crate::job::{DeclineWhy, JobKind, JobOrder, Payload, Verdict};
use crate::wire::{OffloadMessage, Running};

const MS: u64 = 1_000_000;
/// Time, in nanoseconds, for which an executor reserves a slot for a package.
const OFFER_NS: u64 = 2_000 * MS;
/// Time after which COMMIT and ABORT are repeated first. Each further repetition takes twice as
/// long as the one before.
const REPEAT_NS: u64 = 200 * MS;
/// Longest time after which they are repeated. COMMIT has up to 200 KiB and waits for as long as an
/// owner does not answer. A new life of the scheduler gets it immediately.
const REPEAT_MAX_NS: u64 = 5_000 * MS;
/// Time for which one scheduler gets a message before the next scheduler gets it.
const PATIENCE_NS: u64 = 2_000 * MS;
/// Time between two beats, until a scheduler asks for another interval.
const BEAT_NS: u64 = 200 * MS;
/// Ended attempts that an executor remembers, so that a late package does not run them again.
const ENDED_MAX: usize = 1024;

/// Capacity and abilities that an executor offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorOffer {
    /// Number of jobs that it runs at the same time.
    pub slots: u32,
    /// Names that the executor has ([`JobOrder::needs`]): its build, the places of files that it
    /// reaches, its merge operators and its filters.
    pub names: BTreeSet<String>,
    /// Host and process, with the kind of a node that hosts it, for logs and operators.
    pub address: ShortText,
}

/// Step that the driver of an executor takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutorStep {
    /// Send the message to this scheduler.
    Send {
        /// Scheduler that gets the message.
        to: SchedulerId,
        /// Message to send.
        message: OffloadMessage,
    },
    /// Run the job, and call [`Executor::ended`] at its end.
    Run {
        /// Attempt that begins.
        at: AttemptId,
        /// Kind of the job.
        kind: JobKind,
        /// File numbers of the outputs.
        numbers: NumberRange,
        /// Spec of the job.
        spec: Payload,
    },
    /// Cancel the running job.
    Stop {
        /// Attempt in question.
        at: AttemptId,
    },
    /// Leave the outputs of the attempt in place, and forget them.
    Keep {
        /// Attempt in question.
        at: AttemptId,
    },
    /// Remove the outputs of the attempt.
    Remove {
        /// Attempt in question.
        at: AttemptId,
        /// File numbers of its outputs.
        numbers: NumberRange,
    },
}

#[derive(Clone, Debug)]
enum HeldJobState {
    Offered { until_ns: u64 },
    Running { progress_bytes: u64, waits: bool },
    Committed { output: Payload, repeat: Repeat },
    Failed { reason: ShortText, repeat: Repeat },
}

/// Repetition of a message until it is answered.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    /// Number of turns that have ended. Each scheduler has one, in the order of their numbers.
    turn: usize,
    /// Time from which on a message begins the next turn. `None` before the first message of this
    /// turn.
    turn_ends_ns: Option<u64>,
    /// Time of the next message, and the wait after that.
    next_ns: u64,
    wait_ns: u64,
}

#[derive(Clone, Debug)]
struct Held {
    scheduler: SchedulerId,
    kind: JobKind,
    numbers: NumberRange,
    state: HeldJobState,
}

impl Held {
    /// The repetition of COMMIT or ABORT; `None` if neither is due.
    fn repeat(&mut self) -> Option<&mut Repeat> {
        match &mut self.state {
            HeldJobState::Committed { repeat, .. } | HeldJobState::Failed { repeat, .. } => {
                Some(repeat)
            }
            HeldJobState::Offered { .. } | HeldJobState::Running { .. } => None,
        }
    }
}

impl Repeat {
    fn from(now_ns: u64) -> Self {
        Self { turn: 0, turn_ends_ns: None, next_ns: now_ns, wait_ns: REPEAT_NS }
    }

    /// Notes that a message is sent now.
    fn sent(&mut self, now_ns: u64) {
        self.next_ns = now_ns + self.wait_ns;
        self.wait_ns = (2 * self.wait_ns).min(REPEAT_MAX_NS);
    }

    /// Makes the next message due, to the first scheduler.
    fn hurry(&mut self) {
        (self.next_ns, self.wait_ns) = (0, REPEAT_NS);
        (self.turn, self.turn_ends_ns) = (0, None);
    }

    /// The scheduler that gets a message now. The first one is the scheduler of the attempt. Later
    /// all other schedulers get the message in turn, because the first one may never return.
    fn target(
        &mut self,
        now_ns: u64,
        first: SchedulerId,
        all: &BTreeMap<SchedulerId, u64>,
    ) -> SchedulerId {
        // A turn begins with a message. The pause between two messages becomes longer than a turn.
        // So if the clock alone ended turns, some schedulers would never get a message.
        match self.turn_ends_ns {
            Some(ends_ns) if now_ns < ends_ns => {}
            before => {
                self.turn += usize::from(before.is_some());
                self.turn_ends_ns = Some(now_ns + PATIENCE_NS);
            }
        }
        let position = all.keys().position(|scheduler| *scheduler == first).unwrap_or(0);
        let turn = position + self.turn;
        all.keys().nth(turn % all.len().max(1)).copied().unwrap_or(first)
    }
}

/// The attempts of one executor.
#[derive(Clone, Debug)]
pub struct Executor {
    me: ExecutorId,
    offer: ExecutorOffer,
    attempts: BTreeMap<AttemptId, Held>,
    /// Attempts that have ended, oldest first.
    ended: Vec<AttemptId>,
    /// Newest life of each scheduler.
    lives: BTreeMap<SchedulerId, u64>,
    /// Schedulers that get beats, with the time of the next beat.
    beats: BTreeMap<SchedulerId, u64>,
    /// Load that the driver has reported.
    load: Load,
    /// How the driver reaches images.
    reach: InputReach,
    is_leaving: bool,
    /// Whether an operator drains this executor. It lasts until the operator cancels it, or until
    /// the end of the process.
    is_draining: bool,
}

impl Executor {
    /// An executor that beats to these schedulers.
    #[must_use]
    pub fn new(me: ExecutorId, offer: ExecutorOffer, schedulers: &[SchedulerId]) -> Self {
        Self {
            me,
            offer,
            attempts: BTreeMap::new(),
            ended: Vec::new(),
            lives: BTreeMap::new(),
            beats: schedulers.iter().map(|scheduler| (*scheduler, 0)).collect(),
            load: Load::default(),
            reach: InputReach::default(),
            is_leaving: false,
            is_draining: false,
        }
    }

    /// The number of this executor.
    #[must_use]
    pub fn id(&self) -> ExecutorId {
        self.me
    }

    /// Whether the executor holds no attempt.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Makes the executor decline every further assignment. Its next beats are due now, and report
    /// no slots.
    pub fn leave(&mut self) {
        self.is_leaving = true;
        self.beats.values_mut().for_each(|next_ns| *next_ns = 0);
    }

    /// Sets the load that the next beats report.
    pub fn note_load(&mut self, load: Load) {
        self.load = load;
    }

    /// Sets the reach that the next beats report.
    pub fn note_reach(&mut self, reach: InputReach) {
        self.reach = reach;
    }

    /// Notes how far a running attempt is, and whether it waits for a bounded resource.
    pub fn note_progress(&mut self, now: Running) {
        if let Some(Held { state: HeldJobState::Running { progress_bytes, waits }, .. }) =
            self.attempts.get_mut(&now.at)
        {
            (*progress_bytes, *waits) = (now.progress_bytes, now.waits);
        }
    }

    /// Ends a running job: with its output, which is durable, or with an error, after which it has
    /// left no files. The next beat becomes due, so that the scheduler sees the free slot.
    pub fn ended(
        &mut self,
        now_ns: u64,
        at: AttemptId,
        result: Result<Payload, ShortText>,
    ) -> Vec<ExecutorStep> {
        if let Some(held) = self.attempts.get_mut(&at)
            && matches!(held.state, HeldJobState::Running { .. })
        {
            held.state = match result {
                Ok(output) => HeldJobState::Committed { output, repeat: Repeat::from(now_ns) },
                Err(reason) => HeldJobState::Failed { reason, repeat: Repeat::from(now_ns) },
            };
        }
        self.beats.values_mut().for_each(|next_ns| *next_ns = now_ns);
        self.on_timer(now_ns)
    }

    /// Handles a message from a scheduler.
    pub fn on_message(
        &mut self,
        now_ns: u64,
        from: SchedulerId,
        message: OffloadMessage,
    ) -> Vec<ExecutorStep> {
        match message {
            OffloadMessage::Assign { at, life, order } if self.obeys(life) => {
                let answer = self.assigned(now_ns, at, life.scheduler, &order);
                vec![ExecutorStep::Send { to: from, message: answer }]
            }
            OffloadMessage::Package { at, life, numbers, spec } if self.obeys(life) => {
                self.packed(at, life.scheduler, numbers, spec)
            }
            OffloadMessage::Cancel { at, life } if self.obeys(life) => self.cancelled(at),
            OffloadMessage::Decided { at, verdict } => self.decided(at, verdict),
            OffloadMessage::Noted { at } => {
                let is_failed = |held: &Held| matches!(held.state, HeldJobState::Failed { .. });
                if self.attempts.get(&at).is_some_and(is_failed) {
                    self.end(at);
                }
                Vec::new()
            }
            OffloadMessage::Drain { executor, is_draining } if executor == self.me => {
                // The next beats confirm the drain to every scheduler.
                if self.is_draining != is_draining {
                    self.is_draining = is_draining;
                    self.beats.values_mut().for_each(|next_ns| *next_ns = 0);
                }
                Vec::new()
            }
            OffloadMessage::Heard { life, next_ms } if self.obeys(life) => {
                let next_ns = now_ns + u64::from(next_ms) * MS;
                self.beats.insert(life.scheduler, next_ns);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Handles the passing of time: sends beats, repeats messages, and drops offers that are too
    /// old.
    pub fn on_timer(&mut self, now_ns: u64) -> Vec<ExecutorStep> {
        let mut steps = Vec::new();
        self.attempts.retain(
            |_, held| !matches!(held.state, HeldJobState::Offered { until_ns } if until_ns <= now_ns),
        );
        let (by, beats) = (self.me, &self.beats);
        for (at, held) in &mut self.attempts {
            let (message, repeat) = match &mut held.state {
                HeldJobState::Committed { output, repeat } => {
                    let output = output.clone();
                    (OffloadMessage::Commit { at: *at, by, output }, repeat)
                }
                HeldJobState::Failed { reason, repeat } => {
                    let reason = reason.clone();
                    (OffloadMessage::Abort { at: *at, by, reason }, repeat)
                }
                _ => continue,
            };
            if repeat.next_ns <= now_ns {
                let to = repeat.target(now_ns, held.scheduler, beats);
                repeat.sent(now_ns);
                steps.push(ExecutorStep::Send { to, message });
            }
        }
        let due = self.beats.iter().filter(|(_, next_ns)| **next_ns <= now_ns);
        let due: Vec<SchedulerId> = due.map(|(scheduler, _)| *scheduler).collect();
        for to in due {
            self.beats.insert(to, now_ns + BEAT_NS);
            steps.push(ExecutorStep::Send { to, message: self.beat(to) });
        }
        steps
    }

    /// The beat for one scheduler. It names only the attempts of this scheduler, because a job that
    /// has ended there may have moved to another one.
    fn beat(&self, to: SchedulerId) -> OffloadMessage {
        let running = self.attempts.iter().filter_map(|(at, held)| match held.state {
            HeldJobState::Running { progress_bytes, waits } if held.scheduler == to => {
                Some(Running { at: *at, progress_bytes, waits })
            }
            _ => None,
        });
        OffloadMessage::Beat {
            executor: self.me,
            names: self.offer.names.iter().cloned().collect(),
            address: self.offer.address.clone(),
            slots: if self.is_leaving { 0 } else { self.offer.slots },
            load: self.load,
            reach: self.reach,
            running: running.collect(),
            is_draining: self.is_draining,
        }
    }

    /// Notes a life of a scheduler. Returns whether it is the newest one that is known. A new life
    /// does not know the outputs that were reported to earlier lives, so their messages become due.
    fn obeys(&mut self, life: SchedulerLife) -> bool {
        let newest = self.lives.entry(life.scheduler).or_insert(life.term);
        let known = *newest;
        *newest = known.max(life.term);
        if life.term > known {
            let of_it = |held: &&mut Held| held.scheduler == life.scheduler;
            let held = self.attempts.values_mut().filter(of_it);
            held.filter_map(Held::repeat).for_each(Repeat::hurry);
        }
        life.term >= known
    }

    /// Slots that an attempt holds. An attempt that waits for its verdict holds none.
    fn slots_taken(&self) -> usize {
        let is_taken = |held: &&Held| {
            matches!(held.state, HeldJobState::Offered { .. } | HeldJobState::Running { .. })
        };
        self.attempts.values().filter(is_taken).count()
    }

    fn assigned(
        &mut self,
        now_ns: u64,
        at: AttemptId,
        scheduler: SchedulerId,
        order: &JobOrder,
    ) -> OffloadMessage {
        let by = self.me;
        let decline = |why| OffloadMessage::Decline { at, by, why };
        if self.attempts.contains_key(&at) {
            return OffloadMessage::Accept { at, by };
        }
        if self.ended.contains(&at) {
            return OffloadMessage::NotMine { at, by };
        }
        if self.is_leaving || self.is_draining {
            return decline(DeclineWhy::Leaving);
        }
        if !order.needs.iter().all(|name| self.offer.names.contains(name)) {
            return decline(DeclineWhy::Unknown);
        }
        if self.slots_taken() >= self.offer.slots as usize {
            return decline(DeclineWhy::Busy);
        }
        let state = HeldJobState::Offered { until_ns: now_ns + OFFER_NS };
        let held = Held { scheduler, kind: order.kind, numbers: NumberRange::default(), state };
        self.attempts.insert(at, held);
        OffloadMessage::Accept { at, by }
    }

    fn packed(
        &mut self,
        at: AttemptId,
        to: SchedulerId,
        numbers: NumberRange,
        spec: Payload,
    ) -> Vec<ExecutorStep> {
        let by = self.me;
        let Some(held) = self.attempts.get_mut(&at) else {
            let message = OffloadMessage::NotMine { at, by };
            return vec![ExecutorStep::Send { to, message }];
        };
        let mut steps =
            vec![ExecutorStep::Send { to, message: OffloadMessage::Started { at, by } }];
        if matches!(held.state, HeldJobState::Offered { .. }) {
            held.state = HeldJobState::Running { progress_bytes: 0, waits: false };
            held.numbers = numbers;
            steps.push(ExecutorStep::Run { at, kind: held.kind, numbers, spec });
        }
        steps
    }

    /// Cancels an attempt. An offer ends immediately. A running job is cancelled, and then reports
    /// its failure. A committed attempt waits for the owner's verdict.
    fn cancelled(&mut self, at: AttemptId) -> Vec<ExecutorStep> {
        match self.attempts.get(&at).map(|held| &held.state) {
            Some(HeldJobState::Offered { .. }) => {
                self.end(at);
                Vec::new()
            }
            Some(HeldJobState::Running { .. }) => vec![ExecutorStep::Stop { at }],
            _ => Vec::new(),
        }
    }

    fn decided(&mut self, at: AttemptId, verdict: Verdict) -> Vec<ExecutorStep> {
        let Some(held) = self.attempts.get(&at) else { return Vec::new() };
        if !matches!(held.state, HeldJobState::Committed { .. }) {
            return Vec::new();
        }
        let numbers = held.numbers;
        self.end(at);
        match verdict {
            Verdict::Discard => vec![ExecutorStep::Remove { at, numbers }],
            Verdict::Installed | Verdict::Forget => vec![ExecutorStep::Keep { at }],
        }
    }

    fn end(&mut self, at: AttemptId) {
        self.attempts.remove(&at);
        self.ended.push(at);
        if self.ended.len() > ENDED_MAX {
            self.ended.remove(0);
        }
    }
}
