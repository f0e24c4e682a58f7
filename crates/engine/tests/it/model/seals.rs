//! What a case learns from the events of its database, and how it disturbs the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use archipelago_base::CfId;
use archipelago_engine::db::FaultPoint;
use archipelago_engine::event::{Event as Told, EventListener};
use parking_lot::Mutex;

use super::taken::MidwayTaker;
use crate::beside::Beside;
use crate::fragile::Fragile;
use crate::separation::Separation;

/// What a case's database is watched and disturbed by: which families' memtables were sealed since
/// it was last asked, how many bucket boundaries have moved, by hand and by the load, how many
/// parts compactions were cut into, and extensions that may panic.
#[derive(Default)]
pub(super) struct Seals {
    sealed: Mutex<Vec<CfId>>,
    by_hand: AtomicUsize,
    by_load: AtomicUsize,
    parts: AtomicUsize,
    /// Garbage collections that were installed.
    pub(super) collected: AtomicU64,
    /// Controls when extensions panic.
    pub(super) fragile: Fragile,
    /// Background steps during the installation of an ingestion.
    pub(super) beside: Arc<Beside>,
}

impl Seals {
    /// Families whose memtables were sealed since the last call.
    pub(super) fn take_sealed(&self) -> Vec<CfId> {
        std::mem::take(&mut *self.sealed.lock())
    }

    /// Number of parts that compactions were cut into, where they were.
    pub(super) fn parts(&self) -> usize {
        self.parts.load(Ordering::Relaxed)
    }

    /// Number of bucket boundaries that moved so far, by request or because of the load.
    pub(super) fn moved(&self) -> (usize, usize) {
        (self.by_hand.load(Ordering::Relaxed), self.by_load.load(Ordering::Relaxed))
    }

    /// Makes ingestions and snapshots coincide with jobs. (The reads of `taker` are only for that,
    /// and not for panics.)
    pub(super) fn fault_point(
        &self,
        taker: &Arc<MidwayTaker>,
        separation: Separation,
    ) -> FaultPoint {
        let (beside, fragile) = (Arc::clone(&self.beside), self.fragile.clone());
        let take = taker.fault_point();
        Arc::new(move |name| {
            separation.reached(name)?;
            beside.reached(name);
            fragile.pause(true);
            let taken = take(name);
            fragile.pause(false);
            taken
        })
    }
}

impl EventListener for Seals {
    fn on_event(&self, event: &Told) {
        match event {
            Told::MemtableSealed { cf, .. } => self.sealed.lock().push(*cf),
            Told::CompactionInstalled { threads_ns, .. } if threads_ns.len() > 1 => {
                self.parts.fetch_add(threads_ns.len(), Ordering::Relaxed);
            }
            Told::GcInstalled { .. } => {
                self.collected.fetch_add(1, Ordering::Relaxed);
            }
            Told::BucketMapChanged { reason, .. } if reason.ends_with("on request") => {
                self.by_hand.fetch_add(1, Ordering::Relaxed);
            }
            Told::BucketMapChanged { reason, .. } if reason.contains("temperature") => {
                self.by_load.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}
