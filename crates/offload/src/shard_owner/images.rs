//! One-sided fetches of memtable images by a process that is not their owner (O³-LSM §4.3, phase
//! 3).
//!
//! An executor has one [`ImageFetcher`]. The package of a flush has the places of the images and
//! the keys of their regions. So a fetch needs no request to the node. The owner may have released
//! an image meanwhile, and the node may have put other bytes there. So the fetcher compares the
//! checksum of each image's header with the one in the package. Then it opens the image, which
//! checks all sections.
//!
//! Invariants:
//! 1. An image that [`ImageFetcher::fetch`] returns is the one that the owner sent.
//! 2. A region stays attached only while a fetch from its node runs, so that the node can give its
//!    memory back.
//! 3. The next fetch makes a new link if a READ got no answer.
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

/// Number of images that one call fetches at the same time.
const IN_PARALLEL: usize = 4;
/// Number of nodes whose links are kept while no job uses them.
const IDLE_MAX: usize = 8;

/// The links to a node, and the number of fetches that use them.
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

    /// Fetches images of one node, and waits for them. `on_part` gets the number of bytes of each
    /// completed READ, at most a mebibyte, and may end the fetch with an error. Errors: `Io` if an
    /// image is gone, was replaced, or does not lie within its region; the error of `on_part`.
    pub fn fetch(
        &self,
        node: &ImageNode,
        images: &[ImagePlace],
        on_part: &(dyn Fn(u64) -> Result<()> + Sync),
    ) -> Result<Vec<Arc<SealedImage>>> {
        let used = self.begin(node);
        let all = async {
            let mut fetched = Vec::with_capacity(images.len());
            for some in images.chunks(IN_PARALLEL) {
                let fetch = |image| self.fetch_one(&used.links, image, on_part);
                for opened in join_all(some.iter().map(fetch)).await {
                    fetched.push(opened?);
                }
            }
            Ok::<_, Error>(fetched)
        };
        match self.waits {
            Waits::Receiving => fabric::block_on(all),
            Waits::InRuntime => wait_for(&*self.runtime, all),
        }
    }

    async fn fetch_one(
        &self,
        links: &NodeLinks,
        image: &ImagePlace,
        on_part: &(dyn Fn(u64) -> Result<()> + Sync),
    ) -> Result<Arc<SealedImage>> {
        let place = image.place;
        let failed = |why: &dyn fmt::Display| {
            let (name, at) = (image.name, image.at());
            Error::new(ErrorKind::Io, format!("image {name} at memory node {at}: {why}"))
        };
        let ended = Mutex::new(None);
        let on_read = |bytes| on_part(bytes).map_err(|error| *ended.lock() = Some(error)).is_ok();
        let read = links.read_parts(&place.key, place.at, place.bytes, &on_read);
        let read = within(&*self.runtime, self.terms.image(place.bytes), read).await;
        if let Some(error) = ended.into_inner() {
            return Err(error);
        }
        let bytes = match read.unwrap_or_else(|| Err(OneSidedFailure::late())) {
            Ok(bytes) => bytes,
            Err(OneSidedFailure::NoAnswer(none)) => {
                // The link may have died silently. The next fetch makes a new one.
                links.hang_up();
                return Err(failed(&none.why));
            }
            Err(OneSidedFailure::Refused(refusal)) => return Err(failed(&refusal)),
        };
        if head_sum(&bytes) != image.head_sum {
            return Err(failed(&"other bytes lie there, because the owner has released it"));
        }
        SealedImage::open(bytes).map_err(|error| failed(&error))
    }

    fn begin(&self, node: &ImageNode) -> FetchLinks<'_> {
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
        FetchLinks { fetcher: self, at: node.at, links: Arc::clone(&used.links) }
    }
}

/// The links to a node while a fetch uses them. The drop ends the use, also after a panic.
struct FetchLinks<'a> {
    fetcher: &'a ImageFetcher,
    at: NodeLife,
    links: Arc<NodeLinks>,
}

impl Drop for FetchLinks<'_> {
    fn drop(&mut self) {
        let mut nodes = self.fetcher.nodes.lock();
        if let Some(used) = nodes.get_mut(&self.at) {
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use archipelago_base::Epoch;
    use archipelago_base::runtime::ThreadRuntime;
    use archipelago_fabric::{Endpoints, NodeId};

    use super::*;

    #[test]
    fn links_have_no_user_after_a_panic() {
        let runtime = ThreadRuntime::shared().expect("a runtime");
        let fetcher = ImageFetcher::new(Arc::new(Endpoints::new()), runtime, Waits::Receiving);
        let at = NodeLife { node: NodeId(3), life: Epoch(1) };
        let node = ImageNode { at, endpoints: Vec::new() };
        let first = fetcher.begin(&node);
        let panics = || {
            let _second = fetcher.begin(&node);
            panic!("a callback");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(fetcher.nodes.lock()[&at].users, 1, "the first fetch goes on");
        drop(first);
        assert_eq!(fetcher.nodes.lock()[&at].users, 0);
    }
}
