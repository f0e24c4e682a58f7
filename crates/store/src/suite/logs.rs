//! Checks of [`LogStore`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, ErrorKind, Result};
use archipelago_env::FileClass;
use parking_lot::Mutex;

use super::{assert_fails, context, pattern};
use crate::ids::{LogId, VolumeId};
use crate::log::{
    Layout, LayoutKeeper, LogStore, LogWriter, LossKeeper, NewLog, NewOwner, RecoveredLog,
};

/// Classes whose logs are acknowledged in different ways.
const CLASSES: [FileClass; 2] = [FileClass::Wal, FileClass::Manifest];

/// Keeps the newest layout of each log in memory, as a namespace would.
#[derive(Debug, Default)]
pub struct KeptLayouts {
    layouts: Mutex<BTreeMap<LogId, Layout>>,
}

impl KeptLayouts {
    /// The newest layout of `log`.
    ///
    /// # Panics
    ///
    /// It panics if none was kept.
    #[must_use]
    pub fn newest(&self, log: LogId) -> Layout {
        self.layouts.lock().get(&log).cloned().unwrap()
    }
}

impl LayoutKeeper for KeptLayouts {
    fn keep(&self, log: LogId, layout: &Layout) -> Result<()> {
        self.layouts.lock().insert(log, layout.clone());
        Ok(())
    }
}

/// Counts the losses that recoveries report.
#[derive(Debug, Default)]
pub struct CountedLosses(AtomicU64);

impl CountedLosses {
    /// The owner of `epoch`, whose recoveries report their losses here.
    #[must_use]
    pub fn owner(&self, epoch: u64) -> NewOwner<'_> {
        NewOwner { epoch: Epoch(epoch), losses: self }
    }

    /// Number of reports so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl LossKeeper for CountedLosses {
    fn keep_loss(&self) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A store under test, and what its logs have in common.
struct Bench<'a> {
    logs: &'a dyn LogStore,
    kept: Arc<KeptLayouts>,
    losses: CountedLosses,
    rng: Rng,
    volume: VolumeId,
    class: FileClass,
}

impl Bench<'_> {
    fn begin(&mut self, epoch: u64) -> (LogId, Box<dyn LogWriter>) {
        let id = LogId::random(&mut self.rng);
        let (writer, layout) = self.logs.create(self.new_log(id, epoch)).unwrap();
        self.kept.keep(id, &layout).unwrap();
        (id, writer)
    }

    fn new_log(&self, id: LogId, epoch: u64) -> NewLog {
        let keeper = Arc::clone(&self.kept) as Arc<dyn LayoutKeeper>;
        NewLog { id, volume: self.volume, epoch: Epoch(epoch), class: self.class, keeper }
    }

    /// Recovers with the newest layout, and keeps the one that the recovery made.
    fn recover(&self, id: LogId, epoch: u64) -> RecoveredLog {
        let recovered = self.try_recover(id, epoch).unwrap();
        self.kept.keep(id, &recovered.layout).unwrap();
        recovered
    }

    fn try_recover(&self, id: LogId, epoch: u64) -> Result<RecoveredLog> {
        self.logs.recover(id, self.class, &self.kept.newest(id), self.losses.owner(epoch))
    }

    fn read(&self, id: LogId) -> Vec<u8> {
        self.read_at(id, &self.kept.newest(id)).unwrap()
    }

    fn read_at(&self, id: LogId, layout: &Layout) -> Result<Vec<u8>> {
        let reader = self.logs.open(id, layout, context(self.class))?;
        let mut bytes = vec![0; reader.len() as usize];
        reader.read_exact_at(0, &mut bytes, context(self.class))?;
        Ok(bytes)
    }

    /// Appends `bytes` and waits for them.
    fn append(&self, writer: &mut dyn LogWriter, bytes: &[u8]) -> Result<()> {
        let offset = writer.submit(&[bytes])?;
        writer.position().wait(offset + bytes.len() as u64)
    }
}

/// Checks everything that the head of [`log`](crate::log) promises, for logs of each class that is
/// acknowledged in a way of its own. `seed` decides the identities.
///
/// # Panics
///
/// It panics if the backend breaks a promise.
pub fn logs_conform(logs: &dyn LogStore, seed: u64) {
    let checks: [fn(&mut Bench<'_>); 12] = [
        acknowledged_bytes_are_read,
        ranges_are_read_and_reads_past_the_end_fail,
        threads_wait_while_the_writer_submits,
        synced_bytes_are_counted,
        finished_log_has_its_length,
        recovery_finds_what_was_acknowledged,
        recovery_fences_the_writer,
        recoveries_agree,
        older_epoch_is_fenced,
        identity_is_used_once,
        removed_log_is_gone,
        stray_logs_are_removed,
    ];
    let mut rng = Rng::with_seed(seed);
    for class in CLASSES {
        for check in checks {
            let volume = VolumeId::random(&mut rng);
            let kept = Arc::new(KeptLayouts::default());
            let rng = rng.fork();
            let losses = CountedLosses::default();
            let mut bench = Bench { logs, kept, losses, rng, volume, class };
            check(&mut bench);
            assert_eq!(bench.losses.count(), 0, "no machine lost its power");
        }
    }
}

fn acknowledged_bytes_are_read(bench: &mut Bench<'_>) {
    let (id, mut writer) = bench.begin(1);
    assert_eq!(bench.read(id), b"");
    assert_eq!(writer.submit(&[b"head", b"", b"body"]).unwrap(), 0);
    assert_eq!(writer.submit(&[]).unwrap(), 8);
    assert_eq!(writer.submit(&[b"second"]).unwrap(), 8);
    assert_eq!(writer.len_bytes(), 14);
    let position = writer.position();
    position.wait(0).unwrap();
    position.wait(8).unwrap();
    let seen = bench.read(id);
    assert!(seen.len() >= 8 && b"headbodysecond".starts_with(&seen), "{seen:?}");
    position.wait(14).unwrap();
    position.wait(3).unwrap();
    assert_eq!(bench.read(id), b"headbodysecond");
    let many = [&b"x"[..]; 3000];
    assert_eq!(writer.submit(&many).unwrap(), 14);
    position.wait(3014).unwrap();
    assert_eq!(bench.read(id)[14..], [b'x'; 3000]);
}

fn ranges_are_read_and_reads_past_the_end_fail(bench: &mut Bench<'_>) {
    let whole = pattern(300_000);
    let (id, mut writer) = bench.begin(1);
    for piece in whole.chunks(70_001) {
        writer.submit(&[piece]).unwrap();
    }
    writer.position().wait(300_000).unwrap();
    let (logs, context) = (bench.logs, context(bench.class));
    let reader = logs.open(id, &bench.kept.newest(id), context).unwrap();
    assert_eq!(reader.len(), 300_000);
    bench.append(&mut *writer, b"after the opening").unwrap();
    assert_eq!(reader.len(), 300_000, "a reader keeps the length of its opening");
    let mut bufs = [16, 4096, 0, 200_000].map(|len| vec![0; len]);
    let starts = [1, 69_999, 300_000, 50_000];
    let mut requests: Vec<_> =
        starts.iter().copied().zip(bufs.iter_mut().map(Vec::as_mut_slice)).collect();
    reader.read_many(&mut requests, context).unwrap();
    for (start, buf) in starts.iter().zip(&bufs) {
        assert!(*buf == whole[*start as usize..][..buf.len()], "{} bytes at {start}", buf.len());
    }
    for (offset, len) in [(299_999, 2), (300_000, 1), (u64::MAX - 1, 8)] {
        let outcome = reader.read_exact_at(offset, &mut vec![0; len], context);
        assert_fails(outcome, ErrorKind::Io, "a read past the end");
    }
}

fn threads_wait_while_the_writer_submits(bench: &mut Bench<'_>) {
    const APPENDS: u64 = 200;
    let (id, mut writer) = bench.begin(1);
    let (position, submitted) = (writer.position(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (position, submitted) = (&position, &submitted);
            scope.spawn(move || {
                let mut end = 0;
                while end < APPENDS * 8 {
                    end = submitted.load(Ordering::Acquire);
                    if thread == 0 {
                        assert!(position.sync().unwrap() >= end);
                    } else {
                        position.wait(end).unwrap();
                    }
                    std::thread::yield_now();
                }
            });
        }
        for index in 0..APPENDS {
            assert_eq!(writer.submit(&[&index.to_le_bytes()]).unwrap(), index * 8);
            submitted.store(writer.len_bytes(), Ordering::Release);
        }
    });
    let expected: Vec<u8> = (0..APPENDS).flat_map(u64::to_le_bytes).collect();
    assert_eq!(bench.read(id), expected);
}

fn synced_bytes_are_counted(bench: &mut Bench<'_>) {
    let (id, mut writer) = bench.begin(1);
    let position = writer.position();
    assert_eq!(position.sync().unwrap(), 0);
    writer.submit(&[b"12345"]).unwrap();
    assert_eq!(position.sync().unwrap(), 5);
    writer.submit(&[b"678"]).unwrap();
    position.wait(8).unwrap();
    assert_eq!(position.sync().unwrap(), 8);
    assert_eq!(bench.read(id), b"12345678");
}

fn finished_log_has_its_length(bench: &mut Bench<'_>) {
    let (id, mut writer) = bench.begin(1);
    writer.submit(&[b"all of it"]).unwrap();
    let position = writer.position();
    let layout = writer.finish().unwrap();
    assert!(writer.submit(&[b"more"]).is_err(), "a finished log took bytes");
    position.wait(9).unwrap();
    assert_eq!(position.sync().unwrap(), 9);
    drop((writer, position));
    assert_eq!(bench.read_at(id, &layout).unwrap(), b"all of it");
    for (epoch, layout) in [(1, layout.clone()), (2, bench.kept.newest(id)), (3, layout)] {
        let owner = bench.losses.owner(epoch);
        let recovered = bench.logs.recover(id, bench.class, &layout, owner).unwrap();
        assert_eq!((recovered.len_bytes, recovered.may_miss_unsynced), (9, false));
        assert_eq!(bench.read_at(id, &recovered.layout).unwrap(), b"all of it");
    }

    let (id, mut empty) = bench.begin(3);
    let layout = empty.finish().unwrap();
    assert_eq!(bench.read_at(id, &layout).unwrap(), b"");
}

fn recovery_finds_what_was_acknowledged(bench: &mut Bench<'_>) {
    let whole = pattern(100_000);
    for (acknowledged, submitted) in [(0, 0), (0, 10), (10, 10), (50_000, 50_001), (1, 100_000)] {
        let (id, mut writer) = bench.begin(1);
        bench.append(&mut *writer, &whole[..acknowledged]).unwrap();
        writer.submit(&[&whole[acknowledged..submitted]]).unwrap();
        drop(writer);
        let recovered = bench.recover(id, 1);
        let len = recovered.len_bytes as usize;
        assert!((acknowledged..=submitted).contains(&len), "{acknowledged} ≤ {len} ≤ {submitted}");
        assert!(!recovered.may_miss_unsynced, "no machine lost its power");
        assert!(bench.read(id) == whole[..len], "{len} bytes of {submitted}");
    }
}

fn recovery_fences_the_writer(bench: &mut Bench<'_>) {
    let (id, mut writer) = bench.begin(1);
    bench.append(&mut *writer, b"before").unwrap();
    let recovered = bench.recover(id, 2);
    assert_eq!(recovered.len_bytes, 6);
    let position = writer.position();
    let outcome = bench.append(&mut *writer, b"after");
    assert_fails(outcome, ErrorKind::Fenced, "an append after the fence");
    assert!(position.wait(11).is_err(), "the error of a wait is sticky");
    assert!(position.sync().is_err(), "a sync after a failed wait");
    assert!(writer.finish().is_err(), "a finish after a failed wait");
    assert_eq!(bench.read(id), b"before");
    assert_eq!(bench.recover(id, 3).len_bytes, 6);
}

fn recoveries_agree(bench: &mut Bench<'_>) {
    let whole = pattern(5_000);
    for round in 0..5 {
        // Epochs are those of the volume, so no round begins below the last one.
        let epoch = 10 * round as u64 + 1;
        let (id, mut writer) = bench.begin(epoch);
        bench.append(&mut *writer, &whole[..round]).unwrap();
        writer.submit(&[&whole[round..]]).unwrap();
        let first = bench.kept.newest(id);
        let recovered = bench.recover(id, epoch + 1);
        let bytes = bench.read(id);
        for (later, layout) in [(1, &first), (2, &recovered.layout), (3, &first)] {
            let owner = bench.losses.owner(epoch + later);
            let again = bench.logs.recover(id, bench.class, layout, owner).unwrap();
            assert_eq!(again.len_bytes, recovered.len_bytes);
            assert!(bench.read_at(id, &again.layout).unwrap() == bytes, "recoveries differ");
        }
    }
}

fn older_epoch_is_fenced(bench: &mut Bench<'_>) {
    let (id, mut writer) = bench.begin(5);
    bench.append(&mut *writer, b"kept").unwrap();
    // This announces the epoch to the whole pool, as an owner does when it opens the volume.
    bench.logs.release_strays(bench.volume, Epoch(5), &|_| true).unwrap();
    assert_fails(bench.try_recover(id, 4), ErrorKind::Fenced, "a recovery under an old epoch");
    bench.append(&mut *writer, b", also").unwrap();
    let layout = bench.kept.newest(id);
    let outcome = bench.logs.remove(id, &layout, Epoch(4));
    assert_fails(outcome, ErrorKind::Fenced, "a removal under an old epoch");
    let outcome = bench.logs.release_strays(bench.volume, Epoch(4), &|_| false);
    assert_fails(outcome, ErrorKind::Fenced, "a release of strays under an old epoch");
    let new = LogId::random(&mut bench.rng);
    let outcome = bench.logs.create(bench.new_log(new, 4));
    assert_fails(outcome, ErrorKind::Fenced, "a creation under an old epoch");
    assert_eq!(bench.read(id), b"kept, also");
}

fn identity_is_used_once(bench: &mut Bench<'_>) {
    let (id, mut writer) = bench.begin(1);
    bench.append(&mut *writer, b"first").unwrap();
    // A backend may notice it at the first wait only, when it reaches the holders.
    let again = bench.logs.create(bench.new_log(id, 1));
    let again = again.and_then(|(mut second, _)| bench.append(&mut *second, b"other"));
    assert!(again.is_err(), "an identity was used twice");
    assert_eq!(bench.read(id), b"first");
}

fn removed_log_is_gone(bench: &mut Bench<'_>) {
    let (id, mut writer) = bench.begin(1);
    bench.append(&mut *writer, b"bytes").unwrap();
    let layout = bench.kept.newest(id);
    for _ in 0..2 {
        bench.logs.remove(id, &layout, Epoch(2)).unwrap();
        assert_fails(bench.read_at(id, &layout), ErrorKind::NotFound, "a read of a removed log");
        assert_fails(bench.try_recover(id, 2), ErrorKind::NotFound, "the recovery of it");
    }
    assert!(bench.append(&mut *writer, b"more").is_err(), "a removed log took bytes");
    let never = LogId::random(&mut bench.rng);
    bench.logs.remove(never, &layout, Epoch(2)).unwrap();
}

fn stray_logs_are_removed(bench: &mut Bench<'_>) {
    let (named, mut writer) = bench.begin(1);
    bench.append(&mut *writer, b"named").unwrap();
    let (stray, _stray_writer) = bench.begin(1);
    let begun = std::cell::RefCell::new(None);
    let during = LogId::random(&mut bench.rng);
    let keeps = |id| {
        let mut begun = begun.borrow_mut();
        if begun.is_none() {
            *begun = Some(bench.logs.create(bench.new_log(during, 2)).unwrap());
        }
        id == named
    };
    assert_eq!(bench.logs.release_strays(bench.volume, Epoch(2), &keeps).unwrap(), 1);
    let (mut writer, layout) = begun.into_inner().unwrap();
    bench.kept.keep(during, &layout).unwrap();
    bench.append(&mut *writer, b"begun during the call").unwrap();
    assert_eq!(bench.read(during), b"begun during the call");
    assert_eq!(bench.read(named), b"named");
    let layout = bench.kept.newest(stray);
    assert_fails(bench.read_at(stray, &layout), ErrorKind::NotFound, "a read of a stray");
    let keeps = |id| id == named || id == during;
    assert_eq!(bench.logs.release_strays(bench.volume, Epoch(2), &keeps).unwrap(), 0);
}
