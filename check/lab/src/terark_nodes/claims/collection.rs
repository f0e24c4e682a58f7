//! Rows of garbage collection (§4.4) with a cache that holds no index, and their bounds and causes.
//!
//! The time of a collection is that of its reads of keys, look-ups and reads of values, summed over
//! all jobs. The writes of its output are part of neither side. Collections run during updates,
//! and the reads key by key have nodes and card for themselves.

use super::super::bounds::ReadTimes;
use super::super::link::{Card, bulk_bytes, read_times};
use super::super::modes::{Mode, Workload};
use super::super::plan::{Group, Step};
use super::super::report::{RunLimit, UsedShares};
use super::super::rows::{Claim, Facts, Subject};
use super::super::run::Run;
use crate::terark_engine::run::Collection;

/// Read calls for each record, at most.
const CALLS_PER_RECORD_MAX: f64 = 0.02;
/// Bytes that may be read: this multiple of the valid bytes, and this share of the files.
const READ_VALID_FACTOR: f64 = 1.25;
const READ_KEYS_SHARE: f64 = 0.005;
/// Share of the keys in the bytes of a value file, at least.
const KEYS_SHARE_MIN: f64 = 0.0025;
/// Time over look-ups and reads key by key, at most.
const TIME_MAX: f64 = 0.25;
/// Calls for a file: one for its keys and one for its values.
const FILE_CALLS_MIN: f64 = 2.0;
/// Round trips of a job: one for the keys of its files and one for their values. Files without
/// garbage take no look-up.
const JOB_TRIPS_MIN: f64 = 2.0;
/// Multiple of the time on an idle card from which calls count as waiting for others.
const WAITING_MIN: f64 = 2.0;

const FEW_RECORDS: &str = "Each file costs a call for its keys and one for its values, and a flush \
                           of a memtable of 4 MiB writes files with few records.";
const MANY_LOOK_UPS: &str = "Most calls look keys up: the index is not cached, so each job reads \
                             each table that refers to its files.";
const MANY_STEPS: &str =
    "Most calls read further parts of files, because the inputs of a job hold 8 MiB together.";
const BUSY_PROCESSORS: &str = "The processors limit the updates during which files are collected, \
                               and the reads key by key have them alone.";
const FULL_CARD: &str = "The card limits the updates during which files are collected, and the \
                         reads key by key have it alone.";
const BEHIND_BULK: &str = "Each call waits behind flushes and compactions, whose class goes first, \
                           and the reads key by key have the card alone.";
const ONE_BY_ONE: &str =
    "A job makes its calls one after another, each of which takes the time of an idle card.";

const WORKLOAD: Workload = Workload::Fixed16k;
const MODE: Mode = Mode::AllOn;

fn found(run: &Run) -> Option<Collection> {
    Collection::of(run.main(Step::ColdUpdate)?)
}

/// Median of a figure of the collections.
fn middle(facts: &Facts<'_>, figure: impl Fn(&Run, &Collection) -> Option<f64>) -> Option<f64> {
    facts.median(WORKLOAD, MODE, |run| figure(run, &found(run)?))
}

/// Seconds that look-ups and reads of the valid records take key by key.
fn by_key_s(run: &Run, found: &Collection) -> Option<f64> {
    Some(found.valid_records / run.rate(Step::KeyByKey)?)
}

/// The largest part of the calls.
fn calls_cause(facts: &Facts<'_>) -> &'static str {
    let part = |figure: fn(&Collection) -> f64| middle(facts, |_, found| Some(figure(found)));
    let few_records = part(|found| FILE_CALLS_MIN * found.files);
    let look_ups = part(|found| found.lookup_calls);
    let steps = part(|found| found.read_calls - found.lookup_calls - FILE_CALLS_MIN * found.files);
    match (few_records, look_ups, steps) {
        (Some(few), Some(look_ups), Some(steps)) if look_ups > few.max(steps) => MANY_LOOK_UPS,
        (Some(few), Some(_), Some(steps)) if steps > few => MANY_STEPS,
        _ => FEW_RECORDS,
    }
}

/// The least time by arithmetic, and that of the calls that were made if each of them waits for a
/// full share of bulk data.
fn time_bound(facts: &Facts<'_>) -> Option<String> {
    let times = read_times(Card::Full, facts.flags.scale)?;
    let share = |seconds: fn(ReadTimes, &Collection) -> f64| {
        middle(facts, |run, found| Some(seconds(times, found) / by_key_s(run, found)?))
    };
    let least = share(|times, found| {
        let bytes = found.valid_bytes() + KEYS_SHARE_MIN * found.file_bytes;
        times.idle_s(JOB_TRIPS_MIN * found.jobs, bytes)
    })?;
    let behind = share(|times, found| {
        times.behind_s(found.read_calls, found.read_bytes, bulk_bytes() as f64)
    })?;
    let mib = bulk_bytes() >> 20;
    Some(format!("≥ {least:.3} on an idle card; {behind:.2} if each call waits behind {mib} MiB"))
}

/// The resource that limits the updates, or the reason of the times of the calls.
fn time_cause(facts: &Facts<'_>) -> &'static str {
    let scale = facts.flags.scale;
    let step = |run: &Run| run.step(Step::ColdUpdate).and_then(|step| step.busy_share);
    let used = UsedShares {
        card: facts.median(WORKLOAD, MODE, |run| run.card_share(Step::ColdUpdate, scale)),
        connection: None,
        busy: facts.median(WORKLOAD, MODE, step),
    };
    let times = read_times(Card::Full, scale);
    let over_idle = middle(facts, |_, found| {
        Some(found.seconds / times?.idle_s(found.read_calls, found.read_bytes))
    });
    match (RunLimit::of(used), over_idle) {
        (RunLimit::Processors, _) => BUSY_PROCESSORS,
        (RunLimit::Card, _) => FULL_CARD,
        (_, Some(over)) if over >= WAITING_MIN => BEHIND_BULK,
        (_, Some(_)) => ONE_BY_ONE,
        (_, None) => "",
    }
}

pub(super) fn collection() -> Vec<Claim> {
    let subject = Subject { group: Group::Gc, workload: WORKLOAD, mode: MODE };
    vec![
        Claim::new(subject, "read calls per record", "", |_, run| found(run)?.calls_per_record())
            .within(CALLS_PER_RECORD_MAX)
            .bound(|facts| {
                let least = |_: &Run, found: &Collection| {
                    Some(FILE_CALLS_MIN * found.files / found.records)
                };
                Some(format!("≥ {:.3}", middle(facts, least)?))
            })
            .paper("one call per valid key without batches")
            .cause_by(calls_cause),
        Claim::new(
            subject,
            "bytes read, over 1.25 times the valid bytes and 0.5 % of the files",
            "",
            |_, run| {
                let found = found(run)?;
                let allowed = READ_VALID_FACTOR * found.valid_share + READ_KEYS_SHARE;
                Some(found.read_share / allowed)
            },
        )
        .within(1.0)
        .bound(|facts| {
            let valid = middle(facts, |_, found| Some(found.valid_share))?;
            let least = (valid + KEYS_SHARE_MIN) / (READ_VALID_FACTOR * valid + READ_KEYS_SHARE);
            Some(format!("{least:.2}"))
        }),
        Claim::new(subject, "time, over look-ups and reads key by key", "", |_, run| {
            let found = found(run)?;
            Some(found.seconds / by_key_s(run, &found)?)
        })
        .within(TIME_MAX)
        .bound(time_bound)
        .paper("the network is 28.4 % and 22.2 % of the time of reads and look-ups")
        .cause_by(time_cause),
    ]
}
