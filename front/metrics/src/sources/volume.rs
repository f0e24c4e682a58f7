//! A database in a volume: the volume's lease, and the client of its storage nodes.

use archipelago_compute::volume::VolumeStorage;
use archipelago_fabric::TrafficClass;
use archipelago_fabric::paced::CardStats;
use archipelago_store::nodes::blobs::BlobStats;
use archipelago_store::nodes::client::StatsSnapshot;
use archipelago_store::nodes::layout::Redundancy;

use super::Source;
use super::engine::times;
use super::storage_node::class_name;
use crate::catalogue::storage as metric;
use crate::samples::Samples;

/// The volume of a database. Cost: a sum over the counters of all threads for each storage node.
#[must_use]
pub fn volume(volume: VolumeStorage) -> Source {
    Box::new(move |samples| {
        let name = [volume.name()];
        samples.set(&metric::VOLUME_EPOCH, &name, volume.epoch().0);
        samples.set(&metric::VOLUME_LEASE, &name, volume.check_lease().is_ok());
        let report = volume.pool_report();
        calls(samples, &report.client);
        operations(samples, &report.client);
        if let Some(card) = &report.card {
            send_order(samples, card);
        }
        blobs(samples, &report.blobs);
        samples.set(&metric::BACKLOG, &[], report.log_backlog_bytes);
    })
}

fn calls(samples: &mut Samples, stats: &StatsSnapshot) {
    for counts in &stats.calls {
        let (node, class) = (counts.storage.to_string(), counts.class.name());
        samples.set(&metric::CALLS, &[&node, class], counts.calls);
        samples.set(&metric::FAILED_CALLS, &[&node, class, "refused"], counts.refused);
        samples.set(&metric::FAILED_CALLS, &[&node, class, "unanswered"], counts.unanswered);
        samples.set(&metric::SENT, &[&node, class], counts.sent_bytes);
        samples.set(&metric::RECEIVED, &[&node, class], counts.received_bytes);
    }
    for node in &stats.times {
        let name = node.storage.to_string();
        samples.set(&metric::CALL_TIME, &[&name, "read"], times(&node.reads));
        samples.set(&metric::CALL_TIME, &[&name, "write"], times(&node.writes));
        samples.set(&metric::IN_FLIGHT, &[&name], node.in_flight);
    }
    for count in &stats.events {
        let node = count.storage.map_or_else(String::new, |node| node.to_string());
        let labels = [count.event.name(), class_name(count.class), node.as_str()];
        samples.set(&metric::EVENTS, &labels, count.count);
    }
}

fn operations(samples: &mut Samples, stats: &StatsSnapshot) {
    for found in &stats.operations {
        let scheme = match found.operation.redundancy {
            Redundancy::Replicated => "replicated",
            Redundancy::Coded => "coded",
        };
        let (operation, class) = (found.operation.kind.name(), found.operation.class);
        let labels = [operation, class_name(class), scheme];
        samples.set(&metric::OPERATION_TIME, &labels, times(&found.times));
    }
}

/// The messages that wait for the client's card, which decides in which order they are sent.
fn send_order(samples: &mut Samples, card: &CardStats) {
    for class in TrafficClass::ALL {
        let waiting = card.waiting(class);
        samples.set(&metric::QUEUED, &[class.name()], waiting.messages);
        samples.set(&metric::QUEUED_BYTES, &[class.name()], waiting.bytes);
    }
    samples.set(&metric::BACKGROUND, &[], card.background_in_flight_bytes);
}

fn blobs(samples: &mut Samples, stats: &BlobStats) {
    samples.set(&metric::SEALED, &["replicated"], stats.sealed_replicated);
    samples.set(&metric::SEALED, &["coded"], stats.sealed_coded);
    samples.set(&metric::GIVEN_UP, &[], stats.given_up);
    for (direction, bytes) in [("write", &stats.written_bytes), ("read", &stats.read_bytes)] {
        for (class, bytes) in bytes {
            samples.set(&metric::USER_BYTES, &[class_name(*class), direction], *bytes);
        }
    }
    samples.set(&metric::CHUNK_BYTES, &["put"], stats.put_bytes);
    samples.set(&metric::CHUNK_BYTES, &["rebuilt"], stats.rebuilt_bytes);
    samples.set(&metric::CHUNK_BYTES, &["fetched"], stats.fetched_bytes);
    samples.set(&metric::READ_REQUESTS, &[], stats.read_requests);
    samples.set(&metric::HEDGES_WON, &[], stats.hedges_won);
    samples.set(&metric::RELEASED, &[], stats.releases);
}

#[cfg(test)]
mod tests {
    use archipelago_base::metrics::Histogram;
    use archipelago_env::FileClass;
    use archipelago_store::nodes::client::{OperationKind, OperationTimes, StoreOperation};

    use super::*;
    use crate::parser::parse;

    #[test]
    fn operations_have_a_histogram_for_each_class_and_scheme() {
        let of = |kind, class, redundancy, ns: &[u64]| {
            let times = Histogram::default();
            ns.iter().for_each(|ns| times.record(*ns));
            let operation = StoreOperation { kind, class, redundancy };
            OperationTimes { operation, times: times.distribution() }
        };
        let (replicated, coded) = (Redundancy::Replicated, Redundancy::Coded);
        let recorded = vec![
            of(OperationKind::Append, FileClass::Wal, replicated, &[500_000, 1_500_000]),
            of(OperationKind::Read, FileClass::ValueSst, coded, &[3_000_000]),
        ];
        let mut samples = Samples::default();
        operations(&mut samples, &StatsSnapshot { operations: recorded, ..Default::default() });
        let found = parse(&samples.into_text().unwrap()).unwrap();
        let value = |suffix: &str, labels: [&str; 3]| {
            let [operation, class, scheme] = labels;
            let labels = [("operation", operation), ("class", class), ("scheme", scheme)];
            let name = format!("archipelago_store_client_operation_duration_seconds_{suffix}");
            found.value(&name, &labels)
        };
        assert_eq!(value("count", ["append", "wal", "replicated"]), Some(2.0));
        assert_eq!(value("sum", ["append", "wal", "replicated"]), Some(0.002));
        assert_eq!(value("count", ["read", "value_sst", "coded"]), Some(1.0));
        assert_eq!(value("count", ["read", "value_sst", "replicated"]), None);
    }

    #[test]
    fn every_class_of_traffic_has_a_queue() {
        let mut samples = Samples::default();
        send_order(&mut samples, &CardStats::default());
        let found = parse(&samples.into_text().unwrap()).unwrap();
        for class in ["log", "foreground", "flush", "compaction", "gc"] {
            for name in ["queued_messages", "queued_bytes"] {
                let name = format!("archipelago_store_client_{name}");
                assert_eq!(found.value(&name, &[("class", class)]), Some(0.0), "{name}");
            }
        }
        let bytes = "archipelago_store_client_background_in_flight_bytes";
        assert_eq!(found.value(bytes, &[]), Some(0.0));
    }
}
