//! Layouts against a model that places every byte by itself.

use archipelago_base::random::Rng;
use archipelago_env::FileClass;

use super::{
    BlobLayout, CellSize, ChecksumContext, PIECE_BYTES, Redundancy, RedundancyMode, Scheme,
    stripe_cell_len,
};
use crate::ids::BlobId;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const RS: Scheme = Scheme::Rs42(CellSize::Small);

fn coded(len_bytes: u64) -> BlobLayout {
    BlobLayout { scheme: RS, len_bytes }
}

/// Chunk and offset of a byte of a coded blob.
fn location(cell: u64, at: u64) -> (u8, u64) {
    ((at / cell % 4) as u8, at / cell / 4 * cell + at % cell)
}

fn lengths(rng: &mut Rng) -> u64 {
    let stripe = CellSize::Small.stripe_bytes();
    match rng.u8(0..4) {
        0 => rng.u64(0..3) * stripe,
        1 => rng.u64(0..3) * stripe + rng.u64(1..5) * 256 * KIB,
        2 => rng.u64(0..3) * stripe + rng.u64(1..stripe),
        _ => rng.u64(1..16 * KIB),
    }
}

#[test]
fn size_hint_chooses_scheme() {
    let of = |hint| Scheme::for_blob(Redundancy::Coded, hint);
    assert_eq!(of(MIB - 1), Scheme::Replicas(3));
    assert_eq!(of(0), Scheme::Rs42(CellSize::Small));
    assert_eq!(of(MIB), Scheme::Rs42(CellSize::Small));
    assert_eq!(of(64 * MIB - 1), Scheme::Rs42(CellSize::Small));
    assert_eq!(of(64 * MIB), Scheme::Rs42(CellSize::Large));
    assert_eq!(Scheme::for_blob(Redundancy::Replicated, 64 * MIB), Scheme::Replicas(3));
}

#[test]
fn mode_decides_which_classes_are_coded() {
    use FileClass::{Manifest, Other, Sst, ValueSst};
    let coded = |mode: RedundancyMode| {
        [Sst, ValueSst, Manifest, Other].map(|class| mode.redundancy(class) == Redundancy::Coded)
    };
    assert_eq!(coded(RedundancyMode::ByClass), [false, true, false, false]);
    assert_eq!(coded(RedundancyMode::AllReplicated), [false; 4]);
    assert_eq!(coded(RedundancyMode::AllCoded), [true, true, false, false]);
}

#[test]
fn chunks_have_the_lengths_of_their_cells() {
    let cell = 256 * KIB;
    let chunks = |len| [0, 1, 2, 3, 4, 5].map(|chunk| coded(len).chunk_len(chunk));
    assert_eq!(chunks(0), [0; 6]);
    assert_eq!(chunks(100), [100, 0, 0, 0, 100, 100]);
    assert_eq!(chunks(cell + 7), [cell, 7, 0, 0, cell, cell]);
    assert_eq!(chunks(4 * cell), [cell; 6]);
    assert_eq!(chunks(4 * cell + 1), [cell + 1, cell, cell, cell, cell + 1, cell + 1]);
    let replicas = BlobLayout { scheme: Scheme::Replicas(3), len_bytes: 100 };
    assert_eq!([0, 1, 2].map(|chunk| replicas.chunk_len(chunk)), [100; 3]);
}

#[test]
fn requests_cover_every_byte_once() {
    for seed in 0..500 {
        let rng = &mut Rng::with_seed(seed);
        let len = lengths(rng);
        let layout = coded(len);
        let start = rng.u64(0..=len);
        let end = rng.u64(start..=len);
        let requests = layout.requests(start..end);
        let mut wanted = 0;
        for request in &requests {
            let mut at = request.parts.first().unwrap().in_chunk.start;
            assert!(request.covering.start <= at, "seed {seed}");
            for part in &request.parts {
                assert_eq!(part.in_chunk.start, at, "parts are neighbours, seed {seed}");
                at = part.in_chunk.end;
                let size = part.in_chunk.end - part.in_chunk.start;
                wanted += size;
                for byte in [0, size - 1] {
                    let place = location(256 * KIB, part.blob_offset + byte);
                    assert_eq!(place, (request.chunk, part.in_chunk.start + byte), "seed {seed}");
                }
            }
            assert!(at <= request.covering.end, "seed {seed}");
            assert!(request.covering.end <= layout.chunk_len(request.chunk), "seed {seed}");
            assert!(request.covering.start.is_multiple_of(PIECE_BYTES), "seed {seed}");
        }
        assert_eq!(wanted, end - start, "seed {seed}");
    }
}

#[test]
fn read_inside_one_cell_is_one_request_for_its_pieces() {
    let layout = coded(8 * MIB);
    let requests = layout.requests(MIB + 300 * KIB..MIB + 316 * KIB);
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].chunk, 1);
    assert_eq!(requests[0].covering, 300 * KIB..316 * KIB);
    let unaligned = layout.requests(5000..5001);
    assert_eq!(unaligned[0].covering, 4096..8192);
}

#[test]
fn answers_are_copied_to_their_offsets() {
    let layout = coded(3 * MIB + 12_345);
    let byte = |at: u64| (at % 251) as u8;
    let mut chunks = [(); 4].map(|()| Vec::new());
    for at in 0..layout.len_bytes {
        chunks[usize::from(location(256 * KIB, at).0)].push(byte(at));
    }
    let (start, end) = (200 * KIB + 1, 2 * MIB + 777);
    let mut buf = vec![0; (end - start) as usize];
    for request in layout.requests(start..end) {
        let range = request.covering.start as usize..request.covering.end as usize;
        request.copy_to(&chunks[usize::from(request.chunk)][range], start, &mut buf);
    }
    assert!(buf.iter().zip(start..).all(|(got, at)| *got == byte(at)));
}

#[test]
fn degraded_read_needs_same_range_of_four_other_chunks() {
    let layout = coded(8 * MIB);
    let read = layout.degraded(1, 5000..9000, &[5, 0, 1, 2, 3, 4]).unwrap();
    assert_eq!(read.sources.iter().map(|s| s.chunk).collect::<Vec<_>>(), [0, 2, 3, 5]);
    for source in &read.sources {
        assert_eq!(source.stored, 5000..9000);
        assert_eq!(source.covering, 4096..12288);
    }
    assert_eq!(layout.degraded(1, 0..10, &[0, 2, 3]), None);
    let replicas = BlobLayout { scheme: Scheme::Replicas(3), len_bytes: 100 };
    assert_eq!(replicas.degraded(1, 0..10, &[0, 2]), None);
}

#[test]
fn degraded_read_of_last_stripe_takes_padding_for_free() {
    let layout = coded(256 * KIB + 100);
    // Chunks 2 and 3 store nothing, so two holders suffice.
    let read = layout.degraded(0, 0..1000, &[1, 5]).unwrap();
    let stored: Vec<_> = read.sources.iter().map(|s| (s.chunk, s.stored.clone())).collect();
    assert_eq!(stored, [(1, 0..100), (2, 0..0), (3, 0..0), (5, 0..1000)]);
    assert_eq!(read.sources[0].covering, 0..100);
    assert_eq!(layout.degraded(0, 0..1000, &[5]), None);
}

#[test]
fn stored_bytes_are_half_more_than_data() {
    assert_eq!(coded(8 * MIB).stored_bytes(), 12 * MIB);
    assert_eq!(coded(8 * MIB).scheme.bytes_per_byte(), 1.5);
    assert_eq!(Scheme::Replicas(3).bytes_per_byte(), 3.0);
    assert_eq!([RS.chunks_min(), Scheme::Replicas(3).chunks_min()], [4, 1]);
    for seed in 0..200 {
        let layout = coded(lengths(&mut Rng::with_seed(seed)));
        let rest = layout.len_bytes % MIB;
        let parity = 2 * stripe_cell_len(CellSize::Small, rest, 4);
        let full = layout.len_bytes - rest;
        assert_eq!(layout.stored_bytes(), full / 2 * 3 + rest + parity, "seed {seed}");
    }
}

#[test]
fn checksum_is_bound_to_blob_index_and_offset() {
    let context = ChecksumContext { blob: BlobId([7; 16]), index: 1 };
    let right = context.piece_crc(4096, b"piece");
    assert_eq!(right, 0xDFA8_3F76, "chunks keep these checksums");
    let other_blob = ChecksumContext { blob: BlobId([8; 16]), ..context };
    assert_ne!(right, other_blob.piece_crc(4096, b"piece"));
    assert_ne!(right, ChecksumContext { index: 2, ..context }.piece_crc(4096, b"piece"));
    assert_ne!(right, context.piece_crc(8192, b"piece"));
}

#[test]
fn damaged_piece_is_found_by_its_offset() {
    let context = ChecksumContext { blob: BlobId([3; 16]), index: 0 };
    let mut bytes = vec![5; 10_000];
    let crcs = context.piece_crcs(8192, &bytes);
    assert_eq!(crcs.len(), 3);
    assert_eq!(context.first_damaged_piece(8192, &bytes, &crcs), None);
    assert_eq!(context.first_damaged_piece(8192, &bytes, &crcs[..2]), Some(16_384));
    bytes[5000] ^= 1;
    assert_eq!(context.first_damaged_piece(8192, &bytes, &crcs), Some(12_288));
}

#[test]
fn replicas_share_their_checksums() {
    let replicas = BlobLayout { scheme: Scheme::Replicas(3), len_bytes: 100 };
    assert_eq!([0, 1, 2].map(|chunk| replicas.checksum_index(chunk)), [0; 3]);
    assert_eq!([0, 1, 5].map(|chunk| coded(100).checksum_index(chunk)), [0, 1, 5]);
}
