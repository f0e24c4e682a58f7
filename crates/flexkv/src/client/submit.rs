//! The change of the index for a write: one-sided where clients may, and by the partition's node
//! otherwise.
//!
//! Failure: a request whose outcome is unknown stays with the write as [`Unsettled`]. The write
//! asks on while the same node serves the partition at the same epoch. Otherwise it finds out how
//! the request ended ([`Client::how_it_ended`]).
//! Cost: one round trip to the partition's node, or those of [`crate::onesided`].

use std::fmt;
use std::sync::Arc;

use archipelago_base::{Error, Result};

use super::Client;
use super::Write;
use super::cached::Source;
use super::look::KeyLocation;
use crate::format::{Slot, SlotIndex};
use crate::ids::PartitionId;
use crate::node::peers::{Asked, Peer};
use crate::node::reclaim::Held;
use crate::node::records::Written;
use crate::node::{Node, PAUSE};
use crate::protocol::{IndexProtocol as _, SlotChange, SlotOutcome};
use crate::proxy::Unfinished;
use crate::table::FromCopy;
use crate::wire::{Assigned, Message, Place, Why, WriteKind};
use crate::write_error::{WriteEffect, WriteError};

/// A request to the partition's node whose outcome is unknown.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) entry: Assigned,
    /// The new record. `None` for a deletion.
    pub(super) record: Option<Written>,
    kind: WriteKind,
    expect: Slot,
    asked: Asked,
    awaited: Awaited,
    peer: Arc<Peer>,
    /// This node's clock before it sent the request.
    seen_ns: u64,
}

/// The answer to a write, after which this node may have to give back the superseded word. The word
/// is held until then. A sweep finds its record if the answer never arrives.
struct Awaited {
    node: Arc<Node>,
    came: bool,
    _held: Held,
}

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Awaited({})", self.came)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if !self.came {
            self.node.want_sweep();
        }
    }
}

/// Slot in which a write was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) index: SlotIndex,
    /// Whether the pair may be cached.
    pub(super) cache: bool,
    pub(super) source: Source,
}

/// Result of a change of the index.
pub(super) enum Submitted {
    Done(Done),
    /// Nothing happened. Try again.
    Not,
    /// Nothing happened, because the slot does not hold the expected word. `is_written` says that
    /// the write counts as done nevertheless.
    Stale {
        is_written: bool,
    },
    /// Nothing happened, because the key's buckets are full.
    Full,
    /// The node says that it is no longer a member, so it does not know the outcome of the request.
    Fenced,
    Unknown(Unsettled),
}

fn unknown(why: &str) -> WriteError {
    WriteError::of_unknown_effect(Error::busy(format!("{why} during a write")))
}

impl Client {
    /// Changes the slot of a write whose record is written.
    pub(super) async fn submit(
        &self,
        write: &Write<'_>,
        entry: Assigned,
        kind: WriteKind,
        looked: &KeyLocation,
        record: Option<Written>,
        until_ns: u64,
    ) -> Result<Submitted, WriteError> {
        let new = record.map_or(Slot::EMPTY, |record| record.slot);
        let (index, expect) = looked
            .found
            .as_ref()
            .map_or((Default::default(), Slot::EMPTY), |found| (found.index, found.slot));
        let seen_ns = self.node.now_ns();
        if !entry.offloaded && kind == WriteKind::Update {
            let slot = self.node.table().slot(entry.shape, index);
            let change = SlotChange { slot, old: expect, new, end: new };
            let held = vec![self.node.hold(expect), self.node.hold(new)];
            let put = self.node.table().put(change, looked.valid_ns, until_ns).await;
            if put.as_ref().is_err_and(|failed| failed.effect() == WriteEffect::Unknown) {
                self.proxy.finish_later(Unfinished { entry, change, structure: None }, held);
            }
            return Ok(match put? {
                SlotOutcome::Done => {
                    self.node.free_later(expect);
                    let source = Source { seen_ns, ..Source::default() };
                    Submitted::Done(Done { index, cache: false, source })
                }
                SlotOutcome::Lost(_) => {
                    Submitted::Stale { is_written: self.node.table().protocol().is_written(new) }
                }
            });
        }
        let message = Message::Write {
            partition: entry.partition,
            epoch: entry.epoch,
            hash: write.hash.0,
            kind,
            index: index.0,
            expect: expect.0,
            exact: looked.exact,
            new: new.0,
            others: looked.others.clone(),
            stamp_us: looked.stamp_us,
            reads: self.node.caching().take_reads(write.hash),
        };
        let peer = self.node.node_of(entry).map_err(WriteError::without_effect)?;
        let Some(peer) = peer else {
            let answer = self.proxy.write_index(self.node.client(), &message).await;
            return match self.submitted(&answer, entry, seen_ns)? {
                Submitted::Fenced => {
                    Err(unknown("this node lost its lease, or could not change the key's slot"))
                }
                other => Ok(other),
            };
        };
        let asked = Asked::new(&message);
        let awaited =
            Awaited { node: Arc::clone(&self.node), came: false, _held: self.node.hold(expect) };
        let open = Unsettled { entry, record, kind, expect, asked, awaited, peer, seen_ns };
        self.ask_on(open, until_ns).await
    }

    /// Asks until there is an answer, or until the partition's gate closes.
    async fn ask_on(&self, mut open: Unsettled, until_ns: u64) -> Result<Submitted, WriteError> {
        let partition = PartitionId(open.entry.partition);
        let joined = self.node.joined().map_err(WriteError::of_unknown_effect)?;
        loop {
            let answer = self.node.ask_once(&open.peer, &mut open.asked).await;
            match answer {
                Ok(Some(answer)) => {
                    match self.submitted(&answer, open.entry, open.seen_ns)? {
                        // The next map decides the outcome.
                        Submitted::Fenced => {}
                        other => {
                            open.awaited.came = true;
                            if let Message::Written { place, yours: true, .. } = answer {
                                self.node.free_later(Slot(place.word));
                            }
                            return Ok(other);
                        }
                    }
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a write waits for the next map"),
            }
            if joined.gates().is_closed(partition) {
                return Ok(if open.asked.was_sent() {
                    Submitted::Unknown(open)
                } else {
                    Submitted::Not
                });
            }
            let late =
                self.node.table().late(until_ns, "the partition's node does not answer a write");
            late.map_err(match open.asked.was_sent() {
                true => WriteError::of_unknown_effect,
                false => WriteError::without_effect,
            })?;
            self.node.pause().await;
        }
    }

    fn submitted(
        &self,
        answer: &Message,
        entry: Assigned,
        seen_ns: u64,
    ) -> Result<Submitted, WriteError> {
        match answer {
            Message::Written { place, cache, grant, .. } => {
                let source = if entry.offloaded {
                    Source::of_proxy(entry, *grant, seen_ns)
                } else {
                    Source { seen_ns, ..Source::default() }
                };
                let index = SlotIndex(place.index);
                Ok(Submitted::Done(Done { index, cache: *cache, source }))
            }
            Message::Declined { why, .. } => match why {
                Why::Moved | Why::Busy => Ok(Submitted::Not),
                Why::Resolve => Ok(Submitted::Stale { is_written: false }),
                Why::Full => Ok(Submitted::Full),
                Why::Fenced => Ok(Submitted::Fenced),
                Why::Malformed | Why::OldTerm | Why::Standby => {
                    let what = "the partition's node did not understand a write";
                    Err(WriteError::without_effect(Error::unsupported(what)))
                }
            },
            other => {
                let what = format!("an answer that does not fit the question: {}", other.name());
                Err(WriteError::of_unknown_effect(Error::unsupported(what)))
            }
        }
    }

    /// Asks on. The same node serves the partition at the same epoch as when the request was sent.
    pub(super) async fn go_on(
        &self,
        open: Unsettled,
        unsettled: &mut Option<Unsettled>,
        until_ns: u64,
    ) -> Result<Option<bool>, WriteError> {
        let record = open.record;
        match self.ask_on(open, until_ns).await? {
            Submitted::Done(_) => Ok(Some(true)),
            Submitted::Unknown(open) => {
                *unsettled = Some(open);
                Ok(None)
            }
            Submitted::Not | Submitted::Stale { .. } | Submitted::Full | Submitted::Fenced => {
                self.node.free_if_written(record);
                Ok(None)
            }
        }
    }

    /// Finds out how a request ended, after the partition went on without the node that was asked.
    /// So the request has no further effect. `Some(true)` if it was committed, `None` if it was
    /// not.
    pub(super) async fn how_it_ended(
        &self,
        write: &Write<'_>,
        entry: Assigned,
        open: &mut Unsettled,
        until_ns: u64,
    ) -> Result<Option<bool>, WriteError> {
        let not_known = WriteError::of_unknown_effect;
        loop {
            // The answer follows from these words alone, so they come from the first copy.
            let first = FromCopy::First;
            let looked = self.look(first, entry, write.key, write.hash, until_ns).await;
            let Some(looked) = looked.map_err(not_known)? else {
                self.node.table().late(until_ns, "what came of a write").map_err(not_known)?;
                self.node.pause().await;
                continue;
            };
            let there = looked.found.as_ref().map(|found| found.slot);
            let Some(record) = open.record else {
                // A deletion leaves no trace that tells it from another deletion.
                return if there == Some(open.expect) {
                    Ok(None)
                } else {
                    Err(unknown("the partition's node died"))
                };
            };
            if open.kind == WriteKind::Update && there == Some(open.expect) {
                // A word returns only after its record was freed and reused, which takes an address
                // lease.
                return Ok(None);
            }
            let mine = record.slot;
            let words = [mine.to_pending(), mine.to_dying()];
            let taken = looked.pending.is_some_and(|place| words.contains(&Slot(place.word)));
            if there == Some(mine) || taken {
                return Ok(Some(true));
            }
            let superseded =
                self.node.table().was_superseded(mine, until_ns).await.map_err(not_known)?;
            if !superseded && open.kind == WriteKind::Update && open.entry.offloaded {
                // The proxy may have let another write follow without clearing a bit that no node
                // read by.
                return Err(unknown("the partition's node died"));
            }
            return Ok(superseded.then_some(true));
        }
    }

    /// A recent time of the clock of the partition's node. `None` if the node does not answer.
    pub(super) async fn stamp_of(&self, entry: Assigned) -> Result<Option<u64>> {
        let Some(peer) = self.node.node_of(entry)? else { return Ok(Some(self.node.now_us())) };
        let fresh_ns = self.node.settings().address_lease_ns() / 4;
        if let Some(stamp_us) = peer.heard(self.node.now_ns(), fresh_ns) {
            return Ok(Some(stamp_us));
        }
        if !entry.offloaded {
            // Only inserts and deletions go to the node. Most writes need no stamp, and the first
            // answer brings one.
            return Ok(Some(0));
        }
        Ok(self.node.ask_once(&peer, &mut Asked::new(&Message::Renew {})).await?.and_then(
            |answer| match answer {
                Message::Renewed { grant } => Some(grant.stamp_us),
                _ => None,
            },
        ))
    }

    pub(super) async fn ask_to_settle(
        &self,
        entry: Assigned,
        place: Place,
        _until_ns: u64,
    ) -> Result<()> {
        let Assigned { partition, epoch, .. } = entry;
        self.proxy.ask_node(entry, &Message::Settle { partition, epoch, place }).await?;
        self.node.runtime().sleep(PAUSE * 10).await;
        Ok(())
    }
}
