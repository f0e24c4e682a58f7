//! Watches for nodes that end: one thread for all links of a provider, which sleeps until a socket
//! is closed.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use archipelago_base::Result;
use archipelago_base::spawn::{Spawn, SystemSpawn};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use crate::alarm::Alarm;

/// A link that the thread notifies.
pub(super) trait Watched: Send + Sync {
    /// Called after the node at the other end of the socket has ended.
    fn ended(&self);
}

#[derive(Default)]
pub(super) struct Watch {
    inner: Mutex<Option<Arc<WatchState>>>,
}

struct WatchState {
    alarm: Alarm,
    watched: Mutex<Vec<WatchEntry>>,
    owner: Weak<Watch>,
}

/// A socket and its link. The thread keeps the socket while it sleeps, and never the link, so that
/// the link can be dropped meanwhile.
type WatchEntry = (Arc<OwnedFd>, Weak<dyn Watched>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    pub(super) fn add(
        self: &Arc<Self>,
        socket: &Arc<OwnedFd>,
        link: Weak<dyn Watched>,
    ) -> Result<()> {
        let entry = (Arc::clone(socket), link);
        let mut inner = self.inner.lock();
        if let Some(inner) = &*inner {
            inner.watched.lock().push(entry);
            inner.alarm.ring();
            return Ok(());
        }
        let made = Arc::new(WatchState {
            alarm: Alarm::new()?,
            watched: Mutex::new(vec![entry]),
            owner: Arc::downgrade(self),
        });
        let thread = Arc::clone(&made);
        SystemSpawn.spawn("fabric-watch", Box::new(move || thread.run()))?;
        *inner = Some(made);
        Ok(())
    }

    /// Makes the thread read its list again, because a link was dropped.
    pub(super) fn stir(&self) {
        if let Some(inner) = &*self.inner.lock() {
            inner.alarm.ring();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stir();
    }
}

impl WatchState {
    /// Runs until neither the provider nor a link exists.
    fn run(&self) {
        loop {
            let watched: Vec<WatchEntry> = {
                let mut all = self.watched.lock();
                all.retain(|(_, link)| link.strong_count() > 0);
                all.clone()
            };
            if watched.is_empty() && self.owner.strong_count() == 0 {
                return;
            }
            // The kernel reports the end without requested events.
            let sockets =
                watched.iter().map(|(socket, _)| PollFd::new(&**socket, PollFlags::empty()));
            let alarm = PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN);
            let mut fds: Vec<PollFd<'_>> = std::iter::once(alarm).chain(sockets).collect();
            let _ready = poll(&mut fds, None);
            let ended: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            if !fds[0].revents().is_empty() {
                self.alarm.take();
            }
            drop(fds);
            for ((socket, link), _) in watched.iter().zip(ended).filter(|(_, ended)| *ended) {
                if let Some(link) = link.upgrade() {
                    link.ended();
                }
                self.watched.lock().retain(|(other, _)| !Arc::ptr_eq(other, socket));
            }
        }
    }
}
