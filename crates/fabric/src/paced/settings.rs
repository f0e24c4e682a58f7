//! The settings of a card, and its counters as values.

use std::time::Duration;

use archipelago_base::{Error, Result};

use super::schedule::{Limits, Order};
use crate::traffic::TrafficClass;

/// Largest latency that a card may add to a message.
const LATENCY_MAX: Duration = Duration::from_secs(10);
/// Smallest rate that a card may have, in bytes per second. A smaller value is probably in a wrong
/// unit.
const RATE_MIN: u64 = 1 << 10;
/// Bounds of a slice in bytes.
const SLICE_BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=8 << 20;

/// Settings of a [`Card`](super::Card). The default sets no rate and no latency: the card then only
/// orders what is sent. A rate of 0 means that there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSettings {
    /// Rate at which all links together send, in bytes per second. The default is 0.
    pub out_bytes_per_s: u64,
    /// Rate at which all links together receive, in bytes per second. The default is 0.
    pub in_bytes_per_s: u64,
    /// Rate of one link in each direction, in bytes per second. It models the limit of one
    /// connection, which may be lower than that of the card. The default is 0.
    pub stream_bytes_per_s: u64,
    /// Additional time of every message, in each direction. A request and its answer together take
    /// it twice. The default is zero; the maximum is 10 s.
    pub latency: Duration,
    /// Bytes that an idle card passes ahead of its rate. The default is 0: a message of `b` bytes
    /// takes `b / rate`. A node whose clients have cards of their own needs the size of its largest
    /// message. Otherwise it would receive a message only after the client has sent all of it, and
    /// take the same time again.
    pub burst_bytes: u64,
    /// Bytes that a card with a rate transmits before it looks for a better message. The default is
    /// 16 KiB; the bounds are 1 KiB and 8 MiB.
    pub slice_bytes: u64,
    /// Limit of the bytes of background requests that were sent and not answered; 0 means that
    /// there is none. A request counts with the limit of its answer, if its caller set one. A
    /// larger request is sent alone. A log append waits behind at most these bytes: 1.4 ms at 25
    /// Gbit/s with the default of 4 MiB.
    pub background_in_flight_bytes: u64,
}

impl Default for CardSettings {
    fn default() -> Self {
        Self {
            out_bytes_per_s: 0,
            in_bytes_per_s: 0,
            stream_bytes_per_s: 0,
            latency: Duration::ZERO,
            burst_bytes: 0,
            slice_bytes: 16 << 10,
            background_in_flight_bytes: 4 << 20,
        }
    }
}

impl CardSettings {
    /// Checks the settings. Errors: `InvalidArgument`, which names the setting.
    pub fn validate(&self) -> Result<()> {
        let rates = [
            ("out_bytes_per_s", self.out_bytes_per_s),
            ("in_bytes_per_s", self.in_bytes_per_s),
            ("stream_bytes_per_s", self.stream_bytes_per_s),
        ];
        for (name, rate) in rates {
            if (1..RATE_MIN).contains(&rate) {
                return Err(Error::invalid(format!(
                    "{name} of a card is {rate} bytes per second: set 0 for no limit, or at least \
                     {RATE_MIN}"
                )));
            }
        }
        if self.latency > LATENCY_MAX {
            return Err(Error::invalid(format!(
                "the latency of a card is {:?}: set at most {LATENCY_MAX:?}",
                self.latency
            )));
        }
        if !SLICE_BYTES.contains(&self.slice_bytes) {
            return Err(Error::invalid(format!(
                "slice_bytes of a card is {}: set a value from {} to {}",
                self.slice_bytes,
                SLICE_BYTES.start(),
                SLICE_BYTES.end()
            )));
        }
        Ok(())
    }

    /// Whether messages that are sent need time.
    pub(super) fn delays_sending(&self) -> bool {
        self.out_bytes_per_s > 0 || self.stream_bytes_per_s > 0 || !self.latency.is_zero()
    }

    /// Whether messages that arrive need time.
    pub(super) fn delays_arrival(&self) -> bool {
        self.in_bytes_per_s > 0 || self.stream_bytes_per_s > 0 || !self.latency.is_zero()
    }

    /// Limits of the messages that the card sends.
    pub(super) fn sending(&self) -> Limits {
        Limits {
            bytes_per_s: self.out_bytes_per_s,
            background_bytes_max: self.background_in_flight_bytes,
            ..self.limits(Order::ByClass)
        }
    }

    /// Limits of the messages that arrive.
    pub(super) fn arriving(&self) -> Limits {
        Limits { bytes_per_s: self.in_bytes_per_s, ..self.limits(Order::ByTurn) }
    }

    fn limits(&self, order: Order) -> Limits {
        Limits {
            order,
            bytes_per_s: 0,
            stream_bytes_per_s: self.stream_bytes_per_s,
            latency_ns: u64::try_from(self.latency.as_nanos()).unwrap_or(u64::MAX),
            burst_bytes: self.burst_bytes,
            slice_bytes: self.slice_bytes,
            background_bytes_max: 0,
        }
    }
}

/// The messages and bytes of one class that passed one direction of a card, or wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of the messages, with 64 bytes for the headers of each.
    pub bytes: u64,
}

/// Counters of a card since it was made, and the messages that wait for it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardStats {
    pub(super) sent: [Traffic; TrafficClass::ALL.len()],
    pub(super) received: [Traffic; TrafficClass::ALL.len()],
    pub(super) waiting: [Traffic; TrafficClass::ALL.len()],
    /// Number of messages that wait for the card or are under way.
    pub queued: usize,
    /// Bytes of background requests that were sent and not answered, which
    /// [`CardSettings::background_in_flight_bytes`] bounds.
    pub background_in_flight_bytes: u64,
}

impl CardStats {
    /// Messages and bytes of a class that the card has sent. A node does not know the class of its
    /// answers and counts them as foreground.
    #[must_use]
    pub fn sent(&self, class: TrafficClass) -> Traffic {
        self.sent[class as usize]
    }

    /// Messages and bytes of a class that the card has received. An answer has the class of its
    /// request.
    #[must_use]
    pub fn received(&self, class: TrafficClass) -> Traffic {
        self.received[class as usize]
    }

    /// Messages of a class that wait to be sent, and the bytes that the card has not sent of them.
    #[must_use]
    pub fn waiting(&self, class: TrafficClass) -> Traffic {
        self.waiting[class as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_setting_is_named() {
        assert!(CardSettings::default().validate().is_ok());
        let wrong = [
            (CardSettings { in_bytes_per_s: 10, ..CardSettings::default() }, "in_bytes_per_s"),
            (CardSettings { slice_bytes: 0, ..CardSettings::default() }, "slice_bytes"),
            (
                CardSettings { latency: Duration::from_secs(60), ..CardSettings::default() },
                "latency",
            ),
        ];
        for (settings, name) in wrong {
            let error = settings.validate().expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn default_card_delays_nothing() {
        let settings = CardSettings::default();
        assert!(!settings.delays_sending() && !settings.delays_arrival());
        assert_eq!(settings.sending().background_bytes_max, 4 << 20);
    }
}
