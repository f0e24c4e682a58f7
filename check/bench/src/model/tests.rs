//! The model as a whole.
