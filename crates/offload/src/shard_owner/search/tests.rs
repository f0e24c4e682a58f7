use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::budget::ByteBudget;
use archipelago_engine::lookup::Lookup;
use archipelago_engine::memtable::{RecordSpan, SealedImage, Shard, SlabPool};
use archipelago_engine::remote::{KeyAsk, ShardId, StoreNode};

use super::*;
use crate::wire::shard::{NodeShare, Version};

fn names() -> Vec<ShardName> {
    [30, 20, 10].map(|memtable| ShardName { epoch: Epoch(1), memtable, shard: 0 }).to_vec()
}

fn ask<'a>(keys: &[&'a [u8]], within: &[u32]) -> LookupAsk<'a> {
    let key = |key: &&'a [u8]| KeyAsk { key, floor: SeqNo(2), within: within.to_vec() };
    LookupAsk {
        node: StoreNode(1),
        shards: [30, 20, 10].map(|memtable| ShardId { memtable, shard: 0 }).to_vec(),
        keys: keys.iter().map(key).collect(),
        snapshot: SeqNo(100),
        keys_only: false,
        time_left: Duration::from_secs(10),
    }
}

fn version(seq: u64, kind: Kind, value: &str) -> Version {
    let value = StoredValue::Inline(value.as_bytes().to_vec().into());
    Version { seq: SeqNo(seq), kind, value }
}

fn by_place(seq: u64, kind: Kind, shard: u32, span: RecordSpan) -> Version {
    let value = StoredValue::At(RecordPlace { shard, at: span.at, len: span.len });
    Version { seq: SeqNo(seq), kind, value }
}

fn found(versions: Vec<Version>, resume: Option<u64>) -> shard::KeyVersions {
    shard::KeyVersions { versions, resume: resume.map(SeqNo) }
}

fn one(versions: Vec<Version>, resume: Option<u64>) -> ShardMessage {
    ShardMessage::Versions { found: found(versions, resume) }
}

fn shown(answer: &LookupAnswer) -> Vec<Vec<(u64, Vec<u8>)>> {
    let one = |version: &ShardVersion| (version.seq.0, version.value.as_ref().to_vec());
    answer.keys.iter().map(|key| key.versions.iter().map(one).collect()).collect()
}

/// A record of `key` in an image, with its span.
fn record(key: &[u8], seq: u64, value: &[u8]) -> (Vec<u8>, RecordSpan) {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    shard.insert(key, SeqNo(seq), Kind::Put, value);
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("an image");
    let mut span = None;
    let image = SealedImage::open(bytes.clone()).expect("an image");
    let lookup = Lookup::new(key, SeqNo::MAX);
    image
        .lookup_records(&lookup, |_, at| {
            span = Some(at);
            std::ops::ControlFlow::Break(())
        })
        .expect("sound");
    let span = span.expect("the key is there");
    (bytes[span.at as usize..][..span.len as usize].to_vec(), span)
}

#[test]
fn search_goes_on_in_the_middle_of_operands() {
    let (names, ask) = (names(), ask(&[b"k"], &[0, 2]));
    let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
    let Some(ShardMessage::Get { shards, snapshot, floor, inline_max, .. }) = search.next_request()
    else {
        panic!("a request");
    };
    assert_eq!(shards, [names[0], names[2]], "the shards of the key");
    assert_eq!((snapshot, floor, inline_max), (SeqNo(100), SeqNo(2), 50));
    let operands = vec![version(90, Kind::Merge, "c"), version(80, Kind::Merge, "b")];
    search.on_answer(one(operands, Some(70))).expect("sound");
    let next = search.next_request();
    assert!(matches!(next, Some(ShardMessage::Get { snapshot: SeqNo(70), .. })), "{next:?}");
    search.on_answer(one(vec![version(70, Kind::Put, "a")], None)).expect("sound");
    assert_eq!(search.next_request(), None);
    let all = [(90, b"c".to_vec()), (80, b"b".to_vec()), (70, b"a".to_vec())];
    assert_eq!(shown(&search.finish()), [all]);
}

#[test]
fn answer_with_some_of_the_keys_is_completed() {
    let names = names();
    let ask = ask(&[b"a", b"b", b"c", b"d"], &[1]);
    let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
    let request = search.next_request();
    let Some(ShardMessage::MultiGet { shards, asks, .. }) = request else { panic!("{request:?}") };
    assert_eq!((shards, asks.len()), (vec![names[1]], 4), "the shards of the keys");
    // The answer ends within the second key.
    let first = found(vec![version(9, Kind::Put, "1")], None);
    let cut = found(vec![version(8, Kind::Merge, "2")], Some(7));
    search.on_answer(ShardMessage::ManyVersions { found: vec![first, cut] }).expect("sound");
    let rest = search.next_request();
    let Some(ShardMessage::Get { key, snapshot: SeqNo(7), shards, .. }) = rest else {
        panic!("{rest:?}");
    };
    assert_eq!((&*key.0, shards), (&b"b"[..], vec![names[1]]));
    search.on_answer(one(vec![version(7, Kind::Delete, "")], None)).expect("sound");
    let request = search.next_request();
    assert!(matches!(request, Some(ShardMessage::MultiGet { ref asks, .. }) if asks.len() == 2));
    let none = found(Vec::new(), None);
    search.on_answer(ShardMessage::ManyVersions { found: vec![none] }).expect("sound");
    let request = search.next_request();
    assert!(matches!(request, Some(ShardMessage::Get { ref key, .. }) if &*key.0 == b"d"));
    search.on_answer(one(Vec::new(), None)).expect("sound");
    assert_eq!(search.next_request(), None);
    let second = vec![(8, b"2".to_vec()), (7, Vec::new())];
    assert_eq!(shown(&search.finish()), [vec![(9, b"1".to_vec())], second, vec![], vec![]]);
}

#[test]
fn many_keys_take_several_requests() {
    let long: Vec<Vec<u8>> = (0..5u8).map(|number| vec![number; 60_000]).collect();
    let keys: Vec<&[u8]> = long.iter().map(|key| &key[..]).collect();
    let (names, ask) = (names(), ask(&keys, &[0, 1, 2]));
    let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
    let mut sizes = Vec::new();
    while let Some(request) = search.next_request() {
        assert!(request.encode().len() < archipelago_fabric::MESSAGE_BYTES_MAX);
        let count = match &request {
            ShardMessage::MultiGet { asks, .. } => asks.len(),
            _ => 1,
        };
        sizes.push(count);
        let none = || found(Vec::new(), None);
        let answer = match count {
            1 => one(Vec::new(), None),
            _ => ShardMessage::ManyVersions { found: (0..count).map(|_| none()).collect() },
        };
        search.on_answer(answer).expect("sound");
    }
    assert_eq!(sizes, [2, 2, 1]);
}

#[test]
fn request_names_the_shards_of_its_keys_only() {
    const SHARDS: u32 = 12_000;
    let names: Vec<ShardName> = (0..SHARDS)
        .map(|shard| ShardName { epoch: Epoch(1), memtable: 9, shard: SHARDS - shard })
        .collect();
    let keys: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
    let mut ask = ask(&keys, &[]);
    // The keys have shards of their own, two thousand each.
    for (key, first) in ask.keys.iter_mut().zip((0..).step_by(2000)) {
        key.within = (first..first + 2000).collect();
    }
    let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
    let mut sizes = Vec::new();
    let span = RecordSpan { at: 8, len: 100 };
    while let Some(request) = search.next_request() {
        assert!(request.encode().len() < archipelago_fabric::MESSAGE_BYTES_MAX);
        let ShardMessage::MultiGet { shards, asks, .. } = request else { panic!("several keys") };
        sizes.push(asks.len());
        // Each key has a value in the last of its shards.
        let last = asks.iter().map(|asked| *asked.within.last().expect("shards"));
        let last: Vec<u32> = last.collect();
        assert!(last.iter().all(|at| (*at as usize) < shards.len()));
        let one = |at: &u32| found(vec![by_place(5, Kind::Put, *at, span)], None);
        let answer = ShardMessage::ManyVersions { found: last.iter().map(one).collect() };
        search.on_answer(answer).expect("sound");
    }
    assert_eq!(sizes, [3, 3]);
    let places: Vec<(usize, usize)> =
        search.records().iter().map(|at| (at.key, at.shard)).collect();
    assert_eq!(places, (0..6).map(|key| (key, 2000 * key + 1999)).collect::<Vec<_>>());
}

#[test]
fn long_value_is_read_and_verified() {
    let (bytes, span) = record(b"k", 42, &[7; 5000]);
    let (names, ask) = (names(), ask(&[b"k"], &[1, 2]));
    let search = || {
        let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
        search.next_request();
        search.on_answer(one(vec![by_place(42, Kind::Put, 1, span)], None)).expect("sound");
        assert_eq!(search.next_request(), None);
        search
    };
    let mut sound = search();
    let at = sound.records()[0];
    assert_eq!((at.shard, at.at, at.len), (2, span.at, span.len), "the second shard of the key");
    assert!(sound.on_record(at, &bytes));
    assert_eq!(shown(&sound.finish()), [vec![(42, vec![7; 5000])]]);
    let mut damaged = bytes.clone();
    damaged[2000] ^= 1;
    assert!(!search().on_record(at, &damaged));
    for (key, seq) in [(&b"j"[..], 42), (&b"k"[..], 41)] {
        let (other, _) = record(key, seq, &[7; 5000]);
        assert!(!search().on_record(at, &other), "a record of another key or number");
    }
}

#[test]
fn place_of_a_put_is_told_if_it_is_the_newest_version() {
    let placed = |seq, kind| {
        let place = RecordPlace { shard: 0, at: seq, len: 30 };
        let value = StoredValue::Placed { value: b"v".to_vec().into(), place };
        Version { seq: SeqNo(seq), kind, value }
    };
    let newest = |versions: Vec<Version>, wants_place| {
        let (names, ask) = (names(), ask(&[b"k"], &[1, 2]));
        let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, wants_place);
        let request = search.next_request();
        let asks = matches!(request, Some(ShardMessage::Get { wants_place: true, .. }));
        assert_eq!(asks, wants_place);
        search.on_answer(one(versions, None)).expect("sound");
        search.newest().to_vec()
    };
    let offset = CachedOffset { at: 42, len: 30, seq: SeqNo(42), kind: Kind::Put };
    let put = NewestPut { key: 0, shard: 1, offset };
    assert_eq!(newest(vec![placed(42, Kind::Put)], true), [put]);
    assert_eq!(newest(vec![placed(42, Kind::Put)], false), []);
    assert_eq!(newest(vec![placed(42, Kind::Delete)], true), []);
    let folded = vec![version(43, Kind::Merge, "+"), placed(42, Kind::Put)];
    assert_eq!(newest(folded, true), [], "an operand is newer");
    let long = by_place(42, Kind::Put, 0, RecordSpan { at: 42, len: 30 });
    assert_eq!(newest(vec![long], true), [put], "also that of a long value");
}

#[test]
fn reader_of_keys_needs_long_values_of_expiring_records_only() {
    let (names, mut ask) = (names(), ask(&[b"k", b"l"], &[0]));
    ask.keys_only = true;
    let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
    let request = search.next_request();
    assert!(matches!(request, Some(ShardMessage::MultiGet { inline_max: KEYS_ONLY_BYTES, .. })));
    let span = RecordSpan { at: 8, len: 100 };
    let put = found(vec![by_place(5, Kind::Put, 0, span)], None);
    let expiring = found(vec![by_place(6, Kind::PutExpiring, 0, span)], None);
    search.on_answer(ShardMessage::ManyVersions { found: vec![put, expiring] }).expect("sound");
    assert_eq!(search.records().iter().map(|at| at.key).collect::<Vec<_>>(), [1]);
}

#[test]
fn contradicting_answers_are_errors() {
    let (names, ask) = (names(), ask(&[b"k"], &[0, 1]));
    let span = RecordSpan { at: 8, len: 100 };
    let put = |seq| version(seq, Kind::Put, "v");
    for (answer, what) in [
        (one(vec![put(101)], None), "above the snapshot"),
        (one(vec![put(9), put(8)], None), "behind the end"),
        (one(vec![version(8, Kind::Merge, ""), put(8)], None), "the same number twice"),
        (one(vec![put(9)], Some(8)), "goes on behind the end"),
        (one(vec![version(8, Kind::Merge, "")], Some(8)), "goes on where it was"),
        (one(Vec::new(), Some(50)), "goes on without versions"),
        (one(vec![by_place(9, Kind::Put, 2, span)], None), "a shard of another key"),
        (ShardMessage::ManyVersions { found: vec![found(Vec::new(), None)] }, "another kind"),
        (ShardMessage::Done { shards: 1, share: NodeShare::default() }, "another kind"),
    ] {
        let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
        search.next_request();
        assert!(search.on_answer(answer).is_err(), "{what}");
        assert!(search.on_answer(one(Vec::new(), None)).is_err(), "nothing was asked");
    }
}

#[test]
fn answers_about_several_keys_that_contradict_are_errors() {
    let (names, ask) = (names(), ask(&[b"k", b"l"], &[0]));
    let none = || found(Vec::new(), None);
    let cut = || found(vec![version(8, Kind::Merge, "")], Some(7));
    for answer in [vec![], vec![none(), none(), none()], vec![cut(), none()]] {
        let mut search = Search::new(OwnerStamp::default(), &ask, &names, 50, false);
        search.next_request();
        assert!(search.on_answer(ShardMessage::ManyVersions { found: answer }).is_err());
    }
}
