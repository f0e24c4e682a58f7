//! Cases over tiers: a small fast device and a middle one, so that files move and copies are made
//! while a case runs.
//!
//! The tiers bring no threads: every step of a case is also one of theirs, half a second later. A
//! reopening and a kill both continue with a copy of the disk; a reopening closes the tiers in
//! order first.

use std::ops::AddAssign;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, ManualClock};
use archipelago_env::FileSystem;
use archipelago_env::mem::MemFs;
use archipelago_tier::{
    CacheBy, Components, DeviceKind, DeviceParts, DeviceSettings, Policy, TieredFs,
};

/// Counts of the background work of tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Did {
    pub(crate) moves: u64,
    pub(crate) copies: u64,
    /// Reads that copies served.
    pub(crate) served: u64,
}

impl AddAssign for Did {
    fn add_assign(&mut self, other: Self) {
        self.moves += other.moves;
        self.copies += other.copies;
        self.served += other.served;
    }
}

/// A database over two tiers whose steps the test calls.
#[derive(Clone)]
pub(crate) struct Tiered {
    seed: u64,
    disk: MemFs,
    clock: Arc<ManualClock>,
    tiers: Arc<TieredFs>,
    /// Counts of tiers that are closed by now.
    before: Did,
}

impl Tiered {
    /// New tiers; `seed` decides sizes and policy.
    pub(crate) fn new(seed: u64) -> Self {
        let (disk, clock) = (MemFs::new(), Arc::new(ManualClock::new(0)));
        let tiers = open(seed, &disk, &clock);
        Self { seed, disk, clock, tiers, before: Did::default() }
    }

    pub(super) fn dir(&self) -> PathBuf {
        PathBuf::from("/tiers/db")
    }

    pub(super) fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.tiers) as Arc<dyn FileSystem>
    }

    /// Advances by half a second: checks, moves, copies.
    pub(super) fn step(&self) {
        self.clock.advance(Duration::from_millis(500));
        self.tiers.step();
    }

    /// Counts of the work so far. No part of it may have failed, and no copy may be damaged.
    pub(crate) fn did(&self) -> Did {
        let stats = self.tiers.stats();
        assert_eq!(stats.failed_jobs, 0, "{stats}");
        let mut did = self.before;
        for device in &stats.devices {
            assert_eq!(device.copies_made.2, 0, "{stats}");
            did += Did {
                moves: device.moved.0,
                copies: device.copies_made.0,
                served: device.copy_reads,
            };
        }
        did
    }

    /// The same tiers once they were closed and opened.
    pub(super) fn reopened(&self) -> Self {
        self.tiers.close().unwrap();
        self.killed()
    }

    /// The same tiers opened after `kill -9`.
    pub(super) fn killed(&self) -> Self {
        let disk = self.disk.kill_clone();
        let tiers = open(self.seed, &disk, &self.clock);
        Self { disk, tiers, before: self.did(), clock: Arc::clone(&self.clock), ..*self }
    }
}

fn open(seed: u64, disk: &MemFs, clock: &Arc<ManualClock>) -> Arc<TieredFs> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x71e5);
    let mut device = |path: &str, kib: &[u64]| DeviceParts {
        settings: DeviceSettings {
            capacity_bytes: kib[rng.usize(..kib.len())] << 10,
            cache_share: 1.0,
            ..DeviceSettings::new(path, DeviceKind::Directory).creating()
        },
        fs: Arc::new(disk.clone()),
        is_local: false,
    };
    let devices = vec![
        device("/fast", &[160, 240, 400]),
        device("/middle", &[24, 64]),
        device("/slow", &[64 << 10]),
    ];
    let policy = Policy {
        fast_levels: Some(rng.u8(0..3)),
        range_bytes: 4096,
        cache_by: [CacheBy::Adaptive, CacheBy::File, CacheBy::Range][rng.usize(..3)],
        ..Policy::default()
    };
    let components = Components {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        spawn: None,
        seed: Some(seed),
        policy,
        ..Components::default()
    };
    TieredFs::open_over("/tiers", devices, components)
        .unwrap_or_else(|error| panic!("the tiers of case {seed} cannot be opened: {error}"))
}
