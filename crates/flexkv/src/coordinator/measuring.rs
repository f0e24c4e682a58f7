//! Reads the load counters of the compute nodes at the end of each interval, for the state machine.
//!
//! The coordinator asks a node once per link where its counters lie ([`Message::Meter`]). From then
//! on a reading is one one-sided READ. No interval runs while a change of the map is in progress
//! that the readings led to. The next interval begins when the change holds.
//!
//! Thread-safety: one task reads.
//! Failure: a node that does not answer in time is left out of the reading.
//! Cost: one READ per node and interval.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::join_all;
use archipelago_fabric::{Attached, Batch, Call, ClientId, Link};

use super::rpc::{CoordinatorRpc, ORDER};
use crate::format::{Counts, counters_bytes};
use crate::wire::{Member, Message};

/// Time between two checks whether a change has ended.
const LOOK: Duration = Duration::from_micros(200);
/// Time between two checks whether the map should follow the load.
const IDLE: Duration = Duration::from_millis(10);

/// A node's counters, over a link.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    link: Arc<dyn Link>,
    region: Attached,
    partitions: u32,
}

impl CoordinatorRpc {
    /// Reads the counters at intervals until the coordinator is dropped.
    pub(super) fn start_measuring(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let measuring = async move {
            loop {
                let Some(rpc) = weak.upgrade() else { return };
                let tuning = rpc.look(super::Coordinator::tuning);
                let moving = rpc.look(super::Coordinator::is_moving);
                let pause = if moving {
                    LOOK
                } else if tuning.hotness || tuning.adapt_ratio {
                    let readings = rpc.readings().await;
                    rpc.with(|core| core.on_counts(&readings));
                    // A change that the reading led to ends first. The next reading begins an
                    // interval.
                    let moving = rpc.look(super::Coordinator::is_moving);
                    if moving { LOOK } else { tuning.interval }
                } else {
                    IDLE
                };
                drop(rpc);
                runtime.sleep(pause).await;
            }
        };
        self.runtime.spawn("flex-measure", Box::pin(measuring));
    }

    async fn readings(&self) -> Vec<(ClientId, Counts)> {
        let members = self.look(super::Coordinator::members);
        self.meters.lock().retain(|client, _| members.iter().any(|m| m.client == *client));
        let reading = members.iter().map(|member| async move {
            let counts = self.reading(member).await;
            if counts.is_none() {
                self.meters.lock().remove(&member.client);
            }
            counts.map(|counts| (member.client, counts))
        });
        join_all(reading).await.into_iter().flatten().collect()
    }

    async fn reading(&self, member: &Member) -> Option<Counts> {
        let meter = self.meter(member).await?;
        let mut batch = Batch::new();
        batch.set_deadline(ORDER);
        batch.read(meter.region, 0, counters_bytes(meter.partitions) as u32);
        let promise = meter.link.post(batch);
        meter.link.flush();
        let batch = promise.await;
        if batch.refusal().is_some() {
            return None;
        }
        Counts::decode(batch.data(0), meter.partitions)
    }

    async fn meter(&self, member: &Member) -> Option<Meter> {
        let known = self.meters.lock().get(&member.client).cloned();
        if let Some(meter) = known.filter(|meter| meter.link.closed().is_none()) {
            return Some(meter);
        }
        let link = self.route(member.client).link(&member.endpoints, ORDER).await.ok()?;
        let asked = link.request(Call::new(&Message::Meter {}.encode(), ORDER)).await.ok()?;
        let Ok(Message::Metered { key, partitions }) = Message::decode(&asked) else {
            return None;
        };
        if key.len < counters_bytes(partitions) {
            return None;
        }
        let region = link.attach(&key).await.ok()?;
        let meter = Meter { link, region, partitions };
        self.meters.lock().insert(member.client, meter.clone());
        Some(meter)
    }
}
