//! Tests of `ofi` over the provider of libfabric that emulates a card.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::ErrorKind;
use archipelago_fabric::wire::{FRAME_HEADER_BYTES, Hello, Kind, frame_at, put_frame};
use archipelago_fabric::{Batch, ClientId, Connect, Ofi, Provider, Reason, Rights, Session, Tcp};

use crate::world::{LONG, World, ask, read, refused, to, until, write};

#[test]
fn threads_of_the_node_execute_no_one_sided_operation() {
    let world = World::new("ofi");
    let (link, region) = world.attached();
    write(&*link, region, 0, b"coral");
    assert_eq!(read(&*link, region, 0, 5), b"coral");
    assert_eq!(refused(&*link, |b| _ = b.fetch_add(region, 8, 3)), None);
    assert_eq!(world.node.stats().operations, 0);
    let stats = link.stats();
    assert_eq!((stats.batches, stats.operations), (3, 3));
    // The operations were posted one by one, and the attachment took a message.
    assert!(stats.packets >= 4, "{stats:?}");
}

#[test]
fn node_has_one_card() {
    let first = World::new("ofi");
    let error = first.provider.serve(&first.node, "127.0.0.1:0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("is served by a listener over tcp;ofi_rxm"), "{error}");
    let (link, region) = first.attached();
    write(&*link, region, 0, b"the first goes on");
    // After the end of the first listener another may serve, with registrations of its own.
    let World { node, region: memory, key, provider, listener, .. } = first;
    drop(listener);
    let second = provider.serve(&node, "127.0.0.1:0").unwrap();
    let link = provider.connect(to(second.address(), &Session::fresh())).wait().unwrap();
    let region = link.attach(&key).wait().unwrap();
    assert_eq!(read(&*link, region, 0, 9), b"the first");
    drop(memory);
    assert_eq!(refused(&*link, |b| _ = b.read(region, 0, 1)), Some((0, Reason::Revoked)));
}

#[test]
fn unsuitable_provider_is_refused_with_the_reason() {
    let world = World::new("ofi");
    let error = world.provider.serve(&world.node, "0.0.0.0:0").unwrap_err();
    assert!(error.to_string().contains("the address of the interface"), "{error}");
    let nobody = Ofi::over("no_such_provider");
    let error = nobody.serve(&world.node, "127.0.0.1:0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("libfabric provider no_such_provider"), "{error}");
    // The provider lacks a property that a link needs, and is refused before anything blocks.
    let error = Ofi::over("udp;ofi_rxd").serve(&world.node, "127.0.0.1:0").map(drop);
    if let Err(error) = error {
        assert!(!error.to_string().contains("no_such"), "{error}");
    }
}

#[test]
fn tcp_client_and_ofi_node_refuse_each_other() {
    let world = World::new("ofi");
    let session = Session::fresh();
    // The greetings are equal. A `tcp` client then waits for a frame that never arrives, or
    // receives one that it cannot read.
    let mut to = Connect::to(world.listener.address(), &session);
    to.deadline = std::time::Duration::from_millis(200);
    if let Ok(link) = Tcp::new().connect(to).wait() {
        let refusal = link.attach(&world.key).wait().unwrap_err();
        let expected = [Reason::Protocol, Reason::Disconnected, Reason::Deadline];
        assert!(expected.contains(&refusal.reason), "{refusal}");
    }
    let other = World::new("tcp");
    let mut to = Connect::to(other.listener.address(), &session);
    to.deadline = std::time::Duration::from_millis(200);
    assert!(world.provider.connect(to).wait().is_err());
    assert_eq!(&*ask(&*world.link(), b"abc").unwrap(), b"cba");
}

#[test]
fn revocation_refuses_each_operation_in_flight() {
    let world = World::new("ofi");
    let (link, region) = world.attached();
    world.node.revoke(&world.key);
    let promises: Vec<_> = (0..8)
        .map(|at| {
            let mut batch = Batch::new();
            batch.write(region, at * 8, &[7; 8]);
            link.post(batch)
        })
        .collect();
    for promise in promises {
        let refusal = promise.wait().refusal().map(|(index, refusal)| (index, refusal.reason));
        assert_eq!(refusal, Some((0, Reason::Revoked)));
    }
    let mut all = [0; 64];
    world.region.read(0, &mut all).unwrap();
    assert_eq!(all, [0; 64]);
    let again = link.attach(&world.region.grant(Rights::ALL).unwrap()).wait().unwrap();
    write(&*link, again, 0, b"the link goes on");
}

#[test]
fn writer_writes_nothing_after_it_knows_of_the_revocation() {
    let world = World::new("ofi");
    for _ in 0..10 {
        let key = world.region.grant(Rights::ALL).unwrap();
        let link = world.link();
        let region = link.attach(&key).wait().unwrap();
        let writing = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1_u64.. {
                    let mut batch = Batch::new();
                    batch.write(region, 0, &round.to_ne_bytes());
                    let batch = link.post(batch).wait();
                    writing.store(true, Ordering::SeqCst);
                    if let Some((_, refusal)) = batch.refusal() {
                        return (round, refusal.reason);
                    }
                }
                unreachable!("it is refused before it has counted to the end");
            });
            until("it writes", || writing.load(Ordering::SeqCst));
            assert!(world.node.revoke(&key));
            let (round, reason) = writer.join().unwrap();
            assert_eq!(reason, Reason::Revoked);
            let mut word = [0; 8];
            world.region.read(0, &mut word).unwrap();
            let last = u64::from_ne_bytes(word);
            assert!(last == round || last == round - 1, "{last} of {round}");
        });
    }
}

fn framed(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, kind, 0, |out| out.extend_from_slice(body));
    out
}

fn hello() -> Vec<u8> {
    let hello =
        Hello { client: ClientId(7), resumed: false, node: None, epoch: None, introduction: None };
    let mut out = Vec::new();
    hello.encode(&mut out);
    framed(Kind::Hello, &out)
}

/// The node's answer with its endpoints, for a client that greets.
fn endpoints(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the node closed");
        bytes.extend_from_slice(&piece[..count]);
        let Ok(Some((_, welcome))) = frame_at(&bytes) else { continue };
        if let Ok(Some((frame, _))) = frame_at(&bytes[welcome..]) {
            assert_eq!(frame.kind, Kind::Endpoints);
            return frame.body.to_vec();
        }
    }
}

#[test]
fn client_with_wrong_endpoints_is_cut_off_and_others_continue() {
    let world = World::new("ofi");
    let (link, region) = world.attached();
    let dial = || {
        let mut stream = TcpStream::connect(world.listener.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&hello()).unwrap();
        stream
    };
    let good = endpoints(&mut dial());
    let mut cut = good.clone();
    cut.pop();
    let mut behind = good.clone();
    behind.push(0);
    let mut length = good.clone();
    length[0] = 0xff;
    // The address of the endpoint for messages, at the end, gets another address family with a
    // longer form, and then another length.
    let name_at = good.len() - (good.len() - 12 - good[0] as usize) / 2;
    let mut family = good.clone();
    family[name_at] ^= 0x7f;
    let mut short = good.clone();
    short[name_at - 4] -= 1;
    short.pop();
    let noise = vec![0xa5; 300];
    let lies = [cut, behind, length, family, short, Vec::new()];
    let framed_lies = lies.iter().map(|body| framed(Kind::Endpoints, body));
    let all = framed_lies.chain([noise, framed(Kind::Batch, &good), hello()]);
    for (count, bytes) in all.enumerate() {
        let mut stream = dial();
        endpoints(&mut stream);
        stream.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        // The node may reset the connection.
        let _ended = stream.read_to_end(&mut rest);
        until("it is counted", || world.node.stats().malformed == count as u64 + 1);
        write(&*link, region, 0, b"others go on");
        assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
    }
    // Random bytes follow a good greeting, and another client sends nothing more.
    let mut stream = dial();
    let theirs = endpoints(&mut stream);
    stream.write_all(&framed(Kind::Endpoints, &theirs)).unwrap();
    stream.write_all(&[7; FRAME_HEADER_BYTES]).unwrap();
    let mut rest = Vec::new();
    let _ended = stream.read_to_end(&mut rest);
    assert_eq!(&*ask(&*link, b"abc").unwrap(), b"cba");
}
