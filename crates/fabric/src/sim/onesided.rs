//! One-sided operations: their posting, transport, execution by the node's card, and completion.
//! The card executes the operations of a link one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::lane::Way;
use super::network::Machine;
use super::wire::{Number, What, Wire};
use crate::batch::{Batch, Op, Outcome};
use crate::ids::RegionId;
use crate::node::Access;
use crate::promise::{Promise, Slot};
use crate::refusal::{Reason, Refusal};

/// A batch in flight. The operations stay in the flight even after the caller got a refusal at its
/// deadline.
pub(super) struct Flight {
    keys: Vec<(RegionId, u64)>,
    batch: Mutex<Option<Batch>>,
    slot: Arc<Slot<Batch>>,
}

impl Flight {
    /// Completes the batch with a refusal. The node may still execute operations that are on their
    /// way.
    pub(super) fn refuse(&self, refusal: Refusal) {
        let copy = self.batch.lock().clone();
        if let Some(mut batch) = copy {
            batch.refuse_all(refusal);
            self.slot.fill(batch);
        }
    }
}

/// Number of bytes that an operation sends to the node, without headers.
fn sent_bytes(op: &Op) -> u64 {
    match *op {
        Op::Write { len, .. } => u64::from(len),
        _ => 0,
    }
}

fn outbound_ps(machine: &Machine, op: &Op) -> u64 {
    let costs = &machine.model.outbound;
    let verb_ps = match op {
        Op::Read { .. } => costs.read_ps,
        Op::Write { .. } => costs.write_ps,
        Op::CompareSwap { .. } | Op::FetchAdd { .. } => costs.atomic_ps,
    };
    machine.model.packet_ps(verb_ps, sent_bytes(op))
}

fn inbound_ps(machine: &Machine, op: &Op) -> u64 {
    let costs = &machine.model.inbound;
    let verb_ps = match op {
        Op::Read { .. } => costs.read_ps,
        Op::Write { .. } => costs.write_ps,
        Op::CompareSwap { .. } | Op::FetchAdd { .. } => costs.atomic_ps,
    };
    machine.model.packet_ps(verb_ps, sent_bytes(op))
}

impl Wire {
    /// Executes a batch on mapped memory, without the network.
    pub(super) fn execute_mapped(
        self: &Arc<Self>,
        mut batch: Batch,
        keys: Vec<(RegionId, u64)>,
    ) -> Promise<Batch> {
        if !self.serves() || self.network.draw_refused() {
            batch.refuse_all(self.down().unwrap_or(Reason::Disconnected.into()));
            return Promise::ready(batch);
        }
        let count = batch.len();
        self.count_batch(count);
        let flight = Flight { keys, batch: Mutex::new(Some(batch)), slot: Slot::new() };
        for index in 0..count {
            let outcome = self.perform(&flight, index, 0..usize::MAX);
            let mut batch = flight.batch.lock();
            match (outcome, batch.as_mut()) {
                (Ok(outcome), Some(batch)) => batch.finish(index, outcome),
                (Err(refusal), Some(batch)) => {
                    batch.refuse_from(index, refusal);
                    self.node.counters.refused.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                (_, None) => break,
            }
        }
        Promise::ready(flight.batch.into_inner().unwrap_or_default())
    }

    pub(super) fn post(
        self: &Arc<Self>,
        mut batch: Batch,
        keys: Vec<(RegionId, u64)>,
    ) -> Promise<Batch> {
        let deadline = batch.deadline_ns().map(Duration::from_nanos);
        let (now_ps, count) = (self.network.now_ps(), batch.len());
        let bytes = batch.ops().iter().map(sent_bytes).sum();
        let ready_ps = self.network.on(self.near.host, |machine| {
            let posted_ps = machine.threads.take(now_ps, machine.model.post_ps);
            let cost_ps = batch.ops().iter().map(|op| outbound_ps(machine, op)).sum();
            machine.outbound.take(posted_ps, cost_ps)
        });
        let (slot, number) = (Slot::new(), self.next_number());
        let flight = Flight { keys, batch: Mutex::new(None), slot: Arc::clone(&slot) };
        let flight = Arc::new(flight);
        if let Err(refusal) = self.expect(number, deadline, What::Batch(Arc::clone(&flight))) {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        *flight.batch.lock() = Some(batch);
        self.count_batch(count);
        self.count_packet(bytes);
        self.send(Way::There, ready_ps, move |wire| {
            if let Some(flight) = wire.queue(number, flight) {
                wire.serve(number, flight, 0);
            }
        });
        self.promise(slot)
    }

    /// Lets the node's card execute operation `index`.
    fn serve(self: &Arc<Self>, number: Number, flight: Arc<Flight>, index: usize) {
        if !self.serves() {
            return;
        }
        let op = flight.batch.lock().as_ref().and_then(|batch| batch.ops().get(index).copied());
        let Some(op) = op else { return self.executed(number, &flight) };
        let now_ps = self.network.now_ps();
        let done_ps = self.network.on(self.far.host, |machine| {
            let received_ps = machine.inbound.take(now_ps, inbound_ps(machine, &op));
            match op {
                Op::CompareSwap { .. } | Op::FetchAdd { .. } => {
                    machine.atomics.take(received_ps, machine.model.atomics_ps)
                }
                _ => received_ps,
            }
        });
        if done_ps == now_ps {
            return self.execute(number, flight, index, 0);
        }
        let wire = Arc::clone(self);
        let run = move || wire.execute(number, flight, index, 0);
        self.network.scheduler.at(done_ps.div_ceil(1000), self.far, run);
    }

    /// Executes operation `index` from byte `from` of a READ or WRITE on, or only a part of it if
    /// it is torn.
    fn execute(self: &Arc<Self>, number: Number, flight: Arc<Flight>, index: usize, from: usize) {
        if !self.serves() {
            return;
        }
        let torn = if from == 0 { self.tear(&flight, index) } else { None };
        let until = torn.map(|(until, _)| until);
        let outcome = self.perform(&flight, index, from..until.unwrap_or(usize::MAX));
        if let (Ok(_), Some((until, gap_ns))) = (&outcome, torn) {
            let (wire, at_ns) = (Arc::clone(self), self.network.scheduler.now_ns() + gap_ns);
            let rest = move || wire.execute(number, flight, index, until);
            return self.network.scheduler.at(at_ns, self.far, rest);
        }
        if outcome.is_err() && from > 0 {
            // The key was revoked between the two parts, and no outcome describes half a WRITE.
            return self.close_for(Reason::Revoked);
        }
        let refused = {
            let mut batch = flight.batch.lock();
            let Some(batch) = batch.as_mut() else { return };
            match outcome {
                Ok(outcome) => batch.finish(index, outcome),
                Err(refusal) => batch.refuse_from(index, refusal),
            }
            outcome.is_err()
        };
        if refused {
            self.node.counters.refused.fetch_add(1, Ordering::Relaxed);
            return self.executed(number, &flight);
        }
        self.serve(number, flight, index + 1);
    }

    fn close_for(&self, reason: Reason) {
        crate::node::LinkEnd::close(self, reason.into());
    }

    /// The byte at which operation `index` is torn, and the time until its second part. Only an
    /// operation that the node would execute is torn.
    fn tear(&self, flight: &Flight, index: usize) -> Option<(usize, u64)> {
        let batch = flight.batch.lock();
        let (offset, len) = match batch.as_ref()?.ops()[index] {
            Op::Read { offset, len, .. } | Op::Write { offset, len, .. } => {
                (offset, u64::from(len))
            }
            _ => return None,
        };
        // The first word of the region may start within the operation.
        let first = (8 - offset % 8).min(len);
        let (words, gap_ns) = self.network.torn(len.saturating_sub(first).div_ceil(8) + 1)?;
        let (region, tag) = flight.keys[index];
        let bytes = self.node.keys().open(region, tag).ok()?.memory.bytes() as u64;
        let inside = offset.checked_add(len).is_some_and(|end| end <= bytes);
        inside.then_some(((first + (words - 1) * 8) as usize, gap_ns))
    }

    /// Accesses the node's memory for the bytes `part` of the operation.
    fn perform(
        &self,
        flight: &Flight,
        index: usize,
        part: std::ops::Range<usize>,
    ) -> Result<Outcome, Refusal> {
        let (region, tag) = flight.keys[index];
        let mut batch = flight.batch.lock();
        let Some(batch) = batch.as_mut() else { return Err(Reason::Disconnected.into()) };
        let (op, bytes) = batch.op_mut(index);
        let end = part.end.min(bytes.len());
        let begin = part.start.min(end);
        let bytes = &mut bytes[begin..end];
        let skip = begin as u64;
        let keys = self.node.keys();
        let run = |access| self.node.execute(&keys, region, tag, self.path, access);
        let (offset, outcome) = match op {
            Op::Read { offset, .. } => {
                run(Access::Read { offset: offset.wrapping_add(skip), into: bytes })?;
                (offset, Outcome::Read)
            }
            Op::Write { offset, .. } => {
                run(Access::Write { offset: offset.wrapping_add(skip), bytes })?;
                (offset, Outcome::Visible)
            }
            Op::CompareSwap { offset, expect, new, .. } => {
                (offset, Outcome::Word(run(Access::CompareSwap { offset, expect, new })?))
            }
            Op::FetchAdd { offset, add, .. } => {
                (offset, Outcome::Word(run(Access::FetchAdd { offset, add })?))
            }
        };
        crate::memory::publish();
        let word = if let Outcome::Word(word) = outcome { word } else { skip };
        self.network.scheduler.record(offset.rotate_left(32) ^ word ^ self.node.id().0);
        Ok(outcome)
    }

    /// Sends the outcomes of a batch, and lets the card execute the link's next batch.
    fn executed(self: &Arc<Self>, number: Number, flight: &Flight) {
        self.reply(number, flight);
        if let Some((number, flight)) = self.unqueue() {
            self.serve(number, flight, 0);
        }
    }

    /// Sends the outcomes of the batch to the client.
    fn reply(self: &Arc<Self>, number: Number, flight: &Flight) {
        let bytes: u64 = {
            let batch = flight.batch.lock();
            let Some(batch) = batch.as_ref() else { return };
            let read = |(index, op): (usize, &Op)| match *op {
                Op::Read { len, .. } if batch.outcome(index) == Outcome::Read => u64::from(len),
                _ => 0,
            };
            batch.ops().iter().enumerate().map(read).sum()
        };
        let now_ps = self.network.now_ps();
        let mut ready_ps = now_ps;
        if bytes > 0 {
            ready_ps = self.network.on(self.far.host, |machine| {
                let cost_ps = machine.model.packet_ps(0, bytes);
                machine.outbound.take(now_ps, cost_ps)
            });
        }
        self.send(Way::Back, ready_ps, move |wire| wire.completed(number, bytes));
    }

    /// Handles outcomes that have reached the client's card.
    fn completed(self: &Arc<Self>, number: Number, bytes: u64) {
        let now_ps = self.network.now_ps();
        let done_ps = self.network.on(self.near.host, |machine| {
            let cost_ps = if bytes > 0 { machine.model.packet_ps(0, bytes) } else { 0 };
            let received_ps = machine.inbound.take(now_ps, cost_ps);
            machine.threads.take(received_ps, machine.model.complete_ps)
        });
        if done_ps == now_ps {
            return self.complete(number);
        }
        let wire = Arc::clone(self);
        let at_ns = done_ps.div_ceil(1000);
        self.network.scheduler.at(at_ns, self.near, move || wire.complete(number));
    }

    fn complete(&self, number: Number) {
        let Some(What::Batch(flight)) = self.landed(number) else { return };
        let batch = flight.batch.lock().take();
        if let Some(batch) = batch {
            flight.slot.fill(batch);
        }
    }
}
