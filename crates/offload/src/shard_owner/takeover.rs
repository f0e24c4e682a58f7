//! Takeover: finds the shards of the previous owner, and reads the parts of them that the database
//! keeps in memory.
//!
//! A node that gets a request to hold shards (`Adopt`) may do so although its answer is lost. So
//! this open counts all listed shards as held. When it has decided, it releases those that it does
//! not keep. It reads and keeps only shards that the node has confirmed.
//!
//! A shard of which two nodes have a copy is found once. Its head is read at either node, and the
//! shard is adopted at both.
//!
//! Cost: a request to each node for about 500 shards, and one request that holds them. Two reads
//! for each shard that may be kept.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::join_all;
use archipelago_base::{FileNo, checksum};
use archipelago_engine::memtable::ImageHead;
use archipelago_engine::remote::{AwayError, EarlierShard, FoundShard, ShardId, StoreNode};
use archipelago_fabric::MESSAGE_BYTES_MAX;

use super::driver::OwnerDriver;
use super::links::Way;
use super::sends::head_sum;
use super::within::within;
use crate::wire::shard::{ListedShard, ShardMessage, ShardName};

/// Largest number of names in one request to hold shards.
const NAMES_MAX: usize = 4096;
/// Number of image heads that are read at the same time.
const HEADS_IN_PARALLEL: usize = 16;
/// Largest answer without shards, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;

fn name_of(shard: &EarlierShard) -> ShardName {
    ShardName { epoch: shard.epoch, memtable: shard.id.memtable, shard: shard.id.shard }
}

fn found(node: StoreNode, listed: &ListedShard) -> FoundShard {
    let ListedShard { name, info, place } = listed;
    let id = ShardId { memtable: name.memtable, shard: name.shard };
    FoundShard {
        node,
        name: EarlierShard { epoch: name.epoch, id },
        family: info.family,
        keys: info.keys.0.clone(),
        after_seq: info.after_seq,
        last_seq: info.last_seq,
        oldest_log: FileNo(info.oldest_log),
        seal_log: FileNo(info.seal_log),
        image_bytes: place.bytes,
    }
}

/// Whether two found shards are copies of the same one.
fn is_copy(one: &FoundShard, other: &FoundShard) -> bool {
    (one.name, one.family, one.last_seq) == (other.name, other.family, other.last_seq)
        && one.keys == other.keys
        && one.image_bytes == other.image_bytes
}

/// The head of an image, and the nodes that did not answer when it was read.
struct HeadRead {
    head: Result<ImageHead, AwayError>,
    silent: Vec<StoreNode>,
}

impl OwnerDriver {
    /// Lists the shards of the previous owner at all nodes that answer in time, and requests the
    /// nodes to hold them.
    pub(super) async fn list(self: &Arc<Self>) -> Vec<FoundShard> {
        let patience = self.terms().takeover;
        let until_ns = self.now_ns() + patience.as_nanos() as u64;
        loop {
            self.take_list();
            if !self.state.lock().waits_for_nodes() || self.now_ns() >= until_ns {
                break;
            }
            self.pause().await;
        }
        let nodes = self.state.lock().begun_nodes();
        let lists = nodes.iter().map(|node| self.find_at(*node, patience));
        let lists = join_all(lists).await;
        let mut shards: Vec<FoundShard> = Vec::new();
        for (node, listed) in nodes.into_iter().zip(lists) {
            let Some(listed) = listed else {
                tracing::warn!(%node, "a memory node did not list its shards in time");
                continue;
            };
            shards.extend(listed.iter().map(|shard| found(node, shard)));
        }
        let state = self.state.lock();
        let is_confirmed =
            |shard: &FoundShard| state.held(shard.node, name_of(&shard.name)).is_some();
        // If two nodes have a copy, the list has the copy whose node has confirmed it. If both
        // nodes have confirmed, a hash chooses, so that both nodes are read.
        shards.sort_by_key(|shard| {
            let ShardName { epoch, memtable, shard: number } = name_of(&shard.name);
            let parts = [epoch.0, memtable, number.into(), shard.node.0].map(u64::to_le_bytes);
            let rank = checksum::hash64(parts.as_flattened());
            (name_of(&shard.name), !is_confirmed(shard), rank)
        });
        shards.dedup_by(|later, first| is_copy(later, first));
        shards
    }

    /// Lists the shards of a node and requests the node to hold them. `None` if it does not list
    /// them in time.
    async fn find_at(&self, node: StoreNode, patience: Duration) -> Option<Vec<ListedShard>> {
        let runtime = &*self.parts.runtime;
        let end_ns = self.now_ns() + patience.as_nanos() as u64;
        let listed = within(runtime, patience, self.list_at(node)).await.flatten()?;
        // From here on the node may hold the shards, even if its answer is lost.
        self.state.lock().hold(node, &listed);
        let left = Duration::from_nanos(end_ns.saturating_sub(self.now_ns()));
        if within(runtime, left, self.hold_at(node, &listed)).await == Some(true) {
            self.state.lock().confirm_held(node);
        } else {
            tracing::warn!(%node, "a memory node did not confirm in time that it holds shards");
        }
        Some(listed)
    }

    /// The shards of earlier owners that a node lists; `None` if it refuses.
    async fn list_at(&self, node: StoreNode) -> Option<Vec<ListedShard>> {
        let links = self.links(node)?;
        let owner = self.owner;
        let (mut listed, mut after): (Vec<ListedShard>, _) = (Vec::new(), None);
        loop {
            let message = ShardMessage::List { owner, after };
            let answer = links.ask(Way::Asks, &message, MESSAGE_BYTES_MAX).await;
            let more = match answer.ok() {
                Some(ShardMessage::Listed { shards, more }) => {
                    let is_progress = after
                        .is_none_or(|after| shards.first().is_some_and(|first| first.name > after));
                    after = shards.last().map(|last| last.name).filter(|_| is_progress);
                    listed.extend(shards);
                    more && after.is_some()
                }
                Some(ShardMessage::Refused { .. }) => return None,
                // The request is repeated until the time is over.
                _ => {
                    self.pause().await;
                    true
                }
            };
            if !more {
                break;
            }
        }
        // The list may also name shards of this open, which are skipped.
        listed.retain(|shard| shard.name.epoch < owner.epoch);
        Some(listed)
    }

    /// Requests a node to hold shards for this owner. Returns whether the node has confirmed all of
    /// them.
    async fn hold_at(&self, node: StoreNode, listed: &[ListedShard]) -> bool {
        let Some(links) = self.links(node) else { return false };
        let owner = self.owner;
        for some in listed.chunks(NAMES_MAX) {
            let shards = some.iter().map(|shard| shard.name).collect();
            let message = ShardMessage::Adopt { owner, shards };
            loop {
                match links.ask(Way::Asks, &message, ANSWER_BYTES_MAX).await.ok() {
                    Some(ShardMessage::Done { .. }) => break,
                    Some(_) => return false,
                    None => self.pause().await,
                }
            }
        }
        true
    }

    /// Reads the heads of shards that nodes hold: the parts that the database keeps in memory.
    pub(super) async fn heads(&self, shards: &[FoundShard]) -> Vec<Result<ImageHead, AwayError>> {
        let mut heads = Vec::with_capacity(shards.len());
        let mut silent: Vec<StoreNode> = Vec::new();
        for some in shards.chunks(HEADS_IN_PARALLEL) {
            let known = silent.clone();
            let reads = some.iter().map(|shard| self.head(shard, &known));
            for read in join_all(reads).await {
                silent.extend(read.silent);
                heads.push(read.head);
            }
        }
        heads
    }

    /// Reads the head of an image, from the node that has the other copy if the first node does not
    /// give it. Nodes that were `silent` before are not read.
    async fn head(&self, shard: &FoundShard, silent: &[StoreNode]) -> HeadRead {
        let other = self.state.lock().other_holder(shard.node, name_of(&shard.name));
        let mut found_silent = Vec::new();
        let mut head = Err(AwayError::Lost("no memory node has the shard".to_owned()));
        for node in std::iter::once(shard.node).chain(other) {
            head = self.head_at(node, shard, silent.contains(&node)).await;
            match &head {
                Ok(_) => break,
                Err(AwayError::Busy(_)) => found_silent.push(node),
                Err(_) => {}
            }
        }
        HeadRead { head, silent: found_silent }
    }

    /// Reads the head of an image at a node. If the node was silent before, the result is `Busy`
    /// without a read.
    async fn head_at(
        &self,
        node: StoreNode,
        shard: &FoundShard,
        is_silent: bool,
    ) -> Result<ImageHead, AwayError> {
        let name = name_of(&shard.name);
        let busy = || AwayError::Busy("its memory node does not answer".to_owned());
        let lost = |why: &str| AwayError::Lost(why.to_owned());
        if is_silent {
            return Err(busy());
        }
        let place = self.state.lock().held(node, name);
        let place = place.ok_or_else(|| lost("no memory node has confirmed that it holds it"))?;
        let links = self.links(node).ok_or_else(busy)?;
        let end_ns = self.now_ns() + self.terms().takeover.as_nanos() as u64;
        let head_bytes = (ImageHead::BYTES as u64).min(place.bytes);
        let read = self.until(end_ns, links.read(&place.key, place.at, head_bytes)).await;
        let head = read.map_err(|_| busy())?;
        let tail = ImageHead::tail(&head, place.bytes);
        let tail = tail.map_err(|error| AwayError::Lost(error.to_string()))?;
        let (at, len) = (place.at + tail.start, tail.end - tail.start);
        let end_ns = self.now_ns() + self.terms().image(len).as_nanos() as u64;
        let read = self.until(end_ns, links.read(&place.key, at, len)).await;
        let tail = read.map_err(|_| busy())?;
        let found = ImageHead::read(&head, &tail, place.bytes);
        let found = found.map_err(|error| AwayError::Lost(error.to_string()))?;
        self.state.lock().note_head(node, name, head_sum(&head));
        Ok(found)
    }

    /// Adopts shards that nodes hold: gives them ids of this open.
    pub(super) fn adopt(
        &self,
        shards: &[(ShardId, &FoundShard)],
    ) -> Vec<Result<StoreNode, AwayError>> {
        let mut state = self.state.lock();
        let adopt = |(id, found): &(ShardId, &FoundShard)| {
            state.adopt(*id, found.node, name_of(&found.name))
        };
        shards.iter().map(adopt).collect()
    }

    /// Makes the nodes drop all shards of earlier owners that were not adopted.
    pub(super) fn purge(&self) {
        let concerned = self.state.lock().purge();
        concerned.into_iter().for_each(|node| self.ring(node));
    }
}
