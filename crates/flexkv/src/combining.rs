//! Combining of writes: writes of one key by one node go one at a time, and sets go together.
//!
//! When writes of a key meet, the index accepts one. The others have written a record in vain and
//! try again. The paper (§4.5) leaves that to the client library. Writes of one node can meet here
//! before any of them has sent anything:
//!
//! 1. One write of a key is in progress: that of the **leader**. Other writes wait in line.
//! 2. When the leader's write has ended, the next in line leads. Consecutive waiting sets without a
//!    condition are **combined**. All of them were requested and none has returned, so all but the
//!    last may have taken effect directly before it, where no reader could see them. The last one
//!    writes, and the others get its result.
//!
//! The client owns one [`Combining`].
//!
//! Invariants:
//! 1. A key hash has an entry exactly while a write leads.
//! 2. Every waiting write gets a result or leads. A leader that is dropped puts its followers back
//!    in line and passes the lead on.
//! 3. Only sets of equal keys are combined, although keys with equal hashes share a line.
//! 4. A write that stays in line waits for a later write only to get its result.
//!
//! Thread-safety: one lock covers all keys, and is held for one access to a map. No waiting write
//! is woken under it.
//! Failure: an error of the leader's write is also the result of the writes combined with it.
//! Cost: a write that meets none accesses the map twice, and allocates nothing once the map has
//! held as many keys.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::format::KeyHash;
use crate::keyed::HashIsKey;
use crate::write_error::WriteError;

/// The lines of waiting writes. See the head of the module.
#[derive(Debug, Default)]
pub(crate) struct Combining {
    lines: Mutex<HashMap<u64, VecDeque<Waiter>, HashIsKey>>,
}

/// A write that waits in line.
#[derive(Debug)]
struct Waiter {
    /// The key, if the write is a set without a condition.
    sets: Option<Box<[u8]>>,
    turn: Arc<Turn>,
}

/// End of the wait of a write.
#[derive(Debug)]
pub(crate) enum Entered {
    /// The write leads.
    Leads(Lead),
    /// A later set of the same key was performed for both.
    Combined(Result<bool, WriteError>),
}

#[derive(Debug)]
enum TurnState {
    Waits(Option<Waker>),
    Entered(Entered),
    /// The waiting write was dropped.
    Gone,
}

/// Slot in which a waiting write gets its result.
#[derive(Debug)]
struct Turn(Mutex<TurnState>);

impl Turn {
    /// Hands a result to the waiting write. Returns it if the write was dropped.
    fn tell(&self, entered: Entered) -> Option<Entered> {
        let mut state = self.0.lock();
        let TurnState::Waits(waker) = &mut *state else { return Some(entered) };
        let waker = waker.take();
        *state = TurnState::Entered(entered);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }
}

/// A write that waits. Dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Turn>);

impl Future for Waiting {
    type Output = Entered;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Entered> {
        let mut state = self.0.0.lock();
        if let TurnState::Waits(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match mem::replace(&mut *state, TurnState::Gone) {
            TurnState::Entered(entered) => Poll::Ready(entered),
            TurnState::Waits(_) | TurnState::Gone => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let was = mem::replace(&mut *self.0.0.lock(), TurnState::Gone);
        // After the lock is released, because a lead that was not taken passes on.
        drop(was);
    }
}

/// The lead among this node's writes of a key. Dropping it passes the lead on.
#[derive(Debug)]
pub(crate) struct Lead {
    /// The line of the key. `None` once the lead has passed on.
    line: Option<(Arc<Combining>, u64)>,
    /// Writes that get the result of this one.
    followers: Vec<Waiter>,
}

impl Lead {
    /// Whether other writes of the key are combined with this one, or wait.
    pub(crate) fn has_company(&self) -> bool {
        let waits = |(combining, hash): &(Arc<Combining>, u64)| {
            combining.lines.lock().get(hash).is_some_and(|line| !line.is_empty())
        };
        !self.followers.is_empty() || self.line.as_ref().is_some_and(waits)
    }

    /// Ends the write: hands its result to the combined writes, and passes the lead on.
    pub(crate) fn end(mut self, result: &Result<bool, WriteError>) {
        for follower in mem::take(&mut self.followers) {
            let _if_nobody_waits = follower.turn.tell(Entered::Combined(result.clone()));
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if let Some((combining, hash)) = self.line.take() {
            combining.pass_on(hash, mem::take(&mut self.followers));
        }
    }
}

impl Combining {
    /// Enters a write of a key. `sets` is the key, if the write is a set without a condition. `Err`
    /// if another write of this node is in progress.
    pub(crate) fn enter(
        self: &Arc<Self>,
        hash: KeyHash,
        sets: Option<&[u8]>,
    ) -> Result<Lead, Waiting> {
        match self.lines.lock().entry(hash.0) {
            Entry::Vacant(nobody) => {
                nobody.insert(VecDeque::new());
                Ok(self.lead(hash.0, Vec::new()))
            }
            Entry::Occupied(mut line) => {
                let turn = Arc::new(Turn(Mutex::new(TurnState::Waits(None))));
                let sets = sets.map(Box::from);
                line.get_mut().push_back(Waiter { sets, turn: Arc::clone(&turn) });
                Err(Waiting(turn))
            }
        }
    }

    /// Whether a write leads, for each of these keys. `None` if there is no write at all.
    pub(crate) fn led(&self, hashes: &[KeyHash]) -> Option<Vec<bool>> {
        let lines = self.lines.lock();
        if lines.is_empty() {
            return None;
        }
        Some(hashes.iter().map(|hash| lines.contains_key(&hash.0)).collect())
    }

    fn lead(self: &Arc<Self>, hash: u64, followers: Vec<Waiter>) -> Lead {
        Lead { line: Some((Arc::clone(self), hash)), followers }
    }

    /// Passes the lead to the next write in line. `back` are writes that were combined with a
    /// leader that did nothing.
    fn pass_on(self: &Arc<Self>, hash: u64, mut back: Vec<Waiter>) {
        loop {
            let (leader, followers) = {
                let mut lines = self.lines.lock();
                let Some(line) = lines.get_mut(&hash) else { return };
                back.drain(..).rev().for_each(|waiter| line.push_front(waiter));
                let Some(next) = take_next(line) else {
                    lines.remove(&hash);
                    return;
                };
                next
            };
            // The lead is not passed on by its drop, because a long line of dropped writes would
            // recurse.
            match leader.turn.tell(Entered::Leads(self.lead(hash, followers))) {
                Some(Entered::Leads(mut untaken)) => {
                    untaken.line = None;
                    back = mem::take(&mut untaken.followers);
                }
                _ => return,
            }
        }
    }
}

/// The next leader, and the writes that are combined with it.
fn take_next(line: &mut VecDeque<Waiter>) -> Option<(Waiter, Vec<Waiter>)> {
    let first = line.pop_front()?;
    let alike = |waiter: &&Waiter| first.sets.is_some() && waiter.sets == first.sets;
    let more = line.iter().take_while(alike).count();
    let mut together: Vec<Waiter> = std::iter::once(first).chain(line.drain(..more)).collect();
    let leader = together.pop()?;
    Some((leader, together))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use archipelago_base::Error;
    use archipelago_base::random::Rng;

    use super::*;

    const HASH: KeyHash = KeyHash(7);
    const REEF: Option<&[u8]> = Some(b"reef");

    fn now(waiting: &mut Waiting) -> Option<Entered> {
        match pin!(waiting).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(entered) => Some(entered),
            Poll::Pending => None,
        }
    }

    fn leads(waiting: &mut Waiting) -> Lead {
        match now(waiting) {
            Some(Entered::Leads(lead)) => lead,
            other => panic!("it should lead: {other:?}"),
        }
    }

    fn wait(combining: &Arc<Combining>, sets: Option<&[u8]>) -> Waiting {
        combining.enter(HASH, sets).expect_err("somebody leads")
    }

    fn is_empty(combining: &Combining) -> bool {
        combining.lines.lock().is_empty()
    }

    #[test]
    fn consecutive_waiting_sets_are_combined_into_the_last() {
        let combining = Arc::<Combining>::default();
        let first = combining.enter(HASH, REEF).expect("nobody leads");
        let other = combining.enter(KeyHash(8), REEF).expect("another key");
        let mut waiting: Vec<Waiting> = (0..3).map(|_| wait(&combining, REEF)).collect();
        assert!(waiting.iter_mut().all(|one| now(one).is_none()));
        first.end(&Ok(true));
        assert!(now(&mut waiting[0]).is_none(), "it is told once the last has written");
        let last = leads(&mut waiting[2]);
        let mut late = wait(&combining, REEF);
        last.end(&Err(WriteError::of_unknown_effect(Error::busy("no success in time"))));
        for one in &mut waiting[..2] {
            assert!(matches!(now(one), Some(Entered::Combined(Err(_)))));
        }
        leads(&mut late).end(&Ok(true));
        drop(other);
        assert!(is_empty(&combining));
    }

    #[test]
    fn conditional_write_is_not_combined() {
        let combining = Arc::<Combining>::default();
        let first = combining.enter(HASH, None).expect("nobody leads");
        let mut waiting: Vec<Waiting> =
            [REEF, REEF, None, None, REEF].map(|sets| wait(&combining, sets)).into();
        first.end(&Ok(false));
        for (leader, told) in [(1, Some(0)), (2, None), (3, None), (4, None)] {
            leads(&mut waiting[leader]).end(&Ok(true));
            if let Some(told) = told {
                assert!(matches!(now(&mut waiting[told]), Some(Entered::Combined(Ok(true)))));
            }
        }
        assert!(is_empty(&combining));
    }

    #[test]
    fn keys_with_equal_hashes_are_not_combined() {
        let combining = Arc::<Combining>::default();
        let first = combining.enter(HASH, REEF).expect("nobody leads");
        let mut atoll = wait(&combining, Some(b"atoll"));
        let mut reef = wait(&combining, REEF);
        first.end(&Ok(true));
        assert!(now(&mut reef).is_none());
        leads(&mut atoll).end(&Ok(true));
        leads(&mut reef).end(&Ok(true));
        assert!(is_empty(&combining));
    }

    #[test]
    fn dropped_write_blocks_no_other() {
        let combining = Arc::<Combining>::default();
        let first = combining.enter(HASH, REEF).expect("nobody leads");
        let mut waiting: Vec<Waiting> = (0..4).map(|_| wait(&combining, REEF)).collect();
        // The last write in line is dropped before its turn. The write before it is dropped while
        // it leads, without having seen the lead. The next write is dropped after it has seen the
        // lead.
        drop(waiting.pop());
        drop(first);
        drop(waiting.pop());
        let lead = leads(&mut waiting[1]);
        drop(lead);
        let mut waiting = waiting.swap_remove(0);
        leads(&mut waiting).end(&Ok(true));
        assert!(is_empty(&combining));
    }

    #[test]
    fn long_line_of_dropped_writes_does_not_recurse() {
        let combining = Arc::<Combining>::default();
        let first = combining.enter(HASH, None).expect("nobody leads");
        drop((0..100_000).map(|_| wait(&combining, None)).collect::<Vec<_>>());
        first.end(&Ok(true));
        assert!(is_empty(&combining));
    }

    /// Threads write a few keys, some drop their write at any moment: there is one leader at a
    /// time, and every write proceeds.
    #[test]
    fn one_thread_leads_at_a_time_and_all_proceed() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let combining = Arc::<Combining>::default();
        let led: [AtomicBool; 3] = Default::default();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (combining, led) = (&combining, &led);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    for _ in 0..20_000 {
                        let at = rng.usize(..led.len());
                        let sets = rng.bool().then_some(&b"reef"[..]);
                        let entered = match combining.enter(KeyHash(at as u64), sets) {
                            Ok(lead) => Entered::Leads(lead),
                            Err(_gone) if rng.u8(..8) == 0 => continue,
                            Err(mut waiting) => loop {
                                match now(&mut waiting) {
                                    Some(entered) => break entered,
                                    None => std::thread::yield_now(),
                                }
                            },
                        };
                        if let Entered::Leads(lead) = entered {
                            assert!(!led[at].swap(true, Ordering::SeqCst), "two lead");
                            std::hint::spin_loop();
                            led[at].store(false, Ordering::SeqCst);
                            if rng.u8(..8) > 0 {
                                lead.end(&Ok(true));
                            }
                        }
                    }
                });
            }
        });
        assert!(is_empty(&combining));
    }
}
