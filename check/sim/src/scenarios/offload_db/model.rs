//! The expected state of the database: the writes in their order, and the states that they make.
//!
//! One user writes, one write after another, so the state is that after a prefix of the writes.

use std::collections::BTreeMap;

use archipelago_base::CfId;
use archipelago_base::random::Rng;
use archipelago_engine::wal::WriteBatch;

/// Number of keys with values.
pub(super) const KEYS: u32 = 40;
/// Number of keys with counters.
pub(super) const COUNTERS: u32 = 6;

/// All keys with their values.
pub(super) type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// A change of one key or of a range of keys.
#[derive(Clone, Debug)]
enum Change {
    Put { key: u32, len: usize },
    Delete { key: u32 },
    Add { counter: u32, count: u64 },
    DeleteRange { first: u32, end: u32 },
}

/// One write of the user: an atomic batch.
#[derive(Clone, Debug)]
pub(super) struct Write {
    /// Number of the write, which its values contain.
    number: u64,
    changes: Vec<Change>,
    /// Whether the write survives a loss of power once it is acknowledged.
    pub(super) is_synced: bool,
}

/// The key with that number, which has values.
pub(super) fn key_of(key: u32) -> Vec<u8> {
    format!("key{key:03}").into_bytes()
}

/// The key of a counter.
pub(super) fn counter_of(counter: u32) -> Vec<u8> {
    format!("count{counter:03}").into_bytes()
}

/// The value of a write. It compresses badly, so that memtables and files fill.
fn value_of(number: u64, key: u32, len: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(number << 8 | u64::from(key));
    (0..len).map(|_| rng.u8(..)).collect()
}

impl Write {
    /// Draws the write with that number.
    pub(super) fn draw(rng: &mut Rng, number: u64) -> Self {
        let is_synced = rng.u8(..12) == 0;
        if rng.u8(..24) == 0 {
            let first = rng.u32(..KEYS);
            let changes = vec![Change::DeleteRange { first, end: first + rng.u32(1..6) }];
            return Self { number, changes, is_synced };
        }
        let changes = (0..rng.usize(1..=6)).map(|_| match rng.u8(..12) {
            0 => Change::Delete { key: rng.u32(..KEYS) },
            1..=3 => Change::Add { counter: rng.u32(..COUNTERS), count: rng.u64(1..100) },
            _ => Change::Put { key: rng.u32(..KEYS), len: rng.usize(8..900) },
        });
        Self { number, changes: changes.collect(), is_synced }
    }

    /// The batch for the engine.
    pub(super) fn batch(&self, cf: CfId) -> WriteBatch {
        let mut batch = WriteBatch::new();
        for change in &self.changes {
            match *change {
                Change::Put { key, len } => {
                    batch.put_cf(cf, &key_of(key), &value_of(self.number, key, len));
                }
                Change::Delete { key } => batch.delete_cf(cf, &key_of(key)),
                Change::Add { counter, count } => {
                    batch.merge_cf(cf, &counter_of(counter), &count.to_le_bytes());
                }
                Change::DeleteRange { first, end } => {
                    batch.delete_range_cf(cf, &key_of(first), &key_of(end));
                }
            }
        }
        batch
    }

    /// Applies the write to a state.
    fn apply(&self, state: &mut State) {
        for change in &self.changes {
            match *change {
                Change::Put { key, len } => {
                    state.insert(key_of(key), value_of(self.number, key, len));
                }
                Change::Delete { key } => {
                    state.remove(&key_of(key));
                }
                Change::Add { counter, count } => {
                    let value = state.entry(counter_of(counter)).or_insert_with(|| vec![0; 8]);
                    let before = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    *value = (before + count).to_le_bytes().to_vec();
                }
                Change::DeleteRange { first, end } => {
                    let (first, end) = (key_of(first), key_of(end));
                    state.retain(|key, _| *key < first || *key >= end);
                }
            }
        }
    }
}

/// The writes that the database has, and the state that they make.
#[derive(Debug, Default)]
pub(super) struct History {
    writes: Vec<Write>,
    /// Number of first writes that survive a loss of power.
    synced: usize,
    state: State,
}

impl History {
    /// The state after all writes.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Notes a write that the database has acknowledged.
    pub(super) fn acknowledge(&mut self, write: Write) {
        write.apply(&mut self.state);
        let is_synced = write.is_synced;
        self.writes.push(write);
        if is_synced {
            self.synced = self.writes.len();
        }
    }

    /// Notes that everything is durable.
    pub(super) fn note_synced(&mut self) {
        self.synced = self.writes.len();
    }

    /// Takes the state that a new owner has found. `pending` is a write whose outcome is unknown.
    /// After a loss of power, writes that were not synced may be missing from the end. Errors: the
    /// state is none of those that the database may have.
    pub(super) fn find(
        &mut self,
        found: &State,
        pending: Option<Write>,
        lost_power: bool,
    ) -> Result<(), String> {
        let acknowledged = self.writes.len();
        let least = if lost_power { self.synced } else { acknowledged };
        self.writes.extend(pending);
        let mut state = State::new();
        let mut newest = (least == 0 && *found == state).then_some(0);
        for (index, write) in self.writes.iter().enumerate() {
            write.apply(&mut state);
            if index + 1 >= least && *found == state {
                newest = Some(index + 1);
            }
        }
        let Some(newest) = newest else {
            self.writes.truncate(acknowledged);
            let difference = differences(found, &self.state);
            return Err(format!(
                "the owner found a state that is after none of writes {least} to {}: {difference}",
                self.writes.len()
            ));
        };
        self.writes.truncate(newest);
        self.synced = self.synced.min(newest);
        self.state = found.clone();
        Ok(())
    }
}

/// The first keys with values that differ, and their number.
pub(super) fn differences(found: &State, expected: &State) -> String {
    let keys = expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key)));
    let differs = keys.filter(|key| found.get(*key) != expected.get(*key));
    let brief = |value: Option<&Vec<u8>>| match value {
        Some(value) => format!("{} bytes {:02x?}", value.len(), &value[..value.len().min(4)]),
        None => "nothing".to_owned(),
    };
    let texts: Vec<String> = differs
        .map(|key| {
            let (found, expected) = (brief(found.get(key)), brief(expected.get(key)));
            format!("{} has {found} instead of {expected}", key.escape_ascii())
        })
        .collect();
    let first = texts.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    format!("{} keys differ: {first}", texts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(count: u64) -> Vec<Write> {
        let mut rng = Rng::with_seed(7);
        (1..=count).map(|number| Write::draw(&mut rng, number)).collect()
    }

    fn history(writes: &[Write]) -> History {
        let mut history = History::default();
        writes.iter().cloned().for_each(|write| history.acknowledge(write));
        history
    }

    #[test]
    fn only_a_loss_of_power_takes_acknowledged_writes() {
        let all = writes(40);
        let early = history(&all[..30]).state().clone();
        let mut whole = history(&all);
        whole.synced = 20;
        assert!(whole.find(&early, None, false).is_err());
        whole.find(&early, None, true).expect("a prefix with all synced writes");
        assert_eq!((whole.writes.len(), whole.state()), (30, &early));
        whole.synced = 30;
        let earlier = history(&all[..29]).state().clone();
        assert!(whole.find(&earlier, None, true).is_err());
    }

    #[test]
    fn write_under_way_may_be_there_or_not() {
        let all = writes(12);
        for has_it in [false, true] {
            let found = history(&all[..11 + usize::from(has_it)]).state().clone();
            let mut before = history(&all[..11]);
            before.find(&found, Some(all[11].clone()), false).expect("one of two states");
            assert_eq!(before.state(), &found);
        }
    }
}
