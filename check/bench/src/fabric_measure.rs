//! Measures a provider, raw memory, and a bare TCP connection, all in the same way.
//!
//! Figures are medians. An operation of less than about a microsecond is timed in blocks, and the
//! figure is the median of the blocks' means. Two processes take part: one keeps a [`Target`] or
//! [`echo`]es, and the other calls [`provider`], [`raw_memory`] and [`bare_socket`]. [`simulated`]
//! measures two hosts of `sim` in virtual time.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::simulation::Simulation;
use archipelago_base::{Epoch, Error, ErrorKind, Result};

use archipelago_fabric::memory::{self, Mapping};
use archipelago_fabric::sim::{Model, Network};
use archipelago_fabric::{
    Attached, Batch, Call, Connect, Handler, Link, Listener, Node, NodeId, Outcome, Provider,
    Region, RemoteKey, Reply, Request, Rights, Session,
};

/// Bytes of the small READ, of a request and of its answer.
pub(crate) const SMALL_BYTES: usize = 128;
/// Bytes of the large READ.
pub(crate) const LARGE_BYTES: usize = 64 << 10;
/// Bytes of the memory that all clients read. It fits the caches, because the measurement is about
/// the way to the memory.
const REGION_BYTES: usize = 2 << 20;
/// Number of operations in flight or in a batch, where it is more than one.
pub(crate) const DEPTH: usize = 16;

/// Length of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Number of values from which a median is computed.
    pub samples: usize,
    /// Operations that are timed as one, where they take less than a microsecond. Short enough that
    /// on a busy machine most blocks are not interrupted.
    pub block: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { samples: 501, block: 50 }
    }
}

/// Figures of a provider. Times are medians in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// READ of [`SMALL_BYTES`].
    pub read_small_ns: f64,
    /// READ of [`LARGE_BYTES`].
    pub read_large_ns: f64,
    /// WRITE of [`SMALL_BYTES`], until it is visible.
    pub write_small_ns: f64,
    /// Compare-and-swap of a word that no other client uses.
    pub swap_ns: f64,
    /// Request and answer of [`SMALL_BYTES`].
    pub request_ns: f64,
    /// READs of [`SMALL_BYTES`] per second, one at a time.
    pub reads_depth_1_per_s: f64,
    /// READs of [`SMALL_BYTES`] per second with [`DEPTH`] in flight, each a batch of its own.
    pub reads_depth_16_per_s: f64,
    /// READs of [`SMALL_BYTES`] per second in batches of [`DEPTH`], one batch at a time.
    pub reads_batched_per_s: f64,
    /// Packets that 1,000 READs take, one at a time.
    pub packets_single: f64,
    /// Packets that 1,000 READs take in batches of [`DEPTH`].
    pub packets_batched: f64,
}

impl Figures {
    /// Median of each figure over `rounds`, which are not empty.
    #[must_use]
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure).collect());
        Self {
            read_small_ns: of(|f| f.read_small_ns),
            read_large_ns: of(|f| f.read_large_ns),
            write_small_ns: of(|f| f.write_small_ns),
            swap_ns: of(|f| f.swap_ns),
            request_ns: of(|f| f.request_ns),
            reads_depth_1_per_s: of(|f| f.reads_depth_1_per_s),
            reads_depth_16_per_s: of(|f| f.reads_depth_16_per_s),
            reads_batched_per_s: of(|f| f.reads_batched_per_s),
            packets_single: of(|f| f.packets_single),
            packets_batched: of(|f| f.packets_batched),
        }
    }
}

/// The median of the values.
#[must_use]
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Handler that answers with the request's bytes.
struct Echo;

impl Handler for Echo {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        reply.send(request.body);
    }
}

/// A node that is measured. It serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Target {
    listener: Box<dyn Listener>,
    key: RemoteKey,
    _region: Region,
}

impl Target {
    /// Serves a region at `address`.
    pub(crate) fn open(provider: &dyn Provider, address: &str) -> Result<Self> {
        Self::of(&Node::new(NodeId(1), Epoch(1), Some(Box::new(Echo)))?, provider, address)
    }

    fn of(node: &Arc<Node>, provider: &dyn Provider, address: &str) -> Result<Self> {
        let region = node.allocate(REGION_BYTES, provider.atomic_path())?;
        let key = region.grant(Rights::ALL)?;
        let listener = provider.serve(node, address)?;
        Ok(Self { listener, key, _region: region })
    }

    /// Address and key as bytes.
    #[must_use]
    pub(crate) fn invitation(&self) -> (String, Vec<u8>) {
        let mut key = Vec::new();
        self.key.encode(&mut key);
        (self.listener.address().to_owned(), key)
    }
}

/// Offsets all over the region, the same for all clients.
struct Offsets(usize);

impl Offsets {
    fn next(&mut self, bytes: usize) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let places = REGION_BYTES / bytes;
        ((self.0 >> 33) % places * bytes) as u64
    }
}

/// The median of `samples` measurements of `block` operations, in nanoseconds per operation.
fn median_ns(
    clock: &dyn Clock,
    samples: usize,
    block: usize,
    mut operation: impl FnMut() -> Result<()>,
) -> Result<f64> {
    // These operations warm up the caches and the other side's thread, and let it learn how long
    // spinning is useful.
    for _ in 0..block.max(samples / 2) {
        operation()?;
    }
    let mut values = Vec::with_capacity(samples);
    for _ in 0..samples {
        let start_ns = clock.now_ns();
        for _ in 0..block {
            operation()?;
        }
        values.push((clock.now_ns() - start_ns) as f64 / block as f64);
    }
    Ok(median(values))
}

/// Posts the operations that `fill` adds, and waits.
fn posted(link: &dyn Link, batch: &mut Batch, fill: impl FnOnce(&mut Batch)) -> Result<()> {
    let mut mine = std::mem::take(batch);
    mine.clear();
    fill(&mut mine);
    *batch = link.post(mine).wait();
    match batch.outcome(0) {
        Outcome::Refused(_) => batch.check(),
        _ => Ok(()),
    }
}

/// Measures `provider` at the node that gave the `invitation`.
pub(crate) fn provider(
    provider: &dyn Provider,
    invitation: &(String, Vec<u8>),
    effort: Effort,
) -> Result<Figures> {
    let to = Connect::to(&invitation.0, &Session::fresh());
    by_clock(provider, to, &invitation.1, SystemClock::shared(), effort)
}

/// Measures `sim` between two hosts of that model: figures in virtual time, the same in every run.
pub(crate) fn simulated(model: &Model, effort: Effort) -> Result<Figures> {
    let simulation = Simulation::new(1);
    let network = Network::new(&simulation);
    let there = network.join(&simulation.host("target"), model.clone());
    let here = network.join(&simulation.host("client"), model.clone());
    let node = network.node(NodeId(1), Epoch(1), Some(Box::new(Echo)))?;
    let target = Target::of(&node, &there, "target")?;
    let (address, key) = target.invitation();
    let to = Connect::to(address, &network.session());
    by_clock(&here, to, &key, simulation.clock(), effort)
}

fn by_clock(
    provider: &dyn Provider,
    to: Connect,
    key: &[u8],
    clock: Arc<dyn Clock>,
    effort: Effort,
) -> Result<Figures> {
    let mut reader = archipelago_base::codec::Reader::new(key);
    let key = RemoteKey::decode(&mut reader).ok_or_else(|| Error::invalid("no key"))?;
    let link = provider.connect(to).wait()?;
    let attached = link.attach(&key).wait().map_err(|refusal| refusal.error("attach"))?;
    Measured { link, attached, clock, effort }.all()
}

struct Measured {
    link: Arc<dyn Link>,
    attached: Attached,
    clock: Arc<dyn Clock>,
    effort: Effort,
}

impl Measured {
    fn all(&self) -> Result<Figures> {
        let (samples, block) = (self.effort.samples, self.effort.block);
        // Operations that wait for another thread are timed one by one.
        let few = if self.reads_are_local()? { block } else { 1 };
        let (link, region, clock) = (&*self.link, self.attached, &*self.clock);
        let mut batch = Batch::new();
        let mut offsets = Offsets(1);
        let read_small_ns = median_ns(clock, samples, few, || {
            let at = offsets.next(SMALL_BYTES);
            posted(link, &mut batch, |batch| _ = batch.read(region, at, SMALL_BYTES as u32))
        })?;
        let read_large_ns = median_ns(clock, samples, 1, || {
            let at = offsets.next(LARGE_BYTES);
            posted(link, &mut batch, |batch| _ = batch.read(region, at, LARGE_BYTES as u32))
        })?;
        let bytes = [7; SMALL_BYTES];
        let write_small_ns = median_ns(clock, samples, few, || {
            let at = offsets.next(SMALL_BYTES);
            posted(link, &mut batch, |batch| _ = batch.write(region, at, &bytes))
        })?;
        let mut word = 0;
        let swap_ns = median_ns(clock, samples, few, || {
            posted(link, &mut batch, |batch| _ = batch.compare_swap(region, 0, word, word + 1))?;
            word = batch.word(0).unwrap_or(word) + 1;
            Ok(())
        })?;
        let request_ns = median_ns(clock, samples, 1, || {
            let answer = link.request(Call::new(&bytes, Duration::from_secs(5))).wait();
            let answer = answer.map_err(|refusal| refusal.error("request"))?;
            if answer.len() == SMALL_BYTES { Ok(()) } else { Err(Error::invalid("another answer")) }
        })?;
        let (single, batched) = (self.batched(1, few)?, self.batched(DEPTH, few)?);
        Ok(Figures {
            read_small_ns,
            read_large_ns,
            write_small_ns,
            swap_ns,
            request_ns,
            reads_depth_1_per_s: single.0,
            reads_depth_16_per_s: self.pipelined(few)?,
            reads_batched_per_s: batched.0,
            packets_single: single.1,
            packets_batched: batched.1,
        })
    }

    fn reads_are_local(&self) -> Result<bool> {
        let before = self.link.stats().packets;
        let region = self.attached;
        posted(&*self.link, &mut Batch::new(), |batch| _ = batch.read(region, 0, 8))?;
        Ok(self.link.stats().packets == before)
    }

    /// READs per second in batches of `size`, and packets per 1,000 READs.
    fn batched(&self, size: usize, block: usize) -> Result<(f64, f64)> {
        let (mut batch, mut offsets) = (Batch::new(), Offsets(2));
        let before = self.link.stats();
        let ns = median_ns(&*self.clock, self.effort.samples, block, || {
            posted(&*self.link, &mut batch, |batch| {
                for _ in 0..size {
                    batch.read(self.attached, offsets.next(SMALL_BYTES), SMALL_BYTES as u32);
                }
            })
        })?;
        let after = self.link.stats();
        let packets = (after.packets - before.packets) as f64;
        let operations = (after.operations - before.operations) as f64;
        Ok((size as f64 * 1e9 / ns, packets * 1000.0 / operations))
    }

    /// READs per second with [`DEPTH`] batches of one in flight.
    fn pipelined(&self, block: usize) -> Result<f64> {
        let mut offsets = Offsets(3);
        let mut post = |mut batch: Batch| {
            batch.clear();
            batch.read(self.attached, offsets.next(SMALL_BYTES), SMALL_BYTES as u32);
            self.link.post(batch)
        };
        let mut flying: VecDeque<_> = (0..DEPTH).map(|_| post(Batch::new())).collect();
        let ns = median_ns(&*self.clock, self.effort.samples, block.max(4 * DEPTH), || {
            let Some(oldest) = flying.pop_front() else { return Ok(()) };
            let batch = oldest.wait();
            batch.check()?;
            flying.push_back(post(batch));
            Ok(())
        })?;
        for promise in flying {
            promise.wait().check()?;
        }
        Ok(1e9 / ns)
    }
}

/// Memory of this process, by the same instructions, without a fabric: READ small, READ large, and
/// compare-and-swap, in nanoseconds.
pub(crate) fn raw_memory(effort: Effort) -> Result<[f64; 3]> {
    let clock = SystemClock::new();
    let mapping = Mapping::create("archipelago-measure", REGION_BYTES)?;
    let words = mapping.words();
    for word in words {
        word.store(1, std::sync::atomic::Ordering::Relaxed);
    }
    let mut offsets = Offsets(4);
    let mut into = vec![0; LARGE_BYTES];
    let mut read = |bytes: usize, block: usize| {
        median_ns(&clock, effort.samples, block, || {
            let offset = offsets.next(bytes);
            memory::read(words, offset as usize, &mut into[..bytes]);
            black_box(&mut into);
            Ok(())
        })
    };
    let small = read(SMALL_BYTES, effort.block)?;
    let large = read(LARGE_BYTES, 1)?;
    let mut expect = 1;
    let swap = median_ns(&clock, effort.samples, effort.block, || {
        let new = expect + 1;
        black_box(memory::compare_swap(&words[0], expect, new));
        expect = new;
        Ok(())
    })?;
    Ok([small, large, swap])
}

fn socket_error(source: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Io, "the bare socket", source)
}

/// Sends back the bytes of one client until the client ends.
pub(crate) fn echo(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept().map_err(socket_error)?;
    stream.set_nodelay(true).map_err(socket_error)?;
    let mut bytes = vec![0; LARGE_BYTES];
    loop {
        let count = stream.read(&mut bytes).map_err(socket_error)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..count]).map_err(socket_error)?;
    }
}

/// A round trip of [`SMALL_BYTES`] to an [`echo`], in nanoseconds.
pub(crate) fn bare_socket(address: &str, effort: Effort) -> Result<f64> {
    let mut stream = TcpStream::connect(address).map_err(socket_error)?;
    stream.set_nodelay(true).map_err(socket_error)?;
    let mut bytes = [7; SMALL_BYTES];
    median_ns(&SystemClock::new(), effort.samples, 1, || {
        stream.write_all(&bytes).map_err(socket_error)?;
        stream.read_exact(&mut bytes).map_err(socket_error)
    })
}
