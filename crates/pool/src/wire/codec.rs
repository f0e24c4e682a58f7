//! How fields become bytes: fixed little-endian integers, varint counts, structs field by field,
//! enums by a code.
//!
//! [`wire_struct!`](crate::wire_struct), [`wire_enum!`](crate::wire_enum) and
//! [`wire_messages!`](crate::wire_messages) write the code for what is made of such values; crates
//! above use them for their own messages.

use archipelago_base::Epoch;
use archipelago_base::codec::{put_bytes, put_u32, put_u64, put_varint};
use archipelago_fabric::{ClientId, NodeId, RemoteKey};

pub use archipelago_base::codec::{Reader, put_u8};

use crate::address::BlockId;
use crate::config::{Config, Place, Sharing};

/// Entries of a list that are made room for before they are there.
const ROOM_MAX: usize = 64;

/// A value on the wire.
pub trait Wire: Sized {
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// `None` if the bytes are no such value.
    fn get(reader: &mut Reader<'_>) -> Option<Self>;
}

/// [`Wire`](crate::wire::codec::Wire) for a struct: its fields in the order that is given.
#[macro_export]
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::wire::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::codec::Wire::put(&self.$field, out);)*
            }
            fn get(reader: &mut $crate::wire::codec::Reader<'_>) -> Option<Self> {
                Some(Self { $($field: $crate::wire::codec::Wire::get(reader)?),* })
            }
        }
    };
}
/// [`Wire`](crate::wire::codec::Wire) for an enum without fields: a byte each.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $($variant:ident = $code:literal),* $(,)? }) => {
        impl $crate::wire::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::wire::codec::put_u8(out, match self { $(Self::$variant => $code),* });
            }
            fn get(reader: &mut $crate::wire::codec::Reader<'_>) -> Option<Self> {
                match reader.u8()? { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}
/// An enum of messages with named fields, its name for logs, and its bytes: the version, a code and
/// the fields. What is of another version, breaks off, says nothing known or goes on behind its end
/// is [`Malformed`](crate::wire::Malformed).
#[macro_export]
macro_rules! wire_messages {
    ($(#[$whole:meta])* $enum:ident, version $version:ident { $($(#[$doc:meta])* $name:ident = $code:literal { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? })* }) => {
        $(#[$whole])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$doc])* $name { $($(#[$fdoc])* $field: $type),* },)*
        }

        impl $enum {
            /// What it is, for logs.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => stringify!($name),)* }
            }

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field),* } => {
                        $crate::wire::codec::put_u8(out, $code);
                        $($crate::wire::codec::Wire::put($field, out);)*
                    })*
                }
            }

            fn get(reader: &mut $crate::wire::codec::Reader<'_>) -> Option<Self> {
                match reader.u8()? {
                    $($code => Some(Self::$name { $($field: $crate::wire::codec::Wire::get(reader)?),* }),)*
                    _ => None,
                }
            }

            /// The bytes.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity(128);
                $crate::wire::codec::put_u8(&mut out, $version);
                self.put(&mut out);
                out
            }

            /// Reads a message; all bytes must belong to it.
            pub fn decode(bytes: &[u8]) -> Result<Self, $crate::wire::Malformed> {
                let mut reader = $crate::wire::codec::Reader::new(bytes);
                match reader.u8() {
                    Some($version) => {}
                    Some(_) => return Err($crate::wire::Malformed("a message of another version")),
                    None => return Err($crate::wire::Malformed("an empty message")),
                }
                match Self::get(&mut reader) {
                    Some(message) if reader.is_empty() => Ok(message),
                    Some(_) => {
                        Err($crate::wire::Malformed("bytes behind the end of a message"))
                    }
                    None => Err($crate::wire::Malformed("a message that cannot be read")),
                }
            }
        }
    };
}

macro_rules! wire_id {
    ($($name:ident)*) => { $(
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                put_u64(out, self.0);
            }
            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                reader.u64().map(Self)
            }
        }
    )* };
}

wire_id! { Epoch NodeId ClientId }
wire_struct!(BlockId { home, number });
wire_struct!(Place { node, life });
wire_enum!(Sharing { Owner = 0, All = 1 });
wire_struct!(Config { block, epoch, born, owner, label, request, sharing, wanted, copies });

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        put_u64(out, *self);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u64()
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, *self);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u32()
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        put_u8(out, u8::from(*self));
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        match reader.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_bytes());
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        String::from_utf8(reader.bytes()?.to_vec()).ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_u8(out, u8::from(self.is_some()));
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(if bool::get(reader)? { Some(T::get(reader)?) } else { None })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.len() as u64);
        for value in self {
            value.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let count = reader.varint32()? as usize;
        let mut values = Self::with_capacity(count.min(ROOM_MAX));
        for _ in 0..count {
            values.push(T::get(reader)?);
        }
        Some(values)
    }
}

impl Wire for RemoteKey {
    fn put(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Self::decode(reader)
    }
}
