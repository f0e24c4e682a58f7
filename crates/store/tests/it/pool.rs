//! The pool in memory: the suites of the three traits, kills, power losses, faults and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::{Epoch, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use archipelago_store::memory::{Fault, MemoryPool, PoolCall};
use archipelago_store::suite::{
    CountedLosses, KeptLayouts, blobs_conform, logs_conform, register_conforms,
};
use archipelago_store::{
    BlobId, BlobOptions, BlobRef, Layout, LayoutKeeper, LogId, LogWriter, LossKeeper, NewLog,
    NewOwner, RecoveredLog, Sabotage, Stores, Swap, VolumeId,
};

const VOLUME: VolumeId = VolumeId([1; 16]);
const BLOB: BlobId = BlobId([2; 16]);
const LOG: LogId = LogId([3; 16]);
/// Number of seeds whose clones are compared.
const SEEDS: u64 = 50;

fn context() -> IoContext {
    IoContext::new(FileClass::Other, IoPurpose::Maintenance)
}

fn options(epoch: u64) -> BlobOptions {
    BlobOptions { volume: VOLUME, epoch: Epoch(epoch), context: context(), size_hint_bytes: 0 }
}

/// A log with the keeper of its layouts.
struct KeptLog {
    class: FileClass,
    kept: Arc<KeptLayouts>,
    writer: Box<dyn LogWriter>,
}

impl KeptLog {
    fn begin(stores: &Stores, class: FileClass) -> Self {
        Self::begin_with(stores, class, Arc::new(KeptLayouts::default()))
    }

    fn begin_with(stores: &Stores, class: FileClass, kept: Arc<KeptLayouts>) -> Self {
        let keeper = Arc::clone(&kept) as Arc<dyn LayoutKeeper>;
        let new = NewLog { id: LOG, volume: VOLUME, epoch: Epoch(1), class, keeper };
        let (writer, layout) = stores.logs.create(new).unwrap();
        kept.keep(LOG, &layout).unwrap();
        Self { class, kept, writer }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let offset = self.writer.submit(&[bytes])?;
        self.writer.position().wait(offset + bytes.len() as u64)
    }

    fn recover(&self, pool: &MemoryPool, epoch: u64) -> (RecoveredLog, Vec<u8>) {
        let stores = pool.stores();
        let layout = self.kept.newest(LOG);
        let losses = CountedLosses::default();
        let recovered = stores.logs.recover(LOG, self.class, &layout, losses.owner(epoch)).unwrap();
        let bytes = read_log(&stores, &recovered.layout);
        assert_eq!(bytes.len() as u64, recovered.len_bytes);
        assert_eq!(losses.count(), u64::from(recovered.may_miss_unsynced));
        (recovered, bytes)
    }
}

fn read_log(stores: &Stores, layout: &Layout) -> Vec<u8> {
    let reader = stores.logs.open(LOG, layout, context()).unwrap();
    let mut bytes = vec![0; reader.len() as usize];
    reader.read_exact_at(0, &mut bytes, context()).unwrap();
    bytes
}

fn write_blob(stores: &Stores, id: BlobId, bytes: &[u8]) -> Result<BlobRef> {
    let mut writer = stores.blobs.create(id, options(1))?;
    writer.append(bytes)?;
    writer.seal()
}

#[test]
fn memory_pool_conforms() {
    for seed in 0..3 {
        let stores = MemoryPool::new(seed).stores();
        blobs_conform(&*stores.blobs, seed);
        logs_conform(&*stores.logs, seed);
        register_conforms(&*stores.register, "suite");
    }
}

#[test]
fn memory_pool_conforms_again_after_a_crash() {
    let pool = MemoryPool::new(1);
    for seed in 0..3 {
        let stores = pool.crash_clone(seed).kill_clone(seed).stores();
        logs_conform(&*stores.logs, seed);
        blobs_conform(&*stores.blobs, seed);
        register_conforms(&*stores.register, &seed.to_string());
    }
}

#[test]
fn kill_keeps_acknowledged_bytes_and_a_prefix_of_others() {
    let pool = MemoryPool::new(1);
    let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
    log.append(b"acknowledged").unwrap();
    log.writer.submit(&[b", submitted"]).unwrap();
    let mut lens = Vec::new();
    for seed in 0..SEEDS {
        let (recovered, bytes) = log.recover(&pool.kill_clone(seed), 2);
        assert!(!recovered.may_miss_unsynced);
        assert!(b"acknowledged, submitted".starts_with(&bytes) && bytes.len() >= 12);
        assert_eq!(bytes, log.recover(&pool.kill_clone(seed), 2).1, "the seed decides");
        lens.push(bytes.len());
    }
    for len in [12, 23] {
        assert!(lens.contains(&len), "no seed leaves {len} bytes: {lens:?}");
    }
    assert!(lens.iter().any(|len| (13..23).contains(len)), "no seed cuts within an append");
}

#[test]
fn power_loss_keeps_synced_bytes_and_a_prefix_of_others() {
    let pool = MemoryPool::new(1);
    let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
    log.append(b"synced").unwrap();
    assert_eq!(log.writer.position().sync().unwrap(), 6);
    log.append(b", acknowledged").unwrap();
    let mut lens = Vec::new();
    for seed in 0..SEEDS {
        let crashed = pool.crash_clone(seed);
        let (recovered, bytes) = log.recover(&crashed, 2);
        assert!(recovered.may_miss_unsynced, "machines lost their power");
        assert!(b"synced, acknowledged".starts_with(&bytes) && bytes.len() >= 6);
        assert_eq!(log.recover(&crashed, 3).0.len_bytes, recovered.len_bytes);
        lens.push(bytes.len());
    }
    assert!(lens.contains(&6) && lens.contains(&20), "{lens:?}");
}

/// A keeper of losses that cannot keep them.
#[derive(Debug)]
struct UnreachableKeeper(MemoryPool);

impl LossKeeper for UnreachableKeeper {
    fn keep_loss(&self) -> Result<()> {
        // The backend holds no lock, so the keeper may use the pool.
        self.0.stores().register.read("keeper")?;
        Err(archipelago_base::Error::busy("the register does not answer"))
    }
}

#[test]
fn log_is_not_ended_before_its_loss_is_kept() {
    let pool = MemoryPool::new(1);
    let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
    log.append(b"acknowledged").unwrap();
    let crashed = pool.crash_clone(1);
    let (stores, layout) = (crashed.stores(), log.kept.newest(LOG));
    let keeper = UnreachableKeeper(crashed.clone());
    let owner = NewOwner { epoch: Epoch(2), losses: &keeper };
    let error = stores.logs.recover(LOG, log.class, &layout, owner).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(log.recover(&crashed, 3).0.may_miss_unsynced, "nothing was forgotten");
    let (again, _) = log.recover(&crashed, 4);
    assert!(!again.may_miss_unsynced, "only the keeper knows it now, as over storage nodes");
}

#[test]
fn power_loss_takes_nothing_of_manifests_and_finished_logs() {
    let pool = MemoryPool::new(1);
    let mut manifest = KeptLog::begin(&pool.stores(), FileClass::Manifest);
    manifest.append(b"acknowledged").unwrap();
    let other = MemoryPool::new(1);
    let mut finished = KeptLog::begin(&other.stores(), FileClass::Wal);
    finished.append(b"finished").unwrap();
    let layout = finished.writer.finish().unwrap();
    for seed in 0..SEEDS {
        let (recovered, bytes) = manifest.recover(&pool.crash_clone(seed), 2);
        assert_eq!((recovered.may_miss_unsynced, &bytes[..]), (false, &b"acknowledged"[..]));
        assert_eq!(read_log(&other.crash_clone(seed).stores(), &layout), b"finished");
        let (recovered, bytes) = finished.recover(&other.crash_clone(seed), 2);
        assert_eq!((recovered.may_miss_unsynced, &bytes[..]), (false, &b"finished"[..]));
    }
}

#[test]
fn clones_share_nothing_with_their_origin() {
    let pool = MemoryPool::new(1);
    let stores = pool.stores();
    let blob = write_blob(&stores, BLOB, b"sealed").unwrap();
    stores.register.compare_and_swap("name", 0, b"one").unwrap();
    for clone in [pool.kill_clone(1), pool.crash_clone(1)] {
        let cloned = clone.stores();
        cloned.blobs.release(BLOB, VOLUME, Epoch(9)).unwrap();
        cloned.register.compare_and_swap("name", 1, b"two").unwrap();
        assert!(clone.blob_list().is_empty());
    }
    stores.blobs.open(&blob, context()).unwrap();
    assert_eq!(stores.register.read("name").unwrap().unwrap().value, b"one");
    write_blob(&stores, BlobId([9; 16]), b"still of the epoch").unwrap();
}

#[test]
fn killed_writer_leaves_an_unsealed_stray() {
    let pool = MemoryPool::new(1);
    let mut writer = pool.stores().blobs.create(BLOB, options(1)).unwrap();
    writer.append(b"half").unwrap();
    let killed = pool.kill_clone(1);
    let left = killed.blob_list();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].id, left[0].is_sealed, left[0].len_bytes), (BLOB, false, 4));
    assert_eq!(left[0].volumes, [VOLUME]);
    let released = killed.stores().blobs.release_strays(VOLUME, Epoch(2), &|_| false).unwrap();
    assert_eq!((released, killed.blob_list().len()), (1, 0));
    writer.seal().unwrap();
}

#[test]
fn refused_calls_fail_and_do_nothing() {
    let pool = MemoryPool::new(1);
    let stores = pool.stores();
    pool.inject(PoolCall::RegisterSwap, 2, Fault::Refuse);
    assert_eq!(stores.register.compare_and_swap("name", 0, b"1").unwrap(), Swap::Done(1));
    let error = stores.register.compare_and_swap("name", 1, b"2").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("name"), "{error}");
    assert_eq!(stores.register.compare_and_swap("name", 1, b"3").unwrap(), Swap::Done(2));

    pool.inject(PoolCall::BlobSeal, 1, Fault::Refuse);
    assert_eq!(write_blob(&stores, BLOB, b"bytes").unwrap_err().kind(), ErrorKind::Io);
    assert!(!pool.blob_list()[0].is_sealed);

    pool.inject(PoolCall::LogWait, 1, Fault::Refuse);
    let mut log = KeptLog::begin(&stores, FileClass::Wal);
    assert_eq!(log.append(b"lost").unwrap_err().kind(), ErrorKind::Io);
    assert!(log.append(b"more").is_err(), "the error is sticky");
    let lens = (0..SEEDS).map(|seed| log.recover(&pool.kill_clone(seed), 2).0.len_bytes);
    let lens: Vec<_> = lens.collect();
    assert!(lens.contains(&0) && lens.contains(&4), "{lens:?}");
}

#[test]
fn lost_answers_leave_what_was_done() {
    let pool = MemoryPool::new(1);
    let stores = pool.stores();
    pool.inject(PoolCall::RegisterSwap, 1, Fault::LoseAnswer);
    assert!(stores.register.compare_and_swap("name", 0, b"1").is_err());
    assert_eq!(stores.register.read("name").unwrap().unwrap().value, b"1");

    pool.inject(PoolCall::BlobSeal, 1, Fault::LoseAnswer);
    assert!(write_blob(&stores, BLOB, b"bytes").is_err());
    assert!(pool.blob_list()[0].is_sealed);

    pool.inject(PoolCall::LogWait, 1, Fault::LoseAnswer);
    let mut log = KeptLog::begin(&stores, FileClass::Wal);
    assert!(log.append(b"kept").is_err());
    for seed in 0..SEEDS {
        assert_eq!(log.recover(&pool.kill_clone(seed), 2).1, b"kept");
    }

    pool.inject(PoolCall::BlobRead, 1, Fault::LoseAnswer);
    pool.clear_faults();
    let blob = write_blob(&stores, BlobId([9; 16]), b"x").unwrap();
    stores.blobs.open(&blob, context()).unwrap().read_exact_at(0, &mut [0], context()).unwrap();
}

#[test]
fn log_continues_in_a_new_extent_after_a_lost_replica() {
    for call in [PoolCall::LogWait, PoolCall::LogSync, PoolCall::LogFinish] {
        let pool = MemoryPool::new(1);
        let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
        log.append(b"first").unwrap();
        let old = log.kept.newest(LOG);
        pool.inject(call, 1, Fault::EndExtent);
        log.writer.submit(&[b" second"]).unwrap();
        match call {
            PoolCall::LogWait => log.writer.position().wait(12).unwrap(),
            PoolCall::LogSync => assert_eq!(log.writer.position().sync().unwrap(), 12),
            _ => drop(log.writer.finish().unwrap()),
        }
        assert_ne!(log.kept.newest(LOG), old, "the new layout is recorded");
        for seed in 0..SEEDS {
            assert_eq!(log.recover(&pool.kill_clone(seed), 2).1, b"first second");
        }
    }
}

/// Looks at the pool at the moment at which a layout is to be kept, and refuses it.
#[derive(Debug)]
struct RefusingKeeper(MemoryPool);

impl LayoutKeeper for RefusingKeeper {
    fn keep(&self, log: LogId, _layout: &Layout) -> Result<()> {
        // The backend holds no lock, so the keeper may use the pool.
        self.0.stores().register.compare_and_swap("keeper", 0, &log.0).unwrap();
        Err(archipelago_base::Error::fenced("another process owns the volume"))
    }
}

#[test]
fn nothing_is_acknowledged_from_an_unrecorded_extent() {
    let pool = MemoryPool::new(1);
    let keeper = Arc::new(RefusingKeeper(pool.clone()));
    let new = NewLog { id: LOG, volume: VOLUME, epoch: Epoch(1), class: FileClass::Wal, keeper };
    let (mut writer, layout) = pool.stores().logs.create(new).unwrap();
    writer.submit(&[b"first"]).unwrap();
    writer.position().wait(5).unwrap();
    pool.inject(PoolCall::LogWait, 1, Fault::EndExtent);
    writer.submit(&[b" second"]).unwrap();
    assert_eq!(writer.position().wait(12).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(pool.calls(PoolCall::RegisterSwap), 1);
    let stores = pool.kill_clone(1).stores();
    let losses = CountedLosses::default();
    let recovered = stores.logs.recover(LOG, FileClass::Wal, &layout, losses.owner(2)).unwrap();
    assert_eq!(read_log(&stores, &recovered.layout), b"first");
}

#[test]
fn waits_for_acknowledged_bytes_reach_nothing() {
    let pool = MemoryPool::new(1);
    let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
    for _ in 0..5 {
        log.writer.submit(&[b"0123456789"]).unwrap();
    }
    let position = log.writer.position();
    for end in [10, 30, 50, 0] {
        position.wait(end).unwrap();
    }
    assert_eq!(pool.calls(PoolCall::LogWait), 1);
    assert_eq!(pool.calls(PoolCall::LogSubmit), 5);
    position.sync().unwrap();
    position.sync().unwrap();
    assert_eq!(pool.calls(PoolCall::LogSync), 1);
    assert_eq!(pool.round_trips(), 2);
    let counted: u64 = PoolCall::ALL.iter().map(|call| pool.calls(*call)).sum();
    assert_eq!(counted, 8, "the creation, five appends, a wait and a sync");
}

#[test]
fn hook_runs_before_each_call() {
    let pool = MemoryPool::new(1);
    let seals = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&seals);
    pool.on_call(Arc::new(move |pool, call| {
        if call == PoolCall::BlobSeal {
            assert!(!pool.kill_clone(0).blob_list()[0].is_sealed);
            counted.fetch_add(1, Ordering::SeqCst);
        }
    }));
    write_blob(&pool.stores(), BLOB, b"bytes").unwrap();
    pool.clear_on_call();
    write_blob(&pool.stores(), BlobId([9; 16]), b"bytes").unwrap();
    assert_eq!(seals.load(Ordering::SeqCst), 1);
}

#[test]
fn full_pool_takes_logs_and_no_blobs() {
    let pool = MemoryPool::new(1);
    let stores = pool.stores();
    pool.set_capacity(Some(10));
    assert_eq!(stores.blobs.free_bytes().unwrap(), Some(10));
    let error = write_blob(&stores, BLOB, b"eleven bytes").unwrap_err();
    assert!(error.is_no_space(), "{error}");
    stores.blobs.release(BLOB, VOLUME, Epoch(1)).unwrap();
    let id = BlobId([9; 16]);
    write_blob(&stores, id, b"ten bytes!").unwrap();
    assert_eq!((stores.blobs.free_bytes().unwrap(), pool.used_bytes()), (Some(0), 10));
    let mut log = KeptLog::begin(&stores, FileClass::Wal);
    log.append(b"a log goes on").unwrap();
    assert_eq!(pool.used_bytes(), 23);
    assert_eq!(pool.log_list(), [LOG]);
    stores.blobs.release(id, VOLUME, Epoch(1)).unwrap();
    pool.set_capacity(None);
    assert_eq!(stores.blobs.free_bytes().unwrap(), None);
    write_blob(&stores, BlobId([10; 16]), b"there is room again").unwrap();
}

#[test]
fn switched_off_steps_lose_bytes() {
    // Without a fence, the old writer goes on and its bytes are lost.
    let pool = MemoryPool::sabotaged(1, Sabotage { no_fence: true, ..Sabotage::default() });
    let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
    let (recovered, _) = log.recover(&pool, 2);
    log.append(b"acknowledged").unwrap();
    assert_eq!(read_log(&pool.stores(), &recovered.layout), b"");

    // Without a recorded layout, a recovery does not find the new extent.
    let sabotage = Sabotage { unrecorded_layout: true, ..Sabotage::default() };
    let pool = MemoryPool::sabotaged(1, sabotage);
    let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
    pool.inject(PoolCall::LogWait, 1, Fault::EndExtent);
    log.append(b"acknowledged").unwrap();
    assert_eq!(log.recover(&pool.kill_clone(1), 2).1, b"");
}

#[test]
fn bytes_of_a_dead_owner_arrive_or_not() {
    // The pool goes on when its client dies, so its next recovery decides.
    let lens = (0..SEEDS).map(|seed| {
        let pool = MemoryPool::new(seed);
        let mut log = KeptLog::begin(&pool.stores(), FileClass::Wal);
        log.append(&[0; 10]).unwrap();
        log.writer.submit(&[&[1; 90]]).unwrap();
        let bytes = log.recover(&pool, 2).1;
        assert!(bytes.len() >= 10);
        assert_eq!(log.append(b"late").unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(log.recover(&pool, 3).1, bytes);
        bytes.len()
    });
    let lens: Vec<_> = lens.collect();
    assert!(lens.contains(&10) && lens.contains(&100), "{lens:?}");
}
