//! Shards on a node, over links of the fabric, with the threads of the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use archipelago_base::budget::ByteBudget;
use archipelago_base::checksum;
use archipelago_base::clock::{Clock, ManualClock, SystemClock};
use archipelago_base::spawn::{Joiner, Spawn, SystemSpawn};
use archipelago_base::{Epoch, Error, Result, SeqNo};
use archipelago_engine::key::Kind;
use archipelago_engine::memtable::{Shard, SlabPool, decode_record};
use archipelago_fabric::{
    Batch, Body, Call, Connect, Handler, Link, Listener, Node, NodeId, Promise, Provider, Reason,
    Refusal, RemoteKey, Reply, Request, Session, Shm, Tcp,
};
use archipelago_offload::ids::{OffloadDb, OwnerStamp, Token};
use archipelago_offload::shard_host::{HostThreads, NodeBytes, ShardHost, ShardLimits};
use archipelago_offload::wire::shard::{
    Piece, RecordPlace, ShardInfo, ShardMessage, ShardName, ShardPlace, ShardRefusal, ShardWhy,
    StoredValue,
};

/// Generous time limit for a busy machine. A test that needs all of it has failed.
const LONG: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;

struct ToHost {
    host: Arc<ShardHost>,
    /// Number of requests that the host has received.
    got: Arc<AtomicUsize>,
}

impl Handler for ToHost {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        self.host.handle(&request, reply);
        self.got.fetch_add(1, Ordering::SeqCst);
    }
}

/// A node that hosts shards, and a link to it.
struct World {
    host: Arc<ShardHost>,
    bytes: Arc<NodeBytes>,
    link: Arc<dyn Link>,
    got: Arc<AtomicUsize>,
    _listener: Box<dyn Listener>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(provider: &dyn Provider, threads: HostThreads) -> Self {
        Self::with_clock(provider, threads, SystemClock::shared())
    }

    fn with_clock(provider: &dyn Provider, threads: HostThreads, clock: Arc<dyn Clock>) -> Self {
        let bytes = NodeBytes::new(32 * MIB);
        let limits = ShardLimits::new(16 * MIB);
        let host = ShardHost::new(limits, Arc::clone(&bytes), clock, threads);
        let got = Arc::new(AtomicUsize::new(0));
        let handler = Box::new(ToHost { host: Arc::clone(&host), got: Arc::clone(&got) });
        let node = Node::new(NodeId(1), Epoch(3), Some(handler)).unwrap();
        host.open(&node);
        let dir = tempfile::tempdir().unwrap();
        let address = match provider.name() {
            "shm" => dir.path().join("node").display().to_string(),
            _ => "127.0.0.1:0".to_owned(),
        };
        let listener = provider.serve(&node, &address).unwrap();
        let to = Connect { deadline: LONG, ..Connect::to(listener.address(), &Session::fresh()) };
        let link = provider.connect(to).wait().unwrap();
        Self { host, bytes, link, got, _listener: listener, _dir: dir }
    }

    fn with_threads(provider: &dyn Provider) -> Self {
        Self::new(provider, HostThreads::Own(Arc::new(SystemSpawn), 2))
    }

    fn ask(&self, message: &ShardMessage) -> ShardMessage {
        let body = self.post(message).wait().unwrap();
        ShardMessage::decode(&body).unwrap()
    }

    fn post(&self, message: &ShardMessage) -> Promise<std::result::Result<Body, Refusal>> {
        self.link
            .request(Call::new(&message.encode(), LONG).idempotent().answer_bytes_max(64 << 10))
    }

    fn begin(&self) {
        let begun = self.ask(&ShardMessage::Begin {
            owner: owner(),
            landing_bytes: 2 * MIB,
            guaranteed_bytes: 0,
        });
        assert!(matches!(begun, ShardMessage::Begun { life: Epoch(3), .. }), "{begun:?}");
    }

    /// Room for an image: the number of the grant, the key and the offset.
    fn land(&self, shard: ShardName, bytes: u64) -> (u64, RemoteKey, u64) {
        match self.ask(&ShardMessage::Land { owner: owner(), shard, bytes }) {
            ShardMessage::Landing { grant, key, at, .. } => (grant, key, at),
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, key: &RemoteKey, at: u64, bytes: &[u8]) -> std::result::Result<(), Reason> {
        let zone = self.link.attach(key).wait().map_err(|refusal| refusal.reason)?;
        let mut batch = Batch::new();
        batch.write(zone, at, bytes);
        let batch = self.link.post(batch).wait();
        self.link.detach(zone);
        batch.refusal().map_or(Ok(()), |(_, refused)| Err(refused.reason))
    }

    fn read(&self, key: &RemoteKey, at: u64, len: u64) -> Vec<u8> {
        let arena = self.link.attach(key).wait().unwrap();
        let mut batch = Batch::new();
        batch.read(arena, at, len as u32);
        let batch = self.link.post(batch).wait();
        batch.check().unwrap();
        self.link.detach(arena);
        batch.data(0).to_vec()
    }

    fn register(&self, shard: ShardName, image: &[u8]) -> ShardPlace {
        let (grant, key, at) = self.land(shard, image.len() as u64);
        self.write(&key, at, image).unwrap();
        match self.ask(&register(shard, grant, image)) {
            ShardMessage::Registered { place } => place,
            other => panic!("{other:?}"),
        }
    }

    fn get(&self, shards: &[ShardName], key: &[u8], inline_max: u32) -> ShardMessage {
        let (shards, key) = (shards.to_vec(), key.to_vec().into());
        let (floor, snapshot) = (SeqNo::ZERO, SeqNo::MAX);
        self.ask(&ShardMessage::Get {
            owner: owner(),
            shards,
            key,
            floor,
            snapshot,
            inline_max,
            wants_place: false,
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.link.close();
        self.host.close();
        assert_eq!(self.bytes.used(), 0, "a closed host has no memory");
    }
}

fn owner() -> OwnerStamp {
    OwnerStamp { db: OffloadDb([7; 16]), epoch: Epoch(1), token: Token([8; 16]) }
}

fn name(memtable: u64) -> ShardName {
    ShardName { epoch: Epoch(1), memtable, shard: 0 }
}

fn image(memtable: u64) -> Vec<u8> {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    for number in 0..500u64 {
        let (key, seq) = (format!("key-{number:03}").into_bytes(), memtable * 1000 + number);
        shard.insert(&key, SeqNo(seq), Kind::Put, format!("value {memtable}").as_bytes());
    }
    shard.insert(b"long", SeqNo(memtable * 1000 + 500), Kind::Put, &[memtable as u8; 20_000]);
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).unwrap();
    bytes
}

fn register(shard: ShardName, grant: u64, image: &[u8]) -> ShardMessage {
    let info = ShardInfo { last_seq: SeqNo(1_000_000), ..ShardInfo::default() };
    let pieces = vec![Piece { at: 0, len: image.len() as u64, sum: checksum::hash64(image) }];
    ShardMessage::Register { owner: owner(), shard, grant, info, pieces }
}

fn found(answer: ShardMessage) -> Vec<(u64, StoredValue)> {
    match answer {
        ShardMessage::Versions { found } => {
            found.versions.into_iter().map(|version| (version.seq.0, version.value)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn shards_are_served(provider: &dyn Provider) {
    let world = World::with_threads(provider);
    world.begin();
    let places = [1, 2].map(|memtable| world.register(name(memtable), &image(memtable)));
    let newest = [name(2), name(1)];
    let inline = StoredValue::Inline(b"value 2".to_vec().into());
    assert_eq!(found(world.get(&newest, b"key-042", 100)), [(2042, inline)]);
    assert_eq!(found(world.get(&newest, b"key-999", 100)), []);
    // A long value comes by its place, and the key of the arena opens it.
    let long = found(world.get(&newest, b"long", 100));
    let [(2500, StoredValue::At(RecordPlace { shard: 0, at, len }))] = long[..] else {
        panic!("{long:?}")
    };
    let record = world.read(&places[1].key, places[1].at + at, len);
    let (key, value) = decode_record(&record).unwrap();
    assert_eq!((key.user_key, key.seq.0, value), (&b"long"[..], 2500, &[2; 20_000][..]));
    assert!(world.write(&places[1].key, places[1].at, &[0]).is_err(), "only the node writes there");
    let figures = world.host.figures().unwrap();
    assert_eq!((figures.shards, figures.counters.keys), (2, 3));
    let release = ShardMessage::Release { owner: owner(), shards: newest.to_vec(), oldest: 3 };
    assert!(matches!(world.ask(&release), ShardMessage::Done { shards: 2, .. }));
    let refusal = ShardRefusal::from(ShardWhy::UnknownShard).of(name(2));
    assert_eq!(world.get(&newest, b"long", 100), ShardMessage::Refused { refusal });
}

#[test]
fn shards_are_served_over_tcp() {
    shards_are_served(&Tcp::new());
}

#[test]
fn shards_are_served_over_shared_memory() {
    shards_are_served(&Shm::new());
}

#[test]
fn late_write_changes_no_registered_shard() {
    let world = World::with_threads(&Tcp::new());
    world.begin();
    let image = image(1);
    let (grant, key, at) = world.land(name(1), image.len() as u64);
    world.write(&key, at, &image).unwrap();
    let first = world.ask(&register(name(1), grant, &image));
    world.write(&key, at, &vec![0xff; image.len()]).unwrap();
    let inline = StoredValue::Inline(b"value 1".to_vec().into());
    assert_eq!(found(world.get(&[name(1)], b"key-007", 100)), [(1007, inline)]);
    assert_eq!(world.ask(&register(name(1), grant, &image)), first, "the message came again");
    // The bytes of a shard that is not registered are those that the owner wrote last.
    let (grant, key, at) = world.land(name(2), image.len() as u64);
    world.write(&key, at, &image).unwrap();
    world.write(&key, at + 300, &[0xff; 40]).unwrap();
    let refusal = ShardRefusal::from(ShardWhy::BadPiece).of(name(2));
    assert_eq!(world.ask(&register(name(2), grant, &image)), ShardMessage::Refused { refusal });
}

#[test]
fn old_owner_cannot_write_after_the_new_one_has_begun() {
    let world = World::with_threads(&Tcp::new());
    world.begin();
    let (_, key, at) = world.land(name(1), 1000);
    let next = OwnerStamp { epoch: Epoch(2), ..owner() };
    world.ask(&ShardMessage::Begin { owner: next, landing_bytes: MIB, guaranteed_bytes: 0 });
    assert_eq!(world.write(&key, at, &[1; 100]), Err(Reason::Revoked));
    let refusal = ShardRefusal::at(ShardWhy::OldEpoch, 2);
    assert_eq!(world.get(&[], b"k", 0), ShardMessage::Refused { refusal });
}

#[test]
fn full_queue_answers_busy() {
    let world = World::new(&Tcp::new(), HostThreads::Caller);
    // 40 bodies of this length fit into the queue.
    let mut body = vec![0; 200 << 10];
    body[..2].copy_from_slice(&[0x72, 1]);
    let call = || Call::new(&body, LONG).idempotent().answer_bytes_max(64);
    let mut posted: Vec<_> = (0..50).map(|_| world.link.request(call())).collect();
    // No thread executes the requests in the queue, so only refusals are answered.
    let why = |answer: Promise<std::result::Result<Body, Refusal>>| match ShardMessage::decode(
        &answer.wait().unwrap(),
    ) {
        Ok(ShardMessage::Refused { refusal }) => refusal.why,
        other => panic!("{other:?}"),
    };
    let refused = posted.split_off(40);
    assert!(refused.into_iter().map(why).all(|why| why == ShardWhy::Busy));
    while world.host.work() {}
    assert!(posted.into_iter().map(why).all(|why| why == ShardWhy::Malformed), "their turn came");
    let after = world.link.request(call());
    world.link.flush();
    while !world.host.work() {}
    assert_eq!(why(after), ShardWhy::Malformed, "there is room again");
}

type Posted = Vec<Promise<std::result::Result<Body, Refusal>>>;

/// A host whose requests the test executes, with these in its queue, and their answers.
fn queued(clock: Arc<dyn Clock>, messages: &[ShardMessage]) -> (World, Posted) {
    let world = World::with_clock(&Tcp::new(), HostThreads::Caller, clock);
    let posted = messages.iter().map(|message| world.post(message)).collect();
    world.link.flush();
    while world.got.load(Ordering::SeqCst) < messages.len() {
        std::thread::yield_now();
    }
    (world, posted)
}

#[test]
fn notices_go_before_searches_and_searches_before_grants() {
    let (shard, key) = (name(1), b"k".to_vec().into());
    let (floor, snapshot) = (SeqNo::ZERO, SeqNo::MAX);
    let (world, _posted) = queued(
        SystemClock::shared(),
        &[
            ShardMessage::Land { owner: owner(), shard, bytes: 1000 },
            ShardMessage::Get {
                owner: owner(),
                shards: vec![],
                key,
                floor,
                snapshot,
                inline_max: 0,
                wants_place: false,
            },
            ShardMessage::Begin { owner: owner(), landing_bytes: MIB, guaranteed_bytes: 0 },
        ],
    );
    let mut seen = Vec::new();
    while world.host.work() {
        let figures = world.host.figures().unwrap();
        seen.push((figures.databases, figures.counters.keys, figures.grants));
    }
    assert_eq!(seen, [(1, 0, 0), (1, 1, 0), (1, 1, 1)]);
}

#[test]
fn searches_without_a_pause_do_not_starve_a_grant() {
    let land = ShardMessage::Land { owner: owner(), shard: name(1), bytes: 1000 };
    let begin = ShardMessage::Begin { owner: owner(), landing_bytes: MIB, guaranteed_bytes: 0 };
    let (world, _posted) = queued(SystemClock::shared(), &[begin, land]);
    let search = ShardMessage::Get {
        owner: owner(),
        shards: vec![],
        key: b"k".to_vec().into(),
        floor: SeqNo::ZERO,
        snapshot: SeqNo::MAX,
        inline_max: 0,
        wants_place: false,
    };
    let mut searches = Vec::new();
    while world.host.figures().unwrap().grants == 0 {
        assert!(searches.len() < 100, "the grant waits for ever");
        let before = world.got.load(Ordering::SeqCst);
        searches.push(world.post(&search));
        world.link.flush();
        while world.got.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        assert!(world.host.work(), "a search is queued");
    }
    // The first turn was that of the beat, and the last one that of the grant.
    assert_eq!(searches.len(), 66);
    while world.host.work() {}
    for answer in searches {
        let answer = ShardMessage::decode(&answer.wait().unwrap()).unwrap();
        assert!(matches!(answer, ShardMessage::Versions { .. }), "{answer:?}");
    }
}

#[test]
fn grant_that_nobody_waits_for_is_not_given() {
    let clock = Arc::new(ManualClock::new(0));
    let land = ShardMessage::Land { owner: owner(), shard: name(1), bytes: 1000 };
    let begin = ShardMessage::Begin { owner: owner(), landing_bytes: MIB, guaranteed_bytes: 0 };
    let (world, _posted) = queued(Arc::clone(&clock) as _, &[begin, land]);
    assert!(world.host.work());
    clock.advance(2 * LONG);
    assert!(world.host.work());
    let figures = world.host.figures().unwrap();
    assert_eq!((figures.grants, figures.counters.expired), (0, 1));
}

/// Starts no threads.
#[derive(Debug)]
struct NoThreads;

impl Spawn for NoThreads {
    fn spawn(&self, _name: &str, _body: Box<dyn FnOnce() + Send>) -> Result<Joiner> {
        Err(Error::busy("no threads"))
    }
}

#[test]
fn host_without_threads_answers_busy() {
    let world = World::new(&Tcp::new(), HostThreads::Own(Arc::new(NoThreads), 2));
    let refusal = ShardWhy::Busy.into();
    assert_eq!(world.get(&[], b"k", 0), ShardMessage::Refused { refusal });
}

#[test]
fn closed_host_answers_nothing() {
    let world = World::with_threads(&Tcp::new());
    world.begin();
    world.host.close();
    let refused = world.post(&ShardMessage::Purge { owner: owner() }).wait();
    assert_eq!(refused.map_err(|refusal| refusal.reason), Err(Reason::Unanswered));
}

#[test]
fn unreadable_request_is_refused() {
    let world = World::with_threads(&Tcp::new());
    for body in [&[0x72][..], &[0x72, 5], &[0x71, 1], &[0x72, 99]] {
        let answer = world.link.request(Call::new(body, LONG)).wait().unwrap();
        let refusal = ShardWhy::Malformed.into();
        assert_eq!(ShardMessage::decode(&answer), Ok(ShardMessage::Refused { refusal }));
    }
}
