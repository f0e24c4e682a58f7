//! The logs of a pool in memory, as its nodes have them, and the calls of [`LogStore`].
//!
//! A log on the nodes has `bytes`. Every recovery finds the first `acknowledged` of them, and a
//! recovery after power loss finds the first `synced`. The other bytes may or may not have arrived,
//! and a recovery decides about them.
//!
//! Invariants:
//! 1. `synced` ≤ `acknowledged` ≤ the number of bytes.
//! 2. A log that has ended takes no more bytes, and all of its bytes are synced.
//! 3. A new extent begins at the acknowledged end. Bytes of the previous extent behind this end are
//!    sent again.
//! 4. When a log ends, the pool forgets that bytes may be missing, as a storage node does with a
//!    seal. So only the recovery that ends the log reports the loss.
//!
//! Thread-safety: as for the pool. Failure: as the script and the trait say.

use std::fmt;
use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, RandomFile};

use super::blobs::copy_range;
use super::layout::ExtentMap;
use super::writer::MemoryLogWriter;
use super::{MemoryPool, PoolCall, PoolState};
use crate::ids::{LogId, VolumeId};
use crate::log::{Layout, LogStore, LogToRecover, LogWriter, NewLog, NewOwner, RecoveredLog};

/// A log as the nodes have it.
#[derive(Clone, Debug)]
pub(super) struct StoredLog {
    volume: VolumeId,
    class: FileClass,
    /// Epoch under which it was created.
    epoch: Epoch,
    /// Writers of an older epoch are fenced.
    promised: Epoch,
    /// Number of its beginning, which orders it against releases of strays.
    begun: u64,
    bytes: Vec<u8>,
    /// Offset of the first byte of each extent.
    starts: Vec<u64>,
    acknowledged: usize,
    synced: usize,
    has_ended: bool,
    /// Whether the nodes lost power while it was open and had bytes that needed no sync. Only an
    /// open log is marked so.
    may_miss_unsynced: bool,
}

/// Loss that an acknowledged append survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survival {
    /// A kill of any processes.
    Kill,
    /// Power loss of all nodes.
    PowerLoss,
}

/// A log as errors name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogName(pub(super) LogId);

impl fmt::Display for LogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log {}", self.0)
    }
}

impl StoredLog {
    pub(super) fn stored_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) const fn begun(&self) -> u64 {
        self.begun
    }

    /// The log after a kill of its writer. It keeps a prefix of the bytes that were not
    /// acknowledged.
    pub(super) fn after_kill(&self, rng: &mut Rng) -> Self {
        let mut log = self.clone();
        log.bytes.truncate(between(self.acknowledged, self.bytes.len(), rng));
        log
    }

    /// The log after power loss of all nodes. It keeps a prefix of the bytes that were not synced.
    pub(super) fn after_power_loss(&self, rng: &mut Rng) -> Self {
        let mut log = self.clone();
        log.bytes.truncate(between(self.synced, self.bytes.len(), rng));
        log.acknowledged = log.acknowledged.min(log.bytes.len());
        log.synced = log.acknowledged;
        log.may_miss_unsynced |= !self.has_ended && self.class != FileClass::Manifest;
        log
    }

    fn check_epoch(&self, name: LogName, epoch: Epoch) -> Result<()> {
        if epoch >= self.promised {
            return Ok(());
        }
        Err(fenced(name, epoch, self.promised))
    }

    fn check_writer(&self, name: LogName, epoch: Epoch) -> Result<()> {
        self.check_epoch(name, epoch)?;
        if self.has_ended {
            return Err(Error::fenced(format!(
                "{name} has ended by a recovery or a finish; begin a new log"
            )));
        }
        Ok(())
    }

    fn map(&self) -> ExtentMap {
        ExtentMap { starts: self.starts.clone(), end: None }
    }

    /// End of the bytes that lie in the extents of `map`.
    fn visible(&self, map: &ExtentMap) -> usize {
        let next = self.starts.get(map.starts.len());
        next.map_or(self.bytes.len(), |start| (*start as usize).min(self.bytes.len()))
    }

    fn check_map(&self, name: LogName, map: &ExtentMap) -> Result<()> {
        let is_prefix = self.starts.starts_with(&map.starts);
        // A recovery may have removed extents that it found in no layout.
        if is_prefix || (self.has_ended && map.starts.starts_with(&self.starts)) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("{name}: the layout is that of another log; its record is damaged"),
        ))
    }

    fn acknowledge(&mut self, through: usize, survival: Survival) {
        self.acknowledged = self.acknowledged.max(through);
        if survival == Survival::PowerLoss || self.class == FileClass::Manifest {
            self.synced = self.synced.max(through);
        }
    }

    /// Ends the log at `end`, in the extents of `map`.
    fn end_at(&mut self, map: &ExtentMap, end: usize) {
        self.bytes.truncate(end);
        self.starts.truncate(map.starts.len());
        (self.acknowledged, self.synced) = (self.bytes.len(), self.bytes.len());
        self.has_ended = true;
        self.may_miss_unsynced = false;
    }
}

/// Chooses a number of bytes from `least`, which survive for certain, to `most`, which are all
/// bytes. A third of the choices takes the lower bound, a third the upper bound, and a third any
/// value of the range, because the bounds find most faults.
fn between(least: usize, most: usize, rng: &mut Rng) -> usize {
    match rng.u8(..3) {
        0 => least,
        1 => most,
        _ => rng.usize(least..=most),
    }
}

fn fenced(name: LogName, epoch: Epoch, promised: Epoch) -> Error {
    Error::fenced(format!(
        "{name}: epoch {epoch} is older than {promised}; another process owns the volume now, so \
         close this handle"
    ))
}

impl PoolState {
    /// The log that a writer of `epoch` wants, or the reason why it takes no appends.
    fn writable_log(&mut self, name: LogName, epoch: Epoch) -> Result<&mut StoredLog> {
        let removed = self.logs_removed.get(&name.0).copied();
        let log = self.logs.get_mut(&name.0).ok_or_else(|| missing(name, epoch, removed))?;
        log.check_writer(name, epoch)?;
        Ok(log)
    }

    fn log(&self, name: LogName) -> Result<&StoredLog> {
        self.logs.get(&name.0).ok_or_else(|| missing(name, Epoch(u64::MAX), None))
    }

    /// Takes bytes that a writer of `epoch` sends. A fenced writer gets the error at its next wait.
    pub(super) fn receive(&mut self, name: LogName, epoch: Epoch, parts: &[&[u8]]) {
        if let Ok(log) = self.writable_log(name, epoch) {
            parts.iter().for_each(|part| log.bytes.extend_from_slice(part));
        }
    }

    /// Acknowledges all bytes of a log before `through`.
    pub(super) fn acknowledge(
        &mut self,
        name: LogName,
        epoch: Epoch,
        through: u64,
        survival: Survival,
    ) -> Result<()> {
        self.writable_log(name, epoch)?.acknowledge(through as usize, survival);
        Ok(())
    }

    /// Begins a new extent at the acknowledged end of a log, and returns the layout with it.
    pub(super) fn begin_extent(&mut self, name: LogName, epoch: Epoch) -> Result<Layout> {
        let log = self.writable_log(name, epoch)?;
        log.starts.push(log.acknowledged as u64);
        Ok(log.map().encode())
    }

    /// Ends a log of which `through` bytes were submitted, and returns the layout with its length.
    pub(super) fn finish_log(
        &mut self,
        name: LogName,
        epoch: Epoch,
        through: u64,
    ) -> Result<Layout> {
        let log = self.writable_log(name, epoch)?;
        let map = log.map();
        log.end_at(&map, through as usize);
        Ok(ExtentMap { end: Some(through), ..map }.encode())
    }

    /// Checks that an owner of `epoch` may recover a log with the extents of `map`. Returns whether
    /// acknowledged bytes of the log may be missing.
    fn check_recovery(
        &self,
        log: &LogToRecover<'_>,
        map: &ExtentMap,
        epoch: Epoch,
    ) -> Result<bool> {
        let name = LogName(log.id);
        let removed = self.logs_removed.get(&log.id).copied();
        let stored = self.logs.get(&log.id).ok_or_else(|| missing(name, epoch, removed))?;
        stored.check_epoch(name, epoch)?;
        stored.check_map(name, map)?;
        if stored.class != log.class {
            let created = stored.class;
            return Err(Error::invalid(format!(
                "{name} was created with the class {created:?}; recover it with that class"
            )));
        }
        Ok(map.end.is_none() && stored.may_miss_unsynced)
    }

    fn remove_log(&mut self, id: LogId, epoch: Epoch) -> bool {
        let was_there = self.logs.remove(&id).is_some();
        if was_there {
            self.logs_removed.insert(id, epoch);
        }
        was_there
    }

    /// Logs of `volume` that a release of strays under `epoch` may give up, if it began when the
    /// pool had begun `begun` blobs and logs.
    fn old_logs(&self, volume: VolumeId, epoch: Epoch, begun: u64) -> Vec<LogId> {
        let old = self
            .logs
            .iter()
            .filter(|(_, log)| log.volume == volume && (log.epoch < epoch || log.begun <= begun));
        old.map(|(id, _)| *id).collect()
    }
}

/// The error of a log that is not in the pool, for a call of `epoch`.
fn missing(name: LogName, epoch: Epoch, removed: Option<Epoch>) -> Error {
    match removed {
        Some(removed) if removed > epoch => fenced(name, epoch, removed),
        _ => Error::not_found(format!("{name} is not in the pool; it was removed")),
    }
}

impl LogStore for MemoryPool {
    fn create(&self, new: NewLog) -> Result<(Box<dyn LogWriter>, Layout)> {
        let name = LogName(new.id);
        let answer = self.reach(PoolCall::LogCreate, &name)?;
        let mut pool = self.shared.pool.lock();
        pool.admit(new.volume, new.epoch)?;
        if pool.logs.contains_key(&new.id) || pool.logs_removed.contains_key(&new.id) {
            return Err(Error::invalid(format!(
                "{name} was created before; choose a new identity for each log"
            )));
        }
        let log = StoredLog {
            volume: new.volume,
            class: new.class,
            epoch: new.epoch,
            promised: new.epoch,
            begun: pool.next_begun(),
            bytes: Vec::new(),
            starts: vec![0],
            acknowledged: 0,
            synced: 0,
            has_ended: false,
            may_miss_unsynced: false,
        };
        let layout = log.map().encode();
        pool.logs.insert(new.id, log);
        let writer: Box<dyn LogWriter> = Box::new(MemoryLogWriter::new(self.clone(), new));
        answer.of(PoolCall::LogCreate, &name, (writer, layout))
    }

    fn recover(
        &self,
        id: LogId,
        class: FileClass,
        layout: &Layout,
        owner: NewOwner<'_>,
    ) -> Result<RecoveredLog> {
        let (name, epoch) = (LogName(id), owner.epoch);
        let answer = self.reach(PoolCall::LogRecover, &name)?;
        let map = ExtentMap::decode(layout, &name)?;
        let wanted = LogToRecover { id, class, layout };
        let may_miss_unsynced = self.shared.pool.lock().check_recovery(&wanted, &map, epoch)?;
        if may_miss_unsynced {
            // The keeper may call the pool, so the lock is not held.
            owner.losses.keep_loss()?;
        }
        let mut pool = self.shared.pool.lock();
        pool.check_recovery(&wanted, &map, epoch)?;
        let PoolState { logs, logs_removed, rng, .. } = &mut *pool;
        let removed = logs_removed.get(&id).copied();
        let log = logs.get_mut(&id).ok_or_else(|| missing(name, epoch, removed))?;
        let end = map.end.map_or_else(
            || {
                let visible = log.visible(&map);
                between(log.acknowledged.min(visible), visible, rng)
            },
            |end| end as usize,
        );
        if !self.shared.sabotage.no_fence() {
            log.promised = epoch;
            log.end_at(&map, end);
        }
        let layout = ExtentMap { end: Some(end as u64), ..map }.encode();
        let recovered = RecoveredLog { layout, len_bytes: end as u64, may_miss_unsynced };
        answer.of(PoolCall::LogRecover, &name, recovered)
    }

    fn open(&self, id: LogId, layout: &Layout, _context: IoContext) -> Result<Arc<dyn RandomFile>> {
        let name = LogName(id);
        let answer = self.reach(PoolCall::LogOpen, &name)?;
        let map = ExtentMap::decode(layout, &name)?;
        let pool = self.shared.pool.lock();
        let log = pool.log(name)?;
        log.check_map(name, &map)?;
        let acknowledged = log.acknowledged.min(log.visible(&map)) as u64;
        let len = map.end.unwrap_or(acknowledged);
        let reader = MemoryLogReader { pool: self.clone(), name, len };
        answer.of(PoolCall::LogOpen, &name, Arc::new(reader) as Arc<dyn RandomFile>)
    }

    fn remove(&self, id: LogId, _layout: &Layout, epoch: Epoch) -> Result<()> {
        let name = LogName(id);
        let answer = self.reach(PoolCall::LogRemove, &name)?;
        let mut pool = self.shared.pool.lock();
        if let Some(log) = pool.logs.get(&id) {
            let volume = log.volume;
            log.check_epoch(name, epoch)?;
            pool.admit(volume, epoch)?;
            pool.remove_log(id, epoch);
        }
        answer.of(PoolCall::LogRemove, &name, ())
    }

    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64> {
        let name = format!("logs of volume {volume}");
        let answer = self.reach(PoolCall::LogStrays, &name)?;
        let mut pool = self.shared.pool.lock();
        pool.admit(volume, epoch)?;
        let begun = pool.begun;
        let logs = pool.old_logs(volume, epoch, begun);
        for id in &logs {
            pool.remove_log(*id, epoch);
        }
        answer.of(PoolCall::LogStrays, &name, logs.len() as u64)
    }

    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(LogId) -> bool,
    ) -> Result<u64> {
        let name = format!("stray logs of volume {volume}");
        let answer = self.reach(PoolCall::LogStrays, &name)?;
        let candidates = {
            let mut pool = self.shared.pool.lock();
            pool.admit(volume, epoch)?;
            pool.old_logs(volume, epoch, pool.begun)
        };
        // The owner answers without a lock of the pool, because it may take a lock of its own.
        let strays: Vec<_> = candidates.into_iter().filter(|id| !keeps(*id)).collect();
        let mut pool = self.shared.pool.lock();
        pool.admit(volume, epoch)?;
        let removed = strays.into_iter().filter(|id| pool.remove_log(*id, epoch)).count();
        answer.of(PoolCall::LogStrays, &name, removed as u64)
    }
}

/// A reader of a log, through the end that was acknowledged when it was opened. It keeps nothing
/// alive: the pool removes a log under its readers.
#[derive(Debug)]
struct MemoryLogReader {
    pool: MemoryPool,
    name: LogName,
    len: u64,
}

impl MemoryLogReader {
    fn fetch(&self, requests: &mut [(u64, &mut [u8])]) -> Result<()> {
        let answer = self.pool.reach(PoolCall::LogRead, &self.name)?;
        let pool = self.pool.shared.pool.lock();
        let bytes = &pool.log(self.name)?.bytes;
        let bytes = bytes.get(..self.len as usize).ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{}: {} bytes were acknowledged, and {} are left; the pool lost them",
                    self.name,
                    self.len,
                    bytes.len()
                ),
            )
        })?;
        for (offset, buf) in requests.iter_mut() {
            copy_range(bytes, *offset, buf, &self.name)?;
        }
        answer.of(PoolCall::LogRead, &self.name, ())
    }
}

impl RandomFile for MemoryLogReader {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _context: IoContext) -> Result<()> {
        self.fetch(&mut [(offset, buf)])
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], _context: IoContext) -> Result<()> {
        self.fetch(requests)
    }

    fn len(&self) -> u64 {
        self.len
    }
}
