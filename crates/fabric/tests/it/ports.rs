//! What strangers at a TCP door cost: connections that say nothing, and links that greet and say
//! nothing more, are few and do not keep others out.

use std::io::{Read, Write};
use std::net::TcpStream;

use archipelago_fabric::wire::{Hello, Kind, frame_at, put_frame};
use archipelago_fabric::{ClientId, Reason};

use crate::world::{LONG, World, ask};

/// Connections without a greeting that a door keeps.
const GUESTS: usize = 256;
/// Links without a frame that a door keeps.
const STRANGERS: usize = 64;

fn dial(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.listener.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn greet(mut stream: &TcpStream, client: u64) {
    let hello = Hello { client: ClientId(client), resumed: false, node: None, epoch: None };
    let mut out = Vec::new();
    put_frame(&mut out, Kind::Hello, 0, |body| hello.encode(body));
    stream.write_all(&out).unwrap();
}

/// The next frame; the reason of a farewell.
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
fn connections_without_greeting_make_room_for_later_ones() {
    let world = World::new("tcp");
    let silent: Vec<TcpStream> = (0..GUESTS + 8).map(|_| dial(&world)).collect();
    for ended in &silent[..8] {
        assert_eq!(next_frame(ended), (Kind::Goodbye, Some(Reason::Exhausted)));
    }
    // One of those that are left may still greet; so may a client that comes now.
    let last = silent.last().expect("some");
    greet(last, 77);
    assert_eq!(next_frame(last).0, Kind::Welcome);
    let (link, _) = world.attached();
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
}

#[test]
fn links_that_greet_and_say_nothing_make_room_for_later_ones() {
    let world = World::new("tcp");
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
