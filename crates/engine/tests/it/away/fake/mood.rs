//! How a store misbehaves, and which memtables it lets stay in the process.

use super::super::Whim;

/// How a [`FakeStore`](super::FakeStore) misbehaves. Each rate is one in this many calls; 0 is
/// never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mood {
    /// Bytes that the nodes may hold.
    pub(crate) limit_bytes: u64,
    /// Number of copies of each shard that the store reports.
    pub(crate) copies: u64,
    /// Bytes of the largest image.
    pub(crate) image_bytes_max: u64,
    /// Sends that fail.
    pub(crate) refuse: u32,
    /// Whether no node has room, although the store says so.
    pub(crate) no_room: bool,
    /// Calls during which a node is lost.
    pub(crate) lose: u32,
    /// Requests of reads that get no answer. The next `PATIENCE` requests get one.
    pub(crate) silence: u32,
    /// Largest number of records of a page; 0 for no limit.
    pub(crate) page_records: usize,
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Whether other databases share the nodes.
    pub(crate) is_shared: bool,
    /// Shards of the previous owner that are not listed, whose head cannot be read, and that are
    /// lost when they are adopted.
    pub(crate) unlisted: u32,
    pub(crate) headless: u32,
    pub(crate) unadopted: u32,
    /// Whether a close leaves the shards.
    pub(crate) leaves: bool,
    /// How the executor of flushes at the nodes misbehaves; `None` if flushes do not run there.
    pub(crate) whim: Option<Whim>,
    /// Memtables that stay in the process.
    pub(crate) stays: Stays,
}

/// Rule by which a [`FakeStore`](super::FakeStore) lets memtables stay in the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stays {
    /// A fixed number of memtables stays.
    Count(usize),
    /// The newest ones that each answer at least this share of the reads.
    Share(f64),
    /// All up to the oldest one that answers at least this share of the reads.
    Through(f64),
}

impl Default for Mood {
    fn default() -> Self {
        Self {
            limit_bytes: 8 << 20,
            copies: 1,
            image_bytes_max: 1 << 20,
            refuse: 0,
            no_room: false,
            lose: 0,
            silence: 0,
            page_records: 5,
            nodes: 2,
            is_shared: false,
            unlisted: 0,
            headless: 0,
            unadopted: 0,
            leaves: false,
            whim: None,
            stays: Stays::Count(0),
        }
    }
}
