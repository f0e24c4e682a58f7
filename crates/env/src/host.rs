//! What the machine offers: memory, as the byte budget needs it.

use std::path::Path;

/// Bytes of memory that this process may use: the machine's, or less if its control group
/// (version 2 or 1) says so. `None` where neither can be read.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    let machine = read("/proc/meminfo").as_deref().and_then(total_of);
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let v2 = own_group(&groups, "").and_then(|group| limit_of("", group, "memory.max"));
    let v1 = own_group(&groups, "memory");
    let v1 = v1.and_then(|group| limit_of("memory", group, "memory.limit_in_bytes"));
    machine.into_iter().chain(v2).chain(v1).min()
}

/// What this process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Bytes of memory that it has resident.
    pub resident_bytes: u64,
    /// Microseconds of processor time in its own code.
    pub user_us: u64,
    /// Microseconds of processor time in the kernel.
    pub system_us: u64,
}

/// What this process has used so far; `None` where the kernel does not tell.
#[must_use]
pub fn process_usage() -> Option<ProcessUsage> {
    let statm = read("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    let (user, system) = ticks_of(&read("/proc/self/stat")?)?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let micros = |ticks: u64| ticks.saturating_mul(1_000_000) / per_second;
    Some(ProcessUsage {
        resident_bytes: pages * rustix::param::page_size() as u64,
        user_us: micros(user),
        system_us: micros(system),
    })
}

/// Ticks of user and system time in a line of `/proc/PID/stat`.
fn ticks_of(stat: &str) -> Option<(u64, u64)> {
    // The name of the program is in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The lowest limit that `file` has in `group` or at any level above it.
fn limit_of(hierarchy: &str, group: &str, file: &str) -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup").join(hierarchy);
    let levels = Path::new(group).ancestors();
    let files = levels.map(|at| root.join(at.strip_prefix("/").unwrap_or(at)).join(file));
    files.filter_map(|file| read(file)?.trim().parse().ok()).min()
}

#[expect(clippy::disallowed_methods, reason = "the kernel's own files, not the store's")]
fn read(path: impl AsRef<Path>) -> Option<String> {
    String::from_utf8(std::fs::read(path).ok()?).ok()
}

/// The process's group in the hierarchy of version 1 that has `controller`, or, if that is empty, in
/// the unified hierarchy; `groups` is the text of `/proc/self/cgroup`.
fn own_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(group)
    })
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
    fn process_has_used_something() {
        let line = "7 (a ) b) S 1 1 1 0 -1 4 5 6 7 8 31 42 0 0 20";
        assert_eq!(ticks_of(line), Some((31, 42)));
        assert!(process_usage().is_some_and(|usage| usage.resident_bytes > 100_000));
    }

    #[test]
    fn own_group_is_found_in_each_version() {
        let groups = "9:name=systemd:/a\n5:cpu,memory:/docker/b:c\n4:cpuset:/\n0::/unified\n";
        assert_eq!(own_group(groups, "memory"), Some("/docker/b:c"));
        assert_eq!(own_group(groups, ""), Some("/unified"));
        assert_eq!(own_group("0::/\n", "memory"), None);
    }

    #[test]
    fn the_machine_has_memory() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert!(memory_bytes().is_some_and(|bytes| bytes > 64 << 20));
    }
}
