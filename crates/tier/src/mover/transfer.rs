//! Transfers: copying the bytes of a file to another device, for a move or for a copy.
//!
//! A move has five steps:
//! 1. Create the target and copy the bytes.
//! 2. Sync the target and read it back.
//! 3. Sync the target's directory.
//! 4. Record the move. This publishes it: every handle gets a route to the target.
//! 5. The source is removed once its last reader is gone and the record is settled.
//!
//! Before step 4 the source is the file, and from then on the target. At every moment one of them
//! counts. A copy for reading has the same steps except the last, and is recorded only when it is
//! whole. A file that its device lost is restored in the same way from a whole copy, which stays
//! until the restored file is durable (`move.restored`).
//!
//! Thread-safety: any thread may run a job; a file has one job at a time.
//! Failure: a failed job leaves the source, and removes its target. Errors are noted for the device
//! that caused them. A job whose file is removed, or whose tiers are closed, ends without a failure
//! ([`JobEnd::Obsolete`]). Steps have the fault points `move.begin`, `move.copied`, `move.synced`,
//! `move.before_publish` and `move.published`, and the same with `copy.`.
//! Cost: each byte is read once and written once, and a move reads its target back. The source is
//! prefetched, and the kernel is asked to drop source and target from the page cache.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::checksum::crc_append;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions, RandomFile, WritableFile};

use crate::cache::format::{CHUNK_BYTES, CopyIndex, Extent, lay_out};
use crate::cache::hot_ranges::CopyPlan;
use crate::device::{Count, Device, Writer};
use crate::fs::entry::{CachedCopy, Entry};
use crate::fs::job_queue::{Job, JobKind};
use crate::fs::note_level;
use crate::fs::physical::{Physical, Role};
use crate::fs::shared::{OpenTiers, is_direct};
use crate::history::Reason;
use crate::namespace::Moment;
use crate::namespace::record::{CopyRecord, FilePlace, Record};

/// Bytes that are copied in one step.
const PIECE_BYTES: u64 = 1 << 20;
/// Number of pieces that are prefetched ahead of the copy.
const READS_AHEAD: usize = 4;
const AHEAD_BYTES: u64 = READS_AHEAD as u64 * PIECE_BYTES;

/// How a job ended.
#[derive(Debug)]
pub(super) enum JobEnd {
    /// The file was moved or copied, or needed neither.
    Done,
    /// The job lost its purpose before it ended. This is not a failure.
    Obsolete(Obsolete),
    /// The job failed. The file is where it was.
    Failed(Error),
}

/// Reason for which a job lost its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obsolete {
    /// The tiers are being closed.
    Closing,
    /// The file was removed.
    Removed,
    /// Growing files need the space that the copy would take.
    NoRoom,
}

impl fmt::Display for Obsolete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closing => "the tiers are being closed",
            Self::Removed => "the file was removed while it was moved or copied",
            Self::NoRoom => "growing files need the space of the copy",
        })
    }
}

impl Obsolete {
    /// The error of a caller that waits for the job.
    pub(super) fn into_error(self) -> Error {
        let kind = match self {
            Self::Closing => ErrorKind::Closed,
            Self::Removed => ErrorKind::NotFound,
            Self::NoRoom => ErrorKind::Busy,
        };
        Error::new(kind, self.to_string())
    }
}

/// Executes a job. A target that was begun and not finished is removed.
pub(super) fn run(shared: &Arc<OpenTiers>, job: &Job) -> JobEnd {
    match try_to_run(shared, job) {
        Ok(()) => JobEnd::Done,
        Err(Trouble::Obsolete(obsolete)) => JobEnd::Obsolete(obsolete),
        Err(Trouble::Source(error) | Trouble::Target(error)) => JobEnd::Failed(error),
    }
}

fn try_to_run(shared: &Arc<OpenTiers>, job: &Job) -> Result<(), Trouble> {
    if job.entry.gone.load(Ordering::Relaxed) || job.entry.writers.load(Ordering::Acquire) > 0 {
        return Ok(());
    }
    match &job.kind {
        JobKind::Move => run_move(shared, job),
        // Reads of a missing file are served by its copy already.
        JobKind::Copy(_) if job.entry.inside.lock().missing => Ok(()),
        JobKind::Copy(plan) => run_copy(shared, job, plan),
    }
}

/// The physical file of the original, and an open source of its bytes. The source of a missing file
/// is a whole copy.
fn source(
    shared: &Arc<OpenTiers>,
    entry: &Arc<Entry>,
) -> Result<(Arc<Physical>, Arc<dyn RandomFile>)> {
    let (main, missing) = {
        let inside = entry.inside.lock();
        (Arc::clone(&inside.main), inside.missing)
    };
    if missing {
        let copy = entry.open(shared, &main.path, entry.own_context(), OpenOptions::default())?;
        return Ok((main, copy));
    }
    let file = shared.open_physical(&main, entry.own_context(), OpenOptions::default());
    main.device().note(&file, shared.now_ns());
    Ok((main, file?))
}

fn check_purpose(shared: &OpenTiers, entry: &Entry) -> Result<(), Trouble> {
    if shared.closing.load(Ordering::Relaxed) {
        return Err(Trouble::Obsolete(Obsolete::Closing));
    }
    if entry.gone.load(Ordering::Relaxed) {
        return Err(Trouble::Obsolete(Obsolete::Removed));
    }
    Ok(())
}

/// Reason for which a job does not continue, with the side that failed while a target was written.
#[derive(Debug)]
enum Trouble {
    Obsolete(Obsolete),
    Source(Error),
    Target(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Target(error)
    }
}

/// Notes the outcome for the device that caused it.
fn judge<T>(
    shared: &OpenTiers,
    outcome: Result<T, Trouble>,
    from: &Device,
    to: &Device,
) -> Result<T, Trouble> {
    let now_ns = shared.now_ns();
    match outcome {
        Ok(value) => {
            let outcome = Ok(value);
            to.note(&outcome, now_ns);
            outcome.map_err(Trouble::Target)
        }
        Err(Trouble::Source(error)) => {
            let outcome = Err(error);
            from.note(&outcome, now_ns);
            outcome.map_err(Trouble::Source)
        }
        Err(Trouble::Target(error)) => {
            let outcome = Err(error);
            to.note(&outcome, now_ns);
            outcome.map_err(Trouble::Target)
        }
        Err(Trouble::Obsolete(obsolete)) => Err(Trouble::Obsolete(obsolete)),
    }
}

/// A physical file that is being written. The drop removes it if it is not finished.
struct Target<'a> {
    device: &'a Device,
    path: PathBuf,
    finished: bool,
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = self.device.fs.remove(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "a half-made copy stays until the next open");
        }
    }
}

/// Copies the bytes of the source to the writer, and passes each piece to `each`.
fn copy_all(
    shared: &OpenTiers,
    job: &Job,
    source: &dyn RandomFile,
    writer: &mut dyn WritableFile,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Trouble> {
    let (entry, to) = (&job.entry, &shared.devices[job.to]);
    let (mut at, end) = (0, source.len());
    let mut piece = vec![0; PIECE_BYTES.min(end.max(1)) as usize];
    source.prefetch(at, AHEAD_BYTES.min(end));
    while at < end {
        check_purpose(shared, entry)?;
        let part = &mut piece[..PIECE_BYTES.min(end - at) as usize];
        source.read_exact_at(at, part, entry.own_context()).map_err(Trouble::Source)?;
        to.timed(|| shared.now_ns(), part.len(), || writer.append(part))?;
        each(part);
        at += part.len() as u64;
        if at + AHEAD_BYTES - PIECE_BYTES < end {
            source.prefetch(at + AHEAD_BYTES - PIECE_BYTES, PIECE_BYTES);
        }
    }
    source.forget(0, end);
    Ok(())
}

fn run_move(shared: &Arc<OpenTiers>, job: &Job) -> Result<(), Trouble> {
    let entry = &job.entry;
    let to = &shared.devices[job.to];
    let was_missing = entry.inside.lock().missing;
    let (main, source) = source(shared, entry)?;
    if main.device == job.to && !was_missing {
        return Ok(());
    }
    shared.fault_point("move.begin")?;
    shared.make_room(job.to, source.len());
    let place = {
        let mut names = shared.names.lock();
        let file = names.space.state.files.get(&entry.id);
        // Logs of one directory lie together.
        let dir = file.map_or(0, |file| file.place.dir);
        FilePlace { device: to.no, number: names.space.allocate(), dir }
    };
    to.make_dir(&to.dir_of(place))?;
    let (number, path) = (place.number, to.path_of(place, entry.class));
    let mut target = Target { device: to, path: path.clone(), finished: false };
    let crc = {
        let _writer = Device::writing(&shared.devices, job.to, Writer::Move);
        let outcome = write_all(shared, job, &*source, &path);
        match outcome {
            // The device of the copy caused this error, and not the device that lost the file.
            Err(Trouble::Source(error)) if was_missing => return Err(Trouble::Source(error)),
            outcome => judge(shared, outcome, main.device(), to)?,
        }
    };
    shared.fault_point("move.synced")?;
    check(shared, job, &path, source.len(), crc)?;
    to.fs.sync_dir(&to.dir_of(place))?;
    shared.fault_point("move.before_publish")?;
    let role = Role::File;
    let moved = Physical::new(&shared.devices, job.to, number, path, role, &shared.trash);
    moved.set_len(source.len());
    let len = source.len();
    drop(source);
    // The open source counts as a reader of the file, so it is closed before the move is published.
    let published =
        publish_move(shared, entry, &main, &Moved { physical: &moved, place }, &mut target);
    published.inspect_err(|_| moved.set_len(0))?;
    if was_missing {
        found_again(shared, entry)?;
    }
    main.device().add(Count::FilesOut, 1);
    to.add(Count::FilesIn, 1);
    to.add(Count::BytesMovedIn, len);
    let level = entry.level();
    if let Some(level) = level {
        note_level(to, level);
    }
    let from = &main.device().name;
    let level = level.map_or_else(|| "a file".to_owned(), |level| format!("a file of L{level}"));
    let what = format!("{level} ({len} bytes) moved from {from} to {}", to.name);
    shared.history.tell(shared.now_ms(), what, job.reason.clone());
    drop(main);
    shared.fault_point("move.published")?;
    shared.wake_workers();
    Ok(())
}

/// Makes a restored file durable, so that its copies may be dropped again. Until then they stay,
/// because a power loss may undo the record.
fn found_again(shared: &Arc<OpenTiers>, entry: &Arc<Entry>) -> Result<()> {
    shared.fault_point("move.restored")?;
    shared.sync()?;
    let mut inside = entry.inside.lock();
    inside.missing = false;
    entry.move_owed_ms.store(0, Ordering::Relaxed);
    entry.move_tries.store(0, Ordering::Relaxed);
    if let Err(error) = entry.reroute(&mut inside, shared) {
        tracing::warn!(%error, "a handle of a restored file still reads its copy");
    }
    Ok(())
}

/// Writes the whole target and syncs it. Returns the checksum of its bytes.
fn write_all(
    shared: &OpenTiers,
    job: &Job,
    source: &dyn RandomFile,
    path: &std::path::Path,
) -> Result<u32, Trouble> {
    let to = &shared.devices[job.to];
    let options = shared.create_options(to, job.entry.class, source.len());
    let mut writer = to.fs.create(path, job.entry.own_context(), options)?;
    let mut crc = 0;
    copy_all(shared, job, source, &mut *writer, |piece| crc = crc_append(crc, piece))?;
    shared.fault_point("move.copied")?;
    to.timed(|| shared.now_ns(), 0, || writer.sync())?;
    Ok(crc)
}

/// Reads the target back and compares it with the source's length and checksum, because the source
/// is removed afterwards.
fn check(shared: &OpenTiers, job: &Job, path: &std::path::Path, len: u64, crc: u32) -> Result<()> {
    let to = &shared.devices[job.to];
    let direct = is_direct(to, job.entry.class);
    let file = to.fs.open(path, job.entry.own_context(), OpenOptions { direct })?;
    if file.len() != len {
        return Err(Error::corrupt(path, file.len(), "the moved file has another length"));
    }
    // The file was synced, so its cached pages are clean. Without them it is read from the device.
    file.forget(0, len);
    let mut piece = vec![0; PIECE_BYTES.min(len.max(1)) as usize];
    let (mut at, mut found) = (0, 0);
    while at < len {
        let part = &mut piece[..PIECE_BYTES.min(len - at) as usize];
        file.read_exact_at(at, part, job.entry.own_context())?;
        found = crc_append(found, part);
        at += part.len() as u64;
    }
    file.forget(0, len);
    if found != crc {
        return Err(Error::corrupt(path, 0, "the moved file has other bytes than its source"));
    }
    Ok(())
}

/// The target of a move, as it is published.
struct Moved<'a> {
    physical: &'a Arc<Physical>,
    place: FilePlace,
}

/// Records the move, so that the target becomes the file. After an error the source is still the
/// file. The target is kept if the record may have been written: the next open uses the file that
/// is recorded, and removes the other file.
fn publish_move(
    shared: &Arc<OpenTiers>,
    entry: &Arc<Entry>,
    from: &Arc<Physical>,
    moved: &Moved<'_>,
    target: &mut Target<'_>,
) -> Result<(), Trouble> {
    let mut names = shared.names.lock();
    if !names.entries.contains_key(&entry.id) {
        return Err(Trouble::Obsolete(Obsolete::Removed));
    }
    // The record may be written despite an error. So the target stays from here on.
    target.finished = true;
    let at = shared.commit(&mut names, &Record::Move { file: entry.id, to: moved.place })?;
    let mut inside = entry.inside.lock();
    inside.main = Arc::clone(moved.physical);
    from.condemn(at);
    drop(names);
    // The move is done, even if a handle cannot open the target. Such a handle keeps the source.
    if let Err(error) = entry.reroute(&mut inside, shared) {
        tracing::warn!(%error, "a handle still uses the previous place of a moved file");
    }
    Ok(())
}

/// Copies a file, or ranges of it.
fn run_copy(shared: &Arc<OpenTiers>, job: &Job, plan: &CopyPlan) -> Result<(), Trouble> {
    let entry = &job.entry;
    let to = &shared.devices[job.to];
    let (main, source) = source(shared, entry)?;
    if main.device <= job.to {
        return Ok(());
    }
    if is_out_of_room(shared, job, plan) {
        return Err(Trouble::Obsolete(Obsolete::NoRoom));
    }
    shared.fault_point("copy.begin")?;
    let number = shared.names.lock().space.allocate();
    let path = to.copy_path(number);
    let (devices, trash) = (&shared.devices, &shared.trash);
    let physical = Physical::new(devices, job.to, number, path, Role::Copy, trash);
    // The bytes of the copy count from the beginning.
    physical.set_len(plan.bytes_taken());
    let from = CopySource { device: main.device(), file: &*source };
    let made = make_copy(shared, job, plan, &from, &physical);
    let len = made.inspect_err(|_| physical.set_len(0))?;
    to.add(Count::CopiesMade, 1);
    to.add(Count::BytesCopiedIn, len);
    let what = match plan.whole {
        true => format!("a file ({len} bytes) copied to {}", to.name),
        false => {
            format!("{} ranges of a file ({len} bytes) copied to {}", plan.ranges.len(), to.name)
        }
    };
    shared.history.tell(shared.now_ms(), what, job.reason.clone());
    shared.fault_point("copy.published")?;
    Ok(())
}

/// The original of a copy.
struct CopySource<'a> {
    device: &'a Device,
    file: &'a dyn RandomFile,
}

/// Writes a copy and publishes it. Returns its length. A failed copy leaves nothing behind.
fn make_copy(
    shared: &Arc<OpenTiers>,
    job: &Job,
    plan: &CopyPlan,
    source: &CopySource<'_>,
    physical: &Arc<Physical>,
) -> Result<u64, Trouble> {
    let (entry, to) = (&job.entry, &shared.devices[job.to]);
    let (number, path) = (physical.number, &physical.path);
    let mut target = Target { device: to, path: path.clone(), finished: false };
    let mut index = CopyIndex::new(shared.id, entry.id, lay_out(&plan.ranges));
    let (len, crc) = {
        let _writer = Device::writing(&shared.devices, job.to, Writer::Copy);
        let outcome = write_copy(shared, job, source.file, path, &mut index);
        judge(shared, outcome, source.device, to)?
    };
    shared.fault_point("copy.synced")?;
    to.fs.sync_dir(&to.cache_dir())?;
    shared.fault_point("copy.before_publish")?;
    physical.set_len(len);
    let copy = CachedCopy::new(Arc::clone(physical), plan.whole, Some(index));
    let record = CopyRecord { file: entry.id, device: to.no, number, len, crc, whole: plan.whole };
    publish_copy(shared, entry, &copy, record)?;
    target.finished = true;
    shared.evictions.add(job.to, entry, &copy);
    Ok(len)
}

/// Whether the device has no room for the copy any more, because files grew since the decision. The
/// copy that this one replaces counts as gone.
fn is_out_of_room(shared: &OpenTiers, job: &Job, plan: &CopyPlan) -> bool {
    let to = &shared.devices[job.to];
    let inside = job.entry.inside.lock();
    let old = inside.copies.iter().filter(|copy| copy.physical.device == job.to);
    let old: u64 = old.map(|copy| copy.physical.len()).sum();
    drop(inside);
    let leaving = to.leaving.load(Ordering::Relaxed);
    let has = to.unused().saturating_add(leaving).saturating_add(old);
    has < plan.bytes_taken().saturating_add(shared.reserve_of(job.to))
}

/// Writes the data and the index of a copy and syncs them. Returns the copy's length and the
/// checksum of the data.
fn write_copy(
    shared: &OpenTiers,
    job: &Job,
    source: &dyn RandomFile,
    path: &std::path::Path,
    index: &mut CopyIndex,
) -> Result<(u64, u32), Trouble> {
    let to = &shared.devices[job.to];
    let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
    let expected_bytes = index.data_len() + index.data_len() / (CHUNK_BYTES / 4) + CHUNK_BYTES;
    let options = shared.create_options(to, FileClass::Sst, expected_bytes);
    let mut writer = to.fs.create(path, context, options)?;
    let reads = reads_of(index.extents());
    let mut crc = 0;
    let mut append = |bytes: &[u8]| {
        to.timed(|| shared.now_ns(), bytes.len(), || writer.append(bytes))?;
        crc = crc_append(crc, bytes);
        index.push(bytes);
        Ok(())
    };
    let (mut piece, mut waiting) = (Vec::new(), Vec::new());
    reads.iter().take(READS_AHEAD).for_each(|read| source.prefetch(read.0, read.1));
    for (number, (start, len, parts)) in reads.iter().enumerate() {
        check_purpose(shared, &job.entry)?;
        if let Some(read) = reads.get(number + READS_AHEAD) {
            source.prefetch(read.0, read.1);
        }
        piece.resize(*len as usize, 0);
        source
            .read_exact_at(*start, &mut piece, job.entry.own_context())
            .map_err(Trouble::Source)?;
        for (from, to) in parts {
            waiting.extend_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
        }
        // Checksums cover whole chunks.
        let whole = waiting.len() - waiting.len() % CHUNK_BYTES as usize;
        if whole >= PIECE_BYTES as usize {
            append(&waiting[..whole]).map_err(Trouble::Target)?;
            waiting.drain(..whole);
        }
        source.forget(*start, *len);
    }
    append(&waiting).map_err(Trouble::Target)?;
    shared.fault_point("copy.copied")?;
    to.timed(
        || shared.now_ns(),
        0,
        || writer.append(&index.encode()).and_then(|()| writer.sync()),
    )?;
    let len = writer.len();
    drop(writer);
    let written = to.fs.open(path, context, OpenOptions::default())?;
    written.forget(0, len);
    Ok((len, crc))
}

/// Ranges that are closer together than this, in bytes, share a read with the bytes between them. A
/// device with a latency of 60 µs transfers about as many bytes in that time.
const GAP_BYTES: u64 = 64 << 10;

/// A read of the source (start and length), and the ranges of it that are copied (start and end).
type SourceRead = (u64, u64, Vec<(u64, u64)>);

/// Plans the reads, of at most [`PIECE_BYTES`] each, for the ranges of a copy.
fn reads_of(extents: &[Extent]) -> Vec<SourceRead> {
    let mut reads: Vec<SourceRead> = Vec::new();
    for extent in extents {
        let (mut at, end) = (extent.start, extent.start + extent.len);
        while at < end {
            let near = reads
                .last_mut()
                .filter(|(start, len, _)| at < start + len + GAP_BYTES && at < start + PIECE_BYTES);
            let Some((start, len, parts)) = near else {
                let to = end.min(at + PIECE_BYTES);
                reads.push((at, to - at, vec![(at, to)]));
                at = to;
                continue;
            };
            let to = end.min(*start + PIECE_BYTES);
            *len = to - *start;
            parts.push((at, to));
            at = to;
        }
    }
    reads
}

/// Records a copy and gives every handle a route to it. Drops the copies that it replaces.
fn publish_copy(
    shared: &Arc<OpenTiers>,
    entry: &Arc<Entry>,
    copy: &Arc<CachedCopy>,
    record: CopyRecord,
) -> Result<(), Trouble> {
    let mut names = shared.names.lock();
    if !names.entries.contains_key(&entry.id) {
        return Err(Trouble::Obsolete(Obsolete::Removed));
    }
    // The copy replaces one of the same file on the same device. A whole copy also replaces those
    // on slower devices.
    let old: Vec<_> = {
        let inside = entry.inside.lock();
        let device = copy.physical.device;
        let replaces = |held: &&Arc<CachedCopy>| {
            let other = held.physical.device;
            other == device || copy.whole && other > device
        };
        inside.copies.iter().filter(replaces).cloned().collect()
    };
    shared.commit(&mut names, &Record::CopyAdded(record))?;
    for held in &old {
        let record = Record::CopyDropped { number: held.physical.number };
        if let Err(error) = shared.commit_anyway(&mut names, &record) {
            // The next open finds the copy's file missing, or a sound copy. It accepts both.
            tracing::warn!(%error, "the end of a copy was not recorded");
        }
        held.physical.condemn(Moment::default());
        held.physical.device().add(Count::CopiesDropped, 1);
    }
    let mut inside = entry.inside.lock();
    inside.copies.retain(|held| !old.iter().any(|gone| Arc::ptr_eq(gone, held)));
    inside.copies.push(Arc::clone(copy));
    drop(names);
    if let Err(error) = entry.reroute(&mut inside, shared) {
        tracing::warn!(%error, "a handle does not use a new copy");
    }
    drop(inside);
    for held in &old {
        let device = held.physical.device();
        let what = format!("a copy ({} bytes) dropped from {}", held.physical.len(), device.name);
        let faster = held.physical.device > copy.physical.device;
        let reason = if faster { Reason::CopiedHigher } else { Reason::CopiedAnew };
        shared.history.tell(shared.now_ms(), what, reason);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obsolete_job_is_an_error_only_for_a_caller_that_waits() {
        let kind = |why: Obsolete| why.into_error().kind();
        assert_eq!(kind(Obsolete::Closing), ErrorKind::Closed);
        assert_eq!(kind(Obsolete::Removed), ErrorKind::NotFound);
        assert_eq!(kind(Obsolete::NoRoom), ErrorKind::Busy);
    }

    #[test]
    fn near_ranges_share_a_read_and_long_ones_are_cut() {
        let near = lay_out(&[(100, 4000), (50_000, 4000), (200_000, 10)]);
        let one = (100, 53_900, vec![(100, 4100), (50_000, 54_000)]);
        assert_eq!(reads_of(&near), [one, (200_000, 10, vec![(200_000, 200_010)])]);
        let piece = PIECE_BYTES;
        let long = lay_out(&[(0, piece - 10), (piece - 5, 15)]);
        let last = (piece, 10, vec![(piece, piece + 10)]);
        let parts = vec![(0, piece - 10), (piece - 5, piece)];
        assert_eq!(reads_of(&long), [(0, piece, parts), last]);
        let whole = lay_out(&[(0, 2 * piece + 7)]);
        let lens: Vec<u64> = reads_of(&whole).iter().map(|read| read.1).collect();
        assert_eq!(lens, [piece, piece, 7]);
        assert_eq!(reads_of(&[]), []);
    }
}
