//! Memory that can be handed to another process: a sealed memfd and its mapping. The only `unsafe`
//! code of the crate.
//!
//! Invariants: 1. the file has its full length, allocated, before it is mapped, and is sealed
//! against shrinking and growing, by whoever made it; a mapping of a file from another process is
//! made only after its seals and its length were looked at; so no access faults; 2. `base` is the
//! start of a shared mapping of `bytes` bytes, page aligned, until the drop; 3. the mapping is
//! accessed as aligned `AtomicU64` only, but for the words that [`Mapping::bell`] gives out, which
//! are `AtomicU32` always;
//! 4. a mapping without the right to write gives out words that nobody in this crate stores to
//! (`writable` is looked at first); a store would end the process, it would not be undefined.
//!
//! The other process is not trusted: it may change any byte at any moment. All that follows
//! from that is that a value loaded may be anything; no reference to plain bytes is ever made.
//!
//! Thread-safety: all methods. Cost: two system calls and, up to 64 MiB, the work for each page,
//! ahead of use; of larger ones a page fault per page.
//!
//! **Large pages.** What is written and read anywhere in memory waits for translations as long as
//! for the bytes: random loads over 384 MiB took 309 ns with pages of 4 KiB and 192 with pages of 2
//! MiB, in a virtual machine. So whoever makes 2 to 64 MiB asks the kernel to put it on such pages
//! (`MADV_COLLAPSE`, Linux 6.1), which took 0.3 ms per MiB more; mappings of other processes have
//! them with it. A kernel that will not leaves the pages as they are.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use archipelago_base::{Error, ErrorKind, Result};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, ftruncate, memfd_create, open,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Shared memory. See the module.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
    file: OwnedFd,
}

// SAFETY: the mapping belongs to this value until the drop, and all access to it is atomic
// (invariant 3), so it may be used from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Mappings of up to so many bytes have all their pages at hand from the beginning: a fault for
/// each costs several times as much, and somebody waits for it.
const AHEAD_BYTES_MAX: usize = 64 << 20;

/// Of a large page.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// `MADV_COLLAPSE`, which not every C library names.
const COLLAPSE: libc::c_int = 25;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Mapping {
    /// Allocates `bytes` (rounded up to 8) of zeroed memory. `name` shows in `/proc/PID/maps`.
    /// Busy if the machine does not have them.
    pub fn create(name: &str, bytes: usize) -> Result<Self> {
        let bytes = bytes
            .checked_next_multiple_of(8)
            .filter(|&bytes| bytes > 0 && isize::try_from(bytes).is_ok())
            .ok_or_else(|| Error::invalid(format!("memory of {bytes} bytes: give 1 to 2^63")))?;
        let fail = |errno: Errno| {
            let kind = match errno {
                Errno::NOSPC | Errno::NOMEM => ErrorKind::Busy,
                _ => ErrorKind::Io,
            };
            let what = format!("cannot allocate {bytes} bytes of shared memory for {name}");
            Error::with_source(kind, what, std::io::Error::from(errno))
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name, flags).map_err(fail)?;
        ftruncate(&file, bytes as u64).map_err(fail)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64).map_err(fail)?;
        fcntl_add_seals(&file, SEALS).map_err(fail)?;
        let mapped = Self::map(file, bytes, true).map_err(fail)?;
        mapped.ask_for_large_pages();
        Ok(mapped)
    }

    fn ask_for_large_pages(&self) {
        if !(LARGE_PAGE_BYTES..=AHEAD_BYTES_MAX).contains(&self.bytes) {
            return;
        }
        // SAFETY: the range is mapped while `self` lives; the advice changes no byte of it, and
        // which pages lie behind it is nobody's business.
        let refused =
            unsafe { libc::madvise(self.base.as_ptr().cast::<c_void>(), self.bytes, COLLAPSE) };
        if refused != 0 {
            let error = std::io::Error::last_os_error();
            tracing::debug!(%error, bytes = self.bytes, "shared memory stays on small pages");
        }
    }

    /// Maps memory that another process made. Refused unless it is sealed against shrinking and has
    /// exactly `bytes`: else the other process could make an access here fault.
    pub fn adopt(file: OwnedFd, bytes: usize, writable: bool) -> Result<Self> {
        let bad = |what: String| Error::invalid(format!("shared memory from a peer: {what}"));
        let fail = |errno: Errno| {
            let source = std::io::Error::from(errno);
            Error::with_source(ErrorKind::Io, "cannot map shared memory from a peer", source)
        };
        let seals = fcntl_get_seals(&file)
            .map_err(|errno| bad(format!("it is no memfd ({})", std::io::Error::from(errno))))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("it is not sealed against shrinking".to_owned()));
        }
        let size = fstat(&file).map_err(fail)?.st_size;
        if usize::try_from(size) != Ok(bytes) || bytes == 0 || !bytes.is_multiple_of(8) {
            return Err(bad(format!("it has {size} bytes, the peer said {bytes}")));
        }
        Self::map(file, bytes, writable).map_err(fail)
    }

    fn map(file: OwnedFd, bytes: usize, writable: bool) -> rustix::io::Result<Self> {
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let ahead = if bytes <= AHEAD_BYTES_MAX { MapFlags::POPULATE } else { MapFlags::empty() };
        let (protection, flags) = (ProtFlags::READ | write, MapFlags::SHARED | ahead);
        // SAFETY: a new mapping at an address that the kernel chooses; invariant 1 is the callers'.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::FAULT)?;
        Ok(Self { base, bytes, writable, file })
    }

    /// Its length; a multiple of 8.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this process may store.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// All of it, as words.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: invariant 2: the range is mapped, readable and page aligned while `self` lives,
        // and `bytes / 8` words lie within it; an `AtomicU64` has the layout of a `u64`, any bits
        // are one, and invariant 3 keeps every access atomic and of one size.
        unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().cast::<AtomicU64>(), self.bytes / 8)
        }
    }

    /// The 4-byte word at byte `at`, for futexes. The 8 bytes around it are never accessed by way
    /// of [`Mapping::words`]: the layout of who calls this sees to it.
    #[must_use]
    pub fn bell(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "a bell within the mapping");
        // SAFETY: just checked to lie within the mapping and to be aligned; the caller's layout
        // keeps accesses of other sizes away (invariant 3).
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast::<u32>()) }
    }

    /// A descriptor to send to another process: one that can map it for reading only, unless
    /// `writable`.
    pub fn share(&self, writable: bool) -> Result<OwnedFd> {
        let fail = |errno: Errno| {
            let source = std::io::Error::from(errno);
            Error::with_source(ErrorKind::Io, "cannot share memory with a client", source)
        };
        if writable {
            return self.file.try_clone().map_err(|source| {
                Error::with_source(ErrorKind::Io, "cannot share memory with a client", source)
            });
        }
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&self.file));
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(fail)
    }

    /// The memfd.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of `map`, unmapped once; the references given out borrow
        // `self`. Failure would leave it mapped, which harms nobody.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// Memory of a file that is not sealed must not be mapped; a test makes one.
    fn unsealed(bytes: u64) -> OwnedFd {
        let file = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = file.expect("a memfd");
        ftruncate(&file, bytes).expect("room");
        file
    }

    #[test]
    fn a_reader_sees_the_words_and_cannot_map_them_for_writing() {
        let owner = Mapping::create("test", 4096).expect("memory");
        let reader = Mapping::adopt(owner.share(false).expect("a descriptor"), 4096, false);
        let reader = reader.expect("readable");
        owner.words()[511].store(7, Ordering::Relaxed);
        assert_eq!(reader.words()[511].load(Ordering::Relaxed), 7);
        let refused = Mapping::adopt(owner.share(false).expect("a descriptor"), 4096, true);
        assert!(refused.is_err(), "a read-only descriptor maps for reading only");
        let writer = Mapping::adopt(owner.share(true).expect("a descriptor"), 4096, true);
        writer.expect("writable").words()[0].store(9, Ordering::Relaxed);
        assert_eq!(reader.words()[0].load(Ordering::Relaxed), 9);
    }

    #[test]
    fn memory_that_its_owner_could_shrink_is_refused() {
        let refused = Mapping::adopt(unsealed(4096), 4096, true).expect_err("unsealed");
        assert!(refused.to_string().contains("not sealed"), "{refused}");
        let owner = Mapping::create("test", 4096).expect("memory");
        for lie in [0, 8, 4088, 8192] {
            let file = owner.share(true).expect("a descriptor");
            assert!(Mapping::adopt(file, lie, true).is_err(), "{lie} bytes");
        }
        let shrunk = ftruncate(owner.file(), 8);
        assert!(shrunk.is_err(), "the seals hold for the owner too");
    }
}
