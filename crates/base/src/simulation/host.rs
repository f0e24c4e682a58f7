//! Machines of a simulation: they crash, which ends their tasks and events, and restart into a new
//! life; they stop for a while, as a process does that is stopped; and their clocks run apart.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::core::Scheduler;
use super::task::Task;

/// A host, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// One life of a host: from its start, or a restart, to its crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// Whose.
    pub host: HostId,
    /// Which, from 0.
    pub number: u32,
}

impl Life {
    /// Of what belongs to no host and never crashes.
    pub const WORLD: Self = Self { host: HostId(0), number: 0 };
}

struct Known {
    name: String,
    life: u32,
    up: bool,
    /// Nothing of it happens: it is kept until it goes on.
    stopped: bool,
    clock: HostClock,
}

/// How a host's clock differs from the world's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostClock {
    /// What it showed when the world began, in nanoseconds.
    pub ahead_ns: u64,
    /// By how many millionths of the time that passes it is too fast; below zero: too slow.
    pub fast_ppm: i32,
}

const MILLION: i128 = 1_000_000;

impl HostClock {
    /// What it shows at `now_ns` of the world.
    #[must_use]
    pub fn reading_ns(self, now_ns: u64) -> u64 {
        let more = i128::from(now_ns) * i128::from(self.fast_ppm) / MILLION;
        self.ahead_ns + (i128::from(now_ns) + more).max(0) as u64
    }

    /// How long the world takes while the host's clock goes on by `duration`.
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

/// All hosts; place 0 is the world.
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

    /// Whether it was up.
    pub(super) fn crash(&mut self, host: HostId) -> bool {
        let known = &mut self.0[host.0 as usize];
        known.stopped = false;
        let was_up = std::mem::replace(&mut known.up, false);
        known.life += u32::from(was_up);
        was_up
    }
}

/// A machine.
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

    /// Which.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Its name, unique in the simulation.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it lives.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Its present life; of a host that is down, the next one.
    #[must_use]
    pub fn life(&self) -> Life {
        self.scheduler.life(self.id)
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.scheduler.is_up(self.id)
    }

    /// Starts a task that ends with the host's life. On a host that is down it ends at once.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        self.scheduler.spawn_as(self.life(), name, future)
    }

    /// Ends its life: tasks are dropped, events forgotten, its links go down. Nothing if it is
    /// down.
    pub fn crash(&self) {
        self.scheduler.crash(self.id);
    }

    /// Starts it again, without any task. Nothing if it is up.
    pub fn restart(&self) {
        self.scheduler.note(|| format!("{} restarts", self.name));
        self.scheduler.0.state.lock().hosts.0[self.id.0 as usize].up = true;
    }

    /// Nothing of it happens from now on until [`go_on`](Self::go_on): neither its tasks nor what
    /// arrives. What would have happened is kept. Its clock goes on. Nothing if it is down.
    pub fn stop(&self) {
        self.scheduler.note(|| format!("{} stops", self.name));
        let mut state = self.scheduler.0.state.lock();
        let known = &mut state.hosts.0[self.id.0 as usize];
        known.stopped = known.up;
    }

    /// Ends [`stop`](Self::stop): what was kept happens now.
    pub fn go_on(&self) {
        self.scheduler.note(|| format!("{} goes on", self.name));
        let mut state = self.scheduler.0.state.lock();
        state.hosts.0[self.id.0 as usize].stopped = false;
        state.release(self.id);
    }

    /// Sets its clock: what [`Runtime`](crate::runtime::Runtime) shows and sleeps by. To be called
    /// before anything runs on it.
    pub fn set_clock(&self, clock: HostClock) {
        self.scheduler.0.state.lock().hosts.0[self.id.0 as usize].clock = clock;
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> HostClock {
        self.scheduler.0.state.lock().hosts.0[self.id.0 as usize].clock
    }

    /// What its clock shows now.
    pub(crate) fn reading_ns(&self) -> u64 {
        let state = self.scheduler.0.state.lock();
        state.hosts.0[self.id.0 as usize].clock.reading_ns(state.now_ns)
    }
}
