//! Values of the store that nodes and namespaces keep, as bytes. `docs/formats/store-values.md` has
//! the tables.
//!
//! | kind | form | values |
//! | --- | --- | --- |
//! | [`Checked`] | magic, version, fields, CRC-32C | descriptors of chunks, state of the register |
//! | [`Enclosed`] | version, fields; a record with a checksum encloses it | layouts of logs, hints of blobs, root sets |
//!
//! Invariant: a decoder returns a value or an error for every input, and a value only if all bytes
//! belong to it.
//!
//! All functions are pure. Failure: `Corrupt` for damaged bytes, `Unsupported` for another version.
//! The errors name the value.
//! Cost: O(bytes), and one allocation per encoding.

use std::fmt;

use archipelago_base::checksum::crc;
use archipelago_base::codec::{Reader, put_u8, put_u32};
use archipelago_base::wire::Wire;
use archipelago_base::{Error, ErrorKind, Result};

use super::super::register::caspaxos::RootSet;
use super::super::register::caspaxos::acceptor::{AcceptorHead, AcceptorState, RegisterCell};
use super::{BlobHint, ChunkDescriptor};

/// A value with magic, version and checksum.
pub trait Checked: Wire {
    /// First bytes of the value.
    const MAGIC: [u8; 8];
    /// Newest version of the fields.
    const VERSION: u32;
    /// Oldest version that this program reads. The default is the newest one.
    const OLDEST: u32 = Self::VERSION;
    /// Name of the value in errors.
    const NAME: &'static str;

    /// Oldest version that has the fields of this value, with which it is written. The default is
    /// the newest one.
    fn version(&self) -> u32 {
        Self::VERSION
    }
}

/// Version 2 has replicas in place of RS(4,2). Other descriptors keep version 1.
impl Checked for ChunkDescriptor {
    const MAGIC: [u8; 8] = *b"ARCHCHNK";
    const VERSION: u32 = 2;
    const OLDEST: u32 = 1;
    const NAME: &'static str = "descriptor of a chunk";

    fn version(&self) -> u32 {
        if self.is_coding_due { 2 } else { 1 }
    }
}

impl Checked for AcceptorState {
    const MAGIC: [u8; 8] = *b"ARCHACPT";
    const VERSION: u32 = 2;
    const NAME: &'static str = "state of a member of the root set";
}

impl Checked for AcceptorHead {
    const MAGIC: [u8; 8] = *b"ARCHMEMB";
    const VERSION: u32 = 2;
    const NAME: &'static str = "part of a node in root sets";
}

impl Checked for RegisterCell {
    const MAGIC: [u8; 8] = *b"ARCHCELL";
    const VERSION: u32 = 1;
    const NAME: &'static str = "name of the register";
}

/// A value with a version, for records that have a checksum.
pub trait Enclosed: Wire {
    /// Version of the fields.
    const VERSION: u8;
    /// Name of the value in errors.
    const NAME: &'static str;
}

impl Enclosed for BlobHint {
    const VERSION: u8 = 1;
    const NAME: &'static str = "holders of a blob on storage nodes";
}

impl Enclosed for RootSet {
    const VERSION: u8 = 1;
    const NAME: &'static str = "root set";
}

/// The bytes of a value with magic and checksum.
pub fn encode_checked<T: Checked>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(&T::MAGIC);
    put_u32(&mut out, value.version());
    value.put(&mut out);
    let sum = crc(&out);
    put_u32(&mut out, sum);
    out
}

/// Reads a value with magic and checksum. `object` names it in errors: a file or a key.
pub fn decode_checked<T: Checked>(object: &dyn fmt::Display, bytes: &[u8]) -> Result<T> {
    let corrupt =
        |what: &str| Error::new(ErrorKind::Corrupt, format!("{object}: {}: {what}", T::NAME));
    let (fields, sum) = match bytes.split_last_chunk::<4>() {
        Some((fields, sum)) if fields.len() >= 12 => (fields, u32::from_le_bytes(*sum)),
        _ => return Err(corrupt("it is cut off")),
    };
    if fields[..8] != T::MAGIC {
        return Err(corrupt("it does not begin with its magic"));
    }
    // The version comes before the checksum, since another version may have another checksum.
    let mut reader = Reader::new(&fields[8..]);
    let version = reader.u32().unwrap_or(0);
    if !(T::OLDEST..=T::VERSION).contains(&version) {
        return Err(Error::unsupported(format!(
            "{object}: {}: version {version}, and this program reads versions {} to {}: use the \
             program that wrote it",
            T::NAME,
            T::OLDEST,
            T::VERSION,
        )));
    }
    if crc(fields) != sum {
        return Err(corrupt("its checksum does not match"));
    }
    let value = T::get(&mut reader).filter(|_| reader.is_empty());
    let value = value.filter(|value| value.version() <= version);
    value.ok_or_else(|| corrupt("its fields cannot be read"))
}

/// The bytes of a value that something with a checksum encloses.
pub fn encode_enclosed<T: Enclosed>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    put_u8(&mut out, T::VERSION);
    value.put(&mut out);
    out
}

/// Reads a value that something with a checksum encloses. `object` names it in errors.
pub fn decode_enclosed<T: Enclosed>(object: &dyn fmt::Display, bytes: &[u8]) -> Result<T> {
    let mut reader = Reader::new(bytes);
    match reader.u8() {
        Some(version) if version == T::VERSION => {}
        Some(version) => {
            return Err(Error::unsupported(format!(
                "{object}: {}: version {version}, and this program reads version {}: use the \
                 program that wrote it",
                T::NAME,
                T::VERSION,
            )));
        }
        None => {
            let text = format!("{object}: {}: it is empty", T::NAME);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
    }
    T::get(&mut reader).filter(|_| reader.is_empty()).ok_or_else(|| {
        let text = format!("{object}: {}: its fields cannot be read", T::NAME);
        Error::new(ErrorKind::Corrupt, text)
    })
}
