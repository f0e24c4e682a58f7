//! The fabric: access to the memory of other processes, and requests to them.
//!
//! A [`Node`] owns memory in [`Region`]s and gives keys to them. A client
//! [`connect`](Provider::connect)s to the node and [`attach`](Link::attach)es a key. It then reads,
//! writes and swaps words of that memory with one-sided operations, which it posts in a [`Batch`].
//! No code of the node takes part in them. The client also sends requests, which the node's
//! [`Handler`] answers. [`Link`] states the promises of every provider.
//!
//! | provider | one-sided operations | use |
//! | --- | --- | --- |
//! | [`Shm`] | loads, stores and atomic instructions on mapped memory, without a thread of the target | one host |
//! | [`Tcp`] | a thread of the target executes them | any network |
//! | `Ofi` (feature `ofi`) | libfabric: a network card, or a provider of libfabric that emulates one | RDMA |
//! | [`Sim`](sim::Sim) | happen at the virtual time that a model of network cards computes | tests and models |
//!
//! Completions are [`Promise`]s: futures for any executor, and [`Promise::wait`] for threads. The
//! crate has no runtime. `docs/design/fabric.md` describes the design, `docs/formats/fabric.md` the
//! wire format, and decision 0010 the reasons for the interface.
//!
//! ```
//! use std::time::Duration;
//! use archipelago_base::Epoch;
//! use archipelago_fabric::{AtomicPath, Batch, Connect, Node, NodeId, Provider, Rights, Session, Tcp};
//!
//! let node = Node::new(NodeId(1), Epoch(1), None)?;
//! let region = node.allocate(4096, AtomicPath::Processor)?;
//! let key = region.grant(Rights::ALL)?;
//!
//! let tcp = Tcp::new();
//! let listener = tcp.serve(&node, "127.0.0.1:0")?;
//! let link = tcp.connect(Connect::to(listener.address(), &Session::fresh())).wait()?;
//! let memory = link.attach(&key).wait()?;
//!
//! let mut batch = Batch::new();
//! batch.write(memory, 64, b"coral");
//! let swap = batch.compare_swap(memory, 0, 0, 64);
//! let batch = link.post(batch).wait();
//! batch.check()?;
//! assert_eq!(batch.word(swap), Some(0), "the swap took place");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alarm;
mod auth;
mod batch;
mod block_on;
mod body;
mod completion_leader;
mod driver;
mod ids;
mod link;
pub mod memory;
mod node;
#[cfg(feature = "ofi")]
mod ofi;
pub mod paced;
mod promise;
mod reach;
mod refusal;
mod shm;
pub mod sim;
mod stream;
mod tcp;
mod traffic;
pub mod wire;

pub use auth::Secret;
pub use batch::{Attached, BATCH_BYTES_MAX, BATCH_OPS_MAX, Batch, Op, Outcome};
pub use block_on::{block_on, block_on_with};
pub use body::{BULK_BYTES_MAX, Body, INLINE_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use driver::Driver;
pub use ids::{ClientId, ClusterId, NodeId, RegionId, RemoteKey, Rights};
pub use link::{
    Call, Connect, IN_FLIGHT_MAX, LINKS_MAX, Link, LinkStats, Listener, Peer, Provider, Session,
};
pub use node::{
    Answer, AtomicPath, CLIENTS_MAX, FrozenSlice, Handler, Holder, KEYS_MAX, Node, NodeStats,
    REQUESTS_MAX, RESERVED_BYTES_MAX, Region, Reply, Request,
};
#[cfg(feature = "ofi")]
pub use ofi::Ofi;
pub use promise::{Promise, Slot};
pub use reach::{Endpoints, Line, Reach, Route, RouteMessage, ask, endpoint};
pub use refusal::{Reason, Refusal};
pub use shm::Shm;
pub use tcp::Tcp;
pub use traffic::TrafficClass;
