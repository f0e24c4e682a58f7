//! An eventfd, with which one thread ends the `poll` of another.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use archipelago_base::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, Timespec, eventfd};

#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(crate) fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self).map_err(|errno| {
            let source = std::io::Error::from(errno);
            Error::with_source(ErrorKind::Io, "cannot make an eventfd", source)
        })
    }

    pub(crate) fn ring(&self) {
        // The write fails only when the counter is full, and then the alarm rings already.
        let _rung = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Silences the alarm.
    pub(crate) fn take(&self) {
        let mut count = [0; 8];
        let _silent = rustix::io::read(&self.0, &mut count);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The duration as the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
