//! Calls about the tiers as a whole, the library and the calling thread.

use std::ffi::{c_char, c_int};

use archipelago_env::FileSystem as _;

use crate::context::{RawContext, carry};
use crate::failure::{guard, last_kind, last_message};
use crate::ffi::{RawDevice, RawOptions, context, devices, give, options, path, room};
use crate::space::{SPACES, Space, devices_of};

/// Changes when a program that was built with an older header would not work any more.
const ABI: u32 = 5;

/// The library's version, a string that ends with a zero.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_abi() -> u32 {
    ABI
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_last_error() -> *const c_char {
    last_message()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_last_error_kind() -> c_int {
    last_kind()
}

/// Implements `archipelago_tiers_open` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_tiers_open(
    array: *const RawDevice,
    count: usize,
    given: *const RawOptions,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let (devices, options) = unsafe { (devices(array, count)?, options(given)?) };
        Space::open(&devices, options)
    })
}

/// Implements `archipelago_tiers_open_file` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_tiers_open_file(
    settings: *const c_char,
    given: *const RawOptions,
) -> c_int {
    guard(-1, || {
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let (settings, options) = unsafe { (path("settings", settings)?, options(given)?) };
        Space::open(&devices_of(settings)?, options)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn archipelago_tiers_close(tiers: c_int) -> c_int {
    guard(-1, || Space::close(tiers).map(|()| 0))
}

/// Implements `archipelago_stats` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_stats(
    tiers: c_int,
    buffer: *mut c_char,
    size: usize,
) -> i64 {
    guard(-1, || {
        let text = SPACES.get(tiers)?.tiers.stats().to_string();
        // SAFETY: the caller obeys the contract of `crate::calls`.
        let room = unsafe { room(buffer.cast(), size)? };
        // The room is zeroed: what is not filled ends the string.
        let fits = text.len().min(size.saturating_sub(1));
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        Ok(text.len() as i64)
    })
}

/// Implements `archipelago_free_bytes` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_free_bytes(tiers: c_int, bytes: *mut u64) -> c_int {
    guard(-1, || {
        let tiers = &SPACES.get(tiers)?.tiers;
        let free = tiers.free_bytes(tiers.root())?.unwrap_or(0);
        // SAFETY: the caller obeys the contract of `crate::calls`.
        unsafe { give("bytes", bytes, free)? };
        Ok(0)
    })
}

/// Implements `archipelago_thread_context` of the header.
///
/// # Safety
/// The pointers obey the contract of [`crate::calls`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn archipelago_thread_context(given: *const RawContext) -> c_int {
    guard(-1, || {
        let carried = if given.is_null() {
            None
        } else {
            // SAFETY: the caller obeys the contract of `crate::calls`.
            Some(unsafe { context(given)? })
        };
        carry(carried);
        Ok(0)
    })
}
