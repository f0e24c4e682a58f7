//! Opening of blocks by a client, and the events after which an open block is not used any more.
//!
//! Invariants:
//! 1. An open block was opened under the version of the members that the client knows. So the
//!    client uses no copy on a node that was silent after the opening.
//! 2. Each open block has a *round*. A round ends when all keys of the client are invalid on every
//!    copy. After an operation of unknown outcome in round *n*, the client posts on the block only
//!    in a round above *n*. So no key of that operation is valid any more.
//! 3. One task at a time opens a block, and it releases the gate after each try. So a writer that
//!    waits for all copies does not delay readers, which need one.
//!
//! Thread-safety: any thread may call any method. The order of the locks is `open`, then
//! `membership` or `doubts`. No lock is held over an await.
//! Failure: a try that fails is repeated until the caller's time is over.
//! Cost: a round trip to the manager and two to each node.

use std::sync::Arc;

use archipelago_base::runtime::Gate;
use archipelago_base::{Epoch, Error, Result};
use archipelago_fabric::{Link, Reason, Refusal, Rights, Route, ask};

use crate::address::BlockId;
use crate::config::{Config, Place};
use crate::open_block::{OpenBlock, OpenCopy};
use crate::shared::{ClientState, Doubt, unexpected};
use crate::wire::{Message, Purpose, Refused, Why};

/// Result of one try to open a block.
enum Tried {
    Open(Arc<OpenBlock>),
    /// The members or the doubts changed during the try, so the caller tries again immediately.
    Overtaken,
    /// The block cannot be opened now, for this reason.
    Not(String),
}

/// The gate of a block, while a task uses it.
struct BlockGate<'a> {
    shared: &'a ClientState,
    block: BlockId,
    gate: Arc<Gate>,
}

impl Drop for BlockGate<'_> {
    fn drop(&mut self) {
        let mut gates = self.shared.gates.lock();
        // If only this gate and the table have references, no task waits.
        if Arc::strong_count(&self.gate) == 2 {
            gates.remove(&self.block);
        }
    }
}

impl ClientState {
    /// The block, if it is open; with `all`, only if it is writable.
    #[inline]
    pub(crate) fn known(&self, block: BlockId, all: bool) -> Option<Arc<OpenBlock>> {
        let blocks = self.open.read();
        blocks.get(&block).filter(|open| !all || open.is_writable()).map(Arc::clone)
    }

    /// Opens a block, and retries until a copy answers; with `all`, until the block is writable.
    pub(crate) async fn open(
        &self,
        block: BlockId,
        until_ns: u64,
        all: bool,
    ) -> Result<Arc<OpenBlock>> {
        loop {
            if let Some(open) = self.known(block, all) {
                return Ok(open);
            }
            let tried = {
                let block_gate = self.block_gate(block);
                let _pass = block_gate.gate.enter().await;
                // Another task may have opened the block while this one waited.
                if let Some(open) = self.known(block, all) {
                    return Ok(open);
                }
                self.try_to_open(block, all).await?
            };
            match tried {
                Tried::Open(open) => return Ok(open),
                Tried::Overtaken => self.late(until_ns, format!("block {block}"))?,
                Tried::Not(why) => {
                    self.late(until_ns, format!("block {block}{why}"))?;
                    self.pause().await;
                }
            }
        }
    }

    fn block_gate(&self, block: BlockId) -> BlockGate<'_> {
        let gate = Arc::clone(self.gates.lock().entry(block).or_default());
        BlockGate { shared: self, block, gate }
    }

    async fn try_to_open(&self, block: BlockId, all: bool) -> Result<Tried> {
        if self.is_over() {
            return Err(self.over(format!("block {block}")));
        }
        let view = self.membership.lock().view();
        let doubt = self.doubts.lock().get(&block).copied().unwrap_or_default();
        let config = match self.ask_once(&Message::Locate { block }).await {
            Ok(Message::Located { config }) => config,
            Ok(Message::Refuse { refused }) => {
                self.refused(refused, format!("block {block}"))?;
                return Ok(Tried::Not(format!(": {refused}")));
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(error) => return Ok(Tried::Not(format!(": {}", error.context_at("the manager")))),
        };
        let afresh = doubt.needed > doubt.ended;
        let (copies, why) = self.open_copies(&config, afresh).await;
        let mut open = OpenBlock { config, copies, round: doubt.ended };
        if afresh && open.is_complete() {
            open.round = doubt.needed;
        }
        let refused = open.copies.iter().find(|copy| !copy.rights.allow(Rights::WRITE));
        if let Some(copy) = refused.filter(|_| all) {
            let what = format!("a write to block {block} on node {}", copy.place.node);
            open.detach();
            return Err(Refused::from(Why::NotOwner).error(what));
        }
        let why = why.map_or_else(String::new, |error| format!(": {error}"));
        Ok(self.keep_open(open, view, doubt, all, why))
    }

    /// Publishes an opened block, unless it has too few copies, the members or the doubts changed,
    /// or the client was evicted or has left.
    fn keep_open(&self, open: OpenBlock, view: u64, doubt: Doubt, all: bool, why: String) -> Tried {
        let (block, enough) = (open.config.block, !all || open.is_complete());
        let mut blocks = self.open.write();
        // Readers can use a block with some of its copies.
        let wanted = enough || !blocks.contains_key(&block);
        if open.copies.is_empty() || !wanted {
            drop(blocks);
            open.detach();
            return Tried::Not(why);
        }
        // Renewals remove blocks on silent nodes under this lock. So do doubts for their blocks,
        // and the end of the client for all blocks. So no such block is inserted after its removal.
        let over = self.is_over();
        let mut doubts = self.doubts.lock();
        let now = doubts.get(&block).copied().unwrap_or_default();
        if over || self.membership.lock().view() != view || now.needed != doubt.needed {
            drop((doubts, blocks));
            open.detach();
            return Tried::Overtaken;
        }
        if open.round > now.ended {
            doubts.insert(block, Doubt { ended: open.round, ..now });
        }
        drop(doubts);
        let open = Arc::new(open);
        let old = blocks.insert(block, Arc::clone(&open));
        drop(blocks);
        if let Some(old) = old {
            old.detach();
        }
        if enough { Tried::Open(open) } else { Tried::Not(why) }
    }

    async fn open_copies(&self, config: &Config, afresh: bool) -> (Vec<OpenCopy>, Option<Error>) {
        let (mut copies, mut why) = (Vec::new(), None);
        for place in &config.copies {
            if self.is_over() {
                break;
            }
            match self.open_copy(config.block, config.epoch, *place, afresh).await {
                Ok(copy) => copies.push(copy),
                Err(error) => why = Some(error),
            }
        }
        (copies, why)
    }

    async fn open_copy(
        &self,
        block: BlockId,
        epoch: Epoch,
        place: Place,
        afresh: bool,
    ) -> Result<OpenCopy> {
        let link = self.link(place).await?;
        let purpose = if afresh { Purpose::Afresh } else { Purpose::Use };
        let message = Message::Open { client: self.client, block, epoch, purpose };
        let who = format!("memory node {}", place.node);
        let key = match ask(&link, &message, self.options.pace.request, &who).await? {
            Message::Opened { key, .. } => key,
            Message::Refuse { refused } => {
                if refused.why == Why::Evicted {
                    self.membership.lock().evict();
                    self.close();
                }
                return Err(refused.error(who));
            }
            other => return Err(unexpected(&other)),
        };
        let region = link.attach(&key).await;
        let region = region.map_err(|refusal| refusal.error(format!("block {block}")))?;
        Ok(OpenCopy { place, link, region, rights: key.rights })
    }

    async fn link(&self, place: Place) -> Result<Arc<dyn Link>> {
        let down = || Error::busy(format!("memory node {} is not up", place.node));
        let endpoints = {
            let membership = self.membership.lock();
            let member = membership.node(place.node).filter(|member| member.life == place.life);
            member.ok_or_else(down)?.endpoints.clone()
        };
        let route = {
            let mut nodes = self.nodes.lock();
            let peer = Some((place.node, place.life));
            let new = || Arc::new(Route::new(&self.reach, self.client, peer));
            Arc::clone(nodes.entry(place).or_insert_with(new))
        };
        let link = route.link(&endpoints, self.options.pace.request).await?;
        let up = {
            let membership = self.membership.lock();
            membership.node(place.node).is_some_and(|member| member.life == place.life)
        };
        if !up || self.is_over() {
            route.hang_up();
            return Err(down());
        }
        Ok(link)
    }

    /// Reports that an operation on `open` was refused.
    pub(crate) fn stale(&self, open: &OpenBlock, refusal: Refusal) {
        let block = open.config.block;
        let unknown =
            matches!(refusal.reason, Reason::Deadline | Reason::Disconnected | Reason::Skipped);
        if unknown {
            self.doubt(open);
        }
        let gone = {
            let mut blocks = self.open.write();
            // If another task has opened the block since, and that opening shares keys with this
            // one, it is removed as well.
            let over = |known: &Arc<OpenBlock>| {
                std::ptr::eq(Arc::as_ptr(known), open) || (unknown && known.round <= open.round)
            };
            if blocks.get(&block).is_some_and(over) { blocks.remove(&block) } else { None }
        };
        if let Some(gone) = gone {
            gone.detach();
        }
    }

    /// Records that operations on `open` have an unknown outcome.
    fn doubt(&self, open: &OpenBlock) {
        let mut doubts = self.doubts.lock();
        let doubt = doubts.entry(open.config.block).or_default();
        doubt.needed = doubt.needed.max(open.round + 1);
    }

    /// Forgets a block that this client gave up.
    pub(crate) fn forget(&self, block: BlockId) {
        let gone = self.open.write().remove(&block);
        if let Some(gone) = gone {
            gone.detach();
        }
    }

    /// Detaches blocks whose keys were revoked. Over shared memory other members wait for that, and
    /// a client that posts nothing learns of the revocation only here.
    pub(crate) fn leave_revoked(&self) {
        let revoked =
            |block: &OpenBlock| block.copies.iter().any(|copy| copy.link.is_revoked(copy.region));
        let gone = {
            let mut open = self.open.write();
            let gone = open.extract_if(|_, block| revoked(block));
            gone.map(|(_, block)| block).collect()
        };
        detach_in_order(gone);
    }

    /// Detaches all blocks of a node that was silent at some time.
    pub(crate) fn leave_node(&self, place: Place) {
        // This includes a block whose copy on that node did not answer. Over shared memory, its
        // other copies are sealed only after they are detached.
        let of = |block: &OpenBlock| block.config.has(place);
        let lost = {
            let mut open = self.open.write();
            let lost = open.extract_if(|_, block| of(block));
            let lost: Vec<Arc<OpenBlock>> = lost.map(|(_, block)| block).collect();
            lost.iter().for_each(|block| self.doubt(block));
            lost
        };
        detach_in_order(lost);
        // The route stays, because the numbers of its session must not begin again.
        let route = self.nodes.lock().get(&place).cloned();
        if let Some(route) = route {
            route.hang_up();
        }
    }

    /// Detaches all blocks, and closes the links to all nodes.
    pub(crate) fn close(&self) {
        let open = self.open.write().drain().map(|(_, block)| block).collect();
        detach_in_order(open);
        let nodes: Vec<Arc<Route>> = self.nodes.lock().values().cloned().collect();
        for route in nodes {
            route.hang_up();
        }
    }
}

/// Detaches blocks in the order of their ids, so that simulated runs repeat.
fn detach_in_order(mut blocks: Vec<Arc<OpenBlock>>) {
    blocks.sort_unstable_by_key(|block| block.config.block);
    for block in blocks {
        block.detach();
    }
}
