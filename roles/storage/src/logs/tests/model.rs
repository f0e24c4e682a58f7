//! Seeded runs against the node of the model of the protocol. Writers and recoveries send random
//! requests, with a kill or a power loss in between, and a power loss at every sync.
//!
//! The model is a replica as in the tests of `archipelago_store::nodes::log`: lengths, a seal,
//! limbo and a promise. It differs in two points, as the node does: bytes that were put count only
//! after the seal, and an append may repeat bytes.

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_store::nodes::wire::StoreMessage;
use parking_lot::Mutex;

use super::Durability::{Synced, Written};
use super::{
    Machine, START, append, fence, inspect, progress, put, read, replica, seal, stream, sync, why,
};
use crate::node::StorageNode;

/// A replica as the model has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelReplica {
    exists: bool,
    written: u64,
    /// Offset through which an answer said that the bytes are durable.
    synced: u64,
    sealed: Option<u64>,
    is_in_limbo: bool,
    promised: u64,
    /// Epoch, start and end of bytes that were put.
    put: Option<(u64, u64, u64)>,
}

impl ModelReplica {
    fn new() -> Self {
        Self {
            exists: false,
            written: START,
            synced: START,
            sealed: None,
            is_in_limbo: false,
            promised: 0,
            put: None,
        }
    }

    /// Whether a request of `epoch` is served; the promise grows with it.
    fn admits(&mut self, epoch: u64) -> bool {
        let admits = epoch >= self.promised;
        self.promised = self.promised.max(epoch);
        admits
    }

    fn append(&mut self, epoch: u64, start: u64, end: u64) -> bool {
        let starts = if self.exists { start <= self.written } else { start == START };
        if !self.admits(epoch) || !starts {
            return false;
        }
        self.exists = true;
        if self.sealed.is_some() || self.is_in_limbo {
            return false;
        }
        self.written = self.written.max(end);
        true
    }

    fn put(&mut self, epoch: u64, start: u64, end: u64) -> bool {
        if !self.admits(epoch) {
            return false;
        }
        self.exists = true;
        if let Some((by, from, to)) = &mut self.put
            && *by == epoch
            && (*from..=*to).contains(&start)
        {
            *to = (*to).max(end);
            return true;
        }
        self.put = None;
        if start > self.written {
            return false;
        }
        self.put = Some((epoch, start, end));
        true
    }

    fn seal(&mut self, epoch: u64, end: u64) -> bool {
        if !self.admits(epoch) || (!self.exists && end > START) {
            return false;
        }
        self.exists = true;
        let has_put =
            self.put.is_some_and(|(by, from, to)| by == epoch && (from..=to).contains(&end));
        self.put = None;
        if !has_put && self.written < end {
            return false;
        }
        (self.written, self.synced) = (end, end);
        (self.sealed, self.is_in_limbo) = (Some(end), false);
        true
    }

    fn restart(&mut self) {
        self.put = None;
        self.synced = self.written;
    }
}

/// Checks a node after a power loss against its answers before the loss.
fn check_after_power_loss(machine: &Machine, seed: u64, before: &ModelReplica) -> u64 {
    let node = machine.without_power(seed).open();
    let StoreMessage::ReplicaIs { valid_end, synced, sealed, is_in_limbo } = inspect(&node) else {
        panic!("no replica");
    };
    if !before.exists {
        assert!(!is_in_limbo || valid_end == START);
        return valid_end;
    }
    assert_eq!(synced, valid_end);
    if before.sealed.is_some() {
        assert_eq!(sealed, before.sealed);
        assert_eq!((valid_end, is_in_limbo), (before.written, before.is_in_limbo));
    } else if sealed.is_none() {
        assert!(is_in_limbo, "an open extent may have lost bytes");
        assert!((before.synced..=before.written).contains(&valid_end), "{valid_end} {before:?}");
    }
    assert_eq!(read(&node, START..before.written), Ok(stream(START..valid_end)));
    if before.promised > 0 {
        assert!(why(&fence(&node, before.promised - 1)).is_some(), "the promise was forgotten");
    }
    valid_end
}

/// A node and the model of its replica.
struct Pair<'a> {
    node: &'a StorageNode,
    model: &'a mut ModelReplica,
}

impl Pair<'_> {
    /// Sends one random request.
    fn step(&mut self, rng: &mut Rng) {
        let promised = self.model.promised.max(1);
        let epoch = promised + u64::from(rng.u8(0..12) == 0) - u64::from(rng.u8(0..12) == 0);
        let end = self.model.written + rng.u64(0..700);
        match rng.u8(0..20) {
            0..9 => self.append(epoch, end, rng),
            9..12 => self.sync(epoch),
            12..15 => {
                let start = rng.u64(START..=end + 10);
                let answer = put(self.node, epoch, start..start + 300);
                let is_taken = self.model.put(epoch, start, start + 300);
                assert_eq!(is_taken, why(&answer).is_none(), "{answer:?} {:?}", self.model);
            }
            15..17 => {
                let put_end = self.model.put.map_or(end, |(_, _, to)| to);
                self.seal(epoch, if rng.bool() { put_end } else { rng.u64(START..=end) });
            }
            _ => {
                let answer = fence(self.node, epoch);
                if !self.model.admits(epoch) {
                    assert!(why(&answer).is_some(), "{answer:?} {:?}", self.model);
                }
            }
        }
        let ModelReplica { written, synced, sealed, is_in_limbo, .. } = *self.model;
        let known = match self.model.exists {
            true => replica(written, synced, sealed, is_in_limbo),
            false => replica(0, 0, None, false),
        };
        assert_eq!(inspect(self.node), known, "{:?}", self.model);
    }

    fn append(&mut self, epoch: u64, end: u64, rng: &mut Rng) {
        let start = if rng.u8(0..5) > 0 { self.model.written } else { rng.u64(START..=end) };
        let end = end.max(start);
        let durability = if rng.bool() { Synced } else { Written };
        let answer = append(self.node, epoch, start..end, durability);
        if !self.model.append(epoch, start, end) {
            assert!(why(&answer).is_some(), "{answer:?} {:?}", self.model);
            return;
        }
        if durability == Synced {
            self.model.synced = self.model.written;
        }
        assert_eq!(answer, progress(self.model.written, self.model.synced));
    }

    fn sync(&mut self, epoch: u64) {
        let answer = sync(self.node, epoch);
        if self.model.admits(epoch) && self.model.exists && !self.model.is_in_limbo {
            self.model.synced = self.model.written;
            assert_eq!(answer, progress(self.model.written, self.model.synced));
        } else {
            assert!(why(&answer).is_some(), "{answer:?} {:?}", self.model);
        }
    }

    fn seal(&mut self, epoch: u64, end: u64) {
        let answer = seal(self.node, epoch, end);
        if self.model.seal(epoch, end) {
            assert_eq!(answer, progress(end, end));
        } else {
            assert!(why(&answer).is_some(), "{answer:?} {:?}", self.model);
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut machine = Machine::new();
    let mut model = ModelReplica::new();
    let mut node = machine.open();
    for _ in 0..40 {
        Pair { node: &node, model: &mut model }.step(&mut rng);
        match rng.u8(0..12) {
            0 => {
                machine = machine.killed();
                node = machine.open();
                model.restart();
            }
            1 => {
                let seed = rng.u64(..);
                let valid_end = check_after_power_loss(&machine, seed, &model);
                machine = machine.without_power(seed);
                node = machine.open();
                if model.exists {
                    model.is_in_limbo |= model.sealed.is_none();
                    model.written = valid_end;
                }
                model.restart();
            }
            _ => {}
        }
        if model.exists {
            assert_eq!(read(&node, START..u64::MAX), Ok(stream(START..model.written)));
        }
    }
}

#[test]
fn node_answers_as_the_model_over_kills_and_power_losses() {
    for seed in 0..60 {
        run(seed);
    }
}

#[test]
fn power_loss_at_every_sync_keeps_what_was_answered() {
    for seed in 0..6 {
        let mut rng = Rng::with_seed(seed);
        let machine = Machine::new();
        let node = machine.open();
        let mut model = ModelReplica::new();
        let answered = Arc::new(Mutex::new(model));
        let (before, checked) = (Arc::clone(&answered), machine.clone());
        machine.disk.on_sync(Arc::new(move |disk, _| {
            let machine = Machine { disk: disk.clone(), ..checked };
            // A request that is under way may or may not have had its effect.
            let before = *before.lock();
            let node = machine.without_power(seed).open();
            if let StoreMessage::ReplicaIs { valid_end, sealed, .. } = inspect(&node) {
                let least = if before.sealed.is_some() { START } else { before.synced };
                assert!(
                    !before.exists || sealed.is_some() || valid_end >= least,
                    "{valid_end} {before:?}"
                );
            }
            if before.promised > 0 {
                assert!(why(&fence(&node, before.promised - 1)).is_some());
            }
        }));
        for _ in 0..25 {
            Pair { node: &node, model: &mut model }.step(&mut rng);
            *answered.lock() = model;
        }
        machine.disk.clear_on_sync();
    }
}
