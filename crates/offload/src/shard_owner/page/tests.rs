use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::budget::ByteBudget;
use archipelago_engine::memtable::{SealedImage, Shard, SlabPool};
use archipelago_engine::remote::{ShardId, StoreNode};

use super::*;
use crate::wire::shard::{NodeShare, Version};

const SHARDS: [ShardId; 2] = [ShardId { memtable: 2, shard: 0 }, ShardId { memtable: 1, shard: 0 }];

fn range() -> KeyRange {
    KeyRange { start: b"b".to_vec(), end: Some(b"y".to_vec()) }
}

fn ask<'a>(
    keys: &'a KeyRange,
    resume: Option<&'a remote::ResumeAt>,
    direction: ScanDirection,
) -> ScanAsk<'a> {
    ScanAsk {
        node: StoreNode(1),
        shards: &SHARDS,
        keys,
        resume,
        direction,
        snapshot: SeqNo(100),
        bytes_max: 1000,
        keys_only: false,
        time_left: Duration::from_secs(10),
    }
}

fn at(key: &str, seq: Option<u64>) -> remote::ResumeAt {
    remote::ResumeAt { key: key.as_bytes().to_vec(), seq: seq.map(SeqNo) }
}

fn wire_at(key: &str, seq: Option<u64>) -> PageEnd {
    let resume = at(key, seq);
    PageEnd::At(ResumeAt { key: resume.key.into(), seq: resume.seq })
}

fn record(key: &str, seq: u64, kind: Kind) -> PageRecord {
    let value = StoredValue::Inline(b"v".to_vec().into());
    let version = Version { seq: SeqNo(seq), kind, value };
    PageRecord { key: key.as_bytes().to_vec().into(), version }
}

fn page(records: Vec<PageRecord>, end: PageEnd) -> ShardMessage {
    ShardMessage::Page { records, end }
}

#[test]
fn page_goes_on_after_its_last_record() {
    let keys = range();
    let ask = ask(&keys, None, ScanDirection::Forward);
    let records = vec![record("b", 7, Kind::Put), record("c", 9, Kind::Merge)];
    let reader = PageReader::new(&ask, page(records, PageEnd::AfterLast)).expect("sound");
    let page = reader.finish();
    assert_eq!(page.records[1].key, key::encode(b"c", SeqNo(9), Kind::Merge));
    assert_eq!(page.records[1].value.as_ref(), b"v");
    assert_eq!(page.resume, Some(at("c", Some(8))));
}

#[test]
fn pages_in_the_order_of_the_scan_are_accepted() {
    let keys = range();
    let three = || {
        vec![record("c", 9, Kind::Merge), record("c", 8, Kind::Put), record("d", 50, Kind::Delete)]
    };
    let mut backward = three();
    backward.rotate_right(1);
    for (records, direction) in
        [(three(), ScanDirection::Forward), (backward, ScanDirection::Backward)]
    {
        let ask = ask(&keys, None, direction);
        let reader = PageReader::new(&ask, page(records, PageEnd::Finished)).expect("sound");
        assert_eq!(reader.finish().resume, None);
    }
    // The first record may be at the place where the page before ended.
    let from = at("c", Some(9));
    let ask = ask(&keys, Some(&from), ScanDirection::Forward);
    assert!(PageReader::new(&ask, page(three(), PageEnd::Finished)).is_ok());
}

#[test]
fn page_without_records_goes_on() {
    let keys = range();
    let from = at("c", Some(9));
    let ask = ask(&keys, Some(&from), ScanDirection::Forward);
    for (key, seq) in [("c", Some(8)), ("c", None), ("d", Some(100))] {
        let reader = PageReader::new(&ask, page(Vec::new(), wire_at(key, seq))).expect("sound");
        assert_eq!(reader.finish().resume, Some(at(key, seq)));
    }
}

#[test]
fn contradicting_pages_are_errors() {
    let keys = range();
    let from = at("d", None);
    let put = |key: &str, seq| record(key, seq, Kind::Put);
    let forward = |records, end| (ScanDirection::Forward, records, end);
    for (number, (direction, records, end)) in [
        forward(vec![put("y", 1)], PageEnd::Finished),
        forward(vec![put("a", 1)], PageEnd::Finished),
        forward(vec![put("d", 1)], PageEnd::Finished),
        forward(vec![put("e", 101)], PageEnd::Finished),
        forward(vec![put("f", 1), put("e", 1)], PageEnd::Finished),
        forward(vec![put("e", 2), put("e", 1)], PageEnd::Finished),
        forward(vec![record("e", 2, Kind::Merge), put("e", 2)], PageEnd::Finished),
        forward(vec![], PageEnd::AfterLast),
        forward(vec![], wire_at("d", None)),
        forward(vec![], wire_at("d", Some(5))),
        forward(vec![], wire_at("c", None)),
        forward(vec![], wire_at("y", None)),
        forward(vec![put("m", 1)], wire_at("e", None)),
        forward(vec![put("e", 1)], wire_at("m", None)),
        (ScanDirection::Backward, vec![put("e", 1)], PageEnd::Finished),
        (ScanDirection::Backward, vec![put("b", 1), put("c", 1)], PageEnd::Finished),
        (ScanDirection::Backward, vec![], wire_at("e", None)),
    ]
    .into_iter()
    .enumerate()
    {
        let ask = ask(&keys, Some(&from), direction);
        assert!(PageReader::new(&ask, page(records, end)).is_err(), "case {number}");
    }
    let first = ask(&keys, None, ScanDirection::Forward);
    assert!(
        PageReader::new(&first, ShardMessage::Done { shards: 0, share: NodeShare::default() })
            .is_err()
    );
}

#[test]
fn long_value_of_a_page_is_read_and_verified() {
    let shard = Shard::new(&SlabPool::new(ByteBudget::unlimited()));
    shard.insert(b"k", SeqNo(7), Kind::Put, &[5; 3000]);
    shard.insert(b"l", SeqNo(8), Kind::Put, &[6; 3000]);
    shard.seal();
    let mut bytes = Vec::new();
    shard.write_image(&mut bytes).expect("an image");
    let image = SealedImage::open(bytes.clone()).expect("an image");
    let span = |key: &[u8]| {
        let mut span = None;
        let lookup = archipelago_engine::lookup::Lookup::new(key, SeqNo::MAX);
        let found = image.lookup_records(&lookup, |_, at| {
            span = Some(at);
            std::ops::ControlFlow::Break(())
        });
        found.expect("sound");
        span.expect("the key is there")
    };
    let (here, other) = (span(b"k"), span(b"l"));
    let value = StoredValue::At(RecordPlace { shard: 1, at: here.at, len: here.len });
    let version = Version { seq: SeqNo(7), kind: Kind::Put, value };
    let records = vec![PageRecord { key: b"k".to_vec().into(), version }];
    let keys = range();
    let ask = ask(&keys, None, ScanDirection::Forward);
    let mut reader = PageReader::new(&ask, page(records, PageEnd::Finished)).expect("sound");
    let at = reader.records()[0];
    assert_eq!((at.shard, at.at), (1, here.at));
    assert!(!reader.on_record(at, &bytes[other.at as usize..][..other.len as usize]));
    assert!(reader.on_record(at, &bytes[here.at as usize..][..here.len as usize]));
    assert_eq!(reader.finish().records[0].value.as_ref(), [5; 3000]);
}

#[test]
fn page_with_long_values_is_cut() {
    let keys = range();
    let long = |key: &str, seq, kind, len| {
        let value = StoredValue::At(RecordPlace { shard: 0, at: 0, len });
        PageRecord { version: Version { seq: SeqNo(seq), kind, value }, ..record(key, seq, kind) }
    };
    let records = || {
        vec![
            record("c", 9, Kind::Put),
            long("d", 8, Kind::Merge, 600),
            long("d", 7, Kind::Put, 600),
            record("e", 6, Kind::Put),
        ]
    };
    let mut ask = ask(&keys, None, ScanDirection::Forward);
    let reader = PageReader::new(&ask, page(records(), PageEnd::Finished)).expect("sound");
    assert_eq!(reader.records().len(), 1, "only the values of the page are read");
    let cut = reader.finish();
    assert_eq!((cut.records.len(), cut.resume), (2, Some(at("d", Some(7)))));
    // A page has one record at least.
    let one = vec![long("d", 7, Kind::Put, u64::MAX), record("e", 6, Kind::Put)];
    let reader = PageReader::new(&ask, page(one, PageEnd::Finished)).expect("sound");
    let cut = reader.finish();
    assert_eq!((cut.records.len(), cut.resume), (1, Some(at("d", None))));
    ask.keys_only = true;
    let reader = PageReader::new(&ask, page(records(), PageEnd::Finished)).expect("sound");
    let whole = reader.finish();
    assert_eq!((whole.records.len(), whole.resume), (4, None), "nobody reads the values");
}

#[test]
fn request_says_what_the_reader_wants() {
    let keys = range();
    let from = at("d", Some(4));
    let mut wanted = ask(&keys, Some(&from), ScanDirection::Backward);
    let names = SHARDS.map(|id| ShardName { epoch: Epoch(1), memtable: id.memtable, shard: 0 });
    let message = request(OwnerStamp::default(), &wanted, &names, 500, 70);
    let ShardMessage::Scan { shards, resume, direction, bytes_max, inline_max, .. } = message
    else {
        panic!("a scan");
    };
    assert_eq!(
        (&shards[..], direction, bytes_max, inline_max),
        (&names[..], Direction::Backward, 500, 70)
    );
    assert_eq!(resume, Some(ResumeAt { key: b"d".to_vec().into(), seq: Some(SeqNo(4)) }));
    wanted.keys_only = true;
    let message = request(OwnerStamp::default(), &wanted, &names, 500, 70);
    assert!(matches!(message, ShardMessage::Scan { inline_max: KEYS_ONLY_BYTES, .. }));
}
