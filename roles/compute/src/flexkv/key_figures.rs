//! Statistics over all keys of the store, from a listing of few keys or from a sample.
//!
//! The functions are pure: the compute node passes the steps of a scan or the sample.

use std::collections::BTreeMap;

use archipelago_base::{Error, Result};
use archipelago_flexkv::{ScanLimits, ScanStep, ScannedKey};

/// Number of records in the sample that estimates how many keys expire and when. The standard error
/// of a share is then at most 1.6 % of all keys.
pub(crate) const SAMPLE_RECORDS: u64 = 1000;
/// Bytes of keys after which a step of a listing of few keys ends.
const STEP_KEY_BYTES: usize = 1 << 20;

/// Statistics over all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFigures {
    /// Number of keys that have not expired.
    pub keys: u64,
    /// Number of keys that will expire.
    pub expiring: u64,
    /// Mean time until they expire, in milliseconds; 0 if no key expires.
    pub mean_ttl_ms: u64,
}

/// Collects all keys from steps of a scan; `None` if the store has more than [`SAMPLE_RECORDS`]
/// records. A key that several steps return counts once. The memory is bounded for any number of
/// keys.
pub(crate) fn list_few(
    mut scan: impl FnMut(u64, ScanLimits) -> Result<Option<ScanStep>>,
) -> Result<Option<ScanStep>> {
    let (mut keys, mut expired, mut cursor) = (BTreeMap::new(), 0, Some(0));
    let limits = ScanLimits { records: SAMPLE_RECORDS as usize, key_bytes: STEP_KEY_BYTES };
    while let Some(from) = cursor {
        let Some(step) = scan(from, limits)? else {
            return Err(Error::unsupported("the scan returned a cursor that it does not accept"));
        };
        keys.extend(step.keys.into_iter().map(|found| (found.key, found.expires_ms)));
        expired += step.expired;
        cursor = step.next;
        if keys.len() + expired > SAMPLE_RECORDS as usize {
            return Ok(None);
        }
    }
    let found = |(key, expires_ms)| ScannedKey { key, expires_ms };
    Ok(Some(ScanStep { keys: keys.into_iter().map(found).collect(), expired, next: None }))
}

/// Extrapolates from a sample of `records` records to all records.
pub(crate) fn figures_of(sample: &ScanStep, records: u64, now_ms: u64) -> KeyFigures {
    let seen = (sample.keys.len() + sample.expired) as u128;
    // A sample that holds all records is newer than their count.
    let all = match seen < u128::from(SAMPLE_RECORDS) {
        true => seen,
        false => seen.max(u128::from(records)),
    };
    let share = |part: usize| (part as u128 * all / seen.max(1)) as u64;
    let left = sample.keys.iter().filter(|found| found.expires_ms > 0);
    let left = left.map(|found| found.expires_ms.saturating_sub(now_ms));
    let (expiring, sum) = left.fold((0, 0_u128), |(n, sum), ms| (n + 1, sum + u128::from(ms)));
    let mean_ttl_ms = sum.checked_div(expiring as u128).unwrap_or(0) as u64;
    KeyFigures { keys: share(sample.keys.len()), expiring: share(expiring), mean_ttl_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(expiries: &[u64], expired: usize) -> ScanStep {
        let found = |expires_ms: &u64| ScannedKey { key: Vec::new(), expires_ms: *expires_ms };
        ScanStep { keys: expiries.iter().map(found).collect(), expired, next: None }
    }

    #[test]
    fn figures_of_few_keys_are_exact() {
        let few = sample(&[0, 150, 0, 250], 2);
        let expected = KeyFigures { keys: 4, expiring: 2, mean_ttl_ms: 100 };
        assert_eq!(figures_of(&few, 9, 100), expected, "the count was of an earlier moment");
        assert_eq!(figures_of(&sample(&[], 0), 0, 100), KeyFigures::default());
    }

    #[test]
    fn figures_of_many_keys_are_shares_of_their_count() {
        let expiries: Vec<u64> = (0..900).map(|nth| if nth < 300 { 1100 } else { 0 }).collect();
        let many = figures_of(&sample(&expiries, 100), 10_000, 100);
        assert_eq!(many, KeyFigures { keys: 9_000, expiring: 3_000, mean_ttl_ms: 1_000 });
    }

    /// A step of a scan over `records` keys, which ends at its limits.
    fn step_of(records: u64, from: u64, limits: ScanLimits) -> ScanStep {
        let end = records.min(from.saturating_add(limits.records as u64));
        let found = |n: u64| ScannedKey { key: n.to_le_bytes().to_vec(), expires_ms: n };
        let keys = (from..end).map(found).collect();
        ScanStep { keys, expired: 0, next: (end < records).then_some(end) }
    }

    #[test]
    fn listing_of_few_keys_ends_when_there_are_more() {
        let mut seen = 0;
        let few = list_few(|from, limits| {
            let step = step_of(1_000_000, from, limits);
            seen += step.keys.len();
            Ok(Some(step))
        });
        assert_eq!(few.expect("readable"), None);
        assert!(seen <= 2 * SAMPLE_RECORDS as usize, "{seen} keys");
        let few = list_few(|from, limits| Ok(Some(step_of(SAMPLE_RECORDS, from, limits))));
        assert_eq!(few.expect("readable").map(|all| all.keys.len() as u64), Some(SAMPLE_RECORDS));
    }

    #[test]
    fn keys_that_several_steps_return_are_counted_once() {
        // The second step returns the keys of the first one again, as a scan does after a subtable
        // has doubled.
        let few = list_few(|from, limits| {
            let step = step_of(600, 0, limits);
            Ok(Some(ScanStep { expired: 10, next: (from == 0).then_some(1), ..step }))
        });
        let all = few.expect("readable").expect("few");
        assert_eq!((all.keys.len(), all.expired), (600, 20));
    }
}
