//! What a log record costs: through the ring of `LocalFs`, and by plain writes.
//!
//! `cargo run --release -p archipelago-engine --example wal_bench [DIR] [MIB]` appends MIB
//! (default 1024) per row into a log in DIR (default: a temporary directory), segments of 64 MiB,
//! recycled from the third on, and prints nanoseconds per record: wall clock and all threads'
//! CPU. Each row runs three times, the methods in turn; the median counts. On a directory that
//! is not on ext4, XFS or tmpfs both columns are plain writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::{CfId, Epoch, Error, FileNo, Result, SeqNo};
use archipelago_engine::wal::{Entry, LogConfig, LogWriter, WriteBatch, payload_crc};
use archipelago_env::local::LocalFs;
use archipelago_env::{FileSystem, IoContext, LogFile, LogOptions};

const SEGMENT_BYTES: u64 = 64 << 20;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let temporary = tempfile::tempdir().map_err(|e| Error::io("make", Path::new("tmp"), e))?;
    let root = arguments.next().map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let mib: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1024);
    println!("{:>8} {:>8} {:>8} {:>8} {:>8} {:>8}", "bytes", "method", "wall ns", "cpu ns", "p99.9", "max us");
    for value_bytes in [76, 970, 16_300] {
        for sync_every in [0, 4096] {
            let mut rows = [Vec::new(), Vec::new()];
            for round in 0..3 {
                for (plain, row) in rows.iter_mut().enumerate() {
                    let dir = root.join(format!("wal-bench-{round}-{plain}"));
                    row.push(run(&dir, plain == 1, value_bytes, mib << 20, sync_every)?);
                }
            }
            for (row, name) in rows.iter_mut().zip(["ring", "plain"]) {
                row.sort_by_key(|row| row.wall_ns);
                row[1].print(name, sync_every);
            }
        }
    }
    Ok(())
}

struct Row {
    record_bytes: u64,
    wall_ns: u64,
    cpu_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

impl Row {
    fn print(&self, name: &str, sync_every: u64) {
        let sync = if sync_every > 0 { " +sync" } else { "" };
        println!(
            "{:>8} {name:>8} {:>8} {:>8} {:>8} {:>8}{sync}",
            self.record_bytes,
            self.wall_ns,
            self.cpu_ns,
            self.p999_ns,
            self.max_ns / 1000
        );
    }
}

fn run(dir: &Path, plain: bool, value: usize, bytes: u64, sync_every: u64) -> Result<Row> {
    let local: Arc<dyn FileSystem> = Arc::new(LocalFs::new());
    local.create_dir_all(dir)?;
    let fs = if plain { Arc::new(PlainFs { inner: Arc::clone(&local) }) } else { local.clone() };
    let path = |no: u64| dir.join(format!("{no}.log"));
    let config = LogConfig { database_id: [1; 16], segment_bytes: SEGMENT_BYTES, seed: 1 };
    let mut writer = LogWriter::create(fs, config, &path(1), FileNo(1), None, None)?;
    let (syncer, mut no, mut seq) = (writer.syncer(), 1, 0);
    let value = vec![7u8; value];
    let mut batch = WriteBatch::new();
    let clock = SystemClock::new();
    let latencies = archipelago_base::metrics::Histogram::default();
    let (start, cpu, mut written, mut worst) = (clock.now_ns(), cpu_time(), 0, 0);
    while written < bytes {
        seq += 1;
        batch.clear();
        batch.put_cf(CfId(0), &u128::from(seq).to_be_bytes(), &value);
        let payload = batch.data();
        let entry = Entry { first_seq: SeqNo(seq), payload, payload_crc: payload_crc(payload) };
        // The clock costs as much as an append: only each eighth record is timed.
        let before = if seq % 8 == 0 { clock.now_ns() } else { 0 };
        writer.append(&entry)?;
        if seq % 8 == 0 {
            let took = clock.now_ns() - before;
            latencies.record(took);
            worst = worst.max(took);
        }
        written += 28 + payload.len() as u64;
        if sync_every > 0 && seq % sync_every == 0 {
            syncer.sync()?;
        }
        if writer.should_rotate() {
            no += 1;
            let recycle = (no > 2).then(|| path(no - 2));
            syncer.forget_before(FileNo(no - 1));
            writer.rotate(&path(no), FileNo(no), recycle)?;
        }
    }
    let (wall, cpu) = (clock.now_ns() - start, cpu_time().saturating_sub(cpu));
    drop(writer);
    LocalFs::new().remove_dir_all(dir)?;
    Ok(Row {
        record_bytes: written / seq,
        wall_ns: wall / seq,
        cpu_ns: cpu.as_nanos() as u64 / seq,
        p999_ns: latencies.quantile(0.999),
        max_ns: worst,
    })
}

/// CPU time of all threads of this process, to ten milliseconds.
fn cpu_time() -> Duration {
    let path = Path::new("/proc/self/stat");
    let context = IoContext::manifest(archipelago_env::IoPurpose::Maintenance);
    let _ = context;
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let fields: Vec<u64> = text
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let ticks = fields.get(11).unwrap_or(&0) + fields.get(12).unwrap_or(&0);
    Duration::from_millis(ticks * 10)
}
