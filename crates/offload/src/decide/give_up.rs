//! Pure decision: whether the transfer of an image is given up because its shard became due for a
//! flush. Jobs do not take the shard before the transfer has ended. A flush in the process of the
//! owner reads the shard from memory, so the rest of the transfer would only use the link.
//!
//! Cost: O(1).

/// Rest of an image, in bytes, below which a transfer is not given up. The rest then takes hardly
/// longer than the requests that end the transfer at the node.
const REST_BYTES_MIN: u64 = 1 << 20;

/// A transfer, as an input of [`gives_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendProgress {
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of the image that have left.
    pub left_bytes: u64,
    /// Whether a flush waits for the shard.
    pub is_due: bool,
}

/// Whether a transfer is given up: its shard is due, and less than half of the image has left. If
/// more has left, giving up would waste those bytes, and an executor may flush the shard at the
/// node soon.
#[must_use]
pub fn gives_up(send: &SendProgress) -> bool {
    let rest_bytes = send.image_bytes.saturating_sub(send.left_bytes);
    send.is_due && rest_bytes > send.left_bytes && rest_bytes >= REST_BYTES_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(image_bytes: u64, left_bytes: u64, is_due: bool) -> bool {
        gives_up(&SendProgress { image_bytes, left_bytes, is_due })
    }

    #[test]
    fn due_shard_is_not_sent_on_unless_half_has_left() {
        let image_bytes = 8 << 20;
        assert!(of(image_bytes, 0, true) && of(image_bytes, (4 << 20) - 1, true));
        assert!(!of(image_bytes, 4 << 20, true), "half has left");
        assert!(!of(image_bytes, image_bytes, true) && !of(image_bytes, image_bytes + 1, true));
        assert!(!of(image_bytes, 0, false), "no flush waits");
    }

    #[test]
    fn short_image_is_sent_on() {
        assert!(of(REST_BYTES_MIN, 0, true));
        assert!(!of(REST_BYTES_MIN - 1, 0, true));
        assert!(!of(REST_BYTES_MIN + 10, 11, true), "the rest is short");
    }
}
