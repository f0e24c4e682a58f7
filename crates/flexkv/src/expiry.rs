//! Removal of expired records, so that their memory is free without a client's doing.
//!
//! Each node visits the pieces of its own blocks in rounds. It reads the heads of the records
//! one-sided and deletes the keys of those that have expired, as a client would. A deletion applies
//! only to the very word that names the record, and only if the record has expired, so a key that
//! was written again stays. This node also visits records that other nodes wrote into memory that
//! it lent. The node that adopts the blocks of a dead node visits those.
//!
//! A round takes place only if a record with an expiry may lie in this node's blocks. That is so
//! when this node wrote one or lent memory for one, when it adopted a block, or when the last round
//! saw a record that has not expired. So a store without expiries pays nothing.
//!
//! Invariants:
//! 1. One round runs at a time.
//! 2. Only keys whose records have expired are deleted. The memory of a head that was read may hold
//!    another record by now, even one of the same key under the same word. So the look-up of each
//!    deletion reads the record that the slot names, and the expiry of that record decides. The
//!    deletion applies only within the address lease of that look-up. The heads that were read
//!    before only save look-ups.
//!
//! Thread-safety: one task per node.
//! Failure: a record that cannot be read or deleted is left for the next round.
//! Cost: a READ of 64 bytes per piece and round, at most [`SLICE`] per [`PAUSE`]. There is no pause
//! while at least a quarter of a slice has expired, or while memory is short.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;
use archipelago_base::runtime::join_all;
use archipelago_pool::Address;

use crate::client::Client;
use crate::format::{Head, Header, KeyHash, Slot, UNIT_BYTES};
use crate::node::Node;
use crate::table::Range;
use crate::write_error::WriteError;

/// Number of records whose heads are read together.
const SLICE: usize = 128;
/// Time between two slices.
const PAUSE: Duration = Duration::from_millis(5);
/// Number of deletions in progress at a time.
const DELETIONS_IN_PARALLEL: usize = 32;

/// Number of records of a slice that have an expiry.
#[derive(Clone, Copy, Debug, Default)]
struct SliceCounts {
    /// Records that have an expiry and have not expired.
    lasting: usize,
    /// Records that had expired.
    expired: usize,
}

/// Removes the expired records of this node's blocks. See the head of the module.
pub(crate) struct Expirer {
    node: Arc<Node>,
    client: Arc<Client>,
}

impl Expirer {
    pub(crate) fn new(node: Arc<Node>, client: Arc<Client>) -> Self {
        Self { node, client }
    }

    /// Removes expired records for as long as the node lives.
    pub(crate) fn keep_expiring(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(self.node.runtime()));
        let task = async move {
            loop {
                let Some(expirer) =
                    weak.upgrade().filter(|expirer| !expirer.node.pool().is_evicted())
                else {
                    return;
                };
                if expirer.node.records().take_has_expiring() {
                    expirer.expire_round().await;
                }
                let wait = expirer.node.settings().address_lease / 5;
                drop(expirer);
                runtime.sleep(wait).await;
            }
        };
        self.node.runtime().spawn("flex-expiry", Box::pin(task));
    }

    async fn expire_round(&self) {
        let is_short = self.node.records().take_memory_is_short();
        let blocks = self.node.records().blocks();
        let mut total = SliceCounts::default();
        for block in blocks {
            let pieces = self.node.records().begins_in(block);
            for slice in pieces.chunks(SLICE) {
                if self.node.pool().is_evicted() {
                    return;
                }
                let looked = self.expire_slice(slice).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "records that may have expired are left for the next round");
                    SliceCounts { lasting: 1, expired: 0 }
                });
                total.lasting += looked.lasting;
                total.expired += looked.expired;
                if !is_short && looked.expired * 4 < slice.len() {
                    self.node.runtime().sleep(PAUSE).await;
                }
            }
        }
        if total.lasting > 0 {
            self.node.records().note_expiring();
        }
        if total.expired > 0 {
            tracing::debug!(expired = total.expired, lasting = total.lasting, "records expired");
        }
    }

    /// Reads the heads of records, and deletes the keys of those that have expired. Stops an
    /// address lease after the heads were read, because most of what they say may be old by then,
    /// and leaves the rest for the next round.
    async fn expire_slice(&self, slice: &[Address]) -> Result<SliceCounts> {
        let use_until_ns = self.node.now_ns().saturating_add(self.node.settings().address_use_ns());
        let range = |address: &Address| Range { address: *address, bytes: UNIT_BYTES };
        let ranges: Vec<Range> = slice.iter().map(range).collect();
        let heads = self.node.table().read_named(&ranges, self.node.until_ns()).await?;
        let now_ms = self.node.unix_ms();
        let (mut looked, mut expired) = (SliceCounts::default(), Vec::new());
        for (address, head) in slice.iter().zip(&heads) {
            // The piece holds a subtable, or a record that is being written.
            let Ok(Some(header)) = Header::read(head) else { continue };
            if header.expires_ms == 0 {
                continue;
            }
            if now_ms < header.expires_ms {
                looked.lasting += 1;
                continue;
            }
            let fingerprint = KeyHash(header.hash).fingerprint();
            let packed = self.node.table().pack(*address);
            let word =
                packed.and_then(|packed| Slot::live(packed, header.record_bytes(), fingerprint));
            let key = Range { address: *address, bytes: Head::bytes(header.key_bytes.into()) };
            expired.extend(word.map(|word| (word, key)));
        }
        let mut left = expired.len();
        for some in expired.chunks(DELETIONS_IN_PARALLEL) {
            if self.node.now_ns() >= use_until_ns {
                looked.lasting += left;
                break;
            }
            left -= some.len();
            let deleting = some.iter().map(|(word, key)| self.expire(*word, *key));
            for deleted in join_all(deleting).await {
                looked.expired += 1;
                if let Err(error) = deleted {
                    tracing::debug!(%error, "an expired record is left for the next round");
                    looked.lasting += 1;
                }
            }
        }
        Ok(looked)
    }

    /// Deletes the key whose expired record a word names, if its slot still holds that word. `key`
    /// is the range from the record's beginning to the key's end.
    async fn expire(&self, word: Slot, key: Range) -> Result<()> {
        let read = self.node.table().read_named(&[key], self.node.until_ns()).await?.pop();
        let read = read.unwrap_or_default();
        if let Some(key) = expired_key(&read, self.node.unix_ms()) {
            self.client.delete_expired(key, word).await.map_err(WriteError::into_error)?;
        }
        Ok(())
    }
}

/// The key of the record that begins with these bytes, if the record has expired at `now_ms`.
/// `None` if the record was overwritten by another one since its address was found.
fn expired_key(bytes: &[u8], now_ms: u64) -> Option<&[u8]> {
    let Head { header, key } = Head::decode(bytes).ok()??;
    (header.expires_ms != 0 && header.expires_ms <= now_ms).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Record;

    #[test]
    fn address_that_holds_a_record_that_lasts_names_no_expired_key() {
        let head = |expires_ms: u64| {
            let mut bytes = vec![0; 2 * UNIT_BYTES as usize];
            let record = Record { expires_ms, ..Record::new(b"key", b"value") };
            record.encode(&mut bytes).expect("fits");
            bytes.truncate(Head::bytes(b"key".len()) as usize);
            bytes
        };
        assert_eq!(expired_key(&head(1000), 1000), Some(&b"key"[..]));
        assert_eq!(expired_key(&head(1000), 999), None, "it was written again and lasts longer");
        assert_eq!(expired_key(&head(0), u64::MAX), None, "it was written again without expiry");
        let mut torn = head(1000);
        torn[48] ^= 1;
        assert_eq!(expired_key(&torn, 1000), None, "another record lies there");
        assert_eq!(expired_key(&[], 1000), None);
    }
}
