//! A server over FlexKV answers its clients while another compute node does not answer.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use archipelago_compute::flexkv::{FlexKvNode, FlexKvNodeSettings, FlexKvSettings};
use archipelago_fabric::NodeId;
use archipelago_manager::core::Terms;
use archipelago_manager::{ManagerServer, ManagerSettings, MemberTerms, StorePlan};
use archipelago_memory::{MemoryServer, MemorySettings};
use archipelago_resp::flexkv_store::FlexKvStore;
use archipelago_resp::{Server, ServerOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::processes::{Process, Redis, until};

const BLOCK_BYTES: u64 = 1 << 20;
/// Number of clients that write. Each client writes a key of its own. It is so large that some of
/// the keys belong to partitions of the other node.
const WRITERS: usize = 64;
/// Silence after which the manager declares a compute node dead. The other node is stopped for less
/// time. A manager that starts collects reports for this time, so a longer one delays the test.
const LEASE: Duration = Duration::from_secs(6);
/// Smallest number of the 32 partitions whose proxy is the other node.
const PROXIED_MIN: usize = 8;

/// A manager whose leases are so long that a node which is stopped briefly is not declared dead.
/// Every partition has a proxy.
fn start_manager() -> ManagerServer {
    ManagerServer::start(&ManagerSettings {
        listen: vec!["tcp:127.0.0.1:0".to_owned()],
        terms: Terms { lease: LEASE, ..Terms::default() },
        store: StorePlan { partition_bits: 5, offload: 1000, fixed: true, ..StorePlan::default() },
        memory_nodes: 0,
        standby: false,
        storage: MemberTerms::default(),
        secret: None,
    })
    .expect("a manager")
}

fn start_memory(id: u64, manager: &str) -> MemoryServer {
    let (listen, manager) = ("tcp:127.0.0.1:0".to_owned(), manager.to_owned());
    let mut settings = MemorySettings::new(NodeId(id), 64 * BLOCK_BYTES, listen, manager);
    settings.block_bytes = BLOCK_BYTES;
    MemoryServer::start(settings).expect("a memory node")
}

fn start_compute(manager: &str) -> Arc<FlexKvNode> {
    let node = FlexKvNode::start(FlexKvNodeSettings {
        manager: vec![manager.to_owned()],
        listen: vec!["tcp:127.0.0.1:0".to_owned()],
        advertise: Vec::new(),
        secret: None,
        store: FlexKvSettings::default(),
    });
    Arc::new(node.expect("a compute node"))
}

/// Number of partitions whose proxy is another node than `node`.
fn proxied_elsewhere(node: &FlexKvNode) -> usize {
    let map = node.node().ok().and_then(|node| node.map_status());
    map.map_or(0, |map| {
        let entries = map.entries.iter();
        entries.filter(|entry| entry.offloaded && entry.node != map.number).count()
    })
}

fn signal(process: &Process, signal: Signal) {
    kill_process(Pid::from_child(&process.child), signal).expect("it exists");
}

/// Whether the server has sent a byte that the client has not read.
fn is_answered(client: &TcpStream) -> bool {
    client.set_nonblocking(true).expect("a socket");
    let peeked = client.peek(&mut [0]);
    client.set_nonblocking(false).expect("a socket");
    !peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Sets the keys of all writers to an old value.
fn set_old(reader: &mut Redis) {
    for number in 0..WRITERS {
        let told = reader.ask(&format!("SET key{number} old")).expect("both nodes answer");
        assert_eq!(told.as_deref(), Some("OK"));
    }
}

/// Clients that write their keys at the server at `address`.
fn begin_writes(address: &str) -> Vec<TcpStream> {
    let begin = |number: usize| {
        let mut writer = TcpStream::connect(address).expect("the server accepts");
        writer.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        let command = match number % 2 {
            0 => format!("SET key{number} new\r\n"),
            _ => format!("APPEND key{number} new\r\n"),
        };
        writer.write_all(command.as_bytes()).expect("the server receives");
        writer
    };
    (0..WRITERS).map(begin).collect()
}

#[test]
fn silent_compute_node_delays_only_commands_that_need_it() {
    let manager = start_manager();
    let at = manager.addresses()[0].clone();
    let _memory = [1, 2].map(|id| start_memory(id, &at));
    let node = start_compute(&at);
    let socket = format!("archipelago-unanswered-{}.sock", std::process::id());
    let socket = std::env::temp_dir().join(socket);
    let options = ServerOptions { worker_threads: 1, ..ServerOptions::default() };
    let store = Arc::new(FlexKvStore::new(Arc::clone(&node)));
    let server = Server::start("127.0.0.1:0", store, options).expect("a server");
    let address = server.local_addr().to_string();
    let mut reader = Redis::connect(&address).expect("the server listens");
    // A slow machine may stop the other node for longer than its lease. Then the cluster declares
    // it dead, the writes end without it, and the test needs another node.
    let (mut other, mut is_delayed) = (None, false);
    while !is_delayed {
        drop(other.take());
        let words = format!("compute 1 {at} {}", socket.display());
        let stopped: &Process = other.insert(Process::start(&words));
        until("the other node is a proxy", || proxied_elsewhere(&node) >= PROXIED_MIN);
        set_old(&mut reader);
        signal(stopped, Signal::STOP);
        let mut writers = begin_writes(&address);
        // The only worker thread has begun the writes before it answers the last of these.
        for _ in 0..100 {
            assert_eq!(reader.ask("PING").expect("an answer").as_deref(), Some("PONG"));
        }
        let unanswered = || writers.iter().filter(|writer| !is_answered(writer)).count();
        until("a write that needs this node alone is answered", || unanswered() < WRITERS);
        is_delayed = unanswered() > 0;
        let is_member = proxied_elsewhere(&node) >= PROXIED_MIN;
        signal(stopped, Signal::CONT);
        let what = "every write ended before the other client was answered";
        assert!(is_delayed || !is_member, "{what}");
        for writer in &mut writers {
            assert!(writer.read(&mut [0; 64]).expect("the write ends") > 0);
        }
    }
    drop((server, node, other));
    // Best effort: the socket belongs to a process that was killed.
    #[expect(clippy::disallowed_methods, reason = "a socket of a process, not a file of a store")]
    let _removed = std::fs::remove_file(&socket);
}
