//! The memtable shards of a flush, as an executor gets them (O³-LSM §4.3, phases 2 and 3).
//!
//! In **in-memory-node mode** the executor runs in the process of the memory node that holds the
//! image, and reads it in place. In **remote mode** it fetches the image one-sided. One job may do
//! both, if its shards lie on several nodes.
//!
//! Invariants:
//! 1. A job gets exactly the images that its package names, or it fails. A failed job has written
//!    nothing.
//! 2. An image that is read in place keeps its bytes until the job has ended, also after a release.
//! 3. The fetched images of all jobs have at most [`IMAGE_BYTES_MAX`] bytes together.
//!
//! An image is identified by its place, its key and the checksum of its header. The memory node
//! holds it under a name. If the owner took the shard over from an earlier open, this is the name
//! of that open, although the spec has numbers of the present open.
//!
//! Thread-safety: job threads use one [`ImageReader`] in parallel.
//! Failure: an error of the kind `Io`, which ends the attempt. The owner then has another copy, or
//! rebuilds the shard.
//! Cost: a lock for an image in place. [`ImageFetcher`] names the cost of a fetch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::clock::Clock;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::job::{Cancel, FetchPermit, FetchRoom, ShardRef, ShardSource};
use archipelago_engine::memtable::{SealedImage, SealedShard};
use parking_lot::Mutex;

use crate::decide::InputReach;
use crate::ids::NodeLife;
use crate::parcel::{ImagePlace, ImageUse, JobImages};
use crate::shard_host::ShardHost;
use crate::shard_owner::ImageFetcher;

/// Bytes of images that the jobs of one reader have fetched and still use, at most.
const IMAGE_BYTES_MAX: u64 = 1 << 30;

/// The shards of one flush.
pub(super) struct JobShards {
    shards: Vec<(ShardRef, Arc<SealedImage>)>,
    /// Permit for the memory of the fetched images. It is dropped after them.
    _room: FetchPermit,
}

impl ShardSource for JobShards {
    fn shard(&self, wanted: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        let found = self.shards.iter().find(|(named, _)| named == wanted);
        let missing = || {
            let ShardRef { memtable, shard } = wanted;
            Error::not_found(format!("shard {memtable}/{shard}: the package has no image of it"))
        };
        let (_, image) = found.ok_or_else(missing)?;
        Ok(Arc::clone(image) as Arc<dyn SealedShard>)
    }
}

/// Progress of the fetches of a job, shared with the thread that watches the job.
#[derive(Clone, Debug, Default)]
pub(super) struct FetchProgress {
    pub(super) cancel: Cancel,
    /// Bytes that were fetched so far.
    pub(super) bytes: Arc<AtomicU64>,
    /// Whether the job waits for room. The thread that watches the job counts such a wait as a sign
    /// of life.
    pub(super) waits: Arc<AtomicBool>,
}

/// Reserves memory for the images that a job fetches, and waits until other jobs leave enough.
/// Errors: `Unsupported` if `bytes` exceed [`IMAGE_BYTES_MAX`]; `Closed` if the job was cancelled.
fn take_room(room: &Arc<FetchRoom>, bytes: u64, progress: &FetchProgress) -> Result<FetchPermit> {
    if bytes > IMAGE_BYTES_MAX {
        return Err(Error::unsupported(format!(
            "the images of the flush have {bytes} bytes, and this executor fetches at most \
             {IMAGE_BYTES_MAX} for all of its jobs"
        )));
    }
    progress.waits.store(true, Ordering::Relaxed);
    let taken = room.take(bytes, IMAGE_BYTES_MAX, &progress.cancel);
    progress.waits.store(false, Ordering::Relaxed);
    taken
}

/// Opens the images of flushes in this process or over the fabric.
pub(super) struct ImageReader {
    hosted: Option<Arc<ShardHost>>,
    fetcher: ImageFetcher,
    room: Arc<FetchRoom>,
    /// Cost of a fetch, as the last jobs have measured it.
    reach: Mutex<InputReach>,
}

impl ImageReader {
    pub(super) fn new(hosted: Option<Arc<ShardHost>>, fetcher: ImageFetcher) -> Self {
        Self { hosted, fetcher, room: Arc::default(), reach: Mutex::default() }
    }

    /// The present reach of this executor.
    pub(super) fn reach(&self) -> InputReach {
        let home = self.hosted.as_ref().and_then(|host| host.life());
        InputReach { home, ..*self.reach.lock() }
    }

    /// Notes the times of a job that has ended, if the job fetched images.
    pub(super) fn note(&self, used: &ImageUse) {
        if used.fetched > 0 {
            let mut reach = self.reach.lock();
            *reach = reach.after(used.open_ns, used.run_ns);
        }
    }

    /// Opens the images of a flush. Waits until other jobs leave room for those that it fetches.
    /// Errors: `Io` for an image that is gone or is another one; `Closed` if the job was cancelled;
    /// `InvalidArgument` for another number of images; `Unsupported` for too many bytes.
    pub(super) fn open(
        &self,
        spec: &FlushSpec,
        images: &JobImages,
        progress: &FetchProgress,
        clock: &dyn Clock,
    ) -> Result<(JobShards, ImageUse)> {
        if images.images.len() != spec.shards.len() {
            return Err(Error::invalid("the package has another number of images than the flush"));
        }
        let home = self.hosted.as_ref().zip(self.reach().home);
        let mut used = ImageUse::default();
        let mut opened: Vec<Option<Arc<SealedImage>>> = Vec::with_capacity(images.images.len());
        let mut far: BTreeMap<NodeLife, Vec<usize>> = BTreeMap::new();
        let mut far_bytes = 0u64;
        for (index, image) in images.images.iter().enumerate() {
            opened.push(match home {
                Some((host, life)) if life == image.at() => {
                    used.in_place += 1;
                    Some(in_place(host, images, image)?)
                }
                _ => {
                    far.entry(image.at()).or_default().push(index);
                    far_bytes = far_bytes.saturating_add(image.place.bytes);
                    None
                }
            });
        }
        let room = take_room(&self.room, far_bytes, progress)?;
        let started_ns = clock.now_ns();
        for (at, indexes) in far {
            let wanted: Vec<ImagePlace> =
                indexes.iter().map(|&index| images.images[index]).collect();
            let fetched = self.fetch(images, at, &wanted, progress)?;
            used.fetched += fetched.len() as u32;
            for (index, image) in indexes.into_iter().zip(fetched) {
                opened[index] = Some(image);
            }
        }
        used.fetched_bytes = far_bytes;
        used.open_ns = clock.now_ns().saturating_sub(started_ns);
        let shards = spec.shards.iter().zip(opened);
        let shards = shards.filter_map(|(shard, image)| Some((*shard, image?))).collect();
        Ok((JobShards { shards, _room: room }, used))
    }

    /// Fetches images of one node.
    fn fetch(
        &self,
        images: &JobImages,
        at: NodeLife,
        wanted: &[ImagePlace],
        progress: &FetchProgress,
    ) -> Result<Vec<Arc<SealedImage>>> {
        let node = images.nodes.iter().find(|node| node.at == at);
        let unknown = || Error::invalid(format!("the package does not say where node {at} is"));
        let on_part = |bytes: u64| {
            progress.bytes.fetch_add(bytes, Ordering::Relaxed);
            progress.cancel.check()
        };
        self.fetcher.fetch(node.ok_or_else(unknown)?, wanted, &on_part)
    }
}

/// An image of the memory node in this process.
fn in_place(host: &ShardHost, images: &JobImages, image: &ImagePlace) -> Result<Arc<SealedImage>> {
    let gone = || {
        let what =
            format!("image {}: this memory node does not hold it there any more", image.name);
        Error::new(ErrorKind::Io, what)
    };
    host.image(images.db, image.name, &image.place).ok_or_else(gone)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use archipelago_base::clock::SystemClock;

    use super::*;

    /// Milliseconds for which a test waits for another thread.
    const WAITS_MAX: u32 = 60_000;

    #[test]
    fn images_of_all_jobs_have_a_bound() {
        let (room, free) = (Arc::default(), FetchProgress::default());
        let too_large = take_room(&room, IMAGE_BYTES_MAX + 1, &free).expect_err("too large");
        assert_eq!(too_large.kind(), ErrorKind::Unsupported);
        assert!(too_large.to_string().contains("1073741825 bytes"), "{too_large}");
        let all = take_room(&room, IMAGE_BYTES_MAX, &free).expect("room");
        let _nothing = take_room(&room, 0, &free).expect("all images are read in place");
        let stopped = FetchProgress::default();
        stopped.cancel.cancel();
        let error = take_room(&room, 1, &stopped).expect_err("no room, and cancelled");
        assert_eq!(error.kind(), ErrorKind::Closed);
        drop(all);
        assert!(take_room(&room, 1, &stopped).is_ok(), "a job that need not wait");
    }

    #[test]
    fn job_that_waits_for_room_says_so() {
        let (room, waiting) = (Arc::default(), FetchProgress::default());
        let all = take_room(&room, IMAGE_BYTES_MAX, &FetchProgress::default()).expect("room");
        std::thread::scope(|scope| {
            let job = scope.spawn(|| take_room(&room, 1, &waiting).map(drop));
            let clock = SystemClock::new();
            let says_so = (0..WAITS_MAX).any(|_| {
                clock.sleep(Duration::from_millis(1));
                waiting.waits.load(Ordering::Relaxed)
            });
            let is_finished = job.is_finished();
            // A failed assertion before this would leave the job waiting for ever.
            drop(all);
            job.join().expect("no panic").expect("room");
            assert!(says_so && !is_finished, "the job did not say that it waits");
        });
        assert!(!waiting.waits.load(Ordering::Relaxed));
    }
}
