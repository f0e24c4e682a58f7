//! The namespace: logical names and the physical places of files, durable on the home device
//! (Keigo §4.5 keeps it in memory and leaves durability to later work).
//!
//! [`crate::fs::shared::OpenTiers`] owns the [`Namespace`] under one lock.
//!
//! Invariants. It follows from them that every file is found, and that exactly one place of it
//! counts:
//! 1. A physical file is created before its record is appended. A crash in between leaves a file
//!    without a record, which the next open removes.
//! 2. A physical file is removed only when its last reader is gone and the record that made it
//!    superfluous is durable. So a record that a power loss undoes finds its file again.
//! 3. A record of creation may survive a power loss although the physical file's name does not. A
//!    mark names the record through which all names were synced that were still needed. A missing
//!    file after the last mark was never reported as durable, and is forgotten. A missing file
//!    before it was removed by a later record, or is damage, which is reported.
//! 4. A move copies, syncs file and directory, and then appends its record. Before that record the
//!    source counts, and from then on the target.
//! 5. If a generation has no room, it is written to the space of the ballast ([`ballast`]).
//!
//! Thread-safety: the owner's lock guards all methods. No read takes it. It is held over an append
//! to the log, but not over a sync.
//! Failure: a log that failed takes no more records, and a new generation replaces it. If that
//! fails as well, the change is undone in memory. The device may have it nevertheless: as the last
//! record of the log, or in a generation that failed after its rename. So a crash before the next
//! generation may bring the whole change back. This does no harm, because all files of the states
//! before and after the change still exist. The next generation does not have the change, and no
//! record is appended before that generation.
//! Cost: a change costs an append, which is a copy into memory on a local device.

pub(crate) mod ballast;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::Result;
use archipelago_env::{FileSystem, LogSync};

use self::log::{Generation, NamespaceLog, encode_generation};
use self::record::Record;
use self::state::{Gone, NamespaceState, Undo};

/// Growth of the log, in bytes, after which a new generation begins.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// The namespace of open tiers.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) state: NamespaceState,
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    log: NamespaceLog,
    /// Offset, in this generation, up to which the log is durable.
    durable: u64,
    /// Offset up to which the log is durable, and so are the physical names of all files of these
    /// records that are not superfluous.
    settled: u64,
    /// Length of the [`ballast`] in bytes.
    ballast_bytes: u64,
}

/// A position in the history of the namespace. The generation is compared first, so that positions
/// are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

/// The result of [`Namespace::commit`].
#[derive(Debug)]
pub(crate) struct Committed {
    /// Physical files that the change made superfluous.
    pub(crate) gone: Vec<Gone>,
    /// State with which [`Namespace::undo`] undoes the change.
    pub(crate) undo: Undo,
    /// Position up to which the namespace must be settled before the files of `gone` are removed,
    /// or the reason why the change was not recorded.
    pub(crate) recorded: Result<Moment>,
}

/// A sync of the namespace that was prepared under the lock and runs without it.
#[derive(Debug)]
pub(crate) struct SyncTicket {
    handle: Arc<dyn LogSync>,
    /// Offset from which the handle counts.
    start: u64,
    generation: u64,
    /// Offset up to which the namespace is settled after the sync.
    settles: u64,
}

impl SyncTicket {
    /// Makes all records durable that were appended before this call. Returns the offset up to
    /// which the log is durable then. Errors: those of the home device.
    pub(crate) fn sync(&self) -> Result<u64> {
        Ok(self.start + self.handle.sync()?)
    }
}

impl Namespace {
    /// Begins the generation `generation` with `state`. All files of `state` must be durable.
    /// Errors: those of the home device.
    pub(crate) fn begin(
        fs: Arc<dyn FileSystem>,
        dir: PathBuf,
        id: [u8; 16],
        generation: u64,
        state: NamespaceState,
    ) -> Result<Self> {
        let mut ballast_bytes = ballast::of(&dir).held(&*fs);
        let generation = Generation { id, number: generation };
        let log = begin_log(&*fs, &dir, generation, &state, &mut false, &mut ballast_bytes)?;
        let durable = log.end();
        Ok(Self { state, fs, dir, log, durable, settled: durable, ballast_bytes })
    }

    /// Id of the namespace.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.log.id()
    }

    /// Allocates a number that was never used.
    pub(crate) fn allocate(&mut self) -> u64 {
        let number = self.state.next.max(1);
        self.state.next = number + 1;
        number
    }

    /// The present position.
    pub(crate) fn moment(&self) -> Moment {
        Moment { generation: self.log.generation(), offset: self.log.end() }
    }

    /// Position up to which records are durable. No recovery returns to a state before it, so files
    /// that those records superseded may be removed.
    pub(crate) fn settled(&self) -> Moment {
        Moment { generation: self.log.generation(), offset: self.settled }
    }

    /// Whether a record was appended that is not settled.
    pub(crate) fn is_dirty(&self) -> bool {
        self.log.has_failed() || self.log.end() > self.settled
    }

    /// Whether a new generation is due, because the log failed or has grown long. Before that, the
    /// caller syncs names ([`Namespace::renew`]).
    pub(crate) fn wants_renewal(&self) -> bool {
        self.log.has_failed() || self.log.appended() > LOG_BYTES_MAX
    }

    /// Begins a new generation with the present state. The caller has synced every directory with a
    /// new name that is needed. With `must`, the ballast is given up if there is no room.
    ///
    /// Errors: those of the home device. If the new generation may count despite the error, the old
    /// one takes no more records, so that no record is reported which the next open would not find.
    pub(crate) fn renew(&mut self, must: bool) -> Result<()> {
        let generation = Generation { id: self.log.id(), number: self.log.generation() + 1 };
        let (mut counts, mut none) = (false, 0);
        let ballast_bytes = if must { &mut self.ballast_bytes } else { &mut none };
        let begun =
            begin_log(&*self.fs, &self.dir, generation, &self.state, &mut counts, ballast_bytes);
        let log = begun.inspect_err(|_| {
            if counts {
                self.log.fail();
            }
        })?;
        (self.durable, self.settled) = (log.end(), log.end());
        self.log = log;
        Ok(())
    }

    /// Directory and length of a [`ballast`] that should be written. `None` if the present ballast
    /// is as long as the next generation may get.
    pub(crate) fn ballast_wanted(&self) -> Option<(PathBuf, u64)> {
        let bytes = ballast::bytes_for(self.log.end());
        (self.ballast_bytes < bytes).then(|| (self.dir.clone(), bytes))
    }

    /// Notes a ballast of `bytes` that was written. Errors: those of the home device.
    pub(crate) fn put_ballast(&mut self, bytes: u64) -> Result<()> {
        ballast::of(&self.dir).put(&*self.fs)?;
        self.ballast_bytes = bytes;
        Ok(())
    }

    /// Carries out a change and appends its record. A change that could not be recorded is part of
    /// the next generation ([`Namespace::renew`]), unless the caller undoes it
    /// ([`Namespace::undo`]). Errors: the refusal of a change that contradicts the state,
    /// which stays as it was.
    pub(crate) fn commit(&mut self, record: &Record) -> Result<Committed> {
        let change = self.state.change(record)?;
        let recorded = self.log.append(record).map(|_| self.moment());
        Ok(Committed { gone: change.gone, undo: change.undo, recorded })
    }

    /// Undoes the latest change, which could not be recorded, so that the next generation is
    /// without it.
    pub(crate) fn undo(&mut self, undo: Undo) {
        self.state.undo(undo);
    }

    /// Appends the mark of a sync: the names of all records before `names_through` are durable or
    /// superfluous. Returns a ticket that syncs the log. Errors: those of the home device; `Io` if
    /// the log failed before.
    pub(crate) fn mark(&mut self, names_through: u64) -> Result<SyncTicket> {
        let (next, at) = (self.state.next, self.log.end());
        let mark = Record::Mark { bytes_through: self.durable, names_through, next };
        let end = self.log.append(&mark)?;
        // If no record came after `names_through`, the mark covers itself as well.
        let settles = if names_through == at { end } else { names_through };
        let (handle, start) = self.log.sync_handle();
        Ok(SyncTicket { handle, start, generation: self.log.generation(), settles })
    }

    /// Notes the outcome of a sync.
    pub(crate) fn synced(&mut self, outcome: &Result<u64>, ticket: &SyncTicket) {
        if ticket.generation != self.log.generation() {
            return;
        }
        match outcome {
            Ok(through) => {
                self.durable = self.durable.max(*through);
                self.settled = self.settled.max(ticket.settles);
            }
            Err(_) => self.log.fail(),
        }
    }

    /// Ends the log in order. Errors: those of the home device.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.log.finish()
    }
}

/// Begins a generation with `state`. If it has no room, gives up the ballast and tries again.
fn begin_log(
    fs: &dyn FileSystem,
    dir: &Path,
    generation: Generation,
    state: &NamespaceState,
    counts: &mut bool,
    ballast_bytes: &mut u64,
) -> Result<NamespaceLog> {
    let snapshot =
        encode_generation(&generation.id, generation.number, &state.snapshot(), state.next);
    match NamespaceLog::begin(fs, dir, generation, &snapshot, counts) {
        Err(error)
            if error.is_no_space()
                && !*counts
                && *ballast_bytes > 0
                && ballast::give_up(fs, dir) =>
        {
            *ballast_bytes = 0;
            NamespaceLog::begin(fs, dir, generation, &snapshot, counts)
        }
        begun => begun,
    }
}
