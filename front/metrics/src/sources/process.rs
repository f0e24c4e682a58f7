//! Resources of the process, its build and its role, and the byte budget.

use std::sync::Arc;

use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_env::{descriptors, host};

use super::Source;
use crate::catalogue::process as metric;
use crate::samples::{Samples, seconds};

/// Resources of the process, and its facts: `role` says what it does, and `node` is the number of
/// its node, if it has one. Cost: a few files of the kernel, and one entry per open file.
#[must_use]
pub fn process(role: &'static str, node: Option<u64>) -> Source {
    let node = node.map_or_else(String::new, |node| node.to_string());
    Box::new(move |samples| {
        samples.set(&metric::BUILD, &[env!("CARGO_PKG_VERSION")], true);
        samples.set(&metric::PROCESS, &[role, &node], true);
        resources(samples);
    })
}

fn resources(samples: &mut Samples) {
    if let Some(usage) = host::process_usage() {
        samples.set(&metric::CPU, &[], seconds((usage.user_us + usage.system_us) * 1000));
        samples.set(&metric::RESIDENT, &[], usage.resident_bytes);
    }
    if let Some(facts) = host::process_facts() {
        samples.set(&metric::VIRTUAL, &[], facts.virtual_bytes);
        samples.set(&metric::OPEN_FILES, &[], facts.open_files);
        samples.set(&metric::THREADS, &[], facts.threads);
        samples.set(&metric::START, &[], facts.started_s);
    }
    samples.set_known(&metric::MACHINE_MEMORY, &[], host::memory_bytes());
    let limit = descriptors::limit();
    samples.set_known(&metric::OPEN_FILES_MAX, &[], (limit < usize::MAX).then_some(limit));
}

/// The byte budget of a process. Cost: one load per class.
#[must_use]
pub fn budget(budget: Arc<ByteBudget>) -> Source {
    Box::new(move |samples| {
        let limited = |bytes: u64| (bytes < u64::MAX).then_some(bytes);
        samples.set_known(&metric::MEMORY_LIMIT, &[], limited(budget.process_bytes()));
        samples.set_known(&metric::MEMORY_BUDGET, &[], limited(budget.limit_bytes()));
        for class in MemoryClass::ALL {
            samples.set(&metric::MEMORY_USED, &[class.name()], budget.used_bytes(class));
        }
    })
}
