//! An owner of a database: it sends shards, releases them, and repeats messages.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::checksum;
use archipelago_base::random::Rng;
use archipelago_base::simulation::{Host, Scheduler};
use archipelago_base::{Epoch, SeqNo};
use archipelago_fabric::sim::Sim;
use archipelago_fabric::{Batch, Call, Connect, Link, Provider, RemoteKey, Session};
use archipelago_offload::ids::{OffloadDb, OwnerStamp, Token};
use archipelago_offload::wire::shard::{
    ListedShard, Piece, ShardMessage, ShardName, ShardPlace, ShardWhy,
};

use super::model::{Contents, DatabaseBook, ShardState, SharedBook};
use super::reader::Reader;
use super::world::{LANDING_BYTES, ORPHANS};

/// Time after which a message counts as lost.
const REQUEST: Duration = Duration::from_millis(4);
/// Largest number of registered shards of a database.
const SHARDS_MAX: usize = 6;
/// Number of messages that an owner remembers, to send them again.
const SENT_MAX: usize = 32;

/// Reason for which a session with the node ended; only for notes.
pub(super) type Ended = String;

pub(super) fn text(error: impl std::fmt::Display) -> Ended {
    error.to_string()
}

/// State that the tasks of an owner share: its way to the node, and the book.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) db: usize,
    pub(super) owner: OwnerStamp,
    pub(super) scheduler: Scheduler,
    pub(super) book: SharedBook,
    pub(super) link: Arc<dyn Link>,
}

impl Way {
    /// Sends a message. An answer that an earlier owner must not get is a violation.
    pub(super) async fn ask(
        &self,
        message: &ShardMessage,
        answer_bytes_max: usize,
    ) -> Result<ShardMessage, Ended> {
        let sent_ns = self.scheduler.now_ns();
        let stale_in = self.stale_in();
        let body = message.encode();
        let call = Call::new(&body, REQUEST).idempotent().answer_bytes_max(answer_bytes_max);
        let answer = self.link.request(call).await.map_err(text)?;
        let answer = ShardMessage::decode(&answer).map_err(text)?;
        self.scheduler.note(|| {
            let (db, epoch) = (self.db, self.owner.epoch);
            format!("database {db}, epoch {epoch}: {message:?} → {answer:?}")
        });
        let mut book = self.book.lock();
        let is_refused = matches!(answer, ShardMessage::Refused { .. });
        if stale_in == Some(book.life) && !is_refused {
            let (db, epoch) = (self.db, self.owner.epoch);
            book.violations.push(format!(
                "an earlier owner (database {db}, epoch {epoch}) got {}",
                answer.name()
            ));
        }
        let database = &mut book.databases[self.db];
        let is_heard = match &answer {
            ShardMessage::Refused { refusal } => !matches!(
                refusal.why,
                ShardWhy::Busy | ShardWhy::NotBegun | ShardWhy::OldEpoch | ShardWhy::Malformed
            ),
            _ => true,
        };
        if is_heard && database.newest == self.owner.epoch.0 {
            database.contact_ns = database.contact_ns.max(sent_ns);
        }
        Ok(answer)
    }

    /// The life of the node in which a later owner has begun.
    fn stale_in(&self) -> Option<Epoch> {
        let book = self.book.lock();
        let (life, epoch) = book.databases[self.db].begun?;
        (epoch > self.owner.epoch.0 && life == book.life).then_some(life)
    }

    /// Whether the host may have dropped the database since `contact_ns`.
    pub(super) fn may_be_dropped(&self, contact_ns: u64) -> bool {
        self.scheduler.now_ns().saturating_sub(contact_ns) >= ORPHANS.as_nanos() as u64
    }

    pub(super) fn contact_ns(&self) -> u64 {
        self.book.lock().databases[self.db].contact_ns
    }

    /// Changes the book of the database, if this is the newest owner.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut DatabaseBook) -> T) -> Option<T> {
        let mut book = self.book.lock();
        let database = &mut book.databases[self.db];
        (database.newest == self.owner.epoch.0).then(|| change(database))
    }

    pub(super) fn violation(&self, what: &str) {
        let (db, epoch) = (self.db, self.owner.epoch);
        self.book.lock().violations.push(format!("database {db}, epoch {epoch}: {what}"));
    }

    /// Writes into or reads from a region. Returns the bytes that were read.
    pub(super) async fn post(
        &self,
        key: &RemoteKey,
        fill: impl FnOnce(&mut Batch, archipelago_fabric::Attached),
    ) -> Result<Vec<u8>, Ended> {
        let region = self.link.attach(key).await.map_err(text)?;
        let mut batch = Batch::new();
        batch.set_deadline(REQUEST);
        fill(&mut batch, region);
        let batch = self.link.post(batch).await;
        self.link.detach(region);
        batch.check().map_err(text)?;
        Ok(batch.data(0).to_vec())
    }
}

/// A grant for an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) number: u64,
    pub(super) key: RemoteKey,
    /// Offset within the landing zone.
    pub(super) at: u64,
}

/// Order of the bytes of an image in its grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bytes at the beginning of the image that lie behind the others.
    pub(super) records_at: usize,
    /// Bytes that lie in the grant already.
    pub(super) written: usize,
}

/// The bytes of an image in the order of its grant.
pub(super) fn rotated(image: &[u8], records_at: usize) -> Vec<u8> {
    [&image[records_at..], &image[..records_at]].concat()
}

/// An owner that a host runs.
pub(super) struct Owner {
    db: usize,
    pub(super) owner: OwnerStamp,
    host: Host,
    provider: Sim,
    session: Arc<Session>,
    pub(super) book: SharedBook,
    pub(super) rng: Rng,
    next_memtable: u64,
    has_taken_over: bool,
    /// Messages that were sent, with the place that a registration got.
    sent: Vec<(ShardMessage, ShardName, Option<ShardPlace>)>,
}

impl Owner {
    /// Starts the next owner of a database on a host.
    pub(super) fn start(db: usize, host: &Host, provider: &Sim, book: &SharedBook) {
        let epoch = {
            let mut book = book.lock();
            book.counted.owners += 1;
            let database = &mut book.databases[db];
            database.newest += 1;
            database.newest
        };
        let scheduler = host.scheduler();
        let token = Token([epoch as u8; 16]);
        let owner = Self {
            db,
            owner: OwnerStamp { db: OffloadDb([db as u8; 16]), epoch: Epoch(epoch), token },
            host: host.clone(),
            provider: provider.clone(),
            session: provider.network().session(),
            book: Arc::clone(book),
            rng: scheduler.rng(&format!("owner {db} of epoch {epoch}")),
            next_memtable: 1,
            has_taken_over: false,
            sent: Vec::new(),
        };
        let _ends_with_the_host = host.spawn("owner", owner.live());
    }

    async fn live(mut self) {
        loop {
            let ended = self.session().await;
            let scheduler = self.host.scheduler();
            scheduler.note(|| format!("owner {} of {}: {ended:?}", self.owner.epoch, self.db));
            let pause = Duration::from_micros(self.rng.u64(10..1500));
            scheduler.sleep(pause).await;
        }
    }

    async fn session(&mut self) -> Result<(), Ended> {
        let mut to = Connect::to("memory", &self.session);
        to.deadline = Duration::from_millis(10);
        let link = self.provider.connect(to).await.map_err(text)?;
        let way = Way {
            db: self.db,
            owner: self.owner,
            scheduler: self.host.scheduler().clone(),
            book: Arc::clone(&self.book),
            link,
        };
        self.begin(&way).await?;
        if !self.has_taken_over {
            self.take_over(&way).await?;
            self.has_taken_over = true;
        }
        // The outcome of the last messages of an earlier session is unknown.
        way.change(|database| {
            for name in database.names(|state| *state == ShardState::Sending) {
                database.set(name, ShardState::Leaving);
            }
        });
        while way.link.closed().is_none() {
            if self.book.lock().is_peace {
                return self.clean(&way).await;
            }
            match self.rng.u32(..13) {
                0..=2 => self.send(&way).await?,
                12 => self.send_ahead(&way).await?,
                3 => self.release(&way).await?,
                4 => self.repeat(&way).await?,
                5 => self.begin(&way).await?,
                _ => self.read(&way).await?,
            }
            let pause = Duration::from_micros(self.rng.u64(..150));
            way.scheduler.sleep(pause).await;
        }
        Ok(())
    }

    async fn begin(&mut self, way: &Way) -> Result<(), Ended> {
        if way.may_be_dropped(way.contact_ns()) {
            way.change(|database| database.lose(|_| true));
        }
        let (owner, landing_bytes) = (self.owner, LANDING_BYTES);
        let begin = ShardMessage::Begin { owner, landing_bytes, guaranteed_bytes: 0 };
        match way.ask(&begin, 256).await? {
            ShardMessage::Begun { life, .. } => {
                way.change(|database| {
                    database.lose(|of| of != life);
                    database.begun = Some((life, self.owner.epoch.0));
                });
                Ok(())
            }
            other => Err(format!("not begun: {other:?}")),
        }
    }

    /// The shards that the node lists.
    async fn list(&self, way: &Way) -> Result<Vec<ListedShard>, Ended> {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            match way.ask(&ShardMessage::List { owner: self.owner, after }, 64 << 10).await? {
                ShardMessage::Listed { shards, more } => {
                    after = shards.last().map(|shard| shard.name).or(after);
                    listed.extend(shards);
                    if !more {
                        return Ok(listed);
                    }
                }
                other => return Err(format!("no list: {other:?}")),
            }
        }
    }

    /// Adopts some of the shards of earlier owners, and has the others purged.
    async fn take_over(&mut self, way: &Way) -> Result<(), Ended> {
        let contact_ns = way.contact_ns();
        let wanted = self.book.lock().databases[self.db].away();
        let listed = self.list(way).await?;
        if way.change(|_| ()).is_none() {
            // The book has the shards of a later owner. A new life of the node may know this owner
            // alone, and then it has none of them.
            return Err("a later owner has begun".to_owned());
        }
        let (mut adopted, mut left) = (Vec::new(), Vec::new());
        let epoch = self.owner.epoch.0;
        for (contents, place) in wanted {
            let is_listed = {
                let book = self.book.lock();
                let adopters = &book.databases[self.db].adopted;
                DatabaseBook::is_recent(contents.name, adopters, epoch)
            };
            let found = listed.iter().find(|shard| shard.name == contents.name);
            match found {
                Some(shard) if shard.place == place && shard.info == contents.info => {}
                None if way.may_be_dropped(contact_ns) => continue,
                None if !is_listed => {
                    // An owner in between did not adopt it. The purge removes it.
                    left.push(contents.name);
                    continue;
                }
                other => {
                    let name = contents.name;
                    way.violation(&format!("shard {name} is listed as {other:?}"));
                }
            }
            let list = if self.rng.u32(..3) > 0 { &mut adopted } else { &mut left };
            list.push(contents.name);
        }
        for shard in &listed {
            let state = self.book.lock().databases[self.db].state(shard.name);
            if matches!(state, None | Some(ShardState::Released { .. })) {
                way.violation(&format!("shard {} is listed after its release", shard.name));
            }
            let is_held = {
                let book = self.book.lock();
                let adopters = &book.databases[self.db].adopting;
                DatabaseBook::is_recent(shard.name, adopters, epoch)
            };
            if !is_held {
                way.violation(&format!("shard {} is listed, but nobody held it", shard.name));
            }
        }
        way.change(|database| {
            for name in left {
                database.set(name, ShardState::Leaving);
            }
        });
        let asked = adopted.iter().map(|name| (*name, epoch));
        self.book.lock().databases[self.db].adopting.extend(asked);
        let names = adopted.clone();
        let adopt = ShardMessage::Adopt { owner: self.owner, shards: adopted };
        let ShardMessage::Done { shards, .. } = way.ask(&adopt, 256).await? else {
            return Err("nothing was adopted".to_owned());
        };
        {
            let mut book = self.book.lock();
            book.counted.adopted += u64::from(shards);
            book.databases[self.db].adopted.extend(names.iter().map(|name| (*name, epoch)));
        }
        match way.ask(&ShardMessage::Purge { owner: self.owner }, 256).await? {
            ShardMessage::Done { .. } => Ok(()),
            other => Err(format!("no purge: {other:?}")),
        }
    }

    /// Makes a new shard; `None` if the database has enough of them.
    pub(super) fn make(&mut self, way: &Way) -> Option<Arc<Contents>> {
        let name = ShardName { epoch: self.owner.epoch, memtable: self.next_memtable, shard: 0 };
        let rng = &mut self.rng;
        let made = way.change(|database| {
            if database.names(|state| matches!(state, ShardState::Away { .. })).len() >= SHARDS_MAX
            {
                return None;
            }
            let contents = Arc::new(Contents::new(name, database.last_seq, rng));
            database.last_seq = contents.info.last_seq.0;
            database.shards.insert(name, (Arc::clone(&contents), ShardState::Sending));
            Some(contents)
        });
        let contents = made.flatten()?;
        self.next_memtable += 1;
        Some(contents)
    }

    /// Asks for a grant; `None` if the host refuses it.
    pub(super) async fn land(
        &mut self,
        way: &Way,
        name: ShardName,
        bytes: u64,
    ) -> Result<Option<Granted>, Ended> {
        let land = ShardMessage::Land { owner: self.owner, shard: name, bytes };
        let landing = way.ask(&land, 256).await?;
        let ShardMessage::Landing { grant, key, at, .. } = landing else {
            way.change(|database| database.set(name, ShardState::Leaving));
            self.book.lock().counted.full += 1;
            return Ok(None);
        };
        self.remember(land, name, None);
        Ok(Some(Granted { number: grant, key, at }))
    }

    /// Sends a new shard, or ends at the first step that fails.
    async fn send(&mut self, way: &Way) -> Result<(), Ended> {
        let Some(contents) = self.make(way) else { return Ok(()) };
        let bytes = contents.image.len() as u64;
        let Some(granted) = self.land(way, contents.name, bytes).await? else { return Ok(()) };
        let layout = Layout { records_at: 0, written: 0 };
        self.register(way, &contents, granted, layout).await
    }

    /// Writes the image of a shard into a grant, except for the bytes that lie there already, and
    /// registers it.
    pub(super) async fn register(
        &mut self,
        way: &Way,
        contents: &Arc<Contents>,
        granted: Granted,
        layout: Layout,
    ) -> Result<(), Ended> {
        let (name, Granted { number: grant, key, at }) = (contents.name, granted);
        let Layout { records_at, mut written } = layout;
        for _ in 0..3 {
            self.write(way, &rotated(&contents.image, records_at), written, granted).await?;
            written = 0;
            let pieces = self.pieces(&contents.image, records_at);
            let info = contents.info.clone();
            let owner = self.owner;
            let register = ShardMessage::Register { owner, shard: name, grant, info, pieces };
            let answer = way.ask(&register, 256).await;
            self.write_late(way, contents, (key, at));
            match answer {
                Ok(ShardMessage::Registered { place }) => {
                    self.remember(register, name, Some(place));
                    let life = key.epoch;
                    way.change(|database| database.set(name, ShardState::Away { life, place }));
                    self.book.lock().counted.registered += 1;
                    return Ok(());
                }
                // A late write of an earlier shard hit this one.
                Ok(ShardMessage::Refused { refusal }) if refusal.why == ShardWhy::BadPiece => {
                    self.remember(register, name, None);
                    self.book.lock().counted.damaged += 1;
                }
                Ok(ShardMessage::Refused { refusal }) if refusal.why == ShardWhy::Busy => {}
                Ok(other) => {
                    self.remember(register, name, None);
                    self.judge_registration(way, name, &other);
                    break;
                }
                Err(ended) => {
                    self.remember(register, name, None);
                    return Err(ended);
                }
            }
        }
        way.change(|database| database.set(name, ShardState::Leaving));
        Ok(())
    }

    /// A registration may fail because the host has lost its state, or because the database has a
    /// new owner. It must never fail because of its image.
    fn judge_registration(&self, way: &Way, name: ShardName, answer: &ShardMessage) {
        if let ShardMessage::Refused { refusal } = answer
            && matches!(refusal.why, ShardWhy::BadImage | ShardWhy::OtherRecords)
        {
            way.violation(&format!("shard {name} was refused: {refusal}"));
        }
    }

    pub(super) fn remember(
        &mut self,
        message: ShardMessage,
        name: ShardName,
        place: Option<ShardPlace>,
    ) {
        if self.sent.len() == SENT_MAX {
            self.sent.remove(0);
        }
        self.sent.push((message, name, place));
    }

    /// Writes the bytes from `written` on into a grant, in one to three parts in any order.
    async fn write(
        &mut self,
        way: &Way,
        bytes: &[u8],
        written: usize,
        granted: Granted,
    ) -> Result<(), Ended> {
        if written == bytes.len() {
            return Ok(());
        }
        let mut cuts = self.cuts(written, bytes.len());
        self.rng.shuffle(&mut cuts);
        let fill = |batch: &mut Batch, zone| {
            for (from, to) in &cuts {
                batch.write(zone, granted.at + *from as u64, &bytes[*from..*to]);
            }
        };
        way.post(&granted.key, fill).await.map(|_| ())
    }

    /// Cuts a range into one to three parts.
    fn cuts(&mut self, from: usize, to: usize) -> Vec<(usize, usize)> {
        let mut cuts: Vec<usize> =
            (0..self.rng.usize(..3)).map(|_| self.rng.usize(from..to)).collect();
        cuts.extend([from, to]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|ends| (ends[0], ends[1])).collect()
    }

    /// Cuts an image into pieces. In the grant, the bytes before `records_at` follow the other
    /// bytes.
    fn pieces(&mut self, image: &[u8], records_at: usize) -> Vec<Piece> {
        let mut parts = self.cuts(records_at, image.len());
        if records_at > 0 {
            parts.insert(0, (0, records_at));
        }
        let piece = |(from, to): (usize, usize)| Piece {
            at: ((from + image.len() - records_at) % image.len()) as u64,
            len: (to - from) as u64,
            sum: checksum::hash64(&image[from..to]),
        };
        parts.into_iter().map(piece).collect()
    }

    /// Writes the image, or garbage, once more after a while, as a late packet would.
    fn write_late(&mut self, way: &Way, contents: &Arc<Contents>, grant: (RemoteKey, u64)) {
        if self.rng.u32(..3) > 0 {
            return;
        }
        let (key, at) = grant;
        let delay = Duration::from_micros(self.rng.u64(..3000));
        let is_garbage = self.rng.u32(..4) == 0;
        let (way, contents) = (way.clone(), Arc::clone(contents));
        let _ends_with_the_host = self.host.spawn("late", async move {
            way.scheduler.sleep(delay).await;
            let garbage = vec![0xa5; contents.image.len()];
            let bytes = if is_garbage { &garbage } else { &contents.image };
            let write = |batch: &mut Batch, zone| {
                batch.write(zone, at, bytes);
            };
            let _may_be_refused = way.post(&key, write).await;
        });
    }

    /// Releases a registered shard, and the shards that were given up before.
    async fn release(&mut self, way: &Way) -> Result<(), Ended> {
        let pick = self.rng.usize(..SHARDS_MAX);
        let epoch = self.owner.epoch;
        let released = way.change(|database| {
            let away = database.names(|state| matches!(state, ShardState::Away { .. }));
            if let Some(name) = away.get(pick) {
                database.set(*name, ShardState::Leaving);
            }
            let live =
                |state: &ShardState| matches!(state, ShardState::Away { .. } | ShardState::Sending);
            let own = database.names(live).into_iter().filter(|name| name.epoch == epoch);
            let oldest = own.map(|name| name.memtable).min();
            (database.names(|state| *state == ShardState::Leaving), oldest)
        });
        let Some((shards, oldest)) = released else { return Ok(()) };
        let oldest = match self.rng.bool() {
            true => oldest.unwrap_or(self.next_memtable),
            false => 0,
        };
        let (owner, names) = (self.owner, shards.clone());
        let life = way.link.peer().epoch;
        match way.ask(&ShardMessage::Release { owner, shards, oldest }, 256).await? {
            ShardMessage::Done { .. } => {
                way.change(|database| {
                    let released = ShardState::Released { life };
                    names.iter().for_each(|name| database.set(*name, released));
                });
                Ok(())
            }
            other => Err(format!("no release: {other:?}")),
        }
    }

    /// Sends an earlier message again.
    async fn repeat(&mut self, way: &Way) -> Result<(), Ended> {
        if self.sent.is_empty() {
            return Ok(());
        }
        let (message, name, place) = self.sent[self.rng.usize(..self.sent.len())].clone();
        let state = || self.book.lock().databases[self.db].state(name);
        let (before, contact_ns) = (state(), way.contact_ns());
        let answer = way.ask(&message, 256).await?;
        self.book.lock().counted.repeated += 1;
        let (after, is_newest) = (state(), way.change(|_| ()).is_some());
        // A node remembers a release in the life in which it confirmed the release, and as long as
        // the owner sends messages.
        let granted_in = match &answer {
            ShardMessage::Registered { place } => Some(place.key.epoch),
            ShardMessage::Landing { key, .. } => Some(key.epoch),
            _ => None,
        };
        let is_forgotten = way.may_be_dropped(contact_ns);
        match (before, granted_in) {
            (Some(ShardState::Released { life }), Some(granted_in))
                if life == granted_in && before == after && !is_forgotten =>
            {
                way.violation(&format!("released shard {name} got {answer:?}"));
            }
            _ => {}
        }
        let registered = place.filter(
            |place| matches!(after, Some(ShardState::Away { place: now, .. }) if now == *place),
        );
        if let (Some(place), true, true) = (registered, before == after, is_newest) {
            let is_same = match &answer {
                ShardMessage::Registered { place: now } => *now == place,
                ShardMessage::Refused { refusal } => match refusal.why {
                    ShardWhy::Busy => true,
                    // The node restarted without the owner's knowledge, or the owner was silent for
                    // long.
                    ShardWhy::NotBegun => self.is_lost(way, place, contact_ns),
                    _ => false,
                },
                _ => false,
            };
            if !is_same {
                way.violation(&format!("registered shard {name} got {answer:?}"));
            }
        }
        Ok(())
    }

    /// Whether the host may have lost a shard of this place.
    fn is_lost(&self, way: &Way, place: ShardPlace, contact_ns: u64) -> bool {
        place.key.epoch != self.book.lock().life || way.may_be_dropped(contact_ns)
    }

    /// Searches, sometimes in parallel with the next steps of the owner.
    async fn read(&mut self, way: &Way) -> Result<(), Ended> {
        let reader = Reader::new(way.clone(), &mut self.rng);
        if self.rng.bool() {
            return reader.search().await;
        }
        let _ends_with_the_host = self.host.spawn("search", async move {
            let _ended = reader.search().await;
        });
        Ok(())
    }

    /// Releases everything, in the time of peace.
    async fn clean(&mut self, way: &Way) -> Result<(), Ended> {
        let names = way.change(|database| {
            for name in database.names(|_| true) {
                database.set(name, ShardState::Leaving);
            }
            (database.names(|_| true), database.is_clean)
        });
        let Some((shards, false)) = names else {
            way.scheduler.sleep(Duration::from_millis(1)).await;
            return Ok(());
        };
        let (owner, oldest) = (self.owner, self.next_memtable);
        let ShardMessage::Done { .. } =
            way.ask(&ShardMessage::Release { owner, shards, oldest }, 256).await?
        else {
            return Err("not released".to_owned());
        };
        way.change(|database| database.is_clean = true);
        Ok(())
    }
}

/// A snapshot at which a search reads.
pub(super) fn snapshot(rng: &mut Rng, last_seq: u64) -> SeqNo {
    match rng.u32(..3) {
        0 => SeqNo(rng.u64(..=last_seq)),
        _ => SeqNo::MAX,
    }
}
