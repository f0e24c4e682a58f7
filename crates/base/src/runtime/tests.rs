use std::sync::atomic::AtomicU64;

use super::*;
use crate::clock::{Clock, SystemClock};
use crate::simulation::Simulation;

const MS: Duration = Duration::from_millis(1);

/// Runs ten tasks that sleep, draw a seed, pass a gate and count. Returns the seeds.
async fn work(runtime: Arc<dyn Runtime>, within: Arc<AtomicU64>) -> Vec<u64> {
    let gate = Arc::new(Gate::default());
    let seeds = Arc::new(Mutex::new(Vec::new()));
    for number in 0..10_u32 {
        let (runtime, again) = (Arc::clone(&runtime), Arc::clone(&runtime));
        let (gate, seeds, within) = (Arc::clone(&gate), Arc::clone(&seeds), Arc::clone(&within));
        let task = async move {
            runtime.sleep(MS * (number % 3)).await;
            let _pass = gate.enter().await;
            assert_eq!(within.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            runtime.sleep(MS / 4).await;
            within.fetch_sub(1, Ordering::SeqCst);
            seeds.lock().push(runtime.seed());
        };
        again.spawn("worker", Box::pin(task));
    }
    while seeds.lock().len() < 10 {
        runtime.sleep(MS).await;
    }
    std::mem::take(&mut *seeds.lock())
}

fn distinct(mut seeds: Vec<u64>) -> usize {
    seeds.sort_unstable();
    seeds.dedup();
    seeds.len()
}

#[test]
fn same_code_runs_over_threads_and_in_the_simulation() {
    let runtime = ThreadRuntime::start(3).expect("threads");
    let seeds = block_on(work(runtime, Arc::default()));
    assert_eq!(distinct(seeds), 10);
    let simulated = |seed| {
        let simulation = Simulation::new(seed);
        let host = Arc::new(simulation.host("one"));
        let seeds = simulation.block_on(work(host, Arc::default()));
        (seeds, simulation.trace_hash())
    };
    let (seeds, trace) = simulated(7);
    assert_eq!((seeds.clone(), trace), simulated(7), "a seed repeats");
    assert_ne!(seeds, simulated(8).0);
    assert_eq!(distinct(seeds), 10);
}

#[test]
fn thread_waits_over_threads_and_outside_the_simulation() {
    let wait = |runtime: &dyn Runtime| {
        let started_ns = runtime.now_ns();
        let slept = wait_for(runtime, async {
            runtime.sleep(MS).await;
            "slept"
        });
        assert_eq!(slept, "slept");
        assert!(runtime.now_ns() >= started_ns + 1_000_000);
    };
    wait(&*ThreadRuntime::start(1).expect("threads"));
    let simulation = Simulation::new(1);
    wait(&simulation.host("one"));
    assert_eq!(simulation.now_ns(), 1_000_000);
}

#[test]
fn thread_in_the_simulation_may_wait_for_another_one() {
    let simulation = Simulation::new(1);
    let host = simulation.host("one");
    let ticking = host.clone();
    // Without this task the simulation would have nothing to do, and would say so.
    let _never_ends = host.spawn("ticks", async move {
        loop {
            Runtime::sleep(&ticking, MS).await;
        }
    });
    let gate = Gate::default();
    let passed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    wait_for(&host, async {
                        let _pass = gate.enter().await;
                        Runtime::sleep(&host, MS / 3).await;
                        passed.fetch_add(1, Ordering::SeqCst);
                    });
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 60);
    assert!(simulation.now_ns() < 100_000_000, "time ran on while threads were ready");
}

#[test]
fn sleep_lasts_and_a_dropped_sleep_is_forgotten() {
    let runtime = ThreadRuntime::start(1).expect("threads");
    let clock = SystemClock::new();
    let mut long = runtime.sleep(Duration::from_secs(3600));
    block_on(std::future::poll_fn(|context| {
        assert!(long.as_mut().poll(context).is_pending());
        Poll::Ready(())
    }));
    drop(long);
    let begun_ns = clock.now_ns();
    block_on(runtime.sleep(3 * MS));
    assert!(clock.now_ns() - begun_ns >= 3_000_000);
}

#[test]
fn panic_of_a_task_ends_no_thread() {
    let runtime = ThreadRuntime::start(1).expect("threads");
    runtime.spawn("panics", Box::pin(async { panic!("as the test wants") }));
    let done = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&done);
    runtime.spawn("goes on", Box::pin(async move { told.store(true, Ordering::SeqCst) }));
    while !done.load(Ordering::SeqCst) {
        block_on(runtime.sleep(MS));
    }
}

#[test]
fn task_that_waits_at_a_gate_may_be_dropped() {
    let gate = Gate::default();
    let pass = block_on(gate.enter());
    let poll = |future: Pin<&mut dyn Future<Output = Pass<'_>>>| {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    let mut gone = Box::pin(gate.enter());
    let mut stays = Box::pin(gate.enter());
    assert!(!poll(gone.as_mut()) && !poll(stays.as_mut()));
    drop(gone);
    drop(pass);
    assert!(poll(stays.as_mut()), "the place of who went away is not kept");
}

#[test]
fn runtime_drops_its_tasks_when_it_ends() {
    let runtime = ThreadRuntime::start(2).expect("threads");
    let held = Arc::new(());
    let (kept, waiting) = (Arc::clone(&held), runtime.sleep(Duration::from_secs(3600)));
    let task = async move {
        waiting.await;
        drop(kept);
    };
    runtime.spawn("sleeper", Box::pin(task));
    // The sleeping task may be on its way to its timer when the runtime ends. The thread that polls
    // it then drops it.
    drop(runtime);
    let clock = SystemClock::new();
    while Arc::strong_count(&held) > 1 {
        assert!(clock.now_ns() < 60_000_000_000, "the task is still there");
        clock.sleep(MS);
    }
}

#[test]
fn join_all_keeps_the_order_of_the_futures() {
    let simulation = Simulation::new(1);
    let host = simulation.host("one");
    let scheduler = host.scheduler().clone();
    let sleeping = async move {
        let sleeps = (0..20_u32).map(|number| {
            let scheduler = scheduler.clone();
            async move {
                scheduler.sleep(MS * ((number * 7) % 20)).await;
                number
            }
        });
        (join_all(sleeps).await, scheduler.now_ns())
    };
    let (numbers, end_ns) = simulation.block_on(sleeping);
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    assert_eq!(end_ns, 19_000_000, "side by side");
}
