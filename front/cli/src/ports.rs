//! Check that ports are free before processes start on them.
//!
//! `cluster up` starts several processes. This check finds a port that is taken before the first
//! process starts, and names the flag that chooses another. The ports are free again on return, so
//! another program may still take one. The process that then fails to listen reports it.

use std::net::TcpListener;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_resp::server::resolve;

/// A port that a process is going to listen on.
pub(crate) struct Wanted {
    /// `HOST:PORT`; port 0 is always free.
    pub(crate) address: String,
    /// The process that will listen, as the subject of a sentence.
    pub(crate) listener: String,
    /// How the operator chooses another port.
    pub(crate) choice: String,
}

/// Returns an error if one of the ports is taken, or if two of them are the same.
pub(crate) fn check_free(wanted: &[Wanted]) -> Result<()> {
    let mut held = Vec::with_capacity(wanted.len());
    for Wanted { address, listener, choice } in wanted {
        let bound = resolve(address).and_then(|resolved| {
            TcpListener::bind(resolved).map_err(|source| {
                let what = format!("{listener} cannot listen on {address}: {choice}");
                Error::with_source(ErrorKind::Io, what, source)
            })
        });
        held.push(bound?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_port_is_named_with_its_flag() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().to_string();
        let wanted = |address: &str, listener: &str| Wanted {
            address: address.to_owned(),
            listener: listener.to_owned(),
            choice: "choose another with --flag".to_owned(),
        };
        let free = wanted("127.0.0.1:0", "the manager");
        check_free(&[free, wanted("127.0.0.1:0", "compute node 1")]).unwrap();
        let error = check_free(&[wanted("127.0.0.1:0", "x"), wanted(&taken, "compute node 2")]);
        let error = error.unwrap_err().to_string();
        let told = format!("compute node 2 cannot listen on {taken}: choose another with --flag");
        assert!(error.contains(&told), "{error}");
        // No other program listens at this address of the machine.
        let port = taken.replace("127.0.0.1", "127.9.8.7");
        let twice = [wanted(&port, "the manager"), wanted(&port, "compute node 1")];
        let error = check_free(&twice).unwrap_err().to_string();
        assert!(error.contains("compute node 1 cannot listen"), "{error}");
    }
}
