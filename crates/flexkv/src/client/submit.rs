//! Changing the index: one-sided where clients may, by the partition's node otherwise.

use std::fmt;
use std::sync::Arc;

use archipelago_base::{Error, Result};

use super::Write;
use super::cached::Source;
use super::look::Looked;
use crate::format::{Slot, SlotIndex};
use crate::ids::PartitionId;
use crate::node::peers::{Asked, Peer};
use crate::node::reclaim::Held;
use crate::node::records::Written;
use crate::node::{Inner, PAUSE};
use crate::protocol::{IndexProtocol as _, SlotChange, SlotOutcome};
use crate::proxy::Unfinished;
use crate::table::FromCopy;
use crate::wire::{Assigned, Message, Place, Why, WriteKind};
use crate::write_error::{WriteEffect, WriteError};

/// A request to the partition's node of which nobody knows what came.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) entry: Assigned,
    /// `None`: of a deletion.
    pub(super) record: Option<Written>,
    kind: WriteKind,
    expect: Slot,
    asked: Asked,
    awaited: Awaited,
    peer: Arc<Peer>,
    /// This node's clock before it asked.
    seen_ns: u64,
}

/// The answer to a write, which may make the word that it supersedes this node's to give back. Held
/// until then; a sweep finds it if the answer never comes.
struct Awaited {
    inner: Arc<Inner>,
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
            self.inner.want_sweep();
        }
    }
}

/// Where a write is that was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) index: SlotIndex,
    /// Whether the pair may be cached.
    pub(super) cache: bool,
    pub(super) source: Source,
}

/// What came of a write.
pub(super) enum Submitted {
    Done(Done),
    /// Nothing happened: try again.
    Not,
    /// Nothing happened, because the slot does not hold the expected word. `is_written`: the write
    /// counts as done all the same.
    Stale {
        is_written: bool,
    },
    /// Nothing happened: there is no room.
    Full,
    /// The node says that it is no member any more; what came of the request it cannot say.
    Fenced,
    Unknown(Unsettled),
}

fn unknown(why: &str) -> WriteError {
    WriteError::of_unknown_effect(Error::busy(format!("{why} during a write")))
}

impl Inner {
    pub(super) async fn submit(
        self: &Arc<Self>,
        write: &Write<'_>,
        entry: Assigned,
        kind: WriteKind,
        looked: &Looked,
        record: Option<Written>,
        until_ns: u64,
    ) -> Result<Submitted, WriteError> {
        let new = record.map_or(Slot::EMPTY, |record| record.slot);
        let (index, expect) = looked
            .found
            .as_ref()
            .map_or((Default::default(), Slot::EMPTY), |found| (found.index, found.slot));
        let seen_ns = self.now_ns();
        if !entry.offloaded && kind == WriteKind::Update {
            let slot = self.table.slot(entry.shape, index);
            let change = SlotChange { slot, old: expect, new, end: new };
            let held = vec![self.frees.hold(expect), self.frees.hold(new)];
            let put = self.table.put(change, looked.valid_ns, until_ns).await;
            if put.as_ref().is_err_and(|failed| failed.effect() == WriteEffect::Unknown) {
                self.finish_later(Unfinished { entry, change, structure: None }, held);
            }
            return Ok(match put? {
                SlotOutcome::Done => {
                    self.free_later(expect);
                    let source = Source { seen_ns, ..Source::default() };
                    Submitted::Done(Done { index, cache: false, source })
                }
                SlotOutcome::Lost(_) => {
                    Submitted::Stale { is_written: self.table.protocol.is_written(new) }
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
            reads: self.caching.take_reads(write.hash),
        };
        let peer = self.node_of(entry).map_err(WriteError::without_effect)?;
        let Some(peer) = peer else {
            let answer = self.write_index(self.pool.client(), &message).await;
            return match self.submitted(&answer, (entry, seen_ns))? {
                Submitted::Fenced => {
                    Err(unknown("this node, which serves the key's partition, gave up"))
                }
                other => Ok(other),
            };
        };
        let asked = Asked::new(&message);
        let awaited =
            Awaited { inner: Arc::clone(self), came: false, _held: self.frees.hold(expect) };
        let open = Unsettled { entry, record, kind, expect, asked, awaited, peer, seen_ns };
        self.ask_on(open, until_ns).await
    }

    /// Asks until there is an answer, or the partition's door closes.
    async fn ask_on(
        self: &Arc<Self>,
        mut open: Unsettled,
        until_ns: u64,
    ) -> Result<Submitted, WriteError> {
        let partition = PartitionId(open.entry.partition);
        let joined = self.joined().map_err(WriteError::of_unknown_effect)?;
        loop {
            let answer = self.ask_once(&open.peer, &mut open.asked).await;
            match answer {
                Ok(Some(answer)) => {
                    match self.submitted(&answer, (open.entry, open.seen_ns))? {
                        // The next map says what came of it.
                        Submitted::Fenced => {}
                        other => {
                            open.awaited.came = true;
                            if let Message::Written { place, yours: true, .. } = answer {
                                self.free_later(Slot(place.word));
                            }
                            return Ok(other);
                        }
                    }
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a write waits for the next map"),
            }
            if joined.gates.is_closed(partition) {
                return Ok(if open.asked.was_sent() {
                    Submitted::Unknown(open)
                } else {
                    Submitted::Not
                });
            }
            let late = self.table.late(until_ns, "the partition's node does not answer a write");
            late.map_err(match open.asked.was_sent() {
                true => WriteError::of_unknown_effect,
                false => WriteError::without_effect,
            })?;
            self.pause().await;
        }
    }

    fn submitted(
        &self,
        answer: &Message,
        (entry, seen_ns): (Assigned, u64),
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

    /// The partition is served by the same node at the same epoch as when the request was sent.
    pub(super) async fn go_on(
        self: &Arc<Self>,
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
                self.free_if_written(record);
                Ok(None)
            }
        }
    }

    /// The partition went on without the node that was asked: nothing comes of the request any
    /// more. Whether it did; `None`: it did not.
    pub(super) async fn how_it_ended(
        self: &Arc<Self>,
        write: &Write<'_>,
        entry: Assigned,
        open: &mut Unsettled,
        until_ns: u64,
    ) -> Result<Option<bool>, WriteError> {
        let not_known = WriteError::of_unknown_effect;
        loop {
            // What is found here is the answer: nobody compares it with anything.
            let first = FromCopy::First;
            let looked = self.look(first, entry, write.key, write.hash, until_ns).await;
            let Some(looked) = looked.map_err(not_known)? else {
                self.table.late(until_ns, "what came of a write").map_err(not_known)?;
                self.pause().await;
                continue;
            };
            let there = looked.found.as_ref().map(|found| found.slot);
            let Some(record) = open.record else {
                // A deletion leaves nothing that would tell it from another's.
                return if there == Some(open.expect) {
                    Ok(None)
                } else {
                    Err(unknown("the partition's node died"))
                };
            };
            if open.kind == WriteKind::Update && there == Some(open.expect) {
                // A word comes back only when the record was freed and used again, an address lease
                // later.
                return Ok(None);
            }
            let mine = record.slot;
            let words = [mine.to_pending(), mine.to_dying()];
            let taken = looked.pending.is_some_and(|place| words.contains(&Slot(place.word)));
            if there == Some(mine) || taken {
                return Ok(Some(true));
            }
            let superseded = self.table.was_superseded(mine, until_ns).await.map_err(not_known)?;
            if !superseded && open.kind == WriteKind::Update && open.entry.offloaded {
                // Its proxy may have let another write follow without clearing a bit that nobody
                // read by.
                return Err(unknown("the partition's node died"));
            }
            return Ok(superseded.then_some(true));
        }
    }

    /// The partition's node, if it is another one.
    pub(crate) fn node_of(&self, entry: Assigned) -> Result<Option<Arc<Peer>>> {
        let joined = self.joined()?;
        if entry.node == joined.number {
            return Ok(None);
        }
        let map = Arc::clone(&joined.map.read());
        let member = map.members.iter().find(|member| member.number == entry.node);
        let member = member.ok_or_else(|| Error::busy("the partition's node is no member"))?;
        Ok(Some(self.peers.peer(member)))
    }

    /// The clock of the partition's node, as it was heard not long ago; `None`: it does not answer.
    pub(super) async fn stamp_of(self: &Arc<Self>, entry: Assigned) -> Result<Option<u64>> {
        let Some(peer) = self.node_of(entry)? else { return Ok(Some(self.now_us())) };
        let fresh_ns = self.settings.address_lease_ns() / 4;
        if let Some(stamp_us) = peer.heard(self.now_ns(), fresh_ns) {
            return Ok(Some(stamp_us));
        }
        if !entry.offloaded {
            // Only inserts and deletions go there; most writes need no stamp, and the first that
            // does brings one.
            return Ok(Some(0));
        }
        Ok(self.ask_once(&peer, &mut Asked::new(&Message::Renew {})).await?.and_then(|answer| {
            match answer {
                Message::Renewed { grant } => Some(grant.stamp_us),
                _ => None,
            }
        }))
    }

    /// Asks the partition's node, this one included, something that may be asked twice; `None`: it
    /// does not answer, or not now.
    pub(super) async fn ask_node(
        self: &Arc<Self>,
        entry: Assigned,
        message: &Message,
    ) -> Result<Option<Message>> {
        let Some(peer) = self.node_of(entry)? else {
            return Ok(match message {
                Message::Settle { partition, epoch, place } => {
                    Some(self.settle(PartitionId(*partition), *epoch, *place).await)
                }
                _ => self.answer_at_once(self.pool.client(), message),
            });
        };
        match self.ask_once(&peer, &mut Asked::new(message)).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                tracing::debug!(%error, "a partition's node does not answer");
                Ok(None)
            }
        }
    }

    pub(super) async fn ask_to_settle(
        self: &Arc<Self>,
        entry: Assigned,
        place: Place,
        _until_ns: u64,
    ) -> Result<()> {
        let Assigned { partition, epoch, .. } = entry;
        self.ask_node(entry, &Message::Settle { partition, epoch, place }).await?;
        self.runtime.sleep(PAUSE * 10).await;
        Ok(())
    }
}
