//! Flags that end jobs from outside.
//!
//! Clones are the same flag: every holder of a clone can end the job. A job that shares its flag
//! with others (the parts of one compaction) ends with them. Once set, a flag stays set.
//!
//! Thread-safety: any thread may call any method. Cost: a check is a relaxed load for the flag and
//! for each flag that it follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::{Error, Result};

/// A flag that ends jobs. [`Cancel::default`] makes a new flag that depends on no other.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    own: Arc<AtomicBool>,
    /// The flags that it follows, each once.
    followed: Vec<Arc<AtomicBool>>,
}

impl Cancel {
    /// A new flag that is also set while `above` is.
    #[must_use]
    pub fn under(above: &Arc<AtomicBool>) -> Self {
        Self { own: Arc::default(), followed: vec![Arc::clone(above)] }
    }

    /// The same flag, which from now on also follows `other` and all flags that `other` follows at
    /// this moment. `other` does not follow it. Several links add up. Clones that were made before
    /// do not have the link.
    #[must_use]
    pub fn linked_to(mut self, other: &Self) -> Self {
        for flag in std::iter::once(&other.own).chain(&other.followed) {
            let is_known = |known: &Arc<AtomicBool>| Arc::ptr_eq(known, flag);
            if !is_known(&self.own) && !self.followed.iter().any(is_known) {
                self.followed.push(Arc::clone(flag));
            }
        }
        self
    }

    /// Ends the jobs that have this flag. They end soon and with an error.
    pub fn cancel(&self) {
        self.own.store(true, Ordering::Relaxed);
    }

    /// Whether the jobs shall end.
    #[inline]
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        is_set(&self.own) || self.followed.iter().any(is_set)
    }

    /// Returns `Closed` if the jobs shall end.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::closed("the job was cancelled"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use archipelago_base::ErrorKind;

    use super::*;

    #[test]
    fn a_flag_is_set_by_any_of_its_clones_and_from_above() {
        let above = Arc::new(AtomicBool::new(false));
        let (one, other) = (Cancel::under(&above), Cancel::under(&above));
        let follower = Cancel::under(&above).linked_to(&one);
        let clone = one.clone();
        assert!(clone.check().is_ok());
        one.cancel();
        assert_eq!(clone.check().unwrap_err().kind(), ErrorKind::Closed);
        assert!(follower.is_cancelled(), "a flag that is linked to it follows");
        assert!(!other.is_cancelled(), "another job goes on");
        above.store(true, Ordering::Relaxed);
        assert!(other.is_cancelled(), "the database closes");
    }

    #[test]
    fn link_follows_what_the_other_flag_follows() {
        let closing = Arc::new(AtomicBool::new(false));
        let first = Cancel::under(&closing);
        let second = Cancel::default().linked_to(&first);
        let third = Cancel::default().linked_to(&second);
        first.cancel();
        assert!(second.is_cancelled() && third.is_cancelled(), "over two links");
        let other = Cancel::default().linked_to(&Cancel::under(&closing));
        assert!(!other.is_cancelled());
        closing.store(true, Ordering::Relaxed);
        assert!(other.is_cancelled(), "the flag above the other one");
    }

    #[test]
    fn later_link_keeps_earlier_ones() {
        for at in 0..2 {
            let others = [Cancel::default(), Cancel::default()];
            let follower = Cancel::default().linked_to(&others[0]).linked_to(&others[1]);
            assert!(!follower.is_cancelled());
            others[at].cancel();
            assert!(follower.is_cancelled(), "link {at}");
            assert!(!others[1 - at].is_cancelled(), "the other flags do not follow");
        }
    }

    #[test]
    fn flag_is_followed_once() {
        let closing = Arc::new(AtomicBool::new(false));
        let task = Cancel::under(&closing);
        let part = Cancel::under(&closing).linked_to(&task).linked_to(&task);
        assert_eq!(part.followed.len(), 2, "the one above and the task");
        assert_eq!(part.clone().linked_to(&part).followed.len(), 2, "not itself");
    }
}
