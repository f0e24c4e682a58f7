//! Searches of registered shards, and the comparison of their answers with the contents.

use std::sync::Arc;

use archipelago_base::SeqNo;
use archipelago_base::random::Rng;
use archipelago_engine::key::KeyRange;
use archipelago_engine::memtable::decode_record;
use archipelago_offload::wire::shard::{
    Direction, KeyAsk, KeySpan, PageRecord, ShardMessage, ShardName, ShardPlace, ShardRefusal,
    ShardWhy, StoredValue, Version,
};

use super::model::{Contents, KEYS, ModelVersion, ShardState, expected, key_of};
use super::owner::{Ended, Way, snapshot};

/// Largest number of pages and parts of answers that one search requests.
const PARTS_MAX: usize = 400;

/// One search, with everything that its answers depend on.
pub(super) struct Reader {
    way: Way,
    /// Shards, newest first, and their places.
    shards: Vec<Arc<Contents>>,
    places: Vec<ShardPlace>,
    snapshot: SeqNo,
    floor: SeqNo,
    inline_max: u32,
    answer_max: usize,
    bytes_max: u32,
    plan: Plan,
}

enum Plan {
    Get(Vec<u8>),
    MultiGet(Vec<Vec<u8>>),
    Scan(KeyRange, Direction),
}

/// Reason for which the answer to a search says nothing about the contents.
enum Excuse {
    /// There is another owner, another life of the node, a release, or too much silence.
    Good,
    /// The host is busy.
    Later,
}

impl Reader {
    /// A search of all registered shards.
    pub(super) fn new(way: Way, rng: &mut Rng) -> Self {
        let (away, last_seq) = {
            let book = way.book.lock();
            let database = &book.databases[way.db];
            (database.away(), database.last_seq)
        };
        let (shards, places) = away.into_iter().unzip();
        let key = |rng: &mut Rng| key_of(rng.usize(..KEYS + 1));
        let plan = match rng.u32(..3) {
            0 => Plan::Get(key(rng)),
            1 => Plan::MultiGet((0..rng.usize(1..5)).map(|_| key(rng)).collect()),
            _ => {
                let (start, end) = (key(rng), key(rng));
                let end = (start < end).then_some(end);
                let direction = if rng.bool() { Direction::Forward } else { Direction::Backward };
                Plan::Scan(KeyRange { start, end }, direction)
            }
        };
        let is_scan = matches!(plan, Plan::Scan(..));
        Self {
            snapshot: snapshot(rng, last_seq),
            floor: if is_scan || rng.bool() { SeqNo::ZERO } else { SeqNo(rng.u64(..=last_seq)) },
            inline_max: [0, 24, 1000][rng.usize(..3)],
            answer_max: [160, 400, 64 << 10][rng.usize(..3)],
            bytes_max: [0, 200, 1 << 16][rng.usize(..3)],
            way,
            shards,
            places,
            plan,
        }
    }

    pub(super) async fn search(self) -> Result<(), Ended> {
        match &self.plan {
            Plan::Get(key) => self.get(key).await,
            Plan::MultiGet(keys) => self.multi_get(keys).await,
            Plan::Scan(keys, direction) => self.scan(keys, *direction).await,
        }
    }

    fn names(&self) -> Vec<ShardName> {
        self.shards.iter().map(|shard| shard.name).collect()
    }

    async fn get(&self, key: &[u8]) -> Result<(), Ended> {
        let (mut found, mut snapshot) = (Vec::new(), self.snapshot);
        for _ in 0..PARTS_MAX {
            let get = ShardMessage::Get {
                owner: self.way.owner,
                shards: self.names(),
                key: key.to_vec().into(),
                floor: self.floor,
                snapshot,
                inline_max: self.inline_max,
                wants_place: true,
            };
            let Some(answer) = self.ask(&get).await? else { return Ok(()) };
            let ShardMessage::Versions { found: part } = answer else {
                return self.wrong(&answer);
            };
            for version in &part.versions {
                found.push(self.fetched(key, version).await?);
            }
            if part.resume.is_none() {
                let expected = expected(&self.shards, key, self.floor, self.snapshot);
                self.compare(key, &found, &expected);
                self.way.book.lock().counted.keys += 1;
                return Ok(());
            }
            self.way.book.lock().counted.cut += 1;
            snapshot = part.resume.unwrap_or_default();
        }
        self.endless()
    }

    async fn multi_get(&self, keys: &[Vec<u8>]) -> Result<(), Ended> {
        let within: Vec<u32> = (0..self.shards.len() as u32).collect();
        let mut next = 0;
        for _ in 0..PARTS_MAX {
            let asks = keys[next..].iter().map(|key| KeyAsk {
                key: key.clone().into(),
                floor: self.floor,
                within: within.clone(),
            });
            let multi = ShardMessage::MultiGet {
                owner: self.way.owner,
                shards: self.names(),
                asks: asks.collect(),
                snapshot: self.snapshot,
                inline_max: self.inline_max,
                wants_place: true,
            };
            let Some(answer) = self.ask(&multi).await? else { return Ok(()) };
            let ShardMessage::ManyVersions { found } = answer else { return self.wrong(&answer) };
            if found.is_empty() {
                return self.wrong(&ShardMessage::ManyVersions { found });
            }
            for one in &found {
                let Some(key) = keys.get(next) else {
                    return self.wrong(&ShardMessage::ManyVersions { found });
                };
                let mut versions = Vec::new();
                for version in &one.versions {
                    versions.push(self.fetched(key, version).await?);
                }
                let mut expected = expected(&self.shards, key, self.floor, self.snapshot);
                if let Some(resume) = one.resume {
                    expected.retain(|(seq, ..)| *seq > resume);
                }
                self.compare(key, &versions, &expected);
                next += 1;
                self.way.book.lock().counted.keys += 1;
            }
            if next == keys.len() {
                return Ok(());
            }
        }
        self.endless()
    }

    async fn scan(&self, keys: &KeyRange, direction: Direction) -> Result<(), Ended> {
        let (mut found, mut resume) = (Vec::new(), None);
        for _ in 0..PARTS_MAX {
            let scan = ShardMessage::Scan {
                owner: self.way.owner,
                shards: self.names(),
                keys: KeySpan(keys.clone()),
                resume,
                direction,
                snapshot: self.snapshot,
                bytes_max: self.bytes_max,
                inline_max: self.inline_max,
            };
            let Some(answer) = self.ask(&scan).await? else { return Ok(()) };
            let ShardMessage::Page { records, end } = answer else { return self.wrong(&answer) };
            for PageRecord { key, version } in &records {
                found.push((key.0.to_vec(), self.fetched(&key.0, version).await?));
            }
            self.way.book.lock().counted.pages += 1;
            resume = end.resume(&records);
            if resume.is_none() {
                self.compare_scan(keys, direction, &found);
                return Ok(());
            }
        }
        self.endless()
    }

    fn compare_scan(
        &self,
        keys: &KeyRange,
        direction: Direction,
        found: &[(Vec<u8>, ModelVersion)],
    ) {
        let mut all: Vec<Vec<u8>> = (0..KEYS).map(key_of).collect();
        all.retain(|key| keys.contains(key));
        if direction == Direction::Backward {
            all.reverse();
        }
        let versions = all.into_iter().flat_map(|key| {
            let found = expected(&self.shards, &key, SeqNo::ZERO, self.snapshot);
            found.into_iter().map(move |version| (key.clone(), version))
        });
        let expected: Vec<_> = versions.collect();
        if found != expected {
            self.way.violation(&format!("a scan found {found:?} instead of {expected:?}"));
        }
    }

    fn compare(&self, key: &[u8], found: &[ModelVersion], expected: &[ModelVersion]) {
        if found != expected {
            let key = String::from_utf8_lossy(key);
            let names = self.names();
            self.way.violation(&format!("{key} in {names:?}: {found:?} instead of {expected:?}"));
        }
    }

    fn wrong(&self, answer: &ShardMessage) -> Result<(), Ended> {
        self.way.violation(&format!("a search was answered with {answer:?}"));
        Err("a wrong answer".to_owned())
    }

    fn endless(&self) -> Result<(), Ended> {
        self.way.violation("a search has no end");
        Err("a search without an end".to_owned())
    }

    /// The answer to a search; `None` if it is a refusal with a good reason.
    async fn ask(&self, message: &ShardMessage) -> Result<Option<ShardMessage>, Ended> {
        let contact_ns = self.way.contact_ns();
        let answer = self.way.ask(message, self.answer_max).await?;
        let ShardMessage::Refused { refusal } = &answer else { return Ok(Some(answer)) };
        match self.excuse(refusal, contact_ns) {
            Some(Excuse::Later) => Ok(None),
            Some(Excuse::Good) => {
                self.way.book.lock().counted.unknown += 1;
                Err(format!("a search was refused: {refusal}"))
            }
            None => {
                self.way.violation(&format!("a search was refused: {refusal}"));
                Err("a wrong refusal".to_owned())
            }
        }
    }

    fn excuse(&self, refusal: &ShardRefusal, contact_ns: u64) -> Option<Excuse> {
        let is_dropped = self.way.may_be_dropped(contact_ns);
        let book = self.way.book.lock();
        let database = &book.databases[self.way.db];
        let is_over = database.newest > self.way.owner.epoch.0;
        let is_restarted = |place: &ShardPlace| place.key.epoch != book.life;
        let other_life = self.places.iter().any(is_restarted) || self.places.is_empty();
        let has_begun = database.begun == Some((book.life, self.way.owner.epoch.0));
        match refusal.why {
            ShardWhy::Busy => Some(Excuse::Later),
            ShardWhy::OldEpoch if is_over => Some(Excuse::Good),
            ShardWhy::NotBegun if is_over || other_life || is_dropped || !has_begun => {
                Some(Excuse::Good)
            }
            ShardWhy::UnknownShard => {
                let state = refusal.shard.and_then(|name| database.state(name));
                let is_away =
                    matches!(state, Some(ShardState::Away { life, .. }) if life == book.life);
                (is_over || !is_away || is_dropped).then_some(Excuse::Good)
            }
            _ => None,
        }
    }

    /// A version with its value, which is read one-sided if the answer names the place of the
    /// record. An error ends the search if the record cannot be read because its shard was
    /// released.
    async fn fetched(&self, key: &[u8], version: &Version) -> Result<ModelVersion, Ended> {
        let (seq, kind) = (version.seq, version.kind);
        let (shard, at, len) = match &version.value {
            StoredValue::Inline(value) => return Ok((seq, kind, value.0.to_vec())),
            // The value must be that of the record at the place.
            StoredValue::At(place) | StoredValue::Placed { place, .. } => {
                (place.shard as usize, place.at, place.len)
            }
        };
        let Some(place) = self.places.get(shard) else {
            self.way.violation(&format!("an answer names shard {shard} of {}", self.places.len()));
            return Err("no such shard".to_owned());
        };
        let read = self.way.post(&place.key, |batch, arena| {
            batch.read(arena, place.at + at, len as u32);
        });
        let record = read.await?;
        let found = decode_record(&record);
        if let Some((found, value)) = found
            && (found.user_key, found.seq, found.kind) == (key, seq, kind)
            && !matches!(&version.value, StoredValue::Placed { value: said, .. } if *said.0 != *value)
        {
            return Ok((seq, kind, value.to_vec()));
        }
        let name = self.shards[shard].name;
        let state = self.way.book.lock().databases[self.way.db].state(name);
        if matches!(state, Some(ShardState::Away { .. })) {
            self.way.violation(&format!("the record of {name} at {at} is damaged"));
        }
        Err("the range of a released shard was used again".to_owned())
    }
}
