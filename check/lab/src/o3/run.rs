//! One run: a cluster of its own, the owner's process, and their figures.
//!
//! The owner is `archipelago bench`, or a Redis server of the laboratory with clients in this
//! process. Executors and memory nodes are sampled from outside while the owner runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago_bench::harness::samples::Series;
use archipelago_bench::harness::store::{Error, FileSystem as _, LocalFs, MovedBytes, Result};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, ClusterSpec, Devices, Place};
use super::databases::{DatabasesFigures, OwnerResult, run_owners};
use super::modes::Nodes;
use super::node::{COMMAND, RoleState};
use super::plan::{Cell, Load, Several};
use super::resp::{RespFigures, RespPlan};
use super::takeover::{self, Opened, Owners, TakeoverFigures};
use super::timeline::{RoleSample, Timeline};
use super::words::{Case, OwnerPlaces, RESP_VALUE};
use crate::machine::BusyTime;
use crate::program::run_to_end;
use crate::results::{self, ResultEntry, ResultFile};
use crate::role::RoleProcess;
use crate::rounds::in_new_dir;
use crate::sampling::sample_during;

const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Figures of one role over the whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RoleRun {
    pub(super) place: Place,
    pub(super) state: RoleState,
}

/// A run with its cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) cell: Cell,
    pub(super) round: u64,
    /// Result of the benchmark that counts; `None` for Redis clients, take-overs and several
    /// databases.
    pub(super) result: Option<ResultEntry>,
    pub(super) timeline: Option<Timeline>,
    pub(super) roles: Vec<RoleRun>,
    pub(super) resp: Option<RespFigures>,
    pub(super) takeover: Option<TakeoverFigures>,
    pub(super) several: Option<DatabasesFigures>,
    /// Bytes per second that were offered, if the load was limited.
    pub(super) offered_bytes_per_s: Option<u64>,
    /// Bytes of a key and a value.
    pub(super) record_bytes: u64,
    /// Share of the machine's processor time that was used.
    pub(super) busy_share: Option<f64>,
    /// Counters of the work that left the owner.
    pub(super) offload: BTreeMap<String, u64>,
}

impl Run {
    /// Operations per second.
    pub(super) fn rate(&self) -> Option<f64> {
        match (&self.result, &self.resp) {
            (Some(result), _) => (result.seconds > 0.0).then(|| result.ops as f64 / result.seconds),
            (None, Some(resp)) => (resp.seconds > 0.0).then(|| resp.commands as f64 / resp.seconds),
            (None, None) => self.several.as_ref().map(DatabasesFigures::rate),
        }
    }

    /// MB/s of keys and values of a load that writes only.
    pub(super) fn user_mb_per_s(&self) -> Option<f64> {
        Some(self.rate()? * self.record_bytes as f64 / 1e6)
    }

    /// Operations per second with the time until compactions rest.
    pub(super) fn settled_rate(&self) -> Option<f64> {
        let result = self.result.as_ref()?;
        Some(result.ops as f64 / (result.seconds + result.settle_seconds?).max(1e-9))
    }

    /// Operations per second in the second half.
    pub(super) fn second_half(&self) -> Option<f64> {
        match &self.several {
            Some(several) => several.second_half(),
            None => self.timeline.as_ref()?.second_half,
        }
    }

    /// Median of the latency of a kind of operation, in microseconds.
    pub(super) fn p50_us(&self, kind: &str) -> Option<f64> {
        // An older program writes no median.
        let p50_ns = Some(self.result.as_ref()?.latency.get(kind)?.p50_ns).filter(|ns| *ns > 0)?;
        Some(p50_ns as f64 / 1e3)
    }

    /// 99th percentile of the latency of a kind of operation, in microseconds.
    pub(super) fn p99_us(&self, kinds: &[&str]) -> Option<f64> {
        let latency = &self.result.as_ref()?.latency;
        let found = kinds.iter().find_map(|kind| latency.get(*kind))?;
        Some(found.p99_ns as f64 / 1e3)
    }

    /// Share of the time of the benchmark in which its only writer was stalled.
    pub(super) fn stalled_share(&self) -> Option<f64> {
        let result = self.result.as_ref()?;
        (result.seconds > 0.0).then(|| result.stall_seconds.total() / result.seconds)
    }

    /// Bytes that the owner moved until it had settled, or until the benchmark ended.
    pub(super) fn moved(&self) -> Option<MovedBytes> {
        let result = self.result.as_ref()?;
        let settled = result.settled.as_ref().and_then(|settled| settled.moved);
        settled.or(result.moved)
    }

    /// Bytes that all other nodes wrote to the storage.
    pub(super) fn written_elsewhere(&self) -> f64 {
        self.roles.iter().map(|role| role.state.written_bytes as f64).sum()
    }

    /// Bytes of keys and values that the benchmark wrote.
    pub(super) fn user_bytes(&self) -> Option<f64> {
        Some(self.result.as_ref()?.ops as f64 * self.record_bytes as f64)
    }
}

/// Programs and directories of a run.
pub(super) struct Stage<'a> {
    pub(super) case: Case<'a>,
    /// Program of the owner.
    pub(super) archipelago: &'a Path,
    /// Program of the other roles.
    pub(super) node_program: &'a Path,
    pub(super) devices: &'a Devices,
    /// Directory of the run, which must not exist yet.
    pub(super) dir: PathBuf,
    /// Function that gets a line about each step.
    pub(super) said: &'a (dyn Fn(&str) + Sync),
}

impl Stage<'_> {
    /// Makes the run, and removes the directory.
    pub(super) fn run(&self) -> Result<Run> {
        let run = in_new_dir(&self.dir, || self.run_there())?;
        let text = match &run.takeover {
            Some(takeover) => format!("{:.2} s until the first read", takeover.seconds),
            None => format!("{:.0} operations a second", run.rate().unwrap_or(f64::NAN)),
        };
        (self.said)(&text);
        Ok(run)
    }

    /// Directory of the shared storage.
    fn share(&self) -> PathBuf {
        self.dir.join("share")
    }

    fn run_there(&self) -> Result<Run> {
        LocalFs::new().create_dir_all(&self.share())?;
        let spec = ClusterSpec {
            program: self.node_program,
            share: &self.share(),
            nodes: self.case.cell.nodes(),
            devices: self.devices,
            speed: self.case.flags.speed(),
            sockets: self.case.cell.shm.then_some(self.dir.as_path()),
        };
        let cluster = Cluster::start(&spec)?;
        let busy = BusyTime::now();
        let mut run = match self.case.cell.load {
            Load::Resp(load) => self.serve(&cluster, load)?,
            Load::Takeover(_) => self.take_over(&cluster)?,
            Load::Several(several) => self.several(&cluster, several)?,
            _ => self.bench(&cluster)?,
        };
        run.busy_share = busy.zip(BusyTime::now()).and_then(|(from, to)| to.share_since(&from));
        let states = cluster.states()?;
        run.roles = states.into_iter().map(|(place, state)| RoleRun { place, state }).collect();
        cluster.close()?;
        Ok(run)
    }

    /// A run without figures.
    fn empty(&self) -> Run {
        Run {
            cell: self.case.cell,
            round: self.case.round,
            result: None,
            timeline: None,
            roles: Vec::new(),
            resp: None,
            takeover: None,
            several: None,
            offered_bytes_per_s: self.case.offered_bytes_per_s(),
            record_bytes: self.case.value().record_bytes(),
            busy_share: None,
            offload: Default::default(),
        }
    }

    /// Runs the owner as a benchmark.
    fn bench(&self, cluster: &Cluster) -> Result<Run> {
        let (json, series) = (self.dir.join("results.json"), self.dir.join("series.json"));
        let manager = cluster.address();
        let has_nodes = self.case.cell.nodes() != Nodes::default();
        let mut words = self.case.owner_words(OwnerPlaces {
            db: &self.share().join("db"),
            device: &self.devices.link,
            manager: has_nodes.then_some(&manager),
        });
        words.push(format!("--json={}", json.display()));
        words.push(format!("--samples={}", series.display()));
        let run_owner = || run_to_end(self.archipelago, &words);
        let samples = if has_nodes {
            let sample = |t_s: f64| -> Result<RoleSample> {
                Ok(RoleSample { t_s, states: cluster.states()? })
            };
            sample_during(SAMPLE_EVERY, sample, run_owner)?
        } else {
            run_owner()?;
            Vec::new()
        };
        let result = self.result(&json)?;
        let name = self.case.benchmark();
        let timeline = Timeline::of(&results::read::<Series>(&series)?, name, &samples);
        let offload = result.offload.clone();
        Ok(Run { result: Some(result), timeline, offload, ..self.empty() })
    }

    /// Result of the benchmark that counts, from the result file.
    fn result(&self, json: &Path) -> Result<ResultEntry> {
        let name = self.case.benchmark();
        let results = results::read::<ResultFile>(json)?.results;
        let result = results.into_iter().rfind(|result| result.name == name);
        result.ok_or_else(|| {
            Error::invalid(format!("the result file of the benchmark has no {name}"))
        })
    }

    /// Runs the owners of several databases at the same time.
    fn several(&self, cluster: &Cluster, several: Several) -> Result<Run> {
        let file = |kind: &str, number: u64| self.dir.join(format!("{kind}-{number}.json"));
        let (manager, numbers) = (cluster.address(), 1..=u64::from(several.databases));
        let (mut loads, mut owners) = (Vec::new(), Vec::new());
        for number in numbers.clone() {
            let db = self.share().join(format!("db-{number}"));
            let device = &self.devices.link;
            let places = OwnerPlaces { db: &db, device, manager: Some(&manager) };
            loads.push(self.case.words_of_load(places, number));
            let mut words = self.case.words_of_database(places, number);
            words.push(format!("--json={}", file("results", number).display()));
            words.push(format!("--samples={}", file("series", number).display()));
            owners.push(words);
        }
        if self.case.loads_databases() {
            run_owners(self.archipelago, &loads)?;
        }
        let sample =
            |t_s: f64| -> Result<RoleSample> { Ok(RoleSample { t_s, states: cluster.states()? }) };
        let run = || run_owners(self.archipelago, &owners);
        let samples = sample_during(SAMPLE_EVERY, sample, run)?;
        let result = |number: u64| {
            let series = results::read::<Series>(&file("series", number))?;
            let timeline = Timeline::of(&series, self.case.benchmark(), &[]);
            Ok(OwnerResult { result: self.result(&file("results", number))?, timeline })
        };
        let ended = numbers.map(result).collect::<Result<Vec<OwnerResult>>>()?;
        let mut offload = BTreeMap::<String, u64>::new();
        for (name, count) in ended.iter().flat_map(|owner| &owner.result.offload) {
            *offload.entry(name.clone()).or_default() += count;
        }
        let several = Some(DatabasesFigures::of(&ended, &samples, self.case.threads()));
        Ok(Run { several, offload, ..self.empty() })
    }

    /// Kills an owner whose memtables rest, and runs the next one.
    fn take_over(&self, cluster: &Cluster) -> Result<Run> {
        let json = self.dir.join("results.json");
        let (db, manager) = (self.share().join("db"), cluster.address());
        let places = OwnerPlaces { db: &db, device: &self.devices.link, manager: Some(&manager) };
        let first = self.case.owner_words(places);
        let mut next = self.case.next_owner_words(places);
        next.push(format!("--json={}", json.display()));
        let owners = Owners { program: self.archipelago, db: &db, first: &first, next: &next };
        let Opened { seconds, log_bytes, shard_bytes } = takeover::measure(cluster, &owners)?;
        let offload = self.result(&json)?.offload;
        let of = |name: &str| {
            offload.get(&format!("offload_takeover_{name}")).copied().unwrap_or_default()
        };
        let others = ["gap", "beyond_log", "unusable", "no_memory"];
        let takeover = TakeoverFigures {
            seconds,
            log_bytes,
            shard_bytes,
            records: self.case.records(),
            records_spared: of("records_spared"),
            kept: of("kept"),
            recovery_ms: of("ms"),
            dropped_flushed: of("dropped_flushed"),
            dropped: others.map(|cause| of(&format!("dropped_{cause}"))).iter().sum(),
        };
        Ok(Run { takeover: Some(takeover), offload, ..self.empty() })
    }

    /// Runs a Redis server and its clients.
    fn serve(&self, cluster: &Cluster, load: super::plan::RespLoad) -> Result<Run> {
        let (flags, spec) = (self.case.flags, self.case.cell.mode.spec());
        let config = self.dir.join("settings.toml");
        crate::page::write(&config, &self.case.settings().to_toml()?)?;
        let words = [
            COMMAND.to_owned(),
            "--role=server".to_owned(),
            format!("--manager={}", cluster.address()),
            format!("--dir={}", self.share().join("db").display()),
            format!("--device={}", self.devices.link.display()),
            format!("--speed={}", flags.speed()),
            format!("--config={}", config.display()),
            format!("--offload_mode={}", spec.offload),
            format!("--remote_memtables_bytes={}", self.case.remote_bytes()),
        ];
        let started = RoleProcess::start(self.node_program, &words, "Redis server".to_owned());
        let (mut server, first): (RoleProcess<RoleState>, RoleState) = started?;
        let address = first.address.unwrap_or_default();
        let plan = RespPlan {
            address: &address,
            load,
            clients: flags.clients(),
            records: self.case.records(),
            value_bytes: RESP_VALUE.bytes(),
            length: Duration::from_secs(flags.seconds()),
            seed: flags.seed + self.case.round * 1000,
        };
        plan.load()?;
        let resp = Some(plan.run()?);
        let offload = server.state()?.offload;
        server.close()?;
        Ok(Run { resp, offload, ..self.empty() })
    }
}
