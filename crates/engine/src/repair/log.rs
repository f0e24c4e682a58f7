//! The log of a damaged database: its readable part, and the report of the missing parts.
//!
//! Segments form a chain: each header names the previous segment and that segment's length. A
//! segment to which no later one leads back was cut off the log by an earlier recovery and does not
//! count.

use std::collections::BTreeMap;

use archipelago_base::{CfId, Error, FileNo, Result, SeqNo};
use archipelago_env::FileSystem;

use super::report::{Loss, LossEffect, LossScope};
use super::survey::Survey;
use crate::file_meta::log_name;
use crate::key::KeyRange;
use crate::wal::{
    BatchView, SalvageLimits, SegmentFile, SegmentSalvage, read_header, salvage_segment,
};

/// Treatment of writes after a place at which the log has lost some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogAfterDamage {
    /// They are saved as well. They are newer than the lost writes, so most keys get their last
    /// value. A write may exist without an earlier one. The default.
    #[default]
    Keep,
    /// They are dropped. The database has the state of one moment of the past.
    Drop,
}

/// A segment that belongs to the log.
#[derive(Clone, Debug)]
struct Link {
    file: SegmentFile,
    /// Length of the segment in bytes, as the next segment's header states it.
    end: Option<u64>,
}

/// Content of the log, as a first pass finds it.
#[derive(Debug, Default)]
pub(super) struct LogSurvey {
    pub(super) records: u64,
    pub(super) last_seq: SeqNo,
    pub(super) losses: Vec<Loss>,
    /// Number of operations by column family.
    pub(super) operations: BTreeMap<CfId, u64>,
    /// Bytes of the segments that belong to the log.
    pub(super) bytes: u64,
}

/// The readable part of a log.
#[derive(Debug)]
pub(super) struct LogSource<'a> {
    fs: &'a dyn FileSystem,
    survey: &'a Survey,
    links: Vec<Link>,
    floor: FileNo,
    after_damage: LogAfterDamage,
}

impl<'a> LogSource<'a> {
    /// The segments of the log from `floor` on.
    pub(super) fn new(
        fs: &'a dyn FileSystem,
        survey: &'a Survey,
        floor: FileNo,
        after_damage: LogAfterDamage,
    ) -> Result<Self> {
        let mut links = Vec::new();
        let mut wanted: Option<(FileNo, Option<u64>)> = None;
        let numbers = survey.numbers(log_name);
        for no in numbers.into_iter().rev().filter(|&no| no >= floor) {
            if wanted.is_some_and(|(wanted, _)| no > wanted) {
                continue;
            }
            let path = survey.dir.join(log_name(no));
            let header = read_header(fs, &path).ok().flatten();
            let is_ours = |id: &[u8; 16]| survey.db_id.is_none_or(|db_id| db_id == *id);
            if header.is_some_and(|header| !is_ours(&header.database_id)) {
                continue;
            }
            let end = wanted.filter(|(wanted, _)| *wanted == no).and_then(|(_, len)| len);
            links.push(Link { file: SegmentFile { no, path }, end });
            wanted = header.map(|header| match header.previous {
                Some(previous) => (previous.no, Some(previous.len)),
                None => (FileNo(0), None),
            });
        }
        links.reverse();
        Ok(Self { fs, survey, links, floor, after_damage })
    }

    /// Visits every batch that counts, in order, and reports the missing parts. An error of the
    /// visitor ends the walk.
    pub(super) fn visit(
        &self,
        mut visit: impl FnMut(SeqNo, &[u8]) -> Result<()>,
    ) -> Result<LogSurvey> {
        let mut found = LogSurvey::default();
        let mut ends: BTreeMap<FileNo, u64> = BTreeMap::new();
        let mut next: Option<FileNo> = None;
        for (position, link) in self.links.iter().enumerate() {
            found.bytes += self.survey.len_of(&log_name(link.file.no)).unwrap_or(0);
            let is_last = position + 1 == self.links.len();
            let stops = self.after_damage == LogAfterDamage::Drop;
            found.losses.extend(self.missing_before(link, position));
            if stops && found.has_hole() {
                break;
            }
            let limits = SalvageLimits { after: found.last_seq, end: link.end, stops };
            let mut counted = LogSurvey::default();
            // An error of the visitor is one of the target: it ends the repair.
            let mut refused = None;
            let read = salvage_segment(self.fs, &link.file, limits, &mut |seq, payload| {
                counted.count(seq, payload)?;
                visit(seq, payload).map_err(|error| {
                    refused = Some(error);
                    Error::busy("the target has failed")
                })
            });
            if let Some(error) = refused {
                return Err(error);
            }
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    let name = log_name(link.file.no);
                    found.losses.push(log_loss(&name, error.to_string(), LossEffect::Lost));
                    continue;
                }
            };
            found.add(counted);
            found.last_seq = found.last_seq.max(read.last_seq.unwrap_or_default());
            self.judge(link, &read, is_last, &mut found);
            ends.insert(link.file.no, read.whole_through);
            next = read.next;
        }
        self.check_end(&ends, next, &mut found);
        Ok(found)
    }

    /// The loss of a segment that the header of `link` names and that does not exist.
    fn missing_before(&self, link: &Link, position: usize) -> Option<Loss> {
        let header = read_header(self.fs, &link.file.path).ok().flatten()?;
        let previous = header.previous.filter(|previous| previous.no >= self.floor)?;
        let before = position.checked_sub(1).map(|before| self.links[before].file.no);
        if before == Some(previous.no) || previous.len == 0 {
            return None;
        }
        let name = log_name(previous.no);
        let what = format!("the log segment is missing; it had {} bytes", previous.len);
        Some(log_loss(&name, what, LossEffect::Lost))
    }

    fn judge(&self, link: &Link, read: &SegmentSalvage, is_last: bool, found: &mut LogSurvey) {
        let name = log_name(link.file.no);
        if read.header.is_none() && read.records > 0 {
            let what = "the header is damaged; records were found without it".to_owned();
            found.losses.push(log_loss(&name, what, LossEffect::Lost));
        }
        for gap in &read.gaps {
            let (what, effect) = match gap.to {
                Some(to) => {
                    (format!("damaged from offset {} to offset {to}", gap.from), LossEffect::Lost)
                }
                None if is_last && read.header.is_some() && link.end.is_none() => (
                    format!("a record at offset {} was not wholly written", gap.from),
                    LossEffect::TornEnd,
                ),
                None => (format!("damaged from offset {} to the end", gap.from), LossEffect::Lost),
            };
            found.losses.push(log_loss(&name, what, effect));
        }
        if let Some(end) = link.end.filter(|&end| read.whole_through < end && read.gaps.is_empty())
        {
            let through = read.whole_through;
            let what = format!("it ends at offset {through}, and had {end} bytes");
            found.losses.push(log_loss(&name, what, LossEffect::Lost));
        }
    }

    /// Adds the losses at the end of the log, which other files prove, and that of a log that lies
    /// where the file system does not look.
    fn check_end(&self, ends: &BTreeMap<FileNo, u64>, next: Option<FileNo>, found: &mut LogSurvey) {
        if let Some(next) = next.filter(|next| !ends.contains_key(next)) {
            let what = "the log segment is missing; the one before it names it".to_owned();
            found.losses.push(log_loss(&log_name(next), what, LossEffect::Lost));
        }
        let through = |no: FileNo| ends.get(&no).copied();
        let checked = self.survey.evidence.check_log(&self.survey.dir, self.floor, through);
        if let (Err(error), Some(mark)) = (checked, self.survey.evidence.log()) {
            found.losses.push(log_loss(&log_name(mark.no), error.to_string(), LossEffect::Lost));
        }
        if let Some(place) = self.survey.log_elsewhere(self.fs) {
            let what = "the write-ahead log lies there, and was not read".to_owned();
            found.losses.push(log_loss(&place, what, LossEffect::Lost));
        }
    }
}

impl LogSurvey {
    fn count(&mut self, first: SeqNo, payload: &[u8]) -> Result<()> {
        let batch = BatchView::decode(payload)?;
        for op in batch.iter() {
            *self.operations.entry(op?.cf).or_default() += 1;
        }
        self.records += 1;
        self.last_seq = SeqNo(first.0.saturating_add((batch.len() as u64).saturating_sub(1)));
        Ok(())
    }

    fn add(&mut self, other: Self) {
        self.records += other.records;
        for (cf, operations) in other.operations {
            *self.operations.entry(cf).or_default() += operations;
        }
    }

    /// Whether something was lost before the end that was reached.
    fn has_hole(&self) -> bool {
        self.losses.iter().any(|loss| loss.effect != LossEffect::TornEnd)
    }
}

fn log_loss(name: &str, what: String, effect: LossEffect) -> Loss {
    // It is not known which keys the lost writes had.
    let scope = LossScope { cf: None, range: KeyRange::all() };
    Loss { file: name.to_owned(), what, effect, scope }
}
