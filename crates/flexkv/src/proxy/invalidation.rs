//! Those who cache what this node is the proxy of: the leases that it gives them, and what they are
//! told before a write commits.
//!
//! A node is given a lease with every answer to its look-ups, writes and renewals; what it may
//! cache then, it may serve while that lasts. Before a write of a slot commits, everybody who may
//! have cached its pair is told at once and acknowledges, or its lease runs out
//! ([`Granter::give_up`]); a node that holds none is not told. This node's own cache is emptied of
//! the key without a message: so it caches pairs of its own partitions whatever they are worth,
//! while there is room.
//!
//! Who is no member of the map any more is not told either: it is gone for good, and the pool's
//! lease, without which nothing is served, was over before anybody was told so.
//!
//! Invariants: 1. when [`Inner::tell_sharers`] is done, none of them serves the old pair any more;
//! 2. a wait ends after 1.25 leases and what clocks may differ. Thread-safety: all of it. Failure:
//! it ends with an error only if this node is taken for dead. Cost: one round trip to all of them
//! together. Paper: §4.4; the leases are ours ([`crate::lease`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::together;
use archipelago_fabric::ClientId;
use parking_lot::Mutex;

use crate::format::KeyHash;
use crate::ids::ComputeId;
use crate::lease::{Granted, Granter, Terms, Waiting};
use crate::node::caching::count;
use crate::node::peers::{Asked, Peer};
use crate::node::{Inner, REQUEST};
use crate::settings::CacheMode;
use crate::sharers::Sharers;
use crate::wire::{Grant, Member, Message};

/// An invalidation is sent again after this part of a lease.
const AGAIN: u64 = 8;

#[derive(Debug)]
struct Given {
    granter: Granter,
    /// Invalidations that it has not acknowledged: since when each is out.
    out: BTreeMap<u64, u64>,
}

/// The leases that this node gave.
#[derive(Debug)]
pub(crate) struct Leases {
    terms: Terms,
    state: Mutex<(BTreeMap<ClientId, Given>, u64)>,
}

/// An invalidation that is out.
struct Out<'a> {
    leases: &'a Leases,
    to: ClientId,
    number: u64,
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        if let Some(given) = self.leases.state.lock().0.get_mut(&self.to) {
            given.out.remove(&self.number);
        }
    }
}

impl Leases {
    pub(crate) fn new(terms: Terms) -> Self {
        Self { terms, state: Mutex::default() }
    }

    /// A request of `from`: its lease goes on. Whether it may cache pairs.
    fn request(&self, from: ClientId, now_ns: u64) -> (Granted, bool) {
        let mut state = self.state.lock();
        let given = state.0.entry(from).or_insert_with(|| {
            // Above whatever this node gave before it forgot the other.
            let granter = Granter::new(self.terms, now_ns / 1000);
            Given { granter, out: BTreeMap::new() }
        });
        let oldest_ns = given.out.values().min().copied();
        let granted = given.granter.on_request(now_ns, oldest_ns);
        (granted, given.granter.may_share(now_ns).is_some())
    }

    fn tell(&self, to: ClientId, now_ns: u64) -> Out<'_> {
        let (given, next) = &mut *self.state.lock();
        *next += 1;
        if let Some(given) = given.get_mut(&to) {
            given.out.insert(*next, now_ns);
        }
        Out { leases: self, to, number: *next }
    }

    fn give_up(&self, on: ClientId, now_ns: u64) -> Waiting {
        let given = &mut self.state.lock().0;
        given.get_mut(&on).map_or(Waiting::Lapsed, |given| given.granter.give_up(now_ns))
    }

    /// Forgets those who are no members any more.
    pub(crate) fn retain(&self, members: &[Member]) {
        let stays = |client| members.iter().any(|member| member.client == client);
        self.state.lock().0.retain(|client, _| stays(*client));
    }
}

impl Inner {
    /// The lease for `from`, who asked something before which this node's clock was `stamp_us`; and
    /// its number, if it may cache pairs.
    pub(crate) fn lease_to(&self, from: ClientId, stamp_us: u64) -> (Grant, Option<ComputeId>) {
        let none = Grant { stamp_us, ..Grant::default() };
        let Ok(joined) = self.joined() else { return (none, None) };
        let pairs = self.caching.mode() == CacheMode::Pairs;
        if from == self.pool.client() {
            return (none, pairs.then_some(ComputeId(joined.number)));
        }
        let map = Arc::clone(&joined.map.read());
        let Some(member) = map.members.iter().find(|member| member.client == from) else {
            return (none, None);
        };
        let (Granted { session, lease_ns }, shares) = self.leases.request(from, self.now_ns());
        let number = (pairs && shares).then_some(ComputeId(member.number));
        (Grant { session, lease_us: lease_ns / 1000, stamp_us }, number)
    }

    /// Whether to tell sharers that an address is superseded is less work than to clear its
    /// record's valid bit. Two messages for each are spread over the cards of all compute nodes, a
    /// WRITE for each copy over those of the memory nodes, which are as many at least: so up to a
    /// half of the compute nodes, less something, as all answers are waited for. A `writer` of
    /// another node waits longer for messages to itself.
    pub(super) fn are_few(&self, sharers: Sharers, writer: ClientId) -> bool {
        if sharers.is_empty() {
            return true;
        }
        let Ok(joined) = self.joined() else { return false };
        let map = Arc::clone(&joined.map.read());
        let is_told = |member: &Member| {
            member.client == writer
                && writer != self.pool.client()
                && sharers.may_have(ComputeId(member.number))
        };
        let most = map.members.len() as u32 * 2 / 5;
        let told = sharers.count() - u32::from(sharers.may_have(ComputeId(joined.number)));
        told <= most && !map.members.iter().any(is_told)
    }

    /// This node caches nothing of the key any more, if it did.
    pub(super) fn drop_own(&self, sharers: Sharers, hash: KeyHash) {
        let mine = self.joined().is_ok_and(|joined| sharers.may_have(ComputeId(joined.number)));
        if mine && !self.table.sabotage.no_invalidation() {
            self.caching.invalidate(hash);
        }
    }

    /// Tells all others who may have cached the key's pair, or its address, that it is being
    /// superseded. Done when none of them serves it any more.
    pub(super) async fn tell_sharers(&self, sharers: Sharers, hash: KeyHash) -> Result<()> {
        if sharers.is_empty() || self.table.sabotage.no_invalidation() {
            return Ok(());
        }
        let joined = self.joined()?;
        let map = Arc::clone(&joined.map.read());
        let mut telling = Vec::new();
        for member in &map.members {
            if !sharers.may_have(ComputeId(member.number)) {
                continue;
            }
            if member.client == self.pool.client() {
                continue;
            }
            let (peer, to) = (self.peers.peer(member), member.client);
            telling.push(async move { self.tell_sharer(&peer, to, hash).await });
        }
        together(telling).await.into_iter().collect()
    }

    async fn tell_sharer(&self, peer: &Peer, to: ClientId, hash: KeyHash) -> Result<()> {
        let counters = &self.caching.counters;
        let _out = self.leases.tell(to, self.now_ns());
        let mut asked = Asked::new(&Message::Invalidate { hash: hash.0 });
        let again = Duration::from_nanos(self.settings.terms().lease_ns / AGAIN).min(REQUEST);
        loop {
            let now_ns = self.now_ns();
            let left = match self.leases.give_up(to, now_ns) {
                Waiting::Lapsed => {
                    if asked.was_sent() {
                        count(&counters.invalidations_waited_out);
                    }
                    return Ok(());
                }
                Waiting::Until(until_ns) => Duration::from_nanos(until_ns - now_ns),
            };
            if !asked.was_sent() {
                count(&counters.invalidations_sent);
            }
            match self.ask_within(peer, &mut asked, again.min(left)).await {
                Ok(Some(Message::Done {})) => return Ok(()),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "a sharer's lease has to run out"),
            }
            self.table.late(u64::MAX, "telling those who cache a key")?;
            self.pause().await;
        }
    }
}
