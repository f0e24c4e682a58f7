//! One direction of the reliable part of a link. Packets arrive once, in the order in which they
//! were sent. A lost packet is sent again after
//! [`Transport::again_ns`](super::Transport::again_ns). It delays the packets after it, as on a
//! reliable connection of an InfiniBand card.
//!
//! Invariant: packets arrive in the order of their sending, and no two in the same nanosecond.
//!
//! Failure: after too many attempts to send one packet, the link breaks and loses all waiting
//! packets.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_base::simulation::Life;
use parking_lot::Mutex;

use super::network::Crossing;
use super::wire::Wire;

type Arrival = Box<dyn FnOnce(&Arc<Wire>) + Send>;

struct Packet {
    ready_ps: u64,
    arrival: Arrival,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Packet>,
    tries: u32,
    /// Whether an event will send the first packet again.
    held: bool,
    last_ns: u64,
    /// Arrival of the last message. Messages do not wait in the line.
    last_message_ns: u64,
}

pub(super) struct Lane {
    from: Life,
    to: Life,
    line: Mutex<Line>,
}

/// The direction of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// The direction from the client to the node.
    There,
    /// The direction from the node to the client.
    Back,
}

impl Lane {
    pub(super) fn new(from: Life, to: Life) -> Self {
        Self { from, to, line: Mutex::new(Line::default()) }
    }
}

impl Wire {
    /// Arrival time of a message that could arrive at `at_ns`. The message arrives after earlier
    /// messages, unless the network lets packets overtake each other.
    pub(super) fn in_turn(&self, way: Way, at_ns: u64) -> u64 {
        if !self.network.keeps_order() {
            return at_ns;
        }
        let mut line = self.lane(way).line.lock();
        line.last_message_ns = at_ns.max(line.last_message_ns + 1);
        line.last_message_ns
    }

    /// Sends a packet that leaves at `ready_ps`. `arrival` runs on the receiving host when it
    /// arrives.
    pub(super) fn send(
        self: &Arc<Self>,
        way: Way,
        ready_ps: u64,
        arrival: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let arrival: Arrival = Box::new(arrival);
        let held = {
            let mut line = self.lane(way).line.lock();
            line.waiting.push_back(Packet { ready_ps, arrival });
            line.held
        };
        if !held {
            self.push_on(way);
        }
    }

    /// Sends the waiting packets until one is lost.
    fn push_on(self: &Arc<Self>, way: Way) {
        let lane = self.lane(way);
        let scheduler = &self.network.scheduler;
        loop {
            let ready_ps = {
                let mut line = lane.line.lock();
                line.held = false;
                let Some(first) = line.waiting.front() else { return };
                first.ready_ps.max(scheduler.now_ns() * 1000)
            };
            match self.network.cross(lane.from, lane.to, ready_ps) {
                Crossing::Arrives { at_ns, .. } => {
                    let mut line = lane.line.lock();
                    let Some(packet) = line.waiting.pop_front() else { return };
                    line.tries = 0;
                    line.last_ns = at_ns.max(line.last_ns + 1);
                    let (at_ns, wire) = (line.last_ns, Arc::clone(self));
                    drop(line);
                    scheduler.at(at_ns, lane.to, move || (packet.arrival)(&wire));
                }
                Crossing::Lost => {
                    let transport = self.network.transport();
                    let tries = {
                        let mut line = lane.line.lock();
                        line.tries += 1;
                        line.held = true;
                        line.tries
                    };
                    if tries > transport.tries {
                        return self.give_up(way);
                    }
                    let (at_ns, wire) = (ready_ps / 1000 + transport.again_ns, Arc::clone(self));
                    return scheduler.at(at_ns, lane.from, move || wire.push_on(way));
                }
                Crossing::Reset => return self.give_up(way),
            }
        }
    }

    fn give_up(self: &Arc<Self>, way: Way) {
        let waiting = {
            let mut line = self.lane(way).line.lock();
            line.held = true;
            std::mem::take(&mut line.waiting)
        };
        drop(waiting);
        self.broken();
    }
}
