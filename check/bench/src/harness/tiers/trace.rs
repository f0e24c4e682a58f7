//! Counts the foreground reads of every table, and its lifetime.
//!
//! The file system is a decorator above the tiers. It knows each table by its path, from its
//! creation or first open to its removal. Removed tables stay in the list until the run ends, so
//! that the difference of two moments contains them. A hash of its number assigns each read to one
//! of two halves.
//!
//! Thread-safety: a mutex guards opening, creating and removing, and atomics count reads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_base::Result;
use archipelago_base::checksum::hash64;
use archipelago_base::clock::{Clock, SystemClock};
use archipelago_env::{FileSystem, IoContext, IoPurpose, OpenOptions, RandomFile};
use parking_lot::Mutex;

use super::oracle::TableUse;

/// Reads of one table.
#[derive(Debug, Default)]
struct Table {
    len: AtomicU64,
    reads: [AtomicU64; 2],
    born_ns: u64,
    /// Time of the removal, or 0 while the table exists.
    gone_ns: AtomicU64,
}

/// The tables at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableReads {
    at_ns: u64,
    tables: Vec<(Arc<Table>, [u64; 2])>,
}

/// Reads between two moments.
#[derive(Clone, Debug)]
pub(crate) struct Between {
    pub(crate) seconds: f64,
    pub(crate) tables: Vec<TableUse>,
}

impl TableReads {
    /// Reads and lifetimes since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Between {
        let before: HashMap<*const Table, [u64; 2]> =
            earlier.tables.iter().map(|(table, reads)| (Arc::as_ptr(table), *reads)).collect();
        let tables = self.tables.iter().filter_map(|(table, reads)| {
            let gone_ns = match table.gone_ns.load(Ordering::Relaxed) {
                0 => self.at_ns,
                gone_ns => gone_ns.min(self.at_ns),
            };
            let lived_ns = gone_ns.saturating_sub(table.born_ns.max(earlier.at_ns));
            let had = before.get(&Arc::as_ptr(table)).copied().unwrap_or_default();
            (lived_ns > 0).then(|| TableUse {
                len: table.len.load(Ordering::Relaxed),
                seconds: lived_ns as f64 / 1e9,
                reads: [reads[0] - had[0], reads[1] - had[1]],
            })
        });
        let tables = tables.collect();
        Between { seconds: (self.at_ns - earlier.at_ns) as f64 / 1e9, tables }
    }
}

#[derive(Debug, Default)]
struct Tables {
    by_path: HashMap<PathBuf, Arc<Table>>,
    all: Vec<Arc<Table>>,
}

/// Records every read of tables, for the oracle.
#[derive(Debug)]
pub(crate) struct TracedFs {
    inner: Arc<dyn FileSystem>,
    clock: SystemClock,
    tables: Mutex<Tables>,
    reads: Arc<AtomicU64>,
}

impl TracedFs {
    pub(crate) fn new(inner: Arc<dyn FileSystem>) -> Arc<Self> {
        let (tables, reads) = (Mutex::default(), Arc::default());
        Arc::new(Self { inner, clock: SystemClock::new(), tables, reads })
    }

    /// The tables at this moment.
    pub(crate) fn tables(&self) -> TableReads {
        let of = |table: &Arc<Table>| {
            let reads = [0, 1].map(|half: usize| table.reads[half].load(Ordering::Relaxed));
            (Arc::clone(table), reads)
        };
        let tables = self.tables.lock().all.iter().map(of).collect();
        TableReads { at_ns: self.clock.now_ns(), tables }
    }

    fn table(&self, path: &Path) -> Arc<Table> {
        let mut tables = self.tables.lock();
        if let Some(table) = tables.by_path.get(path) {
            return Arc::clone(table);
        }
        // Never 0, which would be a table that exists for ever.
        let born_ns = self.clock.now_ns().max(1);
        let table = Arc::new(Table { born_ns, ..Table::default() });
        tables.by_path.insert(path.to_owned(), Arc::clone(&table));
        tables.all.push(Arc::clone(&table));
        table
    }
}

impl FileSystem for TracedFs {
    fn open(
        &self,
        path: &Path,
        context: IoContext,
        options: OpenOptions,
    ) -> Result<Arc<dyn RandomFile>> {
        let inner = self.inner.open(path, context, options)?;
        if !context.class.is_table() {
            return Ok(inner);
        }
        let table = self.table(path);
        table.len.store(inner.len(), Ordering::Relaxed);
        Ok(Arc::new(Traced { inner, table, reads: Arc::clone(&self.reads) }))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)?;
        if let Some(table) = self.tables.lock().by_path.remove(path) {
            table.gone_ns.store(self.clock.now_ns().max(1), Ordering::Relaxed);
        }
        Ok(())
    }

    archipelago_env::forward_fs!(inner: create, create_log, logs, looks, moves, dirs, host, figures);
}

/// An open table.
#[derive(Debug)]
struct Traced {
    inner: Arc<dyn RandomFile>,
    table: Arc<Table>,
    reads: Arc<AtomicU64>,
}

impl Traced {
    fn count(&self, context: IoContext, reads: u64) {
        if context.purpose != IoPurpose::ForegroundRead {
            return;
        }
        let first = self.reads.fetch_add(reads, Ordering::Relaxed);
        for number in first..first + reads {
            let half = (hash64(&number.to_le_bytes()) & 1) as usize;
            self.table.reads[half].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl RandomFile for Traced {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], context: IoContext) -> Result<()> {
        self.count(context, 1);
        self.inner.read_exact_at(offset, buf, context)
    }

    fn read_many(&self, requests: &mut [(u64, &mut [u8])], context: IoContext) -> Result<()> {
        self.count(context, requests.len() as u64);
        self.inner.read_many(requests, context)
    }

    archipelago_env::forward_reader!(inner);
}

#[cfg(test)]
mod tests {
    use archipelago_env::CreateOptions;
    use archipelago_env::mem::MemFs;

    use super::*;

    #[test]
    fn only_foreground_reads_are_counted() {
        let fs = TracedFs::new(Arc::new(MemFs::new()));
        let context = IoContext::sst(IoPurpose::ForegroundRead, 0);
        for name in ["/a", "/b"] {
            let mut file = fs.create(Path::new(name), context, CreateOptions::default()).unwrap();
            file.append(&[7; 100]).unwrap();
            file.flush().unwrap();
        }
        let before = fs.tables();
        let read = |name: &str, purpose, times| {
            let file = fs.open(Path::new(name), context, OpenOptions::default()).unwrap();
            let context = IoContext::sst(purpose, 0);
            (0..times).for_each(|_| file.read_exact_at(0, &mut [0; 10], context).unwrap());
        };
        read("/a", IoPurpose::ForegroundRead, 200);
        read("/b", IoPurpose::ForegroundRead, 10);
        read("/b", IoPurpose::Flush, 50);
        fs.remove(Path::new("/b")).unwrap();
        let between = fs.tables().since(&before);
        let reads: Vec<u64> = between.tables.iter().map(|table| table.reads.iter().sum()).collect();
        assert_eq!(reads, [200, 10], "the table that went is there too");
        assert!(between.tables.iter().all(|table| table.len == 100 && table.seconds > 0.0));
        assert!(between.tables[1].seconds <= between.seconds);
        assert!(between.tables[0].reads.iter().all(|&half| half > 60), "{:?}", between.tables);
        let now = fs.tables();
        assert!(fs.tables().since(&now).tables.iter().all(|t| t.reads == [0, 0]));
    }
}
