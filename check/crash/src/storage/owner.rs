//! The owner of a volume in a process of its own: it opens the volume and the database, and writes
//! from several threads until it is killed, stopped, or fenced.
//!
//! Failure: an owner that another one has fenced ends with [`Fenced`](ErrorKind::Fenced). Any other
//! error is a violation, because no single fault may fail a write.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago::env::FileSystem;
use archipelago::volume::{VolumeSettings, VolumeStorage};
use archipelago::{
    Db, Error, ErrorKind, Result, Rng, Spawn as _, Storage, SystemClock, SystemSpawn,
};
use archipelago_compute::Offloaded;
use archipelago_offload::net::{OffloadMode, OwnerSettings};

use super::steps::{Step, StepFs};
use crate::acks::AckWriter;
use crate::children::{OPENED, OPENING, StepMoment, StepTrigger, Words, say};
use crate::reads::Reads;
use crate::settings::{Offloading, Over, open};
use crate::writers::{Refusals, ThreadStart, WriterPlan, Writers};

/// Line of an owner that has done all operations, and whose logs lack no copy.
pub(super) const COPIED: &str = "all copies are there";

/// Directory in the volume for tables that are ingested.
const SCRATCH: &str = "/scratch";
/// Time for which an owner or a check tries to open a volume whose nodes have full disks.
const FULL_PATIENCE: Duration = Duration::from_secs(60);
/// Time for which an owner whose lease has ended waits for the answer of the register.
const LEASE_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts to open a volume whose nodes have full disks.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two checks of the copies of logs.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// The volume of a run, and the way in which it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumePlan {
    /// Address of the manager: `HOST:PORT`.
    pub(super) manager: String,
    pub(super) volume: String,
    /// Seed of the database's settings and operations.
    pub(super) seed: u64,
    /// Decides the settings that differ from open to open.
    pub(super) open_seed: u64,
    pub(super) take_over: bool,
    pub(super) lease_ms: u64,
    /// Whether disks of nodes may be full, so that calls may be refused.
    pub(super) full_disk: bool,
    /// Whether nodes that do not answer are given up.
    pub(super) accept_loss: bool,
    /// Whether compactions and garbage collections run in executors.
    pub(super) offloads: bool,
}

/// An open database in a volume.
#[derive(Debug)]
pub(super) struct OpenVolume {
    pub(super) volume: VolumeStorage,
    pub(super) db: Db,
}

impl OpenVolume {
    /// Closes the database, and gives the volume up.
    pub(super) fn close(self) -> Result<()> {
        self.db.close()?;
        self.volume.close()
    }
}

impl VolumePlan {
    /// Becomes the owner, and opens the database. Both are created if they do not exist. `trigger`
    /// notes the steps of the owner.
    pub(super) fn open(&self, trigger: Option<&Arc<StepTrigger<Step>>>) -> Result<OpenVolume> {
        self.patiently(|| self.open_once(trigger))
    }

    /// Repeats a call while full disks refuse it.
    fn patiently<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let clock = SystemClock::shared();
        let until_ns = clock.now_ns() + FULL_PATIENCE.as_nanos() as u64;
        loop {
            match call() {
                Err(error)
                    if self.full_disk
                        && (error.is_no_space() || error.kind() == ErrorKind::Busy)
                        && clock.now_ns() < until_ns =>
                {
                    clock.sleep(FULL_PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Removes the database of the volume, and gives the volume up.
    pub(super) fn remove_database(&self) -> Result<()> {
        self.patiently(|| self.remove_once())
    }

    fn remove_once(&self) -> Result<()> {
        let volume = VolumeStorage::open(&self.settings())?;
        let files = volume.files();
        if !files.exists(volume.dir())? {
            return volume.close();
        }
        let removed = files.remove_dir_all(volume.dir()).and_then(|()| {
            // The pool gives up the bytes when the removal is durable.
            files.sync_dir(Path::new(SCRATCH))
        });
        removed.and(volume.close())
    }

    fn settings(&self) -> VolumeSettings {
        let owner = format!("`archipelago-crash` (process {})", std::process::id());
        let managers = vec![format!("tcp:{}", self.manager)];
        let mut settings = VolumeSettings {
            take_over: self.take_over,
            lease: Duration::from_millis(self.lease_ms),
            ..VolumeSettings::new(managers, &self.volume, owner)
        };
        settings.stores.accept_loss = self.accept_loss;
        settings
    }

    fn open_once(&self, trigger: Option<&Arc<StepTrigger<Step>>>) -> Result<OpenVolume> {
        let volume = VolumeStorage::open_or_create(&self.settings(), || Ok(()))?;
        match self.open_database(&volume, trigger) {
            Ok(db) => Ok(OpenVolume { volume, db }),
            Err(error) => {
                // The first error counts.
                let _second = volume.close();
                Err(error)
            }
        }
    }

    fn open_database(
        &self,
        volume: &VolumeStorage,
        trigger: Option<&Arc<StepTrigger<Step>>>,
    ) -> Result<Db> {
        let files: Arc<dyn FileSystem> = Arc::clone(volume.files()) as _;
        files.create_dir_all(Path::new(SCRATCH))?;
        let fs: Arc<dyn FileSystem> = match trigger {
            Some(trigger) => Arc::new(StepFs::new(files, Arc::clone(trigger))),
            None => files,
        };
        if !self.offloads {
            return open(volume.dir(), self.seed, self.open_seed, Over::Volume(&fs));
        }
        let storage = Storage { fs, ..Storage::from(volume.clone()) };
        let settings = OwnerSettings {
            managers: vec![format!("tcp:{}", self.manager)],
            mode: OffloadMode::Compactions,
            ..OwnerSettings::default()
        };
        let offloaded = Offloaded::start(&storage, settings)?;
        let trigger = trigger.cloned();
        let points = Arc::new(move |point: &str| {
            if let (Some(trigger), Some(step)) = (&trigger, Step::of_point(point)) {
                trigger.note(step);
            }
            Ok(())
        });
        let parts = Offloading { storage, offloaded, points };
        open(volume.dir(), self.seed, self.open_seed, Over::Offloading(&parts))
    }
}

/// An owner that writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerRole {
    pub(super) volume: VolumePlan,
    /// File of the acknowledged operations.
    pub(super) acks: PathBuf,
    pub(super) ops_per_thread: u64,
    pub(super) threads: Vec<ThreadStart>,
    pub(super) moment: StepMoment<Step>,
    /// Whether the owner keeps the volume open after its last operation, until it is killed.
    pub(super) stays: bool,
}

impl OwnerRole {
    pub(super) const NAME: &str = "owner";

    pub(super) fn words(&self) -> Vec<String> {
        let VolumePlan { manager, volume, seed, open_seed, lease_ms, .. } = &self.volume;
        let words = Words::default()
            .with("manager", manager)
            .with("volume", volume)
            .with("seed", seed)
            .with("open_seed", open_seed)
            .with("take_over", u64::from(self.volume.take_over))
            .with("lease_ms", lease_ms)
            .with("full_disk", u64::from(self.volume.full_disk))
            .with("accept_loss", u64::from(self.volume.accept_loss))
            .with("offloads", u64::from(self.volume.offloads))
            .with("acks", self.acks.display())
            .with("ops", self.ops_per_thread)
            .with("threads", ThreadStart::words(&self.threads))
            .with("stays", u64::from(self.stays));
        self.moment.add_to(words, &Step::ALL).command_line(Self::NAME)
    }

    pub(super) fn parse(words: &Words) -> Result<Self, String> {
        let volume = VolumePlan {
            manager: words.text("manager")?.to_owned(),
            volume: words.text("volume")?.to_owned(),
            seed: words.number("seed")?,
            open_seed: words.number("open_seed")?,
            take_over: words.switch("take_over")?,
            lease_ms: words.number("lease_ms")?,
            full_disk: words.switch("full_disk")?,
            accept_loss: words.switch("accept_loss")?,
            offloads: words.switch("offloads")?,
        };
        let moment = StepMoment::parse(words, &Step::ALL)?;
        Ok(Self {
            volume,
            acks: words.path("acks")?,
            ops_per_thread: words.number("ops")?,
            threads: ThreadStart::parse(words.text("threads")?)?,
            moment,
            stays: words.switch("stays")?,
        })
    }

    /// Writes, and returns if all operations are done, or if another owner has the volume.
    pub(super) fn run(&self) -> Result<()> {
        let trigger = StepTrigger::new(self.moment);
        let acks = AckWriter::open(&self.acks)?;
        say(OPENING);
        if self.moment.step == Step::TakeOver {
            fire_later(&trigger)?;
        }
        let opened = self.volume.open(Some(&trigger))?;
        say(OPENED);
        let plan = WriterPlan {
            seed: self.volume.seed,
            ops_per_thread: self.ops_per_thread,
            threads: self.threads.clone(),
            refusals: match self.volume.full_disk {
                true => Refusals::RetryAllButAdditions,
                false => Refusals::Fail,
            },
            fs: Arc::clone(opened.volume.files()) as _,
            scratch: PathBuf::from(SCRATCH),
            reads: Reads::None,
        };
        let observer = Box::new(move || trigger.note(Step::Write));
        let writers = Writers::new(opened.db.clone(), acks, plan, observer)?;
        let written = writers.run();
        drop(writers);
        written.map_err(|error| reason(&opened.volume, error))?;
        if self.stays {
            stay(&opened.volume)?;
        }
        opened.close()
    }
}

/// Waits until the logs have all their copies, reports that to the parent, and waits for a line
/// from the parent.
/// Errors: `Fenced` if another owner has the volume then, because nothing is left to be closed.
fn stay(volume: &VolumeStorage) -> Result<()> {
    while volume.pool_report().log_backlog_bytes > 0 {
        // The logs of an owner that was fenced get no more copies.
        if let Err(lost) = volume.check_lease()
            && lost.kind() == ErrorKind::Fenced
        {
            return Err(lost);
        }
        SystemClock::shared().sleep(LOOK_PAUSE);
    }
    say(COPIED);
    let mut answer = String::new();
    // The end of the input means that the parent has ended.
    let _read = std::io::stdin().read_line(&mut answer);
    still_owns(volume)
}

/// The error of a write, or the loss of the volume if that is its reason.
fn reason(volume: &VolumeStorage, error: Error) -> Error {
    match still_owns(volume) {
        Err(lost) if lost.kind() == ErrorKind::Fenced => lost,
        _ => error,
    }
}

/// Returns the error of an owner that has lost its volume. An owner whose lease has ended is
/// refused as busy until the register shows whether another owner has the volume.
fn still_owns(volume: &VolumeStorage) -> Result<()> {
    let clock = SystemClock::shared();
    let until_ns = clock.now_ns() + LEASE_PATIENCE.as_nanos() as u64;
    loop {
        match volume.check_lease() {
            Err(unsure) if unsure.kind() == ErrorKind::Busy && clock.now_ns() < until_ns => {
                clock.sleep(LOOK_PAUSE);
            }
            known => return known,
        }
    }
}

/// Fires a trigger after its number of milliseconds.
fn fire_later(trigger: &Arc<StepTrigger<Step>>) -> Result<()> {
    let trigger = Arc::clone(trigger);
    let body = Box::new(move || {
        let mut rng = Rng::with_seed(trigger.moment().after);
        let after_us = trigger.moment().after * 1000 + rng.u64(..1000);
        SystemClock::shared().sleep(Duration::from_micros(after_us));
        trigger.fire();
    });
    // The thread ends by itself.
    SystemSpawn.spawn("fire-later", body).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children::AtStep;

    #[test]
    fn owner_gets_every_argument() {
        let owner = OwnerRole {
            volume: VolumePlan {
                manager: "127.0.0.1:7".to_owned(),
                volume: "v".to_owned(),
                seed: 1,
                open_seed: 2,
                take_over: true,
                lease_ms: 3,
                full_disk: true,
                accept_loss: true,
                offloads: true,
            },
            acks: "/tmp/acks".into(),
            ops_per_thread: 4,
            threads: vec![ThreadStart { thread: 1, first: 5 }, ThreadStart { thread: 3, first: 6 }],
            moment: StepMoment { step: Step::Gc, after: 7, reaction: AtStep::Halt },
            stays: true,
        };
        let words = Words::parse(owner.words().into_iter().skip(2)).unwrap();
        assert_eq!(OwnerRole::parse(&words).unwrap(), owner);
    }
}
