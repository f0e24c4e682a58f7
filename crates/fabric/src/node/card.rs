//! The registration of a node's memory with a network card.
//!
//! Invariants:
//! 1. One listener at a time registers the memory of a node, because atomic operations of two cards
//!    are not atomic to each other.
//! 2. A registration belongs to a key. It ends before the revocation of the key returns.
//!
//! Thread-safety: any thread may call any method.
//! Failure: `Unsupported` if another card has the node.
//! Cost: a registration pins the pages of the region, once per key.

use std::fmt;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};

use super::keys::Opened;
use super::{AtomicPath, Node, key_of};
use crate::ids::{RemoteKey, Rights};
use crate::memory::Mapping;
use crate::refusal::{Reason, Refusal};

/// A registration of memory with a card. After its drop no client reaches the memory through it.
pub(crate) trait Registration: Send + Sync + fmt::Debug {
    /// Key and first address of the registration, as clients of the card name them.
    fn place(&self) -> (u64, u64);
}

/// The right of a listener to register the memory of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Number of the listener, unique in the process.
    pub(crate) number: u32,
    /// Name of the card, for messages.
    pub(crate) name: String,
}

#[derive(Debug)]
pub(super) struct OnCard {
    claim: u32,
    registration: Box<dyn Registration>,
}

/// Facts for the answer to an attachment.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) rights: Rights,
    pub(crate) place: (u64, u64),
    pub(crate) memory: Arc<Mapping>,
}

impl Node {
    /// Gives the node to the card of `claim`. Errors: `Unsupported` if another card has it.
    pub(crate) fn claim_card(&self, claim: &Claim) -> Result<()> {
        let mut card = self.card.lock();
        match &*card {
            Some(other) if other != claim => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "node {} is served by {} already, and atomics of one word go one way: close that listener first",
                    self.id, other.name
                ),
            )),
            _ => {
                *card = Some(claim.clone());
                Ok(())
            }
        }
    }

    /// Ends the claim and all registrations under it.
    pub(crate) fn release_card(&self, claim: &Claim) {
        self.keys.change_all(|opened| {
            if opened.registered.as_ref().is_some_and(|on| on.claim == claim.number) {
                opened.registered = None;
            }
        });
        let mut card = self.card.lock();
        if card.as_ref() == Some(claim) {
            *card = None;
        }
    }

    /// Checks an attachment, and registers the region with the card of `claim` if it is not
    /// registered yet. `register` does that.
    pub(crate) fn attach_on_card(
        &self,
        key: &RemoteKey,
        claim: &Claim,
        register: impl FnOnce(&Arc<Mapping>, Rights) -> Result<Box<dyn Registration>, Refusal>,
    ) -> Result<Placed, Refusal> {
        key_of(key, self.id, self.epoch())?;
        self.keys.change(key.region, key.tag, |opened| {
            if opened.rights.allow(Rights::ATOMIC) && opened.path != AtomicPath::Card {
                return Err(Reason::AtomicPath.into());
            }
            let place = match &opened.registered {
                Some(on) if on.claim == claim.number => on.registration.place(),
                _ => register_anew(opened, claim, register)?,
            };
            Ok(Placed { rights: opened.rights, place, memory: Arc::clone(&opened.memory) })
        })
    }
}

fn register_anew(
    opened: &mut Opened,
    claim: &Claim,
    register: impl FnOnce(&Arc<Mapping>, Rights) -> Result<Box<dyn Registration>, Refusal>,
) -> Result<(u64, u64), Refusal> {
    let registration = register(&opened.memory, opened.rights)?;
    let place = registration.place();
    opened.registered = Some(OnCard { claim: claim.number, registration });
    Ok(place)
}
