//! FlexKV with other index protocols: the systems that its paper compares it with (§2.2, §5.1).
//!
//! | rival | after | reads | updates of the index |
//! | --- | --- | --- | --- |
//! | [`Rival::Base`] | Aceso | address cache, else the index in the pool | one swap, on one copy |
//! | [`Rival::Fusee`] | FUSEE | as before, and the buckets together with every cached record | a swap on every copy (SNAPSHOT) |
//! | [`Rival::Clover`] | Clover | address cache, else the metadata server | by the metadata server, in its memory |
//! | [`Rival::Ownership`] | DINOMO, DEX | at the node of the partition | at the node of the partition, which executes the whole request |
//!
//! A [`RivalNode`] is a compute node of the product with an `IndexProtocol` of this crate. It
//! shares everything else with the product: records, their copies and valid bits, blocks, maps,
//! messages and the fabric. Therefore a measured difference comes from the rows of the table. The
//! crate turns on the cargo feature `index-protocol` of `archipelago-flexkv`, so nothing that is
//! shipped may depend on it.
//!
//! Invariants:
//! 1. The first three rivals run with caches of addresses alone
//!    ([`CacheMode::Addresses`](archipelago_flexkv::CacheMode::Addresses)).
//! 2. Base and FUSEE run without proxies. Clover runs with every partition at its server, which the
//!    coordinator gets by [`RivalProtocol`].
//! 3. Every node of a store has the same rival.
//!
//! Thread-safety: any thread may call any method.
//! Failure: no writer of a rival survives a failure. A swap on one copy is lost with that copy. A
//! metadata server takes the index with it when it dies, and its subtables cannot grow. A writer
//! that dies between the swaps of a slot's copies blocks the slot. Inserts and deletions of Base
//! and FUSEE go through the node of the partition, as in the product
//! ([0017](../../../docs/decisions/0017-flexkv-one-sided-slot-updates.md)), and it swaps in the rival's
//! way.
//! Cost: see the table. Each change of a slot also allocates its future.

mod ownership;
mod protocol;
mod swap;

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_fabric::Handler;
use archipelago_flexkv::{ComputeNode, FlexKvSettings, Surroundings, WriteError};

use ownership::{Operation, OwnershipNode};

pub use ownership::is_request;
pub use protocol::RivalProtocol;

/// A system that FlexKV is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// An address cache, and one swap of one copy of the index.
    Base,
    /// A swap of every copy of the index.
    Fusee,
    /// A metadata server, which alone holds the index.
    Clover,
    /// A node sends each request to the node of the key's partition.
    Ownership,
}

/// Value and expiry of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The bytes of the value.
    pub bytes: Vec<u8>,
    /// Unix time, in milliseconds, from which on the key counts as absent; 0 means never.
    pub expires_ms: u64,
}

/// A compute node that works as a rival, or as the product.
#[derive(Clone, Debug)]
pub struct RivalNode {
    node: ComputeNode,
    /// Sends requests to the owners of their keys.
    ownership: Option<Arc<OwnershipNode>>,
}

impl RivalNode {
    /// A node that has not joined yet, and the handler of its requests, as [`ComputeNode::new`] has
    /// them. `None` makes a node of the product.
    pub fn new(
        rival: Option<Rival>,
        settings: FlexKvSettings,
        around: Surroundings,
    ) -> Result<(Self, Box<dyn Handler>)> {
        let Some(rival) = rival else {
            let (node, handler) = ComputeNode::new(settings, around)?;
            return Ok((Self { node, ownership: None }, handler));
        };
        let (reach, runtime) = (Arc::clone(&around.reach), Arc::clone(&around.runtime));
        let protocol = Arc::new(RivalProtocol::new(rival));
        let (node, handler) = ComputeNode::with_protocol(settings, around, protocol)?;
        if rival != Rival::Ownership {
            return Ok((Self { node, ownership: None }, handler));
        }
        let (ownership, handler) = OwnershipNode::wrap(node.clone(), handler, reach, runtime);
        Ok((Self { node, ownership: Some(ownership) }, handler))
    }

    /// The compute node that this node is made of.
    #[must_use]
    pub fn compute(&self) -> &ComputeNode {
        &self.node
    }

    /// Reads a key, as [`ComputeNode::get`] does.
    pub async fn get(&self, key: &[u8]) -> Result<Option<StoredValue>> {
        if let Some(ownership) = &self.ownership
            && let Some(answer) = ownership.forward(key, Operation::Get, b"", 0).await?
        {
            return Ok(answer.is_done.then_some(answer.value));
        }
        let read = self.node.get(key).await?;
        Ok(read.map(|value| StoredValue { bytes: value.bytes, expires_ms: value.expires_ms }))
    }

    /// Sets a key, as [`ComputeNode::set`] does.
    pub async fn set(&self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<()> {
        if self.forwarded(key, Operation::Set, value, expires_ms).await?.is_some() {
            return Ok(());
        }
        self.node.set(key, value, expires_ms).await.map_err(WriteError::into_error)
    }

    /// Sets an absent key, as [`ComputeNode::insert`] does. Returns whether the key was absent.
    pub async fn insert(&self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<bool> {
        match self.forwarded(key, Operation::Insert, value, expires_ms).await? {
            Some(is_done) => Ok(is_done),
            None => self.node.insert(key, value, expires_ms).await.map_err(WriteError::into_error),
        }
    }

    /// Sets a present key, as [`ComputeNode::update`] does. Returns whether the key was present.
    pub async fn update(&self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<bool> {
        match self.forwarded(key, Operation::Update, value, expires_ms).await? {
            Some(is_done) => Ok(is_done),
            None => self.node.update(key, value, expires_ms).await.map_err(WriteError::into_error),
        }
    }

    /// Deletes a key, as [`ComputeNode::delete`] does. Returns whether the key was present.
    pub async fn delete(&self, key: &[u8]) -> Result<bool> {
        match self.forwarded(key, Operation::Delete, b"", 0).await? {
            Some(is_done) => Ok(is_done),
            None => self.node.delete(key).await.map_err(WriteError::into_error),
        }
    }

    /// The owner's answer to a write; `None` if this node executes the write itself.
    async fn forwarded(
        &self,
        key: &[u8],
        operation: Operation,
        value: &[u8],
        expires_ms: u64,
    ) -> Result<Option<bool>> {
        let Some(ownership) = &self.ownership else { return Ok(None) };
        let answer = ownership.forward(key, operation, value, expires_ms).await?;
        Ok(answer.map(|answer| answer.is_done))
    }
}
