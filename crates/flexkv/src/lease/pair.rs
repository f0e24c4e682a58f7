//! Cache leases between a proxy (the granter) and a compute node that caches its values (the
//! holder), as two state machines.
//!
//! Every request of the holder asks for renewal, and every answer of the granter may grant it. The
//! holder counts from the time at which it *sent* the request, the granter from the time at which
//! it *answered*. Both allow for a tick of their own clock, and the granter also for drift. So the
//! granter's end is later in real time than the holder's.
//!
//! A write must not be committed while a holder may serve the old value. The granter waits for the
//! holder's acknowledgement, or until it may **give up**, because the latest lease has run out. The
//! holder has then **lapsed**, and everything that it cached is void. The next renewal of a lapsed
//! holder has a new **session** number. The holder drops everything that it cached under the old
//! session before it uses the new lease.
//!
//! Invariants:
//!
//! 1. While a holder believes in its lease of a session, the granter has not given up on that
//!    session. This assumes only that the clocks differ by less than the allowance. Messages may be
//!    lost, late, repeated or out of order.
//! 2. Sessions grow. A late answer of an old session renews nothing. A late request renews nothing
//!    at the holder beyond what counting from its sending allows.
//! 3. A granter in a new life begins with sessions above all that it gave before. It serves no
//!    write before a lease has passed, or its predecessor's holders drop their caches. The
//!    component that assigns partitions makes sure of that.
//! 4. Waits end. While an invalidation is unacknowledged for more than a quarter of a lease,
//!    renewals are not granted. So a write waits for at most 1.25 leases and the allowances. Before
//!    that time renewals are granted, because a stream of writes would starve the lease otherwise.
//!
//! Thread-safety: by `&mut`.
//! Cost: constant time, and no message of its own while requests flow.

/// The terms on which granter and holder agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Length of a lease, in nanoseconds.
    pub lease_ns: u64,
    /// Largest drift between two clocks, in parts per million.
    pub drift_ppm: u64,
    /// Largest tick of a clock, in nanoseconds.
    pub tick_ns: u64,
}

impl Default for Terms {
    /// A lease of 100 ms, a drift of 10⁻⁴ as the paper assumes, and a tick of 1 ms.
    fn default() -> Self {
        Self { lease_ns: 100_000_000, drift_ppm: 100, tick_ns: 1_000_000 }
    }
}

impl Terms {
    /// Time for which the granter waits: the lease, the drift over it (rounded up), and a tick.
    fn granter_ns(self) -> u64 {
        let drift =
            (u128::from(self.lease_ns) * u128::from(self.drift_ppm)).div_ceil(1_000_000) as u64;
        self.lease_ns.saturating_add(drift).saturating_add(self.tick_ns)
    }
}

/// An answer to a request for renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Session of the lease.
    pub session: u64,
    /// Length of the lease from the request's sending, in nanoseconds. 0 if it is not renewed.
    pub lease_ns: u64,
}

/// Result of [`Granter::give_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The holder no longer serves anything that it cached, so the write may go on.
    Lapsed,
    /// The holder may believe in its lease until this time. Ask again then.
    Until(u64),
}

/// The proxy's state for one holder.
#[derive(Clone, Copy, Debug)]
pub struct Granter {
    terms: Terms,
    session: u64,
    /// Time at which the latest lease has run out for certain. `None` if the session was not
    /// granted yet.
    until_ns: Option<u64>,
}

impl Granter {
    /// A granter that has granted nothing. `first_session` must be above 0 and above every session
    /// that a former life of this node granted.
    #[must_use]
    pub fn new(terms: Terms, first_session: u64) -> Self {
        Self { terms, session: first_session.max(1), until_ns: None }
    }

    /// Answers a request at `now_ns`. `oldest_wait_ns` is the time at which the oldest invalidation
    /// was sent that this holder has not acknowledged.
    pub fn on_request(&mut self, now_ns: u64, oldest_wait_ns: Option<u64>) -> Granted {
        let waits = oldest_wait_ns
            .is_some_and(|since| now_ns.saturating_sub(since) > self.terms.lease_ns / 4);
        if waits && self.until_ns.is_some() {
            return Granted { session: self.session, lease_ns: 0 };
        }
        let until = now_ns.saturating_add(self.terms.granter_ns());
        // Several threads may read the clock, and not in order.
        self.until_ns = Some(self.until_ns.map_or(until, |before| before.max(until)));
        Granted { session: self.session, lease_ns: self.terms.lease_ns }
    }

    /// The session under which the holder may cache an answer. `None` if it has no lease.
    #[must_use]
    pub fn may_share(&self, now_ns: u64) -> Option<u64> {
        self.until_ns.filter(|&until| now_ns < until).map(|_| self.session)
    }

    /// Tries to go on without the holder's acknowledgement. Once this returns `Lapsed`, all waits
    /// for the holder are over, and every list of sharers may drop it.
    pub fn give_up(&mut self, now_ns: u64) -> Waiting {
        match self.until_ns {
            Some(until) if now_ns < until => Waiting::Until(until),
            Some(_) => {
                self.session += 1;
                self.until_ns = None;
                Waiting::Lapsed
            }
            None => Waiting::Lapsed,
        }
    }

    /// The session that was granted last, or will be granted next.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session
    }
}

/// Effect of an answer on the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// The lease was renewed or did not change.
    Renewed,
    /// A new session began. Nothing may be served until everything cached from this granter is
    /// dropped and [`Holder::dropped`] was called.
    DropAll,
    /// The answer belongs to an old session.
    Ignored,
}

/// The compute node's state for one granter.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    terms: Terms,
    session: u64,
    until_ns: u64,
    /// A new session, and the end of its lease.
    next: Option<(u64, u64)>,
}

impl Holder {
    /// A holder without a lease.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self { terms, session: 0, until_ns: 0, next: None }
    }

    /// Takes the answer to a request. `sent_ns` is the holder's clock, read *before* the request
    /// was sent for the first time.
    pub fn on_answer(&mut self, sent_ns: u64, granted: Granted) -> Adopted {
        let Granted { session, lease_ns } = granted;
        let lease = lease_ns.min(self.terms.lease_ns);
        let until = match lease {
            0 => 0,
            lease => sent_ns.saturating_add(lease).saturating_sub(self.terms.tick_ns),
        };
        let newest = self.next.map_or(self.session, |(session, _)| session);
        if session < newest || session == 0 {
            return Adopted::Ignored;
        }
        if session > newest {
            self.next = Some((session, until));
            self.until_ns = 0;
            return Adopted::DropAll;
        }
        match &mut self.next {
            Some((_, lease)) => {
                *lease = (*lease).max(until);
                Adopted::DropAll
            }
            None => {
                self.until_ns = self.until_ns.max(until);
                Adopted::Renewed
            }
        }
    }

    /// Begins the new session, after everything cached from the granter, and every fetch from it,
    /// was dropped.
    pub fn dropped(&mut self) {
        if let Some((session, until)) = self.next.take() {
            self.session = session;
            self.until_ns = until;
        }
    }

    /// Whether an entry that was cached under `session` may be served at `now_ns`.
    #[inline]
    #[must_use]
    pub fn may_serve(&self, now_ns: u64, session: u64) -> bool {
        session == self.session && now_ns < self.until_ns
    }

    /// Whether less than half of the lease is left, so that it is time to renew. Without a lease
    /// there is nothing to renew, because the next request asks for one.
    #[must_use]
    pub fn wants_renewal(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns && self.until_ns - now_ns < self.terms.lease_ns / 2
    }

    /// The current session. 0 if there is none yet.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session
    }
}
