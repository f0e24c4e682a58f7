//! Extensions that users add to a column family by name: merge operators and compaction filters.
//!
//! A job that runs in another process must find the same code there. Therefore the spec of a job
//! carries the name, and the executor looks it up in its own [`Registry`].
//!
//! An extension should not panic. If it does, the read or the job that called it fails with an
//! error of kind `Internal`. The error names the extension and its column family. A failed job is
//! counted, shown in the database's health and planned again after a pause ([`crate::border`]). A
//! program that is built with `panic = "abort"` ends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use archipelago_base::{Error, Result};

use crate::border::Border;

/// Combines merge operands with a base value. Must be associative over operands, deterministic,
/// and the same in every process that opens the database.
pub trait MergeOperator: Send + Sync + 'static {
    /// The name that column families are stored with.
    fn name(&self) -> &str;
    /// The value of `key` after applying `operands` (oldest first) to `base` (`None`: no value).
    /// An error is returned to the reader, or stops the compaction with the operands kept.
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>>;
    /// Combines two or more operands (oldest first) into one. Returns `None` if they cannot be
    /// combined without the base, which is always a correct answer.
    fn partial_merge(&self, _key: &[u8], _operands: &[&[u8]]) -> Option<Vec<u8>> {
        None
    }
}

/// What a compaction filter decides about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterDecision {
    /// The record stays as it is.
    Keep,
    /// Remove the record; older versions of the key stay hidden.
    Remove,
    /// Replace the value with these bytes. The record keeps its sequence number and its expiry.
    Change(Vec<u8>),
}

/// Decides which values flushes and compactions keep.
///
/// A job shows the filter the newest record of each key among the job's own inputs, if that record
/// is a value that has not expired. It does not show deletes, merge operands, or values that the
/// job itself has just folded from operands; a later job shows those. A filter must be prepared for
/// three things:
/// - It may see a record several times, or never (a table that moves down without being rewritten
///   is not read).
/// - It may see a value that a newer record above the inputs has replaced.
/// - Several threads may call it at the same time.
///
/// Reads that come later do not see what a filter removed or changed. Two reads without a snapshot
/// may differ although nobody has written between them. Reads at one
/// [`Snapshot`](crate::db::Snapshot), and moves of one iterator, repeat: both hold the memtables
/// and tables of their moment. So live snapshots do not stop a filter. They keep the memory and
/// disk space of what it removes, until they are dropped.
pub trait CompactionFilter: Send + Sync + 'static {
    /// The name that column families are stored with.
    fn name(&self) -> &str;
    /// Whether decisions depend on values. Default: true. If it returns false, the filter gets an
    /// empty value for every record, and a job reads no separated value for it. The engine asks
    /// once per job.
    fn wants_value(&self) -> bool {
        true
    }
    /// Decides about the record of `key`. `value` is the user's value, or empty if the filter does
    /// not want values. `expires_at_ms` is the expiry, if the record has one. `now_ms` is the time
    /// at which the job started (Unix milliseconds).
    fn filter(
        &self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
        now_ms: u64,
    ) -> FilterDecision;
}

/// The merge operator of a column family, behind a border that catches its panics.
pub struct FamilyMerge {
    operator: Arc<dyn MergeOperator>,
    border: Border,
}

impl FamilyMerge {
    /// The operator of the column family `family`.
    #[must_use]
    pub fn new(operator: Arc<dyn MergeOperator>, family: &str) -> Self {
        let border = Border::new("merge operator", operator.name(), Some(family));
        Self { operator, border }
    }

    /// Calls [`MergeOperator::full_merge`]. The inner error is the operator's own; the outer error
    /// says that the operator panicked.
    pub fn full_merge(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Result<Vec<u8>>> {
        self.border.call(|| self.operator.full_merge(key, base, operands))
    }

    /// Calls [`MergeOperator::partial_merge`]; an error if the operator panicked.
    pub fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Result<Option<Vec<u8>>> {
        self.border.call(|| self.operator.partial_merge(key, operands))
    }
}

/// The compaction filter of a column family, behind a border that catches its panics.
pub struct FamilyFilter {
    filter: Arc<dyn CompactionFilter>,
    border: Border,
    wants_value: bool,
}

impl FamilyFilter {
    /// The filter of the column family `family`.
    #[must_use]
    pub fn new(filter: Arc<dyn CompactionFilter>, family: &str) -> Self {
        let border = Border::new("compaction filter", filter.name(), Some(family));
        let wants_value = filter.wants_value();
        Self { filter, border, wants_value }
    }

    /// Name of the filter, from [`CompactionFilter::name`].
    #[must_use]
    pub fn name(&self) -> &str {
        self.filter.name()
    }

    /// The answer of [`CompactionFilter::wants_value`].
    #[must_use]
    pub fn wants_value(&self) -> bool {
        self.wants_value
    }

    /// Calls [`CompactionFilter::filter`]; an error if the filter panicked.
    pub fn filter(
        &self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
        now_ms: u64,
    ) -> Result<FilterDecision> {
        self.border.call(|| self.filter.filter(key, value, expires_at_ms, now_ms))
    }
}

/// The extensions that a process knows, by name.
#[derive(Clone)]
pub struct Registry {
    merge_operators: BTreeMap<String, Arc<dyn MergeOperator>>,
    compaction_filters: BTreeMap<String, Arc<dyn CompactionFilter>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("merge_operators", &self.merge_operators.keys())
            .field("compaction_filters", &self.compaction_filters.keys())
            .finish()
    }
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry =
            Self { merge_operators: BTreeMap::new(), compaction_filters: BTreeMap::new() };
        registry.add_merge_operator(Arc::new(CounterMerge));
        registry.add_merge_operator(Arc::new(AppendMerge));
        registry.add_compaction_filter(Arc::new(TtlFilter));
        registry
    }
}

impl Registry {
    /// Adds (or replaces) a merge operator under its name.
    pub fn add_merge_operator(&mut self, operator: Arc<dyn MergeOperator>) {
        self.merge_operators.insert(operator.name().to_owned(), operator);
    }

    /// Adds (or replaces) a compaction filter under its name.
    pub fn add_compaction_filter(&mut self, filter: Arc<dyn CompactionFilter>) {
        self.compaction_filters.insert(filter.name().to_owned(), filter);
    }

    /// The names of all merge operators and filters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.merge_operators.keys().chain(self.compaction_filters.keys()).map(String::as_str)
    }

    /// The merge operator of that name. `InvalidArgument` if none is registered.
    pub fn merge_operator(&self, name: &str) -> Result<Arc<dyn MergeOperator>> {
        self.merge_operators
            .get(name)
            .cloned()
            .ok_or_else(|| unknown("merge operator", name, self.merge_operators.keys()))
    }

    /// The compaction filter of that name. `InvalidArgument` if none is registered.
    pub fn compaction_filter(&self, name: &str) -> Result<Arc<dyn CompactionFilter>> {
        self.compaction_filters
            .get(name)
            .cloned()
            .ok_or_else(|| unknown("compaction filter", name, self.compaction_filters.keys()))
    }
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> Error {
    let known: Vec<&str> = known.map(String::as_str).collect();
    Error::invalid(format!(
        "no {what} named \"{name}\" is registered in this process (there are: {}); register it \
         before the database is opened",
        known.join(", ")
    ))
}

/// Adds u64 operands to a u64 value; the sum wraps around. Both are 8 bytes, little-endian. A
/// missing value counts as 0. Name: `u64-counter`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterMerge;

impl CounterMerge {
    fn number(key: &[u8], what: &str, bytes: &[u8]) -> Result<u64> {
        bytes.try_into().map(u64::from_le_bytes).map_err(|_| {
            Error::invalid(format!(
                "u64-counter: the {what} of key \"{}\" has {} bytes instead of 8",
                key.escape_ascii(),
                bytes.len()
            ))
        })
    }
}

impl MergeOperator for CounterMerge {
    fn name(&self) -> &str {
        "u64-counter"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
        let mut sum = base.map_or(Ok(0), |base| Self::number(key, "value", base))?;
        for operand in operands {
            sum = sum.wrapping_add(Self::number(key, "operand", operand)?);
        }
        Ok(sum.to_le_bytes().to_vec())
    }

    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.full_merge(key, None, operands).ok()
    }
}

/// Appends the operands' bytes to the value. Name: `append`.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppendMerge;

impl MergeOperator for AppendMerge {
    fn name(&self) -> &str {
        "append"
    }

    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
        let mut value = base.unwrap_or_default().to_vec();
        operands.iter().for_each(|operand| value.extend_from_slice(operand));
        Ok(value)
    }

    fn partial_merge(&self, _key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        Some(operands.concat())
    }
}

/// Removes expired records. Name: `ttl`.
///
/// No family needs this filter: reads do not see an expired record, and every compaction of any
/// family treats one as a delete before it asks a filter. Background work gives the space back in
/// all levels, with or without the filter: tables that have expired altogether are removed without
/// being read, others are rewritten when a part of them has expired
/// ([`crate::compaction::pick::reclaim`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct TtlFilter;

impl CompactionFilter for TtlFilter {
    fn name(&self) -> &str {
        "ttl"
    }

    fn wants_value(&self) -> bool {
        false
    }

    fn filter(
        &self,
        _key: &[u8],
        _value: &[u8],
        expires_at_ms: Option<u64>,
        now_ms: u64,
    ) -> FilterDecision {
        match expires_at_ms {
            Some(expiry) if expiry <= now_ms => FilterDecision::Remove,
            _ => FilterDecision::Keep,
        }
    }
}
