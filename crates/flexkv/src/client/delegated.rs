//! Sets of contended keys, which the key's proxy performs for this node ([decision 0023]).
//!
//! This node sends the key and the value. The proxy performs the set as if a client of its own had
//! asked, in one line with the sets of its clients, so that waiting sets are combined
//! ([`crate::combining`]). No record is written in vain, and no set is tried again.
//!
//! **Safety.** For the store it is a write of the proxy. The node that asked is a reader like any
//! other, so its cached entry is invalidated before the commit. The request has a number, so the
//! proxy performs it once. If the partition has moved meanwhile, the proxy passes the write through
//! the new owner and then answers.
//!
//! **Failure.** If a set was sent and not answered, this node asks again until the proxy is no
//! longer a member, or until the caller's patience ends. Then the outcome is unknown, and the set
//! is not tried again, because this node cannot look for a record that the proxy wrote. If the
//! proxy's write ended with an error, its answer says whether the set may have happened. Only sets
//! without a condition are delegated, and only for keys that were contended lately, so only these
//! have this outcome.
//!
//! Thread-safety: any thread may delegate.
//! Cost: one message with key and value, at most [`DELEGATED_BYTES_MAX`]. The proxy writes one
//! record for all sets that wait.
//!
//! [decision 0023]: ../../../../docs/decisions/0023-flexkv-delegation-of-contended-sets.md

use std::sync::Arc;

use archipelago_base::Error;
use archipelago_fabric::ClientId;

use super::{Client, If, Write};
use crate::format::key_hash;
use crate::ids::PartitionId;
use crate::node::Stat;
use crate::node::peers::{Asked, Peer};
use crate::protocol::IndexProtocol as _;
use crate::wire::{Assigned, Message, Payload, Why};
use crate::write_error::{WriteEffect, WriteError};

/// Largest size of key and value together. A node writes larger records itself, so that they do not
/// pass through the proxy's network card.
const DELEGATED_BYTES_MAX: usize = 4096;

fn unknown(why: &str) -> WriteError {
    WriteError::of_unknown_effect(Error::busy(why))
}

impl Client {
    /// The proxy to which a set is delegated. `None` if this node performs the set.
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
            && self.node.table().protocol().delegates_contended_sets()
            && self.contended.has(write.hash);
        if !may {
            return None;
        }
        self.node.node_of(entry).ok().flatten()
    }

    /// Whether a set is delegated, by the current map.
    pub(super) fn is_left_to_proxy(&self, write: &Write<'_>) -> bool {
        if !self.contended.has(write.hash) {
            return false;
        }
        let Ok(joined) = self.node.joined() else { return false };
        let partition = joined.geometry().partition(write.hash);
        let entry = joined.entry(partition);
        self.proxy_of_contended(write, entry).is_some()
    }

    /// Lets the proxy set a key. `None` if nothing happened and the set must be tried again.
    pub(super) async fn delegate(
        &self,
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
            match self.node.ask_once(peer, &mut asked).await {
                Ok(Some(Message::Stored { alone })) => {
                    if alone {
                        self.contended.met_nobody(write.hash);
                    } else {
                        self.contended.met(write.hash);
                    }
                    self.node.stats().add(Stat::Delegated);
                    return Ok(Some(true));
                }
                Ok(Some(Message::NotStored { unknown, why })) => {
                    // If this happens again and again, this node performs the set itself in the
                    // end.
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
            if !self.node.is_peer(peer) {
                self.contended.forget(write.hash);
                if !asked.was_sent() {
                    return Ok(None);
                }
                return Err(unknown("the key's proxy died during a set"));
            }
            let late = self.node.table().late(until_ns, "a set by the key's proxy");
            late.map_err(match asked.was_sent() {
                true => WriteError::of_unknown_effect,
                false => WriteError::without_effect,
            })?;
            self.node.pause().await;
        }
    }

    /// Sets a key for another node, if this node is the key's proxy.
    pub(crate) async fn set_for(&self, from: ClientId, message: &Message) -> Message {
        let Message::Delegate { partition, epoch, key, value, expires_ms } = message else {
            return self.node.declined(Why::Malformed);
        };
        let Ok(joined) = self.node.joined() else { return self.node.declined(Why::Moved) };
        let hash = key_hash(&key.0);
        if joined.geometry().partition(hash) != PartitionId(*partition) {
            return self.node.declined(Why::Malformed);
        }
        let served = self.proxy.get(PartitionId(*partition), *epoch);
        let serves = served.is_some_and(|served| served.is_offloaded());
        // A client that was removed needs no answer. A client that is not known yet asks again.
        if !serves || !self.node.is_member(from) {
            return self.node.declined(Why::Moved);
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
