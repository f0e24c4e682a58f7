//! Tests of the whole model: runs repeat, no bytes are lost, limits hold, and figures agree with
//! arithmetic in cases that arithmetic can solve.

use archipelago_engine::stall::{StallCause, StallDecision};

use super::profile::{CostProfile, Demand, Machine, Work};
use super::setting::{Mode, Setting};
use super::sim::Sim;

fn setting(mode: Mode, degree: usize, gigabytes: u64) -> Setting {
    let cost = CostProfile::frozen().expect("the profile that comes with the program");
    let mut setting = Setting::of(mode, degree, cost);
    setting.records = gigabytes * 1_000_000_000 / setting.cost.record_bytes();
    setting
}

#[test]
fn runs_of_one_seed_have_one_trace() {
    let run = |mode, seed| {
        let setting = Setting { seed, ..setting(mode, 8, 6) };
        Sim::new(setting).run().expect("runs").trace
    };
    for mode in Mode::ALL {
        assert_eq!(run(mode, 7), run(mode, 7), "{mode:?}");
    }
    assert_ne!(run(Mode::Buckets, 7), run(Mode::Buckets, 8));
}

#[test]
fn records_limits_time_and_stalls_hold_at_every_step() {
    for (mode, jobs, degree) in [
        (Mode::Classic, 1, 1),
        (Mode::Classic, 4, 1),
        (Mode::Subcompactions, 3, 16),
        (Mode::Buckets, 2, 8),
        (Mode::Buckets, 16, 16),
    ] {
        let mut sim = Sim::new(Setting { jobs, ..setting(mode, degree, 5) });
        let mut before_ns = 0;
        while !sim.is_written() {
            sim.step().expect("goes on");
            assert!(sim.now_ns > before_ns, "time goes on");
            before_ns = sim.now_ns;
            assert!(sim.jobs.len() <= jobs);
            sim.store.check().expect("nothing is lost, the version is sound");
            if let StallDecision::Delay { cause: StallCause::L0Files, .. }
            | StallDecision::Stop { cause: StallCause::L0Files } = sim.writer.decision
            {
                let options = sim.store.version.options();
                assert!(sim.store.version.l0_layers_max() >= options.l0_slowdown);
            }
        }
        let in_memtables = sim.writer.written - sim.store.flushed as f64;
        let memtables = sim.store.sealed.len() as f64 + 1.0;
        assert!((0.0..=memtables * sim.setting.memtable_records() + 1.0).contains(&in_memtables));
    }
}

#[test]
fn one_job_writes_as_fast_as_its_costs_add_up_to() {
    let outcome = Sim::new(setting(Mode::Classic, 1, 8)).run().expect("runs");
    // The only worker never rests once writers wait for it; alone, it is never slowed down.
    let busy_s = outcome.work_s + outcome.install_s;
    let ratio = outcome.seconds / busy_s;
    assert!((0.95..1.05).contains(&ratio), "{} s for {busy_s} s of work", outcome.seconds);
    // The totals give the same time: every byte is flushed and merged at the measured cost.
    let cost = CostProfile::frozen().expect("a profile");
    let record_s = |ns: f64| ns / 1e9 + cost.file_bytes_per_record / 1.4e9;
    let records = outcome.seconds * outcome.ops_per_s;
    let merged = (outcome.write_amplification - 1.0) * records;
    let merge_ns = cost.merge_ns_per_record + 1.3 * cost.merge_ns_per_doubling;
    let expected_s = records * record_s(cost.flush_ns_per_record) + merged * record_s(merge_ns);
    let ratio = outcome.seconds / expected_s;
    assert!((0.9..1.15).contains(&ratio), "{} s, by hand {expected_s} s", outcome.seconds);
}

#[test]
fn work_takes_its_parts_in_turn() {
    let machine = Machine::of_the_paper();
    let work = Work { cpu_s: 3.0, write_bytes: 1.4e9, ..Work::default() };
    assert!((work.alone_s(&machine) - 4.0).abs() < 1e-9);
    assert!((work.demand(&machine).cores - 0.75).abs() < 1e-9);
}

#[test]
fn cores_and_device_are_shared_when_they_are_full() {
    let machine = Machine::of_the_paper();
    let cores = |cores| machine.speed(Demand { cores, ..Demand::default() }, 1, false);
    assert_eq!(cores(40.0), 1.0);
    assert_eq!(cores(80.0), 50.0 / 80.0, "forty cores and a quarter more");
    assert_eq!(cores(100.0), 0.5);
    let write = |in_burst| {
        let demand = Demand { write: 2.8e9, ..Demand::default() };
        machine.speed(demand, 4, in_burst)
    };
    assert_eq!((write(true), write(false)), (1.0, 0.5));
}

#[test]
fn more_buckets_are_worth_more_jobs() {
    // No device limits this run, because a device at its limit hides the effect of parallelism.
    let rate = |mode, degree| {
        let mut setting = setting(mode, degree, 10);
        setting.machine = setting.machine.without_device();
        setting.writers = 16;
        let outcome = Sim::new(setting).run().expect("runs");
        assert_eq!(outcome.buckets, if mode == Mode::Buckets { degree } else { 1 });
        assert_eq!(outcome.device_full_share, 0.0);
        outcome.mb_per_s
    };
    let (one, eight) = (rate(Mode::Buckets, 1), rate(Mode::Buckets, 8));
    let many = rate(Mode::Buckets, 32);
    assert!(eight > 1.5 * one, "{one} {eight}");
    assert!(many >= eight, "{eight} {many}");
    assert!(eight > rate(Mode::Classic, 8), "{eight}");
}
