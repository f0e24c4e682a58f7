//! The further messages of `ofi`: names of endpoints, places of registrations, and the header of a
//! message. `docs/formats/fabric.md` has the byte tables.
//!
//! The module consists of pure functions. It does not need libfabric, and is always compiled,
//! tested and fuzzed.

use archipelago_base::codec::{Reader, put_u32};
use archipelago_base::wire::{Malformed, Wire};

use super::Opened;
use super::message::{decode_result, put_result};
use crate::refusal::Refusal;

/// Limit of the name of an endpoint or provider, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Length of a [`Header`] in bytes.
pub const HEADER_BYTES: u64 = 16;

/// The endpoints of one side: the body of a frame of the kind
/// [`Endpoints`](super::Kind::Endpoints).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Name of the libfabric provider, which both sides must have.
    pub provider: String,
    /// Name of the endpoint for one-sided operations. It is empty in the client's message.
    pub operations: Vec<u8>,
    /// Name of the endpoint for messages.
    pub messages: Vec<u8>,
}

impl Endpoints {
    /// Appends the body of the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for bytes in [self.provider.as_bytes(), &self.operations, &self.messages] {
            put_u32(out, bytes.len() as u32);
            out.extend_from_slice(bytes);
        }
    }

    /// Reads the body of the message.
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

/// The answer to an attachment: the region that the key opens, and its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedOnCard {
    /// The part that all providers have.
    pub opened: Opened,
    /// Key of the registration, and the address of its first byte. The address is 0 if the provider
    /// counts offsets.
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
    /// Appends the body of an answer or of a refusal.
    pub fn encode(opened: &Result<Self, Refusal>, out: &mut Vec<u8>) {
        put_result(out, opened);
    }

    /// Reads the body of an answer or of a refusal.
    pub fn decode(body: &[u8]) -> Result<Result<Self, Refusal>, Malformed> {
        decode_result(body).ok_or(Malformed("what a key opens cannot be read"))
    }
}

/// The header of a message: number, taken messages, bytes that follow, and 0. Each is a
/// little-endian `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of messages with bytes that this side has sent before.
    pub number: u32,
    /// Number of messages with bytes that this side has taken.
    pub taken: u32,
    /// Number of bytes that follow the header.
    pub bytes: u32,
}

impl Header {
    /// The encoding of the header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES as usize] {
        let mut header = [0; HEADER_BYTES as usize];
        for (at, field) in [self.number, self.taken, self.bytes].into_iter().enumerate() {
            header[at * 4..at * 4 + 4].copy_from_slice(&field.to_le_bytes());
        }
        header
    }

    /// Reads the header of a message of `len` bytes; `None` if it is not one.
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
    fn answer_to_an_attachment_round_trips_and_other_bytes_fail() {
        let opened = Opened { len: 4096, rights: Rights::READ };
        let on_card = OpenedOnCard { opened, place: (7, u64::MAX) };
        let mut body = Vec::new();
        OpenedOnCard::encode(&Ok(on_card), &mut body);
        // The golden bytes are 0, length, rights, key and address.
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
    fn names_of_endpoints_round_trip_and_other_bytes_fail() {
        let (provider, operations) = ("tcp".to_owned(), Vec::new());
        let endpoints = Endpoints { provider, operations, messages: vec![1, 2] };
        let mut body = Vec::new();
        endpoints.encode(&mut body);
        // The golden bytes are three times a length and the bytes.
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
    fn header_round_trips_and_a_wrong_length_fails() {
        let header = Header { number: 1, taken: u32::MAX, bytes: 3 };
        let bytes = header.encode();
        assert_eq!(bytes, [1, 0, 0, 0, 255, 255, 255, 255, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Header::decode(&bytes, HEADER_BYTES + 3), Some(header));
        assert_eq!(Header::decode(&bytes, HEADER_BYTES + 2), None);
        assert_eq!(Header::decode(&[7; 16], HEADER_BYTES + 3), None);
    }
}
