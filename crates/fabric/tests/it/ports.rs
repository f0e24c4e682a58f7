//! Limits of a TCP port: connections without a greeting, and links without a frame, are few and do
//! not keep other clients out.

use std::io::{Read, Write};
use std::net::TcpStream;

use archipelago_fabric::wire::{Hello, Kind, frame_at, put_frame};
use archipelago_fabric::{ClientId, Reason};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::world::{LONG, World, ask};

/// Limit of the connections without a greeting.
const GUESTS: usize = 256;
/// Limit of the links without a frame.
const STRANGERS: usize = 64;

/// A node for which no time passes. The limit of open files is raised, because a test opens
/// hundreds of connections.
fn world() -> World {
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    World::timeless()
}

fn dial(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.listener.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn greet(mut stream: &TcpStream, client: u64) {
    let hello = Hello {
        client: ClientId(client),
        resumed: false,
        node: None,
        epoch: None,
        introduction: None,
    };
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Hello, 0, |body| hello.encode(body));
    stream.write_all(&out).unwrap();
}

/// The next frame, and the reason of a goodbye.
fn next_frame(mut stream: &TcpStream) -> (Kind, Option<Reason>) {
    let mut bytes = Vec::new();
    loop {
        if let Ok(Some((frame, _))) = frame_at(&bytes) {
            return (frame.kind, frame.body.first().and_then(|&code| Reason::from_code(code)));
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
}

#[test]
fn connection_without_greeting_is_replaced_by_a_later_one() {
    let world = world();
    let silent: Vec<TcpStream> = (0..GUESTS + 8).map(|_| dial(&world)).collect();
    for ended in &silent[..8] {
        assert_eq!(next_frame(ended), (Kind::Goodbye, Some(Reason::Exhausted)));
    }
    // One of the remaining connections may still greet, and so may a new client.
    let last = silent.last().expect("some");
    greet(last, 77);
    assert_eq!(next_frame(last).0, Kind::Welcome);
    let (link, _) = world.attached();
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
}

#[test]
fn link_without_a_frame_is_replaced_by_a_later_one() {
    let world = world();
    let (link, _) = world.attached();
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    let mut strangers = Vec::new();
    for number in 0..STRANGERS + 8 {
        let stranger = dial(&world);
        greet(&stranger, 1000 + number as u64);
        assert_eq!(next_frame(&stranger).0, Kind::Welcome);
        strangers.push(stranger);
    }
    for ended in &strangers[..8] {
        assert_eq!(next_frame(ended), (Kind::Goodbye, Some(Reason::Exhausted)));
    }
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba", "who has spoken stays");
}
