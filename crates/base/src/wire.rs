//! The wire codec: how values become bytes of a message, and how bytes become values again.
//!
//! An integer has a fixed width and is little-endian. A list is a varint count and its entries. A
//! map is a list of keys with values, by ascending key. A struct is its fields in order, and an
//! enum without fields is one byte. A protocol declares its types with
//! [`wire_struct!`](crate::wire_struct) and [`wire_enum!`](crate::wire_enum), and its messages with
//! [`wire_messages!`](crate::wire_messages). The fabric, the pool, the store of storage nodes and
//! the store over remote memory use these macros. The crate that owns a type also implements
//! [`Wire`] for it.
//!
//! Invariants:
//! 1. [`Wire::get`] reads exactly the bytes that [`Wire::put`] wrote, and returns an equal value.
//! 2. A decoder returns `None` or [`Malformed`] for every other input. It never panics.
//! 3. A decoder reserves memory for at most `RESERVED_MAX` entries before it has read them.
//!
//! Thread-safety: the module consists of pure functions.
//! Failure: a message carries no checksum, because the frame around it has one.
//! Cost: encoding a message allocates once if it fits into [`MESSAGE_BYTES`]. Decoding allocates
//! once per list and string.

use std::collections::BTreeMap;
use std::fmt;

use crate::codec::{Reader, put_bytes, put_u8, put_u32, put_u64, put_varint};
use crate::{CfId, Epoch, SeqNo};

/// Number of list entries for which a decoder reserves memory before it has read them.
const RESERVED_MAX: usize = 64;

/// Bytes that the encoder of a message reserves: more than most messages need.
pub const MESSAGE_BYTES: usize = 128;

/// Why bytes are not a message: a phrase that names what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// A value that has one encoding in messages.
pub trait Wire: Sized {
    /// Appends the encoding of this value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value; `None` if the bytes at the reader are not its encoding.
    fn get(reader: &mut Reader<'_>) -> Option<Self>;
}

/// Implements [`Wire`](crate::wire::Wire) for a struct. Its encoding consists of the fields in the
/// given order.
#[macro_export]
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn get(reader: &mut $crate::codec::Reader<'_>) -> Option<Self> {
                Some(Self { $($field: $crate::wire::Wire::get(reader)?),* })
            }
        }
    };
}

/// Implements [`Wire`](crate::wire::Wire) for an enum without fields. Each variant is one byte.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $($variant:ident = $code:literal),* $(,)? }) => {
        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::codec::put_u8(out, match self { $(Self::$variant => $code),* });
            }
            fn get(reader: &mut $crate::codec::Reader<'_>) -> Option<Self> {
                match reader.u8()? { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

/// Declares an enum of messages with named fields, and their encoding: the version, the code of the
/// variant, and the fields in order. Its `decode` returns [`Malformed`](crate::wire::Malformed) for
/// another version, an unknown code, missing bytes and surplus bytes.
#[macro_export]
macro_rules! wire_messages {
    ($(#[$whole:meta])* $enum:ident, version $version:ident { $($(#[$doc:meta])* $name:ident = $code:literal { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? })* }) => {
        $(#[$whole])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$doc])* $name { $($(#[$fdoc])* $field: $type),* },)*
        }

        impl $enum {
            /// The name of the variant, for logs.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => stringify!($name),)* }
            }

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field),* } => {
                        $crate::codec::put_u8(out, $code);
                        $($crate::wire::Wire::put($field, out);)*
                    })*
                }
            }

            fn get(reader: &mut $crate::codec::Reader<'_>) -> Option<Self> {
                match reader.u8()? {
                    $($code => Some(Self::$name { $($field: $crate::wire::Wire::get(reader)?),* }),)*
                    _ => None,
                }
            }

            /// The encoding of this message, with its version.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity($crate::wire::MESSAGE_BYTES);
                $crate::codec::put_u8(&mut out, $version);
                self.put(&mut out);
                out
            }

            /// Reads a message, to which all bytes must belong.
            pub fn decode(bytes: &[u8]) -> Result<Self, $crate::wire::Malformed> {
                let mut reader = $crate::codec::Reader::new(bytes);
                match reader.u8() {
                    Some($version) => {}
                    Some(_) => return Err($crate::wire::Malformed("a message of another version")),
                    None => return Err($crate::wire::Malformed("an empty message")),
                }
                match Self::get(&mut reader) {
                    Some(message) if reader.is_empty() => Ok(message),
                    Some(_) => {
                        Err($crate::wire::Malformed("bytes after the end of a message"))
                    }
                    None => Err($crate::wire::Malformed("a message that cannot be read")),
                }
            }
        }
    };
}

impl Wire for u8 {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        put_u8(out, *self);
    }
    #[inline]
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u8()
    }
}

impl Wire for u32 {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, *self);
    }
    #[inline]
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u32()
    }
}

impl Wire for u64 {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        put_u64(out, *self);
    }
    #[inline]
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        reader.u64()
    }
}

impl Wire for bool {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        put_u8(out, u8::from(*self));
    }
    #[inline]
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
        Self::from_utf8(reader.bytes()?.to_vec()).ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
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
        let mut values = Self::with_capacity(count.min(RESERVED_MAX));
        for _ in 0..count {
            values.push(T::get(reader)?);
        }
        Some(values)
    }
}

/// A varint count, and each key with its value. A reader refuses keys that do not ascend.
impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.len() as u64);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let mut map = Self::new();
        for _ in 0..reader.varint32()? {
            let key = K::get(reader)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return None;
            }
            map.insert(key, V::get(reader)?);
        }
        Some(map)
    }
}

impl Wire for Epoch {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    #[inline]
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        u64::get(reader).map(Self)
    }
}

impl Wire for CfId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        u32::get(reader).map(Self)
    }
}

/// A reader refuses numbers above [`SeqNo::MAX`], which do not fit beside the kind of a record.
impl Wire for SeqNo {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    #[inline]
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        u64::get(reader).map(Self).filter(|seq| *seq <= Self::MAX)
    }
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro declares public messages")]
mod tests {
    use super::*;

    const VERSION: u8 = 7;

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Pair {
        name: String,
        epoch: Option<Epoch>,
    }
    wire_struct!(Pair { name, epoch });

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Colour {
        Red,
        Blue,
    }
    wire_enum!(Colour { Red = 1, Blue = 4 });

    wire_messages! {
        /// Messages of this test.
        Sample, version VERSION {
        /// A message with fields of every kind.
        Full = 2 {
            /// A list of structs.
            pairs: Vec<Pair>,
            /// An enum without fields.
            colour: Colour,
            /// A number of four bytes.
            count: u32,
        }
        /// A message without fields.
        Bare = 3 {}
        }
    }

    fn sample() -> Sample {
        let pairs = vec![
            Pair { name: "a".into(), epoch: Some(Epoch(0x0102)) },
            Pair { name: String::new(), epoch: None },
        ];
        Sample::Full { pairs, colour: Colour::Blue, count: 0x0a0b }
    }

    #[test]
    fn messages_have_golden_bytes() {
        // Version, code, count, "a", present, epoch, empty name, absent, colour, number.
        let golden = [7, 2, 2, 1, b'a', 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0x0b, 0x0a, 0, 0];
        assert_eq!(sample().encode(), golden);
        assert_eq!(Sample::decode(&golden), Ok(sample()));
        assert_eq!(Sample::Bare {}.encode(), [7, 3]);
        assert_eq!((sample().name(), Sample::Bare {}.name()), ("Full", "Bare"));
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        let bytes = sample().encode();
        for cut in 0..bytes.len() {
            assert!(Sample::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        for wrong in [&[6, 3][..], &[7, 9], &[7, 3, 0]] {
            assert!(Sample::decode(wrong).is_err(), "{wrong:?}");
        }
        let mut colour = bytes.clone();
        colour[16] = 2;
        assert!(Sample::decode(&colour).is_err(), "an unknown variant");
        let mut flag = bytes;
        flag[5] = 2;
        assert!(Sample::decode(&flag).is_err(), "a flag that is neither 0 nor 1");
    }

    #[test]
    fn count_beyond_the_bytes_is_refused_without_allocation() {
        let lies = [7, 2, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(Sample::decode(&lies).is_err());
    }
}
