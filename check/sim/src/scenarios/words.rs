//! Clients that count in a word of a memory node, with a lock and without one.
//!
//! The scenario without a lock loses updates on purpose. It proves that the simulator finds
//! failures.

use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::simulation::{Scheduler, Simulation};
use archipelago_fabric::sim::{Faults, Model, Network};
use archipelago_fabric::{Attached, Batch, Connect, Link, NodeId, Provider, RemoteKey, Rights};

use crate::run::Scenario;

const CLIENTS: u64 = 3;
const ROUNDS: u64 = 8;
const LOCK: u64 = 0;
const COUNT: u64 = 8;

pub(super) fn locked() -> Scenario {
    let about = "clients count in a word that a compare-and-swap guards, over a bad network";
    Scenario::new("lock", about, |simulation| count(simulation, true))
}

pub(super) fn lost_update() -> Scenario {
    let about = "the same without the guard, wrong on purpose: some seed must fail";
    Scenario::new("lost-update", about, |simulation| count(simulation, false))
}

fn count(simulation: &Simulation, guarded: bool) -> Result<(), String> {
    let network = Network::new(simulation);
    let memory = simulation.host("memory");
    let there = network.join(&memory, Model::quick());
    let node = network.node(NodeId(1), Epoch(1), None).map_err(text)?;
    let region = node.allocate(64, there.atomic_path()).map_err(text)?;
    let key = region.grant(Rights::ALL).map_err(text)?;
    let _listener = there.serve(&node, "memory").map_err(text)?;
    let delay_ns_max = 5_000;
    network.set_faults(Faults { loss: 0.02, delay_ns_max, ..Faults::default() });
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let host = simulation.host(&format!("client-{number}"));
        let here = network.join(&host, Model::quick());
        let to = Connect::to("memory", &network.session());
        let scheduler = simulation.scheduler();
        tasks.push(host.spawn("counts", async move {
            let link = here.connect(to).await.map_err(text)?;
            client(&scheduler, &*link, &key, number + 1, guarded).await
        }));
    }
    for task in tasks {
        simulation.block_on(task).map_err(text)??;
    }
    let mut word = [0; 8];
    region.read(COUNT, &mut word).map_err(text)?;
    match u64::from_le_bytes(word) {
        found if found == CLIENTS * ROUNDS => Ok(()),
        found => Err(format!("{CLIENTS} clients counted {ROUNDS} each, and the word says {found}")),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

async fn client(
    scheduler: &Scheduler,
    link: &dyn Link,
    key: &RemoteKey,
    me: u64,
    guarded: bool,
) -> Result<(), String> {
    let memory = link.attach(key).await.map_err(text)?;
    let mut rng = scheduler.rng(&format!("client {me}"));
    for _ in 0..ROUNDS {
        scheduler.sleep(Duration::from_nanos(rng.u64(0..20_000))).await;
        while guarded && swap(link, memory, LOCK, 0, me).await? != 0 {
            scheduler.sleep(Duration::from_nanos(rng.u64(1..5_000))).await;
        }
        let mut read = Batch::new();
        read.read(memory, COUNT, 8);
        let read = link.post(read).await;
        read.check().map_err(text)?;
        let mut word = [0; 8];
        word.copy_from_slice(read.data(0));
        let next = u64::from_le_bytes(word) + 1;
        scheduler.note(|| format!("client {me} counts to {next}"));
        let mut write = Batch::new();
        write.write(memory, COUNT, &next.to_le_bytes());
        link.post(write).await.check().map_err(text)?;
        if guarded && swap(link, memory, LOCK, me, 0).await? != me {
            return Err(format!("the lock of client {me} was taken from it"));
        }
    }
    Ok(())
}

async fn swap(
    link: &dyn Link,
    memory: Attached,
    offset: u64,
    expect: u64,
    new: u64,
) -> Result<u64, String> {
    let mut batch = Batch::new();
    batch.compare_swap(memory, offset, expect, new);
    let batch = link.post(batch).await;
    batch.check().map_err(text)?;
    Ok(batch.word(0).unwrap_or(u64::MAX))
}
