//! Records that have expired give their memory back without anybody's doing.
//!
//! Each node looks through the pieces of its own blocks, in rounds: it reads the heads of the
//! records there one-sided and deletes the keys of those that have expired, as a client would. A
//! deletion is for the very word that names the record, so a key that was written again stays.
//! Records whose key another node wrote into a piece that this node lent are looked at here; the
//! blocks of a node that died are looked at by the node that adopted them.
//!
//! A round takes place only if a record with an expiry may lie in this node's blocks: one was
//! written by this node or lent room, a block was adopted, or the round before saw one that has not
//! expired. So a store without expiries pays nothing.
//!
//! Invariants: 1. one round at a time; 2. a head that was overwritten meanwhile leads to a word
//! that no slot holds, and deletes nothing. Failure: what cannot be read or deleted is left for the
//! next round. Cost: a READ of 64 bytes per piece and round, at most [`SLICE`] per [`PAUSE`];
//! without the pause while at least a quarter of a slice has expired, or while memory is short.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::together;
use archipelago_pool::Address;

use crate::format::{Head, Header, KeyHash, Slot, UNIT_BYTES};
use crate::node::Inner;
use crate::table::Range;
use crate::write_error::WriteError;

/// Records whose heads are read together.
const SLICE: usize = 128;
/// Time between two slices.
const PAUSE: Duration = Duration::from_millis(5);
/// Deletions under way at a time.
const DELETED_AT_ONCE: usize = 32;

/// What a slice of records was found to be.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    /// Records that have an expiry and have not expired.
    lasting: usize,
    /// Records that had expired.
    expired: usize,
}

impl Inner {
    /// Looks for expired records for as long as the node lives.
    pub(crate) fn keep_expiring(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let task = async move {
            loop {
                let Some(inner) = weak.upgrade().filter(|inner| !inner.pool.is_evicted()) else {
                    return;
                };
                if inner.records.has_expiring.swap(false, Ordering::Relaxed) {
                    inner.expire_round().await;
                }
                let wait = inner.settings.address_lease / 5;
                drop(inner);
                runtime.sleep(wait).await;
            }
        };
        self.runtime.spawn("flex-expiry", Box::pin(task));
    }

    async fn expire_round(self: &Arc<Self>) {
        let is_short = self.records.memory_is_short.swap(false, Ordering::Relaxed);
        let blocks = self.records.pieces.lock().blocks();
        let mut total = Looked::default();
        for block in blocks {
            let pieces = self.records.pieces.lock().begins_in(block);
            for slice in pieces.chunks(SLICE) {
                if self.pool.is_evicted() {
                    return;
                }
                let looked = self.expire_slice(slice).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "records that may have expired are left for the next round");
                    Looked { lasting: 1, expired: 0 }
                });
                total.lasting += looked.lasting;
                total.expired += looked.expired;
                if !is_short && looked.expired * 4 < slice.len() {
                    self.runtime.sleep(PAUSE).await;
                }
            }
        }
        if total.lasting > 0 {
            self.records.has_expiring.store(true, Ordering::Relaxed);
        }
        if total.expired > 0 {
            tracing::debug!(expired = total.expired, lasting = total.lasting, "records expired");
        }
    }

    /// Reads the heads of records, and deletes the keys of those that have expired.
    async fn expire_slice(self: &Arc<Self>, slice: &[Address]) -> Result<Looked> {
        let range = |address: &Address| Range { address: *address, bytes: UNIT_BYTES };
        let ranges: Vec<Range> = slice.iter().map(range).collect();
        let heads = self.table.read_named(&ranges, self.until_ns()).await?;
        let now_ms = self.unix_ms();
        let (mut looked, mut expired) = (Looked::default(), Vec::new());
        for (address, head) in slice.iter().zip(&heads) {
            // A subtable, or a record that is being written.
            let Ok(Some(header)) = Header::read(head) else { continue };
            if header.expires_ms == 0 {
                continue;
            }
            if now_ms < header.expires_ms {
                looked.lasting += 1;
                continue;
            }
            let fingerprint = KeyHash(header.hash).fingerprint();
            let packed = self.table.packing.pack(*address);
            let word =
                packed.and_then(|packed| Slot::live(packed, header.record_bytes(), fingerprint));
            let key = Range { address: *address, bytes: Head::bytes(header.key_bytes.into()) };
            expired.extend(word.map(|word| (word, key)));
        }
        for some in expired.chunks(DELETED_AT_ONCE) {
            let deleting = some.iter().map(|(word, key)| self.expire(*word, *key));
            for deleted in together(deleting).await {
                looked.expired += 1;
                if let Err(error) = deleted {
                    tracing::debug!(%error, "an expired record is left for the next round");
                    looked.lasting += 1;
                }
            }
        }
        Ok(looked)
    }

    /// Deletes the key whose expired record a word names, if its slot still holds that word. `key`:
    /// where the record begins, up to the key's end.
    async fn expire(self: &Arc<Self>, word: Slot, key: Range) -> Result<()> {
        let read = self.table.read_named(&[key], self.until_ns()).await?.pop();
        let Ok(Some(head)) = Head::decode(read.as_deref().unwrap_or_default()) else {
            // Overwritten meanwhile.
            return Ok(());
        };
        self.delete_expired(head.key, word).await.map_err(WriteError::into_error)?;
        Ok(())
    }
}
