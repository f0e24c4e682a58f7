//! Physical files and who holds them.
//!
//! A [`Physical`] stands for one file on one device. The namespace's entry and every open handle
//! hold it; once it is condemned, the last one to let go throws it into the [`Trash`], and
//! whoever empties that removes the file when the namespace is settled until the moment of the
//! sentence. So a reader that holds the old copy of a moved file goes on, and the bytes count until
//! it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::Result;
use parking_lot::Mutex;

use crate::device::Device;
use crate::namespace::Moment;

/// What a physical file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The file itself.
    File,
    /// A copy of (parts of) a file of a slower device.
    Copy,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) devices: Arc<[Device]>,
    pub(crate) device: usize,
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) role: Role,
    /// Bytes that are charged to the device.
    len: AtomicU64,
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

    /// Charges the device with a length that grew to `len`, or shrank.
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

    /// The file goes when nobody holds it any more and the namespace is settled until `at`. Once at
    /// most. A copy counts as leaving at once: those who still read it are done soon.
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

/// A file that nobody holds any more.
#[derive(Debug)]
pub(crate) struct Waste {
    devices: Arc<[Device]>,
    device: usize,
    path: PathBuf,
    role: Role,
    len: u64,
    at: Moment,
}

/// Files that wait for their removal.
#[derive(Debug, Default)]
pub(crate) struct Trash {
    waste: Mutex<Vec<Waste>>,
}

impl Trash {
    /// How many files of a device wait, and their bytes.
    pub(crate) fn waiting_on(&self, device: usize) -> (usize, u64) {
        let waste = self.waste.lock();
        let mine = waste.iter().filter(|one| one.device == device);
        mine.fold((0, 0), |(files, bytes), one| (files + 1, bytes + one.len))
    }

    /// Whether a file waits for more of the namespace to be settled.
    pub(crate) fn waits_for(&self, settled: Moment) -> bool {
        self.waste.lock().iter().any(|one| one.at > settled)
    }

    /// Removes what may go, or only copies of one device. Returns how many files went; what a
    /// device refuses to remove is tried again the next time. `before` is asked before each.
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
