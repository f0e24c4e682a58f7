//! Threads behind a trait, so that a test can count them, name them or start none.

#[cfg(target_os = "linux")]
use std::cell::Cell;
use std::fmt;
#[cfg(target_os = "linux")]
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(target_os = "linux")]
use std::sync::{OnceLock, mpsc};

use crate::error::{Error, ErrorKind, Result};

/// A thread that was started. [`Joiner::join`] waits for its end.
pub struct Joiner(std::thread::JoinHandle<()>);

impl fmt::Debug for Joiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Joiner({:?})", self.0.thread().name())
    }
}

impl Joiner {
    /// Whether the thread has ended, so that [`Joiner::join`] does not wait.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until the thread has ended. Errors: `Internal` if it panicked.
    pub fn join(self) -> Result<()> {
        let name = self.0.thread().name().unwrap_or("unnamed").to_owned();
        self.0.join().map_err(|_| Error::internal(format!("thread {name} panicked")))
    }
}

/// A source of threads: the operating system in production.
pub trait Spawn: Send + Sync + fmt::Debug + 'static {
    /// Runs `body` on a new thread named `name`. Tools such as `top` show at most 15 bytes of the
    /// name. Errors: `Io` if the system starts no thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Joiner>;
}

/// The largest increment of the nice value, which [`lower_priority`] adds.
#[cfg(target_os = "linux")]
const NICE: i32 = 19;

/// Lowers the calling thread's priority permanently, because a thread cannot raise it again without
/// a privilege. The thread then gets the time that others leave, and a seventieth of the share of a
/// normal thread. The function does nothing if priorities belong to processes, or if the system
/// refuses.
///
/// A thread inherits the priority of the thread that starts it, but the threads that
/// [`SystemSpawn`] starts may serve others. An example is the thread that receives for all users
/// of a link. So a thread whose priority was lowered here starts threads of normal priority, by way
/// of a thread of this process that keeps it.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // The first caller has the priority that all threads begin with.
        STARTER.get_or_init(start_starter);
        let _ = rustix::process::nice(NICE);
        IS_LOWERED.set(true);
    }
}

/// A thread to start, and the channel for the result.
#[cfg(target_os = "linux")]
struct Order {
    name: String,
    body: Box<dyn FnOnce() + Send>,
    started: mpsc::SyncSender<std::io::Result<std::thread::JoinHandle<()>>>,
}

/// The thread that starts threads for those of low priority. It lives as long as the process.
/// `None` if the system did not start it.
#[cfg(target_os = "linux")]
static STARTER: OnceLock<Option<mpsc::Sender<Order>>> = OnceLock::new();

#[cfg(target_os = "linux")]
thread_local! {
    /// Whether [`lower_priority`] was called on this thread.
    static IS_LOWERED: Cell<bool> = const { Cell::new(false) };
}

#[cfg(target_os = "linux")]
fn start_starter() -> Option<mpsc::Sender<Order>> {
    let (orders, ordered) = mpsc::channel::<Order>();
    let work = move || ordered.into_iter().for_each(carry_out);
    let _lives_on = start_here("starter".to_owned(), Box::new(work)).ok()?;
    Some(orders)
}

/// Starts the thread of `order`. The standard library panics if the name has a zero byte. The panic
/// must not end the calling thread, which carries out all later orders.
#[cfg(target_os = "linux")]
fn carry_out(order: Order) {
    let Order { name, body, started } = order;
    let result = catch_unwind(AssertUnwindSafe(|| start_here(name, body)));
    let panicked = |_| Err(std::io::Error::other("the start of the thread panicked"));
    // The thread that has sent the order waits for the result.
    let _ = started.send(result.unwrap_or_else(panicked));
}

/// Starts a thread with the priority of the thread that receives `orders`. If that thread has
/// ended, the new thread gets the priority of the calling one.
#[cfg(target_os = "linux")]
fn start_by(
    orders: &mpsc::Sender<Order>,
    name: String,
    body: Box<dyn FnOnce() + Send>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let (started, result) = mpsc::sync_channel(1);
    match orders.send(Order { name, body, started }) {
        Ok(()) => {
            let ended = |_| Err(std::io::Error::other("the thread that starts threads has ended"));
            result.recv().unwrap_or_else(ended)
        }
        Err(mpsc::SendError(Order { name, body, .. })) => start_here(name, body),
    }
}

/// Starts a thread with the priority of the calling one.
fn start_here(
    name: String,
    body: Box<dyn FnOnce() + Send>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(body)
}

/// Starts a thread with the priority that the calling thread had before [`lower_priority`]. If the
/// thread that keeps this priority does not exist, the new thread gets the priority of the calling
/// thread.
fn start(
    name: String,
    body: Box<dyn FnOnce() + Send>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    #[cfg(target_os = "linux")]
    if IS_LOWERED.get()
        && let Some(Some(orders)) = STARTER.get()
    {
        return start_by(orders, name, body);
    }
    start_here(name, body)
}

/// The source of threads of the operating system. A thread of low priority
/// ([`lower_priority`]) starts threads of normal priority.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemSpawn;

impl Spawn for SystemSpawn {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        start(name.to_owned(), body).map(Joiner).map_err(|source| {
            Error::with_source(ErrorKind::Io, format!("cannot start thread {name}"), source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_reports_a_panic_as_internal() {
        let thread =
            SystemSpawn.spawn("doomed", Box::new(|| panic!("on purpose"))).expect("starts");
        let error = thread.join().expect_err("it panicked");
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(error.to_string(), "internal error: thread doomed panicked");
        let thread = SystemSpawn.spawn("sound", Box::new(|| {})).expect("starts");
        assert!(thread.join().is_ok());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn thread_of_low_priority_starts_threads_of_normal_priority() {
        let nice = || rustix::process::getpriority_process(None).expect("Linux has it");
        let own = nice();
        let (tell, told) = mpsc::channel();
        let first = move || {
            lower_priority();
            let lowered = nice();
            let (tell_second, tell_third) = (tell.clone(), tell);
            let third = move || tell_third.send(nice()).expect("the test waits");
            let second = move || {
                tell_second.send(nice()).expect("the test waits");
                SystemSpawn.spawn("third", Box::new(third)).expect("starts").join().expect("ends");
            };
            SystemSpawn.spawn("second", Box::new(second)).expect("starts").join().expect("ends");
            assert_eq!(lowered, (own + NICE).min(NICE));
        };
        SystemSpawn.spawn("first", Box::new(first)).expect("starts").join().expect("ends");
        assert_eq!(told.try_iter().collect::<Vec<i32>>(), [own, own]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn order_that_panics_fails_alone() {
        let low = || {
            lower_priority();
            let refused = SystemSpawn.spawn("zero\0byte", Box::new(|| {})).expect_err("a panic");
            assert_eq!(refused.kind(), ErrorKind::Io);
            SystemSpawn.spawn("sound", Box::new(|| {})).expect("starts").join().expect("ends");
        };
        SystemSpawn.spawn("low", Box::new(low)).expect("starts").join().expect("ends");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn thread_starts_although_no_thread_takes_orders() {
        let (orders, ordered) = mpsc::channel();
        drop(ordered);
        let (tell, told) = mpsc::channel();
        let body = move || tell.send(()).expect("the test waits");
        let thread = start_by(&orders, "orphan".to_owned(), Box::new(body)).expect("starts");
        assert!(told.recv().is_ok() && thread.join().is_ok());
    }
}
