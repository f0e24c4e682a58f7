//! Figures of one connection since they were last added to those of the server.
//!
//! The session owns them. It adds them to the figures of the server after each piece of input, and
//! before a command shows those figures.
//!
//! Invariant: every figure is either here or in the figures of the server. Commands of a
//! transaction count in a session of their own, and EXEC takes over the figures of that session.
//!
//! Thread-safety: none; one thread at a time uses the session.
//! Cost: a figure is a plain addition. The shared counters are written once for a piece of input.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::clients::Client;
use crate::server_state::{ServerState, Stat};

/// Figures that the server does not have yet.
#[derive(Default)]
pub(super) struct Tally {
    commands: Cell<u64>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    errors: Cell<u64>,
}

fn bump(cell: &Cell<u64>, by: u64) {
    cell.set(cell.get() + by);
}

impl Tally {
    /// Counts commands, whatever their reply is.
    #[inline]
    pub(super) fn add_commands(&self, count: u64) {
        bump(&self.commands, count);
    }

    /// Takes back one command, which has to run again and counts then.
    pub(super) fn take_back_command(&self) {
        self.commands.set(self.commands.get() - 1);
    }

    /// Counts a read of one key.
    #[inline]
    pub(super) fn add_read(&self, is_hit: bool) {
        bump(if is_hit { &self.hits } else { &self.misses }, 1);
    }

    /// Counts reads of several keys.
    #[inline]
    pub(super) fn add_reads(&self, hits: u64, misses: u64) {
        bump(&self.hits, hits);
        bump(&self.misses, misses);
    }

    /// Counts replies that are errors.
    pub(super) fn add_errors(&self, count: u64) {
        bump(&self.errors, count);
    }

    /// Takes over all figures of the commands of a transaction.
    pub(super) fn add_all_of(&self, inside: &Self) {
        bump(&self.commands, inside.commands.take());
        bump(&self.hits, inside.hits.take());
        bump(&self.misses, inside.misses.take());
        bump(&self.errors, inside.errors.take());
    }

    /// Adds the figures to those of the server and of its client.
    pub(super) fn settle(&self, shared: &ServerState, client: &Client) {
        let commands = self.commands.take();
        if commands == 0 {
            return;
        }
        shared.add(Stat::Commands, commands);
        shared.add(Stat::Hits, self.hits.take());
        shared.add(Stat::Misses, self.misses.take());
        shared.add(Stat::ErrorReplies, self.errors.take());
        // No other task writes this counter, so it needs no atomic addition.
        let commands_before = client.commands.load(Ordering::Relaxed);
        client.commands.store(commands_before + commands, Ordering::Relaxed);
        client.active_ms.store(shared.now_ms(), Ordering::Relaxed);
    }
}
