use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileClass;
use archipelago_env::mem::MemFs;
use archipelago_fabric::{Call, ClientId, Endpoints, Line, Link, NodeId};
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, Stamp, StoreMessage, envelope};
use archipelago_store::{LogId, VolumeId};
use parking_lot::{Condvar, Mutex};

use super::{StorageServer, StorageSettings};
use crate::parts::NodeOptions;

const SECOND: Duration = Duration::from_secs(20);
const AT: ExtentAt = ExtentAt { log: LogId([1; 16]), extent: 1 };
const STAMP: Stamp = Stamp { volume: VolumeId([2; 16]), epoch: Epoch(1) };

fn settings(dir: &Path) -> StorageSettings {
    StorageSettings {
        id: NodeId(1),
        devices: vec![dir.to_owned()],
        listen: vec!["tcp:127.0.0.1:0".to_owned()],
        advertise: Vec::new(),
        managers: Vec::new(),
        domain: "here".to_owned(),
        secret: None,
        node: NodeOptions::default(),
    }
}

/// A link to a server, which ends when the value is dropped.
struct Connection {
    link: Arc<dyn Link>,
    _line: Line,
}

fn connect(server: &StorageServer) -> Connection {
    let endpoints = Arc::new(Endpoints::new());
    let line = Line::new(&endpoints, server.addresses().to_vec(), ClientId(7), None);
    Connection { link: line.link(SECOND).unwrap(), _line: line }
}

fn append(start: u64, is_synced: bool) -> StoreMessage {
    let class = FileClass::Wal;
    StoreMessage::Append { at: AT, stamp: STAMP, class, extent_start: 0, start, is_synced }
}

/// Sends all requests before it waits for the first answer.
fn ask_all(
    Connection { link, .. }: &Connection,
    requests: &[(StoreMessage, Vec<u8>)],
) -> Vec<(StoreMessage, Vec<u8>)> {
    let send = |(message, payload): &(StoreMessage, Vec<u8>)| {
        let body = envelope::seal(message, payload);
        link.request(Call::new(&body, SECOND).idempotent().bulk().answer_bytes_max(64 << 10))
    };
    let promises: Vec<_> = requests.iter().map(send).collect();
    link.flush();
    let answers = promises.into_iter().map(|promise| {
        let body = promise.wait().unwrap();
        let (message, payload) = envelope::open(&body).unwrap();
        (message, payload.to_vec())
    });
    answers.collect()
}

#[test]
fn appends_in_flight_keep_their_order_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = StorageServer::start(settings(dir.path())).unwrap();
    let identity = server.storage();
    let connection = connect(&server);
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let group = |number: u64| (append(number * 256, number.is_multiple_of(7)), bytes.clone());
    let requests: Vec<_> = (0..40).map(group).collect();
    for (number, (answer, _)) in ask_all(&connection, &requests).iter().enumerate() {
        let end = (number as u64 + 1) * 256;
        let StoreMessage::Progress { written, synced } = answer else { panic!("{answer:?}") };
        assert!(*written >= end, "{answer:?}");
        assert!(*synced >= end || !number.is_multiple_of(7), "{answer:?}");
    }
    let read = StoreMessage::ReadLog { at: AT, start: 0, end: u64::MAX };
    let expected = bytes.repeat(40);
    assert!(ask_all(&connection, &[(read.clone(), Vec::new())])[0].1 == expected);
    drop(connection);
    server.close().unwrap();
    let server = StorageServer::start(settings(dir.path())).unwrap();
    assert_eq!(server.storage(), identity);
    let connection = connect(&server);
    assert!(ask_all(&connection, &[(read, Vec::new())])[0].1 == expected);
}

#[test]
fn body_that_is_no_request_is_refused_as_malformed() {
    let fs = Arc::new(MemFs::new());
    let server = StorageServer::start_on(fs, settings(Path::new("/device"))).unwrap();
    let connection = connect(&server);
    let body = connection.link.request(Call::new(b"no envelope", SECOND)).wait().unwrap();
    let (answer, _) = envelope::open(&body).unwrap();
    assert!(
        matches!(answer, StoreMessage::Refuse { why: RefusalWhy::Malformed, .. }),
        "{answer:?}"
    );
}

#[test]
fn directory_serves_one_server_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = StorageServer::start(settings(dir.path())).unwrap();
    let second = StorageServer::start(settings(dir.path())).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Busy);
    drop(server);
    StorageServer::start(settings(dir.path())).expect("the first one has ended");
}

#[test]
fn bad_settings_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let good = settings(dir.path());
    for (bad, name) in [
        (StorageSettings { id: NodeId(0), ..good.clone() }, "node id 0"),
        (StorageSettings { devices: Vec::new(), ..good.clone() }, "directory"),
        (StorageSettings { listen: Vec::new(), ..good.clone() }, "listens"),
        (StorageSettings { domain: String::new(), ..good }, "domain"),
    ] {
        let error = StorageServer::start(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// Holds up every sync below a directory until it is dropped.
#[derive(Debug, Default)]
struct Hang {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Hang {
    /// Holds up the syncs of `fs` below `dir`.
    fn begin(fs: &MemFs, dir: &'static str) -> HangGuard {
        let hang = Arc::new(Self::default());
        let held = Arc::clone(&hang);
        fs.on_sync(Arc::new(move |_, path| {
            if path.starts_with(dir) {
                let mut is_over = held.is_over.lock();
                while !*is_over {
                    held.changed.wait(&mut is_over);
                }
            }
        }));
        HangGuard(hang)
    }
}

struct HangGuard(Arc<Hang>);

impl Drop for HangGuard {
    fn drop(&mut self) {
        *self.0.is_over.lock() = true;
        self.0.changed.notify_all();
    }
}

fn numbered(extent: u32) -> ExtentAt {
    ExtentAt { extent, ..AT }
}

fn append_to(extent: u32, start: u64, is_synced: bool) -> StoreMessage {
    let (at, class) = (numbered(extent), FileClass::Wal);
    StoreMessage::Append { at, stamp: STAMP, class, extent_start: 0, start, is_synced }
}

fn seal_of(extent: u32, end: u64) -> StoreMessage {
    let (at, class) = (numbered(extent), FileClass::Wal);
    StoreMessage::SealLog { at, stamp: STAMP, class, extent_start: 0, end }
}

/// Waits for an answer.
type Answering = Box<dyn FnOnce() -> StoreMessage>;

/// Sends requests without waiting for their answers.
fn send_all(connection: &Connection, requests: &[(StoreMessage, Vec<u8>)]) -> Vec<Answering> {
    let send = |(message, payload): &(StoreMessage, Vec<u8>)| -> Answering {
        let body = envelope::seal(message, payload);
        let call = Call::new(&body, SECOND).idempotent().bulk().answer_bytes_max(64 << 10);
        let promise = connection.link.request(call);
        Box::new(move || envelope::open(&promise.wait().unwrap()).unwrap().0)
    };
    let answering = requests.iter().map(send).collect();
    connection.link.flush();
    answering
}

/// A server with two devices and `extents` extents, which take turns on them. Returns those on the
/// first device and those on the second one as well.
fn server_with_extents(fs: &MemFs, extents: u32) -> (StorageServer, Vec<u32>, Vec<u32>) {
    let devices = vec!["/a".into(), "/b".into()];
    let two = StorageSettings { devices, ..settings(Path::new("/a")) };
    let server = StorageServer::start_on(Arc::new(fs.clone()), two).unwrap();
    let connection = connect(&server);
    for extent in 1..=extents {
        let answer = &ask_all(&connection, &[(append_to(extent, 0, false), vec![1; 1000])])[0].0;
        assert_eq!(*answer, StoreMessage::Progress { written: 1000, synced: 0 });
    }
    let first = server.node.devices().present()[0].id;
    let is_first = |extent: &u32| {
        let request = StoreMessage::InspectLog { at: numbered(*extent) };
        server.node.device_of(&request) == Some(first)
    };
    let (here, there): (Vec<u32>, Vec<u32>) = (1..=extents).partition(is_first);
    assert_eq!(here.len(), there.len());
    (server, here, there)
}

#[test]
fn hung_device_holds_up_no_request_to_another_one() {
    let fs = MemFs::new();
    let (server, here, there) = server_with_extents(&fs, 12);
    let connection = connect(&server);
    let hang = Hang::begin(&fs, "/b");
    // Every kind of request hangs on the second device: seals hold the locks of their extents.
    let mut hung = Vec::new();
    for extent in &there {
        let at = numbered(*extent);
        hung.extend([
            (append_to(*extent, 1000, true), vec![2; 100]),
            (seal_of(*extent, 1000), Vec::new()),
            (append_to(*extent, 1000, false), vec![2; 100]),
            (StoreMessage::ReadLog { at, start: 0, end: 1000 }, Vec::new()),
            (StoreMessage::FenceLog { at, stamp: STAMP }, Vec::new()),
        ]);
    }
    let hung = send_all(&connection, &hung);
    let other = connect(&server);
    for extent in &here {
        let at = numbered(*extent);
        let answers = ask_all(
            &other,
            &[
                (append_to(*extent, 1000, true), vec![2; 100]),
                (StoreMessage::FenceLog { at, stamp: STAMP }, Vec::new()),
                (StoreMessage::ReadLog { at, start: 0, end: 1100 }, Vec::new()),
                (StoreMessage::NodeStatus {}, Vec::new()),
            ],
        );
        assert_eq!(answers[0].0, StoreMessage::Progress { written: 1100, synced: 1100 });
        assert!(matches!(answers[3].0, StoreMessage::NodeStatusIs { .. }), "{:?}", answers[3].0);
        let sealed = &ask_all(&other, &[(seal_of(*extent, 1100), Vec::new())])[0].0;
        assert_eq!(*sealed, StoreMessage::Progress { written: 1100, synced: 1100 });
    }
    drop(hang);
    hung.into_iter().for_each(|answering| drop(answering()));
    fs.clear_on_sync();
}

#[test]
fn new_objects_avoid_a_device_whose_lanes_are_full() {
    let fs = MemFs::new();
    let (server, _, there) = server_with_extents(&fs, 60);
    let connection = connect(&server);
    let hang = Hang::begin(&fs, "/b");
    let seal = |extent: &u32| (seal_of(*extent, 1000), Vec::new());
    let hung = send_all(&connection, &there.iter().map(seal).collect::<Vec<_>>());
    // Requests of one link reach the lanes in their order, so all seals are there.
    ask_all(&connection, &[(StoreMessage::NodeStatus {}, Vec::new())]);
    let other = connect(&server);
    for extent in 300..340 {
        let request = (append_to(extent, 0, true), vec![1; 5000]);
        let answer = &ask_all(&other, &[request])[0].0;
        assert_eq!(*answer, StoreMessage::Progress { written: 5000, synced: 5000 });
    }
    drop(hang);
    for answering in hung {
        assert_eq!(answering(), StoreMessage::Progress { written: 1000, synced: 1000 });
    }
    fs.clear_on_sync();
}
