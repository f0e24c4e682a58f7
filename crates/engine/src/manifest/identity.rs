//! The two small text files that identify the database in a directory: `IDENTITY` and `CURRENT`.
//!
//! Both end with a line `crc32c <hex>` over the bytes before it, and are replaced atomically.
//! `IDENTITY` is the first file of a new database and never changes. An open reads it before
//! anything else, and changes nothing in the directory unless it fits.

use std::path::Path;

use archipelago_base::checksum::crc;
use archipelago_base::{Error, FileNo, Result};
use archipelago_env::{FileSystem, IoContext, IoPurpose};

use crate::file_meta::{CURRENT_NAME, IDENTITY_NAME, LOCK_NAME, manifest_name};
use crate::manifest::FORMAT_VERSION;

const FIRST_LINE: &str = "archipelago database";

/// Content of `IDENTITY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Format version of the database.
    pub format: u32,
    /// Random id of the database.
    pub db_id: [u8; 16],
}

/// Content of a directory, as far as databases are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryState {
    /// The directory is empty, or has the files of an interrupted creation: a database can be
    /// created here.
    Absent,
    /// The directory holds a database of this format version.
    Database(Identity),
}

/// Appends a line with the checksum of `text`.
fn sealed(mut text: String) -> Vec<u8> {
    let line = format!("crc32c {:08x}\n", crc(text.as_bytes()));
    text.push_str(&line);
    text.into_bytes()
}

/// The text before the checksum line; `None` if the checksum does not match.
fn unsealed(bytes: &[u8]) -> Option<&str> {
    let text = str::from_utf8(bytes).ok()?;
    let body = text.get(..text.strip_suffix('\n')?.rfind('\n')? + 1)?;
    (sealed(body.to_owned()) == bytes).then_some(body)
}

/// An id as text: 32 hexadecimal digits.
#[must_use]
pub fn id_text(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn id_of(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

impl Identity {
    /// Encodes the content of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        sealed(format!("{FIRST_LINE}\nformat {}\nid {}\n", self.format, id_text(&self.db_id)))
    }

    /// Decodes the content of a file; `path` is for messages. `InvalidArgument` if Archipelago has
    /// not written the file, `Unsupported` for another format version, `Corrupt` if it is damaged.
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(bytes);
        let body = unsealed(bytes);
        // Damage in one place leaves one of these two texts as it was.
        let ours = text.starts_with(FIRST_LINE) || text.contains("\nid ");
        if body.is_none() && !ours {
            return Err(Error::invalid(format!(
                "{} was not written by Archipelago: the directory belongs to something else",
                path.display()
            )));
        }
        let corrupt = |what: &str| Error::corrupt(path, 0, what);
        let body = body.ok_or_else(|| corrupt("checksum does not match"))?;
        let field = |name: &str| body.lines().find_map(|line| line.strip_prefix(name));
        let format = field("format ").and_then(|format| format.parse().ok());
        let format: u32 = format.ok_or_else(|| corrupt("no format version"))?;
        if format != FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "{}: database of format version {format}; this program reads version \
                 {FORMAT_VERSION} only: use the program that wrote it",
                path.display()
            )));
        }
        let db_id = field("id ").and_then(id_of).ok_or_else(|| corrupt("no database id"))?;
        Ok(Self { format, db_id })
    }

    /// Writes the file into `dir`, atomically and durably.
    pub fn store(&self, fs: &dyn FileSystem, dir: &Path) -> Result<()> {
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        fs.write_atomic(&dir.join(IDENTITY_NAME), &self.encode(), context)
    }
}

/// Makes manifest `no` the current one, atomically and durably. After an error the next open may
/// find either the old manifest or the new one.
pub fn set_current(fs: &dyn FileSystem, dir: &Path, no: FileNo) -> Result<()> {
    let bytes = sealed(format!("{}\n", manifest_name(no)));
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    fs.write_atomic(&dir.join(CURRENT_NAME), &bytes, context)
}

/// The number of the current manifest. `Corrupt` if `CURRENT` is damaged.
pub fn current(fs: &dyn FileSystem, dir: &Path) -> Result<FileNo> {
    let path = dir.join(CURRENT_NAME);
    let bytes = fs.read(&path, IoContext::manifest(IoPurpose::Recovery))?;
    let number = unsealed(&bytes)
        .and_then(|body| body.strip_suffix('\n')?.strip_prefix("MANIFEST-")?.parse().ok());
    number.map(FileNo).ok_or_else(|| {
        Error::corrupt(&path, 0, "does not name a manifest, or its checksum does not match")
    })
}

/// Determines the content of `dir`. Changes nothing. A directory that does not exist is `Absent`.
/// `InvalidArgument` if it is neither empty nor an Archipelago database, `Unsupported` for another
/// format version, `Corrupt` if the database lost its `IDENTITY` or `CURRENT`; errors of the
/// listing.
pub fn inspect(fs: &dyn FileSystem, dir: &Path) -> Result<DirectoryState> {
    // A listing that fails says nothing about the directory, whatever its error is. An error of
    // the kind `NotFound` may be about one file of a database, over which a creation would write a
    // new one.
    if !fs.exists(dir)? {
        return Ok(DirectoryState::Absent);
    }
    let entries = fs.list(dir)?;
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    let data = entries.iter().find(|entry| {
        // A mark file is created only after CURRENT exists.
        let is_data = [".sst", ".vsst", ".log"].iter().any(|suffix| entry.name.ends_with(suffix));
        is_data || entry.name == CURRENT_NAME || entry.name.starts_with("MARK-")
    });
    if has(IDENTITY_NAME) {
        let path = dir.join(IDENTITY_NAME);
        let bytes = fs.read(&path, IoContext::manifest(IoPurpose::Recovery))?;
        let identity = Identity::decode(&path, &bytes)?;
        if has(CURRENT_NAME) {
            return Ok(DirectoryState::Database(identity));
        }
        return match data {
            // Creation writes IDENTITY first and CURRENT last.
            None => Ok(DirectoryState::Absent),
            Some(_) => Err(Error::corrupt(
                &dir.join(CURRENT_NAME),
                0,
                "the file, which names the current manifest, is missing though the database has \
                 data. Nothing was changed. Restore the database from a checkpoint or a replica, or \
                 save what is left with `archipelago db repair`",
            )),
        };
    }
    let ours = |name: &str| {
        name == LOCK_NAME || name == "lost+found" || name == format!("{IDENTITY_NAME}.tmp")
    };
    match entries.iter().find(|entry| !ours(&entry.name)) {
        None => Ok(DirectoryState::Absent),
        Some(foreign) => Err(Error::invalid(format!(
            "{} is not a database: it has no {IDENTITY_NAME} file, but \"{}\"; choose an empty or \
             new directory",
            dir.display(),
            foreign.name
        ))),
    }
}
