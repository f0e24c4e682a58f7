//! How a database opens, follows its writer and closes.

pub(crate) mod catch_up;
pub(crate) mod open;
