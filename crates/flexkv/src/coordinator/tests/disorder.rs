//! Seeded runs with lost, repeated and late messages, and with deaths.

use archipelago_base::random::Rng;
use archipelago_pool::ClientId;

use super::cluster::{Cluster, PLAN};

const STEPS: usize = 400;

fn one_of(rng: &mut Rng, clients: &[ClientId]) -> Option<ClientId> {
    (!clients.is_empty()).then(|| clients[rng.usize(..clients.len())])
}

/// An event that is not a message.
fn event(cluster: &mut Cluster, rng: &mut Rng) {
    let living = |silent: bool| -> Vec<ClientId> {
        let nodes = cluster.nodes.iter().filter(|(_, node)| node.silent == silent);
        nodes.map(|(client, _)| *client).collect()
    };
    let (up, silent) = (living(false), living(true));
    match rng.u32(..14) {
        0 | 1 if cluster.nodes.len() < 5 => {
            cluster.join();
        }
        2 => {
            if let Some(node) = one_of(rng, &up).and_then(|one| cluster.nodes.get_mut(&one)) {
                node.silent = true;
            }
        }
        3..=5 => {
            if let Some(client) = one_of(rng, &silent) {
                cluster.die(client.0);
            }
        }
        6 => {
            let partition = rng.u32(..1 << PLAN.partition_bits);
            let epoch = cluster.core.map().get(partition as usize).map_or(1, |entry| entry.epoch);
            cluster.grow(partition, epoch);
        }
        7 => {
            cluster.core.set_offload(rng.u32(..=10) * 100);
            cluster.collect();
        }
        8 => {
            if let Some(client) = one_of(rng, &up) {
                cluster.ask_to_join(client);
            }
        }
        10 => {
            cluster.watch();
            cluster.read_directory();
            let ghosts: Vec<ClientId> = cluster.ghosts.keys().copied().collect();
            up.iter().chain(&ghosts).for_each(|client| cluster.announce(*client));
        }
        11 => cluster.count(rng.usize(..64), rng),
        9 if rng.u32(..6) == 0 => cluster.restart_coordinator(),
        _ => {
            cluster.core.on_tick();
            cluster.collect();
        }
    }
}

fn disorder(seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let mut cluster = Cluster::new();
    for _ in 0..STEPS {
        if cluster.bag.is_empty() || rng.u32(..5) == 0 {
            event(&mut cluster, &mut rng);
            continue;
        }
        let at = rng.usize(..cluster.bag.len());
        match rng.u32(..20) {
            0 => drop(cluster.bag.swap_remove(at)),
            1 | 2 => cluster.deliver(cluster.bag[at].clone()),
            _ => {
                let flight = cluster.bag.swap_remove(at);
                cluster.deliver(flight);
            }
        }
    }
    let silent: Vec<ClientId> =
        cluster.nodes.iter().filter(|(_, node)| node.silent).map(|(client, _)| *client).collect();
    silent.into_iter().for_each(|client| cluster.die(client.0));
    if cluster.nodes.is_empty() {
        cluster.join();
    }
    cluster.settle();
    cluster.core.version()
}

#[test]
fn lost_doubled_and_late_messages_and_deaths_leave_one_map() {
    let versions: u64 = (0..500).map(disorder).sum();
    assert!(versions > 2000, "{versions} changes");
}
