//! The owner's side of memtable shards at memory nodes (O³-LSM §4.2 and §4.5,
//! docs/design/offload.md): the [`ShardStore`](archipelago_engine::remote::ShardStore) of a
//! database over the fabric.
//!
//! | part | file |
//! | --- | --- |
//! | nodes, shards, beats and releases, as a state machine | `state/` |
//! | the transfer of one image, as a state machine | `transfer/` |
//! | look-ups and pages, as state machines | `search/`, `page/` |
//! | shards of the previous owner | `takeover.rs` |
//! | the key-offset cache, and look-ups by it | `offsets/`, `cached.rs` |
//! | records of shards that still fill | `ahead.rs` |
//! | second copies | `copies.rs` |
//! | the number of memtables that stay in the process | `staying.rs` |
//! | links to a node: requests, and one-sided reads and writes | `links/`, `within.rs` |
//! | the speed of links, and that of transfers | `meter.rs`, `flow.rs` |
//! | the tasks of an owner, transfers and reads over the links | `driver.rs`, `sends.rs`, `reads.rs` |
//! | the memory nodes of a cluster | `nodes.rs` |
//! | the seam of the engine | `store.rs` |
//! | images that another process fetches | `images.rs` |
//! | counters and figures | `counters.rs` |
//!
//! Thread-safety: any thread may call the methods of [`RemoteShards`].
//! Failure: nothing here must survive. A shard that is lost is rebuilt from the log.
//! Cost: an idle owner sends each memory node one small request a second.

mod ahead;
mod bell;
mod cached;
mod copies;
mod counters;
mod driver;
mod flow;
mod images;
mod links;
mod meter;
mod nodes;
mod offsets;
mod page;
mod reads;
mod sabotage;
mod search;
mod sends;
mod state;
mod staying;
mod store;
mod takeover;
mod transfer;
mod within;

pub use counters::{OwnerFigures, takeover_facts};
pub use driver::{OwnerParts, Waits};
pub use images::ImageFetcher;
pub use nodes::{NodeList, PoolNodes};
pub use sabotage::OwnerSabotage;
pub use state::{MemoryNode, OwnerTerms, StayingMemtables};
pub use store::RemoteShards;
