//! Files of open tiers, and how they are read.
//!
//! An [`Entry`] stands for one file of the namespace. Each handle ([`TierReader`]) has its own
//! [`Route`], which names the open physical file to read, and the copies on faster devices. The
//! route is resolved when the handle is opened. When the file moves, or copies are made or dropped,
//! the routes of all its handles are replaced. A read that is in progress ends on the old route. So
//! a read takes no lock and looks nothing up.
//!
//! Invariants:
//! 1. All files of a route hold the same bytes.
//! 2. The bytes of a copy are checked before a reader gets them. A damaged copy is dropped and
//!    counted, and the original is read instead.
//! 3. A physical file is kept until the last route that leads to it is gone.
//!
//! Thread-safety: any thread may call any method.
//! Failure: a read returns the error of the original's device. An error of a copy drops the copy.
//! Cost: a read costs an atomic load and three counters, in addition to the read of the device. A
//! read of a copy also checks its chunks.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::fs::read_many_zeroed;
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions, RandomFile};
use parking_lot::Mutex;

use super::accesses::{Accesses, ReadSpan};
use super::physical::Physical;
use super::shared::OpenTiers;
use crate::cache::format::{CHUNK_BYTES, CopyIndex, TRAILER_BYTES};
use crate::device::{Count, Device};

/// A copy of a file on a faster device.
#[derive(Debug)]
pub(crate) struct CachedCopy {
    pub(crate) physical: Arc<Physical>,
    pub(crate) whole: bool,
    /// The index, which the first handle that needs it reads. `None` inside if it is damaged.
    index: OnceLock<Option<Arc<CopyIndex>>>,
}

impl CachedCopy {
    pub(crate) fn new(physical: Arc<Physical>, whole: bool, index: Option<CopyIndex>) -> Arc<Self> {
        let cell = OnceLock::new();
        if let Some(index) = index {
            let _first = cell.set(Some(Arc::new(index)));
        }
        Arc::new(Self { physical, whole, index: cell })
    }

    /// Start and length of the ranges that the copy holds. `None` before the first handle has read
    /// the index, and if the index is damaged.
    pub(crate) fn ranges(&self) -> Option<Vec<(u64, u64)>> {
        let index = self.index.get()?.as_ref()?;
        Some(index.extents().iter().map(|extent| (extent.start, extent.len)).collect())
    }

    /// Whether a handle has read the index and found it damaged.
    fn is_damaged(&self) -> bool {
        matches!(self.index.get(), Some(None))
    }

    /// The copy's index; `None` if it is damaged.
    fn index(&self, file: &dyn RandomFile, shared: &OpenTiers, id: u64) -> Option<Arc<CopyIndex>> {
        self.index.get_or_init(|| load_index(file, shared, id).map(Arc::new)).clone()
    }
}

fn load_index(file: &dyn RandomFile, shared: &OpenTiers, id: u64) -> Option<CopyIndex> {
    let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.read_exact_at(file.len().checked_sub(TRAILER_BYTES)?, &mut trailer, context).ok()?;
    let len = CopyIndex::encoded_len(&trailer)?;
    let start = file.len().checked_sub(len)?;
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(start, &mut bytes, context).ok()?;
    let index = CopyIndex::decode(&shared.id, id, &bytes)?;
    (index.data_len() == start).then_some(index)
}

/// The state of an entry that its lock guards.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) main: Arc<Physical>,
    pub(crate) copies: Vec<Arc<CachedCopy>>,
    pub(crate) handles: Vec<Weak<TierReader>>,
    /// Whether the device lost the original. A whole copy then serves reads, and the original is
    /// restored from it. Without a whole copy, reads fail.
    pub(crate) missing: bool,
}

impl Inside {
    /// Whether no device has all of the file's bytes.
    pub(crate) fn is_lost(&self) -> bool {
        self.missing && !self.copies.iter().any(|copy| copy.whole)
    }
}

/// Marks an unknown column family.
const NO_FAMILY: u64 = u64::MAX;

/// One file of the namespace, while the tiers are open.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) class: FileClass,
    level: AtomicU8,
    /// Column family of the file, or [`NO_FAMILY`]. The family of a file that existed before the
    /// open is not known until the file is opened.
    family: AtomicU64,
    /// Number of writers. A file with writers is neither moved nor copied.
    pub(crate) writers: AtomicU32,
    /// Whether a move or a copy of the file is queued or running.
    pub(crate) busy: AtomicBool,
    /// Whether the queued or running job of the file is a copy, so that the file stays where it is.
    pub(crate) copying: AtomicBool,
    /// Whether the file was removed from the namespace.
    pub(crate) gone: AtomicBool,
    /// Earliest time, in milliseconds, of the next attempt to move the file after a change of
    /// level. 0 if no move is pending.
    pub(crate) move_owed_ms: AtomicU64,
    /// Number of failed attempts to move the file after a change of level.
    pub(crate) move_tries: AtomicU32,
    /// Read counts of the file.
    pub(crate) accesses: Accesses,
    /// Time of the last read, in milliseconds of the tiers' clock, to within one iteration of the
    /// control loop.
    pub(crate) last_read_ms: AtomicU64,
    /// Time at which the file was created, in milliseconds; 0 for a file that existed before the
    /// open.
    pub(crate) born_ms: AtomicU64,
    pub(crate) inside: Mutex<Inside>,
}

impl Entry {
    pub(crate) fn new(
        id: u64,
        class: FileClass,
        level: Option<u8>,
        family: Option<u32>,
        main: Arc<Physical>,
    ) -> Arc<Self> {
        let inside = Inside { main, copies: Vec::new(), handles: Vec::new(), missing: false };
        Arc::new(Self {
            id,
            class,
            level: AtomicU8::new(level.unwrap_or(u8::MAX)),
            family: AtomicU64::new(family.map_or(NO_FAMILY, u64::from)),
            writers: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            copying: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            move_owed_ms: AtomicU64::new(0),
            move_tries: AtomicU32::new(0),
            accesses: Accesses::default(),
            last_read_ms: AtomicU64::new(0),
            born_ms: AtomicU64::new(0),
            inside: Mutex::new(inside),
        })
    }

    pub(crate) fn level(&self) -> Option<u8> {
        Some(self.level.load(Ordering::Relaxed)).filter(|level| *level != u8::MAX)
    }

    pub(crate) fn set_level(&self, level: u8) {
        self.level.store(level, Ordering::Relaxed);
    }

    pub(crate) fn family(&self) -> Option<u32> {
        u32::try_from(self.family.load(Ordering::Relaxed)).ok()
    }

    /// Notes the file's column family, if the caller knows it.
    pub(crate) fn note_family(&self, family: Option<u32>) {
        if let Some(family) = family {
            self.family.store(u64::from(family), Ordering::Relaxed);
        }
    }

    /// Context of the tiers' own reads and writes of the file.
    pub(crate) fn own_context(&self) -> IoContext {
        IoContext {
            level: self.level(),
            family: self.family(),
            ..IoContext::new(self.class, IoPurpose::Maintenance)
        }
    }

    /// Opens a handle. `path` is the file's name, for errors. Errors: `NotFound` if the devices
    /// lost the file; those of its device.
    pub(crate) fn open(
        self: &Arc<Self>,
        shared: &Arc<OpenTiers>,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<TierReader>> {
        self.note_family(context.family);
        let mut inside = self.inside.lock();
        let route = match inside.is_lost() {
            true => Err(missing_file(path, inside.main.device())),
            false => self.route(&inside, shared, context, options),
        }?;
        let len = route.main.len();
        let way = match shared.is_tiered {
            true => Way::Now(ArcSwap::from_pointee(route)),
            false => Way::Only(route),
        };
        let reader = Arc::new(TierReader {
            way,
            entry: Arc::clone(self),
            shared: Arc::clone(shared),
            context,
            options,
            len,
        });
        if shared.is_tiered {
            inside.handles.retain(|handle| handle.strong_count() > 0);
            inside.handles.push(Arc::downgrade(&reader));
        }
        let damaged: Vec<_> =
            inside.copies.iter().filter(|copy| copy.is_damaged()).cloned().collect();
        drop(inside);
        damaged.iter().for_each(|copy| reader.lose(copy, "its index is damaged"));
        Ok(reader)
    }

    /// Opens the file and its copies where they lie now.
    fn route(
        &self,
        inside: &Inside,
        shared: &Arc<OpenTiers>,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Route> {
        let main = &inside.main;
        let file = if inside.missing {
            Err(missing_file(&main.path, main.device()))
        } else {
            let file = shared.open_physical(main, context, options);
            main.device().note(&file, shared.now_ns());
            file
        };
        let mut cached = Vec::new();
        for copy in &inside.copies {
            let Ok(file) = shared.open_physical(&copy.physical, context, options) else { continue };
            if let Some(index) = copy.index(&*file, shared, self.id) {
                cached.push(Cached { file, copy: Arc::clone(copy), index });
            }
        }
        let is_absent = file.is_err();
        let main = match file {
            Ok(file) => file,
            // The device cannot be read, but a whole copy has the same bytes.
            Err(error) => match cached.iter().find(|cached| cached.copy.whole) {
                Some(cached) => Arc::new(Absent { error, len: cached.index.data_len() }),
                None => return Err(error),
            },
        };
        cached.sort_by_key(|cached| cached.copy.physical.device);
        let (device, _physical) = (inside.main.device, Arc::clone(&inside.main));
        Ok(Route { device, main, is_absent, cached, _physical })
    }

    /// Replaces the routes of all handles, after the file moved or its copies changed.
    pub(crate) fn reroute(&self, inside: &mut Inside, shared: &Arc<OpenTiers>) -> Result<()> {
        let mut result = Ok(());
        inside.handles.retain(|handle| handle.strong_count() > 0);
        for handle in inside.handles.iter().filter_map(Weak::upgrade) {
            let Way::Now(way) = &handle.way else { continue };
            match self.route(inside, shared, handle.context, handle.options) {
                Ok(route) => way.store(Arc::new(route)),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    #[inline]
    fn count_read(&self, read: ReadSpan, shared: &OpenTiers, len: u64) {
        self.accesses.count(read, len, shared.policy.range_bytes);
    }
}

/// The error for a file that its device lost.
fn missing_file(path: &Path, device: &Device) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "{} should lie on device \"{}\" ({}), which does not have it",
            path.display(),
            device.name,
            device.root.display()
        ),
    )
}

/// A reader in place of an original that cannot be opened, while a whole copy serves reads.
#[derive(Debug)]
struct Absent {
    error: Error,
    len: u64,
}

impl RandomFile for Absent {
    fn read_exact_at(&self, _offset: u64, _buf: &mut [u8], _context: IoContext) -> Result<()> {
        Err(self.error.clone())
    }

    fn len(&self) -> u64 {
        self.len
    }
}

/// An open copy of a route.
#[derive(Debug)]
struct Cached {
    file: Arc<dyn RandomFile>,
    copy: Arc<CachedCopy>,
    index: Arc<CopyIndex>,
}

/// The open files from which a handle reads.
#[derive(Debug)]
struct Route {
    device: usize,
    main: Arc<dyn RandomFile>,
    /// Whether the original could not be opened, so that only copies serve.
    is_absent: bool,
    /// Open copies, that of the fastest device first.
    cached: Vec<Cached>,
    _physical: Arc<Physical>,
}

/// The route of a handle.
#[derive(Debug)]
enum Way {
    /// The route on a single device. Files do not move and there are no copies, so the route is
    /// never replaced, and a read needs no atomic load.
    Only(Route),
    /// The present route of several devices.
    Now(ArcSwap<Route>),
}

/// A handle of a file.
#[derive(Debug)]
pub(crate) struct TierReader {
    way: Way,
    entry: Arc<Entry>,
    shared: Arc<OpenTiers>,
    context: IoContext,
    options: OpenOptions,
    len: u64,
}

thread_local! {
    /// Buffer for the chunks of a copy.
    static CHUNKS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The tiers (their address) of which this thread merges files, and the heat of the bytes that
    /// it has read since its last output ended.
    static CARRIED: Cell<(usize, f64)> = const { Cell::new((0, 0.0)) };
}

/// Whether the outputs of a job take over the heat of the bytes that it reads from a file of this
/// class. The tables of a compaction take over the heat of its input tables, and the value files of
/// a garbage collection that of its input value files. Neither job takes over the heat of files in
/// which it only looks keys up.
pub(crate) fn passes_heat_on(class: FileClass, purpose: IoPurpose) -> bool {
    match class {
        FileClass::Sst => matches!(purpose, IoPurpose::Compaction { .. }),
        FileClass::ValueSst => purpose == IoPurpose::Gc,
        _ => false,
    }
}

/// Notes that a job on this thread read `bytes` of a file of `len` bytes, so that its next
/// output takes over their heat.
fn carry(shared: &Arc<OpenTiers>, entry: &Entry, bytes: u64, len: u64) {
    let own = Arc::as_ptr(shared).cast::<()>() as usize;
    let (of, before) = CARRIED.get();
    let before = if of == own { before } else { 0.0 };
    CARRIED.set((own, before + entry.accesses.heat() * (bytes as f64 / len.max(1) as f64)));
}

/// Takes the heat of the bytes that compactions on this thread have read since the last call.
pub(crate) fn take_carried(shared: &Arc<OpenTiers>) -> f64 {
    let own = Arc::as_ptr(shared).cast::<()>() as usize;
    match CARRIED.replace((own, 0.0)) {
        (of, heat) if of == own => heat,
        _ => 0.0,
    }
}

/// Largest buffer, in bytes, that a thread keeps after a read.
const CHUNKS_BYTES_KEPT: usize = 1 << 20;

/// Number of reads in a call, and their bytes.
#[derive(Clone, Copy)]
struct ReadVolume {
    reads: usize,
    bytes: u64,
}

impl TierReader {
    /// Reads the original and counts the reads on its device.
    #[inline]
    fn read_main<T>(
        &self,
        route: &Route,
        volume: ReadVolume,
        foreground: bool,
        read: impl FnOnce(&dyn RandomFile) -> Result<T>,
    ) -> Result<T> {
        let device = &self.shared.devices[route.device];
        let (reads, bytes) = (volume.reads as u64, volume.bytes);
        device.add(Count::ReadsBegun, reads);
        let outcome = read(&*route.main);
        device.add(Count::ReadsEnded, reads);
        device.add(Count::ReadBytes, bytes);
        if foreground {
            device.add(Count::ForegroundReads, reads);
        }
        if outcome.is_err() && !route.is_absent {
            device.note(&outcome, self.shared.now_ns());
        }
        outcome
    }

    /// Counts a read of the only device. No other count is kept, because nothing is decided from
    /// it.
    #[inline]
    fn read_only_device<T>(&self, outcome: Result<T>) -> Result<T> {
        let device = &self.shared.devices[0];
        device.add(Count::ReadsEnded, 1);
        if outcome.is_err() {
            device.note(&outcome, self.shared.now_ns());
        }
        outcome
    }

    /// Counts a read for the heat of its file. A read of a compaction passes its heat on to the
    /// outputs instead. Returns whether a user waits for the read.
    #[inline]
    fn note_read(&self, read: ReadSpan, context: IoContext) -> bool {
        let foreground = context.purpose == IoPurpose::ForegroundRead;
        if foreground {
            self.entry.count_read(read, &self.shared, self.len);
        } else if passes_heat_on(self.entry.class, context.purpose) {
            carry(&self.shared, &self.entry, read.len, self.len);
        }
        foreground
    }

    /// Reads from a copy on a faster device. `false` if no copy serves the bytes.
    fn read_cached(
        &self,
        route: &Route,
        offset: u64,
        buf: &mut [u8],
        context: IoContext,
        foreground: bool,
    ) -> bool {
        for cached in &route.cached {
            let Some(at) = cached.index.find(offset, buf.len() as u64) else { continue };
            let device = cached.copy.physical.device();
            device.add(Count::ReadsBegun, 1);
            let outcome = read_checked(cached, at, buf, context);
            device.add(Count::ReadsEnded, 1);
            device.add(Count::ReadBytes, buf.len() as u64);
            match outcome {
                Ok(true) => {
                    device.add(Count::CacheReads, 1);
                    if foreground {
                        device.add(Count::ForegroundReads, 1);
                        device.add(Count::CacheHits, 1);
                    }
                    return true;
                }
                Ok(false) => self.lose(&cached.copy, "its bytes are damaged"),
                Err(error) => {
                    device.note::<()>(&Err(error), self.shared.now_ns());
                    self.lose(&cached.copy, "it could not be read");
                }
            }
        }
        false
    }

    /// Reads the requests that the copy holds, in batches. Returns the requests that the copy does
    /// not serve.
    fn read_copy<'a>(
        &self,
        cached: &Cached,
        requests: Vec<(u64, &'a mut [u8])>,
        context: IoContext,
        foreground: bool,
    ) -> Vec<(u64, &'a mut [u8])> {
        let mut left = Vec::with_capacity(requests.len());
        let mut batch = CopyBatch::default();
        for (offset, buf) in requests {
            let Some(at) = cached.index.find(offset, buf.len() as u64) else {
                left.push((offset, buf));
                continue;
            };
            let span = ChunkSpan::around(cached, at, buf.len() as u64);
            if batch.bytes > 0 && batch.bytes + span.len() > BATCH_BYTES_MAX {
                left.append(&mut self.read_batch(cached, &mut batch, context, foreground));
            }
            batch.bytes += span.len();
            batch.reads.push(CopyRead { offset, at, span, buf });
        }
        left.append(&mut self.read_batch(cached, &mut batch, context, foreground));
        left
    }

    /// Reads a batch from a copy in one call, and empties it. Returns the requests that the copy
    /// does not serve, because it is damaged or cannot be read.
    fn read_batch<'a>(
        &self,
        cached: &Cached,
        batch: &mut CopyBatch<'a>,
        context: IoContext,
        foreground: bool,
    ) -> Vec<(u64, &'a mut [u8])> {
        let mut batch = std::mem::take(batch);
        if batch.reads.is_empty() {
            return Vec::new();
        }
        let device = cached.copy.physical.device();
        let count = batch.reads.len() as u64;
        device.add(Count::ReadsBegun, count);
        let outcome = batch.read_checked(cached, context);
        device.add(Count::ReadsEnded, count);
        device.add(Count::ReadBytes, batch.reads.iter().map(|read| read.buf.len() as u64).sum());
        match outcome {
            Ok(true) => {
                device.add(Count::CacheReads, count);
                if foreground {
                    device.add(Count::ForegroundReads, count);
                    device.add(Count::CacheHits, count);
                }
                return Vec::new();
            }
            Ok(false) => self.lose(&cached.copy, "its bytes are damaged"),
            Err(error) => {
                device.note::<()>(&Err(error), self.shared.now_ns());
                self.lose(&cached.copy, "it could not be read");
            }
        }
        batch.reads.into_iter().map(|read| (read.offset, read.buf)).collect()
    }

    /// Drops a copy that does not serve.
    #[cold]
    fn lose(&self, copy: &Arc<CachedCopy>, why: &str) {
        let device = copy.physical.device();
        device.add(Count::CopiesCorrupt, 1);
        let is_dropped = self.shared.drop_copy(&self.entry, copy);
        tracing::warn!(
            copy = %copy.physical.path.display(),
            device = device.name,
            is_dropped,
            "a copy cannot serve a read, and the original is read: {why}"
        );
    }
}

/// Largest number of bytes that a batch reads from a copy in one call. A longer read is one batch
/// of its own.
const BATCH_BYTES_MAX: u64 = 4 << 20;

/// The whole chunks of a copy that hold some bytes.
#[derive(Clone, Copy)]
struct ChunkSpan {
    start: u64,
    end: u64,
}

impl ChunkSpan {
    /// The chunks that hold `len` bytes at the offset `at` of the copy.
    fn around(cached: &Cached, at: u64, len: u64) -> Self {
        let start = at - at % CHUNK_BYTES;
        let end = (at + len).next_multiple_of(CHUNK_BYTES).min(cached.index.data_len());
        Self { start, end }
    }

    fn len(self) -> u64 {
        self.end - self.start
    }
}

/// A request that a copy serves.
struct CopyRead<'a> {
    /// Offset in the file.
    offset: u64,
    /// Offset in the copy.
    at: u64,
    span: ChunkSpan,
    buf: &'a mut [u8],
}

/// Requests that are read from a copy in one call.
#[derive(Default)]
struct CopyBatch<'a> {
    reads: Vec<CopyRead<'a>>,
    /// Sum of the lengths of their spans.
    bytes: u64,
}

impl CopyBatch<'_> {
    /// Reads and checks the requests. `false` if one of them is damaged.
    fn read_checked(&mut self, cached: &Cached, context: IoContext) -> Result<bool> {
        CHUNKS.with_borrow_mut(|chunks| {
            chunks.resize(self.bytes as usize, 0);
            let mut rest = &mut chunks[..];
            let mut spans = Vec::with_capacity(self.reads.len());
            for read in &self.reads {
                let (span, after) = rest.split_at_mut(read.span.len() as usize);
                spans.push((read.span.start, span));
                rest = after;
            }
            cached.file.read_many(&mut spans, context)?;
            let mut is_sound = true;
            for (read, (start, span)) in self.reads.iter_mut().zip(&spans) {
                is_sound &= cached.index.verify(*start, span);
                let from = (read.at - start) as usize;
                read.buf.copy_from_slice(&span[from..from + read.buf.len()]);
            }
            if chunks.len() > CHUNKS_BYTES_KEPT {
                *chunks = Vec::new();
            }
            Ok(is_sound)
        })
    }
}

/// Reads `buf` at the offset `at` of the copy and checks it. `false` if it is damaged.
fn read_checked(cached: &Cached, at: u64, buf: &mut [u8], context: IoContext) -> Result<bool> {
    let ChunkSpan { start, end } = ChunkSpan::around(cached, at, buf.len() as u64);
    CHUNKS.with_borrow_mut(|chunks| {
        chunks.resize((end - start) as usize, 0);
        cached.file.read_exact_at(start, chunks, context)?;
        let sound = cached.index.verify(start, chunks);
        if sound {
            let from = (at - start) as usize;
            buf.copy_from_slice(&chunks[from..from + buf.len()]);
        }
        if chunks.len() > CHUNKS_BYTES_KEPT {
            *chunks = Vec::new();
        }
        Ok(sound)
    })
}

impl RandomFile for TierReader {
    #[inline]
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        let route = match &self.way {
            Way::Only(route) => {
                let outcome = route.main.read_exact_at(offset, buf, context);
                return self.read_only_device(outcome);
            }
            Way::Now(route) => route.load(),
        };
        let foreground = self.note_read(ReadSpan { offset, len: buf.len() as u64 }, context);
        if !route.cached.is_empty() && self.read_cached(&route, offset, buf, context, foreground) {
            return Ok(());
        }
        let volume = ReadVolume { reads: 1, bytes: buf.len() as u64 };
        self.read_main(&route, volume, foreground, |file| file.read_exact_at(offset, buf, context))
    }

    /// A read of a file without copies is forwarded to the device, so that the memory need not be
    /// zeroed first.
    fn read_new(&self, offset: u64, len: usize, context: IoContext) -> Result<Vec<u8>> {
        let route = match &self.way {
            Way::Only(route) => {
                let outcome = route.main.read_new(offset, len, context);
                return self.read_only_device(outcome);
            }
            Way::Now(route) => route.load(),
        };
        let foreground = self.note_read(ReadSpan { offset, len: len as u64 }, context);
        if !route.cached.is_empty() {
            let mut bytes = vec![0; len];
            if self.read_cached(&route, offset, &mut bytes, context, foreground) {
                return Ok(bytes);
            }
        }
        let volume = ReadVolume { reads: 1, bytes: len as u64 };
        self.read_main(&route, volume, foreground, |file| file.read_new(offset, len, context))
    }

    fn read_many_new(&self, ranges: &[(u64, usize)], context: IoContext) -> Result<Vec<Vec<u8>>> {
        if let Way::Only(route) = &self.way {
            let outcome = route.main.read_many_new(ranges, context);
            return self.read_only_device(outcome);
        }
        read_many_zeroed(self, ranges, context)
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        let route = match &self.way {
            Way::Only(route) => {
                let outcome = route.main.read_many(requests, context);
                return self.read_only_device(outcome);
            }
            Way::Now(route) => route.load(),
        };
        let foreground = context.purpose == IoPurpose::ForegroundRead;
        let bytes = requests.iter().map(|(_, buf)| buf.len() as u64).sum();
        if foreground {
            for (offset, buf) in requests.iter() {
                let read = ReadSpan { offset: *offset, len: buf.len() as u64 };
                self.entry.count_read(read, &self.shared, self.len);
            }
        } else if passes_heat_on(self.entry.class, context.purpose) {
            carry(&self.shared, &self.entry, bytes, self.len);
        }
        if route.cached.is_empty() {
            let volume = ReadVolume { reads: requests.len(), bytes };
            return self
                .read_main(&route, volume, foreground, |file| file.read_many(requests, context));
        }
        let mut left: Vec<(u64, &mut [u8])> =
            requests.iter_mut().map(|(offset, buf)| (*offset, &mut **buf)).collect();
        for cached in &route.cached {
            left = self.read_copy(cached, left, context, foreground);
        }
        if left.is_empty() {
            return Ok(());
        }
        let bytes = left.iter().map(|(_, buf)| buf.len() as u64).sum();
        let volume = ReadVolume { reads: left.len(), bytes };
        self.read_main(&route, volume, foreground, |file| file.read_many(&mut left, context))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let route = match &self.way {
            Way::Only(route) => return route.main.prefetch(offset, len),
            Way::Now(route) => route.load(),
        };
        for cached in &route.cached {
            if let Some(at) = cached.index.find(offset, len) {
                return cached.file.prefetch(at, len);
            }
        }
        route.main.prefetch(offset, len);
    }

    fn forget(&self, offset: u64, len: u64) {
        match &self.way {
            Way::Only(route) => route.main.forget(offset, len),
            Way::Now(route) => route.load().main.forget(offset, len),
        }
    }

    fn len(&self) -> u64 {
        self.len
    }
}
