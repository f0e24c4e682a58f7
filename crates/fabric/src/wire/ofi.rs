//! What links of `ofi` say besides: names of endpoints, where a registration lies, and what stands
//! before a message. `docs/formats/fabric.md` has the byte tables. Nothing here needs libfabric: it
//! is compiled, tested and fuzzed without.

use archipelago_base::codec::{Reader, put_u32};
use archipelago_base::wire::{Malformed, Wire};

use super::Opened;
use super::message::{decode_result, put_result};
use crate::refusal::Refusal;

/// Bytes of an endpoint's or provider's name, at most.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of a [`Header`].
pub const HEADER_BYTES: u64 = 16;

/// What each side says of its endpoints: a body of kind [`Endpoints`](super::Kind::Endpoints).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// libfabric's provider: both sides have the same.
    pub provider: String,
    /// The one that one-sided operations go to; of a client empty.
    pub operations: Vec<u8>,
    /// The one for messages.
    pub messages: Vec<u8>,
}

impl Endpoints {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for bytes in [self.provider.as_bytes(), &self.operations, &self.messages] {
            put_u32(out, bytes.len() as u32);
            out.extend_from_slice(bytes);
        }
    }

    /// Reads a body.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        const WRONG: Malformed = Malformed("names of endpoints that cannot be read");
        let mut reader = Reader::new(body);
        let mut name = || {
            let bytes = reader.u32().filter(|&bytes| bytes as usize <= NAME_BYTES_MAX)?;
            reader.take(bytes as usize).map(<[u8]>::to_vec)
        };
        let mut read = || Some((name()?, name()?, name()?));
        let (provider, operations, messages) = read().ok_or(WRONG)?;
        let provider = String::from_utf8(provider).map_err(|_| WRONG)?;
        let endpoints = Self { provider, operations, messages };
        if reader.is_empty() { Ok(endpoints) } else { Err(WRONG) }
    }
}

/// What a key opens, and the registration that was made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedOnCard {
    /// What other providers say, too.
    pub opened: Opened,
    /// The registration's key, and the address of its first byte (0 where addresses are offsets).
    pub place: (u64, u64),
}

impl Wire for OpenedOnCard {
    fn put(&self, out: &mut Vec<u8>) {
        self.opened.put(out);
        self.place.0.put(out);
        self.place.1.put(out);
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let opened = Opened::get(reader)?;
        Some(Self { opened, place: (reader.u64()?, reader.u64()?) })
    }
}

impl OpenedOnCard {
    /// Appends a body: this, or a refusal.
    pub fn encode(opened: &Result<Self, Refusal>, out: &mut Vec<u8>) {
        put_result(out, opened);
    }

    /// Reads a body.
    pub fn decode(body: &[u8]) -> Result<Result<Self, Refusal>, Malformed> {
        decode_result(body).ok_or(Malformed("what a key opens cannot be read"))
    }
}

/// What stands before a message's bytes: number, messages taken, bytes that follow, 0; each a
/// little-endian u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How many messages with bytes were sent before this one.
    pub number: u32,
    /// How many messages with bytes its sender took.
    pub taken: u32,
    /// Bytes that follow.
    pub bytes: u32,
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES as usize] {
        let mut header = [0; HEADER_BYTES as usize];
        for (at, field) in [self.number, self.taken, self.bytes].into_iter().enumerate() {
            header[at * 4..at * 4 + 4].copy_from_slice(&field.to_le_bytes());
        }
        header
    }

    /// `None` if a message of `len` bytes does not begin so.
    #[must_use]
    pub fn decode(header: &[u8; HEADER_BYTES as usize], len: u64) -> Option<Self> {
        let (fields, _) = header.as_chunks::<4>();
        let [number, taken, bytes, zero] = *fields else { return None };
        let bytes = u32::from_le_bytes(bytes);
        let fits = zero == [0; 4] && len == HEADER_BYTES + u64::from(bytes);
        let (number, taken) = (u32::from_le_bytes(number), u32::from_le_bytes(taken));
        fits.then_some(Self { number, taken, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Rights;
    use crate::refusal::Reason;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_a_key_opens_survives_the_wire_and_nothing_else_does() {
        let opened = Opened { len: 4096, rights: Rights::READ };
        let on_card = OpenedOnCard { opened, place: (7, u64::MAX) };
        let mut body = Vec::new();
        OpenedOnCard::encode(&Ok(on_card), &mut body);
        // Golden: 0, length, rights, key, address.
        let golden = "00 0010000000000000 01 0700000000000000 ffffffffffffffff".replace(' ', "");
        assert_eq!(hex(&body), golden);
        assert_eq!(OpenedOnCard::decode(&body), Ok(Ok(on_card)));
        for cut in 0..body.len() {
            assert!(OpenedOnCard::decode(&body[..cut]).is_err(), "{cut}");
        }
        body.push(0);
        assert!(OpenedOnCard::decode(&body).is_err(), "a byte too many");
        let mut refused = Vec::new();
        OpenedOnCard::encode(&Err(Reason::Revoked.into()), &mut refused);
        assert_eq!(OpenedOnCard::decode(&refused), Ok(Err(Reason::Revoked.into())));
    }

    #[test]
    fn names_of_endpoints_survive_the_wire_and_nothing_else_does() {
        let (provider, operations) = ("tcp".to_owned(), Vec::new());
        let endpoints = Endpoints { provider, operations, messages: vec![1, 2] };
        let mut body = Vec::new();
        endpoints.encode(&mut body);
        // Golden: three times a length and bytes.
        assert_eq!(hex(&body), "03000000 746370 00000000 02000000 0102".replace(' ', ""));
        assert_eq!(Endpoints::decode(&body), Ok(endpoints.clone()));
        for cut in 0..body.len() {
            assert!(Endpoints::decode(&body[..cut]).is_err(), "{cut}");
        }
        body.push(0);
        assert!(Endpoints::decode(&body).is_err(), "a byte too many");
        for (bytes, good) in [(NAME_BYTES_MAX, true), (NAME_BYTES_MAX + 1, false)] {
            let mut body = Vec::new();
            Endpoints { messages: vec![7; bytes], ..endpoints.clone() }.encode(&mut body);
            assert_eq!(Endpoints::decode(&body).is_ok(), good, "a name of {bytes} bytes");
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_a_length_that_lies_is_seen() {
        let header = Header { number: 1, taken: u32::MAX, bytes: 3 };
        let bytes = header.encode();
        assert_eq!(bytes, [1, 0, 0, 0, 255, 255, 255, 255, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Header::decode(&bytes, HEADER_BYTES + 3), Some(header));
        assert_eq!(Header::decode(&bytes, HEADER_BYTES + 2), None);
        assert_eq!(Header::decode(&[7; 16], HEADER_BYTES + 3), None);
    }
}
