//! Machines that elect a leader by majority. No term has two leaders, although messages are lost
//! and doubled and machines crash. The scenario is small: it shows state machines under the
//! scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use archipelago_base::simulation::Simulation;

use crate::machines::{Action, Cluster, Protocol};
use crate::run::Scenario;

const MACHINES: usize = 5;

pub(super) fn scenario() -> Scenario {
    let about = "five state machines elect leaders while messages are lost and machines crash";
    Scenario::new("election", about, run)
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Vote { term: u64 },
    Granted { term: u64 },
    Leads { term: u64 },
}

struct Machine {
    me: usize,
    /// The highest term in which this machine voted. It is durable.
    voted: u64,
    term: u64,
    votes: u32,
    heard_ns: u64,
    /// Terms in which this machine led.
    led: Vec<u64>,
    leads: bool,
}

type Actions = Vec<Action<Message, ()>>;

impl Machine {
    fn new(me: usize) -> Self {
        Self { me, voted: 0, term: 0, votes: 0, heard_ns: 0, led: Vec::new(), leads: false }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(10 + 7 * self.me as u64)
    }

    fn everybody(&self, message: Message) -> Actions {
        let others = (0..MACHINES).filter(|&to| to != self.me);
        others.map(|to| Action::Send { to, message }).collect()
    }
}

impl Protocol for Machine {
    type Message = Message;
    type Timer = ();

    fn on_start(&mut self, now_ns: u64) -> Actions {
        (self.votes, self.leads, self.heard_ns) = (0, false, now_ns);
        self.term = self.voted;
        vec![Action::After { delay: self.patience(), timer: () }]
    }

    fn on_message(&mut self, now_ns: u64, from: usize, message: Message) -> Actions {
        match message {
            Message::Vote { term } if term > self.voted => {
                (self.voted, self.heard_ns) = (term, now_ns);
                if term > self.term {
                    (self.term, self.leads, self.votes) = (term, false, 0);
                }
                vec![Action::Send { to: from, message: Message::Granted { term } }]
            }
            Message::Granted { term } if term == self.term && self.votes > 0 && !self.leads => {
                self.votes |= 1 << from;
                if self.votes.count_ones() as usize * 2 <= MACHINES {
                    return Vec::new();
                }
                self.leads = true;
                self.led.push(term);
                self.everybody(Message::Leads { term })
            }
            Message::Leads { term } if term >= self.term => {
                if term > self.term {
                    (self.term, self.leads, self.votes) = (term, false, 0);
                }
                self.heard_ns = now_ns;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn on_timer(&mut self, now_ns: u64, _timer: ()) -> Actions {
        let mut actions = vec![Action::After { delay: self.patience(), timer: () }];
        if self.leads {
            actions.extend(self.everybody(Message::Leads { term: self.term }));
        } else if now_ns - self.heard_ns >= self.patience().as_nanos() as u64 {
            self.term = self.term.max(self.voted) + 1;
            (self.voted, self.votes) = (self.term, 1 << self.me);
            actions.extend(self.everybody(Message::Vote { term: self.term }));
        }
        actions
    }
}

fn run(simulation: &Simulation) -> Result<(), String> {
    let cluster = Cluster::start(simulation, "machine", (0..MACHINES).map(Machine::new).collect());
    let mut rng = simulation.rng("chaos");
    cluster.weather(0.1, 0.1);
    for _ in 0..20 {
        simulation.run_for(Duration::from_millis(rng.u64(5..60)));
        let victim = rng.usize(..MACHINES);
        cluster.crash(victim);
        simulation.run_for(Duration::from_millis(rng.u64(1..40)));
        cluster.restart(victim);
    }
    cluster.weather(0.0, 0.0);
    simulation.run_for(Duration::from_secs(2));
    let mut leaders: BTreeMap<u64, usize> = BTreeMap::new();
    for at in 0..cluster.len() {
        for term in cluster.look(at, |machine| machine.led.clone()) {
            if let Some(other) = leaders.insert(term, at).filter(|&other| other != at) {
                return Err(format!("term {term} has two leaders: {other} and {at}"));
            }
        }
    }
    if leaders.is_empty() {
        return Err("no candidate was ever elected".to_owned());
    }
    Ok(())
}
