//! File descriptors of this process: how many there may be, and how they are shared out.
//!
//! The operating system limits them (`RLIMIT_NOFILE`), and everything takes from the same number:
//! tables, logs, manifests, outputs of jobs, sockets. The shares are pure functions of the limit:
//! two fifths for tables that are only read ([`tables_max`]), which [`crate::local::LocalFs`] keeps
//! to by closing others; a sixteenth, at least 16 and at most 64, that stays free for files that
//! are written ([`reserve`]); the rest for clients of a server ([`clients_max`]).
//!
//! A library reads the limit and never changes it. A server raises it at its start
//! ([`raise_limit`]). The limit is read anew at each use, because it may change.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Tables that may be open however few descriptors there are.
const TABLES_MIN: usize = 8;
/// Bounds of what stays free for files that are written.
const RESERVE_MIN: usize = 16;
/// See [`RESERVE_MIN`].
const RESERVE_MAX: usize = 64;

/// Most descriptors that this process may have now (the soft limit).
#[must_use]
pub fn limit() -> usize {
    to_count(getrlimit(Resource::Nofile).current)
}

/// Raises the soft limit to the hard one, as servers do at their start; the limit from now on.
/// A system that refuses leaves the limit as it is and is logged.
pub fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files stays as it is");
        }
    }
    self::limit()
}

fn to_count(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Descriptors for tables that are only read, under a limit of `limit`.
#[must_use]
pub fn tables_max(limit: usize) -> usize {
    (limit / 5 * 2).max(TABLES_MIN)
}

/// Descriptors that stay free for logs, manifests and new tables, under a limit of `limit`.
#[must_use]
pub fn reserve(limit: usize) -> usize {
    (limit / 16).clamp(RESERVE_MIN, RESERVE_MAX)
}

/// Descriptors for clients of a server, under a limit of `limit`; at least one.
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
