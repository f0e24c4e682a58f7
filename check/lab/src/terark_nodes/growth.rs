//! Clusters of 6 to 60 storage nodes in virtual time: the throughput of `archipelago-sim --measure
//! storage-scale`, and how far it is from linear growth.
//!
//! All but [`measure`] is pure. Failure: the error of a write in the simulation.
//! Cost: some hundred MB of memory and a few seconds of real time for each cluster.

use archipelago_bench::harness::store::{Error, Result};
use archipelago_sim::storage::{GROWTH_SIZES, GrowthSize, growth};
use serde::{Deserialize, Serialize};

/// Share of the clients' cards from which they count as full.
const FULL_MIN: f64 = 0.9;

/// The throughput of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GrowthFigures {
    pub(super) nodes: u64,
    /// Number of hosts with writers.
    pub(super) clients: u64,
    /// Bytes of tables that were sealed per second of virtual time.
    pub(super) bytes_per_s: f64,
    /// Share of the nodes' cards that the writes filled.
    pub(super) node_card_share: f64,
    /// Share of the clients' cards that the writes filled.
    pub(super) client_card_share: f64,
}

/// Measures all clusters.
pub(super) fn measure() -> Result<Vec<GrowthFigures>> {
    GROWTH_SIZES.into_iter().map(of_size).collect()
}

fn of_size(size: GrowthSize) -> Result<GrowthFigures> {
    let row = growth(size.nodes, size.clients)
        .map_err(|error| Error::invalid(format!("{} simulated nodes: {error}", size.nodes)))?;
    Ok(GrowthFigures {
        nodes: row.nodes as u64,
        clients: row.clients as u64,
        bytes_per_s: row.bytes_per_s as f64,
        node_card_share: row.node_card_use(),
        client_card_share: row.client_card_use(),
    })
}

impl GrowthFigures {
    fn are_clients_full(&self) -> bool {
        self.client_card_share >= FULL_MIN
    }

    /// Bytes per second that the fullest cards allow.
    fn allowed_bytes_per_s(&self) -> f64 {
        self.bytes_per_s / self.node_card_share.max(self.client_card_share)
    }
}

/// Bytes per second of linear growth from the smallest cluster, which is the first one.
fn linear_bytes_per_s(all: &[GrowthFigures], nodes: u64) -> Option<f64> {
    let smallest = all.first()?;
    Some(smallest.bytes_per_s * nodes as f64 / smallest.nodes as f64)
}

/// The cluster of `nodes` nodes with as many clients as the smallest one.
fn of_nodes(all: &[GrowthFigures], nodes: u64) -> Option<&GrowthFigures> {
    let clients = all.first()?.clients;
    all.iter().find(|found| (found.nodes, found.clients) == (nodes, clients))
}

/// Throughput of `nodes` nodes over linear growth. `None` if the cards of the clients are full,
/// because they and not the nodes are the limit then.
pub(super) fn linear_share(all: &[GrowthFigures], nodes: u64) -> Option<f64> {
    let found = of_nodes(all, nodes).filter(|found| !found.are_clients_full())?;
    Some(found.bytes_per_s / linear_bytes_per_s(all, nodes)?)
}

/// Largest throughput of `nodes` nodes that the cards allow, over linear growth.
pub(super) fn linear_share_max(all: &[GrowthFigures], nodes: u64) -> Option<f64> {
    Some(of_nodes(all, nodes)?.allowed_bytes_per_s() / linear_bytes_per_s(all, nodes)?)
}

/// Share of the clients' cards in the cluster with the fewest clients.
pub(super) fn full_client_share(all: &[GrowthFigures]) -> Option<f64> {
    all.iter().min_by_key(|found| found.clients).map(|found| found.client_card_share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(nodes: u64, clients: u64, bytes_per_s: f64, shares: [f64; 2]) -> GrowthFigures {
        let [node_card_share, client_card_share] = shares;
        GrowthFigures { nodes, clients, bytes_per_s, node_card_share, client_card_share }
    }

    #[test]
    fn growth_is_compared_with_the_smallest_cluster() {
        let all = [
            figures(6, 12, 100.0, [0.8, 0.1]),
            figures(12, 12, 187.5, [0.75, 0.25]),
            figures(60, 12, 937.5, [0.75, 0.9375]),
            figures(60, 2, 300.0, [0.2, 0.97]),
        ];
        assert_eq!(linear_share(&all, 6), Some(1.0));
        assert_eq!(linear_share(&all, 12), Some(0.9375));
        // The cards of twelve nodes carry 250 bytes a second, and linear growth gives 200.
        assert_eq!(linear_share_max(&all, 12), Some(1.25));
        assert_eq!(linear_share(&all, 60), None, "the clients are the limit");
        assert_eq!(linear_share_max(&all, 60), Some(1.0));
        assert_eq!(full_client_share(&all), Some(0.97));
        assert_eq!(linear_share(&all, 36), None);
        assert_eq!(linear_share(&[], 6), None);
    }
}
