//! Decides whether a node may listen at an address. Pure functions.

use std::net::IpAddr;

/// Which clients a listener admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listening {
    /// Clients that know the secret, from everywhere.
    Authenticated,
    /// All processes of this machine, without a proof.
    ThisMachine,
    /// None: every process that reaches the address could use the node.
    Refused,
}

/// The clients that a listener at `address` admits.
pub(crate) fn listening(address: IpAddr, has_secret: bool) -> Listening {
    match (has_secret, address.to_canonical().is_loopback()) {
        (true, _) => Listening::Authenticated,
        (false, true) => Listening::ThisMachine,
        (false, false) => Listening::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_open_without_a_secret() {
        let at = |text: &str, has_secret| listening(text.parse().expect("an address"), has_secret);
        for loopback in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(at(loopback, false), Listening::ThisMachine, "{loopback}");
            assert_eq!(at(loopback, true), Listening::Authenticated, "{loopback}");
        }
        for open in ["0.0.0.0", "::", "10.0.0.1", "192.0.2.7", "fe80::1", "::ffff:10.0.0.1"] {
            assert_eq!(at(open, false), Listening::Refused, "{open}");
            assert_eq!(at(open, true), Listening::Authenticated, "{open}");
        }
    }
}
