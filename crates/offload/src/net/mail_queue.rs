//! Encoded messages that wait for their request or answer, bounded in number and in bytes.
//!
//! Invariants: 1. A queue has at most [`MESSAGES_MAX`] messages and [`BYTES_MAX`] bytes.
//! 2. Messages leave in the order of their arrival.
//!
//! Thread-safety: none of its own; a courier or the desk of a manager locks it.
//! Failure: a message that finds no room is dropped. The state machines repeat messages until they
//! are answered.
//! Cost: O(bytes) for each message.

use std::collections::VecDeque;

use super::MAIL_BYTES_MAX;
use crate::job::Payload;
use crate::wire::OffloadMessage;

/// Largest number of messages that wait.
const MESSAGES_MAX: usize = 4096;
/// Largest number of bytes that wait. Packages and outputs of jobs have up to 200 KiB each, so the
/// number alone would bound little. For a receiver that fetches its mail, only a few of them wait.
const BYTES_MAX: usize = 8 << 20;

/// Messages for one receiver.
#[derive(Debug, Default)]
pub(super) struct MailQueue {
    messages: VecDeque<Payload>,
    bytes: usize,
}

impl MailQueue {
    /// Adds a message, if there is room for it.
    pub(super) fn push(&mut self, message: &OffloadMessage) {
        let encoded = Payload::from(message.encode());
        let bytes = self.bytes + encoded.0.len();
        if self.messages.len() < MESSAGES_MAX && bytes <= BYTES_MAX {
            self.messages.push_back(encoded);
            self.bytes = bytes;
        } else {
            tracing::debug!(message = message.name(), "a message found no room and was dropped");
        }
    }

    /// Whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Takes the messages for one request or answer.
    pub(super) fn take(&mut self) -> Vec<Payload> {
        let (mut mail, mut bytes) = (Vec::new(), 0);
        while let Some(message) = self.messages.front() {
            bytes += message.0.len();
            if bytes > MAIL_BYTES_MAX && !mail.is_empty() {
                break;
            }
            self.bytes -= message.0.len();
            mail.extend(self.messages.pop_front());
        }
        mail
    }
}

#[cfg(test)]
mod tests {
    use super::super::PAYLOAD_BYTES_MAX;
    use super::*;
    use crate::ids::AttemptId;

    fn done(bytes: usize) -> OffloadMessage {
        OffloadMessage::Done { at: AttemptId::default(), output: vec![0; bytes].into() }
    }

    fn left(queue: &mut MailQueue) -> (usize, usize) {
        let (mut messages, mut bytes) = (0, 0);
        while !queue.is_empty() {
            let mail = queue.take();
            messages += mail.len();
            bytes += mail.iter().map(|message| message.0.len()).sum::<usize>();
        }
        (messages, bytes)
    }

    #[test]
    fn queue_of_large_messages_is_bounded_in_bytes() {
        let mut queue = MailQueue::default();
        for _round in 0..2 {
            for _message in 0..100 {
                queue.push(&done(PAYLOAD_BYTES_MAX));
            }
            let (messages, bytes) = left(&mut queue);
            assert!(messages > 30 && bytes <= BYTES_MAX, "{messages} of {bytes} bytes");
            // A queue that was emptied has room again.
        }
    }

    #[test]
    fn queue_of_small_messages_is_bounded_in_number() {
        let mut queue = MailQueue::default();
        for _message in 0..2 * MESSAGES_MAX {
            queue.push(&OffloadMessage::Standby {});
        }
        assert_eq!(left(&mut queue).0, MESSAGES_MAX);
    }

    #[test]
    fn message_that_exceeds_a_request_travels_alone() {
        let mut queue = MailQueue::default();
        for bytes in [1, MAIL_BYTES_MAX, 1, 1] {
            queue.push(&done(bytes));
        }
        let takes: Vec<usize> = (0..4).map(|_| queue.take().len()).collect();
        assert_eq!(takes, [1, 1, 2, 0]);
    }
}
