//! Decoders of extents for the fuzz target and its replay.

use std::path::Path;

use archipelago_base::checksum::crc;
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileSystem, IoContext, IoPurpose};
use archipelago_store::LogId;
use archipelago_store::nodes::wire::ExtentAt;

use super::format::{GroupHeader, HEADER_BYTES, PartHeader};
use super::groups::{GroupPlace, GroupReader, GroupStep, PartSource};
use super::marks::SyncMark;
use super::record::ExtentRecord;

const AT: ExtentAt = ExtentAt { log: LogId(*b"identity: a log."), extent: 7 };
const START: u64 = 100;
/// First bytes of a header that come before any field of a part.
const HEAD: [u8; 12] = *b"ARCHEXTN\x01\0\0\0";

/// Decodes `bytes` as the record of an extent, and as the header of a part. Also decodes them as
/// the bytes after a header: as they are, and as groups with correct checksums behind their lengths
/// of one byte each.
pub(crate) fn extent(bytes: &[u8]) {
    if let Ok(record) = ExtentRecord::decode(AT, bytes) {
        assert_eq!(ExtentRecord::decode(AT, &record.encode()).ok(), Some(record));
    }
    same_header(bytes);
    let mut forged = [&HEAD[..], bytes].concat();
    forged.resize(HEADER_BYTES - 4, 0);
    forged.extend_from_slice(&crc(&forged).to_le_bytes());
    same_header(&forged);
    groups_of(bytes);
    let mut framed = Vec::new();
    let mut expected = Vec::new();
    let mut rest = bytes;
    while let Some((&len, after)) = rest.split_first() {
        let (group, after) = after.split_at(after.len().min(len as usize));
        rest = after;
        if group.is_empty() {
            continue;
        }
        let offset = START + expected.len() as u64;
        framed.extend_from_slice(&GroupHeader::new(AT, offset, group).encode());
        framed.extend_from_slice(group);
        expected.extend_from_slice(group);
    }
    assert_eq!(groups_of(&framed), expected);
}

/// Decodes `bytes` as the mark of an extent.
pub(crate) fn mark(bytes: &[u8]) {
    if let Ok(mark) = SyncMark::decode(AT, bytes) {
        assert_eq!(mark.encode(), bytes);
    }
}

fn same_header(bytes: &[u8]) {
    if let Ok(header) = PartHeader::decode(bytes) {
        assert_eq!(PartHeader::decode(&header.encode()), Ok(header));
    }
}

/// The bytes of the log in the valid groups of a file that has `bytes` behind its header.
fn groups_of(bytes: &[u8]) -> Vec<u8> {
    let fs = MemFs::new();
    let (path, context) = (Path::new("/part"), IoContext::manifest(IoPurpose::Recovery));
    let mut file = fs.create(path, context, CreateOptions::default()).expect("memory");
    file.append(&[0; HEADER_BYTES]).expect("memory");
    file.append(bytes).expect("memory");
    file.flush().expect("memory");
    let source = PartSource::open(&fs, path, context).expect("the file exists");
    let mut reader = GroupReader::new(&source, AT, GroupPlace::first(START));
    let mut found = Vec::new();
    loop {
        match reader.step().expect("no device") {
            GroupStep::Group { place, bytes, .. } => {
                assert_eq!(place.log, START + found.len() as u64);
                found.extend_from_slice(bytes);
            }
            GroupStep::End | GroupStep::Torn | GroupStep::Damaged => return found,
        }
    }
}

/// A record and the fields of a header, as the corpus has them.
#[cfg(test)]
pub(crate) fn inputs() -> Vec<Vec<u8>> {
    let header = super::format::tests::header().encode();
    let fields = header[HEAD.len()..HEADER_BYTES - 4].to_vec();
    let record = super::record::tests::record;
    let limbo = ExtentRecord { sealed: None, is_in_limbo: true, ..record() };
    let damaged = ExtentRecord { damaged_from: Some(0x180), ..record() };
    let sync_failed = ExtentRecord { unsure_from: Some(0x200), ..limbo.clone() };
    let records = [record(), limbo, damaged, sync_failed];
    records.iter().map(ExtentRecord::encode).chain([fields]).collect()
}
