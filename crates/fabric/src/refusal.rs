//! Refusals: the reasons for which an operation did not happen. A refusal fits into a completion
//! without an allocation. Its text is made only when it is displayed.

use std::fmt;

use archipelago_base::{Error, ErrorKind};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $kind:ident, $text:literal;)*) => {
        /// Why an operation was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The byte of this reason in a message. It is never 0.
            #[must_use]
            pub const fn code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }

            /// The reason of a byte; `None` if no reason has it.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// The reaction that the caller can choose.
            #[must_use]
            pub const fn kind(self) -> ErrorKind {
                match self { $(Self::$name => ErrorKind::$kind,)* }
            }

            /// The reason as the end of a sentence.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// The node never gave this key.
    UnknownKey = 1, NotFound, "the key is not one that this node gave";
    /// The key was valid, and is not valid any more.
    Revoked = 2, Fenced, "the key was revoked";
    /// The key or the link belongs to an earlier life of the node.
    StaleEpoch = 3, Fenced, "the key or link belongs to another epoch of the node";
    /// The key belongs to another node.
    WrongNode = 4, InvalidArgument, "the key belongs to another node";
    /// The range does not lie within the region.
    OutOfRange = 5, InvalidArgument, "the range is not within the region";
    /// The key does not permit this operation.
    NoRight = 6, InvalidArgument, "the key does not permit this operation";
    /// The offset of an atomic operation is not a multiple of 8.
    Misaligned = 7, InvalidArgument, "an atomic operation needs an offset that is a multiple of 8";
    /// The batch has too many operations or bytes, or the message is too long.
    TooLarge = 8, InvalidArgument, "the batch or message exceeds the size limit";
    /// An earlier operation of the batch was refused. This operation was not tried.
    Skipped = 9, InvalidArgument, "an earlier operation of the batch was refused";
    /// The link is down. It is not known whether the operation happened.
    Disconnected = 10, Busy, "the link went down before an answer came";
    /// The deadline passed. It is not known whether the operation happened or will happen.
    Deadline = 11, Busy, "the deadline passed before an answer came";
    /// Too many operations or bytes are in flight. Nothing happened.
    Full = 12, Busy, "too much is in flight on this link; nothing was sent";
    /// The other side broke the protocol.
    Protocol = 13, Corrupt, "the other side sent what the protocol does not allow";
    /// The other side has another version of the protocol.
    Version = 14, Unsupported, "the other side speaks another version of the protocol";
    /// The region is not attached on this link.
    NotAttached = 15, InvalidArgument, "the region is not attached on this link";
    /// Another provider executes the atomic operations of this region.
    AtomicPath = 16, Unsupported, "atomics of this region go through another provider";
    /// The node has forgotten the client's session. The outcome of the request is lost.
    Forgotten = 17, Fenced, "the node no longer knows this request's number; its outcome is lost";
    /// The node has no handler for requests, or the handler dropped the request.
    Unanswered = 18, NotFound, "no handler of the node answered the request";
    /// The node has no room for more regions, links or clients.
    Exhausted = 19, Busy, "the node has no room for more";
    /// The node admits only clients that know the cluster's secret, and the client has none.
    ClientWithoutSecret = 20, InvalidArgument, "the node admits only processes that know the \
        cluster's secret, and this client has none: give it the cluster's file with --secret-file FILE";
    /// The client links only to nodes that know the cluster's secret, and the node has none.
    NodeWithoutSecret = 21, InvalidArgument, "the client has a secret, and the node has none: start \
        the node with the cluster's file, --secret-file FILE, or the client without one";
    /// One side does not know the secret of the other.
    WrongSecret = 22, InvalidArgument, "client and node have different secrets for this cluster: \
        give both the same file with --secret-file FILE";
    /// The two sides belong to different clusters.
    WrongCluster = 23, InvalidArgument, "client and node belong to different clusters, by the ids in \
        their secret files: connect to another address, or give both the same file with \
        --secret-file FILE";
}

impl Reason {
    /// Whether one side could not prove to the other that it belongs to the cluster.
    #[must_use]
    pub const fn is_authentication(self) -> bool {
        matches!(
            self,
            Self::ClientWithoutSecret
                | Self::NodeWithoutSecret
                | Self::WrongSecret
                | Self::WrongCluster
        )
    }
}

/// A reason, and the limit that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why the operation was refused.
    pub reason: Reason,
    /// The limit that was exceeded: the length of the region for [`Reason::OutOfRange`], the epoch
    /// of the node for [`Reason::StaleEpoch`], and 0 for a reason without a limit.
    pub limit: u64,
}

impl Refusal {
    /// Makes a refusal without a limit.
    #[must_use]
    pub const fn new(reason: Reason) -> Self {
        Self { reason, limit: 0 }
    }

    /// Makes a refusal with the limit that was exceeded.
    #[must_use]
    pub const fn at(reason: Reason, limit: u64) -> Self {
        Self { reason, limit }
    }

    /// The refusal as an error. `what` names the operation ("READ of 8 bytes at 0 of region 3").
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
    fn every_reason_has_its_own_code() {
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(Reason::from_code(0), None, "0 says that an operation went well");
        assert_eq!(Reason::from_code(200), None);
    }
}
