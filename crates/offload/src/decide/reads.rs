//! Pure decisions about reads of memtable shards at memory nodes (O³-LSM §4.5): the path of a
//! look-up, and the longest value of an answer.
//!
//! Cost: O(1) for each.

use archipelago_base::SeqNo;
use archipelago_engine::key::Kind;
use archipelago_engine::remote::ShardId;

/// A look-up prefers a READ that takes up to one part in this many longer than a request.
const READ_SLACK: u64 = 16;
/// Longest value of an answer, in bytes, while the times of the link are not measured.
const INLINE_BYTES_DEFAULT: u32 = 16 << 10;
/// Bounds of the longest value of an answer, in bytes.
const INLINE_BYTES: std::ops::RangeInclusive<u64> = 64..=64 << 10;

/// Measured figures of the links to one node. Each is 0 before it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFigures {
    /// Whether the link shares the memory of the node, so that a READ is a copy by the reader's own
    /// processor.
    pub is_shared: bool,
    /// Whether a recent READ got no answer, so that the next one may wait in vain.
    pub is_unanswered: bool,
    /// Time of a short READ, in nanoseconds.
    pub read_ns: u64,
    /// Time of a look-up with a short answer, in nanoseconds.
    pub request_ns: u64,
    /// Speed at which the bytes of long answers arrive, in bytes a second.
    pub answer_bytes_per_s: u64,
}

/// A record whose place in the image of a shard is known, as the newest version of its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRecord {
    /// Shard that has the record.
    pub shard: ShardId,
    /// Sequence number of the record.
    pub seq: SeqNo,
    /// Kind of the record.
    pub kind: Kind,
}

/// A look-up of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLookup {
    /// First shard in the order of the search whose filter passes the key; `None` if none does.
    pub first: Option<ShardId>,
    /// Largest sequence number that the reader sees.
    pub snapshot: SeqNo,
    /// Sequence number of the newest range tombstone over the key.
    pub floor: SeqNo,
}

/// The path of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// No shard has the key.
    Nothing,
    /// One READ of the known record.
    Read,
    /// A request to the node, although a known record answers. A request is faster on this link.
    RequestIsFaster,
    /// A request to the node, because no known record answers, or READs get no answer now.
    Request,
}

impl KnownRecord {
    /// Whether the record alone answers a look-up. Its shard must be the first that may have the
    /// key, and the reader must see it. No tombstone may cover it, and it must be a put, which
    /// needs no older version.
    fn answers(&self, lookup: &KeyLookup) -> bool {
        let is_put = matches!(self.kind, Kind::Put | Kind::PutExpiring);
        let is_seen = (lookup.floor..=lookup.snapshot).contains(&self.seq);
        is_put && is_seen && lookup.first == Some(self.shard)
    }
}

/// Chooses the path of a look-up. `known` is the record that the key-offset cache knows of the key.
#[must_use]
pub fn read_path(known: Option<&KnownRecord>, lookup: &KeyLookup, link: &LinkFigures) -> ReadPath {
    if lookup.first.is_none() {
        return ReadPath::Nothing;
    }
    if link.is_unanswered || !known.is_some_and(|known| known.answers(lookup)) {
        return ReadPath::Request;
    }
    let is_measured = link.read_ns > 0 && link.request_ns > 0;
    // If both take about the same time, a READ is better, because it uses no processor time of the
    // node.
    let bound_ns = link.request_ns.saturating_add(link.request_ns / READ_SLACK);
    let is_read_faster = link.is_shared || !is_measured || link.read_ns <= bound_ns;
    if is_read_faster { ReadPath::Read } else { ReadPath::RequestIsFaster }
}

/// Length in bytes of the longest value that an answer contains; a longer value is read one-sided.
/// It is the number of bytes that an answer carries in the time of a READ, between 64 bytes and 64
/// KiB. Before both are measured it is 16 KiB.
#[must_use]
pub fn inline_max(link: &LinkFigures) -> u32 {
    if link.read_ns == 0 || link.answer_bytes_per_s == 0 {
        return INLINE_BYTES_DEFAULT;
    }
    let bytes = u128::from(link.read_ns) * u128::from(link.answer_bytes_per_s) / 1_000_000_000;
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    bytes.clamp(*INLINE_BYTES.start(), *INLINE_BYTES.end()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ShardId = ShardId { memtable: 7, shard: 1 };
    const OLDER: ShardId = ShardId { memtable: 6, shard: 1 };

    fn known() -> KnownRecord {
        KnownRecord { shard: FIRST, seq: SeqNo(50), kind: Kind::Put }
    }

    fn lookup() -> KeyLookup {
        KeyLookup { first: Some(FIRST), snapshot: SeqNo(60), floor: SeqNo(0) }
    }

    fn path(known: KnownRecord, lookup: KeyLookup) -> ReadPath {
        read_path(Some(&known), &lookup, &LinkFigures::default())
    }

    #[test]
    fn only_the_newest_put_of_the_first_shard_answers() {
        assert_eq!(path(known(), lookup()), ReadPath::Read);
        let expiring = KnownRecord { kind: Kind::PutExpiring, ..known() };
        assert_eq!(path(expiring, lookup()), ReadPath::Read, "the owner judges the expiry");
        for kind in [Kind::Delete, Kind::Merge, Kind::Indirect] {
            assert_eq!(path(KnownRecord { kind, ..known() }, lookup()), ReadPath::Request);
        }
        let older = KnownRecord { shard: OLDER, ..known() };
        assert_eq!(path(older, lookup()), ReadPath::Request, "a newer shard may have the key");
        let none = KeyLookup { first: None, ..lookup() };
        assert_eq!(path(known(), none), ReadPath::Nothing);
        assert_eq!(read_path(None, &lookup(), &LinkFigures::default()), ReadPath::Request);
    }

    #[test]
    fn record_that_the_reader_does_not_see_is_not_read() {
        let at = |snapshot, floor| KeyLookup {
            snapshot: SeqNo(snapshot),
            floor: SeqNo(floor),
            ..lookup()
        };
        assert_eq!(path(known(), at(50, 0)), ReadPath::Read);
        assert_eq!(path(known(), at(49, 0)), ReadPath::Request, "of an older snapshot");
        assert_eq!(path(known(), at(60, 50)), ReadPath::Read);
        assert_eq!(path(known(), at(60, 51)), ReadPath::Request, "a tombstone covers it");
    }

    #[test]
    fn faster_way_is_taken_once_both_are_measured() {
        let link = |is_shared, read_ns, request_ns| LinkFigures {
            is_shared,
            read_ns,
            request_ns,
            ..LinkFigures::default()
        };
        let table = [
            (link(false, 0, 0), ReadPath::Read),
            (link(false, 9, 0), ReadPath::Read),
            (link(false, 20, 20), ReadPath::Read),
            (link(false, 171, 160), ReadPath::RequestIsFaster),
            (link(false, 170, 160), ReadPath::Read),
            (link(true, 400, 160), ReadPath::Read),
        ];
        for (link, expected) in table {
            assert_eq!(read_path(Some(&known()), &lookup(), &link), expected, "{link:?}");
        }
    }

    #[test]
    fn node_is_asked_while_reads_get_no_answer() {
        for is_shared in [false, true] {
            let link = LinkFigures {
                is_shared,
                is_unanswered: true,
                read_ns: 1,
                ..LinkFigures::default()
            };
            assert_eq!(read_path(Some(&known()), &lookup(), &link), ReadPath::Request);
            let none = KeyLookup { first: None, ..lookup() };
            assert_eq!(read_path(Some(&known()), &none, &link), ReadPath::Nothing);
        }
    }

    #[test]
    fn longest_value_of_an_answer_takes_the_time_of_a_read() {
        let link = |read_ns, answer_bytes_per_s| LinkFigures {
            read_ns,
            answer_bytes_per_s,
            ..LinkFigures::default()
        };
        assert_eq!(inline_max(&link(0, 1 << 30)), 16 << 10);
        assert_eq!(inline_max(&link(1000, 0)), 16 << 10);
        // 30 µs at 125 MB/s.
        assert_eq!(inline_max(&link(30_000, 125_000_000)), 3750);
        assert_eq!(inline_max(&link(150, 100_000_000)), 64);
        assert_eq!(inline_max(&link(10_000_000, 1 << 40)), 64 << 10);
        assert_eq!(inline_max(&link(u64::MAX, u64::MAX)), 64 << 10);
    }
}
