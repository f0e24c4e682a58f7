//! Copies of images from the landing zone into the arena, and the check of the copies.
//!
//! Worker threads call [`copy_image`] without a lock. One-sided writes of an owner may come late
//! and change the landing zone at any moment. So each part is read only once, into a buffer. The
//! checksum is that of the buffer, and the arena gets the buffer. Then the copy in the arena is
//! frozen and checked as a whole.
//!
//! Invariants:
//! 1. An image that [`copy_image`] returns has the checksums that the owner named, and opens. Its
//!    records are intact and in order, and have only keys and sequence numbers that the owner
//!    announced.
//! 2. The lease of an image's range lives as long as the image.
//!
//! Failure: a refusal. If a piece does not match its checksum, the lease comes back with the
//! refusal, so that the owner can write the image again. An image that does not open means a faulty
//! owner.
//! Cost: each byte is copied twice and is read three more times by checksums.

use std::sync::Arc;

use archipelago_base::checksum::PartsHash;
use archipelago_engine::iter::InternalIterator;
use archipelago_engine::key::KeyRef;
use archipelago_engine::memtable::{SealedImage, SealedShard};
use archipelago_engine::pinned::PinOwner;
use archipelago_fabric::{FrozenSlice, Region};

use super::core::{CopiedImage, CopyEnd, CopyOrder};
use super::ranges::Lease;
use super::sabotage::HostSabotage;
use crate::wire::shard::{Piece, ShardInfo, ShardRefusal, ShardWhy, Version};

/// Size in bytes of the buffer of a copy.
const PART_BYTES: usize = 64 << 10;

/// A frozen range of an arena with its lease. The order of the fields matters: the range is thawed
/// before it is given back.
struct ArenaBytes {
    slice: FrozenSlice,
    _lease: Lease,
}

impl PinOwner for ArenaBytes {
    fn bytes(&self) -> &[u8] {
        self.slice.as_ref()
    }
}

/// The regions that a copy reads and writes.
pub(super) struct CopyRegions {
    pub(super) landing: Arc<Region>,
    pub(super) arena: Arc<Region>,
}

/// Copies an image and checks the copy.
pub(super) fn copy_image(
    order: CopyOrder,
    regions: &CopyRegions,
    sabotage: HostSabotage,
) -> CopyEnd {
    let CopyOrder { db, shard, grant, info, pieces, landing, mut place } = order;
    let bytes = pieces.iter().map(|piece| piece.len).sum();
    let copied = copy_pieces(&pieces, &landing, &place, regions, sabotage);
    let result = match copied {
        Ok(()) => {
            place.shrink(bytes);
            open_image(&info, place, &regions.arena).map_err(|refusal| (refusal, None))
        }
        Err(refusal) => Err((refusal, Some(place))),
    };
    CopyEnd { db, shard, grant, info, landing, result }
}

fn copy_pieces(
    pieces: &[Piece],
    landing: &Lease,
    place: &Lease,
    regions: &CopyRegions,
    sabotage: HostSabotage,
) -> Result<(), ShardRefusal> {
    let mut buffer = vec![0; PART_BYTES];
    let mut to = place.at();
    for piece in pieces {
        let (mut sum, mut done) = (PartsHash::default(), 0);
        while done < piece.len {
            let len = (piece.len - done).min(PART_BYTES as u64);
            let part = &mut buffer[..len as usize];
            // The core has checked that the pieces lie within the grant and fit into the lease.
            let from = landing.at() + piece.at + done;
            regions.landing.read(from, part).map_err(|_| ShardWhy::BadPiece)?;
            sum.append(part);
            regions.arena.write(to, part).map_err(|refusal| {
                tracing::error!(%refusal, "a leased range of an arena cannot be written");
                ShardWhy::BadPiece
            })?;
            (done, to) = (done + len, to + len);
        }
        if sum.get() != piece.sum && !sabotage.no_piece_check() {
            return Err(ShardRefusal::at(ShardWhy::BadPiece, piece.at));
        }
    }
    Ok(())
}

/// Freezes the copy, opens it and checks all of it.
fn open_image(info: &ShardInfo, place: Lease, arena: &Region) -> Result<CopiedImage, ShardRefusal> {
    let (region, at, bytes) = (place.region(), place.at(), place.bytes());
    let slice = arena.frozen(at..at + bytes).map_err(|error| {
        tracing::error!(%error, "a leased range of an arena cannot be frozen");
        ShardWhy::BadImage
    })?;
    let owner = Arc::new(ArenaBytes { slice, _lease: place });
    let image = SealedImage::open_owner(owner).map_err(|error| {
        tracing::warn!(%error, "an owner sent bytes that are no image");
        ShardWhy::BadImage
    })?;
    check(&image, info)?;
    Ok(CopiedImage { image, region, at, bytes })
}

/// Reads all records of an image, and compares their keys and sequence numbers with the
/// announcement.
fn check(image: &Arc<SealedImage>, info: &ShardInfo) -> Result<(), ShardRefusal> {
    let mut records = SealedShard::verified_iter(Arc::clone(image));
    let (mut count, mut all_fit) = (0, true);
    records.seek_to_first();
    while records.valid() {
        all_fit &= KeyRef::decode(records.key()).is_some_and(|key| {
            Version::may_have(key.kind)
                && key.seq <= info.last_seq
                && info.keys.0.contains(key.user_key)
        });
        count += 1;
        records.next();
    }
    records.status().map_err(|error| {
        tracing::warn!(%error, "an owner sent an image with damaged records");
        ShardWhy::BadImage
    })?;
    let (_, largest_seq) = SealedShard::seq_range(&**image);
    if count != image.entries() || !all_fit || largest_seq > info.last_seq {
        return Err(ShardWhy::OtherRecords.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
