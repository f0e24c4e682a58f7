//! What the tiers know of one path, for those who look at files one by one: a front end for other
//! engines, tests.
//!
//! Reads the namespace under its lock; no I/O but the length of a file that is being written.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use archipelago_base::{Error, Result};
use archipelago_env::FileClass;

use super::{TieredFs, file_len};
use crate::namespace::record::Record;

/// Where a file lies, and what it is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Its unique id in the namespace: never used for another file.
    pub id: u64,
    /// The device of the original: its place in the list of devices, 0 for the fastest.
    pub device: usize,
    /// What kind of file it was created as.
    pub class: FileClass,
    /// The level that it belongs to, if it is a table that has one.
    pub level: Option<u8>,
    /// Length in bytes.
    pub len: u64,
    /// How many names it has.
    pub names: usize,
    /// The devices of its copies for reading.
    pub copies: Vec<usize>,
    /// Whether somebody has it open for writing.
    pub is_written: bool,
}

impl TieredFs {
    /// The path below which everything is the tiers' own.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// Where the file at `path`, a path below the root, lies. Errors: `NotFound`; `Io` for a directory.
    pub fn whereabouts(&self, path: &Path) -> Result<Whereabouts> {
        let path = self.own(path)?;
        let entry = self.shared.entry("find", &path)?;
        let names = {
            let names = self.shared.names.lock();
            names.space.state.files.get(&entry.id).map_or(0, |file| file.names.len())
        };
        let (device, mut copies) = {
            let inside = entry.inside.lock();
            let copies = inside.copies.iter().map(|copy| copy.physical.device);
            (inside.main.device, copies.collect::<Vec<_>>())
        };
        copies.sort_unstable();
        Ok(Whereabouts {
            id: entry.id,
            device,
            class: entry.class,
            level: entry.level(),
            len: file_len(&entry)?,
            names,
            copies,
            is_written: entry.writers.load(Ordering::Acquire) > 0,
        })
    }

    /// Whether `path`, a path below the root, is a directory.
    pub fn is_dir(&self, path: &Path) -> Result<bool> {
        let path = self.own(path)?;
        Ok(self.shared.names.lock().space.state.is_dir(&path))
    }

    /// Removes the directory at `path`, a path below the root, if nothing lies in it. Durable as a removal
    /// of a file is. Errors: `NotFound`; `Io` for one that is not empty.
    pub fn remove_dir(&self, path: &Path) -> Result<()> {
        let path = self.own(path)?;
        let refuse =
            |kind: std::io::ErrorKind| Err(Error::io("remove directory", &path, kind.into()));
        let mut names = self.shared.names.lock();
        let listed = names.space.state.list(&path);
        match listed {
            None if names.space.state.id(&path).is_some() => {
                return refuse(std::io::ErrorKind::NotADirectory);
            }
            None => return refuse(std::io::ErrorKind::NotFound),
            Some(entries) if !entries.is_empty() => {
                return refuse(std::io::ErrorKind::DirectoryNotEmpty);
            }
            Some(_) => (),
        }
        self.shared.commit(&mut names, &Record::RemoveDir { path: path.clone() }).map(|_| ())
    }

    fn own(&self, path: &Path) -> Result<PathBuf> {
        self.logical(path).ok_or_else(|| {
            Error::invalid(format!(
                "{} does not lie in the tiers: their paths begin with {}",
                path.display(),
                self.shared.root.display()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use archipelago_env::mem::MemFs;
    use archipelago_env::{CreateOptions, FileSystem as _, IoContext, IoPurpose};

    use super::*;
    use crate::{Components, DeviceKind, DeviceParts, DeviceSettings};

    fn tiers() -> Arc<TieredFs> {
        let device = |path: &str| DeviceParts {
            settings: DeviceSettings {
                capacity_bytes: 1 << 20,
                ..DeviceSettings::new(path, DeviceKind::Directory)
            },
            fs: Arc::new(MemFs::new()),
            is_local: false,
        };
        let components = Components { spawn: None, seed: Some(1), ..Components::default() };
        TieredFs::open_over("tiers:", vec![device("/fast"), device("/slow")], components).unwrap()
    }

    #[test]
    fn a_file_is_found_with_all_that_is_known_of_it() {
        let tiers = tiers();
        let dir = Path::new("tiers:/db");
        tiers.create_dir_all(dir).unwrap();
        let path = dir.join("7.sst");
        let context = IoContext::sst(IoPurpose::Compaction { from: 4, to: 5 }, 5);
        let mut file = tiers.create(&path, context, CreateOptions::default()).unwrap();
        file.append(b"four").and_then(|()| file.flush()).unwrap();
        assert!(tiers.whereabouts(&path).unwrap().is_written);
        drop(file);
        tiers.link(&path, &dir.join("8.sst")).unwrap();
        let found = tiers.whereabouts(&dir.join("8.sst")).unwrap();
        assert_eq!((found.device, found.level, found.len), (1, Some(5), 4));
        assert_eq!((found.names, found.class, found.is_written), (2, FileClass::Sst, false));
        assert_eq!(found.id, tiers.whereabouts(&path).unwrap().id);
        assert_eq!(found.copies, Vec::<usize>::new());
        assert!(
            tiers.whereabouts(Path::new("/elsewhere")).unwrap_err().to_string().contains("tiers:")
        );
    }

    #[test]
    fn only_an_empty_directory_is_removed() {
        let tiers = tiers();
        let (dir, inner) = (Path::new("tiers:/a"), Path::new("tiers:/a/b"));
        tiers.create_dir_all(inner).unwrap();
        let kind = |path: &Path| tiers.remove_dir(path).unwrap_err().io_kind();
        assert_eq!(kind(dir), Some(std::io::ErrorKind::DirectoryNotEmpty));
        let file = inner.join("f");
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        drop(tiers.create(&file, context, CreateOptions::default()).unwrap());
        assert_eq!(kind(inner), Some(std::io::ErrorKind::DirectoryNotEmpty));
        assert_eq!(kind(&file), Some(std::io::ErrorKind::NotADirectory));
        assert_eq!(kind(Path::new("tiers:/c")), Some(std::io::ErrorKind::NotFound));
        tiers.remove(&file).unwrap();
        tiers.remove_dir(inner).unwrap();
        tiers.remove_dir(dir).unwrap();
        assert!(!tiers.exists(dir).unwrap());
    }
}
