//! The greeting of a link as two state machines without I/O: the client's side and the node's.
//!
//! ```text
//! client                                    node
//!   hello: session, cluster, random number ──>   checks the cluster
//!   <── challenge: node, epoch, random number
//!   proof of the client ──────────────────────>  checks the proof
//!   <── welcome: node, epoch, proof of the node
//!   checks the proof
//! ```
//!
//! Without a secret on either side, the welcome follows the hello. A proof covers all messages
//! before it, and the node's proof also its welcome. If only one side has a secret, that side
//! refuses the other.
//!
//! Invariants:
//! 1. A side with a secret never accepts a greeting without the other side's proof.
//! 2. A side makes a proof only for a greeting that has its own random number in it.
//!
//! Thread-safety: a value belongs to one greeting.
//! Failure: a refusal with the reason.
//! Cost: two checksums per side.

use archipelago_base::Epoch;

use super::secret::{Prover, Secret, fresh_nonce};
use crate::ids::NodeId;
use crate::refusal::{Reason, Refusal};
use crate::wire::{
    Challenge, Frame, Hello, Introduction, Kind, Nonce, Proof, Welcome, decode_goodbye, put_frame,
};

/// The messages of a greeting so far: kind, length and body of each.
#[derive(Debug, Default)]
struct Transcript(Vec<u8>);

impl Transcript {
    fn push(&mut self, kind: Kind, body: &[u8]) {
        self.0.push(kind as u8);
        self.0.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.0.extend_from_slice(body);
    }

    /// Records the welcome without its proof, which covers the rest of it.
    fn push_welcome(&mut self, welcome: &Welcome) {
        let mut body = Vec::new();
        Welcome { proof: None, ..*welcome }.encode(&mut body);
        self.push(Kind::Welcome, &body);
    }
}

fn framed(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    put_frame(&mut frame, kind, 0, |out| out.extend_from_slice(body));
    frame
}

fn nonce() -> Result<Nonce, Refusal> {
    fresh_nonce().map_err(|error| {
        tracing::error!(%error, "a link is not possible");
        Refusal::new(Reason::Exhausted)
    })
}

/// The client's side of a greeting.
pub(crate) struct ClientGreeting<'a> {
    /// The secret, and the messages so far; `None` without a secret.
    secret: Option<(&'a Secret, Transcript)>,
    /// Whether the client has sent its proof.
    has_proved: bool,
}

/// What the client does after a message of the node.
#[derive(Debug)]
pub(crate) enum ClientStep {
    /// The client sends this frame and waits for the next message.
    Send(Vec<u8>),
    /// The client has a link to this node.
    Welcomed(Welcome),
}

impl<'a> ClientGreeting<'a> {
    /// Begins a greeting. Returns its first frame.
    pub(crate) fn begin(
        secret: Option<&'a Secret>,
        mut hello: Hello,
    ) -> Result<(Self, Vec<u8>), Refusal> {
        if let Some(secret) = secret {
            hello.introduction = Some(Introduction { cluster: secret.cluster(), nonce: nonce()? });
        }
        let mut body = Vec::new();
        hello.encode(&mut body);
        let secret = secret.map(|secret| {
            let mut transcript = Transcript::default();
            transcript.push(Kind::Hello, &body);
            (secret, transcript)
        });
        Ok((Self { secret, has_proved: false }, framed(Kind::Hello, &body)))
    }

    /// Decides about a message of the node.
    pub(crate) fn hear(&mut self, frame: &Frame<'_>) -> Result<ClientStep, Refusal> {
        match (frame.kind, &mut self.secret) {
            (Kind::Goodbye, _) => {
                let said = decode_goodbye(frame.body).map_err(|_| Reason::Protocol)?;
                Err(said.0)
            }
            (Kind::Challenge, Some((secret, transcript))) if !self.has_proved => {
                Challenge::decode(frame.body).map_err(|_| Reason::Protocol)?;
                transcript.push(Kind::Challenge, frame.body);
                let proof = secret.prove(Prover::Client, &transcript.0);
                transcript.push(Kind::Proof, &proof.0);
                self.has_proved = true;
                Ok(ClientStep::Send(framed(Kind::Proof, &proof.0)))
            }
            (Kind::Welcome, secret) => {
                let welcome = Welcome::decode(frame.body)?;
                if let Some((secret, transcript)) = secret {
                    // The proof of another greeting does not verify, so the check needs no state.
                    let proof = welcome.proof.ok_or(Reason::NodeWithoutSecret)?;
                    transcript.push_welcome(&welcome);
                    if !secret.verify(Prover::Node, &transcript.0, &proof) {
                        return Err(Reason::WrongSecret.into());
                    }
                }
                Ok(ClientStep::Welcomed(welcome))
            }
            _ => Err(Reason::Protocol.into()),
        }
    }
}

/// The node's side of a greeting, after its challenge.
#[derive(Debug)]
pub(crate) struct NodeGreeting {
    secret: Secret,
    transcript: Transcript,
    hello: Hello,
}

/// A client that may have a link.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The client's greeting.
    pub(crate) hello: Hello,
    /// The secret, and the messages so far; `None` without a secret.
    proved: Option<Box<(Secret, Transcript)>>,
}

/// What the node does after a client's greeting.
#[derive(Debug)]
pub(crate) enum NodeStep {
    /// The node sends the frame, and waits for the client's proof.
    Challenge(Box<NodeGreeting>, Vec<u8>),
    /// The node welcomes the client.
    Admit(Admission),
}

impl NodeGreeting {
    /// Decides about the body of a client's greeting. `node` and `epoch` name this node.
    pub(crate) fn begin(
        secret: Option<&Secret>,
        body: &[u8],
        node: NodeId,
        epoch: Epoch,
    ) -> Result<NodeStep, Refusal> {
        let hello = Hello::decode(body)?;
        let (secret, introduction) = match (secret, hello.introduction) {
            (None, None) => return Ok(NodeStep::Admit(Admission { hello, proved: None })),
            (None, Some(_)) => return Err(Reason::NodeWithoutSecret.into()),
            (Some(_), None) => return Err(Reason::ClientWithoutSecret.into()),
            (Some(secret), Some(introduction)) => (secret.clone(), introduction),
        };
        if introduction.cluster != secret.cluster() {
            return Err(Reason::WrongCluster.into());
        }
        let mut challenge = Vec::new();
        Challenge { node, epoch, nonce: nonce()? }.encode(&mut challenge);
        let mut transcript = Transcript::default();
        transcript.push(Kind::Hello, body);
        transcript.push(Kind::Challenge, &challenge);
        let frame = framed(Kind::Challenge, &challenge);
        Ok(NodeStep::Challenge(Box::new(Self { secret, transcript, hello }), frame))
    }

    /// Decides about the client's proof.
    pub(crate) fn check(mut self, frame: &Frame<'_>) -> Result<Admission, Refusal> {
        if frame.kind != Kind::Proof {
            return Err(Reason::Protocol.into());
        }
        let proof = Proof::decode(frame.body).map_err(|_| Reason::Protocol)?;
        if !self.secret.verify(Prover::Client, &self.transcript.0, &proof) {
            return Err(Reason::WrongSecret.into());
        }
        self.transcript.push(Kind::Proof, &proof.0);
        Ok(Admission { hello: self.hello, proved: Some(Box::new((self.secret, self.transcript))) })
    }
}

impl Admission {
    /// Puts the node's proof into its welcome, if the link has a secret.
    pub(crate) fn sign(mut self, welcome: Welcome) -> Welcome {
        let proof = self.proved.as_mut().map(|proved| {
            let (secret, transcript) = proved.as_mut();
            transcript.push_welcome(&welcome);
            secret.prove(Prover::Node, &transcript.0)
        });
        Welcome { proof, ..welcome }
    }
}

#[cfg(test)]
mod tests;
