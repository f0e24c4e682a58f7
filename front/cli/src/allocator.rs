//! The allocator of the program, and the switch that makes it return freed memory immediately.
//!
//! mimalloc keeps freed pages for 10 ms, and for ten times as long in its arenas. It checks what is
//! due when the same thread allocates again. Background jobs of a database free megabytes when they
//! end, and then their threads wait, so the freed pages would stay resident. Without the delay, the
//! peak of a load is lower at the same processor time.
//!
//! A compute node of the store over remote memory keeps the delay, because it allocates and frees
//! small pieces all the time. Without the delay it would spend much of its time in `madvise`, in
//! interrupts of other processors and in page faults, and would serve fewer requests.
//!
//! The environment variable `MIMALLOC_PURGE_DELAY` replaces the default of both.
//!
//! mimalloc asks for huge pages for all of its memory, unless it is built with the feature
//! `no_thp`, as here. A small piece that stays would keep 2 MiB resident
//! (`docs/decisions/0096-huge-pages-for-memtables-alone.md`).

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of mimalloc's `mi_option_purge_delay`. The bindings lack it, but they have the option
/// that follows it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = libmimalloc_sys::mi_option_use_numa_nodes - 1;

/// Makes the allocator return freed pages to the operating system without delay, from now on.
pub(crate) fn return_freed_pages_immediately() {
    // SAFETY: the call sets a number within mimalloc, which mimalloc reads when it frees memory.
    // Any thread may make the call at any time.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, 0) };
}

#[cfg(test)]
mod tests {
    use archipelago_base::spawn::{Spawn, SystemSpawn};
    use archipelago_env::host;

    use super::*;

    fn resident_bytes() -> u64 {
        host::process_usage().unwrap().resident_bytes
    }

    #[test]
    fn allocator_does_not_ask_for_huge_pages() {
        let piece = vec![1_u8; 1 << 20];
        let address = piece.as_ptr().addr();
        let is_asked = host::asks_for_huge_pages(address);
        assert_eq!(is_asked, Some(false), "mimalloc must have its feature no_thp");
    }

    const CHILD: &str = "ARCHIPELAGO_ALLOCATOR_CHILD";

    /// Runs the next test in a process of its own. The test measures the memory of the whole
    /// process, which other tests would change.
    #[test]
    fn memory_of_a_waiting_thread_is_returned() {
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
        return_freed_pages_immediately();
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
