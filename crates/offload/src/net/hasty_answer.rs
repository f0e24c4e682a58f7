//! Answers without mail that arrive before the manager can have waited for mail.
//!
//! The next request would also get such an answer immediately, so a courier pauses before it. There
//! are two causes. The manager may refuse requests. Or it has two addresses in the list of
//! managers, so that the requests of two couriers replace each other there.
//!
//! Thread-safety: the function is pure.
//! Failure: none.
//! Cost: O(1).

use std::time::Duration;

use crate::wire::OffloadMessage;

/// Whether the answer of a request for mail is of this kind. The manager may keep an answer without
/// mail for `wait`.
pub(super) fn is_hasty(answer: &OffloadMessage, waited: Duration, wait: Duration) -> bool {
    match answer {
        OffloadMessage::Mail { mail } => mail.is_empty() && waited < wait / 2,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Payload;

    #[test]
    fn answers_without_mail_are_hasty_unless_the_manager_has_waited() {
        let [short, wait] = [1, 100].map(Duration::from_millis);
        let mail = |mail| OffloadMessage::Mail { mail };
        assert!(is_hasty(&mail(Vec::new()), short, wait));
        assert!(!is_hasty(&mail(Vec::new()), wait, wait));
        assert!(!is_hasty(&mail(vec![Payload::default()]), short, wait));
        assert!(is_hasty(&OffloadMessage::Standby {}, wait, wait));
    }
}
