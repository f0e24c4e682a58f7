//! TLS for clients: makes the acceptor of TLS connections from files.
//!
//! The server speaks TLS 1.2 and 1.3 through `rustls`, with the cryptography of `ring`. It reads
//! the files once, before it listens on a port or creates a database. A change of the files needs a
//! restart. With a client CA, only clients with a certificate of this CA complete the handshake.
//!
//! Cost: a handshake takes about a millisecond of a core, on the threads that serve connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_base::{Error, ErrorKind, Result};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Files in PEM format that a server needs to speak TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// File with the server's certificate, followed by the intermediate certificates up to the CA.
    pub certificate: PathBuf,
    /// File with the private key (PKCS #8, PKCS #1 or SEC 1), without a passphrase.
    pub key: PathBuf,
    /// File with the CAs whose certificates clients must have. `None`: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

fn wrong<E>(what: &str, file: &Path) -> impl FnOnce(E) -> Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    let what = format!("{what} {} cannot be used", file.display());
    move |source| Error::with_source(ErrorKind::InvalidArgument, what, source)
}

fn certificates(what: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let all: Vec<_> = all.map_err(wrong(what, file))?;
    if all.is_empty() {
        return Err(Error::invalid(format!("{what} {} has no certificate", file.display())));
    }
    Ok(all)
}

/// The acceptor that turns connections into TLS.
///
/// # Errors
/// `InvalidArgument`, with the name of the wrong file.
pub(crate) fn acceptor(options: &TlsOptions) -> Result<TlsAcceptor> {
    let chain = certificates("the certificate", &options.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&options.key).map_err(wrong("the key", &options.key))?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(wrong("the certificate", &options.certificate))?;
    let builder = match &options.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("the client CA", file)? {
                roots.add(certificate).map_err(wrong("the client CA", file))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build().map_err(wrong("the client CA", file))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key).map_err(wrong("the key", &options.key))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
