//! The records of an away shard in memory: the fetched image, or a shard that was rebuilt from the
//! log. Both have exactly the records of the shard.
//!
//! Thread-safety: any thread may call any method.
//! Failure: errors of the image, if a record of it is damaged.
//! Cost: those of the shard or of the image.

use std::sync::Arc;

use archipelago_base::Result;
use archipelago_base::budget::Charge;

use crate::iter::InternalIterator;
use crate::lookup::{Found, Lookup, Visit};
use crate::memtable::{SealedImage, SealedShard, Shard};

/// The image of a shard in memory.
pub(crate) struct FetchedImage {
    image: Arc<SealedImage>,
    _charge: Charge,
}

impl FetchedImage {
    /// The image, with the memory charge that ends with it.
    pub(super) fn new(image: Arc<SealedImage>, charge: Charge) -> Self {
        Self { image, _charge: charge }
    }
}

/// The records of an away shard in memory.
#[derive(Clone)]
pub(crate) enum ShardCopy {
    /// A shard that was rebuilt from the log.
    Rebuilt(Arc<Shard>),
    /// The image that was sent.
    Image(Arc<FetchedImage>),
}

impl ShardCopy {
    /// Passes the versions of a key that the snapshot sees to `visit`, newest first, until `visit`
    /// breaks.
    pub(crate) fn lookup(
        &self,
        lookup: &Lookup<'_>,
        visit: impl FnMut(&Found<'_>) -> Visit,
    ) -> Result<()> {
        match self {
            Self::Rebuilt(shard) => {
                shard.lookup(lookup, visit);
                Ok(())
            }
            Self::Image(fetched) => fetched.image.lookup(lookup, visit),
        }
    }

    /// A cursor over all point records.
    pub(crate) fn iter(&self) -> Box<dyn InternalIterator> {
        match self {
            Self::Rebuilt(shard) => Box::new(shard.iter()),
            Self::Image(fetched) => Box::new(fetched.image.iter()),
        }
    }

    /// The shard as a job reads it.
    pub(crate) fn sealed(&self) -> Arc<dyn SealedShard> {
        match self {
            Self::Rebuilt(shard) => Arc::clone(shard) as _,
            Self::Image(fetched) => Arc::clone(&fetched.image) as _,
        }
    }
}
