//! The state that all clones of a client share.
//!
//! `client.rs` implements the calls and the lease, and `opening.rs` the opening of blocks. Both add
//! methods to [`ClientState`], so the type has a module of its own below them.
//!
//! Thread-safety: each field guards itself. The order of the locks is `open`, then `membership` or
//! `doubts`. No lock is held over an await.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use archipelago_base::runtime::{Gate, Runtime};
use archipelago_base::{Error, ErrorKind};
use archipelago_fabric::{ClientId, Reach, Route};
use parking_lot::{Mutex, RwLock};

use crate::address::BlockId;
use crate::config::Place;
use crate::membership::{Membership, Published};
use crate::open_block::OpenBlock;
use crate::options::PoolOptions;
use crate::wire::Message;

/// The state of one client, for all of its clones and tasks.
pub(crate) struct ClientState {
    pub(crate) options: PoolOptions,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) reach: Arc<dyn Reach>,
    pub(crate) client: ClientId,
    pub(crate) membership: Mutex<Membership>,
    pub(crate) published: Arc<Published>,
    pub(crate) manager: Route,
    /// Routes by node and life. They are never removed, because the numbers of a session must not
    /// begin again.
    pub(crate) nodes: Mutex<BTreeMap<Place, Arc<Route>>>,
    /// Open blocks. Every operation looks one up. No code depends on the order of the map.
    pub(crate) open: RwLock<HashMap<BlockId, Arc<OpenBlock>>>,
    /// Rounds of the blocks that had operations of unknown outcome.
    pub(crate) doubts: Mutex<BTreeMap<BlockId, Doubt>>,
    /// Gates of the blocks that a task is opening.
    pub(crate) gates: Mutex<BTreeMap<BlockId, Arc<Gate>>>,
    pub(crate) stopped: AtomicBool,
}

/// Rounds of a block that had operations of unknown outcome; `opening.rs` defines a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// First round in which the client may post on the block.
    pub(crate) needed: u64,
    /// Last round that ended.
    pub(crate) ended: u64,
}

/// The error for an answer that does not belong to the request.
pub(crate) fn unexpected(message: &Message) -> Error {
    let what = format!("an answer that does not belong to the request: {}", message.name());
    Error::new(ErrorKind::Unsupported, what)
}
