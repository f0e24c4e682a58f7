//! A cluster whose memory is full. Its values stay readable, deletions work from every node, and
//! freed memory takes writes again.

use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_compute::flexkv::{FlexKvNode, FlexKvNodeSettings, FlexKvSettings};
use archipelago_fabric::NodeId;
use archipelago_flexkv::{WriteEffect, WriteError};
use archipelago_manager::ManagerServer;
use archipelago_memory::{MemoryServer, MemorySettings};

use crate::processes::{manager, start_manager, until};

const BLOCK_BYTES: u64 = 1 << 20;
/// Number of blocks of each memory node.
const BLOCKS: u64 = 10;
pub(crate) const ADDRESS_LEASE: Duration = Duration::from_secs(1);
const VALUE: [u8; 1000] = [b'x'; 1000];

/// A manager, two memory nodes and two compute nodes in this process.
pub(crate) struct Cluster {
    pub(crate) compute: Vec<FlexKvNode>,
    _memory: Vec<MemoryServer>,
    _manager: ManagerServer,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::of(manager("tcp:127.0.0.1:0"))
    }

    /// Starts the cluster with proxies for `offload` of a thousand partitions.
    pub(crate) fn with_proxies(offload: u32) -> Self {
        Self::of(start_manager("tcp:127.0.0.1:0", 0, offload, true))
    }

    fn of(manager: ManagerServer) -> Self {
        let at = manager.addresses()[0].clone();
        let memory = [1, 2].map(|id| {
            let listen = "tcp:127.0.0.1:0".to_owned();
            let size = BLOCKS * BLOCK_BYTES;
            let mut settings = MemorySettings::new(NodeId(id), size, listen, at.clone());
            settings.block_bytes = BLOCK_BYTES;
            MemoryServer::start(settings).expect("a memory node")
        });
        let compute = [(), ()].map(|()| {
            let store =
                FlexKvSettings { address_lease: ADDRESS_LEASE, ..FlexKvSettings::default() };
            FlexKvNode::start(FlexKvNodeSettings {
                manager: vec![at.clone()],
                listen: vec!["tcp:127.0.0.1:0".to_owned()],
                advertise: Vec::new(),
                secret: None,
                store,
            })
            .expect("a compute node")
        });
        Self { compute: compute.into(), _memory: memory.into(), _manager: manager }
    }

    /// Sets keys through the first node until memory is full. Returns their number and the error.
    pub(crate) fn fill(&self) -> (usize, WriteError) {
        for number in 0.. {
            let key = format!("key{number}");
            if let Err(failed) = self.compute[0].set(key.as_bytes(), &VALUE, 0) {
                return (number, failed);
            }
        }
        unreachable!("memory is bounded")
    }
}

pub(crate) fn assert_is_full(failed: &WriteError) {
    assert_eq!((failed.kind(), failed.effect()), (ErrorKind::Busy, WriteEffect::None));
    assert!(failed.to_string().contains("full"), "{failed}");
}

#[test]
fn full_memory_can_be_emptied_and_filled_again() {
    let cluster = Cluster::start();
    let (count, failed) = cluster.fill();
    assert_is_full(&failed);
    assert!(count > 4000, "{count} records of 1 KB in {BLOCKS} MB");
    let read = |node: &FlexKvNode, number: usize| {
        let value = node.get(format!("key{number}").as_bytes()).expect("readable");
        value.is_some_and(|value| value.bytes == VALUE)
    };
    for node in &cluster.compute {
        assert!((0..count).all(|number| read(node, number)), "every acknowledged key is there");
    }
    let gone = count / 4;
    let deleted = |number: usize| {
        cluster.compute[1]
            .delete(format!("key{number}").as_bytes())
            .expect("deletions need no room")
    };
    assert!((0..gone).all(deleted));
    for node in &cluster.compute {
        assert!((0..gone).all(|number| !read(node, number)));
        assert!((gone..count).all(|number| read(node, number)));
    }
    // Writes also go through the node whose own blocks lost no record, and they need pieces of
    // another size.
    let mut written = 0;
    until("memory takes writes again", || {
        let node = &cluster.compute[written % 2];
        let long = [VALUE; 3].concat();
        let value = if written.is_multiple_of(8) { &long[..] } else { &VALUE };
        match node.set(format!("new{written}").as_bytes(), value, 0) {
            Ok(()) => written += 1,
            Err(failed) => assert_is_full(&failed),
        }
        written == gone / 2
    });
}

#[test]
fn expired_records_give_their_memory_back_by_themselves() {
    let cluster = Cluster::start();
    #[expect(clippy::disallowed_methods, reason = "expiries are told by the wall clock")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let expires_ms = now.expect("after 1970").as_millis() as u64 + 3_000;
    // Memory holds three quarters of these records and the following ones together.
    let count = 5000;
    for number in 0..count {
        let key = format!("key{number}");
        cluster.compute[0].set(key.as_bytes(), &VALUE, expires_ms).expect("room");
    }
    let mut written = 0;
    until("memory takes as many others", || {
        match cluster.compute[0].set(format!("new{written}").as_bytes(), &VALUE, 0) {
            Ok(()) => written += 1,
            Err(failed) => assert_is_full(&failed),
        }
        written == count
    });
}

#[test]
fn expiry_beyond_the_format_is_refused_with_the_limit() {
    let cluster = Cluster::start();
    let far = 1 << 48;
    let failed = cluster.compute[0].set(b"key", b"value", far).expect_err("beyond 48 bits");
    assert_eq!((failed.kind(), failed.effect()), (ErrorKind::InvalidArgument, WriteEffect::None));
    assert!(failed.to_string().contains("281474976710655"), "{failed}");
    cluster.compute[0].set(b"key", b"value", far - 1).expect("the latest that is kept");
    let value = cluster.compute[1].get(b"key").expect("readable").expect("there");
    assert_eq!(value.expires_ms, far - 1);
}
