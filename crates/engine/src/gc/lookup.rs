//! Determines the valid records of value files: a batched look-up in the tables of a version
//! (Terark-DS §4.4.2, GC-Lookup).
//!
//! A record of file v is valid if and only if the tables hold the record (user key, sequence
//! number, `Indirect`) and its reference resolves to v. The pair (key, sequence number) is not
//! enough: a compaction filter that changes a value, and a value that was put back inline and
//! separated again, leave the same pair in two files.
//!
//! The keys of all inputs are looked up together, in key order, level by level. The search of one
//! key ends at the first table with a record of the key at or below the sequence number, because
//! everything below is older still. A table with references answers through the Flat Index Cache,
//! which contains references only. There a record of another kind does not end the search. The
//! search then goes on to older records, which cannot match. For the same reason a table is
//! searched only for the keys of inputs that its references name, and most small tables are not
//! even opened. Expiry, range tombstones and snapshots do not matter: a record stays valid until a
//! compaction drops its reference.
//!
//! Thread-safety: pure except for reads of tables. Failure: an error of a table ends the look-up.
//! Cost: each table that may hold one of the keys takes one batch of block reads for each
//! [`BATCH_KEYS`] keys and for about 1 MiB of blocks. The blocks enter the block cache, so that
//! neighbouring batches share them. Pieces of the Flat Index Cache that are cached take no read.

use std::sync::Arc;

use archipelago_base::{Result, SeqNo};

use crate::gc::BY_KEY;
use crate::gc::valid_bits::ValidBits;
use crate::live_file::LiveFile;
use crate::lookup::Lookup;
use crate::options::LEVELS;
use crate::sabotage::{Defect, has};
use crate::sst::{TableReadOptions, lookup_references};
use crate::table_cache::TableCache;
use crate::value::KeyList;
use crate::value_ref::Reference;
use crate::version::Version;

/// Number of keys that are looked up in one batch.
const BATCH_KEYS: usize = if BY_KEY { 1 } else { 16 << 10 };

/// An input of a garbage collection job: a value file and its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupInput<'a> {
    /// Number of the value file.
    pub(crate) no: u64,
    /// All keys of the value file.
    pub(crate) keys: &'a KeyList,
}

/// A record whose validity is not known yet.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    input: usize,
    record: usize,
}

/// Bytes of memory that a look-up takes for each record of its inputs, for their common order.
pub(crate) const RECORD_BYTES: u64 = size_of::<Candidate>() as u64;

/// For each of `inputs`, the records that are valid in `version`.
pub(crate) fn valid_records(
    version: &Version,
    tables: &TableCache,
    inputs: &[LookupInput<'_>],
    options: &TableReadOptions,
) -> Result<Vec<ValidBits>> {
    let mut search = Search {
        version,
        tables,
        inputs,
        options,
        valid: inputs.iter().map(|input| ValidBits::none_of(input.keys.len())).collect(),
    };
    let candidates = in_key_order(inputs);
    for batch in candidates.chunks(BATCH_KEYS) {
        search.batch(batch)?;
    }
    Ok(search.valid)
}

/// Every record of the inputs, by user key.
fn in_key_order(inputs: &[LookupInput<'_>]) -> Vec<Candidate> {
    let of = |(input, at): (usize, &LookupInput<'_>)| {
        (0..at.keys.len()).map(move |record| Candidate { input, record })
    };
    let mut all: Vec<Candidate> = inputs.iter().enumerate().flat_map(of).collect();
    // A merge sort profits from inputs that are sorted.
    all.sort_by(|one, other| key_of(inputs, one).cmp(key_of(inputs, other)));
    all
}

fn key_of<'a>(inputs: &[LookupInput<'a>], at: &Candidate) -> &'a [u8] {
    inputs[at.input].keys.user_key(at.record)
}

struct Search<'a> {
    version: &'a Version,
    tables: &'a TableCache,
    inputs: &'a [LookupInput<'a>],
    options: &'a TableReadOptions,
    valid: Vec<ValidBits>,
}

/// The undecided keys of a batch, as indices into it, in key order.
type Undecided = Vec<usize>;

/// Consecutive undecided keys that the same tables may hold.
struct Group<'v> {
    /// The tables, newest first.
    tables: &'v [Arc<LiveFile>],
    /// Number of keys in the group.
    len: usize,
}

/// The first keys of `undecided` that lie in one bucket, and the L0 tables of the bucket.
fn l0_group<'v>(version: &'v Version, lookups: &[Lookup<'_>], undecided: &[usize]) -> Group<'v> {
    let bucket_of = |at: usize| version.map().bucket_of(lookups[at].key);
    let bucket = bucket_of(undecided[0]);
    let len = undecided.partition_point(|&at| bucket_of(at) == bucket);
    Group { tables: version.l0(bucket), len }
}

/// The first keys of `undecided` that lie in one table of `level`, or between two tables.
fn level_group<'v>(
    version: &'v Version,
    level: usize,
    lookups: &[Lookup<'_>],
    undecided: &[usize],
) -> Group<'v> {
    let file = version.file_for(level, lookups[undecided[0]].key);
    let is_there = |at: &usize| match file {
        Some(file) => !file.ends_before(lookups[*at].key),
        None => version.file_for(level, lookups[*at].key).is_none(),
    };
    let len = 1 + undecided[1..].iter().take_while(|at| is_there(at)).count();
    Group { tables: file.map_or(&[], std::slice::from_ref), len }
}

impl Search<'_> {
    fn batch(&mut self, candidates: &[Candidate]) -> Result<()> {
        let inputs = self.inputs;
        let lookups: Vec<Lookup<'_>> = candidates
            .iter()
            .map(|at| Lookup::new(key_of(inputs, at), inputs[at.input].keys.seq(at.record)))
            .collect();
        let mut undecided: Undecided = (0..candidates.len()).collect();
        let version = self.version;
        self.search_groups(candidates, &lookups, &mut undecided, |keys| {
            l0_group(version, &lookups, keys)
        })?;
        for level in 1..LEVELS {
            if undecided.is_empty() {
                break;
            }
            self.search_groups(candidates, &lookups, &mut undecided, |keys| {
                level_group(version, level, &lookups, keys)
            })?;
        }
        // A key in no table was deleted, and its tombstone was dropped too. Its record is not
        // valid.
        Ok(())
    }

    /// Searches the undecided keys group by group. `group_of` returns the first group of the given
    /// keys.
    fn search_groups<'v>(
        &mut self,
        candidates: &[Candidate],
        lookups: &[Lookup<'_>],
        undecided: &mut Undecided,
        group_of: impl Fn(&[usize]) -> Group<'v>,
    ) -> Result<()> {
        let mut rest = Undecided::new();
        let mut from = 0;
        while from < undecided.len() {
            let Group { tables, len } = group_of(&undecided[from..]);
            let mut group = undecided[from..from + len].to_vec();
            for file in tables {
                self.search_file(file, candidates, lookups, &mut group)?;
            }
            rest.append(&mut group);
            from += len;
        }
        *undecided = rest;
        Ok(())
    }

    /// For each input, whether the table references a value in it.
    fn named_inputs(&self, file: &LiveFile) -> Vec<bool> {
        let values = self.version.values();
        let mut current: Vec<u64> =
            file.refs.by_file().iter().map(|at| values.current(at.no)).collect();
        current.sort_unstable();
        let is_named = |input: &LookupInput<'_>| current.binary_search(&input.no).is_ok();
        let all = has(Defect::ValidityByKeyAlone);
        self.inputs.iter().map(|input| all || is_named(input)).collect()
    }

    /// Looks the keys of `group` up in one table, and removes the decided ones from the group.
    fn search_file(
        &mut self,
        file: &Arc<LiveFile>,
        candidates: &[Candidate],
        lookups: &[Lookup<'_>],
        group: &mut Undecided,
    ) -> Result<()> {
        let named = self.named_inputs(file);
        let may_hold = |at: &usize| named[candidates[*at].input] && file.contains(lookups[*at].key);
        if !group.iter().any(may_hold) {
            return Ok(());
        }
        let table = self.tables.load(file)?;
        let wanted: Undecided = group.iter().copied().filter(may_hold).collect();
        let batch: Vec<Lookup<'_>> = wanted.iter().map(|&at| lookups[at]).collect();
        let mut decided = vec![false; wanted.len()];
        let (version, inputs, valid) = (self.version, self.inputs, &mut self.valid);
        lookup_references(&table, &batch, self.options, &mut |position, seq, reference| {
            decided[position] = true;
            let at = candidates[wanted[position]];
            if is_valid(version, inputs[at.input].no, &batch[position], seq, reference) {
                valid[at.input].set(at.record);
            }
        })?;
        let mut decided = wanted.iter().zip(decided).filter(|(_, is)| *is).map(|(&at, _)| at);
        let mut next = decided.next();
        group.retain(|&at| {
            let is_decided = next == Some(at);
            if is_decided {
                next = decided.next();
            }
            !is_decided
        });
        Ok(())
    }
}

/// Whether the record found at sequence number `seq` makes the record of value file `no` valid. It
/// is the newest one that the look-up sees, and has no reference if its kind is not `Indirect`.
fn is_valid(
    version: &Version,
    no: u64,
    lookup: &Lookup<'_>,
    seq: SeqNo,
    reference: Option<&Reference>,
) -> bool {
    let is_of_file =
        |named| version.values().current(named) == no || has(Defect::ValidityByKeyAlone);
    seq == lookup.snapshot && reference.is_some_and(|at| is_of_file(at.file_no.0))
}
