//! Newtypes for numbers that must not be mixed.
//!
//! Each is a plain integer inside (`.0` is public: these types prevent mix-ups, they hide
//! nothing) and orders like it.

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
    /// Sequence number: the position of a write in the database's single order of writes.
    /// At most [`SeqNo::MAX`] (56 bits), because it shares a word with the record's kind.
    SeqNo(u64)
);
id!(
    /// Number of a file in a database directory; never used twice while the database lives.
    FileNo(u64)
);
id!(
    /// Identifier of a column family; 0 is the default one; never used twice.
    CfId(u32)
);
id!(
    /// A generation: of a bucket map, of a log segment's use, of a node. Later is larger.
    Epoch(u64)
);

impl SeqNo {
    /// The largest sequence number; "read the newest".
    pub const MAX: Self = Self((1 << 56) - 1);
    /// Before the first write.
    pub const ZERO: Self = Self(0);

    /// The next sequence number. Panics past [`SeqNo::MAX`], which takes millennia.
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
