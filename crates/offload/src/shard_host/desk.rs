//! The driver of a shard host: a queue of requests, and worker threads that execute them.
//!
//! A memory node owns one [`ShardHost`] and passes the requests of this protocol to it. The threads
//! of the fabric's providers only queue the requests, so that a search or a copy delays no other
//! request of the node. Notices of owners, such as beats and releases, go first. They take little
//! time, and an owner whose beats get no answer declares its shards lost. Searches come next.
//! Copies and grants occupy at most half of the threads, because a copy takes long and a search
//! does not. If searches come without a pause, a copy or a grant still gets its turn, because a
//! shard that cannot leave makes writers wait.
//!
//! Invariants:
//! 1. The queues have at most [`QUEUE_MAX`] requests and [`QUEUE_BYTES_MAX`] bytes. A request that
//!    finds them full is answered with `Busy` immediately.
//! 2. No thread waits, copies, searches or allocates under the lock of the core.
//! 3. Threads start with the first request, so a node without offloaded memtables has none.
//! 4. While no copy and no grant is executed, at most [`READS_AHEAD_MAX`] searches go before the
//!    oldest one that waits.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a request after [`ShardHost::close`] gets no answer. If a thread cannot start, the host
//! logs it and answers the request with `Busy`.
//! Cost: a copy of the request, two locks, and a wake-up if the worker sleeps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use archipelago_base::clock::Clock;
use archipelago_base::spawn::{Joiner, Spawn};
use archipelago_engine::memtable::SealedImage;
use archipelago_fabric::{AtomicPath, Node, Reply, Request};
use parking_lot::{Condvar, Mutex};

use super::copy::{CopyRegions, copy_image};
use super::core::{CopyOrder, HostCore, NextStep};
use super::limits::{HostFigures, ShardLimits};
use super::memory::{FabricMemory, NodeBytes};
use super::reads;
use super::regions::AllocateOrder;
use super::sabotage::HostSabotage;
use crate::ids::{NodeLife, OffloadDb};
use crate::message_points::{self, MessageMoment};
use crate::wire::shard::{
    ShardMessage, ShardName, ShardPlace, ShardRefusal, ShardWhy, is_shard_notice, is_shard_read,
};

/// Requests in the queues at most.
const QUEUE_MAX: usize = 1024;
/// Bytes of the requests in the queues at most.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Largest number of searches that go before a copy or a grant that waits, if none is executed. A
/// search takes from some microseconds to about a millisecond, so the wait is bounded by tens of
/// milliseconds.
const READS_AHEAD_MAX: usize = 64;
/// Number of times that an idle worker polls the queue before it sleeps: about ten microseconds.
const SPINS: usize = 300;
/// Largest number of regions that one request makes before it is answered with `Busy`.
const REGIONS_MAX: usize = 4;

/// The threads of a host.
#[derive(Clone, Debug)]
pub enum HostThreads {
    /// The host has this number of threads, at least two.
    Own(Arc<dyn Spawn>, usize),
    /// The caller executes requests with [`ShardHost::work`].
    Caller,
}

impl HostThreads {
    fn count(&self) -> usize {
        match self {
            Self::Own(_, count) => (*count).max(2),
            Self::Caller => 2,
        }
    }
}

/// A request in a queue.
struct Asked {
    body: Vec<u8>,
    reply: Reply,
    answer_bytes_max: usize,
    /// Time, in nanoseconds, after which the caller does not wait for the answer any more.
    due_ns: u64,
}

#[derive(Default)]
struct Queue {
    notices: VecDeque<Asked>,
    reads: VecDeque<Asked>,
    changes: VecDeque<Asked>,
    bytes: usize,
    /// Number of changes that are being executed.
    changing: usize,
    /// Number of reads that went before a change that waits, since the latest change was taken.
    reads_ahead: usize,
    threads: Vec<Joiner>,
    has_started: bool,
    is_closed: bool,
}

/// The work that a thread takes from the queues.
enum Work {
    /// A notice or a search.
    Short(Asked),
    /// A grant or a copy.
    Change(Asked),
}

impl Queue {
    fn len(&self) -> usize {
        self.notices.len() + self.reads.len() + self.changes.len()
    }

    /// Takes the next request for a thread of a host that has `threads` threads.
    fn take(&mut self, threads: usize) -> Option<Work> {
        let is_overdue = self.changing == 0 && self.reads_ahead >= READS_AHEAD_MAX;
        let short = match self.notices.pop_front() {
            None if !is_overdue => self.take_read(),
            notice => notice,
        };
        let work = match short {
            Some(short) => Work::Short(short),
            None if self.may_change(threads) => {
                let change = self.changes.pop_front()?;
                self.changing += 1;
                self.reads_ahead = 0;
                Work::Change(change)
            }
            None => return None,
        };
        let (Work::Short(asked) | Work::Change(asked)) = &work;
        self.bytes -= asked.body.len();
        Some(work)
    }

    /// Whether one of `threads` threads may execute a further change.
    fn may_change(&self, threads: usize) -> bool {
        self.changing < (threads / 2).max(1)
    }

    fn take_read(&mut self) -> Option<Asked> {
        let read = self.reads.pop_front()?;
        if !self.changes.is_empty() {
            self.reads_ahead += 1;
        }
        Some(read)
    }
}

struct HostState {
    core: HostCore,
    memory: FabricMemory,
}

/// A shard host, which a memory node drives.
pub struct ShardHost {
    limits: ShardLimits,
    bytes: Arc<NodeBytes>,
    clock: Arc<dyn Clock>,
    threads: HostThreads,
    sabotage: HostSabotage,
    state: Mutex<Option<HostState>>,
    queue: Mutex<Queue>,
    /// Requests in the queues, so that idle threads see them without the lock.
    queued: AtomicUsize,
    changed: Condvar,
}

impl std::fmt::Debug for ShardHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShardHost({:?})", self.limits)
    }
}

impl ShardHost {
    /// A host that reserves its memory in `bytes`. It answers requests after [`ShardHost::open`].
    #[must_use]
    pub fn new(
        limits: ShardLimits,
        bytes: Arc<NodeBytes>,
        clock: Arc<dyn Clock>,
        threads: HostThreads,
    ) -> Arc<Self> {
        Self::sabotaged(limits, bytes, clock, threads, HostSabotage::default())
    }

    /// The same host without the steps that `sabotage` leaves out.
    #[must_use]
    pub fn sabotaged(
        limits: ShardLimits,
        bytes: Arc<NodeBytes>,
        clock: Arc<dyn Clock>,
        threads: HostThreads,
        sabotage: HostSabotage,
    ) -> Arc<Self> {
        Arc::new(Self {
            limits,
            bytes,
            clock,
            threads,
            sabotage,
            state: Mutex::new(None),
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            changed: Condvar::new(),
        })
    }

    /// Begins a life of the host, which is the life of `node`. The host uses the memory of `node`.
    pub fn open(&self, node: &Arc<Node>) {
        let core = HostCore::new(node.epoch(), self.limits, self.sabotage);
        let memory = FabricMemory::new(Arc::clone(node), Arc::clone(&self.bytes));
        *self.state.lock() = Some(HostState { core, memory });
    }

    /// Drops all shards and ends the threads. From now on, requests get no answer.
    pub fn close(&self) {
        let left = {
            let mut queue = self.queue.lock();
            let closed = Queue { is_closed: true, changing: queue.changing, ..Queue::default() };
            self.queued.store(0, Ordering::Release);
            std::mem::replace(&mut *queue, closed)
        };
        self.changed.notify_all();
        // When a reply is dropped, its caller learns that there is no answer.
        let Queue { notices, reads, changes, threads, .. } = left;
        drop((notices, reads, changes));
        for thread in threads {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "a thread of the shard host panicked");
            }
        }
        let state = self.state.lock().take();
        if let Some(HostState { core, memory }) = state {
            let bytes = core.figures(&memory).region_bytes;
            drop((core, memory));
            self.bytes.give_back(bytes);
        }
    }

    /// Takes a request of this protocol. The answer may come later, from another thread.
    pub fn handle(self: &Arc<Self>, request: &Request<'_>, reply: Reply) {
        let due_ns = self.clock.now_ns().saturating_add(request.deadline.as_nanos() as u64);
        let (body, answer_bytes_max) = (request.body.to_vec(), request.answer_bytes_max);
        let (is_notice, is_read) = (is_shard_notice(&body), is_shard_read(&body));
        let asked = Asked { body, reply, answer_bytes_max, due_ns };
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return;
        }
        let bytes = queue.bytes + asked.body.len();
        let has_room = queue.len() < QUEUE_MAX && bytes <= QUEUE_BYTES_MAX;
        if !has_room || !self.start(&mut queue) {
            drop(queue);
            return self.refuse(asked.reply, ShardWhy::Busy);
        }
        queue.bytes = bytes;
        if is_notice {
            queue.notices.push_back(asked);
        } else if is_read {
            queue.reads.push_back(asked);
        } else {
            queue.changes.push_back(asked);
        }
        self.queued.store(queue.len(), Ordering::Release);
        drop(queue);
        self.changed.notify_one();
    }

    /// Starts the threads with the first request. Returns whether the request will be executed.
    fn start(self: &Arc<Self>, queue: &mut Queue) -> bool {
        let HostThreads::Own(spawn, _) = &self.threads else { return true };
        while !queue.has_started {
            let host = Arc::clone(self);
            match spawn.spawn("memory-shards", Box::new(move || host.work_until_closed())) {
                Ok(thread) => queue.threads.push(thread),
                Err(error) => {
                    tracing::error!(%error, "the shard host cannot start a thread");
                    // With two threads, changes and searches both go on.
                    return queue.threads.len() >= 2;
                }
            }
            queue.has_started = queue.threads.len() == self.threads.count();
        }
        true
    }

    fn work_until_closed(&self) {
        loop {
            for _ in 0..SPINS {
                if self.queued.load(Ordering::Acquire) > 0 {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut queue = self.queue.lock();
            let work = loop {
                if queue.is_closed {
                    return;
                }
                match queue.take(self.threads.count()) {
                    Some(work) => break work,
                    None => self.changed.wait(&mut queue),
                }
            };
            self.queued.store(queue.len(), Ordering::Release);
            drop(queue);
            self.execute(work);
        }
    }

    /// Executes one queued request, for hosts without threads. Returns whether there was a request.
    pub fn work(&self) -> bool {
        let mut queue = self.queue.lock();
        let work = queue.take(self.threads.count());
        self.queued.store(queue.len(), Ordering::Release);
        drop(queue);
        work.map(|work| self.execute(work)).is_some()
    }

    fn execute(&self, work: Work) {
        match work {
            Work::Short(asked) => self.answer_in_time(asked),
            Work::Change(asked) => {
                self.answer_in_time(asked);
                self.queue.lock().changing -= 1;
                self.changed.notify_one();
            }
        }
    }

    /// Executes a request, unless its deadline has passed.
    fn answer_in_time(&self, asked: Asked) {
        if self.clock.now_ns() <= asked.due_ns {
            return self.answer(asked);
        }
        if let Some(state) = self.state.lock().as_mut() {
            state.core.on_expired();
        }
        self.refuse(asked.reply, ShardWhy::Busy);
    }

    fn refuse(&self, reply: Reply, why: ShardWhy) {
        let refusal = ShardRefusal::from(why);
        let answer = self.state.lock().as_mut().map(|state| state.core.refuse(refusal));
        if let Some(answer) = answer {
            reply.send(answer.encode());
        }
    }

    fn answer(&self, asked: Asked) {
        let Asked { body, reply, answer_bytes_max, .. } = asked;
        let message = match ShardMessage::decode(&body) {
            Ok(message) => message,
            Err(malformed) => {
                tracing::warn!(%malformed, "a request of the shard host was refused");
                return self.refuse(reply, ShardWhy::Malformed);
            }
        };
        message_points::note_shards(MessageMoment::Received, &message);
        for _ in 0..REGIONS_MAX {
            match self.next(&message, answer_bytes_max) {
                Some(Step::Answer(answer)) => {
                    message_points::note_shards(MessageMoment::Handled, &message);
                    return reply.send(answer.encode());
                }
                Some(Step::Again) => {}
                // The host was closed.
                None => return,
            }
        }
        self.refuse(reply, ShardWhy::Busy);
    }

    /// Executes one step of a message. `None` if the host was closed.
    fn next(&self, message: &ShardMessage, answer_bytes_max: usize) -> Option<Step> {
        let mut state = self.state.lock();
        let HostState { core, memory } = state.as_mut()?;
        core.on_time(self.clock.now_ns());
        match core.on_message(memory, message) {
            NextStep::Answer(answer) => Some(Step::Answer(answer)),
            NextStep::Allocate(order) => {
                let node = Arc::clone(memory.node());
                drop(state);
                self.allocate(&node, &order)
            }
            NextStep::Copy(order) => {
                let landing = memory.region(order.landing.region());
                let arena = memory.region(order.place.region());
                drop(state);
                // A region stays mapped while one of its leases lives.
                let regions = CopyRegions { landing: landing?, arena: arena? };
                self.copy(*order, regions)
            }
            NextStep::Read(order) => {
                drop(state);
                let answer = reads::answer(&order, answer_bytes_max, self.sabotage);
                self.state.lock().as_mut()?.core.on_read(&answer);
                Some(Step::Answer(answer))
            }
        }
    }

    fn allocate(&self, node: &Node, order: &AllocateOrder) -> Option<Step> {
        let bytes = usize::try_from(order.bytes).unwrap_or(usize::MAX);
        let made = node.allocate(bytes, AtomicPath::Processor);
        let mut state = self.state.lock();
        let HostState { core, memory } = state.as_mut()?;
        let made = made.map(|region| memory.insert(order.region, region));
        Some(match core.on_allocated(memory, order, made) {
            Some(answer) => Step::Answer(answer),
            None => Step::Again,
        })
    }

    fn copy(&self, order: CopyOrder, regions: CopyRegions) -> Option<Step> {
        let end = copy_image(order, &regions, self.sabotage);
        // After this the host's memory has the last references to the regions. So their bytes stay
        // reserved until they are unmapped.
        drop(regions);
        let mut state = self.state.lock();
        let HostState { core, memory } = state.as_mut()?;
        core.on_time(self.clock.now_ns());
        Some(Step::Answer(core.on_copied(memory, end)))
    }

    /// Drops databases whose owners were silent for too long, ends unused grants, and gives memory
    /// back. The memory node calls this a few times a second.
    pub fn tick(&self) {
        if let Some(HostState { core, memory }) = self.state.lock().as_mut() {
            core.on_time(self.clock.now_ns());
            core.on_timer(memory);
        }
    }

    /// The node and its life whose memory the host uses; `None` while it is closed.
    #[must_use]
    pub fn life(&self) -> Option<NodeLife> {
        let state = self.state.lock();
        let node = state.as_ref()?.memory.node();
        Some(NodeLife { node: node.id(), life: node.epoch() })
    }

    /// The image of a registered shard, for an executor in this process; `None` if the host does
    /// not hold the shard at that place. The place contains a key that only the owner got, so it
    /// also proves the right to read. The bytes do not change while the caller keeps the image,
    /// also after a release.
    #[must_use]
    pub fn image(
        &self,
        db: OffloadDb,
        name: ShardName,
        place: &ShardPlace,
    ) -> Option<Arc<SealedImage>> {
        self.state.lock().as_ref()?.core.image(db, name, place)
    }

    /// The figures of the host; `None` while it is closed.
    #[must_use]
    pub fn figures(&self) -> Option<HostFigures> {
        self.state.lock().as_ref().map(|state| state.core.figures(&state.memory))
    }
}

/// Result of one step of a request.
enum Step {
    Answer(ShardMessage),
    /// A region was made, so the message is executed again.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_leave_half_of_the_threads_to_searches() {
        for (threads, changes_max) in [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3), (8, 4)] {
            let may_change = |changing| {
                let queue = Queue { changing, ..Queue::default() };
                queue.may_change(threads)
            };
            let allowed = (0..=threads).take_while(|changing| may_change(*changing)).count();
            assert_eq!(allowed, changes_max, "of {threads} threads");
        }
    }
}
