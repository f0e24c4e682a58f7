//! What a machine costs in virtual time: its network card, its wire, its threads.
//!
//! Decision 0012 has the model, every figure and where it is from. All times are picoseconds,
//! because a card takes some tens of nanoseconds for an operation and a rounded one would be wrong
//! by per cents.

/// What each verb takes of one of a card's servers, in picoseconds. An operation whose bytes take
/// longer takes that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// A READ's request.
    pub read_ps: u64,
    /// A WRITE.
    pub write_ps: u64,
    /// A compare-and-swap or fetch-and-add.
    pub atomic_ps: u64,
    /// A request or an answer.
    pub message_ps: u64,
}

/// A machine. [`Model::CONNECTX3`] is the calibrated one, [`Model::quick`] the one for tests of
/// protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The card's server of what the machine sends.
    pub outbound: Costs,
    /// The card's server of what it receives.
    pub inbound: Costs,
    /// The card's unit for atomic operations, behind the inbound server.
    pub atomics_ps: u64,
    /// Time for a byte, in each direction.
    pub byte_ps: u64,
    /// Bytes of a packet's headers.
    pub header_bytes: u64,
    /// To any other machine, one way.
    pub latency_ps: u64,
    /// Threads that work.
    pub threads: u32,
    /// A thread's time to post a batch.
    pub post_ps: u64,
    /// A thread's time to learn of a batch's completion.
    pub complete_ps: u64,
    /// A thread's time for a message, on each side.
    pub message_ps: u64,
    /// A thread's time for a compare-and-swap of local memory.
    pub local_swap_ps: u64,
    /// A thread's time for a copy of 128 bytes of local memory.
    pub local_read_ps: u64,
}

impl Model {
    /// A node of FlexKV's testbed: ConnectX-3 of 56 Gbit/s, 10 clients' threads. Frozen by decision
    /// 0012.
    pub const CONNECTX3: Self = Self {
        outbound: Costs {
            read_ps: 45_455,
            write_ps: 28_571,
            atomic_ps: 28_571,
            message_ps: 49_329,
        },
        inbound: Costs { read_ps: 38_462, write_ps: 28_571, atomic_ps: 28_571, message_ps: 49_329 },
        atomics_ps: 288_571,
        byte_ps: 147,
        header_bytes: 42,
        latency_ps: 850_000,
        threads: 10,
        post_ps: 100_000,
        complete_ps: 100_000,
        message_ps: 100_000,
        local_swap_ps: 108_628,
        local_read_ps: 67_123,
    };

    /// A wire of 1 µs, 10 ns for each operation at the node, so that batches of several clients
    /// mix, and nothing else that costs: for protocols, whose order of events counts and not their
    /// speed.
    #[must_use]
    pub fn quick() -> Self {
        let (none, some) = (Costs::default(), 10_000);
        Self {
            outbound: none,
            inbound: Costs { read_ps: some, write_ps: some, atomic_ps: some, message_ps: 0 },
            atomics_ps: 0,
            byte_ps: 0,
            header_bytes: 0,
            latency_ps: 1_000_000,
            threads: 1,
            post_ps: 0,
            complete_ps: 0,
            message_ps: 0,
            local_swap_ps: 0,
            local_read_ps: 0,
        }
    }

    /// The same with every time `factor` times as long: rates and bandwidth fall by it, ratios
    /// stay. Say so where figures are printed.
    #[must_use]
    pub fn scaled(&self, factor: u64) -> Self {
        let costs = |costs: &Costs| Costs {
            read_ps: costs.read_ps * factor,
            write_ps: costs.write_ps * factor,
            atomic_ps: costs.atomic_ps * factor,
            message_ps: costs.message_ps * factor,
        };
        Self {
            outbound: costs(&self.outbound),
            inbound: costs(&self.inbound),
            atomics_ps: self.atomics_ps * factor,
            byte_ps: self.byte_ps * factor,
            header_bytes: self.header_bytes,
            latency_ps: self.latency_ps * factor,
            threads: self.threads,
            post_ps: self.post_ps * factor,
            complete_ps: self.complete_ps * factor,
            message_ps: self.message_ps * factor,
            local_swap_ps: self.local_swap_ps * factor,
            local_read_ps: self.local_read_ps * factor,
        }
    }

    /// What a packet with `bytes` of payload takes of a server whose verb takes `verb_ps`.
    pub(super) fn packet_ps(&self, verb_ps: u64, bytes: u64) -> u64 {
        verb_ps.max((bytes + self.header_bytes) * self.byte_ps)
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::CONNECTX3
    }
}

/// What goes wrong on the network; shares lie within 0 and 1. By default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Share of packets that are lost. One-sided operations and their completions are sent again by
    /// the transport, in order; requests and answers are asked for again by the link.
    pub loss: f64,
    /// Share of requests and answers that arrive twice.
    pub duplicate: f64,
    /// Every packet takes up to this much longer, at random: packets of different links overtake
    /// each other, and so do requests and answers of one. One-sided operations of a link stay in
    /// order.
    pub delay_ns_max: u64,
    /// Share of READs and WRITEs of more than a word that take place in two parts, a moment apart.
    pub tear: f64,
    /// Share of batches on mapped memory that are refused as a whole, as on a link that is given up
    /// at that moment.
    pub refuse: f64,
}

/// How hard a connection tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// A lost packet is sent again after this long. Default: 1 ms.
    pub again_ns: u64,
    /// So often; then the link is down. Default: 7.
    pub tries: u32,
    /// A machine that crashed is noticed at the other ends of its links after this long. Default:
    /// 10 ms.
    pub notice_ns: u64,
}

impl Default for Transport {
    fn default() -> Self {
        Self { again_ns: 1_000_000, tries: 7, notice_ns: 10_000_000 }
    }
}

/// What a machine has worked so far, in ns: what comes near the time that passed is a bottleneck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The machine.
    pub machine: String,
    /// What its card sent.
    pub outbound_ns: u64,
    /// What its card received.
    pub inbound_ns: u64,
    /// Its card's unit for atomics.
    pub atomics_ns: u64,
    /// Each of its threads, on average.
    pub thread_ns: u64,
}

/// One at a time, first come, first served.
#[derive(Debug, Default)]
pub(super) struct Server {
    free_ps: u64,
    /// All work so far.
    pub(super) busy_ps: u64,
}

impl Server {
    /// Work of `cost_ps` that comes at `from_ps`: when it is done.
    pub(super) fn take(&mut self, from_ps: u64, cost_ps: u64) -> u64 {
        if cost_ps == 0 {
            // What costs nothing waits for nobody.
            return from_ps;
        }
        self.free_ps = self.free_ps.max(from_ps) + cost_ps;
        self.busy_ps += cost_ps;
        self.free_ps
    }
}

/// Several servers, whichever is free first.
#[derive(Debug)]
pub(super) struct Threads {
    free_ps: Vec<u64>,
    /// All work so far, of all threads.
    busy_ps: u64,
}

impl Threads {
    pub(super) fn new(count: u32) -> Self {
        Self { free_ps: vec![0; count.max(1) as usize], busy_ps: 0 }
    }

    /// All work so far, a thread.
    pub(super) fn busy_ps(&self) -> u64 {
        self.busy_ps / self.free_ps.len() as u64
    }

    pub(super) fn take(&mut self, from_ps: u64, cost_ps: u64) -> u64 {
        if cost_ps == 0 {
            return from_ps;
        }
        self.busy_ps += cost_ps;
        let first = self.free_ps.iter_mut().min().expect("at least one thread");
        *first = (*first).max(from_ps) + cost_ps;
        *first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_serves_in_turn_and_threads_side_by_side() {
        let mut server = Server::default();
        assert_eq!(
            [server.take(100, 10), server.take(100, 10), server.take(500, 10)],
            [110, 120, 510]
        );
        let mut threads = Threads::new(2);
        let ends = [threads.take(0, 10), threads.take(0, 10), threads.take(0, 10)];
        assert_eq!(ends, [10, 10, 20]);
        assert_eq!((server.busy_ps, threads.busy_ps()), (30, 15));
    }

    #[test]
    fn a_packet_takes_its_verbs_time_or_its_bytes() {
        let model = Model::CONNECTX3;
        assert_eq!(model.packet_ps(28_571, 8), 28_571);
        assert_eq!(model.packet_ps(28_571, 4096), (4096 + 42) * 147);
    }
}
