//! Statistics of commands: calls, times, refusals and failures.
//!
//! INFO shows the figures in the sections Commandstats, Latencystats and Errorstats. LATENCY
//! HISTOGRAM shows the distribution. The time of a command is that of its function, without the
//! network. In a pipeline it begins when the previous command ends, so it includes the parsing of
//! the request. Plain SETs or GETs that a pipeline executes together share their time evenly.
//!
//! Buckets count times by powers of two of a microsecond. A percentile is the upper bound of its
//! bucket, as in Redis.
//!
//! Thread-safety: any thread may call any method. Cost: two relaxed additions to counters of the
//! calling thread, and one reading of the clock, for each command or group of plain commands. Each
//! piece of input costs one more reading. The counters take about 400 KB.

use std::collections::BTreeMap;

use archipelago_base::metrics::Counters;
use parking_lot::Mutex;

use crate::command::Command;

/// Highest number of commands that the counters have room for.
const COMMANDS_MAX: usize = 128;
/// Number of buckets of times. The last bucket counts all times above 2^29 µs, which are nine
/// minutes.
pub(crate) const BUCKETS: usize = 31;
/// Figures of a command before its buckets: nanoseconds, rejected calls, failed calls.
const NANOS: usize = 0;
const REJECTED: usize = 1;
const FAILED: usize = 2;
const FIRST_BUCKET: usize = 3;
const FIGURES: usize = FIRST_BUCKET + BUCKETS;

/// Highest number of error codes with a counter of their own. Further codes share one counter.
const CODES_MAX: usize = 128;

/// Figures of all commands of one server.
pub(crate) struct CommandStats {
    /// All commands in the order of their numbers.
    commands: &'static [&'static Command],
    figures: Counters<{ COMMANDS_MAX * FIGURES }>,
    errors: Mutex<BTreeMap<String, u64>>,
}

/// Figures of one command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) calls: u64,
    pub(crate) nanos: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    /// Calls by the power of two of a microsecond that is their upper bound.
    pub(crate) buckets: [u64; BUCKETS],
}

impl Figures {
    /// Upper bound in microseconds of the time that the fraction `q` of the calls took.
    pub(crate) fn percentile_us(&self, q: f64) -> u64 {
        let mut left = (q * self.calls as f64).ceil().max(1.0) as u64;
        for (bucket, count) in self.buckets.iter().enumerate() {
            if *count >= left {
                return 1 << bucket;
            }
            left -= count;
        }
        0
    }
}

/// The smallest power of two of a microsecond that is not below `nanos`.
fn bucket_of(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000).max(1);
    (micros.next_power_of_two().trailing_zeros() as usize).min(BUCKETS - 1)
}

impl CommandStats {
    /// Statistics of zero for each of `commands`, which stand in the order of their numbers.
    pub(crate) fn new(commands: &'static [&'static Command]) -> Self {
        assert!(commands.len() <= COMMANDS_MAX, "raise COMMANDS_MAX");
        Self { commands, figures: Counters::default(), errors: Mutex::default() }
    }

    /// Counts `calls` of a command that took `nanos` together.
    #[inline]
    pub(crate) fn ran(&self, command: &'static Command, calls: u64, nanos: u64) {
        let base = command.number * FIGURES;
        self.figures.add(base + NANOS, nanos);
        let each = if calls <= 1 { nanos } else { nanos / calls };
        self.figures.add(base + FIRST_BUCKET + bucket_of(each), calls);
    }

    /// Counts a call that was refused before the command ran.
    pub(crate) fn rejected(&self, command: &'static Command) {
        self.figures.add(command.number * FIGURES + REJECTED, 1);
    }

    /// Counts `calls` of a command that failed.
    pub(crate) fn failed(&self, command: &'static Command, calls: u64) {
        self.figures.add(command.number * FIGURES + FAILED, calls);
    }

    /// Counts an error that clients received `times` times. `line` begins with its code.
    pub(crate) fn told_error(&self, line: &str, times: u64) {
        let code = line.split(' ').next().unwrap_or_default();
        let mut errors = self.errors.lock();
        if let Some(count) = errors.get_mut(code) {
            *count += times;
        } else {
            let code = if errors.len() < CODES_MAX { code } else { "others" };
            *errors.entry(code.to_owned()).or_default() += times;
        }
    }

    /// Figures of each command that was called or rejected.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (&'static Command, Figures)> {
        self.commands.iter().copied().filter_map(|command| {
            let figures = self.of(command);
            (figures.calls + figures.rejected > 0).then_some((command, figures))
        })
    }

    /// Figures of `command`.
    pub(crate) fn of(&self, command: &'static Command) -> Figures {
        let base = command.number * FIGURES;
        let buckets = std::array::from_fn(|at| self.figures.get(base + FIRST_BUCKET + at));
        Figures {
            calls: buckets.iter().sum(),
            nanos: self.figures.get(base + NANOS),
            rejected: self.figures.get(base + REJECTED),
            failed: self.figures.get(base + FAILED),
            buckets,
        }
    }

    /// Number of replies for each error code.
    pub(crate) fn errors(&self) -> Vec<(String, u64)> {
        self.errors.lock().iter().map(|(code, count)| (code.clone(), *count)).collect()
    }

    /// Resets all figures to zero.
    pub(crate) fn reset(&self) {
        self.figures.reset();
        self.errors.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    #[test]
    fn times_fall_into_powers_of_two() {
        let cases = [(0, 0), (999, 0), (1_000, 0), (1_001, 1), (2_000, 1), (2_001, 2)];
        for (nanos, bucket) in cases {
            assert_eq!(bucket_of(nanos), bucket, "{nanos} ns");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn figures_of_a_command_are_its_own() {
        let stats = CommandStats::new(commands::list());
        let find = |name: &[u8]| &commands::table().find(name).unwrap().command;
        let (get, set) = (find(b"get"), find(b"set"));
        stats.ran(get, 3, 3_000);
        stats.ran(get, 1, 7_500_000);
        stats.rejected(set);
        stats.failed(get, 2);
        let figures = stats.of(get);
        assert_eq!((figures.calls, figures.nanos, figures.failed), (4, 7_503_000, 2));
        assert_eq!((figures.percentile_us(0.5), figures.percentile_us(0.99)), (1, 8192));
        let names: Vec<&str> = stats.commands().map(|(command, _)| command.name).collect();
        assert_eq!(names, ["get", "set"]);
        for n in 0..1000 {
            stats.told_error(&format!("CODE{n} text"), 1);
        }
        assert_eq!(stats.errors().len(), CODES_MAX + 1);
        stats.reset();
        assert_eq!((stats.commands().count(), stats.errors().len()), (0, 0));
    }
}
