//! The store over remote memory as a [`Store`]: what a compute node of it serves to Redis clients.
//!
//! Owned by the server. Each key by itself is linearizable, over all compute nodes: read-modify-write goes by compare-and-set, so
//! it is atomic whoever else writes. There is no order among keys and no moment that several share: what needs one is
//! refused as unsupported; MGET, MSET, DEL and pipelines take their keys one after another.
//!
//! Thread-safe. Cost: a call waits on its thread; over shared memory it mostly does not have to. Failure: an error of a write says
//! whether it may have happened.

use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_compute::flex::FlexNode;
use archipelago_flex::Value;

use crate::store::{Change, Decide, Entry, KeyRange, Op, PinnedSlice, Store, Visit};

/// See the module.
#[derive(Debug)]
pub struct FlexStore {
    node: Arc<FlexNode>,
}

fn no_order(what: &str) -> Error {
    Error::unsupported(format!(
        "{what}: a store over remote memory keeps its keys in no order and counts none (a database does: serve --engine lsm)"
    ))
}

fn expiry_of(expires_at_ms: Option<u64>) -> u64 {
    // 0 says never; the first millisecond of 1970 is as past as the second.
    expires_at_ms.map_or(0, |at_ms| at_ms.max(1))
}

fn entry_of(value: &Value) -> Entry {
    let expires_at_ms = (value.expires_ms > 0).then_some(value.expires_ms);
    Entry { value: PinnedSlice::owned(value.bytes.clone()), expires_at_ms }
}

fn entry_from(value: Value) -> Entry {
    let expires_at_ms = (value.expires_ms > 0).then_some(value.expires_ms);
    Entry { value: PinnedSlice::owned(value.bytes), expires_at_ms }
}

impl FlexStore {
    /// Serves what `node` is part of.
    #[must_use]
    pub fn new(node: Arc<FlexNode>) -> Self {
        Self { node }
    }
}

impl Store for FlexStore {
    fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        Ok(self.node.get(key)?.map(entry_from))
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<PinnedSlice>>> {
        keys.iter().map(|key| Ok(self.get(key)?.map(|entry| entry.value))).collect()
    }

    fn write(&self, ops: &[Op<'_>]) -> Result<()> {
        for op in ops {
            match *op {
                Op::Put { key, value, expires_at_ms } => {
                    self.node.set(key, value, expiry_of(expires_at_ms))?;
                }
                Op::Delete { key } => drop(self.node.delete(key)?),
                Op::DeleteRange { .. } => return Err(no_order("a range cannot be removed")),
            }
        }
        Ok(())
    }

    fn modify(&self, key: &[u8], decide: &mut Decide<'_, '_>) -> Result<()> {
        loop {
            let read = self.node.get(key)?;
            let entry = read.as_ref().map(entry_of);
            let set = |value: &[u8], expires_at_ms| {
                self.node.compare_and_set(key, read.as_ref(), value, expiry_of(expires_at_ms))
            };
            let done = match (decide(entry.as_ref()), &read) {
                (Change::Keep, _) | (Change::Expire(_) | Change::Delete, None) => true,
                (Change::Put { value, expires_at_ms }, _) => set(&value, expires_at_ms)?,
                (Change::Expire(expires_at_ms), Some(read)) => set(&read.bytes, expires_at_ms)?,
                (Change::Delete, Some(read)) => self.node.compare_and_delete(key, read)?,
            };
            // Somebody was faster, so somebody got on.
            if done {
                return Ok(());
            }
        }
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<usize> {
        let mut removed = 0;
        for key in keys {
            removed += usize::from(self.node.delete(key)?);
        }
        Ok(removed)
    }

    fn joint_writes(&self) -> Result<()> {
        Err(Error::unsupported(
            "a store over remote memory does not change several keys at one moment; single keys are atomic",
        ))
    }

    fn scan(&self, _: KeyRange<'_>, _: bool, _: &mut Visit<'_>) -> Result<()> {
        Err(no_order("keys cannot be listed"))
    }

    fn approximate_count(&self) -> Result<u64> {
        Err(no_order("keys cannot be counted"))
    }

    fn info(&self) -> String {
        let mut text = "engine:flex\n".to_owned();
        let Ok(node) = self.node.node() else { return text + "joined:0\n" };
        let Some(map) = node.map_status() else { return text + "joined:0\n" };
        let mine = map.entries.iter().filter(|entry| entry.node == map.number);
        let (partitions, proxied) =
            mine.fold((0, 0), |(all, some), entry| (all + 1, some + u64::from(entry.offloaded)));
        let facts = [
            ("joined", 1),
            ("node", u64::from(map.number)),
            ("nodes", map.members.len() as u64),
            ("map_version", map.version),
            ("partitions", map.entries.len() as u64),
            ("partitions_here", partitions),
            ("partitions_proxied_here", proxied),
        ];
        for (name, value) in facts {
            text.push_str(&format!("{name}:{value}\n"));
        }
        for figure in node.figures() {
            text.push_str(&format!("{}:{}\n", figure.name, figure.value));
        }
        text
    }

    fn would_stall(&self, _: bool) -> bool {
        self.node.may_wait()
    }
}
