//! Types for numbers that must not be mixed.
//!
//! Each type is a plain integer inside and has the same order. The field `.0` is public, because
//! the types prevent mix-ups and hide nothing.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

id!(
    /// Sequence number: the position of a write in the order of all writes of a database. It is at
    /// most [`SeqNo::MAX`] (56 bits), because it shares a word with the kind of the record.
    SeqNo(u64)
);
id!(
    /// Number of a file in a database directory. A database never uses a number twice.
    FileNo(u64)
);
id!(
    /// Identifier of a column family. The default family has 0. No identifier is used twice.
    CfId(u32)
);
id!(
    /// Generation of a bucket map, a log segment or a node. A later generation has a larger number.
    Epoch(u64)
);

impl SeqNo {
    /// The largest sequence number. A read at this number sees the newest data.
    pub const MAX: Self = Self((1 << 56) - 1);
    /// The number before the first write.
    pub const ZERO: Self = Self(0);

    /// The next sequence number.
    ///
    /// # Panics
    ///
    /// The method panics past [`SeqNo::MAX`], which no database reaches within millennia.
    #[must_use]
    pub fn next(self) -> Self {
        assert!(self < Self::MAX, "sequence numbers exhausted");
        Self(self.0 + 1)
    }
}

impl CfId {
    /// The column family that every database has.
    pub const DEFAULT: Self = Self(0);
}
