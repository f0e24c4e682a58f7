//! Counters of the work of a manager. Static data.

/// What a manager has done since it began to act. No number shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagerWork {
    /// Number of blocks that got their first copies.
    pub blocks_made: u64,
    /// Number of completed changes of blocks that had copies: another owner or other copies.
    pub blocks_changed: u64,
    /// Number of blocks that were freed: released ones, lost ones, and new ones without room.
    pub blocks_freed: u64,
    /// Number of changes that began, those that began again included.
    pub changes_begun: u64,
    /// Number of copies that completed changes have added to blocks which had others.
    pub copies_added: u64,
    /// Number of times that a memory node was declared silent.
    pub nodes_silenced: u64,
    /// Number of clients whose lease ran out.
    pub clients_expired: u64,
}
