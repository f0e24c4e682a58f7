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
    told: Receiver<()>,
}

/// Reason for which a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A signal has arrived.
    Signal,
    /// Standard input has ended.
    StdinEnded,
    /// The caller waits no longer.
    Over,
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
        let told = stdin_ended(with_stdin)?;
        Ok(Self { runtime, signals, told })
    }

    /// Waits until a signal arrives, standard input ends, or `over` is true. It asks `over` five
    /// times a second.
    pub(crate) fn wait(mut self, over: impl Fn() -> bool) {
        self.wait_once(over);
    }

    /// Waits as [`Stop::wait`] does. A further call waits for a further signal. If standard input
    /// has ended, every call returns immediately.
    pub(crate) fn wait_once(&mut self, over: impl Fn() -> bool) -> StopCause {
        let Self { runtime, signals, told } = self;
        runtime.block_on(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            loop {
                tokio::select! {
                    () = signals.received() => return StopCause::Signal,
                    _ = told.recv() => return StopCause::StdinEnded,
                    _ = look.tick() => if over() { return StopCause::Over },
                }
            }
        })
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
