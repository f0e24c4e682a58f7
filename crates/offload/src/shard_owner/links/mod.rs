//! The links of an owner to one memory node: requests, and one-sided reads and writes.
//!
//! A node has three links: one for beats and releases, one for searches and transfers, and one for
//! the bytes of images and long values. So a search does not wait for megabytes, and a beat waits
//! for no other request. The next request replaces a link that is down. A link may also die without
//! a sign. So a request or a one-sided operation that got no answer in time closes its link, unless
//! another one over the same link has succeeded meanwhile: then the node is only slow.
//!
//! Invariants:
//! 1. Every request is idempotent, so the node does not remember requests.
//! 2. All links lead to one life of the node.
//! 3. A request ends within twice its time limit, for any number of requests that wait for a link.
//!
//! Thread-safety: any number of tasks may use the links at the same time.
//! Failure: [`NoAnswer`] says that the request may have been executed.
//! Cost: a round trip per request, two more for the first request of a link, and one for each
//! region.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::runtime::Runtime;
use archipelago_base::{Error, ErrorKind};
use archipelago_fabric::{
    Attached, Batch, Call, ClientId, Link, Promise, Reach, Reason, Refusal, RemoteKey, Route,
};
use parking_lot::Mutex;

use super::flow::{Flow, slice_bytes};
use super::meter::{BurstPace, LinkMeter, LookupTimes};
use super::state::{MemoryNode, OwnerTerms};
use super::within::within;
use crate::decide::LinkFigures;
use crate::message_points::{self, MessageMoment};
use crate::wire::shard::ShardMessage;

/// Bytes that one READ of an image reads.
const READ_BYTES: u64 = 1 << 20;
/// Number of batches with parts of an image that are in flight at the same time.
const WINDOW: usize = 4;
/// Largest number of bytes whose READs are all posted immediately, and do not wait for each other.
pub(super) const PARALLEL_BYTES: u64 = READ_BYTES * WINDOW as u64;

/// Largest number of short records that one batch reads, with one doorbell (O³-LSM §4.5).
const DOORBELL: usize = 16;
/// Largest READ, in bytes, that counts as the READ of a value and not of an image.
const VALUE_BYTES: u64 = 128 << 10;
/// Largest buffer, in bytes, that a read allocates before the first bytes have arrived. A length
/// from another process may be wrong, and no image is longer than this.
const RESERVED_BYTES_MAX: u64 = 80 << 20;
/// Time for which look-ups use requests only, after a READ or a WRITE without an answer.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// A burst: writes without a pause between them.
#[derive(Default)]
struct WriteBurst {
    /// The writes that have no outcome, oldest first, with the times at which they were posted.
    in_flight: VecDeque<(u64, Promise<Batch>)>,
    /// Time at which the first write was posted.
    begin_ns: u64,
    bytes: u64,
    /// Pace of the latest write.
    pace: BurstPace,
}

/// A request or a one-sided operation whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer {
    /// Whether another life of the node has answered, so that this life is over.
    pub(super) is_other_life: bool,
    /// Whether the node has answered with bytes that cannot be decoded.
    pub(super) is_malformed: bool,
    /// Reason, as a sentence.
    pub(super) why: String,
}

impl NoAnswer {
    fn of(why: &dyn std::fmt::Display) -> Self {
        Self { is_other_life: false, is_malformed: false, why: why.to_string() }
    }

    /// The outcome of a request whose reader has no time left.
    pub(super) fn late() -> Self {
        Self::of(&"the memory node has not answered before the deadline of the read")
    }

    fn of_connect(error: &Error) -> Self {
        Self { is_other_life: error.kind() == ErrorKind::Fenced, ..Self::of(error) }
    }
}

/// A failed one-sided operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OneSidedFailure {
    /// The link went down, the deadline passed, or the node had no room for the operation.
    NoAnswer(NoAnswer),
    /// The node refused the operation.
    Refused(Refusal),
}

impl OneSidedFailure {
    /// The failure of an operation whose whole time has passed.
    pub(super) fn late() -> Self {
        Self::NoAnswer(NoAnswer::of(&"the memory node moved too few bytes in time"))
    }
}

impl From<Refusal> for OneSidedFailure {
    fn from(refusal: Refusal) -> Self {
        let reason = refusal.reason;
        if reason.kind() == ErrorKind::Busy || reason == Reason::NotAttached {
            return Self::NoAnswer(NoAnswer::of(&refusal));
        }
        Self::Refused(refusal)
    }
}

/// Regions that the present link for images has attached.
#[derive(Debug, Default)]
struct AttachedRegions {
    link: Option<Arc<dyn Link>>,
    regions: HashMap<RemoteKey, Attached>,
}

impl AttachedRegions {
    /// The regions on `link`, which becomes the present link if it is up. `None` if `link` is down
    /// and has a successor, because its regions ended with it.
    fn of(&mut self, link: &Arc<dyn Link>) -> Option<&mut HashMap<RemoteKey, Attached>> {
        if self.link.as_ref().is_none_or(|known| !Arc::ptr_eq(known, link)) {
            if link.closed().is_some() {
                return None;
            }
            *self = Self { link: Some(Arc::clone(link)), regions: HashMap::new() };
        }
        Some(&mut self.regions)
    }
}

/// The link that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// For beats, purges and releases.
    Beats,
    /// For searches and transfers.
    Asks,
}

/// A route for requests, and the time of the latest answer over it.
#[derive(Debug)]
struct RequestRoute {
    route: Route,
    heard_ns: AtomicU64,
}

impl RequestRoute {
    fn new(route: Route) -> Self {
        Self { route, heard_ns: AtomicU64::new(0) }
    }

    fn heard_ns(&self) -> u64 {
        self.heard_ns.load(Ordering::Relaxed)
    }

    fn note_heard(&self, now_ns: u64) {
        self.heard_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Closes the link of a request of this time that has failed, if the request got no answer in
    /// time, and none of the others over the route has got one since.
    fn close_if_silent(&self, link: &dyn Link, refusal: Refusal, sent_ns: u64) {
        if refusal.reason == Reason::Deadline && self.heard_ns() <= sent_ns {
            link.close();
        }
    }
}

/// The links to one life of a node.
#[derive(Debug)]
pub(super) struct NodeLinks {
    runtime: Arc<dyn Runtime>,
    endpoints: Mutex<Vec<String>>,
    beats: RequestRoute,
    asks: RequestRoute,
    images: Route,
    attached: Mutex<AttachedRegions>,
    /// Time after which an unanswered request counts as lost.
    request: Duration,
    /// Time after which a one-sided operation counts as lost.
    transfer: Duration,
    meter: LinkMeter,
    /// Whether the link for images shares the memory of the node.
    is_shared: AtomicBool,
    /// Time of the latest successful one-sided operation.
    moved_ns: AtomicU64,
    /// Time until which look-ups use requests only, because a READ or a WRITE got no answer.
    paused_until_ns: AtomicU64,
}

/// A short record that is read one-sided.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordRead {
    /// Key of the arena.
    pub(super) key: RemoteKey,
    /// Offset within the region.
    pub(super) at: u64,
    /// Bytes of the record.
    pub(super) len: u64,
}

/// An image to write: its destination, its bytes and its speed.
pub(super) struct WriteOrder<'a, F, W> {
    /// Key of the landing zone.
    pub(super) key: &'a RemoteKey,
    /// Offset of the image within the region.
    pub(super) at: u64,
    pub(super) image: &'a [u8],
    pub(super) flow: &'a Flow,
    /// Computes the speed of the transfer from the measured speed of the link, both in bytes a
    /// second. `u64::MAX` means no limit.
    pub(super) speed: F,
    /// Whether the node is still to get the image, of which this number of bytes was written. If
    /// not, the write fails.
    pub(super) is_wanted: W,
}

impl NodeLinks {
    pub(super) fn new(
        reach: &Arc<dyn Reach>,
        runtime: &Arc<dyn Runtime>,
        peer: &MemoryNode,
        terms: &OwnerTerms,
    ) -> Self {
        let at = Some((peer.node, peer.life));
        let route = || Route::new(reach, ClientId(runtime.seed()), at);
        Self {
            runtime: Arc::clone(runtime),
            endpoints: Mutex::new(peer.endpoints.clone()),
            beats: RequestRoute::new(route()),
            asks: RequestRoute::new(route()),
            images: route(),
            attached: Mutex::default(),
            request: terms.request,
            transfer: terms.patience,
            meter: LinkMeter::default(),
            is_shared: AtomicBool::new(false),
            moved_ns: AtomicU64::new(0),
            paused_until_ns: AtomicU64::new(0),
        }
    }

    /// These links, which add the times of look-ups to `times`.
    pub(super) fn adding_to(self, times: &Arc<LookupTimes>) -> Self {
        Self { meter: LinkMeter::adding_to(times), ..self }
    }

    /// Time of the latest answer of the node to any request; 0 before the first answer. One-sided
    /// operations do not count, because they may succeed while the process of the node hangs.
    pub(super) fn heard_ns(&self) -> u64 {
        self.beats.heard_ns().max(self.asks.heard_ns())
    }

    /// Figures for the choice between a READ and a request.
    pub(super) fn figures(&self) -> LinkFigures {
        let is_unanswered = self.runtime.now_ns() < self.paused_until_ns.load(Ordering::Relaxed);
        let figures = self.meter.figures(self.is_shared.load(Ordering::Relaxed));
        LinkFigures { is_unanswered, ..figures }
    }

    pub(super) fn meter(&self) -> &LinkMeter {
        &self.meter
    }

    /// Sets the endpoints at which the node answers.
    pub(super) fn set_endpoints(&self, endpoints: &[String]) {
        let mut known = self.endpoints.lock();
        if *known != endpoints {
            *known = endpoints.to_vec();
        }
    }

    async fn link(&self, route: &Route) -> Result<Arc<dyn Link>, NoAnswer> {
        let endpoints = self.endpoints.lock().clone();
        // Other tasks may wait for the link as well, and try to make it one after another.
        let linking = route.link(&endpoints, self.request);
        match within(&*self.runtime, self.request, linking).await {
            Some(linked) => linked.map_err(|error| NoAnswer::of_connect(&error)),
            None => Err(NoAnswer::of(&"the memory node cannot be reached")),
        }
    }

    /// Sends a request whose answer has at most `answer_bytes_max` bytes.
    pub(super) async fn ask(
        &self,
        way: Way,
        message: &ShardMessage,
        answer_bytes_max: usize,
    ) -> Result<ShardMessage, NoAnswer> {
        let route = match way {
            Way::Beats => &self.beats,
            Way::Asks => &self.asks,
        };
        let link = self.link(&route.route).await?;
        let body = message.encode();
        let begin_ns = self.runtime.now_ns();
        let call = Call::new(&body, self.request).idempotent().answer_bytes_max(answer_bytes_max);
        let answer = link.request(call).await.map_err(|refusal| {
            route.close_if_silent(&*link, refusal, begin_ns);
            NoAnswer::of(&refusal)
        })?;
        route.note_heard(self.runtime.now_ns());
        if matches!(message, ShardMessage::Get { .. } | ShardMessage::MultiGet { .. }) {
            let ns = self.runtime.now_ns().saturating_sub(begin_ns);
            self.meter.request(answer.len() as u64, ns);
        }
        let answer = ShardMessage::decode(&answer).map_err(|malformed| {
            link.close();
            NoAnswer { is_malformed: true, ..NoAnswer::of(&malformed) }
        })?;
        message_points::note_shards(MessageMoment::Received, &answer);
        Ok(answer)
    }

    /// Closes all links to a node that does not answer. The next request makes new ones.
    pub(super) fn hang_up(&self) {
        self.beats.route.hang_up();
        self.asks.route.hang_up();
        self.images.hang_up();
        *self.attached.lock() = AttachedRegions::default();
    }

    /// Closes only the link for beats, because the node answers other requests.
    pub(super) fn hang_up_beats(&self) {
        self.beats.route.hang_up();
    }

    /// The link for images, and the region of a key on it.
    async fn region(&self, key: &RemoteKey) -> Result<(Arc<dyn Link>, Attached), OneSidedFailure> {
        let link = self.link(&self.images).await.map_err(OneSidedFailure::NoAnswer)?;
        self.is_shared.store(link.completes_at_once(), Ordering::Relaxed);
        if let Some(region) = self.attached.lock().of(&link).and_then(|all| all.get(key).copied()) {
            return Ok((link, region));
        }
        let region = link.attach(key).await.inspect_err(|refusal| {
            if refusal.reason == Reason::Deadline {
                link.close();
            }
        })?;
        let mut attached = self.attached.lock();
        let Some(regions) = attached.of(&link) else { return Ok((Arc::clone(&link), region)) };
        // Another task may have attached the region meanwhile.
        let first = *regions.entry(*key).or_insert(region);
        if first != region {
            link.detach(region);
        }
        Ok((Arc::clone(&link), first))
    }

    /// Detaches regions that no shard uses, and regions whose key was revoked, so that the node can
    /// give their memory back.
    pub(super) fn sweep(&self, used: &[RemoteKey]) {
        let used: HashSet<&RemoteKey> = used.iter().collect();
        let mut attached = self.attached.lock();
        let Some(link) = attached.link.clone() else { return };
        attached.regions.retain(|key, region| {
            // A landing zone has a key for writing. It stays attached until the key is revoked.
            let is_used = used.contains(key) || key.rights.change();
            let stays = is_used && !link.is_revoked(*region);
            if !stays {
                link.detach(*region);
            }
            stays
        });
    }

    /// Writes an image into the range of a grant. Returns when all of it is placed.
    pub(super) async fn write(
        &self,
        order: WriteOrder<'_, impl Fn(u64) -> u64, impl Fn(u64) -> bool>,
    ) -> Result<(), OneSidedFailure> {
        let WriteOrder { key, at, image, flow, speed, is_wanted } = order;
        let (link, zone) = self.region(key).await?;
        let mut burst = WriteBurst::default();
        let mut next = 0;
        while next < image.len() {
            if !is_wanted(next as u64) {
                while !burst.in_flight.is_empty() {
                    self.complete(&*link, &mut burst).await?;
                }
                return Err(OneSidedFailure::NoAnswer(NoAnswer::of(&"the transfer was stopped")));
            }
            let limit = speed(self.meter.write_bytes_per_s());
            let len = (slice_bytes(limit) as usize).min(image.len() - next);
            // At full speed several slices are in flight. At a limited speed only the latest is.
            let (window, pace) = match limit {
                u64::MAX => (WINDOW, BurstPace::Full),
                _ => (1, BurstPace::Paced),
            };
            while burst.in_flight.len() >= window {
                self.complete(&*link, &mut burst).await?;
            }
            let wait_ns = flow.turn(self.runtime.now_ns(), len as u64, limit);
            if wait_ns > 0 {
                while !burst.in_flight.is_empty() {
                    self.complete(&*link, &mut burst).await?;
                }
                self.runtime.sleep(Duration::from_nanos(wait_ns)).await;
            }
            if burst.in_flight.is_empty() {
                (burst.begin_ns, burst.bytes) = (self.runtime.now_ns(), 0);
            }
            let mut batch = Batch::new();
            batch.set_deadline(self.transfer);
            batch.write(zone, at + next as u64, &image[next..next + len]);
            burst.in_flight.push_back((self.runtime.now_ns(), link.post(batch)));
            burst.bytes += len as u64;
            burst.pace = pace;
            next += len;
        }
        link.flush();
        while !burst.in_flight.is_empty() {
            self.complete(&*link, &mut burst).await?;
        }
        Ok(())
    }

    /// Waits for the oldest write in flight. The last write of a burst updates the measured speed
    /// of the link.
    async fn complete(
        &self,
        link: &dyn Link,
        burst: &mut WriteBurst,
    ) -> Result<(), OneSidedFailure> {
        let Some((posted_ns, first)) = burst.in_flight.pop_front() else { return Ok(()) };
        let batch = first.await;
        if self.close_if_silent(link, &batch, posted_ns) {
            self.pause_reads();
        }
        self.placed(&batch)?;
        if burst.in_flight.is_empty() {
            let ns = self.runtime.now_ns().saturating_sub(burst.begin_ns);
            self.meter.write(burst.bytes, ns, burst.pace);
        }
        Ok(())
    }

    /// Reads short records, up to [`DOORBELL`] of them in one batch. The results are in the order
    /// of `reads`. After a batch without an answer the other records are not read, because each
    /// further batch may wait as long. Their results have the same failure.
    pub(super) async fn read_records(
        &self,
        reads: &[RecordRead],
    ) -> Vec<Result<Vec<u8>, OneSidedFailure>> {
        let mut results = Vec::with_capacity(reads.len());
        let mut left = reads;
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |read: &&RecordRead| {
                bytes += read.len;
                bytes <= READ_BYTES
            };
            let count = left.iter().take(DOORBELL).take_while(fits).count().max(1);
            let (some, rest) = left.split_at(count);
            let read = match self.read_batch(some).await {
                Ok(read) => read,
                Err(failure) => some.iter().map(|_| Err(failure.clone())).collect(),
            };
            let failure = read.iter().find_map(|read| read.as_ref().err()).cloned();
            self.note_read(failure.as_ref());
            results.extend(read);
            if let Some(failure @ OneSidedFailure::NoAnswer(_)) = failure {
                results.extend(rest.iter().map(|_| Err(failure.clone())));
                return results;
            }
            left = rest;
        }
        results
    }

    /// Reads short records in one batch. If the link fails, the whole batch fails.
    async fn read_batch(
        &self,
        reads: &[RecordRead],
    ) -> Result<Vec<Result<Vec<u8>, OneSidedFailure>>, OneSidedFailure> {
        let mut batch = Batch::new();
        batch.set_deadline(self.request);
        let mut on: Option<Arc<dyn Link>> = None;
        for read in reads {
            end_within(&read.key, read.at, read.len)?;
            let (link, region) = self.region(&read.key).await?;
            if !on.as_ref().is_none_or(|first| Arc::ptr_eq(first, &link)) {
                return Err(OneSidedFailure::NoAnswer(NoAnswer::of(&"the link was made anew")));
            }
            on = Some(link);
            batch.read(region, read.at, read.len as u32);
        }
        let Some(link) = on else { return Ok(Vec::new()) };
        let begin_ns = self.runtime.now_ns();
        let batch = link.post(batch).await;
        self.close_if_silent(&*link, &batch, begin_ns);
        let ns = self.runtime.now_ns().saturating_sub(begin_ns);
        let refused = batch.refusal();
        if refused.is_none() {
            self.note_moved();
            self.meter.known_records(reads.iter().map(|read| read.len).sum(), ns);
        }
        let result = |at: usize| match refused {
            Some((first, refusal)) if at == first => Err(refusal.into()),
            Some((first, _)) if at > first => {
                Err(OneSidedFailure::NoAnswer(NoAnswer::of(&"a READ before it was refused")))
            }
            _ => Ok(batch.data(at).to_vec()),
        };
        Ok((0..reads.len()).map(result).collect())
    }

    /// Reads a range of a region.
    pub(super) async fn read(
        &self,
        key: &RemoteKey,
        at: u64,
        len: u64,
    ) -> Result<Vec<u8>, OneSidedFailure> {
        let read = self.read_parts(key, at, len, &|_| true).await;
        self.note_read(read.as_ref().err());
        read
    }

    /// Reads a range of a region, a mebibyte with each READ. `goes_on` gets the number of bytes of
    /// each completed READ, and returns whether to read the rest.
    pub(super) async fn read_parts(
        &self,
        key: &RemoteKey,
        at: u64,
        len: u64,
        goes_on: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Vec<u8>, OneSidedFailure> {
        let end = end_within(key, at, len)?;
        let (link, region) = self.region(key).await?;
        let mut bytes = Vec::with_capacity(len.min(RESERVED_BYTES_MAX) as usize);
        let mut in_flight: VecDeque<(u64, Promise<Batch>)> = VecDeque::new();
        let mut next = at;
        let begin_ns = self.runtime.now_ns();
        while next < end || !in_flight.is_empty() {
            if next < end && in_flight.len() < WINDOW {
                let part = READ_BYTES.min(end - next);
                let mut batch = Batch::new();
                batch.set_deadline(self.transfer);
                batch.read(region, next, part as u32);
                in_flight.push_back((self.runtime.now_ns(), link.post(batch)));
                next += part;
            } else if let Some((posted_ns, first)) = in_flight.pop_front() {
                let batch = first.await;
                self.close_if_silent(&*link, &batch, posted_ns);
                self.placed(&batch)?;
                bytes.extend_from_slice(batch.data(0));
                if !goes_on(batch.data(0).len() as u64) {
                    return Err(OneSidedFailure::NoAnswer(NoAnswer::of(&"the read was stopped")));
                }
            }
        }
        if len <= VALUE_BYTES {
            self.meter.read(len, self.runtime.now_ns().saturating_sub(begin_ns));
        }
        Ok(bytes)
    }

    /// The outcome of a batch of one operation.
    fn placed(&self, batch: &Batch) -> Result<(), OneSidedFailure> {
        match batch.refusal() {
            Some((_, refusal)) => Err(refusal.into()),
            None => {
                self.note_moved();
                Ok(())
            }
        }
    }

    /// Notes that a one-sided operation has succeeded now.
    fn note_moved(&self) {
        self.moved_ns.fetch_max(self.runtime.now_ns(), Ordering::Relaxed);
    }

    /// Closes the link of a READ or a WRITE that got no answer in time, if no other operation has
    /// succeeded since `posted_ns`: it may have died silently. The next operation makes it anew,
    /// and the regions end with it. A link on which others move bytes is only slow. Returns whether
    /// it has closed the link.
    fn close_if_silent(&self, link: &dyn Link, batch: &Batch, posted_ns: u64) -> bool {
        let is_late = |refusal: Refusal| refusal.reason == Reason::Deadline;
        let is_silent = self.moved_ns.load(Ordering::Relaxed) <= posted_ns;
        let closes = is_silent && batch.refusal().is_some_and(|(_, refusal)| is_late(refusal));
        if closes {
            link.close();
        }
        closes
    }

    /// Notes the outcome of a READ of a record. After a READ without an answer, look-ups use
    /// requests only for [`READ_PAUSE`].
    fn note_read(&self, failure: Option<&OneSidedFailure>) {
        if matches!(failure, Some(OneSidedFailure::NoAnswer(_))) {
            self.pause_reads();
        }
    }

    /// Makes look-ups ask the node for [`READ_PAUSE`].
    fn pause_reads(&self) {
        let until_ns = self.runtime.now_ns() + READ_PAUSE.as_nanos() as u64;
        self.paused_until_ns.fetch_max(until_ns, Ordering::Relaxed);
    }
}

/// End of a range of a region, if the range lies within the region. Ranges from other processes may
/// be wrong, so callers check them before they allocate memory.
fn end_within(key: &RemoteKey, at: u64, len: u64) -> Result<u64, OneSidedFailure> {
    let end = at.checked_add(len).filter(|end| *end <= key.len);
    end.ok_or_else(|| OneSidedFailure::Refused(Refusal::new(Reason::OutOfRange)))
}

#[cfg(test)]
mod tests;
