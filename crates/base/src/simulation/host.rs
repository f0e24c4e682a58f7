//! Machines of a simulation. A host crashes, which ends its tasks and events, and restarts into a
//! new life. It stops for a while, as a process does after SIGSTOP. Its clock may run at its own
//! rate.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::core::Scheduler;
use super::task::Task;

/// Number of a host, which all its lives share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// One life of a host, from its start or restart to its crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// The host that lives.
    pub host: HostId,
    /// Number of the life, from 0.
    pub number: u32,
}

impl Life {
    /// The life of events and tasks that belong to no host. It never ends.
    pub const WORLD: Self = Self { host: HostId(0), number: 0 };
}

struct Known {
    name: String,
    life: u32,
    up: bool,
    /// Whether the host is stopped. Its events are held back until it continues.
    stopped: bool,
    clock: HostClock,
}

/// The difference between a host's clock and the world's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostClock {
    /// Time that the host's clock showed when the world began, in nanoseconds.
    pub ahead_ns: u64,
    /// Error of the clock's rate in millionths. A clock with a negative value is slow.
    pub fast_ppm: i32,
}

const MILLION: i128 = 1_000_000;

impl HostClock {
    /// Time that the host's clock shows when the world's clock shows `now_ns`.
    #[must_use]
    pub fn reading_ns(self, now_ns: u64) -> u64 {
        let more = i128::from(now_ns) * i128::from(self.fast_ppm) / MILLION;
        self.ahead_ns + (i128::from(now_ns) + more).max(0) as u64
    }

    /// Time that passes in the world while the host's clock advances by `duration`.
    #[must_use]
    pub fn takes(self, duration: Duration) -> Duration {
        if self.fast_ppm == 0 {
            return duration;
        }
        let rate = (MILLION + i128::from(self.fast_ppm)).max(1);
        let ns = (duration.as_nanos() as i128 * MILLION + rate - 1) / rate;
        Duration::from_nanos(ns.min(i128::from(u64::MAX)) as u64)
    }
}

/// All hosts. Index 0 is the world.
pub(super) struct Hosts(Vec<Known>);

impl Known {
    fn new(name: &str) -> Self {
        let clock = HostClock::default();
        Self { name: name.to_owned(), life: 0, up: true, stopped: false, clock }
    }
}

impl Default for Hosts {
    fn default() -> Self {
        Self(vec![Known::new("")])
    }
}

impl Hosts {
    pub(super) fn add(&mut self, name: &str) -> HostId {
        let taken = self.0.iter().any(|host| host.name == name);
        assert!(!taken, "a host needs a name that no other has: {name}");
        self.0.push(Known::new(name));
        HostId(self.0.len() as u32 - 1)
    }

    pub(super) fn name(&self, host: HostId) -> &str {
        &self.0[host.0 as usize].name
    }

    pub(super) fn is_current(&self, life: Life) -> bool {
        let host = &self.0[life.host.0 as usize];
        host.up && host.life == life.number
    }

    pub(super) fn life(&self, host: HostId) -> Life {
        Life { host, number: self.0[host.0 as usize].life }
    }

    pub(super) fn is_up(&self, host: HostId) -> bool {
        self.0[host.0 as usize].up
    }

    pub(super) fn is_stopped(&self, host: HostId) -> bool {
        self.0[host.0 as usize].stopped
    }

    /// Ends the life of a host. Returns whether the host was up.
    pub(super) fn crash(&mut self, host: HostId) -> bool {
        let known = &mut self.0[host.0 as usize];
        known.stopped = false;
        let was_up = std::mem::replace(&mut known.up, false);
        known.life += u32::from(was_up);
        was_up
    }
}

/// A machine of the simulation.
#[derive(Clone)]
pub struct Host {
    scheduler: Scheduler,
    id: HostId,
    name: String,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.name)
    }
}

impl Host {
    pub(super) fn new(scheduler: Scheduler, id: HostId, name: &str) -> Self {
        Self { scheduler, id, name: name.to_owned() }
    }

    /// The number of this host.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.id
    }

    /// The name, which is unique in the simulation.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The scheduler of the simulation.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The current life, or the next life if the host is down.
    #[must_use]
    pub fn life(&self) -> Life {
        self.scheduler.life(self.id)
    }

    /// Whether this host is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.scheduler.is_up(self.id)
    }

    /// Starts a task that ends with the host's life. On a host that is down it ends immediately.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        self.scheduler.spawn_as(self.life(), name, future)
    }

    /// Ends the host's life: tasks and events are dropped, and links go down. The call does nothing
    /// if the host is down.
    pub fn crash(&self) {
        self.scheduler.crash(self.id);
    }

    /// Starts the host again, without tasks. The call does nothing if the host is up.
    pub fn restart(&self) {
        self.scheduler.note(|| format!("{} restarts", self.name));
        self.scheduler.0.state.lock().hosts.0[self.id.0 as usize].up = true;
    }

    /// Stops the host until [`go_on`](Self::go_on). Its events are held back meanwhile, and its
    /// clock advances. The call does nothing if the host is down.
    pub fn stop(&self) {
        self.scheduler.note(|| format!("{} stops", self.name));
        let mut state = self.scheduler.0.state.lock();
        let known = &mut state.hosts.0[self.id.0 as usize];
        known.stopped = known.up;
    }

    /// Continues a stopped host. Events that were held back become ready now.
    pub fn go_on(&self) {
        self.scheduler.note(|| format!("{} goes on", self.name));
        let mut state = self.scheduler.0.state.lock();
        state.hosts.0[self.id.0 as usize].stopped = false;
        state.release(self.id);
    }

    /// Sets the clock that the host's [`Runtime`](crate::runtime::Runtime) shows and sleeps by. The
    /// caller does this before anything runs on the host.
    pub fn set_clock(&self, clock: HostClock) {
        self.scheduler.0.state.lock().hosts.0[self.id.0 as usize].clock = clock;
    }

    /// The clock of this host.
    #[must_use]
    pub fn clock(&self) -> HostClock {
        self.scheduler.0.state.lock().hosts.0[self.id.0 as usize].clock
    }

    /// Time that the host's clock shows now.
    pub(crate) fn reading_ns(&self) -> u64 {
        let state = self.scheduler.0.state.lock();
        state.hosts.0[self.id.0 as usize].clock.reading_ns(state.now_ns)
    }
}
