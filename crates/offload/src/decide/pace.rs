//! Pure decision: the speed at which the owner sends images of memtable shards (O³-LSM §4.4). At
//! this speed local memory empties before writers fill it, and no burst uses the link.
//!
//! Cost: O(1).

/// Smallest speed of a transfer, as the divisor of the link's speed: 20 means a twentieth. Without
/// it a transfer would stand still while writers pause.
const LINK_SHARE: u64 = 20;

/// Transfers aim at this part of the space that writers still have. The last image of a memtable
/// needs an answer of its node, and its local memory is freed after that.
const SPACE_PART: (u128, u128) = (2, 3);

/// Figures of the writers and of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceInput {
    /// Bytes of sealed memtables that wait for their transfer or are being sent.
    pub backlog_bytes: u64,
    /// Bytes that writers may still write before they must wait; 0 if they already wait, or if the
    /// number is not known.
    pub space_bytes: u64,
    /// Speed at which writers fill memtables, in bytes a second.
    pub fill_bytes_per_s: u64,
    /// Speed of the link, in bytes a second; 0 before it was measured.
    pub link_bytes_per_s: u64,
}

/// Speed of transfers, in bytes a second: `min(link, max(link / 20, fill rate, backlog · fill rate
/// / (2/3 · space)))`. It is the speed of the link if there is hardly any space, and `u64::MAX`
/// before the link was measured.
#[must_use]
pub fn pace(input: &PaceInput) -> u64 {
    let PaceInput { backlog_bytes, space_bytes, fill_bytes_per_s, link_bytes_per_s } = *input;
    if link_bytes_per_s == 0 {
        return u64::MAX;
    }
    let (share, of) = SPACE_PART;
    let aim = u128::from(space_bytes) * share / of;
    let product = u128::from(backlog_bytes) * u128::from(fill_bytes_per_s);
    let Some(needed) = product.checked_div(aim) else {
        return link_bytes_per_s;
    };
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    let floor = (link_bytes_per_s / LINK_SHARE).max(1);
    floor.max(fill_bytes_per_s).max(needed).min(link_bytes_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_leave_as_fast_as_writers_need_it() {
        let of = |backlog_bytes, space_bytes, fill_bytes_per_s, link_bytes_per_s| {
            pace(&PaceInput { backlog_bytes, space_bytes, fill_bytes_per_s, link_bytes_per_s })
        };
        // Without a measurement there is no limit, and without space there is no time to lose.
        assert_eq!(of(64, 64, 10, 0), u64::MAX);
        assert_eq!(of(64, 0, 10, 1000), 1000);
        // Writers pause: a twentieth of the link.
        assert_eq!(of(64, 64, 0, 1000), 50);
        // The backlog fits into two thirds of the space: the speed is the fill rate.
        assert_eq!(of(40, 60, 200, 1000), 200);
        assert_eq!(of(20, 60, 200, 1000), 200);
        // The speed grows as space shrinks, and never exceeds that of the link.
        assert_eq!(of(60, 60, 200, 1000), 300);
        assert_eq!(of(120, 60, 200, 1000), 600);
        assert_eq!(of(40, 16, 200, 1000), 800);
        assert_eq!(of(64, 1, 200, 1000), 1000);
        assert_eq!(of(0, 64, 0, 10), 1);
        assert_eq!(of(u64::MAX, 1, u64::MAX, u64::MAX), u64::MAX);
    }
}
