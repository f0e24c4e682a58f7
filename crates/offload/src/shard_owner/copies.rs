//! Transfers of second copies, by a task of the owner.
//!
//! When a node has the first copy of a shard, the call of the database returns, and the image waits
//! here for the transfer of the second copy. One task sends the images one after another. An image
//! that finds the queue full gets no second copy, so the queue never makes a writer wait.
//!
//! Invariants:
//! 1. The images here have at most [`OwnerTerms::copy_queue_bytes`](super::OwnerTerms) together.
//! 2. A second copy takes an eighth of the link while a first copy is under way. A transfer that
//!    has used half of its time goes at full speed, so that a slow link does not make every
//!    transfer fail.
//! 3. No second copy begins while a first copy waits for room.
//! 4. Each shard that is still needed and gets no second copy is counted by the reason, except at
//!    the close.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a shard without a second copy is rebuilt from the log if its node is lost.
//! Cost: a copy of the image in memory for the time of the queue and the transfer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::SeqNo;
use archipelago_engine::remote::ShardId;

use super::counters::count;
use super::driver::OwnerDriver;
use super::sends::{Sending, head_sum};
use super::state::{Pick, ReadableShard};
use super::transfer::{Transfer, TransferOrder};

/// Part of the link that a second copy takes while a first copy is under way: an eighth.
const BESIDE_FIRST: u64 = 8;
/// Lowest speed of a second copy, in bytes a second.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

/// An image that waits for its second node.
#[derive(Debug)]
pub(super) struct CopyOrder {
    pub(super) id: ShardId,
    /// First key of its bucket.
    pub(super) boundary: Vec<u8>,
    pub(super) last_seq: SeqNo,
    pub(super) order: TransferOrder,
    pub(super) image: Vec<u8>,
}

/// The images that wait for their second nodes.
#[derive(Debug, Default)]
pub(super) struct CopyQueue {
    orders: VecDeque<CopyOrder>,
    /// Bytes of the images, including the image that is being sent.
    bytes: u64,
    is_running: bool,
}

impl CopyQueue {
    /// Bytes of the images.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the task sends images.
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    /// Forgets the images that wait.
    pub(super) fn clear(&mut self) {
        let waiting: u64 = self.orders.iter().map(|order| order.image.len() as u64).sum();
        self.orders.clear();
        self.bytes -= waiting;
    }
}

impl OwnerDriver {
    /// Queues the second copy of a shard. Calls `order` only if the queue takes the image.
    pub(super) fn copy_later(self: &Arc<Self>, bytes: u64, order: impl FnOnce() -> CopyOrder) {
        if self.terms().copies < 2 {
            return;
        }
        {
            let mut queue = self.copies.lock();
            if queue.bytes.saturating_add(bytes) > self.terms().copy_queue_bytes {
                return count(&self.tally.copies_not_queued, 1);
            }
            queue.bytes += bytes;
        }
        let order = order();
        let mut queue = self.copies.lock();
        queue.orders.push_back(order);
        if !std::mem::replace(&mut queue.is_running, true) {
            let copying = send_copies(Arc::clone(self));
            self.parts.runtime.spawn("shard-copies", Box::pin(copying));
        }
    }

    /// Sends a second copy.
    async fn send_copy(&self, copy: &CopyOrder) {
        let (id, bytes) = (copy.id, copy.image.len() as u64);
        let patience_ns = self.terms().patience.as_nanos() as u64;
        let until_ns = self.now_ns() + patience_ns;
        let end_ns = self.now_ns() + self.terms().image(bytes).as_nanos() as u64;
        loop {
            let pick = match self.sends_waiting.load(Ordering::Relaxed) {
                0 => self.state.lock().begin_copy(self.now_ns(), id, bytes, &copy.boundary),
                _ => Pick::Later,
            };
            let (node, losses) = match pick {
                Pick::Node { node, losses } => (node, losses),
                Pick::Later if self.now_ns() < until_ns => {
                    self.pause().await;
                    continue;
                }
                Pick::Later | Pick::NoRoom(_) | Pick::UsedUp => {
                    return self.count_missing(id, &self.tally.copies_no_room);
                }
            };
            let now_ns = self.now_ns();
            let mut transfer = Transfer::new(copy.order.clone(), now_ns, patience_ns, end_ns);
            let is_wanted = |_left: u64| self.state.lock().is_copying(node, id, losses);
            let half_ns = transfer.half_ns();
            let speed = |link| self.copy_speed(link, half_ns);
            let (image, flow) = (&copy.image[..], &self.copy_flow);
            let records_at = copy.order.records_at;
            let sending = Sending { image, records_at, flow, speed, is_wanted };
            let place = match self.transfer(node, &mut transfer, sending).await {
                Ok(place) => place,
                Err(failure) => {
                    let may_try_another = self.note_copy_failure(node, id, bytes, &failure);
                    if may_try_another && self.now_ns() < until_ns {
                        continue;
                    }
                    return self.count_missing(id, &self.tally.copies_not_sent);
                }
            };
            let (head_sum, last_seq) = (head_sum(&copy.image), copy.last_seq);
            let at = ReadableShard { place, head_sum, last_seq };
            let copied = self.state.lock().copied(node, id, losses, at);
            self.ring(node);
            return match copied {
                Ok(()) => count(&self.tally.copied, 1),
                Err(_) => self.count_missing(id, &self.tally.copies_not_sent),
            };
        }
    }

    /// Counts a shard without a second copy, if it is still needed.
    fn count_missing(&self, id: ShardId, counter: &AtomicU64) {
        if self.state.lock().needs_copy(id) {
            count(counter, 1);
        }
    }

    /// Speed of a second copy over a link of this speed, in bytes a second. Without a first copy
    /// under way, before the link is measured, and after `half_ns`, there is no limit.
    fn copy_speed(&self, link_bytes_per_s: u64, half_ns: u64) -> u64 {
        let is_alone = !self.is_sending();
        if is_alone || link_bytes_per_s == 0 || self.now_ns() >= half_ns {
            return u64::MAX;
        }
        (link_bytes_per_s / BESIDE_FIRST).max(SLOWEST_BYTES_PER_S)
    }
}

/// Sends the images that wait, until there is none.
async fn send_copies(driver: Arc<OwnerDriver>) {
    loop {
        let next = {
            let mut queue = driver.copies.lock();
            let next = queue.orders.pop_front();
            queue.is_running = next.is_some();
            next
        };
        let Some(order) = next else { return };
        driver.send_copy(&order).await;
        driver.copies.lock().bytes -= order.image.len() as u64;
    }
}
