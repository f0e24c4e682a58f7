//! Authentication of links over `tcp` and `shm`: nodes and clients with and without the secret of
//! the cluster.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use archipelago_base::{Epoch, ErrorKind};
use archipelago_fabric::wire::{Hello, Kind, frame_at, put_frame};
use archipelago_fabric::{
    Call, ClientId, Link, Listener, Node, NodeId, Provider, Reason, Secret, Session, Shm, Tcp,
};

use crate::world::{Backwards, LONG, ask, fresh_address, to, until};

const LINE: &str = "archipelago-secret 1 000102030405060708090a0b0c0d0e0f \
                    101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f";

fn secret() -> Secret {
    Secret::parse(LINE).unwrap()
}

/// The secret with another key.
fn wrong_key() -> Secret {
    Secret::parse(&LINE.replace("2e2f", "2e2e")).unwrap()
}

/// The secret of another cluster, with the same key.
fn wrong_cluster() -> Secret {
    Secret::parse(&LINE.replace("0e0f", "0e0e")).unwrap()
}

fn provider(name: &str, secret: Option<Secret>) -> Box<dyn Provider> {
    match name {
        "shm" => Box::new(Shm::new().with_secret(secret)),
        "tcp" => Box::new(Tcp::new().with_secret(secret)),
        // The provider of libfabric that emulates a card.
        #[cfg(feature = "ofi")]
        "ofi" => Box::new(archipelago_fabric::Ofi::over("tcp;ofi_rxm").with_secret(secret)),
        other => panic!("no provider {other}"),
    }
}

/// A node with a secret, or without one.
struct Served {
    node: Arc<Node>,
    // The listener is dropped before the directory that holds its path.
    listener: Box<dyn Listener>,
    _dir: tempfile::TempDir,
    name: &'static str,
}

impl Served {
    fn new(name: &'static str, secret: Option<Secret>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::new(NodeId(1), Epoch(1), Some(Box::new(Backwards))).unwrap();
        let listener = provider(name, secret).serve(&node, &fresh_address(name, &dir)).unwrap();
        Self { node, listener, _dir: dir, name }
    }

    fn connect(&self, secret: Option<Secret>) -> archipelago_base::Result<Arc<dyn Link>> {
        provider(self.name, secret).connect(to(self.listener.address(), &Session::fresh())).wait()
    }
}

macro_rules! every_provider {
    ($($test:ident)*) => {
        mod shm { $(#[test] fn $test() { super::$test("shm"); })* }
        mod tcp { $(#[test] fn $test() { super::$test("tcp"); })* }
        #[cfg(feature = "ofi")]
        mod ofi { $(#[test] fn $test() { super::$test("ofi"); })* }
    };
}

every_provider! {
    members_of_a_cluster_link_to_each_other
    clients_outside_the_cluster_are_refused_and_counted
    node_without_the_secret_gets_no_client
}

fn members_of_a_cluster_link_to_each_other(name: &'static str) {
    let served = Served::new(name, Some(secret()));
    let link = served.connect(Some(secret())).unwrap();
    assert_eq!(link.peer().node, NodeId(1));
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    let body = vec![7; 1 << 20];
    let call = Call::new(&body, LONG).bulk().idempotent();
    assert_eq!(link.request(call).wait().unwrap().len(), 1 << 20);
    assert_eq!(served.node.stats().unauthenticated, 0);
}

fn clients_outside_the_cluster_are_refused_and_counted(name: &'static str) {
    let served = Served::new(name, Some(secret()));
    let link = served.connect(Some(secret())).unwrap();
    let cases = [
        (None, "this client has none"),
        (Some(wrong_key()), "different secrets"),
        (Some(wrong_cluster()), "different clusters"),
    ];
    let members_requests = cases.len() as u64;
    for (count, (theirs, text)) in cases.into_iter().enumerate() {
        let error = served.connect(theirs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let said = error.to_string();
        assert!(said.contains(text) && said.contains("--secret-file"), "{said}");
        assert!(said.contains(served.listener.address()), "{said}");
        until("it is counted", || served.node.stats().unauthenticated == count as u64 + 1);
        assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba", "members go on");
    }
    assert_eq!(served.node.stats().requests, members_requests);
    assert_eq!(served.node.stats().malformed, 0);
}

fn node_without_the_secret_gets_no_client(name: &'static str) {
    let served = Served::new(name, None);
    let error = served.connect(Some(secret())).unwrap_err();
    assert!(error.to_string().contains("the node has none"), "{error}");
    until("it is counted", || served.node.stats().unauthenticated == 1);
    let link = served.connect(None).unwrap();
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
}

#[test]
fn node_listens_for_other_machines_only_with_a_secret() {
    let node = Node::new(NodeId(1), Epoch(1), Some(Box::new(Backwards))).unwrap();
    for open in ["0.0.0.0:0", "[::]:0"] {
        let error = Tcp::new().serve(&node, open).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let said = error.to_string();
        assert!(said.contains(open) && said.contains("--secret-file FILE"), "{said}");
    }
    let tcp = Tcp::new().with_secret(Some(secret()));
    let listener = tcp.serve(&node, "0.0.0.0:0").unwrap();
    let address = listener.address().replace("0.0.0.0", "127.0.0.1");
    let link = tcp.connect(to(&address, &Session::fresh())).wait().unwrap();
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
}

#[cfg(feature = "ofi")]
#[test]
fn node_with_a_secret_does_not_serve_other_machines_over_ofi() {
    let node = Node::new(NodeId(1), Epoch(1), Some(Box::new(Backwards))).unwrap();
    let error = provider("ofi", Some(secret())).serve(&node, "192.0.2.7:0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let said = error.to_string();
    assert!(said.contains("192.0.2.7:0") && said.contains("use tcp"), "{said}");
}

/// Reads until the node closes. Returns the kinds of the frames, and the reason of a goodbye.
fn rest(mut stream: &TcpStream) -> (Vec<Kind>, Option<Reason>) {
    let mut bytes = Vec::new();
    // The node may reset the connection. The bytes before that count.
    let _ended = stream.read_to_end(&mut bytes);
    let (mut kinds, mut reason, mut left) = (Vec::new(), None, &bytes[..]);
    while let Ok(Some((frame, len))) = frame_at(left) {
        kinds.push(frame.kind);
        reason = frame.body.first().and_then(|&code| Reason::from_code(code));
        left = &left[len..];
    }
    let reason = reason.filter(|_| kinds.last() == Some(&Kind::Goodbye));
    (kinds, reason)
}

/// Copies bytes until the end, and returns them.
fn copy(mut from: &TcpStream, mut to: &TcpStream) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut part) {
        all.extend_from_slice(&part[..count]);
        if to.write_all(&part[..count]).is_err() {
            break;
        }
    }
    let _shut = to.shutdown(Shutdown::Write);
    all
}

#[test]
fn recorded_link_cannot_be_replayed() {
    let served = Served::new("tcp", Some(secret()));
    let recorder = TcpListener::bind("127.0.0.1:0").unwrap();
    let via = recorder.local_addr().unwrap().to_string();
    let node = served.listener.address().to_owned();
    let recording = std::thread::Builder::new().spawn(move || {
        let (client, _) = recorder.accept().unwrap();
        let node = TcpStream::connect(node).unwrap();
        let (back_from, back_to) = (node.try_clone().unwrap(), client.try_clone().unwrap());
        let back = std::thread::Builder::new().spawn(move || copy(&back_from, &back_to)).unwrap();
        let sent = copy(&client, &node);
        back.join().unwrap();
        sent
    });
    let tcp = provider("tcp", Some(secret()));
    let link = tcp.connect(to(&via, &Session::fresh())).wait().unwrap();
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    link.close();
    let sent = recording.unwrap().join().unwrap();
    assert_eq!(served.node.stats().requests, 1);
    // The recorded bytes one after the other, as a client would send them.
    let mut stream = TcpStream::connect(served.listener.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let (_, hello) = frame_at(&sent).unwrap().unwrap();
    stream.write_all(&sent[..hello]).unwrap();
    let mut header = [0; 24];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(header[4], Kind::Challenge as u8);
    stream.write_all(&sent[hello..]).unwrap();
    assert_eq!(rest(&stream), (vec![Kind::Goodbye], Some(Reason::WrongSecret)));
    assert_eq!(served.node.stats().unauthenticated, 1);
    assert_eq!(served.node.stats().requests, 1, "the replayed request was not executed");
}

#[test]
fn bytes_before_the_proof_are_refused() {
    let served = Served::new("tcp", Some(secret()));
    let introduction = {
        // The cluster's id is no secret.
        let cluster = secret().cluster();
        let nonce = archipelago_fabric::wire::Nonce([1; 32]);
        Some(archipelago_fabric::wire::Introduction { cluster, nonce })
    };
    let hello =
        Hello { client: ClientId(7), resumed: false, node: None, epoch: None, introduction };
    let mut bytes = Vec::new();
    put_frame(&mut bytes, Kind::Hello, 0, |body| hello.encode(body));
    let only_hello = bytes.len();
    put_frame(&mut bytes, Kind::Batch, 1, |body| body.extend_from_slice(&[0; 4]));
    // The client sends the batch together with its hello, or after the challenge.
    for first in [bytes.len(), only_hello] {
        let mut stream = TcpStream::connect(served.listener.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&bytes[..first]).unwrap();
        if first == only_hello {
            let mut header = [0; 24];
            stream.read_exact(&mut header).unwrap();
            assert_eq!(header[4], Kind::Challenge as u8);
            let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
            stream.read_exact(&mut body).unwrap();
            stream.write_all(&bytes[first..]).unwrap();
        }
        let (kinds, reason) = rest(&stream);
        assert!(!kinds.contains(&Kind::Welcome), "{kinds:?}");
        assert_eq!(reason, Some(Reason::Protocol));
    }
    assert_eq!(served.node.stats().operations, 0);
}
