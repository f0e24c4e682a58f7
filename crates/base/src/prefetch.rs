//! Asking for memory before it is needed, so that several waits for it overlap.
//!
//! A load waits for its line when it comes to the end of the processor's window; a prefetch does
//! not, so what stands between it and the use is done meanwhile. Worth it where addresses are known
//! some hundred instructions ahead and lie anywhere. Cost: an instruction per line of 64 bytes;
//! nothing on processors other than x86-64.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Asks for the cache lines of `bytes` bytes from `at` on. Says nothing about their contents, and
/// needs nothing of the address.
#[inline(always)]
pub fn prefetch(at: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: a hint; it reads nothing and cannot fault, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, bytes, LINE_BYTES);
}

/// Asks for the first cache line of a value.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    prefetch(std::ptr::from_ref(value).cast(), 1);
}
