//! Target sizes of levels, scores, and compaction debt: pure functions.
//!
//! Levels are sized from the last one up. The largest level sets the scale, and each level above it
//! should be smaller by the multiplier. The last one that would still have the base size is the
//! *base level*, which L0 compacts into. Levels between L0 and the base level stay empty. So the
//! last level always holds about (multiplier − 1) / multiplier of all data, for any size of the
//! store. Space and write amplification do not jump as it grows.
//!
//! The idea is that of RocksDB's dynamic level sizes, with two differences. [`level_targets`]
//! states one. The other: RocksDB adds a level as soon as the last one exceeds the base size, so
//! that the new one holds a tenth of it. But a level pays for itself only from the base size on.
//! Bytes that pass through a level of a tenth are rewritten there, and then rewrite ten times
//! themselves below. A batch from L0 of about the base size rewrites ten times itself only when the
//! last level has grown to ten base sizes. Until then L0 compacts straight into it.

//!
//! A table of references to separated values is small, yet each of its records shadows a whole
//! value. So targets and scores go by *compensated* sizes: the length of a table plus the bytes
//! that it references. Costs go by real sizes, because a compaction moves references only. Without
//! separated values the two are equal.

use crate::options::LEVELS;

/// Index of the last level.
pub const LAST_LEVEL: usize = LEVELS - 1;

/// The base level, and the target size of each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelTargets {
    /// The level that L0 compacts into.
    pub base_level: usize,
    /// Target size of each level in bytes. It is `u64::MAX` for L0, which is counted in files, and
    /// for the last level. It is 0 for the levels between L0 and the base level.
    pub bytes: [u64; LEVELS],
}

/// Bytes of each level; those of L0 are 0, because it is counted in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelSizes {
    /// Lengths of the tables.
    pub real: [u64; LEVELS],
    /// Lengths of the tables and of the separated values that they reference.
    pub compensated: [u64; LEVELS],
}

/// Bytes of the L0 files that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueL0 {
    /// Lengths of the files.
    pub real: u64,
    /// Lengths of the files and of the separated values that they reference.
    pub compensated: u64,
    /// Lengths of the base-level files that they overlap.
    pub base_share: u64,
}

/// The base level and the targets for levels of `sizes` compensated bytes.
///
/// The base level is never below the first level that holds files: files in higher levels must
/// first sink. (RocksDB also raises the target of the levels that it no longer needs; here they
/// keep theirs, and sink when they grow.)
#[must_use]
pub fn level_targets(sizes: &[u64; LEVELS], base_bytes: u64, multiplier: u64) -> LevelTargets {
    let multiplier = multiplier.max(2);
    let largest = sizes[1..].iter().copied().max().unwrap_or(0);
    let first_used = (1..LEVELS).find(|&level| sizes[level] > 0).unwrap_or(LAST_LEVEL);
    let mut bytes = [0; LEVELS];
    bytes[0] = u64::MAX;
    bytes[LAST_LEVEL] = u64::MAX;
    let (mut level, mut target) = (LAST_LEVEL, largest);
    while level > 1 && (target / multiplier >= base_bytes || level > first_used) {
        level -= 1;
        target /= multiplier;
        // A level above a nearly empty one still takes a share of the base size.
        bytes[level] = target.max(base_bytes / multiplier).max(1);
    }
    LevelTargets { base_level: level, bytes }
}

/// Urgency of a compaction of a level: its compensated size divided by its target. It is 0 for L0
/// and the last level, and more than 1 when the level is over its target. The score of L0 is the
/// fullest bucket's file count over the trigger.
#[must_use]
pub fn score(level: usize, size: u64, targets: &LevelTargets) -> f64 {
    if level == 0 || level >= LAST_LEVEL || size == 0 {
        return 0.0;
    }
    size as f64 / targets.bytes[level].max(1) as f64
}

/// Bytes that compactions must rewrite until every level is within its target.
///
/// The excess of one level falls into the next and may push that one over its target. Every byte
/// that falls rewrites its share of the level below. The excess is measured in compensated bytes,
/// like the targets. It is then scaled to the real bytes that a compaction moves.
#[must_use]
pub fn pending_bytes(sizes: &LevelSizes, targets: &LevelTargets, l0: &DueL0) -> u64 {
    let mut pending = if l0.real > 0 { l0.real.saturating_add(l0.base_share) } else { 0 };
    let (mut incoming, mut incoming_real) = (l0.compensated, l0.real);
    for level in targets.base_level..LAST_LEVEL {
        let size = sizes.compensated[level].saturating_add(incoming);
        let real = sizes.real[level].saturating_add(incoming_real);
        let over = size.saturating_sub(targets.bytes[level]);
        let over_real = scaled(over, real, size);
        if over_real > 0 {
            let fan_out = sizes.real[level + 1] as f64 / real as f64;
            pending = pending.saturating_add((over_real as f64 * (1.0 + fan_out)) as u64);
        }
        (incoming, incoming_real) = (over, over_real);
    }
    pending
}

/// The share `part / whole` of `bytes`.
fn scaled(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn sizes(of: &[(usize, u64)]) -> [u64; LEVELS] {
        let mut sizes = [0; LEVELS];
        of.iter().for_each(|&(level, size)| sizes[level] = size * MB);
        sizes
    }

    fn targets(of: &[(usize, u64)]) -> LevelTargets {
        level_targets(&sizes(of), 256 * MB, 10)
    }

    #[test]
    fn base_level_rises_as_an_empty_store_grows() {
        assert_eq!(targets(&[]).base_level, 6);
        assert_eq!(targets(&[(6, 256)]).base_level, 6);
        assert_eq!(targets(&[(6, 2000)]).base_level, 6);
        let grown = targets(&[(6, 2560)]);
        assert_eq!((grown.base_level, grown.bytes[5]), (5, 256 * MB));
        let large = targets(&[(6, 30_000), (5, 100)]);
        assert_eq!((large.base_level, large.bytes[5], large.bytes[4]), (4, 3000 * MB, 300 * MB));
        assert_eq!((large.bytes[3], large.bytes[2], large.bytes[1]), (0, 0, 0));
        assert_eq!(targets(&[(6, u64::MAX / MB)]).base_level, 1);
    }

    #[test]
    fn the_base_level_is_never_below_a_level_that_holds_files() {
        let shrunk = targets(&[(3, 10), (6, 50)]);
        assert_eq!(shrunk.base_level, 3);
        assert!(shrunk.bytes[3] >= 25 * MB, "{shrunk:?}");
        // All in a middle level: it is over its target, so it sinks.
        let odd = targets(&[(4, 5000)]);
        assert!(odd.base_level <= 4);
        assert!(score(4, 5000 * MB, &odd) > 1.0);
    }

    #[test]
    fn debt_is_what_is_over_and_what_it_rewrites_below() {
        let targets = level_targets(&sizes(&[(5, 300), (6, 2000)]), 256 * MB, 10);
        let none = DueL0::default();
        let inline = |of| LevelSizes { real: sizes(of), compensated: sizes(of) };
        assert_eq!(pending_bytes(&inline(&[(5, 200), (6, 2000)]), &targets, &none), 0);
        let levels = inline(&[(5, 300), (6, 2000)]);
        let debt = pending_bytes(&levels, &targets, &none);
        assert_eq!(debt / MB, 100 + 100 * 2000 / 300);
        let due = DueL0 { real: 64 * MB, compensated: 64 * MB, base_share: 30 * MB };
        assert!(pending_bytes(&levels, &targets, &due) > debt + 94 * MB);
        assert!(score(5, 300 * MB, &targets) > 1.4);
        assert_eq!(score(6, u64::MAX, &targets), 0.0);
    }

    /// The debt as it was computed before sizes were compensated.
    fn plain_pending(sizes: &[u64; LEVELS], targets: &LevelTargets, l0: u64, share: u64) -> u64 {
        let mut pending = if l0 > 0 { l0.saturating_add(share) } else { 0 };
        let mut incoming = l0;
        for level in targets.base_level..LAST_LEVEL {
            let size = sizes[level].saturating_add(incoming);
            let over = size.saturating_sub(targets.bytes[level]);
            if over > 0 {
                let fan_out = sizes[level + 1] as f64 / size as f64;
                pending = pending.saturating_add((over as f64 * (1.0 + fan_out)) as u64);
            }
            incoming = over;
        }
        pending
    }

    #[test]
    fn debt_without_separated_values_is_as_before() {
        let mut rng = archipelago_base::random::Rng::with_seed(5);
        for _ in 0..2000 {
            let mut at = [0; LEVELS];
            for size in &mut at[1..] {
                let bits = rng.u32(1..50);
                *size = rng.u64(0..1 << bits);
            }
            let targets = level_targets(&at, 256 * MB, rng.u64(2..12));
            let (real, base_share) =
                (rng.u64(0..1 << 40) * u64::from(rng.bool()), rng.u64(0..1 << 40));
            let due = DueL0 { real, compensated: real, base_share };
            let levels = LevelSizes { real: at, compensated: at };
            let expected = plain_pending(&at, &targets, real, base_share);
            assert_eq!(pending_bytes(&levels, &targets, &due), expected, "{levels:?} {due:?}");
        }
    }

    #[test]
    fn level_of_references_is_over_by_what_it_references() {
        // 3 MB of references to 300 MB of values, over a last level of 20 MB and 2 GB.
        let compensated = sizes(&[(5, 303), (6, 2560)]);
        let real = sizes(&[(5, 3), (6, 20)]);
        let targets = level_targets(&compensated, 256 * MB, 10);
        assert_eq!(targets.base_level, 5);
        assert!(score(5, compensated[5], &targets) > 1.0);
        let debt = pending_bytes(&LevelSizes { real, compensated }, &targets, &DueL0::default());
        assert!(debt > 0 && debt < 10 * MB, "the debt counts what is rewritten: {debt}");
    }
}
