//! Pure decision: the part of a database's rate limit that a job takes to its executor.
//!
//! Cost: O(1).

/// Smallest part that a job gets, in bytes a second: the smallest limit that a database accepts.
pub const SHARE_BYTES_PER_S_MIN: u64 = 64 << 10;

/// How a rate limit is divided now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareInput {
    /// Limit of the database in bytes a second; not 0.
    pub limit_bytes_per_s: u64,
    /// Sum of the parts that jobs in executors have.
    pub lent_bytes_per_s: u64,
    /// Jobs that were in executors at the same time lately, the new one included.
    pub jobs: u64,
}

/// Bytes a second for one more job: `min(limit / (jobs + 1), (limit - lent) / 2)`, and at least
/// [`SHARE_BYTES_PER_S_MIN`]. `None` if that part would leave the owner less than half of its
/// present rate.
#[must_use]
pub fn rate_share(input: &ShareInput) -> Option<u64> {
    let ShareInput { limit_bytes_per_s, lent_bytes_per_s, jobs } = *input;
    let half = limit_bytes_per_s.saturating_sub(lent_bytes_per_s) / 2;
    let even = limit_bytes_per_s / jobs.saturating_add(1).max(2);
    (half >= SHARE_BYTES_PER_S_MIN).then(|| even.max(SHARE_BYTES_PER_S_MIN).min(half))
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    #[test]
    fn parts_of_a_limit_are_even_as_soon_as_the_number_of_jobs_is_known() {
        let of = |limit_bytes_per_s, lent_bytes_per_s, jobs| {
            rate_share(&ShareInput { limit_bytes_per_s, lent_bytes_per_s, jobs })
        };
        const MB: u64 = 1_000_000;
        assert_eq!(of(12 * MB, 0, 1), Some(6 * MB));
        // The division expects one job only, so the owner keeps half of its rate.
        assert_eq!(of(12 * MB, 6 * MB, 2), Some(3 * MB));
        // The division expects three jobs.
        assert_eq!(of(12 * MB, 0, 3), Some(3 * MB));
        assert_eq!(of(12 * MB, 6 * MB, 3), Some(3 * MB));
        // The smallest parts.
        assert_eq!(of(MB, 0, 1000), Some(SHARE_BYTES_PER_S_MIN));
        assert_eq!(of(2 * SHARE_BYTES_PER_S_MIN, 0, 1), Some(SHARE_BYTES_PER_S_MIN));
        assert_eq!(of(2 * SHARE_BYTES_PER_S_MIN - 1, 0, 1), None);
        assert_eq!(of(MB, MB, 1), None);
        assert_eq!(of(u64::MAX, 0, u64::MAX), Some(SHARE_BYTES_PER_S_MIN));
    }

    #[test]
    fn parts_and_the_rest_never_exceed_the_limit() {
        let mut rng = Rng::with_seed(11);
        for _ in 0..200 {
            let limit_bytes_per_s = rng.u64(SHARE_BYTES_PER_S_MIN..1 << 32);
            let mut lent: Vec<u64> = Vec::new();
            for _ in 0..100 {
                if rng.bool() && !lent.is_empty() {
                    lent.swap_remove(rng.usize(..lent.len()));
                }
                let lent_bytes_per_s = lent.iter().sum();
                let jobs = lent.len() as u64 + rng.u64(1..5);
                let input = ShareInput { limit_bytes_per_s, lent_bytes_per_s, jobs };
                let Some(part) = rate_share(&input) else { continue };
                let kept = limit_bytes_per_s - lent_bytes_per_s - part;
                assert!(part >= SHARE_BYTES_PER_S_MIN && kept >= part, "{input:?}: {part}");
                lent.push(part);
            }
        }
    }
}
