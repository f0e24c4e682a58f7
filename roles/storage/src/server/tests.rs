use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_env::FileClass;
use archipelago_env::mem::MemFs;
use archipelago_fabric::{Call, ClientId, Endpoints, Line, Link, NodeId};
use archipelago_store::nodes::wire::{ExtentAt, RefusalWhy, Stamp, StoreMessage, envelope};
use archipelago_store::{LogId, VolumeId};

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

/// A link to a server, which ends with its line.
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
