//! Redis clients: each is a thread with a connection, which sends commands and reads replies.
//!
//! The load is that of redis-benchmark: GETs and SETs of random keys, with a pipeline. Replies are
//! counted by their form, not checked.
//!
//! Failure: an error reply or a lost connection ends the load.
//! Cost: one buffer for each client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use archipelago_base::clock::{Clock as _, SystemClock};
use archipelago_base::random::Rng;
use archipelago_bench::harness::store::{Error, Result};
use serde::{Deserialize, Serialize};

use super::plan::RespLoad;

/// Commands of a pipeline that loads records.
const LOAD_PIPELINE: u64 = 64;

/// Load of the clients, and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct RespPlan<'a> {
    /// Address of the server.
    pub(super) address: &'a str,
    pub(super) load: RespLoad,
    pub(super) clients: u64,
    pub(super) records: u64,
    pub(super) value_bytes: u64,
    pub(super) length: Duration,
    pub(super) seed: u64,
}

/// Figures that clients have measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RespFigures {
    pub(super) commands: u64,
    pub(super) seconds: f64,
    /// 99th percentile of the time from a pipeline's first byte to its last reply, in milliseconds.
    pub(super) p99_ms: f64,
}

/// A connection, with its buffers.
struct Client {
    stream: BufReader<TcpStream>,
    sent: Vec<u8>,
    line: Vec<u8>,
}

fn failed(error: std::io::Error) -> Error {
    Error::io("talk to", "the Redis server".as_ref(), error)
}

impl Client {
    fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Self { stream: BufReader::new(stream), sent: Vec::new(), line: Vec::new() })
    }

    fn set(&mut self, number: u64, value: &[u8]) {
        let head = format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{number:012}\r\n${}\r\n", value.len());
        self.sent.extend_from_slice(head.as_bytes());
        self.sent.extend_from_slice(value);
        self.sent.extend_from_slice(b"\r\n");
    }

    fn get(&mut self, number: u64) {
        let text = format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{number:012}\r\n");
        self.sent.extend_from_slice(text.as_bytes());
    }

    /// Sends what was collected, and reads `replies` replies.
    fn exchange(&mut self, replies: u64) -> Result<()> {
        self.stream.get_mut().write_all(&self.sent).map_err(failed)?;
        self.sent.clear();
        (0..replies).try_for_each(|_| self.reply())
    }

    fn reply(&mut self) -> Result<()> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line).map_err(failed)?;
        match self.line.split_first() {
            Some((b'+', _)) => Ok(()),
            Some((b'$', length)) => {
                let text = String::from_utf8_lossy(length);
                let Ok(length) = text.trim().parse::<usize>() else { return Ok(()) };
                self.line.resize(length + 2, 0);
                self.stream.read_exact(&mut self.line).map_err(failed)
            }
            _ => {
                let text = String::from_utf8_lossy(&self.line).trim().to_owned();
                Err(Error::invalid(format!("the Redis server answered: {text}")))
            }
        }
    }
}

/// Number from which a client loads records, and the one before which it stops.
fn part(plan: &RespPlan<'_>, client: u64) -> std::ops::Range<u64> {
    plan.records * client / plan.clients..plan.records * (client + 1) / plan.clients
}

impl RespPlan<'_> {
    /// Writes each record once, from all clients.
    pub(super) fn load(&self) -> Result<()> {
        self.on_clients(|client, number| {
            let value = vec![b'v'; self.value_bytes as usize];
            let all: Vec<u64> = part(self, number).collect();
            for some in all.chunks(LOAD_PIPELINE as usize) {
                some.iter().for_each(|&at| client.set(at, &value));
                client.exchange(some.len() as u64)?;
            }
            Ok(())
        })
        .map(drop)
    }

    /// Runs the load for its time.
    pub(super) fn run(&self) -> Result<RespFigures> {
        let clock = SystemClock::new();
        let started_ns = clock.now_ns();
        let all = self.on_clients(|client, number| self.drive(client, number, &clock))?;
        let seconds = (clock.now_ns() - started_ns) as f64 / 1e9;
        let mut taken: Vec<u64> = all.into_iter().flatten().collect();
        taken.sort_unstable();
        let at = (taken.len() * 99 / 100).min(taken.len().saturating_sub(1));
        let p99_ms = taken.get(at).map_or(0.0, |&ns| ns as f64 / 1e6);
        let commands = taken.len() as u64 * u64::from(self.load.pipeline);
        Ok(RespFigures { commands, seconds, p99_ms })
    }

    /// Nanoseconds of each pipeline of one client.
    fn drive(&self, client: &mut Client, number: u64, clock: &SystemClock) -> Result<Vec<u64>> {
        let mut rng = Rng::with_seed(self.seed.wrapping_add(number));
        let value = vec![b'w'; self.value_bytes as usize];
        let end_ns = clock.now_ns() + self.length.as_nanos() as u64;
        let mut taken = Vec::new();
        loop {
            let begun_ns = clock.now_ns();
            if begun_ns >= end_ns {
                return Ok(taken);
            }
            for _ in 0..self.load.pipeline {
                let at = rng.u64(0..self.records);
                match rng.u64(0..100) < u64::from(self.load.gets) {
                    true => client.get(at),
                    false => client.set(at, &value),
                }
            }
            client.exchange(u64::from(self.load.pipeline))?;
            taken.push(clock.now_ns() - begun_ns);
        }
    }

    /// Calls `act` with each client in a thread of its own.
    fn on_clients<T: Send>(
        &self,
        act: impl Fn(&mut Client, u64) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients)
                .map(|number| {
                    let act = &act;
                    scope.spawn(move || act(&mut Client::connect(self.address)?, number))
                })
                .collect();
            let panicked = || Error::invalid("a Redis client panicked");
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
                .collect()
        })
    }
}
