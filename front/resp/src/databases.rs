//! The order of the databases 0 to 15 of a server.
//!
//! A store that has databases keeps sixteen numbered keyspaces. An [`Order`] says which keyspace
//! each database shows, so SWAPDB changes the order and moves no record. Pure values.
//!
//! Invariant: an order is a permutation, so no two databases show the same keyspace.
//!
//! Cost: an order is one word; a database's number is a shift and a mask of it.

use std::fmt;

/// Number of databases of a server.
pub const DATABASES: usize = 16;

/// Bits of a number in an order.
const NUMBER_BITS: usize = 4;

/// Keyspace of each database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Order(u64);

impl Order {
    /// Each database shows the keyspace of its own number.
    pub const IDENTITY: Self = Self(0xfedc_ba98_7654_3210);

    /// The number of the keyspace that database `index` shows.
    ///
    /// # Panics
    /// Never for an index below [`DATABASES`]; others are a mistake of the caller.
    #[inline]
    #[must_use]
    pub fn at(self, index: usize) -> usize {
        debug_assert!(index < DATABASES);
        (self.0 >> (NUMBER_BITS * index)) as usize % DATABASES
    }

    /// The order in which the databases `a` and `b` have changed places.
    #[must_use]
    pub fn swapped(self, a: usize, b: usize) -> Self {
        let differs = (self.at(a) ^ self.at(b)) as u64;
        // With a equal to b nothing differs.
        Self(self.0 ^ (differs << (NUMBER_BITS * a)) ^ (differs << (NUMBER_BITS * b)))
    }

    /// The order after `next`, which counts the databases of this one as keyspaces.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let number = |index: usize| (self.at(next.at(index)) as u64) << (NUMBER_BITS * index);
        Self((0..DATABASES).map(number).sum())
    }

    /// The databases that do not show the keyspace of their own number.
    pub fn moved(self) -> impl Iterator<Item = usize> {
        (0..DATABASES).filter(move |index| self.at(*index) != *index)
    }

    /// The number of each database's keyspace, one byte each.
    #[must_use]
    pub fn to_bytes(self) -> [u8; DATABASES] {
        std::array::from_fn(|index| self.at(index) as u8)
    }

    /// The order that has these bytes; `None` if no order has.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let numbers: [u8; DATABASES] = bytes.try_into().ok()?;
        let is_permutation = (0..DATABASES as u8).all(|number| numbers.contains(&number));
        let place = |(index, number): (usize, &u8)| u64::from(*number) << (NUMBER_BITS * index);
        is_permutation.then(|| Self(numbers.iter().enumerate().map(place).sum()))
    }

    /// The order as one word, for an atomic.
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// The order of a word of [`Order::to_word`].
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Order({:?})", self.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_stays_a_permutation_over_swaps() {
        let mut rng = fastrand::Rng::with_seed(38);
        let (mut order, mut model) = (Order::IDENTITY, Vec::from_iter(0..DATABASES));
        for _ in 0..1000 {
            let (a, b) = (rng.usize(..DATABASES), rng.usize(..DATABASES));
            order = order.swapped(a, b);
            model.swap(a, b);
            assert_eq!(Vec::from_iter((0..DATABASES).map(|index| order.at(index))), model);
            assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        }
    }

    #[test]
    fn orders_compose_as_one_after_the_other() {
        let (first, second) = (Order::IDENTITY.swapped(0, 3).swapped(3, 15), (15, 0));
        let both = first.then(Order::IDENTITY.swapped(second.0, second.1));
        assert_eq!(both, first.swapped(second.0, second.1));
        assert_eq!(first.then(Order::IDENTITY), first);
        assert_eq!(Vec::from_iter(first.moved()), [0, 3, 15]);
        assert_eq!(Order::IDENTITY.moved().count(), 0);
    }

    #[test]
    fn bytes_that_are_no_permutation_are_refused() {
        let mut bytes = Order::IDENTITY.to_bytes();
        assert_eq!(Order::from_bytes(&bytes[..15]), None);
        bytes[3] = 4;
        assert_eq!(Order::from_bytes(&bytes), None, "4 is there twice");
        bytes[3] = 16;
        assert_eq!(Order::from_bytes(&bytes), None);
        assert_eq!(Order::from_bytes(&[0; 17]), None);
    }
}
