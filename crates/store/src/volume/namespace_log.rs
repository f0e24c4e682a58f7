//! The log of the namespace, in generations.
//!
//! A generation is a log with a header, a snapshot of the state, and one frame per commit. The
//! register names the log of the newest one. A new generation begins at a take-over, when the log
//! failed, and when it has grown long:
//!
//! 1. Create a log. No lock is held, and commits go to the old log.
//! 2. Under the lock: encode a snapshot, submit it to the new log, and exchange the logs. From now
//!    on, commits go to the new log.
//! 3. Wait until the snapshot is durable.
//! 4. Name the new log in the register, by compare-and-swap.
//! 5. Declare everything durable that the snapshot has, and release the old log.
//!
//! Invariants:
//! 1. No commit of a log is acknowledged before the register names the log.
//! 2. A log takes no commits after it failed. It takes none after step 4 failed either, because the
//!    register may or may not name it. Its commits are in the snapshot of the next generation.
//! 3. At most one thread begins a generation. The others wait for it and get its error.
//! 4. A commit of an old log is acknowledged by that log, or by the step 5 of a later one. Both
//!    have it, whichever the register names.
//!
//! Thread-safety: the volume's lock guards [`NamespaceCore`]. It is not held over a wait, except
//! for room in the buffer of a log.
//! Failure: an error of a log begins a generation. If that fails too, the waiting callers get its
//! error.
//! Cost: a generation takes three round trips and the bytes of all records.

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::FileClass;

use super::generation::{CommitPlace, GenerationHeader, encode_commit, encode_generation};
use super::pending::{Pending, Superfluous};
use super::record::Record;
use super::registration::RootKeeper;
use super::state::NamespaceState;
use super::{Moment, Volume, closed};
use crate::ids::LogId;
use crate::log::{Layout, LogPosition, LogWriter, NewLog};

/// Growth of the log, in bytes, after which a new generation begins. A longer snapshot permits as
/// much growth as its own length.
const GROWTH_BYTES_MAX: u64 = 4 << 20;

/// Standing of the log of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogStanding {
    /// It takes commits, but the register does not name it yet.
    Beginning,
    /// The register names it.
    Named,
    /// It takes no commits any more.
    Failed,
}

/// The open log of one generation.
#[derive(Debug)]
struct NamespaceLog {
    id: LogId,
    number: u64,
    writer: Box<dyn LogWriter>,
    position: Arc<dyn LogPosition>,
    standing: LogStanding,
    /// Offset through which the log is known to be acknowledged.
    acknowledged: u64,
    /// Length, in bytes, from which on a new generation is due.
    long_from_bytes: u64,
    /// Number and position of the log before, until the register names this one.
    previous: Option<(u64, Arc<dyn LogPosition>)>,
}

/// The attempt to begin a generation, of which there is one at a time.
#[derive(Debug, Default)]
struct GenerationAttempt {
    is_running: bool,
    /// Number of attempts that have ended.
    ended: u64,
    /// Error of the last attempt that ended.
    error: Option<Error>,
}

/// The state that the volume's lock guards.
#[derive(Debug)]
pub(super) struct NamespaceCore {
    pub(super) state: NamespaceState,
    pub(super) pending: Pending,
    /// Source of identities.
    pub(super) rng: Rng,
    /// Position through which all commits are durable.
    pub(super) durable: Moment,
    /// Whether the volume takes no more commits, because it is being closed.
    pub(super) is_closing: bool,
    name: String,
    /// `None` before the first generation of this owner, and after the end of the last one.
    log: Option<NamespaceLog>,
    next_generation: u64,
    attempt: GenerationAttempt,
    /// Buffer for the frame of a commit.
    frame: Vec<u8>,
}

/// The next step of a thread that waits for a position.
enum WaitStep {
    /// Everything before the position is durable.
    Done,
    /// Wait at this position, in the log of the position's generation.
    Log(Arc<dyn LogPosition>),
    /// Begin a generation. The thread is noted as the one that begins it.
    Begin,
}

impl NamespaceLog {
    fn place(&self) -> CommitPlace {
        let (log, offset) = (self.id, self.writer.len_bytes());
        CommitPlace { log, offset, acknowledged: self.acknowledged }
    }
}

impl NamespaceCore {
    /// The state of an owner that has begun no generation yet. `next_generation` is above all
    /// numbers of earlier owners.
    pub(super) fn new(name: &str, state: NamespaceState, next_generation: u64, rng: Rng) -> Self {
        Self {
            state,
            pending: Pending::default(),
            rng,
            durable: Moment::default(),
            is_closing: false,
            name: name.to_owned(),
            log: None,
            next_generation,
            attempt: GenerationAttempt::default(),
            frame: Vec::new(),
        }
    }

    /// The log, if it takes commits.
    fn open_log(&mut self) -> Option<&mut NamespaceLog> {
        self.log.as_mut().filter(|log| log.standing != LogStanding::Failed)
    }

    /// The position after all commits so far. If the log takes none, it is the beginning of the
    /// next generation, whose snapshot has them.
    pub(super) fn moment(&self) -> Moment {
        match &self.log {
            Some(log) if log.standing != LogStanding::Failed => {
                Moment { generation: log.number, offset: log.writer.len_bytes() }
            }
            _ => Moment { generation: self.next_generation, offset: 0 },
        }
    }

    /// Applies and submits one commit ([`Volume::commit`]).
    pub(super) fn commit(&mut self, records: &[Record]) -> Result<Moment> {
        if self.is_closing {
            return Err(closed(&self.name));
        }
        let records = self.pending.prepare(&self.state, records)?;
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        // The frame is encoded even if there is no log. The encoding refuses a record that is too
        // long, which the next snapshot could not contain.
        let nowhere = CommitPlace { log: LogId::default(), offset: 0, acknowledged: 0 };
        let place = self.open_log().map_or(nowhere, |log| log.place());
        let encoded = encode_commit(place, &records, &mut frame);
        let committed = encoded.and_then(|()| self.state.apply_all(&records).map_err(Error::from));
        let submitted = match (&committed, self.open_log()) {
            (Ok(_), Some(log)) => log.writer.submit(&[&frame]).map(|_| ()),
            _ => Ok(()),
        };
        self.frame = frame;
        let gone = committed?;
        if let Err(error) = submitted {
            self.fail_log(&error);
            // The commit is applied in memory, and a fenced owner never records it.
            if error.kind() == ErrorKind::Fenced {
                return Err(error);
            }
        }
        let moment = self.moment();
        self.pending.committed(&records, gone, moment);
        Ok(moment)
    }

    fn fail_log(&mut self, error: &Error) {
        if let Some(log) = self.open_log() {
            log.standing = LogStanding::Failed;
            let (volume, generation) = (&self.name, self.next_generation);
            tracing::warn!(%error, volume, generation, "the namespace's log failed; beginning anew");
        }
    }

    /// Notes the outcome of a wait for `moment` in the log of its generation.
    fn note_wait(&mut self, moment: Moment, waited: &Result<()>) {
        let Moment { generation: number, offset } = moment;
        match waited {
            Ok(()) => {
                self.durable = self.durable.max(moment);
                if let Some(log) = self.log.as_mut().filter(|log| log.number == number) {
                    log.acknowledged = log.acknowledged.max(offset);
                }
            }
            Err(error) if self.log.as_ref().is_some_and(|log| log.number == number) => {
                self.fail_log(error);
            }
            // The failure of an older generation's log does not matter, because a newer generation
            // has its commits.
            Err(_) => {
                let is_failed = |previous: &mut (u64, _)| previous.0 == number;
                let _failed = self.log.as_mut().and_then(|log| log.previous.take_if(is_failed));
            }
        }
    }

    /// Position of the log of the generation `number`, if it can acknowledge commits.
    fn position(&self, number: u64) -> Option<Arc<dyn LogPosition>> {
        let log = self.log.as_ref()?;
        match (log.standing, &log.previous) {
            (LogStanding::Named, _) if log.number == number => Some(Arc::clone(&log.position)),
            (LogStanding::Beginning, Some((previous, position))) if *previous == number => {
                Some(Arc::clone(position))
            }
            _ => None,
        }
    }
}

impl Volume {
    /// Waits until all commits before `moment` are durable. Errors: those of the pool; `Fenced`;
    /// `Closed`.
    pub(super) fn reach(&self, moment: Moment) -> Result<()> {
        loop {
            match self.next_step(moment)? {
                WaitStep::Done => return Ok(()),
                WaitStep::Log(position) => {
                    let waited = self.observe(position.wait(moment.offset));
                    self.core.lock().note_wait(moment, &waited);
                }
                WaitStep::Begin => self.begin_generation()?,
            }
        }
    }

    /// Decides the next step of a thread that waits for `moment`. The call itself waits while
    /// another thread begins a generation.
    fn next_step(&self, moment: Moment) -> Result<WaitStep> {
        let mut core = self.core.lock();
        loop {
            if core.durable >= moment {
                return Ok(WaitStep::Done);
            }
            self.check_open()?;
            if let Some(position) = core.position(moment.generation) {
                return Ok(WaitStep::Log(position));
            }
            if !core.attempt.is_running {
                if core.is_closing && core.log.is_none() {
                    return Err(closed(self.name()));
                }
                core.attempt.is_running = true;
                return Ok(WaitStep::Begin);
            }
            let ended = core.attempt.ended;
            self.generation_ended.wait(&mut core);
            if core.attempt.ended != ended
                && let Some(error) = &core.attempt.error
            {
                return Err(error.clone());
            }
        }
    }

    /// Begins a generation if the log has grown long. An error is reported by the next wait, if the
    /// log is needed then.
    pub(super) fn renew_long_log(&self) {
        {
            let mut core = self.core.lock();
            let is_busy = core.attempt.is_running || core.is_closing;
            let Some(log) = core.log.as_mut().filter(|_| !is_busy) else { return };
            let is_long = log.writer.len_bytes() >= log.long_from_bytes;
            if log.standing != LogStanding::Named || !is_long {
                return;
            }
            // If the attempt fails, the next one comes after more growth.
            log.long_from_bytes += GROWTH_BYTES_MAX / 4;
            core.attempt.is_running = true;
        }
        if let Err(error) = self.begin_generation() {
            tracing::warn!(%error, volume = self.name(), "a long namespace could not be shortened");
        }
    }

    /// Begins a generation. The caller has noted that it begins one. Errors: those of the pool;
    /// `Fenced`.
    pub(super) fn begin_generation(&self) -> Result<()> {
        let begun = self.try_generation().map_err(|error| {
            error.context_at(format!("volume {}: its namespace was not recorded", self.name()))
        });
        let begun = self.observe(begun);
        let mut core = self.core.lock();
        core.attempt.is_running = false;
        core.attempt.ended += 1;
        core.attempt.error = begun.as_ref().err().cloned();
        // The register may or may not name this log, so the log must not acknowledge anything.
        if let (Err(error), Some(LogStanding::Beginning)) =
            (&begun, core.log.as_ref().map(|log| log.standing))
        {
            core.fail_log(error);
        }
        drop(core);
        self.generation_ended.notify_all();
        begun
    }

    fn try_generation(&self) -> Result<()> {
        self.check_open()?;
        let id = LogId::random(&mut self.core.lock().rng);
        self.registration.expect_log(id);
        let keeper = Arc::new(RootKeeper(Arc::clone(&self.registration)));
        let (volume, epoch) = (self.id(), self.epoch());
        let new = NewLog { id, volume, epoch, class: FileClass::Manifest, keeper };
        let (writer, layout) = self.stores.logs.create(new)?;
        self.registration.note_layout(id, layout);
        let position = writer.position();
        let snapshot = self.exchange_logs(id, writer)?;
        position.wait(snapshot.offset)?;
        let replaced = self.registration.install(id)?;
        let mut core = self.core.lock();
        core.note_wait(snapshot, &Ok(()));
        if let Some(log) = core.open_log().filter(|log| log.number == snapshot.generation) {
            log.standing = LogStanding::Named;
            log.previous = None;
        }
        for place in replaced {
            let object = place
                .layout
                .map_or(Superfluous::Strays, |layout| Superfluous::Log(place.log, layout));
            core.pending.release(object, Moment::default());
        }
        Ok(())
    }

    /// Submits a snapshot to the log `id`, and directs all later commits to it. Returns the end of
    /// the snapshot.
    fn exchange_logs(&self, id: LogId, mut writer: Box<dyn LogWriter>) -> Result<Moment> {
        let mut core = self.core.lock();
        let number = core.next_generation;
        let header = GenerationHeader { volume: self.id(), number, epoch: self.epoch() };
        let snapshot = encode_generation(id, &header, &core.state)?;
        writer.submit(&[&snapshot])?;
        let (position, offset) = (writer.position(), snapshot.len() as u64);
        let previous = core.open_log().map(|log| (log.number, Arc::clone(&log.position)));
        let log = NamespaceLog {
            id,
            number,
            writer,
            position,
            standing: LogStanding::Beginning,
            acknowledged: 0,
            long_from_bytes: offset + offset.max(GROWTH_BYTES_MAX),
            previous,
        };
        core.next_generation += 1;
        let replaced = core.log.replace(log);
        drop(core);
        drop(replaced);
        Ok(Moment { generation: number, offset })
    }

    /// Makes all commits durable and ends the log. The volume takes no more commits. Returns the
    /// log with its final layout. Errors: those of the pool; `Fenced`.
    pub(super) fn end_log(&self) -> Result<(LogId, Layout)> {
        self.wait(self.moment())?;
        let log = {
            let mut core = self.core.lock();
            while core.attempt.is_running {
                self.generation_ended.wait(&mut core);
            }
            core.log.take()
        };
        let mut log = log.ok_or_else(|| closed(self.name()))?;
        let layout = self.observe(log.writer.finish())?;
        Ok((log.id, layout))
    }
}
