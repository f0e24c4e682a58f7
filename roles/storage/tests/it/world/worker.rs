//! A thread that executes the requests of nodes, while the simulation waits for it.
//!
//! The metadata of a node are a database. The engine keeps buffers per thread during a write, so a
//! node must not run within a write of the test's own database, which waits for the simulation.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use archipelago_base::spawn::{Spawn, SystemSpawn};
use parking_lot::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// The thread. It ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Worker(Arc<Mutex<Sender<Job>>>);

impl Worker {
    pub(super) fn start() -> Self {
        let (sender, jobs) = channel::<Job>();
        let work = Box::new(move || jobs.iter().for_each(|job| job()));
        let _ends_with_the_sender = SystemSpawn.spawn("world-nodes", work).unwrap();
        Self(Arc::new(Mutex::new(sender)))
    }

    /// Executes `job` on the thread, and waits for it.
    pub(super) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let job = move || answer.send(job()).expect("the caller waits");
        self.0.lock().send(Box::new(job)).expect("the thread runs");
        answered.recv().expect("a request to a node panicked")
    }
}
