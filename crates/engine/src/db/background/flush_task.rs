//! A planned flush as a value: the shards that it takes, and the jobs that it is cut into.
//!
//! Without a store of shards a flush takes the same positions of memtables with one map, and each
//! position is a job of its own for the executor. With a store it takes one range of keys, which is
//! whole shards in each memtable, and is one job ([`crate::db::background::flush_plan::ranges`]).
//!
//! Thread-safety: the value does not change while its job runs. Failure: none. Cost: none.

use std::ops::Range;
use std::sync::Arc;

use archipelago_base::{CfId, SeqNo};

use crate::db::state::family::Family;
use crate::db::state::memtable::{SealedInfo, ShardInfo};
use crate::key::KeyRange;

/// A memtable of a flush.
pub(crate) struct TakenMemtable {
    pub(crate) info: Arc<SealedInfo>,
    /// Positions of the shards that the flush takes. Some of them may have nothing to flush.
    pub(crate) shards: Range<usize>,
}

impl TakenMemtable {
    fn figures(&self, part: FlushPart) -> &[ShardInfo] {
        self.info.shards().get(self.shards_of(part)).unwrap_or_default()
    }

    /// Positions of its shards that a part of the flush takes.
    pub(crate) fn shards_of(&self, part: FlushPart) -> Range<usize> {
        match part {
            FlushPart::Shard(at) => at..at + 1,
            FlushPart::Whole => self.shards.clone(),
        }
    }
}

/// A part of a flush that is a job of its own for the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushPart {
    /// The shard at this position of each memtable. All memtables have the same map.
    Shard(usize),
    /// All keys of the flush.
    Whole,
}

/// How a flush is cut into jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushCut {
    /// Each position is a job. All memtables have the same map.
    ByShard,
    /// The flush is one job.
    Uncut,
}

/// A flush that was planned. Its shards are marked running.
pub(crate) struct FlushTask {
    pub(crate) job_id: u64,
    pub(crate) family: Arc<Family>,
    /// Memtables of the job, oldest first.
    pub(crate) memtables: Vec<TakenMemtable>,
    pub(crate) cut: FlushCut,
    pub(crate) range: KeyRange,
    /// Keys at which its files are cut in addition to the boundaries of the map.
    pub(crate) planned_cuts: Vec<Vec<u8>>,
}

impl FlushTask {
    /// Sequence number up to which all records of the family in the range are in the job or in
    /// older files.
    pub(crate) fn through(&self) -> SeqNo {
        self.memtables.iter().map(|taken| taken.info.last_seq).max().unwrap_or_default()
    }

    /// The memtable with that number, if the flush takes shards of it.
    pub(crate) fn memtable(&self, id: u64) -> Option<&TakenMemtable> {
        self.memtables.iter().find(|taken| taken.info.id == id)
    }

    /// Whether the flush takes that shard.
    pub(crate) fn takes(&self, family: CfId, memtable: &SealedInfo, shard: usize) -> bool {
        let taken = || self.memtable(memtable.id);
        self.family.id == family && taken().is_some_and(|taken| taken.shards.contains(&shard))
    }

    /// Whether the shard at this position is a job of its own in the flush.
    pub(crate) fn has_part(&self, shard: usize) -> bool {
        self.positions().contains(&shard)
    }

    /// The positions that are jobs of their own.
    fn positions(&self) -> Range<usize> {
        match (self.cut, self.memtables.first()) {
            (FlushCut::ByShard, Some(first)) => first.shards.clone(),
            _ => 0..0,
        }
    }

    /// Bytes of the records of a part, as stored.
    pub(crate) fn data_bytes(&self, part: FlushPart) -> u64 {
        self.memtables.iter().flat_map(|taken| taken.figures(part)).map(|s| s.data_bytes).sum()
    }

    /// Bytes of the records of all parts, as stored.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.data_bytes(FlushPart::Whole)
    }

    /// The keys of a part.
    pub(crate) fn range_of(&self, part: FlushPart) -> KeyRange {
        match (part, self.memtables.first()) {
            (FlushPart::Shard(at), Some(first)) => first.info.map.range(at),
            _ => self.range.clone(),
        }
    }

    /// Largest number of tables that the flush writes, before they are cut further.
    pub(crate) fn tables_max(&self) -> usize {
        let shards = self.memtables.iter().map(|taken| taken.shards.len());
        match self.cut {
            FlushCut::ByShard => shards.sum(),
            FlushCut::Uncut => shards.max().unwrap_or_default(),
        }
    }

    /// The parts that have something to be flushed.
    pub(crate) fn filled_parts(&self) -> Vec<FlushPart> {
        let is_filled = |part: &FlushPart| {
            self.memtables.iter().flat_map(|taken| taken.figures(*part)).any(|s| s.is_filled)
        };
        match self.cut {
            FlushCut::ByShard => self.positions().map(FlushPart::Shard).filter(is_filled).collect(),
            FlushCut::Uncut => Some(FlushPart::Whole).into_iter().filter(is_filled).collect(),
        }
    }
}
