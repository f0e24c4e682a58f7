//! The check after a kill: compares the database with the acknowledged operations.

use std::collections::BTreeMap;

use archipelago::{Db, ReadOptions, Result};

use crate::plan::{self, Contents, Model, Operation};
use crate::settings::{COUNTERS, family_name};

/// Everything that the database holds: the data by owning thread, and the shared counters.
pub(crate) struct Found {
    own: Vec<Contents>,
    shared: BTreeMap<Vec<u8>, u64>,
}

/// A result, or the violation as a sentence.
pub(crate) type Verdict<T> = std::result::Result<T, String>;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn scan(db: &Db, family: usize) -> Result<Verdict<Entries>> {
    let cf = db.family(family_name(family))?;
    let mut iter = db.iter(&cf, &ReadOptions::default())?;
    let mut forward = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        forward.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status()?;
    let mut left = forward.iter().rev();
    iter.seek_to_last();
    while iter.valid() {
        if left.next().is_none_or(|(key, value)| {
            (key, value.as_slice()) != (&iter.key().to_vec(), iter.value())
        }) {
            let key = iter.key().escape_ascii();
            return Ok(Err(format!(
                "family {}: backward, {key} is not what forward saw",
                cf.name()
            )));
        }
        iter.prev();
    }
    iter.status()?;
    if let Some((key, _)) = left.next() {
        let key = key.escape_ascii();
        return Ok(Err(format!("family {}: backward, {key} is missing", cf.name())));
    }
    for (key, value) in forward.iter().step_by(13) {
        if db.get_with(&cf, key, &ReadOptions::default())?.as_deref() != Some(value) {
            let key = key.escape_ascii();
            return Ok(Err(format!("family {}: get and iterator differ at {key}", cf.name())));
        }
    }
    Ok(Ok(forward))
}

/// Reads every key of the database.
pub(crate) fn read(db: &Db, threads: usize) -> Result<Verdict<Found>> {
    let mut found = Found { own: vec![Contents::new(); threads], shared: BTreeMap::new() };
    for family in 0..=COUNTERS {
        let entries = match scan(db, family)? {
            Ok(entries) => entries,
            Err(violation) => return Ok(Err(violation)),
        };
        for (key, value) in entries {
            match plan::owner(&key).and_then(|thread| found.own.get_mut(thread as usize)) {
                Some(own) => drop(own.insert((family, key), value)),
                None => drop(found.shared.insert(key, plan::number(&value))),
            }
        }
    }
    Ok(Ok(found))
}

/// The state of every thread after the operations that the last check has confirmed.
pub(crate) struct Progress {
    pub(crate) seed: u64,
    /// Number of operations of each thread that are carried out.
    pub(crate) done: Vec<u64>,
    pub(crate) models: Vec<Model>,
}

impl Progress {
    pub(crate) fn new(seed: u64, threads: u64) -> Self {
        let threads = threads as usize;
        Self { seed, done: vec![0; threads], models: vec![Model::default(); threads] }
    }

    /// Accepts the found state as the state after one more cycle, if it is allowed. The state of
    /// each thread must have all acknowledged operations. In addition, it may have the whole next
    /// operation.
    pub(crate) fn settle(&mut self, acknowledged: &[u64], found: &Found) -> Verdict<()> {
        for (thread, &acknowledged) in acknowledged.iter().enumerate() {
            while self.done[thread] < acknowledged {
                self.advance(thread);
            }
            if self.models[thread].own == found.own[thread] {
                continue;
            }
            let (model, operation) = (self.models[thread].clone(), self.advance(thread));
            if self.models[thread].own != found.own[thread] {
                return Err(explain(thread, acknowledged, &model, &operation, &found.own[thread]));
            }
        }
        let mut shared = BTreeMap::new();
        for (key, count) in self.models.iter().flat_map(|model| &model.shared) {
            *shared.entry(key.clone()).or_default() += count;
        }
        if shared != found.shared {
            return Err(format!(
                "the shared counters are {:?}, but what was added to them is {shared:?}: a merge was lost \
                 or applied twice",
                found.shared
            ));
        }
        Ok(())
    }

    /// Reads a database, compares it with the acknowledged operations, and verifies all files.
    /// Returns the found contents.
    pub(crate) fn compare(&mut self, db: &Db, acknowledged: &[u64]) -> Verdict<Found> {
        let found = read(db, acknowledged.len()).map_err(|error| error.to_string())??;
        self.settle(acknowledged, &found)?;
        let report = db.verify(|_, _| {}).map_err(|error| error.to_string())?;
        match report.errors.first() {
            Some(error) => Err(format!("verification: {error}")),
            None => Ok(found),
        }
    }

    fn advance(&mut self, thread: usize) -> Operation {
        let operation = plan::operation(self.seed, thread as u64, self.done[thread]);
        self.models[thread].apply(&operation);
        self.done[thread] += 1;
        operation
    }
}

fn explain(
    thread: usize,
    acknowledged: u64,
    model: &Model,
    under_way: &Operation,
    found: &Contents,
) -> String {
    let mut with = model.clone();
    with.apply(under_way);
    let show = |value: Option<&Vec<u8>>| match value {
        None => "nothing".to_owned(),
        Some(value) if value.len() == 8 => format!("counter {}", plan::number(value)),
        Some(value) => {
            format!("\"{}…\" of {} bytes", value[..value.len().min(14)].escape_ascii(), value.len())
        }
    };
    let mut text = format!(
        "thread {thread} had {acknowledged} operations acknowledged; the database holds neither what they \
         leave nor that with operation {acknowledged} on top:\n"
    );
    let keys: std::collections::BTreeSet<_> =
        with.own.keys().chain(model.own.keys()).chain(found.keys()).collect();
    let (mut half, mut wrong) = (0, 0);
    for key in keys {
        let (got, before, after) = (found.get(key), model.own.get(key), with.own.get(key));
        if got == before && got == after {
            continue;
        }
        let allowed = got == before || got == after;
        *(if allowed { &mut half } else { &mut wrong }) += 1;
        if half + wrong <= 12 {
            text.push_str(&format!(
                "  {}/{}: {}; without the last operation {}, with it {}\n",
                family_name(key.0),
                key.1.escape_ascii(),
                show(got),
                show(before),
                show(after)
            ));
        }
    }
    text.push_str(&match wrong {
        0 => format!("  {half} keys: the last operation is half present"),
        _ => format!("  {wrong} keys: lost, stale or foreign data"),
    });
    text
}
