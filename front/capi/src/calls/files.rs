//! Calls on open files.

use std::ffi::{c_char, c_int, c_void};

use crate::calls::names::RawStat;
use crate::context::RawContext;
use crate::failure::{CallResult, Failure, guard};
use crate::ffi::{bytes, context, give, path, room};
use crate::file::{FILES, File, From};
use crate::space::SPACES;

/// Implements `archipelago_open` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_open(
    tiers: c_int,
    name: *const c_char,
    flags: c_int,
    given: *const RawContext,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let (name, context) = unsafe { (path("path", name)?, context(given)?) };
        File::open(&SPACES.get(tiers)?, name, flags as u32, context)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_close(file: c_int) -> c_int {
    guard(-1, || FILES.remove(file).map(|_| 0))
}

fn counted(done: CallResult<usize>) -> CallResult<i64> {
    done.map(|count| count as i64)
}

/// Implements `archipelago_read` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_read(
    file: c_int,
    buffer: *mut c_void,
    count: usize,
) -> i64 {
    guard(-1, || {
        let file = FILES.get(file)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let room = unsafe { room(buffer.cast(), count)? };
        counted(file.read_on(room))
    })
}

/// Implements `archipelago_pread` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_pread(
    file: c_int,
    buffer: *mut c_void,
    count: usize,
    offset: u64,
) -> i64 {
    guard(-1, || {
        let file = FILES.get(file)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let room = unsafe { room(buffer.cast(), count)? };
        counted(file.read_at(offset, room))
    })
}

/// Implements `archipelago_write` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_write(
    file: c_int,
    buffer: *const c_void,
    count: usize,
) -> i64 {
    guard(-1, || {
        let file = FILES.get(file)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let data = unsafe { bytes(buffer.cast(), count)? };
        file.write(data, None)?;
        Ok(count as i64)
    })
}

/// Implements `archipelago_pwrite` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_pwrite(
    file: c_int,
    buffer: *const c_void,
    count: usize,
    offset: u64,
) -> i64 {
    guard(-1, || {
        let file = FILES.get(file)?;
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let data = unsafe { bytes(buffer.cast(), count)? };
        file.write(data, Some(offset))?;
        Ok(count as i64)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_lseek(file: c_int, offset: i64, whence: c_int) -> i64 {
    guard(-1, || {
        let from = match whence {
            0 => From::Start,
            1 => From::Here,
            2 => From::End,
            other => {
                return Err(Failure::invalid(format!("there is no place to seek from {other}")));
            }
        };
        FILES.get(file)?.seek(offset, from).map(|position| position as i64)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_fsync(file: c_int) -> c_int {
    guard(-1, || FILES.get(file)?.sync().map(|()| 0))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_fdatasync(file: c_int) -> c_int {
    archipelago_fsync(file)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_ftruncate(file: c_int, length: u64) -> c_int {
    guard(-1, || FILES.get(file)?.extend(length).map(|()| 0))
}

/// Implements `archipelago_fstat` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_fstat(file: c_int, out: *mut RawStat) -> c_int {
    guard(-1, || {
        let file = FILES.get(file)?;
        let stat = RawStat::of_open(file.info().as_ref(), file.len(), file.context());
        // SAFETY: the caller obeys the contract of `crate::calls`.
        unsafe { give("stat", out, stat)? };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_fadvise(
    file: c_int,
    offset: u64,
    length: u64,
    advice: c_int,
) -> c_int {
    guard(-1, || {
        let will_need = match advice {
            0 => true,
            1 => false,
            other => return Err(Failure::invalid(format!("there is no advice {other}"))),
        };
        FILES.get(file)?.advise(offset, length, will_need).map(|()| 0)
    })
}
