//! Endpoints of nodes as text, and the providers that connect to them.
//!
//! An endpoint is `tcp:HOST:PORT` or `shm:PATH`. A node may have several. A client tries shared
//! memory first, if the path exists, then TCP. It takes the first endpoint that answers as the
//! expected node.
//!
//! Thread-safety: any thread may call any method.
//! Failure: if no endpoint answers, the error of the last one is returned.
//! Cost: a connection per endpoint that is tried.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::Boxed;
use archipelago_base::{Epoch, Error, Result};

use super::Reach;
use crate::auth::Secret;
use crate::ids::NodeId;
use crate::link::{Connect, Link, Listener, Provider, Session};
use crate::node::Node;
use crate::shm::Shm;
use crate::tcp::Tcp;

/// The fabric's providers of one process.
#[derive(Debug, Default)]
pub struct Endpoints {
    shm: Shm,
    tcp: Tcp,
}

/// Parses an endpoint as a user writes it, where `HOST:PORT` alone means TCP. Errors:
/// `InvalidArgument` if the text is neither that nor an endpoint.
pub fn endpoint(text: &str) -> Result<String> {
    let whole = if text.starts_with("shm:") || text.starts_with("tcp:") {
        text.to_owned()
    } else {
        format!("tcp:{text}")
    };
    split(&whole).map(|_| whole.clone()).map_err(|_| {
        Error::invalid(format!("{text:?} is not an address: write HOST:PORT or shm:PATH"))
    })
}

/// The kind of an endpoint and the rest of its text.
fn split(endpoint: &str) -> Result<(&str, &str)> {
    match endpoint.split_once(':') {
        Some(("tcp", address)) if address.contains(':') => Ok(("tcp", address)),
        Some(("shm", path)) if !path.is_empty() => Ok(("shm", path)),
        _ => Err(Error::invalid(format!(
            "{endpoint:?} is not an endpoint: write tcp:HOST:PORT or shm:PATH"
        ))),
    }
}

impl Endpoints {
    /// Providers with the system's clock and without a secret.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the secret of the cluster for all providers. With a secret, links exist only to and
    /// from processes that know it as well.
    #[must_use]
    pub fn with_secret(self, secret: Option<Secret>) -> Self {
        Self { shm: self.shm.with_secret(secret.clone()), tcp: self.tcp.with_secret(secret) }
    }

    /// Serves `node` at an endpoint until the listener is dropped.
    pub fn serve(&self, node: &Arc<Node>, endpoint: &str) -> Result<Box<dyn Listener>> {
        let (kind, address) = split(endpoint)?;
        match kind {
            "shm" => self.shm.serve(node, address),
            _ => self.tcp.serve(node, address),
        }
    }

    /// Connects to the first of `endpoints` that answers as `peer`, shared memory first. Returns
    /// the error of the last endpoint.
    async fn connect_first(
        &self,
        endpoints: &[String],
        session: &Arc<Session>,
        peer: Option<(NodeId, Epoch)>,
        deadline: Duration,
    ) -> Result<Arc<dyn Link>> {
        let mut ways = Vec::new();
        for endpoint in endpoints {
            ways.push(split(endpoint)?);
        }
        ways.sort_by_key(|(kind, _)| *kind != "shm");
        let mut last = Error::not_found("the node has no endpoint");
        for (kind, address) in ways {
            if kind == "shm" && !Path::new(address).exists() {
                last = Error::not_found(format!("there is no socket at {address}"));
                continue;
            }
            let mut to = Connect::to(address, session);
            to.deadline = deadline;
            to.node = peer.map(|(node, _)| node);
            to.epoch = peer.map(|(_, epoch)| epoch);
            let connected = match kind {
                "shm" => self.shm.connect(to).await,
                _ => self.tcp.connect(to).await,
            };
            match connected {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Reach for Endpoints {
    fn connect<'a>(
        &'a self,
        endpoints: &'a [String],
        session: &'a Arc<Session>,
        peer: Option<(NodeId, Epoch)>,
        deadline: Duration,
    ) -> Boxed<'a, Result<Arc<dyn Link>>> {
        Box::pin(self.connect_first(endpoints, session, peer, deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn address_without_kind_is_tcp() {
        assert_eq!(super::endpoint("localhost:7700").ok().as_deref(), Some("tcp:localhost:7700"));
        assert_eq!(super::endpoint("shm:/run/a").ok().as_deref(), Some("shm:/run/a"));
        assert!(super::endpoint("localhost").is_err());
    }

    #[test]
    fn malformed_endpoint_is_refused_with_the_form() {
        assert_eq!(split("tcp:127.0.0.1:80").ok(), Some(("tcp", "127.0.0.1:80")));
        assert_eq!(split("shm:/run/a").ok(), Some(("shm", "/run/a")));
        for wrong in ["tcp:80", "shm:", "127.0.0.1:80", "udp:1:2", ""] {
            let error = split(wrong).expect_err("refused").to_string();
            assert!(error.contains("tcp:HOST:PORT"), "{error}");
        }
    }
}
