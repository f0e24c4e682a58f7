//! The Redis server: clients, commands, errors and memory of requests.

use archipelago_resp::figures::{CommandFigures, ServerFigures, ServerMonitor};

use super::Source;
use crate::catalogue::redis as metric;
use crate::samples::{Observations, Samples};

/// The Redis server that `monitor` watches. Cost: that of [`ServerMonitor::figures`].
#[must_use]
pub fn redis(monitor: ServerMonitor) -> Source {
    Box::new(move |samples| {
        let figures = monitor.figures();
        clients(samples, &figures);
        for command in &figures.commands {
            samples.set(&metric::COMMAND_TIME, &[command.name], times(command));
            samples.set(&metric::COMMANDS_REJECTED, &[command.name], command.rejected);
            samples.set(&metric::COMMANDS_FAILED, &[command.name], command.failed);
        }
        for (code, count) in &figures.errors {
            samples.set(&metric::ERRORS, &[code], *count);
        }
        for share in &figures.shares {
            samples.set(&metric::SHARE_HELD, &[share.name], share.held_bytes);
            samples.set_known(&metric::SHARE_MAX, &[share.name], share.limit_bytes);
        }
    })
}

fn clients(samples: &mut Samples, figures: &ServerFigures) {
    samples.set(&metric::CLIENTS, &[], figures.clients);
    samples.set(&metric::CLIENTS_MAX, &[], figures.clients_max);
    samples.set(&metric::CLIENTS_PEAK, &[], figures.clients_peak);
    samples.set(&metric::LARGEST_BUFFER, &["input"], figures.largest_input_bytes);
    samples.set(&metric::LARGEST_BUFFER, &["output"], figures.largest_output_bytes);
    samples.set(&metric::WATCHING, &[], figures.watching_clients);
    samples.set(&metric::WATCHED, &[], figures.watched_keys);
    samples.set(&metric::TRACKING, &[], figures.tracking_clients);
    samples.set(&metric::TRACKED_KEYS, &[], figures.tracked_keys);
    samples.set(&metric::TRACKED_ITEMS, &[], figures.tracked_items);
    samples.set(&metric::TRACKED_PREFIXES, &[], figures.tracked_prefixes);
    samples.set(&metric::CONNECTIONS, &[], figures.connections);
    samples.set(&metric::REJECTED_CONNECTIONS, &[], figures.rejected_connections);
    samples.set(&metric::OUTPUT_LIMIT, &[], figures.output_limit_disconnections);
    samples.set(&metric::INPUT, &[], figures.input_bytes);
    samples.set(&metric::OUTPUT, &[], figures.output_bytes);
    samples.set(&metric::KEYSPACE, &["hit"], figures.keyspace_hits);
    samples.set(&metric::KEYSPACE, &["miss"], figures.keyspace_misses);
    samples.set(&metric::PROTOCOL_ERRORS, &[], figures.protocol_errors);
    samples.set(&metric::DENIED, &[], figures.denied);
    samples.set(&metric::HTTP, &[], figures.http_requests);
    samples.set(&metric::LAST_SAVE, &[], figures.last_save_s);
    samples.set(&metric::LAST_SAVE_FAILED, &[], figures.last_save_failed);
}

/// The times of a command by powers of four of a microsecond. Two neighbouring buckets of the
/// server, which are powers of two, make one.
fn times(command: &CommandFigures) -> Observations {
    let last = command.buckets.len() - 1;
    let mut buckets = Vec::with_capacity(last / 2 + 2);
    let mut since_bound = 0;
    for (power, count) in command.buckets.iter().enumerate() {
        since_bound += count;
        if power == last {
            // The last bucket of the server has no upper bound.
            buckets.push((f64::INFINITY, since_bound));
        } else if power % 2 == 0 {
            buckets.push(((1_u64 << power) as f64 / 1e6, std::mem::take(&mut since_bound)));
        }
    }
    Observations { sum: command.nanos as f64 / 1e9, buckets }
}

#[cfg(test)]
mod tests {
    use archipelago_resp::figures::COMMAND_BUCKETS;

    use super::*;

    #[test]
    fn neighbouring_buckets_of_a_command_are_joined() {
        let mut buckets = [0; COMMAND_BUCKETS];
        (buckets[0], buckets[1], buckets[2], buckets[COMMAND_BUCKETS - 1]) = (1, 10, 100, 1000);
        let command = CommandFigures {
            name: "get",
            calls: 1111,
            nanos: 2_000_000_000,
            rejected: 0,
            failed: 0,
            buckets,
        };
        let Observations { sum, buckets } = times(&command);
        assert_eq!((sum, buckets[0], buckets[1]), (2.0, (1e-6, 1), (4e-6, 110)));
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 1000)));
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), command.calls);
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
