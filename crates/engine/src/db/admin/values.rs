//! The value files of a family and the space that they take, as values and as text.
//!
//! Invariants: the sizes of files and the exposed garbage follow from one version and are exact.
//! Hidden garbage, debt and the bound are those of the last look at the space of the family.
//!
//! Thread-safety: any thread may call any function.
//! Failure: none.
//! Cost: visits the value files of the family and the map of their heirs, and locks the jobs once.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use crate::db::{ColumnFamily, Db};
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
    /// Records of tables that refer to the file.
    pub references: u64,
    /// Tables with such a record. A table counts once for each number under which it names the
    /// file.
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

/// Estimate of hidden garbage, and the bound on space, at the last look.
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
    /// Bytes that events put over the bound and that are not repaid yet.
    pub debt_bytes: u64,
    /// Bytes of garbage and unfinished outputs that the bound allows, debt included; `None` without
    /// a bound.
    pub allowed_bytes: Option<u64>,
    /// Whether the bound cannot be kept now: writers are close to it, and nothing is left that
    /// could be collected or compacted.
    pub cannot_keep_bound: bool,
}

/// The value files of a column family, and what its space consists of.
#[derive(Clone, Debug)]
pub struct ValuesReport {
    /// Name of the family.
    pub family: String,
    /// Smallest value that is separated, in bytes; 0 if none is.
    pub separation_bytes: u64,
    /// The setting `space_amplification_max`; 0 without a bound.
    pub space_amplification_max: f64,
    /// The value files, the one with the most garbage first.
    pub files: Vec<ValueFileInfo>,
    /// Unix milliseconds of the report.
    pub unix_ms: u64,
    /// Bytes of the tables of the family.
    pub table_bytes: u64,
    /// The estimate of hidden garbage; `None` before the first look since the open.
    pub space: Option<SpaceInfo>,
    /// Bytes of tables and value files of the whole database that only old versions hold.
    pub pinned_bytes: u64,
    /// The oldest snapshot, which may be the holder.
    pub oldest_snapshot: Option<SeqNo>,
    /// Bytes that running compactions of the whole database may write.
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

    /// Records of tables that refer to value files.
    #[must_use]
    pub fn references(&self) -> u64 {
        self.files.iter().map(|file| file.references).sum()
    }
}

impl ValuesReport {
    /// What the space of the family consists of, as lines of text.
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
                    "Bound: space_amplification_max {} allows {allowed} bytes of garbage and \
                     unfinished outputs, {} of them debt{}",
                    self.space_amplification_max,
                    space.debt_bytes,
                    match space.cannot_keep_bound {
                        true => "; it cannot be kept: nothing is left to collect or compact",
                        false => "",
                    }
                ),
            };
        }
        let holder = match self.oldest_snapshot {
            _ if self.pinned_bytes == 0 => String::new(),
            Some(seq) => format!("; the oldest snapshot has sequence number {seq}"),
            None => "; no snapshot is open: an iterator, a read or a job holds them".to_owned(),
        };
        let _ = writeln!(
            out,
            "Whole database: {} bytes pinned by old versions{holder}; running compactions may write \
             {} bytes",
            self.pinned_bytes, self.in_flight_bytes
        );
        out
    }
}

/// The numbers of ancestors that a line of text shows.
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
    let (snapshots, _) = db.inner.view.snapshots().list(|| db.inner.view.visible());
    Ok(ValuesReport {
        family: cf.name().to_owned(),
        separation_bytes: options.value_separation_bytes,
        space_amplification_max: options.space_amplification_max,
        files,
        unix_ms: db.inner.context.clock().unix_ms(),
        table_bytes: version.files().map(|(_, file)| file.size_bytes).sum(),
        space: space_info(db, cf),
        pinned_bytes: db.inner.storage.trash().pinned_bytes(),
        oldest_snapshot: snapshots.first().copied(),
        in_flight_bytes: db.inner.disk.expected_output_bytes(),
    })
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
        allowed_bytes: view.bound.map(|(_, margin)| margin.allowance_bytes + margin.debt_bytes),
        cannot_keep_bound: space.is_pressed() && space.has_no_work(),
    })
}
