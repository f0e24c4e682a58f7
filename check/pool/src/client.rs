//! A client: joins, allocates, writes, reads, releases, and does all of it again when it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Scheduler};
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Batch, ClientId, Reason, Rights, Session};
use archipelago_pool::wire::{Message, Purpose, Why};
use archipelago_pool::{BlockId, Config, Membership, OpenBlock, OpenCopy, Place, Sharing};
use parking_lot::Mutex;

use crate::actors::{Line, MANAGER, REQUEST, ask};
use crate::oracle::Oracle;

/// Blocks that a client wants to have.
const BLOCKS: usize = 3;
/// Words of a block that are written.
pub(crate) const WORDS: u64 = 6;
/// All clients work on the same data.
const LABEL: u64 = 7;

/// What clients know of each other: blocks that anybody may read.
pub(crate) type Known = Arc<Mutex<BTreeSet<BlockId>>>;

struct State {
    membership: Membership,
    lines: BTreeMap<Place, Line>,
    /// One per node's life, for good: its numbers must not begin again.
    sessions: BTreeMap<Place, Arc<Session>>,
    open: BTreeMap<BlockId, Arc<OpenBlock>>,
    afresh: BTreeSet<BlockId>,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct ClientActor {
    pub(crate) id: ClientId,
    state: Arc<Mutex<State>>,
    sim: Sim,
    manager: Line,
    oracle: Arc<Oracle>,
    known: Known,
    working: Arc<Mutex<bool>>,
}

impl ClientActor {
    /// Starts a client on its host. It works until `working` is false, and renews for ever.
    pub(crate) fn start(
        sim: &Sim,
        id: ClientId,
        (oracle, known): (&Arc<Oracle>, &Known),
        working: &Arc<Mutex<bool>>,
        seed: u64,
    ) -> Self {
        let state = State {
            membership: Membership::new(id, LABEL),
            lines: BTreeMap::new(),
            sessions: BTreeMap::new(),
            open: BTreeMap::new(),
            afresh: BTreeSet::new(),
        };
        let client = Self {
            id,
            state: Arc::new(Mutex::new(state)),
            sim: sim.clone(),
            manager: Line::new(sim, MANAGER, Session::new(id)),
            oracle: Arc::clone(oracle),
            known: Arc::clone(known),
            working: Arc::clone(working),
        };
        let host: &Host = sim.host();
        let (renewing, working) = (client.clone(), client.clone());
        host.spawn("renew", async move { renewing.renew().await });
        host.spawn("work", async move { working.work(Rng::with_seed(seed)).await });
        client
    }

    fn scheduler(&self) -> &Scheduler {
        self.sim.host().scheduler()
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.state.lock().membership.is_evicted()
    }

    pub(crate) fn owned(&self) -> Vec<BlockId> {
        self.state.lock().membership.owned().collect()
    }

    async fn renew(&self) {
        while !self.is_evicted() {
            let sent_ns = self.scheduler().now_ns();
            let message = self.state.lock().membership.renew(sent_ns, 2_000_000);
            let answer = self.manager.ask(&message).await;
            if let Some(answer) = &answer {
                self.on_renewed(sent_ns, answer);
            }
            let again = self.state.lock().membership.to_release();
            for message in again {
                let Message::Release { block, .. } = message else { continue };
                if let Some(Message::Refuse { refused }) = self.manager.ask(&message).await
                    && matches!(refused.why, Why::UnknownBlock | Why::NotOwner)
                {
                    self.state.lock().membership.released(block);
                }
            }
            let pause = if answer.is_some() {
                let renew_ns = self.state.lock().membership.renew_ns();
                Duration::from_nanos(renew_ns.saturating_sub(self.scheduler().now_ns()))
            } else {
                Duration::from_millis(1)
            };
            self.scheduler().sleep(pause.max(Duration::from_micros(100))).await;
        }
    }

    fn on_renewed(&self, sent_ns: u64, answer: &Message) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.membership.on_renewed(sent_ns, answer);
        let left = state.membership.take_left();
        let (open, afresh) = (&mut state.open, &mut state.afresh);
        open.retain(|block, open| {
            let stays = open.copies.iter().all(|copy| !left.contains(&copy.place));
            if !stays {
                afresh.insert(*block);
            }
            stays
        });
        state.lines.retain(|place, _| !left.contains(place));
        for change in state.membership.take_changes() {
            self.note(|| format!("{change:?}"));
        }
    }

    async fn work(&self, mut rng: Rng) {
        loop {
            self.scheduler().sleep(Duration::from_micros(rng.u64(50..800))).await;
            let owned = self.owned();
            let (joined, evicted) = {
                let state = self.state.lock();
                (state.membership.is_joined(), state.membership.is_evicted())
            };
            if evicted || !*self.working.lock() {
                return;
            }
            if !joined {
                continue;
            }
            match rng.u32(..100) {
                0..10 if owned.len() < BLOCKS => self.allocate(&mut rng).await,
                10..12 if owned.len() > 1 => self.release(owned[rng.usize(..owned.len())]).await,
                12..60 if !owned.is_empty() => {
                    self.write(owned[rng.usize(..owned.len())], rng.u64(..WORDS)).await;
                }
                _ => {
                    let known: Vec<BlockId> = self.known.lock().iter().copied().collect();
                    if !known.is_empty() {
                        self.read(known[rng.usize(..known.len())], &mut rng).await;
                    }
                }
            }
        }
    }

    async fn allocate(&self, rng: &mut Rng) {
        let request = self.state.lock().membership.next_request();
        let sharing = if rng.u32(..8) == 0 { Sharing::All } else { Sharing::Owner };
        let message = Message::Allocate { client: self.id, request, sharing, copies: 0 };
        // The same request, until it is answered; then again under another number.
        for _ in 0..rng.u32(1..6) {
            if let Some(Message::Located { config }) = self.manager.ask(&message).await {
                let mut state = self.state.lock();
                state.membership.allocated(config.block, config.epoch);
                self.note(|| format!("has a new block {} by {request}", config.block));
                self.known.lock().insert(config.block);
                return;
            }
        }
        self.state.lock().membership.gave_up();
    }

    async fn release(&self, block: BlockId) {
        let message = self.state.lock().membership.release(block);
        let Some(message) = message else { return };
        self.known.lock().remove(&block);
        self.note(|| format!("releases {block}"));
        self.state.lock().open.remove(&block);
        let _answer = self.manager.ask(&message).await;
    }

    /// Writes until it is acknowledged, or the block is not this client's any more.
    async fn write(&self, block: BlockId, at: u64) {
        let mut number = None;
        for _ in 0..200 {
            let Some(open) = self.open(block, true).await else {
                if self.is_evicted() || !self.owned().contains(&block) {
                    return;
                }
                self.scheduler().sleep(Duration::from_micros(500)).await;
                continue;
            };
            if !self.owned().contains(&block) {
                return;
            }
            let word = (block, open.config.born, at);
            let mine = *number.get_or_insert_with(|| self.oracle.begin(word));
            match open.post_write(at * 8, &mine.to_le_bytes()).await {
                Ok(()) => {
                    self.note(|| {
                        format!("{mine} in word {at} of {block} at {}", open.config.epoch)
                    });
                    return self.oracle.acknowledge(word, mine);
                }
                Err(refusal) => {
                    self.note(|| format!("{mine} in word {at} of {block} refused: {refusal}"));
                    self.stale(block, refusal.reason);
                }
            }
        }
    }

    async fn read(&self, block: BlockId, rng: &mut Rng) {
        let at = rng.u64(..WORDS);
        let Some(open) = self.open(block, false).await else { return };
        let word = (block, open.config.born, at);
        // Any copy has every acknowledged write.
        let copy = &open.copies[rng.usize(..open.copies.len())];
        let floor = self.oracle.floor(word);
        let mut batch = Batch::new();
        batch.set_deadline(REQUEST);
        batch.read(copy.region, at * 8, 8);
        let batch = copy.link.post(batch).await;
        if let Some((_, refusal)) = batch.refusal() {
            return self.stale(block, refusal.reason);
        }
        let number = u64::from_le_bytes(batch.data(0).try_into().expect("eight bytes"));
        let leased = self.state.lock().membership.lease_until_ns() > self.scheduler().now_ns();
        // Released meanwhile, it may be another block by now.
        self.note(|| {
            let from = copy.place.node;
            format!("read {number} of word {at} of {block} on {from}, at least {floor}")
        });
        if leased && self.known.lock().contains(&block) {
            self.oracle.saw(word, floor, number, &format!("client {} with a lease", self.id));
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        self.scheduler().note(|| format!("client {}: {}", self.id, text()));
    }

    fn stale(&self, block: BlockId, reason: Reason) {
        let mut state = self.state.lock();
        if matches!(reason, Reason::Deadline | Reason::Disconnected | Reason::Skipped) {
            state.afresh.insert(block);
        }
        state.open.remove(&block);
    }

    fn line(&self, place: Place) -> Option<Line> {
        let mut state = self.state.lock();
        let member = state.membership.node(place.node).filter(|node| node.life == place.life)?;
        let address = member.endpoints.first()?.clone();
        let session = state.sessions.entry(place).or_insert_with(|| Session::new(self.id));
        let session = Arc::clone(session);
        let line = || Line::new(&self.sim, &address, session);
        Some(state.lines.entry(place).or_insert_with(line).clone())
    }

    async fn open(&self, block: BlockId, all: bool) -> Option<Arc<OpenBlock>> {
        let writable = |open: &Arc<OpenBlock>| !all || open.is_writable();
        let known = self.state.lock().open.get(&block).cloned();
        if let Some(open) = known.filter(writable) {
            return Some(open);
        }
        let view = self.state.lock().membership.view();
        let Some(Message::Located { config }) = self.manager.ask(&Message::Locate { block }).await
        else {
            return None;
        };
        let afresh = self.state.lock().afresh.contains(&block);
        let mut copies = Vec::new();
        for place in &config.copies {
            if let Some(copy) = self.open_copy(&config, *place, afresh).await {
                copies.push(copy);
            }
        }
        if copies.is_empty() {
            return None;
        }
        let mut state = self.state.lock();
        // What was learnt of nodes meanwhile counts.
        let up = |copy: &OpenCopy| {
            let node = state.membership.node(copy.place.node);
            node.is_some_and(|node| node.life == copy.place.life)
        };
        if !copies.iter().all(up) || state.membership.view() != view {
            return None;
        }
        if afresh && copies.len() == config.copies.len() {
            state.afresh.remove(&block);
        }
        let open = Arc::new(OpenBlock { config, copies });
        state.open.insert(block, Arc::clone(&open));
        drop(state);
        Some(open).filter(writable)
    }

    async fn open_copy(&self, config: &Config, place: Place, afresh: bool) -> Option<OpenCopy> {
        let link = self.line(place)?.link().await?;
        let purpose = if afresh { Purpose::Afresh } else { Purpose::Use };
        let (block, epoch): (BlockId, Epoch) = (config.block, config.epoch);
        let open = Message::Open { client: self.id, block, epoch, purpose };
        let Message::Opened { key, .. } = ask(&link, &open).await? else { return None };
        let region = link.attach(&key).await.ok()?;
        let rights: Rights = key.rights;
        Some(OpenCopy { place, link, region, rights })
    }
}
