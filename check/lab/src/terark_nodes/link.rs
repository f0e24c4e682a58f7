//! The emulated testbed: network card, connection and round trip of the client, and the device of a
//! storage node. The functions are pure. Decision 0072 froze the figures.
//!
//! All times are stretched by one factor, so that a card of 25 Gbit/s does not need more processor
//! time than two cores have. Sizes stay. Ratios of network times are those of the full testbed.
//!
//! Only the client has a card. Every message passes it, and a storage node has a card of the same
//! rate. So the bytes that reach one node in any period never exceed what its own card would move.

use archipelago_env::device::Direction;
use archipelago_fabric::paced::CardSettings;
use serde::{Deserialize, Serialize};

use super::bounds::ReadTimes;
use archipelago_bench::harness::store::{DeviceSpec, Result};

/// The device of a storage node at full speed.
const STORAGE_NODE: &str = include_str!("../../../../docs/devices/storage-node.toml");
/// Bytes per second of a card in each direction: 25 Gbit/s (Terark-DS §5.1).
const CARD_BYTES_PER_S: f64 = 25e9 / 8.0;
/// Bytes per second of one connection in each direction: 5 Gbit/s.
const STREAM_BYTES_PER_S: f64 = 5e9 / 8.0;
/// Round trip in microseconds.
const ROUND_TRIP_US: f64 = 80.0;

/// Width of the client's card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Card {
    /// The card of the paper.
    Full,
    /// A card of four times the rate, which a log alone does not fill.
    Fourfold,
    /// Nothing is emulated: neither the network nor the devices.
    Absent,
}

impl Card {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Full => "1×",
            Self::Fourfold => "4×",
            Self::Absent => "no emulation",
        }
    }
}

/// The stretched network of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Link {
    pub(super) card_bytes_per_s: f64,
    pub(super) stream_bytes_per_s: f64,
    pub(super) round_trip_s: f64,
}

impl Link {
    /// The network with a card of this width, with times stretched by `stretch`. `None` if nothing
    /// is emulated.
    pub(super) fn new(card: Card, stretch: f64) -> Option<Self> {
        let width = match card {
            Card::Full => 1.0,
            Card::Fourfold => 4.0,
            Card::Absent => return None,
        };
        Some(Self {
            card_bytes_per_s: width * CARD_BYTES_PER_S / stretch,
            stream_bytes_per_s: STREAM_BYTES_PER_S / stretch,
            round_trip_s: ROUND_TRIP_US * stretch / 1e6,
        })
    }

    /// The words with which `archipelago bench` emulates the network.
    pub(super) fn words(&self) -> [String; 3] {
        [
            format!("--network_bytes_per_s={:.0}", self.card_bytes_per_s),
            format!("--network_stream_bytes_per_s={:.0}", self.stream_bytes_per_s),
            format!("--network_round_trip_us={:.0}", self.round_trip_s * 1e6),
        ]
    }

    /// Time until two of three nodes have a group of `bytes` bytes, in seconds, by the model of the
    /// design: a round trip, two copies through the card, and one segment through a connection.
    fn append_s(&self, bytes: f64, segments: f64) -> f64 {
        self.round_trip_s
            + 2.0 * bytes / self.card_bytes_per_s
            + bytes / segments / self.stream_bytes_per_s
    }

    /// Seconds of a read of `bytes` bytes through a connection: a round trip and the bytes.
    pub(super) fn read_s(&self, bytes: f64) -> f64 {
        self.round_trip_s + bytes / self.stream_bytes_per_s
    }

    /// Share of the time of an append that four segments save for groups of `bytes` bytes.
    pub(super) fn gain_of_segments(&self, bytes: f64) -> f64 {
        1.0 - self.append_s(bytes, segments(bytes)) / self.append_s(bytes, 1.0)
    }
}

/// Number of segments of a group: one below 64 KiB, and up to four of at least 16 KiB.
fn segments(bytes: f64) -> f64 {
    const KIB: f64 = 1024.0;
    if bytes < 64.0 * KIB { 1.0 } else { (bytes / (16.0 * KIB)).floor().min(4.0) }
}

/// Text of the description of a storage node's device.
pub(super) fn device_text() -> &'static str {
    STORAGE_NODE
}

/// Bytes of flushes, compactions and garbage collection that the client's card lets be in flight
/// together. Requests of garbage collection have the last class among them.
pub(super) fn bulk_bytes() -> u64 {
    CardSettings::default().background_in_flight_bytes
}

/// Times of reads over the network with a card of this width. `None` if nothing is emulated.
pub(super) fn read_times(card: Card, stretch: f64) -> Option<ReadTimes> {
    let link = Link::new(card, stretch)?;
    let latency = device(stretch).ok()?.latency(Direction::Read);
    Some(ReadTimes {
        trip_s: link.round_trip_s + latency.as_secs_f64(),
        card_bytes_per_s: link.card_bytes_per_s,
        stream_bytes_per_s: link.stream_bytes_per_s,
    })
}

/// The device of a storage node with times stretched by `stretch`.
pub(super) fn device(stretch: f64) -> Result<DeviceSpec> {
    stretched(DeviceSpec::from_toml(STORAGE_NODE)?, stretch)
}

/// The given device with times stretched by `stretch`.
pub(super) fn stretched(mut device: DeviceSpec, stretch: f64) -> Result<DeviceSpec> {
    device.scale = 1.0 / stretch;
    device.validate()?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretched_testbed_has_the_figures_of_the_decision() {
        let link = Link::new(Card::Full, 25.0).expect("a network");
        assert_eq!(link.card_bytes_per_s, 125e6);
        assert_eq!(link.stream_bytes_per_s, 25e6);
        assert_eq!(link.round_trip_s, 0.002);
        assert_eq!(
            link.words(),
            [
                "--network_bytes_per_s=125000000",
                "--network_stream_bytes_per_s=25000000",
                "--network_round_trip_us=2000"
            ]
        );
        let wide = Link::new(Card::Fourfold, 25.0).expect("a network");
        assert_eq!(wide.card_bytes_per_s, 500e6);
        assert_eq!(wide.stream_bytes_per_s, link.stream_bytes_per_s);
        assert_eq!(Link::new(Card::Absent, 25.0), None);
        let device = device(25.0).expect("a device");
        assert_eq!((device.write_bytes_per_s as f64 * device.scale) as u64, 250_000_000);
        assert_eq!(device.write_latency_us as f64 / device.scale, 500.0);
        let times = read_times(Card::Full, 25.0).expect("a network");
        assert!((times.trip_s - 0.0025).abs() < 1e-9, "{times:?}");
        assert_eq!(read_times(Card::Absent, 25.0), None);
        assert_eq!(bulk_bytes(), 4 << 20, "of the card in its default settings");
    }

    #[test]
    fn segments_save_time_from_64_kib_on() {
        let link = Link::new(Card::Fourfold, 25.0).expect("a network");
        assert_eq!(link.gain_of_segments(60_000.0), 0.0);
        // 2 ms + 2 · 256 KiB / 500 MB/s + 256 KiB / 25 MB/s, of which three quarters of the last.
        let bytes = 262_144.0;
        let (last, all) = (bytes / 25e6, 0.002 + 2.0 * bytes / 500e6 + bytes / 25e6);
        assert!((link.gain_of_segments(bytes) - 0.75 * last / all).abs() < 1e-9);
        assert_eq!(segments(65_536.0), 4.0);
    }
}
