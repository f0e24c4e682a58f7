//! Messages that carry specs and outputs to and from an executor. Format: `docs/formats/job.md`.
//!
//! A message is a version byte, a byte for its type, the postcard encoding of the value, and a
//! CRC-32C of all that. Decoding foreign bytes may return an error but never panics. It never
//! allocates more than a small multiple of the message's length.

use archipelago_base::checksum::crc;
use archipelago_base::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::compaction::job::CompactionSpec;
use crate::flush::FlushSpec;
use crate::gc::job::GcSpec;
use crate::job::JobOutput;

/// Version of the format. Another version is refused as `Unsupported`.
pub const VERSION: u8 = 4;

const HEADER_BYTES: usize = 2;
const CRC_BYTES: usize = 4;

/// A value that a message carries.
pub trait Message: Serialize + DeserializeOwned {
    /// Number of the type, stored in the message and never reused.
    const TAG: u8;
    /// Name of the type in errors.
    const NAME: &'static str;
}

impl Message for FlushSpec {
    const TAG: u8 = 1;
    const NAME: &'static str = "flush spec";
}

impl Message for CompactionSpec {
    const TAG: u8 = 2;
    const NAME: &'static str = "compaction spec";
}

impl Message for GcSpec {
    const TAG: u8 = 4;
    const NAME: &'static str = "garbage collection spec";
}

impl Message for JobOutput {
    const TAG: u8 = 3;
    const NAME: &'static str = "job output";
}

/// Encodes `value` as a message. `InvalidArgument` if it has a path that is not UTF-8.
pub fn encode<T: Message>(value: &T) -> Result<Vec<u8>> {
    let mut out = postcard::to_extend(value, vec![VERSION, T::TAG]).map_err(|error| {
        let context = format!("cannot encode a {}", T::NAME);
        Error::with_source(ErrorKind::InvalidArgument, context, error)
    })?;
    out.extend_from_slice(&crc(&out).to_le_bytes());
    Ok(out)
}

/// Decodes a message. `Unsupported` if it has another version. `Corrupt` if it is damaged or not a
/// `T`.
pub fn decode<T: Message>(message: &[u8]) -> Result<T> {
    let corrupt =
        |what: &str| Error::new(ErrorKind::Corrupt, format!("message of a {}: {what}", T::NAME));
    let Some((&version, _)) = message.split_first() else {
        return Err(corrupt("it is empty"));
    };
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "message of a {}: format version {version}, this program speaks {VERSION}: run the \
             same version on both sides",
            T::NAME
        )));
    }
    let Some((body, stored)) = message.split_last_chunk::<CRC_BYTES>() else {
        return Err(corrupt("it is too short"));
    };
    if body.len() < HEADER_BYTES || crc(body) != u32::from_le_bytes(*stored) {
        return Err(corrupt("its checksum does not match"));
    }
    if body[1] != T::TAG {
        return Err(corrupt(&format!("it is something else (tag {})", body[1])));
    }
    match postcard::take_from_bytes(&body[HEADER_BYTES..]) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(corrupt("bytes follow its end")),
        Err(error) => {
            Err(Error::with_source(ErrorKind::Corrupt, format!("message of a {}", T::NAME), error))
        }
    }
}

#[cfg(test)]
mod tests;
