//! What this node tells proxies without being asked: reads that its cache served, and that a lease
//! is in use.
//!
//! A task looks every eighth of a lease: counts of reads that are due go to the proxies of their
//! partitions; leases that something was served on and that are half over are renewed. A node whose
//! cache serves nothing sends nothing. What is lost is lost: counts are estimates, and the next
//! look-up renews a lease, too. Paper: §4.4 (flush at 32 reads, or after a time).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;

use crate::node::Inner;
use crate::node::peers::{Asked, Peer};
use crate::read_reports::Counted;
use crate::settings::CacheMode;
use crate::wire::{Assigned, Message, ReadCount};

/// The task looks so often, at least and at most.
const EVERY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

impl Inner {
    /// For as long as the node lives.
    pub(crate) fn keep_telling(self: &Arc<Self>) {
        if self.caching.mode() == CacheMode::Off {
            return;
        }
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let every = (self.settings.lease / 8).clamp(EVERY.0, EVERY.1);
        let task = async move {
            loop {
                runtime.sleep(every).await;
                let Some(inner) = weak.upgrade().filter(|inner| !inner.pool.is_evicted()) else {
                    return;
                };
                let (due, renew) = inner.caching.to_tell(inner.now_ns());
                for number in renew {
                    inner.renew_lease(number);
                }
                if !due.is_empty() {
                    inner.tell_reads(due);
                }
            }
        };
        self.runtime.spawn("flex-tell", Box::pin(task));
    }

    fn renew_lease(self: &Arc<Self>, number: u32) {
        let Ok(joined) = self.joined() else { return };
        let map = Arc::clone(&joined.map.read());
        if let Some(member) = map.members.iter().find(|member| member.number == number) {
            self.say(self.peers.peer(member), Message::Renew {});
        }
    }

    /// Tells the proxies of reads that were served here.
    pub(crate) fn tell_reads(self: &Arc<Self>, due: Vec<Counted>) {
        let Ok(joined) = self.joined() else { return };
        let map = Arc::clone(&joined.map.read());
        let mut counts: BTreeMap<u32, Vec<ReadCount>> = BTreeMap::new();
        for Counted { partition, slot, reads, .. } in due {
            let count = ReadCount { index: slot.0, count: reads };
            counts.entry(partition.0).or_default().push(count);
        }
        for (partition, counts) in counts {
            let Some(entry) = map.entries.get(partition as usize).copied() else { continue };
            let Assigned { epoch, node, offloaded, .. } = entry;
            let message = Message::Reads { partition, epoch, counts };
            if !offloaded {
                continue;
            }
            if node == joined.number {
                self.answer_at_once(self.pool.client(), &message);
            } else if let Some(member) = map.members.iter().find(|member| member.number == node) {
                self.say(self.peers.peer(member), message);
            }
        }
    }

    /// Says something once; nobody waits for it.
    fn say(self: &Arc<Self>, peer: Arc<Peer>, message: Message) {
        let inner = Arc::clone(self);
        let task = async move {
            let said: Result<_> = inner.ask_once(&peer, &mut Asked::new(&message)).await;
            if let Err(error) = said {
                tracing::debug!(%error, "{} was not said", message.name());
            }
        };
        self.runtime.spawn("flex-say", Box::pin(task));
    }
}
