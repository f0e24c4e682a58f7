//! The `errno` of the calling thread, which failures of the C library set.

use std::ffi::c_int;

// SAFETY: the declaration is that of the C library. The function takes nothing and returns the
// address of the calling thread's `errno`.
unsafe extern "C" {
    safe fn __errno_location() -> *mut c_int;
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(number: i32) {
    // SAFETY: the address is of an int of the calling thread, which no other thread touches.
    unsafe { *__errno_location() = number };
}

#[cfg(test)]
mod tests {
    use super::set_errno;

    #[test]
    fn errno_is_that_of_the_thread() {
        set_errno(2);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(2));
    }
}
