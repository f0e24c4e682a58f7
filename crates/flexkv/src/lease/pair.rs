//! Cache leases between a proxy (the granter) and a compute node that caches its values (the
//! holder), as two state machines.
//!
//! Every request of the holder asks for renewal, every answer of the granter may give it. The
//! holder counts from when it *sent* the request, the granter from when it *answered*; both allow
//! for a tick of their own clock, the granter for drift too. So the granter's end lies behind the
//! holder's in real time.
//!
//! A write must not be committed while a holder may serve the old value. The granter waits for the
//! holder's acknowledgement, or until it may **give up**: the lease that it last gave has run out.
//! It then takes the holder for **lapsed**, and what the holder has cached for void. The next
//! renewal of a lapsed holder comes with a new **session** number, and the holder drops all that it
//! cached under the old one before it uses the new lease.
//!
//! Invariants:
//!
//! 1. While a holder believes in its lease of a session, the granter has not given up on that
//!    session (clocks that run apart by less than the allowance; no other assumption: messages may
//!    be lost, late, repeated, out of order).
//! 2. Sessions grow. A late answer of an old session renews nothing; a late request renews nothing
//!    at the holder beyond what counting from its sending allows.
//! 3. A granter in a new life begins with sessions above all that it gave before, and serves no
//!    write before a lease has passed, or has its predecessor's holders drop their caches (who
//!    assigns partitions sees to that).
//! 4. Waits end: while an invalidation is out for longer than a quarter of a lease, renewals are
//!    not given, so a write waits at most 1.25 leases and the allowances. Before that they are:
//!    else a stream of writes would starve the lease.
//!
//! Cost: O(1), no message of its own while requests flow. Thread-safety: by `&mut`.

/// What granter and holder agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease is.
    pub lease_ns: u64,
    /// By how much two clocks may run apart, in parts per million.
    pub drift_ppm: u64,
    /// How coarse a clock may be.
    pub tick_ns: u64,
}

impl Default for Terms {
    /// 100 ms; 10⁻⁴, as the paper assumes; 1 ms.
    fn default() -> Self {
        Self { lease_ns: 100_000_000, drift_ppm: 100, tick_ns: 1_000_000 }
    }
}

impl Terms {
    /// How long the granter waits: the lease, the drift over it (rounded up), a tick.
    fn granter_ns(self) -> u64 {
        let drift =
            (u128::from(self.lease_ns) * u128::from(self.drift_ppm)).div_ceil(1_000_000) as u64;
        self.lease_ns.saturating_add(drift).saturating_add(self.tick_ns)
    }
}

/// An answer to a request for renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The session that holds.
    pub session: u64,
    /// For how long from the request's sending; 0: not renewed.
    pub lease_ns: u64,
}

/// What [`Granter::give_up`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The holder serves nothing any more of what it cached: the write may go on.
    Lapsed,
    /// The holder may believe in its lease until then: ask again.
    Until(u64),
}

/// The proxy's state for one holder.
#[derive(Clone, Copy, Debug)]
pub struct Granter {
    terms: Terms,
    session: u64,
    /// When the last lease given has surely run out; `None`: the session was not given yet.
    until_ns: Option<u64>,
}

impl Granter {
    /// Has given nothing. `first_session` is above all that a former life of this node gave, and
    /// above 0: its epoch times 2^32, say.
    #[must_use]
    pub fn new(terms: Terms, first_session: u64) -> Self {
        Self { terms, session: first_session.max(1), until_ns: None }
    }

    /// The answer to a request, at `now_ns`. `oldest_wait_ns`: since when the oldest invalidation
    /// is out that this holder has not acknowledged.
    pub fn on_request(&mut self, now_ns: u64, oldest_wait_ns: Option<u64>) -> Granted {
        let waits = oldest_wait_ns
            .is_some_and(|since| now_ns.saturating_sub(since) > self.terms.lease_ns / 4);
        if waits && self.until_ns.is_some() {
            return Granted { session: self.session, lease_ns: 0 };
        }
        let until = now_ns.saturating_add(self.terms.granter_ns());
        // The clock may be read by several threads, not in order.
        self.until_ns = Some(self.until_ns.map_or(until, |before| before.max(until)));
        Granted { session: self.session, lease_ns: self.terms.lease_ns }
    }

    /// The session under which the holder may cache what an answer brings; `None`: it may not
    /// cache, as it has no lease.
    #[must_use]
    pub fn may_share(&self, now_ns: u64) -> Option<u64> {
        self.until_ns.filter(|&until| now_ns < until).map(|_| self.session)
    }

    /// Asks to go on without the holder's acknowledgement. Once this says lapsed, all waits for
    /// this holder are over, and it may be taken off every list of sharers.
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

    /// The session that was given last, or will be given next.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session
    }
}

/// What an answer changed for the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// The lease goes on, or did not change.
    Renewed,
    /// A new session: nothing is served until what was cached from this granter is dropped and
    /// [`Holder::dropped`] says so.
    DropAll,
    /// Of an old session.
    Ignored,
}

/// The compute node's state for one granter.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    terms: Terms,
    session: u64,
    until_ns: u64,
    /// A new session, and until when its lease goes.
    next: Option<(u64, u64)>,
}

impl Holder {
    /// Has no lease.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self { terms, session: 0, until_ns: 0, next: None }
    }

    /// An answer to a request that was sent at `sent_ns` of the holder's clock, read *before* it
    /// was sent; of a request that was sent several times, the first sending.
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

    /// What was cached from the granter, and what is being fetched from it to be cached, was
    /// dropped: the new session begins.
    pub fn dropped(&mut self) {
        if let Some((session, until)) = self.next.take() {
            self.session = session;
            self.until_ns = until;
        }
    }

    /// Whether something that was cached under `session` may be served at `now_ns`.
    #[inline]
    #[must_use]
    pub fn may_serve(&self, now_ns: u64, session: u64) -> bool {
        session == self.session && now_ns < self.until_ns
    }

    /// Whether it is time to ask: less than half of a lease is left. Without one there is nothing
    /// to keep; the next request asks.
    #[must_use]
    pub fn wants_renewal(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns && self.until_ns - now_ns < self.terms.lease_ns / 2
    }

    /// The session that holds; 0: none yet.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session
    }
}
