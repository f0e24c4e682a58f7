//! A pool in memory.
