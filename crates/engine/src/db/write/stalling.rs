//! Back-pressure: what the pure decision (`crate::stall`) says, carried out.
//!
//! After every change of the picture (seal, install) the decision is made again for the family
//! and stored in its `throttle`; a write of a healthy family pays one relaxed load for it. While
//! memtables wait for their flush the family is *watched*: every 64th of a memtable the decision
//! is made again, in between a write pays one relaxed exchange. So it is while writers are
//! delayed: one write pays for a lot of bytes, and those behind it take from that
//! ([`crate::db::state::delay_credit`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::{CfId, Error, Result};

use crate::db::inner::DbInner;
use crate::db::state::delay_credit::lot_of;
use crate::db::state::family::Family;
use crate::db::write::commit::Share;
use crate::disk_space::{SpaceState, SpaceUse};
use crate::event::Event;
use crate::options::WriteOptions;
use crate::stall::{StallCause, StallDecision, StallInput, stall};
use crate::stats::{Ticker, Timer};

/// Longest single wait before the picture is looked at again.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Longest delay of one write. Back-pressure is many small waits, never one long.
const DELAY_MAX: Duration = Duration::from_millis(20);

const FREE: u8 = 0;
const WATCHED: u8 = 1;
const DELAYED: u8 = 2;
const STOPPED: u8 = 3;
/// A watched family is looked at again when this part of a memtable was written.
const WATCH_SHARE: u64 = 64;

/// Whether a throttle makes writers wait.
pub(crate) fn is_slowed(throttle: u8) -> bool {
    throttle >= DELAYED
}

impl DbInner {
    fn stall_decision(&self, family: &Family) -> StallDecision {
        let current = family.current.load();
        self.ingest.set_total(self.stats.get(Ticker::UserBytesWritten));
        let shards = current.immutables.iter().flat_map(|immutable| immutable.shards.iter());
        let buffer = self.memtable_bytes_max(&family.options);
        let spare = family.options.write_buffers_max.saturating_sub(1 + current.immutables.len());
        let since_ns = family.backlog_since_ns.load(Ordering::Relaxed);
        let limit = match self.options.rate_limit_bytes_per_s {
            0 => u64::MAX,
            limit => limit,
        };
        stall(&StallInput {
            flush_backlog_bytes: shards.flatten().map(|shard| shard.data_bytes()).sum(),
            memtable_space_bytes: buffer
                .saturating_mul(spare as u64)
                .saturating_add(buffer.saturating_sub(current.active.charged_bytes())),
            flush_bytes_per_s: self.flush_speed.load(Ordering::Relaxed).min(limit),
            flush_elapsed: Duration::from_nanos(self.clock.now_ns().saturating_sub(since_ns)),
            budget_used: self.budget.total_bytes(),
            budget_limit: self.budget.limit_bytes(),
            peak_bytes_per_s: self.ingest.rate(),
            drain_bytes_per_s: self.drain.rate(),
            ..StallInput::of(&current.version)
        })
    }

    /// Whether writers of the family are slowed down because compactions are behind.
    pub(crate) fn is_compaction_urgent(&self, family: &Family) -> bool {
        let behind = |cause| matches!(cause, StallCause::L0Files | StallCause::PendingBytes);
        match self.stall_decision(family) {
            StallDecision::None => false,
            StallDecision::Delay { cause, .. } | StallDecision::Stop { cause } => behind(cause),
        }
    }

    /// Makes the decision again for one family.
    pub(crate) fn recompute_stall(&self, family: &Family) {
        let decision = self.stall_decision(family);
        let (throttle, rate) = match decision {
            StallDecision::None => (FREE, u64::MAX),
            // Faster than writers ever were: nothing to do yet.
            StallDecision::Delay { cause: StallCause::Memtables, bytes_per_s }
                if bytes_per_s / 2 > self.ingest.rate() && self.ingest.rate() > 0 =>
            {
                let credit = self.memtable_bytes_max(&family.options) / WATCH_SHARE;
                family.credit.set(credit);
                (WATCHED, u64::MAX)
            }
            StallDecision::Delay { bytes_per_s, .. } => (DELAYED, bytes_per_s),
            StallDecision::Stop { .. } => (STOPPED, 0),
        };
        if throttle != FREE {
            // Writers wait for compactions: now these let no reads go first.
            self.foreground.mark_urgent();
        }
        family.delayed_rate.store(rate, Ordering::Relaxed);
        let before = family.throttle.swap(throttle, Ordering::Relaxed);
        if before != throttle && is_slowed(before.max(throttle)) {
            let state = format!("{}: {decision:?}", family.name);
            tracing::debug!(state, "stall state changed");
            self.tell(&Event::StallChanged { state });
        }
        if before != throttle && throttle >= DELAYED {
            family.credit.set(0);
            if matches!(decision, StallDecision::Delay { cause: StallCause::Budget, .. }) {
                // Idle workers look for memory to free now, not at their next turn.
                self.wake();
            }
        }
        if before > throttle {
            self.progress.notify_all();
        }
    }

    /// Slows or holds a write as its families' throttles say.
    #[inline]
    pub(crate) fn stall(&self, shares: &[Share], options: &WriteOptions) -> Result<()> {
        if options.space_use == SpaceUse::Frees && self.disk.state() != SpaceState::Roomy {
            // The background work that it would wait for may need the room that it frees.
            return Ok(());
        }
        let families = self.families.load();
        for share in shares {
            let Some(Some(family)) = families.get(share.cf.0 as usize) else { continue };
            match family.throttle.load(Ordering::Relaxed) {
                FREE => {}
                WATCHED | DELAYED if family.credit.take(share.bytes) => {}
                WATCHED => self.recompute_stall(family),
                _ => self.stall_on(family, share.bytes, options)?,
            }
        }
        Ok(())
    }

    #[cold]
    fn stall_on(&self, family: &Arc<Family>, bytes: u64, options: &WriteOptions) -> Result<()> {
        if options.no_slowdown {
            let stopped = family.throttle.load(Ordering::Relaxed) == STOPPED;
            if stopped || self.delays.is_owed() {
                return Err(Error::busy(format!(
                    "writes of column family \"{}\" are slowed down, because flushes or \
                     compactions are behind",
                    family.name
                )));
            }
        }
        let started = self.clock.now_ns();
        let cause = self.stall_cause(family);
        let result = self.hold_writer(family, bytes);
        let waited = self.clock.now_ns() - started;
        self.stats.record(Timer::Stall, waited);
        self.stats.add(ticker_of(cause), waited);
        result
    }

    fn hold_writer(&self, family: &Arc<Family>, bytes: u64) -> Result<()> {
        loop {
            match family.throttle.load(Ordering::Relaxed) {
                FREE | WATCHED => return Ok(()),
                DELAYED => {
                    self.recompute_stall(family);
                    let rate = family.delayed_rate.load(Ordering::Relaxed).max(1);
                    let most = self.memtable_bytes_max(&family.options) / WATCH_SHARE;
                    let lot = lot_of(bytes, rate, most);
                    let wait = self.delays.admit(lot, rate).min(DELAY_MAX);
                    family.credit.add(lot - bytes);
                    if !wait.is_zero() {
                        self.ingest.restart_window();
                        self.clock.sleep(wait);
                    }
                    return Ok(());
                }
                _ => self.wait_for_progress(&family.name)?,
            }
            self.recompute_stall(family);
        }
    }

    /// Waits until a full memtable may be sealed.
    #[cold]
    pub(crate) fn wait_for_memtable(&self, cf: CfId, options: &WriteOptions) -> Result<()> {
        let Some(family) = self.family(cf) else { return Ok(()) };
        if options.no_slowdown {
            return Err(Error::busy(format!(
                "all memtables of column family \"{}\" are full and wait for their flush",
                family.name
            )));
        }
        let started = self.clock.now_ns();
        let mut result = Ok(());
        while result.is_ok() && !self.may_seal(&family) {
            result = self.wait_for_progress(&family.name);
        }
        let waited = self.clock.now_ns() - started;
        self.stats.record(Timer::Stall, waited);
        self.stats.add(Ticker::StallMemtablesNs, waited);
        result
    }

    /// One wait for background work that gives room on a full disk: a flush, or what follows writes
    /// that free space. Fails if there is nothing to wait for.
    #[cold]
    pub(crate) fn wait_for_room(&self, options: &WriteOptions) -> Result<()> {
        let frees = options.space_use == SpaceUse::Frees;
        // The outputs of a compaction take room until its inputs go.
        let is_busy = self.is_flushing() || frees && !self.state.lock().running.is_empty();
        let may_wait = is_busy && self.health.failing().is_none() || self.use_patience();
        if !may_wait || options.no_slowdown {
            return Err(self.refuse_for_room());
        }
        if self.is_manual() {
            return Err(Error::busy(
                "the disk is full until background work gives room, and it is stepped by hand",
            ));
        }
        self.check_open()?;
        self.wait_once();
        Ok(())
    }

    /// One wait for a flush that makes memory fit the reserve of a small disk. Fails if background
    /// work fails.
    #[cold]
    pub(crate) fn wait_for_flush(&self, options: &WriteOptions) -> Result<()> {
        self.check_open()?;
        self.health.check_writable()?;
        if let Some(error) = self.health.failing() {
            let what = "the write has to wait for a flush, and background work fails";
            return Err(match error.is_no_space() {
                true => self.refuse_for_room(),
                false => error.context_at(what),
            });
        }
        if options.no_slowdown {
            return Err(Error::busy("memory has to be flushed first, because the disk is small"));
        }
        if self.is_manual() {
            return Err(Error::busy("the write has to wait for a flush, which is stepped by hand"));
        }
        self.wait_once();
        Ok(())
    }

    /// Waits for background progress for the sake of room on the disk.
    fn wait_once(&self) {
        self.wake();
        let started = self.clock.now_ns();
        {
            let mut state = self.state.lock();
            self.progress.wait_for(&mut state, WAIT_MAX);
        }
        let waited = self.clock.now_ns() - started;
        self.stats.record(Timer::Stall, waited);
        self.stats.add(Ticker::StallDiskNs, waited);
    }

    /// One wait for background progress; fails if background work fails, so that a writer gets
    /// the reason instead of hanging.
    fn wait_for_progress(&self, family: &str) -> Result<()> {
        self.check_open()?;
        self.health.check_writable()?;
        if let Some(error) = self.full_disk_blocks() {
            return Err(error);
        }
        if let Some(error) = self.health.failing() {
            return Err(error.context_at(format!(
                "the write has to wait for background work of column family \"{family}\", which \
                 fails"
            )));
        }
        if self.is_manual() {
            return Err(Error::busy(
                "the write has to wait for background work, which is stepped by hand",
            ));
        }
        self.wake();
        let mut state = self.state.lock();
        self.progress.wait_for(&mut state, WAIT_MAX);
        Ok(())
    }

    fn stall_cause(&self, family: &Family) -> StallCause {
        match self.stall_decision(family) {
            StallDecision::Delay { cause, .. } | StallDecision::Stop { cause } => cause,
            StallDecision::None => StallCause::L0Files,
        }
    }
}

fn ticker_of(cause: StallCause) -> Ticker {
    match cause {
        StallCause::L0Files => Ticker::StallL0Ns,
        StallCause::Memtables => Ticker::StallMemtablesNs,
        StallCause::PendingBytes => Ticker::StallPendingNs,
        StallCause::Budget => Ticker::StallBudgetNs,
    }
}
