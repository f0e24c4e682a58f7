//! Adaptive readahead: the ranges of a value file that a garbage collection job reads (Terark-DS,
//! section 4.4.3). Pure functions.
//!
//! A job needs the valid records only. Reading each by itself costs one request per record, and
//! reading everything transfers the garbage. So valid records that lie close together share a
//! *window*, which one range read fetches.
//!
//! Invariants:
//! 1. Windows are in offset order and do not overlap. Each begins and ends with a valid record, and
//!    every valid record lies in exactly one.
//! 2. A window is at most [`ReadaheadLimits::window_bytes_max`] long, unless it has one record.
//! 3. At least [`ReadaheadLimits::valid_percent_min`] of a window's records are valid, and of its
//!    bytes as well. The paper demands the former only. The latter bounds the read bytes if values
//!    have different sizes: at 80 percent, to 1.25 times the valid bytes.
//!
//! Cost: O(n) for `n` records, and one allocation for the result.

/// Limits of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReadaheadLimits {
    /// Valid records share a window only if fewer bytes than this lie between them.
    pub gap_bytes_max: u64,
    /// Smallest share of valid records, and of valid bytes, in a window, in percent.
    pub valid_percent_min: u64,
    /// Largest length of a window in bytes.
    pub window_bytes_max: u64,
}

impl ReadaheadLimits {
    /// The limits of Terark-DS, section 4.4.3.
    pub(crate) const PAPER: Self =
        Self { gap_bytes_max: 16 << 10, valid_percent_min: 80, window_bytes_max: 2 << 20 };
}

/// A record of the value area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueSpan {
    /// Offset of the record in the file.
    pub offset: u64,
    /// Length of the record in bytes, with its trailer.
    pub bytes: u64,
    /// Whether a table refers to the record.
    pub is_valid: bool,
}

/// A range of a value file that is read in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadWindow {
    /// Offset of the range in the file.
    pub offset: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
    /// Index of the window's first record among the given records.
    pub first: usize,
    /// Number of the window's records, valid or not.
    pub records: usize,
    /// Number of the window's valid records.
    pub valid_records: usize,
    /// Bytes of the window's valid records.
    pub valid_bytes: u64,
}

impl ReadWindow {
    fn of(at: usize, span: &ValueSpan) -> Self {
        let (offset, bytes) = (span.offset, span.bytes);
        Self { offset, bytes, first: at, records: 1, valid_records: 1, valid_bytes: bytes }
    }

    /// Offset of the first byte past the range.
    #[must_use]
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// The window, extended to the valid record `span` with the index `at`.
    fn extended(&self, at: usize, span: &ValueSpan) -> Self {
        Self {
            bytes: span.offset.saturating_add(span.bytes).saturating_sub(self.offset),
            records: at + 1 - self.first,
            valid_records: self.valid_records + 1,
            valid_bytes: self.valid_bytes.saturating_add(span.bytes),
            ..*self
        }
    }

    fn is_within(&self, limits: &ReadaheadLimits) -> bool {
        let is_share = |part: u64, whole: u64| {
            u128::from(part) * 100 >= u128::from(whole) * u128::from(limits.valid_percent_min)
        };
        self.bytes <= limits.window_bytes_max
            && is_share(self.valid_records as u64, self.records as u64)
            && is_share(self.valid_bytes, self.bytes)
    }
}

/// The windows over the valid records of `spans`, which are in offset order and do not overlap.
#[must_use]
pub(crate) fn read_windows(
    spans: impl IntoIterator<Item = ValueSpan>,
    limits: &ReadaheadLimits,
) -> Vec<ReadWindow> {
    let mut windows: Vec<ReadWindow> = Vec::new();
    let valid = spans.into_iter().enumerate().filter(|(_, span)| span.is_valid);
    for (at, span) in valid {
        let extended = windows.last().and_then(|window| {
            let gap = span.offset.saturating_sub(window.end());
            let wider = window.extended(at, &span);
            (gap < limits.gap_bytes_max && wider.is_within(limits)).then_some(wider)
        });
        match (extended, windows.last_mut()) {
            (Some(wider), Some(last)) => *last = wider,
            _ => windows.push(ReadWindow::of(at, &span)),
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    const KIB: u64 = 1 << 10;

    /// Records without gaps, each of the given length; a negative one is not valid.
    fn spans(lengths: &[i64]) -> Vec<ValueSpan> {
        let mut offset = 0;
        let mut next = |length: &i64| {
            let span = ValueSpan { offset, bytes: length.unsigned_abs(), is_valid: *length > 0 };
            offset += span.bytes;
            span
        };
        lengths.iter().map(&mut next).collect()
    }

    fn ranges(lengths: &[i64]) -> Vec<(usize, usize)> {
        let windows = read_windows(spans(lengths), &ReadaheadLimits::PAPER);
        windows.iter().map(|window| (window.first, window.records)).collect()
    }

    fn random_spans(rng: &mut Rng) -> Vec<ValueSpan> {
        let valid_of_ten = rng.u32(0..=10);
        let bytes_max = [600, 4 * KIB as i64, 40 * KIB as i64, 3 << 20][rng.usize(0..4)];
        let bytes_min = if rng.bool() { bytes_max } else { 6 };
        let length = |rng: &mut Rng| {
            let length = rng.i64(bytes_min..=bytes_max);
            if rng.u32(0..10) < valid_of_ten { length } else { -length }
        };
        let lengths: Vec<i64> = (0..rng.usize(0..400)).map(|_| length(rng)).collect();
        spans(&lengths)
    }

    #[test]
    fn windows_hold_every_valid_record_within_limits() {
        let mut rng = Rng::with_seed(11);
        let limits = ReadaheadLimits::PAPER;
        for _ in 0..2000 {
            let spans = random_spans(&mut rng);
            let windows = read_windows(spans.iter().copied(), &limits);
            let mut covered = vec![false; spans.len()];
            let mut end = 0;
            for window in &windows {
                let records = &spans[window.first..window.first + window.records];
                let (first, last) = (records[0], records[records.len() - 1]);
                assert!(first.is_valid && last.is_valid && window.offset >= end);
                assert_eq!((first.offset, last.offset + last.bytes), (window.offset, window.end()));
                let valid = records.iter().filter(|span| span.is_valid);
                assert_eq!(valid.clone().count(), window.valid_records);
                let valid_bytes: u64 = valid.map(|span| span.bytes).sum();
                assert_eq!(valid_bytes, window.valid_bytes);
                assert!(window.valid_records * 100 >= window.records * 80);
                assert!(window.bytes * 4 <= window.valid_bytes * 5, "1.25 of the valid bytes");
                assert!(window.records == 1 || window.bytes <= limits.window_bytes_max);
                covered[window.first..window.first + window.records].fill(true);
                end = window.end();
            }
            let missed = spans.iter().zip(&covered).any(|(span, held)| span.is_valid && !held);
            assert!(!missed, "every valid record is read");
        }
    }

    #[test]
    fn four_of_five_valid_records_share_a_window() {
        assert_eq!(ranges(&[100, 100, 100, -100, 100]), [(0, 5)]);
        assert_eq!(ranges(&[100, 100, -100, 100]), [(0, 2), (3, 1)]);
        assert_eq!(ranges(&[100, 100, -100, 100, 100]), [(0, 2), (3, 2)]);
        assert_eq!(ranges(&[-100, 100, -100]), [(1, 1)]);
        assert_eq!(ranges(&[-100]), []);
    }

    #[test]
    fn gap_of_sixteen_kib_divides_windows() {
        let value = 64 * KIB as i64;
        assert_eq!(ranges(&[value, -(16 * KIB as i64 - 1), value]), [(0, 1), (2, 1)]);
        let mut lengths = vec![value; 4];
        lengths.extend([-(16 * KIB as i64 - 1), value]);
        assert_eq!(ranges(&lengths), [(0, 6)]);
        lengths[4] = -(16 * KIB as i64);
        assert_eq!(ranges(&lengths), [(0, 4), (5, 1)]);
    }

    #[test]
    fn window_ends_at_two_mebibytes() {
        let value = 512 * KIB as i64;
        assert_eq!(ranges(&[value; 6]), [(0, 4), (4, 2)]);
        assert_eq!(ranges(&[3 << 20, 100, 100]), [(0, 1), (1, 2)]);
    }

    #[test]
    fn small_values_do_not_pull_a_large_dead_one() {
        // By number of records alone, 15 KiB of garbage would be read for a hundred bytes.
        assert_eq!(ranges(&[20, 20, 20, 20, -(15 * KIB as i64), 20]), [(0, 4), (5, 1)]);
    }
}
