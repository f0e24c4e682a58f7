//! Why an operation did not happen: small enough to travel in a completion without an allocation,
//! and turned into a sentence only when somebody wants to read it.

use std::fmt;

use archipelago_base::{Error, ErrorKind};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $kind:ident, $text:literal;)*) => {
        /// Why.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The byte that stands for it in a message.
            #[must_use]
            pub const fn code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }

            /// `None` for a byte that stands for nothing.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// What the caller can do.
            #[must_use]
            pub const fn kind(self) -> ErrorKind {
                match self { $(Self::$name => ErrorKind::$kind,)* }
            }

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// No such key: never given, or guessed.
    UnknownKey = 1, NotFound, "the key is not one that this node gave";
    /// The key was valid and is not any more.
    Revoked = 2, Fenced, "the key was revoked";
    /// The key, or the link, belongs to an earlier life of the node.
    StaleEpoch = 3, Fenced, "it belongs to another epoch of the node";
    /// The key belongs to another node.
    WrongNode = 4, InvalidArgument, "the key belongs to another node";
    /// The range does not lie within the region.
    OutOfRange = 5, InvalidArgument, "the range is not within the region";
    /// The key does not allow this.
    NoRight = 6, InvalidArgument, "the key does not allow it";
    /// An atomic operation's offset is no multiple of 8.
    Misaligned = 7, InvalidArgument, "an atomic operation needs an offset that is a multiple of 8";
    /// Too many operations or bytes in one batch, or a message that is too long.
    TooLarge = 8, InvalidArgument, "it is larger than the fabric takes at once";
    /// An earlier operation of the batch was refused; this one was not tried.
    Skipped = 9, InvalidArgument, "an earlier operation of the batch was refused";
    /// The link is down. Whether the operation happened is not known.
    Disconnected = 10, Busy, "the link went down before an answer came";
    /// The deadline passed. Whether the operation happened, or will, is not known.
    Deadline = 11, Busy, "the deadline passed before an answer came";
    /// Too much is in flight. Nothing happened.
    Full = 12, Busy, "too much is in flight on this link; nothing was sent";
    /// The other side broke the protocol.
    Protocol = 13, Corrupt, "the other side sent what the protocol does not allow";
    /// The other side speaks another version.
    Version = 14, Unsupported, "the other side speaks another version of the protocol";
    /// The region was never attached on this link.
    NotAttached = 15, InvalidArgument, "the region is not attached on this link";
    /// Memory of this node is served by one path for atomics, and this provider is another.
    AtomicPath = 16, Unsupported, "atomics of this region go through another provider";
    /// The request's number is older than the node remembers.
    Forgotten = 17, Fenced, "the node no longer knows this request's number; its outcome is lost";
    /// Nobody answers requests there, or the one who should dropped it.
    Unanswered = 18, NotFound, "nobody at the node answered the request";
    /// The node has no room for more regions, links or clients.
    Exhausted = 19, Busy, "the node has no room for more";
}

/// A refusal and the number that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The limit that was passed, if the reason has one: the region's length for
    /// [`Reason::OutOfRange`], the node's epoch for [`Reason::StaleEpoch`], else 0.
    pub limit: u64,
}

impl Refusal {
    /// A refusal without a limit.
    #[must_use]
    pub const fn new(reason: Reason) -> Self {
        Self { reason, limit: 0 }
    }

    /// A refusal with the limit that was passed.
    #[must_use]
    pub const fn at(reason: Reason, limit: u64) -> Self {
        Self { reason, limit }
    }

    /// As an error; `what` names what was refused ("READ of 8 bytes at 0 of region 3").
    #[must_use]
    pub fn error(self, what: impl fmt::Display) -> Error {
        Error::new(self.reason.kind(), format!("{what}: {self}"))
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::new(reason)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.text())?;
        match self.reason {
            Reason::OutOfRange => write!(f, " ({} bytes)", self.limit),
            Reason::StaleEpoch => write!(f, " (it is in epoch {})", self.limit),
            Reason::TooLarge if self.limit > 0 => write!(f, " ({})", self.limit),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn codes_name_one_reason_each() {
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(Reason::from_code(0), None, "0 says that an operation went well");
        assert_eq!(Reason::from_code(200), None);
    }
}
