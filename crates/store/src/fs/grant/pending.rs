//! Outputs of an offloaded job, as the owner of the volume tracks them.
//!
//! [`StoreFs::grant`] makes identities of blobs pending, and a [`PendingOutputs`] keeps them
//! pending. The value ends in one of three ways: the owner names the outputs, no other process gets
//! the grant, or the owner abandons the attempt. After an abandoned attempt, the pool removes the
//! blobs of the executor, and refuses the requests of the executor that arrive later.
//!
//! Invariants:
//! 1. A drop gives up every identity that was not named. So no attempt leaves a blob behind, even
//!    if its executor dies.
//! 2. The names of all outputs appear in one commit, or none does.
//!
//! Thread-safety: one thread at a time uses the value.
//! Failure: if an executor returns blobs that the grant does not have, the call fails with
//! `InvalidArgument` and names none of them. If the owner dies, the next one releases all blobs
//! without names.
//! Cost: a grant costs two short locks and no round trip. The names cost one round trip, and so
//! does giving up, for all identities together.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::names::plain;

use super::super::StoreFs;
use super::super::failure::missing;
use super::super::open_files::{NewFile, OpenFiles};
use super::{BlobGrant, NamedBlob, WrittenBlobs, WrittenFile};
use crate::ids::BlobId;
use crate::volume::record::Content;

/// Identities of blobs that another process may write, until they are named or given up.
#[derive(Debug)]
pub struct PendingOutputs {
    files: Arc<OpenFiles>,
    dir: PathBuf,
    /// Identities that are neither named nor given up.
    ids: Vec<BlobId>,
}

impl StoreFs {
    /// Grants an attempt of a job the files `inputs` of the directory `dir`, and identities for
    /// `outputs` new ones. The caller keeps the inputs until the attempt has ended.
    ///
    /// Errors: `NotFound` for an input that does not exist; `Unsupported` for one that is no table;
    /// `Fenced`; `Closed`.
    pub fn grant(
        &self,
        dir: &Path,
        inputs: &[String],
        outputs: usize,
    ) -> Result<(BlobGrant, PendingOutputs)> {
        let (dir, volume) = (plain(dir), &self.files.volume);
        volume.check_open()?;
        self.check_dir("grant files of", &dir)?;
        let inputs = inputs.iter().map(|name| self.granted_input(&dir, name));
        let inputs = inputs.collect::<Result<Vec<NamedBlob>>>()?;
        let ids = volume.reserve_blobs(outputs);
        let (id, epoch) = (volume.id(), volume.epoch());
        let grant = BlobGrant { volume: id, epoch, inputs, outputs: ids.clone() };
        Ok((grant, PendingOutputs { files: Arc::clone(&self.files), dir, ids }))
    }

    fn granted_input(&self, dir: &Path, name: &str) -> Result<NamedBlob> {
        let path = dir.join(name);
        let found = self.files.volume.look(|state| match state.file(&path) {
            Some(file) => match &file.content {
                Content::Blob(blob) => Ok(Some(blob.clone())),
                Content::Inline(_) | Content::Log { .. } => Ok(None),
            },
            None => Err(state.is_dir(&path)),
        });
        match found.map_err(|is_dir| missing("grant", &path, is_dir))? {
            Some(blob) => Ok(NamedBlob { name: name.to_owned(), blob }),
            None => Err(Error::unsupported(format!(
                "{} is no table, so another process cannot read it by its blob",
                path.display()
            ))),
        }
    }
}

impl PendingOutputs {
    /// Names the outputs of the attempt, durably. The other identities are given up.
    ///
    /// Errors: `InvalidArgument` if `written` has blobs that the grant does not have;
    /// `AlreadyExists` as the cause of an error if a file has one of the names; those of the pool;
    /// `Fenced`. After an error, all identities without a name are given up.
    pub fn name(mut self, written: &WrittenBlobs) -> Result<()> {
        self.check(written)?;
        let untouched = self.ids.split_off(written.begun as usize);
        self.files.volume.forget_blobs(&untouched);
        let new = |file: &WrittenFile| NewFile {
            path: self.dir.join(&file.name),
            class: file.class,
            content: Content::Blob(file.blob.clone()),
        };
        let named = self.files.name_all(written.files.iter().map(new).collect())?;
        self.files.wait(named, "name the files of a job in", &self.dir)
    }

    /// Forgets the identities, because no other process has got the grant.
    pub fn unused(mut self) {
        self.files.volume.forget_blobs(&self.ids);
        self.ids.clear();
    }

    /// Refuses outputs that the grant does not permit, invalid names, and classes other than
    /// tables.
    fn check(&self, written: &WrittenBlobs) -> Result<()> {
        let refuse = |what: String| {
            let dir = self.dir.display();
            Err(Error::invalid(format!("the files of a job in {dir} cannot be named: {what}")))
        };
        let Some(begun) = self.ids.get(..written.begun as usize) else {
            let (begun, granted) = (written.begun, self.ids.len());
            return refuse(format!("the job has begun {begun} blobs of {granted}"));
        };
        let mut begun: BTreeSet<BlobId> = begun.iter().copied().collect();
        let mut names = BTreeSet::new();
        for WrittenFile { name, class, blob } in &written.files {
            if !begun.remove(&blob.id) {
                return refuse(format!("the job may not write blob {}, or has it twice", blob.id));
            }
            let mut parts = Path::new(name).components();
            let is_plain =
                matches!(parts.next(), Some(Component::Normal(part)) if part == name.as_str());
            if !is_plain || parts.next().is_some() || !names.insert(name) {
                return refuse(format!("{name:?} is no name of a file, or comes twice"));
            }
            if !class.is_table() {
                return refuse(format!("{name} has the class {class:?}, which is no table"));
            }
        }
        Ok(())
    }
}

impl Drop for PendingOutputs {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.files.volume.give_up_all(&self.ids);
        }
    }
}
