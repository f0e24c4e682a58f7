//! Calls on names: files, directories, locks.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use archipelago_env::{FileClass, FileSystem as _, IoContext, IoPurpose};
use archipelago_tier::{FileInfo, TierDirEntry};

use crate::context::{RawContext, class_number, level_of};
use crate::failure::{CallResult, Failure, guard};
use crate::ffi::{context, give, path};
use crate::space::{DIRS, LOCKS, NAME_BYTES_MAX, SPACES, check_name};

/// `archipelago_stat_t` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawStat {
    size: u64,
    file_id: u64,
    modified_ms: u64,
    is_directory: c_int,
    file_class: c_int,
    level: c_int,
    device: c_int,
    links: u32,
    copies: u32,
    fastest_copy: c_int,
    is_written: c_int,
}

const _: () = assert!(size_of::<RawStat>() == 56);

impl RawStat {
    const NOWHERE: Self = Self {
        size: 0,
        file_id: 0,
        modified_ms: 0,
        is_directory: 0,
        file_class: 0,
        level: -1,
        device: -1,
        links: 0,
        copies: 0,
        fastest_copy: -1,
        is_written: 0,
    };

    fn of(found: &FileInfo) -> Self {
        Self {
            size: found.len,
            file_id: found.id,
            modified_ms: found.modified_ms.unwrap_or(0),
            is_directory: 0,
            file_class: class_number(found.class),
            level: found.level.map_or(-1, c_int::from),
            device: found.device as c_int,
            links: found.names as u32,
            copies: found.copies.len() as u32,
            fastest_copy: found.copies.first().map_or(-1, |&device| device as c_int),
            is_written: c_int::from(found.is_written),
        }
    }

    /// Facts about an open file. `found` is `None` if the file has no name any more.
    pub(crate) fn of_open(found: Option<&FileInfo>, len: u64, context: IoContext) -> Self {
        let nameless = Self { file_class: class_number(context.class), ..Self::NOWHERE };
        Self { size: len, ..found.map_or(nameless, Self::of) }
    }
}

/// `archipelago_dirent` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawEntry {
    size: u64,
    is_directory: c_int,
    reserved: c_int,
    name: [u8; NAME_BYTES_MAX + 1],
}

const _: () = assert!(size_of::<RawEntry>() == 272);

impl RawEntry {
    fn of(entry: &TierDirEntry) -> CallResult<Self> {
        check_name(&entry.name)?;
        let bytes = entry.name.as_bytes();
        let mut name = [0; NAME_BYTES_MAX + 1];
        name[..bytes.len()].copy_from_slice(bytes);
        Ok(Self { size: entry.len, is_directory: c_int::from(entry.is_dir), reserved: 0, name })
    }
}

/// Implements `archipelago_stat` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_stat(
    tiers: c_int,
    name: *const c_char,
    out: *mut RawStat,
) -> c_int {
    guard(-1, || {
        let space = SPACES.get(tiers)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let name = unsafe { path("path", name)? };
        let stat = if space.tiers.is_dir(name)? {
            RawStat { is_directory: 1, links: 1, ..RawStat::NOWHERE }
        } else {
            RawStat::of(&space.file_info(name)?)
        };
        // SAFETY: the caller obeys the contract of `crate::calls`.
        unsafe { give("stat", out, stat)? };
        Ok(0)
    })
}

/// Implements `archipelago_exists` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_exists(tiers: c_int, name: *const c_char) -> c_int {
    guard(-1, || {
        let space = SPACES.get(tiers)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let name = space.own(unsafe { path("path", name)? })?;
        Ok(c_int::from(space.tiers.exists(name)?))
    })
}

/// Implements `archipelago_unlink` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_unlink(tiers: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller obeys the contract of `crate::calls`.
    guard(-1, || SPACES.get(tiers)?.remove(unsafe { path("path", name)? }).map(|()| 0))
}

/// Implements `archipelago_rename` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_rename(
    tiers: c_int,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let (from, to) = unsafe { (path("from", from)?, path("to", to)?) };
        SPACES.get(tiers)?.rename(from, to).map(|()| 0)
    })
}

/// Implements `archipelago_link` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_link(
    tiers: c_int,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let (from, to) = unsafe { (path("from", from)?, path("to", to)?) };
        SPACES.get(tiers)?.link(from, to).map(|()| 0)
    })
}

/// Implements `archipelago_mkdir` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_mkdir(tiers: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller obeys the contract of `crate::calls`.
    guard(-1, || SPACES.get(tiers)?.make_dir(unsafe { path("path", name)? }).map(|()| 0))
}

/// Implements `archipelago_rmdir` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_rmdir(tiers: c_int, name: *const c_char) -> c_int {
    guard(-1, || {
        // SAFETY: the caller obeys the contract of `crate::calls`.
        SPACES.get(tiers)?.tiers.remove_dir(unsafe { path("path", name)? })?;
        Ok(0)
    })
}

/// Implements `archipelago_fsync_dir` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_fsync_dir(tiers: c_int, name: *const c_char) -> c_int {
    guard(-1, || {
        let space = SPACES.get(tiers)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        space.tiers.sync_dir(space.own(unsafe { path("path", name)? })?)?;
        Ok(0)
    })
}

/// Implements `archipelago_opendir` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_opendir(tiers: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller obeys the contract of `crate::calls`.
    guard(-1, || SPACES.get(tiers)?.list(unsafe { path("path", name)? }))
}

/// Implements `archipelago_readdir` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_readdir(dir: c_int, out: *mut RawEntry) -> c_int {
    guard(-1, || {
        let listing = DIRS.get(dir)?;
        let Some(entry) = listing.left.lock().next() else { return Ok(0) };
        // SAFETY: the caller obeys the contract of `crate::calls`.
        unsafe { give("entry", out, RawEntry::of(&entry)?)? };
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_closedir(dir: c_int) -> c_int {
    guard(-1, || DIRS.remove(dir).map(|_| 0))
}

/// Implements `archipelago_set_level` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_set_level(
    tiers: c_int,
    name: *const c_char,
    level: c_int,
) -> c_int {
    guard(-1, || {
        let space = SPACES.get(tiers)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let name = unsafe { path("path", name)? };
        let Some(level) = level_of(level)? else {
            return Err(Failure::invalid("level -1: a table cannot lose its level"));
        };
        refuse_others(space.file_info(name)?.class, name)?;
        // The reason is not a compaction, so the call says nothing about the level that L0 compacts
        // into.
        space.tiers.set_level(name, IoContext::sst(IoPurpose::Maintenance, level))?;
        Ok(0)
    })
}

/// Implements `archipelago_reassign` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_reassign(
    tiers: c_int,
    name: *const c_char,
    given: *const RawContext,
) -> c_int {
    guard(-1, || {
        let space = SPACES.get(tiers)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let (name, context) = unsafe { (path("path", name)?, context(given)?) };
        if context.io.level.is_none() {
            return Err(Failure::invalid("the context has no level: a table cannot lose its own"));
        }
        refuse_others(space.file_info(name)?.class, name)?;
        space.tiers.set_level(name, context.io)?;
        Ok(0)
    })
}

/// Refuses a file that is not a table.
fn refuse_others(class: FileClass, name: &Path) -> CallResult<()> {
    match class {
        FileClass::Sst => Ok(()),
        _ => Err(Failure::invalid(format!("{} is not a table", name.display()))),
    }
}

/// Implements `archipelago_lock` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_lock(tiers: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller obeys the contract of `crate::calls`.
    guard(-1, || SPACES.get(tiers)?.lock(unsafe { path("path", name)? }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_unlock(lock: c_int) -> c_int {
    guard(-1, || LOCKS.remove(lock).map(|_| 0))
}
