//! What the machine offers: memory, as the byte budget needs it.

use std::path::Path;

/// Bytes of memory that this process may use: the machine's, or less if its control group
/// (version 2 or 1) says so. `None` where neither can be read.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    let machine = read("/proc/meminfo").as_deref().and_then(total_of);
    let v2 = own_group().and_then(|group| {
        // A limit may stand at any level above.
        let mut limit: Option<u64> = None;
        for at in Path::new(&group).ancestors() {
            let file = Path::new("/sys/fs/cgroup").join(at.strip_prefix("/").unwrap_or(at));
            let here = read(file.join("memory.max")).and_then(|text| text.trim().parse().ok());
            limit = limit.into_iter().chain(here).min();
        }
        limit
    });
    let v1 = read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
        .and_then(|text| text.trim().parse::<u64>().ok());
    machine.into_iter().chain(v2).chain(v1).min()
}

#[expect(clippy::disallowed_methods, reason = "the kernel's own files, not the store's")]
fn read(path: impl AsRef<Path>) -> Option<String> {
    String::from_utf8(std::fs::read(path).ok()?).ok()
}

/// The process's group in the unified hierarchy.
fn own_group() -> Option<String> {
    let text = read("/proc/self/cgroup")?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// `MemTotal` in bytes.
fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert!(memory_bytes().is_some_and(|bytes| bytes > 64 << 20));
    }
}
