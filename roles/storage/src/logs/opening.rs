//! The opening of the extents of a restarted node.
//!
//! The node calls [`open_extents`] once, before it answers a request. For every extent that was not
//! sealed it reads the files and finds the end of the valid prefix:
//!
//! 1. After a close, or after a kill of the process under the same boot id, no answered bytes are
//!    lost. They are in the files, or in the tails that the file system kept. The last group may be
//!    torn, because its append did not return.
//! 2. If the machine may have restarted in between, unsynced bytes may be lost. The extent is then
//!    in *limbo*: it keeps the bytes that it has, takes no appends, and says that it may have lost
//!    bytes.
//! 3. Three further cases put an extent into limbo durably: bad bytes that a kill cannot have left,
//!    bytes that cannot be read, and a missing file. The opening clears the kept tails, so the next
//!    one may find a clean end where this one did not. A device that was missing may return without
//!    bytes that it had not written.
//! 4. If the prefix ends before the mark of the last sync, or before the end of a sealed extent,
//!    then durable bytes are lost. The extent is *damaged*: its length proves nothing. The metadata
//!    do not keep that, because a missing device may come back.
//!
//! The bytes that were found are then made durable, and marked, so a later restart finds them
//! again. The bytes behind a failed sync are an exception: the kernel would report a sync of them
//! as successful although it may have dropped them. They count as written, and not as durable. The
//! same holds for the bytes of an extent that the opening could not read or sync as a whole.
//!
//! The caller makes the batch durable and then clears the tails ([`clear_tails`]). The tails of a
//! device stay if its directory was not listed, or if files of open extents were not read: they may
//! have bytes that these files lack. The batch puts such an extent into limbo. Tails have unsynced
//! bytes alone, which an extent in limbo may lose, so the next opening clears them.
//!
//! Invariants:
//! 1. An extent that is neither in limbo nor damaged has all bytes that the node ever answered for.
//!    An extent in limbo has all bytes that the node ever reported as durable.
//! 2. The found bytes are durable before the first request, except those behind a failed sync.
//! 3. Files that no record names are removed, because no answer depended on them.
//! 4. A tail is cleared only after its bytes are durable in files, or the limbo of their extent is.
//!
//! Thread-safety: none is needed.
//! Failure: damaged records, errors of the first device's directory, and a lack of descriptors or
//! memory end the opening. Bytes of a file that cannot be read count as missing.
//! Cost: one sequential read and one sync per open extent.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use archipelago_store::nodes::wire::ExtentAt;

use super::LogEnv;
use super::extent::{Extent, FoundExtent};
use super::format::{BadHeader, HEADER_BYTES, part_name};
use super::groups::{GroupPlace, GroupReader, GroupStep, PartSource};
use super::marks::SyncMark;
use super::part::{GroupIndex, LOGS_NAME, Part};
use super::record::{ExtentRecord, PartRecord, extent_key, extent_of_key};
use crate::devices::{Device, is_shortage};
use crate::identity::DeviceId;
use crate::meta::{MetaBatch, MetaSpace, Scan};

/// A file in a directory of parts.
#[derive(Clone, Debug)]
struct PartFile {
    device: Arc<Device>,
    path: PathBuf,
    bytes: u64,
}

/// The files of all directories of parts, by name.
type PartFiles = HashMap<String, PartFile>;

/// Files that the directories of parts contain.
#[derive(Debug, Default)]
struct ListedParts {
    files: PartFiles,
    /// Devices whose directory could not be listed.
    unlisted: Vec<DeviceId>,
}

/// Result of the opening.
#[derive(Debug)]
pub(super) struct OpenedExtents {
    /// The extents that have a record.
    pub(super) extents: BTreeMap<ExtentAt, Arc<Extent>>,
    /// Devices whose tails may have bytes that the files lack and no limbo covers.
    pub(super) unread: Vec<DeviceId>,
}

/// Finds the extents of the node, and removes files without a record. Records of extents that are
/// in limbo from now on, and new marks, are added to `batch`. The caller makes them durable, and
/// then calls [`clear_tails`].
pub(super) fn open_extents(
    env: &LogEnv,
    may_have_lost_memory: bool,
    batch: &mut MetaBatch,
) -> Result<OpenedExtents> {
    let ListedParts { mut files, unlisted } = list_files(env)?;
    let mut unread = unlisted.clone();
    let mut records = Vec::new();
    env.meta.scan(MetaSpace::Extents, &[], &mut |key, value| {
        let at = extent_of_key(key)?;
        records.push((at, ExtentRecord::decode(at, value)?));
        Ok(Scan::Continue)
    })?;
    let mut marks = read_marks(env)?;
    let mut extents = BTreeMap::new();
    for (at, record) in records {
        let TakenParts { parts, skipped } = take_parts(at, &record, &mut files);
        let opened = if record.sealed.is_some() && parts.len() == record.parts.len() {
            open_sealed(&record, parts)
        } else {
            open_unsealed(env, at, &record, parts)?
        };
        if record.sealed.is_none() && !record.is_in_limbo {
            unread.extend(skipped);
            unread.extend(&opened.unread);
        }
        let mark = marks.remove(&at).unwrap_or_default();
        let known = FoundRecord { at, record, mark, may_have_lost_memory };
        let found = conclude(env, known, opened, batch);
        extents.insert(at, Arc::new(Extent::found(at, found)));
    }
    // The remaining marks and files belong to extents that were removed.
    marks.into_keys().for_each(|at| batch.remove(MetaSpace::Marks, &extent_key(at)));
    for file in files.into_values() {
        let removed = env.fs.remove(&file.path);
        if removed.is_ok() {
            file.device.sub_used(file.bytes);
        }
        tolerate(env, &file.device, removed)?;
    }
    let is_listed = |device: &&Arc<Device>| !unlisted.contains(&device.id);
    for device in env.devices.present().iter().filter(is_listed) {
        tolerate(env, device, device.sync_dir(&*env.fs, &device.dir.join(LOGS_NAME)))?;
    }
    Ok(OpenedExtents { extents, unread })
}

/// Clears the tails that the file system has kept, except those of the devices `unread`. The
/// conclusions of the opening from the tails must be durable before this call.
pub(super) fn clear_tails(env: &LogEnv, unread: &[DeviceId]) -> Result<()> {
    let is_read = |device: &&Arc<Device>| !unread.contains(&device.id);
    for device in env.devices.present().iter().filter(is_read) {
        tolerate(env, device, env.fs.clear_log_tails(&device.dir.join(LOGS_NAME)))?;
    }
    Ok(())
}

/// The marks of all extents. Those that cannot be read end the opening.
fn read_marks(env: &LogEnv) -> Result<HashMap<ExtentAt, SyncMark>> {
    let mut marks = HashMap::new();
    env.meta.scan(MetaSpace::Marks, &[], &mut |key, value| {
        let at = extent_of_key(key)?;
        marks.insert(at, SyncMark::decode(at, value)?);
        Ok(Scan::Continue)
    })?;
    Ok(marks)
}

/// State of an extent in the metadata.
#[derive(Debug)]
struct FoundRecord {
    at: ExtentAt,
    record: ExtentRecord,
    mark: SyncMark,
    may_have_lost_memory: bool,
}

/// Concludes from the metadata and the files whether the extent is whole, in limbo or damaged.
fn conclude(
    env: &LogEnv,
    known: FoundRecord,
    opened: OpenedExtent,
    batch: &mut MetaBatch,
) -> FoundExtent {
    let FoundRecord { at, mut record, mut mark, may_have_lost_memory } = known;
    let OpenedExtent { parts, valid_end, is_cut, failure, .. } = opened;
    let is_of_part = record.parts.iter().any(|part| part.number == mark.part);
    // A mark that names no part of the record is left from an extent that was removed or sealed.
    // The record of a damaged extent may have lost the part with its file, and the mark then says
    // how far the bytes were durable.
    let is_of_extent = is_of_part || record.damaged_from.is_some();
    if !is_of_extent || record.sealed.is_some() {
        if mark != SyncMark::default() {
            batch.remove(MetaSpace::Marks, &extent_key(at));
        }
        mark = SyncMark { end: record.start, ..SyncMark::default() };
    }
    let marked_end = mark.end;
    let durable_end = record.sealed.unwrap_or(marked_end);
    let is_open = record.sealed.is_none();
    let may_have_lost = is_open && (may_have_lost_memory || is_cut);
    let before = record.clone();
    if may_have_lost && !record.is_in_limbo && !env.sabotage.no_limbo() {
        record.is_in_limbo = true;
        tracing::warn!(extent = %at, end = valid_end, "an extent may have lost unsynced bytes; it is in limbo");
    }
    let unsure_from = record.unsure_from.map_or(marked_end, |from| from.min(marked_end));
    if is_open && failure == Some(PartFailure::Sync) {
        record.unsure_from = Some(unsure_from);
    }
    if record != before {
        batch.put(MetaSpace::Extents, &extent_key(at), &record.encode());
    }
    if is_open && failure.is_some() {
        // A failed read loses no sync. So this change is not stored, and the next opening may rely
        // on its own sync.
        record.unsure_from = Some(unsure_from);
    }
    if valid_end < durable_end {
        // The stored record stays, because a missing device may come back.
        record.parts.truncate(parts.len());
        let first = record.damaged_from.map_or(valid_end, |from| from.min(valid_end));
        record.damaged_from = Some(first);
        tracing::error!(extent = %at, end = valid_end, durable_end, "an extent has lost synced bytes; it is damaged");
    } else if is_cut && is_open {
        record.parts.truncate(parts.len());
    }
    let sure_end = record.unsure_from.unwrap_or(u64::MAX).min(valid_end);
    if is_open
        && sure_end > marked_end
        && let Some(last) = parts.last()
    {
        mark = SyncMark { part: last.number, end: sure_end };
        mark.put(at, batch);
    }
    FoundExtent { record, parts, valid_end, synced: sure_end, durable_end, mark }
}

/// Lets the node open without a device that failed, unless it is the first one. A lack of
/// descriptors or memory is no failure of the device, and ends the opening.
fn tolerate(env: &LogEnv, device: &Arc<Device>, outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if !Arc::ptr_eq(device, env.devices.first()) && !is_shortage(&error) => {
            device.fail(&error);
            Ok(())
        }
        outcome => outcome,
    }
}

fn list_files(env: &LogEnv) -> Result<ListedParts> {
    let mut parts = ListedParts::default();
    for device in env.devices.present() {
        let listed = list_device(env, device, &mut parts.files);
        if listed.is_err() {
            parts.unlisted.push(device.id);
        }
        tolerate(env, device, listed)?;
    }
    Ok(parts)
}

fn list_device(env: &LogEnv, device: &Arc<Device>, files: &mut PartFiles) -> Result<()> {
    let dir = device.dir.join(LOGS_NAME);
    env.fs.create_dir_all(&dir)?;
    for entry in env.fs.list(&dir)?.into_iter().filter(|entry| is_part_name(&entry.name)) {
        device.add_used(entry.len);
        let path = dir.join(&entry.name);
        let device = Arc::clone(device);
        files.insert(entry.name, PartFile { device, path, bytes: entry.len });
    }
    Ok(())
}

/// Whether a file is a part, and not one that the file system keeps next to its logs.
fn is_part_name(name: &str) -> bool {
    let fields: Vec<&str> = name.split('-').collect();
    let is_hex = |field: &str| field.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths = fields.iter().map(|field| field.len());
    lengths.eq([32, 8, 16]) && fields.iter().all(|field| is_hex(field))
}

/// The parts of a record that have files.
#[derive(Debug)]
struct TakenParts {
    /// The parts in order, until one has no file.
    parts: Vec<Part>,
    /// Devices of the files of later parts than a missing one, which are not read.
    skipped: Vec<DeviceId>,
}

/// Takes the files of a record's parts. Files of later parts than a missing one stay where they
/// are, because the missing file may return with its device.
fn take_parts(at: ExtentAt, record: &ExtentRecord, files: &mut PartFiles) -> TakenParts {
    let (mut parts, mut skipped) = (Vec::new(), Vec::new());
    let mut is_whole = true;
    for PartRecord { number, start } in &record.parts {
        let name = part_name(at, *number);
        let Some(PartFile { device, path, bytes }) = files.remove(&name) else {
            tracing::error!(extent = %at, name, "a file of an extent is missing");
            is_whole = false;
            continue;
        };
        if is_whole {
            let (number, start) = (*number, *start);
            parts.push(Part { number, start, device, path, file_bytes: bytes, index: None });
        } else {
            skipped.push(device.id);
        }
    }
    TakenParts { parts, skipped }
}

/// The step of the opening that has failed for a part. A later variant has the graver effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PartFailure {
    /// The bytes could not be read, and no sync was tried.
    Read,
    /// The bytes were read and could not be made durable.
    Sync,
}

/// The bytes of an extent that the opening has found.
#[derive(Debug)]
struct OpenedExtent {
    parts: Vec<Part>,
    valid_end: u64,
    /// Whether bytes are missing, bad or unreadable for another reason than a kill of the process.
    is_cut: bool,
    /// The gravest failure of its parts.
    failure: Option<PartFailure>,
    /// Devices of parts that were not read, or not as a whole.
    unread: Vec<DeviceId>,
}

/// An extent that was sealed is read only when a request reads it.
fn open_sealed(record: &ExtentRecord, parts: Vec<Part>) -> OpenedExtent {
    let valid_end = record.sealed.unwrap_or(record.start);
    OpenedExtent { parts, valid_end, is_cut: false, failure: None, unread: Vec::new() }
}

/// Reads the parts of an extent up to the end of its valid prefix, and makes that durable.
fn open_unsealed(
    env: &LogEnv,
    at: ExtentAt,
    record: &ExtentRecord,
    mut parts: Vec<Part>,
) -> Result<OpenedExtent> {
    let mut valid_end = record.start;
    let mut is_cut = parts.len() < record.parts.len();
    let (mut failure, mut unread) = (None, Vec::new());
    let mut valid_parts = 0;
    for index in 0..parts.len() {
        let end = parts.get(index + 1).map(|next| next.start);
        if parts[index].start > valid_end {
            // The previous part has lost its end.
            is_cut = true;
            break;
        }
        let found = read_part(env, at, record, &mut parts[index])?;
        valid_parts = index + 1;
        valid_end = found.end.min(end.unwrap_or(u64::MAX)).max(parts[index].start);
        // Bytes behind the begin of the next part do not count.
        is_cut |= found.is_damaged && end.is_none_or(|end| found.end < end);
        if found.failure.is_some() {
            is_cut = true;
            failure = failure.max(found.failure);
            unread.push(parts[index].device.id);
        }
    }
    valid_end = valid_end.min(record.sealed.unwrap_or(u64::MAX));
    unread.extend(parts.drain(valid_parts..).map(|part| part.device.id));
    Ok(OpenedExtent { parts, valid_end, is_cut, failure, unread })
}

/// The valid groups of a part.
#[derive(Debug)]
struct FoundGroups {
    /// Offset in the log after the last one.
    end: u64,
    is_damaged: bool,
    /// Ranges of the file that a tail of the file system had.
    in_tail: Vec<Range<u64>>,
    failure: Option<PartFailure>,
}

/// Reads a part, and makes it durable. Bytes that a device fails to read are missing until the node
/// opens again.
fn read_part(
    env: &LogEnv,
    at: ExtentAt,
    record: &ExtentRecord,
    part: &mut Part,
) -> Result<FoundGroups> {
    let (end, in_tail) = (part.start, Vec::new());
    let mut found = FoundGroups { end, is_damaged: true, in_tail, failure: None };
    let read = read_groups(env, at, record.class, part, &mut found);
    let settled = match read {
        Ok(None) => Ok(()),
        Ok(Some(index)) => {
            let settled = env.fs.settle_log(&part.path, part.number, &found.in_tail);
            part.index = settled.is_ok().then_some(index);
            settled.map_err(|error| (PartFailure::Sync, error))
        }
        Err(error) => Err((PartFailure::Read, error)),
    };
    if let Err((failure, error)) = settled {
        // The cause lies in the program or the process, so the bytes do not count as lost.
        if error.kind() == ErrorKind::Unsupported || is_shortage(&error) {
            return Err(error);
        }
        found.is_damaged = true;
        found.failure = Some(failure);
        part.device.fail(&error);
    }
    if found.is_damaged {
        tracing::warn!(extent = %at, path = %part.path.display(), end = found.end, "a file of an extent is damaged, or lost its end with the power");
    }
    Ok(found)
}

/// Finds the groups of a part. `None` if its header is not that of the part.
fn read_groups(
    env: &LogEnv,
    at: ExtentAt,
    class: FileClass,
    part: &Part,
    found: &mut FoundGroups,
) -> Result<Option<GroupIndex>> {
    let context = IoContext::new(class, IoPurpose::Recovery);
    let tail = env.fs.log_tail(&part.path, part.number)?;
    let source = PartSource::open(&*env.fs, &part.path, context)?.with_tail(tail);
    match source.header()? {
        Ok(header)
            if header.at == at && header.part == part.number && header.start == part.start => {}
        Ok(_) | Err(BadHeader::Damaged) => return Ok(None),
        Err(bad @ BadHeader::Version(_)) => {
            return Err(Error::unsupported(format!("{}: {bad}", part.path.display())));
        }
    }
    let mut index = GroupIndex::default();
    found.in_tail.push(0..HEADER_BYTES as u64);
    let mut reader = GroupReader::new(&source, at, GroupPlace::first(part.start));
    found.is_damaged = loop {
        match reader.step()? {
            GroupStep::Group { place, bytes, in_tail } => {
                index.add(place);
                found.end = place.log + bytes.len() as u64;
                found.in_tail.extend(in_tail);
            }
            GroupStep::End | GroupStep::Torn => break false,
            GroupStep::Damaged => break true,
        }
    };
    Ok(Some(index))
}
