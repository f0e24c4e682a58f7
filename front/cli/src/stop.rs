//! Signals and the end of standard input, which stop a process in order.
//!
//! A process watches them before it prints that it is ready. A program that reads this line may
//! send a signal immediately, and the signal is not lost.

use std::time::Duration;

use archipelago::{Error, Result};
use archipelago_base::ErrorKind;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};

/// Watches SIGTERM and SIGINT, from the call of [`StopSignals::watch`] on.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

fn failed(source: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Io, "cannot wait for signals", source)
}

impl StopSignals {
    /// Watches from now on. The caller is in the context of a tokio runtime.
    pub(crate) fn watch() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self { terminate, interrupt })
    }

    /// Returns after the first signal.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits for a signal, or for the end of standard input, in a process without a tokio runtime.
pub(crate) struct Stop {
    runtime: Runtime,
    signals: StopSignals,
    with_stdin: bool,
}

impl Stop {
    /// Watches signals from now on, and the end of standard input if `with_stdin` says so.
    pub(crate) fn watch(with_stdin: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let signals = {
            let _within = runtime.enter();
            StopSignals::watch()?
        };
        Ok(Self { runtime, signals, with_stdin })
    }

    /// Waits until a signal arrives, standard input ends, or `over` is true. It asks `over` five
    /// times a second.
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

/// Receiver that yields `None` when standard input ends. It never yields if `watched` is false.
pub(crate) fn stdin_ended(watched: bool) -> Result<Receiver<()>> {
    let (ended, told) = channel::<()>(1);
    if watched {
        let body = Box::new(move || {
            // The bytes are dropped, so that a long input takes no memory. An error ends the input
            // as well.
            let _ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            drop(ended);
        });
        // Runs until the process ends.
        let _thread = SystemSpawn.spawn("stdin", body)?;
    } else {
        std::mem::forget(ended);
    }
    Ok(told)
}
