//! The value files of a family and the space that they take, as values and as text.
//!
//! Invariants: the sizes of files and the exposed garbage follow from one version and are exact.
//! Hidden garbage, debt and the bound are those of the last examination of the family's space.
//!
//! Thread-safety: any thread may call any function.
//! Failure: none.
//! Cost: visits the value files of the family and the map of their heirs, and locks the jobs once.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use crate::db::{ColumnFamily, Db};
use crate::gc::space_plan::SpaceEvent;
use crate::live_file::PinnedFile;
use crate::lock_order::Order;

/// A value file of a column family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueFileInfo {
    /// Number of the file; its name is `NNNNNN.vsst`.
    pub no: u64,
    /// Length in bytes.
    pub file_bytes: u64,
    /// Bytes of all value records.
    pub value_bytes: u64,
    /// Bytes of the value records that tables refer to.
    pub valid_bytes: u64,
    /// Number of value records.
    pub records: u64,
    /// Number of records in tables that refer to the file.
    pub references: u64,
    /// Number of tables that refer to the file. A table counts once for each number under which it
    /// names the file.
    pub tables: u64,
    /// Numbers of the files from which this file inherited.
    pub ancestors: Vec<u64>,
    /// Unix milliseconds when the file was written.
    pub created_unix_ms: u64,
}

impl ValueFileInfo {
    /// Bytes of value records that no table refers to.
    #[must_use]
    pub fn garbage_bytes(&self) -> u64 {
        self.value_bytes.saturating_sub(self.valid_bytes)
    }

    /// Garbage as a share of the value records, from 0 to 1.
    #[must_use]
    pub fn garbage_share(&self) -> f64 {
        self.garbage_bytes() as f64 / self.value_bytes.max(1) as f64
    }
}

/// Estimate of hidden garbage, and the bound on space, at the last examination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpaceInfo {
    /// Upper bound of the hidden garbage in bytes.
    pub hidden_bytes_max: u64,
    /// Share of records above the last level that shadow an older record when they sink.
    pub shadow_share: f64,
    /// Estimate of the hidden garbage in bytes.
    pub hidden_bytes: u64,
    /// Bytes of tables and value files that are no garbage.
    pub live_bytes: u64,
    /// Bytes of garbage that events put over the bound and that are not repaid yet.
    pub debt_bytes: u64,
    /// The event that raised the debt last: `range_delete`, `delete`, `ingestion`,
    /// `garbage_found`, `snapshot_released` or `opened`. `None` if none did since the open.
    pub debt_event: Option<&'static str>,
    /// Bytes of garbage that the bound allows, debt included; `None` without a bound.
    pub allowed_bytes: Option<u64>,
    /// Whether the bound cannot be kept now, because writers are close to it and nothing is left to
    /// collect or compact.
    pub cannot_keep_bound: bool,
}

/// Bytes of tables and value files that only old versions hold, by holder and by age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedInfo {
    /// Bytes of all pinned files.
    pub bytes: u64,
    /// Bytes of the pinned files that snapshots hold. A snapshot holds only files of families with
    /// a compaction filter. Records that it keeps in other families count as live.
    pub snapshot_bytes: u64,
    /// Bytes of the files that have been pinned for less than a minute.
    pub under_minute_bytes: u64,
    /// Bytes of the files that have been pinned for a minute or longer, and for less than an hour.
    pub under_hour_bytes: u64,
    /// Time for which the oldest pinned file has been pinned, in milliseconds; 0 if there is none.
    pub oldest_ms: u64,
}

impl PinnedInfo {
    /// Bytes that iterators, reads and jobs hold.
    #[must_use]
    pub fn reader_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.snapshot_bytes)
    }

    /// Bytes of the files that have been pinned for an hour or longer.
    #[must_use]
    pub fn older_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.under_minute_bytes.saturating_add(self.under_hour_bytes))
    }

    /// The figures of `files`, of which snapshots hold those with numbers in `by_snapshots`.
    fn of(files: &[PinnedFile], by_snapshots: &HashSet<u64>) -> Self {
        let mut info = Self::default();
        for file in files {
            info.bytes = info.bytes.saturating_add(file.bytes);
            if by_snapshots.contains(&file.no) {
                info.snapshot_bytes = info.snapshot_bytes.saturating_add(file.bytes);
            }
            match file.age_ns {
                ..MINUTE_NS => info.under_minute_bytes += file.bytes,
                MINUTE_NS..HOUR_NS => info.under_hour_bytes += file.bytes,
                _ => {}
            }
            info.oldest_ms = info.oldest_ms.max(file.age_ns / 1_000_000);
        }
        info
    }
}

/// Length of a minute, in nanoseconds.
const MINUTE_NS: u64 = 60_000_000_000;
/// Length of an hour, in nanoseconds.
const HOUR_NS: u64 = 60 * MINUTE_NS;

/// The value files of a column family, and the parts of its space.
#[derive(Clone, Debug)]
pub struct ValuesReport {
    /// Name of the family.
    pub family: String,
    /// Smallest value that is separated, in bytes; 0 if none is.
    pub separation_bytes: u64,
    /// The setting `space_amplification_max`; 0 without a bound.
    pub space_amplification_max: f64,
    /// The value files, with the most garbage first.
    pub files: Vec<ValueFileInfo>,
    /// Unix milliseconds of the report.
    pub unix_ms: u64,
    /// Bytes of the tables of the family.
    pub table_bytes: u64,
    /// Number of invalid files, which executors may prefer for garbage collection.
    pub invalid_files: u64,
    /// Bytes of the invalid files. The bound on space does not count them.
    pub invalid_bytes: u64,
    /// The estimate of hidden garbage. `None` before the first examination since the open, and
    /// while the family has no value files.
    pub space: Option<SpaceInfo>,
    /// Tables and value files of the whole database that only old versions hold.
    pub pinned: PinnedInfo,
    /// Sequence number of the oldest snapshot of this process. It may hold pinned files, and tables
    /// keep the values that it reads.
    pub oldest_snapshot: Option<SeqNo>,
    /// Time for which that snapshot has been open, in milliseconds; 0 if there is none.
    pub oldest_snapshot_ms: u64,
    /// Bytes that running compactions and garbage collections of the whole database may write.
    pub in_flight_bytes: u64,
}

impl ValuesReport {
    /// Bytes of all value files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.file_bytes).sum()
    }

    /// Bytes of value records that tables refer to.
    #[must_use]
    pub fn valid_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.valid_bytes).sum()
    }

    /// Exposed garbage: bytes of value records that no table refers to.
    #[must_use]
    pub fn exposed_bytes(&self) -> u64 {
        self.files.iter().map(ValueFileInfo::garbage_bytes).sum()
    }

    /// Bytes of tables and value files that are no garbage. Before the first examination, all bytes
    /// count.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        let all = self.table_bytes.saturating_add(self.file_bytes());
        self.space.map_or(all, |space| space.live_bytes)
    }

    /// Number of records in tables that refer to value files.
    #[must_use]
    pub fn references(&self) -> u64 {
        self.files.iter().map(|file| file.references).sum()
    }
}

impl ValuesReport {
    /// The parts of the family's space, as lines of text.
    pub(crate) fn space_text(&self) -> String {
        let mut out = String::new();
        if let Some(space) = &self.space {
            let _ = writeln!(
                out,
                "Space: live {} bytes, hidden garbage about {} (at most {}, shadow share {:.3})",
                space.live_bytes, space.hidden_bytes, space.hidden_bytes_max, space.shadow_share
            );
            let _ = match space.allowed_bytes {
                None => writeln!(out, "Bound: none (space_amplification_max is 0)"),
                Some(allowed) => writeln!(
                    out,
                    "Bound: space_amplification_max {} allows {allowed} bytes of garbage, {} of \
                     them debt{}{}",
                    self.space_amplification_max,
                    space.debt_bytes,
                    space.debt_event.map_or(String::new(), |event| format!(" (by {event})")),
                    match space.cannot_keep_bound {
                        true => "; it cannot be kept: nothing is left to collect or compact",
                        false => "",
                    }
                ),
            };
        }
        let _ = writeln!(
            out,
            "Whole database: running compactions and garbage collections may write {} bytes",
            self.in_flight_bytes
        );
        out.push_str(&self.pinned_text());
        let _ = match self.oldest_snapshot {
            None => writeln!(out, "Oldest snapshot: none is open"),
            Some(seq) => writeln!(
                out,
                "Oldest snapshot: sequence number {seq}, open for {} s; values that it reads stay",
                self.oldest_snapshot_ms / 1000
            ),
        };
        out
    }
}

impl ValuesReport {
    /// Lines of text about pinned files: their bytes, age and holders.
    fn pinned_text(&self) -> String {
        let pinned = &self.pinned;
        if pinned.bytes == 0 {
            return "Pinned by old versions: 0 bytes\n".to_owned();
        }
        let holder = match self.oldest_snapshot {
            Some(seq) => format!("the oldest snapshot has sequence number {seq}"),
            None => "no snapshot is open".to_owned(),
        };
        format!(
            "Pinned by old versions: {} bytes, {} of them by snapshots, {} by iterators, reads or \
             jobs; {holder}\n\
             Pinned for less than a minute: {} bytes; less than an hour: {}; longer: {}; the oldest \
             for {} s\n",
            pinned.bytes,
            pinned.snapshot_bytes,
            pinned.reader_bytes(),
            pinned.under_minute_bytes,
            pinned.under_hour_bytes,
            pinned.older_bytes(),
            pinned.oldest_ms / 1000
        )
    }
}

/// Largest number of ancestors that a line of text shows.
const ANCESTORS_SHOWN: usize = 4;

fn ancestors_text(ancestors: &[u64]) -> String {
    let shown: Vec<String> =
        ancestors.iter().take(ANCESTORS_SHOWN).map(|no| format!("{no:06}")).collect();
    match ancestors.len() - shown.len() {
        0 if shown.is_empty() => "-".to_owned(),
        0 => shown.join(" "),
        more => format!("{} and {more} more", shown.join(" ")),
    }
}

impl fmt::Display for ValuesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separated = match self.separation_bytes {
            0 => "new values are not separated".to_owned(),
            bytes => format!("values of at least {bytes} bytes are separated"),
        };
        writeln!(f, "Column family \"{}\": {separated}", self.family)?;
        writeln!(
            f,
            "{:<12} {:>12} {:>12} {:>12} {:>7} {:>10} {:>7} {:>8}  Inherited from",
            "File", "Bytes", "Valid bytes", "Garbage", "Share", "References", "Tables", "Age"
        )?;
        for file in &self.files {
            let age_s = self.unix_ms.saturating_sub(file.created_unix_ms) / 1000;
            writeln!(
                f,
                "{:<12} {:>12} {:>12} {:>12} {:>6.1}% {:>10} {:>7} {:>7}s  {}",
                format!("{:06}.vsst", file.no),
                file.file_bytes,
                file.valid_bytes,
                file.garbage_bytes(),
                file.garbage_share() * 100.0,
                file.references,
                file.tables,
                age_s,
                ancestors_text(&file.ancestors)
            )?;
        }
        writeln!(
            f,
            "Total: {} value files of {} bytes, {} bytes valid, {} exposed garbage, {} references; \
             tables {} bytes",
            self.files.len(),
            self.file_bytes(),
            self.valid_bytes(),
            self.exposed_bytes(),
            self.references(),
            self.table_bytes
        )?;
        if self.invalid_files > 0 {
            writeln!(
                f,
                "Invalid files: {} of {} bytes, which the bound does not count",
                self.invalid_files, self.invalid_bytes
            )?;
        }
        f.write_str(&self.space_text())
    }
}

/// The value files of `cf`.
pub(crate) fn values_report(db: &Db, cf: &ColumnFamily) -> Result<ValuesReport> {
    db.check_family(cf)?;
    let version = Arc::clone(&cf.family.current.load().version);
    let values = version.values();
    let mut ancestors: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (old, heir) in values.heirs() {
        ancestors.entry(heir).or_default().push(old);
    }
    let mut files: Vec<ValueFileInfo> = values
        .files()
        .map(|(file, refs)| ValueFileInfo {
            no: file.no,
            file_bytes: file.size_bytes,
            value_bytes: file.value_bytes(),
            valid_bytes: refs.bytes,
            records: file.records,
            references: refs.records,
            tables: refs.tables,
            ancestors: ancestors.remove(&file.no).unwrap_or_default(),
            created_unix_ms: file.created_unix_ms,
        })
        .collect();
    files.sort_by_key(|file| (std::cmp::Reverse(file.garbage_bytes()), file.no));
    let options = &cf.family.options;
    let oldest = db.inner.view.snapshots().oldest();
    let now_ns = db.inner.context.clock().now_ns();
    Ok(ValuesReport {
        family: cf.name().to_owned(),
        separation_bytes: options.value_separation_bytes,
        space_amplification_max: options.space_amplification_max,
        files,
        unix_ms: db.inner.context.clock().unix_ms(),
        table_bytes: version.files().map(|(_, file)| file.size_bytes).sum(),
        invalid_files: values.invalid_files().count() as u64,
        invalid_bytes: values.invalid_files().map(|file| file.size_bytes).sum(),
        space: space_info(db, cf),
        pinned: pinned_info(db),
        oldest_snapshot: oldest.map(|snapshot| snapshot.seq),
        oldest_snapshot_ms: oldest
            .map_or(0, |snapshot| now_ns.saturating_sub(snapshot.since_ns) / 1_000_000),
        in_flight_bytes: db.inner.disk.expected_output_bytes(),
    })
}

/// Figures of the files that only old versions of `db` hold.
pub(crate) fn pinned_info(db: &Db) -> PinnedInfo {
    let files = db.inner.storage.trash().pinned();
    PinnedInfo::of(&files, &db.inner.view.snapshots().held_files())
}

fn space_info(db: &Db, cf: &ColumnFamily) -> Option<SpaceInfo> {
    let mut state = db.inner.jobs.lock(Order::none());
    if !state.has_space(cf.id()) {
        return None;
    }
    let space = state.space_mut(cf.id());
    let view = space.view()?;
    Some(SpaceInfo {
        hidden_bytes_max: view.hidden.upper_bound_bytes,
        shadow_share: view.shadow_share,
        hidden_bytes: view.usage.hidden_bytes,
        live_bytes: view.usage.live_bytes(),
        debt_bytes: space.debt().bytes(),
        debt_event: space.debt().last_event().map(SpaceEvent::name),
        allowed_bytes: view.bound.map(|(_, margin)| margin.allowance_bytes + margin.debt_bytes),
        cannot_keep_bound: space.is_pressed() && space.has_no_work(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_bytes_are_divided_by_holder_and_by_age() {
        let file = |no, bytes, age_ns| PinnedFile { no, bytes, age_ns };
        let files = [
            file(1, 1, 0),
            file(2, 10, MINUTE_NS - 1),
            file(3, 100, MINUTE_NS),
            file(4, 1000, HOUR_NS - 1),
            file(5, 10_000, 2 * HOUR_NS),
        ];
        let info = PinnedInfo::of(&files, &[2, 5, 77].into_iter().collect());
        assert_eq!((info.bytes, info.snapshot_bytes, info.reader_bytes()), (11_111, 10_010, 1101));
        let by_age = (info.under_minute_bytes, info.under_hour_bytes, info.older_bytes());
        assert_eq!(by_age, (11, 1100, 10_000));
        assert_eq!(info.oldest_ms, 7_200_000);
        assert_eq!(PinnedInfo::of(&[], &HashSet::new()), PinnedInfo::default());
    }
}
