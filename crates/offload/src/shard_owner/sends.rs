//! Transfers of images, on the threads of their callers.
//!
//! Failure: a transfer that fails leaves the shard with the database. The state machine releases
//! the name of the shard at the node, because the transfer may have left a grant or an image there.
//! Cost: two requests, a WRITE for each slice ([`super::flow`]), and a checksum over the image.
//! Bytes that were written while the shard filled ([`super::ahead`]) are not written again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use archipelago_base::checksum;
use archipelago_engine::memtable::ImageHead;
use archipelago_engine::remote::{AwayError, NewShard, ShardId, StoreNode};

use super::copies::CopyOrder;
use super::counters::count;
use super::driver::OwnerDriver;
use super::flow::Flow;
use super::links::{NodeLinks, OneSidedFailure, Way, WriteOrder};
use super::state::{NotSent, Pick, ReadableShard};
use super::transfer::{Transfer, TransferFailure, TransferOrder, TransferStep, pieces};
use crate::decide::{PaceInput, SendProgress, gives_up, pace};
use crate::wire::shard::{KeySpan, ShardInfo, ShardMessage, ShardPlace, ShardWhy};

/// Largest answer to a request of a transfer, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 4096;
/// Length in bytes of the header of an image, which has the checksums of all sections.
pub(super) const HEAD_BYTES: usize = 200;

/// The checksum of the header of an image.
pub(super) fn head_sum(image: &[u8]) -> u64 {
    checksum::hash64(&image[..image.len().min(HEAD_BYTES)])
}

/// The image of a transfer, and the rules for its speed and its end.
pub(super) struct Sending<'a, S, W> {
    pub(super) image: &'a [u8],
    /// Bytes of the image that lie after all others in a grant ([`TransferOrder::records_at`]).
    pub(super) records_at: u64,
    pub(super) flow: &'a Flow,
    /// Speed of the transfer in bytes a second, from the speed of the link.
    pub(super) speed: S,
    /// Whether the node is still to get the image, of which this number of bytes has left.
    pub(super) is_wanted: W,
}

/// Counts one in a number until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(number: &'a AtomicUsize) -> Self {
        number.fetch_add(1, Ordering::Relaxed);
        Self(number)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TransferFailure {
    /// The end of the transfer of `bytes`, for the state.
    fn end_of(&self, bytes: u64) -> NotSent {
        // The next choice leaves this node out, even if the node reports room.
        let left_bytes = self.end.left_bytes.map(|left| left.min(bytes.saturating_sub(1)));
        NotSent { left_bytes, ..self.end }
    }

    /// Whether another node may take the image.
    fn may_try_another(&self) -> bool {
        let why = self.refusal.map(|refusal| refusal.why);
        matches!(
            why,
            Some(ShardWhy::Full | ShardWhy::TooLarge | ShardWhy::Retired | ShardWhy::HasGrant)
        )
    }
}

impl OwnerDriver {
    /// Sends an image to the node that [`place`](crate::decide::place) chooses, or to another node
    /// if that one has no room. With two copies, the image then waits for its second transfer.
    pub(super) async fn send(
        self: &Arc<Self>,
        shard: &NewShard<'_>,
        image: &[u8],
    ) -> Result<StoreNode, AwayError> {
        let (node, order) = {
            let _counted = Counted::new(&self.sends);
            self.send_first(shard, image).await?
        };
        self.copy_later(order.bytes, || CopyOrder {
            id: shard.id,
            boundary: shard.keys.start.clone(),
            last_seq: shard.last_seq,
            order,
            image: image.to_vec(),
        });
        Ok(node)
    }

    async fn send_first(
        &self,
        shard: &NewShard<'_>,
        image: &[u8],
    ) -> Result<(StoreNode, TransferOrder), AwayError> {
        let (id, bytes) = (shard.id, image.len() as u64);
        let records_at = ImageHead::records_at(image, bytes).ok();
        let mut ahead = match records_at {
            Some(_) => self.ahead.take(self, id, bytes).await,
            None => None,
        };
        let records_at = ahead.and(records_at).unwrap_or(0);
        let patience_ns = self.terms().patience.as_nanos() as u64;
        let until_ns = self.now_ns() + patience_ns;
        let end_ns = self.now_ns() + self.terms().image(bytes).as_nanos() as u64;
        let mut order = None;
        loop {
            let begun = ahead.take();
            let (node, losses) = match &begun {
                Some(taken) => (taken.node, taken.losses),
                None => self.node_for(shard, bytes, until_ns).await?,
            };
            let order = order.get_or_insert_with(|| self.order(shard, image, records_at));
            let mut transfer = Transfer::new(order.clone(), self.now_ns(), patience_ns, end_ns);
            if let Some(taken) = &begun {
                transfer = transfer.after(&taken.ahead);
            }
            let is_given_up = AtomicBool::new(false);
            let is_wanted = |left_bytes| {
                let is_due = self.is_due(id);
                let gives_up = gives_up(&SendProgress { image_bytes: bytes, left_bytes, is_due });
                is_given_up.store(gives_up, Ordering::Relaxed);
                !gives_up && self.state.lock().is_sending(node, id, losses)
            };
            let half_ns = transfer.half_ns();
            let speed = |link| self.send_speed(link, half_ns);
            let sending = Sending { image, records_at, flow: &self.flow, speed, is_wanted };
            match self.transfer(node, &mut transfer, sending).await {
                Ok(place) => {
                    let head_sum = head_sum(image);
                    let at = ReadableShard { place, head_sum, last_seq: shard.last_seq };
                    let sent = self.state.lock().sent(node, id, losses, at);
                    self.ring(node);
                    sent.inspect_err(|_| count(&self.tally.not_sent, 1))?;
                    self.count_sent(bytes, transfer.ahead_bytes());
                    self.fill_hot(id, image);
                    return Ok((node, order.clone()));
                }
                Err(failure) => {
                    let ended = self.on_failure(node, id, bytes, &failure, until_ns);
                    if is_given_up.load(Ordering::Relaxed) {
                        let why = "a flush waits for the shard, and most of it had not left yet";
                        return Err(AwayError::Busy(why.to_owned()));
                    }
                    ended?;
                }
            }
        }
    }

    /// The node for the transfer of an image of `bytes`, which begins there, and the number of
    /// times that its shards were lost so far. Waits for room that becomes free soon.
    async fn node_for(
        &self,
        shard: &NewShard<'_>,
        bytes: u64,
        until_ns: u64,
    ) -> Result<(StoreNode, u64), AwayError> {
        let mut waiting = None;
        loop {
            let boundary = &shard.keys.start;
            let pick = self.state.lock().begin_send(self.now_ns(), shard.id, bytes, boundary);
            match pick {
                Pick::Node { node, losses } => return Ok((node, losses)),
                Pick::NoRoom(why) => {
                    count(&self.tally.no_room, 1);
                    return Err(AwayError::NoRoom(why.to_owned()));
                }
                Pick::UsedUp => {
                    // After this answer the database tries a few times more, and then keeps the
                    // shard. After an answer for want of room it would try for ever, and would send
                    // no later shard meanwhile.
                    count(&self.tally.not_sent, 1);
                    let why = "the name of the shard is used up at the memory nodes that answer";
                    return Err(AwayError::Busy(why.to_owned()));
                }
                Pick::Later if self.now_ns() >= until_ns => {
                    count(&self.tally.no_room, 1);
                    return Err(AwayError::NoRoom("other transfers fill the nodes".to_owned()));
                }
                Pick::Later => {
                    // While this call waits, second copies take no room. Nodes may have to release
                    // second copies first, and to end grants.
                    waiting.get_or_insert_with(|| Counted::new(&self.sends_waiting));
                    self.tell_news();
                    self.ahead.ring();
                    self.pause().await;
                }
            }
        }
    }

    /// Counts a shard that was sent. `ahead_bytes` of it had left before, and were not written
    /// again.
    fn count_sent(&self, bytes: u64, ahead_bytes: u64) {
        count(&self.tally.sent, 1);
        count(&self.tally.sent_bytes, bytes);
        if ahead_bytes > 0 {
            count(&self.tally.ahead_used, 1);
            count(&self.tally.ahead_used_bytes, ahead_bytes);
        }
    }

    fn order(&self, shard: &NewShard<'_>, image: &[u8], records_at: u64) -> TransferOrder {
        let info = ShardInfo {
            family: shard.family,
            keys: KeySpan(shard.keys.clone()),
            after_seq: shard.after_seq,
            last_seq: shard.last_seq,
            oldest_log: shard.oldest_log.0,
            seal_log: shard.seal_log.0,
        };
        let (owner, shard) = (self.owner, self.state.lock().name(shard.id));
        let (bytes, pieces) = (image.len() as u64, pieces(image, records_at));
        TransferOrder { owner, shard, info, bytes, records_at, pieces }
    }

    /// Handles a transfer that failed. An error ends the send; otherwise another node may take the
    /// image.
    fn on_failure(
        &self,
        node: StoreNode,
        id: ShardId,
        bytes: u64,
        failure: &TransferFailure,
        until_ns: u64,
    ) -> Result<(), AwayError> {
        let now_ns = self.now_ns();
        let end = failure.end_of(bytes);
        self.state.lock().not_sent(now_ns, node, id, end);
        self.note_refusal(node, failure);
        if failure.may_try_another() && now_ns < until_ns {
            return Ok(());
        }
        count(&self.tally.not_sent, 1);
        let said = failure.refusal.map(|refusal| refusal.to_string());
        let said = said.unwrap_or_else(|| "a memory node did not answer a transfer".to_owned());
        Err(AwayError::Busy(said))
    }

    /// Handles a failed transfer of a second copy. Returns whether another node may take the copy.
    pub(super) fn note_copy_failure(
        &self,
        node: StoreNode,
        id: ShardId,
        bytes: u64,
        failure: &TransferFailure,
    ) -> bool {
        let end = failure.end_of(bytes);
        let was_stopped = self.state.lock().not_copied(self.now_ns(), node, id, end);
        self.note_refusal(node, failure);
        was_stopped || failure.may_try_another()
    }

    fn note_refusal(&self, node: StoreNode, failure: &TransferFailure) {
        if let Some(refusal) = &failure.refusal {
            self.state.lock().on_refused(self.now_ns(), node, refusal);
        }
        self.ring(node);
        self.tell_news();
    }

    /// Sends an image to one node. Stops if the node is lost or the shard is released meanwhile, or
    /// if the caller gives it up.
    pub(super) async fn transfer(
        &self,
        node: StoreNode,
        transfer: &mut Transfer,
        sending: Sending<'_, impl Fn(u64) -> u64, impl Fn(u64) -> bool>,
    ) -> Result<ShardPlace, TransferFailure> {
        let Sending { image, records_at, flow, speed, is_wanted } = sending;
        let (first, records) = image.split_at(records_at as usize);
        let Some(links) = self.links(node) else {
            return Err(TransferFailure { end: NotSent::default(), refusal: None });
        };
        let mut step = transfer.begin();
        let mut left_bytes = transfer.ahead_bytes();
        loop {
            if !step.is_end() && !is_wanted(left_bytes) {
                return Err(transfer.stopped());
            }
            step = match step {
                TransferStep::Ask(message) => self.ask_step(node, &links, transfer, &message).await,
                TransferStep::AskLater(message) => {
                    self.pause().await;
                    self.ask_step(node, &links, transfer, &message).await
                }
                TransferStep::Write { grant, written } => {
                    let key = &grant.key;
                    let write = |at: u64, image| {
                        let is_wanted = &is_wanted;
                        links.write(WriteOrder {
                            key,
                            at: grant.at + at,
                            image,
                            flow,
                            speed: &speed,
                            is_wanted: move |written: u64| is_wanted(at + written),
                        })
                    };
                    let rest = &records[(written as usize).min(records.len())..];
                    let both = async {
                        write(written, rest).await?;
                        write(records.len() as u64, first).await
                    };
                    let written = self.until(transfer.end_ns(), both).await;
                    if written.is_ok() {
                        left_bytes = image.len() as u64;
                    }
                    let written = written.map_err(|failure| match failure {
                        OneSidedFailure::NoAnswer(_) => None,
                        OneSidedFailure::Refused(refusal) => Some(refusal),
                    });
                    transfer.on_written(self.now_ns(), written)
                }
                TransferStep::Registered(place) => return Ok(place),
                TransferStep::Failed(failure) => return Err(failure),
            };
        }
    }

    /// Speed of a transfer over a link of this speed, in bytes a second. After `half_ns` there is
    /// no limit.
    fn send_speed(&self, link_bytes_per_s: u64, half_ns: u64) -> u64 {
        if self.now_ns() >= half_ns {
            return u64::MAX;
        }
        let load = self.write_load();
        let speed = pace(&PaceInput {
            backlog_bytes: load.backlog_bytes,
            space_bytes: load.space_bytes,
            fill_bytes_per_s: load.fill_bytes_per_s,
            link_bytes_per_s,
        });
        if speed >= link_bytes_per_s { u64::MAX } else { speed }
    }

    async fn ask_step(
        &self,
        node: StoreNode,
        links: &NodeLinks,
        transfer: &mut Transfer,
        message: &ShardMessage,
    ) -> TransferStep {
        let answer = links.ask(Way::Asks, message, ANSWER_BYTES_MAX).await.ok();
        if let Some(ShardMessage::Landing { share, .. } | ShardMessage::Done { share, .. }) =
            &answer
        {
            self.state.lock().on_share(node, share);
            self.tell_news();
        }
        transfer.on_answer(self.now_ns(), answer.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of an image ends with its own CRC-32C, so a CRC-32C of the whole header would be
    /// the same for all images. XXH3-64 has no such property.
    #[test]
    fn sum_of_a_header_with_its_checksum_tells_headers_apart() {
        let header = |fill: u8| {
            let body = [fill; HEAD_BYTES - 8];
            [&body[..], &checksum::crc(&body).to_le_bytes(), &[0; 4]].concat()
        };
        assert_eq!(checksum::crc(&header(1)), checksum::crc(&header(2)));
        assert_ne!(head_sum(&header(1)), head_sum(&header(2)));
    }
}
