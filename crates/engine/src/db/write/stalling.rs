//! Back-pressure: carries out the pure decisions of `crate::stall`.
//!
//! After every seal and every install, the decision for the family is made again and stored in its
//! `throttle`. While memtables wait for their flush, the family is *watched*: the decision is also
//! made again whenever a 64th of a memtable was written. A delayed writer pays for a lot of bytes
//! in advance, and the writers after it take from that lot ([`crate::db::state::delay_credit`]).
//!
//! Invariants:
//! 1. If background work fails, a writer that waits for it gets the error instead of hanging.
//! 2. A single delay is short: back-pressure consists of many small waits.
//! 3. A storage pool that is nearly full delays no write that frees space. Other causes delay such
//!    a write as usual. The pool hurries no compaction and no transfer to a memory node, because no
//!    background work is certain to end its delay.
//!
//! Thread-safety: any thread may call any function. No lock is held while a writer waits.
//! Failure: a write that must not wait is refused with `Busy`.
//! Cost: a write of a healthy family pays one relaxed load. A write of a watched or delayed family
//! pays one relaxed exchange.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use archipelago_base::{CfId, Error, Result};

use crate::db::inner::DbInner;
use crate::db::read::ReadView;
use crate::db::state::context::Context;
use crate::db::state::delay_credit::lot_of;
use crate::db::state::family::{DELAYED, FREE, Family, STOPPED, WATCHED, is_slowed};
use crate::db::state::jobs::Jobs;
use crate::db::state::memtable::ShardHome;
use crate::db::state::observers::Observers;
use crate::db::state::pacing::{LastSeal, Pacing};
use crate::db::state::storage::Storage;
use crate::db::write::disk_room::Disk;
use crate::db::write::submission::FamilyShare;
use crate::db::write::{disk_room, seal};
use crate::disk_space::{SpaceState, SpaceUse};
use crate::event::Event;
use crate::lock_order::Order;
use crate::options::WriteOptions;
use crate::remote::WriteLoad;
use crate::stall::{StallCause, StallDecision, StallInput, away_excess_bytes, stall};
use crate::stats::{Ticker, Timer};

/// Longest single wait before a writer checks the state again.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Longest delay of one write. Back-pressure consists of many small waits.
const DELAY_MAX: Duration = Duration::from_millis(20);

/// Divisor of the memtable size. The decision for a watched family is made again after that many
/// bytes.
const WATCH_SHARE: u64 = 64;
/// Divisor of the memtable size. The speed of writers is measured once they have written that many
/// bytes.
const FILL_SHARE: u64 = 8;

/// The owners that a decision about the speed of writers needs. Jobs take this group as well if
/// they end with such a decision.
#[derive(Clone, Copy)]
pub(crate) struct StallOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) observers: &'a Observers,
    pub(crate) pacing: &'a Pacing,
    pub(crate) jobs: &'a Jobs,
}

/// The owners that a write needs while it waits for background work. It makes no decision about the
/// speed of writers: a write that does both takes [`StallOwners`] in addition.
#[derive(Clone, Copy)]
pub(crate) struct WaitOwners<'a> {
    pub(crate) context: &'a Context,
    pub(crate) storage: &'a Storage,
    pub(crate) observers: &'a Observers,
    pub(crate) jobs: &'a Jobs,
    pub(crate) disk: &'a Disk,
}

fn stall_decision(
    context: &Context,
    observers: &Observers,
    pacing: &Pacing,
    family: &Family,
) -> StallDecision {
    stall(&stall_input(context, observers, pacing, family))
}

fn stall_input(
    context: &Context,
    observers: &Observers,
    pacing: &Pacing,
    family: &Family,
) -> StallInput {
    let current = family.current.load();
    pacing.ingest().set_total(observers.stats().get(Ticker::UserBytesWritten));
    // Memtables that stay by choice are no backlog, and take none of the writers' space.
    let counted = current.immutables.iter().skip(family.stay_allowance());
    let here = counted.flat_map(|immutable| immutable.homes()).filter_map(ShardHome::here);
    let buffer = context.memtable_bytes_max(&family.options);
    let immutables = seal::immutables_here(family, &current);
    let spare = family.options.write_buffers_max.saturating_sub(1 + immutables);
    let since_ns = family.backlog_since_ns.load(Ordering::Relaxed);
    let limit = match context.options().rate_limit_bytes_per_s {
        0 => u64::MAX,
        limit => limit,
    };
    let flush_bytes_per_s = pacing.flush_speed().min(limit);
    let nodes = context.away().map(|away| away.room()).unwrap_or_default();
    let nodes_held = nodes.held_bytes.saturating_sub(nodes.spare_bytes);
    let takes_shards = nodes.free_bytes > 0 && nodes.image_bytes_max > 0;
    // Sends that are slow because writers need no more say nothing about the speed of the link.
    let send_bytes_per_s = || pacing.send_speed().max(nodes.link_bytes_per_s);
    let room = pacing.writer_room();
    StallInput {
        send_bytes_per_s: takes_shards.then(send_bytes_per_s),
        away_backlog_bytes: away_excess_bytes(nodes_held, nodes.limit_bytes),
        away_space_bytes: nodes.limit_bytes.saturating_sub(nodes_held),
        away_flush_bytes_per_s: pacing.node_flush_speed().min(limit),
        flush_backlog_bytes: here.map(|shard| shard.data_bytes()).sum(),
        memtable_space_bytes: buffer
            .saturating_mul(spare as u64)
            .saturating_add(buffer.saturating_sub(current.active.charged_bytes())),
        flush_bytes_per_s,
        flush_elapsed: Duration::from_nanos(context.clock().now_ns().saturating_sub(since_ns)),
        budget_used: context.budget().total_bytes(),
        budget_limit: context.budget().limit_bytes(),
        peak_bytes_per_s: pacing.ingest().rate(),
        drain_bytes_per_s: pacing.drain().rate(),
        compaction_bytes_per_s: pacing.compaction_speed(),
        space_used: family.space.used_bytes(),
        space_slowdown: family.space.slowdown_bytes(),
        space_stop: family.space.stop_bytes(),
        space_freed_bytes_per_s: family.space.freed_bytes_per_s(),
        pool_left_bytes: room.left_bytes,
        pool_slowdown_bytes: room.slowdown_bytes,
        ..StallInput::of(&current.version)
    }
}

/// Reports the load by the writers of a family to the link to the memory nodes.
fn note_load(context: &Context, pacing: &Pacing, family: &Family, input: &StallInput) {
    let Some(link) = context.away() else { return };
    let last = pacing.last_seal(context.clock().now_ns());
    let current = family.current.load();
    let active_bytes = current.active.charged_bytes();
    let buffer_bytes = context.memtable_bytes_max(&family.options);
    let fill_bytes_per_s = fill_rate(buffer_bytes, active_bytes, last);
    let space_bytes = space_before_wait(input);
    // Memtables that have ceased to stay must leave, although they take none of the space.
    let leaving = current.immutables.iter().skip(link.staying_now());
    let leaving = leaving.flat_map(|immutable| immutable.homes()).filter_map(ShardHome::here);
    let backlog_bytes = leaving.map(|shard| shard.data_bytes()).sum();
    link.note_load(family.id, WriteLoad { backlog_bytes, space_bytes, fill_bytes_per_s });
    // A dropped family has no writers, and no later decision would change its load. The check comes
    // last, because the family may be dropped meanwhile.
    if family.dropped.load(Ordering::Acquire) {
        link.forget_load(family.id);
    }
}

/// Speed at which writers fill memtables of this size, in bytes a second. It is that of the last
/// sealed memtable, or that of the active one if that is filled faster.
fn fill_rate(buffer_bytes: u64, active_bytes: u64, last: LastSeal) -> u64 {
    let rate = |bytes: u64, ns: u64| {
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    };
    let before = if last.interval_ns > 0 { rate(buffer_bytes, last.interval_ns) } else { 0 };
    // The first part of a memtable is too short for a measurement.
    let is_measured = active_bytes >= buffer_bytes / FILL_SHARE;
    let since_ns = last.since_ns.filter(|_| is_measured);
    before.max(since_ns.map_or(0, |ns| rate(active_bytes, ns)))
}

/// Bytes that writers may still write before they wait for background work. It is 0 if they are
/// slowed down already, because they have no space to lose then. A delay by the storage pool alone
/// does not count. It may last for days, and faster transfers do not end it.
fn space_before_wait(input: &StallInput) -> u64 {
    let (throttle, _) = throttle_of(without_pool(input), input.peak_bytes_per_s);
    if is_slowed(throttle) { 0 } else { input.memtable_space_bytes }
}

/// Throttle of a decision, and the rate of delayed writers in bytes a second. `peak_bytes_per_s` is
/// the peak rate of the writers; 0 if it was not measured.
fn throttle_of(decision: StallDecision, peak_bytes_per_s: u64) -> (u8, u64) {
    match decision {
        StallDecision::None => (FREE, u64::MAX),
        // The rate is more than twice the peak rate of the writers, so no delay is needed yet.
        StallDecision::Delay { cause: StallCause::Memtables, bytes_per_s }
            if bytes_per_s / 2 > peak_bytes_per_s && peak_bytes_per_s > 0 =>
        {
            (WATCHED, u64::MAX)
        }
        StallDecision::Delay { bytes_per_s, .. } => (DELAYED, bytes_per_s),
        StallDecision::Stop { .. } => (STOPPED, 0),
    }
}

/// Rate, in bytes a second, of writes that free space. It is that of the decision without the
/// storage pool, which needs the room that they free. `u64::MAX` if nothing else delays writers.
fn freeing_rate(input: &StallInput) -> u64 {
    match throttle_of(without_pool(input), input.peak_bytes_per_s) {
        (DELAYED, rate) => rate,
        _ => u64::MAX,
    }
}

/// The decision without the delay by the storage pool.
fn without_pool(input: &StallInput) -> StallDecision {
    stall(&StallInput { pool_slowdown_bytes: 0, ..*input })
}

/// Whether writers of the family are slowed down because compactions are behind. A slower delay by
/// the storage pool does not hide that.
pub(crate) fn is_compaction_urgent(
    context: &Context,
    observers: &Observers,
    pacing: &Pacing,
    family: &Family,
) -> bool {
    let behind =
        |cause| matches!(cause, StallCause::L0Files | StallCause::PendingBytes | StallCause::Space);
    match without_pool(&stall_input(context, observers, pacing, family)) {
        StallDecision::None => false,
        StallDecision::Delay { cause, .. } | StallDecision::Stop { cause } => behind(cause),
    }
}

/// Makes the decision again for one family.
pub(crate) fn recompute_stall(owners: StallOwners<'_>, family: &Family) {
    let StallOwners { context, observers, pacing, jobs } = owners;
    let input = stall_input(context, observers, pacing, family);
    let decision = stall(&input);
    let (throttle, rate) = throttle_of(decision, input.peak_bytes_per_s);
    if throttle == WATCHED {
        let credit = context.memtable_bytes_max(&family.options) / WATCH_SHARE;
        family.credit.set(credit);
    }
    note_load(context, pacing, family, &input);
    let is_for_pool = matches!(decision, StallDecision::Delay { cause: StallCause::Pool, .. });
    if throttle != FREE && (!is_for_pool || without_pool(&input) != StallDecision::None) {
        // Writers wait, or may soon wait, for background work. So compactions let no reads go first
        // now.
        pacing.foreground().mark_urgent();
    }
    family.delayed_rate.store(rate, Ordering::Relaxed);
    family.freeing_rate.store(freeing_rate(&input), Ordering::Relaxed);
    let is_for_space = matches!(
        decision,
        StallDecision::Delay { cause: StallCause::Space, .. }
            | StallDecision::Stop { cause: StallCause::Space }
    );
    family.is_slowed_for_space.store(is_for_space, Ordering::Relaxed);
    family.is_slowed_for_pool.store(is_for_pool, Ordering::Relaxed);
    let before = family.throttle.swap(throttle, Ordering::Relaxed);
    if before != throttle && is_slowed(before.max(throttle)) {
        let state = format!("{}: {decision:?}", family.name);
        tracing::debug!(state, "stall state changed");
        observers.tell(&Event::StallChanged { state });
    }
    if before != throttle && throttle >= DELAYED {
        family.credit.set(0);
        let frees =
            |cause| matches!(cause, StallCause::Budget | StallCause::Space | StallCause::Pool);
        if matches!(decision, StallDecision::Delay { cause, .. } if frees(cause)) {
            // Idle workers look for memory or space to free now, and not only when they wake up by
            // themselves.
            jobs.wake();
        }
    }
    if before > throttle {
        jobs.notify_progress();
    }
}

/// Notes the room of writers in the pool, if the files are in one, and makes the decisions again
/// while it is short. Called without locks.
pub(crate) fn refresh_writer_room(owners: StallOwners<'_>, storage: &Storage, view: &ReadView) {
    if owners.pacing.note_writer_room(storage.fs().writer_room()) {
        for family in view.live_families() {
            recompute_stall(owners, &family);
        }
    }
}

/// Slows or holds a write as its families' throttles say.
#[inline]
pub(crate) fn stall_writer(
    db: &DbInner,
    shares: &[FamilyShare],
    options: &WriteOptions,
) -> Result<()> {
    let frees = options.space_use == SpaceUse::Frees;
    if frees && db.disk.state() != SpaceState::Roomy {
        // The write would wait for background work, and that work may need the room that the write
        // frees.
        return Ok(());
    }
    let families = db.view.families();
    for share in shares {
        let Some(Some(family)) = families.get(share.cf.0 as usize) else { continue };
        match family.throttle.load(Ordering::Relaxed) {
            FREE => {}
            WATCHED | DELAYED if family.credit.take(share.bytes) => {}
            // The pool needs the room that the write frees.
            DELAYED if frees && family.is_slowed_for_pool.load(Ordering::Relaxed) => {
                delay_freeing_write(db.stall_owners(), family, share.bytes, options)?;
            }
            WATCHED => recompute_stall(db.stall_owners(), family),
            _ => stall_on(db.stall_owners(), db.wait_owners(), family, share.bytes, options)?,
        }
    }
    Ok(())
}

#[cold]
fn stall_on(
    stall: StallOwners<'_>,
    wait: WaitOwners<'_>,
    family: &Arc<Family>,
    bytes: u64,
    options: &WriteOptions,
) -> Result<()> {
    let StallOwners { context, observers, pacing, .. } = stall;
    if options.no_slowdown {
        // The limit on space may be gone without an install, and such a write does not wait for the
        // next decision. For other causes the last decision stands.
        if is_refused(pacing, family) && family.is_slowed_for_space.load(Ordering::Relaxed) {
            recompute_stall(stall, family);
        }
        if !is_slowed(family.throttle.load(Ordering::Relaxed)) {
            return Ok(());
        }
        if is_refused(pacing, family) {
            return Err(slowed_down(family));
        }
    }
    let started = context.clock().now_ns();
    let cause = cause_of(stall_decision(context, observers, pacing, family));
    let result = hold_writer(stall, wait, family, bytes);
    let waited = context.clock().now_ns() - started;
    observers.stats().record(Timer::Stall, waited);
    observers.stats().add(ticker_of(cause), waited);
    result
}

/// Delays a write that frees space as all causes but the storage pool demand it.
#[cold]
fn delay_freeing_write(
    owners: StallOwners<'_>,
    family: &Family,
    bytes: u64,
    options: &WriteOptions,
) -> Result<()> {
    let StallOwners { context, observers, pacing, .. } = owners;
    let rate = family.freeing_rate.load(Ordering::Relaxed);
    if rate == u64::MAX {
        return Ok(());
    }
    let delays = pacing.freeing_delays();
    if options.no_slowdown && delays.is_owed() {
        return Err(slowed_down(family));
    }
    let wait = delays.admit(bytes, rate).min(DELAY_MAX);
    if wait.is_zero() {
        return Ok(());
    }
    let input = stall_input(context, observers, pacing, family);
    let started = context.clock().now_ns();
    context.clock().sleep(wait);
    let waited = context.clock().now_ns() - started;
    observers.stats().record(Timer::Stall, waited);
    observers.stats().add(ticker_of(cause_of(without_pool(&input))), waited);
    Ok(())
}

/// The error of a write that must not wait.
fn slowed_down(family: &Family) -> Error {
    Error::busy(format!(
        "writes of column family \"{}\" are slowed down, because flushes or compactions are \
         behind, or the storage pool is nearly full",
        family.name
    ))
}

/// Whether a write that must not wait is refused by the last decision.
fn is_refused(pacing: &Pacing, family: &Family) -> bool {
    match family.throttle.load(Ordering::Relaxed) {
        STOPPED => true,
        throttle => is_slowed(throttle) && pacing.delays().is_owed(),
    }
}

fn hold_writer(
    stall: StallOwners<'_>,
    wait: WaitOwners<'_>,
    family: &Arc<Family>,
    bytes: u64,
) -> Result<()> {
    let StallOwners { context, pacing, .. } = stall;
    loop {
        family.check_alive()?;
        match family.throttle.load(Ordering::Relaxed) {
            FREE | WATCHED => return Ok(()),
            DELAYED => {
                recompute_stall(stall, family);
                let rate = family.delayed_rate.load(Ordering::Relaxed).max(1);
                let most = context.memtable_bytes_max(&family.options) / WATCH_SHARE;
                let lot = lot_of(bytes, rate, most);
                let delay = pacing.delays().admit(lot, rate).min(DELAY_MAX);
                family.credit.add(lot - bytes);
                if !delay.is_zero() {
                    pacing.ingest().restart_window();
                    context.clock().sleep(delay);
                }
                return Ok(());
            }
            _ => {
                // Only a test has a function here, and its error must not fail the write.
                let _ignored = context.fault_point("write.waits");
                wait_for_progress(wait, &family.name)?;
            }
        }
        recompute_stall(stall, family);
    }
}

/// Waits until a full memtable may be sealed.
#[cold]
pub(crate) fn wait_for_memtable(
    owners: WaitOwners<'_>,
    view: &ReadView,
    cf: CfId,
    options: &WriteOptions,
) -> Result<()> {
    let Some(family) = view.family(cf) else { return Ok(()) };
    if options.no_slowdown {
        return Err(Error::busy(format!(
            "all memtables of column family \"{}\" are full and wait for their flush",
            family.name
        )));
    }
    let started = owners.context.clock().now_ns();
    let mut result = Ok(());
    while result.is_ok() && !seal::may_seal(&family) {
        result = wait_for_progress(owners, &family.name);
    }
    let waited = owners.context.clock().now_ns() - started;
    owners.observers.stats().record(Timer::Stall, waited);
    owners.observers.stats().add(Ticker::StallMemtablesNs, waited);
    result
}

/// Waits once for background work that frees room on a full disk. That is a flush, or for a write
/// that frees space any running job. Fails if there is nothing to wait for.
#[cold]
pub(crate) fn wait_for_room(owners: WaitOwners<'_>, options: &WriteOptions) -> Result<()> {
    let frees = options.space_use == SpaceUse::Frees;
    // The outputs of a compaction take room until its inputs are removed.
    let is_busy = disk_room::is_flushing(owners.jobs, Order::none())
        || frees && !owners.jobs.lock(Order::none()).running().is_empty();
    let may_wait = is_busy && owners.observers.health().failing().is_none()
        || disk_room::use_patience(owners.disk);
    if !may_wait || options.no_slowdown {
        return Err(disk_room::refuse_for_room(owners.storage, owners.observers, owners.disk));
    }
    if owners.context.is_manual() {
        return Err(Error::busy(
            "the disk is full until background work gives room, and in manual mode only \
             `Db::step_background` runs it",
        ));
    }
    owners.context.check_open()?;
    wait_once(owners.context, owners.observers, owners.jobs);
    Ok(())
}

/// Waits once for a flush after which the reserve of a small disk suffices for memory. Fails if
/// background work fails.
#[cold]
pub(crate) fn wait_for_flush(owners: WaitOwners<'_>, options: &WriteOptions) -> Result<()> {
    owners.context.check_open()?;
    owners.observers.health().check_writable()?;
    if let Some(error) = owners.observers.health().failing() {
        let what = "the write has to wait for a flush, and background work fails";
        return Err(match error.is_no_space() {
            true => disk_room::refuse_for_room(owners.storage, owners.observers, owners.disk),
            false => error.context_at(what),
        });
    }
    if options.no_slowdown {
        return Err(Error::busy(
            "the write would wait for a flush of memory, because the disk is small: try again \
             later",
        ));
    }
    if owners.context.is_manual() {
        return Err(Error::busy(
            "the write has to wait for a flush, and in manual mode only `Db::step_background` runs \
             it",
        ));
    }
    wait_once(owners.context, owners.observers, owners.jobs);
    Ok(())
}

/// Waits once for background progress, and counts the time as a stall by the disk.
fn wait_once(context: &Context, observers: &Observers, jobs: &Jobs) {
    jobs.wake();
    let started = context.clock().now_ns();
    {
        let mut state = jobs.lock(Order::none());
        jobs.wait_for_progress(&mut state, WAIT_MAX);
    }
    let waited = context.clock().now_ns() - started;
    observers.stats().record(Timer::Stall, waited);
    observers.stats().add(Ticker::StallDiskNs, waited);
}

/// Waits once for background progress. Fails if background work fails, so that a writer gets the
/// reason instead of hanging.
fn wait_for_progress(owners: WaitOwners<'_>, family: &str) -> Result<()> {
    owners.context.check_open()?;
    owners.observers.health().check_writable()?;
    if let Some(error) = disk_room::full_disk_blocks(owners.storage, owners.disk) {
        return Err(error);
    }
    if let Some(error) = owners.observers.health().failing() {
        return Err(error.context_at(format!(
            "the write has to wait for background work of column family \"{family}\", which \
             fails"
        )));
    }
    if owners.context.is_manual() {
        return Err(Error::busy(
            "the write has to wait for background work, and in manual mode only \
             `Db::step_background` runs it",
        ));
    }
    owners.jobs.wake();
    let mut state = owners.jobs.lock(Order::none());
    owners.jobs.wait_for_progress(&mut state, WAIT_MAX);
    Ok(())
}

fn cause_of(decision: StallDecision) -> StallCause {
    match decision {
        StallDecision::Delay { cause, .. } | StallDecision::Stop { cause } => cause,
        StallDecision::None => StallCause::L0Files,
    }
}

fn ticker_of(cause: StallCause) -> Ticker {
    match cause {
        StallCause::L0Files => Ticker::StallL0Ns,
        StallCause::Memtables => Ticker::StallMemtablesNs,
        StallCause::PendingBytes => Ticker::StallPendingNs,
        StallCause::Budget => Ticker::StallBudgetNs,
        StallCause::Space => Ticker::StallSpaceNs,
        StallCause::Pool => Ticker::StallPoolNs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_pool_hides_no_backlog_of_compactions() {
        let input = StallInput {
            l0_files: 21,
            l0_slowdown: 20,
            l0_stop: 36,
            pool_slowdown_bytes: 1 << 20,
            ..StallInput::default()
        };
        let cause = |decision| match decision {
            StallDecision::Delay { cause, .. } => Some(cause),
            StallDecision::None | StallDecision::Stop { .. } => None,
        };
        assert_eq!(cause(stall(&input)), Some(StallCause::Pool));
        assert_eq!(cause(without_pool(&input)), Some(StallCause::L0Files));
        let by_pool_alone = StallInput { l0_files: 0, ..input };
        assert_eq!(without_pool(&by_pool_alone), StallDecision::None);
        assert_eq!(freeing_rate(&by_pool_alone), u64::MAX);
        let rate = freeing_rate(&input);
        assert!(rate > 1 << 20 && rate < u64::MAX, "{rate}");
    }

    #[test]
    fn full_pool_alone_hurries_no_transfer() {
        let by_pool_alone = StallInput {
            memtable_space_bytes: 64 << 20,
            l0_slowdown: 20,
            l0_stop: 36,
            peak_bytes_per_s: 1 << 20,
            pool_slowdown_bytes: 1 << 20,
            ..StallInput::default()
        };
        let is_delayed =
            |input: &StallInput| throttle_of(stall(input), input.peak_bytes_per_s).0 == DELAYED;
        assert!(is_delayed(&by_pool_alone));
        assert_eq!(space_before_wait(&by_pool_alone), 64 << 20);
        // The flush ends long before the writers need the space.
        let with_backlog = StallInput { flush_backlog_bytes: 1 << 20, ..by_pool_alone };
        assert!(is_delayed(&with_backlog));
        assert_eq!(space_before_wait(&with_backlog), 64 << 20);
        let behind = StallInput { l0_files: 21, ..by_pool_alone };
        assert!(is_delayed(&behind));
        assert_eq!(space_before_wait(&behind), 0);
    }

    #[test]
    fn speed_of_writers_is_that_of_the_faster_memtable() {
        let at = |since_ms: Option<u64>, interval_ms: u64| LastSeal {
            since_ns: since_ms.map(|ms| ms * 1_000_000),
            interval_ns: interval_ms * 1_000_000,
        };
        assert_eq!(fill_rate(8000, 500, at(None, 0)), 0, "nothing is known");
        assert_eq!(fill_rate(8000, 500, at(Some(10), 0)), 0, "too little was written");
        assert_eq!(fill_rate(8000, 1000, at(Some(10), 0)), 100_000);
        assert_eq!(fill_rate(8000, 1000, at(Some(100), 1000)), 10_000);
        assert_eq!(fill_rate(8000, 1000, at(Some(5000), 1000)), 8000, "writers pause");
    }
}
