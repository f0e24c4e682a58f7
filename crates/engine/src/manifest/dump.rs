//! The manifest for a human reader: every record with its offset and what it changes.

use std::fmt;
use std::path::Path;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileSystem, IoContext, IoPurpose};

use crate::file_meta::manifest_name;
use crate::manifest::edit::VersionEdit;
use crate::manifest::identity::{current, id_text};
use crate::manifest::log::ManifestReader;

/// Writes the current manifest of the database in `dir` to `out`, record by record, as far as it is
/// readable. If it is damaged, the error follows. Changes nothing; the database may be open
/// elsewhere.
pub fn dump(fs: &dyn FileSystem, dir: &Path, out: &mut dyn fmt::Write) -> Result<()> {
    let no = current(fs, dir)?;
    let path = dir.join(manifest_name(no));
    let bytes = fs.read(&path, IoContext::manifest(IoPurpose::Maintenance))?;
    let mut reader = ManifestReader::new(path.clone(), no, &bytes);
    line(out, format_args!("{} ({} bytes)", path.display(), bytes.len()))?;
    let (header, snapshot) = reader.begin()?;
    line(out, format_args!("database {}, manifest {}", id_text(&header.db_id), header.no))?;
    line(out, format_args!("snapshot"))?;
    changes(out, &snapshot)?;
    while let Some(record) = reader.next()? {
        let edit = reader.decode(&record)?;
        line(out, format_args!("record at {} ({} bytes)", record.offset, record.payload.len()))?;
        changes(out, &edit)?;
    }
    match reader.torn_bytes() {
        0 => line(out, format_args!("end")),
        torn => line(out, format_args!("end, and {torn} bytes of a record that was cut off")),
    }
}

fn changes(out: &mut dyn fmt::Write, edit: &VersionEdit) -> Result<()> {
    edit.changes.iter().try_for_each(|change| line(out, format_args!("  {change}")))
}

fn line(out: &mut dyn fmt::Write, text: fmt::Arguments<'_>) -> Result<()> {
    writeln!(out, "{text}")
        .map_err(|source| Error::with_source(ErrorKind::Io, "cannot print the manifest", source))
}
