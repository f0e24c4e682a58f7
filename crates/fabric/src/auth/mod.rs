//! Authentication: both sides of a link prove that they know the secret of one cluster.
//!
//! A link begins with a mutual challenge and response. Each side chooses a random number for this
//! link. Each side proves that it knows the [`Secret`] by an HMAC-SHA-256 over all messages of both
//! sides. The client proves first, so that an unknown process that connects gets nothing that it
//! could compare with guesses. [`handshake`] has the steps.
//!
//! Invariants:
//! 1. A link of a provider with a secret carries nothing before both proofs are checked.
//! 2. A proof covers the version, the client's session, the node, its epoch, the cluster and both
//!    random numbers. Therefore it fits one link only.
//! 3. The proofs of client and node have different prefixes, so neither side can send the other's
//!    proof back.
//! 4. A node without a secret listens on loopback addresses only ([`listening`]).
//! 5. A secret is read from a file of its user, and never printed.
//!
//! Limits:
//! 1. The proofs authenticate the beginning of a link. They do not encrypt what follows, and do not
//!    protect it against a machine on the path that changes packets.
//! 2. A proof does not cover the address. A process that listens at an address that a node has left
//!    can relay the greeting to the node, and then reads and changes what follows.
//! 3. Over `ofi` the messages after the greeting use another endpoint and are not bound to the
//!    proof. A process that reaches this endpoint can inject messages. Therefore `ofi` does not
//!    serve a node beyond loopback addresses.
//!
//! The primitives are those of `ring`, which the TLS of the Redis server uses as well. Its check of
//! an HMAC takes constant time, and its random numbers are the system's.
//!
//! Thread-safety: immutable, except for the report of refusals, which any thread may use.
//! Failure: a side without a valid proof is refused with a reason, which both sides log.
//! Cost: one more round trip per link, and four checksums of about 300 bytes.

mod handshake;
mod listening;
mod report;
mod secret;

pub(crate) use handshake::{Admission, ClientGreeting, ClientStep, NodeGreeting, NodeStep};
pub(crate) use listening::{Listening, listening};
pub(crate) use report::RefusalReport;
pub use secret::Secret;
