//! Statistics of tiers: the files on each device and the background work, as values and as text.
//!
//! Thread-safety: any thread may take statistics. Cost: a pass over all files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use archipelago_env::FileClass;

use crate::base_levels::BaseLevels;
use crate::device::{Count, Writer};
use crate::fs::TieredFs;
use crate::fs::entry::Entry;
use crate::history::Event;
use crate::settings::DeviceKind;

/// A number of files, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCount {
    /// Number of files.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

/// The state of one device. Counts begin with the open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReport {
    /// Name of the device.
    pub name: String,
    /// Directory of the device.
    pub path: PathBuf,
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Bytes that the device may hold.
    pub capacity: u64,
    /// Free bytes. Copies count as used.
    pub free: u64,
    /// Files on the device by kind: `log`, `bookkeeping`, `L0`, `L1`, …, and `tables` for tables
    /// without a level.
    pub files: BTreeMap<String, FileCount>,
    /// Copies of files of slower devices.
    pub copies: FileCount,
    /// Condemned files that wait for their removal.
    pub leaving: FileCount,
    /// Number of reads in progress.
    pub readers: u64,
    /// Number of files that are being written: by callers, copies and moves.
    pub writers: [usize; 3],
    /// Number of writers that the device takes.
    pub limit: u32,
    /// Number of tables that wait for a write slot.
    pub turns_waiting: usize,
    /// Number of tables that waited for a write slot, and the sum of their waits in milliseconds.
    pub turns_waited: (u64, u64),
    /// Percentage of its profile's write throughput that the device reaches. It is 100 for a device
    /// without a profile.
    pub pace_percent: u32,
    /// Number of reads.
    pub reads: u64,
    /// Number of foreground reads among `reads`.
    pub foreground_reads: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of bytes written by callers.
    pub written_bytes: u64,
    /// Foreground reads of the last interval that the device served, and those that it could have
    /// served.
    pub hits: (u64, u64),
    /// Number of reads that copies served.
    pub copy_reads: u64,
    /// Number of queued moves and of queued copies to the device.
    pub waiting: (usize, usize),
    /// Number of running moves and copies to the device.
    pub running: usize,
    /// Number of files that were moved to the device, and away from it.
    pub moved: (u64, u64),
    /// Number of bytes that were moved to the device.
    pub moved_bytes: u64,
    /// Number of copies that were made, that were dropped, and that were found damaged or
    /// unreadable.
    pub copies_made: (u64, u64, u64),
    /// Number of bytes that were copied to the device.
    pub copied_bytes: u64,
    /// Number of errors of the device.
    pub errors: u64,
    /// Whether the tiers avoid the device after several errors.
    pub failing: bool,
}

impl DeviceReport {
    /// Fraction of the foreground reads of the last interval that the device served, among those
    /// that it could have served. `None` if there were none.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.hits.1 > 0).then(|| self.hits.0 as f64 / self.hits.1 as f64)
    }
}

/// Statistics of all devices ([`TieredFs::stats`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierStats {
    /// Devices, the fastest first.
    pub devices: Vec<DeviceReport>,
    /// Number of levels, by [`crate::scheme::depth`], that belong to the fastest device.
    pub fast_levels: u8,
    /// Level that L0 compacts into, by column family, the highest level first. If no family is
    /// known, the list has one entry, which follows from the files.
    pub base_levels: Vec<(Option<u32>, u8)>,
    /// Number of moves and copies that failed.
    pub failed_jobs: u64,
    /// Error of the last failure.
    pub last_failure: Option<String>,
    /// Recent moves, copies and changes of the scheme, the oldest first.
    pub events: Vec<Event>,
}

impl TieredFs {
    /// Takes statistics. Cost: a pass over all files.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let shared = &self.shared;
        let now_ns = shared.now_ns();
        let ratios = shared.mover.read_ratios();
        let report = |(index, device): (usize, &crate::device::Device)| {
            let (leaving, leaving_bytes) = shared.trash.waiting_on(index);
            DeviceReport {
                name: device.name.clone(),
                path: device.root.clone(),
                kind: device.kind,
                capacity: device.capacity.load(Ordering::Relaxed),
                free: device.unused(),
                leaving: FileCount { files: leaving as u64, bytes: leaving_bytes },
                readers: device.readers(),
                writers: [Writer::Caller, Writer::Copy, Writer::Move]
                    .map(|writer| device.writers_of(writer)),
                limit: device.limit.load(Ordering::Relaxed),
                turns_waiting: device.write_slots.waiting(),
                turns_waited: (
                    device.get(Count::TurnsWaited),
                    device.get(Count::TurnsWaitedNs) / 1_000_000,
                ),
                pace_percent: device.pace_percent.load(Ordering::Relaxed),
                reads: device.get(Count::ReadsEnded),
                foreground_reads: device.get(Count::ForegroundReads),
                read_bytes: device.get(Count::ReadBytes),
                written_bytes: device.get(Count::WrittenBytes),
                hits: ratios[index],
                copy_reads: device.get(Count::CacheReads),
                waiting: shared.queue.waiting(index),
                running: shared.queue.running(index),
                moved: (device.get(Count::FilesIn), device.get(Count::FilesOut)),
                moved_bytes: device.get(Count::BytesMovedIn),
                copies_made: (
                    device.get(Count::CopiesMade),
                    device.get(Count::CopiesDropped),
                    device.get(Count::CopiesCorrupt),
                ),
                copied_bytes: device.get(Count::BytesCopiedIn),
                errors: device.get(Count::Errors),
                failing: device.is_failing(now_ns),
                ..DeviceReport::default()
            }
        };
        let mut devices: Vec<_> = shared.devices.iter().enumerate().map(report).collect();
        let entries: Vec<_> = shared.names.lock().entries.values().cloned().collect();
        for entry in entries {
            count_file(&mut devices, &entry);
        }
        let base_levels = base_levels(&shared.base_levels.lock());
        TierStats {
            devices,
            fast_levels: shared.fast_levels.load(Ordering::Relaxed),
            base_levels,
            failed_jobs: shared.queue.failed.load(Ordering::Relaxed),
            last_failure: shared.queue.errors.lock().clone(),
            events: shared.history.events(),
        }
    }
}

/// The base levels of [`TierStats`].
fn base_levels(levels: &BaseLevels) -> Vec<(Option<u32>, u8)> {
    let mut known: Vec<_> = levels.known().collect();
    if known.is_empty() {
        known.push((None, levels.of(None)));
    }
    known.sort_by_key(|&(family, level)| (level, family));
    known
}

/// The base levels as text: "L5 is the base", or "the base is L4 of family 2, L5 of family 1, 3" if
/// families differ.
fn base_names(levels: &[(Option<u32>, u8)]) -> String {
    let mut by_level: BTreeMap<u8, Vec<String>> = BTreeMap::new();
    for (family, level) in levels {
        let family = family.map_or_else(|| "unknown".to_owned(), |family| family.to_string());
        by_level.entry(*level).or_default().push(family);
    }
    match by_level.first_key_value() {
        Some((level, _)) if by_level.len() == 1 => format!("L{level} is the base"),
        _ => {
            let of = |(level, families): (u8, Vec<String>)| {
                format!("L{level} of family {}", families.join(", "))
            };
            format!("the base is {}", by_level.into_iter().map(of).collect::<Vec<_>>().join(", "))
        }
    }
}

fn count_file(devices: &mut [DeviceReport], entry: &Entry) {
    let what = match (entry.class, entry.level()) {
        (FileClass::Wal, _) => "log".to_owned(),
        (FileClass::Manifest | FileClass::Other, _) => "bookkeeping".to_owned(),
        (FileClass::Sst, Some(level)) => format!("L{level}"),
        (FileClass::Sst, None) => "tables".to_owned(),
        (FileClass::ValueSst, _) => "values".to_owned(),
    };
    let inside = entry.inside.lock();
    let count = devices[inside.main.device].files.entry(what).or_default();
    count.files += 1;
    count.bytes += inside.main.len();
    for copy in &inside.copies {
        let count = &mut devices[copy.physical.device].copies;
        count.files += 1;
        count.bytes += copy.physical.len();
    }
}

/// Number of recent events in [`TierStats::facts`].
const FACT_EVENTS: usize = 16;

impl TierStats {
    /// The figures as lines `name:value`, for INFO: the devices, their files by class and level,
    /// and recent events with their reasons.
    #[must_use]
    pub fn facts(&self) -> String {
        let mut text = format!("tier_fast_levels:{}\n", self.fast_levels);
        text.push_str(&format!("tier_failed_jobs:{}\n", self.failed_jobs));
        for (index, device) in self.devices.iter().enumerate() {
            let files: u64 = device.files.values().map(|count| count.files).sum();
            let bytes: u64 = device.files.values().map(|count| count.bytes).sum();
            let ratio = device.hit_ratio().map_or_else(|| "-".to_owned(), |r| format!("{r:.3}"));
            // The waits have two names each: an old one, and that of the metrics.
            let (slots, (waits, wait_ms)) = (device.turns_waiting, device.turns_waited);
            text.push_str(&format!(
                "tier{index}:name={},kind={},capacity={},free={},files={files},bytes={bytes},copies={},\
                 copy_bytes={},writers={},limit={},readers={},hit_ratio={ratio},moved_in={},\
                 moved_out={},waiting={},errors={},failing={},\
                 pace_percent={},turns_waiting={slots},turns_waited={waits},\
                 turns_waited_ms={wait_ms},write_slots_waiting={slots},write_slot_waits={waits},\
                 write_slot_wait_ms={wait_ms}\n",
                device.name,
                device.kind,
                device.capacity,
                device.free,
                device.copies.files,
                device.copies.bytes,
                device.writers.iter().sum::<usize>(),
                device.limit,
                device.readers,
                device.moved.0,
                device.moved.1,
                device.waiting.0 + device.waiting.1,
                device.errors,
                u8::from(device.failing),
                device.pace_percent
            ));
            let (made, dropped, damaged) = device.copies_made;
            text.push_str(&format!(
                "tier{index}_copies:made={made},dropped={dropped},damaged={damaged},reads={},copied_bytes={}\n",
                device.copy_reads, device.copied_bytes
            ));
            text.push_str(&format!(
                "tier{index}_jobs:moves_waiting={},copies_waiting={},running={},leaving={},leaving_bytes={}\n",
                device.waiting.0,
                device.waiting.1,
                device.running,
                device.leaving.files,
                device.leaving.bytes
            ));
            for (what, count) in &device.files {
                let FileCount { files, bytes } = count;
                text.push_str(&format!("tier{index}_{what}:files={files},bytes={bytes}\n"));
            }
        }
        let last = self.events.iter().rev().take(FACT_EVENTS).rev();
        for (number, event) in last.enumerate() {
            let Event { at_ms, what, reason } = event;
            text.push_str(&format!("tier_event{number}:at_ms={at_ms},{what}: {reason}\n"));
        }
        text
    }
}

fn mib(bytes: u64) -> String {
    match bytes {
        0..=9_999_999 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

impl fmt::Display for TierStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            writeln!(f, "{device}")?;
        }
        writeln!(
            f,
            "log and L0 to {} ({}) belong to {}; failed moves and copies: {}{}",
            crate::scheme::Name(self.fast_levels.saturating_sub(1)),
            base_names(&self.base_levels),
            self.devices.first().map_or("", |device| &device.name),
            self.failed_jobs,
            self.last_failure.as_ref().map_or_else(String::new, |why| format!(" (last: {why})"))
        )?;
        for event in &self.events {
            writeln!(f, "  at {} ms: {}: {}", event.at_ms, event.what, event.reason)?;
        }
        Ok(())
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}, {}): {} free of {}{}",
            self.name,
            self.path.display(),
            self.kind,
            mib(self.free),
            mib(self.capacity),
            if self.failing { "; FAILING, avoided for a while" } else { "" }
        )?;
        for (what, count) in &self.files {
            writeln!(f, "  {what}: {} files, {}", count.files, mib(count.bytes))?;
        }
        writeln!(
            f,
            "  copies: {}, {}; made {}, dropped {}, damaged {}; served {} reads; hit ratio {}",
            self.copies.files,
            mib(self.copies.bytes),
            self.copies_made.0,
            self.copies_made.1,
            self.copies_made.2,
            self.copy_reads,
            self.hit_ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
        )?;
        writeln!(
            f,
            "  writers: {} callers, {} copies, {} moves of {}; readers: {}",
            self.writers[0], self.writers[1], self.writers[2], self.limit, self.readers
        )?;
        if self.turns_waited.0 > 0 {
            writeln!(
                f,
                "  tables that waited for their turn: {}, {} ms in all; waiting: {}",
                self.turns_waited.0, self.turns_waited.1, self.turns_waiting
            )?;
        }
        if self.pace_percent < 100 {
            writeln!(
                f,
                "  slower than profiled: it writes at {} % of its profile",
                self.pace_percent
            )?;
        }
        write!(
            f,
            "  moved in {}, out {}; waiting: {} moves, {} copies; running: {}; leaving: {} files, \
             {}; errors: {}",
            self.moved.0,
            self.moved.1,
            self.waiting.0,
            self.waiting.1,
            self.running,
            self.leaving.files,
            mib(self.leaving.bytes),
            self.errors
        )
    }
}
