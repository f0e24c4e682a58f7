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
//! 3. Bad bytes that no kill leaves, and a missing file, put an extent into limbo as well. That of
//!    bytes which are bad or cannot be read is durable: the opening clears the kept tails, so the
//!    next one may find a clean end where this one did not. A missing file stays missing, or
//!    returns whole with its device. So the tails of a device that cannot be listed stay.
//! 4. If the prefix ends before the mark of the last sync, or before the end of a sealed extent,
//!    then durable bytes are lost. The extent is *damaged*: its length proves nothing. The metadata
//!    do not keep that, because a missing device may come back.
//!
//! The bytes that were found are then made durable, and marked, so a later restart finds them
//! again. The bytes behind a failed sync are an exception: the kernel would report a sync of them
//! as successful although it may have dropped them. They count as written, and not as durable.
//!
//! Invariants:
//! 1. An extent that is neither in limbo nor damaged has all bytes that the node ever answered for.
//!    An extent in limbo has all bytes that the node ever reported as durable.
//! 2. The found bytes are durable before the first request, except those behind a failed sync.
//! 3. Files that no record names are removed. No answer depended on them.
//!
//! Thread-safety: none is needed.
//! Failure: damaged records and errors of the first device's directory end the opening. Bytes of a
//! file that cannot be read count as missing.
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
use crate::devices::Device;
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

/// What the directories of parts have.
#[derive(Debug, Default)]
struct ListedParts {
    files: PartFiles,
    /// Devices whose directory could not be listed.
    unlisted: Vec<DeviceId>,
}

/// Finds the extents of the node, and removes files without a record. Records of extents that are
/// in limbo from now on, and new marks, are added to `batch`.
pub(super) fn open_extents(
    env: &LogEnv,
    may_have_lost_memory: bool,
    batch: &mut MetaBatch,
) -> Result<BTreeMap<ExtentAt, Arc<Extent>>> {
    let ListedParts { mut files, unlisted } = list_files(env)?;
    let mut records = Vec::new();
    env.meta.scan(MetaSpace::Extents, &[], &mut |key, value| {
        let at = extent_of_key(key)?;
        records.push((at, ExtentRecord::decode(at, value)?));
        Ok(Scan::Continue)
    })?;
    let mut marks = read_marks(env)?;
    let mut extents = BTreeMap::new();
    for (at, record) in records {
        let parts = take_parts(at, &record, &mut files);
        let opened = if record.sealed.is_some() && parts.len() == record.parts.len() {
            open_sealed(&record, parts)
        } else {
            open_unsealed(env, at, &record, parts)?
        };
        let mark = marks.remove(&at).unwrap_or_default();
        let known = FoundRecord { at, record, mark, may_have_lost_memory };
        let found = conclude(env, known, opened, batch);
        extents.insert(at, Arc::new(Extent::found(at, found)));
    }
    // What is left belongs to extents that were removed.
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
        let dir = device.dir.join(LOGS_NAME);
        let cleared = env.fs.clear_log_tails(&dir);
        let settled = cleared.and_then(|()| device.sync_dir(&*env.fs, &dir));
        tolerate(env, device, settled)?;
    }
    Ok(extents)
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
    let OpenedExtent { parts, valid_end, is_cut, is_damaged } = opened;
    let is_of_part = record.parts.iter().any(|part| part.number == mark.part);
    // A mark that names no part of the record is left from an extent that was removed or sealed.
    if !is_of_part || record.sealed.is_some() {
        if mark != SyncMark::default() {
            batch.remove(MetaSpace::Marks, &extent_key(at));
        }
        mark = SyncMark { end: record.start, ..SyncMark::default() };
    }
    let marked_end = mark.end;
    let durable_end = record.sealed.unwrap_or(marked_end);
    let has_limbo = !env.sabotage.no_limbo();
    let may_have_lost = may_have_lost_memory || is_damaged;
    if may_have_lost && record.sealed.is_none() && !record.is_in_limbo && has_limbo {
        record.is_in_limbo = true;
        batch.put(MetaSpace::Extents, &extent_key(at), &record.encode());
        tracing::warn!(extent = %at, end = valid_end, "an extent may have lost unsynced bytes; it is in limbo");
    }
    if valid_end < durable_end {
        // The stored record stays, because a missing device may come back.
        record.parts.truncate(parts.len());
        let first = record.damaged_from.map_or(valid_end, |from| from.min(valid_end));
        record.damaged_from = Some(first);
        tracing::error!(extent = %at, end = valid_end, durable_end, "an extent has lost synced bytes; it is damaged");
    } else if is_cut && record.sealed.is_none() {
        record.parts.truncate(parts.len());
        record.is_in_limbo |= has_limbo;
    }
    let sure_end = record.unsure_from.unwrap_or(u64::MAX).min(valid_end);
    if record.sealed.is_none()
        && sure_end > marked_end
        && let Some(last) = parts.last()
    {
        mark = SyncMark { part: last.number, end: sure_end };
        mark.put(at, batch);
    }
    FoundExtent { record, parts, valid_end, synced: sure_end, mark }
}

/// Lets the node open without a device that failed, unless it is the first one.
fn tolerate(env: &LogEnv, device: &Arc<Device>, outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if !Arc::ptr_eq(device, env.devices.first()) => {
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

/// The parts of a record in order, until one has no file. The files behind it stay where they are:
/// the missing one may return with its device.
fn take_parts(at: ExtentAt, record: &ExtentRecord, files: &mut PartFiles) -> Vec<Part> {
    let mut parts = Vec::new();
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
        }
    }
    parts
}

/// The bytes of an extent that the opening has found.
#[derive(Debug)]
struct OpenedExtent {
    parts: Vec<Part>,
    valid_end: u64,
    /// Whether bytes are missing that no kill takes away.
    is_cut: bool,
    /// Whether the bytes behind the end are bad, or could not be read.
    is_damaged: bool,
}

/// An extent that was sealed is read only when a request reads it.
fn open_sealed(record: &ExtentRecord, parts: Vec<Part>) -> OpenedExtent {
    let valid_end = record.sealed.unwrap_or(record.start);
    OpenedExtent { parts, valid_end, is_cut: false, is_damaged: false }
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
    let mut is_damaged = false;
    let mut valid_parts = 0;
    for index in 0..parts.len() {
        let end = parts.get(index + 1).map(|next| next.start);
        if parts[index].start > valid_end {
            // The part before has lost its end.
            is_cut = true;
            break;
        }
        let found = read_part(env, at, record, &mut parts[index])?;
        valid_parts = index + 1;
        valid_end = found.end.min(end.unwrap_or(u64::MAX)).max(parts[index].start);
        // Bytes behind the begin of the next part do not count.
        is_damaged |= found.is_damaged && end.is_none_or(|end| found.end < end);
    }
    valid_end = valid_end.min(record.sealed.unwrap_or(u64::MAX));
    parts.truncate(valid_parts);
    is_cut |= is_damaged;
    Ok(OpenedExtent { parts, valid_end, is_cut, is_damaged })
}

/// The valid groups of a part.
#[derive(Debug)]
struct FoundGroups {
    /// Offset in the log after the last one.
    end: u64,
    is_damaged: bool,
}

/// Reads a part. Bytes that a device fails to read are missing until the node opens again.
fn read_part(
    env: &LogEnv,
    at: ExtentAt,
    record: &ExtentRecord,
    part: &mut Part,
) -> Result<FoundGroups> {
    let mut found = FoundGroups { end: part.start, is_damaged: true };
    let read = read_groups(env, at, record.class, part, &mut found);
    match read {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
        Err(error) => {
            found.is_damaged = true;
            part.device.fail(&error);
        }
        Ok(()) => {}
    }
    if found.is_damaged {
        tracing::warn!(extent = %at, path = %part.path.display(), end = found.end, "a file of an extent is damaged, or lost its end with the power");
    }
    Ok(found)
}

fn read_groups(
    env: &LogEnv,
    at: ExtentAt,
    class: FileClass,
    part: &mut Part,
    found: &mut FoundGroups,
) -> Result<()> {
    let context = IoContext::new(class, IoPurpose::Recovery);
    let tail = env.fs.log_tail(&part.path, part.number)?;
    let source = PartSource::open(&*env.fs, &part.path, context)?.with_tail(tail);
    match source.header()? {
        Ok(header)
            if header.at == at && header.part == part.number && header.start == part.start => {}
        Ok(_) | Err(BadHeader::Damaged) => return Ok(()),
        Err(bad @ BadHeader::Version(_)) => {
            return Err(Error::unsupported(format!("{}: {bad}", part.path.display())));
        }
    }
    let mut index = GroupIndex::default();
    let mut in_tail: Vec<Range<u64>> = Vec::new();
    in_tail.push(0..HEADER_BYTES as u64);
    let mut reader = GroupReader::new(&source, at, GroupPlace::first(part.start));
    found.is_damaged = loop {
        match reader.step()? {
            GroupStep::Group { place, bytes, in_tail: range } => {
                index.add(place);
                found.end = place.log + bytes.len() as u64;
                in_tail.extend(range);
            }
            GroupStep::End | GroupStep::Torn => break false,
            GroupStep::Damaged => break true,
        }
    };
    env.fs.settle_log(&part.path, part.number, &in_tail)?;
    part.index = Some(index);
    Ok(())
}
