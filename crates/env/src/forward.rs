//! The methods of a decorated file or `FileSystem` that only pass on to the one inside.

/// Forwards the named methods of [`FileSystem`](crate::FileSystem) to `self.$inner`. A decorator
/// implements the methods that it changes and lists the others.
///
/// ```ignore
/// impl FileSystem for Counted {
///     fn remove(&self, path: &Path) -> Result<()> { ... }
///     archipelago_env::forward_fs!(inner: create, open, create_log, logs, looks, moves, dirs, host);
/// }
/// ```
///
/// Some methods form groups, because decorators treat them alike: `logs` (the tails of logs),
/// `looks` (list, length, existence), `dirs` (make, remove, sync directories), `moves` (rename,
/// link), `host` (boot id, group access, locks, reassign, free bytes), `figures` (best length of a
/// write, and `traits`: redundancy, whether logs are recycled, the place of the log, and the room
/// of writers) and `space` (allocation). A decorator that counts or limits bytes leaves `space` out
/// and gets the default, which writes. `names` stands for all groups and `remove`.
#[macro_export]
macro_rules! forward_fs {
    ($inner:ident: $($method:ident),+ $(,)?) => {
        $($crate::forward_fs!(@$method $inner);)+
    };
    (@create $inner:ident) => {
        fn create(
            &self,
            path: &std::path::Path,
            context: $crate::IoContext,
            options: $crate::CreateOptions,
        ) -> archipelago_base::Result<Box<dyn $crate::WritableFile>> {
            self.$inner.create(path, context, options)
        }
    };
    (@open $inner:ident) => {
        fn open(
            &self,
            path: &std::path::Path,
            context: $crate::IoContext,
            options: $crate::OpenOptions,
        ) -> archipelago_base::Result<std::sync::Arc<dyn $crate::RandomFile>> {
            self.$inner.open(path, context, options)
        }
    };
    (@create_log $inner:ident) => {
        fn create_log(
            &self,
            path: &std::path::Path,
            context: $crate::IoContext,
            options: $crate::LogOptions,
        ) -> archipelago_base::Result<Box<dyn $crate::LogFile>> {
            self.$inner.create_log(path, context, options)
        }
    };
    (@remove $inner:ident) => {
        fn remove(&self, path: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.remove(path)
        }
    };
    (@logs $inner:ident) => {
        fn log_tail(
            &self,
            path: &std::path::Path,
            incarnation: archipelago_base::Epoch,
        ) -> archipelago_base::Result<Option<$crate::LogTail>> {
            self.$inner.log_tail(path, incarnation)
        }

        fn clear_log_tails(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.clear_log_tails(dir)
        }

        fn settle_log(
            &self,
            path: &std::path::Path,
            incarnation: archipelago_base::Epoch,
            ranges: &[std::ops::Range<u64>],
        ) -> archipelago_base::Result<()> {
            self.$inner.settle_log(path, incarnation, ranges)
        }
    };
    (@looks $inner:ident) => {
        fn list(&self, dir: &std::path::Path) -> archipelago_base::Result<Vec<$crate::DirEntry>> {
            self.$inner.list(dir)
        }

        fn len(&self, path: &std::path::Path) -> archipelago_base::Result<u64> {
            self.$inner.len(path)
        }

        fn modified_ms(&self, path: &std::path::Path) -> archipelago_base::Result<Option<u64>> {
            self.$inner.modified_ms(path)
        }

        fn exists(&self, path: &std::path::Path) -> archipelago_base::Result<bool> {
            self.$inner.exists(path)
        }
    };
    (@moves $inner:ident) => {
        fn rename(&self, from: &std::path::Path, to: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.rename(from, to)
        }

        fn link(&self, from: &std::path::Path, to: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.link(from, to)
        }
    };
    (@dirs $inner:ident) => {
        fn create_dir_all(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.create_dir_all(dir)
        }

        fn remove_dir_all(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.remove_dir_all(dir)
        }

        fn sync_dir(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.sync_dir(dir)
        }
    };
    (@host $inner:ident) => {
        fn lock(&self, path: &std::path::Path) -> archipelago_base::Result<Box<dyn $crate::FileLock>> {
            self.$inner.lock(path)
        }

        fn hold(
            &self,
            path: &std::path::Path,
        ) -> archipelago_base::Result<Option<Box<dyn $crate::FileLock>>> {
            self.$inner.hold(path)
        }

        fn boot_id(&self) -> Option<[u8; 16]> {
            self.$inner.boot_id()
        }

        fn group_access(&self) -> Option<$crate::GroupAccess> {
            self.$inner.group_access()
        }

        fn reassign(&self, path: &std::path::Path, context: $crate::IoContext) {
            self.$inner.reassign(path, context);
        }

        fn free_bytes(&self, dir: &std::path::Path) -> archipelago_base::Result<Option<u64>> {
            self.$inner.free_bytes(dir)
        }
    };
    (@figures $inner:ident) => {
        fn write_bytes_best(&self) -> Option<u64> {
            self.$inner.write_bytes_best()
        }

        $crate::forward_fs!(@traits $inner);
    };
    (@traits $inner:ident) => {
        fn redundancy(&self, class: $crate::FileClass) -> f64 {
            self.$inner.redundancy(class)
        }

        fn recycles_logs(&self) -> bool {
            self.$inner.recycles_logs()
        }

        fn read_lease(&self) -> Option<std::sync::Arc<dyn $crate::ReadLease>> {
            self.$inner.read_lease()
        }

        fn writer_room(&self) -> Option<$crate::WriterRoom> {
            self.$inner.writer_room()
        }

        fn log_place(&self, dir: &std::path::Path) -> Option<String> {
            self.$inner.log_place(dir)
        }
    };
    (@space $inner:ident) => {
        fn allocate(&self, path: &std::path::Path, bytes: u64) -> archipelago_base::Result<()> {
            self.$inner.allocate(path, bytes)
        }
    };
    (@names $inner:ident) => {
        $crate::forward_fs!($inner: remove, logs, looks, moves, dirs, host, figures, space);
    };
}

/// Forwards the methods of a decorated [`RandomFile`](crate::RandomFile) other than its reads to
/// `self.$inner`.
#[macro_export]
macro_rules! forward_reader {
    ($inner:ident) => {
        fn prefetch(&self, offset: u64, len: u64) {
            self.$inner.prefetch(offset, len);
        }

        fn forget(&self, offset: u64, len: u64) {
            self.$inner.forget(offset, len);
        }

        fn len(&self) -> u64 {
            self.$inner.len()
        }
    };
}

/// Forwards the methods of a decorated [`WritableFile`](crate::WritableFile) other than `append` to
/// `self.$inner`.
#[macro_export]
macro_rules! forward_writer {
    ($inner:ident) => {
        fn flush(&mut self) -> archipelago_base::Result<()> {
            self.$inner.flush()
        }

        fn submit(&mut self) -> archipelago_base::Result<()> {
            self.$inner.submit()
        }

        fn sync(&mut self) -> archipelago_base::Result<()> {
            self.$inner.sync()
        }

        fn len(&self) -> u64 {
            self.$inner.len()
        }
    };
}
