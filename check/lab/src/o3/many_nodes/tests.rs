//! Tests of the whole model: limits hold, no bytes are lost, and runs repeat. Figures agree with
//! arithmetic in cases that arithmetic can solve.

use std::sync::Arc;

use archipelago_base::clock::ManualClock;

use super::super::bounds::{Factors, LevelZero, Offloaded, StorageLink, throughput};
use super::cluster::{Cluster, Outcome};
use super::load::{Bursts, Load, Memory, Setting};
use super::owner::{Owner, OwnerStart, WriteLoad};
use super::{MEMTABLE_MB, WRITER_PEAK};

const NARROW: StorageLink = StorageLink::One;
const WIDE: StorageLink = StorageLink::TwoAndAHalf;

fn run(setting: Setting) -> Outcome {
    Cluster::new(setting).run()
}

fn bursts(excess: f64, memory: Memory, seconds: u64) -> Setting {
    let load = Load::Bursts(Bursts { excess, memory });
    Setting { load, ..Setting::writes(5, NARROW, seconds) }
}

fn assert_near(value: f64, wanted: f64, share: f64) {
    assert!((value / wanted - 1.0).abs() <= share, "{value}, not {wanted}");
}

/// Steps for `seconds`, and checks the invariants of the cluster at each step.
fn check_steps(setting: Setting, seconds: u64) {
    let mut cluster = Cluster::new(setting);
    while cluster.now_ns < seconds * 1_000_000_000 {
        let before_ns = cluster.now_ns;
        cluster.step();
        assert!(cluster.now_ns > before_ns, "time goes on");
        for (used, capacity) in cluster.used.iter().zip(&cluster.links.capacities) {
            assert!(*used <= capacity * 1.000_001, "{used} of {capacity} MB/s");
        }
        let (mut written, mut kept) = (0.0, cluster.compacted_mb);
        for owner in &cluster.owners {
            written += owner.figures.written_mb;
            let tables = owner.buckets.iter().map(|bucket| bucket.away_mb() + bucket.l0_mb);
            kept += owner.active_mb + owner.sealed_mb() + tables.sum::<f64>();
        }
        assert!((written - kept).abs() < 0.1 + written * 1e-6, "{written} MB, {kept} are left");
    }
}

#[test]
fn no_byte_is_lost_and_no_link_carries_more_than_it_can() {
    for offloaded in [
        Offloaded::Nothing,
        Offloaded::Compactions,
        Offloaded::Memtables,
        Offloaded::Flushes,
        Offloaded::AllAtStorage,
        Offloaded::All { compute_nodes: 2 },
    ] {
        check_steps(Setting { offloaded, ..Setting::writes(2, NARROW, 60) }, 30);
    }
    let three = Setting { memory_nodes: 3, ..Setting::writes(3, WIDE, 60) };
    check_steps(Setting { load: Load::Mixed, ..three }, 30);
    check_steps(bursts(1.6, Memory::Shared, 60), 60);
}

#[test]
fn runs_of_one_seed_are_equal() {
    let setting = bursts(1.6, Memory::Shared, 100);
    assert_eq!(run(setting), run(setting));
    assert_ne!(run(setting), run(Setting { seed: 2, ..setting }));
}

#[test]
fn one_database_writes_at_the_bound_of_its_mode() {
    let of = |offloaded, link| {
        let outcome = run(Setting { offloaded, ..Setting::writes(1, link, 300) });
        (outcome.mb_per_s, throughput(offloaded, LevelZero::Buckets, link, &Factors::FIXED))
    };
    // Flushes fill nine tenths of 125 MB/s, and the storage compacts more than that.
    let (rate, bound) = of(Offloaded::Compactions, NARROW);
    assert_near(bound, 112.5, 1e-9);
    assert_near(rate, bound, 0.02);
    // L0 takes a part of what is written, so rates are above bounds at first.
    let (rate, bound) = of(Offloaded::AllAtStorage, NARROW);
    assert_near(rate, bound, 0.15);
    let (rate, bound) = of(Offloaded::All { compute_nodes: 1 }, WIDE);
    assert_near(rate, bound, 0.2);
}

#[test]
fn bursts_have_their_excess_and_their_duty() {
    let setting = bursts(1.6, Memory::Fixed, 1);
    let figures = setting.burst_figures(Bursts { excess: 1.6, memory: Memory::Fixed });
    let (bound, quota_mb) = (setting.bound(), 8.0 * MEMTABLE_MB);
    assert_near(figures.mb - bound * figures.seconds, 1.6 * quota_mb, 1e-9);
    assert_near(figures.mb / figures.seconds, WRITER_PEAK, 1e-9);
    let in_use_s = figures.seconds + 1.6 * quota_mb / (bound / 5.0);
    assert_near(in_use_s / (in_use_s + figures.pause_s), 0.2, 1e-9);
    assert_near(figures.fixed_wait_s, 0.6 * quota_mb / (bound / 5.0), 1e-9);
    assert_eq!((setting.memory_mb(), setting.owner_mb_max()), (5.0 * quota_mb, quota_mb));
}

#[test]
fn shared_memory_stops_writers_a_tenth_as_often_as_fixed_parts() {
    let [shared, fixed] =
        [Memory::Shared, Memory::Fixed].map(|memory| run(bursts(1.6, memory, 900)));
    assert!(fixed.stops >= 20, "bursts exceed a fixed part: {}", fixed.stops);
    // Databases that pause give the shared memory back. Only bursts that come together exceed it.
    assert!(shared.stops * 10 <= fixed.stops, "{} and {}", shared.stops, fixed.stops);
}

#[test]
fn share_of_stops_counts_only_the_time_of_bursts() {
    let clock = Arc::new(ManualClock::new(0));
    let load = WriteLoad { rate: 10.0, burst_mb: 32.0, pause_s: 100.0, begin_ns: 0 };
    let (memory_nodes, local_memtables) = (0, 2);
    let start =
        OwnerStart { number: 0, memory_nodes, local_memtables, load, seed: 1, clock: &clock };
    let mut owner = Owner::new(start);
    owner.begin_step(0);
    // One of five seconds is below half of the wanted 10 MB/s.
    for (second, rate) in (1..).zip([10.0, 4.0, 6.0, 6.0, 6.0]) {
        owner.write(rate, 1.0, second * 1_000_000_000);
    }
    assert_eq!((owner.figures.wanted_s, owner.figures.stopped_s), (5.0, 1.0));
    assert_eq!((owner.figures.stops, owner.figures.written_mb), (1, 32.0));
    // The burst is over, and pauses are no stops.
    owner.write(0.0, 50.0, 55_000_000_000);
    assert_eq!((owner.figures.wanted_s, owner.figures.stops), (5.0, 1));
    assert_eq!(owner.paused_ns(55_000_000_000), 50_000_000_000, "since the last byte");
}
