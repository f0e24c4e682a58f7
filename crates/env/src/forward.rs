//! The methods of a decorated `FileSystem` that only pass on to the one inside.

/// Passes everything that deals with names rather than open files on to `self.$inner`.
macro_rules! forward_names {
    ($inner:ident) => {
        fn log_tail(
            &self,
            path: &std::path::Path,
            incarnation: archipelago_base::Epoch,
        ) -> archipelago_base::Result<Option<$crate::fs::LogTail>> {
            self.$inner.log_tail(path, incarnation)
        }

        fn clear_log_tails(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.clear_log_tails(dir)
        }

        fn boot_id(&self) -> Option<[u8; 16]> {
            self.$inner.boot_id()
        }

        fn rename(
            &self,
            from: &std::path::Path,
            to: &std::path::Path,
        ) -> archipelago_base::Result<()> {
            self.$inner.rename(from, to)
        }

        fn link(
            &self,
            from: &std::path::Path,
            to: &std::path::Path,
        ) -> archipelago_base::Result<()> {
            self.$inner.link(from, to)
        }

        fn remove(&self, path: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.remove(path)
        }

        fn list(
            &self,
            dir: &std::path::Path,
        ) -> archipelago_base::Result<Vec<$crate::fs::DirEntry>> {
            self.$inner.list(dir)
        }

        fn len(&self, path: &std::path::Path) -> archipelago_base::Result<u64> {
            self.$inner.len(path)
        }

        fn exists(&self, path: &std::path::Path) -> archipelago_base::Result<bool> {
            self.$inner.exists(path)
        }

        fn create_dir_all(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.create_dir_all(dir)
        }

        fn remove_dir_all(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.remove_dir_all(dir)
        }

        fn sync_dir(&self, dir: &std::path::Path) -> archipelago_base::Result<()> {
            self.$inner.sync_dir(dir)
        }

        fn lock(
            &self,
            path: &std::path::Path,
        ) -> archipelago_base::Result<Box<dyn $crate::fs::FileLock>> {
            self.$inner.lock(path)
        }

        fn reassign(&self, path: &std::path::Path, context: $crate::context::IoContext) {
            self.$inner.reassign(path, context);
        }

        fn free_bytes(&self, dir: &std::path::Path) -> archipelago_base::Result<Option<u64>> {
            self.$inner.free_bytes(dir)
        }
    };
}

pub(crate) use forward_names;
