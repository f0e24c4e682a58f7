//! Clients and nodes that break the protocol. They get a reason, and other links continue.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_fabric::wire::{
    Ask, FRAME_BODY_MAX, FRAME_HEADER_BYTES, Hello, Kind, Welcome, frame_at, put_frame,
};
use archipelago_fabric::{
    BULK_BYTES_MAX, Batch, ClientId, Handler, MESSAGE_BYTES_MAX, NodeId, Provider,
    RESERVED_BYTES_MAX, Reason, RemoteKey, Reply, Request, Session, Tcp,
};
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket};

use crate::world::{LONG, World, ask, read, refused, to, until, write};

fn hello() -> Vec<u8> {
    let hello =
        Hello { client: ClientId(7), resumed: false, node: None, epoch: None, introduction: None };
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Hello, 0, |body| hello.encode(body));
    out
}

fn framed(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, kind, 1, |out| out.extend_from_slice(body));
    out
}

fn asking(answer_bytes_max: usize, body: &[u8]) -> Ask<'_> {
    Ask { oldest: 0, retry: false, deadline: LONG, answer_bytes_max, body }
}

/// Frames that a client must not send after its greeting.
fn lies(key: &RemoteKey) -> Vec<(&'static str, Vec<u8>)> {
    let read = |count: u32, len: u32| {
        let mut body = count.to_le_bytes().to_vec();
        body.push(1);
        body.extend_from_slice(&key.region.0.to_le_bytes());
        body.extend_from_slice(&key.tag.to_le_bytes());
        body.extend_from_slice(&0_u64.to_le_bytes());
        body.extend_from_slice(&len.to_le_bytes());
        body
    };
    // The length of the WRITE exceeds the frame.
    let mut write = read(1, 1 << 30);
    write[4] = 2;
    let mut other = read(1, 8);
    other[4] = 99;
    let mut behind = read(1, 8);
    behind.push(0);
    let mut flipped = framed(Kind::Batch, &read(1, 8));
    *flipped.last_mut().unwrap() ^= 1;
    let mut long = framed(Kind::Batch, &[]);
    long[..4].copy_from_slice(&(FRAME_BODY_MAX as u32 + 1).to_le_bytes());
    let mut request = Vec::new();
    asking(MESSAGE_BYTES_MAX, &vec![0; BULK_BYTES_MAX + 1]).encode(&mut request);
    let encoded = |ask: Ask<'_>| {
        let mut out = Vec::new();
        ask.encode(&mut out);
        out
    };
    vec![
        ("noise", b"GET / HTTP/1.1\r\nHost: example.invalid\r\n\r\n".to_vec()),
        ("more operations than there are", framed(Kind::Batch, &read(2, 8))),
        ("a count that is a lie", framed(Kind::Batch, &read(u32::MAX, 8))),
        ("a write of bytes that are not there", framed(Kind::Batch, &write)),
        ("a read of too much", framed(Kind::Batch, &read(1, u32::MAX))),
        ("an unknown operation", framed(Kind::Batch, &other)),
        ("bytes behind the end", framed(Kind::Batch, &behind)),
        ("no count", framed(Kind::Batch, &[1])),
        ("a flipped bit", flipped),
        ("a length that is a lie", long),
        ("a request that is too long", framed(Kind::Request, &request)),
        ("a request that is cut off", framed(Kind::Request, &[1, 2])),
        (
            "an answer that the node cannot keep",
            framed(Kind::Request, &encoded(asking(MESSAGE_BYTES_MAX + 1, b"?"))),
        ),
        (
            "an answer that is too long",
            framed(Kind::Idempotent, &encoded(asking(BULK_BYTES_MAX + 1, b"?"))),
        ),
        (
            "an idempotent request with a number",
            framed(Kind::Idempotent, &encoded(Ask { oldest: 1, ..asking(1, b"?") })),
        ),
        ("a key that is cut off", framed(Kind::Attach, &[1, 2, 3])),
        ("a node's frame", framed(Kind::Welcome, &[])),
        ("a second greeting", hello()),
    ]
}

fn dial(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Reads until the node closes. Returns kind and reason of the last frame, if there is one.
fn last_words(mut stream: TcpStream) -> Option<(Kind, Option<Reason>)> {
    let mut bytes = Vec::new();
    // The node may reset the connection. The bytes before that count.
    let _ended = stream.read_to_end(&mut bytes);
    let mut rest = &bytes[..];
    let mut last = None;
    while let Ok(Some((frame, len))) = frame_at(rest) {
        last = Some((frame.kind, frame.body.first().and_then(|&code| Reason::from_code(code))));
        rest = &rest[len..];
    }
    last
}

#[test]
fn malformed_tcp_client_gets_a_reason_and_others_continue() {
    let world = World::new("tcp");
    let (link, region) = world.attached();
    write(&*link, region, 0, b"coral");
    for (count, (what, bytes)) in lies(&world.key).into_iter().enumerate() {
        let mut stream = dial(world.listener.address());
        stream.write_all(&hello()).unwrap();
        stream.write_all(&bytes).unwrap();
        assert_eq!(last_words(stream), Some((Kind::Goodbye, Some(Reason::Protocol))), "{what}");
        assert_eq!(world.node.stats().malformed, count as u64 + 1, "{what}");
        assert_eq!(read(&*link, region, 0, 5), b"coral", "{what}");
    }
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
}

#[test]
fn wrong_greeting_is_refused_with_the_reason() {
    let world = World::new("tcp");
    let mut version = hello();
    let mut body = version.split_off(FRAME_HEADER_BYTES);
    body[8] += 1;
    let mut magic = body.clone();
    magic[0] ^= 1;
    for (bytes, reason) in [
        (framed(Kind::Hello, &body), Reason::Version),
        (framed(Kind::Hello, &magic), Reason::Protocol),
        (framed(Kind::Hello, &hello()[FRAME_HEADER_BYTES..][..20]), Reason::Protocol),
        (framed(Kind::Batch, &[]), Reason::Protocol),
        (vec![0xff; 4096], Reason::Protocol),
    ] {
        let mut stream = dial(world.listener.address());
        stream.write_all(&bytes).unwrap();
        assert_eq!(last_words(stream), Some((Kind::Goodbye, Some(reason))));
    }
    // A connection that ends within a frame counts as an end.
    let mut stream = dial(world.listener.address());
    stream.write_all(&hello()[..10]).unwrap();
    drop(stream);
    let (link, region) = world.attached();
    assert_eq!(read(&*link, region, 0, 1), [0]);
}

#[test]
fn random_frames_with_valid_checksums_do_not_end_the_node() {
    let world = World::new("tcp");
    let mut rng = Rng::with_seed(11);
    for _ in 0..150 {
        let mut stream = dial(world.listener.address());
        stream.write_all(&hello()).unwrap();
        let kinds = [Kind::Batch, Kind::Attach, Kind::Request, Kind::Detach, Kind::Answer];
        let body: Vec<u8> = (0..rng.usize(0..80)).map(|_| rng.u8(..)).collect();
        // The node may have closed the connection already.
        let _sent = stream.write_all(&framed(kinds[rng.usize(..kinds.len())], &body));
        let _shut = stream.shutdown(std::net::Shutdown::Write);
        last_words(stream);
    }
    let (link, region) = world.attached();
    write(&*link, region, 0, b"it lives on");
}

/// Keeps every reply, as a node whose disks are slow.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Vec<Reply>>>);

impl Handler for Slow {
    fn handle(&self, _request: Request<'_>, reply: Reply) {
        self.0.lock().push(reply);
    }
}

#[test]
fn client_that_ignores_the_limit_of_bytes_is_refused() {
    let slow = Slow::default();
    let world = World::with_handler("tcp", Some(Box::new(slow.clone())));
    let mut stream = dial(world.listener.address());
    stream.write_all(&hello()).unwrap();
    let fit = RESERVED_BYTES_MAX / (BULK_BYTES_MAX + 1);
    let mut bytes = Vec::new();
    for number in 0..=fit as u64 {
        let fill = |out: &mut Vec<u8>| asking(BULK_BYTES_MAX, b"?").encode(out);
        put_frame(&mut bytes, Kind::Idempotent, number, fill);
    }
    stream.write_all(&bytes).unwrap();
    let (welcome, answer) = (next_frame(&mut stream), next_frame(&mut stream));
    assert_eq!(welcome.0, Kind::Welcome);
    let full = (Kind::IdempotentAnswer, fit as u64, Some(Reason::Full));
    assert_eq!(answer, full, "only the last request is refused");
    assert_eq!(slow.0.lock().len(), fit);
    // The answers end the reservations.
    slow.0.lock().drain(..).for_each(|reply| reply.send(&b"!"[..]));
    let mut again = Vec::new();
    put_frame(&mut again, Kind::Idempotent, 99, |out| asking(BULK_BYTES_MAX, b"?").encode(out));
    stream.write_all(&again).unwrap();
    until("it reaches the handler", || slow.0.lock().len() == 1);
}

/// The next frame: its kind, its number, and the reason if it is a refusal.
fn next_frame(stream: &mut TcpStream) -> (Kind, u64, Option<Reason>) {
    let mut bytes = vec![0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    bytes.resize(FRAME_HEADER_BYTES + len, 0);
    stream.read_exact(&mut bytes[FRAME_HEADER_BYTES..]).unwrap();
    let (frame, _) = frame_at(&bytes).unwrap().unwrap();
    let reason = frame.body.first().and_then(|&code| Reason::from_code(code));
    (frame.kind, frame.number, reason)
}

/// The socket of a client to an `shm` node.
fn shm_dial(path: &str) -> OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

#[test]
fn malformed_shm_client_is_cut_off_and_others_continue() {
    let world = World::new("shm");
    let (link, region) = world.attached();
    let mut two = framed(Kind::Detach, &[0; 37]);
    two.extend(framed(Kind::Detach, &[0; 37]));
    let cases: Vec<(bool, Vec<u8>)> = vec![
        (false, b"noise".to_vec()),
        (false, vec![7; 4096]),
        (false, framed(Kind::Attach, &[0; 37])),
        (true, framed(Kind::Attach, &[1, 2, 3])),
        (true, framed(Kind::Batch, &[0; 4])),
        (true, two),
        (true, hello()),
    ];
    for (count, (greets, bytes)) in cases.into_iter().enumerate() {
        let socket = shm_dial(world.listener.address());
        if greets {
            send(&socket, &hello(), SendFlags::empty()).unwrap();
        }
        send(&socket, &bytes, SendFlags::empty()).unwrap();
        until("it is refused", || world.node.stats().malformed == count as u64 + 1);
        write(&*link, region, 0, b"others go on");
        assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    }
}

/// Accepts a client and answers its greeting correctly.
fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut greeting = vec![0; hello().len()];
    stream.read_exact(&mut greeting).unwrap();
    let welcome = Welcome { node: NodeId(1), epoch: archipelago_base::Epoch(1), proof: None };
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Welcome, 0, |body| welcome.encode(body));
    stream.write_all(&out).unwrap();
    stream
}

/// A node that answers a greeting correctly and then sends `bytes`.
fn false_node(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::Builder::new().spawn(move || {
        let mut stream = accept(&listener);
        let mut question = [0; 1024];
        let _asked = stream.read(&mut question).unwrap();
        stream.write_all(&bytes).unwrap();
        // The node waits until the client ends.
        let _gone = stream.read(&mut question);
    });
    thread.unwrap();
    address
}

#[test]
fn malformed_node_costs_the_client_only_its_link() {
    let key = World::new("tcp").key;
    let opened = {
        let mut body = vec![0];
        body.extend_from_slice(&64_u64.to_le_bytes());
        body.push(7);
        framed(Kind::Attached, &body)
    };
    let good = RemoteKey { node: NodeId(1), epoch: archipelago_base::Epoch(1), ..key };
    for bytes in [
        b"HTTP/1.1 400 Bad Request".to_vec(),
        framed(Kind::Attached, &[0, 1]),
        framed(Kind::Attached, &[77; 9]),
        framed(Kind::Hello, &[]),
    ] {
        let to = to(&false_node(bytes), &Session::fresh());
        let link = Tcp::new().connect(to).wait().unwrap();
        let refusal = link.attach(&good).wait().unwrap_err();
        let expected = [Reason::Protocol, Reason::Disconnected];
        assert!(expected.contains(&refusal.reason), "{refusal}");
        until("the link is down", || link.closed().is_some());
    }
    // The outcomes are too short, too long, or of another sort than the batch.
    for done in [vec![], vec![0], vec![0, 8, 0, 0, 0, 1], vec![99], vec![0, 9, 0, 0, 0]] {
        let mut bytes = opened.clone();
        put_frame(&mut bytes, Kind::Done, 2, |body| body.extend_from_slice(&done));
        let to = to(&false_node(bytes), &Session::fresh());
        let link = Tcp::new().connect(to).wait().unwrap();
        let region = {
            // The answer to the batch arrives before the batch is posted. It belongs to no
            // operation, so the link ends.
            link.attach(&good).wait().unwrap()
        };
        let mut batch = Batch::new();
        batch.set_deadline(Duration::from_millis(200));
        batch.read(region, 0, 8);
        let batch = link.post(batch).wait();
        let (_, refusal) = batch.refusal().expect("no bytes came");
        let expected = [Reason::Protocol, Reason::Disconnected, Reason::Deadline];
        assert!(expected.contains(&refusal.reason), "{refusal}");
    }
    let world = World::new("tcp");
    let (link, region) = world.attached();
    assert_eq!(refused(&*link, |batch| _ = batch.read(region, 0, 1)), None);
}

#[test]
fn reason_of_the_end_is_kept_if_writes_fail_first() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let node = std::thread::Builder::new().spawn(move || {
        let mut stream = accept(&listener);
        stream.peek(&mut [0]).unwrap();
        let body: Vec<u8> = [Reason::StaleEpoch.code()].into_iter().chain([2; 8]).collect();
        stream.write_all(&framed(Kind::Goodbye, &body)).unwrap();
        // The request was not read, so the system resets the connection.
    });
    let link = Tcp::new().connect(to(&address, &Session::fresh())).wait().unwrap();
    let first = link.request(archipelago_fabric::Call::new(b"unread", LONG));
    link.flush();
    node.unwrap().join().unwrap();
    // The connection accepts no bytes any more, and the goodbye has arrived.
    let second = ask(&*link, b"refused by the system");
    assert_eq!(second, Err(Reason::Disconnected));
    assert_eq!(first.wait().map_err(|refusal| refusal.reason), Err(Reason::Disconnected));
    assert_eq!(link.closed().map(|refusal| refusal.reason), Some(Reason::StaleEpoch));
}
