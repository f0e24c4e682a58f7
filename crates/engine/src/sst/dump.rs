//! A table as text, for people.

use std::fmt::Write;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};

use super::reader::{TableReadOptions, TableReader};
use crate::iter::InternalIterator;
use crate::key::KeyRef;

impl TableReader {
    /// Writes properties and range tombstones, and with `records` at most that many records.
    /// `out` must not fail for want of space.
    pub fn dump(
        self: &Arc<Self>,
        out: &mut dyn Write,
        records: usize,
        options: TableReadOptions,
    ) -> Result<()> {
        let failed = |_| Error::new(ErrorKind::Io, "cannot write the dump");
        self.dump_head(out).map_err(failed)?;
        for tombstone in self.tombstones.list() {
            let (start, end) = (tombstone.start.escape_ascii(), tombstone.end.escape_ascii());
            writeln!(out, "delete range \"{start}\"..\"{end}\" @{}", tombstone.seq)
                .map_err(failed)?;
        }
        let mut iter = self.iter(options);
        iter.seek_to_first();
        for _ in 0..records {
            if !iter.valid() {
                break;
            }
            if let Some(key) = KeyRef::decode(iter.key()) {
                let (name, value) = (key.user_key.escape_ascii(), iter.value().escape_ascii());
                writeln!(out, "\"{name}\" @{} {:?} \"{value}\"", key.seq, key.kind)
                    .map_err(failed)?;
            }
            iter.next();
        }
        iter.status()
    }

    fn dump_head(&self, out: &mut dyn Write) -> std::fmt::Result {
        let p = &self.properties;
        writeln!(out, "file                {}", self.path.display())?;
        writeln!(out, "bytes               {}", self.footer.file_bytes)?;
        let id = u128::from_be_bytes(self.footer.unique_id);
        writeln!(out, "unique id           {id:032x}")?;
        writeln!(out, "format version      {}", super::FORMAT_VERSION)?;
        writeln!(out, "column family       {} \"{}\"", p.cf, p.cf_name.escape_debug())?;
        writeln!(out, "created (unix ms)   {}", p.created_unix_ms)?;
        writeln!(out, "records             {}", p.entries)?;
        writeln!(out, "  deletions         {}", p.deletions)?;
        writeln!(out, "  merge operands    {}", p.content.merges)?;
        writeln!(out, "  expiring          {}", p.content.expiring)?;
        let [earliest, .., latest] = p.content.expiry_ms;
        if p.content.expiring > 0 {
            writeln!(out, "    between (unix ms) {earliest} and {latest}")?;
        }
        writeln!(out, "  for snapshots     {}", p.content.shadowed)?;
        writeln!(out, "user keys           {}", p.content.user_keys)?;
        writeln!(out, "range deletions     {}", p.range_deletions)?;
        writeln!(out, "smallest key        \"{}\"", p.smallest.escape_ascii())?;
        let exclusive = if p.largest_exclusive { " (exclusive)" } else { "" };
        writeln!(out, "largest key         \"{}\"{exclusive}", p.largest.escape_ascii())?;
        writeln!(out, "median key          \"{}\"", p.median_key.escape_ascii())?;
        writeln!(out, "sequence numbers    {}..={}", p.smallest_seq, p.largest_seq)?;
        if let Some(global) = self.global_seq {
            writeln!(out, "  read as           {global}")?;
        }
        writeln!(
            out,
            "raw bytes           {} keys, {} values",
            p.raw_key_bytes, p.raw_value_bytes
        )?;
        writeln!(out, "data                {} bytes, {} blocks", p.data_bytes, p.data_blocks)?;
        let levels = if self.footer.partitioned { 2 } else { 1 };
        writeln!(out, "index               {} bytes, {levels} level(s)", p.index_bytes)?;
        let bits = p.bloom_bits_per_key;
        writeln!(out, "filter              {} bytes, {bits} bits a key", p.filter_bytes)?;
        let filter = p.content.compaction_filter.as_deref().unwrap_or("none");
        writeln!(out, "compaction filter   {}", filter.escape_debug())?;
        writeln!(out, "compression         {:?}", p.content.compression)
    }
}
