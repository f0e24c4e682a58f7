//! Prefetching of memory, so that several cache misses overlap.
//!
//! A load stalls the processor when its window is full. A prefetch does not, so the code between
//! the prefetch and the use runs meanwhile. A prefetch helps if an address is known some hundred
//! instructions ahead and is not in the cache.
//!
//! Cost: one instruction per cache line. The functions do nothing on processors other than x86-64.

/// Size of a cache line, in bytes.
const LINE_BYTES: usize = 64;

/// Prefetches the cache lines of the `bytes` bytes from `at` on. The address may be invalid,
/// because a prefetch never faults.
#[inline(always)]
pub fn prefetch(at: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: a prefetch is a hint. It reads nothing and cannot fault, whatever the address is.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, bytes, LINE_BYTES);
}

/// Prefetches the first cache line of a value.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    prefetch(std::ptr::from_ref(value).cast(), 1);
}
