//! Records of active shards, which leave while the shard still fills (O³-LSM §4.2, decision 0093).
//!
//! The database offers each active shard
//! ([`ShardStore::offer`](archipelago_engine::remote::ShardStore)). A task for each of them looks
//! for complete slabs of records. With the first one it gets a grant for the whole expected image,
//! and then it writes each slab after those before it. When the image is sent, the transfer takes
//! the grant over ([`AheadShards::take`]), and writes only the rest.
//!
//! | state | next state and its cause |
//! | --- | --- |
//! | waiting | granted, when the first slab is complete and a node has room; over, at the seal |
//! | granted | over, when the transfer takes the grant over or the grant was given back |
//!
//! A grant is given back, and the shard is sent as a whole after its seal, if
//! - the shard outgrows it,
//! - a sealed shard needs the room, the node wants memory back, or the owner closes
//!   (`state/ahead.rs`),
//! - the node is lost, or a write fails,
//! - the shard makes no progress for [`IDLE_NS`], or the database frees it.
//!
//! Invariants:
//! 1. This module registers no shard. No read finds bytes in a landing zone.
//! 2. Slabs are written in the order of their numbers. So the written bytes are the beginning of
//!    the records of the image.
//! 3. A task that writes is never overtaken: a transfer takes the grant over between two writes.
//! 4. A host ends a grant that its owner does not request again for 30 s. So the task requests it
//!    again every [`ASK_AGAIN_NS`] while it has the grant. If the process ends, the host ends the
//!    grant. If only the answers of the host are lost, the host may keep a grant that the task does
//!    not know. The transfer of the shard then uses that grant ([`super::transfer`]).
//! 5. A write that has used half of its time goes at full speed, so pacing makes no write fail.
//!
//! Thread-safety: any thread may call any method. A lock is never held across an await.
//! Failure: a failure costs the bytes that were written ahead, and no shard.
//! Cost: a request for each shard and each [`ASK_AGAIN_NS`] of a grant, and a WRITE for each slice
//! of a slab. A task takes a step every 10 ms, and down to one in a second while it finds no
//! complete slab. Waiting tasks make no requests.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, Weak};

use archipelago_base::runtime::Runtime;
use archipelago_engine::remote::{ActiveShard, ShardId, StoreNode};
use parking_lot::Mutex;

use super::bell::Bell;
use super::counters::count;
use super::driver::OwnerDriver;
use super::links::{NodeLinks, Way, WriteOrder};
use super::sends::ANSWER_BYTES_MAX;
use super::state::{AheadNode, AheadVerdict};
use super::transfer::{AheadGrant, LandingGrant};
use crate::decide::{PaceInput, pace};
use crate::wire::shard::{ShardMessage, ShardWhy};

/// Bounds of the pause, in nanoseconds, between two steps of a task.
const PAUSE_NS: std::ops::RangeInclusive<u64> = 10_000_000..=1_000_000_000;
/// Time in nanoseconds after which a grant is requested again.
const ASK_AGAIN_NS: u64 = 5_000_000_000;
/// Time in nanoseconds without a complete slab after which a grant is given back.
const IDLE_NS: u64 = 20_000_000_000;

/// Reason for which a grant is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// The shard is larger than expected.
    Outgrown,
    /// A sealed shard or the node needs the room, or the owner closes.
    Room,
    /// The node is lost, or a write failed.
    Failed,
    /// The shard is not sent at all, or will not be sent soon.
    Unneeded,
}

/// A grant with records, and its node.
#[derive(Clone, Copy, Debug)]
struct HeldGrant {
    at: AheadNode,
    grant: LandingGrant,
    bytes: u64,
    /// Bytes and number of the slabs that were written.
    written: u64,
    slabs: usize,
    /// Time at which the grant was requested last.
    asked_ns: u64,
    /// Time of the last written slab.
    moved_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Waiting,
    Granted(HeldGrant),
    Over,
}

#[derive(Debug)]
struct AheadState {
    progress: Progress,
    /// Whether the task works on the shard now.
    is_stepping: bool,
    /// Whether a transfer wants the grant.
    is_wanted: bool,
}

/// An active shard, with the progress of its task.
struct AheadShard {
    active: ActiveShard,
    state: Mutex<AheadState>,
    bell: Bell,
}

impl fmt::Debug for AheadShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AheadShard({:?})", self.active)
    }
}

/// A grant that a transfer has taken over.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenGrant {
    pub(super) node: StoreNode,
    pub(super) losses: u64,
    pub(super) ahead: AheadGrant,
}

/// The active shards whose records leave.
#[derive(Debug, Default)]
pub(super) struct AheadShards(Mutex<BTreeMap<ShardId, Arc<AheadShard>>>);

impl AheadShards {
    /// Starts the task of an active shard.
    pub(super) fn offer(&self, driver: &Arc<OwnerDriver>, active: ActiveShard) {
        let id = active.id;
        let progress = Progress::Waiting;
        let state = AheadState { progress, is_stepping: false, is_wanted: false };
        let shard =
            Arc::new(AheadShard { active, state: Mutex::new(state), bell: Bell::default() });
        match self.0.lock().entry(id) {
            Entry::Vacant(vacant) => {
                vacant.insert(Arc::clone(&shard));
            }
            Entry::Occupied(_) => {
                tracing::error!(shard = %id, "a memtable shard was offered twice");
                return;
            }
        }
        let runtime = Arc::clone(&driver.parts.runtime);
        let task = write_ahead(Arc::downgrade(driver), shard, Arc::clone(&runtime));
        runtime.spawn("shard-ahead", Box::pin(task));
    }

    /// Wakes all tasks, so that they notice what has changed.
    pub(super) fn ring(&self) {
        let shards: Vec<Arc<AheadShard>> = self.0.lock().values().cloned().collect();
        shards.iter().for_each(|shard| shard.bell.ring());
    }

    /// Takes over the grant of a shard whose image has `bytes`. `None` if the shard has none that
    /// the image fits into; then the node has no grant of it. Waits for a write that is under way.
    pub(super) async fn take(
        &self,
        driver: &OwnerDriver,
        id: ShardId,
        bytes: u64,
    ) -> Option<TakenGrant> {
        let shard = self.0.lock().get(&id).cloned()?;
        shard.state.lock().is_wanted = true;
        let until_ns = driver.now_ns() + driver.terms().patience.as_nanos() as u64;
        let held = loop {
            if let Some(progress) = shard.take_progress() {
                break progress;
            }
            if driver.now_ns() >= until_ns {
                // The task gives the grant back after its write.
                shard.state.lock().is_wanted = false;
                driver.state.lock().stop_ahead_of(id);
                return None;
            }
            driver.pause().await;
        };
        self.0.lock().remove(&id);
        shard.bell.ring();
        let Progress::Granted(held) = held else { return None };
        if bytes > held.bytes {
            shard.give_back(driver, &held, GivenUp::Outgrown).await;
            return None;
        }
        let verdict = driver.state.lock().judge_ahead(id);
        if !driver.state.lock().send_ahead(id, bytes) {
            shard.give_back(driver, &held, GivenUp::of(verdict)).await;
            return None;
        }
        let HeldGrant { at, grant, written, .. } = held;
        let ahead = AheadGrant { grant, bytes: held.bytes, written };
        Some(TakenGrant { node: at.node, losses: at.losses, ahead })
    }
}

impl GivenUp {
    fn of(verdict: AheadVerdict) -> Self {
        match verdict {
            AheadVerdict::Lost => Self::Failed,
            AheadVerdict::Stays | AheadVerdict::MustEnd => Self::Room,
        }
    }
}

impl AheadShard {
    /// Ends the shard, and returns its grant. `None` if its task works on it now.
    fn take_progress(&self) -> Option<Progress> {
        let mut state = self.state.lock();
        let is_free = !state.is_stepping;
        is_free.then(|| std::mem::replace(&mut state.progress, Progress::Over))
    }

    fn is_wanted(&self) -> bool {
        self.state.lock().is_wanted
    }

    /// Takes one step of the task. Returns whether a slab was written; `None` at the end.
    async fn step(&self, driver: &OwnerDriver) -> Option<bool> {
        let before = {
            let mut state = self.state.lock();
            state.is_stepping = !matches!(state.progress, Progress::Over);
            state.progress
        };
        let after = match before {
            Progress::Over => return None,
            Progress::Waiting => self.begin(driver).await,
            Progress::Granted(held) => self.go_on(driver, held).await,
        };
        let mut state = self.state.lock();
        (state.progress, state.is_stepping) = (after, false);
        match (before, after) {
            (_, Progress::Over) => None,
            (Progress::Granted(before), Progress::Granted(after)) => {
                Some(before.slabs < after.slabs)
            }
            (_, after) => Some(matches!(after, Progress::Granted(_))),
        }
    }

    /// Gets a grant if a slab is complete.
    async fn begin(&self, driver: &OwnerDriver) -> Progress {
        let ActiveShard { id, boundary, image_bytes, records } = &self.active;
        let Some(records) = records.upgrade() else { return Progress::Over };
        if records.is_sealed() || driver.state.lock().is_closed() {
            return Progress::Over;
        }
        if records.complete_slabs(0).is_empty() {
            return Progress::Waiting;
        }
        let now_ns = driver.now_ns();
        let begun = driver.state.lock().begin_ahead(now_ns, *id, *image_bytes, boundary);
        let Some(at) = begun else { return Progress::Waiting };
        match self.ask_for_grant(driver, at).await {
            Ok((grant, bytes)) => {
                let now_ns = driver.now_ns();
                let (asked_ns, moved_ns) = (now_ns, now_ns);
                let held = HeldGrant { at, grant, bytes, written: 0, slabs: 0, asked_ns, moved_ns };
                self.go_on(driver, held).await
            }
            Err(progress) => progress,
        }
    }

    /// Asks a node for the grant, until it answers or a transfer of the shard begins. An error is
    /// the end of the shard, which has written nothing and counts nowhere.
    async fn ask_for_grant(
        &self,
        driver: &OwnerDriver,
        at: AheadNode,
    ) -> Result<(LandingGrant, u64), Progress> {
        let (id, bytes) = (self.active.id, self.active.image_bytes);
        let shard = driver.state.lock().name(id);
        let land = ShardMessage::Land { owner: driver.owner, shard, bytes };
        let until_ns = driver.now_ns() + driver.terms().patience.as_nanos() as u64;
        loop {
            let links = driver.links(at.node);
            let answer = match &links {
                Some(links) => links.ask(Way::Asks, &land, ANSWER_BYTES_MAX).await.ok(),
                None => None,
            };
            match answer {
                Some(ShardMessage::Landing { grant, key, at: place, bytes, share, .. }) => {
                    driver.state.lock().on_share(at.node, &share);
                    return Ok((LandingGrant { number: grant, key, at: place }, bytes));
                }
                Some(ShardMessage::Refused { refusal }) if refusal.why != ShardWhy::Busy => {
                    let mut state = driver.state.lock();
                    state.ahead_refused(driver.now_ns(), id);
                    state.on_refused(driver.now_ns(), at.node, &refusal);
                    return Err(Progress::Over);
                }
                Some(ShardMessage::Refused { .. }) | None => {}
                Some(other) => {
                    tracing::warn!(answer = other.name(), "an answer to a grant is unexpected");
                }
            }
            let verdict = driver.state.lock().judge_ahead(id);
            let is_late = driver.now_ns() >= until_ns;
            if is_late || self.is_wanted() || verdict != AheadVerdict::Stays {
                driver.state.lock().end_ahead(id);
                return Err(Progress::Over);
            }
            driver.pause().await;
        }
    }

    /// Keeps the grant, and writes the complete slabs.
    async fn go_on(&self, driver: &OwnerDriver, mut held: HeldGrant) -> Progress {
        let Some(records) = self.active.records.upgrade() else {
            return self.give_back(driver, &held, GivenUp::Unneeded).await;
        };
        if let Err(why) = self.keep(driver, &mut held).await {
            return self.give_back(driver, &held, why).await;
        }
        for slab in records.complete_slabs(held.slabs) {
            if self.is_wanted() {
                break;
            }
            if let Err(why) = self.write(driver, &mut held, slab).await {
                return self.give_back(driver, &held, why).await;
            }
        }
        let verdict = driver.state.lock().judge_ahead(self.active.id);
        let is_idle = driver.now_ns().saturating_sub(held.moved_ns) >= IDLE_NS;
        match verdict {
            AheadVerdict::Stays if is_idle && !self.is_wanted() => {
                self.give_back(driver, &held, GivenUp::Unneeded).await
            }
            AheadVerdict::Stays => Progress::Granted(held),
            other => self.give_back(driver, &held, GivenUp::of(other)).await,
        }
    }

    /// Requests the grant again when it is time. Errors: the reason for which it must end.
    async fn keep(&self, driver: &OwnerDriver, held: &mut HeldGrant) -> Result<(), GivenUp> {
        let verdict = driver.state.lock().judge_ahead(self.active.id);
        if verdict != AheadVerdict::Stays {
            return Err(GivenUp::of(verdict));
        }
        let is_due = driver.now_ns().saturating_sub(held.asked_ns) >= ASK_AGAIN_NS;
        // A transfer requests the grant itself.
        if is_due && !self.is_wanted() {
            self.renew(driver, held).await?;
        }
        Ok(())
    }

    /// Writes one slab after those before it.
    async fn write(
        &self,
        driver: &OwnerDriver,
        held: &mut HeldGrant,
        slab: &[u8],
    ) -> Result<(), GivenUp> {
        self.keep(driver, held).await?;
        if held.written + slab.len() as u64 > held.bytes {
            return Err(GivenUp::Outgrown);
        }
        let links = driver.links(held.at.node).ok_or(GivenUp::Failed)?;
        self.write_to(&links, driver, held, slab).await?;
        held.written += slab.len() as u64;
        held.slabs += 1;
        held.moved_ns = driver.now_ns();
        count(&driver.tally.ahead_bytes, slab.len() as u64);
        Ok(())
    }

    async fn write_to(
        &self,
        links: &NodeLinks,
        driver: &OwnerDriver,
        held: &HeldGrant,
        slab: &[u8],
    ) -> Result<(), GivenUp> {
        let time_ns = driver.terms().image(slab.len() as u64).as_nanos() as u64;
        let (half_ns, end_ns) = (driver.now_ns() + time_ns / 2, driver.now_ns() + time_ns);
        let is_urgent = || self.is_wanted() || driver.now_ns() >= half_ns;
        let write = links.write(WriteOrder {
            key: &held.grant.key,
            at: held.grant.at + held.written,
            image: slab,
            flow: &driver.ahead_flow,
            speed: |link| if is_urgent() { u64::MAX } else { ahead_speed(driver, link) },
            // A slab is short, so this write is completed. The next slab is not written if the
            // grant must end.
            is_wanted: |_| true,
        });
        driver.until(end_ns, write).await.map_err(|failure| {
            tracing::debug!(shard = %self.active.id, ?failure, "records were not written ahead");
            GivenUp::Failed
        })
    }

    /// Asks for the grant again, so that its node keeps it.
    async fn renew(&self, driver: &OwnerDriver, held: &mut HeldGrant) -> Result<(), GivenUp> {
        let asked_ns = driver.now_ns();
        let shard = driver.state.lock().name(self.active.id);
        let land = ShardMessage::Land { owner: driver.owner, shard, bytes: held.bytes };
        let links = driver.links(held.at.node).ok_or(GivenUp::Failed)?;
        match links.ask(Way::Asks, &land, ANSWER_BYTES_MAX).await {
            Ok(ShardMessage::Landing { grant, share, .. }) if grant == held.grant.number => {
                driver.state.lock().on_share(held.at.node, &share);
                held.asked_ns = asked_ns;
                Ok(())
            }
            // The node had ended the grant, and has given another one without the records.
            Ok(ShardMessage::Landing { grant, .. }) => {
                held.grant.number = grant;
                Err(GivenUp::Failed)
            }
            _ => Err(GivenUp::Failed),
        }
    }

    /// Gives a grant back to its node, and counts why. A node that was lost may answer again in the
    /// same life, and then it gets the message as well. Without an answer the node ends the grant
    /// later.
    async fn give_back(&self, driver: &OwnerDriver, held: &HeldGrant, why: GivenUp) -> Progress {
        let id = self.active.id;
        let shard = driver.state.lock().name(id);
        let (owner, grant) = (driver.owner, held.grant.number);
        let message = ShardMessage::GiveBack { owner, shard, grant };
        let until_ns = driver.now_ns() + driver.terms().patience.as_nanos() as u64;
        while driver.state.lock().is_obeying(held.at.node) {
            let Some(links) = driver.links(held.at.node) else { break };
            match links.ask(Way::Asks, &message, ANSWER_BYTES_MAX).await {
                Ok(ShardMessage::Done { share, .. }) => {
                    let mut state = driver.state.lock();
                    state.on_share(held.at.node, &share);
                    state.ahead_given_back(id);
                    break;
                }
                Ok(ShardMessage::Refused { refusal }) if refusal.why != ShardWhy::Busy => {
                    driver.state.lock().on_refused(driver.now_ns(), held.at.node, &refusal);
                    break;
                }
                _ => {}
            }
            if driver.now_ns() >= until_ns {
                break;
            }
            driver.pause().await;
        }
        driver.state.lock().end_ahead(id);
        driver.tell_news();
        self.count_end(driver, why);
        Progress::Over
    }

    fn count_end(&self, driver: &OwnerDriver, why: GivenUp) {
        tracing::debug!(shard = %self.active.id, ?why, "records of an active shard stay here");
        let tally = &driver.tally;
        let counter = match why {
            GivenUp::Outgrown => &tally.ahead_outgrown,
            GivenUp::Room => &tally.ahead_no_room,
            GivenUp::Failed => &tally.ahead_failed,
            GivenUp::Unneeded => &tally.ahead_unneeded,
        };
        count(counter, 1);
    }
}

/// Speed at which records of active shards leave over a link of this speed, in bytes a second.
fn ahead_speed(driver: &OwnerDriver, link_bytes_per_s: u64) -> u64 {
    ahead_rate(driver.fill_bytes_per_s(), link_bytes_per_s, driver.is_sending())
}

/// The speed of the writers with a margin of a quarter, and at most half of the link while sealed
/// shards leave as well. There is no limit before the link is measured.
fn ahead_rate(fill_bytes_per_s: u64, link_bytes_per_s: u64, is_sending: bool) -> u64 {
    if link_bytes_per_s == 0 {
        return u64::MAX;
    }
    let speed = pace(&PaceInput {
        backlog_bytes: 0,
        space_bytes: u64::MAX,
        fill_bytes_per_s: fill_bytes_per_s.saturating_add(fill_bytes_per_s / 4),
        link_bytes_per_s,
    });
    match is_sending {
        true => speed.min((link_bytes_per_s / 2).max(1)),
        false if speed >= link_bytes_per_s => u64::MAX,
        false => speed,
    }
}

/// Takes the steps of an active shard until it is over or the owner ends.
async fn write_ahead(driver: Weak<OwnerDriver>, shard: Arc<AheadShard>, runtime: Arc<dyn Runtime>) {
    let mut pause_ns = *PAUSE_NS.start();
    loop {
        let Some(driver) = driver.upgrade() else { return };
        let Some(has_moved) = shard.step(&driver).await else {
            let mut shards = driver.ahead.0.lock();
            if shards.get(&shard.active.id).is_some_and(|known| Arc::ptr_eq(known, &shard)) {
                shards.remove(&shard.active.id);
            }
            return;
        };
        drop(driver);
        pause_ns = match has_moved {
            true => *PAUSE_NS.start(),
            false => (pause_ns * 2).min(*PAUSE_NS.end()),
        };
        shard.bell.rest(&*runtime, pause_ns).await;
    }
}

#[cfg(test)]
mod tests {
    use super::ahead_rate;

    #[test]
    fn records_leave_a_little_faster_than_writers_need() {
        assert_eq!(ahead_rate(100, 1000, false), 125);
        assert_eq!(ahead_rate(0, 1000, false), 50, "a twentieth of the link");
        assert_eq!(ahead_rate(2000, 1000, false), u64::MAX);
        assert_eq!(ahead_rate(2000, 1000, true), 500, "sealed shards have the other half");
        // A sealed shard waits for the slab that is being written, so this write must not be slow.
        assert_eq!(ahead_rate(100, 0, true), u64::MAX, "the link is not measured");
    }
}
