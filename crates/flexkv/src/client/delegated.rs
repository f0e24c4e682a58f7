//! Sets of keys whose writes meet: done by the key's proxy ([decision 0023]).
//!
//! A set is sent with key and value; the proxy does it as if a client of its own had asked, in one
//! line with those, so that what waits there is combined ([`crate::combining`]). Nothing is written
//! in vain, and none of them is tried again.
//!
//! **Safety.** To the store it is the proxy's write. Whoever asked is a reader like any other: what
//! it has cached is invalidated before the commit. The request has a number, so the proxy does it
//! once, and answers it from where the partition is by then, if it has moved.
//!
//! **Failure.** A set that was sent and not answered is asked for again until the proxy is no
//! member any more, or the caller's patience ends; then nobody knows whether it happened, and it is
//! not tried again: the record is not this node's to be looked for. If the proxy itself ended with
//! an error, its answer says whether the set may have happened. Only sets without a condition are
//! delegated, and only of keys whose writes met lately; so only those have this outcome.
//!
//! Cost: a message with key and value, at most [`DELEGATED_BYTES_MAX`]; the proxy writes what the
//! client would have written, once for all that wait.
//!
//! [decision 0023]: ../../../../docs/decisions/0023-flexkv-delegation-of-contended-sets.md

use std::sync::Arc;

use archipelago_base::Error;
use archipelago_fabric::ClientId;

use super::{If, Write};
use crate::format::key_hash;
use crate::ids::PartitionId;
use crate::node::peers::{Asked, Peer};
use crate::node::{Count, Inner};
use crate::protocol::IndexProtocol as _;
use crate::wire::{Assigned, Message, Payload, Why};
use crate::write_error::{WriteEffect, WriteError};

/// Key and value together: more is written by whoever has it, past the proxy's card.
const DELEGATED_BYTES_MAX: usize = 4096;

fn unknown(why: &str) -> WriteError {
    WriteError::of_unknown_effect(Error::busy(why))
}

impl Inner {
    /// The node that a set is to be left to, if it is.
    pub(super) fn proxy_of_contended(
        &self,
        write: &Write<'_>,
        entry: Assigned,
    ) -> Option<Arc<Peer>> {
        let bytes = write.key.len() + write.value.map_or(0, |(value, _)| value.len());
        let may = entry.offloaded
            && write.sets()
            && !write.delegated
            && bytes <= DELEGATED_BYTES_MAX
            && self.table.protocol.delegates_contended_sets()
            && self.contended.has(write.hash);
        if !may {
            return None;
        }
        self.node_of(entry).ok().flatten()
    }

    /// The same, by the map as it is.
    pub(super) fn is_left_to_proxy(&self, write: &Write<'_>) -> bool {
        if !self.contended.has(write.hash) {
            return false;
        }
        let Ok(joined) = self.joined() else { return false };
        let partition = joined.geometry.partition(write.hash);
        let entry = joined.map.read().entries[partition.0 as usize];
        self.proxy_of_contended(write, entry).is_some()
    }

    /// Has the proxy set a key. `None`: nothing happened, again.
    pub(super) async fn delegate(
        self: &Arc<Self>,
        write: &Write<'_>,
        entry: Assigned,
        peer: &Arc<Peer>,
        until_ns: u64,
    ) -> Result<Option<bool>, WriteError> {
        let Some((value, expires_ms)) = write.value else { return Ok(None) };
        let Assigned { partition, epoch, .. } = entry;
        let payload = |bytes: &[u8]| Payload(bytes.to_vec());
        let (key, value) = (payload(write.key), payload(value));
        let message = Message::Delegate { partition, epoch, key, value, expires_ms };
        let mut asked = Asked::new(&message);
        loop {
            match self.ask_once(peer, &mut asked).await {
                Ok(Some(Message::Stored { alone })) => {
                    if alone {
                        self.contended.met_nobody(write.hash);
                    } else {
                        self.contended.met(write.hash);
                    }
                    self.counts.add(Count::Delegated);
                    return Ok(Some(true));
                }
                Ok(Some(Message::NotStored { unknown, why })) => {
                    // If that does not change, this node tries by itself in the end.
                    self.contended.met_nobody(write.hash);
                    let error = Error::busy(format!("the key's proxy: {why}"));
                    return Err(match unknown {
                        true => WriteError::of_unknown_effect(error),
                        false => WriteError::without_effect(error),
                    });
                }
                Ok(Some(Message::Declined { why, .. })) => {
                    if why == Why::Malformed {
                        self.contended.forget(write.hash);
                    }
                    return Ok(None);
                }
                Ok(Some(other)) => {
                    let what = format!("an answer that does not fit a set: {}", other.name());
                    return Err(WriteError::of_unknown_effect(Error::unsupported(what)));
                }
                Ok(None) => {}
                Err(error) => return Err(unknown(&format!("the key's proxy: {error}"))),
            }
            if !self.is_peer(peer) {
                self.contended.forget(write.hash);
                if !asked.was_sent() {
                    return Ok(None);
                }
                return Err(unknown("the key's proxy died during a set"));
            }
            let late = self.table.late(until_ns, "a set by the key's proxy");
            late.map_err(match asked.was_sent() {
                true => WriteError::of_unknown_effect,
                false => WriteError::without_effect,
            })?;
            self.pause().await;
        }
    }

    /// Sets a key for another node, if this one is its proxy.
    pub(crate) async fn set_for(self: &Arc<Self>, from: ClientId, message: &Message) -> Message {
        let Message::Delegate { partition, epoch, key, value, expires_ms } = message else {
            return self.declined(Why::Malformed);
        };
        let Ok(joined) = self.joined() else { return self.declined(Why::Moved) };
        let hash = key_hash(&key.0);
        if joined.geometry.partition(hash) != PartitionId(*partition) {
            return self.declined(Why::Malformed);
        }
        let served = self.proxy.get(PartitionId(*partition), *epoch);
        let serves = served.is_some_and(|served| served.words.is_some());
        // Who is gone wants nothing any more; who is not known yet asks again.
        if !serves || !self.is_member(from) {
            return self.declined(Why::Moved);
        }
        let write = Write {
            key: &key.0,
            hash,
            value: Some((&value.0, *expires_ms)),
            when: If::Always,
            delegated: true,
        };
        match self.write_in_line(write).await {
            Ok((_, alone)) => Message::Stored { alone },
            Err(failed) => {
                let unknown = failed.effect() == WriteEffect::Unknown;
                Message::NotStored { unknown, why: failed.error().to_string() }
            }
        }
    }
}
