//! A file while the tiers are open, and how it is read.
//!
//! An [`Entry`] stands for one file of the namespace. A handle ([`TierReader`]) has a [`Route`] of
//! its own, resolved when it was opened: which open physical file to read, and which copies of it
//! lie on faster devices. When the file moves or copies come and go, the routes of all its handles
//! are replaced; a read that is under way ends on the old one. So a read takes no lock and looks
//! nothing up.
//!
//! Invariants: 1. a route's files hold the same bytes; 2. a copy's bytes are checked before they
//! are given out, and a damaged copy is dropped, counted, and the original read instead; 3. a
//! physical file stays until the last route that leads to it is gone.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, OpenOptions, RandomFile};
use parking_lot::Mutex;

use super::accesses::Accesses;
use super::physical::Physical;
use super::shared::Shared;
use crate::cache::format::{CHUNK_BYTES, CopyIndex, TRAILER_BYTES};
use crate::device::{Count, Device};

/// A copy of a file on a faster device.
#[derive(Debug)]
pub(crate) struct CachedCopy {
    pub(crate) physical: Arc<Physical>,
    pub(crate) whole: bool,
    /// Read once, when the first handle needs it.
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

    /// Start and length of what it holds, as far as that is known: a handle that reads it has to
    /// have been opened.
    pub(crate) fn ranges(&self) -> Option<Vec<(u64, u64)>> {
        let index = self.index.get()?.as_ref()?;
        Some(index.extents().iter().map(|extent| (extent.start, extent.len)).collect())
    }

    /// Whether its index was read and is damaged.
    fn is_damaged(&self) -> bool {
        matches!(self.index.get(), Some(None))
    }

    /// The copy's index; `None` if it is damaged.
    fn index(&self, file: &dyn RandomFile, shared: &Shared, id: u64) -> Option<Arc<CopyIndex>> {
        self.index.get_or_init(|| load_index(file, shared, id).map(Arc::new)).clone()
    }
}

fn load_index(file: &dyn RandomFile, shared: &Shared, id: u64) -> Option<CopyIndex> {
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

/// What is behind the entry's lock.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) main: Arc<Physical>,
    pub(crate) copies: Vec<Arc<CachedCopy>>,
    pub(crate) handles: Vec<Weak<TierReader>>,
    /// The device does not have it although it should: a whole copy serves, and it is made anew
    /// from that; without one reads fail.
    pub(crate) missing: bool,
}

impl Inside {
    /// Whether nobody has its bytes.
    pub(crate) fn is_lost(&self) -> bool {
        self.missing && !self.copies.iter().any(|copy| copy.whole)
    }
}

/// No column family has this number.
const NO_FAMILY: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) class: FileClass,
    level: AtomicU8,
    /// Its column family; [`NO_FAMILY`] if that is not known, as of files of before the open.
    family: AtomicU64,
    /// Files open for writing; only closed ones move and are copied.
    pub(crate) writers: AtomicU32,
    /// A move or copy of it is queued or under way…
    pub(crate) busy: AtomicBool,
    /// …and that is a copy: it stays where it is.
    pub(crate) copying: AtomicBool,
    /// It was forgotten.
    pub(crate) gone: AtomicBool,
    /// When its move after a change of level is decided anew, in milliseconds; 0 if none is owed.
    pub(crate) move_owed_ms: AtomicU64,
    /// How often that move was decided on in vain.
    pub(crate) move_tries: AtomicU32,
    /// What was counted of its reads.
    pub(crate) accesses: Accesses,
    /// When it was read last, as far as looks tell, in milliseconds of the tiers' clock.
    pub(crate) last_read_ms: AtomicU64,
    /// When it was begun; 0 if that was before the open.
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

    /// Learns the file's family, if that is told.
    pub(crate) fn note_family(&self, family: Option<u32>) {
        if let Some(family) = family {
            self.family.store(u64::from(family), Ordering::Relaxed);
        }
    }

    /// What the tiers' own reads and writes of it are.
    pub(crate) fn own_context(&self) -> IoContext {
        IoContext {
            level: self.level(),
            family: self.family(),
            ..IoContext::new(self.class, IoPurpose::Maintenance)
        }
    }

    /// Opens a handle.
    pub(crate) fn open(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
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

    /// The way to the file's bytes now.
    fn route(
        &self,
        inside: &Inside,
        shared: &Arc<Shared>,
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
            // The device is gone, but a whole copy serves as well.
            Err(error) => match cached.iter().find(|cached| cached.copy.whole) {
                Some(cached) => Arc::new(Absent { error, len: cached.index.data_len() }),
                None => return Err(error),
            },
        };
        cached.sort_by_key(|cached| cached.copy.physical.device);
        let (device, _physical) = (inside.main.device, Arc::clone(&inside.main));
        Ok(Route { device, main, is_absent, cached, _physical })
    }

    /// Leads every handle to where the file and its copies are now.
    pub(crate) fn reroute(&self, inside: &mut Inside, shared: &Arc<Shared>) -> Result<()> {
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
    fn count_read(&self, (offset, bytes): (u64, u64), shared: &Shared, len: u64) {
        self.accesses.count((offset, bytes), len, shared.policy.range_bytes);
    }
}

/// The error of reading a file that its device does not have.
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

/// Stands for an original that is missing or could not be opened while a whole copy could.
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

#[derive(Debug)]
struct Cached {
    file: Arc<dyn RandomFile>,
    copy: Arc<CachedCopy>,
    index: Arc<CopyIndex>,
}

/// See the module.
#[derive(Debug)]
struct Route {
    device: usize,
    main: Arc<dyn RandomFile>,
    /// Whether that could not be opened, and copies serve alone.
    is_absent: bool,
    /// Fastest first.
    cached: Vec<Cached>,
    _physical: Arc<Physical>,
}

/// How a handle gets to its file's bytes.
#[derive(Debug)]
enum Way {
    /// With one device nothing moves and there are no copies: this is the route for ever, without
    /// what it costs to replace one.
    Only(Route),
    /// Where the file and its copies are now.
    Now(ArcSwap<Route>),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct TierReader {
    way: Way,
    entry: Arc<Entry>,
    shared: Arc<Shared>,
    context: IoContext,
    options: OpenOptions,
    len: u64,
}

thread_local! {
    /// Where the chunks of a copy are read to.
    static CHUNKS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The tiers (their address) that this thread merges files of, and the heat of the bytes that
    /// it has read since it ended an output.
    static CARRIED: Cell<(usize, f64)> = const { Cell::new((0, 0.0)) };
}

/// Notes that a compaction on this thread read `bytes` of a file of `len` bytes.
fn carry(shared: &Arc<Shared>, entry: &Entry, bytes: u64, len: u64) {
    let own = Arc::as_ptr(shared).cast::<()>() as usize;
    let (of, before) = CARRIED.get();
    let before = if of == own { before } else { 0.0 };
    CARRIED.set((own, before + entry.accesses.heat() * (bytes as f64 / len.max(1) as f64)));
}

/// Takes the heat of what compactions on this thread have read since the last call.
pub(crate) fn take_carried(shared: &Arc<Shared>) -> f64 {
    let own = Arc::as_ptr(shared).cast::<()>() as usize;
    match CARRIED.replace((own, 0.0)) {
        (of, heat) if of == own => heat,
        _ => 0.0,
    }
}

/// A larger scratch buffer is given back after use.
const CHUNKS_BYTES_KEPT: usize = 1 << 20;

impl TierReader {
    /// Reads of the original: so many with so many bytes.
    #[inline]
    fn read_main(
        &self,
        route: &Route,
        (reads, bytes): (usize, u64),
        foreground: bool,
        read: impl FnOnce(&dyn RandomFile) -> Result<()>,
    ) -> Result<()> {
        let device = &self.shared.devices[route.device];
        let reads = reads as u64;
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

    /// The only device's reads are counted, and nothing else of them: nothing is decided by it.
    #[inline]
    fn read_only_device(&self, outcome: Result<()>) -> Result<()> {
        let device = &self.shared.devices[0];
        device.add(Count::ReadsEnded, 1);
        if outcome.is_err() {
            device.note(&outcome, self.shared.now_ns());
        }
        outcome
    }

    /// Reads from a copy on a faster device; `false` if none has the bytes.
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

    #[cold]
    fn lose(&self, copy: &Arc<CachedCopy>, why: &str) {
        let device = copy.physical.device();
        device.add(Count::CopiesCorrupt, 1);
        let is_dropped = self.shared.drop_copy(&self.entry, copy);
        tracing::warn!(
            copy = %copy.physical.path.display(),
            device = device.name,
            is_dropped,
            "a copy does not serve, and the original is read: {why}"
        );
    }
}

/// Reads `buf` at `at` of the copy and checks it; `false` if it is damaged.
fn read_checked(cached: &Cached, at: u64, buf: &mut [u8], context: IoContext) -> Result<bool> {
    let start = at - at % CHUNK_BYTES;
    let end = (at + buf.len() as u64).next_multiple_of(CHUNK_BYTES).min(cached.index.data_len());
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
        let foreground = context.purpose == IoPurpose::ForegroundRead;
        if foreground {
            self.entry.count_read((offset, buf.len() as u64), &self.shared, self.len);
        } else if matches!(context.purpose, IoPurpose::Compaction { .. }) {
            carry(&self.shared, &self.entry, buf.len() as u64, self.len);
        }
        if !route.cached.is_empty() && self.read_cached(&route, offset, buf, context, foreground) {
            return Ok(());
        }
        let reads = (1, buf.len() as u64);
        self.read_main(&route, reads, foreground, |file| file.read_exact_at(offset, buf, context))
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
                self.entry.count_read((*offset, buf.len() as u64), &self.shared, self.len);
            }
        } else if matches!(context.purpose, IoPurpose::Compaction { .. }) {
            carry(&self.shared, &self.entry, bytes, self.len);
        }
        if route.cached.is_empty() {
            return self.read_main(&route, (requests.len(), bytes), foreground, |file| {
                file.read_many(requests, context)
            });
        }
        let mut left: Vec<(u64, &mut [u8])> = Vec::with_capacity(requests.len());
        for (offset, buf) in requests {
            if !self.read_cached(&route, *offset, buf, context, foreground) {
                left.push((*offset, buf));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let bytes = left.iter().map(|(_, buf)| buf.len() as u64).sum();
        let reads = (left.len(), bytes);
        self.read_main(&route, reads, foreground, |file| file.read_many(&mut left, context))
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
