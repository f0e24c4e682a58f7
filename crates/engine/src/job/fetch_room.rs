//! Limit on the bytes of images that running flushes have fetched from memory nodes.
//!
//! A database owns one [`FetchRoom`] for the flushes in its process, and an executor owns one for
//! all of its jobs. A job takes the bytes that it will fetch in one step, so that no two jobs wait
//! for each other.
//!
//! Invariant: all permits together are within the limit, or there is only one permit.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a job that waits ends with `Closed` when it is cancelled.
//! Cost: one lock for each permit.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use parking_lot::{Condvar, Mutex};

use crate::job::Cancel;

/// Length of one wait for room, after which the job checks whether it was cancelled.
const ROOM_WAIT: Duration = Duration::from_millis(50);

/// Bytes of images that running flushes have fetched.
#[derive(Debug, Default)]
pub struct FetchRoom {
    used: Mutex<u64>,
    freed: Condvar,
}

impl FetchRoom {
    /// Takes `bytes`, and waits until all permits together have at most `bytes_max`. A job that
    /// needs more by itself gets them when no other job has a permit. Errors: `Closed` if the job
    /// is cancelled while it waits.
    pub fn take(
        self: &Arc<Self>,
        bytes: u64,
        bytes_max: u64,
        cancel: &Cancel,
    ) -> Result<FetchPermit> {
        let mut used = self.used.lock();
        while *used > 0 && used.saturating_add(bytes) > bytes_max {
            cancel.check()?;
            self.freed.wait_for(&mut used, ROOM_WAIT);
        }
        *used += bytes;
        Ok(FetchPermit { room: Arc::clone(self), bytes })
    }
}

/// Room for images, which is released when the permit is dropped.
#[derive(Debug)]
pub struct FetchPermit {
    room: Arc<FetchRoom>,
    bytes: u64,
}

impl Drop for FetchPermit {
    fn drop(&mut self) {
        *self.room.used.lock() -= self.bytes;
        self.room.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_waits_for_room_and_a_large_one_for_all_of_it() {
        let (room, cancel) = (Arc::new(FetchRoom::default()), Cancel::default());
        let large = room.take(300, 100, &cancel).unwrap();
        cancel.cancel();
        assert!(room.take(1, 100, &cancel).is_err(), "a job that is cancelled does not wait");
        drop(large);
        let (one, two) = (room.take(60, 100, &cancel), room.take(40, 100, &cancel));
        assert!(one.is_ok() && two.is_ok() && room.take(1, 100, &cancel).is_err());
        drop(one);
        assert!(room.take(60, 100, &cancel).is_ok());
    }
}
