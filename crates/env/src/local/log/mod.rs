//! Log segments of the local file system. A small mapped ring takes each append as a copy in
//! memory, and a drainer thread moves the bytes to the segment's file in large writes.
//!
//! The ring is a file in the directory of the segment (`wal-0.ring`; 4 MiB and a page), which is
//! allocated and prefaulted before use. Its pages belong to the kernel, so appended bytes survive
//! `kill -9`, and [`tail`] finds them. Only the segment's file survives power loss: a sync drains,
//! and then calls `fdatasync`.
//!
//! A segment uses one `write` for each append instead if a mapping could fault (network,
//! copy-on-write and unknown file systems), if the ring cannot be created, or if it would take more
//! than an eighth of the free space. `docs/formats/wal.md` has the layout, and decision 0002 has
//! the reasons.
//!
//! Thread-safety: as [`LogFile`] and [`LogSync`](crate::fs::LogSync) say. One process uses a
//! directory, which the lock file of the database ensures. Failure: the errors of a segment are
//! sticky. Cost of an append: one copy in memory.

mod layout;
mod mapping;
mod ring;
mod segment;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use archipelago_base::{Epoch, Error, Result};

use self::segment::RingLog;
use super::modes::Modes;
use super::plain_log;
use super::tables::with_room;
use crate::context::IoContext;
use crate::fs::{LogFile, LogOptions, LogTail};

/// Creates the log segment `path`, with a ring if that is safe. [`crate::FileSystem::create_log`]
/// has the contract.
pub(super) fn create(
    path: &Path,
    _context: IoContext,
    options: &LogOptions,
    modes: Modes,
) -> Result<Box<dyn LogFile>> {
    let dir = directory(path);
    let ring = if mapping_is_safe(dir) { ring::take(dir, modes).ok().flatten() } else { None };
    let Some(ring) = ring else { return plain_log::create(path, options, modes) };
    match open_segment(path, options, modes) {
        Ok(file) => Ok(Box::new(RingLog::new(path.to_owned(), file, options.incarnation, ring))),
        Err(error) => {
            ring.release(true);
            Err(error)
        }
    }
}

/// Creates the log segment `path` without a ring, with one `write` for each append. Only the owner
/// may use it.
pub fn create_plain(path: &Path, options: &LogOptions) -> Result<Box<dyn LogFile>> {
    plain_log::create(path, options, Modes::default())
}

/// The bytes of `incarnation` in the rings next to `path` that its file may not have.
/// [`crate::FileSystem::log_tail`] has the contract.
pub fn tail(path: &Path, incarnation: Epoch) -> Result<Option<LogTail>> {
    ring::tail(directory(path), incarnation)
}

/// Empties the rings in `dir` that no open segment uses. [`crate::FileSystem::clear_log_tails`] has
/// the contract.
pub fn clear_tails(dir: &Path) -> Result<()> {
    ring::clear(dir)
}

/// Writes the bytes that the rings have of the given ranges into the segment's file, and syncs it.
/// [`crate::FileSystem::settle_log`] has the contract.
pub fn settle(path: &Path, incarnation: Epoch, ranges: &[Range<u64>]) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let failed = |doing: &'static str| move |error| Error::io(doing, path, error);
    let file = std::fs::OpenOptions::new().write(true).open(path).map_err(failed("open"))?;
    if let Some(tail) = tail(path, incarnation)? {
        let end = tail.offset + tail.bytes.len() as u64;
        for range in ranges {
            let (from, to) = (range.start.max(tail.offset), range.end.min(end));
            if from < to {
                let part = (from - tail.offset) as usize..(to - tail.offset) as usize;
                file.write_all_at(&tail.bytes[part], from).map_err(failed("append to"))?;
            }
        }
    }
    file.sync_all().map_err(failed("sync"))
}

/// The kernel's random number of this boot, for [`crate::FileSystem::boot_id`].
#[must_use]
pub fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_le_bytes)
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Whether a write to allocated pages of a mapped file cannot fail for lack of space or of a
/// server. That holds for file systems that overwrite in place.
fn mapping_is_safe(dir: &Path) -> bool {
    const EXT: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const TMPFS: u64 = 0x0102_1994;
    let kind = rustix::fs::statfs(dir).map(|stat| stat.f_type as u64);
    matches!(kind, Ok(EXT | XFS | TMPFS))
}

#[expect(clippy::disallowed_methods, reason = "this is the lowest layer")]
fn open_segment(path: &Path, options: &LogOptions, modes: Modes) -> Result<File> {
    if let Some(old) = &options.recycle {
        std::fs::rename(old, path).map_err(|error| Error::io("rename", old, error))?;
    }
    let fresh = options.recycle.is_none();
    let failed = |error| Error::io("create", path, error);
    let mut how = modes.creating();
    how.write(true).truncate(fresh);
    let file = with_room(|| how.open(path)).map_err(failed)?;
    modes.settle(&file, path).map_err(failed)?;
    Ok(file)
}
