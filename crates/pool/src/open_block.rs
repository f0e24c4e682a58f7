//! A block that is open: links and attached regions of its copies, to post on as the fabric allows.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use archipelago_fabric::{
    Attached, BATCH_BYTES_MAX, Batch, Link, Promise, Reason, Refusal, Rights,
};

use crate::config::{Config, Place};

/// A copy of an open block.
#[derive(Clone, Debug)]
pub struct OpenCopy {
    /// Where it is.
    pub place: Place,
    /// The way there.
    pub link: Arc<dyn Link>,
    /// The block's memory, on that link.
    pub region: Attached,
    /// What this client may do.
    pub rights: Rights,
}

/// A block at one epoch, ready for operations. Old ones are refused when the block goes on.
#[derive(Debug)]
pub struct OpenBlock {
    /// What it is.
    pub config: Config,
    /// The copies that answered, in the configuration's order; the first is the one to read.
    pub copies: Vec<OpenCopy>,
    /// How often the block's keys had been made invalid for this one to be opened: whatever was
    /// posted over one of a smaller round can no longer take place.
    pub(crate) round: u64,
}

impl OpenBlock {
    /// Whether all copies are there and may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_complete() && self.copies.iter().all(|copy| copy.rights.allow(Rights::WRITE))
    }

    /// Whether what is posted to any copy is done at once ([`Link::completes_at_once`]).
    #[must_use]
    pub fn completes_at_once(&self) -> bool {
        self.copies.iter().all(|copy| copy.link.completes_at_once())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.copies.len() == self.config.copies.len()
    }

    /// The copy that the configuration names first, if it answered. What copies agree on only
    /// later, who writes one after another, is to be read there: another may be ahead of it.
    #[must_use]
    pub fn first(&self) -> Option<&OpenCopy> {
        self.copies.first().filter(|copy| self.config.copies.first() == Some(&copy.place))
    }

    /// Posts a write to every copy; it is on its way when this returns, or leaves with the
    /// doorbell.
    pub fn post_write(&self, offset: u64, bytes: &[u8]) -> Writing {
        self.post_write_from(0, offset, bytes)
    }

    /// The same to the copies from number `from` on; 1: to all but the first.
    pub fn post_write_from(&self, from: usize, offset: u64, bytes: &[u8]) -> Writing {
        let post = |(copy, offset, bytes): (&OpenCopy, u64, &[u8])| {
            let mut batch = Batch::new();
            batch.write(copy.region, offset, bytes);
            let promise = copy.link.post(batch);
            copy.link.flush();
            promise
        };
        // What is longer than a batch may be goes in several.
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

    /// Writes to every copy without waiting. For blocks whose links [complete at
    /// once](OpenBlock::completes_at_once); a copy whose link did not after all counts as one that
    /// did not answer in time. After a refusal some copies may have some of it.
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

    /// Asks the processor for the words at `offsets` of every copy, which are to be written soon
    /// ([`Link::prefetch`]).
    pub fn prefetch(&self, offsets: &[u64]) {
        self.copies.iter().for_each(|copy| copy.link.prefetch(copy.region, offsets));
    }

    /// Gives the attachments up.
    pub(crate) fn detach(&self) {
        for copy in &self.copies {
            copy.link.detach(copy.region);
        }
    }
}

/// A write that is under way on all copies.
#[derive(Debug)]
pub struct Writing {
    /// One copy, or one beside the first, is common and needs no list.
    first: Option<Promise<Batch>>,
    rest: Vec<Promise<Batch>>,
    refusal: Option<Refusal>,
}

impl Writing {
    /// Waits for all copies. The first refusal if one did not take it.
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
