//! The secret of a cluster, and the file that holds it.
//!
//! The file has one line: `archipelago-secret 1 CLUSTER KEY`, with the cluster's id (16 bytes) and
//! the key (32 bytes) in hexadecimal digits. `docs/formats/secret.md` describes it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use archipelago_base::{Error, Result};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustix::process::geteuid;

use crate::ids::ClusterId;
use crate::wire::{NONCE_BYTES, Nonce, PROOF_BYTES, Proof};

/// First word of the file.
const MAGIC: &str = "archipelago-secret";
/// Version of the file, its second word.
const VERSION: &str = "1";
/// Length of the key in bytes: that of the output of SHA-256, as RFC 2104 recommends.
const KEY_BYTES: usize = 32;
/// Limit of the file's length in bytes. A secret's line is shorter.
const FILE_BYTES_MAX: u64 = 1024;

/// The secret that all members of a cluster share, with the cluster's id. Its `Debug` shows only
/// the id.
///
/// ```
/// use archipelago_fabric::Secret;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("secret");
/// let made = Secret::create(&path)?;
/// assert_eq!(Secret::read(&path)?.cluster(), made.cluster());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    cluster: ClusterId,
    key: hmac::Key,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret(cluster {})", self.cluster)
    }
}

/// The side of a link that makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    Client,
    Node,
}

impl Prover {
    /// Bytes before the transcript, which keep the proofs of both sides apart.
    fn prefix(self) -> &'static [u8] {
        match self {
            Self::Client => b"archipelago fabric: client\0",
            Self::Node => b"archipelago fabric: node\0",
        }
    }
}

/// Random bytes of the system.
fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::internal("the system gave no random bytes for a secret"))?;
    Ok(bytes)
}

/// A number for one greeting.
pub(super) fn fresh_nonce() -> Result<Nonce> {
    random::<NONCE_BYTES>().map(Nonce)
}

impl Secret {
    fn new(cluster: ClusterId, key: &[u8; KEY_BYTES]) -> Self {
        Self { cluster, key: hmac::Key::new(hmac::HMAC_SHA256, key) }
    }

    /// Reads a secret from its file. Errors: `Io` if the file cannot be read, and
    /// `InvalidArgument` if another user may read or change it, or if it is not a secret's file.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |source| {
            Error::io("read the secret in", path, source).context_at(
                "the cluster's secret (`archipelago cluster secret FILE` makes a new one)",
            )
        };
        // A named pipe must not block the process.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        check_privacy(path, &file)?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text).ok_or_else(|| {
            Error::invalid(format!(
                "{}: not the file of a secret of this version, which has the line `{MAGIC} {VERSION} \
                 CLUSTER KEY`: copy the file of another member of the cluster",
                path.display()
            ))
        })
    }

    /// Reads a secret from the text of its file; `None` if the text is not that of a secret of this
    /// version.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_suffix('\n').unwrap_or(text).split(' ');
        let is_known = words.next() == Some(MAGIC) && words.next() == Some(VERSION);
        let cluster = ClusterId(bytes_of(words.next()?)?);
        let key = bytes_of::<KEY_BYTES>(words.next()?)?;
        // A random key is never all zeros; a file with holes is.
        let is_sound = is_known && words.next().is_none() && key != [0; KEY_BYTES];
        is_sound.then(|| Self::new(cluster, &key))
    }

    /// Makes a secret for a new cluster, and writes it to a new file that only this user may read.
    /// The file and its name are on the device on return. Errors: `Io` if the file exists or cannot
    /// be written. A file that was not written completely is removed.
    pub fn create(path: &Path) -> Result<Self> {
        let failed = |source| Error::io("write a secret to", path, source);
        let (cluster, key) = (ClusterId(random()?), random::<KEY_BYTES>()?);
        let line = format!("{MAGIC} {VERSION} {cluster} {}\n", hex(&key));
        write_new(path, |file| {
            file.write_all(line.as_bytes())?;
            file.sync_all()?;
            OpenOptions::new().read(true).open(directory_of(path))?.sync_all()
        })
        .map_err(failed)?;
        Ok(Self::new(cluster, &key))
    }

    /// The cluster of this secret.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The proof of `prover` for a transcript.
    pub(super) fn prove(&self, prover: Prover, transcript: &[u8]) -> Proof {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(prover.prefix());
        context.update(transcript);
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(context.sign().as_ref());
        Proof(proof)
    }

    /// Whether `proof` is that of `prover` for a transcript. The comparison takes constant time.
    pub(super) fn verify(&self, prover: Prover, transcript: &[u8], proof: &Proof) -> bool {
        let said = [prover.prefix(), transcript].concat();
        hmac::verify(&self.key, &said, &proof.0).is_ok()
    }
}

/// Makes a private file, and removes it if `fill` fails.
fn write_new(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    fill(&mut file).inspect_err(|_| {
        // The first error has the cause, even if the file cannot be removed.
        let _removed = rustix::fs::unlink(path);
    })
}

/// The directory that holds a file.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a file that another user may read or change. It checks the open file, so that no other
/// file can take its name in between.
fn check_privacy(path: &Path, file: &File) -> Result<()> {
    let failed = |source| Error::io("look at the secret in", path, source);
    let found = file.metadata().map_err(failed)?;
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    let name = path.display();
    if !found.is_file() {
        return Err(Error::invalid(format!("{name}: a secret must be in a plain file")));
    }
    if mode & 0o077 != 0 {
        return Err(Error::invalid(format!(
            "{name}: other users of this machine may read or change this secret (mode {mode:03o}): \
             run chmod 600 {name}, and make a new secret if another user may have read it"
        )));
    }
    if owner != geteuid().as_raw() && owner != 0 {
        return Err(Error::invalid(format!(
            "{name}: this secret belongs to another user (id {owner}): copy it to a file of the user \
             of this process, with mode 600"
        )));
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from hexadecimal digits in lower case; `None` if the text has another length.
fn bytes_of<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * BYTES {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A secret whose cluster and key consist of one byte each.
    pub(crate) fn secret(cluster: u8, key: u8) -> Secret {
        Secret::new(ClusterId([cluster; 16]), &[key; KEY_BYTES])
    }

    const LINE: &str = "archipelago-secret 1 000102030405060708090a0b0c0d0e0f \
                        101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f";

    #[test]
    fn file_of_a_secret_has_golden_bytes() {
        let secret = Secret::parse(LINE).expect("sound");
        assert_eq!(secret.cluster().to_string(), "000102030405060708090a0b0c0d0e0f");
        assert!(Secret::parse(&format!("{LINE}\n")).is_some());
        // RFC 4231 has no vector for this key. The value was computed with Python's hmac module.
        let proof = secret.prove(Prover::Client, b"reef");
        assert_eq!(hex(&proof.0), GOLDEN_PROOF);
        assert!(secret.verify(Prover::Client, b"reef", &proof));
        assert!(!secret.verify(Prover::Node, b"reef", &proof), "the other side's");
        assert!(!secret.verify(Prover::Client, b"reef ", &proof));
    }

    const GOLDEN_PROOF: &str = "714b0df369d002025aec0a30a9da67589c22929e64923fb97e6c8ff61d2c87ef";

    #[test]
    fn malformed_secret_is_refused() {
        let short = &LINE[..LINE.len() - 1];
        let zeros = format!("{} {}", &LINE[..53], "0".repeat(64));
        for wrong in [
            "",
            "\n",
            short,
            &LINE.to_uppercase(),
            &LINE.replace(" 1 ", " 2 "),
            &LINE.replace(' ', "  "),
            &format!("{LINE} "),
            &format!("{LINE}\n\n"),
            &format!("{LINE}0"),
            &zeros,
        ] {
            assert!(Secret::parse(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn made_secret_is_private_and_never_printed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let made = Secret::create(&path).expect("a new file");
        let read = Secret::read(&path).expect("private");
        let (one, other) = (made.prove(Prover::Node, b"x"), read.prove(Prover::Node, b"x"));
        assert_eq!((made.cluster(), one), (read.cluster(), other));
        assert_eq!(format!("{made:?}"), format!("Secret(cluster {})", made.cluster()));
        Secret::create(&path).expect_err("a secret is not replaced");
        let again = Secret::create(&dir.path().join("other")).expect("a new file");
        assert_ne!(again.cluster(), made.cluster());
    }

    #[test]
    fn file_of_a_secret_is_removed_after_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        write_new(&path, |_| Err(io::ErrorKind::StorageFull.into())).expect_err("no space");
        assert!(!path.exists());
        Secret::create(&path).expect("the name is free again");
        write_new(&path, |_| Ok(())).expect_err("the file exists");
        Secret::read(&path).expect("it was not removed");
        assert_eq!(directory_of(Path::new("secret")), Path::new("."));
        assert_eq!(directory_of(&path), dir.path());
    }

    #[test]
    fn secret_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        Secret::create(&path).expect("a new file");
        for mode in [0o644, 0o640, 0o620, 0o601] {
            let set = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
            set.expect("our file");
            let error = Secret::read(&path).expect_err("others may read it").to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        let set = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400));
        set.expect("our file");
        Secret::read(&path).expect("private");
        let error = Secret::read(dir.path()).expect_err("a directory").to_string();
        assert!(error.contains("plain file") || error.contains("chmod"), "{error}");
        let error = Secret::read(&dir.path().join("none")).expect_err("missing").to_string();
        assert!(error.contains("cluster secret"), "{error}");
    }
}
