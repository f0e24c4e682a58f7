//! Placement: which nodes hold the chunks of a blob or the replicas of a log, which repair is next,
//! and which chunks move to other nodes.
//!
//! [`place`] ranks the nodes by rendezvous hashing, weighted by their free bytes, and takes the
//! best node of each domain. The result is stored with the blob, so a change of the membership
//! moves nothing. If the pool has too few domains for the wanted scheme, the blob gets a weaker one
//! and the difference is counted as debt:
//!
//! | domains with room | wanted RS(4,2) | wanted three replicas |
//! | --- | --- | --- |
//! | 6 or more | RS(4,2) | three replicas |
//! | 3 to 5 | three replicas; debt: coding | three replicas |
//! | 2 | two replicas; debt: one copy | two replicas; debt: one copy |
//! | 1 | refused, unless one copy is permitted | refused, unless one copy is permitted |
//!
//! Invariants:
//! 1. The nodes of a placement are up, do not drain, have room, and are in distinct domains.
//! 2. A placement has at least `copies_min` nodes, or [`place`] returns an error with the reason.
//! 3. A repair never starts while a node of it, or the cluster, is over its rate. A more urgent
//!    repair that waits for the rate of a node reserves that node against less urgent repairs. A
//!    repair whose target has enough orders under way reserves nothing.
//! 4. A move leaves the chunks of a blob in distinct domains.
//!
//! All functions are pure. Failure: [`place`] and [`replace`] return the number of nodes that were
//! excluded and the reasons: no space if nodes are too full, else `Busy`. Cost: O(n log n) for n
//! nodes, debts or chunks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;

use archipelago_base::{Error, ErrorKind, Result, checksum};

use super::StorageId;
use super::layout::{BlobLayout, REPLICAS, Scheme};
use crate::ids::BlobId;

/// Fullness of a node, relative to the mean, from which chunks move away from it, in per cent.
const REBALANCE_ABOVE_PERCENT: u64 = 110;

/// State of a storage node, as the manager knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Identity of the node.
    pub id: StorageId,
    /// Set of nodes that fail together with this one.
    pub domain: String,
    /// Bytes that the node may use.
    pub capacity_bytes: u64,
    /// Bytes that the node uses.
    pub used_bytes: u64,
    /// Whether the node answers.
    pub is_up: bool,
    /// Whether an operator empties the node.
    pub is_draining: bool,
}

impl NodeReport {
    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes)
    }

    /// Whether the node stays within the limit of `purpose` with `bytes` more.
    fn has_room(&self, purpose: WritePurpose, bytes: u64) -> bool {
        let Some(percent) = purpose.fullness_max_percent() else { return true };
        let after = u128::from(self.used_bytes) + u128::from(bytes);
        after * 100 <= u128::from(self.capacity_bytes) * u128::from(percent)
    }
}

/// Purpose of a write, which decides how full a node may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePurpose {
    /// Files that a user ingests, and new volumes.
    Ingestion,
    /// Copies that replace lost ones.
    Repair,
    /// Flushes, compactions and garbage collections. They move acknowledged writes from memory to
    /// tables, and free space.
    Job,
    /// Logs, which may fill a node completely.
    Log,
}

impl WritePurpose {
    /// Fullness that a node may reach by such writes, in per cent; `None` if there is no limit.
    #[must_use]
    pub const fn fullness_max_percent(self) -> Option<u64> {
        match self {
            Self::Ingestion => Some(95),
            Self::Repair => Some(97),
            Self::Job => Some(98),
            Self::Log => None,
        }
    }
}

/// A blob or an extent for which nodes are wanted.
#[derive(Clone, Copy, Debug)]
pub struct PlacementRequest {
    /// Identity of the blob or log, which the ranking depends on.
    pub key: [u8; 16],
    /// Wanted scheme. [`Scheme::Replicas`] for logs.
    pub scheme: Scheme,
    /// Expected length in bytes; 0 if it is unknown.
    pub len_bytes: u64,
    /// Purpose of the write.
    pub purpose: WritePurpose,
    /// Fewest copies that the cluster accepts: 2, or 1 for a trial on one node.
    pub copies_min: u8,
}

impl PlacementRequest {
    /// Bytes that the fullest chunk adds to its node.
    fn chunk_bytes(&self, scheme: Scheme) -> u64 {
        BlobLayout { scheme, len_bytes: self.len_bytes }.chunk_len(0)
    }
}

/// The difference between a placement and the wanted redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementDebt {
    /// The placement is as wanted.
    None,
    /// The blob has three replicas and is coded when there are six domains.
    Coding,
    /// Number of copies that are added when more domains have room.
    Copies(u8),
}

/// The nodes of a new blob or extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Scheme for which there are enough domains.
    pub scheme: Scheme,
    /// One node per chunk, by the chunk's index.
    pub nodes: Vec<StorageId>,
    /// Difference between the placement and the wanted scheme.
    pub debt: PlacementDebt,
}

/// Chooses the nodes of a new blob or extent. Errors: if fewer than `copies_min` domains have a
/// node with room, no space ([`Error::is_no_space`]) where full nodes would suffice, and else
/// `Busy`.
///
/// ```
/// use archipelago_store::nodes::StorageId;
/// use archipelago_store::nodes::layout::{CellSize, Scheme};
/// use archipelago_store::nodes::placement::{
///     NodeReport, PlacementDebt, PlacementRequest, WritePurpose, place,
/// };
///
/// let nodes = [1, 2, 3].map(|id| NodeReport {
///     id: StorageId(id),
///     domain: format!("rack {id}"),
///     capacity_bytes: 1 << 40,
///     used_bytes: 1 << 30,
///     is_up: true,
///     is_draining: false,
/// });
/// let request = PlacementRequest {
///     key: [7; 16],
///     scheme: Scheme::Rs42(CellSize::Large),
///     len_bytes: 256 << 20,
///     purpose: WritePurpose::Job,
///     copies_min: 2,
/// };
/// let placement = place(&nodes, &request)?;
/// // Three domains are too few for six chunks: the blob is coded later.
/// assert_eq!(placement.scheme, Scheme::Replicas(3));
/// assert_eq!(placement.debt, PlacementDebt::Coding);
/// # Ok::<(), archipelago_base::Error>(())
/// ```
pub fn place(nodes: &[NodeReport], request: &PlacementRequest) -> Result<Placement> {
    let wanted = request.scheme;
    if let Scheme::Rs42(_) = wanted {
        let best = best_of_domains(nodes, request, request.chunk_bytes(wanted), &[]);
        if best.len() >= usize::from(wanted.chunks()) {
            let nodes = best.into_iter().take(usize::from(wanted.chunks())).collect();
            return Ok(Placement { scheme: wanted, nodes, debt: PlacementDebt::None });
        }
    }
    let copies_wanted = match wanted {
        Scheme::Replicas(copies) => copies,
        Scheme::Rs42(_) => REPLICAS,
    };
    let mut best = best_of_domains(nodes, request, request.len_bytes, &[]);
    best.truncate(usize::from(copies_wanted));
    let copies = best.len() as u8;
    if copies < request.copies_min.max(1) {
        return Err(refusal(nodes, request, usize::from(copies), request.copies_min.max(1)));
    }
    let debt = match wanted {
        _ if copies < copies_wanted => PlacementDebt::Copies(copies_wanted - copies),
        Scheme::Rs42(_) => PlacementDebt::Coding,
        Scheme::Replicas(_) => PlacementDebt::None,
    };
    Ok(Placement { scheme: Scheme::Replicas(copies), nodes: best, debt })
}

/// The nodes that the choice of a replacement depends on.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'a> {
    /// Nodes that stay. The new node is in none of their domains.
    pub holders: &'a [StorageId],
    /// Nodes that must not be chosen, such as those that failed.
    pub avoid: &'a [StorageId],
}

/// Chooses a node in place of one that failed. Errors: no space ([`Error::is_no_space`]) if all
/// nodes of other domains are too full, and `Busy` if there is none.
pub fn replace(
    nodes: &[NodeReport],
    request: &PlacementRequest,
    replacement: Replacement<'_>,
) -> Result<StorageId> {
    let domains = domains_of(nodes, replacement.holders);
    let is_other = |node: &&NodeReport| !domains.contains(node.domain.as_str());
    let left: Vec<NodeReport> = nodes.iter().filter(is_other).cloned().collect();
    let bytes = request.chunk_bytes(request.scheme);
    let best = best_of_domains(&left, request, bytes, replacement.avoid);
    best.first().copied().ok_or_else(|| refusal(&left, request, 0, 1))
}

/// The best node of each domain, the best ones first.
fn best_of_domains(
    nodes: &[NodeReport],
    request: &PlacementRequest,
    bytes: u64,
    avoid: &[StorageId],
) -> Vec<StorageId> {
    let takes = |node: &&NodeReport| {
        let is_willing = node.is_up && !node.is_draining && !avoid.contains(&node.id);
        is_willing && node.has_room(request.purpose, bytes)
    };
    let mut ranked: Vec<(f64, &NodeReport)> =
        nodes.iter().filter(takes).map(|node| (score(&request.key, node), node)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.id.cmp(&b.1.id)));
    let mut seen = BTreeSet::new();
    ranked.retain(|(_, node)| seen.insert(node.domain.as_str()));
    ranked.into_iter().map(|(_, node)| node.id).collect()
}

/// Weighted rendezvous score: the free bytes, divided by an exponential random number that depends
/// on key and node. A node wins with a probability in proportion to its free bytes.
fn score(key: &[u8; 16], node: &NodeReport) -> f64 {
    let mut seed = [0; 24];
    seed[..16].copy_from_slice(key);
    seed[16..].copy_from_slice(&node.id.0.to_le_bytes());
    let hash = checksum::hash64(&seed) >> 11;
    let uniform = (hash as f64 + 0.5) / (1u64 << 53) as f64;
    node.free_bytes() as f64 / -uniform.ln()
}

fn domains_of<'a>(nodes: &'a [NodeReport], holders: &[StorageId]) -> BTreeSet<&'a str> {
    let held = nodes.iter().filter(|node| holders.contains(&node.id));
    held.map(|node| node.domain.as_str()).collect()
}

/// The error of a placement for which too few domains take the bytes. It is [`no_space`] if the
/// nodes that are too full would be enough. Otherwise too few nodes answer, and the error is
/// `Busy`.
fn refusal(nodes: &[NodeReport], request: &PlacementRequest, domains: usize, needed: u8) -> Error {
    let count = |is: &dyn Fn(&NodeReport) -> bool| nodes.iter().filter(|node| is(node)).count();
    let down = count(&|node| !node.is_up);
    let draining = count(&|node| node.is_up && node.is_draining);
    let left = |node: &NodeReport| node.is_up && !node.is_draining;
    let full = count(&|node| left(node) && !node.has_room(request.purpose, request.len_bytes));
    let text = format!(
        "storage pool: {domains} domains have a node that takes {} bytes, and {needed} are needed; \
         of {} nodes {down} do not answer, {draining} drain and {full} are too full: start nodes, \
         add nodes of other domains, or free space",
        request.len_bytes,
        nodes.len(),
    );
    let standing = nodes.iter().filter(|node| left(node)).map(|node| node.domain.as_str());
    let standing: BTreeSet<&str> = standing.collect();
    match full > 0 && standing.len() >= usize::from(needed) {
        true => no_space(text),
        false => Error::busy(text),
    }
}

/// The error of bytes for which nodes have no room: [`Error::is_no_space`] is true for it, and a
/// database then frees space instead of trying again.
pub(crate) fn no_space(context: String) -> Error {
    let cause = io::Error::from(io::ErrorKind::StorageFull);
    Error::with_source(ErrorKind::Io, context, cause)
}

/// A chunk that must be rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairDebt {
    /// Blob of the chunk.
    pub blob: BlobId,
    /// Number of further losses that the blob survives.
    pub losses_left: u8,
    /// Bytes of the missing chunk. Each source reads the same number of bytes.
    pub chunk_bytes: u64,
    /// Nodes that are read: one for replicas, four for RS(4,2).
    pub sources: Vec<StorageId>,
    /// Node that the new chunk is written to.
    pub target: StorageId,
}

impl RepairDebt {
    /// All nodes whose rate the repair uses.
    fn nodes(&self) -> impl Iterator<Item = StorageId> {
        self.sources.iter().copied().chain([self.target])
    }
}

/// Limits of the bytes that repairs read and write.
#[derive(Clone, Copy, Debug)]
pub struct RepairLimits {
    /// Bytes per second of one node, read and written.
    pub node_bytes_per_s: u64,
    /// Bytes per second of all nodes together.
    pub cluster_bytes_per_s: u64,
}

/// The limits of repairs, and the times until which earlier repairs have used them up.
#[derive(Clone, Debug)]
pub struct RepairRates {
    limits: RepairLimits,
    node_free_ns: BTreeMap<StorageId, u64>,
    cluster_free_ns: u64,
}

impl RepairRates {
    /// Rates that no repair has used yet.
    #[must_use]
    pub fn new(limits: RepairLimits) -> Self {
        Self { limits, node_free_ns: BTreeMap::new(), cluster_free_ns: 0 }
    }

    /// Notes that `debt` starts at `now_ns`. Every node is charged with the bytes of the chunk, and
    /// the cluster with those of all nodes of the repair.
    pub fn charge(&mut self, debt: &RepairDebt, now_ns: u64) {
        self.node_free_ns.retain(|_, free_ns| *free_ns > now_ns);
        for node in debt.nodes() {
            let free_ns = self.node_free_ns.entry(node).or_insert(now_ns);
            *free_ns += duration_ns(debt.chunk_bytes, self.limits.node_bytes_per_s);
        }
        let bytes = debt.chunk_bytes.saturating_mul(debt.nodes().count() as u64);
        let start_ns = self.cluster_free_ns.max(now_ns);
        self.cluster_free_ns = start_ns + duration_ns(bytes, self.limits.cluster_bytes_per_s);
    }

    fn free_ns(&self, node: StorageId) -> u64 {
        self.node_free_ns.get(&node).copied().unwrap_or(0)
    }
}

fn duration_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX / 4)
}

/// The next step of the repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextRepair {
    /// There is nothing to repair.
    Idle,
    /// Index of the debt to repair now. The caller charges the rates with it.
    Start(usize),
    /// Earliest time, in nanoseconds, at which the rates permit a repair. It is [`u64::MAX`] if
    /// every repair waits for the end of one that is under way.
    WaitUntil(u64),
}

/// Chooses the next repair: of the blobs that survive the fewest further losses, the one with the
/// smallest chunk, unless the rates forbid it. Nodes in `busy` have enough orders under way, and
/// are no targets now.
#[must_use]
pub fn next_repair(
    debts: &[RepairDebt],
    rates: &RepairRates,
    busy: &BTreeSet<StorageId>,
    now_ns: u64,
) -> NextRepair {
    if debts.is_empty() {
        return NextRepair::Idle;
    }
    if rates.cluster_free_ns > now_ns {
        return NextRepair::WaitUntil(rates.cluster_free_ns);
    }
    let mut order: Vec<usize> = (0..debts.len()).collect();
    order.sort_by_key(|at| {
        let debt = &debts[*at];
        (debt.losses_left, debt.chunk_bytes, debt.blob, debt.target)
    });
    let mut reserved = BTreeSet::new();
    let mut earliest_ns = u64::MAX;
    for at in order {
        let debt = &debts[at];
        // A slow target must not keep the sources of its repairs from other targets.
        if busy.contains(&debt.target) {
            continue;
        }
        let free_ns = debt.nodes().map(|node| rates.free_ns(node)).max().unwrap_or(0);
        if free_ns <= now_ns && !debt.nodes().any(|node| reserved.contains(&node)) {
            return NextRepair::Start(at);
        }
        if free_ns > now_ns {
            earliest_ns = earliest_ns.min(free_ns);
        }
        reserved.extend(debt.nodes());
    }
    NextRepair::WaitUntil(earliest_ns)
}

/// A chunk and the nodes of its blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkAt {
    /// Blob of the chunk.
    pub blob: BlobId,
    /// Node that holds the chunk.
    pub node: StorageId,
    /// Length of the chunk in bytes.
    pub bytes: u64,
    /// Nodes of the other chunks of the blob.
    pub others: Vec<StorageId>,
}

/// The move of a chunk to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkMove {
    /// Index of the chunk in the list.
    pub chunk: usize,
    /// Node that gets the chunk.
    pub to: StorageId,
}

/// Moves that level the fullness of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovePlan {
    /// The moves, which may run in any order.
    pub moves: Vec<ChunkMove>,
    /// Indices of chunks of draining nodes that no other node can take. They do not delay other
    /// moves, and the status shows them to an operator.
    pub stuck: Vec<usize>,
}

/// Chooses the chunks that leave draining nodes and those that are over 10 % fuller than the mean.
/// A chunk goes to the emptiest node of another domain that stays below the mean. A chunk of a
/// draining node may go to any node with room for repairs.
#[must_use]
pub fn rebalance(nodes: &[NodeReport], chunks: &[ChunkAt]) -> MovePlan {
    let mut plan = MovePlan::default();
    let mut used: BTreeMap<StorageId, u64> =
        nodes.iter().map(|node| (node.id, node.used_bytes)).collect();
    let by_id: BTreeMap<StorageId, &NodeReport> =
        nodes.iter().map(|node| (node.id, node)).collect();
    let staying = || nodes.iter().filter(|node| node.is_up && !node.is_draining);
    let capacity: u128 = staying().map(|node| u128::from(node.capacity_bytes)).sum();
    let total: u128 = nodes.iter().filter(|n| n.is_up).map(|n| u128::from(n.used_bytes)).sum();
    // Fractions are compared by cross multiplication: used/capacity of a node against the mean.
    let is_over = |node: &NodeReport, bytes: u64, percent: u64| {
        let own = u128::from(bytes) * capacity * 100;
        own > total * u128::from(node.capacity_bytes) * u128::from(percent)
    };
    let mut order: Vec<usize> = (0..chunks.len()).collect();
    order.sort_by_key(|at| (Reverse(chunks[*at].bytes), chunks[*at].blob));
    let mut order_of_drains = order.clone();
    let is_readable = |at: usize, is_draining: bool| {
        let node = by_id.get(&chunks[at].node);
        node.is_some_and(|node| node.is_up && node.is_draining == is_draining)
    };
    order_of_drains.retain(|at| is_readable(*at, true));
    order.retain(|at| is_readable(*at, false));
    for at in order_of_drains.into_iter().chain(order) {
        let chunk = &chunks[at];
        let from = by_id[&chunk.node];
        if !from.is_draining && !is_over(from, used[&from.id], REBALANCE_ABOVE_PERCENT) {
            continue;
        }
        let domains = domains_of(nodes, &chunk.others);
        let fits = |node: &&NodeReport| {
            let after = used[&node.id].saturating_add(chunk.bytes);
            let report = NodeReport { used_bytes: used[&node.id], ..(*node).clone() };
            let has_room = report.has_room(WritePurpose::Repair, chunk.bytes);
            has_room && (from.is_draining || !is_over(node, after, 100))
        };
        let target = staying()
            .filter(|node| node.id != from.id && !domains.contains(node.domain.as_str()))
            .filter(fits)
            .min_by(|a, b| fullness(a, &used).total_cmp(&fullness(b, &used)).then(a.id.cmp(&b.id)));
        match target {
            Some(to) => {
                *used.entry(from.id).or_default() -= chunk.bytes.min(used[&from.id]);
                *used.entry(to.id).or_default() += chunk.bytes;
                plan.moves.push(ChunkMove { chunk: at, to: to.id });
            }
            None if from.is_draining => plan.stuck.push(at),
            None => {}
        }
    }
    plan
}

fn fullness(node: &NodeReport, used: &BTreeMap<StorageId, u64>) -> f64 {
    used[&node.id] as f64 / node.capacity_bytes.max(1) as f64
}

impl fmt::Display for PlacementDebt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Coding => f.write_str("three replicas instead of RS(4,2)"),
            Self::Copies(1) => f.write_str("one copy is missing"),
            Self::Copies(missing) => write!(f, "{missing} copies are missing"),
        }
    }
}

#[cfg(test)]
mod tests;
