use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Runs three tasks that sleep for random times. Returns their order and the trace.
fn race(seed: u64) -> (Vec<u32>, u64) {
    let simulation = Simulation::new(seed);
    let order = Arc::new(Mutex::new(Vec::new()));
    for who in 0..3 {
        let (scheduler, order) = (simulation.scheduler(), Arc::clone(&order));
        let mut rng = simulation.rng(&format!("task {who}"));
        simulation.spawn("racer", async move {
            for _ in 0..20 {
                scheduler.sleep(MS * rng.u32(0..3)).await;
                order.lock().push(who);
            }
        });
    }
    simulation.run();
    let order = order.lock().clone();
    (order, simulation.trace_hash())
}

#[test]
fn seed_determines_the_run() {
    assert_eq!(race(5), race(5));
    let runs: Vec<_> = (0..20).map(race).collect();
    assert!(runs.iter().any(|run| run.0 != runs[0].0), "the seed decides the order");
}

#[test]
fn ready_tasks_run_in_every_order() {
    let first = |seed| {
        let simulation = Simulation::new(seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        for who in 0..3 {
            let order = Arc::clone(&order);
            simulation.at(100, Life::WORLD, move || order.lock().push(who));
        }
        simulation.run();
        assert_eq!(simulation.now_ns(), 100);
        order.lock()[0]
    };
    let mut firsts: Vec<i32> = (0..64).map(first).collect();
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts, [0, 1, 2]);
}

#[test]
fn crash_ends_tasks_and_events_of_that_life_only() {
    let simulation = Simulation::new(1);
    let (one, two) = (simulation.host("one"), simulation.host("two"));
    let count = Arc::new(AtomicU64::new(0));
    let tick = |host: &Host| {
        let (scheduler, count) = (simulation.scheduler(), Arc::clone(&count));
        host.spawn("tick", async move {
            scheduler.sleep(10 * MS).await;
            count.fetch_add(1, Ordering::Relaxed);
        })
    };
    let (dies, lives) = (tick(&one), tick(&two));
    let later = Arc::clone(&count);
    simulation.at(8_000_000, one.life(), move || _ = later.fetch_add(100, Ordering::Relaxed));
    simulation.run_for(5 * MS);
    one.crash();
    assert!(!one.is_up());
    assert_eq!(one.spawn("too late", async {}).take(), Some(Err(Crashed)));
    one.restart();
    let again = tick(&one);
    simulation.run();
    assert_eq!(
        (dies.take(), lives.take(), again.take()),
        (Some(Err(Crashed)), Some(Ok(())), Some(Ok(())))
    );
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[test]
fn events_of_a_stopped_host_happen_when_it_continues() {
    let simulation = Simulation::new(1);
    let (one, two) = (simulation.host("one"), simulation.host("two"));
    let ends = |host: &Host| {
        let scheduler = simulation.scheduler();
        host.spawn("sleeper", async move {
            scheduler.sleep(10 * MS).await;
            scheduler.now_ns()
        })
    };
    let (stopped, other) = (ends(&one), ends(&two));
    simulation.run_for(MS);
    one.stop();
    simulation.run_for(29 * MS);
    assert_eq!((stopped.is_done(), other.take()), (false, Some(Ok(10_000_000))));
    one.go_on();
    simulation.run_for(MS);
    assert_eq!(stopped.take(), Some(Ok(30_000_000)));
    let never = ends(&one);
    simulation.run_for(MS);
    one.stop();
    simulation.run_for(30 * MS);
    one.crash();
    assert_eq!(never.take(), Some(Err(Crashed)));
    one.restart();
    assert!(ends(&one).take().is_none(), "a new life runs");
    simulation.run();
}

#[test]
fn host_sleeps_by_the_rate_of_its_own_clock() {
    use crate::runtime::Runtime;

    let simulation = Simulation::new(1);
    let host = simulation.host("fast");
    host.set_clock(HostClock { ahead_ns: 5_000_000_000, fast_ppm: 250_000 });
    let me = host.clone();
    let task = host.spawn("sleeper", async move {
        let before_ns = Runtime::now_ns(&me);
        Runtime::sleep(&me, 10 * MS).await;
        (before_ns, Runtime::now_ns(&me))
    });
    simulation.run();
    assert_eq!(task.take(), Some(Ok((5_000_000_000, 5_010_000_000))));
    assert_eq!(simulation.now_ns(), 8_000_000);
    let slow = HostClock { ahead_ns: 0, fast_ppm: -200_000 };
    assert_eq!((slow.reading_ns(10), slow.takes(MS)), (8, Duration::from_micros(1250)));
}

#[test]
fn task_may_crash_its_own_host() {
    let simulation = Simulation::new(1);
    let host = simulation.host("one");
    let (me, scheduler) = (host.clone(), simulation.scheduler());
    let task = host.spawn("suicidal", async move {
        me.crash();
        scheduler.sleep(MS).await;
    });
    simulation.run();
    assert_eq!(task.take(), Some(Err(Crashed)));
    assert_eq!(simulation.now_ns(), 0, "its timer went with it");
}

#[test]
fn unused_timeout_does_not_advance_the_clock() {
    let simulation = Simulation::new(1);
    let scheduler = simulation.scheduler();
    let out = simulation.block_on(async move {
        let quick = scheduler.timeout(Duration::from_secs(60), scheduler.sleep(MS)).await;
        let slow = scheduler.timeout(MS, scheduler.sleep(Duration::from_secs(60))).await;
        (quick, slow)
    });
    assert_eq!(out, (Ok(()), Err(TimedOut)));
    simulation.run();
    assert_eq!(simulation.now_ns(), 2_000_000);
}

#[test]
fn run_for_ends_at_the_given_time() {
    let simulation = Simulation::new(1);
    let happened = Arc::new(AtomicU64::new(0));
    for at_ms in [1, 3] {
        let happened = Arc::clone(&happened);
        let act = move || _ = happened.fetch_add(1, Ordering::Relaxed);
        simulation.at(at_ms * 1_000_000, Life::WORLD, act);
    }
    // An event within the cancelled time must not let later events happen.
    let scheduler = simulation.scheduler();
    simulation.block_on(async move {
        _ = scheduler.timeout(MS, scheduler.sleep(MS / 2)).await;
    });
    simulation.run_for(MS);
    assert_eq!((happened.load(Ordering::Relaxed), simulation.now_ns()), (1, 1_500_000));
    simulation.run_for(2 * MS);
    assert_eq!(happened.load(Ordering::Relaxed), 2);
}

#[test]
fn component_sees_the_clock_of_the_simulation() {
    let simulation = Simulation::new(1);
    let clock = simulation.clock();
    clock.sleep(Duration::from_secs(2));
    assert_eq!((clock.now_ns(), simulation.now_ns()), (2_000_000_000, 2_000_000_000));
}

#[test]
#[should_panic(expected = "await the promise")]
fn blocking_on_the_simulation_inside_it_panics() {
    let simulation = Simulation::new(1);
    let scheduler = simulation.scheduler();
    simulation.block_on(async move { scheduler.run() });
}

#[test]
#[should_panic(expected = "these wait: far/lonely, main")]
fn deadlock_names_the_waiting_tasks() {
    let simulation = Simulation::new(1);
    let lonely = simulation.host("far").spawn("lonely", std::future::pending::<()>());
    simulation.block_on(async move { _ = lonely.await });
}

#[test]
fn end_of_the_simulation_drops_everything() {
    let alive = Arc::new(());
    let simulation = Simulation::new(1);
    let (scheduler, held) = (simulation.scheduler(), Arc::clone(&alive));
    simulation.spawn("holds its own scheduler", async move {
        scheduler.sleep(MS).await;
        drop(held);
    });
    let (scheduler, held) = (simulation.scheduler(), Arc::clone(&alive));
    simulation.at(5, Life::WORLD, move || drop((scheduler, held)));
    drop(simulation);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn notes_are_kept_on_request() {
    let simulation = Simulation::new(1);
    simulation.note(|| unreachable!("nobody asked"));
    simulation.keep_notes();
    simulation.note(|| "hello".to_owned());
    assert!(simulation.notes()[0].ends_with("hello"));
}
