//! Audit of separated values: compares the figures of a version with a full scan.
//!
//! Tests call it after a run. It computes every figure anew from the records of the tables and the
//! keys of the value files, and shares no code with the accounting that it checks. Products do not
//! contain it: it needs the cargo feature `fault-points`.
//!
//! Invariants that it checks for each family:
//! 1. The version is sound ([`Version::check`]).
//! 2. The references that the manifest has for a table are those that its records hold.
//! 3. Every reference resolves to one live value file, which holds its key, sequence number and
//!    lengths. An offset hint for that very file is true. No value is referenced twice.
//! 4. Records and bytes by value file, and the exposed garbage, equal those of the scan.
//! 5. A value file holds the number of records and bytes that the manifest says, in key order.
//!
//! Thread-safety: any thread may call it; it examines the versions of one moment.
//! Failure: `Corrupt` names the first contradiction. Errors of reads are passed on.
//! Cost: reads all tables and the keys of all value files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_env::{FileClass, IoContext, IoPurpose};

use crate::db::Db;
use crate::db::read::ReadView;
use crate::iter::InternalIterator;
use crate::key::{self, Kind};
use crate::live_file::LiveFile;
use crate::sst::TableReadOptions;
use crate::value::ValueKey;
use crate::value_ref::Reference;
use crate::version::Version;

/// Counts of an audit over all families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueAudit {
    /// References in tables.
    pub references: u64,
    /// Bytes of value records that no table references.
    pub garbage_bytes: u64,
    /// Replaced numbers that the versions still resolve.
    pub heirs: u64,
    /// Numbers of the live value files.
    pub live: BTreeSet<u64>,
    /// Numbers of the value files in the directory.
    pub on_disk: BTreeSet<u64>,
    /// Numbers of the value files in the directory that a job of this open left when the job was
    /// given up. The next sweep of strays removes them.
    pub given_up: BTreeSet<u64>,
}

/// References by value file: records and bytes.
type Sums = BTreeMap<u64, (u64, u64)>;

/// Audits every family of an open database.
pub fn audit_values(db: &Db) -> Result<ValueAudit> {
    let db = &*db.inner;
    let mut audit = ValueAudit::default();
    // The versions keep their files until the directory was listed.
    let mut pictures = Vec::new();
    for family in db.view.live_families() {
        let picture = family.current.load_full();
        audit_family(&db.view, &picture.version, &mut audit)
            .map_err(|error| error.context_at(format_args!("column family \"{}\"", family.name)))?;
        pictures.push(picture);
    }
    for entry in db.storage.fs().list(db.storage.dir())? {
        if let Some(no) = entry.name.strip_suffix(".vsst").and_then(|no| no.parse().ok()) {
            audit.on_disk.insert(no);
        }
    }
    drop(pictures);
    let ended = db.storage.strays().ended();
    let given_up = audit.on_disk.difference(&audit.live).filter(|&&no| ended.contains(no));
    audit.given_up = given_up.copied().collect();
    Ok(audit)
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

fn options() -> TableReadOptions {
    TableReadOptions::job(IoContext::new(FileClass::Sst, IoPurpose::Maintenance), 64 << 10)
}

fn audit_family(view: &ReadView, version: &Version, audit: &mut ValueAudit) -> Result<()> {
    version.check()?;
    let mut scan = Scan { view, version, sums: Sums::new(), seen: BTreeSet::new() };
    for (_, file) in version.files() {
        audit.references += scan.table(file)?;
    }
    let values = version.values();
    let mut garbage_bytes = 0;
    for (file, refs) in values.files() {
        let found = scan.sums.get(&file.no).copied().unwrap_or_default();
        if (refs.records, refs.bytes) != found {
            return Err(wrong(format!(
                "value file {} has {refs:?} by the accounting, and {found:?} by a scan",
                file.no
            )));
        }
        garbage_bytes += file.value_bytes() - found.1;
        audit_keys(view, version, file.no)?;
        audit.live.insert(file.no);
    }
    if garbage_bytes != values.exposed_bytes() {
        let counted = values.exposed_bytes();
        return Err(wrong(format!("{counted} bytes are garbage, but {garbage_bytes} by a scan")));
    }
    audit.garbage_bytes += garbage_bytes;
    audit.heirs += values.heirs().count() as u64;
    Ok(())
}

/// Compares the keys of a value file with its record in the manifest.
fn audit_keys(view: &ReadView, version: &Version, no: u64) -> Result<()> {
    let Some(file) = version.values().get(no) else { return Ok(()) };
    let table = view.tables().get_values(file)?;
    let mut keys = table.keys(options().context)?;
    let (mut records, mut bytes) = (0, 0);
    let mut last: Option<Vec<u8>> = None;
    while let Some((internal, at)) = keys.current()? {
        let is_sorted = last.as_ref().is_none_or(|last| key::compare(last, internal).is_lt());
        if !is_sorted || at.offset != bytes {
            return Err(wrong(format!("value file {no}: record {records} is out of order")));
        }
        last = Some(internal.to_vec());
        bytes += at.record_bytes();
        records += 1;
        keys.advance();
    }
    if (records, bytes) != (file.records, file.value_bytes()) {
        return Err(wrong(format!("value file {no} has {records} records of {bytes} bytes")));
    }
    Ok(())
}

/// The scan of the tables of one version.
struct Scan<'a> {
    view: &'a ReadView,
    version: &'a Version,
    /// References by the current number of the value file.
    sums: Sums,
    /// Value records to which the scan has met a reference: file, key and sequence number.
    seen: BTreeSet<(u64, Vec<u8>, u64)>,
}

impl Scan<'_> {
    /// Scans a table. Returns the number of its references.
    fn table(&mut self, file: &Arc<LiveFile>) -> Result<u64> {
        let table = self.view.tables().get(file)?;
        let mut iter = table.iter(options());
        let mut named = Sums::new();
        let mut count = 0;
        iter.seek_to_first();
        while iter.valid() {
            let trailer = key::trailer(iter.key());
            if trailer as u8 == Kind::Indirect as u8 {
                let reference = Reference::decode(iter.read_value()?)
                    .map_err(|bad| wrong(format!("table {}: {bad}", file.no)))?;
                let sum = named.entry(reference.file_no.0).or_default();
                *sum = (sum.0 + 1, sum.1 + reference.record_bytes());
                let seq = key::trailer_seq(trailer);
                self.reference(ValueKey { user_key: key::user_key(iter.key()), seq }, &reference)
                    .map_err(|error| error.context_at(format_args!("table {}", file.no)))?;
                count += 1;
            }
            iter.next();
        }
        iter.status()?;
        let stored: Sums =
            file.refs.by_file().iter().map(|at| (at.no, (at.records, at.bytes))).collect();
        if stored != named {
            let no = file.no;
            return Err(wrong(format!("table {no} references {named:?}, not {stored:?}")));
        }
        Ok(count)
    }

    fn reference(&mut self, key: ValueKey<'_>, reference: &Reference) -> Result<()> {
        let named = reference.file_no.0;
        let heir = self.version.values().heirs().find(|&(old, _)| old == named);
        let current = heir.map_or(named, |(_, heir)| heir);
        let shown = key.user_key.escape_ascii();
        let Some(file) = self.version.values().get(current) else {
            return Err(wrong(format!("key {shown} @{}: no value file {current}", key.seq)));
        };
        let at = self.view.tables().get_values(file)?.locate(key, &options())?;
        let is_same = (at.stored_bytes, at.raw_bytes)
            == (reference.stored_bytes, reference.raw_bytes)
            && (named != current || reference.offset.is_none_or(|hint| hint == at.offset));
        if !is_same {
            let seq = key.seq;
            return Err(wrong(format!("key {shown} @{seq}: {reference:?}, but it is {at:?}")));
        }
        if !self.seen.insert((current, key.user_key.to_vec(), key.seq.0)) {
            return Err(wrong(format!("key {shown} @{} is referenced twice", key.seq)));
        }
        let sum = self.sums.entry(current).or_default();
        *sum = (sum.0 + 1, sum.1 + reference.record_bytes());
        Ok(())
    }
}
