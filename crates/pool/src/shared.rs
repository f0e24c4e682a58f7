//! The state that all clones of a client share, and what its parts need to say of an answer.
//!
//! `client.rs` holds what callers see and the lease, `opening.rs` how blocks are opened. Both
//! implement methods of [`Shared`], so it stands below both.
//!
//! Thread-safety: each field guards itself. The order of the locks is `open`, then `membership` or
//! `doubts`; none is held over an await.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use archipelago_base::runtime::{Gate, Runtime};
use archipelago_base::{Error, ErrorKind};
use archipelago_fabric::ClientId;
use parking_lot::{Mutex, RwLock};

use crate::address::BlockId;
use crate::config::Place;
use crate::membership::{Membership, Published};
use crate::open_block::OpenBlock;
use crate::options::PoolOptions;
use crate::route::{Reach, Route};
use crate::wire::Message;

/// State of one client, for all its clones and tasks.
pub(crate) struct Shared {
    pub(crate) options: PoolOptions,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) reach: Arc<dyn Reach>,
    pub(crate) client: ClientId,
    pub(crate) membership: Mutex<Membership>,
    pub(crate) published: Arc<Published>,
    pub(crate) manager: Route,
    /// One per node's life, for good: the numbers of its session must not begin again.
    pub(crate) nodes: Mutex<BTreeMap<Place, Arc<Route>>>,
    /// Looked up by every operation; never walked in its own order.
    pub(crate) open: RwLock<HashMap<BlockId, Arc<OpenBlock>>>,
    /// Blocks with operations of unknown outcome.
    pub(crate) doubts: Mutex<BTreeMap<BlockId, Doubt>>,
    /// Blocks that somebody is opening.
    pub(crate) gates: Mutex<BTreeMap<BlockId, Arc<Gate>>>,
    pub(crate) stopped: AtomicBool,
}

/// Rounds of a block that has had operations of unknown outcome. A round is one opening of the
/// block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The first round in which the block may be written.
    pub(crate) needed: u64,
    /// The last round that ended.
    pub(crate) ended: u64,
}

/// The error for an answer of another kind than the request has.
pub(crate) fn unexpected(message: &Message) -> Error {
    let what = format!("an answer that does not fit the question: {}", message.name());
    Error::new(ErrorKind::Unsupported, what)
}
