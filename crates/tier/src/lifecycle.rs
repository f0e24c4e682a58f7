//! Opening and closing tiers: the files of [`crate::fs`] with the background work of
//! [`crate::mover`].
//!
//! Both modules stand below this one. `fs` knows the mover only as a trait
//! ([`crate::fs::shared::BackgroundWork`]), and this module gives it the implementation.
//!
//! Thread-safety: any thread may call any method. Failure: an open that fails leaves no thread
//! running. Cost: opening lists every device and replays the namespace.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::Result;
use archipelago_base::spawn::Joiner;
use parking_lot::Mutex;

use crate::device::file_system;
use crate::fs::TieredFs;
use crate::fs::open::{Components, DeviceParts, open_shared};
use crate::mover::{self, Mover};
use crate::settings::{DeviceSettings, validate};

impl TieredFs {
    /// Opens the tiers over the devices of `settings`, the fastest first. Empty devices become new
    /// tiers. Paths below `root` belong to them.
    ///
    /// Errors: `InvalidArgument` for wrong settings and for directories that hold something else;
    /// `Unsupported` for another format version; `NotFound` for a missing device, with the files
    /// that lie there; `Busy` if another process has the tiers open. A refused open changes
    /// nothing.
    pub fn open(
        root: impl AsRef<Path>,
        settings: &[DeviceSettings],
        components: Components,
    ) -> Result<Arc<Self>> {
        validate(settings)?;
        let parts = settings.iter().map(|settings| {
            let fs = file_system(settings, &components.clock, components.group_access)?;
            Ok(DeviceParts { settings: settings.clone(), fs, is_local: true })
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Self::open_over(root, parts, components)
    }

    /// Opens tiers as [`Self::open`] does, over file systems of the caller.
    pub fn open_over(
        root: impl AsRef<Path>,
        devices: Vec<DeviceParts>,
        components: Components,
    ) -> Result<Arc<Self>> {
        let spawn = components.spawn.clone();
        let shared =
            open_shared(root.as_ref(), devices, components, |start| Box::new(Mover::new(start)))?;
        let threads = match spawn {
            Some(spawn) => mover::start(&shared, &*spawn)?,
            None => Vec::new(),
        };
        Ok(Arc::new(Self { shared, threads: Mutex::new(threads) }))
    }

    /// Does one round of background work: runs one iteration of the control loop and every job that
    /// may run, and removes condemned files. For tests, and for programs without background threads
    /// ([`Components::spawn`]).
    pub fn step(&self) {
        self.shared.mover.iterate(&self.shared);
        self.settle();
    }

    /// Runs the queued jobs, among them moves after changes of level, and removes condemned files.
    /// Does not run the control loop.
    pub fn settle(&self) {
        while mover::run_one(&self.shared) {}
        mover::sweep(&self.shared);
    }

    /// Ends background work and makes the namespace durable. Files may still be read and written
    /// afterwards, but no file is moved or copied. Errors: those of the home device.
    pub fn close(&self) -> Result<()> {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake_workers();
        let threads = std::mem::take(&mut *self.threads.lock());
        let joined = threads.into_iter().try_for_each(Joiner::join);
        self.shared.queue.clear();
        self.shared.keep_heat();
        self.shared.empty_trash(true)?;
        self.shared.sync()?;
        self.shared.names.lock().space.finish()?;
        joined
    }
}

impl Drop for TieredFs {
    fn drop(&mut self) {
        let was_closed = self.shared.closing.load(Ordering::Acquire);
        if !was_closed && let Err(error) = self.close() {
            tracing::warn!(%error, "the tiers could not be closed in order");
        }
    }
}
