//! Messages and bytes of a run with storage nodes, by the class of the call, for the result file.
//!
//! The card of the client counts what it sent, and the answers that it received. The functions are
//! pure.

use archipelago_fabric::TrafficClass;
use archipelago_fabric::paced::CardStats;
use serde::{Deserialize, Serialize};

/// Messages of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkEntry {
    /// Kind of the calls: `log`, `foreground`, `flush`, `compaction` or `gc`.
    pub class: String,
    /// Number of messages that were sent.
    pub sent_messages: u64,
    /// Bytes of the messages that were sent, with 64 bytes for the headers of each.
    pub sent_bytes: u64,
    /// Number of answers that arrived.
    pub received_messages: u64,
    /// Bytes of the answers, counted in the same way.
    pub received_bytes: u64,
}

/// The messages between two moments, with an entry for each class.
pub(crate) fn entries(before: &CardStats, after: &CardStats) -> Vec<NetworkEntry> {
    let of = |class: &TrafficClass| {
        let [sent, sent_before] = [after, before].map(|stats| stats.sent(*class));
        let [received, received_before] = [after, before].map(|stats| stats.received(*class));
        NetworkEntry {
            class: class.name().to_owned(),
            sent_messages: sent.messages.saturating_sub(sent_before.messages),
            sent_bytes: sent.bytes.saturating_sub(sent_before.bytes),
            received_messages: received.messages.saturating_sub(received_before.messages),
            received_bytes: received.bytes.saturating_sub(received_before.bytes),
        }
    };
    TrafficClass::ALL.iter().map(of).collect()
}

/// Bytes that were sent so far, by class in the order of [`TrafficClass::ALL`].
pub(crate) fn sent_bytes(stats: &CardStats) -> Vec<u64> {
    TrafficClass::ALL.iter().map(|class| stats.sent(*class).bytes).collect()
}
