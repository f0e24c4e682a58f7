//! The program's allocator, and that it gives freed memory back at once.
//!
//! mimalloc keeps freed pages for a while (10 ms, and ten times that in its arenas) and looks at
//! what is due when the same thread allocates again. Background jobs free megabytes when they end
//! and then wait: what they freed stayed. A load with 64 MiB memtables peaks at 172 instead of 208
//! MiB without the delay, with as much processor time (`archipelago bench --benchmarks=fillrandom`,
//! 3 million, medians of four runs in turn).
//!
//! Not where small pieces come and go all the time: a compute node of the store over remote memory
//! spent a sixth of its time and more in `madvise`, the interrupts that it sends to the other
//! processors, and page faults (16 SETs in a pipeline: 84 to 116 instead of 55 to 60 thousand a
//! second).
//!
//! `MIMALLOC_PURGE_DELAY` in the environment counts, if it is there.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's `mi_option_purge_delay`, which its bindings leave out: between two that they have.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = libmimalloc_sys::mi_option_use_numa_nodes - 1;

/// From here on freed pages are given back at once.
pub(crate) fn give_back_at_once() {
    // SAFETY: sets a number within mimalloc, which reads it when it frees; any thread may do so at
    // any time.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, 0) };
}

#[cfg(test)]
mod tests {
    use archipelago_base::spawn::{Spawn, SystemSpawn};

    use super::*;

    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    const CHILD: &str = "ARCHIPELAGO_ALLOCATOR_CHILD";

    /// Runs the next test in a process of its own, because it measures the memory of the whole
    /// process, which other tests change.
    #[test]
    fn what_a_thread_freed_is_given_back_though_the_thread_only_waits() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "allocator::tests::child_gives_memory_back", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("memory was given back"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    #[test]
    fn child_gives_memory_back() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        give_back_at_once();
        let (freed, wait) = std::sync::mpsc::channel::<()>();
        let (go_on, ended) = std::sync::mpsc::channel::<()>();
        let before = resident_bytes();
        let body = Box::new(move || {
            let pieces: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 1 << 20]).collect();
            assert!(resident_bytes() > before + (60 << 20), "it is there: {}", pieces.len());
            drop(pieces);
            freed.send(()).unwrap();
            ended.recv().unwrap();
        });
        let thread = SystemSpawn.spawn("frees", body).unwrap();
        wait.recv().unwrap();
        let after = resident_bytes();
        go_on.send(()).unwrap();
        thread.join().unwrap();
        assert!(after < before + (16 << 20), "{before} bytes before, {after} after");
        println!("memory was given back");
    }
}
