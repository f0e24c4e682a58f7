//! A look at ports before processes are started on them.
//!
//! Whoever starts several processes learns here that a port is taken, before the first of them has
//! started, and which flag chooses another. The ports are free again when this returns, so another
//! program may still take one; the process that finds that out says so itself.

use std::net::TcpListener;

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_resp::server::resolve;

/// A port that somebody is going to listen on.
pub(crate) struct Wanted {
    /// `HOST:PORT`; port 0 is always free.
    pub(crate) address: String,
    /// Who will listen, as the subject of a sentence.
    pub(crate) who: String,
    /// How another port is chosen.
    pub(crate) choice: String,
}

/// Refuses if one of the ports is taken, or two of them are the same.
pub(crate) fn check_free(wanted: &[Wanted]) -> Result<()> {
    let mut held = Vec::with_capacity(wanted.len());
    for Wanted { address, who, choice } in wanted {
        let bound = resolve(address).and_then(|resolved| {
            TcpListener::bind(resolved).map_err(|source| {
                let what = format!("{who} cannot listen on {address}: {choice}");
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
        let wanted = |address: &str, who: &str| Wanted {
            address: address.to_owned(),
            who: who.to_owned(),
            choice: "choose another with --flag".to_owned(),
        };
        let free = wanted("127.0.0.1:0", "the manager");
        check_free(&[free, wanted("127.0.0.1:0", "compute node 1")]).unwrap();
        let error = check_free(&[wanted("127.0.0.1:0", "x"), wanted(&taken, "compute node 2")]);
        let error = error.unwrap_err().to_string();
        let told = format!("compute node 2 cannot listen on {taken}: choose another with --flag");
        assert!(error.contains(&told), "{error}");
        // Nobody else listens at this address of the machine.
        let port = taken.replace("127.0.0.1", "127.9.8.7");
        let twice = [wanted(&port, "the manager"), wanted(&port, "compute node 1")];
        let error = check_free(&twice).unwrap_err().to_string();
        assert!(error.contains("compute node 1 cannot listen"), "{error}");
    }
}
