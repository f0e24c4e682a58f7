//! Encodings of the register: ballots, values, requests to members and their answers.
//!
//! The module consists of pure functions.

use archipelago_base::codec::Reader;
use archipelago_base::wire::Wire;
use archipelago_base::wire_struct;

use super::super::register::caspaxos::acceptor::{
    AcceptorAnswer, AcceptorHead, AcceptorRequest, AcceptorState, CellPage, CopyProgress,
    Membership, RegisterCell,
};
use super::super::register::caspaxos::{AcceptedValue, Ballot, ChangeId, StoredValue};

wire_struct!(Ballot { root_set, counter, proposer });
wire_struct!(ChangeId { proposer, sequence });
wire_struct!(StoredValue { version, change, value });
wire_struct!(AcceptedValue { ballot, value });
wire_struct!(RegisterCell { promised, accepted });
wire_struct!(CellPage { after, cells, has_more });
wire_struct!(CopyProgress { root_set, copy, through });
wire_struct!(AcceptorHead { membership, promised_absent, copy });
wire_struct!(AcceptorState { membership, promised_absent, copy, cells });

/// One byte for the part, and its set or number behind it.
impl Wire for Membership {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::None => 0u8.put(out),
            Self::Active(set) => {
                1u8.put(out);
                set.put(out);
            }
            Self::Retired { next } => {
                2u8.put(out);
                next.put(out);
            }
            Self::Joining(set) => {
                3u8.put(out);
                set.put(out);
            }
            Self::Copying { least } => {
                4u8.put(out);
                least.put(out);
            }
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            0 => Self::None,
            1 => Self::Active(Wire::get(reader)?),
            2 => Self::Retired { next: Wire::get(reader)? },
            3 => Self::Joining(Wire::get(reader)?),
            4 => Self::Copying { least: Wire::get(reader)? },
            _ => return None,
        })
    }
}

/// One byte for the kind, and its fields in order.
impl Wire for AcceptorRequest {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Prepare { name, ballot } => {
                1u8.put(out);
                name.put(out);
                ballot.put(out);
            }
            Self::Accept { name, ballot, value } => {
                2u8.put(out);
                name.put(out);
                ballot.put(out);
                value.put(out);
            }
            Self::Names { root_set, prefix } => {
                3u8.put(out);
                root_set.put(out);
                prefix.put(out);
            }
            Self::Retire { next, after } => {
                4u8.put(out);
                next.put(out);
                after.put(out);
            }
            Self::Install { root_set, copy, page } => {
                5u8.put(out);
                root_set.put(out);
                copy.put(out);
                page.put(out);
            }
            Self::Activate { root_set } => {
                6u8.put(out);
                root_set.put(out);
            }
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            1 => Self::Prepare { name: Wire::get(reader)?, ballot: Wire::get(reader)? },
            2 => Self::Accept {
                name: Wire::get(reader)?,
                ballot: Wire::get(reader)?,
                value: Wire::get(reader)?,
            },
            3 => Self::Names { root_set: Wire::get(reader)?, prefix: Wire::get(reader)? },
            4 => Self::Retire { next: Wire::get(reader)?, after: Wire::get(reader)? },
            5 => Self::Install {
                root_set: Wire::get(reader)?,
                copy: Wire::get(reader)?,
                page: Wire::get(reader)?,
            },
            6 => Self::Activate { root_set: Wire::get(reader)? },
            _ => return None,
        })
    }
}

/// One byte for the kind, and its fields in order.
impl Wire for AcceptorAnswer {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Promised { ballot, accepted } => {
                1u8.put(out);
                ballot.put(out);
                accepted.put(out);
            }
            Self::Accepted { ballot } => {
                2u8.put(out);
                ballot.put(out);
            }
            Self::Outbid { ballot, promised } => {
                3u8.put(out);
                ballot.put(out);
                promised.put(out);
            }
            Self::Names(names) => {
                4u8.put(out);
                names.put(out);
            }
            Self::WrongSet { known } => {
                5u8.put(out);
                known.put(out);
            }
            Self::Retired(page) => {
                6u8.put(out);
                page.put(out);
            }
            Self::Installed => 7u8.put(out),
            Self::Activated => 8u8.put(out),
            Self::Copied { root_set, through } => {
                9u8.put(out);
                root_set.put(out);
                through.put(out);
            }
        }
    }
    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            1 => Self::Promised { ballot: Wire::get(reader)?, accepted: Wire::get(reader)? },
            2 => Self::Accepted { ballot: Wire::get(reader)? },
            3 => Self::Outbid { ballot: Wire::get(reader)?, promised: Wire::get(reader)? },
            4 => Self::Names(Wire::get(reader)?),
            5 => Self::WrongSet { known: Wire::get(reader)? },
            6 => Self::Retired(Wire::get(reader)?),
            7 => Self::Installed,
            8 => Self::Activated,
            9 => Self::Copied { root_set: Wire::get(reader)?, through: Wire::get(reader)? },
            _ => return None,
        })
    }
}
