//! Tests of repairs without a network.

mod counting;
mod model;
mod planning;
mod rounds;
