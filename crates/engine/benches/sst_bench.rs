//! Measures a table in memory: build, warm and missing look-ups, batches, scans both ways.
//!
//! `cargo bench -p archipelago-engine --bench sst_bench -- [records] [none|lz4|zstd]`
//! prints one line a figure. The file lies in a vector, so that the table is measured, not a disk;
//! the block cache holds all of it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_base::random::Rng;
use archipelago_base::{Error, FileNo, Result, SeqNo};
use archipelago_engine::iter::InternalIterator;
use archipelago_engine::key::{Kind, encode_into};
use archipelago_engine::lookup::{Lookup, Visit};
use archipelago_engine::options::Compression;
use archipelago_engine::sst::{
    BlockCache, TableBuilder, TableOptions, TableReadOptions, TableReader,
};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile, WritableFile};

#[derive(Debug)]
struct Sink(Arc<Mutex<Vec<u8>>>, u64);

impl WritableFile for Sink {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.1 += data.len() as u64;
        self.0.lock().expect("one thread").extend_from_slice(data);
        Ok(())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        self.1
    }
}

#[derive(Debug)]
struct Source(Vec<u8>);

impl RandomFile for Source {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _: IoContext) -> Result<()> {
        let part = self.0.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(part.ok_or_else(|| Error::invalid("read past the end"))?);
        Ok(())
    }
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// Fills a key of sixteen bytes as db_bench does: the number big-endian, then zeros in text.
fn fill_key(key: &mut [u8; 16], number: u64) {
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].fill(b'0');
}

/// Nanoseconds that this thread ran; 0 if the kernel does not report them. On a shared machine this
/// figure counts.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

struct Bench {
    clock: SystemClock,
    records: u64,
}

impl Bench {
    fn report(&self, name: &str, operations: u64, run: impl FnOnce()) -> f64 {
        let (start, cpu_start) = (self.clock.now_ns(), cpu_ns());
        run();
        let (ns, cpu) = (self.clock.now_ns() - start, cpu_ns() - cpu_start);
        let each = |ns: u64| ns as f64 / operations as f64;
        println!("{name:<28} {:>9.1} ns/op on the CPU, {:>9.1} by the clock", each(cpu), each(ns));
        cpu as f64
    }

    fn build(&self, options: TableOptions) -> Vec<u8> {
        let mut rng = Rng::with_seed(7);
        // The values compress to half of their length, like db_bench's values at compression ratio
        // 0.5.
        let pool: Vec<u8> =
            (0..1 << 20).map(|at| if at % 100 < 50 { rng.u8(..) } else { b'x' }).collect();
        let bytes = Arc::new(Mutex::new(Vec::with_capacity(self.records as usize * 140)));
        let sink = Box::new(Sink(Arc::clone(&bytes), 0));
        let mut builder =
            TableBuilder::new(sink, Path::new("bench.sst"), FileNo(1), [5; 16], options);
        let (mut key, mut encoded) = ([0; 16], Vec::new());
        let ns = self.report("build", self.records, || {
            for number in 0..self.records {
                fill_key(&mut key, number * 2);
                encoded.clear();
                encode_into(&mut encoded, &key, SeqNo(number + 1), Kind::Put);
                let at = (number as usize * 100) % (pool.len() - 100);
                builder.add(&encoded, &pool[at..at + 100]).expect("in memory");
            }
            builder.finish().expect("in memory");
        });
        println!("{:<28} {:>9.1} MB/s of records", "", self.records as f64 * 116e3 / ns);
        std::mem::take(&mut bytes.lock().expect("one thread"))
    }

    fn lookups(&self, name: &str, table: &TableReader, odd: u64, count: u64) {
        let mut rng = Rng::with_seed(11);
        let options = TableReadOptions::foreground();
        let (mut key, mut found) = ([0; 16], 0u64);
        self.report(name, count, || {
            for _ in 0..count {
                fill_key(&mut key, rng.u64(..self.records) * 2 + odd);
                let lookup = Lookup::new(&key, SeqNo::MAX);
                let outcome = table.lookup(&lookup, &options, &mut |version| {
                    found += u64::from(version.value.len() == 100);
                    Visit::Break(())
                });
                outcome.expect("in memory");
            }
        });
        assert_eq!(found, if odd == 0 { count } else { 0 });
    }

    fn batches(&self, table: &TableReader) {
        let mut rng = Rng::with_seed(13);
        let options = TableReadOptions::foreground();
        let rounds = 10_000;
        let mut found = 0;
        self.report("multi_lookup of 32", rounds * 32, || {
            for _ in 0..rounds {
                let mut keys = [[0; 16]; 32];
                for key in &mut keys {
                    fill_key(key, rng.u64(..self.records) * 2);
                }
                keys.sort_unstable();
                let lookups: Vec<_> = keys.iter().map(|key| Lookup::new(key, SeqNo::MAX)).collect();
                let outcome = table.multi_lookup(&lookups, &options, &mut |_, _| {
                    found += 1;
                    Visit::Break(())
                });
                outcome.expect("in memory");
            }
        });
        assert_eq!(found, rounds * 32);
    }

    fn scans(&self, table: &Arc<TableReader>) {
        let context = IoContext::new(FileClass::Sst, IoPurpose::Maintenance);
        let job = TableReadOptions::job(context, 2 << 20);
        for (name, options) in
            [("scan, cached", TableReadOptions::foreground()), ("scan, 2 MiB readahead", job)]
        {
            let (mut iter, mut bytes) = (table.iter(options), 0);
            self.report(name, self.records, || {
                iter.seek_to_first();
                while iter.valid() {
                    bytes += iter.key().len() + iter.value().len();
                    iter.next();
                }
            });
            assert_eq!(bytes as u64, self.records * 124);
        }
        let (mut iter, mut count) = (table.iter(TableReadOptions::foreground()), 0);
        self.report("scan backwards, cached", self.records, || {
            iter.seek_to_last();
            while iter.valid() {
                count += 1;
                iter.prev();
            }
        });
        assert_eq!(count, self.records);
        let (mut rng, mut key, mut encoded) = (Rng::with_seed(17), [0; 16], Vec::new());
        self.report("seek", 1_000_000, || {
            for _ in 0..1_000_000 {
                fill_key(&mut key, rng.u64(..self.records) * 2);
                encoded.clear();
                encode_into(&mut encoded, &key, SeqNo::MAX, Kind::SEEK);
                iter.seek(&encoded);
                assert!(iter.valid());
            }
        });
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let records = arguments.next().map_or(1_000_000, |n| n.parse().expect("a number of records"));
    let compression = match arguments.next().as_deref() {
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd,
        _ => Compression::None,
    };
    let partitioned = arguments.next().as_deref() == Some("partitioned");
    let pinned_bytes_max = if partitioned { 0 } else { 64 << 20 };
    let bench = Bench { clock: SystemClock::new(), records };
    let options = TableOptions { compression, pinned_bytes_max, ..TableOptions::default() };
    let bytes = bench.build(options);
    println!("{:<28} {:>9} bytes", "file", bytes.len());
    let budget = ByteBudget::unlimited();
    let cache = BlockCache::new(1 << 30, &budget);
    let file: Arc<dyn RandomFile> = Arc::new(Source(bytes));
    let table = TableReader::open(file, Path::new("bench.sst"), None, &cache, &budget)
        .expect("just written");
    println!("{:<28} {:>9} bytes", "reader", table.memory_bytes());
    bench.lookups("look-up, cold", &table, 0, 200_000);
    bench.scans(&table);
    bench.lookups("look-up, warm", &table, 0, 2_000_000);
    bench.lookups("look-up, missing", &table, 1, 2_000_000);
    bench.batches(&table);
}
