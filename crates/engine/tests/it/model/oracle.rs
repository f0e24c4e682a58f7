//! The model: the whole history of every key in a `BTreeMap`, read by the documented rules.

use std::collections::BTreeMap;
use std::fmt;

use archipelago_engine::extension::{CompactionFilter, FilterDecision};

use super::steps::universe;

/// One kind of change of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Put(Vec<u8>),
    /// Value and expiry.
    Expiring(Vec<u8>, u64),
    Delete,
    Merge(Vec<u8>),
}

/// One entry of a key's history.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) seq: u64,
    pub(crate) event: Event,
    pub(crate) logged: bool,
}

/// Result of a read of a key.
#[derive(Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) seq: u64,
}

/// The alternate form leaves the sequence number out.
impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = self.value.get(..12).unwrap_or(&self.value).escape_ascii();
        let (key, len) = (self.key.escape_ascii(), self.value.len());
        match f.alternate() {
            true => write!(f, "{key}={head}({len})")?,
            false => write!(f, "{key}@{}={head}({len})", self.seq)?,
        }
        self.expires_at_ms.map_or(Ok(()), |expiry| write!(f, " until {expiry}"))
    }
}

/// The compaction filter of the family "filtered". Among values with a filling, it removes those of
/// every third stamp, and changes those of the stamps after them. Values that were folded from
/// operands end like a stamp, and stay. A changed value stays as it is.
pub(crate) struct RemoveThirds;

/// Byte after the stamp of a changed value.
const CHANGED: u8 = b'~';

impl RemoveThirds {
    fn decision(value: &[u8]) -> FilterDecision {
        let end = value.iter().position(|&byte| byte == b'>').unwrap_or(0);
        let (head, filling) = value.split_at((end + 1).min(value.len()));
        let digits = head.strip_prefix(b"<").and_then(|rest| rest.strip_suffix(b">"));
        let stamp = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
        let Some(stamp) = stamp.filter(|_| !value.ends_with(b">")) else {
            return FilterDecision::Keep;
        };
        match (stamp % 3, filling) {
            (0, _) => FilterDecision::Remove,
            (1, [first, ..]) if *first != CHANGED => {
                // Half of them become large, and the others small.
                let large = [filling; 4].concat();
                let changed = if stamp.is_multiple_of(2) { &large[..] } else { &filling[..1] };
                FilterDecision::Change([head, &[CHANGED], changed, b"."].concat())
            }
            _ => FilterDecision::Keep,
        }
    }
}

impl CompactionFilter for RemoveThirds {
    fn name(&self) -> &str {
        "remove-thirds"
    }

    fn filter(&self, _: &[u8], value: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        Self::decision(value)
    }
}

/// Result of the filter for a value.
fn decided(value: &[u8], filter: impl Fn(&[u8]) -> FilterDecision) -> Option<Vec<u8>> {
    match filter(value) {
        FilterDecision::Keep => Some(value.to_vec()),
        FilterDecision::Change(changed) => Some(changed),
        FilterDecision::Remove => None,
    }
}

/// A column family's histories, oldest version first.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) name: String,
    /// Values are counters, merged by addition; otherwise a merge appends.
    pub(crate) counter: bool,
    /// [`RemoveThirds`] may remove or change values at any time.
    pub(crate) filtered: bool,
    histories: BTreeMap<Vec<u8>, Vec<Version>>,
    /// Sequence numbers at which a memtable was sealed, oldest first.
    pub(crate) seals: Vec<u64>,
}

impl Family {
    pub(crate) fn new(name: &str, counter: bool) -> Self {
        let filtered = name == "filtered";
        let (name, histories) = (name.to_owned(), BTreeMap::new());
        Self { name, counter, filtered, histories, seals: Vec::new() }
    }

    /// The value of a stamp.
    pub(crate) fn value(&self, stamp: u64, len: usize) -> Vec<u8> {
        if self.counter {
            return stamp.to_le_bytes().to_vec();
        }
        let mut value = format!("<{stamp}>").into_bytes();
        value.extend((0..len).map(|at| (stamp as usize * 31 + at * at) as u8));
        value
    }

    pub(crate) fn add(&mut self, key: &[u8], version: Version) {
        self.histories.entry(key.to_vec()).or_default().push(version);
    }

    pub(crate) fn delete_range(&mut self, start: &[u8], end: &[u8], seq: u64, logged: bool) {
        for key in universe() {
            if start <= key.as_slice() && key.as_slice() < end {
                self.add(&key, Version { seq, event: Event::Delete, logged });
            }
        }
    }

    /// Result of a read at `at` at the time `now_ms`, if the filter has changed nothing.
    pub(crate) fn read(&self, key: &[u8], at: u64, now_ms: u64) -> Option<Row> {
        self.read_after(key, at, now_ms, |_| FilterDecision::Keep)
    }

    /// The other possible result of a read, if the filter may have changed it.
    pub(crate) fn read_filtered(&self, key: &[u8], at: u64, now_ms: u64) -> Option<Option<Row>> {
        let removed = self.read_after(key, at, now_ms, RemoveThirds::decision);
        (self.filtered && removed != self.read(key, at, now_ms)).then_some(removed)
    }

    /// Whether a read may return exactly `rows`.
    pub(crate) fn accepts(&self, rows: &[Row], at: u64, now_ms: u64) -> bool {
        let may_be = |key: &Vec<u8>| {
            let found = rows.iter().find(|row| row.key == *key).cloned();
            found == self.read(key, at, now_ms)
                || self.read_filtered(key, at, now_ms).is_some_and(|removed| removed == found)
        };
        self.histories.keys().all(may_be)
            && rows.iter().all(|row| self.histories.contains_key(&row.key))
    }

    fn read_after(
        &self,
        key: &[u8],
        at: u64,
        now_ms: u64,
        filter: impl Fn(&[u8]) -> FilterDecision,
    ) -> Option<Row> {
        let mut operands: Vec<&[u8]> = Vec::new();
        let (mut base, mut expires_at_ms, mut newest) = (None, None, None);
        for version in self.histories.get(key)?.iter().rev().filter(|v| v.seq <= at) {
            newest.get_or_insert(version.seq);
            match &version.event {
                Event::Merge(operand) => {
                    operands.push(operand);
                    continue;
                }
                Event::Put(value) => base = decided(value, &filter),
                Event::Expiring(value, expiry) if *expiry > now_ms => {
                    base = decided(value, &filter);
                    expires_at_ms = base.as_ref().map(|_| *expiry);
                }
                Event::Expiring(..) | Event::Delete => {}
            }
            break;
        }
        if base.is_none() && operands.is_empty() {
            return None;
        }
        let mut value = base.unwrap_or_default();
        for operand in operands.iter().rev() {
            if self.counter {
                let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
                let sum = number(&value).wrapping_add(number(operand));
                value = sum.to_le_bytes().to_vec();
            } else {
                value.extend_from_slice(operand);
            }
        }
        Some(Row { key: key.to_vec(), value, expires_at_ms, seq: newest? })
    }

    /// All rows that a reader at `at` finds.
    pub(crate) fn rows(&self, at: u64, now_ms: u64) -> Vec<Row> {
        self.histories.keys().filter_map(|key| self.read(key, at, now_ms)).collect()
    }

    /// The newest change of a key.
    pub(crate) fn newest(&self, key: &[u8]) -> Option<u64> {
        Some(self.histories.get(key)?.last()?.seq)
    }

    /// The newest change of any key.
    pub(crate) fn newest_of_all(&self) -> u64 {
        self.histories
            .values()
            .filter_map(|versions| versions.last())
            .map(|v| v.seq)
            .max()
            .unwrap_or(0)
    }

    /// The family as a kill of the process would leave it, with all memory after `flushed` not
    /// flushed.
    pub(crate) fn without_unlogged_after(&self, flushed: u64) -> Self {
        let mut left = self.clone();
        for versions in left.histories.values_mut() {
            versions.retain(|version| version.logged || version.seq <= flushed);
        }
        left
    }

    /// Notes that all records are in files or the log permanently.
    pub(crate) fn settle(&mut self) {
        self.seals.clear();
        self.histories.values_mut().flatten().for_each(|version| version.logged = true);
    }
}
