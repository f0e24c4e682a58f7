//! The register of a pool in memory.

use archipelago_base::Result;

use super::{MemoryPool, PoolCall};
use crate::register::{Register, Swap, Versioned};

/// A name of the register. It stays when its value is removed, so that versions only grow.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredValue {
    version: u64,
    value: Option<Vec<u8>>,
}

impl StoredValue {
    fn versioned(&self) -> Option<Versioned> {
        let value = self.value.clone()?;
        Some(Versioned { version: self.version, value })
    }

    /// Replaces the value if the name has the version `expected`, or no value and 0 is expected.
    fn swap(&mut self, expected: u64, value: Option<Vec<u8>>) -> Swap {
        let version = if self.value.is_some() { self.version } else { 0 };
        if version != expected {
            return Swap::Lost(self.versioned());
        }
        self.version += 1;
        self.value = value;
        Swap::Done(self.version)
    }
}

impl Register for MemoryPool {
    fn read(&self, name: &str) -> Result<Option<Versioned>> {
        let answer = self.reach(PoolCall::RegisterRead, &name)?;
        let pool = self.shared.pool.lock();
        let value = pool.register.get(name).and_then(StoredValue::versioned);
        answer.of(PoolCall::RegisterRead, &name, value)
    }

    fn compare_and_swap(&self, name: &str, expected: u64, value: &[u8]) -> Result<Swap> {
        let answer = self.reach(PoolCall::RegisterSwap, &name)?;
        let mut pool = self.shared.pool.lock();
        let stored = pool.register.entry(name.to_owned()).or_default();
        let swap = stored.swap(expected, Some(value.to_vec()));
        answer.of(PoolCall::RegisterSwap, &name, swap)
    }

    fn remove(&self, name: &str, expected: u64) -> Result<Swap> {
        let answer = self.reach(PoolCall::RegisterRemove, &name)?;
        let mut pool = self.shared.pool.lock();
        let swap = match pool.register.get_mut(name) {
            Some(stored) if stored.value.is_some() => stored.swap(expected, None),
            _ => Swap::Lost(None),
        };
        answer.of(PoolCall::RegisterRemove, &name, swap)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let answer = self.reach(PoolCall::RegisterList, &prefix)?;
        let pool = self.shared.pool.lock();
        let names = pool.register.range(prefix.to_owned()..);
        let names = names.take_while(|(name, _)| name.starts_with(prefix));
        let names = names.filter(|(_, stored)| stored.value.is_some());
        let names = names.map(|(name, _)| name.clone()).collect();
        answer.of(PoolCall::RegisterList, &prefix, names)
    }
}
