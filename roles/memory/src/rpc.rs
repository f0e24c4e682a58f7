//! The request handler of a memory node: it answers the fabric's requests by the state machine.
//!
//! The node's threads share the handler. It queues orders to copy bytes for the thread that copies
//! ([`MemoryRpc::take_order`]).
//!
//! Invariants: 1. A request is answered on the provider's thread, under one lock, without a wait.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a request that cannot be read is refused. A closed handler answers nothing.
//! Cost: one lock per request.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::clock::Clock;
use archipelago_base::{Epoch, Result};
use archipelago_fabric::{ClientId, Handler, Node, NodeId, Region, RemoteKey, Reply, Request};
use archipelago_offload::shard_host::NodeBytes;
use archipelago_pool::wire::{Message, Why};
use parking_lot::{Condvar, Mutex};

#[cfg(feature = "sabotage")]
use crate::core::Sabotage;
use crate::core::{CopyOrder, Limits, MemoryCore};
use crate::space::FabricSpace;

/// An order to copy bytes, and their destination.
#[derive(Debug)]
pub struct Order {
    /// Source and epoch of the bytes.
    pub order: CopyOrder,
    /// The memory of the new copy, if the copy still exists.
    pub region: Weak<Region>,
}

#[derive(Debug)]
struct MemoryNodeState {
    core: MemoryCore,
    space: FabricSpace,
    orders: VecDeque<Order>,
}

/// The request handler of a memory node.
#[derive(Debug)]
pub struct MemoryRpc {
    state: Mutex<Option<MemoryNodeState>>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
}

/// The handler for the fabric's node.
struct RequestHandler(Arc<MemoryRpc>);

impl Handler for RequestHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let answer = match Message::decode(request.body) {
            Ok(message) => self.0.answer(request.client, &message),
            Err(malformed) => {
                tracing::warn!(client = %request.client, %malformed, "a request was refused");
                self.0.state.lock().as_mut().map(|state| state.core.refuse(Why::Malformed))
            }
        };
        if let Some(answer) = answer {
            reply.send(answer.encode());
        }
    }
}

impl MemoryRpc {
    /// Makes a node of the fabric that serves memory. `make` makes the node with a handler. `clock`
    /// measures the promises.
    pub fn start(
        id: NodeId,
        life: Epoch,
        limits: Limits,
        clock: &Arc<dyn Clock>,
        make: impl FnOnce(Box<dyn Handler>) -> Result<Arc<Node>>,
    ) -> Result<(Arc<Self>, Arc<Node>)> {
        let core = MemoryCore::new(id, life, limits, clock.now_ns());
        Self::start_core(core, limits.block_bytes, clock, make)
    }

    /// Does what [`MemoryRpc::start`] does, without the protocol steps that `sabotage` leaves out.
    #[cfg(feature = "sabotage")]
    pub fn start_sabotaged(
        id: NodeId,
        life: Epoch,
        limits: Limits,
        sabotage: Sabotage,
        clock: &Arc<dyn Clock>,
        make: impl FnOnce(Box<dyn Handler>) -> Result<Arc<Node>>,
    ) -> Result<(Arc<Self>, Arc<Node>)> {
        let core = MemoryCore::new(id, life, limits, clock.now_ns()).sabotaged(sabotage);
        Self::start_core(core, limits.block_bytes, clock, make)
    }

    fn start_core(
        core: MemoryCore,
        block_bytes: u64,
        clock: &Arc<dyn Clock>,
        make: impl FnOnce(Box<dyn Handler>) -> Result<Arc<Node>>,
    ) -> Result<(Arc<Self>, Arc<Node>)> {
        let rpc = Arc::new(Self {
            state: Mutex::new(None),
            changed: Condvar::new(),
            clock: Arc::clone(clock),
        });
        let node = make(Box::new(RequestHandler(Arc::clone(&rpc))))?;
        let space = FabricSpace::new(Arc::clone(&node), block_bytes);
        *rpc.state.lock() = Some(MemoryNodeState { core, space, orders: VecDeque::new() });
        Ok((rpc, node))
    }

    /// Makes all later blocks reserve their memory in `bytes`, which other users of the node share.
    pub fn share(&self, bytes: Arc<NodeBytes>) {
        if let Some(MemoryNodeState { space, .. }) = self.state.lock().as_mut() {
            space.share(bytes);
        }
    }

    /// Drops the memory. From now on, requests get no answer.
    pub fn close(&self) {
        *self.state.lock() = None;
        self.changed.notify_all();
    }

    fn answer(&self, from: ClientId, message: &Message) -> Option<Message> {
        let mut state = self.state.lock();
        let MemoryNodeState { core, space, orders } = state.as_mut()?;
        core.on_time(self.clock.now_ns());
        let (answer, order) = core.on_message(space, from, message);
        if let Some(order) = order
            && let Some(region) = space.region(order.block)
        {
            orders.push_back(Order { order, region });
            self.changed.notify_all();
        }
        Some(answer)
    }

    /// The beat to send now; `None` after the handler was closed.
    pub fn beat(&self, endpoints: Vec<String>) -> Option<Message> {
        let mut state = self.state.lock();
        let MemoryNodeState { core, space, .. } = state.as_mut()?;
        core.on_time(self.clock.now_ns());
        let mut beat = core.beat(endpoints, space.stats());
        if let Message::Beat { blocks_used, blocks_max, .. } = &mut beat {
            // The manager places no blocks where shards of databases use the memory.
            *blocks_used = (*blocks_used + space.blocks_elsewhere()).min(*blocks_max);
        }
        Some(beat)
    }

    /// Takes the manager's answer to a beat. Returns the milliseconds until the next beat is due.
    pub fn on_beat_answer(&self, answer: &Message) -> Option<u64> {
        let Message::BeatIs { term, manager, beat_ms, alone } = answer else { return None };
        self.state.lock().as_mut()?.core.on_beat_answer(*term, *manager, *alone);
        Some(*beat_ms)
    }

    /// Gives back memory that no process has mapped any more. The caller does this a few times a
    /// second.
    pub fn tick(&self) {
        if let Some(MemoryNodeState { core, space, .. }) = self.state.lock().as_mut() {
            core.on_timer(space);
        }
    }

    /// Takes the next order to copy bytes. Waits for at most `patience` if there is none.
    pub fn take_order(&self, patience: Duration) -> Option<Order> {
        let mut state = self.state.lock();
        if state.as_ref()?.orders.is_empty() && !patience.is_zero() {
            self.changed.wait_for(&mut state, patience);
        }
        state.as_mut()?.orders.pop_front()
    }

    /// Writes bytes that were read for an order. Returns whether they still belong to the copy.
    pub fn write_part(&self, order: &Order, offset: u64, bytes: &[u8]) -> bool {
        let state = self.state.lock();
        let takes = state.as_ref().is_some_and(|state| state.core.takes(&order.order));
        let region = order.region.upgrade().filter(|_| takes);
        region.is_some_and(|region| region.write(offset, bytes).is_ok())
    }

    /// Ends an order. `arrived` says whether all its bytes have arrived.
    pub fn on_copied(&self, order: &CopyOrder, arrived: bool) {
        if let Some(MemoryNodeState { core, space, .. }) = self.state.lock().as_mut() {
            core.on_copied(space, order, arrived);
        }
    }

    /// Revoked keys by which a process still has memory mapped.
    pub fn held(&self) -> Option<Vec<RemoteKey>> {
        let state = self.state.lock();
        let MemoryNodeState { core, space, .. } = state.as_ref()?;
        Some(core.held(space))
    }

    /// Reads the state machine, for statistics and checks.
    pub fn look<T>(&self, look: impl FnOnce(&MemoryCore) -> T) -> Option<T> {
        self.state.lock().as_ref().map(|state| look(&state.core))
    }

    /// The memory of a block's copy, for checks.
    pub fn region(&self, block: archipelago_pool::BlockId) -> Option<Arc<Region>> {
        self.state.lock().as_ref()?.space.region(block)?.upgrade()
    }
}
