//! An open block: the links and attached regions of its copies, on which a client posts operations.
//!
//! [`ClientState`](crate::shared::ClientState) owns the open blocks of a client, and gives shared
//! references to callers.
//!
//! Thread-safety: any thread may post.
//! Failure: a copy refuses operations of an older epoch of the block. The client then reports the
//! refusal ([`PoolClient::stale`](crate::PoolClient::stale)) and opens the block again.
//! Cost: an operation for each copy. A write to one or two copies allocates no list.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use archipelago_fabric::{
    Attached, BATCH_BYTES_MAX, Batch, Link, Promise, Reason, Refusal, Rights,
};

use crate::config::{Config, Place};

/// One copy of an open block.
#[derive(Clone, Debug)]
pub struct OpenCopy {
    /// Place of the copy.
    pub place: Place,
    /// Link to the node.
    pub link: Arc<dyn Link>,
    /// The block's memory as a region of that link.
    pub region: Attached,
    /// Rights of this client.
    pub rights: Rights,
}

impl OpenCopy {
    /// Posts the READ of a part of a range ([`parts`]), as a batch of its own.
    fn post_read(&self, part: Part, deadline: Duration) -> Promise<Batch> {
        let mut batch = Batch::new();
        batch.set_deadline(deadline);
        batch.read(self.region, part.offset, part.len);
        self.link.post(batch)
    }

    /// Reads a range, one part after another. Returns the first refusal.
    pub(crate) async fn read(
        &self,
        offset: u64,
        len: u32,
        deadline: Duration,
    ) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        for part in parts(offset, len) {
            take_part(&self.post_read(part, deadline).await, &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// A part of a range that is read, small enough for one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    offset: u64,
    len: u32,
}

/// Splits a range into parts. An empty range is one part, so that its offset and the rights are
/// checked.
fn parts(offset: u64, len: u32) -> impl Iterator<Item = Part> {
    let most = BATCH_BYTES_MAX as u32;
    (0..len.div_ceil(most).max(1)).map(move |nth| {
        let before = nth * most;
        Part { offset: offset + u64::from(before), len: (len - before).min(most) }
    })
}

/// Appends the bytes of a part that was read.
fn take_part(batch: &Batch, bytes: &mut Vec<u8>) -> Result<(), Refusal> {
    match batch.refusal() {
        None => {
            bytes.extend_from_slice(batch.data(0));
            Ok(())
        }
        Some((_, refusal)) => Err(refusal),
    }
}

/// A block at one epoch, ready for operations. When the block gets a new epoch, its copies refuse
/// operations of this one.
#[derive(Debug)]
pub struct OpenBlock {
    /// Configuration under which the block was opened.
    pub config: Config,
    /// Copies that answered, in the order of the configuration. Clients read the first.
    pub copies: Vec<OpenCopy>,
    /// Round of this opening. Operations that were posted in a smaller round can no longer take
    /// place.
    pub(crate) round: u64,
}

impl OpenBlock {
    /// Whether all copies answered and may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_complete() && self.copies.iter().all(|copy| copy.rights.allow(Rights::WRITE))
    }

    /// Whether operations on every copy complete while they are posted
    /// ([`Link::completes_at_once`]).
    #[must_use]
    pub fn completes_at_once(&self) -> bool {
        self.copies.iter().all(|copy| copy.link.completes_at_once())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.copies.len() == self.config.copies.len()
    }

    /// The first copy of the configuration, if it answered. A writer may write the other copies
    /// before the first. Data that is written in this way must be read here, because another copy
    /// may be ahead.
    #[must_use]
    pub fn first(&self) -> Option<&OpenCopy> {
        self.copies.first().filter(|copy| self.config.copies.first() == Some(&copy.place))
    }

    /// Posts a write to every copy. The write leaves before the return, or with the next doorbell.
    pub fn post_write(&self, offset: u64, bytes: &[u8]) -> Writing {
        self.post_write_from(0, offset, bytes)
    }

    /// Posts a write to the copies from index `from` on; 1 leaves out the first copy.
    pub fn post_write_from(&self, from: usize, offset: u64, bytes: &[u8]) -> Writing {
        let post = |(copy, offset, bytes): (&OpenCopy, u64, &[u8])| {
            let mut batch = Batch::new();
            batch.write(copy.region, offset, bytes);
            let promise = copy.link.post(batch);
            copy.link.flush();
            promise
        };
        // Bytes beyond the limit of a batch go in further batches.
        let (whole, more) = bytes.split_at(bytes.len().min(BATCH_BYTES_MAX));
        let copies = || self.copies.iter().skip(from);
        let mut posted = copies().map(|copy| post((copy, offset, whole)));
        let (first, mut rest) = (posted.next(), posted.collect::<Vec<_>>());
        for (nth, part) in more.chunks(BATCH_BYTES_MAX).enumerate() {
            let offset = offset + ((nth + 1) * BATCH_BYTES_MAX) as u64;
            rest.extend(copies().map(|copy| post((copy, offset, part))));
        }
        Writing { first, rest, refusal: None }
    }

    /// Writes to every copy without waiting, for blocks whose operations [complete
    /// immediately](OpenBlock::completes_at_once). A copy that did not complete immediately counts
    /// as a copy that did not answer in time. After a refusal, some copies may have some of the
    /// bytes.
    pub fn write_at_once(&self, writes: &[(u64, &[u8])]) -> Result<(), Refusal> {
        for copy in &self.copies {
            let mut batch = Batch::new();
            for (offset, bytes) in writes {
                batch.write(copy.region, *offset, bytes);
            }
            let promise = copy.link.post(batch);
            if !promise.is_done() {
                return Err(Refusal::new(Reason::Deadline));
            }
            if let Some((_, refusal)) = promise.wait().refusal() {
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Prefetches the words at `offsets` of every copy, for a write that follows soon
    /// ([`Link::prefetch`]).
    pub fn prefetch(&self, offsets: &[u64]) {
        self.copies.iter().for_each(|copy| copy.link.prefetch(copy.region, offsets));
    }

    /// Detaches all regions.
    pub(crate) fn detach(&self) {
        for copy in &self.copies {
            copy.link.detach(copy.region);
        }
    }
}

/// A write in progress on all copies.
#[derive(Debug)]
pub struct Writing {
    /// Write to the first copy. Writes to one or two copies are common and need no list.
    first: Option<Promise<Batch>>,
    rest: Vec<Promise<Batch>>,
    refusal: Option<Refusal>,
}

impl Writing {
    /// Waits for all copies on the calling thread. Returns the first refusal of a copy.
    pub fn wait(mut self) -> Result<(), Refusal> {
        for promise in self.first.take().into_iter().chain(std::mem::take(&mut self.rest)) {
            self.note(&promise.wait());
        }
        self.refusal.map_or(Ok(()), Err)
    }

    fn note(&mut self, batch: &Batch) {
        self.refusal = self.refusal.or(batch.refusal().map(|(_, refusal)| refusal));
    }
}

impl Future for Writing {
    type Output = Result<(), Refusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(promise) = &mut self.first {
            let Poll::Ready(batch) = Pin::new(promise).poll(context) else { return Poll::Pending };
            self.first = None;
            self.note(&batch);
        }
        while let Some(promise) = self.rest.last_mut() {
            let Poll::Ready(batch) = Pin::new(promise).poll(context) else { return Poll::Pending };
            self.rest.pop();
            self.note(&batch);
        }
        Poll::Ready(self.refusal.map_or(Ok(()), Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_read_cover_the_range_and_fit_batches() {
        let most = BATCH_BYTES_MAX as u32;
        let split = |offset, len| {
            parts(offset, len).map(|part| (part.offset, part.len)).collect::<Vec<_>>()
        };
        assert_eq!(split(7, 0), [(7, 0)], "the offset is checked all the same");
        assert_eq!(split(7, most), [(7, most)]);
        let second = 64 + u64::from(most);
        assert_eq!(split(64, most + 1), [(64, most), (second, 1)]);
        assert_eq!(split(64, 2 * most), [(64, most), (second, most)]);
        let largest = split(0, u32::MAX);
        let sum: u64 = largest.iter().map(|(_, len)| u64::from(*len)).sum();
        assert_eq!(sum, u64::from(u32::MAX));
    }
}
