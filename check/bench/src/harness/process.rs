//! Counters of the kernel for a process: bytes written, reads, and the most memory.
//!
//! They come from `/proc`. If it does not exist, figures are missing and not wrong. The files
//! belong to the kernel and not to the store, so they do not go through a `FileSystem`.

/// Figures of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes that it caused to be written to storage; on a file system without storage (tmpfs),
    /// bytes that it passed to `write`.
    pub(crate) bytes_written: Option<u64>,
    /// Most resident memory so far, shared pages included.
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// Reads and writes of a process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Bytes that it caused to be written to storage; on a file system without storage (tmpfs),
    /// bytes that it passed to `write`.
    pub bytes_written: Option<u64>,
    /// Number of calls of `read`, `pread` and similar functions.
    pub read_calls: Option<u64>,
    /// Bytes that the process caused to be read from storage. Reads that the page cache served do
    /// not count.
    pub bytes_read: Option<u64>,
}

/// Counters of process `pid`. It may have ended if no process has waited for it.
pub fn io(pid: &str) -> Option<Io> {
    Some(io_of(&std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?))
}

/// A process that has an argument which begins with `start`.
pub fn with_argument(start: &str) -> Option<u64> {
    let entries = std::fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let mut pids = pids.filter(|&pid| pid != u64::from(std::process::id()));
    pids.find(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        text.split('\0').any(|argument| argument.starts_with(start))
    })
}

/// Usage of the process that calls.
pub(crate) fn own_usage() -> Usage {
    Usage { bytes_written: bytes_written("self"), peak_rss_bytes: peak_rss_bytes("self") }
}

/// Processor time that this process has used so far, in the program and in the kernel, in seconds;
/// to a hundredth.
#[must_use]
pub fn cpu_seconds() -> Option<f64> {
    cpu_of(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Bytes that process `pid` wrote. It may have ended if no process has waited for it.
pub(crate) fn bytes_written(pid: &str) -> Option<u64> {
    io(pid)?.bytes_written
}

/// Largest resident memory of the running process `pid` so far.
///
/// `wait4` is not used, because its figure starts at the size of the process that forked.
pub fn peak_rss_bytes(pid: &str) -> Option<u64> {
    peak_of(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn io_of(text: &str) -> Io {
    Io {
        bytes_written: written_of(text),
        read_calls: field(text, "syscr:"),
        bytes_read: field(text, "read_bytes:"),
    }
}

fn written_of(io: &str) -> Option<u64> {
    match field(io, "write_bytes:")? {
        0 => field(io, "wchar:"),
        bytes => Some(bytes),
    }
}

fn cpu_of(stat: &str) -> Option<f64> {
    /// Linux counts it in hundredths for programs, whatever it uses inside.
    const TICKS_PER_S: f64 = 100.0;
    // The second field is the name, in parentheses; it may hold spaces. After it, the twelfth and
    // thirteenth fields are the program's and the kernel's time.
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_S)
}

fn peak_of(status: &str) -> Option<u64> {
    field(status, "VmHWM:")?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let io = "rchar: 9\nwchar: 700\nsyscr: 1\nwrite_bytes: 4096\ncancelled_write_bytes: 3\n";
        assert_eq!(written_of(io), Some(4096));
        assert_eq!(written_of("wchar: 700\nwrite_bytes: 0\n"), Some(700));
        assert_eq!(written_of(""), None);
        let io = io_of("rchar: 9\nsyscr: 12\nread_bytes: 8192\nwrite_bytes: 4096\n");
        let wanted = Io { bytes_written: Some(4096), read_calls: Some(12), bytes_read: Some(8192) };
        assert_eq!(io, wanted);
        assert_eq!(peak_of("VmPeak: 7 kB\nVmHWM:\t    20 kB\n"), Some(20480));
    }

    #[test]
    fn processor_time_is_found_after_a_name_with_spaces() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 9 9 9 9 250 50 9 9 20 0 1 0 9 9 9";
        assert_eq!(cpu_of(stat), Some(3.0));
        assert_eq!(cpu_of(""), None);
    }

    #[test]
    fn this_process_has_memory() {
        assert!(own_usage().peak_rss_bytes.is_none_or(|bytes| bytes > 100_000));
    }
}
