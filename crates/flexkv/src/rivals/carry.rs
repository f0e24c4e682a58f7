//! Ownership: a request is sent to the node that has its partition, which does all of it.

use std::sync::Arc;

use archipelago_base::{Error, Result};

use super::Rival;
use crate::client::{If, Value, Version};
use crate::node::Inner;
use crate::wire::{Carrying, Message, Payload, Why};
use crate::write_error::WriteError;

impl Inner {
    /// A read, in whichever way this node does it.
    pub(crate) async fn read(self: &Arc<Self>, key: &[u8]) -> Result<Option<Value>> {
        if self.table.rival == Some(Rival::Ownership)
            && let Some((found, value)) = self.carry(key, (Carrying::Get, b"", 0)).await?
        {
            return Ok(found.then_some(value));
        }
        self.get(key).await
    }

    /// A write.
    pub(crate) async fn change(
        self: &Arc<Self>,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        when: If,
    ) -> Result<bool, WriteError> {
        if self.table.rival == Some(Rival::Ownership) {
            let kind = match (when, value) {
                (If::Present, None) => Carrying::Delete,
                (If::Always, _) => Carrying::Set,
                (If::Absent, _) => Carrying::Insert,
                (If::Present, _) => Carrying::Update,
                (If::Version(_) | If::Expired(_), _) => {
                    let what = Error::unsupported("conditional writes under ownership");
                    return Err(WriteError::without_effect(what));
                }
            };
            let (bytes, expires_ms) = value.unwrap_or_default();
            let carried = self.carry(key, (kind, bytes, expires_ms)).await;
            if let Some((done, _)) = carried.map_err(WriteError::of_unknown_effect)? {
                return Ok(done);
            }
        }
        self.write(key, value, when).await
    }

    /// Has the partition's node do a request. `None`: that is this node.
    pub(crate) async fn carry(
        self: &Arc<Self>,
        key: &[u8],
        (kind, value, expires_ms): (Carrying, &[u8], u64),
    ) -> Result<Option<(bool, Value)>> {
        let (hash, until_ns) = (crate::format::key_hash(key), self.until_ns());
        let payload = |bytes: &[u8]| Payload(bytes.to_vec());
        let message = Message::Carry { key: payload(key), kind, value: payload(value), expires_ms };
        loop {
            let (inside, entry) = self.enter(hash, until_ns).await?;
            let peer = self.node_of(entry)?;
            drop(inside);
            let Some(peer) = peer else { return Ok(None) };
            match self.ask(&peer, &message, until_ns).await? {
                Message::Carried { done, value, expires_ms } => {
                    let version = Version::default();
                    return Ok(Some((done, Value { bytes: value.0, expires_ms, version })));
                }
                _ => self.table.late(until_ns, "a request that is sent to its partition's node")?,
            }
            self.pause().await;
        }
    }

    /// Does what another node was asked for.
    pub(crate) async fn carried(self: &Arc<Self>, message: &Message) -> Message {
        let Message::Carry { key, kind, value, expires_ms } = message else {
            return self.declined(Why::Malformed);
        };
        let (key, value) = (&key.0, Some((&value.0[..], *expires_ms)));
        let done = match kind {
            Carrying::Get => match self.get(key).await {
                Ok(Some(value)) => {
                    let expires_ms = value.expires_ms;
                    let value = Payload(value.bytes);
                    return Message::Carried { done: true, value, expires_ms };
                }
                Ok(None) => Ok(false),
                Err(error) => Err(WriteError::without_effect(error)),
            },
            Carrying::Set => self.write(key, value, If::Always).await,
            Carrying::Insert => self.write(key, value, If::Absent).await,
            Carrying::Update => self.write(key, value, If::Present).await,
            Carrying::Delete => self.write(key, None, If::Present).await,
        };
        match done {
            Ok(done) => Message::Carried { done, value: Payload::default(), expires_ms: 0 },
            Err(error) => {
                tracing::debug!(%error, "a request of another node");
                self.declined(Why::Busy)
            }
        }
    }
}
