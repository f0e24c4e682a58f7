//! Audit of the pool after the end of all faults and calls.
//!
//! Invariants that the audit checks:
//! 1. The pool has one directory, and it agrees with the coordinator's map.
//! 2. One slot names each record that is in use, and one entry of the map names each subtable.
//! 3. No other memory is in use, so no memory leaked.

use std::collections::{BTreeMap, BTreeSet};

use crate::scenarios::pool::Cluster;
use archipelago_flexkv::coordinator::directory_label;
use archipelago_flexkv::format::{BUCKET_BYTES, ENTRY_BYTES, Owner, Slot, entry_offset, packing};
use archipelago_flexkv::{ComputeNode, PartitionId};
use archipelago_pool::{Address, BlockId, Config};

use crate::scenarios::flexkv::coordinator::CoordinatorActor;
use crate::scenarios::flexkv::node::LABEL;

/// The blocks of the pool at rest.
struct Rest<'a> {
    cluster: &'a Cluster,
    blocks: BTreeMap<BlockId, Config>,
}

impl Rest<'_> {
    /// Reads bytes of a block's first copy.
    fn read(&self, address: Address, len: u64) -> Option<Vec<u8>> {
        let config = self.blocks.get(&address.block)?;
        let (_, actor) = self.cluster.memory.get(&config.copies.first()?.node)?;
        let region = actor.as_ref()?.rpc.region(address.block)?;
        let mut bytes = vec![0; len as usize];
        region.read(address.offset, &mut bytes).ok()?;
        Some(bytes)
    }
}

/// Violations. `nodes` are all compute nodes.
pub(crate) fn audit(
    cluster: &Cluster,
    coordinator: &CoordinatorActor,
    nodes: &[ComputeNode],
) -> Vec<String> {
    let blocks = cluster.ready().into_iter().map(|config| (config.block, config)).collect();
    let rest = Rest { cluster, blocks };
    let mut wrong = Vec::new();
    let label = directory_label(LABEL);
    let directories: Vec<BlockId> =
        rest.blocks.values().filter(|config| config.label == label).map(|c| c.block).collect();
    let [directory] = directories[..] else {
        return vec![format!("there are {} directories", directories.len())];
    };
    let packing = packing(cluster.limits.block_bytes).expect("blocks of this size");
    let mut named: BTreeMap<Address, u32> = BTreeMap::new();
    for entry in coordinator.map() {
        let offset = entry_offset(PartitionId(entry.partition));
        let owner = rest.read(Address { block: directory, offset }, ENTRY_BYTES as u64);
        let word = owner.and_then(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk::<8>()?)));
        let owner = word.and_then(|word| Owner::decode(word).ok());
        let expected = (entry.epoch, Some(entry.node));
        if owner.map(|owner| (owner.epoch, owner.node.map(|node| node.0))) != Some(expected) {
            wrong.push(format!("the map says {entry:?}, the directory {owner:?}"));
        }
        let table = packing.unpack(entry.shape.packed);
        *named.entry(table).or_default() += 1;
        let Some(bytes) = rest.read(table, (BUCKET_BYTES as u64) << entry.shape.log2_buckets)
        else {
            wrong.push(format!("{entry:?} lies nowhere"));
            continue;
        };
        for word in bytes.as_chunks::<8>().0 {
            let slot = Slot(u64::from_le_bytes(*word));
            let live = if slot.is_pending() { slot.to_live() } else { slot };
            if let Some(packed) = live.packed() {
                *named.entry(packing.unpack(packed)).or_default() += 1;
            }
        }
    }
    let twice = named.iter().filter(|(_, count)| **count > 1);
    wrong.extend(twice.map(|(at, count)| format!("{at} is named {count} times")));
    let mut used: BTreeSet<Address> = BTreeSet::new();
    for node in nodes {
        for (address, bytes) in node.pieces() {
            let owner = rest.blocks.get(&address.block).and_then(|config| config.owner);
            if !used.insert(address) || owner != Some(node.client()) {
                wrong.push(format!("{address} is {}'s, and {owner:?}'s", node.client()));
            }
            if !named.contains_key(&address) {
                wrong.push(format!("leaked: {bytes} bytes at {address} of {}", node.client()));
            }
        }
    }
    let free = named.keys().filter(|address| !used.contains(address));
    wrong.extend(free.map(|address| format!("{address} is free, and named by the index")));
    wrong
}
