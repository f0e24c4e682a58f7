//! A database in a volume: the volume's lease, and the client of its storage nodes.

use archipelago_compute::volume::VolumeStorage;
use archipelago_store::nodes::blobs::BlobStats;
use archipelago_store::nodes::client::StatsSnapshot;

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
