//! One run: its directories, the files of its devices, its processes and their figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use archipelago_tier::{DeviceKind, DeviceSettings};
use serde::Serialize;

use super::bound::{Served, bound, recovered_s};
use super::flags::KeigoFlags;
use super::plan::{self, Group, LOG_DIRTY_BYTES_MAX, Layout, Medium, Part, Side};
use crate::program::{instructions, run_to_end};
use crate::results::{self, ResultEntry, ResultFile};
use crate::rounds::in_new_dir;
use archipelago_bench::harness::samples::Series;
use archipelago_bench::harness::store::{
    DeviceSpec, Error, FileClass, FileSystem, IoContext, IoPurpose, LocalFs, Result,
};
use archipelago_bench::harness::tiers::{TierOutcome, TierPlan};

/// Figures of one run. A figure that was not measured is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    pub(super) ops_per_s: f64,
    pub(super) read_p99_us: Option<f64>,
    pub(super) write_p99_us: Option<f64>,
    pub(super) stall_s: f64,
    pub(super) processors_busy: Option<f64>,
    pub(super) write_amplification: Option<f64>,
    pub(super) tiers: Option<TierOutcome>,
    /// Bound of the rate by the devices of the reads.
    pub(super) bound_ops_per_s: Option<f64>,
    /// Figure of each phase.
    pub(super) recovered_s: Vec<Option<f64>>,
    pub(super) instructions_per_op: Option<f64>,
    /// Operations a second over time.
    pub(super) rates: Vec<(f64, f64)>,
}

impl Figures {
    /// Hit ratio of the fastest device, and of an oracle that knows every read.
    pub(super) fn hits(&self) -> Option<(f64, archipelago_bench::harness::tiers::oracle::Oracle)> {
        let first = self.tiers.as_ref()?.devices.first()?;
        (first.oracle.knows_all > 0.0).then_some((first.hit_ratio, first.oracle))
    }
}

/// A run with its group and side.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    /// Index of its group.
    pub(super) group: usize,
    pub(super) side: Side,
    pub(super) round: u64,
    pub(super) figures: Figures,
}

/// The emulated devices, at the scale of the runs.
pub(super) type Specs = BTreeMap<Medium, DeviceSpec>;

/// The descriptions of the devices, slowed down. The bytes that may wait in memory shrink with the
/// sizes.
pub(super) fn specs(scale: f64) -> Result<Specs> {
    let spec = |medium: Medium| {
        let text = match medium {
            Medium::Nvmm => include_str!("../../../../docs/devices/keigo-nvmm.toml"),
            Medium::Nvme => include_str!("../../../../docs/devices/keigo-nvme.toml"),
            Medium::Sata => include_str!("../../../../docs/devices/keigo-sata.toml"),
        };
        let log_dirty_bytes_max = LOG_DIRTY_BYTES_MAX;
        let spec = DeviceSpec { scale, log_dirty_bytes_max, ..DeviceSpec::from_toml(text)? };
        spec.validate()?;
        Ok((medium, spec))
    };
    Medium::ALL.into_iter().map(spec).collect()
}

/// Directories and devices of a run.
pub(super) struct Stage<'a> {
    pub(super) flags: &'a KeigoFlags,
    pub(super) specs: &'a Specs,
    pub(super) program: PathBuf,
    /// Directory of the run on the fast or only medium, which must not exist yet.
    pub(super) dir: PathBuf,
    /// Directory of the run on the disk, with `--real`.
    pub(super) disk: Option<PathBuf>,
}

impl Stage<'_> {
    /// Makes the records, measures, and removes everything.
    pub(super) fn run(&self, group: &Group, side: Side, round: u64) -> Result<Figures> {
        let run = || self.run_there(group, side, round);
        in_new_dir(&self.dir, || match &self.disk {
            Some(disk) => in_new_dir(disk, run),
            None => run(),
        })
    }

    fn run_there(&self, group: &Group, side: Side, round: u64) -> Result<Figures> {
        let layout = plan::layout(self.flags, group, side);
        let load = self.place(&layout, false)?;
        self.bench(&[plan::load_words(self.flags, group, round), load].concat())?;
        let place = self.place(&layout, true)?;
        if group.part == Part::Instructions {
            return self.count_instructions(group, &place);
        }
        let (results, samples) = (self.dir.join("results.json"), self.dir.join("samples.json"));
        let files = vec![
            format!("--json={}", results.display()),
            format!("--samples={}", samples.display()),
        ];
        self.bench(&[plan::measured_words(self.flags, group, round), place, files].concat())?;
        let results: ResultFile = results::read(&results)?;
        let series: Series = results::read(&samples)?;
        let name = group.workload.benchmark();
        let entry = results.results.iter().rfind(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| Error::invalid(format!("no result of {name}")))?;
        Ok(self.figures(group, &layout, entry, &series))
    }

    fn figures(
        &self,
        group: &Group,
        layout: &Layout,
        entry: &ResultEntry,
        series: &Series,
    ) -> Figures {
        let p99_us = |kinds: [&str; 2]| {
            let found = kinds.iter().find_map(|kind| entry.latency.get(*kind));
            found.map(|latency| latency.p99_ns as f64 / 1e3)
        };
        let is_switch = group.part == Part::Switch;
        let phases = series.benchmarks.iter().map(|window| {
            let of =
                |s: &archipelago_bench::harness::samples::Sample| (s.t_s - window.start_s, s.ops);
            series.during(window).map(of).collect::<Vec<_>>()
        });
        Figures {
            ops_per_s: entry.ops_per_s,
            read_p99_us: p99_us(["read", "seek"]),
            write_p99_us: p99_us(["update", "write"]),
            stall_s: entry.stall_seconds.total(),
            processors_busy: entry.cpu_seconds.map(|seconds| seconds / entry.seconds),
            write_amplification: entry.write_amplification,
            bound_ops_per_s: self.bound(group, layout, entry),
            tiers: entry.tiers.clone(),
            recovered_s: match is_switch {
                true => phases.map(|samples| recovered_s(&samples)).collect(),
                false => Vec::new(),
            },
            instructions_per_op: None,
            rates: if is_switch { rates(series) } else { Vec::new() },
        }
    }

    fn bound(&self, group: &Group, layout: &Layout, entry: &ResultEntry) -> Option<f64> {
        let (Layout::Tiers { layers, .. }, None) = (layout, &self.flags.real) else { return None };
        let devices = &entry.tiers.as_ref()?.devices;
        let served = layers.iter().zip(devices).filter_map(|(layer, device)| {
            Some(Served {
                spec: self.specs.get(&layer.medium)?,
                reads: device.foreground_reads,
                bytes: device.foreground_bytes,
            })
        });
        bound(group.clients, entry.ops, &served.collect::<Vec<_>>())
    }

    /// Returns the words that say where the database lies, and makes the files that they name.
    /// Nothing is emulated while the database is loaded.
    fn place(&self, layout: &Layout, measured: bool) -> Result<Vec<String>> {
        let on_disk = |medium: Medium| match &self.disk {
            Some(disk) if medium != Medium::Nvmm => disk,
            _ => &self.dir,
        };
        let emulated = measured && self.disk.is_none();
        let db = |dir: &Path| format!("--db={}", dir.join("db").display());
        let tiers = match layout {
            Layout::Local => return Ok(vec![db(&self.dir)]),
            Layout::Device(medium) => {
                let mut words = vec![db(on_disk(*medium))];
                if emulated {
                    words.push(format!("--device={}", self.spec_file(*medium)?.display()));
                }
                return Ok(words);
            }
            Layout::OneTier => {
                let path = self.dir.join("one");
                let tiers = vec![DeviceSettings::new(path, DeviceKind::Directory).creating()];
                TierPlan { tiers, ..TierPlan::default() }
            }
            Layout::Tiers { layers, threads_fixed, fast_levels } => {
                let mut tiers = Vec::new();
                for (place, layer) in layers.iter().enumerate() {
                    let (kind, spec) = match (&self.disk, layer.medium) {
                        (None, medium) if emulated => {
                            (DeviceKind::Emulated, Some(self.spec_file(medium)?))
                        }
                        (None, _) => (DeviceKind::Directory, None),
                        (Some(_), Medium::Nvmm) => (DeviceKind::Mapped, None),
                        (Some(_), _) => (DeviceKind::Direct, None),
                    };
                    tiers.push(DeviceSettings {
                        name: layer.medium.name().to_owned(),
                        path: on_disk(layer.medium).join(format!("tier-{place}")),
                        create: true,
                        kind,
                        spec,
                        capacity_bytes: layer.capacity_bytes,
                        cache_share: layer.cache_share,
                        writers_max: layer.medium.writers_max(),
                    });
                }
                let (threads_fixed, fast_levels) = (*threads_fixed, *fast_levels);
                // If everything lies on the fast device, writers do not wait for one another.
                let in_turn = fast_levels.map(|_| false);
                TierPlan { threads_fixed, fast_levels, in_turn, tiers }
            }
        };
        let file = self.dir.join(if measured { "measured.toml" } else { "load.toml" });
        write(&file, &tiers.to_toml()?)?;
        Ok(vec![format!("--tiers={}", file.display())])
    }

    fn spec_file(&self, medium: Medium) -> Result<PathBuf> {
        let file = self.dir.join(format!("{}.toml", medium.name()));
        let spec = self.specs.get(&medium).ok_or_else(|| Error::invalid("an unknown device"))?;
        let text = toml::to_string(spec).map_err(|error| Error::invalid(error.to_string()))?;
        write(&file, &text)?;
        Ok(file)
    }

    /// Instructions per operation of additional operations, without opening and closing.
    fn count_instructions(&self, group: &Group, place: &[String]) -> Result<Figures> {
        const OPS: [u64; 2] = [10_000, 30_000];
        let mut counted = [0; 2];
        for (ops, count) in OPS.into_iter().zip(&mut counted) {
            let words = [plan::counted_words(self.flags, group, ops), place.to_vec()].concat();
            *count = instructions(&self.program, &words, &self.dir.join("callgrind.out"))?;
        }
        let per_op = counted[1].saturating_sub(counted[0]) as f64 / (OPS[1] - OPS[0]) as f64;
        Ok(Figures { instructions_per_op: Some(per_op), ..Figures::default() })
    }

    fn bench(&self, words: &[String]) -> Result<()> {
        run_to_end(&self.program, words)
    }
}

/// Operations a second over the whole run, of each half second.
fn rates(series: &Series) -> Vec<(f64, f64)> {
    const STEP: usize = 5;
    let mut rates = Vec::new();
    for window in &series.benchmarks {
        let samples: Vec<_> = series.during(window).collect();
        for pair in samples.chunks(STEP).collect::<Vec<_>>().windows(2) {
            let (from, to) = (pair[0][0], pair[1][0]);
            let seconds = (to.t_s - from.t_s).max(1e-3);
            rates.push((to.t_s, to.ops.saturating_sub(from.ops) as f64 / seconds));
        }
    }
    rates
}

/// Writes a file, whole or not at all.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    let context = IoContext::new(FileClass::Other, IoPurpose::ForegroundWrite);
    let path = std::path::absolute(path)
        .map_err(|error| Error::invalid(format!("{} is not a path: {error}", path.display())))?;
    LocalFs::new().write_atomic(&path, text.as_bytes(), context)
}
