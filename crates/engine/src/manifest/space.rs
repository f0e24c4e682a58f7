//! What a restart keeps of the space of a column family: the measured share of shadowing records,
//! and the margin and the debt of the bound on space.
//!
//! The database adds the figures to the edits that install its jobs, so that they cost no write of
//! their own. They describe no file. A database without them is whole, and measures anew. The
//! module consists of plain values.

use archipelago_base::codec::{Reader, put_u8, put_u64, put_varint};

/// Figures of the space of a column family with separated values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpaceFigures {
    /// Measurements of the share of records that shadow an older one.
    pub shadow: ShadowFigures,
    /// The bound on space before the edit; `None` without a bound.
    pub bound: Option<BoundFigures>,
}

/// Measurements of the share of records that shadow an older one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShadowFigures {
    /// Share of the last complete measurement, from 0 to 1.
    pub last: f64,
    /// Running average of the complete measurements, from 0 to 1; `None` before the first one.
    pub average: Option<f64>,
    /// Number of records that are in no complete measurement.
    pub pending_records: u64,
    /// Number of the pending records that shadowed another one.
    pub pending_shadowing: u64,
    /// Number of the pending records that sank to the last level, or were dropped on the way.
    pub pending_sunk: u64,
}

/// The bound on space at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundFigures {
    /// Bytes of exposed and hidden garbage.
    pub used_bytes: u64,
    /// Used bytes that the bound allows without debt.
    pub allowance_bytes: u64,
    /// Further bytes that the bound allows until they are repaid.
    pub debt_bytes: u64,
    /// Code of the event that raised the debt last; 0 for none.
    pub debt_event: u8,
}

impl SpaceFigures {
    /// Appends the fields of the change to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let shadow = &self.shadow;
        put_u64(out, shadow.last.to_bits());
        put_u8(out, u8::from(shadow.average.is_some()));
        if let Some(average) = shadow.average {
            put_u64(out, average.to_bits());
        }
        put_varint(out, shadow.pending_records);
        put_varint(out, shadow.pending_shadowing);
        put_varint(out, shadow.pending_sunk);
        put_u8(out, u8::from(self.bound.is_some()));
        if let Some(bound) = &self.bound {
            put_varint(out, bound.used_bytes);
            put_varint(out, bound.allowance_bytes);
            put_varint(out, bound.debt_bytes);
            put_u8(out, bound.debt_event);
        }
    }

    /// Decodes the fields of a change; `None` if they are damaged.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let last = share(reader)?;
        let average = if flag(reader)? { Some(share(reader)?) } else { None };
        let pending_records = reader.varint()?;
        let part = |count: u64| (count <= pending_records).then_some(count);
        let pending_shadowing = reader.varint().and_then(part)?;
        let pending_sunk = reader.varint().and_then(part)?;
        let shadow =
            ShadowFigures { last, average, pending_records, pending_shadowing, pending_sunk };
        let bound = if flag(reader)? { Some(bound(reader)?) } else { None };
        Some(Self { shadow, bound })
    }
}

fn bound(reader: &mut Reader<'_>) -> Option<BoundFigures> {
    Some(BoundFigures {
        used_bytes: reader.varint()?,
        allowance_bytes: reader.varint()?,
        debt_bytes: reader.varint()?,
        debt_event: reader.u8()?,
    })
}

fn flag(reader: &mut Reader<'_>) -> Option<bool> {
    reader.u8().filter(|flag| *flag <= 1).map(|flag| flag == 1)
}

/// A share from 0 to 1, which is not NaN.
fn share(reader: &mut Reader<'_>) -> Option<f64> {
    reader.u64().map(f64::from_bits).filter(|share| (0.0..=1.0).contains(share))
}
