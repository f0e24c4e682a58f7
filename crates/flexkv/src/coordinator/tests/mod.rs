//! The state machine against a cluster of scripted nodes, which answer as `membership.rs` does,
//! without the work.
//!
//! Messages stay in flight until a test delivers, repeats or loses them. After each step the test
//! checks that all nodes with a partition open agree on its owner and epoch.

mod cluster;
mod disorder;

use archipelago_pool::ClientId;

use super::*;
use cluster::{Cluster, Flight, PLAN};

fn kinds(cluster: &Cluster, to: u64) -> Vec<&'static str> {
    let order = |flight: &Flight| match flight {
        Flight::Order { to: client, message, .. } if client.0 == to => Some(message.name()),
        _ => None,
    };
    cluster.bag.iter().filter_map(order).collect()
}

fn owners(cluster: &Cluster) -> Vec<u32> {
    cluster.core.map().iter().map(|entry| entry.node).collect()
}

fn epochs(cluster: &Cluster) -> Vec<u32> {
    cluster.core.map().iter().map(|entry| entry.epoch).collect()
}

/// A cluster of `nodes` at rest.
fn settled(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for _ in 0..nodes {
        cluster.join();
        cluster.settle();
    }
    cluster
}

#[test]
fn the_first_node_makes_the_index_and_takes_everything() {
    let mut cluster = Cluster::new();
    let first = cluster.join();
    cluster.deliver_all("Join");
    assert_eq!(kinds(&cluster, first), ["Create"]);
    assert_eq!(cluster.core.version(), 0);
    cluster.settle();
    assert_eq!(owners(&cluster), vec![1; 1 << PLAN.partition_bits]);
    assert_eq!(cluster.core.version(), 2, "made, and taken");
}

#[test]
fn a_second_node_gets_its_share_and_nothing_else_moves() {
    let mut cluster = settled(1);
    let before = cluster.core.map().to_vec();
    cluster.join();
    cluster.settle();
    let (now, old) = (cluster.core.map(), before.iter());
    let moved = now.iter().zip(old).filter(|(now, old)| now.node != old.node).count();
    assert_eq!(moved, 1 << (PLAN.partition_bits - 1));
    for (now, old) in cluster.core.map().iter().zip(&before) {
        assert_eq!(now.epoch > old.epoch, now.node != old.node || now.offloaded != old.offloaded);
    }
    cluster.join();
    cluster.settle();
    let count = |number| owners(&cluster).iter().filter(|owner| **owner == number).count();
    assert!([1, 2, 3].into_iter().all(|number| (2..=3).contains(&count(number))));
}

#[test]
fn each_step_waits_for_everybody() {
    let mut cluster = settled(2);
    let (one, two) = (1, 2);
    cluster.core.set_offload(1000);
    cluster.collect();
    for (step, next) in [("Pause", "Prepare"), ("Prepare", "Resume")] {
        assert_eq!((kinds(&cluster, one), kinds(&cluster, two)), (vec![step], vec![step]));
        cluster.run_order(one);
        assert_eq!(kinds(&cluster, one), Vec::<&str>::new(), "{step}: the other has not confirmed");
        cluster.run_order(two);
        assert_eq!(kinds(&cluster, one), [next]);
    }
    assert!(!cluster.core.is_settled());
    cluster.settle();
    assert!(cluster.core.map().iter().all(|entry| entry.offloaded));
}

#[test]
fn death_restarts_change_at_larger_epochs() {
    for steps in 1..=2 {
        let mut cluster = settled(3);
        let before = epochs(&cluster);
        cluster.core.set_offload(1000);
        cluster.collect();
        for _ in 0..steps {
            (1..=3).for_each(|client| cluster.run_order(client));
        }
        let claimed = cluster.claimed.clone();
        cluster.die(3);
        cluster.settle();
        for (partition, epoch) in epochs(&cluster).into_iter().enumerate() {
            assert!(epoch > before[partition], "partition {partition}");
            assert!(epoch >= claimed[&(partition as u32)].0, "partition {partition}");
        }
        assert!(owners(&cluster).iter().all(|owner| *owner < 3));
    }
}

#[test]
fn a_number_is_not_given_again_while_the_map_names_it() {
    let mut cluster = settled(2);
    // The map still gives the dead node its partitions while the change waits for the first node.
    cluster.die(2);
    let third = cluster.join();
    cluster.deliver_all("Join");
    let numbers: Vec<u32> = cluster.core.members().iter().map(|member| member.number).collect();
    assert_eq!(numbers, [1, 3]);
    cluster.settle();
    assert_eq!(cluster.number(third), Some(3));
    let fourth = cluster.join();
    cluster.settle();
    assert_eq!(cluster.number(fourth), Some(2), "nobody names it any more");
}

#[test]
fn node_joining_during_change_gets_map_when_it_holds() {
    let mut cluster = settled(2);
    cluster.core.set_offload(1000);
    cluster.collect();
    let third = cluster.join();
    cluster.deliver_all("Join");
    cluster.core.on_tick();
    cluster.collect();
    assert!(!cluster.is_told(third), "it has no part in the change");
    // The change starts again with the node, which must know a map before it can pause.
    cluster.die(2);
    assert_eq!(kinds(&cluster, third), ["Pause"]);
    cluster.core.on_tick();
    cluster.collect();
    assert!(cluster.is_told(third));
    cluster.settle();
    assert!(owners(&cluster).contains(&3));
}

#[test]
fn node_that_joins_after_all_died_takes_everything() {
    let mut cluster = settled(2);
    cluster.core.set_offload(1000);
    cluster.collect();
    (1..=2).for_each(|client| cluster.run_order(client));
    (1..=2).for_each(|client| cluster.run_order(client));
    let claimed = cluster.claimed.clone();
    cluster.die(1);
    cluster.die(2);
    let next = cluster.join();
    cluster.settle();
    let number = cluster.number(next).expect("it joined");
    assert_eq!(owners(&cluster), vec![number; 1 << PLAN.partition_bits]);
    for (partition, epoch) in epochs(&cluster).into_iter().enumerate() {
        assert!(epoch > claimed[&(partition as u32)].0, "partition {partition}");
    }
}

#[test]
fn a_full_partition_grows_once() {
    let mut cluster = settled(2);
    let before = cluster.core.map()[3];
    cluster.grow(3, before.epoch);
    cluster.settle();
    let after = cluster.core.map()[3];
    assert_eq!(after.shape.log2_buckets, before.shape.log2_buckets + 1);
    assert!(after.epoch > before.epoch && !after.grow);
    cluster.grow(3, before.epoch);
    cluster.settle();
    assert_eq!(cluster.core.map()[3], after, "asked at an epoch that is over");
}

#[test]
fn partition_without_room_opens_again_and_is_not_asked_to_grow() {
    let mut cluster = settled(2);
    cluster.nodes.values_mut().for_each(|node| node.full = true);
    let before = cluster.core.map()[3];
    cluster.grow(3, before.epoch);
    cluster.settle();
    let after = cluster.core.map()[3];
    assert_eq!((after.shape, after.grow), (before.shape, false));
    assert!(after.epoch > before.epoch && cluster.core.is_settled());
    let mut grow = |now_ns: u64| {
        cluster.core.on_time(now_ns);
        cluster.core.on_message(99, &Message::Grow { partition: 3, epoch: after.epoch });
        let actions = cluster.core.take_actions();
        actions.into_iter().find_map(|action| match action {
            Action::Answer { ticket: 99, message } => Some(message),
            _ => None,
        })
    };
    let declined = grow(0).expect("an answer");
    assert!(matches!(declined, Message::Declined { why: Why::Full, .. }), "{declined:?}");
    assert_eq!(grow(2_000_000_000), Some(Message::Done {}), "there may be room by now");
}

#[test]
fn new_coordinator_takes_newest_map_and_pauses_all_once() {
    let mut cluster = settled(3);
    cluster.core.set_offload(1000);
    cluster.collect();
    for _ in 0..2 {
        (1..=3).for_each(|client| cluster.run_order(client));
    }
    // One node works by the new map, and the others are paused for it.
    cluster.run_order(2);
    let newest = cluster.nodes[&ClientId(2)].version;
    let map = cluster.nodes[&ClientId(2)].map.clone();
    cluster.bag.clear();
    cluster.restart_coordinator();
    let fourth = cluster.join();
    cluster.deliver_all("Join");
    assert!(!cluster.is_told(fourth), "nothing is known yet");
    cluster.deliver_all("Here");
    for client in 1..=3 {
        assert_eq!(kinds(&cluster, client), ["Recall"]);
        cluster.run_order(client);
    }
    assert_eq!(cluster.core.version(), 0, "the directory is not read yet");
    cluster.read_directory();
    assert_eq!(cluster.core.version(), newest);
    assert!(map.iter().eq(cluster.core.map()));
    let Some(Flight::Order { message: Message::Pause { changes, version, .. }, .. }) =
        cluster.bag.iter().find(|flight| flight.is("Pause"))
    else {
        panic!("everything is paused");
    };
    assert_eq!((changes.len(), *version), (map.len(), newest + 1));
    assert!(changes.iter().zip(&map).all(|(next, old)| next.epoch > old.epoch));
    cluster.settle();
}

#[test]
fn new_coordinator_passes_epochs_of_restarted_changes() {
    let mut cluster = settled(5);
    cluster.core.set_offload(1000);
    cluster.collect();
    for dead in [5, 4, 3] {
        for _ in 0..2 {
            (1..=dead).for_each(|client| cluster.run_order(client));
        }
        cluster.die(dead);
    }
    for _ in 0..2 {
        (1..=2).for_each(|client| cluster.run_order(client));
    }
    let claimed = cluster.claimed.clone();
    cluster.restart_coordinator();
    cluster.settle();
    for (partition, epoch) in epochs(&cluster).into_iter().enumerate() {
        assert!(epoch > claimed[&(partition as u32)].0, "partition {partition}");
    }
}

#[test]
fn load_moves_partitions_and_ratio_until_ratio_is_fixed() {
    let mut cluster = settled(2);
    let mut rng = archipelago_base::random::Rng::with_seed(1);
    for interval in 0..60 {
        // Another partition becomes the hot one after every ten intervals.
        cluster.count(interval / 10 * 3, &mut rng);
        cluster.settle();
    }
    let report = cluster.core.report().clone();
    assert!(report.reassignments >= 4 && report.ratio_moves > 5, "{report:?}");
    let changes =
        report.changes.iter().filter(|changed| changed.cause.reassign || changed.cause.offload);
    assert!(
        report.samples + changes.count() as u64 <= 60,
        "an interval with a change is no sample: {report:?}"
    );
    let moved = report.changes.iter().filter(|changed| changed.cause.reassign);
    assert!(moved.clone().any(|changed| changed.moved > 0), "{report:?}");
    let proxied = cluster.core.map().iter().filter(|entry| entry.offloaded).count();
    let ratio = ratio_of(cluster.core.offload());
    assert_eq!(proxied as u32, crate::hotness::offloaded(ratio, cluster.core.map().len() as u32));
    cluster.core.set_offload(500);
    cluster.settle();
    for _ in 0..10 {
        cluster.count(3, &mut rng);
        cluster.settle();
        assert_eq!(cluster.core.offload(), 500, "fixed");
    }
    assert_eq!(cluster.core.report().ratio_moves, report.ratio_moves);
}

#[test]
fn death_spreads_only_the_dead_nodes_partitions_by_heat() {
    let mut cluster = settled(4);
    let mut rng = archipelago_base::random::Rng::with_seed(2);
    cluster.core.tune(Tuning { adapt_ratio: false, ..Tuning::default() });
    for _ in 0..3 {
        cluster.count(3, &mut rng);
        cluster.settle();
    }
    assert!(cluster.core.report().reassignments > 0);
    let before = cluster.core.map().to_vec();
    cluster.die(3);
    cluster.settle();
    for (now, old) in cluster.core.map().iter().zip(&before) {
        assert_eq!(now.node != old.node, old.node == 3, "only the dead node's move");
    }
}

#[test]
fn node_proxies_only_partitions_that_fit_its_limit() {
    let mut cluster = Cluster::new();
    cluster.index_bytes = 3 * crate::sharers::offloaded_bytes(PLAN.log2_buckets) + 1;
    cluster.join();
    cluster.settle();
    cluster.core.set_offload(1000);
    cluster.settle();
    let offloaded = |cluster: &Cluster| {
        let map = cluster.core.map();
        map.iter().filter(|entry| entry.offloaded).map(|entry| entry.partition).collect::<Vec<_>>()
    };
    assert_eq!(offloaded(&cluster), [0, 1, 2], "the first of its list, as many as fit");
    // A partition grows and takes twice the memory, so another one must lose its proxy.
    cluster.grow(1, cluster.core.map()[1].epoch);
    cluster.settle();
    let version = cluster.core.version();
    assert!(cluster.core.map()[1].shape.log2_buckets > PLAN.log2_buckets);
    cluster.core.set_offload(1000);
    cluster.settle();
    assert_eq!(offloaded(&cluster), [0, 1], "what is told of its size now counts");
    cluster.core.set_offload(1000);
    cluster.settle();
    assert_eq!(cluster.core.version(), version + 1, "nothing else changes");
}

#[test]
fn node_without_partition_is_made_known_to_others() {
    let partitions = 1 << PLAN.partition_bits;
    let mut cluster = settled(partitions);
    let version = cluster.core.version();
    cluster.join();
    cluster.settle();
    assert_eq!(cluster.core.version(), version + 1, "told by a change of nothing");
    cluster.core.on_tick();
    cluster.settle();
    assert_eq!(cluster.core.version(), version + 1, "once");
    assert!(owners(&cluster).iter().all(|owner| *owner <= partitions as u32));
}

#[test]
fn new_coordinator_waits_for_every_client_in_the_roster() {
    let mut cluster = settled(3);
    cluster.nodes.get_mut(&ClientId(3)).expect("it joined").silent = true;
    cluster.restart_coordinator();
    cluster.deliver_all("Here");
    (1..=2).for_each(|client| cluster.run_order(client));
    cluster.read_directory();
    assert_eq!(cluster.core.version(), 0, "the third may act by a map");
    cluster.die(3);
    cluster.read_directory();
    assert!(cluster.core.version() > 0);
    cluster.settle();
}

#[test]
fn gone_client_that_answers_takes_no_number() {
    // The third client got number 2 after the second client was gone. The test delivers their
    // answers in both orders, and the news of the second client's death before and after them.
    for (first, second) in [(2, 3), (3, 2)] {
        let mut cluster = settled(2);
        cluster.die(2);
        cluster.settle();
        cluster.join();
        cluster.settle();
        assert_eq!(cluster.number(3), Some(2));
        cluster.restart_coordinator();
        cluster.deliver_all("Here");
        [1, first, second].into_iter().for_each(|client| cluster.run_order(client));
        cluster.read_directory();
        assert_eq!(cluster.core.version(), 0, "one of the two is gone, and nobody knows which");
        assert!([1, 2, 3].map(ClientId).iter().all(|c| cluster.core.watched().contains(c)));
        cluster.watch();
        cluster.read_directory();
        let members = cluster.core.members();
        let members: Vec<(u32, u64)> = members.iter().map(|m| (m.number, m.client.0)).collect();
        assert_eq!(members, [(1, 1), (2, 3)]);
        cluster.settle();
    }
}

#[test]
fn coordinator_finds_index_when_every_node_is_gone() {
    let mut cluster = settled(2);
    let full = cluster.core.map()[3];
    cluster.grow(3, full.epoch);
    cluster.settle();
    let (claimed, shapes) = (cluster.claimed.clone(), cluster.shapes.clone());
    assert!(shapes[&3].generation > full.shape.generation);
    cluster.die(1);
    cluster.die(2);
    cluster.restart_coordinator();
    cluster.watch();
    cluster.read_directory();
    let next = cluster.join();
    cluster.settle();
    assert!(kinds(&cluster, next).is_empty());
    assert_eq!(cluster.shapes, shapes, "nothing was made anew");
    for entry in cluster.core.map() {
        assert_eq!(entry.shape, shapes[&entry.partition]);
        assert!(entry.epoch > claimed[&entry.partition].0, "{entry:?}");
    }
}

#[test]
fn grown_subtable_survives_the_nodes_that_knew_it() {
    let mut cluster = settled(2);
    let full = cluster.core.map()[3];
    let owner = u64::from(full.node);
    let other = 3 - owner;
    cluster.grow(3, full.epoch);
    cluster.deliver_all("Grow");
    for _ in 0..2 {
        (1..=2).for_each(|client| cluster.run_order(client));
    }
    // The owner works by the new map, writes to the larger subtable, and dies together with the
    // coordinator.
    cluster.run_order(owner);
    let grown = cluster.shapes[&3];
    assert!(grown.generation > full.shape.generation);
    cluster.restart_coordinator();
    cluster.die(owner);
    cluster.settle();
    assert_eq!(cluster.core.map()[3].shape, grown);
    assert_eq!(cluster.nodes[&ClientId(other)].map[3].shape, grown);
}

#[test]
fn every_node_learns_of_a_node_without_partition() {
    let mut cluster = settled(1 << PLAN.partition_bits);
    let (version, before) = (cluster.core.version(), cluster.core.map().to_vec());
    let last = cluster.join();
    cluster.settle();
    assert_eq!(cluster.core.map(), before, "nothing moves");
    assert!(cluster.core.version() > version);
    for node in cluster.nodes.values() {
        assert!(node.members.contains(&ClientId(last)), "{node:?}");
    }
}
