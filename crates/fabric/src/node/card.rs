//! A node's memory as a network card knows it.
//!
//! Invariants: 1. one listener at a time registers a node's memory: atomics of two cards are not
//! atomic to each other;
//! 2. a registration belongs to a key and ends when the key does, before the revocation returns.
//!
//! Thread-safety: all methods. Cost: a registration pins the region's pages, once per key.

use std::fmt;
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};

use super::keys::Opened;
use super::{AtomicPath, Node, key_of};
use crate::ids::{RemoteKey, Rights};
use crate::memory::Mapping;
use crate::refusal::{Reason, Refusal};

/// A card's registration of memory. Dropped, nobody reaches the memory by it any more.
pub(crate) trait Registration: Send + Sync + fmt::Debug {
    /// Key and first address, as the card's peers name them.
    fn place(&self) -> (u64, u64);
}

/// A listener's right to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// No other listener of this process has it.
    pub(crate) number: u32,
    /// For people.
    pub(crate) name: String,
}

#[derive(Debug)]
pub(super) struct OnCard {
    claim: u32,
    registration: Box<dyn Registration>,
}

/// What an attachment needs to know.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) rights: Rights,
    pub(crate) place: (u64, u64),
    pub(crate) memory: Arc<Mapping>,
}

impl Node {
    /// Makes the card of `claim` the node's. Unsupported while it has another.
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

    /// Ends the claim, and all registrations under it.
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

    /// What an attachment may open, registered with the card of `claim`: by `register`, if it is
    /// not yet.
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
