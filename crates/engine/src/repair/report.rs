//! The report of a repair, with what was saved and lost, as values and as text for an operator.

use std::fmt;

use archipelago_base::{CfId, SeqNo};

use crate::key::KeyRange;

/// Keys that a loss touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossScope {
    /// The column family; `None` for any.
    pub cf: Option<CfId>,
    /// The keys that the loss touches.
    pub range: KeyRange,
}

/// Possible errors of a key that a loss touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossEffect {
    /// Writes are lost. The key may be missing, have an older value than it had, or exist again
    /// although it was deleted. A merged value may lack operands.
    Lost,
    /// Deletes are lost, or their place in the order of writes is. The key may exist again although
    /// it was deleted, or have an older value. No record that was found is missing.
    Stale,
    /// A crash may have caused it: only the last writes that were not synced can be missing.
    TornEnd,
}

impl fmt::Display for LossEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "LOST",
            Self::Stale => "STALE",
            Self::TornEnd => "END",
        })
    }
}

/// A part of the database that could not be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Name of the file that was damaged or missing.
    pub file: String,
    /// Description of the damage.
    pub what: String,
    /// Possible errors of the keys.
    pub effect: LossEffect,
    /// Column family and keys that the loss touches.
    pub scope: LossScope,
}

/// A column family of the repaired database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedFamily {
    /// Id of the column family.
    pub cf: CfId,
    /// Name of the column family.
    pub name: String,
    /// Tables that were taken over as a whole.
    pub tables_whole: u64,
    /// Damaged tables of which a part was saved.
    pub tables_salvaged: u64,
    /// Tables of which nothing was saved.
    pub tables_lost: u64,
    /// Records that were saved from damaged tables.
    pub records_salvaged: u64,
    /// Value files that were taken over as a whole.
    pub value_files_whole: u64,
    /// Value files that are damaged or missing. Every readable value of them was saved.
    pub value_files_damaged: u64,
    /// Records that were dropped because their separated values are lost.
    pub values_lost: u64,
}

impl RepairedFamily {
    pub(super) fn new(cf: CfId, name: &str) -> Self {
        Self {
            cf,
            name: name.to_owned(),
            tables_whole: 0,
            tables_salvaged: 0,
            tables_lost: 0,
            records_salvaged: 0,
            value_files_whole: 0,
            value_files_damaged: 0,
            values_lost: 0,
        }
    }
}

/// Result of a repair, or of a dry run ([`super::repair`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Reason for which the manifest could not be used; `None` if it was whole. Without a manifest
    /// the families were rebuilt from the properties of the tables and from the log.
    pub manifest_lost: Option<String>,
    /// Every column family, by id.
    pub families: Vec<RepairedFamily>,
    /// Records of the log that were read.
    pub log_records: u64,
    /// Sequence number of the last write that was found.
    pub last_seq: SeqNo,
    /// Everything that could not be saved.
    pub losses: Vec<Loss>,
    /// Further notes for an operator.
    pub notes: Vec<String>,
}

impl RepairReport {
    /// Whether everything was saved.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.losses.is_empty()
    }

    /// Whether the value of `key` may differ from the one before the damage.
    #[must_use]
    pub fn may_affect(&self, cf: CfId, key: &[u8]) -> bool {
        self.losses
            .iter()
            .any(|loss| loss.scope.cf.is_none_or(|of| of == cf) && loss.scope.range.contains(key))
    }

    pub(super) fn family(&mut self, cf: CfId, name: &str) -> &mut RepairedFamily {
        let at = match self.families.binary_search_by_key(&cf, |family| family.cf) {
            Ok(at) => at,
            Err(at) => {
                self.families.insert(at, RepairedFamily::new(cf, name));
                at
            }
        };
        &mut self.families[at]
    }

    fn name_of(&self, cf: Option<CfId>) -> String {
        let Some(cf) = cf else { return "every family".to_owned() };
        match self.families.iter().find(|family| family.cf == cf) {
            Some(family) => format!("family \"{}\"", family.name),
            None => format!("family {cf}"),
        }
    }
}

/// Largest number of bytes of a key that are printed.
const KEY_BYTES_SHOWN: usize = 64;

fn key_text(key: &[u8]) -> String {
    let shown = &key[..key.len().min(KEY_BYTES_SHOWN)];
    let more = if shown.len() < key.len() { "…" } else { "" };
    format!("\"{}{more}\"", shown.escape_ascii())
}

/// A range as text.
struct RangeText<'a>(&'a KeyRange);

impl fmt::Display for RangeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start.as_slice(), &self.0.end) {
            ([], None) => f.write_str("all keys"),
            (start, None) => write!(f, "keys from {}", key_text(start)),
            (start, Some(end)) => {
                write!(f, "keys from {} up to {}", key_text(start), key_text(end))
            }
        }
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.manifest_lost {
            None => writeln!(f, "The manifest is whole.")?,
            Some(why) => writeln!(f, "The manifest cannot be used: {why}")?,
        }
        for family in &self.families {
            writeln!(
                f,
                "Family \"{}\": {} tables whole, {} saved in part ({} records), {} lost",
                family.name,
                family.tables_whole,
                family.tables_salvaged,
                family.records_salvaged,
                family.tables_lost
            )?;
            let (whole, damaged) = (family.value_files_whole, family.value_files_damaged);
            if whole + damaged + family.values_lost > 0 {
                writeln!(
                    f,
                    "     {whole} value files whole, {damaged} damaged or missing; {} values lost",
                    family.values_lost
                )?;
            }
        }
        writeln!(f, "Log: {} records", self.log_records)?;
        for loss in &self.losses {
            let family = self.name_of(loss.scope.cf);
            let range = RangeText(&loss.scope.range);
            writeln!(f, "{} {family}, {range}", loss.effect)?;
            writeln!(f, "     {}: {}", loss.file, loss.what)?;
        }
        for note in &self.notes {
            writeln!(f, "Note: {note}")?;
        }
        match self.losses.iter().map(|loss| loss.effect).min() {
            None => writeln!(f, "Nothing is lost."),
            Some(LossEffect::TornEnd) => writeln!(
                f,
                "The end of the log is torn, as a crash leaves it. Only writes that were not synced \
                 can be missing."
            ),
            Some(LossEffect::Lost | LossEffect::Stale) => writeln!(
                f,
                "Keys outside the ranges above have their last values. LOST: a key may be missing, \
                 older than it was, or back though it was deleted; a merged value may lack operands. \
                 STALE: a key may be older than it was, or back though it was deleted."
            ),
        }
    }
}
