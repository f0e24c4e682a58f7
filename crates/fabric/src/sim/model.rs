//! The costs of a machine in virtual time: its network card, its wire and its threads.
//!
//! Decision 0012 has the model, all its figures and their sources. Times are picoseconds, because a
//! card needs some tens of nanoseconds for an operation, and rounding would cause errors of several
//! per cent. The module consists of pure functions and data.

/// Time for which each verb occupies one server of a card, in picoseconds. An operation takes
/// longer if the transfer of its bytes does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Time of the request of a READ.
    pub read_ps: u64,
    /// Time of a WRITE without its bytes.
    pub write_ps: u64,
    /// Time of a compare-and-swap or fetch-and-add.
    pub atomic_ps: u64,
    /// Time of a request or an answer.
    pub message_ps: u64,
}

/// The costs of a machine. [`Model::CONNECTX3`] is calibrated, and [`Model::quick`] is for tests of
/// protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The card's server for sent packets.
    pub outbound: Costs,
    /// The card's server for received packets.
    pub inbound: Costs,
    /// Time of the card's unit for atomic operations, which follows the server for received
    /// packets.
    pub atomics_ps: u64,
    /// Time for one byte in each direction.
    pub byte_ps: u64,
    /// Number of header bytes of a packet.
    pub header_bytes: u64,
    /// One-way latency to any other machine.
    pub latency_ps: u64,
    /// Number of threads that work.
    pub threads: u32,
    /// Time of a thread to post a batch.
    pub post_ps: u64,
    /// Time of a thread to handle the completion of a batch.
    pub complete_ps: u64,
    /// Time of a thread for a message, on each side.
    pub message_ps: u64,
    /// Time of a thread for a compare-and-swap of local memory.
    pub local_swap_ps: u64,
    /// Time of a thread for a copy of 128 bytes of local memory.
    pub local_read_ps: u64,
}

impl Model {
    /// A node of FlexKV's testbed: ConnectX-3 with 56 Gbit/s, and 10 client threads. Decision 0012
    /// freezes its figures.
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

    /// A model for tests of protocols, in which the order of events matters and the speed does not.
    /// The wire takes 1 µs. Each operation takes 10 ns at the node, so that batches of several
    /// clients interleave.
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

    /// The model with all times multiplied by `factor`. Rates and bandwidth fall by it, and ratios
    /// stay. A report of such figures must say so.
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

    /// Time for which a packet with `bytes` bytes of payload occupies a server, if its verb takes
    /// `verb_ps`.
    pub(super) fn packet_ps(&self, verb_ps: u64, bytes: u64) -> u64 {
        verb_ps.max((bytes + self.header_bytes) * self.byte_ps)
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::CONNECTX3
    }
}

/// Faults of the network. Shares lie between 0 and 1. There are none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Share of packets that are lost. The transport sends one-sided operations and their
    /// completions again, in order. The link sends requests and answers again.
    pub loss: f64,
    /// Share of requests and answers that arrive twice.
    pub duplicate: f64,
    /// Largest extra delay of a packet, which is random. Packets of different links overtake each
    /// other, and so do requests and answers of one link. One-sided operations of a link stay in
    /// order.
    pub delay_ns_max: u64,
    /// Share of READs and WRITEs of several words that happen in two parts at different times.
    pub tear: f64,
    /// Share of batches on mapped memory that are refused as a whole, as if the client had given up
    /// the link.
    pub refuse: f64,
}

/// Retries and time limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Time after which a lost packet is sent again. The default is 1 ms.
    pub again_ns: u64,
    /// Number of attempts after which the link goes down. The default is 7.
    pub tries: u32,
    /// Time after which a crashed machine is noticed at the other ends of its links. The default is
    /// 10 ms.
    pub notice_ns: u64,
}

impl Default for Transport {
    fn default() -> Self {
        Self { again_ns: 1_000_000, tries: 7, notice_ns: 10_000_000 }
    }
}

/// Busy times of a machine in nanoseconds. A part that was busy almost all the time is a
/// bottleneck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Name of the machine.
    pub machine: String,
    /// Busy time of the card's server for sent packets.
    pub outbound_ns: u64,
    /// Busy time of the card's server for received packets.
    pub inbound_ns: u64,
    /// Busy time of the card's unit for atomic operations.
    pub atomics_ns: u64,
    /// Average busy time of a thread.
    pub thread_ns: u64,
}

/// A server with a queue: first come, first served.
#[derive(Debug, Default)]
pub(super) struct Server {
    free_ps: u64,
    /// Busy time so far.
    pub(super) busy_ps: u64,
}

impl Server {
    /// Adds work of `cost_ps` that arrives at `from_ps`. Returns its end.
    pub(super) fn take(&mut self, from_ps: u64, cost_ps: u64) -> u64 {
        if cost_ps == 0 {
            // Work without cost does not wait in the queue.
            return from_ps;
        }
        self.free_ps = self.free_ps.max(from_ps) + cost_ps;
        self.busy_ps += cost_ps;
        self.free_ps
    }
}

/// Several servers. The first free one takes the next work.
#[derive(Debug)]
pub(super) struct Threads {
    free_ps: Vec<u64>,
    /// Busy time of all threads so far.
    busy_ps: u64,
}

impl Threads {
    pub(super) fn new(count: u32) -> Self {
        Self { free_ps: vec![0; count.max(1) as usize], busy_ps: 0 }
    }

    /// Average busy time of a thread so far.
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
    fn server_serves_in_turn_and_threads_in_parallel() {
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
    fn packet_takes_the_longer_of_verb_and_bytes() {
        let model = Model::CONNECTX3;
        assert_eq!(model.packet_ps(28_571, 8), 28_571);
        assert_eq!(model.packet_ps(28_571, 4096), (4096 + 42) * 147);
    }
}
