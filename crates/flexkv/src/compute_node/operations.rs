//! The operations of a compute node: reads and writes of keys, scans and moves.
//!
//! Every operation on one key is linearizable. A write that ends with an error says whether it may
//! have happened ([`WriteError`]).

use std::collections::BTreeSet;

use archipelago_base::{Error, Result};

use super::ComputeNode;
use crate::client::{Destination, If, Renamed, Set, Value, rename};
use crate::format::{BUCKET_SLOTS, ScanPosition};
use crate::ids::PartitionId;
use crate::scan::{ScanLimits, ScanStep};
use crate::write_error::WriteError;

impl ComputeNode {
    /// Returns the value of a key. Waits while the key's partition changes. Busy if that takes
    /// longer than the settings' patience.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        if let Some(value) = self.get_fast(key) {
            return Ok(value);
        }
        // Boxed, so that the future of a cached read does not have the size of an ordinary read.
        Box::pin(self.0.client.get(key)).await
    }

    /// Returns the value of a key without waiting, if this node has the pair in its cache and may
    /// serve it. The outer `None` means that the key must be read with [`ComputeNode::get`].
    #[must_use]
    pub fn get_fast(&self, key: &[u8]) -> Option<Option<Value>> {
        self.0.client.read_fast(key)
    }

    /// Sets a key, whether it exists or not. `expires_ms` is in Unix milliseconds, and 0 means
    /// never. On return the value is on all copies, and every node reads it.
    pub async fn set(&self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<(), WriteError> {
        self.0.client.write(key, Some((value, expires_ms)), If::Always).await.map(|_| ())
    }

    /// Sets a key that does not exist. Returns `false`, without effect, if it exists.
    pub async fn insert(
        &self,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        self.0.client.write(key, Some((value, expires_ms)), If::Absent).await
    }

    /// Sets a key that exists. Returns `false`, without effect, if it does not exist.
    pub async fn update(
        &self,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        self.0.client.write(key, Some((value, expires_ms)), If::Present).await
    }

    /// Sets a key that still has the value that was read, or that still does not exist if `read` is
    /// `None`. Returns `false`, without effect, if the key changed. Busy, without effect, if the
    /// value was read more than an address lease ago. Read the key again then.
    pub async fn compare_and_set(
        &self,
        key: &[u8],
        read: Option<&Value>,
        value: &[u8],
        expires_ms: u64,
    ) -> Result<bool, WriteError> {
        let when = read.map_or(If::Absent, |read| If::Version(read.version));
        let done = self.0.client.write(key, Some((value, expires_ms)), when).await?;
        self.known_of(read, done)
    }

    /// The result of a write for a value that was read. A write that did not apply proves nothing
    /// if the value was read too long ago.
    fn known_of(&self, read: Option<&Value>, done: bool) -> Result<bool, WriteError> {
        let is_over = |read: &Value| self.0.node.now_ns() >= read.version.until_ns;
        match read.is_some_and(is_over) && !done {
            true => Err(WriteError::without_effect(Error::busy(
                "a write depends on a value that was read too long ago: read it again",
            ))),
            false => Ok(done),
        }
    }

    /// Deletes a key that still has the value that was read. Returns `false`, without effect, if
    /// the key changed. Busy, without effect, if the value was read more than an address lease ago.
    /// Read the key again then.
    pub async fn compare_and_delete(&self, key: &[u8], read: &Value) -> Result<bool, WriteError> {
        let done = self.0.client.write(key, None, If::Version(read.version)).await?;
        self.known_of(Some(read), done)
    }

    /// Deletes a key. Returns whether it existed.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, WriteError> {
        self.0.client.write(key, None, If::Present).await
    }

    /// Number of partitions of the store. Busy before the node has joined.
    pub fn partitions(&self) -> Result<u32> {
        Ok(self.0.node.joined()?.geometry().partitions())
    }

    /// Number of keys in a partition, including expired keys that are not removed yet.
    pub async fn count_in(&self, partition: u32) -> Result<u64> {
        let until_ns = self.0.node.until_ns();
        let (_inside, words) =
            self.0.scanner.words_in_partition(PartitionId(partition), until_ns).await?;
        Ok(words.len() as u64)
    }

    /// The keys of a partition that exist and have not expired, in the order of their bytes.
    pub async fn keys_in(&self, partition: u32) -> Result<BTreeSet<Vec<u8>>> {
        self.0.scanner.keys_in(PartitionId(partition)).await
    }

    /// Hands the values of the first of `keys` to `take`, in their order, as far as this node has
    /// them in its cache and may serve them. Returns their number. Never waits. `take` runs under a
    /// lock and must not call this node.
    pub fn multi_get_fast(&self, keys: &[&[u8]], take: &mut dyn FnMut(Option<&[u8]>)) -> usize {
        self.0.client.read_many_fast(keys, take)
    }

    /// Performs those of the first [`FAST_KEYS_MAX`](crate::FAST_KEYS_MAX) sets that need no
    /// waiting, in their order. Bit *n* of the result says that set *n* was performed, with the
    /// effect of [`ComputeNode::set`]. The other sets have not begun.
    #[must_use]
    pub fn multi_set_fast(&self, sets: &[Set<'_>]) -> u32 {
        self.0.client.set_many_fast(sets)
    }

    /// Performs one step of a scan from `cursor` on, where 0 begins. `None` if no scan of this
    /// store gives out this cursor.
    ///
    /// A key that exists from the call with 0 to the call that returns no cursor is returned at
    /// least once, and maybe several times. A key that is written or deleted during the scan may be
    /// returned. A cursor is valid on every node of the store, and for as long as the store exists.
    /// Busy if a partition moves for longer than the settings' patience.
    pub async fn scan(&self, cursor: u64, limits: ScanLimits) -> Result<Option<ScanStep>> {
        let geometry = self.0.node.joined()?.geometry();
        match ScanPosition::decode(cursor, geometry) {
            Some(from) => self.0.scanner.scan_from(from, limits).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the keys of at least `records` neighbouring records from a random place on, or of
    /// nearly all records if the store has fewer. Records are neighbours by the hashes of their
    /// keys. The step has no cursor.
    pub async fn sample(&self, records: usize) -> Result<ScanStep> {
        self.0.scanner.sample(records, 0).await
    }

    /// Returns a random key. `None` if the store has none. Keys after empty buckets and expired
    /// records are more likely than others. If nearly all records have expired, the call visits
    /// many of them.
    pub async fn random_key(&self) -> Result<Option<Vec<u8>>> {
        let mut near = self.0.scanner.sample(2 * BUCKET_SLOTS, 1).await?.keys;
        if near.is_empty() {
            return Ok(None);
        }
        let nth = self.0.node.with_rng(|rng| rng.usize(..near.len()));
        Ok(Some(near.swap_remove(nth).key))
    }

    /// Moves the value and the expiry of `from` to `to`, which must differ. The value is never
    /// lost. `client/rename/` describes the states that other clients see during the move.
    pub async fn rename(
        &self,
        from: &[u8],
        to: &[u8],
        destination: Destination,
    ) -> Result<Renamed, WriteError> {
        rename(&*self.0.client, from, to, destination).await
    }
}

/// Functions for a program that forwards whole requests to the node of their partition.
#[cfg(feature = "index-protocol")]
impl ComputeNode {
    /// The node that serves the partition of `key`. `None` if this node does. Waits while the
    /// partition changes. Busy if that lasts until `until_ns`.
    pub async fn owner_of(&self, key: &[u8], until_ns: u64) -> Result<Option<crate::wire::Member>> {
        let (_inside, entry) = self.0.node.enter(crate::format::key_hash(key), until_ns).await?;
        let joined = self.0.node.joined()?;
        if entry.node == joined.number() {
            return Ok(None);
        }
        let map = joined.map();
        let owner = map.members.iter().find(|member| member.number == entry.node);
        let owner = owner.ok_or_else(|| Error::busy("the partition's node is no member"))?;
        Ok(Some(owner.clone()))
    }

    /// The time, in nanoseconds of this node's clock, at which a call that begins now gives up.
    #[must_use]
    pub fn patience_ends_ns(&self) -> u64 {
        self.0.node.until_ns()
    }

    /// Fails if `until_ns` has passed, or if this node was evicted from the pool.
    pub fn check_patience(&self, until_ns: u64, task: &str) -> Result<()> {
        self.0.node.table().late(until_ns, task)
    }

    /// Waits as long as this node waits before it repeats a request.
    pub async fn pause(&self) {
        self.0.node.pause().await;
    }
}
