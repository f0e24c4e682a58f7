//! The nodes of a log's extents, by the placement of the pool.
//!
//! A node that has just failed is a *suspect* for a while, for all logs of a store. The manager may
//! need longer to notice that it is down.
//!
//! Invariant: a suspect is chosen only if there are too few other nodes, and never as a reason to
//! leave the present nodes of an extent.
//!
//! Thread-safety: any thread may note and ask.
//! Failure: `Busy` if too few domains have a node that takes bytes, or if no manager answers.
//! Cost: one request for the members if they are not known.

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_base::Result;
use parking_lot::Mutex;

use super::super::StorageId;
use super::super::client::StoreEvent;
use super::super::layout::{REPLICAS, Scheme};
use super::super::placement::{
    NodeReport, PlacementDebt, PlacementRequest, Replacement, WritePurpose, place, replace,
};
use super::requests::LogRequests;

/// Time for which a node that failed is a suspect.
const SUSPECT_FOR: Duration = Duration::from_secs(5);

/// Nodes that failed, with the times until which they are suspects.
#[derive(Debug, Default)]
pub(super) struct Suspects(Mutex<BTreeMap<StorageId, u64>>);

impl Suspects {
    /// Notes at `now_ns` that a node failed.
    pub(super) fn note(&self, node: StorageId, now_ns: u64) {
        self.0.lock().insert(node, now_ns + SUSPECT_FOR.as_nanos() as u64);
    }

    fn at(&self, now_ns: u64) -> Vec<StorageId> {
        let mut suspects = self.0.lock();
        suspects.retain(|_, until_ns| *until_ns > now_ns);
        suspects.keys().copied().collect()
    }
}

fn request(requests: &LogRequests, copies_min: u8) -> PlacementRequest {
    PlacementRequest {
        key: requests.log.0,
        scheme: Scheme::Replicas(REPLICAS),
        len_bytes: 0,
        purpose: WritePurpose::Log,
        copies_min,
    }
}

/// The nodes of the pool, without suspects and with them.
async fn reports(requests: &LogRequests) -> Result<[Vec<NodeReport>; 2]> {
    let all = requests.nodes().reports().await?;
    let suspects = requests.suspects().at(requests.runtime().now_ns());
    let mut sound = all.clone();
    sound.retain(|report| !suspects.contains(&report.id));
    Ok([sound, all])
}

/// Nodes for a new extent.
pub(super) async fn place_extent(requests: &LogRequests, copies_min: u8) -> Result<Vec<StorageId>> {
    let request = request(requests, copies_min);
    let [sound, all] = reports(requests).await?;
    let placed = place(&sound, &request).or_else(|_| place(&all, &request))?;
    if placed.debt != PlacementDebt::None {
        requests.count(StoreEvent::CopyDebt);
    }
    Ok(placed.nodes)
}

/// Whether the next extent would have better nodes than `holders`: more of them, or nodes in place
/// of those that are lost or drain. It has no better nodes if fewer nodes would take it than stay
/// with the present extent. Errors: `Busy` if too few domains have a node that takes bytes, or if
/// no manager answers.
pub(super) async fn wants_other_nodes(
    requests: &LogRequests,
    copies_min: u8,
    holders: &[StorageId],
) -> Result<bool> {
    let [sound, all] = reports(requests).await?;
    let next = place(&sound, &request(requests, copies_min))?.nodes.len();
    let mut leaving = requests.nodes().lost(holders);
    leaving.extend(all.iter().filter(|report| report.is_draining).map(|report| report.id));
    let staying = holders.iter().filter(|node| !leaving.contains(node)).count();
    Ok(next > holders.len() || (staying < holders.len() && next >= staying))
}

/// The nodes that answer, as far as the managers and this process know.
pub(super) async fn reachable_nodes(requests: &LogRequests) -> Result<Vec<StorageId>> {
    let [sound, _all] = reports(requests).await?;
    Ok(sound.iter().filter(|report| report.is_up).map(|report| report.id).collect())
}

/// A node for a replica in addition to `holders`, in none of their domains and not in `avoid`.
pub(super) async fn replace_replica(
    requests: &LogRequests,
    holders: &[StorageId],
    avoid: &[StorageId],
) -> Result<StorageId> {
    let request = request(requests, 1);
    let [sound, all] = reports(requests).await?;
    let replacement = Replacement { holders, avoid };
    replace(&sound, &request, replacement).or_else(|_| replace(&all, &request, replacement))
}
