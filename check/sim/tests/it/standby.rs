//! A standby manager takes over when the acting manager is killed while clients call. The history
//! of every key stays linearizable.

use archipelago_base::random::entropy_seed;
use archipelago_fabric::{ClientId, Line};
use archipelago_pool::wire::Message;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::processes::{End, Process, WORKERS, World, until};

/// Whether this manager acts for the cluster and does not stand by.
fn acts(manager: &str) -> bool {
    let line = Line::new(&Arc::default(), vec![manager.to_owned()], ClientId(entropy_seed()), None);
    let answer = line.ask(&Message::Status {}, Duration::from_secs(3));
    matches!(answer, Ok(Message::StatusIs { status }) if !status.rebuilding)
}

#[test]
fn standby_manager_takes_over_while_clients_write() {
    let dir = std::env::temp_dir().join(format!("archipelago-standby-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory for sockets");
    let mut managers = [0, 1].map(|_| Process::start("manager 0 tcp:127.0.0.1:0 3"));
    let at = managers.each_ref().map(|manager| manager.address.clone());
    let start = |role: &str, id: u64| {
        let socket = dir.join(format!("{role}{id}.sock"));
        Process::start(&format!("{role} {id} {},{} {}", at[0], at[1], socket.display()))
    };
    let memory: Vec<Process> = (1..=3).map(|id| start("memory", id)).collect();
    let compute: Vec<Process> = (1..=2).map(|id| start("compute", id)).collect();
    let world = World::new(&compute);
    std::thread::scope(|scope| {
        let _end = End(&world.end);
        for worker in 0..WORKERS {
            let world = &world;
            scope.spawn(move || world.work(200 + worker));
        }
        world.progress("with two managers");
        for _ in 0..3 {
            until("one manager acts", || at.iter().any(|at| acts(at)));
            let acting = at.iter().position(|at| acts(at)).expect("it acts");
            managers[acting].kill();
            world.progress("without the manager that acted");
            until("the other one acts", || acts(&at[1 - acting]));
            world.progress("under the other one");
            managers[acting] = Process::start(&format!("manager 0 {} 3", at[acting]));
        }
    });
    drop((compute, memory, managers));
    // Best effort: the sockets belong to processes that were killed.
    #[expect(clippy::disallowed_methods, reason = "sockets of processes, not files of a store")]
    let _removed = std::fs::remove_dir_all(&dir);
    world.assert_linearizable();
    let unanswered = world.unanswered.load(Ordering::SeqCst);
    assert!(world.history.answered() > 900 && unanswered < 300, "{unanswered} not answered");
}
