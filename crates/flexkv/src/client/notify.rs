//! Messages that this node sends to proxies on its own account: reports of reads that its cache
//! served, and renewals of leases that are in use.
//!
//! A task runs every eighth of a lease. It sends the due counts of reads to the proxies of their
//! partitions, and renews leases that served a read and are half over. A node whose cache serves
//! nothing sends nothing.
//!
//! Thread-safety: any thread may report reads.
//! Failure: a lost message is not repeated. The counts are estimates, and the next look-up renews a
//! lease as well.
//! Cost: one message per partition and interval. Paper: §4.4 (flush at 32 reads, or after a time).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Result;

use crate::node::Node;
use crate::node::peers::{Asked, Peer};
use crate::proxy::Proxy;
use crate::read_reports::ReadReport;
use crate::settings::CacheMode;
use crate::wire::{Assigned, Message, ReadCount};

/// Least and greatest interval of the task.
const EVERY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Sends reports and renewals. See the head of the module.
pub(crate) struct Notifier {
    node: Arc<Node>,
    proxy: Arc<Proxy>,
}

impl Notifier {
    pub(crate) fn new(node: Arc<Node>, proxy: Arc<Proxy>) -> Self {
        Self { node, proxy }
    }

    /// Sends the messages that are due at intervals, for as long as the node lives.
    pub(crate) fn keep_notifying(self: &Arc<Self>) {
        if self.node.caching().mode() == CacheMode::Off {
            return;
        }
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(self.node.runtime()));
        let every = (self.node.settings().lease / 8).clamp(EVERY.0, EVERY.1);
        let task = async move {
            loop {
                runtime.sleep(every).await;
                let Some(notifier) =
                    weak.upgrade().filter(|notifier| !notifier.node.pool().is_evicted())
                else {
                    return;
                };
                let (due, renew) = notifier.node.caching().take_reports(notifier.node.now_ns());
                for number in renew {
                    notifier.renew_lease(number);
                }
                if !due.is_empty() {
                    notifier.report_reads(due);
                }
            }
        };
        self.node.runtime().spawn("flex-tell", Box::pin(task));
    }

    fn renew_lease(&self, number: u32) {
        let Ok(joined) = self.node.joined() else { return };
        let map = joined.map();
        if let Some(member) = map.members.iter().find(|member| member.number == number) {
            self.send_once(self.node.peers().peer(member), Message::Renew {});
        }
    }

    /// Sends reports of reads that this node's cache served to the proxies of their partitions.
    pub(crate) fn report_reads(&self, due: Vec<ReadReport>) {
        let Ok(joined) = self.node.joined() else { return };
        let map = joined.map();
        let mut counts: BTreeMap<u32, Vec<ReadCount>> = BTreeMap::new();
        for ReadReport { partition, slot, reads, .. } in due {
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
            if node == joined.number() {
                self.proxy.answer(self.node.client(), &message);
            } else if let Some(member) = map.members.iter().find(|member| member.number == node) {
                self.send_once(self.node.peers().peer(member), message);
            }
        }
    }

    /// Sends a message once, in a task of its own.
    fn send_once(&self, peer: Arc<Peer>, message: Message) {
        let node = Arc::clone(&self.node);
        let task = async move {
            let said: Result<_> = node.ask_once(&peer, &mut Asked::new(&message)).await;
            if let Err(error) = said {
                tracing::debug!(%error, "{} was not said", message.name());
            }
        };
        self.node.runtime().spawn("flex-say", Box::pin(task));
    }
}
