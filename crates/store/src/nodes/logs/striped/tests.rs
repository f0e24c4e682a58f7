//! Striped logs over a pool in memory: the suite, groups of all sizes, kills and power losses.

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile};
use parking_lot::Mutex;

use super::{
    LogWriting, PartKeeper, PartLayouts, StripedKeeper, StripedLayout, StripedLogs, family_name,
    part_id,
};
use crate::ids::{LogId, VolumeId};
use crate::log::{Layout, LayoutKeeper, LogStore, LogWriter, NewLog, NewOwner, RecoveredLog};
use crate::memory::MemoryPool;
use crate::suite::{CountedLosses, KeptLayouts, logs_conform};

const ID: LogId = LogId(*b"identity: a log.");
const CONTEXT: IoContext = IoContext::new(FileClass::Wal, IoPurpose::Recovery);

fn striped(pool: &MemoryPool) -> StripedLogs {
    StripedLogs::new(pool.stores().logs, LogWriting::Striped)
}

fn create(logs: &StripedLogs, kept: &Arc<KeptLayouts>) -> Box<dyn LogWriter> {
    let (volume, keeper) = (VolumeId::default(), Arc::clone(kept) as Arc<dyn LayoutKeeper>);
    let new = NewLog { id: ID, volume, epoch: Epoch(1), class: FileClass::Wal, keeper };
    let (writer, layout) = logs.create(new).expect("created");
    kept.keep(ID, &layout).expect("kept");
    writer
}

fn pattern(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at * 31 + at / 251) as u8).collect()
}

fn submit(writer: &mut dyn LogWriter, len: u64) {
    let start = writer.len_bytes();
    let bytes = pattern(start..start + len);
    let (first, second) = bytes.split_at(bytes.len() / 3);
    assert_eq!(writer.submit(&[first, second]).expect("submitted"), start);
}

fn read(logs: &dyn LogStore, layout: &Layout) -> Result<Vec<u8>> {
    let reader = logs.open(ID, layout, CONTEXT)?;
    let mut bytes = vec![0; reader.len() as usize];
    reader.read_exact_at(0, &mut bytes, CONTEXT)?;
    Ok(bytes)
}

fn recover(logs: &StripedLogs, layout: &Layout, epoch: u64) -> (RecoveredLog, Vec<u8>) {
    let losses = CountedLosses::default();
    let recovered = logs.recover(ID, FileClass::Wal, layout, losses.owner(epoch));
    let recovered = recovered.expect("recovered");
    let bytes = read(logs, &recovered.layout).expect("bytes");
    assert_eq!(bytes.len() as u64, recovered.len_bytes);
    assert_eq!(losses.count() > 0, recovered.may_miss_unsynced);
    (recovered, bytes)
}

#[test]
fn striped_logs_conform() {
    logs_conform(&striped(&MemoryPool::new(1)), 3);
}

#[test]
fn large_groups_are_on_four_logs() {
    let pool = MemoryPool::new(2);
    let (logs, kept) = (striped(&pool), Arc::new(KeptLayouts::default()));
    let mut writer = create(&logs, &kept);
    for len in [10, 65_535, 65_536, 0, 1, 512 << 10, 100_001] {
        submit(&mut *writer, len);
    }
    writer.position().wait(writer.len_bytes()).expect("acknowledged");
    let whole = pattern(0..writer.len_bytes());
    assert!(read(&logs, &kept.newest(ID)).expect("bytes") == whole);
    let layout = writer.finish().expect("finished");
    let parts = StripedLayout::decode(ID, &layout).expect("a layout").expect("a striped one");
    for part in 1..4 {
        let layout = Layout(parts.parts[part].clone());
        let below = pool.stores().logs.open(part_id(ID, part), &layout, CONTEXT).expect("a log");
        assert!(below.len() > 512 << 8, "sub-log {part} has {} bytes", below.len());
    }
    let reader = logs.open(ID, &layout, CONTEXT).expect("a reader");
    let mut rng = Rng::with_seed(1);
    for _ in 0..200 {
        let start = rng.usize(0..whole.len());
        let end = rng.usize(start..=whole.len().min(start + 200_000));
        let mut bytes = vec![0; end - start];
        reader.read_exact_at(start as u64, &mut bytes, CONTEXT).expect("bytes");
        assert!(bytes == whole[start..end], "{start}..{end}");
    }
}

#[test]
fn recovery_after_a_kill_ends_at_a_group() {
    let mut ends = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let pool = MemoryPool::new(seed);
        let (logs, kept) = (striped(&pool), Arc::new(KeptLayouts::default()));
        let mut writer = create(&logs, &kept);
        submit(&mut *writer, 70_000);
        submit(&mut *writer, 1000);
        writer.position().wait(71_000).expect("acknowledged");
        submit(&mut *writer, 66_000);
        submit(&mut *writer, 80_000);
        // After a kill, a part of the unacknowledged groups exists. Without a kill, all of them
        // exist.
        let after = striped(&if seed % 4 == 0 { pool.kill_clone(seed) } else { pool.clone() });
        let (recovered, bytes) = recover(&after, &kept.newest(ID), 2);
        assert!(pattern(0..217_000).starts_with(&bytes), "seed {seed}");
        ends.insert(recovered.len_bytes);
        let (again, same) = recover(&after, &recovered.layout, 3);
        assert!(again.len_bytes == recovered.len_bytes && same == bytes);
    }
    let groups = std::collections::BTreeSet::from([71_000, 137_000, 217_000]);
    assert!(ends.is_subset(&groups) && ends.len() > 1, "{ends:?}");
}

#[test]
fn synced_groups_survive_power_loss() {
    for seed in 0..30 {
        let pool = MemoryPool::new(seed);
        let (logs, kept) = (striped(&pool), Arc::new(KeptLayouts::default()));
        let mut writer = create(&logs, &kept);
        submit(&mut *writer, 200_000);
        submit(&mut *writer, 10);
        assert_eq!(writer.position().sync().expect("synced"), 200_010);
        submit(&mut *writer, 90_000);
        writer.position().wait(290_010).expect("acknowledged");
        let after = striped(&pool.crash_clone(seed));
        let (recovered, bytes) = recover(&after, &kept.newest(ID), 2);
        assert!(bytes.len() >= 200_010 && pattern(0..290_010).starts_with(&bytes));
        assert!(recovered.may_miss_unsynced);
    }
}

#[test]
fn parts_of_a_log_are_one_family() {
    let names: Vec<LogId> = (0..4).map(|part| family_name(part_id(ID, part))).collect();
    assert!(names.iter().all(|name| *name == names[0]));
}

#[test]
fn logs_that_are_not_striped_stay_readable() {
    let pool = MemoryPool::new(5);
    let kept = Arc::new(KeptLayouts::default());
    let keeper = Arc::clone(&kept) as Arc<dyn LayoutKeeper>;
    let volume = VolumeId::default();
    let new = NewLog { id: ID, volume, epoch: Epoch(1), class: FileClass::Wal, keeper };
    let (mut writer, layout) = pool.stores().logs.create(new).expect("created");
    writer.submit(&[b"written before"]).expect("submitted");
    writer.position().wait(14).expect("acknowledged");
    let (_, bytes) = recover(&striped(&pool), &layout, 2);
    assert_eq!(bytes, b"written before");
}

/// The layouts of the parts in that of the whole log.
fn parts_of(layout: &Layout) -> Vec<Layout> {
    StripedLayout::decode(ID, layout).expect("a layout").expect("a striped one").parts()
}

/// Keeps all layouts in their order.
#[derive(Debug, Default)]
struct LayoutHistory(Mutex<Vec<Layout>>);

impl LayoutKeeper for LayoutHistory {
    fn keep(&self, _log: LogId, layout: &Layout) -> Result<()> {
        self.0.lock().push(layout.clone());
        Ok(())
    }
}

/// A store that moves all logs which exist when it creates another one.
#[derive(Debug)]
struct MovingLogs {
    logs: Arc<dyn LogStore>,
    created: Mutex<Vec<(LogId, Arc<dyn LayoutKeeper>)>>,
}

/// The layout of a log that was moved.
fn moved(id: LogId) -> Layout {
    Layout([&b"moved "[..], &id.0[..]].concat())
}

impl LogStore for MovingLogs {
    fn create(&self, new: NewLog) -> Result<(Box<dyn LogWriter>, Layout)> {
        let (id, keeper) = (new.id, Arc::clone(&new.keeper));
        let created = self.logs.create(new)?;
        let mut all = self.created.lock();
        all.push((id, keeper));
        for (id, keeper) in all.iter() {
            keeper.keep(*id, &moved(*id))?;
        }
        Ok(created)
    }

    fn recover(
        &self,
        id: LogId,
        class: FileClass,
        layout: &Layout,
        owner: NewOwner<'_>,
    ) -> Result<RecoveredLog> {
        self.logs.recover(id, class, layout, owner)
    }

    fn open(&self, id: LogId, layout: &Layout, context: IoContext) -> Result<Arc<dyn RandomFile>> {
        self.logs.open(id, layout, context)
    }

    fn remove(&self, id: LogId, layout: &Layout, epoch: Epoch) -> Result<()> {
        self.logs.remove(id, layout, epoch)
    }

    fn release_strays(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        keeps: &dyn Fn(LogId) -> bool,
    ) -> Result<u64> {
        self.logs.release_strays(volume, epoch, keeps)
    }

    fn release_volume(&self, volume: VolumeId, epoch: Epoch) -> Result<u64> {
        self.logs.release_volume(volume, epoch)
    }
}

#[test]
fn parts_that_move_during_the_creation_keep_their_newest_layouts() {
    let below = MovingLogs { logs: MemoryPool::new(6).stores().logs, created: Mutex::default() };
    let logs = StripedLogs::new(Arc::new(below), LogWriting::Striped);
    let history = Arc::new(LayoutHistory::default());
    let (volume, keeper) = (VolumeId::default(), Arc::clone(&history) as Arc<dyn LayoutKeeper>);
    let new = NewLog { id: ID, volume, epoch: Epoch(1), class: FileClass::Wal, keeper };
    let (_writer, layout) = logs.create(new).expect("created");
    let wanted: Vec<Layout> = (0..4).map(|part| moved(part_id(ID, part))).collect();
    assert_eq!(parts_of(&layout), wanted);
    let kept = history.0.lock();
    assert_eq!(kept.last().map(parts_of), Some(wanted));
    let is_whole = |layout: &Layout| parts_of(layout).iter().all(|part| !part.0.is_empty());
    assert!(kept.iter().all(is_whole), "no layout lacks a part that is not created yet");
}

#[test]
fn late_layout_does_not_replace_the_last_one_of_a_part() {
    let layout = |number: u8| Layout(vec![number]);
    let mut parts = PartLayouts::default();
    (0..4).for_each(|part| parts.created(part, layout(1)));
    let history = Arc::new(LayoutHistory::default());
    let keeper = Arc::clone(&history) as Arc<dyn LayoutKeeper>;
    let (parts, turn) = (Mutex::new(parts), Mutex::default());
    let whole = Arc::new(StripedKeeper { id: ID, keeper, parts, turn });
    let keep = |part: usize, number: u8| {
        let keeper = PartKeeper { whole: Arc::clone(&whole), part };
        keeper.keep(part_id(ID, part), &layout(number)).expect("kept");
    };
    keep(1, 2);
    whole.parts.lock().ended(1, layout(3));
    keep(1, 2);
    keep(2, 4);
    assert_eq!(parts_of(&whole.layout(Some(9))), [1, 3, 4, 1].map(layout));
    assert_eq!(history.0.lock().len(), 2, "a layout that is late is not kept");
}
