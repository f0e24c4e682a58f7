//! A manager over TCP, with storage nodes that only beat.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_fabric::{ClientId, ClusterId, Endpoints, Line, NodeId};
use archipelago_pool::wire::Message;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::register::caspaxos::RootSet;
use archipelago_store::nodes::wire::{Members, NodeSpace, RefusalWhy, StorageReport, StoreMessage};

use crate::core::Terms;
use crate::{ManagerServer, ManagerSettings, MemberTerms, StorePlan};

/// Generous time limit for a busy machine. A test that needs all of it has failed.
const ANSWER: Duration = Duration::from_secs(30);

fn start(memory_nodes: u32) -> ManagerServer {
    let storage = MemberTerms {
        beat: Duration::from_millis(20),
        // No pause of the test makes a node silent.
        silent_after: Duration::from_secs(300),
        settle: Duration::from_millis(100),
        ..MemberTerms::default()
    };
    let settings = ManagerSettings {
        listen: vec!["tcp:127.0.0.1:0".to_owned()],
        terms: Terms::default(),
        store: StorePlan::default(),
        memory_nodes,
        standby: memory_nodes > 0,
        storage,
        secret: None,
    };
    ManagerServer::start(&settings).unwrap()
}

fn line(server: &ManagerServer) -> Line {
    let endpoints = Arc::new(Endpoints::new());
    Line::new(&endpoints, server.addresses().to_vec(), ClientId(7), None)
}

fn beat(id: u64, cluster: Option<ClusterId>, root_set: Option<RootSet>) -> StoreMessage {
    let space = NodeSpace { capacity_bytes: 1 << 40, used_bytes: 0 };
    StoreMessage::StorageBeat {
        storage: StorageId(id),
        node: NodeId(id),
        life: Epoch(1),
        endpoints: vec!["tcp:127.0.0.1:1".to_owned()],
        domain: format!("rack {id}"),
        cluster,
        root_set,
        is_draining: false,
        version: 0,
        report: StorageReport { space, ..StorageReport::default() },
        forgotten: Vec::new(),
    }
}

/// Lets three nodes beat until the manager's list of members names their cluster.
fn found(line: &Line) -> Members {
    let clock = SystemClock::new();
    let mut known: [Option<Members>; 3] = [None, None, None];
    for _ in 0..500 {
        for (id, known) in (1..).zip(&mut known) {
            let (cluster, root_set) = match known {
                Some(members) => (members.cluster, Some(members.root_set.clone())),
                None => (None, None),
            };
            match line.ask(&beat(id, cluster, root_set), ANSWER).unwrap() {
                StoreMessage::MembersAre { members: Some(members), .. } => {
                    if members.cluster.is_some() {
                        *known = Some(members);
                    }
                }
                other => panic!("a beat was answered with {other:?}"),
            }
        }
        let members = members(line);
        if members.cluster.is_some() {
            assert!(known.iter().flatten().all(|known| known.cluster == members.cluster));
            return members;
        }
        clock.sleep(Duration::from_millis(10));
    }
    panic!("the cluster is not founded");
}

fn members(line: &Line) -> Members {
    match line.ask(&StoreMessage::AskMembers { version: 0 }, ANSWER).unwrap() {
        StoreMessage::MembersAre { members: Some(members), .. } => members,
        other => panic!("unexpected answer {other:?}"),
    }
}

#[test]
fn manager_founds_a_cluster_and_serves_the_pool_as_well() {
    let server = start(0);
    let line = line(&server);
    let founded = found(&line);
    assert_eq!(founded.root_set.members, [1, 2, 3].map(StorageId));
    assert_eq!(founded.members.len(), 3);
    match line.ask(&StoreMessage::StorageStatus {}, ANSWER).unwrap() {
        StoreMessage::StorageStatusIs { status } => assert_eq!(status.nodes.len(), 3),
        other => panic!("unexpected answer {other:?}"),
    }
    let pool = line.ask(&Message::Status {}, ANSWER).unwrap();
    assert!(matches!(pool, Message::StatusIs { .. }), "{pool:?}");
}

#[test]
fn request_for_another_role_is_refused() {
    let server = start(0);
    let answer = line(&server).ask(&StoreMessage::NodeStatus {}, ANSWER).unwrap();
    assert!(
        matches!(answer, StoreMessage::Refuse { why: RefusalWhy::Malformed, .. }),
        "{answer:?}"
    );
}

#[test]
fn standby_manager_hears_beats_and_sends_clients_away() {
    let server = start(3);
    let line = line(&server);
    for _ in 0..20 {
        let answer = line.ask(&beat(1, None, None), ANSWER).unwrap();
        assert!(matches!(answer, StoreMessage::MembersAre { members: None, .. }), "{answer:?}");
    }
    let answer = line.ask(&StoreMessage::AskMembers { version: 0 }, ANSWER).unwrap();
    assert!(matches!(answer, StoreMessage::Refuse { why: RefusalWhy::Standby, .. }), "{answer:?}");
}
