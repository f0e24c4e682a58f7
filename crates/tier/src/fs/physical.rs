//! Physical files: one file on one device each, and their removal.
//!
//! The entry of a file in the namespace and every open handle hold its [`Physical`]. A file that is
//! moved, replaced or removed is condemned. When the last holder drops it, it goes into the
//! [`Trash`]. The trash removes it once the namespace is settled up to the record that condemned
//! it. So a reader of the old place of a moved file continues, and the bytes count until the reader
//! ends.
//!
//! Invariants:
//! 1. The bytes of a physical file count on its device until it is removed.
//! 2. A condemned file is removed only after its last holder is gone and the record that condemned
//!    it is durable.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a file that the device refuses to remove stays in the trash, for the next attempt.
//! Cost: emptying the trash costs one removal per file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::Result;
use parking_lot::Mutex;

use crate::device::Device;
use crate::namespace::Moment;

/// The use of a physical file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The original of a file.
    File,
    /// A copy of a file of a slower device, or of ranges of it.
    Copy,
}

/// One file on one device.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) devices: Arc<[Device]>,
    pub(crate) device: usize,
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) role: Role,
    /// Bytes that are charged to the device for this file.
    len: AtomicU64,
    /// The moment up to which the namespace must be settled before the file is removed; `None` for
    /// a file that is in use.
    condemned: Mutex<Option<Moment>>,
    trash: Arc<Trash>,
}

impl Physical {
    pub(crate) fn new(
        devices: &Arc<[Device]>,
        device: usize,
        number: u64,
        path: PathBuf,
        role: Role,
        trash: &Arc<Trash>,
    ) -> Arc<Self> {
        Arc::new(Self {
            devices: Arc::clone(devices),
            device,
            number,
            path,
            role,
            len: AtomicU64::new(0),
            condemned: Mutex::new(None),
            trash: Arc::clone(trash),
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.devices[self.device]
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Charges the device with the new length of the file.
    pub(crate) fn set_len(&self, len: u64) {
        let before = self.len.swap(len, Ordering::Relaxed);
        let account = self.account();
        if len >= before {
            account.fetch_add(len - before, Ordering::Relaxed);
        } else {
            account.fetch_sub(before - len, Ordering::Relaxed);
        }
    }

    fn account(&self) -> &AtomicU64 {
        match self.role {
            Role::File => &self.device().files_bytes,
            Role::Copy => &self.device().cache_bytes,
        }
    }

    /// Condemns the file: it is removed when its last holder is gone and the namespace is settled
    /// up to `at`. A second call has no effect on the accounts. The bytes of a copy count as
    /// leaving from now on, because its readers end soon.
    pub(crate) fn condemn(&self, at: Moment) {
        let before = self.condemned.lock().replace(at);
        match self.role {
            Role::File => self.device().note_superfluous(&self.path, self.number),
            Role::Copy if before.is_none() => {
                self.device().leaving.fetch_add(self.len(), Ordering::Relaxed);
            }
            Role::Copy => {}
        }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let Some(at) = *self.condemned.get_mut() else { return };
        if self.role == Role::File {
            self.device().leaving.fetch_add(self.len(), Ordering::Relaxed);
        }
        let waste = Waste {
            devices: Arc::clone(&self.devices),
            device: self.device,
            path: std::mem::take(&mut self.path),
            role: self.role,
            len: self.len(),
            at,
        };
        self.trash.waste.lock().push(waste);
    }
}

/// A condemned file without a holder.
#[derive(Debug)]
pub(crate) struct Waste {
    devices: Arc<[Device]>,
    device: usize,
    path: PathBuf,
    role: Role,
    len: u64,
    at: Moment,
}

/// Condemned files that wait for their removal.
#[derive(Debug, Default)]
pub(crate) struct Trash {
    waste: Mutex<Vec<Waste>>,
}

impl Trash {
    /// Number of files of a device that wait for their removal, and their bytes.
    pub(crate) fn waiting_on(&self, device: usize) -> (usize, u64) {
        let waste = self.waste.lock();
        let mine = waste.iter().filter(|one| one.device == device);
        mine.fold((0, 0), |(files, bytes), one| (files + 1, bytes + one.len))
    }

    /// Whether a file waits for the namespace to be settled beyond `settled`.
    pub(crate) fn waits_for(&self, settled: Moment) -> bool {
        self.waste.lock().iter().any(|one| one.at > settled)
    }

    /// Removes the files that may be removed once the namespace is settled up to `settled`, or only
    /// the copies among them that lie on the device `copies_of`. Returns the number of files that
    /// were removed. A file that its device refuses to remove stays. `before` runs before each
    /// removal, and an error of it keeps the file.
    pub(crate) fn empty(
        &self,
        settled: Moment,
        now_ns: u64,
        copies_of: Option<usize>,
        before: &dyn Fn() -> Result<()>,
    ) -> usize {
        let due: Vec<Waste> = {
            let mut waste = self.waste.lock();
            let is_meant = |one: &Waste| {
                copies_of.is_none_or(|device| device == one.device && one.role == Role::Copy)
            };
            let is_due = |one: &Waste| one.at <= settled && is_meant(one);
            let (due, rest) = waste.drain(..).partition(is_due);
            *waste = rest;
            due
        };
        let mut removed = 0;
        for one in due {
            let device = &one.devices[one.device];
            let outcome = before().and_then(|()| device.fs.remove(&one.path));
            let gone = match &outcome {
                Ok(()) => true,
                Err(error) => error.io_kind() == Some(std::io::ErrorKind::NotFound),
            };
            if gone {
                let account = match one.role {
                    Role::File => &device.files_bytes,
                    Role::Copy => &device.cache_bytes,
                };
                account.fetch_sub(one.len, Ordering::Relaxed);
                device.leaving.fetch_sub(one.len, Ordering::Relaxed);
                removed += 1;
            } else {
                device.note(&outcome, now_ns);
                self.waste.lock().push(one);
            }
        }
        removed
    }
}
