//! Searches of images against a model, under every limit of an answer.

use std::collections::BTreeMap;

use archipelago_base::budget::ByteBudget;
use archipelago_base::random::Rng;
use archipelago_engine::memtable::{Shard, SlabPool, decode_record};

use super::*;
use crate::ids::OwnerStamp;
use crate::job::Payload;
use crate::wire::shard::{KeySpan, ShardName};

/// A version of the model: sequence number, kind and value.
type ModelVersion = (SeqNo, Kind, Vec<u8>);

/// Images of a few shards, newest first, and all their records.
struct Sample {
    bytes: Vec<Vec<u8>>,
    images: Vec<Option<Arc<SealedImage>>>,
    /// Versions of each key, newest first.
    model: BTreeMap<Vec<u8>, Vec<ModelVersion>>,
    last_seq: u64,
}

fn key_of(number: usize) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

impl Sample {
    fn new(rng: &mut Rng) -> Self {
        let (mut shards, mut model) = (Vec::new(), BTreeMap::<_, Vec<ModelVersion>>::new());
        let mut seq = 0;
        for _ in 0..rng.usize(1..5) {
            let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
            for _ in 0..rng.usize(0..120) {
                seq += 1;
                let key = key_of(rng.usize(..20));
                let kind = match rng.u32(..10) {
                    0 | 1 => Kind::Delete,
                    2..=4 => Kind::Put,
                    5 => Kind::PutExpiring,
                    _ => Kind::Merge,
                };
                let len = if kind == Kind::Delete { 0 } else { 8 + rng.usize(..60) };
                let value: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
                shard.insert(&key, SeqNo(seq), kind, &value);
                model.entry(key).or_default().insert(0, (SeqNo(seq), kind, value));
            }
            shard.seal();
            let mut bytes = Vec::new();
            shard.write_image(&mut bytes).expect("sealed");
            shards.insert(0, bytes);
        }
        let images = shards.iter().map(|bytes| SealedImage::open(bytes.clone()).ok()).collect();
        Self { bytes: shards, images, model, last_seq: seq }
    }

    /// Versions of a key that a search must find.
    fn expected(&self, key: &[u8], floor: SeqNo, snapshot: SeqNo) -> Vec<ModelVersion> {
        let all = self.model.get(key).into_iter().flatten();
        let seen = all.filter(|(seq, ..)| *seq <= snapshot);
        let mut found = Vec::new();
        for version in seen.take_while(|(seq, ..)| *seq >= floor) {
            found.push(version.clone());
            if version.1 != Kind::Merge {
                break;
            }
        }
        found
    }

    fn ask(&self, ask: ShardMessage, answer_bytes_max: usize) -> ShardMessage {
        let order = ReadOrder { images: self.images.clone(), ask };
        let answer = answer(&order, answer_bytes_max, HostSabotage::default());
        let bytes = answer.encode().len();
        assert!(bytes <= answer_bytes_max, "{bytes} bytes, {answer_bytes_max} were permitted");
        answer
    }

    /// The value of the record at a place, which must be that of the version.
    fn fetched_at(&self, key: &[u8], version: &Version, place: RecordPlace) -> Vec<u8> {
        let (at, len) = (place.at as usize, place.len as usize);
        let record = &self.bytes[place.shard as usize][at..at + len];
        let (found, value) = decode_record(record).expect("one whole record");
        assert_eq!((found.user_key, found.seq), (key, version.seq));
        assert_eq!(found.kind, version.kind);
        value.to_vec()
    }

    /// A version with the bytes of its value, fetched if it came by its place.
    fn fetched(&self, key: &[u8], version: &Version, inline_max: u32) -> ModelVersion {
        let value = match &version.value {
            StoredValue::Inline(value) => {
                assert!(value.0.len() <= inline_max as usize);
                value.0.to_vec()
            }
            StoredValue::Placed { value, place } => {
                assert!(value.0.len() <= inline_max as usize);
                let there = self.fetched_at(key, version, *place);
                assert_eq!(there, value.0.to_vec(), "the place of another record");
                there
            }
            StoredValue::At(place) => self.fetched_at(key, version, *place),
        };
        (version.seq, version.kind, value)
    }
}

fn owner() -> OwnerStamp {
    OwnerStamp::default()
}

fn names() -> Vec<ShardName> {
    Vec::new()
}

fn bytes(bytes: &[u8]) -> Payload {
    bytes.to_vec().into()
}

/// Limits of an answer and of the values in it.
fn limits(rng: &mut Rng) -> (usize, u32) {
    let answer = [130, 300, 1000, MESSAGE_BYTES_MAX][rng.usize(..4)];
    (answer, [0, 30, 1000][rng.usize(..3)])
}

#[test]
fn answers_to_gets_are_those_of_a_model() {
    let mut rng = Rng::with_seed(7);
    let mut cut = 0;
    for _ in 0..60 {
        let sample = Sample::new(&mut rng);
        for _ in 0..40 {
            let (answer_max, inline_max) = limits(&mut rng);
            let key = key_of(rng.usize(..22));
            let mut snapshot = SeqNo(rng.u64(..=sample.last_seq + 2));
            let floor = SeqNo(if rng.bool() { 0 } else { rng.u64(..=sample.last_seq + 1) });
            let expected = sample.expected(&key, floor, snapshot);
            let mut found = Vec::new();
            loop {
                let (owner, shards, key_bytes) = (owner(), names(), bytes(&key));
                let get = ShardMessage::Get {
                    owner,
                    shards,
                    key: key_bytes,
                    floor,
                    snapshot,
                    inline_max,
                    wants_place: rng.bool(),
                };
                let ShardMessage::Versions { found: part } = sample.ask(get, answer_max) else {
                    panic!("a refusal");
                };
                let versions = part.versions.iter();
                found.extend(versions.map(|v| sample.fetched(&key, v, inline_max)));
                let Some(resume) = part.resume else { break };
                assert!(!part.versions.is_empty(), "each answer has a version");
                (snapshot, cut) = (resume, cut + 1);
            }
            assert_eq!(found, expected);
        }
    }
    assert!(cut > 100, "{cut} answers were cut");
}

#[test]
fn answers_to_multi_gets_are_those_of_a_model() {
    let mut rng = Rng::with_seed(8);
    let mut rounds = 0;
    for _ in 0..60 {
        let sample = Sample::new(&mut rng);
        let (answer_max, inline_max) = limits(&mut rng);
        let snapshot = SeqNo(rng.u64(..=sample.last_seq + 2));
        let all: Vec<u32> = (0..sample.images.len() as u32).collect();
        let keys: Vec<Vec<u8>> = (0..rng.usize(1..12)).map(|_| key_of(rng.usize(..22))).collect();
        let mut next = 0;
        while next < keys.len() {
            rounds += 1;
            let ask =
                |key: &Vec<u8>| KeyAsk { key: bytes(key), floor: SeqNo::ZERO, within: all.clone() };
            let (owner, shards) = (owner(), names());
            let asks = keys[next..].iter().map(ask).collect();
            let wants_place = rng.bool();
            let multi =
                ShardMessage::MultiGet { owner, shards, asks, snapshot, inline_max, wants_place };
            let ShardMessage::ManyVersions { found } = sample.ask(multi, answer_max) else {
                panic!("a refusal");
            };
            assert!(!found.is_empty() && found.len() <= keys.len() - next);
            let count = found.len();
            for (at, one) in found.iter().enumerate() {
                let key = &keys[next + at];
                let expected = sample.expected(key, SeqNo::ZERO, snapshot);
                let versions = one.versions.iter();
                let versions: Vec<_> =
                    versions.map(|v| sample.fetched(key, v, inline_max)).collect();
                assert_eq!(versions, expected[..versions.len()]);
                let rest = expected.get(versions.len()).map(|(seq, ..)| *seq);
                assert_eq!(one.resume, rest, "it goes on where it was cut");
                assert!(one.resume.is_none() || at + 1 == count, "only the last one is cut");
            }
            next += count;
        }
    }
    assert!(rounds > 100, "{rounds} requests");
}

#[test]
fn pages_of_scans_are_those_of_a_model() {
    let mut rng = Rng::with_seed(9);
    let mut pages = 0;
    for _ in 0..150 {
        let sample = Sample::new(&mut rng);
        let (answer_max, inline_max) = limits(&mut rng);
        let snapshot = SeqNo(rng.u64(..=sample.last_seq + 2));
        let (start, end) = (rng.usize(..12), rng.usize(10..24));
        let keys = KeyRange {
            start: if start < 2 { Vec::new() } else { key_of(start) },
            end: (end < 22).then(|| key_of(end)),
        };
        let direction = if rng.bool() { Direction::Forward } else { Direction::Backward };
        let bytes_max = [0, 100, 500, 1 << 20][rng.usize(..4)];
        let mut expected = Vec::new();
        let mut within: Vec<_> = sample.model.keys().filter(|key| keys.contains(key)).collect();
        if direction == Direction::Backward {
            within.reverse();
        }
        for key in within {
            let versions = sample.expected(key, SeqNo::ZERO, snapshot);
            expected.extend(versions.into_iter().map(|version| (key.clone(), version)));
        }
        let (mut found, mut resume) = (Vec::new(), None);
        loop {
            pages += 1;
            let scan = ShardMessage::Scan {
                owner: owner(),
                shards: names(),
                keys: KeySpan(keys.clone()),
                resume,
                direction,
                snapshot,
                bytes_max,
                inline_max,
            };
            let ShardMessage::Page { records, end } = sample.ask(scan, answer_max) else {
                panic!("a refusal");
            };
            for PageRecord { key, version } in &records {
                found.push((key.0.to_vec(), sample.fetched(&key.0, version, inline_max)));
            }
            assert!(found.len() <= expected.len(), "a record came twice");
            resume = end.resume(&records);
            if resume.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "{direction:?} over {keys:?} at {snapshot}");
    }
    assert!(pages > 1000, "{pages} pages");
}

#[test]
fn limit_without_room_for_one_version_is_refused() {
    let mut rng = Rng::with_seed(1);
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    let (key, value) = (vec![b'k'; 100], vec![1; 500]);
    shard.insert(&key, SeqNo(1), Kind::Put, &value);
    shard.seal();
    let mut sample = Sample::new(&mut rng);
    sample.bytes = vec![Vec::new()];
    shard.write_image(&mut sample.bytes[0]).expect("sealed");
    sample.images = vec![SealedImage::open(sample.bytes[0].clone()).ok()];
    let (snapshot, inline_max) = (SeqNo::MAX, 1000);
    let scan = || ShardMessage::Scan {
        owner: owner(),
        shards: names(),
        keys: KeySpan::default(),
        resume: None,
        direction: Direction::Forward,
        snapshot,
        bytes_max: 4096,
        inline_max,
    };
    let refusal = ShardRefusal::at(ShardWhy::TooLarge, 150);
    assert_eq!(sample.ask(scan(), 150), ShardMessage::Refused { refusal });
    let ShardMessage::Page { records, end } = sample.ask(scan(), 300) else { panic!("refused") };
    assert!(matches!(records[0].version.value, StoredValue::At(_)), "it came by its place");
    assert_eq!(end, PageEnd::Finished);
}

#[test]
fn long_values_count_as_bytes_of_a_page() {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    (0..40u8).for_each(|at| shard.insert(&[at], SeqNo(1 + u64::from(at)), Kind::Put, &[1; 3000]));
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("sealed");
    let images = vec![SealedImage::open(bytes).ok()];
    for direction in [Direction::Forward, Direction::Backward] {
        for (inline_max, expected) in [(100, 4), (KEYS_ONLY_BYTES, 40)] {
            let ask = ShardMessage::Scan {
                owner: owner(),
                shards: names(),
                keys: KeySpan::default(),
                resume: None,
                direction,
                snapshot: SeqNo::MAX,
                bytes_max: 10_000,
                inline_max,
            };
            let order = ReadOrder { images: images.clone(), ask };
            let page = answer(&order, MESSAGE_BYTES_MAX, HostSabotage::default());
            let ShardMessage::Page { records, end } = page else { panic!("a refusal") };
            assert_eq!(records.len(), expected, "{direction:?} with {inline_max}");
            assert_eq!(end == PageEnd::Finished, expected == 40);
        }
    }
}

#[test]
fn page_ends_after_many_records_that_the_reader_does_not_see() {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    let hidden = STEPS_MAX as u64 + 10;
    (0..hidden).for_each(|at| shard.insert(&at.to_be_bytes(), SeqNo(at + 2), Kind::Put, b""));
    shard.insert(&hidden.to_be_bytes(), SeqNo(1), Kind::Put, b"seen");
    shard.insert(&u64::MAX.to_be_bytes(), SeqNo(hidden + 5), Kind::Put, b"");
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("sealed");
    let images = vec![SealedImage::open(bytes).ok()];
    // Backward, the first page has the record and is cut, and the second one has none.
    for (direction, expected) in [(Direction::Forward, 2), (Direction::Backward, 3)] {
        let (mut resume, mut pages, mut seen) = (None, 0, 0);
        loop {
            let ask = ShardMessage::Scan {
                owner: owner(),
                shards: names(),
                keys: KeySpan::default(),
                resume,
                direction,
                snapshot: SeqNo(1),
                bytes_max: 4096,
                inline_max: 100,
            };
            let order = ReadOrder { images: images.clone(), ask };
            let page = answer(&order, MESSAGE_BYTES_MAX, HostSabotage::default());
            let ShardMessage::Page { records, end } = page else { panic!("a refusal") };
            (pages, seen) = (pages + 1, seen + records.len());
            assert!(pages < 10, "the scan makes no progress");
            resume = end.resume(&records);
            if resume.is_none() {
                break;
            }
        }
        assert_eq!((pages, seen), (expected, 1), "{direction:?}");
    }
}

#[test]
fn indexes_of_a_multi_get_must_name_shards() {
    let sample = Sample::new(&mut Rng::with_seed(2));
    let within = vec![sample.images.len() as u32];
    let asks = vec![KeyAsk { key: bytes(b"k"), floor: SeqNo::ZERO, within }];
    let (owner, shards, snapshot) = (owner(), names(), SeqNo::MAX);
    let (inline_max, wants_place) = (0, false);
    let multi = ShardMessage::MultiGet { owner, shards, asks, snapshot, inline_max, wants_place };
    let refusal = ShardWhy::Malformed.into();
    assert_eq!(sample.ask(multi, 4096), ShardMessage::Refused { refusal });
}
