//! Memory in huge pages, for data that is accessed at random.
//!
//! The kernel serves a mapping with pages of 2 MiB if the mapping asks for them and if it has some;
//! else it uses small pages, and the program runs slower. The caller decides what shares a region,
//! so that no small piece keeps a whole huge page resident.
//!
//! Cost: three or four system calls to map a region and one to return it. With a huge page, the
//! first access faults all of the region in.

use std::io;
use std::ptr::NonNull;

#[cfg(miri)]
use std::alloc::{Layout, alloc_zeroed, dealloc};
#[cfg(not(miri))]
use {
    rustix::io::Errno,
    rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
    std::ffi::c_void,
};

/// Length and alignment of a region in bytes: a huge page of x86-64 and of ARM with 4 KiB pages.
pub const HUGE_BYTES: usize = 2 << 20;

/// [`HUGE_BYTES`] bytes of zeroed memory, aligned to their length and backed by one huge page if
/// the kernel has one. The drop returns them to the operating system.
#[derive(Debug)]
pub struct HugeRegion {
    base: NonNull<u8>,
}

// SAFETY: the value owns plain memory without an owner thread, and gives only its address.
unsafe impl Send for HugeRegion {}
// SAFETY: the same reason as for `Send`.
unsafe impl Sync for HugeRegion {}

impl HugeRegion {
    /// Maps a region. Fails if the system or a limit of the process has no memory left.
    pub fn map() -> io::Result<Self> {
        map()
    }

    /// Address of the byte at `offset`, which must be below [`HUGE_BYTES`].
    #[must_use]
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < HUGE_BYTES, "{offset} is not in the region");
        // SAFETY: the offset lies in the region.
        unsafe { self.base.add(offset) }
    }
}

#[cfg(not(miri))]
fn map() -> io::Result<HugeRegion> {
    // Twice the length has an aligned region in it. The rest is returned.
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of the new mapping.
    let mapped = unsafe {
        mmap_anonymous(std::ptr::null_mut(), 2 * HUGE_BYTES, protection, MapFlags::PRIVATE)
    }?;
    let mapped = mapped.cast::<u8>();
    let before = mapped.align_offset(HUGE_BYTES);
    // SAFETY: all three parts lie in the new mapping. Nothing refers to those that are unmapped.
    unsafe {
        let base = mapped.add(before);
        unmap(mapped, before);
        unmap(base.add(HUGE_BYTES), HUGE_BYTES - before);
        // A kernel without huge pages refuses the advice, and small pages do as well.
        let _advised = madvise(base.cast::<c_void>(), HUGE_BYTES, Advice::LinuxHugepage);
        Ok(HugeRegion { base: NonNull::new(base).ok_or(Errno::FAULT)? })
    }
}

/// Returns `bytes` bytes of a mapping from `base` on to the operating system.
///
/// # Safety
/// Nothing may access the range any more.
#[cfg(not(miri))]
unsafe fn unmap(base: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller says so. Unmapping can only fail if the process has too many mappings;
        // the range then stays mapped until the end of the process.
        let _unmapped = unsafe { munmap(base.cast::<c_void>(), bytes) };
    }
}

#[cfg(not(miri))]
impl Drop for HugeRegion {
    fn drop(&mut self) {
        // SAFETY: the value owned the region.
        unsafe { unmap(self.base.as_ptr(), HUGE_BYTES) };
    }
}

/// Layout of a region under Miri, which has no advice about huge pages.
#[cfg(miri)]
const LAYOUT: Layout = match Layout::from_size_align(HUGE_BYTES, HUGE_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

#[cfg(miri)]
fn map() -> io::Result<HugeRegion> {
    // SAFETY: the length is not zero.
    let base = unsafe { alloc_zeroed(LAYOUT) };
    Ok(HugeRegion { base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)? })
}

#[cfg(miri)]
impl Drop for HugeRegion {
    fn drop(&mut self) {
        // SAFETY: `map` allocated the region with this layout.
        unsafe { dealloc(self.base.as_ptr(), LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zeroed_and_apart() {
        let regions: Vec<HugeRegion> =
            (0..3).map(|_| HugeRegion::map().expect("memory for a region")).collect();
        for (at, region) in regions.iter().enumerate() {
            let base = region.at(0).as_ptr();
            assert_eq!(base.addr() % HUGE_BYTES, 0);
            // SAFETY: the region is mapped, and only this test accesses it.
            unsafe {
                let bytes = std::slice::from_raw_parts_mut(base, HUGE_BYTES);
                assert!(bytes.iter().all(|byte| *byte == 0), "region {at}");
                bytes.fill(at as u8 + 1);
            }
        }
        for (at, region) in regions.iter().enumerate() {
            // SAFETY: as above.
            let last = unsafe { region.at(HUGE_BYTES - 1).read() };
            assert_eq!(usize::from(last), at + 1);
        }
    }

    #[test]
    fn regions_ask_for_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let region = HugeRegion::map().expect("memory for a region");
        let address = region.at(0).as_ptr().addr();
        assert_eq!(crate::host::asks_for_huge_pages(address), Some(true));
    }
}
