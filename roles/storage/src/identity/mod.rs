//! The identity of a storage node: the file `NODE` in the directory of each of its devices.
//! `docs/formats/storage-node.md` has the byte table.
//!
//! A node chooses its [`StorageId`] at random when it initializes its first device. A node whose
//! devices were emptied therefore has another identity, so that no process takes it for the earlier
//! node, which had promises and logs. The first device's file also lists all devices that the node
//! has chunks on, and the cluster that the node belongs to.
//!
//! Invariants:
//! 1. The identities of node and device in a file never change.
//! 2. A cluster that is known is never replaced by another one, and its root set is replaced only
//!    by one of a larger number.
//!
//! Thread-safety: the values are plain; [`crate::devices`] keeps the node's identity under a lock.
//! Failure: a foreign file, a damaged one and another format version are refused with different
//! errors. Storing is atomic and durable.
//! Cost: one small file per device, read when the node opens.

use std::fmt;
use std::path::Path;

use archipelago_base::checksum::crc;
use archipelago_base::codec::{Reader, put_u8, put_u32, put_u64, put_varint};
use archipelago_base::{Error, Result};
use archipelago_env::{FileSystem, IoContext, IoPurpose};
use archipelago_fabric::ClusterId;
use archipelago_store::nodes::StorageId;
use archipelago_store::nodes::register::caspaxos::RootSet;

/// File name of the identity in the directory of a device.
pub(crate) const NODE_NAME: &str = "NODE";
const MAGIC: &[u8; 8] = b"ARCHNODE";
const VERSION: u32 = 1;

/// Identity of a device of a node, which the node chooses at random when it initializes the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DeviceId(pub(crate) u64);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The cluster that a node belongs to, in the newest form that the node has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownCluster {
    /// Identity of the cluster.
    pub(crate) id: ClusterId,
    /// The newest root set that the node knows.
    pub(crate) root_set: RootSet,
}

/// The content of the file `NODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    /// Identity of the node, which all its devices share.
    pub(crate) storage: StorageId,
    /// Identity of the device that the file lies on.
    pub(crate) device: DeviceId,
    /// All devices that the node may have chunks on. Only the first device's file has them.
    pub(crate) devices: Vec<DeviceId>,
    /// The node's cluster. Only the first device's file has it.
    pub(crate) cluster: Option<KnownCluster>,
}

impl NodeIdentity {
    /// The bytes of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_u32(&mut out, VERSION);
        put_u64(&mut out, self.storage.0);
        put_u64(&mut out, self.device.0);
        put_varint(&mut out, self.devices.len() as u64);
        self.devices.iter().for_each(|device| put_u64(&mut out, device.0));
        put_u8(&mut out, u8::from(self.cluster.is_some()));
        if let Some(cluster) = &self.cluster {
            out.extend_from_slice(&cluster.id.0);
            put_u64(&mut out, cluster.root_set.number);
            put_varint(&mut out, cluster.root_set.members.len() as u64);
            cluster.root_set.members.iter().for_each(|member| put_u64(&mut out, member.0));
        }
        let sum = crc(&out);
        put_u32(&mut out, sum);
        out
    }

    /// Decodes an identity. `path` is for errors.
    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        if reader.take(MAGIC.len()) != Some(MAGIC) {
            return Err(Error::invalid(format!(
                "{} does not say that this is a device of a storage node: the directory belongs to \
                 something else, so choose another one",
                path.display()
            )));
        }
        let damaged = || {
            let what = "the identity of the storage node is damaged; restore the file, or empty \
                        the device";
            Error::corrupt(path, 0, what)
        };
        let version = reader.u32().ok_or_else(damaged)?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "{}: storage node of format version {version}; this program reads version \
                 {VERSION} only",
                path.display()
            )));
        }
        Self::read(&mut reader, bytes).ok_or_else(damaged)
    }

    fn read(reader: &mut Reader<'_>, bytes: &[u8]) -> Option<Self> {
        let storage = StorageId(reader.u64()?);
        let device = DeviceId(reader.u64()?);
        let devices = numbers(reader)?.into_iter().map(DeviceId).collect();
        let cluster = match reader.u8()? {
            0 => None,
            1 => {
                let id = ClusterId(reader.take(16)?.try_into().ok()?);
                let number = reader.u64()?;
                let members = numbers(reader)?.into_iter().map(StorageId).collect();
                Some(KnownCluster { id, root_set: RootSet { number, members } })
            }
            _ => return None,
        };
        let sum = crc(&bytes[..reader.position()]);
        let is_whole = reader.u32()? == sum && reader.is_empty();
        is_whole.then_some(Self { storage, device, devices, cluster })
    }

    /// The identity of the device in `dir`. `None` if the directory has none, or does not exist.
    pub(crate) fn load(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(NODE_NAME);
        if !fs.exists(&path)? {
            return Ok(None);
        }
        let bytes = fs.read(&path, IoContext::manifest(IoPurpose::Recovery))?;
        Self::decode(&path, &bytes).map(Some)
    }

    /// Writes the identity durably.
    pub(crate) fn store(&self, fs: &dyn FileSystem, dir: &Path) -> Result<()> {
        let context = IoContext::manifest(IoPurpose::ForegroundWrite);
        fs.write_atomic(&dir.join(NODE_NAME), &self.encode(), context)
    }
}

/// A varint count and the number of `u64`s that it says.
fn numbers(reader: &mut Reader<'_>) -> Option<Vec<u64>> {
    let count = reader.varint32()? as usize;
    // The count is checked against the bytes before anything is allocated for it.
    let bytes = reader.take(count.checked_mul(8)?)?;
    let mut reader = Reader::new(bytes);
    (0..count).map(|_| reader.u64()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An identity with everything that the format has.
    pub(crate) fn full() -> NodeIdentity {
        NodeIdentity {
            storage: StorageId(0x0102_0304_0506_0708),
            device: DeviceId(9),
            devices: vec![DeviceId(9), DeviceId(10)],
            cluster: Some(KnownCluster {
                id: ClusterId(*b"identity-cluster"),
                root_set: RootSet { number: 2, members: vec![StorageId(1), StorageId(3)] },
            }),
        }
    }

    /// The identity of a device that is not the first one.
    pub(crate) fn short() -> NodeIdentity {
        NodeIdentity { devices: Vec::new(), cluster: None, ..full() }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes_do_not_change() {
        let head = "415243484e4f44450100000008070605040302010900000000000000";
        let devices = "0209000000000000000a00000000000000";
        let cluster = "016964656e746974792d636c7573746572020000000000000002\
                       01000000000000000300000000000000";
        assert_eq!(hex(&full().encode()), format!("{head}{devices}{cluster}808ec670"));
        assert_eq!(hex(&short().encode()), format!("{head}0000b737d846"));
    }

    #[test]
    fn every_changed_or_missing_byte_is_refused() {
        for identity in [full(), short()] {
            let bytes = identity.encode();
            assert_eq!(NodeIdentity::decode(Path::new("NODE"), &bytes).unwrap(), identity);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert!(NodeIdentity::decode(Path::new("NODE"), &damaged).is_err(), "byte {at}");
                assert!(NodeIdentity::decode(Path::new("NODE"), &bytes[..at]).is_err(), "{at}");
            }
        }
    }

    #[test]
    fn foreign_and_future_files_are_told_apart() {
        let kind =
            |bytes: &[u8]| NodeIdentity::decode(Path::new("NODE"), bytes).unwrap_err().kind();
        assert_eq!(kind(b"something else"), archipelago_base::ErrorKind::InvalidArgument);
        let mut future = full().encode();
        future[8] = 2;
        assert_eq!(kind(&future), archipelago_base::ErrorKind::Unsupported);
    }
}
