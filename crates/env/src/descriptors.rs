//! File descriptors of this process: their limit, and its division between the parts of a program.
//!
//! The operating system limits them (`RLIMIT_NOFILE`), and tables, logs, manifests, outputs of jobs
//! and sockets share the limit. The shares are pure functions of it:
//! - Two fifths are for tables that are only read ([`tables_max`]). [`crate::local::LocalFs`]
//!   closes other tables to stay within that.
//! - A sixteenth, between 16 and 64, stays free for files that are written ([`reserve`]).
//! - The rest is for clients of a server ([`clients_max`]).
//!
//! A library reads the limit and never changes it. A server raises it at its start
//! ([`raise_limit`]). Each use reads the limit, because it may change.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Least number of tables that may be open, whatever the limit is.
const TABLES_MIN: usize = 8;
/// Least number of descriptors that stay free for files that are written.
const RESERVE_MIN: usize = 16;
/// Largest number of descriptors that stay free for files that are written.
const RESERVE_MAX: usize = 64;

/// Number of descriptors that this process may have now, which is the soft limit.
#[must_use]
pub fn limit() -> usize {
    to_count(getrlimit(Resource::Nofile).current)
}

/// Raises the soft limit to the hard limit, as servers do at their start. Returns the limit from
/// now on. If the system refuses, the limit stays and the refusal is logged.
pub fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files stays unchanged");
        }
    }
    self::limit()
}

fn to_count(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Number of descriptors for tables that are only read, if the limit is `limit`.
#[must_use]
pub fn tables_max(limit: usize) -> usize {
    (limit / 5 * 2).max(TABLES_MIN)
}

/// Number of descriptors that stay free for logs, manifests and new tables, if the limit is
/// `limit`.
#[must_use]
pub fn reserve(limit: usize) -> usize {
    (limit / 16).clamp(RESERVE_MIN, RESERVE_MAX)
}

/// Number of descriptors for clients of a server, if the limit is `limit`. It is at least one.
#[must_use]
pub fn clients_max(limit: usize) -> usize {
    limit.saturating_sub(tables_max(limit)).saturating_sub(reserve(limit)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_limit() {
        for limit in [40, 64, 256, 1024, 20_000, 1 << 20, usize::MAX] {
            let (tables, reserve, clients) =
                (tables_max(limit), reserve(limit), clients_max(limit));
            assert_eq!(tables + reserve + clients, limit);
        }
        assert_eq!((tables_max(64), reserve(64), clients_max(64)), (24, 16, 24));
        assert_eq!((tables_max(0), reserve(0), clients_max(0)), (8, 16, 1));
    }

    #[test]
    fn limit_is_the_one_of_this_process() {
        assert!(limit() >= 64);
    }
}
