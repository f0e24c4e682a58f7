//! Flags that end jobs from outside.
//!
//! Clones are the same flag: every holder of a clone can end the job. A job that shares its flag
//! with others (the parts of one compaction) ends with them. Once set, a flag stays set.
//!
//! Thread-safety: any thread may call any method. Cost: a check is up to three relaxed loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_base::{Error, Result};

/// A flag that ends jobs. [`Cancel::default`] makes a new flag that depends on no other.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    own: Arc<AtomicBool>,
    above: Option<Arc<AtomicBool>>,
    linked: Option<Arc<AtomicBool>>,
}

impl Cancel {
    /// A new flag that is also set while `above` is.
    #[must_use]
    pub fn under(above: &Arc<AtomicBool>) -> Self {
        Self { own: Arc::default(), above: Some(Arc::clone(above)), linked: None }
    }

    /// The same flag, which is also set once `other` is; `other` does not follow it.
    #[must_use]
    pub fn linked_to(self, other: &Self) -> Self {
        Self { linked: Some(Arc::clone(&other.own)), ..self }
    }

    /// Ends the jobs that have this flag. They end soon and with an error.
    pub fn cancel(&self) {
        self.own.store(true, Ordering::Relaxed);
    }

    /// Whether the jobs shall end.
    #[inline]
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let is_set = |flag: &Option<Arc<AtomicBool>>| {
            flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
        };
        self.own.load(Ordering::Relaxed) || is_set(&self.above) || is_set(&self.linked)
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
}
