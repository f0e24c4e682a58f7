//! Reads of one chunk: from its holder, from another replica, or computed from other chunks.
//!
//! [`ChunkFetch`] tries the ways to the bytes, the best one first. It *hedges* if no answer has
//! come after the usual time of the node (its 95th percentile). It then asks the next way as well,
//! and the first right answer counts. If the [`HedgeBudget`](super::hedges::HedgeBudget) is used
//! up, it waits longer before it hedges. A *degraded read* is a way of RS(4,2): the same range of
//! four other chunks, decoded.
//!
//! Invariants:
//! 1. Bytes leave this module only if every piece has its checksum, which is bound to blob, chunk
//!    and offset.
//! 2. Damage is reported to its node, and the next way is tried.
//! 3. A node with late calls in flight, or that could not be reached lately, is asked last.
//!
//! Thread-safety: futures of one task.
//! Failure: [`FetchFailures`] has the failure of every node that was asked.
//! Cost: one request; four for a degraded read. Hedges add a tenth, and more only if answers take
//! several times the usual time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::Boxed;

use super::super::StorageId;
use super::super::client::StoreEvent;
use super::super::code::rebuild_range;
use super::super::layout::{BlobLayout, DegradedRead, DegradedSource, PIECE_BYTES, Scheme};
use super::super::wire::{BlobHint, ChunkId};
use super::chunk_nodes::{CallTerms, NodeFailure};
use super::core::{BlobsCore, CallTime};
use super::hedges::PATIENCE_FACTOR;
use super::in_flight::{First, InFlight, first};
use super::load::{CallGuard, CallKind};
use super::stats::{BlobEvent, ReadWay};
use crate::ids::BlobId;

/// A chunk on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkSource {
    pub(super) node: StorageId,
    pub(super) chunk: ChunkId,
}

/// The failures of the nodes that were asked.
#[derive(Clone, Debug, Default)]
pub(super) struct FetchFailures(Vec<(StorageId, NodeFailure)>);

impl FetchFailures {
    pub(super) fn push(&mut self, node: StorageId, failure: NodeFailure) {
        self.0.push((node, failure));
    }

    pub(super) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Whether a later read may succeed at a node that did not answer now.
    pub(super) fn may_pass(&self) -> bool {
        self.0.iter().any(|(_, failure)| failure.may_pass() || failure.is_silence())
    }

    /// Whether a node has damaged bytes.
    pub(super) fn has_damage(&self) -> bool {
        self.0.iter().any(|(_, failure)| matches!(failure, NodeFailure::Damaged(_)))
    }
}

impl fmt::Display for FetchFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("too few holders are known");
        }
        let mut separator = "";
        for (node, failure) in &self.0 {
            write!(f, "{separator}node {node}: {failure}")?;
            separator = "; ";
        }
        Ok(())
    }
}

/// Bytes of all ranges.
pub(super) fn total_bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Reads ranges of a chunk that begin at pieces, and notes the load of the node. Returns the bytes
/// one range after the other.
pub(super) async fn read_source(
    core: &Arc<BlobsCore>,
    source: ChunkSource,
    ranges: &[Range<u64>],
    terms: CallTerms,
) -> Result<Vec<u8>, NodeFailure> {
    let guard = CallGuard::begin(&core.loads.of(source.node));
    let begun_ns = core.runtime.now_ns();
    let read = read_checked(core, source, ranges, terms).await;
    if read.is_ok() {
        let time_ns = core.runtime.now_ns().saturating_sub(begun_ns);
        guard.answered(CallKind::of_read(total_bytes(ranges)), time_ns);
    }
    read
}

/// Reads ranges of a chunk and checks them.
async fn read_checked(
    core: &Arc<BlobsCore>,
    source: ChunkSource,
    ranges: &[Range<u64>],
    terms: CallTerms,
) -> Result<Vec<u8>, NodeFailure> {
    core.counters.count(BlobEvent::ReadRequest);
    let call = CallTime { begun_ns: core.runtime.now_ns(), deadline: terms.deadline };
    let read = core.nodes.read(source.node, source.chunk, ranges, terms).await;
    let pieces = read.inspect_err(|failure| core.note_failure(source.node, failure, call))?;
    core.counters.add(BlobEvent::FetchedBytes, pieces.bytes.len() as u64);
    let damage = if pieces.bytes.len() as u64 == total_bytes(ranges) {
        damaged_piece(source.chunk, ranges, &pieces.bytes, &pieces.crcs)
    } else {
        ranges.first().map(|range| range.start)
    };
    match damage {
        Some(_) if core.options.sabotage.no_client_crc() => Ok(pieces.bytes),
        Some(offset) => {
            let stats = core.nodes.stats();
            stats.count_at(StoreEvent::DamagedPiece, terms.file, source.node);
            report_damage(core, source, offset, terms);
            let chunk = source.chunk;
            let text = format!("chunk {chunk}: the piece at {offset} does not have its checksum");
            Err(NodeFailure::Damaged(text))
        }
        None => Ok(pieces.bytes),
    }
}

/// Offset in the chunk of the first piece that does not have its checksum.
fn damaged_piece(
    chunk: ChunkId,
    ranges: &[Range<u64>],
    mut bytes: &[u8],
    mut crcs: &[u32],
) -> Option<u64> {
    for range in ranges {
        let len = (range.end - range.start) as usize;
        let (own, others) = bytes.split_at(len);
        let count = len.div_ceil(PIECE_BYTES as usize).min(crcs.len());
        let (own_crcs, other_crcs) = crcs.split_at(count);
        let damaged = chunk.checksums().first_damaged_piece(range.start, own, own_crcs);
        if damaged.is_some() {
            return damaged;
        }
        (bytes, crcs) = (others, other_crcs);
    }
    None
}

/// Reports damage to its node in the background. If the report is lost, a scrub finds the damage.
fn report_damage(core: &Arc<BlobsCore>, source: ChunkSource, offset: u64, terms: CallTerms) {
    let ChunkSource { node, chunk } = source;
    tracing::warn!(%node, %chunk, offset, "a piece does not have its checksum; reading elsewhere");
    let reporting = Arc::clone(core);
    let task = async move {
        let told = reporting.nodes.report_damage(node, chunk, offset, terms).await;
        if let Err(failure) = told {
            tracing::debug!(%node, %chunk, %failure, "the report of damage was lost");
        }
    };
    core.runtime.spawn("report of damage", Box::pin(task));
}

/// A degraded read: ranges of a chunk, computed from other chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct DegradedFetch<'a> {
    pub(super) layout: BlobLayout,
    /// Index of the chunk that is computed.
    pub(super) lost: u8,
    /// Ranges of that chunk, which begin at pieces.
    pub(super) ranges: &'a [Range<u64>],
    /// Other chunks, the preferred ones first.
    pub(super) sources: &'a [ChunkSource],
}

/// A read of a source that was begun.
struct SourceInFlight {
    source: ChunkSource,
    begun_ns: u64,
    guard: CallGuard,
}

type SourceReads<'a> = InFlight<'a, SourceInFlight, Result<Vec<u8>, NodeFailure>>;

impl DegradedFetch<'_> {
    /// Reads the needed ranges from the first sources. Further sources replace those that fail or
    /// are late.
    pub(super) async fn run(
        &self,
        core: &Arc<BlobsCore>,
        terms: CallTerms,
    ) -> Result<Vec<u8>, FetchFailures> {
        let mut failures = FetchFailures::default();
        let mut left: Vec<ChunkSource> = self.sources.to_vec();
        let mut stored: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        let mut begun: BTreeSet<u8> = BTreeSet::new();
        let mut reads = SourceReads::new();
        let mut is_late = false;
        loop {
            let known: Vec<u8> = stored.keys().copied().collect();
            if let Some(plans) = self.plans(&known) {
                core.nodes.stats().count(StoreEvent::DegradedRead, terms.file);
                return self.decode(core, &plans, &stored);
            }
            let readable: Vec<u8> = left.iter().map(|source| source.chunk.index).collect();
            match self.plans(&readable) {
                Some(plans) => {
                    let is_needed = |index: u8| plans.iter().any(|plan| needs(plan, index));
                    for source in left.iter().filter(|source| is_needed(source.chunk.index)) {
                        if begun.insert(source.chunk.index) {
                            self.begin(core, *source, terms, &mut reads);
                        }
                    }
                }
                None if reads.is_empty() => return Err(failures),
                None => {}
            }
            let has_spare = left.iter().any(|source| !begun.contains(&source.chunk.index));
            let patience = (has_spare && !is_late).then(|| patience_of(core, &mut reads));
            match next_within(core, &mut reads, patience).await {
                Some((read, Ok(bytes))) => {
                    let time_ns = core.runtime.now_ns().saturating_sub(read.begun_ns);
                    read.guard.answered(CallKind::of_read(bytes.len() as u64), time_ns);
                    stored.insert(read.source.chunk.index, bytes);
                }
                Some((read, Err(failure))) => {
                    left.retain(|source| *source != read.source);
                    failures.push(read.source.node, failure);
                }
                None => {
                    is_late = true;
                    prefer_others(&mut left, &mut reads);
                }
            }
        }
    }

    fn begin<'b>(
        &'b self,
        core: &'b Arc<BlobsCore>,
        source: ChunkSource,
        terms: CallTerms,
        reads: &mut SourceReads<'b>,
    ) {
        let guard = CallGuard::begin(&core.loads.of(source.node));
        let begun_ns = core.runtime.now_ns();
        let read = async move {
            let coverings = self.coverings(source.chunk.index);
            read_checked(core, source, &coverings, terms).await
        };
        reads.push(SourceInFlight { source, begun_ns, guard }, Box::pin(read));
    }

    /// Computation of each range from the chunks in `readable`; `None` if they are too few.
    fn plans(&self, readable: &[u8]) -> Option<Vec<DegradedRead>> {
        let plan = |range: &Range<u64>| self.layout.degraded(self.lost, range.clone(), readable);
        self.ranges.iter().map(plan).collect()
    }

    /// The part of `range` that chunk `index` stores.
    fn stored(&self, index: u8, range: &Range<u64>) -> Range<u64> {
        let len = self.layout.chunk_len(index);
        range.start.min(len)..range.end.min(len)
    }

    /// The pieces of chunk `index` that all ranges need of it.
    fn coverings(&self, index: u8) -> Vec<Range<u64>> {
        let covering = |range| self.layout.covering(index, &self.stored(index, range));
        self.ranges.iter().map(covering).filter(|covering| !covering.is_empty()).collect()
    }

    fn decode(
        &self,
        core: &BlobsCore,
        plans: &[DegradedRead],
        stored: &BTreeMap<u8, Vec<u8>>,
    ) -> Result<Vec<u8>, FetchFailures> {
        let mut out = Vec::with_capacity(total_bytes(self.ranges) as usize);
        // Position in the bytes of each chunk of the pieces for the next range.
        let mut positions: BTreeMap<u8, usize> = BTreeMap::new();
        for (range, plan) in self.ranges.iter().zip(plans) {
            let slice = |source: &DegradedSource| {
                let at = positions.get(&source.chunk).copied().unwrap_or(0);
                let start = at + (source.stored.start - source.covering.start) as usize;
                let len = (source.stored.end - source.stored.start) as usize;
                stored.get(&source.chunk).map_or(&[][..], |bytes| &bytes[start..start + len])
            };
            let slices: Vec<&[u8]> = plan.sources.iter().map(slice).collect();
            let rebuilt = rebuild_range(&core.code, plan, &slices).map_err(|error| {
                let failure = NodeFailure::Refused(error.to_string());
                FetchFailures(vec![(StorageId::default(), failure)])
            })?;
            out.extend_from_slice(&rebuilt);
            for index in stored.keys() {
                let covering = self.layout.covering(*index, &self.stored(*index, range));
                *positions.entry(*index).or_default() += (covering.end - covering.start) as usize;
            }
        }
        Ok(out)
    }
}

/// The longest usual time of the sources that are being read.
fn patience_of(core: &BlobsCore, reads: &mut SourceReads<'_>) -> Duration {
    let timing = &core.options.timing;
    let usual = |read: &mut SourceInFlight| {
        let usual_ns = core.loads.of(read.source.node).usual_ns(CallKind::SmallRead);
        usual_ns.map_or(timing.hedge_first, Duration::from_nanos)
    };
    reads.tags_mut().map(usual).max().unwrap_or_default().max(timing.hedge_min)
}

/// Moves the sources that are late to the end, so that others are read as well.
fn prefer_others(left: &mut Vec<ChunkSource>, reads: &mut SourceReads<'_>) {
    for read in reads.tags_mut() {
        read.guard.note_late();
        if let Some(at) = left.iter().position(|source| *source == read.source) {
            let late = left.remove(at);
            left.push(late);
        }
    }
}

/// The next output; `None` if none came within `patience`.
async fn next_within<K: Unpin, T>(
    core: &BlobsCore,
    calls: &mut InFlight<'_, K, T>,
    patience: Option<Duration>,
) -> Option<(K, T)> {
    let Some(patience) = patience else { return calls.next().await };
    match first(calls.next(), core.runtime.sleep(patience)).await {
        First::One(output) => output,
        First::Other(()) => None,
    }
}

/// Whether a degraded read needs bytes of chunk `index`.
fn needs(plan: &DegradedRead, index: u8) -> bool {
    plan.sources.iter().any(|source| source.chunk == index && !source.stored.is_empty())
}

/// A way to the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchWay {
    Direct(ChunkSource),
    Degraded,
}

/// A read of ranges of one chunk, from any source that has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkFetch<'a> {
    pub(super) core: &'a Arc<BlobsCore>,
    pub(super) blob: BlobId,
    pub(super) len_bytes: u64,
    /// Scheme and holders of the blob.
    pub(super) hint: &'a BlobHint,
    /// Index of the chunk.
    pub(super) chunk: u8,
    /// Ranges that begin at pieces.
    pub(super) ranges: &'a [Range<u64>],
    pub(super) terms: CallTerms,
}

/// A way of a read that is in flight.
struct WayInFlight {
    way: FetchWay,
    is_hedge: bool,
    begun_ns: u64,
    guard: Option<CallGuard>,
}

type Reads<'a> = InFlight<'a, WayInFlight, Result<Vec<u8>, FetchFailures>>;

impl<'a> ChunkFetch<'a> {
    fn layout(&self) -> BlobLayout {
        BlobLayout { scheme: self.hint.scheme, len_bytes: self.len_bytes }
    }

    fn source(&self, node: StorageId, index: u8) -> ChunkSource {
        ChunkSource { node, chunk: ChunkId { blob: self.blob, index } }
    }

    /// The bytes of all ranges, one after the other.
    pub(super) async fn run(&self) -> Result<Vec<u8>, FetchFailures> {
        let sources = self.sources();
        let mut ways = self.ways(&sources);
        let mut failures = FetchFailures::default();
        let mut calls = Reads::new();
        let mut is_hedge = false;
        let mut waits_longer = false;
        self.core.hedges.earn();
        loop {
            if calls.is_empty() || is_hedge {
                match ways.pop_front() {
                    Some(way) => self.begin(way, is_hedge, &sources, &mut calls),
                    None if calls.is_empty() => return Err(failures),
                    None => {}
                }
                is_hedge = false;
            }
            let patience = ways.front().and_then(|_| self.patience(&mut calls, waits_longer));
            let next = next_within(self.core, &mut calls, patience).await;
            let Some((read, outcome)) = next else {
                waits_longer = !waits_longer && !self.may_hedge(&ways, &mut calls);
                if !waits_longer {
                    self.note_hedge(&mut calls);
                    is_hedge = true;
                }
                continue;
            };
            match outcome {
                Ok(bytes) => {
                    self.note_read(&read, &mut calls);
                    return Ok(bytes);
                }
                Err(failed) => failures.extend(failed),
            }
        }
    }

    /// All holders, the least loaded ones first.
    fn sources(&self) -> Vec<ChunkSource> {
        let holders = &self.hint.holders;
        let mut nodes: Vec<StorageId> = holders.iter().map(|holder| holder.storage).collect();
        let turn = self.core.next_turn();
        self.core.loads.sort(&mut nodes, turn, |node| self.core.is_avoided(node));
        let holder_of = |node| holders.iter().find(|holder| holder.storage == node);
        let sources = nodes.into_iter().filter_map(holder_of);
        sources.map(|holder| self.source(holder.storage, holder.chunk)).collect()
    }

    /// The ways to the chunk, the best ones first.
    fn ways(&self, sources: &[ChunkSource]) -> VecDeque<FetchWay> {
        let direct = sources.iter().filter(|source| source.chunk.index == self.chunk);
        let mut ways: VecDeque<_> = direct.map(|source| FetchWay::Direct(*source)).collect();
        if let Scheme::Rs42(_) = self.hint.scheme {
            let is_avoided = |way: &FetchWay| match way {
                FetchWay::Direct(source) => self.core.is_avoided(source.node),
                FetchWay::Degraded => false,
            };
            match ways.front() {
                Some(way) if !is_avoided(way) => ways.push_back(FetchWay::Degraded),
                _ => ways.push_front(FetchWay::Degraded),
            }
        }
        ways
    }

    fn begin<'b>(
        &'b self,
        way: FetchWay,
        is_hedge: bool,
        sources: &'b [ChunkSource],
        calls: &mut Reads<'b>,
    ) {
        let begun_ns = self.core.runtime.now_ns();
        let guard = match way {
            FetchWay::Direct(source) => Some(CallGuard::begin(&self.core.loads.of(source.node))),
            FetchWay::Degraded => None,
        };
        let read: Boxed<'b, _> = match way {
            FetchWay::Direct(source) => Box::pin(async move {
                let read = read_checked(self.core, source, self.ranges, self.terms).await;
                read.map_err(|failure| FetchFailures(vec![(source.node, failure)]))
            }),
            FetchWay::Degraded => Box::pin(self.degraded(sources)),
        };
        calls.push(WayInFlight { way, is_hedge, begun_ns, guard }, read);
    }

    async fn degraded(&self, sources: &[ChunkSource]) -> Result<Vec<u8>, FetchFailures> {
        let is_other = |source: &&ChunkSource| source.chunk.index != self.chunk;
        let sources: Vec<_> = sources.iter().filter(is_other).copied().collect();
        let (layout, lost, ranges) = (self.layout(), self.chunk, self.ranges);
        let fetch = DegradedFetch { layout, lost, ranges, sources: &sources };
        fetch.run(self.core, self.terms).await
    }

    /// Time until the read hedges: the usual time of the node that was asked last, or several times
    /// as much if it `waits_longer`.
    fn patience(&self, calls: &mut Reads<'_>, waits_longer: bool) -> Option<Duration> {
        let timing = &self.core.options.timing;
        let last = calls.tags_mut().max_by_key(|read| read.begun_ns)?;
        let usual = self.usual(last).unwrap_or(timing.hedge_first).max(timing.hedge_min);
        let since = self.core.runtime.now_ns().saturating_sub(last.begun_ns);
        let whole = usual * if waits_longer { PATIENCE_FACTOR } else { 1 };
        Some(whole.saturating_sub(Duration::from_nanos(since)))
    }

    /// The usual time of a way, if it is known.
    fn usual(&self, read: &WayInFlight) -> Option<Duration> {
        let kind = CallKind::of_read(total_bytes(self.ranges));
        match read.way {
            FetchWay::Direct(source) => {
                self.core.loads.of(source.node).usual_ns(kind).map(Duration::from_nanos)
            }
            FetchWay::Degraded => None,
        }
    }

    /// Whether the next way may be asked as well. A node without a usual time is always hedged,
    /// because it may never have answered.
    fn may_hedge(&self, ways: &VecDeque<FetchWay>, calls: &mut Reads<'_>) -> bool {
        let last = calls.tags_mut().max_by_key(|read| read.begun_ns);
        if last.is_none_or(|read| self.usual(read).is_none()) {
            return true;
        }
        let requests = match ways.front() {
            Some(FetchWay::Degraded) => u64::from(self.hint.scheme.chunks_min()),
            _ => 1,
        };
        self.core.hedges.take(requests)
    }

    /// Notes that all ways in flight are late.
    fn note_hedge(&self, calls: &mut Reads<'_>) {
        for read in calls.tags_mut() {
            if let FetchWay::Direct(source) = read.way
                && read.guard.as_mut().is_some_and(CallGuard::note_late)
            {
                let stats = self.core.nodes.stats();
                stats.count_at(StoreEvent::HedgedRead, self.terms.file, source.node);
            }
        }
    }

    /// Notes the answer, and that the other ways are given up.
    fn note_read(&self, read: &WayInFlight, others: &mut Reads<'_>) {
        let (now_ns, kind) =
            (self.core.runtime.now_ns(), CallKind::of_read(total_bytes(self.ranges)));
        let time_ns = now_ns.saturating_sub(read.begun_ns);
        if let Some(guard) = &read.guard {
            guard.answered(kind, time_ns);
        }
        for other in others.tags_mut() {
            if let Some(guard) = &other.guard {
                guard.gave_up(kind, now_ns.saturating_sub(other.begun_ns));
            }
        }
        if read.is_hedge {
            self.core.counters.count(BlobEvent::HedgeWon);
        }
        let way = match (read.way, self.hint.scheme) {
            (FetchWay::Degraded, _) => ReadWay::Degraded,
            (FetchWay::Direct(_), Scheme::Replicas(_)) => ReadWay::Replica,
            (FetchWay::Direct(_), Scheme::Rs42(_)) => ReadWay::Cell,
        };
        self.core.counters.read_took(way, time_ns);
    }
}
