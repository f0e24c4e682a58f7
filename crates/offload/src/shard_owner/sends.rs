//! Transfers of images, on the threads of their callers.
//!
//! Failure: a transfer that fails leaves the shard with the database. The state machine releases at
//! the node whatever the transfer may have left there.
//! Cost: two requests, a WRITE for each slice ([`super::flow`]), and a checksum over the image.

use archipelago_base::checksum;
use archipelago_engine::remote::{AwayError, NewShard, ShardId, StoreNode};

use super::counters::count;
use super::driver::OwnerDriver;
use super::links::{NodeLinks, OneSidedFailure, Way, WriteOrder};
use super::state::{NotSent, Pick, ReadableShard};
use super::transfer::{Transfer, TransferFailure, TransferOrder, TransferStep, pieces};
use crate::decide::{PaceInput, pace};
use crate::wire::shard::{KeySpan, ShardInfo, ShardMessage, ShardPlace, ShardWhy};

/// Largest answer to a request of a transfer, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;
/// Length in bytes of the header of an image, which has the checksums of all sections.
pub(super) const HEAD_BYTES: usize = 200;

/// The checksum of the header of an image.
pub(super) fn head_sum(image: &[u8]) -> u64 {
    checksum::hash64(&image[..image.len().min(HEAD_BYTES)])
}

impl OwnerDriver {
    /// Sends an image to the node that [`place`](crate::decide::place) chooses, or to another node
    /// if that one has no room.
    pub(super) async fn send(
        &self,
        shard: &NewShard<'_>,
        image: &[u8],
    ) -> Result<StoreNode, AwayError> {
        let (id, bytes) = (shard.id, image.len() as u64);
        let patience_ns = self.terms().patience.as_nanos() as u64;
        let until_ns = self.now_ns() + patience_ns;
        let end_ns = self.now_ns() + self.terms().image(bytes).as_nanos() as u64;
        let mut order = None;
        loop {
            let boundary = &shard.keys.start;
            let pick = self.state.lock().begin_send(self.now_ns(), id, bytes, boundary);
            let (node, losses) = match pick {
                Pick::Node { node, losses } => (node, losses),
                Pick::NoRoom(why) => {
                    count(&self.tally.no_room, 1);
                    return Err(AwayError::NoRoom(why.to_owned()));
                }
                Pick::Later if self.now_ns() >= until_ns => {
                    count(&self.tally.no_room, 1);
                    return Err(AwayError::NoRoom("other transfers fill the nodes".to_owned()));
                }
                Pick::Later => {
                    self.pause().await;
                    continue;
                }
            };
            let order = order.get_or_insert_with(|| self.order(shard, image));
            let transfer = Transfer::new(order.clone(), self.now_ns(), patience_ns, end_ns);
            let is_wanted = || self.state.lock().is_sending(node, id, losses);
            match self.transfer(node, transfer, image, is_wanted).await {
                Ok(place) => {
                    let head_sum = head_sum(image);
                    let at = ReadableShard { place, head_sum, last_seq: shard.last_seq };
                    let sent = self.state.lock().sent(node, id, losses, at);
                    self.ring(node);
                    sent.inspect_err(|_| count(&self.tally.not_sent, 1))?;
                    count(&self.tally.sent, 1);
                    count(&self.tally.sent_bytes, bytes);
                    self.fill_hot(id, image);
                    return Ok(node);
                }
                Err(failure) => self.on_failure(node, id, bytes, &failure, until_ns)?,
            }
        }
    }

    fn order(&self, shard: &NewShard<'_>, image: &[u8]) -> TransferOrder {
        let info = ShardInfo {
            family: shard.family,
            keys: KeySpan(shard.keys.clone()),
            after_seq: shard.after_seq,
            last_seq: shard.last_seq,
            oldest_log: shard.oldest_log.0,
            seal_log: shard.seal_log.0,
        };
        let (owner, shard) = (self.owner, self.state.lock().name(shard.id));
        TransferOrder { owner, shard, info, bytes: image.len() as u64, pieces: pieces(image) }
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
        {
            let mut state = self.state.lock();
            // The next choice must leave this node out, whatever room it reports.
            let left = failure.end.left_bytes.map(|left| left.min(bytes.saturating_sub(1)));
            state.not_sent(now_ns, node, id, NotSent { left_bytes: left, ..failure.end });
            if let Some(refusal) = &failure.refusal {
                state.on_refused(now_ns, node, refusal);
            }
        }
        self.ring(node);
        self.tell_news();
        let why = failure.refusal.map(|refusal| refusal.why);
        let may_try_another = matches!(
            why,
            Some(ShardWhy::Full | ShardWhy::TooLarge | ShardWhy::Retired | ShardWhy::HasGrant)
        );
        if may_try_another && now_ns < until_ns {
            return Ok(());
        }
        count(&self.tally.not_sent, 1);
        let said = failure.refusal.map(|refusal| refusal.to_string());
        let said = said.unwrap_or_else(|| "a memory node did not answer a transfer".to_owned());
        Err(AwayError::Busy(said))
    }

    /// Sends an image to one node. Stops if the node is lost or the shard is released meanwhile.
    async fn transfer(
        &self,
        node: StoreNode,
        mut transfer: Transfer,
        image: &[u8],
        is_wanted: impl Fn() -> bool,
    ) -> Result<ShardPlace, TransferFailure> {
        let Some(links) = self.links(node) else {
            return Err(TransferFailure { end: NotSent::default(), refusal: None });
        };
        let mut step = transfer.begin();
        loop {
            if !step.is_end() && !is_wanted() {
                return Err(transfer.stopped());
            }
            step = match step {
                TransferStep::Ask(message) => {
                    self.ask_step(node, &links, &mut transfer, &message).await
                }
                TransferStep::AskLater(message) => {
                    self.pause().await;
                    self.ask_step(node, &links, &mut transfer, &message).await
                }
                TransferStep::Write(grant) => {
                    let write = links.write(WriteOrder {
                        key: &grant.key,
                        at: grant.at,
                        image,
                        flow: &self.flow,
                        speed: |link| self.send_speed(link, transfer.half_ns()),
                    });
                    let written = self.until(transfer.end_ns(), write).await;
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
        if let Some(ShardMessage::Landing { share, .. }) = &answer {
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
