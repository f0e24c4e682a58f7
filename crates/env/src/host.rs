//! Properties of the machine and of this process: memory and processor time.

use std::path::Path;

/// Bytes of memory that this process may use. The limit is the memory of the machine, or less if a
/// control group of the process (version 1 or 2) or a group above it says so. `None` if neither can
/// be read.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    memory_bytes_below(Path::new("/"))
}

/// Does the work of [`memory_bytes`] with the kernel's files below `root`.
fn memory_bytes_below(root: &Path) -> Option<u64> {
    let machine = read(root.join("proc/meminfo")).as_deref().and_then(total_of);
    let groups = read(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let v2 = own_group(&groups, "").into_iter().flat_map(|group| {
        // The kernel throttles a group above `memory.high` and kills one above `memory.max`. If
        // both versions are mounted, the second one has a directory of its own.
        let files = ["memory.max", "memory.high"];
        let hierarchies = [mounts.clone(), mounts.join("unified")];
        let limits =
            hierarchies.map(|hierarchy| files.map(|file| limit_of(&hierarchy, group, file)));
        limits.into_iter().flatten().flatten()
    });
    let v1 = own_group(&groups, "memory");
    let v1 = v1.and_then(|group| limit_of(&mounts.join("memory"), group, "memory.limit_in_bytes"));
    machine.into_iter().chain(v2).chain(v1).min()
}

/// Makes the kernel back this process's memory with small pages from now on. A huge page is
/// resident as a whole when one byte of it is used, and a page that the allocator returns splits
/// it.
pub fn use_small_pages() -> std::io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

/// Resources that this process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Processor time in the program's own code, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
}

/// Resources that this process has used so far; `None` if the kernel does not report them.
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

/// Whether this process asked the kernel for huge pages in the mapping that has `address`. `None`
/// if the kernel does not say so. It reads the list of all mappings.
#[must_use]
pub fn asks_for_huge_pages(address: usize) -> Option<bool> {
    asks_for_huge_pages_in(&read("/proc/self/smaps")?, address)
}

/// Does the work of [`asks_for_huge_pages`] with the text of `/proc/PID/smaps`.
fn asks_for_huge_pages_in(smaps: &str, address: usize) -> Option<bool> {
    let hex = |text: &str| usize::from_str_radix(text, 16).ok();
    let range = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some(hex(from)?..hex(to)?)
    };
    let mut lines = smaps.lines();
    lines.by_ref().find(|line| range(line).is_some_and(|range| range.contains(&address)))?;
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"))?;
    Some(flags.split_whitespace().any(|flag| flag == "hg"))
}

/// Facts about this process for a tool that watches it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFacts {
    /// Address space in bytes.
    pub virtual_bytes: u64,
    /// Number of threads.
    pub threads: u64,
    /// Number of open file descriptors.
    pub open_files: u64,
    /// Start of the process in seconds since the Unix epoch.
    pub started_s: f64,
}

/// Facts about this process; `None` if the kernel does not report them. It lists the open files, so
/// its cost grows with their number.
#[must_use]
pub fn process_facts() -> Option<ProcessFacts> {
    let stat = read("/proc/self/stat")?;
    let (threads, started_ticks, virtual_bytes) = life_of(&stat)?;
    let booted_s = boot_of(&read("/proc/stat")?)?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    // The listing itself has a descriptor open.
    let open_files = std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
    let started_s = booted_s as f64 + started_ticks as f64 / per_second as f64;
    Some(ProcessFacts { virtual_bytes, threads, open_files, started_s })
}

/// Number of threads, ticks from the boot to the start, and bytes of address space in a line of
/// `/proc/PID/stat`.
fn life_of(stat: &str) -> Option<(u64, u64, u64)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(17);
    let threads = fields.next()?.parse().ok()?;
    let started_ticks = fields.nth(1)?.parse().ok()?;
    Some((threads, started_ticks, fields.next()?.parse().ok()?))
}

/// Time of the boot in seconds since the Unix epoch, in the text of `/proc/stat`.
fn boot_of(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Ticks of user and system time in a line of `/proc/PID/stat`.
fn ticks_of(stat: &str) -> Option<(u64, u64)> {
    // The name of the program is in parentheses and may contain any character.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Lowest limit that `file` has in `group` or at any level above it. A container may see the
/// outside name of its group while its own group is the root of the mounted hierarchy. Therefore a
/// level without a directory is skipped.
fn limit_of(hierarchy: &Path, group: &str, file: &str) -> Option<u64> {
    let levels = Path::new(group).ancestors();
    let files = levels.map(|at| hierarchy.join(at.strip_prefix("/").unwrap_or(at)).join(file));
    files.filter_map(|file| read(file)?.trim().parse().ok()).min()
}

#[expect(clippy::disallowed_methods, reason = "the kernel's own files, not the store's")]
fn read(path: impl AsRef<Path>) -> Option<String> {
    String::from_utf8(std::fs::read(path).ok()?).ok()
}

/// Group of the process in the hierarchy of version 1 that has `controller`, or in the unified
/// hierarchy if `controller` is empty. `groups` is the text of `/proc/self/cgroup`.
fn own_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(group)
    })
}

/// Value of `MemTotal` in bytes.
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
    fn process_has_a_start_threads_and_files() {
        let line = "7 (a ) b) S 1 1 1 0 -1 4 5 6 7 8 31 42 0 0 20 0 9 0 555 4096 7 0";
        assert_eq!(life_of(line), Some((9, 555, 4096)));
        assert_eq!(boot_of("cpu 1 2\nbtime 1700000000\nctxt 1\n"), Some(1_700_000_000));
        let facts = process_facts().unwrap();
        assert!(facts.threads >= 1 && facts.open_files >= 3 && facts.virtual_bytes > 1 << 20);
        assert!(facts.started_s > 1.6e9);
    }

    #[test]
    fn wish_for_huge_pages_is_that_of_the_mapping() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd wr hg \n\
                     3000-4000 rw-p 00000000 00:00 0 [heap]\nVmFlags: rd wr nh\n";
        let at = |address| asks_for_huge_pages_in(smaps, address);
        assert_eq!([at(0x1000), at(0x2fff), at(0x3000)], [Some(true), Some(true), Some(false)]);
        assert_eq!((at(0xfff), at(0x4000)), (None, None));
    }

    #[test]
    fn own_group_is_found_in_each_version() {
        let groups = "9:name=systemd:/a\n5:cpu,memory:/docker/b:c\n4:cpuset:/\n0::/unified\n";
        assert_eq!(own_group(groups, "memory"), Some("/docker/b:c"));
        assert_eq!(own_group(groups, ""), Some("/unified"));
        assert_eq!(own_group("0::/\n", "memory"), None);
    }

    const MIB: u64 = 1 << 20;

    /// The limit from a tree of kernel files with their texts, on a machine with 16 GiB.
    #[expect(clippy::disallowed_methods, reason = "a made-up tree of the kernel's files")]
    fn limit_in(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let machine = ("proc/meminfo", "MemTotal:       16777216 kB\n");
        for (path, text) in [&[machine], files].concat() {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        memory_bytes_below(root.path())
    }

    #[test]
    fn limit_of_version_1_group_is_found() {
        const NONE: &str = "9223372036854771712\n";
        let groups = ("proc/self/cgroup", "5:cpu,memory:/docker/b\n0::/\n");
        let at = "sys/fs/cgroup/memory/docker/b/memory.limit_in_bytes";
        assert_eq!(limit_in(&[groups, (at, "134217728\n")]), Some(128 * MIB));
        assert_eq!(limit_in(&[groups, (at, NONE)]), Some(16384 * MIB));
        // A container that sees its own group as the root.
        let root = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(limit_in(&[groups, (root, "134217728\n")]), Some(128 * MIB));
    }

    #[test]
    fn limit_of_version_2_group_is_found() {
        let groups = ("proc/self/cgroup", "0::/system.slice/a.service\n");
        let dir = "sys/fs/cgroup/system.slice/a.service";
        let (max, high) = (format!("{dir}/memory.max"), format!("{dir}/memory.high"));
        assert_eq!(limit_in(&[groups, (&max, "134217728\n")]), Some(128 * MIB));
        assert_eq!(limit_in(&[groups, (&max, "max\n"), (&high, "max\n")]), Some(16384 * MIB));
        let both = [groups, (&max, "134217728\n"), (&high, "100663296\n")];
        assert_eq!(limit_in(&both), Some(96 * MIB));
        // Both versions are mounted, and the second one has the controller.
        let hybrid = "sys/fs/cgroup/unified/system.slice/a.service/memory.max";
        assert_eq!(limit_in(&[groups, (hybrid, "134217728\n")]), Some(128 * MIB));
    }

    #[test]
    fn lowest_limit_of_nested_groups_counts() {
        let v1 = ("proc/self/cgroup", "4:memory:/outer/inner\n");
        let limit = |group: &str| format!("sys/fs/cgroup/memory/{group}/memory.limit_in_bytes");
        let (outer, inner) = (limit("outer"), limit("outer/inner"));
        assert_eq!(
            limit_in(&[v1, (&outer, "134217728\n"), (&inner, "9223372036854771712\n")]),
            Some(128 * MIB)
        );
        assert_eq!(
            limit_in(&[v1, (&outer, "268435456\n"), (&inner, "134217728\n")]),
            Some(128 * MIB)
        );
        let v2 = ("proc/self/cgroup", "0::/outer/inner\n");
        let (outer, inner) =
            ("sys/fs/cgroup/outer/memory.max", "sys/fs/cgroup/outer/inner/memory.max");
        assert_eq!(limit_in(&[v2, (outer, "134217728\n"), (inner, "max\n")]), Some(128 * MIB));
        assert_eq!(limit_in(&[v2, (outer, "max\n"), (inner, "134217728\n")]), Some(128 * MIB));
    }

    #[test]
    fn small_pages_can_be_requested() {
        use_small_pages().unwrap();
        assert!(rustix::thread::transparent_huge_pages_are_disabled().unwrap());
    }

    #[test]
    fn machine_has_memory() {
        assert_eq!(total_of("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert!(memory_bytes().is_some_and(|bytes| bytes > 64 << 20));
    }
}
