//! What ends a process in order: SIGTERM, SIGINT, or the end of standard input.
//!
//! Watched before a process says that it is there: whoever reads that may send a signal at once,
//! and it is not lost.

use std::io::Read;
use std::time::Duration;

use archipelago::{Error, Result};
use archipelago_base::ErrorKind;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};

/// SIGTERM and SIGINT, from when they are watched.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

fn failed(source: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Io, "cannot wait for signals", source)
}

impl StopSignals {
    /// Watches from here on. Within a runtime of tokio's.
    pub(crate) fn watch() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self { terminate, interrupt })
    }

    /// Done when one has come.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The same for a process without a runtime of its own.
pub(crate) struct Stop {
    runtime: Runtime,
    signals: StopSignals,
    with_stdin: bool,
}

impl Stop {
    /// Watches signals from here on, and the end of standard input if asked to.
    pub(crate) fn watch(with_stdin: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let signals = {
            let _within = runtime.enter();
            StopSignals::watch()?
        };
        Ok(Self { runtime, signals, with_stdin })
    }

    /// Waits until it is told to stop, or `over`.
    pub(crate) fn wait(mut self, over: impl Fn() -> bool) -> Result<()> {
        let mut told = stdin_ended(self.with_stdin)?;
        self.runtime.block_on(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            loop {
                tokio::select! {
                    () = self.signals.received() => return,
                    _ = told.recv() => return,
                    _ = look.tick() => if over() { return },
                }
            }
        });
        Ok(())
    }
}

/// Receives `None` when standard input has ended, if that is to be watched; never otherwise.
pub(crate) fn stdin_ended(watched: bool) -> Result<Receiver<()>> {
    let (ended, told) = channel::<()>(1);
    if watched {
        let body = Box::new(move || {
            let mut rest = Vec::new();
            // Whatever ends it ends the wait.
            let _read = std::io::stdin().read_to_end(&mut rest);
            drop(ended);
        });
        // Runs until the process ends.
        let _thread = SystemSpawn.spawn("stdin", body)?;
    } else {
        std::mem::forget(ended);
    }
    Ok(told)
}
