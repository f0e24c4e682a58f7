//! The choice of operations: which one a process performs next, with which bytes and names.
//!
//! Everything follows from the generator of the run.

use std::sync::Arc;

use archipelago_base::random::Rng;
use archipelago_env::FileClass;

use super::model::{GrowthKind, Model};
use super::owner::{DIR, OpenPaths, Operation};

/// Draws operations by seed.
#[derive(Debug)]
pub(crate) struct OperationSource {
    /// Number that makes names and bytes unique.
    next: u64,
    /// Number of large blobs that may still be drawn. A blob of more than a mebibyte is coded.
    large_left: u32,
    /// Whether appends are long enough to be striped.
    has_long_appends: bool,
}

impl OperationSource {
    /// A source of a run. Long appends are for striped logs.
    pub(crate) fn new(has_long_appends: bool, large_blobs_max: u32) -> Self {
        Self { next: 0, large_left: large_blobs_max, has_long_appends }
    }

    /// Bytes that no other call returns.
    fn bytes(&mut self, rng: &mut Rng, len_max: usize) -> Vec<u8> {
        self.next += 1;
        let mut bytes = self.next.to_le_bytes().to_vec();
        bytes.resize(8 + rng.usize(..len_max), self.next as u8);
        bytes
    }

    fn path(&mut self, suffix: &str) -> String {
        self.next += 1;
        format!("{DIR}/{:05}.{suffix}", self.next)
    }

    /// An operation on the volume as `model` knows it, by a process that has `open` files. `None`
    /// if the drawn operation is not possible.
    pub(crate) fn draw(
        &mut self,
        rng: &mut Rng,
        model: &mut Model,
        open: &OpenPaths,
    ) -> Option<Operation> {
        let operation = match rng.u8(..24) {
            0 | 1 => {
                let path = format!("{DIR}/CURRENT{}", rng.u8(..3));
                model.certain(&path)?;
                // Longer contents do not fit into a record.
                let len_max = if rng.u8(..4) == 0 { 9_000 } else { 200 };
                Operation::Replace { path, bytes: Arc::new(self.bytes(rng, len_max)) }
            }
            2..=4 => self.table(rng),
            5 if open.pending.is_none() => {
                let bytes = Arc::new(self.bytes(rng, 20_000));
                Operation::BeginTable { path: self.path("sst"), bytes }
            }
            5 | 6 => {
                open.pending.as_ref()?;
                Operation::EndTable
            }
            7 => Operation::Remove { path: settled_path(rng, model)? },
            8 => Operation::Rename { from: settled_path(rng, model)?, to: self.path("sst") },
            9 => Operation::Link { from: settled_path(rng, model)?, to: self.path("sst") },
            10..=16 if open.log.is_some() && rng.u8(..12) > 0 => self.append(rng, model, open)?,
            10..=16 => self.begin_log(model),
            17 | 18 => {
                open.log.as_ref()?;
                Operation::SyncLog
            }
            19..=21 => match &open.manifest {
                Some(path) if rng.u8(..8) > 0 => self.append_manifest(rng, model, path),
                _ => {
                    let (path, bytes) = (self.path("manifest"), self.bytes(rng, 3_000));
                    let marks = model.begin_growth(&path, GrowthKind::Manifest);
                    model.submit(&path, &bytes);
                    Operation::BeginManifest { path, bytes, marks }
                }
            },
            _ => Operation::ReleaseStrays,
        };
        Some(operation)
    }

    /// An append to a file that grows, or the begin of a log if none is open.
    pub(crate) fn draw_append(
        &mut self,
        rng: &mut Rng,
        model: &mut Model,
        open: &OpenPaths,
    ) -> Option<Operation> {
        match &open.manifest {
            Some(path) if rng.u8(..4) == 0 => Some(self.append_manifest(rng, model, path)),
            _ if open.log.is_some() => self.append(rng, model, open),
            _ => Some(self.begin_log(model)),
        }
    }

    /// An append of one part to the log, or the begin of a log if none is open.
    pub(crate) fn draw_part(
        &mut self,
        rng: &mut Rng,
        model: &mut Model,
        open: &OpenPaths,
    ) -> Option<Operation> {
        let Some(path) = &open.log else { return Some(self.begin_log(model)) };
        let part = self.bytes(rng, 3_000);
        model.submit(path, &part);
        Some(Operation::AppendLog { parts: vec![part] })
    }

    /// The replacement of a small file, which is one record of the namespace.
    pub(crate) fn draw_replacement(
        &mut self,
        rng: &mut Rng,
        model: &mut Model,
        _open: &OpenPaths,
    ) -> Option<Operation> {
        let path = format!("{DIR}/CURRENT{}", rng.u8(..3));
        model.certain(&path)?;
        Some(Operation::Replace { path, bytes: Arc::new(self.bytes(rng, 200)) })
    }

    fn begin_log(&mut self, model: &mut Model) -> Operation {
        let path = self.path("log");
        let marks = model.begin_growth(&path, GrowthKind::Log);
        Operation::BeginLog { path, marks }
    }

    fn append_manifest(&mut self, rng: &mut Rng, model: &mut Model, path: &str) -> Operation {
        let bytes = self.bytes(rng, 3_000);
        model.submit(path, &bytes);
        Operation::AppendManifest { bytes }
    }

    fn table(&mut self, rng: &mut Rng) -> Operation {
        let is_large = self.large_left > 0 && rng.u8(..8) == 0;
        let (class, len_max) = match is_large {
            true => (FileClass::ValueSst, 1 << 20),
            false => (FileClass::Sst, 20_000),
        };
        let mut bytes = self.bytes(rng, len_max);
        if is_large {
            self.large_left -= 1;
            bytes.resize(bytes.len() + (1 << 20), 0x5a);
        }
        Operation::WriteTable { path: self.path("sst"), class, bytes: Arc::new(bytes) }
    }

    fn append(&mut self, rng: &mut Rng, model: &mut Model, open: &OpenPaths) -> Option<Operation> {
        let path = open.log.as_ref()?;
        let count = rng.usize(1..6);
        let mut parts = Vec::new();
        for _ in 0..count {
            let is_long = self.has_long_appends && rng.u8(..6) == 0;
            let mut part = self.bytes(rng, 3_000);
            if is_long {
                part.resize(part.len() + 70_000, 0x33);
            }
            model.submit(path, &part);
            parts.push(part);
        }
        Some(Operation::AppendLog { parts })
    }
}

/// A read of a file whose bytes nothing changes; `None` if there is none.
pub(crate) fn draw_read(rng: &mut Rng, model: &Model) -> Option<Operation> {
    Some(Operation::Read { path: settled_path(rng, model)? })
}

/// A path whose bytes nothing changes.
fn settled_path(rng: &mut Rng, model: &Model) -> Option<String> {
    let mut settled = model.settled();
    if settled.is_empty() {
        return None;
    }
    Some(settled.swap_remove(rng.usize(..settled.len())).0)
}
