//! The erasure code RS(4,2): two parity cells for four data cells, and any four of the six cells
//! suffice.
//!
//! Cells are combined over GF(2⁸) with the polynomial 0x11d. The generator matrix is that of ISA-L
//! (`gf_gen_rs_matrix`), so that another library can take over. The first parity cell is the sum of
//! the data cells, and the second one is the sum with the factors 1, 2, 4 and 8. The format page
//! `docs/formats/erasure-code.md` has the matrix, and a test has its bytes.
//!
//! [`encode_stripe`] and [`rebuild_range`] know that the last stripe of a blob is padded with zeros
//! that no chunk stores.
//!
//! Thread-safety: any thread may use a code.
//! Failure: cells of different lengths, or fewer than four of them, are an `Internal` error.
//! Cost: one pass over the cells. Only the cells of a partial stripe are copied.

use std::borrow::Cow;
use std::fmt;

use archipelago_base::{Error, Result};

use super::layout::{CellSize, DATA_CHUNKS, DegradedRead, PARITY_CHUNKS, stripe_cell_len};

const DATA: usize = DATA_CHUNKS as usize;
const PARITY: usize = PARITY_CHUNKS as usize;

/// A systematic code of four data and two parity cells.
pub trait ErasureCode: Send + Sync + fmt::Debug {
    /// Fills the parity cells from the data cells. All six have the same length.
    fn encode(&self, data: &[&[u8]; DATA], parity: &mut [&mut [u8]; PARITY]) -> Result<()>;
    /// Fills `out` with the cell number `wanted` from four cells, which are given at their numbers.
    /// All have the length of `out`.
    fn rebuild(
        &self,
        cells: &[Option<&[u8]>; DATA + PARITY],
        wanted: u8,
        out: &mut [u8],
    ) -> Result<()>;
}

/// RS(4,2) by the library `rusty_erasure`, with the vector instructions of the processor.
#[derive(Debug)]
pub struct Rs42 {
    coder: rusty_erasure::Coder,
}

impl Rs42 {
    /// The code with the generator matrix of the format. Errors: `Internal` if the library has
    /// another matrix.
    pub fn new() -> Result<Self> {
        let failed = |e| Error::internal(format!("erasure code RS(4,2): no matrix: {e:?}"));
        let matrix = rusty_erasure::Matrix::reed_solomon(DATA, PARITY).map_err(failed)?;
        let coder = rusty_erasure::coder(matrix).map_err(failed)?;
        Ok(Self { coder })
    }

    /// The generator matrix by rows: six rows of four factors.
    #[must_use]
    pub fn matrix(&self) -> &[u8] {
        self.coder.matrix().as_bytes()
    }
}

impl ErasureCode for Rs42 {
    fn encode(&self, data: &[&[u8]; DATA], parity: &mut [&mut [u8]; PARITY]) -> Result<()> {
        let failed = |e| Error::internal(format!("erasure code RS(4,2): cannot encode: {e:?}"));
        self.coder.encode(data, parity).map_err(failed)
    }

    fn rebuild(
        &self,
        cells: &[Option<&[u8]>; DATA + PARITY],
        wanted: u8,
        out: &mut [u8],
    ) -> Result<()> {
        let failed = |e| {
            Error::internal(format!("erasure code RS(4,2): cannot rebuild cell {wanted}: {e:?}"))
        };
        self.coder.recover(cells, &[usize::from(wanted)], &mut [out]).map_err(failed)
    }
}

/// The parity cells of a stripe with `data`, which is shorter than a stripe only at the end of a
/// blob.
pub fn encode_stripe(
    code: &dyn ErasureCode,
    cell: CellSize,
    data: &[u8],
) -> Result<[Vec<u8>; PARITY]> {
    let len = stripe_cell_len(cell, data.len() as u64, DATA_CHUNKS) as usize;
    let mut rest = data;
    let cells: [Cow<'_, [u8]>; DATA] = std::array::from_fn(|_| {
        let (own, others) = rest.split_at(rest.len().min(len));
        rest = others;
        padded(own, len)
    });
    let mut parity: [Vec<u8>; PARITY] = std::array::from_fn(|_| vec![0; len]);
    code.encode(&cells.each_ref().map(|cell| &**cell), &mut parity.each_mut().map(|p| &mut **p))?;
    Ok(parity)
}

/// The wanted range of a degraded read. `stored` has the bytes that each source stores of it, in
/// the order of the sources.
pub fn rebuild_range(
    code: &dyn ErasureCode,
    read: &DegradedRead,
    stored: &[&[u8]],
) -> Result<Vec<u8>> {
    let len = (read.range.end - read.range.start) as usize;
    let padded: Vec<Cow<'_, [u8]>> = stored.iter().map(|bytes| padded(bytes, len)).collect();
    let mut cells = [None; DATA + PARITY];
    for (source, bytes) in read.sources.iter().zip(&padded) {
        cells[usize::from(source.chunk)] = Some(&**bytes);
    }
    let mut out = vec![0; len];
    code.rebuild(&cells, read.chunk, &mut out)?;
    Ok(out)
}

/// The bytes with zeros up to `len`.
fn padded(bytes: &[u8], len: usize) -> Cow<'_, [u8]> {
    if bytes.len() >= len {
        return Cow::Borrowed(bytes);
    }
    let mut owned = bytes.to_vec();
    owned.resize(len, 0);
    Cow::Owned(owned)
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;
    use reed_solomon_erasure::galois_8;

    use super::super::layout::{BlobLayout, CellSize, Scheme};
    use super::{ErasureCode, Rs42, encode_stripe, rebuild_range};

    fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        bytes
    }

    /// The six cells of random data.
    fn cells(rng: &mut Rng, len: usize) -> Vec<Vec<u8>> {
        let mut cells: Vec<_> = (0..6).map(|_| random(rng, len)).collect();
        let (data, parity) = cells.split_at_mut(4);
        let [first, second] = parity else { panic!("two parity cells") };
        let data = std::array::from_fn(|at| &data[at][..]);
        Rs42::new().unwrap().encode(&data, &mut [first, second]).unwrap();
        cells
    }

    #[test]
    fn matrix_has_the_bytes_of_the_format() {
        let golden = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 4, 8];
        assert_eq!(Rs42::new().unwrap().matrix(), golden);
    }

    #[test]
    fn parity_of_known_cells_does_not_change() {
        let data: Vec<Vec<u8>> =
            (0..4u8).map(|c| (0..8).map(|at| c * 50 + at * 9).collect()).collect();
        let mut parity = [vec![0; 8], vec![0; 8]];
        let cells = std::array::from_fn(|at| &data[at][..]);
        let mut slices = parity.each_mut().map(|p| &mut **p);
        Rs42::new().unwrap().encode(&cells, &mut slices).unwrap();
        assert_eq!(parity[0], [192, 192, 136, 152, 64, 32, 8, 56]);
        assert_eq!(parity[1], [45, 90, 118, 129, 43, 187, 154, 141]);
    }

    #[test]
    fn parity_agrees_with_another_library() {
        let rng = &mut Rng::with_seed(1);
        for len in [1, 15, 16, 4096, 70_001] {
            let cells = cells(rng, len);
            let matrix = Rs42::new().unwrap().matrix().to_vec();
            for row in 4..6 {
                let mut wanted = vec![0; len];
                for (data, factor) in cells[..4].iter().zip(&matrix[row * 4..]) {
                    galois_8::mul_slice_xor(*factor, data, &mut wanted);
                }
                assert!(cells[row] == wanted, "row {row} of {len} bytes");
            }
        }
    }

    #[test]
    fn any_four_cells_rebuild_the_other_two() {
        let code = Rs42::new().unwrap();
        let cells = cells(&mut Rng::with_seed(2), 1000);
        for first in 0..6 {
            for second in 0..6 {
                let kept = |at: usize| at != first && at != second;
                let present = std::array::from_fn(|at| kept(at).then_some(&cells[at][..]));
                for lost in [first, second] {
                    let mut out = vec![0; 1000];
                    code.rebuild(&present, lost as u8, &mut out).unwrap();
                    assert!(out == cells[lost], "lost {first} and {second}");
                }
            }
        }
        let three = std::array::from_fn(|at| (at < 3).then_some(&cells[at][..]));
        assert!(code.rebuild(&three, 5, &mut [0; 1000]).is_err());
    }

    #[test]
    fn every_range_of_a_blob_is_rebuilt_after_two_losses() {
        let code = Rs42::new().unwrap();
        for seed in 0..30 {
            let rng = &mut Rng::with_seed(seed);
            let len = rng.u64(1..3 << 20);
            let layout = BlobLayout { scheme: Scheme::Rs42(CellSize::Small), len_bytes: len };
            let blob = random(rng, len as usize);
            let mut chunks = vec![Vec::new(); 6];
            for stripe in blob.chunks(CellSize::Small.stripe_bytes() as usize) {
                for (chunk, cell) in stripe.chunks(CellSize::Small.bytes() as usize).enumerate() {
                    chunks[chunk].extend_from_slice(cell);
                }
                let parity = encode_stripe(&code, CellSize::Small, stripe).unwrap();
                chunks[4].extend_from_slice(&parity[0]);
                chunks[5].extend_from_slice(&parity[1]);
            }
            for (chunk, bytes) in (0..).zip(&chunks) {
                assert_eq!(bytes.len() as u64, layout.chunk_len(chunk), "chunk {chunk} of {len}");
            }
            let lost = rng.u8(0..6);
            let readable: Vec<u8> = (0..6).filter(|c| *c != lost && *c != (lost + 1) % 6).collect();
            let start = rng.u64(0..=layout.chunk_len(lost));
            let end = rng.u64(start..=layout.chunk_len(lost));
            let read = layout.degraded(lost, start..end, &readable).unwrap();
            let stored = read.sources.iter().map(|source| {
                let range = source.stored.start as usize..source.stored.end as usize;
                &chunks[usize::from(source.chunk)][range]
            });
            let stored: Vec<&[u8]> = stored.collect();
            let rebuilt = rebuild_range(&code, &read, &stored).unwrap();
            let wanted = &chunks[usize::from(lost)][start as usize..end as usize];
            assert!(rebuilt == wanted, "seed {seed}: {start}..{end} of chunk {lost} of {len}");
        }
    }
}
