//! Tests of repairs without a network.

mod model;
mod planning;
