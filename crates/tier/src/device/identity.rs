//! Identity of a device: the file `DEVICE`, which says to which namespace a directory belongs, and
//! with which number. `docs/formats/tier-namespace.md` has the table.
//!
//! Failure: a foreign file, a damaged one and another format version are refused with different
//! errors. Storing is atomic and durable.

use std::path::Path;

use archipelago_base::checksum::crc;
use archipelago_base::codec::{Reader, put_bytes, put_u8, put_u32};
use archipelago_base::{Error, Result};
use archipelago_env::{FileSystem, IoContext, IoPurpose};

use crate::namespace::log::VERSION;

/// File name of the identity in the device's directory.
pub(crate) const DEVICE_NAME: &str = "DEVICE";
const MAGIC: &[u8; 8] = b"ARCHTDEV";

/// Whether the namespace's own log lies on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The log lies on another device.
    No,
    /// The log lies on this device.
    Yes,
    /// The log lies on this device, and moves to the device of this number. The tiers do not open
    /// without that device, because it may be the home already.
    Moving(u8),
}

/// The identity of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Id of the namespace to which the device belongs.
    pub(crate) namespace: [u8; 16],
    /// Number of the device in the namespace. It never changes.
    pub(crate) no: u8,
    /// Whether the namespace's log lies on this device.
    pub(crate) home: Home,
    /// Name of the home device when this identity was written, for the error if that device is
    /// missing.
    pub(crate) home_name: String,
    /// Path of the home device when this identity was written.
    pub(crate) home_path: String,
}

impl Identity {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, VERSION);
        out.extend_from_slice(&self.namespace);
        put_u8(&mut out, self.no);
        match self.home {
            Home::No => put_u8(&mut out, 0),
            Home::Yes => put_u8(&mut out, 1),
            Home::Moving(to) => {
                put_u8(&mut out, 2);
                put_u8(&mut out, to);
            }
        }
        put_bytes(&mut out, self.home_name.as_bytes());
        put_bytes(&mut out, self.home_path.as_bytes());
        let sum = crc(&out);
        put_u32(&mut out, sum);
        out
    }

    /// Decodes an identity. `path` is for errors.
    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        if reader.take(MAGIC.len()) != Some(MAGIC) {
            return Err(Error::invalid(format!(
                "{} does not say that this is a device of tiers: the directory belongs to \
                 something else",
                path.display()
            )));
        }
        let damaged = || Error::corrupt(path, 0, "the identity of the device is damaged");
        let version = reader.u32().ok_or_else(damaged)?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "{}: device of tier format version {version}; this program reads version \
                 {VERSION} only",
                path.display()
            )));
        }
        Self::read(&mut reader, bytes).ok_or_else(damaged)
    }

    fn read(reader: &mut Reader<'_>, bytes: &[u8]) -> Option<Self> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let identity = Self {
            namespace: reader.take(16)?.try_into().ok()?,
            no: reader.u8()?,
            home: match reader.u8()? {
                0 => Home::No,
                1 => Home::Yes,
                2 => Home::Moving(reader.u8()?),
                _ => return None,
            },
            home_name: text(reader.bytes()?)?,
            home_path: text(reader.bytes()?)?,
        };
        let sum = crc(&bytes[..reader.position()]);
        (reader.u32()? == sum && reader.is_empty()).then_some(identity)
    }

    /// The identity of the device in `dir`. `None` if the directory has none, or does not exist.
    pub(crate) fn load(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(DEVICE_NAME);
        if !fs.exists(&path)? {
            return Ok(None);
        }
        let bytes = fs.read(&path, IoContext::manifest(IoPurpose::Recovery))?;
        Self::decode(&path, &bytes).map(Some)
    }

    /// Writes the identity durably.
    pub(crate) fn store(&self, fs: &dyn FileSystem, dir: &Path) -> Result<()> {
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        fs.write_atomic(&dir.join(DEVICE_NAME), &self.encode(), context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_do_not_change() {
        let hex = |home| {
            let identity = Identity {
                namespace: [0x5a; 16],
                no: 1,
                home,
                home_name: "fast".to_owned(),
                home_path: "/mnt/fast".to_owned(),
            };
            let bytes = identity.encode();
            assert_eq!(Identity::decode(Path::new("DEVICE"), &bytes).unwrap(), identity);
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let head = "4152434854444556020000005a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a01";
        let tail = "0466617374092f6d6e742f66617374";
        for (home, middle, sum) in [
            (Home::No, "00", "c97520c2"),
            (Home::Yes, "01", "37782c30"),
            (Home::Moving(7), "0207", "95c8fd80"),
        ] {
            assert_eq!(hex(home), format!("{head}{middle}{tail}{sum}"));
        }
    }
}
