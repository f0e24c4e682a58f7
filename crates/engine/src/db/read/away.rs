//! Look-ups of keys in memtable shards that are at memory nodes (O³-LSM §4.5).
//!
//! A search of the memtables that comes to an away shard collects a [`Run`]. The run has that shard
//! and the away shards of older memtables that follow it directly and lie at the same node. Shards
//! whose filter excludes the key are left out. The search gathers the range tombstones of all
//! shards of the run before it asks the node. This is correct: a tombstone hides only records with
//! smaller sequence numbers, and a tombstone of an older memtable has a smaller number than any
//! record of a newer memtable. The node answers for the whole run with the versions of the key,
//! newest first, and they go through the same visitor as versions from memory. A batch read asks
//! for the runs of all its keys together.
//!
//! If a node does not answer, the search asks it once more, in the time that is left: all steps of
//! a read share one [`ReadDeadline`]. If a shard of a run is lost or has got its copy
//! ([`crate::db::state::away`]), the search asks the shards one after another. It waits for a lost
//! shard while that is rebuilt. The answer to a question about several shards does not
//! say which of them the node lacks. The node may also lack a shard that was released meanwhile,
//! which is not lost. So a shard counts as lost only after a question about it alone.
//!
//! Invariants:
//! 1. A shard that could not be asked ends the read with an error. It never counts as empty.
//! 2. The versions of a run come newest first and end with the first version that is no merge
//!    operand.
//!
//! Thread-safety: no locks are held while a node is asked.
//! Failure: `Busy` if the shards cannot be read before the deadline of the read, or if the read has
//! `cache_only`.
//! Cost: one request for each run, or for all runs of a batch at one node.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::{Error, Result, SeqNo};

use crate::db::read::options::ReadOptions;
use crate::db::state::away::{AwayShard, ReadDeadline, ShardCopy, StoreLink};
use crate::db::state::family::SuperVersion;
use crate::db::state::memtable::ShardHome;
use crate::key::Kind;
use crate::lookup::{Found, Lookup, Pinner};
use crate::pinned::PinnedSlice;
use crate::remote::{AwayError, KeyAsk, LookupAnswer, LookupAsk, ShardVersion, StoreNode};
use crate::stats::Ticker;

/// Number of unanswered questions about the same shards after which a read fails.
const SILENCES_MAX: u32 = 2;

/// Neighbouring away shards at one node that may have a key, newest first.
pub(crate) type Run<'a> = Vec<&'a Arc<AwayShard>>;

/// A look-up of one key in a run.
pub(crate) struct RunAsk<'a> {
    pub(crate) lookup: Lookup<'a>,
    /// Newest range tombstone over the key so far; 0 without one.
    pub(crate) floor: SeqNo,
    pub(crate) run: Run<'a>,
}

/// Collects a run from the memtables of `current` from position `at` on, and moves `at` past them.
/// `cover` gets the newest tombstone of each shard over the key. The run is empty if no filter
/// passes the key, or if a shard in memory comes first. Then `at` is the position of that shard.
#[cold]
pub(crate) fn next_run<'a>(
    current: &'a SuperVersion,
    lookup: &Lookup<'_>,
    at: &mut usize,
    mut cover: impl FnMut(Option<SeqNo>),
) -> Run<'a> {
    let mut run = Run::new();
    while let Some(sealed) = current.immutables.get(*at) {
        let away = match sealed.home_of(lookup.key) {
            None => {
                *at += 1;
                continue;
            }
            Some(ShardHome::Away(away)) if !away.has_copy() => away,
            Some(_) => break,
        };
        let may_contain = away.may_contain(lookup.hash);
        if may_contain && run.first().is_some_and(|first| first.node() != away.node()) {
            break;
        }
        cover(away.tombstones().max_covering(lookup.key, lookup.snapshot));
        if may_contain {
            run.push(away);
        }
        *at += 1;
    }
    run
}

/// The versions of each key in its run, newest first.
pub(crate) fn ask_runs(
    asks: &[RunAsk<'_>],
    options: &ReadOptions,
    deadline: &ReadDeadline,
) -> Result<Vec<Vec<ShardVersion>>> {
    let Some(first) = asks.iter().find_map(|ask| ask.run.first()) else {
        return Ok(asks.iter().map(|_| Vec::new()).collect());
    };
    if options.cache_only {
        return Err(Error::busy(format!(
            "memtable shard {} is at a memory node: would need its answer",
            first.id()
        )));
    }
    let link = first.link();
    let mut answers: Vec<RunAnswer> = asks.iter().map(|_| RunAnswer::None(None)).collect();
    for _ in 0..SILENCES_MAX {
        let is_open = |at: &usize| matches!(answers[*at], RunAnswer::None(_));
        let open: Vec<usize> =
            (0..asks.len()).filter(is_open).filter(|at| asks[*at].is_askable()).collect();
        if open.is_empty() || link.left(deadline).is_none() {
            break;
        }
        let batch = Batch { asks, keys_only: options.keys_only, deadline };
        ask_nodes(link, &batch, &open, &mut answers)?;
    }
    let mut all = Vec::with_capacity(asks.len());
    for (answer, ask) in answers.into_iter().zip(asks) {
        let versions = match (answer, ask.run.first()) {
            (RunAnswer::Found(versions), _) => versions,
            (RunAnswer::None(Some(silence)), Some(first)) if ask.is_askable() => {
                return Err(first.not_now(silence));
            }
            (RunAnswer::None(_), _) => ask_one_by_one(ask, options.keys_only, deadline)?,
        };
        if versions.is_empty() && !ask.run.is_empty() {
            link.stats().add(Ticker::AwayLookupsEmpty, 1);
        }
        all.push(versions);
    }
    Ok(all)
}

impl RunAsk<'_> {
    /// Whether the node can be asked for the whole run.
    fn is_askable(&self) -> bool {
        let is_apart = |shard: &&Arc<AwayShard>| !shard.is_lost() && !shard.has_copy();
        !self.run.is_empty() && self.run.iter().all(is_apart)
    }
}

/// Answer for a run.
enum RunAnswer {
    Found(Vec<ShardVersion>),
    /// The node gave no versions. It has the reason, unless the node was not asked or a shard is
    /// lost.
    None(Option<AwayError>),
}

/// Look-ups that are asked for together.
struct Batch<'a> {
    asks: &'a [RunAsk<'a>],
    keys_only: bool,
    deadline: &'a ReadDeadline,
}

/// Asks each node once for the runs at the positions `open`.
fn ask_nodes(
    link: &StoreLink,
    batch: &Batch<'_>,
    open: &[usize],
    answers: &mut [RunAnswer],
) -> Result<()> {
    let Batch { asks, keys_only, deadline } = *batch;
    let time_left = link.left(deadline).unwrap_or_default();
    let mut by_node: BTreeMap<StoreNode, Vec<usize>> = BTreeMap::new();
    for &at in open {
        if let Some(first) = asks[at].run.first() {
            by_node.entry(first.node()).or_default().push(at);
        }
    }
    let questions: Vec<LookupAsk<'_>> = by_node
        .iter()
        .map(|(node, keys)| {
            let question = question(*node, keys.iter().map(|&at| &asks[at]), keys_only);
            LookupAsk { time_left, ..question }
        })
        .collect();
    link.stats().add(Ticker::AwayLookups, open.len() as u64);
    let given = link.store().lookup(&questions);
    if given.len() != questions.len() {
        return Err(broken_contract("it did not answer every question"));
    }
    for ((keys, question), given) in by_node.values().zip(&questions).zip(given) {
        match given {
            Ok(answer) => {
                for (&at, versions) in keys.iter().zip(checked(answer, question)?) {
                    answers[at] = RunAnswer::Found(versions);
                }
            }
            Err(error) => {
                let is_lost = matches!(error, AwayError::Lost(_));
                if is_lost {
                    find_lost(link, keys.iter().map(|&at| &asks[at]), &error, deadline);
                }
                let silence = (!is_lost).then_some(error);
                keys.iter().for_each(|&at| answers[at] = RunAnswer::None(silence.clone()));
            }
        }
    }
    Ok(())
}

/// One question for all keys whose runs are at `node`. The caller sets its time.
fn question<'a>(
    node: StoreNode,
    asks: impl Iterator<Item = &'a RunAsk<'a>>,
    keys_only: bool,
) -> LookupAsk<'a> {
    let mut question = LookupAsk {
        node,
        shards: Vec::new(),
        keys: Vec::new(),
        snapshot: SeqNo::ZERO,
        keys_only,
        time_left: Duration::ZERO,
    };
    for ask in asks {
        let within = ask.run.iter().map(|shard| {
            let known = question.shards.iter().position(|id| *id == shard.id());
            let at = known.unwrap_or_else(|| {
                question.shards.push(shard.id());
                question.shards.len() - 1
            });
            at as u32
        });
        let within = within.collect();
        question.snapshot = ask.lookup.snapshot;
        question.keys.push(KeyAsk { key: ask.lookup.key, floor: ask.floor, within });
    }
    question
}

/// The versions of an answer, after a check that the answer fits the question.
fn checked(answer: LookupAnswer, question: &LookupAsk<'_>) -> Result<Vec<Vec<ShardVersion>>> {
    if answer.keys.len() != question.keys.len() {
        return Err(broken_contract("it did not answer for every key"));
    }
    let mut all = Vec::with_capacity(answer.keys.len());
    for found in answer.keys {
        let versions = found.versions;
        let is_visible = |version: &ShardVersion| version.seq <= question.snapshot;
        let descend = versions.windows(2).all(|pair| pair[0].seq > pair[1].seq);
        if !descend || !versions.iter().all(is_visible) {
            return Err(broken_contract("its versions are not in order"));
        }
        all.push(versions);
    }
    Ok(all)
}

#[cold]
fn broken_contract(what: &str) -> Error {
    Error::internal(format!("the store of memtable shards broke its contract: {what}"))
}

/// Notes a lost shard after a question about it alone.
fn note_failure(shard: &AwayShard, error: &AwayError) {
    if let AwayError::Lost(why) = error {
        shard.note_lost(why);
    }
}

/// Notes which shards of `asks` are lost, after a question about all of them ended with `error`.
/// Asks for each shard alone.
#[cold]
fn find_lost<'a>(
    link: &StoreLink,
    asks: impl Iterator<Item = &'a RunAsk<'a>>,
    error: &AwayError,
    deadline: &ReadDeadline,
) {
    let mut alone: Vec<RunAsk<'_>> = Vec::new();
    for ask in asks {
        for shard in &ask.run {
            if !alone.iter().any(|known| known.run[0].id() == shard.id()) {
                alone.push(RunAsk { lookup: ask.lookup, floor: ask.floor, run: vec![shard] });
            }
        }
    }
    if let [only] = alone.as_slice() {
        return note_failure(only.run[0], error);
    }
    alone.retain(RunAsk::is_askable);
    let Some(time_left) = link.left(deadline) else { return };
    let questions: Vec<LookupAsk<'_>> =
        alone.iter().map(|ask| LookupAsk { time_left, ..question_alone(ask, true) }).collect();
    link.stats().add(Ticker::AwayLookups, questions.len() as u64);
    for (ask, given) in alone.iter().zip(link.store().lookup(&questions)) {
        if let Err(error) = given {
            note_failure(ask.run[0], &error);
        }
    }
}

/// The question for the first shard of a run alone. The caller sets its time.
fn question_alone<'a>(ask: &'a RunAsk<'a>, keys_only: bool) -> LookupAsk<'a> {
    question(ask.run[0].node(), std::iter::once(ask), keys_only)
}

/// Asks the shards of a run one after another, because some of them have a copy or are lost.
fn ask_one_by_one(
    ask: &RunAsk<'_>,
    keys_only: bool,
    deadline: &ReadDeadline,
) -> Result<Vec<ShardVersion>> {
    let mut versions = Vec::new();
    for shard in &ask.run {
        versions.extend(versions_of(shard, ask, keys_only, deadline)?);
        if versions.last().is_some_and(|version: &ShardVersion| version.kind != Kind::Merge) {
            break;
        }
    }
    Ok(versions)
}

/// The versions of a key in one shard, from its copy if it has one.
fn versions_of(
    shard: &Arc<AwayShard>,
    ask: &RunAsk<'_>,
    keys_only: bool,
    deadline: &ReadDeadline,
) -> Result<Vec<ShardVersion>> {
    let mut silences = 0;
    loop {
        if let Some(copy) = shard.copy()? {
            return copied_versions(copy, &ask.lookup);
        }
        if shard.is_lost() {
            shard.wait_for_copy(deadline)?;
            continue;
        }
        let time_left = shard.link().left(deadline).ok_or_else(|| shard.too_late())?;
        let alone = RunAsk { lookup: ask.lookup, floor: ask.floor, run: vec![shard] };
        let questions = [LookupAsk { time_left, ..question_alone(&alone, keys_only) }];
        shard.link().stats().add(Ticker::AwayLookups, 1);
        match shard.link().store().lookup(&questions).pop() {
            Some(Ok(answer)) => {
                return Ok(checked(answer, &questions[0])?.pop().unwrap_or_default());
            }
            Some(Err(error)) => {
                silences += 1;
                note_failure(shard, &error);
                let is_over = silences >= SILENCES_MAX || shard.link().left(deadline).is_none();
                if is_over && !shard.is_lost() && !shard.has_copy() {
                    return Err(shard.not_now(error));
                }
            }
            None => return Err(broken_contract("it did not answer a question")),
        }
    }
}

/// The versions of a key in a copy.
fn copied_versions(copy: &ShardCopy, lookup: &Lookup<'_>) -> Result<Vec<ShardVersion>> {
    let mut versions = Vec::new();
    copy.lookup(lookup, |found| {
        versions.push(ShardVersion { seq: found.seq, kind: found.kind, value: found.pin() });
        match found.kind {
            Kind::Merge => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })?;
    Ok(versions)
}

/// Passes the versions that a node gave to `visit`, until `visit` breaks.
pub(crate) fn visit_versions(
    versions: &[ShardVersion],
    mut visit: impl FnMut(&Found<'_>) -> ControlFlow<()>,
) {
    for ShardVersion { seq, kind, value } in versions {
        let pinner = SharedValue(value);
        let found = Found { seq: *seq, kind: *kind, value, pinner: Some(&pinner) };
        if visit(&found).is_break() {
            return;
        }
    }
}

/// Pins a part of a value that is shared already.
struct SharedValue<'a>(&'a PinnedSlice);

impl Pinner for SharedValue<'_> {
    fn pin(&self, value: &[u8]) -> PinnedSlice {
        let skipped = self.0.len().checked_sub(value.len());
        let tail = skipped.and_then(|skipped| self.0.clone().skip(skipped));
        tail.filter(|tail| tail.as_ref() == value)
            .unwrap_or_else(|| PinnedSlice::owned(value.to_vec()))
    }
}

/// The newest version of a key in one shard.
pub(crate) fn newest_version(
    shard: &Arc<AwayShard>,
    lookup: &Lookup<'_>,
    deadline: &ReadDeadline,
) -> Result<Option<ShardVersion>> {
    if !shard.may_contain(lookup.hash) {
        return Ok(None);
    }
    let ask = RunAsk { lookup: *lookup, floor: SeqNo::ZERO, run: vec![shard] };
    Ok(versions_of(shard, &ask, true, deadline)?.into_iter().next())
}
