//! A control group with a limit of memory, and a group within it for the process.

#![expect(clippy::disallowed_methods, reason = "the kernel's own files, not the store's")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Names of files of one version of control groups.
struct Version {
    name: &'static str,
    root: &'static str,
    /// Name of the controller in `/proc/self/cgroup`.
    controller: &'static str,
    limit: &'static str,
    /// File of the limit on swap, and its value. In version 1 the limit covers memory and swap.
    swap: &'static str,
    /// File with a line `oom_kill N`.
    events: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        name: "version 1",
        root: "/sys/fs/cgroup/memory",
        controller: "memory",
        limit: "memory.limit_in_bytes",
        swap: "memory.memsw.limit_in_bytes",
        events: "memory.oom_control",
    },
    Version {
        name: "version 2",
        root: "/sys/fs/cgroup",
        controller: "",
        limit: "memory.max",
        swap: "memory.swap.max",
        events: "memory.events",
    },
];

/// Two nested groups, of which the outer one has the limit. Dropping them removes them.
pub(super) struct Group {
    version: &'static Version,
    outer: PathBuf,
    inner: PathBuf,
}

impl Group {
    /// New groups below the group of this process or below the root. `None`: none can be made.
    pub(super) fn make(limit_bytes: u64) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        VERSIONS.iter().find_map(|version| {
            let group = own.lines().find_map(|line| {
                let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
                controllers.split(',').any(|one| one == version.controller).then_some(group)
            });
            let root = Path::new(version.root);
            let own = root.join(group?.trim_start_matches('/'));
            [own.as_path(), root].into_iter().find_map(|at| Self::below(at, version, limit_bytes))
        })
    }

    fn below(parent: &Path, version: &'static Version, limit_bytes: u64) -> Option<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let outer = parent.join(format!("archipelago-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&outer).ok()?;
        let group = Self { version, inner: outer.join("inner"), outer };
        let limit = group.outer.join(version.limit);
        // A write would create a file if there is no group.
        if !limit.exists() {
            return None;
        }
        std::fs::write(limit, limit_bytes.to_string()).ok()?;
        let swap = group.outer.join(version.swap);
        if swap.exists() {
            let bytes = if version.controller.is_empty() { 0 } else { limit_bytes };
            std::fs::write(swap, bytes.to_string()).ok()?;
        }
        std::fs::create_dir(&group.inner).ok()?;
        let entered = Command::new("sh").args(["-c", &group.enter()]).status().ok()?;
        entered.success().then_some(group)
    }

    /// The version of control groups.
    pub(super) fn version(&self) -> &'static str {
        self.version.name
    }

    /// Shell command that puts the shell into the inner group.
    pub(super) fn enter(&self) -> String {
        format!("echo $$ > '{}/cgroup.procs' || exit 1;", self.inner.display())
    }

    /// Number of processes that the kernel has killed because memory was short.
    pub(super) fn kills(&self) -> u64 {
        // Version 1 counts in the group of the process, and version 2 in both groups.
        let counts = [&self.outer, &self.inner].map(|group| {
            let text = std::fs::read_to_string(group.join(self.version.events)).unwrap_or_default();
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
            count.map(|count| count.trim().parse::<u64>().unwrap())
        });
        assert!(counts.iter().any(Option::is_some), "{} counts no kills", self.version.events);
        counts.into_iter().flatten().sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for dir in [&self.inner, &self.outer] {
            // A process that has ended may still leave its group.
            for _ in 0..100 {
                if !dir.exists() || std::fs::remove_dir(dir).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
