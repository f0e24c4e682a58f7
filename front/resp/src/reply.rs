//! Replies in RESP2 and RESP3, which are written directly into the output of the connection.
//!
//! One connection owns its output. Functions of commands say what they mean (a map, a null, a set),
//! and this module writes it in the protocol of the connection.
//!
//! Invariant: the header of an aggregate promises a number of elements. The function must write
//! exactly that number.

use crate::numbers::format_i64;

/// Version of the protocol of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    /// The version at the start of every connection.
    #[default]
    Resp2,
    /// The version after `HELLO 3`.
    Resp3,
}

impl Version {
    /// The version as a number, for HELLO.
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Output of a connection.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    out: Vec<u8>,
    version: Version,
}

impl Reply {
    /// An empty output of the same version, for elements whose number is not known yet.
    pub(crate) fn scratch(&self) -> Self {
        Self { out: Vec::new(), version: self.version }
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.out.capacity()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// Removes everything after the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// Frees the memory that the bytes do not need.
    pub(crate) fn fit(&mut self) {
        self.out.shrink_to_fit();
    }

    /// Removes everything after the first `len` bytes, and frees their memory.
    pub(crate) fn take_back(&mut self, len: usize) {
        self.out.truncate(len);
        self.out.shrink_to_fit();
    }

    /// Removes the bytes, which were sent, and keeps at most `keep` bytes of memory.
    pub(crate) fn sent(&mut self, keep: usize) {
        self.out.clear();
        self.out.shrink_to(keep);
    }

    /// Appends the bytes of a scratch output.
    pub(crate) fn append(&mut self, other: &Self) {
        self.out.extend_from_slice(&other.out);
    }

    #[inline]
    fn header(&mut self, mark: u8, count: usize) {
        let mut digits = [0; 20];
        self.out.push(mark);
        self.out.extend_from_slice(format_i64(count as i64, &mut digits));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes the status `+OK`.
    #[inline]
    pub(crate) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// Writes a status. `text` has no line break.
    pub(crate) fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes an error line, which begins with its code word. Line breaks become blanks.
    pub(crate) fn error(&mut self, line: &str) {
        self.out.push(b'-');
        self.out.extend(line.bytes().map(|b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub(crate) fn integer(&mut self, value: i64) {
        let mut digits = [0; 20];
        self.out.push(b':');
        self.out.extend_from_slice(format_i64(value, &mut digits));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a count as an integer.
    pub(crate) fn count(&mut self, value: usize) {
        self.integer(value as i64);
    }

    /// Writes a truth value as 1 or 0, which clients expect in both versions.
    pub(crate) fn flag(&mut self, value: bool) {
        self.integer(i64::from(value));
    }

    #[inline]
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + 24);
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a long text for people.
    pub(crate) fn verbatim(&mut self, text: &str) {
        match self.version {
            Version::Resp2 => self.bulk(text.as_bytes()),
            Version::Resp3 => {
                self.header(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes a null.
    #[inline]
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// Writes a null in the place of an array.
    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// Writes a bulk string, or a null.
    pub(crate) fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Writes the header of an array. `count` elements follow.
    pub(crate) fn array(&mut self, count: usize) {
        self.header(b'*', count);
    }

    /// Writes the header of a map. `count` pairs follow, each a key and a value.
    pub(crate) fn map(&mut self, count: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', 2 * count),
            Version::Resp3 => self.header(b'%', count),
        }
    }

    /// Writes the header of a message that answers no command. `count` elements follow. Only RESP3
    /// has such messages.
    pub(crate) fn push(&mut self, count: usize) {
        debug_assert_eq!(self.version, Version::Resp3, "RESP2 has no such messages");
        self.header(b'>', count);
    }

    /// Writes the header of a set. `count` elements follow.
    pub(crate) fn set(&mut self, count: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', count),
            Version::Resp3 => self.header(b'~', count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_spelling() {
        let mut reply = Reply::default();
        let all = |reply: &mut Reply| {
            reply.null();
            reply.map(1);
            reply.set(1);
            reply.verbatim("hi");
        };
        all(&mut reply);
        assert_eq!(reply.bytes(), b"$-1\r\n*2\r\n*1\r\n$2\r\nhi\r\n");
        reply.truncate(0);
        reply.set_version(Version::Resp3);
        all(&mut reply);
        assert_eq!(reply.bytes(), b"_\r\n%1\r\n~1\r\n=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn an_error_stays_on_its_line() {
        let mut reply = Reply::default();
        reply.error("ERR a\r\n+OK");
        assert_eq!(reply.bytes(), b"-ERR a  +OK\r\n");
    }
}
