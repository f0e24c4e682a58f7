//! Writing of a job's outputs: the boundaries between them, and the range tombstones in each.
//!
//! Owned by one job. Invariants:
//!
//! 1. All versions of a user key lie in one output; outputs are disjoint and ascending.
//! 2. The key space of the job is cut into intervals, one per output. An output carries all point
//!    records of its interval and every range tombstone clipped to it, so that rule 1 holds for
//!    tombstones too. An interval with tombstones alone makes an output without points.
//! 3. A boundary of `cuts` always ends an interval. An interval also ends before a new user key,
//!    when the output has its target size or would overlap more than [`GRANDPARENT_TARGETS`] target
//!    sizes of the level below. It ends at the start of a tombstone, when the tombstones that start
//!    in it have brought it to its target size.
//! 4. If only the numbers of the tables that `cuts` demand are left, an interval ends at a boundary
//!    of `cuts` alone. So a job that writes more than its owner expected makes larger outputs, and
//!    does not fail. A table may have any size: outputs in L0 end at `cuts` alone in any case.
//! 5. Large values go to value files if the spec says so (`super::separate`). A value file may
//!    span several outputs, and is synced before them.
//! 6. Until [`OutputWriter::finish`] has returned `Ok`, dropping the writer removes every file
//!    that it has created; a file that cannot be removed is logged and left as garbage.
//!
//! Cost: per record nothing beyond the table builder; per user key two comparisons. One sync per
//! output and one of the directory. A tombstone is written once for each output into which it
//! reaches.

use std::sync::Arc;

use archipelago_base::{CfId, Result};
use archipelago_env::{IoContext, WritableFile};

use super::JobContext;
use super::created::{CreatedFile, CreatedFiles};
use super::separate::{LateSync, Separator};
use super::spec::OutputSpec;
use crate::file_meta::{FileMeta, sst_name};
use crate::key::{KeyRange, user_key};
use crate::sst::{RecordRole, TableBuilder, TableOptions};
use crate::tombstone::RangeTombstone;
use crate::value_ref::ValueFileMeta;

/// Limit on the overlap of an output with the level below, in target sizes; it holds approximately.
pub const GRANDPARENT_TARGETS: u64 = 10;

/// The files that a job has written and synced.
#[derive(Debug, Default)]
pub struct Written {
    /// The tables in key order.
    pub tables: Vec<FileMeta>,
    /// The value files, ascending by number.
    pub value_files: Vec<ValueFileMeta>,
}

/// A table that is being written.
struct OpenTable {
    builder: TableBuilder,
    /// The table's file, if value files have to be synced before it.
    late: Option<LateSync>,
}

/// Writes the output files of one job.
pub struct OutputWriter<'a> {
    spec: &'a OutputSpec,
    cf: CfId,
    io: IoContext,
    context: &'a JobContext<'a>,
    /// Name of the compaction filter that the records have passed.
    filter: Option<&'a str>,
    /// The tombstones that the outputs must carry, sorted by start.
    tombstones: Vec<RangeTombstone>,
    /// Index of the first tombstone that no output has yet.
    next_tombstone: usize,
    /// Index of the first tombstone that `started_bytes` does not include yet.
    next_started: usize,
    /// Bytes of the tombstones that start in the current interval, up to the current key.
    started_bytes: u64,
    /// Parts of tombstones that reach out of the intervals before, from `low` on.
    carried: Vec<RangeTombstone>,
    open: Option<OpenTable>,
    /// Writes the large values, if the job separates them.
    separator: Option<Separator<'a>>,
    /// Start of the current interval.
    low: Vec<u8>,
    /// End of the job's keys.
    end: Option<&'a [u8]>,
    next_cut: usize,
    /// Index after the last cut before the end of the job's keys.
    cuts_end: usize,
    next_grandparent: usize,
    overlap_bytes: u64,
    files: Vec<FileMeta>,
    /// Removes the files if the job fails. As the last field it is dropped after the builders.
    created: CreatedFiles<'a>,
}

impl<'a> OutputWriter<'a> {
    /// A writer for the job's keys in `range`. The `tombstones` that the outputs must carry lie in
    /// the range and are sorted by start.
    pub fn new(
        spec: &'a OutputSpec,
        cf: CfId,
        range: &'a KeyRange,
        tombstones: Vec<RangeTombstone>,
        io: IoContext,
        context: &'a JobContext<'a>,
    ) -> Result<Self> {
        spec.validate()?;
        let next_cut = spec.cuts.partition_point(|cut| *cut <= range.start);
        let cuts_end = match &range.end {
            Some(end) => spec.cuts.partition_point(|cut| cut < end),
            None => spec.cuts.len(),
        };
        let mut created = CreatedFiles::new(spec, context);
        created.keep_back(cuts_end.saturating_sub(next_cut) as u64);
        Ok(Self {
            next_cut,
            cuts_end,
            spec,
            cf,
            io,
            context,
            filter: None,
            tombstones,
            next_tombstone: 0,
            next_started: 0,
            started_bytes: 0,
            carried: Vec::new(),
            open: None,
            separator: Separator::new(spec, cf, io, context),
            low: range.start.clone(),
            end: range.end.as_deref(),
            next_grandparent: 0,
            overlap_bytes: 0,
            files: Vec::new(),
            created,
        })
    }

    /// Notes that the records have passed the compaction filter of that name.
    #[must_use]
    pub fn filtered_by(mut self, filter: Option<&'a str>) -> Self {
        self.filter = filter;
        self
    }

    /// Adds a record, in internal-key order.
    #[inline]
    pub fn add(&mut self, key: &[u8], value: &[u8], role: RecordRole) -> Result<()> {
        if role.starts_key {
            self.enter(user_key(key))?;
        }
        if self.open.is_none() {
            self.create()?;
        }
        let Self { open: Some(table), separator, created, .. } = self else { return Ok(()) };
        let separated = match separator {
            None => None,
            Some(separator) => separator.separate(key, value, created)?,
        };
        let (key, value) = separated.unwrap_or((key, value));
        table.builder.add_as(key, value, role)
    }

    /// Ends the interval before `key` if it must end there.
    #[inline]
    fn enter(&mut self, key: &[u8]) -> Result<()> {
        let spec = self.spec;
        if self.next_started < self.tombstones.len() {
            self.pass_tombstones(Some(key))?;
        }
        self.pass_cuts(key)?;
        while let Some(file) = spec.grandparents.get(self.next_grandparent) {
            if file.end.as_slice() > key {
                break;
            }
            self.next_grandparent += 1;
            if self.open.is_some() {
                self.overlap_bytes = self.overlap_bytes.saturating_add(file.bytes);
            }
        }
        let full = self.open.as_ref().is_some_and(|table| {
            table.builder.estimated_bytes() + self.started_bytes >= spec.target_file_bytes
                || self.overlap_bytes > spec.target_file_bytes.saturating_mul(GRANDPARENT_TARGETS)
        });
        if full && self.may_end_early() {
            self.end_interval(Some(key))?;
        }
        Ok(())
    }

    /// Whether the file numbers suffice to end the interval before the next cut. The table of the
    /// following interval takes a number. The table of this interval takes one if it does not exist
    /// yet, and so does a value file.
    fn may_end_early(&self) -> bool {
        let table = u64::from(self.open.is_none());
        let has_no_value_file = |separator: &Separator<'_>| !separator.has_open_file();
        let value_file = u64::from(self.separator.as_ref().is_some_and(has_no_value_file));
        self.created.has_spare(1 + table + value_file)
    }

    /// Ends the intervals at the cuts up to `key`.
    #[inline]
    fn pass_cuts(&mut self, key: &[u8]) -> Result<()> {
        let spec = self.spec;
        while let Some(cut) = spec.cuts.get(self.next_cut).filter(|cut| cut.as_slice() <= key) {
            self.end_at_cut(cut)?;
        }
        Ok(())
    }

    /// Ends the interval at `cut`, the next one of the spec.
    fn end_at_cut(&mut self, cut: &[u8]) -> Result<()> {
        self.next_cut += 1;
        self.created.keep_back(self.cuts_end.saturating_sub(self.next_cut) as u64);
        self.end_interval(Some(cut))
    }

    /// Counts the tombstones that start at or before `key` (`None`: all that are left). Ends
    /// intervals at the starts of those that fill one. The caller has added no record from there
    /// on.
    fn pass_tombstones(&mut self, key: Option<&[u8]>) -> Result<()> {
        while let Some(tombstone) = self.tombstones.get(self.next_started) {
            if key.is_some_and(|key| *key < *tombstone.start) {
                break;
            }
            let (start, bytes) = (Arc::clone(&tombstone.start), stored_bytes(tombstone));
            self.next_started += 1;
            self.pass_cuts(&start)?;
            let open = self.open.as_ref().map_or(0, |table| table.builder.estimated_bytes());
            let is_full = open + self.started_bytes + bytes > self.spec.target_file_bytes;
            if is_full && self.started_bytes > 0 && *start > *self.low && self.may_end_early() {
                self.end_interval(Some(&start))?;
            }
            self.started_bytes += bytes;
        }
        Ok(())
    }

    /// Ends the last interval and makes all files durable.
    pub fn finish(mut self) -> Result<Written> {
        let spec = self.spec;
        self.pass_tombstones(None)?;
        while self.next_cut < self.cuts_end {
            self.end_at_cut(&spec.cuts[self.next_cut])?;
        }
        self.end_interval(self.end)?;
        let value_files = match &mut self.separator {
            None => Vec::new(),
            Some(separator) => separator.finish()?,
        };
        self.created.keep()?;
        Ok(Written { tables: self.files, value_files })
    }

    /// Closes the output of the keys from `low` to `high`, if it has a record or a tombstone.
    fn end_interval(&mut self, high: Option<&[u8]>) -> Result<()> {
        for tombstone in self.tombstones_until(high) {
            let table = match &mut self.open {
                Some(table) => table,
                None => self.create()?,
            };
            table.builder.add_tombstone(&tombstone)?;
        }
        if let Some(OpenTable { builder, late }) = self.open.take() {
            let meta = builder.finish()?;
            if let (Some(late), Some(separator)) = (late, &mut self.separator) {
                separator.sync_table(&meta, late, &self.created)?;
            }
            self.files.push(meta);
        }
        self.overlap_bytes = 0;
        self.started_bytes = 0;
        if let Some(high) = high {
            self.low.clear();
            self.low.extend_from_slice(high);
        }
        Ok(())
    }

    /// The tombstones between `low` and `high`, clipped. Parts past `high` are carried on.
    fn tombstones_until(&mut self, high: Option<&[u8]>) -> Vec<RangeTombstone> {
        let mut inside = std::mem::take(&mut self.carried);
        let rest = &self.tombstones[self.next_tombstone..];
        let count = match high {
            Some(high) => rest.partition_point(|tombstone| *tombstone.start < *high),
            None => rest.len(),
        };
        inside.extend_from_slice(&rest[..count]);
        self.next_tombstone += count;
        let Some(high) = high else { return inside };
        let high: Arc<[u8]> = high.into();
        for tombstone in inside.iter().filter(|tombstone| tombstone.end > high) {
            let (start, end) = (Arc::clone(&high), Arc::clone(&tombstone.end));
            self.carried.push(RangeTombstone { start, end, seq: tombstone.seq });
        }
        for tombstone in &mut inside {
            if tombstone.end > high {
                tombstone.end = Arc::clone(&high);
            }
        }
        inside
    }

    #[cold]
    fn create(&mut self) -> Result<&mut OpenTable> {
        let CreatedFile { no, path, file } = self.created.create(sst_name, self.io)?;
        let (file, late): (Box<dyn WritableFile>, _) = match self.separator {
            None => (Box::new(file), None),
            Some(_) => {
                let late = LateSync::new(file);
                (Box::new(late.clone()), Some(late))
            }
        };
        let builder = TableBuilder::new(
            file,
            &path,
            no,
            self.spec.unique_id(no),
            TableOptions {
                compaction_filter: self.filter.map(str::to_owned),
                ..self.spec.table_options(self.cf)
            },
        );
        let builder = builder.warming(&self.context.cache);
        Ok(self.open.insert(OpenTable { builder, late }))
    }
}

/// Approximate bytes that a tombstone takes in a table.
fn stored_bytes(tombstone: &RangeTombstone) -> u64 {
    (tombstone.start.len() + tombstone.end.len()) as u64 + 12
}
