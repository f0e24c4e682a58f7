//! Common methods of test stores, which change some methods of a store in memory.

/// Defines the methods of `Store` that read many keys, for a type whose field `records` is a store
/// in memory.
macro_rules! pass_scans_to_records {
    () => {
        fn scan(
            &self,
            range: archipelago_resp::store::KeyRange<'_>,
            reverse: bool,
            visit: &mut archipelago_resp::store::Visit<'_>,
        ) -> archipelago_base::Result<()> {
            self.records.scan(range, reverse, visit)
        }

        fn approximate_count(&self) -> archipelago_base::Result<u64> {
            self.records.approximate_count()
        }

        fn keyspace(&self) -> archipelago_base::Result<archipelago_resp::store::Keyspace> {
            self.records.keyspace()
        }

        fn expired_keys(&self) -> u64 {
            0
        }

        fn info(&self) -> String {
            String::new()
        }
    };
}

pub(crate) use pass_scans_to_records;
