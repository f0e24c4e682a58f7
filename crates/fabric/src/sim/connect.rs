//! Connecting: a question to the listener of a node, and its answer. The client repeats a lost
//! question until the deadline.

use std::sync::Arc;

use archipelago_base::simulation::{HostId, Life};
use archipelago_base::{Error, ErrorKind, Result};

use super::Runs;
use super::network::{Crossing, ListenerEntry, Network};
use super::wire::{Parts, SimLink, Wire};
use crate::link::{Connect, LINKS_MAX, Link};
use crate::node::LinkEnd;
use crate::promise::{Promise, Slot};
use crate::refusal::{Reason, Refusal};

type ConnectOutcome = Result<Arc<dyn Link>>;

/// A connection attempt.
struct Attempt {
    network: Arc<Network>,
    near: Life,
    host: HostId,
    to: Connect,
    deadline_ns: u64,
    slot: Arc<Slot<ConnectOutcome>>,
}

pub(super) fn connect(network: &Arc<Network>, near: Life, to: Connect) -> Promise<ConnectOutcome> {
    let host = match network.machine_of(&to.address) {
        Ok(host) => host,
        Err(error) => return Promise::ready(Err(error)),
    };
    if !network.scheduler.lives(near) {
        let what = format!("cannot connect to {}: this host is down", to.address);
        return Promise::ready(Err(Error::closed(what)));
    }
    let (slot, now_ns) = (Slot::new(), network.scheduler.now_ns());
    let deadline_ns = now_ns.saturating_add(to.deadline.as_nanos() as u64);
    let (network, kept) = (Arc::clone(network), Arc::clone(&slot));
    let driver = Arc::new(Runs(network.scheduler.clone()));
    let attempt = Arc::new(Attempt { network, near, host, to, deadline_ns, slot });
    // The event of the deadline keeps the attempt, even if the question is lost.
    let waits = Arc::clone(&attempt);
    attempt.network.scheduler.at(deadline_ns, near, move || give_up(&waits));
    ask(attempt);
    Promise::pending(kept, driver)
}

fn ask(attempt: Arc<Attempt>) {
    let network = Arc::clone(&attempt.network);
    // Any life of the machine may answer, because a connection belongs to none before it exists.
    let far = network.scheduler.life(attempt.host);
    match network.cross(attempt.near, far, network.now_ps()) {
        Crossing::Arrives { at_ns, .. } => {
            // If the machine crashes before it answers, no answer arrives, and the client asks
            // again.
            let lost = Arc::clone(&attempt);
            let again_ns = at_ns + network.transport().again_ns;
            network.scheduler.at(at_ns, far, {
                let attempt = Arc::clone(&attempt);
                move || knock(&attempt, far)
            });
            network.scheduler.at(again_ns, attempt.near, move || {
                if !lost.slot.is_done() && !lost.network.scheduler.lives(far) {
                    later(lost);
                }
            });
        }
        Crossing::Lost | Crossing::Reset => later(attempt),
    }
}

/// Plans to ask again, or ends the attempt.
fn later(attempt: Arc<Attempt>) {
    let network = Arc::clone(&attempt.network);
    let at_ns = network.scheduler.now_ns() + network.transport().again_ns;
    if at_ns < attempt.deadline_ns {
        network.scheduler.at(at_ns, attempt.near, move || ask(attempt));
    }
}

fn give_up(attempt: &Attempt) {
    if !attempt.slot.is_done() {
        let what = format!("cannot connect to {}: it does not answer", attempt.to.address);
        attempt.slot.fill(Err(Error::new(ErrorKind::Io, what)));
    }
}

/// Handles a question that has reached the listener.
fn knock(attempt: &Arc<Attempt>, far: Life) {
    let (network, to) = (&attempt.network, &attempt.to);
    let opened = match network.listener(&to.address) {
        None => {
            let what = format!("cannot connect to {}: no node listens there", to.address);
            Err(Error::new(ErrorKind::Io, what))
        }
        Some(listener) => enter(attempt, far, &listener)
            .map_err(|refusal| refusal.error(format!("cannot link to the node at {}", to.address))),
    };
    match network.cross(far, attempt.near, network.now_ps()) {
        Crossing::Arrives { at_ns, .. } => {
            let attempt = Arc::clone(attempt);
            network.scheduler.at(at_ns, attempt.near, move || {
                if attempt.slot.is_done() {
                    // The attempt has ended, so the link is not used.
                    return opened.iter().for_each(|wire| wire.depart());
                }
                if opened.is_ok() {
                    attempt.to.session.welcomed();
                }
                let link = |wire| -> Arc<dyn Link> { Arc::new(SimLink(wire)) };
                attempt.slot.fill(opened.map(link));
            });
        }
        Crossing::Lost | Crossing::Reset => {
            if let Ok(wire) = opened {
                wire.depart();
            }
            let attempt = Arc::clone(attempt);
            let at_ns = network.scheduler.now_ns();
            network.scheduler.at(at_ns, attempt.near, move || later(attempt));
        }
    }
}

fn enter(
    attempt: &Attempt,
    far: Life,
    listener: &ListenerEntry,
) -> std::result::Result<Arc<Wire>, Refusal> {
    let (to, node) = (&attempt.to, &listener.node);
    if to.node.is_some_and(|wanted| wanted != node.id()) {
        return Err(Reason::WrongNode.into());
    }
    if to.epoch.is_some_and(|wanted| wanted != node.epoch()) {
        return Err(Refusal::at(Reason::StaleEpoch, node.epoch().0));
    }
    if attempt.network.links_of(listener.number) >= LINKS_MAX {
        return Err(Refusal::at(Reason::Exhausted, LINKS_MAX as u64));
    }
    let wire = Wire::new(Parts {
        network: Arc::clone(&attempt.network),
        near: attempt.near,
        far,
        listener: listener.number,
        node: Arc::clone(node),
        path: listener.path,
        session: Arc::clone(&to.session),
        deadline: to.deadline,
    });
    let end: Arc<dyn LinkEnd> = Arc::clone(&wire) as Arc<dyn LinkEnd>;
    let arrival = node.arrive(to.session.client(), &end, to.session.resumed())?;
    wire.arrived(arrival);
    Ok(wire)
}
