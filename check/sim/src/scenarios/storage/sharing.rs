//! A process whose blobs belong to two volumes, as after a checkpoint into another volume.
//!
//! The process writes a blob for the first volume, lets the second one retain it, and releases both
//! in any order. While a volume certainly has the blob, a read must not say that it is gone. A node
//! that was down during a call hears of it from its peers.
//!
//! Thread-safety: the thread that runs the simulation owns the value.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::Rng;
use archipelago_base::{Epoch, Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};
use archipelago_store::{BlobId, BlobOptions, BlobRef, BlobStore, VolumeId};

use super::client::{ClientProcess, ClientSettings};
use super::cluster::Cluster;
use super::run::is_loss;
use crate::scenarios::thread::{Call, SimThread};

/// The volumes that share blobs. The first one writes them.
const VOLUMES: [VolumeId; 2] = [VolumeId([0xa1; 16]), VolumeId([0xb2; 16])];
/// Epoch of both volumes.
const EPOCH: Epoch = Epoch(1);
/// Length of the longest blob.
const BLOB_BYTES_MAX: usize = 10_000;
/// Time between two checks whether a thread has ended.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS_MAX: u32 = 1_000;

/// Whether a volume has a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    Member,
    Unknown,
    Released,
}

/// A blob that was sealed.
#[derive(Clone, Debug)]
struct SharedBlob {
    blob: BlobRef,
    bytes: Arc<Vec<u8>>,
    volumes: [Membership; 2],
}

impl SharedBlob {
    fn must_exist(&self) -> bool {
        self.volumes.contains(&Membership::Member)
    }

    fn is_released(&self) -> bool {
        self.volumes == [Membership::Released; 2]
    }
}

/// Action of the process on a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharingAction {
    Read,
    Retain,
    Release(usize),
}

/// A call under way.
#[derive(Debug)]
enum SharingCall {
    Write { bytes: Arc<Vec<u8>>, call: Call<Result<BlobRef>> },
    Use { at: usize, action: SharingAction, call: Call<Result<()>> },
}

/// The process, and its blobs.
#[derive(Debug, Default)]
pub(crate) struct SharedBlobs {
    thread: Option<SimThread<ClientProcess>>,
    running: Option<SharingCall>,
    blobs: Vec<SharedBlob>,
    violations: Vec<String>,
    calls: u64,
}

impl SharedBlobs {
    /// Starts the process.
    pub(crate) fn start(&mut self, cluster: &mut Cluster, settings: ClientSettings) {
        let sim = cluster.join_client();
        self.thread = Some(SimThread::start(sim.host(), ClientProcess::new(&sim, settings)));
    }

    /// Number of calls that have succeeded.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Begins a call, unless one is under way.
    pub(crate) fn operate(&mut self, rng: &mut Rng) {
        let Some(thread) = self.thread.as_ref().filter(|_| self.running.is_none()) else { return };
        let is_new = self.blobs.is_empty() || rng.u8(..4) == 0;
        if is_new {
            let mut bytes = vec![0; rng.usize(1..BLOB_BYTES_MAX)];
            rng.fill(&mut bytes);
            let (bytes, id) = (Arc::new(bytes), BlobId::random(rng));
            let written = Arc::clone(&bytes);
            let call = thread.call(move |client| write(client, id, &written));
            self.running = Some(SharingCall::Write { bytes, call });
            return;
        }
        let at = rng.usize(..self.blobs.len());
        let shared = &mut self.blobs[at];
        let action = match rng.u8(..6) {
            // A volume retains only what its source certainly has.
            0 | 1 if shared.volumes == [Membership::Member, Membership::Released] => {
                SharingAction::Retain
            }
            2 | 3 => SharingAction::Release(rng.usize(..2)),
            _ => SharingAction::Read,
        };
        match action {
            SharingAction::Retain => shared.volumes[1] = Membership::Unknown,
            SharingAction::Release(volume) => shared.volumes[volume] = Membership::Unknown,
            SharingAction::Read => {}
        }
        let shared = shared.clone();
        let call = thread.call(move |client| perform(client, &shared, action));
        self.running = Some(SharingCall::Use { at, action, call });
    }

    /// Takes a call that has ended.
    pub(crate) fn take_ended(&mut self) {
        match &self.running {
            Some(SharingCall::Write { bytes, call }) => {
                let Some(outcome) = call.take() else { return };
                if let Ok(blob) = outcome {
                    self.calls += 1;
                    let volumes = [Membership::Member, Membership::Released];
                    self.blobs.push(SharedBlob { blob, bytes: Arc::clone(bytes), volumes });
                }
            }
            Some(SharingCall::Use { at, action, call }) => {
                let Some(outcome) = call.take() else { return };
                let (at, action) = (*at, *action);
                self.note(at, action, outcome);
            }
            None => return,
        }
        self.running = None;
    }

    fn note(&mut self, at: usize, action: SharingAction, outcome: Result<()>) {
        let shared = &mut self.blobs[at];
        match outcome {
            Ok(()) => {
                self.calls += 1;
                match action {
                    SharingAction::Retain => shared.volumes[1] = Membership::Member,
                    SharingAction::Release(volume) => {
                        shared.volumes[volume] = Membership::Released;
                    }
                    SharingAction::Read => {}
                }
            }
            Err(error) if shared.must_exist() && is_loss(error.kind()) => {
                let (blob, volumes) = (shared.blob.id, shared.volumes);
                let text = format!("blob {blob} of {volumes:?}: {action:?} failed: {error}");
                self.violations.push(text);
            }
            Err(_) => {}
        }
        if self.blobs[at].is_released() {
            self.blobs.swap_remove(at);
        }
    }

    /// In peace: reads all blobs that must exist. From now on no volume keeps a blob.
    pub(crate) fn check(&mut self, cluster: &Cluster) {
        let kept = std::mem::take(&mut self.blobs).into_iter();
        let kept: Vec<SharedBlob> = kept.filter(SharedBlob::must_exist).collect();
        self.finish_call(cluster, move |client| {
            kept.iter().try_for_each(|shared| perform(client, shared, SharingAction::Read))
        });
    }

    /// In peace: gives all blobs up, except on nodes that the process could not reach lately. A
    /// later call releases the blobs there, as each scrub does.
    pub(crate) fn release(&mut self, cluster: &Cluster) {
        self.finish_call(cluster, |client| {
            let blobs = client.stores()?.blobs;
            VOLUMES
                .iter()
                .try_for_each(|volume| blobs.release_strays(*volume, EPOCH, &|_| false).map(drop))
        });
    }

    /// Ends the process.
    pub(crate) fn end(&mut self, cluster: &Cluster) {
        let Some(thread) = self.thread.take() else { return };
        thread.close();
        for _ in 0..LOOKS_MAX {
            if thread.has_ended() {
                return;
            }
            cluster.run_for(LOOK);
        }
        self.violations.push("the process of shared blobs did not end".to_owned());
    }

    /// Makes a call, which must succeed, and waits for it.
    fn finish_call(
        &mut self,
        cluster: &Cluster,
        call: impl FnOnce(&mut ClientProcess) -> Result<()> + Send + 'static,
    ) {
        let Some(thread) = &self.thread else { return };
        let called = thread.call(call);
        for _ in 0..LOOKS_MAX {
            if called.is_done() || thread.has_ended() {
                break;
            }
            cluster.run_for(LOOK);
        }
        match called.take() {
            Some(Ok(())) => {}
            Some(Err(error)) => self.violations.push(format!("shared blobs in peace: {error}")),
            None => {
                let panic = thread.panic_text();
                self.violations.push(format!("a call of shared blobs did not return: {panic:?}"));
            }
        }
    }

    /// Whether a call is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Takes the violations.
    pub(crate) fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }
}

fn context() -> IoContext {
    IoContext::new(FileClass::Sst, IoPurpose::Flush)
}

fn write(client: &mut ClientProcess, id: BlobId, bytes: &[u8]) -> Result<BlobRef> {
    let size_hint_bytes = bytes.len() as u64;
    let (volume, epoch, context) = (VOLUMES[0], EPOCH, context());
    let options = BlobOptions { volume, epoch, context, size_hint_bytes };
    let mut writer = client.stores()?.blobs.create(id, options)?;
    writer.append(bytes)?;
    writer.seal()
}

fn perform(client: &mut ClientProcess, shared: &SharedBlob, action: SharingAction) -> Result<()> {
    let blobs: Arc<dyn BlobStore> = client.stores()?.blobs;
    match action {
        SharingAction::Retain => blobs.retain(&shared.blob, VOLUMES[1]),
        SharingAction::Release(volume) => blobs.release(shared.blob.id, VOLUMES[volume], EPOCH),
        SharingAction::Read => {
            let reader = blobs.open(&shared.blob, context())?;
            let mut bytes = vec![0; shared.bytes.len()];
            reader.read_exact_at(0, &mut bytes, context())?;
            match bytes == *shared.bytes {
                true => Ok(()),
                false => Err(Error::new(
                    ErrorKind::Corrupt,
                    "a read returned other bytes than were written",
                )),
            }
        }
    }
}
