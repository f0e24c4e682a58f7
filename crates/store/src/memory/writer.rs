//! The writer of a log in memory, and the position that other threads wait at.
//!
//! One thread at a time has the *turn* and reaches the pool. It acknowledges everything that was
//! submitted before, so the threads that wait for the turn usually find their bytes acknowledged
//! and reach nothing.
//!
//! Invariants:
//! 1. The keeper of layouts runs without a lock, on the thread that has the turn.
//! 2. Nothing is acknowledged from a new extent before its layout is kept.
//! 3. The first error is sticky.
//!
//! Thread-safety: a lock guards the state of the writer; it is taken before that of the pool.
//! Cost: a wait for bytes that are not acknowledged is one call.

use std::sync::Arc;

use archipelago_base::{Error, Result};
use parking_lot::{Condvar, Mutex};

use super::calls::Answer;
use super::logs::{LogName, Survival};
use super::{MemoryPool, PoolCall};
use crate::log::{Layout, LogPosition, LogWriter, NewLog};

/// The writer of a log.
#[derive(Debug)]
pub(super) struct MemoryLogWriter {
    position: Arc<MemoryLogPosition>,
}

/// The part of a writer that threads share.
#[derive(Debug)]
struct MemoryLogPosition {
    pool: MemoryPool,
    log: NewLog,
    progress: Mutex<Progress>,
    /// Notified when the turn is free.
    turn_ended: Condvar,
}

/// State that the writer and its positions share, with offsets in bytes.
#[derive(Debug, Default)]
struct Progress {
    submitted: u64,
    acknowledged: u64,
    synced: u64,
    has_turn: bool,
    finished: Option<Layout>,
    error: Option<Error>,
}

impl Progress {
    fn check(&self) -> Result<()> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Keeps the first error, and returns it for the call that met it.
    fn keep(&mut self, error: Error, name: LogName) -> Error {
        self.error.get_or_insert_with(|| error.context_at(format!("{name} failed before")));
        error
    }
}

impl MemoryLogWriter {
    pub(super) fn new(pool: MemoryPool, log: NewLog) -> Self {
        let (progress, turn_ended) = (Mutex::default(), Condvar::new());
        Self { position: Arc::new(MemoryLogPosition { pool, log, progress, turn_ended }) }
    }
}

impl LogWriter for MemoryLogWriter {
    fn submit(&mut self, parts: &[&[u8]]) -> Result<u64> {
        let position = &*self.position;
        position.progress.lock().check()?;
        let reached = position.pool.reach(PoolCall::LogSubmit, &position.name());
        let mut progress = position.progress.lock();
        progress.check()?;
        if progress.finished.is_some() {
            return Err(Error::closed(format!("{} is finished; begin a new log", position.name())));
        }
        let answer = match reached {
            Ok(answer) => answer,
            Err(error) => return Err(progress.keep(error, position.name())),
        };
        let mut pool = position.pool.shared.pool.lock();
        pool.receive(position.name(), position.log.epoch, parts);
        drop(pool);
        let offset = progress.submitted;
        progress.submitted += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        answer
            .of(PoolCall::LogSubmit, &position.name(), offset)
            .map_err(|error| progress.keep(error, position.name()))
    }

    fn len_bytes(&self) -> u64 {
        self.position.progress.lock().submitted
    }

    fn position(&self) -> Arc<dyn LogPosition> {
        Arc::clone(&self.position) as Arc<dyn LogPosition>
    }

    fn finish(&mut self) -> Result<Layout> {
        let position = &*self.position;
        if let Some(layout) = position.progress.lock().finished.clone() {
            return Ok(layout);
        }
        position.take_turn(|_| false)?;
        position.use_turn(PoolCall::LogFinish, Survival::PowerLoss)?;
        let layout = position.progress.lock().finished.clone();
        layout.ok_or_else(|| Error::internal(format!("{} did not finish", position.name())))
    }
}

/// Outcome of a wait for the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The thread has the turn, and must end it.
    Taken,
    /// The thread's bytes are acknowledged already.
    Needless,
}

impl MemoryLogPosition {
    fn name(&self) -> LogName {
        LogName(self.log.id)
    }

    /// Waits for the turn, unless `is_enough` says that the progress is enough.
    fn take_turn(&self, is_enough: impl Fn(&Progress) -> bool) -> Result<Turn> {
        let mut progress = self.progress.lock();
        loop {
            // Acknowledged bytes stay acknowledged after an error.
            if is_enough(&progress) {
                return Ok(Turn::Needless);
            }
            progress.check()?;
            if !progress.has_turn {
                progress.has_turn = true;
                return Ok(Turn::Taken);
            }
            self.turn_ended.wait(&mut progress);
        }
    }

    /// Makes `call` of the pool, and ends the turn of this thread. Returns the number of bytes that
    /// the call acknowledged.
    fn use_turn(&self, call: PoolCall, survival: Survival) -> Result<u64> {
        let outcome = self.pool.reach(call, &self.name());
        let outcome = outcome.and_then(|answer| self.deliver(call, answer, survival));
        let mut progress = self.progress.lock();
        progress.has_turn = false;
        self.turn_ended.notify_all();
        match outcome {
            Ok(through) => {
                progress.acknowledged = progress.acknowledged.max(through);
                if survival == Survival::PowerLoss {
                    progress.synced = progress.synced.max(through);
                }
                Ok(through)
            }
            Err(error) => Err(progress.keep(error, self.name())),
        }
    }

    fn deliver(&self, call: PoolCall, answer: Answer, survival: Survival) -> Result<u64> {
        let (name, epoch) = (self.name(), self.log.epoch);
        if answer == Answer::ExtentEnded {
            let layout = self.pool.shared.pool.lock().begin_extent(name, epoch)?;
            if !self.pool.shared.sabotage.unrecorded_layout() {
                self.log.keeper.keep(self.log.id, &layout)?;
            }
        }
        let mut progress = self.progress.lock();
        let through = progress.submitted;
        let mut pool = self.pool.shared.pool.lock();
        if call == PoolCall::LogFinish {
            let layout = pool.finish_log(name, epoch, through)?;
            drop(pool);
            answer.of(call, &name, ())?;
            progress.finished = Some(layout);
            return Ok(through);
        }
        pool.acknowledge(name, epoch, through, survival)?;
        drop(pool);
        answer.of(call, &name, through)
    }
}

impl LogPosition for MemoryLogPosition {
    fn wait(&self, end: u64) -> Result<()> {
        let submitted = self.progress.lock().submitted;
        if end > submitted {
            return Err(Error::invalid(format!(
                "{}: a wait for byte {end} of {submitted}; submit the bytes first",
                self.name()
            )));
        }
        match self.take_turn(|progress| progress.acknowledged >= end)? {
            Turn::Needless => Ok(()),
            Turn::Taken => self.use_turn(PoolCall::LogWait, Survival::Kill).map(|_| ()),
        }
    }

    fn sync(&self) -> Result<u64> {
        let submitted = self.progress.lock().submitted;
        match self.take_turn(|progress| progress.synced >= submitted)? {
            Turn::Needless => Ok(submitted),
            Turn::Taken => self.use_turn(PoolCall::LogSync, Survival::PowerLoss),
        }
    }
}
