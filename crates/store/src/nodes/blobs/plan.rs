//! The plan of a read: which ranges of which chunks, in which requests, and where their bytes go.
//!
//! Ranges of a chunk that overlap or touch become one. A request has the ranges of one chunk, up to
//! a limit of bytes, so a read of many small values takes one request per node.
//!
//! The functions are pure.
//! Failure: a range outside the blob is a defect of the caller, and panics.
//! Cost: O(n log n) for n ranges.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::layout::{BlobLayout, PIECE_BYTES};

/// Largest number of bytes that one request reads.
const REQUEST_BYTES_MAX: u64 = 2 << 20;

/// Bytes of an answer that belong into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyPart {
    /// Offset in the answer.
    from: usize,
    len: usize,
    /// Number of the wanted range.
    buffer: usize,
    /// Offset in its buffer.
    to: usize,
}

/// One request to the holder of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadBatch {
    /// Index of the chunk.
    pub(super) chunk: u8,
    /// Ranges of whole pieces, which neither overlap nor touch unless the limit has cut them.
    pub(super) ranges: Vec<Range<u64>>,
    copies: Vec<CopyPart>,
}

impl ReadBatch {
    /// Copies the bytes of the answer into the buffers.
    pub(super) fn copy_to(&self, answer: &[u8], requests: &mut [(u64, &mut [u8])]) {
        for part in &self.copies {
            let buffer = &mut requests[part.buffer].1[part.to..part.to + part.len];
            buffer.copy_from_slice(&answer[part.from..part.from + part.len]);
        }
    }
}

/// A range of a chunk in a batch.
struct PlannedRange {
    range: Range<u64>,
    /// Number of the batch.
    batch: usize,
    /// Offset in the answer of the batch.
    at: u64,
}

/// The requests for the wanted ranges of a blob.
pub(super) fn plan_read(layout: &BlobLayout, wanted: &[Range<u64>]) -> Vec<ReadBatch> {
    let mut coverings: BTreeMap<u8, Vec<Range<u64>>> = BTreeMap::new();
    let mut parts = Vec::new();
    for (buffer, range) in wanted.iter().enumerate() {
        for request in layout.requests(range.clone()) {
            coverings.entry(request.chunk).or_default().push(request.covering.clone());
            for part in request.parts {
                let to = (part.blob_offset - range.start) as usize;
                parts.push((request.chunk, part.in_chunk, buffer, to));
            }
        }
    }
    let mut batches = Vec::new();
    let mut planned = BTreeMap::new();
    for (chunk, ranges) in coverings {
        planned.insert(chunk, add_batches(chunk, joined(ranges), &mut batches));
    }
    for (chunk, in_chunk, buffer, to) in parts {
        let ranges: &[PlannedRange] = planned.get(&chunk).map_or(&[], Vec::as_slice);
        let first = ranges.partition_point(|planned| planned.range.end <= in_chunk.start);
        let mut at = in_chunk.start;
        for planned in &ranges[first..] {
            if at >= in_chunk.end {
                break;
            }
            let end = planned.range.end.min(in_chunk.end);
            batches[planned.batch].copies.push(CopyPart {
                from: (planned.at + at - planned.range.start) as usize,
                len: (end - at) as usize,
                buffer,
                to: to + (at - in_chunk.start) as usize,
            });
            at = end;
        }
    }
    batches
}

/// The ranges in order, with those joined that overlap or touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Divides the ranges of a chunk into batches.
fn add_batches(
    chunk: u8,
    ranges: Vec<Range<u64>>,
    batches: &mut Vec<ReadBatch>,
) -> Vec<PlannedRange> {
    let mut planned = Vec::with_capacity(ranges.len());
    // Bytes of the last batch. This value makes the first range begin a batch.
    let mut filled = REQUEST_BYTES_MAX;
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            if filled + PIECE_BYTES > REQUEST_BYTES_MAX {
                batches.push(ReadBatch { chunk, ranges: Vec::new(), copies: Vec::new() });
                filled = 0;
            }
            // `start` and `end` are multiples of the piece size, except at the end of the chunk.
            let end = range.end.min(start + REQUEST_BYTES_MAX - filled);
            let batch = batches.len() - 1;
            batches[batch].ranges.push(start..end);
            planned.push(PlannedRange { range: start..end, batch, at: filled });
            filled += end - start;
            start = end;
        }
    }
    planned
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use archipelago_base::random::Rng;

    use super::super::super::layout::{CellSize, Scheme};
    use super::*;

    const RS: Scheme = Scheme::Rs42(CellSize::Small);

    fn layout(scheme: Scheme, len_bytes: u64) -> BlobLayout {
        BlobLayout { scheme, len_bytes }
    }

    #[test]
    fn small_ranges_of_a_chunk_share_a_request() {
        let layout = layout(RS, 8 << 20);
        // Two values in one piece, one in the next piece, one elsewhere in the chunk.
        let stripe = 1 << 20;
        let wanted = [100..200, 300..400, 4096..4100, stripe + 9000..stripe + 9100];
        let batches = plan_read(&layout, &wanted);
        assert_eq!(batches.len(), 1);
        let second = (256 << 10) + 8192;
        assert_eq!(batches[0].ranges, [0..8192, second..second + 4096]);
    }

    #[test]
    fn range_across_cells_asks_two_chunks() {
        let cell = 256 << 10;
        let batches = plan_read(&layout(RS, 8 << 20), from_ref(&(cell - 10..cell + 10)));
        let asked = batches.iter().flat_map(|batch| {
            batch.ranges.iter().map(|range| (batch.chunk, range.start, range.end))
        });
        assert_eq!(asked.collect::<Vec<_>>(), [(0, cell - 4096, cell), (1, 0, 4096)]);
    }

    #[test]
    fn long_range_is_cut_into_requests() {
        let len = 2 * REQUEST_BYTES_MAX + 5000;
        let batches = plan_read(&layout(Scheme::Replicas(3), len), from_ref(&(4096..len)));
        let bytes = |batch: &ReadBatch| batch.ranges.iter().map(|r| r.end - r.start).sum::<u64>();
        assert_eq!(batches.iter().map(bytes).collect::<Vec<_>>(), [2 << 20, 2 << 20, 904]);
        assert_eq!(plan_read(&layout(RS, 100), &[0..0, 100..100]), []);
    }

    #[test]
    fn every_wanted_byte_is_copied_to_its_place() {
        for seed in 0..60 {
            let rng = &mut Rng::with_seed(seed);
            let len = rng.u64(1..9 << 20);
            let scheme = if seed % 2 == 0 { RS } else { Scheme::Replicas(3) };
            let layout = layout(scheme, len);
            let byte = |at: u64| (at * 7 + at / 300) as u8;
            let mut chunks = vec![Vec::new(); 4];
            for at in 0..len {
                let chunk = match scheme {
                    Scheme::Replicas(_) => 0,
                    Scheme::Rs42(cell) => at / cell.bytes() % 4,
                };
                chunks[chunk as usize].push(byte(at));
            }
            let wanted: Vec<Range<u64>> = (0..rng.usize(1..30))
                .map(|_| {
                    let start = rng.u64(0..=len);
                    start..(start + rng.u64(0..400_000)).min(len)
                })
                .collect();
            let mut buffers: Vec<Vec<u8>> =
                wanted.iter().map(|range| vec![0; (range.end - range.start) as usize]).collect();
            let mut requests: Vec<(u64, &mut [u8])> = wanted
                .iter()
                .zip(&mut buffers)
                .map(|(range, buffer)| (range.start, buffer.as_mut_slice()))
                .collect();
            for batch in plan_read(&layout, &wanted) {
                let answer: Vec<u8> = batch
                    .ranges
                    .iter()
                    .flat_map(|range| {
                        assert_eq!(range.start % PIECE_BYTES, 0);
                        let range = range.start as usize..range.end as usize;
                        chunks[batch.chunk as usize][range].to_vec()
                    })
                    .collect();
                assert!(answer.len() as u64 <= REQUEST_BYTES_MAX);
                batch.copy_to(&answer, &mut requests);
            }
            for (range, buffer) in wanted.iter().zip(&buffers) {
                let right = range.clone().zip(buffer).all(|(at, got)| byte(at) == *got);
                assert!(right, "seed {seed}: {range:?} of {len}");
            }
        }
    }
}
