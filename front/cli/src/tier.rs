//! `archipelago tier profile` measures the devices of a database and writes its placement scheme
//! (Keigo §4.2). `archipelago tier remove` removes a device.
//!
//! `profile` measures the throughput of every device by the number of threads. Then it counts the
//! writers of each level while it writes into a temporary database. Both commands hold the devices
//! exclusively. Failure: an interrupted `remove` continues when it is run again. An interrupted
//! `profile` changes no scheme, but it may leave a directory `profile` on the devices.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use archipelago::env::local::LocalFs;
use archipelago::env::{FileSystem, IoContext, IoPurpose};
use archipelago::tier::profile::{
    Assumed, ProbeOptions, Prober, device_file_system, has_fio, probe, probe_with_fio,
};
use archipelago::tier::scheme::{DeviceProfile, Scheme};
use archipelago::tier::{
    Components as TierComponents, DeviceKind, DeviceSettings, ExclusiveDevices, Policy,
};
use archipelago::{
    CfOptions, Clock, Components, Db, DbOptions, Error, Joiner, Result, Rng, Settings, Spawn as _,
    SystemClock, SystemSpawn,
};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::console::{print, print_line};

/// Measure the devices of a database on tiers, or remove a device from the tiers.
#[derive(Debug, Args)]
pub(crate) struct Tier {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Measure the devices, and write which levels belong on the fastest device.
    ///
    /// The command measures the throughput of every device by the number of threads. Then it counts
    /// the writers of each level during a write-heavy run. No other process may have the database
    /// open. The data of the database does not change.
    #[command(after_help = "Example:\n  archipelago tier profile --dir ./data --config store.toml")]
    Profile(Profile),
    /// Move all files off a device and remove it from the tiers, before you replace the drive.
    ///
    /// No other process may have the database open. The other devices need enough free space for
    /// the files. If the command is interrupted, run it again.
    #[command(after_help = "Example:\n  archipelago tier remove --dir ./data nvme1")]
    Remove(Remove),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// `fio` if it is installed and the device is a directory, and the built-in probe otherwise
    Auto,
    /// The built-in probe
    Own,
    /// `fio`, and an error if it cannot measure the device
    Fio,
}

#[derive(Debug, Args)]
struct Remove {
    /// Name of the device, as `archipelago db tiers` prints it
    name: String,
    /// Directory of the database
    #[arg(long, value_name = "DIR", default_value = "./archipelago-data")]
    dir: PathBuf,
    /// TOML file with settings whose [[tiers]] name the devices. Default: the devices that the
    /// directory of the database names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Profile {
    /// Directory of the database
    #[arg(long, value_name = "DIR", default_value = "./archipelago-data")]
    dir: PathBuf,
    /// TOML file with settings whose [[tiers]] name the devices. Default: the devices that the
    /// directory of the database names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Program that measures the devices
    #[arg(long, value_enum, default_value = "auto")]
    tool: Tool,
    /// Milliseconds of each measurement, one for every number of threads
    #[arg(long, value_name = "MS", default_value_t = 500)]
    point_ms: u64,
    /// Highest number of threads that is measured
    #[arg(long, value_name = "N", default_value_t = 64)]
    threads_max: u32,
    /// Seconds of the write-heavy run. With 0 there is no run, and the scheme assumes one writer of
    /// the log and one of every level
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    load_seconds: u64,
    /// Number of threads that write in that run
    #[arg(long, value_name = "N", default_value_t = 8)]
    load_threads: u64,
    /// Number of background jobs in that run
    #[arg(long, value_name = "N", default_value_t = 4)]
    load_jobs: usize,
    /// File for the scheme. Default: the place from which the next open reads it, on the device
    /// with the namespace, which was the fastest device when the tiers were created
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Tier {
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            Action::Profile(profile) => profile.run(),
            Action::Remove(remove) => remove.run(),
        }
    }
}

/// The devices of a settings file, or those that the directory of the database names.
fn devices_of(config: Option<&Path>, dir: &Path) -> Result<Vec<DeviceSettings>> {
    let given = match config {
        Some(path) => archipelago::load_settings(path)?.tiers,
        None => Settings::default().tiers,
    };
    if !given.is_empty() {
        return Ok(given);
    }
    archipelago::storage::devices_of(dir)?.ok_or_else(|| {
        Error::invalid(format!(
            "{} does not lie on tiers: name the devices with --config FILE",
            dir.display()
        ))
    })
}

impl Remove {
    fn run(&self) -> Result<()> {
        let devices = devices_of(self.config.as_deref(), &self.dir)?;
        let named = |(place, device): (usize, &DeviceSettings)| device.name_at(place) == self.name;
        let place = devices.iter().enumerate().position(named);
        if let Some(at) = place {
            print_line!(
                "moving the files of {} ({}) to the other devices",
                self.name,
                devices[at].path.display()
            );
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}") {
            bar.set_style(style);
        }
        let emptied =
            archipelago::storage::remove_device(&self.dir, &devices, &self.name, |done| {
                bar.set_length(done.bytes_in_all);
                bar.set_position(done.bytes);
            })?;
        bar.finish_and_clear();
        let left = devices.iter().enumerate().filter(|(at, _)| Some(*at) != place);
        let left: Vec<_> = left.map(|(at, device)| device.name_at(at)).collect();
        let mut result = format!(
            "{} is removed from the tiers: {} files ({} bytes) were moved to the other devices, \
             and its directory{} is empty\n\
             remove it from [[tiers]] in the settings, or it joins again; the other devices are \
             called {} there\n",
            self.name,
            emptied.files,
            emptied.bytes,
            place.map_or_else(String::new, |at| format!(" {}", devices[at].path.display())),
            left.join(", ")
        );
        if place == Some(0) {
            result.push_str(
                "it was the fastest device: run `archipelago tier profile` for a new placement \
                 scheme\n",
            );
        }
        print(&result)
    }
}

impl Profile {
    fn run(&self) -> Result<()> {
        let devices = devices_of(self.config.as_deref(), &self.dir)?;
        let clock = SystemClock::shared();
        let held = ExclusiveDevices::hold(&devices, &clock, self.known(&devices)?.as_deref())?;
        let mut profiles = Vec::with_capacity(devices.len());
        for (place, device) in devices.iter().enumerate() {
            let profile = self.measure(place, device, &clock)?;
            for (what, points) in [("write", &profile.writes), ("read", &profile.reads)] {
                for point in points {
                    let mib = point.bytes_per_s / f64::from(1 << 20);
                    let (name, threads) = (&profile.name, point.threads);
                    print_line!("{name}: {what}, {threads} threads: {mib:.1} MiB/s");
                }
            }
            print_line!(
                "{}: fastest with {} writers and {} readers",
                profile.name,
                profile.writers_max,
                profile.readers_max
            );
            profiles.push(profile);
        }
        let observed = self.load(&devices, &clock)?;
        let capacity = match devices[0].capacity_bytes {
            0 => LocalFs::new().free_bytes(&devices[0].path)?.unwrap_or(u64::MAX),
            bytes => bytes,
        };
        let scheme = Scheme::of_profile(profiles, &observed, capacity);
        let path = self.out.clone().unwrap_or_else(|| held.scheme_path().to_owned());
        let text = format!(
            "# Placement scheme, written by `archipelago tier profile`. You may change it: files are \
             placed by\n# fast_levels, and by writers_max of each device.\n\n{}",
            scheme.to_toml()?
        );
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        LocalFs::new().write_atomic(&path, text.as_bytes(), context)?;
        // The scheme took minutes to measure. It is in its file before a write to standard output
        // can fail.
        print(&format!("{}\nwritten to {}\n", scheme.reason, path.display()))
    }

    /// The reason why the devices must have tiers already, if the directory of the database names
    /// one of them.
    fn known(&self, devices: &[DeviceSettings]) -> Result<Option<String>> {
        let stored = archipelago::storage::devices_of(&self.dir)?.unwrap_or_default();
        let whole = |device: &DeviceSettings| std::path::absolute(&device.path).ok();
        let is_same =
            |device: &DeviceSettings| stored.iter().any(|other| whole(other) == whole(device));
        Ok(devices
            .iter()
            .any(is_same)
            .then(|| archipelago_compute::storage::reason_to_have_tiers(&self.dir)))
    }

    fn measure(
        &self,
        place: usize,
        device: &DeviceSettings,
        clock: &Arc<dyn Clock>,
    ) -> Result<DeviceProfile> {
        let name = device.name_at(place);
        let options = ProbeOptions {
            point: Duration::from_millis(self.point_ms.max(1)),
            threads_max: self.threads_max.max(1),
            direct: device.kind != DeviceKind::Mapped,
            ..ProbeOptions::default()
        };
        let plain = matches!(device.kind, DeviceKind::Directory | DeviceKind::Direct);
        let by_fio = match self.tool {
            Tool::Own => false,
            Tool::Auto => plain && has_fio(),
            Tool::Fio if !plain => {
                return Err(Error::unsupported(format!(
                    "device \"{name}\": fio cannot measure a mapped or emulated device as the store uses it: choose --tool own"
                )));
            }
            Tool::Fio => true,
        };
        print_line!("{name}: measuring with {}", if by_fio { "fio" } else { "the built-in probe" });
        let dir = device.path.join("profile");
        if by_fio {
            return probe_with_fio(&dir, &name, &options);
        }
        let fs = device_file_system(device, clock)?;
        let prober = Prober { fs, dir, clock: Arc::clone(clock), spawn: Arc::new(SystemSpawn) };
        probe(&prober, &name, &options)
    }

    /// Writes into a temporary database, which has a directory on each device, and counts its
    /// writers.
    fn load(
        &self,
        devices: &[DeviceSettings],
        clock: &Arc<dyn Clock>,
    ) -> Result<archipelago::tier::scheme::ObservedLoad> {
        if self.load_seconds == 0 {
            return Ok(Assumed::writers());
        }
        let below = |device: &DeviceSettings| DeviceSettings {
            path: device.path.join("profile"),
            create: true,
            ..device.clone()
        };
        let devices: Vec<_> = devices.iter().map(below).collect();
        let observed = self.load_over(&devices, clock);
        let fs = LocalFs::new();
        for device in &devices {
            if fs.exists(&device.path)? {
                fs.remove_dir_all(&device.path)?;
            }
        }
        observed
    }

    fn load_over(
        &self,
        devices: &[DeviceSettings],
        clock: &Arc<dyn Clock>,
    ) -> Result<archipelago::tier::scheme::ObservedLoad> {
        // Writers that wait for a write slot would not be counted.
        let policy = Policy { online: false, in_turn: false, ..Policy::default() };
        let components = TierComponents { policy, ..TierComponents::default() };
        let tiers = archipelago::tier::TieredFs::open(
            archipelago::storage::TIERS_ROOT,
            devices,
            components,
        )?;
        // Small buffers, so that a short run reaches deep levels.
        let family = CfOptions {
            write_buffer_bytes: 8 << 20,
            level_base_bytes: 16 << 20,
            target_file_bytes: 4 << 20,
            level_multiplier: 4,
            ..CfOptions::default()
        };
        let components = Components {
            fs: Arc::clone(&tiers) as Arc<dyn FileSystem>,
            families: [("default".to_owned(), family)].into_iter().collect(),
            ..Components::default()
        };
        let options = DbOptions { max_background_jobs: self.load_jobs, ..DbOptions::default() };
        let db = Db::open_with(Path::new(archipelago::storage::DATABASE), options, components)?;
        print_line!(
            "writing for {} s with {} threads and {} background jobs",
            self.load_seconds,
            self.load_threads,
            self.load_jobs
        );
        let until_ns = clock.now_ns() + self.load_seconds * 1_000_000_000;
        let before = tiers.observe_begin();
        self.write_until(&db, clock, until_ns)?;
        let observed = tiers.observe_end(&before);
        db.close()?;
        tiers.close()?;
        print_line!("writers on average: log {:.2}", observed.log_writers);
        for (level, writers) in observed.level_writers.iter().enumerate() {
            if *writers > 0.0 {
                print_line!("writers on average: {level} levels below L0 {writers:.2}");
            }
        }
        Ok(observed)
    }

    /// Writes and reads random keys in equal numbers, as in YCSB A, until `until_ns`.
    fn write_until(&self, db: &Db, clock: &Arc<dyn Clock>, until_ns: u64) -> Result<()> {
        let mut threads = Vec::new();
        let failed = Arc::new(OnceLock::new());
        for thread in 0..self.load_threads.max(1) {
            let (db, clock, failed) = (db.clone(), Arc::clone(clock), Arc::clone(&failed));
            let body = Box::new(move || {
                let mut rng = Rng::with_seed(thread);
                let value = vec![b'v'; 1024];
                let mut step = || {
                    let mut key = || format!("{:016x}", rng.u64(..) % 4_000_000);
                    db.put(key().as_bytes(), &value)?;
                    db.get(key().as_bytes()).map(|_| ())
                };
                while clock.now_ns() < until_ns {
                    if let Err(error) = step() {
                        let _first = failed.set(error);
                        return;
                    }
                }
            });
            threads.push(SystemSpawn.spawn(&format!("load-{thread}"), body)?);
        }
        threads.into_iter().try_for_each(Joiner::join)?;
        failed.get().map_or(Ok(()), |error: &Error| Err(error.clone()))
    }
}
