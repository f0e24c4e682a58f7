//! Writing the repaired database: tables, the log, and last the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::random::{Rng, unique_id};
use archipelago_base::{CfId, ErrorKind, FileNo, Result, SeqNo};
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};

use super::LinkTables;
use crate::db::copy_file;
use crate::file_meta::{FileMeta, log_name, sst_name, value_file_name};
use crate::key::{self, Kind};
use crate::live_file::Trash;
use crate::manifest::{Exporter, State, StateBuilder, VersionEdit};
use crate::options::{CfOptions, Compression};
use crate::sst::{TableBuilder, TableOptions};
use crate::tombstone::RangeTombstone;
use crate::wal::{BatchView, Entry, LogConfig, LogWriter, ManifestPosition, payload_crc};

/// Bytes of a log segment of the repaired database.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Bytes of log records that are sorted in memory at a time.
const RUN_BYTES: usize = 32 << 20;

/// The directory of the repaired database before it is a database: `CURRENT` is written last.
pub(super) struct Target {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) dir: PathBuf,
    pub(super) db_id: [u8; 16],
    links: LinkTables,
    next_no: FileNo,
    rng: Rng,
}

/// Properties of the column family for which a table is written.
#[derive(Clone, Copy)]
pub(super) struct TableFamily<'a> {
    pub(super) cf: CfId,
    pub(super) name: &'a str,
    pub(super) options: &'a CfOptions,
}

impl Target {
    pub(super) fn new(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        links: LinkTables,
        next_no: FileNo,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::with_seed(seed);
        let db_id = unique_id(&mut rng);
        Self { fs: Arc::clone(fs), dir: dir.to_owned(), db_id, links, next_no, rng }
    }

    pub(super) fn allocate(&mut self) -> FileNo {
        let no = self.next_no;
        self.next_no = FileNo(no.0 + 1);
        no
    }

    /// Links or copies a whole table into the target, under its old name.
    pub(super) fn take_over(&self, from: &Path, no: FileNo) -> Result<()> {
        self.take_over_as(from, &sst_name(no), FileClass::Sst)
    }

    /// Links or copies a whole value file into the target, under its old name.
    pub(super) fn take_over_values(&self, from: &Path, no: FileNo) -> Result<()> {
        self.take_over_as(from, &value_file_name(no), FileClass::ValueSst)
    }

    fn take_over_as(&self, from: &Path, name: &str, class: FileClass) -> Result<()> {
        let to = self.dir.join(name);
        if self.links == LinkTables::Yes {
            match self.fs.link(from, &to) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                linked => return linked,
            }
        }
        copy_file(&*self.fs, from, &to, class)
    }

    /// Begins a new table for `family`.
    pub(super) fn table(&mut self, family: TableFamily<'_>) -> Result<TableBuilder> {
        let no = self.allocate();
        let path = self.dir.join(sst_name(no));
        let context = IoContext::sst(IoPurpose::Maintenance, 0);
        let file = self.fs.create(&path, context, CreateOptions::default())?;
        let options = TableOptions {
            block_bytes: family.options.block_bytes,
            compression: match family.options.compression {
                Compression::Zstd => Compression::Zstd,
                Compression::Lz4 => Compression::Lz4,
                Compression::None => Compression::None,
            },
            bloom_bits_per_key: family.options.bloom_bits_per_key,
            cf: family.cf,
            cf_name: family.name.to_owned(),
            ..TableOptions::default()
        };
        let id = unique_id(&mut self.rng);
        Ok(TableBuilder::new(file, &path, no, id, options))
    }

    /// Removes a table that is not needed any more.
    pub(super) fn remove(&self, no: FileNo) -> Result<()> {
        self.fs.remove(&self.dir.join(sst_name(no)))
    }

    /// Begins a log for the repaired database, with a number above those of all files so far.
    pub(super) fn log(&mut self) -> Result<TargetLog> {
        let config = LogConfig {
            database_id: self.db_id,
            segment_bytes: SEGMENT_BYTES,
            seed: self.rng.u64(..),
            manifest: ManifestPosition::default(),
        };
        let no = self.allocate();
        let path = self.dir.join(log_name(no));
        let writer = LogWriter::create(Arc::clone(&self.fs), config, &path, no, None, None)?;
        Ok(TargetLog { writer })
    }

    /// Makes the directory a database with the state that `edit` makes from nothing. Durable on
    /// return.
    pub(super) fn finish(mut self, edit: &VersionEdit) -> Result<()> {
        let trash = Arc::new(Trash::default());
        let mut builder = StateBuilder::new(State::default());
        builder.apply(edit)?;
        let built = builder.finish(&trash)?;
        let mut state = built.state;
        for (_, no) in built.unreferenced {
            // The tables that referred to the file are lost, and nothing names it.
            self.fs.remove(&self.dir.join(value_file_name(no)))?;
        }
        let no = self.allocate();
        state.next_file_no = state.next_file_no.max(self.next_no);
        self.fs.sync_dir(&self.dir)?;
        Exporter::new(Arc::clone(&self.fs), self.db_id, no, state).write(&self.dir)
    }
}

/// The log of the repaired database.
pub(super) struct TargetLog {
    writer: LogWriter,
}

impl TargetLog {
    pub(super) fn append(
        &mut self,
        target: &mut Target,
        first_seq: SeqNo,
        payload: &[u8],
    ) -> Result<()> {
        if self.writer.should_rotate() {
            let no = target.allocate();
            let closed = self.writer.rotate(&target.dir.join(log_name(no)), no, None)?;
            closed.unfinished.map_or(Ok(()), Err)?;
        }
        let entry = Entry { first_seq, payload, payload_crc: payload_crc(payload) };
        self.writer.append(&entry).map(|_| ())
    }

    /// Makes the log durable and ends it.
    pub(super) fn finish(mut self) -> Result<()> {
        self.writer.syncer().sync()?;
        self.writer.finish().unfinished.map_or(Ok(()), Err)
    }
}

/// Records of the log that are being sorted into tables.
#[derive(Default)]
pub(super) struct SortedRuns {
    bytes: usize,
    families: BTreeMap<CfId, Run>,
    tables: Vec<(CfId, FileMeta)>,
}

#[derive(Default)]
struct Run {
    records: Vec<(Vec<u8>, Vec<u8>)>,
    tombstones: Vec<RangeTombstone>,
}

/// Returns the name and the settings of a column family.
pub(super) type FamilyOf<'a> = dyn Fn(CfId) -> Option<TableFamily<'a>> + 'a;

impl SortedRuns {
    pub(super) fn add(
        &mut self,
        target: &mut Target,
        family_of: &FamilyOf<'_>,
        first_seq: SeqNo,
        payload: &[u8],
    ) -> Result<()> {
        let mut seq = first_seq;
        for op in BatchView::decode(payload)?.iter() {
            let op = op?;
            let run = self.families.entry(op.cf).or_default();
            self.bytes += op.key.len() + op.value.len() + 64;
            if op.kind == Kind::RangeDelete {
                let (start, end) = (op.key.into(), op.value.into());
                run.tombstones.push(RangeTombstone { start, end, seq });
            } else {
                run.records.push((key::encode(op.key, seq, op.kind), op.value.to_vec()));
            }
            seq = SeqNo(seq.0 + 1);
        }
        if self.bytes >= RUN_BYTES {
            self.write(target, family_of)?;
        }
        Ok(())
    }

    fn write(&mut self, target: &mut Target, family_of: &FamilyOf<'_>) -> Result<()> {
        self.bytes = 0;
        for (cf, mut run) in std::mem::take(&mut self.families) {
            let Some(family) = family_of(cf) else { continue };
            run.tombstones.retain(|tombstone| !tombstone.is_empty());
            if run.records.is_empty() && run.tombstones.is_empty() {
                continue;
            }
            run.records.sort_by(|(a, _), (b, _)| key::compare(a, b));
            let mut table = target.table(family)?;
            for (key, value) in &run.records {
                table.add(key, value)?;
            }
            for tombstone in &run.tombstones {
                table.add_tombstone(tombstone)?;
            }
            self.tables.push((cf, table.finish()?));
        }
        Ok(())
    }

    /// Ends the sorting and returns all tables, each with its column family.
    pub(super) fn finish(
        mut self,
        target: &mut Target,
        family_of: &FamilyOf<'_>,
    ) -> Result<Vec<(CfId, FileMeta)>> {
        self.write(target, family_of)?;
        Ok(self.tables)
    }
}
