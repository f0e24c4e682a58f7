//! Seeded runs of a writer, faults of nodes and recoveries, and proofs that the runs notice a
//! protocol with a step left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::runtime::Runtime;
use archipelago_env::FileClass;

use super::super::super::log::quorum::WriterSabotage;
use super::super::super::log::recovery::RecoverySabotage;
use super::model::Health;
use super::{MS, NodeLogOptions, World, log, pattern};
use crate::log::{LogPosition, LogWriter};

/// Settings of a seeded run.
#[derive(Clone, Copy, Default)]
struct RunSettings {
    writer: WriterSabotage,
    recovery: RecoverySabotage,
    /// Whether nodes lose unsynced bytes.
    loses_power: bool,
}

/// One run: a writer, faults, and two recoveries.
struct Run {
    world: World,
    rng: Rng,
    class: FileClass,
    settings: RunSettings,
    acknowledged: u64,
    synced: u64,
}

impl Run {
    fn new(seed: u64, settings: RunSettings) -> Self {
        let mut rng = Rng::with_seed(seed);
        let world = World::new(seed, rng.u64(3..7));
        let most = rng.u64(20_000..2 * MS);
        world.pool.set_delay(10_000..most);
        let class = if rng.u8(0..4) == 0 { FileClass::Manifest } else { FileClass::Wal };
        Self { world, rng, class, settings, acknowledged: 0, synced: 0 }
    }

    fn options(&self) -> NodeLogOptions {
        NodeLogOptions {
            patience: Duration::from_millis(50),
            stall_max: Duration::from_secs(1),
            backlog_bytes_max: 10_000,
            backlog_max: Duration::from_millis(100),
            look_every: Duration::from_millis(20),
            writer_sabotage: self.settings.writer,
            recovery_sabotage: self.settings.recovery,
            ..NodeLogOptions::default()
        }
    }

    /// Runs to the end, and returns the rule that was broken, if any.
    fn problem(&mut self) -> Option<String> {
        let store = self.world.store(self.options());
        let mut writer = self.world.create(&store, log(1), self.class);
        let position = writer.position();
        for _ in 0..self.rng.u32(5..40) {
            if self.step(&mut *writer, &*position).is_err() {
                break;
            }
        }
        if self.rng.bool() {
            // The process dies. Otherwise it goes on without knowing of its successor.
            let submitted = Arc::new(AtomicU64::new(writer.len_bytes()));
            drop((writer, position));
            return self.recover_twice(&submitted, None);
        }
        let submitted = self.go_on(writer);
        self.recover_twice(&submitted, Some(&position))
    }

    /// Starts a task that goes on to submit. Returns the number of submitted bytes.
    fn go_on(&mut self, mut writer: Box<dyn LogWriter>) -> Arc<AtomicU64> {
        let submitted = Arc::new(AtomicU64::new(writer.len_bytes()));
        let (noted, host) = (Arc::clone(&submitted), self.world.host.clone());
        let mut rng = self.rng.fork();
        let _ends_by_itself = self.world.host.spawn("old writer", async move {
            let runtime: Arc<dyn Runtime> = Arc::new(host);
            for _ in 0..60 {
                runtime.sleep(Duration::from_micros(rng.u64(1..400))).await;
                let start = writer.len_bytes();
                if writer.submit(&[&pattern(start..start + 200)]).is_err() {
                    break;
                }
                noted.store(start + 200, Ordering::Relaxed);
            }
        });
        submitted
    }

    fn step(&mut self, writer: &mut dyn LogWriter, position: &dyn LogPosition) -> Result<(), ()> {
        let submitted = writer.len_bytes();
        match self.rng.u8(0..20) {
            0..9 => {
                let end = submitted + self.rng.u64(1..3000);
                writer.submit(&[&pattern(submitted..end)]).map_err(|_| ())?;
            }
            9..13 => {
                let end = self.rng.u64(self.acknowledged..=submitted);
                position.wait(end).map_err(|_| ())?;
                self.acknowledged = self.acknowledged.max(end);
            }
            13 => {
                let end = position.sync().map_err(|_| ())?;
                (self.synced, self.acknowledged) = (end, self.acknowledged.max(end));
            }
            14..16 => self.world.sleep(self.rng.u64(0..30)),
            _ => self.fault(),
        }
        Ok(())
    }

    /// Heals the nodes, and breaks one of them, or lets one drain.
    fn fault(&mut self) {
        self.world.pool.heal();
        self.world.pool.end_drains();
        let nodes = self.world.pool.nodes();
        let node = nodes[self.rng.usize(0..nodes.len())];
        let health = match self.rng.u8(0..7) {
            0 => Health::Down,
            1 => Health::Silent,
            2 => Health::Slow(self.rng.u64(MS..60 * MS)),
            3 if self.settings.loses_power => return self.world.pool.lose_power(node),
            4 => {
                let arrivals = self.rng.u64(0..20);
                return self.world.pool.plan(arrivals, node, Health::Down);
            }
            5 => return self.world.pool.drain(node),
            _ => Health::Up,
        };
        self.world.pool.set_health(node, health);
    }

    fn recover_twice(
        &mut self,
        submitted: &AtomicU64,
        old: Option<&Arc<dyn LogPosition>>,
    ) -> Option<String> {
        self.world.pool.heal();
        self.world.pool.end_drains();
        if !self.settings.loses_power && self.rng.bool() {
            // One node never answers again.
            let nodes = self.world.ensemble_or_none(log(1));
            if !nodes.is_empty() {
                let node = nodes[self.rng.usize(0..nodes.len())];
                self.world.pool.set_health(node, Health::Down);
            }
        }
        let store = self.world.store(self.options());
        let first = self.world.recover_with(&store, log(1), self.class, 2);
        let (recovered, bytes) = match first {
            Ok(recovered) => recovered,
            Err(error) => return Some(format!("the recovery failed: {error}")),
        };
        let len = bytes.len() as u64;
        self.world.sleep(30);
        let submitted = submitted.load(Ordering::Relaxed);
        if bytes != pattern(0..len) || len > submitted {
            return Some(format!("{len} wrong bytes of {submitted}"));
        }
        if len < self.synced || (len < self.acknowledged && !recovered.may_miss_unsynced) {
            let (acknowledged, synced) = (self.acknowledged, self.synced);
            return Some(format!("{len} bytes, {acknowledged} acknowledged, {synced} synced"));
        }
        if let Some(old) = old {
            // The old writer may know acknowledgements that no caller has seen.
            let mut end = len + 1;
            while end <= submitted {
                if old.wait(end).is_ok() && !recovered.may_miss_unsynced {
                    return Some(format!("byte {end} was acknowledged behind the end {len}"));
                }
                end += 100;
            }
        }
        match self.world.recover_with(&store, log(1), self.class, 3) {
            Ok((_, again)) if again == bytes => None,
            Ok((_, again)) => Some(format!("recoveries find {len} and {} bytes", again.len())),
            Err(error) => Some(format!("the second recovery failed: {error}")),
        }
    }
}

impl World {
    fn ensemble_or_none(&self, id: super::LogId) -> Vec<super::StorageId> {
        self.kept(id).layout.extents.last().map(|extent| extent.nodes.clone()).unwrap_or_default()
    }
}

/// The first seed below `seeds` whose run breaks a rule, and the rule.
fn first_problem(settings: RunSettings, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| Some((seed, Run::new(seed, settings).problem()?)))
}

#[test]
fn writers_and_recoveries_keep_their_promises_in_every_run() {
    assert_eq!(first_problem(RunSettings::default(), 400), None);
}

#[test]
fn runs_with_power_losses_keep_their_promises() {
    let settings = RunSettings { loses_power: true, ..RunSettings::default() };
    assert_eq!(first_problem(settings, 400), None);
}

fn assert_noticed(settings: RunSettings) {
    assert!(first_problem(settings, 5000).is_some(), "no run noticed it");
}

#[test]
fn acknowledging_at_one_answer_is_noticed() {
    let writer = WriterSabotage { ack_at_one: true, ..WriterSabotage::default() };
    assert_noticed(RunSettings { writer, ..RunSettings::default() });
}

#[test]
fn acknowledging_unrecorded_extents_is_noticed() {
    let writer = WriterSabotage { early_extent: true, ..WriterSabotage::default() };
    assert_noticed(RunSettings { writer, ..RunSettings::default() });
}

#[test]
fn counting_late_answers_is_noticed() {
    let writer = WriterSabotage { late_answers: true, ..WriterSabotage::default() };
    assert_noticed(RunSettings { writer, ..RunSettings::default() });
}

#[test]
fn recovery_without_fence_is_noticed() {
    let recovery = RecoverySabotage { no_fence: true, ..RecoverySabotage::default() };
    assert_noticed(RunSettings { recovery, ..RunSettings::default() });
}

#[test]
fn recovery_that_believes_limbo_is_noticed() {
    let recovery = RecoverySabotage { no_limbo: true, ..RecoverySabotage::default() };
    assert_noticed(RunSettings { recovery, loses_power: true, ..RunSettings::default() });
}
