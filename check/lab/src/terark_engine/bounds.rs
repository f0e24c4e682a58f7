//! Bounds by arithmetic: device writes per user byte, the price of garbage collection, reads per
//! point read, and the shares of a workload's bytes. The functions are pure.
//!
//! The model is that of an engine that writes each user byte once to the log and once when it
//! flushes, and that rewrites what lies in the levels `rewrites` times (W). Separation leaves a
//! share `k` of the bytes in the levels. Garbage collection adds `g` bytes for each byte of the
//! other share. A device whose bandwidth is the only limit then gives the ratio of two such sums as
//! the highest possible speed-up.

/// Writes of log and flush per user byte.
const LOG_AND_FLUSH: f64 = 2.0;
/// Bytes of each record of a table next to key and value: sequence number and kind (8), lengths,
/// the record's share of the filter and of the index (12 together).
const RECORD_BYTES: f64 = 20.0;
/// Bytes of a reference to a separated value, with its offset.
const REFERENCE_BYTES: f64 = 16.0;
/// Bytes of a value record next to the value: compression and checksum.
const TRAILER_BYTES: f64 = 5.0;
/// Steps in which [`plan`] divides the allowance for garbage.
const PLAN_STEPS: u32 = 64;
/// Smallest share of hidden garbage that a plan may choose.
const HIDDEN_MIN: f64 = 0.01;

/// Device writes per user byte without separation, `rewrites` being W.
pub(super) fn writes_inline(rewrites: f64) -> f64 {
    LOG_AND_FLUSH + rewrites
}

/// The rewriting factor W of a run without separation, from its write amplification.
pub(crate) fn rewrites_of(write_amplification: f64) -> f64 {
    (write_amplification - LOG_AND_FLUSH).max(0.0)
}

/// Device writes per user byte with separation: `share` of the bytes stays in the levels, and
/// `collected` bytes are rewritten by garbage collection for each byte outside of them.
pub(super) fn writes_separated(rewrites: f64, share: f64, collected: f64) -> f64 {
    LOG_AND_FLUSH + rewrites * share + (1.0 - share) * collected
}

/// Bytes that greedy garbage collection rewrites per user byte if updates are uniform and exposed
/// garbage is `exposed` times the live bytes: p / (1 − p), where p is the valid share of the file
/// that is collected and (1 − p) / (−ln p) = 1 / (1 + exposed). Infinite without garbage.
pub(crate) fn collected_per_byte(exposed: f64) -> f64 {
    if exposed <= 0.0 {
        return f64::INFINITY;
    }
    let wanted = 1.0 / (1.0 + exposed);
    // The left side grows with p from 0 to 1.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if (1.0 - middle) / -f64::ln(middle) < wanted { low = middle } else { high = middle }
    }
    low / (1.0 - low)
}

/// Division of the allowance for garbage, and its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SpacePlan {
    /// Hidden garbage, as a multiple of the live bytes.
    pub(super) hidden: f64,
    /// Bytes that are written per user byte to keep the bound.
    pub(super) cost: f64,
}

/// The cheapest division of `allowed` (the bound on space amplification minus 1) between exposed
/// and hidden garbage, on a device that writes each byte once. Hidden garbage of h costs that the
/// index, a share `share` of the data, is rewritten once per h live bytes.
pub(super) fn plan(allowed: f64, share: f64) -> SpacePlan {
    let step = (allowed - HIDDEN_MIN) / f64::from(PLAN_STEPS);
    let divisions = (0..PLAN_STEPS).map(|at| {
        let hidden = HIDDEN_MIN + f64::from(at) * step;
        SpacePlan { hidden, cost: collected_per_byte(allowed - hidden) + share / hidden }
    });
    let best = divisions.reduce(|best, next| if next.cost < best.cost { next } else { best });
    best.unwrap_or(SpacePlan { hidden: 0.0, cost: f64::INFINITY })
}

/// Share of a workload's bytes that stays in the levels: keys, references and small values, of
/// entries with keys of `key_bytes` and values of `value_bytes`. Values of `threshold` bytes and
/// more are separated.
pub(crate) fn share_in_levels(
    key_bytes: u64,
    value_bytes: impl Iterator<Item = u64>,
    threshold: u64,
) -> f64 {
    let key_bytes = key_bytes as f64 + RECORD_BYTES;
    let (mut inside, mut all) = (0.0, 0.0);
    for bytes in value_bytes {
        all += key_bytes + bytes as f64;
        inside += key_bytes;
        inside += if bytes >= threshold { REFERENCE_BYTES } else { bytes as f64 };
    }
    inside / all
}

/// Reads of data per point read without separation, if a block cache holds a share `cached` of the
/// data. The index is cached.
pub(super) fn reads_inline(cached: f64) -> f64 {
    1.0 - cached
}

/// Reads of data per point read with separation: of the table, of which a share `share` of all
/// bytes is in the levels, and of the value for the share `separated` of the records. The cache
/// keeps the levels first.
pub(super) fn reads_separated(cached: f64, share: f64, separated: f64) -> f64 {
    if cached < share {
        return 1.0 - cached / share + separated;
    }
    let rest = ((cached - share) / (1.0 - share)).min(1.0);
    separated * (1.0 - rest)
}

/// Bytes of a scan without separation over those of the same scan with it, of entries as in
/// [`share_in_levels`].
pub(super) fn scanned_bytes_ratio(
    key_bytes: u64,
    value_bytes: impl Iterator<Item = u64>,
    threshold: u64,
) -> f64 {
    let key_bytes = key_bytes as f64 + RECORD_BYTES;
    let (mut inline, mut separated) = (0.0, 0.0);
    for bytes in value_bytes {
        let record = key_bytes + bytes as f64;
        inline += record;
        separated += record;
        separated += if bytes >= threshold { REFERENCE_BYTES + TRAILER_BYTES } else { 0.0 };
    }
    inline / separated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(value: f64, wanted: f64, tolerance: f64) {
        assert!((value - wanted).abs() <= tolerance, "{value}, not {wanted}");
    }

    #[test]
    fn writes_per_user_byte_are_those_of_the_design() {
        assert_eq!(writes_inline(8.0), 10.0);
        assert_eq!(rewrites_of(10.0), 8.0);
        // Fixed-16K, Mixed-8K and Pareto-1K.
        for (share, wanted) in [(0.004, 2.03), (0.028, 2.22), (0.14, 3.12)] {
            is_near(writes_separated(8.0, share, 0.0), wanted, 0.005);
        }
    }

    #[test]
    fn collection_costs_what_the_table_of_the_design_says() {
        for (amplification, wanted) in [
            (1.10, 4.7),
            (1.15, 3.0),
            (1.20, 2.2),
            (1.25, 1.7),
            (1.35, 1.1),
            (1.5, 0.72),
            (2.0, 0.26),
        ] {
            is_near(collected_per_byte(amplification - 1.0), wanted, 0.06 * wanted);
        }
        assert_eq!(collected_per_byte(0.0), f64::INFINITY);
    }

    #[test]
    fn speed_ups_at_eight_rewrites_are_those_of_the_design() {
        let fill = writes_inline(8.0) / writes_separated(8.0, 0.004, 0.0);
        is_near(fill, 4.9, 0.05);
        let plan = plan(0.5, 0.004);
        is_near(plan.cost, 0.95, 0.06);
        let update = writes_inline(8.0) / writes_separated(8.0, 0.004, plan.cost);
        is_near(update, 3.35, 0.1);
    }

    #[test]
    fn plan_divides_the_allowance_at_its_cheapest() {
        for (allowed, share) in [(0.25, 0.004), (0.5, 0.028), (1.0, 0.14)] {
            let best = plan(allowed, share);
            assert!(best.hidden > 0.0 && best.hidden < allowed);
            for hidden in [0.5 * best.hidden, 1.5 * best.hidden] {
                let other = collected_per_byte(allowed - hidden) + share / hidden;
                assert!(other >= best.cost, "{allowed} {share} {hidden}");
            }
        }
    }

    #[test]
    fn point_reads_need_a_second_read_where_the_levels_are_not_cached() {
        is_near(reads_inline(0.01), 0.99, 1e-9);
        // Fixed-16K: the levels fit into the cache, and every record has a value to read.
        is_near(reads_separated(0.01, 0.004, 1.0), 0.994, 0.001);
        // Mixed-8K: a third of the levels is cached, and half of the records are separated.
        is_near(reads_separated(0.01, 0.028, 0.5), 1.143, 0.001);
        assert_eq!(reads_separated(1.0, 0.1, 1.0), 0.0);
    }

    #[test]
    fn scans_read_references_and_trailers_in_addition() {
        is_near(scanned_bytes_ratio(24, std::iter::once(16_384), 512), 0.9987, 0.0002);
        is_near(scanned_bytes_ratio(24, std::iter::once(1_024), 512), 0.981, 0.001);
        assert_eq!(scanned_bytes_ratio(24, [100, 511].into_iter(), 512), 1.0);
    }

    #[test]
    fn shares_in_the_levels_are_near_those_of_the_design() {
        is_near(share_in_levels(24, std::iter::once(16_384), 512), 0.004, 0.002);
        // As many small values, of 306 bytes on average, as large ones.
        is_near(share_in_levels(24, [306, 16_384].into_iter(), 512), 0.028, 0.006);
        assert_eq!(share_in_levels(24, [100, 511].into_iter(), 512), 1.0);
    }
}
