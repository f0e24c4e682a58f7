//! Work of a flush or a compaction: its outputs, and the work of each of its threads. The functions
//! are pure.

use archipelago_base::random::Rng;
use archipelago_engine::compaction::pick::Pick;
use archipelago_engine::key::KeyRange;
use archipelago_engine::version::{LAST_LEVEL, Version};

use super::keyspace::{Cutting, Run, distinct, merge, number, numbers};
use super::profile::Work;
use super::setting::Setting;
use super::split::plan_parts;

/// A job before it runs.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Work of each thread.
    pub(super) threads: Vec<Work>,
    /// Output files of the job, in key order.
    pub(super) outputs: Vec<Run>,
}

/// A flush of `drawn` records of `range`, which lie in `shards` shards, into files cut at
/// `boundaries`. The shards are written in parallel, on one thread per job.
pub(super) fn flush(
    setting: &Setting,
    range: &KeyRange,
    shards: usize,
    drawn: u64,
    boundaries: Vec<u64>,
) -> Plan {
    let (lo, hi) = numbers(range, setting.records);
    let records = distinct(drawn as f64, (hi - lo) as f64);
    let cutting = Cutting { cuts: boundaries, records_max: f64::INFINITY, ..Cutting::default() };
    let outputs = merge(&[Run { lo, hi, records }], (lo, hi), &cutting);
    let cpu_s = drawn as f64 * setting.cost.flush_ns_per_record / 1e9;
    let each = outputs.len().div_ceil(shards.clamp(1, setting.jobs.max(1))).max(1);
    let threads = outputs.chunks(each).map(|files| {
        let written: f64 = files.iter().map(|file| file.records).sum();
        output_work(setting, cpu_s * written / records, files.len(), 0, written)
    });
    Plan { threads: threads.collect(), outputs }
}

/// Makes a compaction, of which each part merges a part of the keys.
pub(super) fn compaction(
    setting: &Setting,
    version: &Version,
    pick: &Pick,
    boundaries: Vec<u64>,
    rng: &mut Rng,
) -> Plan {
    let inputs: Vec<Run> = pick.inputs().map(|(_, file)| Run::of(file.meta())).collect();
    let range = numbers(&pick.range(), setting.records);
    let cutting = cutting(setting, version, pick, boundaries);
    let parts = match pick {
        Pick::L0ToBase { .. } => {
            let bytes = pick.inputs().map(|(_, file)| file.size_bytes);
            let files: Vec<_> = inputs.iter().copied().zip(bytes).collect();
            let least = version.options().target_file_bytes;
            plan_parts(&files, &pick.range(), setting.records, setting.parts(), least, rng)
        }
        _ => vec![range],
    };
    let runs = sorted_runs(pick);
    let missed = missed_share(setting, version);
    let mut plan = Plan::default();
    for part in parts {
        let inside: Vec<Run> = inputs.iter().filter_map(|run| run.within(part)).collect();
        let read: f64 = inside.iter().map(|run| run.records).sum();
        let outputs = merge(&inside, part, &cutting);
        let written: f64 = outputs.iter().map(|run| run.records).sum();
        let cpu_s = setting.cost.merge_s(read, runs);
        let mut work = output_work(setting, cpu_s, outputs.len(), inside.len(), written);
        work.read_bytes = read * setting.cost.file_bytes_per_record * missed;
        plan.threads.push(work);
        plan.outputs.extend(outputs);
    }
    plan
}

/// Fraction of the inputs that the page cache does not hold.
fn missed_share(setting: &Setting, version: &Version) -> f64 {
    let stored: f64 = (0..=LAST_LEVEL).map(|level| version.bytes(level) as f64).sum();
    (1.0 - setting.machine.page_cache_bytes / stored.max(1.0)).max(0.0)
}

/// Children of the merge: each L0 file, and each other level once.
fn sorted_runs(pick: &Pick) -> usize {
    match pick {
        Pick::L0ToBase { l0, base, .. } => l0.len() + usize::from(!base.is_empty()),
        Pick::IntraL0 { files, .. } => files.len(),
        _ => 2,
    }
}

fn output_work(
    setting: &Setting,
    cpu_s: f64,
    outputs: usize,
    inputs: usize,
    written_records: f64,
) -> Work {
    let (cost, machine) = (&setting.cost, &setting.machine);
    let files = (outputs + inputs) as f64;
    Work {
        cpu_s: cpu_s + files * cost.file_ns / 1e9,
        write_bytes: written_records * cost.file_bytes_per_record,
        read_bytes: 0.0,
        // Each output is synced, and the directory once.
        wait_s: (outputs + 1) as f64 * machine.device.sync_latency().as_secs_f64(),
    }
}

/// Keys at which the engine ends this job's outputs.
fn cutting(setting: &Setting, version: &Version, pick: &Pick, boundaries: Vec<u64>) -> Cutting {
    let to = pick.to();
    let target_bytes = version.options().target_file_bytes;
    let grandparents = if to > 0 && to < LAST_LEVEL {
        let below = version.overlapping(to + 1, &pick.range());
        below.iter().map(|file| (number(&file.largest) + 1, file.size_bytes)).collect()
    } else {
        Vec::new()
    };
    let records_max = match to {
        0 => f64::INFINITY,
        _ => target_bytes as f64 / setting.cost.file_bytes_per_record,
    };
    let at_buckets = to == 0 || to == version.base_level();
    let cuts = if at_buckets { boundaries } else { Vec::new() };
    Cutting { cuts, records_max, grandparents, target_bytes }
}
