//! The memtable shards of a flush, as an executor gets them (O³-LSM §4.3, phases 2 and 3).
//!
//! In **in-memory-node mode** the executor runs in the process of the memory node that holds the
//! image, and reads it in place. In **remote mode** it fetches the image one-sided. One job may do
//! both, if its shards lie on several nodes.
//!
//! Invariants:
//! 1. A job gets exactly the images that its package names, or it fails. A failed job has written
//!    nothing.
//! 2. An image in place keeps its bytes until the job has ended, also after a release.
//!
//! Thread-safety: job threads use it in parallel.
//! Failure: an error of the kind `Io`, which ends the attempt. The owner then has another copy, or
//! rebuilds the shard.
//! Cost: a lock for an image in place; see [`ImageFetcher`] for the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::clock::Clock;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::job::{Cancel, ShardRef, ShardSource};
use archipelago_engine::memtable::{SealedImage, SealedShard};
use parking_lot::Mutex;

use crate::decide::InputReach;
use crate::ids::NodeLife;
use crate::parcel::{ImagePlace, ImageUse, JobImages};
use crate::shard_host::ShardHost;
use crate::shard_owner::ImageFetcher;

/// The shards of one flush.
#[derive(Default)]
pub(super) struct JobShards(Vec<(ShardRef, Arc<SealedImage>)>);

impl ShardSource for JobShards {
    fn shard(&self, wanted: &ShardRef) -> Result<Arc<dyn SealedShard>> {
        let found = self.0.iter().find(|(named, _)| named == wanted);
        let missing = || {
            let ShardRef { memtable, shard } = wanted;
            Error::not_found(format!("shard {memtable}/{shard}: the package has no image of it"))
        };
        let (_, image) = found.ok_or_else(missing)?;
        Ok(Arc::clone(image) as Arc<dyn SealedShard>)
    }
}

/// What the fetches of a job share with the thread that watches it.
#[derive(Clone, Debug, Default)]
pub(super) struct FetchProgress {
    pub(super) cancel: Cancel,
    /// Bytes that were fetched so far.
    pub(super) bytes: Arc<AtomicU64>,
}

/// Opens the images of flushes in this process or over the fabric.
pub(super) struct ImageReader {
    hosted: Option<Arc<ShardHost>>,
    fetcher: ImageFetcher,
    /// Cost of a fetch, as the last jobs have measured it.
    reach: Mutex<InputReach>,
}

impl ImageReader {
    pub(super) fn new(hosted: Option<Arc<ShardHost>>, fetcher: ImageFetcher) -> Self {
        Self { hosted, fetcher, reach: Mutex::default() }
    }

    /// How this executor reaches images now.
    pub(super) fn reach(&self) -> InputReach {
        let home = self.hosted.as_ref().and_then(|host| host.life());
        InputReach { home, ..*self.reach.lock() }
    }

    /// Notes the phases of a job that has ended.
    pub(super) fn note(&self, used: &ImageUse) {
        if used.fetched > 0 {
            let mut reach = self.reach.lock();
            *reach = reach.after(used.open_ns, used.run_ns);
        }
    }

    /// Opens the images of a flush. Errors: `Io` for an image that is gone or is another one;
    /// `Closed` if the job was cancelled; `InvalidArgument` for images of other shards.
    pub(super) fn open(
        &self,
        spec: &FlushSpec,
        images: &JobImages,
        progress: &FetchProgress,
        clock: &dyn Clock,
    ) -> Result<(JobShards, ImageUse)> {
        let named = images.images.iter().map(|image| (image.name.memtable, image.name.shard));
        if !named.eq(spec.shards.iter().map(|shard| (shard.memtable, shard.shard))) {
            return Err(Error::invalid("the images of the package are not those of the flush"));
        }
        let started_ns = clock.now_ns();
        let home = self.hosted.as_ref().zip(self.reach().home);
        let mut used = ImageUse::default();
        let mut opened: Vec<Option<Arc<SealedImage>>> = Vec::with_capacity(images.images.len());
        let mut far: BTreeMap<NodeLife, Vec<usize>> = BTreeMap::new();
        for (index, image) in images.images.iter().enumerate() {
            opened.push(match home {
                Some((host, life)) if life == image.at() => {
                    used.in_place += 1;
                    Some(in_place(host, images, image)?)
                }
                _ => {
                    far.entry(image.at()).or_default().push(index);
                    None
                }
            });
        }
        for (at, indexes) in far {
            let node = images.nodes.iter().find(|node| node.at == at);
            let unknown = || Error::invalid(format!("the package does not say where node {at} is"));
            let wanted: Vec<ImagePlace> =
                indexes.iter().map(|&index| images.images[index]).collect();
            let on_image = |bytes: u64| {
                progress.bytes.fetch_add(bytes, Ordering::Relaxed);
                progress.cancel.check()
            };
            let fetched = self.fetcher.fetch(node.ok_or_else(unknown)?, &wanted, &on_image)?;
            used.fetched += fetched.len() as u32;
            used.fetched_bytes += wanted.iter().map(|image| image.place.bytes).sum::<u64>();
            for (index, image) in indexes.into_iter().zip(fetched) {
                opened[index] = Some(image);
            }
        }
        used.open_ns = clock.now_ns().saturating_sub(started_ns);
        let shards = spec.shards.iter().zip(opened);
        let shards = shards.filter_map(|(shard, image)| Some((*shard, image?))).collect();
        Ok((JobShards(shards), used))
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
