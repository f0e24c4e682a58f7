//! The messages with which both sides of a link prove that they know the cluster's secret. The
//! module `auth` computes the proofs.
//!
//! The module consists of pure functions.

use archipelago_base::codec::Reader;
use archipelago_base::wire::{Malformed, Wire};
use archipelago_base::{Epoch, wire_struct};

use crate::ids::{ClusterId, NodeId};

/// Length of a [`Nonce`] in bytes.
pub const NONCE_BYTES: usize = 32;
/// Length of a [`Proof`] in bytes, which is that of an HMAC-SHA-256.
pub const PROOF_BYTES: usize = 32;

/// Random bytes that a side chooses for one greeting, so that no earlier proof fits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

/// A proof that a side knows the secret: a checksum of the greeting so far, keyed with the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(pub [u8; PROOF_BYTES]);

/// The part of a client's greeting that begins the authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Cluster of the client.
    pub cluster: ClusterId,
    /// Random bytes of the client.
    pub nonce: Nonce,
}

/// The node's question for a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The node that asks.
    pub node: NodeId,
    /// The life of the node.
    pub epoch: Epoch,
    /// Random bytes of the node.
    pub nonce: Nonce,
}

macro_rules! wire_bytes {
    ($($name:ident)*) => { $(
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0);
            }
            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                const BYTES: usize = size_of::<$name>();
                reader.take(BYTES)?.try_into().ok().map(Self)
            }
        }
    )* };
}

wire_bytes! { Nonce Proof ClusterId }
wire_struct!(Introduction { cluster, nonce });
wire_struct!(Challenge { node, epoch, nonce });

/// Reads a body that is one value and nothing else.
fn whole<T: Wire>(body: &[u8], wrong: &'static str) -> Result<T, Malformed> {
    let mut reader = Reader::new(body);
    T::get(&mut reader).filter(|_| reader.is_empty()).ok_or(Malformed(wrong))
}

impl Challenge {
    /// Appends the body of the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// Reads the body of the message.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        whole(body, "a challenge that cannot be read")
    }
}

impl Proof {
    /// Appends the body of the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// Reads the body of the message.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        whole(body, "a proof that cannot be read")
    }
}
