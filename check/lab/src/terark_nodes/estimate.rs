//! Estimated time of the runs, by group. The functions are pure.
//!
//! An estimate follows from the bytes on the card, from round trips of reads, and from steps that
//! last for given seconds. It assumes that neither processors nor devices are the limit, so that
//! busy machines take longer.

use super::bounds::{sent_inline, sent_separated};
use super::flags::NodesFlags;
use super::link::Link;
use super::plan::{self, Cell, Group, Step};
use super::words::{BOUND, KEY_BY_KEY_READS, LATENCY_READS};
use crate::terark_engine::bounds::collected_per_byte;

/// Assumed rewriting factor W without separation. The runs measure it.
const REWRITES: f64 = 6.0;
/// Updates of each record.
const UPDATES: f64 = 3.0;
/// Round trips of a read: one for the table and one for the value.
const TRIPS_PER_READ: f64 = 2.0;
/// Bytes per second of a load whose nodes and client share two processors, without emulation.
const LOOPBACK_BYTES_PER_S: f64 = 20e6;
/// Seconds of the start and the end of the processes of a run.
const START_S: f64 = 3.0;
/// Seconds of a repair, a lease with its take-over, the simulation of growth, and the processes of
/// an embedded database.
const REPAIR_S: f64 = 25.0;
const TAKE_OVER_S: f64 = 20.0;
const GROWTH_S: f64 = 60.0;
const EMBEDDED_S: f64 = 60.0;

/// The runs of a group that no group before it needs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct GroupPlan {
    group: Group,
    /// Number of runs in a round.
    runs: usize,
    /// Estimated seconds of a round.
    seconds: f64,
}

/// The planned `cells` by group.
fn by_group(flags: &NodesFlags, cells: &[Cell]) -> Vec<GroupPlan> {
    let mut counted: Vec<Cell> = Vec::new();
    let mut of = |group: Group| {
        let is_new = |cell: &Cell| cells.contains(cell) && !counted.contains(cell);
        let new: Vec<Cell> = plan::cells_of(group).into_iter().filter(is_new).collect();
        let seconds = new.iter().map(|cell| seconds_of(flags, cell)).sum();
        counted.extend(&new);
        GroupPlan { group, runs: new.len(), seconds }
    };
    flags.groups().into_iter().map(&mut of).collect()
}

/// The plan as text.
pub(super) fn text(flags: &NodesFlags, cells: &[Cell]) -> String {
    let rounds = flags.runs();
    let line = |name: &str, runs: usize, seconds: f64| {
        format!("  {name:<12}{runs:>4} runs {:>6.0} minutes\n", seconds / 60.0)
    };
    let plans = by_group(flags, cells);
    let mut text = format!(
        "Estimated for each of {rounds} rounds, if the processors are not the limit; groups share \
         runs:\n"
    );
    for plan in &plans {
        let name = format!("{:?}", plan.group).to_lowercase();
        text += &line(&name, plan.runs, plan.seconds);
    }
    let runs: usize = plans.iter().map(|plan| plan.runs).sum();
    let seconds: f64 = plans.iter().map(|plan| plan.seconds).sum();
    text + &line("all rounds", runs * rounds as usize, seconds * rounds as f64)
}

/// Estimated seconds of a run of `cell`.
fn seconds_of(flags: &NodesFlags, cell: &Cell) -> f64 {
    let steps = cell.course.steps().iter();
    START_S + steps.map(|&step| step_seconds(flags, cell, step)).sum::<f64>()
}

fn step_seconds(flags: &NodesFlags, cell: &Cell, step: Step) -> f64 {
    let timed = flags.timed_seconds() as f64;
    match step {
        Step::Load | Step::Prepare | Step::LoopFill => write_seconds(flags, cell, 0.0),
        Step::SingleGroups => 2.0 * write_seconds(flags, cell, 0.0),
        Step::Update => {
            let reads = cell.workload.records(flags);
            update_seconds(flags, cell) + read_seconds(flags, cell, reads, flags.threads)
        }
        Step::ColdUpdate => update_seconds(flags, cell),
        Step::Read | Step::DegradedRead => {
            // As many reads before the measured ones warm the cache.
            read_seconds(flags, cell, 2 * cell.workload.records(flags), flags.threads)
        }
        Step::KeyByKey => read_seconds(flags, cell, KEY_BY_KEY_READS, 1),
        Step::Latency => read_seconds(flags, cell, LATENCY_READS, 1),
        Step::Scan | Step::Foreground => timed,
        Step::LoopRead => 2.0 * timed,
        Step::Ycsb => write_seconds(flags, cell, 0.0) + 6.0 * timed,
        Step::Throttled => flags.throttled_seconds() as f64,
        Step::Repair => 3.0 * timed + REPAIR_S,
        Step::TakeOver | Step::Owner => TAKE_OVER_S,
        Step::Growth => GROWTH_S,
        Step::Embedded => EMBEDDED_S,
    }
}

fn update_seconds(flags: &NodesFlags, cell: &Cell) -> f64 {
    UPDATES * write_seconds(flags, cell, collected_per_byte(BOUND - 1.0))
}

/// Seconds until the card has sent each record once. Collection rewrites `collected` bytes for
/// each byte that is separated.
fn write_seconds(flags: &NodesFlags, cell: &Cell, collected: f64) -> f64 {
    let bytes = flags.data_bytes() as f64;
    let Some(link) = Link::new(cell.card, flags.scale) else { return bytes / LOOPBACK_BYTES_PER_S };
    let redundancy = cell.mode.redundancy();
    let sent = match cell.mode.is_separated() {
        true => {
            let share = cell.workload.share_in_levels(flags);
            sent_separated(redundancy, REWRITES, share, collected)
        }
        false => sent_inline(redundancy, REWRITES),
    };
    let by_card = bytes * sent / link.card_bytes_per_s;
    // The log of a writer passes one connection to each node of the log.
    let by_connection = match cell.mode.has_serial_log() {
        true => bytes / link.stream_bytes_per_s,
        false => 0.0,
    };
    by_card.max(by_connection)
}

/// Seconds of `reads` point reads by `threads` threads.
fn read_seconds(flags: &NodesFlags, cell: &Cell, reads: u64, threads: u64) -> f64 {
    let trip_s = Link::new(cell.card, flags.scale).map_or(0.0, |link| link.round_trip_s);
    reads as f64 * TRIPS_PER_READ * trip_s / threads as f64
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn plans(words: &[&str]) -> (NodesFlags, Vec<GroupPlan>) {
        let args: Vec<OsString> = words.iter().map(OsString::from).collect();
        let flags = NodesFlags::read(&args).expect("known flags");
        let plans = by_group(&flags, &plan::cells(&flags));
        (flags, plans)
    }

    #[test]
    fn groups_share_runs() {
        let (flags, plans) = plans(&["--quick", "--only=update,read,growth"]);
        let runs: Vec<(Group, usize)> = plans.iter().map(|plan| (plan.group, plan.runs)).collect();
        assert_eq!(runs, [(Group::Update, 18), (Group::Read, 0), (Group::Growth, 1)]);
        let text = text(&flags, &plan::cells(&flags));
        assert!(text.contains("update        18 runs"), "{text}");
        assert!(text.contains("all rounds    19 runs"), "{text}");
    }

    #[test]
    fn every_cell_belongs_to_a_group() {
        let (flags, plans) = plans(&["--quick", "--by_key=/tmp/x", "--before=/tmp/x"]);
        let runs: usize = plans.iter().map(|plan| plan.runs).sum();
        assert_eq!(runs, plan::cells(&flags).len());
    }

    #[test]
    fn short_form_of_updates_takes_some_of_an_hour() {
        let (_, plans) = plans(&["--quick", "--only=update"]);
        let minutes = plans[0].seconds / 60.0;
        assert!((30.0..60.0).contains(&minutes), "the method said 50: {minutes}");
    }

    #[test]
    fn slower_card_takes_longer() {
        let seconds = |scale: &str| plans(&["--only=insert", scale]).1[0].seconds;
        assert!(seconds("--scale=50") > 1.5 * seconds("--scale=25"));
    }
}
