//! States of a database as its disk fills. Pure functions, without I/O, clock or lock.
//!
//! An acknowledged write must reach the tables some day, and so must a log that a restart replays.
//! Therefore a write is admitted only if the disk has room to flush everything that is in memory,
//! this write included. Recovery needs the same room, because it flushes the content of the log.
//! The room beyond that decides between four states:
//!
//! | state | free bytes | what happens |
//! | --- | --- | --- |
//! | *roomy* | more than the rest, twice the flush room, the compaction room and the slack | everything |
//! | *tight* | less than that, or more in memory than half of what the reserve of a small disk can take | memtables are flushed early, no log segment is kept for reuse |
//! | *low* | less than the rest, the flush room and the compaction room | only writes that free space |
//! | *critical* | with the reserve, less than the flush room and the rest | reads |
//!
//! The *compaction room* is the room for the largest job that takes deletions down one level, at
//! most an eighth of the disk. The *reserve* is a ballast file ([`archipelago_env::ballast`]). The
//! database releases it for deletes, flushes and compactions that free space. It writes the reserve
//! anew as soon as the bytes are free in addition to the flush room. Until then ordinary writes
//! leave these bytes free.
//!
//! What must fit between a measurement and the moment when a flush of all memory is installed:
//!
//! | bytes | bound | term |
//! | --- | --- | --- |
//! | records and blocks of the tables | bytes in memory, which count 48 a record beside key and value; a sixteenth for index and filter | [`flush_room`] |
//! | properties, a last block and rounding of each table | 8 KiB | [`flush_room`] |
//! | log that is in memory mapped by the log, and not in its file | known | `unwritten_bytes` |
//! | a manifest that is begun anew before the old one goes | the length of the present one | `manifest_bytes` |
//! | the edit, a log segment with its header, `CURRENT`, a mark, directory blocks: 32 blocks | 128 KiB | [`SLACK_BYTES`] |
//! | writes until the next measurement: log, and flush room | an eighth of what is left over for each | [`Verdict::credit_bytes`] |
//!
//! The first two rows are the *flush room*, the next three the *rest*. The index of a table may
//! exceed the sixteenth if most keys are longer than a block and differ only behind that length.
//!
//! On a *small* disk (below 1 GiB) the reserve alone must carry a flush of all memory, because
//! another program can take the free bytes at any time. A write that would make the flush room and
//! the rest exceed the reserve waits for a flush ([`must_wait`]). On a larger disk memory is often
//! larger than the reserve. The state *tight* notices there what another program takes.
//!
//! Invariants:
//! 1. A larger free room never makes a worse state.
//! 2. A state that admits ordinary writes leaves the flush room free after
//!    [`Verdict::credit_bytes`] more bytes were logged.
//!
//! Cost: a few additions.

/// Smallest number of bytes that stay free for the manifest, directories and rounding to blocks.
pub const SLACK_BYTES: u64 = 128 << 10;
/// Length of a table without its records: index, filter, properties, a block that is not full.
const TABLE_OVERHEAD_BYTES: u64 = 8 << 10;
/// Largest number of bytes in active memtables that are not flushed early while writes are
/// admitted.
const EARLY_FLUSH_BYTES_MIN: u64 = 64 << 10;
/// Largest number of bytes that are logged between two measurements of the disk.
const CREDIT_BYTES_MAX: u64 = 8 << 20;
/// Bytes of log and of flush room that a byte in memory takes, rounded up for safety.
const BYTES_PER_CREDIT: u64 = 8;
/// The reserve and the compaction room each take at most one in this many parts of the disk.
const DISK_SHARE: u64 = 8;
/// A table takes at most one in this many parts of the disk, so that compactions go in steps that
/// fit.
const TABLE_SHARE: u64 = 64;
/// A disk is small if it limits tables to less than this, in bytes.
const SMALL_DISK_TABLE_BYTES: u64 = 16 << 20;
/// Largest number of cuts of one flush.
const CUTS_MAX: usize = 64;
/// Cut tables take at most one in this many parts of the disk, without their records.
const CUTS_SHARE: u64 = 128;
/// Smallest limit on the length of tables in bytes, for any disk.
const TABLE_BYTES_MIN: u64 = 256 << 10;
/// Smallest reserve in bytes that can carry a flush.
const RESERVE_BYTES_MIN: u64 = 64 << 10;
/// Smallest reserve in bytes that databases with small write buffers want.
const RESERVE_BYTES_WANTED_MIN: u64 = 1 << 20;

/// State of the disk, and of the memory that a database has to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceInput {
    /// Bytes that the file system reports as free.
    pub free_bytes: u64,
    /// Length of the reserve.
    pub reserve_bytes: u64,
    /// Length that the reserve should have.
    pub wanted_bytes: u64,
    /// Whether the reserve alone must carry a flush of all memory ([`is_small`]).
    pub is_small: bool,
    /// Length of the tables that a flush of all memory makes ([`flush_room`]).
    pub flush_bytes: u64,
    /// Bytes of the log that its file does not hold yet.
    pub unwritten_bytes: u64,
    /// Length of the manifest.
    pub manifest_bytes: u64,
    /// Room for the largest compaction that takes deletions down ([`compaction_room`]).
    pub compaction_bytes: u64,
}

impl SpaceInput {
    /// Bytes that a flush needs in addition to its tables.
    #[must_use]
    pub fn rest_bytes(&self) -> u64 {
        SLACK_BYTES.saturating_add(self.unwritten_bytes).saturating_add(self.manifest_bytes)
    }

    /// Bytes that a new reserve takes, which ordinary writes leave free. It is 0 while the present
    /// reserve has at least half of the wanted length, because then it is not written anew.
    fn missing_bytes(&self) -> u64 {
        if self.reserve_bytes < self.wanted_bytes / 2 { self.wanted_bytes } else { 0 }
    }

    /// Flush room that memory may take; `u64::MAX` for no bound.
    fn flush_bytes_max(&self) -> u64 {
        if !self.is_small || self.wanted_bytes == 0 {
            return u64::MAX;
        }
        self.wanted_bytes.saturating_sub(self.rest_bytes()).max(RESERVE_BYTES_MIN)
    }

    /// Free bytes below which a flush of all memory needs the room of the reserve.
    fn critical_mark(&self) -> u64 {
        self.flush_bytes.saturating_add(self.rest_bytes())
    }

    /// Whether a flush of all memory needs the room of the reserve.
    #[must_use]
    pub fn needs_reserve(&self) -> bool {
        self.free_bytes < self.critical_mark()
    }

    /// Bytes in active memtables at which they are flushed early.
    #[must_use]
    pub fn early_flush_bytes(&self) -> u64 {
        EARLY_FLUSH_BYTES_MIN.min(self.flush_bytes_max() / 4)
    }
}

/// How full the disk is; the table of the module says how the states are bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceState {
    /// There is room.
    #[default]
    Roomy,
    /// Memory is flushed early.
    Tight,
    /// Writes that do not free space are refused.
    Low,
    /// All writes are refused.
    Critical,
}

impl SpaceState {
    /// The state as reports spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Roomy => "roomy",
            Self::Tight => "tight",
            Self::Low => "low",
            Self::Critical => "critical",
        }
    }

    /// The state of this number, as `self as u8` gives it.
    #[must_use]
    pub fn from_u8(number: u8) -> Self {
        match number {
            0 => Self::Roomy,
            1 => Self::Tight,
            2 => Self::Low,
            _ => Self::Critical,
        }
    }
}

/// Effect of a write on the space that the database takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpaceUse {
    /// The write takes space, as far as is known.
    #[default]
    Takes,
    /// The write leads to space being freed (a delete, an expiry). It may use the reserve.
    Frees,
}

/// Decision that follows from a [`SpaceInput`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How full the disk is.
    pub state: SpaceState,
    /// Bytes that writes may log before the disk is measured again.
    pub credit_bytes: u64,
}

/// Decides the state, and how many bytes writes of `space_use` may log before the next decision.
#[must_use]
pub fn judge(input: &SpaceInput, space_use: SpaceUse) -> Verdict {
    let critical_mark = input.critical_mark();
    let low_mark =
        critical_mark.saturating_add(input.compaction_bytes).saturating_add(input.missing_bytes());
    let tight_mark = low_mark.saturating_add(input.flush_bytes).saturating_add(SLACK_BYTES);
    let flush_bytes_max = input.flush_bytes_max();
    let with_reserve = input.free_bytes.saturating_add(input.reserve_bytes);
    let state = if with_reserve < critical_mark {
        SpaceState::Critical
    } else if input.free_bytes < low_mark {
        SpaceState::Low
    } else if input.free_bytes < tight_mark || input.flush_bytes > flush_bytes_max / 2 {
        SpaceState::Tight
    } else {
        SpaceState::Roomy
    };
    let margin = match space_use {
        SpaceUse::Takes => input.free_bytes.saturating_sub(low_mark),
        SpaceUse::Frees => with_reserve.saturating_sub(critical_mark),
    };
    let in_memory = flush_bytes_max.saturating_sub(input.flush_bytes);
    let credit_bytes = margin.min(in_memory) / BYTES_PER_CREDIT;
    Verdict { state, credit_bytes: credit_bytes.min(CREDIT_BYTES_MAX) }
}

/// Whether a write has to wait for a flush, because the reserve of a small disk would not carry all
/// memory with it. `before` is the state without the write, `after` the state with it. A write that
/// is larger than the reserve waits only until memory is half empty.
#[must_use]
pub fn must_wait(before: &SpaceInput, after: &SpaceInput) -> bool {
    let most = before.flush_bytes_max();
    after.flush_bytes > most && before.flush_bytes > most / 2
}

/// Whether the reserve lacks bytes and the disk has room to write it.
#[must_use]
pub fn may_write_reserve(input: &SpaceInput) -> bool {
    let missing = input.missing_bytes();
    let others = input.critical_mark().saturating_add(SLACK_BYTES);
    missing > 0 && input.free_bytes >= missing.saturating_add(others)
}

/// Whether a disk in `state` admits a write of that use.
#[must_use]
pub fn admits(state: SpaceState, space_use: SpaceUse) -> bool {
    match space_use {
        SpaceUse::Takes => state < SpaceState::Low,
        SpaceUse::Frees => state < SpaceState::Critical,
    }
}

/// Largest length of the tables that a flush of `memory_bytes` into `tables` tables makes.
#[must_use]
pub fn flush_room(memory_bytes: u64, tables: u64) -> u64 {
    if memory_bytes == 0 {
        return 0;
    }
    let overhead = memory_bytes / 16;
    memory_bytes
        .saturating_add(overhead)
        .saturating_add(tables.saturating_mul(TABLE_OVERHEAD_BYTES))
}

/// Room in bytes to keep for compactions on a disk of `disk_bytes`. The largest job that takes
/// deletions down reads `largest_job_bytes`.
#[must_use]
pub fn compaction_room(disk_bytes: u64, largest_job_bytes: u64) -> u64 {
    largest_job_bytes.min(disk_bytes / DISK_SHARE)
}

/// Length of the reserve on a disk of `disk_bytes`: `buffer_bytes`, the length of one memtable of
/// every family, but at least 1 MiB. It is at most `limit_bytes` and an eighth of the disk. 0 is no
/// reserve.
#[must_use]
pub fn reserve_wanted(limit_bytes: u64, buffer_bytes: u64, disk_bytes: u64) -> u64 {
    let wanted = buffer_bytes.max(RESERVE_BYTES_WANTED_MIN).min(limit_bytes);
    let bytes = wanted.min(disk_bytes / DISK_SHARE);
    if bytes < RESERVE_BYTES_MIN { 0 } else { bytes }
}

/// Length that a manifest may have on a disk of `disk_bytes`, whatever the length of its snapshot.
#[must_use]
pub fn manifest_length(disk_bytes: u64) -> u64 {
    (disk_bytes / TABLE_SHARE).max(SLACK_BYTES / 4)
}

/// Largest number of cuts of one flush on a disk of `disk_bytes`. It keeps the fixed length of the
/// tables a small part of the disk.
#[must_use]
pub fn cuts_max(disk_bytes: u64) -> usize {
    let cuts = disk_bytes / CUTS_SHARE / TABLE_OVERHEAD_BYTES;
    usize::try_from(cuts).unwrap_or(CUTS_MAX).clamp(1, CUTS_MAX)
}

/// Size at which tables are closed on a disk of `disk_bytes`, if the settings demand
/// `target_bytes`.
#[must_use]
pub fn table_bytes(target_bytes: u64, disk_bytes: u64) -> u64 {
    target_bytes.min((disk_bytes / TABLE_SHARE).max(TABLE_BYTES_MIN))
}

/// Whether a disk of `disk_bytes` is so small that its reserve must carry all memory.
#[must_use]
pub fn is_small(disk_bytes: u64) -> bool {
    table_bytes(SMALL_DISK_TABLE_BYTES, disk_bytes) < SMALL_DISK_TABLE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn input(free_mib: u64, reserve_mib: u64) -> SpaceInput {
        SpaceInput {
            free_bytes: free_mib * MIB,
            reserve_bytes: reserve_mib * MIB,
            wanted_bytes: 8 * MIB,
            is_small: false,
            flush_bytes: 10 * MIB,
            unwritten_bytes: 0,
            manifest_bytes: 0,
            compaction_bytes: 4 * MIB,
        }
    }

    #[test]
    fn state_follows_free_bytes() {
        let state = |free, reserve| judge(&input(free, reserve), SpaceUse::Takes).state;
        assert_eq!(state(25, 8), SpaceState::Roomy);
        assert_eq!(state(24, 8), SpaceState::Tight);
        assert_eq!(state(14, 8), SpaceState::Low, "slack is missing");
        assert_eq!(state(3, 8), SpaceState::Low);
        assert_eq!(state(2, 8), SpaceState::Critical);
        assert_eq!(state(10, 0), SpaceState::Critical);
        let unwritten = SpaceInput { unwritten_bytes: MIB, ..input(3, 8) };
        assert_eq!(judge(&unwritten, SpaceUse::Frees).state, SpaceState::Critical);
        let long_manifest = SpaceInput { manifest_bytes: MIB, ..input(15, 8) };
        assert_eq!(judge(&long_manifest, SpaceUse::Takes).state, SpaceState::Low);
    }

    #[test]
    fn more_room_never_makes_a_worse_state() {
        let mut before = SpaceState::Critical;
        for free in 0..40 {
            let state = judge(&input(free, 8), SpaceUse::Takes).state;
            assert!(state <= before, "{free} MiB: {state:?} after {before:?}");
            before = state;
        }
        assert_eq!(before, SpaceState::Roomy);
    }

    #[test]
    fn credit_keeps_the_flush_room() {
        for free in 0..200 {
            let input = input(free, 8);
            for space_use in [SpaceUse::Takes, SpaceUse::Frees] {
                let Verdict { state, credit_bytes } = judge(&input, space_use);
                if !admits(state, space_use) {
                    assert_eq!(credit_bytes, 0, "{free} MiB, {space_use:?}");
                    continue;
                }
                // A logged byte takes itself and its flush room; small records take the most.
                let later = SpaceInput {
                    free_bytes: input.free_bytes.saturating_sub(credit_bytes),
                    unwritten_bytes: credit_bytes,
                    flush_bytes: input.flush_bytes + 2 * credit_bytes,
                    ..input
                };
                assert_ne!(judge(&later, space_use).state, SpaceState::Critical, "{free} MiB");
            }
        }
    }

    #[test]
    fn deletes_are_admitted_until_the_reserve_is_used_up() {
        use SpaceState::{Critical, Low, Roomy, Tight};
        let taking = [Roomy, Tight, Low, Critical].map(|state| admits(state, SpaceUse::Takes));
        let freeing = [Roomy, Tight, Low, Critical].map(|state| admits(state, SpaceUse::Frees));
        assert_eq!((taking, freeing), ([true, true, false, false], [true, true, true, false]));
    }

    #[test]
    fn reserve_is_written_before_ordinary_writes_are_taken() {
        let without = |free| input(free, 0);
        assert_eq!(judge(&without(22), SpaceUse::Takes).state, SpaceState::Low);
        assert_eq!(judge(&without(23), SpaceUse::Takes).state, SpaceState::Tight);
        assert!(!may_write_reserve(&without(18)) && may_write_reserve(&without(19)));
        assert!(!may_write_reserve(&input(1000, 8)), "nothing is missing");
    }

    #[test]
    fn memory_of_a_small_disk_fits_its_reserve() {
        let small = |flush_mib: u64| SpaceInput {
            is_small: true,
            flush_bytes: flush_mib * MIB,
            manifest_bytes: MIB - SLACK_BYTES,
            ..input(1000, 8)
        };
        let state = |flush_mib| judge(&small(flush_mib), SpaceUse::Takes).state;
        assert_eq!((state(3), state(4)), (SpaceState::Roomy, SpaceState::Tight));
        // Seven of eight MiB are for tables.
        assert_eq!(judge(&small(3), SpaceUse::Takes).credit_bytes, MIB / 2);
        assert_eq!(judge(&small(7), SpaceUse::Takes).credit_bytes, 0);
        let waits = |before, after| must_wait(&small(before), &small(after));
        assert!(!waits(4, 7) && waits(4, 8) && !waits(3, 100), "large writes pass");
        assert!(!must_wait(&input(1000, 8), &input(1000, 8)), "a large disk has no bound");
        let without_reserve = SpaceInput { wanted_bytes: 0, ..small(100) };
        assert!(!must_wait(&without_reserve, &without_reserve));
    }

    #[test]
    fn credit_keeps_the_reserve_of_a_small_disk_sufficient() {
        for flush_mib in 0..8 {
            let flush_bytes = flush_mib * MIB;
            let before = SpaceInput { is_small: true, flush_bytes, ..input(1000, 8) };
            let Verdict { credit_bytes, .. } = judge(&before, SpaceUse::Takes);
            // Another program takes all that is free, and the credit is used in full.
            let after = SpaceInput {
                free_bytes: 0,
                flush_bytes: flush_bytes + 2 * credit_bytes,
                unwritten_bytes: credit_bytes,
                ..before
            };
            assert_ne!(judge(&after, SpaceUse::Frees).state, SpaceState::Critical, "{flush_mib}");
        }
    }

    #[test]
    fn sizes_follow_the_disk() {
        assert_eq!(reserve_wanted(64 * MIB, 64 * MIB, 1 << 40), 64 * MIB);
        assert_eq!(reserve_wanted(64 * MIB, 64 * MIB, 64 * MIB), 8 * MIB);
        assert_eq!(reserve_wanted(64 * MIB, 4096, 1 << 40), MIB);
        assert_eq!(reserve_wanted(0, 64 * MIB, 1 << 40), 0);
        assert_eq!(reserve_wanted(64 * MIB, 64 * MIB, 400 << 10), 0);
        assert_eq!(table_bytes(64 * MIB, 1 << 40), 64 * MIB);
        assert_eq!(table_bytes(64 * MIB, 64 * MIB), MIB);
        assert_eq!(table_bytes(4 << 10, MIB), 4 << 10);
        assert_eq!([1, 16, 64, 1 << 20].map(|mib| cuts_max(mib * MIB)), [1, 16, 64, 64]);
        assert_eq!(compaction_room(64 * MIB, 30 * MIB), 8 * MIB);
        assert_eq!(compaction_room(64 * MIB, MIB), MIB);
        assert_eq!((flush_room(0, 9), flush_room(16 * MIB, 2)), (0, 17 * MIB + (16 << 10)));
    }
}
