//! TLS: clients with and without certificates, plain connections, and wrong files.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use archipelago_base::ErrorKind;
use archipelago_base::budget::{ByteBudget, MemoryClass};
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::{Server, ServerOptions, TlsOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{Client, encode, socket, start_with};

type Secured = StreamOwned<ClientConnection, TcpStream>;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn options(client_ca: Option<&str>) -> TlsOptions {
    TlsOptions {
        certificate: file("server.pem"),
        key: file("server-key.pem"),
        client_ca: client_ca.map(file),
    }
}

fn start(client_ca: Option<&str>) -> Server {
    let tls = options(client_ca);
    start_with(|options| options.tls = Some(tls)).0
}

/// A connection that checks the server's certificate, and has a certificate itself if one is given.
fn secure(server: &Server, with_certificate: bool) -> Secured {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = if with_certificate {
        let chain = vec![CertificateDer::from_pem_file(file("client.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(file("client-key.pem")).unwrap();
        config.with_client_auth_cert(chain, key).unwrap()
    } else {
        config.with_no_client_auth()
    };
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(session, socket(server.local_addr()))
}

#[test]
fn clients_of_tls_are_served() {
    let server = start(None);
    let mut client = Client::over(secure(&server, false));
    client.expect(&[("SET reef coral", "+OK"), ("GET reef", "$5 coral")]);
    let value: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
    assert_eq!(client.call(&[&b"SET"[..], b"big", &value]), "+OK");
    client.send(&encode(&["STRLEN", "big"]).repeat(1000));
    for _ in 0..1000 {
        assert_eq!(client.reply(), format!(":{}", value.len()));
    }
    client.send(&encode(&["GET", "big"]).repeat(2));
    for _ in 0..2 {
        assert!(client.reply().len() > value.len() / 2);
    }
    // The session ends in order. An end without its mark would be an error of the read.
    client.expect(&[("QUIT", "+OK")]);
    assert_eq!(client.try_reply(), None);
}

#[test]
fn client_of_tls_may_send_a_pipeline_before_it_reads() {
    let server = start(None);
    let stream = secure(&server, false);
    // If the server did not receive while its replies wait, this client would fail to send.
    stream.sock.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut client = Client::over(stream);
    let (key, value) = ("k".repeat(4000), "v".repeat(8000));
    assert_eq!(client.call(&["SET", &key, &value]), "+OK");
    let count = 4000;
    client.send(&encode(&["GET", &key]).repeat(count));
    let expected = format!("$8000 {value}");
    for n in 0..count {
        assert!(client.reply() == expected, "{n}");
    }
    client.expect(&[("PING", "+PONG")]);
}

#[test]
fn redis_cli_speaks_tls_where_it_is_installed() {
    let help = Command::new("redis-cli").arg("--help").output();
    let help = help.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    if !String::from_utf8_lossy(&help).contains("--tls") {
        eprintln!("skipped: there is no redis-cli with TLS here");
        return;
    }
    let server = start(Some("ca.pem"));
    let ask = |more: &[PathBuf]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &server.local_addr().port().to_string(), "--tls", "--cacert"]);
        let output = command.arg(file("ca.pem")).args(more).args(["ECHO", "coral"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let certificate = ["--cert".into(), file("client.pem"), "--key".into(), file("client-key.pem")];
    assert_eq!(ask(&certificate), "coral\n");
    assert_eq!(ask(&[]), "");
}

#[test]
fn certificates_of_clients_are_required_and_checked() {
    let server = start(Some("ca.pem"));
    Client::over(secure(&server, true)).expect(&[("PING", "+PONG")]);
    let mut stranger = secure(&server, false);
    let mut reply = Vec::new();
    let asked = stranger.write_all(b"PING\r\n").and_then(|()| stranger.read_to_end(&mut reply));
    assert!(asked.is_err(), "{reply:?}");
    assert!(reply.is_empty(), "{reply:?}");
    Client::over(secure(&server, true)).expect(&[("PING", "+PONG")]);
}

#[test]
fn plain_and_silent_connections_delay_no_client() {
    let budget = ByteBudget::new(1 << 30);
    let shared = Arc::clone(&budget);
    let tls = options(None);
    let (server, _clock) = start_with(move |options| {
        options.tls = Some(tls);
        options.budget = shared;
        options.clients_max = 20;
        options.shutdown_grace = Duration::from_secs(3600);
    });
    let silent: Vec<TcpStream> = (0..10).map(|_| socket(server.local_addr())).collect();
    for request in [&b"PING\r\n"[..], b"POST / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 0xff, 0xff]] {
        let mut plain = socket(server.local_addr());
        plain.write_all(request).unwrap();
        plain.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        // The end of the stream, or a reset because the server did not read everything.
        let _ended = plain.read_to_end(&mut reply);
        assert!(!reply.starts_with(b"+"), "{reply:?}");
    }
    let mut client = Client::over(secure(&server, false));
    client.expect(&[("PING", "+PONG")]);
    assert!(budget.used_bytes(MemoryClass::Request) >= 11 * (32 << 10), "what TLS takes counts");
    assert!(server.shutdown(), "nobody waits for a handshake");
    drop(silent);
}

#[test]
fn clients_over_the_limit_are_closed_before_the_handshake() {
    let tls = options(None);
    let (server, _clock) = start_with(|options| {
        options.tls = Some(tls);
        options.clients_max = 1;
    });
    let mut first = Client::over(secure(&server, false));
    first.expect(&[("PING", "+PONG")]);
    let mut second = secure(&server, false);
    assert!(second.write_all(b"PING\r\n").and_then(|()| second.read_exact(&mut [0; 7])).is_err());
    first.expect(&[("PING", "+PONG")]);
}

#[test]
fn tls_client_that_does_not_read_does_not_delay_a_shutdown() {
    let tls = options(None);
    let (server, _clock) = start_with(|options| {
        options.tls = Some(tls);
        options.shutdown_grace = Duration::from_secs(3600);
    });
    let mut deaf = Client::over(secure(&server, false));
    assert_eq!(deaf.call(&["SET", "k", &"v".repeat(1 << 20)]), "+OK");
    deaf.send(&encode(&["GET", "k"]).repeat(64));
    let mut other = Client::over(secure(&server, false));
    other.expect(&[("PING", "+PONG")]);
    other.await_stuck(1);
    assert!(!server.shutdown(), "it was cut off");
}

#[test]
fn wrong_files_are_named_at_the_start() {
    let refusal = |tls: TlsOptions| {
        let options = ServerOptions { tls: Some(tls), ..ServerOptions::default() };
        let started = Server::start("127.0.0.1:0", Arc::new(MemStore::default()), options);
        let error = started.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        error.to_string()
    };
    let certificate = TlsOptions { certificate: file("missing.pem"), ..options(None) };
    assert!(refusal(certificate).contains("missing.pem cannot be used"));
    let no_certificate = TlsOptions { certificate: file("server-key.pem"), ..options(None) };
    assert!(refusal(no_certificate).contains("server-key.pem has no certificate"));
    let no_key = TlsOptions { key: file("server.pem"), ..options(None) };
    assert!(refusal(no_key).contains("the key"));
    let other_key = TlsOptions { key: file("client-key.pem"), ..options(None) };
    assert!(refusal(other_key).contains("client-key.pem cannot be used"));
    let no_ca = options(Some("README.md"));
    assert!(refusal(no_ca).contains("README.md has no certificate"));
}
