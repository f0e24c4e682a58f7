//! Stall.
