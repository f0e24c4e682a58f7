//! Pointers that C passes: strings, buffers and structures.
//!
//! The functions are `unsafe`, because a pointer can only be checked for null. They rely on what
//! the header promises for every argument. They check lengths, text and numbers. Of a structure
//! they read the field `size` first, because a program that was built with another header may pass
//! a shorter one.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use archipelago_env::GroupAccess;
use archipelago_tier::{DeviceKind, DeviceSettings};

use crate::context::{Context, RawContext, UNKNOWN, carried, level_of};
use crate::failure::{CallResult, Failure};

/// `archipelago_device` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawDevice {
    size: u32,
    kind: c_int,
    path: *const c_char,
    name: *const c_char,
    spec: *const c_char,
    capacity_bytes: u64,
    cache_share: f64,
    writers_max: u32,
    reserved: u32,
}

/// Size of the structure in bytes, which every caller states.
const DEVICE_BYTES: usize = 56;
const _: () = assert!(size_of::<RawDevice>() == DEVICE_BYTES);

/// Refuses a device whose field `size` is wrong. The other fields exist only if it is right.
fn check_device_size(place: usize, size: u32) -> CallResult<()> {
    if size as usize == DEVICE_BYTES {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "archipelago_device.size of device {place} is {size}, not {DEVICE_BYTES}: begin with \
         ARCHIPELAGO_DEVICE_INIT"
    )))
}

/// Default root of all paths.
const ROOT: &str = "tiers:";

/// Highest number of devices of one call.
const DEVICES_MAX: usize = archipelago_tier::settings::DEVICES_MAX;

/// `archipelago_options` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawOptions {
    size: u32,
    fast_levels: c_int,
    root: *const c_char,
    must_exist: c_int,
    group_access: c_int,
}

/// Size of the structure in bytes, which every caller states.
const OPTIONS_BYTES: usize = 24;
const _: () = assert!(size_of::<RawOptions>() == OPTIONS_BYTES);

/// Options with which tiers are opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a> {
    pub(crate) root: &'a Path,
    pub(crate) fast_levels: Option<u8>,
    pub(crate) must_exist: bool,
    pub(crate) group_access: GroupAccess,
}

fn is_null(what: &str) -> Failure {
    Failure::invalid(format!("{what} is NULL"))
}

/// The path in a string of C.
///
/// # Safety
/// `path` is null, or a string that ends with a zero and does not change during the call.
pub(crate) unsafe fn path<'a>(what: &str, path: *const c_char) -> CallResult<&'a Path> {
    if path.is_null() {
        return Err(is_null(what));
    }
    // SAFETY: the pointer is not null, and the caller promises the rest.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.is_empty() {
        return Err(Failure::invalid(format!("{what} is empty")));
    }
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// The path in a string of C. A null pointer means none.
///
/// # Safety
/// The requirements are those of [`path`].
pub(crate) unsafe fn optional_path<'a>(
    what: &str,
    given: *const c_char,
) -> CallResult<Option<&'a Path>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: this function has the same contract.
    unsafe { path(what, given) }.map(Some)
}

/// The bytes of a buffer of C.
///
/// # Safety
/// `data` has `len` bytes, which no thread changes during the call. It may be null if `len` is 0.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> CallResult<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Failure::invalid("the buffer is NULL or too long"));
    }
    // SAFETY: the pointer is not null, the length fits, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// A buffer of C that the call fills. It is zeroed first, because C may never have written it.
///
/// # Safety
/// `data` has room for `len` bytes, which no other thread touches during the call. It may be null
/// if `len` is 0.
pub(crate) unsafe fn room<'a>(data: *mut u8, len: usize) -> CallResult<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Failure::invalid("the buffer is NULL or too long"));
    }
    // SAFETY: the pointer is not null, the length fits, and the caller promises the rest. The bytes
    // are written before the slice exists.
    unsafe {
        data.write_bytes(0, len);
        Ok(std::slice::from_raw_parts_mut(data, len))
    }
}

/// Writes a result to a variable of C.
///
/// # Safety
/// `out` is null, or has room for a `T` and its alignment.
pub(crate) unsafe fn give<T>(what: &str, out: *mut T, value: T) -> CallResult<()> {
    if out.is_null() {
        return Err(is_null(what));
    }
    // SAFETY: the pointer is not null, and the caller promises the rest.
    unsafe { out.write(value) };
    Ok(())
}

/// The context of a call: the given one, otherwise that of the thread, otherwise [`UNKNOWN`].
///
/// # Safety
/// `given` is null, or points to a context.
pub(crate) unsafe fn context(given: *const RawContext) -> CallResult<Context> {
    if given.is_null() {
        return Ok(carried().unwrap_or(UNKNOWN));
    }
    // SAFETY: the pointer is not null, and every version of the structure has its size here.
    RawContext::check_size(unsafe { (&raw const (*given).size).read() })?;
    // SAFETY: the pointer is not null, the structure is as long as it must be, and the caller
    // promises the rest.
    unsafe { given.read() }.check()
}

/// The options of an open.
///
/// # Safety
/// `given` is null, or points to options whose string meets the requirements of [`path`].
pub(crate) unsafe fn options<'a>(given: *const RawOptions) -> CallResult<Options<'a>> {
    let mut options = Options {
        root: Path::new(ROOT),
        fast_levels: None,
        must_exist: false,
        group_access: GroupAccess::None,
    };
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: the pointer is not null, and every version of the structure has its size here.
    let size = unsafe { (&raw const (*given).size).read() };
    if size as usize != OPTIONS_BYTES {
        return Err(Failure::invalid(format!(
            "archipelago_options.size is {size}, not {OPTIONS_BYTES}: begin with \
             ARCHIPELAGO_OPTIONS_INIT"
        )));
    }
    // SAFETY: the pointer is not null, the structure is as long as it must be, and the caller
    // promises the rest.
    let raw = unsafe { given.read() };
    options.fast_levels = level_of(raw.fast_levels)?;
    options.must_exist = raw.must_exist != 0;
    options.group_access = match raw.group_access {
        0 => GroupAccess::None,
        1 => GroupAccess::Read,
        2 => GroupAccess::Write,
        other => {
            return Err(Failure::invalid(format!(
                "archipelago_options.group_access is {other}: it must be an \
                 ARCHIPELAGO_GROUP_* constant"
            )));
        }
    };
    // SAFETY: the caller promises that the string meets the requirements.
    if let Some(root) = unsafe { optional_path("archipelago_options.root", raw.root)? } {
        options.root = root;
    }
    Ok(options)
}

/// The devices of an array.
///
/// # Safety
/// `given` has `count` devices, whose strings meet the requirements of [`path`]. It may be null if
/// `count` is 0.
pub(crate) unsafe fn devices(
    given: *const RawDevice,
    count: usize,
) -> CallResult<Vec<DeviceSettings>> {
    if count > DEVICES_MAX {
        return Err(Failure::invalid(format!(
            "{count} devices: at most {DEVICES_MAX} are possible"
        )));
    }
    if given.is_null() && count > 0 {
        return Err(is_null("devices"));
    }
    let mut settings = Vec::with_capacity(count);
    for place in 0..count {
        // SAFETY: the caller promises that the array has more than `place` devices. Those before
        // this one are as long as they must be, and every version of the structure has its size
        // here.
        let size = unsafe { (&raw const (*given.add(place)).size).read() };
        check_device_size(place, size)?;
        // SAFETY: the caller promises that the array has more than `place` devices, and this one is
        // as long as it must be.
        let raw = unsafe { given.add(place).read() };
        // SAFETY: the caller promises that the strings meet the requirements.
        settings.push(unsafe { device(place, &raw) }?);
    }
    Ok(settings)
}

/// The settings of the device at position `place`.
///
/// # Safety
/// The strings of `raw` meet the requirements of [`path`].
unsafe fn device(place: usize, raw: &RawDevice) -> CallResult<DeviceSettings> {
    let kind = match raw.kind {
        0 => DeviceKind::Directory,
        1 => DeviceKind::Direct,
        2 => DeviceKind::Mapped,
        3 => DeviceKind::Emulated,
        other => {
            return Err(Failure::invalid(format!("device {place}: there is no kind {other}")));
        }
    };
    // SAFETY: the caller promises that all three strings meet the requirements.
    let (path, name, spec) = unsafe {
        (
            path("archipelago_device.path", raw.path)?,
            optional_path("archipelago_device.name", raw.name)?,
            optional_path("archipelago_device.spec", raw.spec)?,
        )
    };
    Ok(DeviceSettings {
        name: name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        path: path.to_owned(),
        // `must_exist` of the options is for callers that do not want new devices.
        create: true,
        kind,
        spec: spec.map(Path::to_owned),
        capacity_bytes: raw.capacity_bytes,
        cache_share: raw.cache_share,
        writers_max: raw.writers_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_pointers_are_refused() {
        // SAFETY: null is allowed in all these calls, and every buffer is a local one of the given
        // length.
        unsafe {
            assert!(path("path", std::ptr::null()).unwrap_err().message.contains("path is NULL"));
            assert!(path("path", c"".as_ptr()).unwrap_err().message.contains("empty"));
            assert_eq!(path("path", c"a/b".as_ptr()).unwrap(), Path::new("a/b"));
            assert_eq!(bytes(std::ptr::null(), 0).unwrap(), b"");
            assert!(bytes(std::ptr::null(), 1).is_err());
            assert!(bytes(b"x".as_ptr(), usize::MAX).is_err());
            let mut room_of = [1_u8; 4];
            assert_eq!(room(room_of.as_mut_ptr(), 4).unwrap(), &[0; 4]);
            assert!(room(std::ptr::null_mut(), 4).is_err());
            assert!(give("out", std::ptr::null_mut::<u8>(), 1).is_err());
            let mut out = 0;
            give("out", &raw mut out, 7).unwrap();
            assert_eq!(out, 7);
            assert!(devices(std::ptr::null(), 2).unwrap_err().message.contains("NULL"));
            assert!(devices(std::ptr::null(), 17).unwrap_err().message.contains("at most 16"));
        }
    }

    #[test]
    fn nothing_but_the_size_is_read_of_a_structure_of_another_size() {
        // The box is shorter than every structure, so a tool that checks memory accesses sees a
        // read beyond it.
        let short = Box::new(4_u64);
        let given: *const u64 = &raw const *short;
        let refused = |failure: &Failure, word: &str| {
            assert!(failure.message.contains("size"), "{}", failure.message);
            assert!(failure.message.contains(word), "{}", failure.message);
        };
        // SAFETY: the functions read the size only, because it is wrong.
        unsafe {
            refused(&context(given.cast()).unwrap_err(), "ARCHIPELAGO_CONTEXT_INIT");
            refused(&options(given.cast()).unwrap_err(), "ARCHIPELAGO_OPTIONS_INIT");
            refused(&devices(given.cast(), 1).unwrap_err(), "ARCHIPELAGO_DEVICE_INIT");
        }
    }
}
