//! Transactions: the state that they read, the causes of failed commits, and the state after them.

mod conflicts;
mod histories;
mod judge;
mod locks;
mod model;
mod outcomes;
mod watches;
