//! The namespace: logical names to physical places, durable on the home device (Keigo §4.5 keeps it
//! in memory and defers the rest).
//!
//! Order of things, from which "every file is found, exactly one copy counts" follows:
//! 1. A physical file is made first, then its record is appended; a crash in between leaves a
//!    stray that the next open removes.
//! 2. A physical file is removed only when the record that made it superfluous is durable and its
//!    last reader is gone; so a record that power loss takes back finds its file again.
//! 3. A record of creation may survive power loss although the file's own name does not. Marks
//!    say through which record names were synced that were still needed then; a missing file behind
//!    the last mark was never promised and is forgotten, one before it was removed again or is
//!    damage, which is reported.
//! 4. A move copies, syncs file and directory, and then appends its record: before, the source
//!    counts, from then on the target.
//! 5. A generation that has no room is written to the space of the ballast (`ballast.rs`).
//!
//! [`Namespace`] is owned by the tiers, under one lock that no read takes and that is held over an
//! append to the log (a copy into memory on a local device) but not over a sync of it.

pub(crate) mod ballast;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileSystem, LogSync};

use self::log::NamespaceLog;
use self::record::Record;
use self::state::{Gone, State};

/// A generation is begun anew when its log has grown by so much.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// The namespace of open tiers; see the module.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) state: State,
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    log: NamespaceLog,
    /// The log is durable through this offset of this generation.
    durable: u64,
    /// The same, and so are the physical files' names of all records up to here, but for those that
    /// are superfluous.
    settled: u64,
    /// Length of the [`ballast`].
    ballast_bytes: u64,
}

/// A moment in the namespace's history: something is durable once the namespace is durable up to
/// it. Generations come first, so that moments are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

/// See [`Namespace::commit`].
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) gone: Vec<Gone>,
    pub(crate) at: Moment,
    pub(crate) recorded: Result<()>,
}

/// What a sync of the namespace needs, taken under the lock and used without it.
#[derive(Debug)]
pub(crate) struct SyncTicket {
    handle: Arc<dyn LogSync>,
    start: u64,
    generation: u64,
    settles: u64,
}

impl SyncTicket {
    /// Makes everything appended before this call durable; through which offset the log is then.
    pub(crate) fn sync(&self) -> Result<u64> {
        Ok(self.start + self.handle.sync()?)
    }
}

impl Namespace {
    /// Begins generation `generation` with `state`. Everything of it must be durable.
    pub(crate) fn begin(
        fs: Arc<dyn FileSystem>,
        dir: PathBuf,
        id: [u8; 16],
        generation: u64,
        state: State,
    ) -> Result<Self> {
        let mut ballast_bytes = ballast::of(&dir).held(&*fs);
        let begun = (id, generation);
        let log = begin_log(&*fs, &dir, begun, &state, &mut false, &mut ballast_bytes)?;
        let durable = log.end();
        Ok(Self { state, fs, dir, log, durable, settled: durable, ballast_bytes })
    }

    /// The namespace's id.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.log.id()
    }

    /// A number that was never used.
    pub(crate) fn allocate(&mut self) -> u64 {
        let number = self.state.next.max(1);
        self.state.next = number + 1;
        number
    }

    /// Now.
    pub(crate) fn moment(&self) -> Moment {
        Moment { generation: self.log.generation(), offset: self.log.end() }
    }

    /// Until when it is settled: the records are durable, and no recovery can go back behind them.
    /// What they made superfluous may go.
    pub(crate) fn settled(&self) -> Moment {
        Moment { generation: self.log.generation(), offset: self.settled }
    }

    /// Whether something was appended that is not settled.
    pub(crate) fn is_dirty(&self) -> bool {
        self.log.has_failed() || self.log.end() > self.settled
    }

    /// Whether the log has to be begun anew: it failed, or has grown long. Syncs of names come
    /// first (see [`Namespace::renew`]).
    pub(crate) fn wants_renewal(&self) -> bool {
        self.log.has_failed() || self.log.appended() > LOG_BYTES_MAX
    }

    /// Begins a new generation with the state of now. The caller has synced every directory in
    /// which a name was made that is needed. After an error in which it may count already the old
    /// one takes no more, so that nothing is acknowledged that the next open would not find.
    /// `must`: the ballast is given up for it if need be.
    pub(crate) fn renew(&mut self, must: bool) -> Result<()> {
        let generation = (self.log.id(), self.log.generation() + 1);
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

    /// How long a [`ballast`] is to be made, and where, if the one that there is, if any, is
    /// shorter than the next generation may get.
    pub(crate) fn ballast_wanted(&self) -> Option<(PathBuf, u64)> {
        let bytes = ballast::bytes_for(self.log.end());
        (self.ballast_bytes < bytes).then(|| (self.dir.clone(), bytes))
    }

    /// Takes note of a ballast of `bytes` that was written.
    pub(crate) fn put_ballast(&mut self, bytes: u64) -> Result<()> {
        ballast::of(&self.dir).put(&*self.fs)?;
        self.ballast_bytes = bytes;
        Ok(())
    }

    /// Carries a change out and appends it: what it made superfluous, when that may go (once the
    /// namespace is settled until that moment), and whether the change was recorded. Refused
    /// changes change nothing. What was not recorded is by the next [`Namespace::renew`].
    pub(crate) fn commit(&mut self, record: &Record) -> Result<Committed> {
        let gone = self.state.apply(record).map_err(Error::invalid)?;
        let recorded = if self.log.has_failed() {
            Err(Error::new(ErrorKind::Io, "the namespace's log failed before"))
        } else {
            self.log.append(record).map(|_| ())
        };
        let at = match &recorded {
            Ok(()) => self.moment(),
            Err(_) => Moment { generation: self.log.generation() + 1, offset: 0 },
        };
        Ok(Committed { gone, at, recorded })
    }

    /// Appends the mark of a sync: names of records before `names_through` are durable, or
    /// superfluous. Returns what syncs the log.
    pub(crate) fn mark(&mut self, names_through: u64) -> Result<SyncTicket> {
        let (next, at) = (self.state.next, self.log.end());
        let mark = Record::Mark { bytes_through: self.durable, names_through, next };
        let end = self.log.append(&mark)?;
        // With nothing in between the mark itself is covered too.
        let settles = if names_through == at { end } else { names_through };
        let (handle, start) = self.log.sync_handle();
        Ok(SyncTicket { handle, start, generation: self.log.generation(), settles })
    }

    /// Takes note of a finished sync.
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

    /// Ends the log in order.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.log.finish()
    }
}

/// Begins a generation with `state`; where that has no room, in the space of the ballast, if there
/// is one.
fn begin_log(
    fs: &dyn FileSystem,
    dir: &Path,
    generation: ([u8; 16], u64),
    state: &State,
    counts: &mut bool,
    ballast_bytes: &mut u64,
) -> Result<NamespaceLog> {
    let records = (&state.snapshot()[..], state.next);
    match NamespaceLog::begin(fs, dir, generation, records, counts) {
        Err(error)
            if error.is_no_space()
                && !*counts
                && *ballast_bytes > 0
                && ballast::give_up(fs, dir) =>
        {
            *ballast_bytes = 0;
            NamespaceLog::begin(fs, dir, generation, records, counts)
        }
        begun => begun,
    }
}
