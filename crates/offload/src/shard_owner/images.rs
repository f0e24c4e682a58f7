//! Images of memtable shards that another process than the owner fetches, one-sided (O³-LSM §4.3,
//! phase 3).
//!
//! An executor has one [`ImageFetcher`]. The package of a flush names the places of the images,
//! with the keys of their regions, so that a fetch needs no request to the node. The owner may have
//! released an image meanwhile, and the node may have put other bytes there. So each image is
//! compared with the checksum of its header that the package names, and opened, which checks all of
//! its sections.
//!
//! Invariants:
//! 1. An image that [`ImageFetcher::fetch`] returns is the one that the owner sent.
//! 2. A region stays attached only while a fetch from its node runs, so that the node can give its
//!    memory back.
//!
//! Thread-safety: any thread may call any method.
//! Failure: an error of the kind `Io` says which image could not be fetched and why.
//! Cost: a READ for each mebibyte, and a checksum. The first fetch from a node makes a link.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use archipelago_base::runtime::{Runtime, join_all, wait_for};
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::memtable::SealedImage;
use archipelago_fabric::{self as fabric, Reach};
use parking_lot::Mutex;

use super::driver::Waits;
use super::links::{NodeLinks, OneSidedFailure};
use super::sends::head_sum;
use super::state::{MemoryNode, OwnerTerms};
use super::within::within;
use crate::ids::NodeLife;
use crate::parcel::{ImageNode, ImagePlace};

/// Images that one job fetches at the same time.
const IN_PARALLEL: usize = 4;
/// Nodes whose links are kept while no job uses them.
const IDLE_MAX: usize = 8;

/// The links to a node, and the fetches that use them.
#[derive(Debug)]
struct UsedLinks {
    links: Arc<NodeLinks>,
    users: usize,
}

/// Fetches images from memory nodes.
pub struct ImageFetcher {
    reach: Arc<dyn Reach>,
    runtime: Arc<dyn Runtime>,
    waits: Waits,
    terms: OwnerTerms,
    nodes: Mutex<BTreeMap<NodeLife, UsedLinks>>,
}

impl fmt::Debug for ImageFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageFetcher({:?})", self.nodes.lock().keys())
    }
}

impl ImageFetcher {
    /// A fetcher without links.
    #[must_use]
    pub fn new(reach: Arc<dyn Reach>, runtime: Arc<dyn Runtime>, waits: Waits) -> Self {
        Self { reach, runtime, waits, terms: OwnerTerms::default(), nodes: Mutex::default() }
    }

    /// Fetches images of one node, and waits for them. `on_image` gets the bytes of each one that
    /// has arrived, and may end the fetch with an error. Errors: `Io` for an image that is gone or
    /// is another one; that of `on_image`.
    pub fn fetch(
        &self,
        node: &ImageNode,
        images: &[ImagePlace],
        on_image: &(dyn Fn(u64) -> Result<()> + Sync),
    ) -> Result<Vec<Arc<SealedImage>>> {
        let links = self.begin(node);
        let all = async {
            let mut fetched = Vec::with_capacity(images.len());
            for some in images.chunks(IN_PARALLEL) {
                let reads = join_all(some.iter().map(|image| self.fetch_one(&links, image)));
                for (image, opened) in some.iter().zip(reads.await) {
                    fetched.push(opened?);
                    on_image(image.place.bytes)?;
                }
            }
            Ok::<_, Error>(fetched)
        };
        let fetched = match self.waits {
            Waits::Receiving => fabric::block_on(all),
            Waits::InRuntime => wait_for(&*self.runtime, all),
        };
        self.end(node.at);
        fetched
    }

    async fn fetch_one(&self, links: &NodeLinks, image: &ImagePlace) -> Result<Arc<SealedImage>> {
        let place = image.place;
        let failed = |why: &dyn fmt::Display| {
            let (name, at) = (image.name, image.at());
            Error::new(ErrorKind::Io, format!("image {name} at memory node {at}: {why}"))
        };
        let read = links.read(&place.key, place.at, place.bytes);
        let read = within(&*self.runtime, self.terms.image(place.bytes), read).await;
        let bytes = match read.unwrap_or_else(|| Err(OneSidedFailure::late())) {
            Ok(bytes) => bytes,
            Err(OneSidedFailure::NoAnswer(none)) => return Err(failed(&none.why)),
            Err(OneSidedFailure::Refused(refusal)) => return Err(failed(&refusal)),
        };
        if head_sum(&bytes) != image.head_sum {
            return Err(failed(&"other bytes lie there, because the owner has released it"));
        }
        SealedImage::open(bytes).map_err(|error| failed(&error))
    }

    fn begin(&self, node: &ImageNode) -> Arc<NodeLinks> {
        let mut nodes = self.nodes.lock();
        let used = nodes.entry(node.at).or_insert_with(|| {
            let NodeLife { node: number, life } = node.at;
            let endpoints = node.endpoints.clone();
            let peer = MemoryNode { node: number, life, endpoints, is_up: true };
            let links = NodeLinks::new(&self.reach, &self.runtime, &peer, &self.terms);
            UsedLinks { links: Arc::new(links), users: 0 }
        });
        used.users += 1;
        used.links.set_endpoints(&node.endpoints);
        Arc::clone(&used.links)
    }

    fn end(&self, at: NodeLife) {
        let mut nodes = self.nodes.lock();
        if let Some(used) = nodes.get_mut(&at) {
            used.users -= 1;
            if used.users == 0 {
                used.links.sweep(&[]);
            }
        }
        if nodes.len() > IDLE_MAX {
            nodes.retain(|_, used| {
                let is_used = used.users > 0;
                if !is_used {
                    used.links.hang_up();
                }
                is_used
            });
        }
    }
}
