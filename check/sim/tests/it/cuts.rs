//! Histories of real processes in which compute nodes are cut off from the manager and from other
//! nodes, or stopped, for more and for less than their leases. Clients rely on the effect of a
//! write that its error states. Counters must have grown by exactly the increments that may have
//! happened.
//!
//! One short history is an ordinary test. `ARCHIPELAGO_FLEX_CUTS=200x60 cargo test -p
//! archipelago-sim --test it cuts -- --nocapture` runs 200 of 60 seconds. `51-100x60` runs
//! the histories 51 to 100, so that several processes can divide the work.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_flexkv::WriteEffect;

use crate::processes::{End, Process, Redis, WORKERS, World, until};

/// Environment variable with the number of histories, or the first and the last, and the seconds
/// of each.
const VARIABLE: &str = "ARCHIPELAGO_FLEX_CUTS";
/// Number of cuts in a history without a duration.
const CUTS: u64 = 5;

/// Forwards connections to another address. While the way is cut, bytes wait.
struct Proxy {
    address: String,
    target: Arc<Mutex<String>>,
}

impl Proxy {
    fn start(target: &str, is_cut: &Arc<AtomicBool>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let (to, is_cut) = (Arc::clone(&target), Arc::clone(is_cut));
        let accepting = move || {
            for incoming in listener.incoming() {
                let target = to.lock().expect("nobody panics with it").clone();
                let (Ok(incoming), Ok(outgoing)) = (incoming, TcpStream::connect(target)) else {
                    continue;
                };
                let ways = [(&incoming, &outgoing), (&outgoing, &incoming)];
                for (from, to) in ways {
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let is_cut = Arc::clone(&is_cut);
                    spawn(move || forward(from, to, &is_cut));
                }
            }
        };
        spawn(accepting);
        Self { address, target }
    }
}

fn spawn(body: impl FnOnce() + Send + 'static) {
    // The thread ends with its connection or with this program.
    let _thread = std::thread::Builder::new().spawn(body).expect("a thread");
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_cut.load(Ordering::SeqCst) {
            SystemClock::new().sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Each end may be closed already.
    let _shut = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

/// A compute node and its ways to the manager and from other nodes.
struct CutNode {
    process: Process,
    is_cut: Arc<AtomicBool>,
}

impl CutNode {
    fn start(id: u64, manager: &str) -> Self {
        let is_cut = Arc::new(AtomicBool::new(false));
        let to_manager = Proxy::start(manager.trim_start_matches("tcp:"), &is_cut);
        let from_others = Proxy::start("127.0.0.1:9", &is_cut);
        // The port was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        free.to_string().clone_into(&mut from_others.target.lock().expect("new"));
        let manager = format!("tcp:{}", to_manager.address);
        let words = format!("compute {id} {manager} none {free} {}", from_others.address);
        Self { process: Process::start(&words), is_cut }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

/// Answers to the increments of one counter.
#[derive(Default)]
struct Counted {
    done: BTreeSet<u64>,
    unknown: u64,
}

fn count(world: &World, counted: &Mutex<Counted>, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut link = None;
    while !world.end.load(Ordering::SeqCst) {
        let address = {
            let addresses = world.addresses.lock().expect("nobody panics with it");
            addresses[rng.usize(..addresses.len())].clone()
        };
        let Some(mut redis) = link.take().or_else(|| Redis::connect(&address).ok()) else {
            continue;
        };
        let told = redis.ask("INCR counter");
        let mut counted = counted.lock().expect("nobody panics with it");
        match told {
            Ok(value) => {
                let value = value.expect("a number").parse().expect("a number");
                assert!(counted.done.insert(value), "two increments made {value}");
                link = (rng.u32(..4) > 0).then_some(redis);
            }
            Err(failed) if failed.to_string().ends_with(&WriteEffect::None.to_string()) => {}
            Err(_) => counted.unknown += 1,
        }
        drop(counted);
        SystemClock::new().sleep(Duration::from_micros(rng.u64(500..3000)));
    }
}

/// One history: cuts until it has lasted for `seconds`, or [`CUTS`] of them.
fn history(seed: u64, seconds: Option<u64>) {
    let dir = std::env::temp_dir().join(format!("archipelago-cuts-{}-{seed}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory for sockets");
    let manager = Process::start("manager 0 tcp:127.0.0.1:0 0");
    let memory: Vec<Process> = (1..=3)
        .map(|id| {
            let socket = dir.join(format!("memory{id}.sock"));
            Process::start(&format!("memory {id} {} {}", manager.address, socket.display()))
        })
        .collect();
    let nodes: Vec<CutNode> = (1..=3).map(|id| CutNode::start(id, &manager.address)).collect();
    let world = World::new(nodes.iter().map(|node| &node.process));
    let counted = Mutex::new(Counted::default());
    let (mut rng, clock) = (Rng::with_seed(seed), SystemClock::new());
    let (began_ns, mut cuts) = (clock.now_ns(), 0);
    std::thread::scope(|scope| {
        let _end = End(&world.end);
        for worker in 0..WORKERS {
            let (world, counted) = (&world, &counted);
            scope.spawn(move || world.work(seed * 100 + worker));
            scope.spawn(move || count(world, counted, seed * 100 + 50 + worker));
        }
        world.progress("with everybody there");
        let is_over = |cuts| match seconds {
            Some(seconds) => clock.now_ns() - began_ns > seconds * 1_000_000_000,
            None => cuts == CUTS,
        };
        while !is_over(cuts) {
            let node = &nodes[rng.usize(..nodes.len())];
            let pause = Duration::from_millis(rng.u64(50..3000));
            if rng.bool() {
                node.is_cut.store(true, Ordering::SeqCst);
                clock.sleep(pause);
                node.is_cut.store(false, Ordering::SeqCst);
            } else {
                node.signal(rustix::process::Signal::STOP);
                clock.sleep(pause);
                node.signal(rustix::process::Signal::CONT);
            }
            world.progress("after a cut");
            cuts += 1;
        }
    });
    let mut last = None;
    until("the counter is read", || {
        let read = Redis::connect(&nodes[0].process.address)
            .and_then(|mut redis| redis.ask("GET counter"));
        last = read.ok().flatten().and_then(|value| value.parse::<u64>().ok());
        last.is_some()
    });
    drop((nodes, memory, manager));
    // Best effort: sockets of processes that were killed.
    #[expect(clippy::disallowed_methods, reason = "sockets of processes, not files of a store")]
    let _removed = std::fs::remove_dir_all(&dir);
    world.assert_linearizable();
    let Counted { done, unknown } = counted.into_inner().expect("nobody panics with it");
    let (last, done) = (last.expect("it was read"), done.len() as u64);
    assert!(
        (done..=done + unknown).contains(&last),
        "{last} after {done} increments, {unknown} unknown"
    );
    println!(
        "history {seed}: {cuts} cuts, {} calls answered, {} refused, {done} increments, {unknown} unknown",
        world.history.answered(),
        world.history.refused()
    );
}

#[test]
fn histories_with_cuts_of_compute_nodes_are_linearizable() {
    let Ok(asked) = std::env::var(VARIABLE) else { return history(1, None) };
    let (runs, seconds) = asked.split_once('x').expect("RUNSxSECONDS or FIRST-LASTxSECONDS");
    let (first, last) = runs.split_once('-').unwrap_or(("1", runs));
    let number = |text: &str| text.parse::<u64>().expect("a number");
    for seed in number(first)..=number(last) {
        history(seed, Some(number(seconds)));
    }
}
