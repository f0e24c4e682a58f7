//! The password of `default`, which is the server's only user.
//!
//! A [`Password`] keeps a digest (SHA-256) and drops the text. It compares digests in constant
//! time, so the time of a comparison reveals neither the password nor its length. The digest has no
//! salt, as in Redis, because a reader of this process's memory can read the data as well.
//!
//! Thread-safety: immutable. Cost: one digest for each AUTH.

use std::fmt;

use archipelago_base::{Error, Result};
use ring::digest::{Digest, SHA256, digest};
use subtle::ConstantTimeEq;

/// Longest password in bytes. A client that has not logged in may send no longer argument.
pub const PASSWORD_BYTES_MAX: usize = 16 << 10;

/// A password as a digest.
#[derive(Clone)]
pub struct Password(Digest);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Password {
    /// The password with the bytes `text`.
    ///
    /// # Errors
    /// `InvalidArgument` if it is empty or longer than [`PASSWORD_BYTES_MAX`].
    pub fn new(text: &[u8]) -> Result<Self> {
        match text.len() {
            0 => Err(Error::invalid("the password is empty: everybody would know it")),
            len if len > PASSWORD_BYTES_MAX => Err(Error::invalid(format!(
                "the password has {len} bytes: at most {PASSWORD_BYTES_MAX} are possible"
            ))),
            _ => Ok(Self(digest(&SHA256, text))),
        }
    }

    /// Whether `text` is the password.
    #[must_use]
    pub fn is(&self, text: &[u8]) -> bool {
        self.0.as_ref().ct_eq(digest(&SHA256, text).as_ref()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_password_matches() {
        let password = Password::new(b"open sesame").unwrap();
        assert!(password.is(b"open sesame"));
        for wrong in [&b""[..], b"open sesam", b"open sesame ", b"OPEN SESAME", b"\0"] {
            assert!(!password.is(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{password:?}"), "Password");
    }

    #[test]
    fn impossible_passwords_are_refused() {
        assert!(Password::new(b"").unwrap_err().to_string().contains("empty"));
        Password::new(&vec![b'x'; PASSWORD_BYTES_MAX]).unwrap();
        assert!(Password::new(&vec![b'x'; PASSWORD_BYTES_MAX + 1]).is_err());
    }
}
