//! Images of a flush in the memory of memory nodes, and how an executor got them.

use archipelago_base::wire_struct;

use crate::ids::{NodeLife, OffloadDb};
use crate::job::InputPlace;
use crate::wire::shard::{ShardName, ShardPlace};

/// A memory node: its life, and the endpoints at which an executor reaches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageNode {
    /// Number and life of the node.
    pub at: NodeLife,
    /// Endpoints at which it answers.
    pub endpoints: Vec<String>,
}
wire_struct!(ImageNode { at, endpoints });

/// Place of the image of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlace {
    /// Name under which the node holds the shard. A shard that the owner took over from an earlier
    /// open keeps the name of that open, and the spec has another number for it.
    pub name: ShardName,
    /// Key, offset and length of the image. The key names the node and its life.
    pub place: ShardPlace,
    /// XXH3-64 of the header of the image, which has the checksums of all sections.
    pub head_sum: u64,
}
wire_struct!(ImagePlace { name, place, head_sum });

impl ImagePlace {
    /// Node and life that hold the image.
    #[must_use]
    pub fn at(&self) -> NodeLife {
        NodeLife { node: self.place.key.node, life: self.place.key.epoch }
    }
}

/// Images of all shards of a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobImages {
    /// Database of the shards.
    pub db: OffloadDb,
    /// Nodes that hold the images. Each node is listed once.
    pub nodes: Vec<ImageNode>,
    /// Images in the order of the shards in the spec.
    pub images: Vec<ImagePlace>,
}
wire_struct!(JobImages { db, nodes, images });

impl JobImages {
    /// Sum of the bytes of the images on each node, for the choice of an executor.
    #[must_use]
    pub fn places(&self) -> Vec<InputPlace> {
        let of = |node: &ImageNode| {
            let its = self.images.iter().filter(|image| image.at() == node.at);
            InputPlace { at: node.at, bytes: its.map(|image| image.place.bytes).sum() }
        };
        self.nodes.iter().map(of).collect()
    }

    /// Bytes of all images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.images.iter().map(|image| image.place.bytes).sum()
    }
}

/// How an executor got the images of a flush, and the times of its phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageUse {
    /// Images that it read where they lie.
    pub in_place: u32,
    /// Images that it fetched.
    pub fetched: u32,
    /// Bytes of the fetched images.
    pub fetched_bytes: u64,
    /// Nanoseconds until all images were open.
    pub open_ns: u64,
    /// Nanoseconds from the end of `open_ns` until the tables were durable.
    pub run_ns: u64,
}
wire_struct!(ImageUse { in_place, fetched, fetched_bytes, open_ns, run_ns });
