//! Transactions: what they see, what makes them fail, what they leave behind.

mod conflicts;
mod histories;
mod judge;
mod locks;
mod model;
mod outcomes;
mod watches;
