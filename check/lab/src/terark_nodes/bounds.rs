//! Bounds by arithmetic: bytes on the client's card per user byte, the times of reads and repairs,
//! the cost of a mode at the paper's prices, and the paper's model of redundancy (§4.2.3). The
//! functions are pure.
//!
//! A run whose card is the only full resource sends as many user bytes as the card allows. So the
//! ratio of two sums of bytes per user byte is the highest possible speed-up.

use serde::{Deserialize, Serialize};

/// Copies of each log byte. The third copy costs its bytes although no writer waits for it.
const LOG_COPIES: f64 = 3.0;
/// Bytes of three replicas per byte.
const REPLICATED: f64 = 3.0;
/// Bytes of four data and two parity chunks per byte.
const CODED: f64 = 1.5;
/// Nodes that have the data chunks of a coded file.
const DATA_NODES: f64 = 4.0;
/// Nodes that the repair of a copy uses: a source and a target.
const COPY_NODES: u64 = 2;
/// Nodes that the repair of a part of a coded file uses: four sources and a target.
const PART_NODES: u64 = 5;

/// Bytes that are stored per byte of tables and of value files.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Redundancy {
    pub(super) tables: f64,
    pub(super) values: f64,
}

impl Redundancy {
    pub(super) const REPLICATED: Self = Self { tables: REPLICATED, values: REPLICATED };
    pub(super) const CODED: Self = Self { tables: CODED, values: CODED };
    pub(super) const BY_CLASS: Self = Self { tables: REPLICATED, values: CODED };
}

/// Bytes sent per user byte without separation. `rewrites` is W.
pub(super) fn sent_inline(redundancy: Redundancy, rewrites: f64) -> f64 {
    LOG_COPIES + redundancy.tables * (1.0 + rewrites)
}

/// Bytes sent per user byte with separation. `share` of the bytes lies in the levels, and garbage
/// collection rewrites `collected` bytes for each byte outside of them.
pub(super) fn sent_separated(
    redundancy: Redundancy,
    rewrites: f64,
    share: f64,
    collected: f64,
) -> f64 {
    let values = 1.0 - share;
    LOG_COPIES
        + redundancy.tables * share * (1.0 + rewrites)
        + redundancy.values * values * (1.0 + collected)
}

/// Bytes that the connection to a node of a serial log carries, of `log` bytes of all copies of the
/// log and `rest` bytes of everything else. Each copy of the log has a connection of its own, and
/// the rest is even over the `nodes`.
pub(super) fn log_connection_bytes(log: f64, rest: f64, nodes: f64) -> f64 {
    log / LOG_COPIES + rest / nodes
}

/// Times of reads of coded files, by one caller that makes one call after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReadTimes {
    /// Seconds of a round trip, with the latency of a device.
    pub(super) trip_s: f64,
    /// Bytes per second of the client's card.
    pub(super) card_bytes_per_s: f64,
    /// Bytes per second of one connection.
    pub(super) stream_bytes_per_s: f64,
}

impl ReadTimes {
    /// Seconds of calls that read `bytes` bytes together, if nothing else uses card and nodes. The
    /// bytes of a call come from the nodes of one file.
    pub(super) fn idle_s(self, calls: f64, bytes: f64) -> f64 {
        let rate = self.card_bytes_per_s.min(DATA_NODES * self.stream_bytes_per_s);
        calls * self.trip_s + bytes / rate
    }

    /// Seconds of the same calls, if the card sends `bulk` bytes before each of them.
    pub(super) fn behind_s(self, calls: f64, bytes: f64, bulk: f64) -> f64 {
        self.idle_s(calls, bytes) + calls * bulk / self.card_bytes_per_s
    }
}

/// Prices of the paper's Table 4 for RocksDB with three replicas, in dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prices {
    pub(super) storage: f64,
    pub(super) put: f64,
    pub(super) get: f64,
}

pub(super) const PRICES: Prices = Prices { storage: 0.3788, put: 0.5760, get: 0.0364 };

/// Use of resources by a mode, each as a multiple of the mode without separation and with three
/// replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usage {
    pub(super) storage: f64,
    pub(super) put_cpu: f64,
    pub(super) get_cpu: f64,
}

impl Usage {
    /// Cost of the resources at the paper's prices, in dollars.
    pub(super) fn cost(self) -> f64 {
        let Prices { storage, put, get } = PRICES;
        storage * self.storage + put * self.put_cpu + get * self.get_cpu
    }
}

/// Ratios of read latencies in the paper's model, by that of a small read from three replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latencies {
    /// A small read of a coded file (K_s).
    pub(super) small_coded: f64,
    /// A large read of a coded file (K_l).
    pub(super) large_coded: f64,
}

impl Latencies {
    /// The figures of the paper's testbed.
    pub(super) const PAPER: Self = Self { small_coded: 1.3, large_coded: 1.5 };
}

/// Reads per second and unit of storage of replicated tables with coded values, over those of coded
/// tables and values (equation 5). `tables` is the ratio of table bytes to value bytes (α), and
/// `small` the share of reads that need tables only (p).
pub(super) fn mixed_over_coded(latencies: Latencies, tables: f64, small: f64) -> f64 {
    let large = (1.0 - small) * latencies.large_coded;
    (latencies.small_coded + large) / (1.0 + large) * (1.0 + tables) / (1.0 + 2.0 * tables)
}

/// Reads per second and unit of storage of replicated tables with coded values, over those of
/// replicated tables and values (equation 3). The model assumes that large reads of both kinds take
/// the same time.
pub(super) fn mixed_over_replicated(tables: f64) -> f64 {
    (2.0 + 2.0 * tables) / (1.0 + 2.0 * tables)
}

/// Bytes of a lost node, by the way in which they are made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LostBytes {
    /// Bytes of copies, each of which is read from one node.
    pub(super) copied: u64,
    /// Bytes of parts of coded files, each of which is computed from four others.
    pub(super) coded: u64,
}

/// Nodes and rates of a repair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RepairRate {
    /// Number of nodes that are left.
    pub(super) survivors: u64,
    /// Bytes per second of one node, read and written.
    pub(super) node_bytes_per_s: f64,
    /// Bytes per second of all nodes together, read and written.
    pub(super) cluster_bytes_per_s: f64,
}

impl RepairRate {
    /// Seconds that the rates take for the bytes of a lost node.
    ///
    /// Every node of a repair is charged with the bytes that are made, so repairs that run at the
    /// same time have no node in common. Of six survivors, a part of a coded file takes five, so
    /// that these parts are made one after another.
    pub(super) fn seconds(self, lost: LostBytes) -> f64 {
        let of = |bytes: u64, nodes: u64| {
            let parallel = (self.survivors / nodes).max(1) as f64;
            let by_node = bytes as f64 / (parallel * self.node_bytes_per_s);
            by_node.max((bytes * nodes) as f64 / self.cluster_bytes_per_s)
        };
        of(lost.copied, COPY_NODES) + of(lost.coded, PART_NODES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terark_engine::bounds::collected_per_byte;

    fn is_near(value: f64, wanted: f64, tolerance: f64) {
        assert!((value - wanted).abs() <= tolerance, "{value}, not {wanted}");
    }

    /// Shares in the levels of Fixed-16K, Mixed-8K and Pareto-1K, as the design has them.
    const SHARES: [f64; 3] = [0.004, 0.028, 0.14];

    #[test]
    fn bytes_on_the_card_are_those_of_the_design() {
        is_near(sent_inline(Redundancy::REPLICATED, 8.0), 30.0, 1e-9);
        is_near(sent_inline(Redundancy::CODED, 8.0), 16.5, 1e-9);
        let of = |redundancy: Redundancy| {
            SHARES.map(|share| sent_separated(redundancy, 8.0, share, 0.0))
        };
        let table = [
            (Redundancy::REPLICATED, [6.1, 6.7, 9.4]),
            (Redundancy::CODED, [4.5, 4.8, 6.2]),
            (Redundancy::BY_CLASS, [4.6, 5.2, 8.1]),
        ];
        for (redundancy, wanted) in table {
            for (sent, wanted) in of(redundancy).into_iter().zip(wanted) {
                is_near(sent, wanted, 0.06);
            }
        }
    }

    #[test]
    fn connection_of_the_log_carries_one_copy_and_its_part_of_the_rest() {
        is_near(log_connection_bytes(3.0, 1.5, 6.0), 1.25, 1e-12);
        is_near(log_connection_bytes(3.0, 0.0, 6.0), 1.0, 1e-12);
    }

    #[test]
    fn reads_take_round_trips_and_the_rate_of_their_nodes() {
        let times = ReadTimes { trip_s: 0.5, card_bytes_per_s: 100.0, stream_bytes_per_s: 20.0 };
        // Four connections carry 80 bytes a second, which is less than the card does.
        is_near(times.idle_s(3.0, 160.0), 1.5 + 2.0, 1e-12);
        is_near(times.behind_s(3.0, 160.0, 50.0), 1.5 + 2.0 + 1.5, 1e-12);
        let narrow = ReadTimes { card_bytes_per_s: 40.0, ..times };
        is_near(narrow.idle_s(3.0, 160.0), 1.5 + 4.0, 1e-12);
    }

    #[test]
    fn bounds_of_updates_are_those_of_the_design() {
        // Bytes rewritten per user byte at a space amplification of 1.5.
        let collected = collected_per_byte(0.5);
        let sent = |redundancy, share| sent_separated(redundancy, 8.0, share, collected);
        for (share, inline, separated) in
            [(SHARES[0], 5.3, 1.45), (SHARES[1], 4.8, 1.40), (SHARES[2], 3.3, 1.25)]
        {
            let by_class = sent(Redundancy::BY_CLASS, share);
            is_near(sent_inline(Redundancy::REPLICATED, 8.0) / by_class, inline, 0.06);
            is_near(sent(Redundancy::REPLICATED, share) / by_class, separated, 0.01);
        }
    }

    #[test]
    fn model_of_redundancy_is_exact() {
        is_near(mixed_over_coded(Latencies::PAPER, 0.1, 0.0), 2.8 / 2.5 * 1.1 / 1.2, 1e-12);
        is_near(mixed_over_coded(Latencies::PAPER, 0.0, 1.0), 1.3, 1e-12);
        let equal = Latencies { small_coded: 1.0, large_coded: 1.0 };
        assert!(mixed_over_coded(equal, 0.05, 0.5) < 1.0);
        assert_eq!(mixed_over_replicated(0.0), 2.0);
        assert!(mixed_over_replicated(100.0) > 1.0);
    }

    #[test]
    fn cost_of_the_reference_is_that_of_the_paper() {
        let reference = Usage { storage: 1.0, put_cpu: 1.0, get_cpu: 1.0 };
        is_near(reference.cost(), 0.9912, 1e-9);
    }

    #[test]
    fn repair_takes_the_time_of_its_nodes_or_of_the_cluster() {
        let rate = RepairRate { survivors: 6, node_bytes_per_s: 10.0, cluster_bytes_per_s: 1000.0 };
        // One part at a time: 200 bytes by a node of 10 bytes a second.
        is_near(rate.seconds(LostBytes { copied: 0, coded: 200 }), 20.0, 1e-9);
        // Three copies at a time.
        is_near(rate.seconds(LostBytes { copied: 90, coded: 0 }), 3.0, 1e-9);
        is_near(rate.seconds(LostBytes { copied: 90, coded: 200 }), 23.0, 1e-9);
        // Five nodes read or write 200 bytes each, and the cluster may move 20 bytes a second.
        let narrow = RepairRate { cluster_bytes_per_s: 20.0, ..rate };
        is_near(narrow.seconds(LostBytes { copied: 0, coded: 200 }), 50.0, 1e-9);
        // Three nodes share five sources and targets.
        let few = RepairRate { survivors: 3, ..rate };
        is_near(few.seconds(LostBytes { copied: 0, coded: 200 }), 20.0, 1e-9);
    }
}
