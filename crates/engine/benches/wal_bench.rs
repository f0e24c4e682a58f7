//! Measures the cost of a log record: through the ring of `LocalFs`, and by plain writes.
//!
//! `cargo bench -p archipelago-engine --bench wal_bench -- [DIR] [MIB]` appends MIB
//! (default 1024) per row to segments of 64 MiB in DIR (default: a temporary directory), recycled
//! from the third on, and prints nanoseconds per record: wall clock and CPU of all threads.
//! `writer` is the engine's log writer; `ring` and `plain` are the file system's log alone, with
//! the same bytes and checksums. Every row runs three times, the methods in turn; the median
//! counts. On file systems other than ext4, XFS and tmpfs all three are plain writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::metrics::Histogram;
use archipelago_base::{CfId, Error, FileNo, Result, SeqNo};
use archipelago_engine::wal::record::{RecordHeader, incarnation_of, segment_seed};
use archipelago_engine::wal::{Entry, LogConfig, LogWriter, WriteBatch, payload_crc};
use archipelago_env::local::{LocalFs, log};
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose, LogFile, LogOptions};

const SEGMENT_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy)]
enum Method {
    Writer,
    Ring,
    Plain,
}

const METHODS: [(Method, &str); 3] =
    [(Method::Writer, "writer"), (Method::Ring, "ring"), (Method::Plain, "plain")];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let temporary = tempfile::tempdir().map_err(|e| Error::io("make", Path::new("tmp"), e))?;
    let root = arguments.next().map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let mib: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1024);
    println!("  bytes   method  wall ns   cpu ns  p99.9 ns   max us");
    for value_bytes in [76, 968, 16_328] {
        let mut rows = METHODS.map(|_| Vec::new());
        for _ in 0..3 {
            for ((method, _), row) in METHODS.iter().zip(&mut rows) {
                row.push(run(&root.join("wal-bench"), *method, value_bytes, mib << 20)?);
            }
        }
        for ((_, name), row) in METHODS.iter().zip(&mut rows) {
            row.sort_by_key(|row| row.wall_ns);
            let Row { record_bytes, wall_ns, cpu_ns, p999_ns, max_ns } = row[1];
            let max_us = max_ns / 1000;
            println!(
                "{record_bytes:>7} {name:>8} {wall_ns:>8} {cpu_ns:>8} {p999_ns:>9} {max_us:>8}"
            );
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Row {
    record_bytes: u64,
    wall_ns: u64,
    cpu_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

/// A log, written by one of the methods.
enum Log {
    Writer(Box<LogWriter>),
    File { method: Method, log: Box<dyn LogFile>, no: u64 },
}

fn segment(dir: &Path, no: u64) -> PathBuf {
    dir.join(format!("{no}.log"))
}

fn open(dir: &Path, method: Method, no: u64) -> Result<Box<dyn LogFile>> {
    let recycle = (no > 2).then(|| segment(dir, no - 2));
    let incarnation = incarnation_of(FileNo(no), 0);
    let options = LogOptions { incarnation, size_hint_bytes: SEGMENT_BYTES, recycle };
    let context = IoContext::new(FileClass::Wal, IoPurpose::ForegroundWrite);
    match method {
        Method::Plain => log::create_plain(&segment(dir, no), &options),
        _ => LocalFs::new().create_log(&segment(dir, no), context, options),
    }
}

impl Log {
    fn create(dir: &Path, method: Method) -> Result<Self> {
        let Method::Writer = method else {
            return Ok(Self::File { method, log: open(dir, method, 1)?, no: 1 });
        };
        let config = LogConfig {
            database_id: [1; 16],
            segment_bytes: SEGMENT_BYTES,
            seed: 1,
            manifest: Default::default(),
        };
        let fs = Arc::new(LocalFs::new());
        let writer = LogWriter::create(fs, config, &segment(dir, 1), FileNo(1), None, None)?;
        Ok(Self::Writer(Box::new(writer)))
    }

    #[inline]
    fn append(&mut self, seq: u64, payload: &[u8]) -> Result<u64> {
        let payload_crc = payload_crc(payload);
        match self {
            Self::Writer(writer) => writer
                .append(&Entry { first_seq: SeqNo(seq), payload, payload_crc })
                .map(|appended| appended.end_offset),
            Self::File { log, no, .. } => {
                let incarnation = incarnation_of(FileNo(*no), 0);
                let header = RecordHeader {
                    payload_crc,
                    payload_len: payload.len() as u32,
                    first_seq: SeqNo(seq),
                    kind: 1,
                    incarnation_low: incarnation.0 as u32,
                    synced_through: 0,
                };
                let header = header.encode(segment_seed(incarnation), log.len());
                log.append(&[&header, payload])?;
                Ok(log.len())
            }
        }
    }

    fn rotate(&mut self, dir: &Path) -> Result<()> {
        match self {
            Self::Writer(writer) => {
                let no = writer.position().no.0 + 1;
                let recycle = (no > 2).then(|| segment(dir, no - 2));
                writer.rotate(&segment(dir, no), FileNo(no), recycle)?;
                writer.syncer().forget_before(FileNo(no - 1));
            }
            Self::File { method, log, no } => {
                log.finish()?;
                *no += 1;
                *log = open(dir, *method, *no)?;
            }
        }
        Ok(())
    }
}

fn run(dir: &Path, method: Method, value_bytes: usize, bytes: u64) -> Result<Row> {
    let fs = LocalFs::new();
    fs.create_dir_all(dir)?;
    let mut log = Log::create(dir, method)?;
    let value = vec![7u8; value_bytes];
    let (mut batch, mut seq, mut written, mut max_ns) = (WriteBatch::new(), 0u64, 0, 0);
    let (clock, latencies) = (SystemClock::new(), Histogram::default());
    let (start_ns, start_cpu_ns) = (clock.now_ns(), cpu_ns());
    while written < bytes {
        seq += 1;
        batch.clear();
        batch.put_cf(CfId(0), &u128::from(seq).to_be_bytes(), &value);
        // Reading the clock costs as much as an append, so every eighth record is timed.
        let before = seq.is_multiple_of(8).then(|| clock.now_ns());
        let end = log.append(seq, batch.data())?;
        if let Some(before) = before {
            let took = clock.now_ns() - before;
            latencies.record(took);
            max_ns = took.max(max_ns);
        }
        written += 28 + batch.byte_len() as u64;
        if end >= SEGMENT_BYTES {
            log.rotate(dir)?;
        }
    }
    let (wall_ns, used_ns) = (clock.now_ns() - start_ns, cpu_ns() - start_cpu_ns);
    drop(log);
    fs.remove_dir_all(dir)?;
    Ok(Row {
        record_bytes: written / seq,
        wall_ns: wall_ns / seq,
        cpu_ns: used_ns / seq,
        p999_ns: latencies.quantile(0.999),
        max_ns,
    })
}

/// CPU time of all threads of this process, in steps of ten milliseconds.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    // User and system time are the 14th and 15th field of the line; the second ends in ')'.
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks * 10_000_000
}
