//! Bounds by a device's description, and the time until a phase reached its speed. The functions
//! are pure.

use archipelago_env::device::Direction;

use archipelago_bench::harness::store::DeviceSpec;

/// Reads of a device during a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Served<'a> {
    pub(super) spec: &'a DeviceSpec,
    pub(super) reads: u64,
    pub(super) bytes: u64,
}

/// Highest rate of `clients`, in operations a second, if only these reads took time. The reads
/// belong to `ops` operations. Each client waits for one read at a time, and no device gives more
/// than its bandwidth. `None` without reads.
pub(super) fn bound(clients: u64, ops: u64, served: &[Served<'_>]) -> Option<f64> {
    let per_op = |count: u64| count as f64 / ops.max(1) as f64;
    let rate = |spec: &DeviceSpec| spec.direction_rate(Direction::Read, 0).min(spec.total_rate());
    let waits = served.iter().map(|device| {
        let latency = device.spec.latency(Direction::Read).as_secs_f64();
        per_op(device.reads) * latency + per_op(device.bytes) / rate(device.spec)
    });
    let waited: f64 = waits.sum();
    if waited <= 0.0 {
        return None;
    }
    let by_device = served.iter().filter(|device| device.bytes > 0).map(|device| {
        let by_bytes = rate(device.spec) / per_op(device.bytes);
        by_bytes.min(device.spec.operation_rate() / per_op(device.reads))
    });
    Some(by_device.fold(clients as f64 / waited, f64::min))
}

/// Fraction of its steady speed that a phase must reach.
const RECOVERED: f64 = 0.9;
/// Seconds over which the speed is averaged.
const AVERAGED_S: f64 = 1.0;

/// Seconds from the beginning of a phase until it reached its speed: nine tenths of the median of
/// its last third. Speeds are averaged over a second. `samples` are seconds since the beginning,
/// and operations since then. `None` if the phase is too short, or never reached the speed.
pub(super) fn recovered_s(samples: &[(f64, u64)]) -> Option<f64> {
    let end_s = samples.last()?.0;
    let rates: Vec<(f64, f64)> = samples
        .iter()
        .filter_map(|&(from_s, from_ops)| {
            let &(to_s, to_ops) = samples.iter().find(|(t_s, _)| *t_s >= from_s + AVERAGED_S)?;
            Some((from_s, (to_ops - from_ops) as f64 / (to_s - from_s)))
        })
        .collect();
    let mut steady: Vec<f64> = rates
        .iter()
        .filter(|(from_s, _)| *from_s >= end_s * 2.0 / 3.0)
        .map(|(_, rate)| *rate)
        .collect();
    steady.sort_by(f64::total_cmp);
    let steady = *steady.get(steady.len() / 2)?;
    rates.iter().find(|(_, rate)| *rate >= RECOVERED * steady).map(|(from_s, _)| *from_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(latency_us: u64, read: u64, operations: u64) -> DeviceSpec {
        DeviceSpec::from_toml(&format!(
            "name = 'a'\nsource = 'made up'\nscale = 0.5\ntotal_bytes_per_s = {read}\n\
             read_bytes_per_s = {read}\nwrite_bytes_per_s = 1000\nread_latency_us = {latency_us}\n\
             operations_per_s = {operations}"
        ))
        .expect("a device")
    }

    #[test]
    fn clients_wait_for_latency_and_transfer() {
        // At half the speed: 200 us and 40 us of latency, 100 MB/s and 1 GB/s.
        let slow = spec(100, 200_000_000, 0);
        let fast = spec(20, 2_000_000_000, 0);
        let served = [
            Served { spec: &fast, reads: 750, bytes: 750 * 10_000 },
            Served { spec: &slow, reads: 250, bytes: 250 * 10_000 },
        ];
        // 0.75 * (40 + 10) + 0.25 * (200 + 100) = 112.5 us
        let ops = bound(4, 1000, &served).expect("reads");
        assert!((ops / (4.0 / 112.5e-6) - 1.0).abs() < 1e-9, "{ops}");
        assert_eq!(bound(4, 1000, &[]), None);
        assert_eq!(bound(4, 1000, &[Served { spec: &fast, reads: 0, bytes: 0 }]), None);
    }

    #[test]
    fn no_device_gives_more_than_it_has() {
        let narrow = spec(1, 2_000_000, 0);
        let served = [Served { spec: &narrow, reads: 100, bytes: 100 * 1000 }];
        let ops = bound(1000, 100, &served).expect("reads");
        assert!((ops - 1000.0).abs() < 1e-6, "1 MB/s in reads of 1 kB: {ops}");
        let few = spec(1, 2_000_000_000, 100);
        let served = [Served { spec: &few, reads: 200, bytes: 200 * 10 }];
        let ops = bound(1000, 100, &served).expect("reads");
        assert!((ops - 25.0).abs() < 1e-6, "50 reads a second, two an operation: {ops}");
    }

    #[test]
    fn phase_recovers_in_a_second_at_nine_tenths() {
        // 100 a second for five seconds, then 1000.
        let samples: Vec<(f64, u64)> = (0..=300u64)
            .map(|tenth| (tenth as f64 / 10.0, tenth.min(50) * 10 + tenth.saturating_sub(50) * 100))
            .collect();
        let at = recovered_s(&samples).expect("it does");
        assert!((4.7..=5.1).contains(&at), "{at}");
        let steady: Vec<(f64, u64)> = (0..=300u64).map(|t| (t as f64 / 10.0, t * 10)).collect();
        assert_eq!(recovered_s(&steady), Some(0.0));
        assert_eq!(recovered_s(&steady[..5]), None, "shorter than what is averaged over");
    }
}
