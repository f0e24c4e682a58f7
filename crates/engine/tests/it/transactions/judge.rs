//! An independent judge: whether a history of transactions is strictly serialisable.
//!
//! It knows nothing of the engine. A transaction of a history is what a client called and was
//! answered, with the moments at which it began and ended. The judge looks for an order of all
//! committed transactions in which each of them, run alone on a sorted map, gets the very answers
//! that it got, and in which a transaction that ended before another began comes first.
//!
//! The search is exhaustive (Wing and Gong, with Lowe's memory of states that lead nowhere): it
//! goes on until it has found an order or has tried all of them.

use std::collections::{BTreeMap, HashSet};

pub(crate) type Key = u8;
pub(crate) type Value = u64;

/// A call of a client, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Get(Key, Option<Value>),
    /// The pairs from a key (inclusive) to a key (exclusive), in either direction.
    Scan(Key, Key, Vec<(Key, Value)>),
    Put(Key, Value),
    Delete(Key),
    DeleteRange(Key, Key),
}

/// A committed transaction.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) calls: Vec<Call>,
}

/// Committed transactions of each client, in its order.
pub(crate) type History = Vec<Vec<Committed>>;

type Map = BTreeMap<Key, Value>;

/// Runs a transaction alone. Returns the map afterwards, if all answers are those of the history.
fn replay(map: &Map, calls: &[Call]) -> Option<Map> {
    let mut map = map.clone();
    for call in calls {
        match call {
            Call::Get(key, answer) if map.get(key) != answer.as_ref() => return None,
            Call::Get(..) => {}
            Call::Scan(from, to, answer) => {
                let pairs = map.range(*from..*to).map(|(key, value)| (*key, *value));
                if !pairs.eq(answer.iter().copied()) {
                    return None;
                }
            }
            Call::Put(key, value) => {
                map.insert(*key, *value);
            }
            Call::Delete(key) => {
                map.remove(key);
            }
            Call::DeleteRange(from, to) => map.retain(|key, _| !(*from..*to).contains(key)),
        }
    }
    Some(map)
}

/// Whether the history could have been one transaction after another.
pub(crate) fn is_serializable(history: &History) -> bool {
    let total: usize = history.iter().map(Vec::len).sum();
    let start = (vec![0; history.len()], Map::new());
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some((done, map)) = open.pop() {
        if done.iter().sum::<usize>() == total {
            return true;
        }
        let next = |client: usize| history[client].get(done[client]);
        // A transaction can come next only if no remaining one ended before it began.
        let first_end = (0..history.len()).filter_map(|client| Some(next(client)?.ended)).min();
        for client in 0..history.len() {
            let Some(transaction) = next(client) else { continue };
            if first_end.is_some_and(|end| end < transaction.began) {
                continue;
            }
            if let Some(map) = replay(&map, &transaction.calls) {
                let mut done = done.clone();
                done[client] += 1;
                if seen.insert((done.clone(), map.clone())) {
                    open.push((done, map));
                }
            }
        }
    }
    false
}

fn at(began: u64, ended: u64, calls: &[Call]) -> Committed {
    Committed { began, ended, calls: calls.to_vec() }
}

#[test]
fn judge_accepts_what_some_order_explains() {
    let writes = at(1, 9, &[Call::Put(1, 10), Call::Put(2, 20)]);
    for reads in [(None, None), (Some(10), Some(20))] {
        let reader = at(2, 8, &[Call::Get(1, reads.0), Call::Get(2, reads.1)]);
        assert!(is_serializable(&vec![vec![writes.clone()], vec![reader]]));
    }
    let own = at(1, 2, &[Call::Put(1, 5), Call::Get(1, Some(5)), Call::Scan(0, 9, vec![(1, 5)])]);
    let gone = at(3, 4, &[Call::DeleteRange(0, 2), Call::Scan(0, 9, vec![])]);
    assert!(is_serializable(&vec![vec![own, gone]]));
    assert!(is_serializable(&Vec::new()));
}

#[test]
fn judge_refuses_a_torn_read() {
    let writes = at(1, 9, &[Call::Put(1, 10), Call::Put(2, 20)]);
    let reader = at(2, 8, &[Call::Get(1, Some(10)), Call::Get(2, None)]);
    assert!(!is_serializable(&vec![vec![writes], vec![reader]]));
}

#[test]
fn judge_refuses_a_lost_update() {
    let first = at(1, 5, &[Call::Get(1, None), Call::Put(1, 1)]);
    let second = at(2, 6, &[Call::Get(1, None), Call::Put(1, 2)]);
    assert!(!is_serializable(&vec![vec![first], vec![second]]));
}

#[test]
fn judge_refuses_write_skew_and_phantoms() {
    let skew =
        |mine: Key, other: Key, value| at(1, 9, &[Call::Get(other, None), Call::Put(mine, value)]);
    assert!(!is_serializable(&vec![vec![skew(1, 2, 10)], vec![skew(2, 1, 20)]]));
    let phantom = |mine: Key, value| at(1, 9, &[Call::Scan(0, 9, vec![]), Call::Put(mine, value)]);
    assert!(!is_serializable(&vec![vec![phantom(1, 10)], vec![phantom(2, 20)]]));
}

#[test]
fn judge_refuses_a_stale_read() {
    let write = at(1, 2, &[Call::Put(1, 1)]);
    let stale = at(3, 4, &[Call::Get(1, None)]);
    assert!(!is_serializable(&vec![vec![write.clone()], vec![stale]]));
    let concurrent = at(2, 4, &[Call::Get(1, None)]);
    assert!(is_serializable(&vec![vec![write], vec![concurrent]]));
}

#[test]
fn judge_refuses_a_long_fork() {
    let writes = [at(1, 9, &[Call::Put(1, 1)]), at(1, 9, &[Call::Put(2, 2)])];
    let left = at(1, 9, &[Call::Get(1, Some(1)), Call::Get(2, None)]);
    let right = at(1, 9, &[Call::Get(2, Some(2)), Call::Get(1, None)]);
    let history = writes.into_iter().chain([left, right]).map(|one| vec![one]).collect();
    assert!(!is_serializable(&history));
}
