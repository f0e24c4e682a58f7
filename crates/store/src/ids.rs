//! Identities of blobs, logs and volumes: 16 random bytes each, so that no central allocator is
//! needed.

use std::fmt;

use archipelago_base::random::Rng;

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl $name {
            /// A new identity from `rng`.
            #[must_use]
            pub fn random(rng: &mut Rng) -> Self {
                let mut bytes = [0; 16];
                bytes.fill_with(|| rng.u8(..));
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    };
}

random_id!(
    /// Identity of a blob. An identity that was given up is never used again.
    BlobId
);
random_id!(
    /// Identity of a log.
    LogId
);
random_id!(
    /// Identity of a volume. A volume that is dropped and created again has another identity.
    VolumeId
);
