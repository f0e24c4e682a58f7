//! Cache leases that this node gives, and invalidation of the nodes that cache a key.
//!
//! The proxy owns one [`Leases`]. A node gets a lease with every answer to its look-ups, writes and
//! renewals. It serves what it cached only while the lease lasts. Before a write of a slot commits,
//! the proxy sends an invalidation to every node that may have cached the pair, all in parallel.
//! Each node acknowledges, or its lease runs out ([`Granter::give_up`]). A node without a lease
//! gets no message. This node drops its own cached pairs without a message.
//!
//! A node that is no longer a member gets no message either. The pool's lease, without which a node
//! serves nothing, ended before any node learned of the removal.
//!
//! Invariants:
//! 1. When [`Proxy::invalidate_sharers`] returns without an error, no sharer serves the old pair.
//! 2. A wait ends after 1.25 leases and the allowed difference between clocks.
//!
//! Thread-safety: any thread may call any method. `Leases` has one lock, which is held briefly.
//! Failure: an invalidation fails only if the pool declared this node dead.
//! Cost: one round trip to all sharers in parallel. Paper: §4.4. The leases are an addition
//! ([`crate::lease`]).

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::join_all;
use archipelago_fabric::ClientId;
use parking_lot::Mutex;

use super::Proxy;
use crate::format::KeyHash;
use crate::ids::ComputeId;
use crate::lease::{Granted, Granter, Terms, Waiting};
use crate::node::REQUEST;
use crate::node::caching::CacheStat;
use crate::node::peers::{Asked, Peer};
use crate::settings::CacheMode;
use crate::sharers::Sharers;
use crate::wire::{Grant, Member, Message};

/// An invalidation is sent again after a lease divided by this number.
const AGAIN: u64 = 8;

#[derive(Debug)]
struct GrantedLease {
    granter: Granter,
    /// Invalidations that the node has not acknowledged: the time at which each was sent, by
    /// number.
    out: BTreeMap<u64, u64>,
}

/// The leases that this node gave, by client.
#[derive(Debug)]
pub(crate) struct Leases {
    terms: Terms,
    state: Mutex<(BTreeMap<ClientId, GrantedLease>, u64)>,
}

/// An invalidation that was sent. Dropping the guard ends the wait for it.
struct SentInvalidation<'a> {
    leases: &'a Leases,
    to: ClientId,
    number: u64,
}

impl Drop for SentInvalidation<'_> {
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

    /// Renews the lease of `from`, which sent a request. Returns also whether it may cache pairs.
    fn request(&self, from: ClientId, now_ns: u64) -> (Granted, bool) {
        let mut state = self.state.lock();
        let given = state.0.entry(from).or_insert_with(|| {
            // The session is above every session that this node gave before it forgot the client.
            let granter = Granter::new(self.terms, now_ns / 1000);
            GrantedLease { granter, out: BTreeMap::new() }
        });
        let oldest_ns = given.out.values().min().copied();
        let granted = given.granter.on_request(now_ns, oldest_ns);
        (granted, given.granter.may_share(now_ns).is_some())
    }

    fn note_sent(&self, to: ClientId, now_ns: u64) -> SentInvalidation<'_> {
        let (given, next) = &mut *self.state.lock();
        *next += 1;
        if let Some(given) = given.get_mut(&to) {
            given.out.insert(*next, now_ns);
        }
        SentInvalidation { leases: self, to, number: *next }
    }

    fn give_up(&self, on: ClientId, now_ns: u64) -> Waiting {
        let given = &mut self.state.lock().0;
        given.get_mut(&on).map_or(Waiting::Lapsed, |given| given.granter.give_up(now_ns))
    }

    /// Forgets clients that are no longer members.
    pub(crate) fn retain(&self, members: &[Member]) {
        let stays = |client| members.iter().any(|member| member.client == client);
        self.state.lock().0.retain(|client, _| stays(*client));
    }
}

impl Proxy {
    /// The lease for `from`, whose request arrived when this node's clock was `stamp_us`. Returns
    /// also the number of `from`, if it may cache pairs.
    pub(crate) fn lease_to(&self, from: ClientId, stamp_us: u64) -> (Grant, Option<ComputeId>) {
        let none = Grant { stamp_us, ..Grant::default() };
        let Ok(joined) = self.node.joined() else { return (none, None) };
        let pairs = self.node.caching().mode() == CacheMode::Pairs;
        if from == self.node.client() {
            return (none, pairs.then_some(joined.me()));
        }
        let map = joined.map();
        let Some(member) = map.members.iter().find(|member| member.client == from) else {
            return (none, None);
        };
        let (Granted { session, lease_ns }, shares) = self.leases.request(from, self.node.now_ns());
        let number = (pairs && shares).then_some(ComputeId(member.number));
        (Grant { session, lease_us: lease_ns / 1000, stamp_us }, number)
    }

    /// Whether invalidating the sharers of an address costs less than clearing the valid bit of its
    /// record. An invalidation takes two messages per sharer, which the network cards of all
    /// compute nodes share. Clearing takes a WRITE per copy, which the cards of the memory nodes
    /// share. There are at least as many memory nodes as compute nodes. So the limit is somewhat
    /// less than half of the compute nodes, because the proxy waits for every answer. A writer on
    /// another node must not wait for a message to itself.
    pub(super) fn are_few(&self, sharers: Sharers, writer: ClientId) -> bool {
        if sharers.is_empty() {
            return true;
        }
        let Ok(joined) = self.node.joined() else { return false };
        let map = joined.map();
        let is_told = |member: &Member| {
            member.client == writer
                && writer != self.node.client()
                && sharers.may_have(ComputeId(member.number))
        };
        let most = map.members.len() as u32 * 2 / 5;
        let told = sharers.count() - u32::from(sharers.may_have(joined.me()));
        told <= most && !map.members.iter().any(is_told)
    }

    /// Drops this node's own cached entry of the key.
    pub(super) fn drop_own(&self, sharers: Sharers, hash: KeyHash) {
        let mine = self.node.joined().is_ok_and(|joined| sharers.may_have(joined.me()));
        if mine && !self.node.table().sabotage().no_invalidation() {
            self.node.caching().invalidate(hash);
        }
    }

    /// Invalidates the key at all other nodes that may have cached its pair or its address. When
    /// this returns, none of them serves it.
    pub(super) async fn invalidate_sharers(&self, sharers: Sharers, hash: KeyHash) -> Result<()> {
        if sharers.is_empty() || self.node.table().sabotage().no_invalidation() {
            return Ok(());
        }
        let joined = self.node.joined()?;
        let map = joined.map();
        let mut telling = Vec::new();
        for member in &map.members {
            if !sharers.may_have(ComputeId(member.number)) {
                continue;
            }
            if member.client == self.node.client() {
                continue;
            }
            let (peer, to) = (self.node.peers().peer(member), member.client);
            telling.push(async move { self.invalidate_sharer(&peer, to, hash).await });
        }
        join_all(telling).await.into_iter().collect()
    }

    async fn invalidate_sharer(&self, peer: &Peer, to: ClientId, hash: KeyHash) -> Result<()> {
        let caching = self.node.caching();
        let _out = self.leases.note_sent(to, self.node.now_ns());
        let mut asked = Asked::new(&Message::Invalidate { hash: hash.0 });
        let again =
            Duration::from_nanos(self.node.settings().terms().lease_ns / AGAIN).min(REQUEST);
        loop {
            let now_ns = self.node.now_ns();
            let left = match self.leases.give_up(to, now_ns) {
                Waiting::Lapsed => {
                    if asked.was_sent() {
                        caching.count(CacheStat::InvalidationsWaitedOut);
                    }
                    return Ok(());
                }
                Waiting::Until(until_ns) => Duration::from_nanos(until_ns - now_ns),
            };
            if !asked.was_sent() {
                caching.count(CacheStat::InvalidationsSent);
            }
            match self.node.ask_within(peer, &mut asked, again.min(left)).await {
                Ok(Some(Message::Done {})) => return Ok(()),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "a sharer's lease has to run out"),
            }
            self.node.table().late(u64::MAX, "invalidating a key at the nodes that cache it")?;
            self.node.pause().await;
        }
    }
}
