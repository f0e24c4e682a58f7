//! Machines of a simulation: they crash, which ends their tasks and events, and restart into a new life.

use std::fmt;
use std::future::Future;

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
}

/// All hosts; place 0 is the world.
pub(super) struct Hosts(Vec<Known>);

impl Default for Hosts {
    fn default() -> Self {
        Self(vec![Known { name: String::new(), life: 0, up: true }])
    }
}

impl Hosts {
    pub(super) fn add(&mut self, name: &str) -> HostId {
        let taken = self.0.iter().any(|host| host.name == name);
        assert!(!taken, "a host needs a name that no other has: {name}");
        self.0.push(Known { name: name.to_owned(), life: 0, up: true });
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

    /// Whether it was up.
    pub(super) fn crash(&mut self, host: HostId) -> bool {
        let known = &mut self.0[host.0 as usize];
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

    /// Ends its life: tasks are dropped, events forgotten, its links go down. Nothing if it is down.
    pub fn crash(&self) {
        self.scheduler.crash(self.id);
    }

    /// Starts it again, without any task. Nothing if it is up.
    pub fn restart(&self) {
        self.scheduler.note(|| format!("{} restarts", self.name));
        self.scheduler.0.state.lock().hosts.0[self.id.0 as usize].up = true;
    }
}
