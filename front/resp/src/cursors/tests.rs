use std::collections::BTreeSet;
use std::ops::Bound;

use super::*;
use crate::prefixes::MemoryPrefixes;

type Keys = BTreeSet<Vec<u8>>;

/// One step over `keys` from `cursor` on: the keys that it returns, and the next cursor.
fn step(keys: &Keys, prefixes: &dyn PrefixTable, cursor: u64, count: usize) -> (Vec<Vec<u8>>, u64) {
    let from = match cursor {
        0 => Vec::new(),
        _ => {
            let position = Position::decode(cursor).expect("a cursor that a step gave");
            assert_eq!(position.encode(), cursor);
            position.key(prefixes).unwrap().expect("a kept prefix")
        }
    };
    let (mut returned, mut end) = (Vec::new(), StepEnd::new(prefixes));
    for key in keys.range((Bound::Included(from), Bound::Unbounded)) {
        if returned.len() >= count {
            let (kept, position) = match end.before(key, returned.len()).unwrap() {
                Next::Take => {
                    end.take(key);
                    returned.push(key.clone());
                    continue;
                }
                Next::EndHere(position) => (returned.len(), position),
                Next::EndAt(kept, position) => (kept, position),
            };
            returned.truncate(kept);
            let next = position.encode();
            assert!(next > 0 && next < 1 << 53, "exact in a double");
            return (returned, next);
        }
        end.take(key);
        returned.push(key.clone());
    }
    match end.without_next() {
        Some((kept, position)) => {
            returned.truncate(kept);
            (returned, position.encode())
        }
        None => (returned, 0),
    }
}

/// All keys that an iteration returns, in its order. `between` runs after each step.
fn iterate(
    keys: &mut Keys,
    prefixes: &dyn PrefixTable,
    count: usize,
    mut between: impl FnMut(&mut Keys),
) -> Vec<Vec<u8>> {
    let (mut all, mut cursor) = (Vec::new(), 0);
    loop {
        let (returned, next) = step(keys, prefixes, cursor, count);
        assert!(!returned.is_empty() || next == 0, "a step that gets nowhere");
        all.extend(returned);
        if next == 0 {
            return all;
        }
        cursor = next;
        between(keys);
    }
}

/// Sets of keys, each of which is hard for another reason.
fn hard_sets() -> Vec<(&'static str, Keys)> {
    let mut random = fastrand::Rng::with_seed(7);
    let numbered = |format: fn(u32) -> String, most| (0..most).map(format).map(String::into_bytes);
    let long = |tail: &[u8]| [&vec![b'p'; 60_000][..], tail].concat();
    let any = (0..3000).map(|_| {
        let len = random.usize(..12);
        (0..len).map(|_| [0, 0, 1, b'a', 255][random.usize(..5)]).collect()
    });
    vec![
        ("any bytes", any.collect()),
        ("counters", numbered(|n| format!("key:{n}"), 3000).collect()),
        ("padded counters", numbered(|n| format!("session:{n:012}"), 3000).collect()),
        ("tenants", numbered(|n| format!("tenant:{:02}:user:{:06}", n % 50, n), 3000).collect()),
        ("zeros", (0..300).map(|len| vec![0; len]).collect()),
        ("each a prefix of the next", (0..1500).map(|len| vec![b'a'; len]).collect()),
        ("long", (0..200u32).map(|n| long(&n.to_be_bytes())).collect()),
        ("one", [b"k".to_vec()].into_iter().collect()),
        ("none", Keys::new()),
    ]
}

#[test]
fn iteration_returns_every_key_once_in_order() {
    for (name, mut keys) in hard_sets() {
        for count in [1, 10, 100, 5000] {
            let prefixes = MemoryPrefixes::default();
            let expected: Vec<Vec<u8>> = keys.iter().cloned().collect();
            assert!(iterate(&mut keys, &prefixes, count, |_| {}) == expected, "{name} by {count}");
            // The second iteration finds all the prefixes that it needs.
            let rows = prefixes.len().unwrap();
            assert!(iterate(&mut keys, &prefixes, count, |_| {}) == expected, "{name} by {count}");
            assert_eq!(prefixes.len().unwrap(), rows, "{name} by {count}");
        }
    }
}

#[test]
fn keys_that_stay_are_returned_once_under_writes() {
    let mut random = fastrand::Rng::with_seed(11);
    for (name, all) in hard_sets() {
        let list: Vec<&Vec<u8>> = all.iter().collect();
        let stays: Keys = all.iter().filter(|_| random.bool()).cloned().collect();
        let prefixes = MemoryPrefixes::default();
        for count in [3, 9, 64] {
            let mut keys = all.clone();
            let returned = iterate(&mut keys, &prefixes, count, |keys| {
                // Keys appear and disappear everywhere, also next to the cursor.
                for _ in 0..random.usize(..20) {
                    let key = list[random.usize(..list.len())];
                    if !stays.contains(key) && !keys.remove(key) {
                        keys.insert(key.clone());
                    }
                }
            });
            let unique: Keys = returned.iter().cloned().collect();
            assert_eq!(unique.len(), returned.len(), "{name} by {count}: a key came twice");
            assert!(stays.is_subset(&unique), "{name} by {count}: a key was left out");
        }
    }
}

#[test]
fn steps_keep_to_their_count_once_prefixes_are_kept() {
    let prefixes = MemoryPrefixes::default();
    let mut keys: Keys = (0..2000).map(|n| format!("session:{n:08}").into_bytes()).collect();
    iterate(&mut keys, &prefixes, 10, |_| {});
    let (mut cursor, mut steps) = (0, 0);
    loop {
        let (returned, next) = step(&keys, &prefixes, cursor, 10);
        assert_eq!(returned.len(), 10);
        (cursor, steps) = (next, steps + 1);
        if next == 0 {
            break;
        }
    }
    assert_eq!(steps, 200);
    assert_eq!(prefixes.len().unwrap(), 1, "one prefix for all of them");
}

/// A table that has given out all of its free rows.
struct Full(MemoryPrefixes);

impl PrefixTable for Full {
    fn number(&self, prefix: &[u8]) -> Result<Option<u32>> {
        self.0.number(prefix)
    }

    fn prefix(&self, number: u32) -> Result<Option<Vec<u8>>> {
        self.0.prefix(number)
    }

    fn keep(&self, prefix: &[u8]) -> Result<u32> {
        self.0.keep(prefix)
    }

    fn len(&self) -> Result<u32> {
        Ok(self.0.len()? + FREE_ROWS)
    }
}

#[test]
fn kept_prefixes_are_few_however_often_clients_scan() {
    for (name, mut keys) in hard_sets() {
        let prefixes = Full(MemoryPrefixes::default());
        let expected: Vec<Vec<u8>> = keys.iter().cloned().collect();
        let bytes: usize = keys.iter().map(Vec::len).sum();
        for count in (1..40).step_by(6) {
            assert!(iterate(&mut keys, &prefixes, count, |_| {}) == expected, "{name}");
        }
        let rows = prefixes.0.len().unwrap() as usize;
        let most = keys.len() / SPACING_KEYS + bytes / SPACING_BYTES + 1;
        assert!(rows <= 2 * most, "{name}: {rows} prefixes for {} keys", keys.len());
    }
}

#[test]
fn numbers_that_no_step_gives_are_refused() {
    let first = Position { prefix: 0, rest: vec![0] };
    assert_eq!(Position::decode(first.encode()), Some(first));
    let last = Position { prefix: PREFIXES_MAX - 1, rest: vec![255; 4] };
    assert_eq!(Position::decode(last.encode()), Some(last.clone()));
    // A digit is missing, a digit follows the end, or the position or the prefix is too large.
    for cursor in [0, 1, 123_456, RADIX.pow(4), last.encode() + 1, 1 << 53, u64::MAX] {
        assert_eq!(Position::decode(cursor), None, "{cursor}");
    }
}
