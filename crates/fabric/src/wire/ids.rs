//! Encodings of identifiers, keys and refusals, which the pool and the store also use in their
//! messages.
//!
//! The module consists of pure functions.

use archipelago_base::codec::Reader;
use archipelago_base::wire::Wire;
use archipelago_base::wire_struct;

use crate::ids::{ClientId, NodeId, RegionId, RemoteKey, Rights};
use crate::refusal::{Reason, Refusal};

macro_rules! wire_id {
    ($($name:ident)*) => { $(
        impl Wire for $name {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            #[inline]
            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                Wire::get(reader).map(Self)
            }
        }
    )* };
}

wire_id! { NodeId ClientId RegionId }
wire_struct!(RemoteKey { node, epoch, region, tag, len, rights });
wire_struct!(Refusal { reason, limit });

impl Wire for Rights {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Self::from_bits(reader.u8()?)
    }
}

/// A reason is never 0, because 0 stands for success in a message that is a result.
impl Wire for Reason {
    fn put(&self, out: &mut Vec<u8>) {
        self.code().put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Self::from_code(reader.u8()?)
    }
}
