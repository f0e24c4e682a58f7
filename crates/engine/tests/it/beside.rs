//! Runs background steps on another thread while an ingestion is between the choice of its levels
//! and its install. It serves databases whose background work the test steps.
//!
//! The ingestion waits at its fault point until the other thread has picked a job or has found
//! none. So every run picks a job that must not be picked there, and not one run in a thousand.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use archipelago_base::Result;
use archipelago_engine::db::{ColumnFamily, Db, FaultPoint, IngestOptions};
use parking_lot::Mutex;

/// Runs background steps on another thread while an ingestion waits at its fault point.
#[derive(Default)]
pub(crate) struct Beside(Mutex<Option<Ends>>);

/// The ends of the channels at the fault points.
struct Ends {
    /// Lets the other thread begin.
    go: Sender<()>,
    /// Receives a message when the other thread has picked a job; closed when it has ended.
    picked: Option<Receiver<()>>,
    /// Reports that a job was picked.
    pick: Option<Sender<()>>,
}

impl Beside {
    /// The fault point to open the database with.
    pub(crate) fn fault_point(self: &Arc<Self>) -> FaultPoint {
        let beside = Arc::clone(self);
        Arc::new(move |name| {
            beside.reached(name);
            Ok(())
        })
    }

    /// Handles a fault point, for callers with faults of their own.
    pub(crate) fn reached(&self, name: &str) {
        if name.ends_with(".picked") {
            let pick = self.0.lock().as_mut().and_then(|ends| ends.pick.take());
            // Closed if the ingestion has gone on.
            if let Some(pick) = pick {
                let _ = pick.send(());
            }
        } else if name == "ingest.before_install" {
            let wait = self.0.lock().as_mut().and_then(|ends| {
                let picked = ends.picked.take()?;
                ends.go.send(()).ok().map(|()| picked)
            });
            // An error: the other thread has ended without a pick.
            if let Some(picked) = wait {
                let _ = picked.recv();
            }
        }
    }

    /// Ingests, with at most `steps` background steps meanwhile. Returns the first error of these
    /// steps.
    pub(crate) fn ingest<P: AsRef<Path>>(
        &self,
        db: &Db,
        cf: &ColumnFamily,
        files: &[P],
        options: &IngestOptions,
        steps: usize,
    ) -> (Result<()>, Result<()>) {
        let ((go, gone), (pick, picked)) = (channel(), channel());
        *self.0.lock() = Some(Ends { go, picked: Some(picked), pick: Some(pick) });
        let step = move || {
            let mut result = Ok(());
            // An error: the ingestion has ended before its install.
            if gone.recv().is_ok() {
                for _ in 0..steps {
                    match db.step_background() {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => {
                            result = Err(error);
                            break;
                        }
                    }
                }
            }
            // No job was picked, or no thread waits for one any more.
            let pick = self.0.lock().as_mut().and_then(|ends| ends.pick.take());
            drop(pick);
            result
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(step);
            let ingested = db.ingest(cf, files, options);
            let ends = self.0.lock().take();
            drop(ends);
            (ingested, other.join().expect("the other thread ends"))
        })
    }
}
