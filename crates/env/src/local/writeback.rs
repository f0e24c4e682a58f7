//! Waiting until the device has a part of a file, without a flush of the device's cache.
//!
//! `fdatasync` also makes the device flush its cache and the file system commit its journal. A log
//! whose appends are written through needs only that no byte waits in the page cache. The kernel
//! reports an error once, and a later `fdatasync` of the same file may succeed, so the caller must
//! remember it. If the system has no such call for a file (memory, some network file systems),
//! nothing is awaited.
//!
//! Cost: one system call and one device write.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// Starts writing the dirty pages of `[from, to)`, and waits for them and for pages that are being
/// written already.
pub(super) fn wait(file: &File, from: u64, to: u64) -> io::Result<()> {
    const FLAGS: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (offset, len) = (from as libc::off64_t, to.saturating_sub(from) as libc::off64_t);
    if len == 0 {
        // The kernel takes a length of 0 as the whole file.
        return Ok(());
    }
    loop {
        // SAFETY: the descriptor belongs to `file`, which stays open. The call takes no memory.
        let outcome = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, FLAGS) };
        if outcome == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => (),
            Some(libc::ESPIPE | libc::ENOSYS | libc::EOPNOTSUPP) => return Ok(()),
            _ => return Err(error),
        }
    }
}
