//! Readers of sealed blobs on storage nodes.
//!
//! A reader begins with the holders that the namespace has as a hint. When they do not have the
//! blob, or too few answer, it asks for the newest holders. A read of several ranges sends one
//! request to each node, for all ranges that lie there.
//!
//! Invariants:
//! 1. A read returns the bytes that were written, or an error. Every piece was checked.
//! 2. The error is `Corrupt` only if damage is the reason and no node is left to ask; `NotFound`
//!    only if every node says so; otherwise `Busy`.
//! 3. Reads go on while the holders change, because chunks never do.
//!
//! Thread-safety: any thread may read. The lock of the holders is held for a copy.
//! Failure: nodes that do not answer are asked again for a while before the read fails.
//! Cost: one round trip. A range within a cell is one request to one node.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::wait_for;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::IoContext;
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::client::{OperationKind, StoreOperation};
use super::super::layout::BlobLayout;
use super::super::wire::{BlobHint, ChunkDescriptor};
use super::chunk_nodes::CallTerms;
use super::core::{BlobsCore, blob_name, traffic_class};
use super::fetch::{ChunkFetch, FetchFailures};
use super::hint::decode_hint;
use super::in_flight::InFlight;
use super::lookup::{BlobLookup, look_up};
use super::plan::{ReadBatch, plan_read};
use super::stats::BlobEvent;
use crate::blob::{BlobReader, BlobRef};
use crate::ids::BlobId;

/// Number of requests of one read that are in flight.
const IN_FLIGHT_MAX: usize = 16;
/// Pause before nodes that did not answer are asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// A reader of a blob.
#[derive(Debug)]
pub(super) struct NodeBlobReader {
    core: Arc<BlobsCore>,
    id: BlobId,
    len_bytes: u64,
    /// The newest holders that the reader knows.
    holders: Mutex<Arc<BlobHint>>,
}

impl NodeBlobReader {
    /// Opens a sealed blob. Errors: `NotFound`, which may also come with the first read; `Busy` if
    /// the hint is unusable and not all nodes answer; `Corrupt` if the blob has another length.
    pub(super) fn open(core: &Arc<BlobsCore>, blob: &BlobRef, context: IoContext) -> Result<Self> {
        let (id, len_bytes) = (blob.id, blob.len_bytes);
        let hint = match decode_hint(id, &blob.hint) {
            Some(hint) => hint,
            None => {
                let terms = read_terms(core, context);
                core.counters.count(BlobEvent::StaleHint);
                let found = wait_for(&*core.runtime, look_up(core, id, &[], terms));
                let descriptor = found.descriptor(id)?;
                check_length(&descriptor, len_bytes)?;
                descriptor.hint()
            }
        };
        let holders = Mutex::new(Arc::new(hint));
        Ok(Self { core: Arc::clone(core), id, len_bytes, holders })
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<Range<u64>> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len_bytes => Ok(offset..end),
            _ => Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{}: a read of {len} bytes at {offset} is past the end at {}; read less",
                    blob_name(self.id),
                    self.len_bytes
                ),
            )),
        }
    }

    async fn read(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        let wanted = requests.iter().map(|(offset, buf)| self.check_range(*offset, buf.len()));
        let wanted: Vec<Range<u64>> = wanted.collect::<Result<_>>()?;
        let terms = read_terms(&self.core, context);
        let timing = &self.core.options.timing;
        let begun_ns = self.core.runtime.now_ns();
        let give_up_ns = begun_ns.saturating_add(timing.read_give_up.as_nanos() as u64);
        loop {
            let hint = Arc::clone(&self.holders.lock());
            let Err(failures) = self.read_from(&hint, &wanted, requests, terms).await else {
                let bytes = wanted.iter().map(|range| range.end - range.start).sum();
                self.core.counters.read(context.class, bytes);
                let operation = StoreOperation {
                    kind: OperationKind::Read,
                    class: context.class,
                    redundancy: hint.scheme.redundancy(),
                };
                self.core.operation_took(operation, begun_ns);
                return Ok(());
            };
            let is_late = self.core.runtime.now_ns() >= give_up_ns;
            match self.renew_holders(&hint, terms).await? {
                Renewal::Newer => {}
                Renewal::Same if is_late || !failures.may_pass() => {
                    return Err(self.failed(&failures, &wanted));
                }
                Renewal::Unknown(more) if is_late => {
                    let mut failures = failures;
                    failures.extend(more);
                    return Err(self.failed(&failures, &wanted));
                }
                Renewal::Same | Renewal::Unknown(_) => self.core.runtime.sleep(PAUSE).await,
            }
        }
    }

    /// Reads everything from the holders in `hint`.
    async fn read_from(
        &self,
        hint: &BlobHint,
        wanted: &[Range<u64>],
        requests: &mut [(u64, &mut [u8])],
        terms: CallTerms,
    ) -> Result<(), FetchFailures> {
        let layout = BlobLayout { scheme: hint.scheme, len_bytes: self.len_bytes };
        let batches = plan_read(&layout, wanted);
        let mut next = batches.iter();
        let mut reads: InFlight<'_, &ReadBatch, _> = InFlight::new();
        loop {
            while reads.len() < IN_FLIGHT_MAX
                && let Some(batch) = next.next()
            {
                reads.push(batch, Box::pin(self.fetch(hint, batch, terms)));
            }
            let Some((batch, answer)) = reads.next().await else { return Ok(()) };
            batch.copy_to(&answer?, requests);
        }
    }

    async fn fetch(
        &self,
        hint: &BlobHint,
        batch: &ReadBatch,
        terms: CallTerms,
    ) -> Result<Vec<u8>, FetchFailures> {
        let fetch = ChunkFetch {
            core: &self.core,
            blob: self.id,
            len_bytes: self.len_bytes,
            hint,
            chunk: batch.chunk,
            ranges: &batch.ranges,
            terms,
        };
        fetch.run().await
    }

    /// Asks for the newest holders after a read from those in `hint` failed. Errors: `NotFound`,
    /// `Corrupt`.
    async fn renew_holders(&self, hint: &BlobHint, terms: CallTerms) -> Result<Renewal> {
        let known: Vec<StorageId> = hint.holders.iter().map(|holder| holder.storage).collect();
        self.core.counters.count(BlobEvent::StaleHint);
        let descriptor = match look_up(&self.core, self.id, &known, terms).await {
            BlobLookup::Unknown(failures) => return Ok(Renewal::Unknown(failures)),
            found => found.descriptor(self.id)?,
        };
        check_length(&descriptor, self.len_bytes)?;
        let found = descriptor.hint();
        if found.placement <= hint.placement {
            return Ok(Renewal::Same);
        }
        tracing::debug!(blob = %self.id, placement = ?found.placement, "a blob has other holders");
        *self.holders.lock() = Arc::new(found);
        Ok(Renewal::Newer)
    }

    /// The error of a read that no node could answer.
    fn failed(&self, failures: &FetchFailures, wanted: &[Range<u64>]) -> Error {
        let bytes: u64 = wanted.iter().map(|range| range.end - range.start).sum();
        let offset = wanted.first().map_or(0, |range| range.start);
        let (kind, advice) = if failures.may_pass() {
            (ErrorKind::Busy, "look at the nodes that do not answer, and read again")
        } else if failures.has_damage() {
            (ErrorKind::Corrupt, "no other node has the bytes; restore the file from a backup")
        } else {
            (ErrorKind::Busy, "look at the nodes")
        };
        Error::new(
            kind,
            format!(
                "{}: {bytes} bytes at {offset} cannot be read ({failures}): {advice}",
                blob_name(self.id)
            ),
        )
    }
}

/// Outcome of a search for newer holders.
#[derive(Debug)]
enum Renewal {
    /// The blob has other holders.
    Newer,
    /// The holders are those that the reader knows.
    Same,
    /// No node that answered has a chunk of the blob.
    Unknown(FetchFailures),
}

/// Checks that the nodes have a blob of the length that the namespace has. Errors: `Corrupt`.
fn check_length(descriptor: &ChunkDescriptor, len_bytes: u64) -> Result<()> {
    if descriptor.blob_bytes == len_bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "{} has {} bytes on its nodes, and {len_bytes} in the namespace",
            blob_name(descriptor.chunk.blob),
            descriptor.blob_bytes
        ),
    ))
}

/// Terms of calls of a reader.
pub(super) fn read_terms(core: &BlobsCore, context: IoContext) -> CallTerms {
    CallTerms {
        class: traffic_class(context.purpose),
        deadline: core.options.timing.read_deadline,
        file: context.class,
    }
}

impl BlobReader for NodeBlobReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.read_many(&mut [(offset, buf)], context)
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        wait_for(&*self.core.runtime, self.read(requests, context))
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}
