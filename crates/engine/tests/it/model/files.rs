//! The steps of a case that create files of their own: ingestion and checkpoints.

use archipelago_base::Result;
use archipelago_engine::sst::{SstWriter, TableOptions};

use super::runner::Runner;
use super::steps::{Record, Table, gap_key};

impl Runner {
    fn write_table(&self, cf: usize, path: &std::path::Path, table: &Table) -> Result<()> {
        let model = &self.families[cf % self.families.len()].0;
        let options = TableOptions { block_bytes: 300, ..TableOptions::default() };
        let mut writer = SstWriter::create(&self.fs(), path, options)?;
        for (start, end) in &table.ranges {
            writer.delete_range(self.key(*start), self.key(*end))?;
        }
        for point in &table.points {
            match point {
                Record::Put { key, stamp, len } => {
                    writer.put(self.key(*key), &model.value(*stamp, *len))?;
                }
                Record::Delete { key } => writer.delete(self.key(*key))?,
                Record::Merge { key, stamp } => {
                    writer.merge(self.key(*key), &model.value(*stamp, 0))?;
                }
                other => unreachable!("{other:?} is not for tables"),
            }
        }
        writer.finish().map(|_| ())
    }

    pub(super) fn ingest(&mut self, cf: usize, tables: &[Table], link: bool, beside: usize) {
        let mut paths = Vec::new();
        for table in tables {
            let path = self.dir_beside("table");
            self.write_table(cf, &path, table).unwrap();
            paths.push(path);
        }
        self.ingest_beside(cf, &paths, link, beside);
        let seq = self.advance_seq();
        for table in tables {
            for &(start, end) in &table.ranges {
                self.note(cf, &Record::DeleteRange { start, end }, seq, 0, true);
            }
        }
        for point in tables.iter().flat_map(|table| &table.points) {
            self.note(cf, point, seq, 0, true);
        }
        for path in paths {
            self.fs().remove(&path).unwrap();
        }
    }

    /// Causes a compaction whose range includes a key that none of its files has. Ingests that key
    /// while the compaction may be picked.
    pub(super) fn ingest_into_gap(&mut self, cf: usize, gap: usize, stamp: u64, beside: usize) {
        let low = gap_key(gap, self.keys.len());
        for key in [low, low + 2].repeat(2) {
            self.write(&[(cf, Record::Put { key, stamp, len: 9 })], true, false);
            self.db.flush(self.handle(cf)).unwrap();
        }
        let points = vec![Record::Put { key: low + 1, stamp, len: 9 }];
        self.ingest(cf, &[Table { points, ranges: Vec::new() }], false, beside);
    }

    pub(super) fn checkpoint(&mut self) {
        let dir = self.dir_beside("copy");
        self.db.checkpoint(&dir).unwrap();
        self.check_copy(&dir);
        self.fs().remove_dir_all(&dir).unwrap();
    }
}
