//! A cursor over memtable shards that are at one memory node.
//!
//! A cursor has all shards of a super version at the node, of any memtable and bucket. The key
//! ranges of the shards cut the keys into pieces. A request names the shards that have keys of one
//! piece, and a page never reaches over the end of its piece.
//!
//! The cursor has a *window*: the records of a range of user keys that its snapshot sees and that
//! no newer version hides, in order. A page of the node gives the window when the cursor is placed.
//! A step past the end of the window gets the next window, in the direction of the step. A window
//! always covers whole user keys. If a page ends between two versions of a key, further pages
//! follow until the key is whole. So the records on both sides of an edge never mix, and both
//! directions show the same records.
//!
//! A cursor over memory also shows the versions that the snapshot does not see, and those that
//! newer versions of the same shards hide. This cursor leaves both out. The user's iterator would
//! pass over them anyway.
//!
//! Once a shard has its copy in memory ([`crate::db::state::away`]), the cursor goes on in the
//! copy, from the edge at which it needed a page. If the shards lie at several nodes by then, the
//! cursor goes on with one cursor for each node. The cursor waits for a lost shard while that is
//! rebuilt. The node may lack one of several shards. Then the cursor asks for each shard alone,
//! because only one of them may be lost. A shard that was released meanwhile is not lost.
//!
//! Invariants:
//! 1. A page that cannot be read makes the cursor invalid with an error. It never counts as the end
//!    of the scan.
//! 2. A window covers the user keys `start..end`, and has every record of them that the cursor
//!    shows.
//!
//! Thread-safety: a cursor belongs to one thread at a time.
//! Failure: `Busy` if the node does not answer before the deadline, or if the read has
//! `cache_only`. All cursors of an iterator share one deadline in each move of the iterator. A
//! cursor that has got a page in the same move has made progress, so its next page has a deadline
//! of its own, also if the move has placed the cursor again meanwhile.
//! Cost: one request for a window. Windows grow from [`PAGE_BYTES_MIN`] to [`PAGE_BYTES_MAX`] while
//! a scan goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_base::{Error, Result, SeqNo};

use crate::db::state::away::{AwayShard, ReadDeadline};
use crate::iter::{Child, InternalIterator, MergingIterator};
use crate::key::{self, KeyRange, Kind, user_key};
use crate::remote::{
    AwayError, ResumeAt, ScanAsk, ScanDirection, ScanPage, ScanRecord, ShardId, StoreNode,
};
use crate::stats::Ticker;

/// Bytes of the first window of a scan.
const PAGE_BYTES_MIN: usize = 8 << 10;
/// Largest number of bytes of a window.
const PAGE_BYTES_MAX: usize = 192 << 10;
/// Number of failed requests for one page after which the scan fails.
const ASKS_MAX: u32 = 2;

/// Settings of a cursor.
#[derive(Clone)]
pub(crate) struct AwayScan {
    /// Records with larger sequence numbers are not shown.
    pub(crate) snapshot: SeqNo,
    /// Values may be cut.
    pub(crate) keys_only: bool,
    /// Fail instead of asking a node.
    pub(crate) cache_only: bool,
    /// The deadline that the cursor shares with others. `None` if each placement of the cursor has
    /// a deadline of its own.
    pub(crate) deadline: Option<Arc<ReadDeadline>>,
}

/// An away shard and its keys.
#[derive(Clone)]
pub(crate) struct AwayPart {
    pub(crate) keys: KeyRange,
    pub(crate) shard: Arc<AwayShard>,
}

/// A cursor over the records of away shards at one memory node.
pub(crate) struct AwayCursor {
    /// Shards at one node, those of newer memtables first.
    parts: Vec<AwayPart>,
    /// Keys at which the ranges of `parts` begin and end, ascending.
    edges: Vec<Vec<u8>>,
    node: StoreNode,
    bounds: KeyRange,
    scan: AwayScan,
    window: Window,
    /// Position in the window. The cursor is not valid if it is the window's length.
    at: usize,
    page_bytes: usize,
    deadline: Arc<ReadDeadline>,
    /// Number of the read ([`ReadDeadline::read_number`]) in which the cursor has got its latest
    /// page; `None` before its first page.
    page_read: Option<u32>,
    /// The same records in memory, once a shard has a copy.
    local: Option<Box<dyn InternalIterator>>,
    error: Option<Error>,
}

/// The records of a range of user keys, in order.
#[derive(Default)]
struct Window {
    records: Vec<ScanRecord>,
    start: Vec<u8>,
    /// The first key after the range; `None` for no end.
    end: Option<Vec<u8>>,
}

/// Source of the records that a cursor shows now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Window,
    Local,
}

impl AwayCursor {
    /// A cursor over the records of `parts`, which are at `node`, in `bounds`.
    pub(crate) fn new(
        node: StoreNode,
        parts: Vec<AwayPart>,
        bounds: KeyRange,
        scan: AwayScan,
    ) -> Self {
        let starts = parts.iter().map(|part| &part.keys.start);
        let ends = parts.iter().filter_map(|part| part.keys.end.as_ref());
        let mut edges: Vec<Vec<u8>> = starts.chain(ends).cloned().collect();
        edges.sort_unstable();
        edges.dedup();
        let deadline = scan.deadline.clone().unwrap_or_default();
        Self {
            parts,
            edges,
            node,
            bounds,
            scan,
            window: Window::default(),
            at: 0,
            page_bytes: PAGE_BYTES_MIN,
            deadline,
            page_read: None,
            local: None,
            error: None,
        }
    }

    /// A cursor over the records of one shard with these keys.
    pub(crate) fn over(shard: &Arc<AwayShard>, keys: KeyRange, scan: AwayScan) -> Self {
        let part = AwayPart { keys: keys.clone(), shard: Arc::clone(shard) };
        Self::new(shard.node(), vec![part], keys, scan)
    }

    /// Switches the cursor to the copies in memory if a shard has one, and to cursors of several
    /// nodes if the shards lie at several by now. Returns the source of its records.
    fn look_for_copies(&mut self) -> Result<Source> {
        if self.local.is_some() {
            return Ok(Source::Local);
        }
        let mut nodes = self.parts.iter().map(|part| part.shard.node());
        let first = nodes.next().unwrap_or(self.node);
        let is_together = nodes.all(|node| node == first);
        if is_together && !self.parts.iter().any(|part| part.shard.has_copy()) {
            self.node = first;
            return Ok(Source::Window);
        }
        let (mut children, mut apart) = (Vec::new(), BTreeMap::<StoreNode, Vec<AwayPart>>::new());
        for part in &self.parts {
            match part.shard.copy()? {
                Some(copy) => children.push(Child::new(copy.iter(), SeqNo::MAX)),
                None => apart.entry(part.shard.node()).or_default().push(part.clone()),
            }
        }
        for (node, parts) in apart {
            let rest = Self::new(node, parts, self.bounds.clone(), self.scan.clone());
            children.push(Child::new(Box::new(rest), SeqNo::MAX));
        }
        let local: Box<dyn InternalIterator> = match children.len() {
            1 => children.remove(0).iter,
            _ => Box::new(MergingIterator::new(children)),
        };
        self.window = Window::default();
        self.local = Some(local);
        Ok(Source::Local)
    }

    /// Begins a placement of the cursor, which is a read of its own if no iterator moves it.
    fn begin_placement(&self) {
        if self.scan.deadline.is_none() {
            self.deadline.begin();
        }
    }

    /// A page of `shards` from the node, or `None` once a shard has a copy.
    fn page(
        &mut self,
        shards: &[Arc<AwayShard>],
        keys: &KeyRange,
        resume: Option<&ResumeAt>,
        direction: ScanDirection,
    ) -> Result<Option<ScanPage>> {
        let ids: Vec<ShardId> = shards.iter().map(|shard| shard.id()).collect();
        let mut asked = 0;
        if self.page_read == Some(self.deadline.read_number()) {
            self.deadline.restart();
        }
        loop {
            if self.look_for_copies()? == Source::Local {
                return Ok(None);
            }
            let Some(first) = shards.first() else { return Ok(Some(ScanPage::default())) };
            if self.scan.cache_only {
                return Err(Error::busy(format!(
                    "memtable shard {} is at a memory node: would need its answer",
                    first.id()
                )));
            }
            if let Some(lost) = shards.iter().find(|shard| shard.is_lost()) {
                lost.wait_for_copy(&self.deadline)?;
                continue;
            }
            let left = first.link().left(&self.deadline);
            let time_left = left.ok_or_else(|| first.too_late())?;
            let ask = ScanAsk {
                node: self.node,
                shards: &ids,
                keys,
                resume,
                direction,
                snapshot: self.scan.snapshot,
                bytes_max: self.page_bytes,
                keys_only: self.scan.keys_only,
                time_left,
            };
            first.link().stats().add(Ticker::AwayPages, 1);
            match first.link().store().scan(&ask) {
                Ok(page) => {
                    self.page_read = Some(self.deadline.read_number());
                    return Ok(Some(page));
                }
                Err(error) => {
                    asked += 1;
                    let is_lost = matches!(error, AwayError::Lost(_));
                    let is_news = is_lost && find_lost(shards, &ask, &error, &self.deadline);
                    let is_late = first.link().left(&self.deadline).is_none();
                    if !is_news && (is_late || asked >= ASKS_MAX) {
                        return Err(first.not_now(error));
                    }
                }
            }
        }
    }

    /// The shards that have keys of a piece, which no edge cuts.
    fn shards_of(&self, piece: &KeyRange) -> Vec<Arc<AwayShard>> {
        let parts = self.parts.iter().filter(|part| part.keys.overlaps(piece));
        parts.map(|part| Arc::clone(&part.shard)).collect()
    }

    /// Gets the window that begins with the user key `from`.
    fn load_forward(&mut self, from: Vec<u8>) -> Result<Source> {
        let edge = self.edges.partition_point(|edge| *edge <= from);
        let end = match (self.edges.get(edge), &self.bounds.end) {
            (Some(edge), Some(end)) => Some(edge.min(end).clone()),
            (edge, end) => edge.or(end.as_ref()).cloned(),
        };
        let keys = KeyRange { start: from, end };
        let shards = self.shards_of(&keys);
        let mut records: Vec<ScanRecord> = Vec::new();
        let mut resume: Option<ResumeAt> = None;
        let end = loop {
            if keys.is_empty() {
                break self.bounds.end.clone();
            }
            let direction = ScanDirection::Forward;
            let Some(page) = self.page(&shards, &keys, resume.as_ref(), direction)? else {
                return Ok(Source::Local);
            };
            let is_stuck = page.records.is_empty() && page.resume.is_some();
            records.extend(page.records);
            match page.resume {
                None => break keys.end.clone(),
                Some(next) if next.seq.is_none() && !records.is_empty() => {
                    break Some(after_key(next.key));
                }
                next if is_stuck && next == resume => return Err(stuck()),
                next => resume = next,
            }
        };
        self.grow_pages();
        self.set_window(Window { records, start: keys.start, end })
    }

    /// Gets the window that ends before the user key `to`, or with the bounds.
    fn load_backward(&mut self, to: Option<Vec<u8>>) -> Result<Source> {
        let edge = match &to {
            Some(to) => self.edges.partition_point(|edge| edge < to),
            None => self.edges.len(),
        };
        let edge = edge.checked_sub(1).and_then(|at| self.edges.get(at));
        let start = edge.map_or(&self.bounds.start, |edge| edge.max(&self.bounds.start)).clone();
        let keys = KeyRange { start, end: to };
        let shards = self.shards_of(&keys);
        let mut records: Vec<ScanRecord> = Vec::new();
        let mut resume: Option<ResumeAt> = None;
        let start = loop {
            if keys.is_empty() {
                break self.bounds.start.clone();
            }
            let direction = ScanDirection::Backward;
            let Some(page) = self.page(&shards, &keys, resume.as_ref(), direction)? else {
                return Ok(Source::Local);
            };
            let is_stuck = page.records.is_empty() && page.resume.is_some();
            records.extend(page.records);
            match page.resume {
                None => break keys.start.clone(),
                Some(next) if next.seq.is_none() && !records.is_empty() => break next.key,
                next if is_stuck && next == resume => return Err(stuck()),
                next => resume = next,
            }
        };
        self.grow_pages();
        // The keys come from large to small, and the versions of each from new to old.
        records.reverse();
        let by_key = records.chunk_by_mut(|a, b| user_key(&a.key) == user_key(&b.key));
        by_key.for_each(<[ScanRecord]>::reverse);
        self.set_window(Window { records, start, end: keys.end })
    }

    fn set_window(&mut self, window: Window) -> Result<Source> {
        let is_whole = |record: &ScanRecord| key::KeyRef::decode(&record.key).is_some();
        let ascend = |pair: &[ScanRecord]| key::compare(&pair[0].key, &pair[1].key).is_lt();
        if !window.records.iter().all(is_whole) || !window.records.windows(2).all(ascend) {
            return Err(Error::internal(
                "the store of memtable shards broke its contract: a page is not in order",
            ));
        }
        self.window = window;
        Ok(Source::Window)
    }

    fn grow_pages(&mut self) {
        self.page_bytes = (self.page_bytes * 2).min(PAGE_BYTES_MAX);
    }

    fn local(&mut self) -> Result<&mut dyn InternalIterator> {
        match &mut self.local {
            Some(local) => Ok(&mut **local),
            None => Err(Error::internal("a cursor over away shards has no copy")),
        }
    }

    /// Whether the window has all records of a user key.
    fn covers(&self, key: &[u8]) -> bool {
        let window = &self.window;
        !window.records.is_empty()
            && window.start.as_slice() <= key
            && window.end.as_deref().is_none_or(|end| key < end)
    }

    fn try_seek(&mut self, target: &[u8]) -> Result<()> {
        self.begin_placement();
        if self.look_for_copies()? == Source::Local {
            self.local()?.seek(target);
            return Ok(());
        }
        let from = user_key(target).max(&self.bounds.start);
        if !self.covers(from) {
            let from = from.to_vec();
            self.page_bytes = PAGE_BYTES_MIN;
            if self.load_forward(from)? == Source::Local {
                self.local()?.seek(target);
                return Ok(());
            }
        }
        let is_before = |record: &ScanRecord| key::compare(&record.key, target).is_lt();
        self.at = self.window.records.partition_point(is_before);
        self.go_on_forward()
    }

    /// If the cursor is at the end of its window, loads the following windows until one has a
    /// record.
    fn go_on_forward(&mut self) -> Result<()> {
        while self.at == self.window.records.len() {
            let Some(end) = self.window.end.clone() else { return Ok(()) };
            if self.bounds.end.as_ref().is_some_and(|last| *last <= end) {
                return Ok(());
            }
            if self.load_forward(end.clone())? == Source::Local {
                self.local()?.seek(&key::encode(&end, SeqNo::MAX, Kind::SEEK));
                return Ok(());
            }
            self.at = 0;
        }
        Ok(())
    }

    fn try_seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.begin_placement();
        if self.look_for_copies()? == Source::Local {
            self.local()?.seek_for_prev(target);
            return Ok(());
        }
        let key = user_key(target);
        if !self.covers(key) {
            let after = after_key(key.to_vec());
            let to = match &self.bounds.end {
                Some(end) if *end <= after => end.clone(),
                _ => after,
            };
            self.page_bytes = PAGE_BYTES_MIN;
            if self.load_backward(Some(to))? == Source::Local {
                self.local()?.seek_for_prev(target);
                return Ok(());
            }
        }
        let is_after = |record: &ScanRecord| key::compare(&record.key, target).is_gt();
        let past = self.window.records.partition_point(|record| !is_after(record));
        self.go_on_backward(past)
    }

    fn try_seek_to_last(&mut self) -> Result<()> {
        self.begin_placement();
        if self.look_for_copies()? == Source::Local {
            self.local()?.seek_to_last();
            return Ok(());
        }
        self.page_bytes = PAGE_BYTES_MIN;
        if self.load_backward(self.bounds.end.clone())? == Source::Local {
            self.local()?.seek_to_last();
            return Ok(());
        }
        self.go_on_backward(self.window.records.len())
    }

    /// Places the cursor on the record before position `past`, in an earlier window if necessary.
    fn go_on_backward(&mut self, mut past: usize) -> Result<()> {
        while past == 0 {
            self.at = self.window.records.len();
            let to = self.window.start.clone();
            if to <= self.bounds.start {
                return Ok(());
            }
            if self.load_backward(Some(to.clone()))? == Source::Local {
                self.local()?.seek_for_prev(&key::encode(&to, SeqNo::MAX, Kind::SEEK));
                return Ok(());
            }
            past = self.window.records.len();
        }
        self.at = past - 1;
        Ok(())
    }

    fn settle(&mut self, moved: Result<()>) {
        self.error = moved.err();
        if self.error.is_some() {
            self.at = self.window.records.len();
        }
    }
}

/// Notes which of `shards` are lost, after a request for all of them ended with `error`. The node
/// says that a shard is lost if it lacks any of them, also one that was released meanwhile. Returns
/// whether one of the shards is lost or has a copy, so that the scan can go on without the node.
#[cold]
fn find_lost(
    shards: &[Arc<AwayShard>],
    ask: &ScanAsk<'_>,
    error: &AwayError,
    deadline: &ReadDeadline,
) -> bool {
    for shard in shards {
        let alone = [shard.id()];
        let error = match shards.len() {
            1 => Some(error.clone()),
            _ if shard.has_copy() || shard.is_lost() => None,
            _ => shard.link().left(deadline).and_then(|time_left| {
                shard.link().stats().add(Ticker::AwayPages, 1);
                let ask = ScanAsk { shards: &alone, bytes_max: 1, time_left, ..ask.clone() };
                shard.link().store().scan(&ask).err()
            }),
        };
        if let Some(AwayError::Lost(why)) = error {
            shard.note_lost(&why);
        }
    }
    shards.iter().any(|shard| shard.is_lost() || shard.has_copy())
}

/// The first user key after `key`.
fn after_key(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

#[cold]
fn stuck() -> Error {
    Error::internal("the store of memtable shards broke its contract: a scan does not go on")
}

impl InternalIterator for AwayCursor {
    fn valid(&self) -> bool {
        match &self.local {
            Some(local) => self.error.is_none() && local.valid(),
            None => self.at < self.window.records.len(),
        }
    }

    fn seek_to_first(&mut self) {
        let first = key::encode(&self.bounds.start, SeqNo::MAX, Kind::SEEK);
        self.seek(&first);
    }

    fn seek_to_last(&mut self) {
        let moved = self.try_seek_to_last();
        self.settle(moved);
    }

    fn seek(&mut self, target: &[u8]) {
        let moved = self.try_seek(target);
        self.settle(moved);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let moved = self.try_seek_for_prev(target);
        self.settle(moved);
    }

    fn next(&mut self) {
        debug_assert!(self.valid());
        if let Some(local) = &mut self.local {
            return local.next();
        }
        self.at += 1;
        if self.at == self.window.records.len() {
            let moved = self.go_on_forward();
            self.settle(moved);
        }
    }

    fn prev(&mut self) {
        debug_assert!(self.valid());
        if let Some(local) = &mut self.local {
            return local.prev();
        }
        let moved = self.go_on_backward(self.at);
        self.settle(moved);
    }

    fn key(&self) -> &[u8] {
        match &self.local {
            Some(local) => local.key(),
            None => &self.window.records[self.at].key,
        }
    }

    fn value(&self) -> &[u8] {
        match &self.local {
            Some(local) => local.value(),
            None => &self.window.records[self.at].value,
        }
    }

    fn status(&self) -> Result<()> {
        match (&self.error, &self.local) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(local)) => local.status(),
            (None, None) => Ok(()),
        }
    }
}
