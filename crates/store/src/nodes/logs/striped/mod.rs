//! Striped logs: large groups of a write-ahead log travel to four logs in parallel, each with nodes
//! of its own (Terark-DS §4.3).
//!
//! [`StripedLogs`] is a store of logs over another one. A log of the class [`FileClass::Wal`]
//! consists of a *parent* and three *sub-logs* below, whose identities follow from that of the
//! parent. [`segments`] cuts the groups. The parent has a header for each group, so it alone says
//! which bytes the log has. All other logs are those of the store below.
//!
//! A recovery recovers all four logs, which fences them before a byte is read. Then it reads the
//! headers of the parent. The log ends before the first group that lacks a segment. The layout with
//! the four ends and the length is one record, so every later recovery finds the same groups.
//!
//! Invariants:
//! 1. A group is acknowledged when all its segments are.
//! 2. The layout of a striped log has the layouts of all four logs. Two changes are kept one after
//!    the other, so the newer layout has both changes.
//! 3. A striped log keeps its form: the layout says whether a log is striped.
//! 4. A layout of the striped log has the layouts of all its parts. If a part moves to other nodes
//!    while other parts are being created, the first layout of the striped log has the newest
//!    layout of that part.
//! 5. A thread that reports a layout late never replaces the last layout of a part.
//!
//! Thread-safety: as for the store below.
//! Failure: that of the store below. The first error of one of the four logs ends the log.
//! Cost: a group of one segment costs a header of 32 bytes. A creation takes the time of two of the
//! store below, and a removal that of four. A reader reads the parent once when it is opened.
//!
//! [`segments`]: super::super::log::segments

mod reader;
mod writer;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_base::{Epoch, Error, ErrorKind, Result, wire_struct};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile};
use parking_lot::Mutex;

use self::reader::{GroupIndex, StripedReader};
use self::writer::StripedWriter;
use super::super::log::segments::SEGMENTS_MAX;
use super::super::wire::stored::{Enclosed, decode_enclosed, encode_enclosed};
use crate::ids::{LogId, VolumeId};
use crate::log::{
    Layout, LayoutKeeper, LogSetReader, LogStore, LogToRecover, LogWriter, NewLog, NewOwner,
    RecoveredLog,
};

/// The layout of a striped log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StripedLayout {
    /// Number of bytes of the log, once it has ended.
    pub len: Option<u64>,
    /// Layouts of the parent and of the sub-logs, in order.
    pub parts: Vec<Vec<u8>>,
}
wire_struct!(StripedLayout { len, parts });

/// The version distinguishes a striped layout from that of a log that is not striped.
impl Enclosed for StripedLayout {
    const VERSION: u8 = 0x81;
    const NAME: &'static str = "layout of a striped log";
}

impl StripedLayout {
    fn encode(&self) -> Layout {
        Layout(encode_enclosed(self))
    }

    /// The layout of a striped log; `None` if the log is not striped.
    fn decode(id: LogId, layout: &Layout) -> Result<Option<Self>> {
        if layout.0.first() != Some(&Self::VERSION) {
            return Ok(None);
        }
        let name = format!("log {id}");
        let striped: Self = decode_enclosed(&name, &layout.0)?;
        match striped.parts.len() {
            SEGMENTS_MAX => Ok(Some(striped)),
            other => Err(Error::new(
                ErrorKind::Corrupt,
                format!("{name}: its layout has {other} parts; its record is damaged"),
            )),
        }
    }

    fn parts(&self) -> Vec<Layout> {
        self.parts.iter().cloned().map(Layout).collect()
    }
}

/// Identity of a part of the log `id`. The parent is part 0.
fn part_id(id: LogId, part: usize) -> LogId {
    let mut bytes = id.0;
    bytes[15] ^= part as u8;
    LogId(bytes)
}

/// The identities that have the same parts as `id`: the parent is one of them.
fn family(id: LogId) -> [LogId; SEGMENTS_MAX] {
    std::array::from_fn(|part| part_id(id, part))
}

/// A name for all parts of one log.
fn family_name(id: LogId) -> LogId {
    family(id).into_iter().min().unwrap_or(id)
}

/// Newest layouts of the parts of one log.
#[derive(Debug, Default)]
struct PartLayouts {
    /// Layouts of the parts in order. That of a part which is not created yet is empty.
    layouts: [Layout; SEGMENTS_MAX],
    /// Whether each part has ended, so that its layout is the last one.
    have_ended: [bool; SEGMENTS_MAX],
}

impl PartLayouts {
    /// Notes the layout with which a part was created, unless its writer has made a newer one.
    fn created(&mut self, part: usize, first: Layout) {
        let known = &mut self.layouts[part];
        if known.0.is_empty() {
            *known = first;
        }
    }

    /// Notes a layout that the writer of a part has made. A thread may report it late, so the
    /// layout of a part that has ended stays. Returns whether the layout of the striped log must be
    /// kept now. While the striped log is being created, its first layout includes this one anyway.
    fn changed(&mut self, part: usize, layout: &Layout) -> bool {
        if self.have_ended[part] {
            return false;
        }
        self.layouts[part].clone_from(layout);
        self.layouts.iter().all(|layout| !layout.0.is_empty())
    }

    /// Notes the last layout of a part.
    fn ended(&mut self, part: usize, last: Layout) {
        self.layouts[part] = last;
        self.have_ended[part] = true;
    }
}

/// Keeps the layouts of the parts in that of the whole log.
#[derive(Debug)]
struct StripedKeeper {
    id: LogId,
    keeper: Arc<dyn LayoutKeeper>,
    parts: Mutex<PartLayouts>,
    /// Held by the thread that keeps, so that an older layout does not replace a newer one. Nothing
    /// that a keeper does needs it.
    turn: Mutex<()>,
}

impl StripedKeeper {
    fn layout(&self, len: Option<u64>) -> Layout {
        let parts = self.parts.lock().layouts.iter().map(|part| part.0.clone()).collect();
        StripedLayout { len, parts }.encode()
    }
}

/// Keeps the layouts of one part.
#[derive(Debug)]
struct PartKeeper {
    whole: Arc<StripedKeeper>,
    part: usize,
}

impl LayoutKeeper for PartKeeper {
    fn keep(&self, _part: LogId, layout: &Layout) -> Result<()> {
        let _turn = self.whole.turn.lock();
        let is_needed = self.whole.parts.lock().changed(self.part, layout);
        match is_needed {
            true => self.whole.keeper.keep(self.whole.id, &self.whole.layout(None)),
            false => Ok(()),
        }
    }
}

/// Form in which new write-ahead logs are written. Every store reads both forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogWriting {
    /// Every group travels to the nodes of one log.
    #[default]
    Serial,
    /// Large groups are cut over four logs. This is faster if one connection is slower than the
    /// network card, and it costs four times the requests.
    Striped,
}

/// Striped logs over the logs of another store.
#[derive(Debug)]
pub struct StripedLogs {
    logs: Arc<dyn LogStore>,
    writing: LogWriting,
}

impl StripedLogs {
    /// Logs over those of `logs`. `writing` holds for the logs that are created from now on.
    #[must_use]
    pub fn new(logs: Arc<dyn LogStore>, writing: LogWriting) -> Self {
        Self { logs, writing }
    }

    fn create_striped(&self, new: NewLog) -> Result<(Box<dyn LogWriter>, Layout)> {
        let NewLog { id, volume, epoch, class, keeper } = new;
        let parts = Mutex::new(PartLayouts::default());
        let whole = Arc::new(StripedKeeper { id, keeper, parts, turn: Mutex::default() });
        let part = |part| {
            let keeper = Arc::new(PartKeeper { whole: Arc::clone(&whole), part });
            NewLog { id: part_id(id, part), volume, epoch, class, keeper }
        };
        // The parent is created first, because only the parent shows that an identity was used
        // before.
        let (parent, layout) = self.logs.create(part(0))?;
        whole.parts.lock().created(0, layout);
        let mut writers = vec![parent];
        let mut failed = None;
        let created = self.logs.create_all((1..SEGMENTS_MAX).map(part).collect());
        for (part, created) in (1..).zip(created) {
            match created {
                Ok((writer, layout)) => {
                    whole.parts.lock().created(part, layout);
                    writers.push(writer);
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            drop(writers);
            self.give_up(id, &whole.parts.lock().layouts, epoch);
            return Err(error);
        }
        let layout = whole.layout(None);
        Ok((Box::new(StripedWriter::new(id, whole, writers)), layout))
    }

    /// Removes the parts of a log whose creation failed. A part that cannot be removed stays as a
    /// stray.
    fn give_up(&self, id: LogId, parts: &[Layout], epoch: Epoch) {
        let created = parts.iter().enumerate().filter(|(_, layout)| !layout.0.is_empty());
        for (part, layout) in created {
            if let Err(error) = self.logs.remove(part_id(id, part), layout, epoch) {
                tracing::debug!(%error, log = %id, part, "a part of a log is left as a stray");
            }
        }
    }

    fn open_parts(
        &self,
        id: LogId,
        parts: &[Layout],
        context: IoContext,
    ) -> Result<Arc<dyn LogSetReader>> {
        let parts = parts.iter().enumerate();
        let parts: Vec<_> = parts.map(|(part, layout)| (part_id(id, part), layout)).collect();
        self.logs.open_all(&parts, context)
    }

    /// A log whose parts were recovered, or one that is not striped.
    fn assemble(
        &self,
        log: &LogToRecover<'_>,
        plan: &RecoverPlan,
        parts: Vec<Result<RecoveredLog>>,
    ) -> Result<RecoveredLog> {
        let mut parts = parts.into_iter().collect::<Result<Vec<RecoveredLog>>>()?;
        let Some(striped) = &plan.striped else { return Ok(parts.remove(0)) };
        let may_miss_unsynced = parts.iter().any(|part| part.may_miss_unsynced);
        let layouts: Vec<Layout> = parts.into_iter().map(|part| part.layout).collect();
        let len_bytes = match striped.len {
            Some(len) => len,
            None => {
                let context = IoContext::new(log.class, IoPurpose::Recovery);
                let readers = self.open_parts(log.id, &layouts, context)?;
                GroupIndex::scan(log.id, &*readers, None, context)?.len_bytes()
            }
        };
        let parts = layouts.into_iter().map(|layout| layout.0).collect();
        let layout = StripedLayout { len: Some(len_bytes), parts }.encode();
        Ok(RecoveredLog { layout, len_bytes, may_miss_unsynced })
    }
}

/// A log of a call to recover, with the layouts of its parts if it is striped.
struct RecoverPlan {
    striped: Option<StripedLayout>,
    parts: Vec<Layout>,
}

impl LogStore for StripedLogs {
    fn create(&self, new: NewLog) -> Result<(Box<dyn LogWriter>, Layout)> {
        match (self.writing, new.class) {
            (LogWriting::Striped, FileClass::Wal) => self.create_striped(new),
            _ => self.logs.create(new),
        }
    }

    fn recover(
        &self,
        id: LogId,
        class: FileClass,
        layout: &Layout,
        owner: NewOwner<'_>,
    ) -> Result<RecoveredLog> {
        let log = LogToRecover { id, class, layout };
        let missing = || Err(Error::internal(format!("log {id} was not recovered")));
        self.recover_all(&[log], owner).pop().unwrap_or_else(missing)
    }

    /// The parts of all logs are recovered in one call of the store below.
    fn recover_all(
        &self,
        logs: &[LogToRecover<'_>],
        owner: NewOwner<'_>,
    ) -> Vec<Result<RecoveredLog>> {
        let plan = |log: &LogToRecover<'_>| -> Result<RecoverPlan> {
            let striped = StripedLayout::decode(log.id, log.layout)?;
            let parts = match &striped {
                Some(striped) => striped.parts(),
                None => vec![log.layout.clone()],
            };
            Ok(RecoverPlan { striped, parts })
        };
        let plans: Vec<Result<RecoverPlan>> = logs.iter().map(plan).collect();
        let mut all: Vec<LogToRecover<'_>> = Vec::new();
        for (log, plan) in logs.iter().zip(&plans) {
            let parts = plan.iter().flat_map(|plan| plan.parts.iter().enumerate());
            all.extend(parts.map(|(part, layout)| LogToRecover {
                id: part_id(log.id, part),
                class: log.class,
                layout,
            }));
        }
        let mut recovered = self.logs.recover_all(&all, owner).into_iter();
        let mut outcomes = Vec::with_capacity(logs.len());
        for (log, plan) in logs.iter().zip(plans.iter()) {
            outcomes.push(match plan {
                Ok(plan) => {
                    let parts: Vec<_> = recovered.by_ref().take(plan.parts.len()).collect();
                    self.assemble(log, plan, parts)
                }
                Err(error) => Err(error.clone()),
            });
        }
        outcomes
    }

    fn open(&self, id: LogId, layout: &Layout, context: IoContext) -> Result<Arc<dyn RandomFile>> {
        let Some(striped) = StripedLayout::decode(id, layout)? else {
            return self.logs.open(id, layout, context);
        };
        let parts = self.open_parts(id, &striped.parts(), context)?;
        let index = GroupIndex::scan(id, &*parts, striped.len, context)?;
        Ok(Arc::new(StripedReader::new(id, parts, index)))
    }

    fn keep_layouts(&self, volume: VolumeId) {
        self.logs.keep_layouts(volume);
    }

    fn remove(&self, id: LogId, layout: &Layout, epoch: Epoch) -> Result<()> {
        let Some(striped) = StripedLayout::decode(id, layout)? else {
            return self.logs.remove(id, layout, epoch);
        };
        let mut removed = Ok(());
        for (part, layout) in striped.parts().iter().enumerate() {
            removed = self.logs.remove(part_id(id, part), layout, epoch).and(removed);
        }
        removed
    }

    /// The parts of a log count as several logs.
    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64> {
        self.logs.release_volume(volume, epoch)
    }

    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(LogId) -> bool,
    ) -> Result<u64> {
        let strays = RefCell::new(BTreeSet::new());
        let keeps_family = |id| {
            let is_kept = family(id).into_iter().any(keeps);
            if !is_kept {
                strays.borrow_mut().insert(family_name(id));
            }
            is_kept
        };
        let released = self.logs.release_strays(volume, epoch, &keeps_family)?;
        // The parts of a log count as one log.
        Ok(released.min(strays.into_inner().len() as u64))
    }
}

#[cfg(test)]
mod tests;
