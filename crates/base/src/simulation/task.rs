//! Tasks: futures that the scheduler polls, and the handles that wait for their outputs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use super::core::Core;
use super::host::{HostId, Life};

pub(super) type Pinned = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Index of a task in the table, and the number of the entry's use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TaskId {
    place: u32,
    generation: u32,
}

struct TaskEntry {
    life: Life,
    name: String,
    /// `None` while the task is polled.
    future: Option<Pinned>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// A waker, which requests at most one poll until that poll begins.
struct Bell {
    core: Weak<Core>,
    task: TaskId,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::Relaxed)
            && let Some(core) = self.core.upgrade()
        {
            core.wake(self.task);
        }
    }
}

#[derive(Default)]
pub(super) struct Tasks {
    places: Vec<(u32, Option<TaskEntry>)>,
    free: Vec<u32>,
}

impl Tasks {
    pub(super) fn add(
        &mut self,
        core: &Arc<Core>,
        life: Life,
        name: &str,
        future: Pinned,
    ) -> TaskId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (generation, entry) = &mut self.places[place as usize];
        let task = TaskId { place, generation: *generation };
        // The caller that adds the task requests the first poll.
        let bell = Bell { core: Arc::downgrade(core), task, rung: AtomicBool::new(true) };
        let bell = Arc::new(bell);
        let waker = Waker::from(Arc::clone(&bell));
        *entry = Some(TaskEntry { life, name: name.to_owned(), future: Some(future), bell, waker });
        task
    }

    fn entry(&mut self, task: TaskId) -> Option<&mut TaskEntry> {
        let (generation, entry) = self.places.get_mut(task.place as usize)?;
        entry.as_mut().filter(|_| *generation == task.generation)
    }

    pub(super) fn exists(&self, task: TaskId) -> bool {
        let place = self.places.get(task.place as usize);
        place.is_some_and(|(generation, entry)| *generation == task.generation && entry.is_some())
    }

    pub(super) fn life(&mut self, task: TaskId) -> Option<Life> {
        self.entry(task).map(|entry| entry.life)
    }

    /// Takes the future of a task in order to poll it.
    pub(super) fn take(&mut self, task: TaskId) -> Option<(Pinned, Waker)> {
        let entry = self.entry(task)?;
        let future = entry.future.take()?;
        entry.bell.rung.store(false, Ordering::Relaxed);
        Some((future, entry.waker.clone()))
    }

    /// Puts the future back after a poll. Returns it if the task was removed meanwhile.
    pub(super) fn put_back(&mut self, task: TaskId, future: Pinned) -> Option<Pinned> {
        match self.entry(task) {
            Some(entry) => {
                entry.future = Some(future);
                None
            }
            None => Some(future),
        }
    }

    pub(super) fn remove(&mut self, task: TaskId) -> Option<Pinned> {
        self.entry(task)?;
        let (generation, entry) = &mut self.places[task.place as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(task.place);
        entry.take().and_then(|entry| entry.future)
    }

    fn take_where(&mut self, of: impl Fn(&TaskEntry) -> bool) -> Vec<Pinned> {
        let ids: Vec<TaskId> = (0..self.places.len())
            .filter(|&place| self.places[place].1.as_ref().is_some_and(&of))
            .map(|place| TaskId { place: place as u32, generation: self.places[place].0 })
            .collect();
        ids.into_iter().filter_map(|task| self.remove(task)).collect()
    }

    pub(super) fn take_of(&mut self, host: HostId) -> Vec<Pinned> {
        self.take_where(|entry| entry.life.host == host)
    }

    pub(super) fn take_all(&mut self) -> Vec<Pinned> {
        self.take_where(|_| true)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (Life, &str)> {
        let entries = self.places.iter().filter_map(|(_, entry)| entry.as_ref());
        entries.map(|entry| (entry.life, entry.name.as_str()))
    }
}

/// The task ended without an output, because its host crashed or the simulation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crashed;

impl fmt::Display for Crashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task's host crashed")
    }
}

impl std::error::Error for Crashed {}

struct End<T> {
    outcome: Option<Result<T, Crashed>>,
    done: bool,
    waker: Option<Waker>,
}

/// The handle of a task, which is a future of its output. Dropping it does not end the task.
pub struct Task<T>(Arc<Mutex<End<T>>>);

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task(done: {})", self.is_done())
    }
}

impl<T> Task<T> {
    /// Whether the task has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.lock().done
    }

    /// Takes the output, which the task gives once.
    #[must_use]
    pub fn take(&self) -> Option<Result<T, Crashed>> {
        self.0.lock().outcome.take()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Crashed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut end = self.0.lock();
        if let Some(outcome) = end.outcome.take() {
            return Poll::Ready(outcome);
        }
        assert!(!end.done, "what a task returns is taken once");
        end.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Notifies the handle when the task ends, in whichever way it ends.
struct Tell<T>(Arc<Mutex<End<T>>>);

impl<T> Tell<T> {
    fn tell(&self, outcome: Result<T, Crashed>) {
        let waker = {
            let mut end = self.0.lock();
            if end.done {
                return;
            }
            end.done = true;
            end.outcome = Some(outcome);
            end.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Tell<T> {
    fn drop(&mut self) {
        self.tell(Err(Crashed));
    }
}

/// Wraps a future for the scheduler, and makes its handle.
pub(super) fn wrap<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> (Task<T>, Pinned) {
    let end = Arc::new(Mutex::new(End { outcome: None, done: false, waker: None }));
    let tell = Tell(Arc::clone(&end));
    let wrapped = async move {
        let tell = tell;
        tell.tell(Ok(future.await));
    };
    (Task(end), Box::pin(wrapped))
}
