//! Tests of passwords, and of listening addresses that other machines reach.

use std::sync::Arc;

use archipelago_base::ErrorKind;
use archipelago_resp::access::Password;
use archipelago_resp::mem_store::MemStore;
use archipelago_resp::{Server, ServerOptions};

use crate::client::{Client, encode, start, start_with};

const NO_AUTH: &str = "-NOAUTH Authentication required.";
const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";

/// A server whose password is `sesame`.
fn guarded() -> Server {
    start_with(|options| options.password = Some(Password::new(b"sesame").unwrap())).0
}

#[test]
fn no_command_runs_before_the_password_is_given() {
    let server = guarded();
    let mut client = Client::connect(&server);
    client.expect(
        &[
            ("PING", NO_AUTH),
            ("SET k v", NO_AUTH),
            ("GET k", NO_AUTH),
            ("FLUSHALL", NO_AUTH),
            ("CONFIG GET *", NO_AUTH),
            ("CLIENT LIST", NO_AUTH),
            ("ACL WHOAMI", NO_AUTH),
            ("COMMAND COUNT", NO_AUTH),
            ("SHUTDOWN", NO_AUTH),
            ("NOPE", "-ERR unknown command 'NOPE', with args beginning with: "),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("AUTH sesam", WRONG),
            ("AUTH default wrong", WRONG),
            ("AUTH admin sesame", WRONG),
            ("AUTH default sesame more", "-ERR syntax error"),
            ("GET k", NO_AUTH),
            ("AUTH sesame", "+OK"),
            ("GET k", "$-1"),
            ("SET k v", "+OK"),
            ("ACL WHOAMI", "$7 default"),
            ("ACL USERS", "*1 $7 default"),
            ("ACL DANCE", "-ERR unknown subcommand 'DANCE'. Try ACL HELP."),
            // A client that has logged in stays logged in.
            ("AUTH wrong", WRONG),
            ("GET k", "$1 v"),
            ("RESET", "+RESET"),
            ("GET k", NO_AUTH),
            ("AUTH default sesame", "+OK"),
            ("GET k", "$1 v"),
        ]
        .map(|(line, reply)| (line, reply.trim_end())),
    );
    assert!(client.ask("INFO stats").contains("acl_access_denied_auth:4"));
    assert_eq!(server.clients(), 1);
}

#[test]
fn pipeline_is_accepted_from_its_auth_on() {
    let server = guarded();
    let mut client = Client::connect(&server);
    let pipeline = [
        encode(&["SET", "k", "early"]),
        encode(&["SET", "l", "early"]),
        encode(&["GET", "k"]),
        encode(&["AUTH", "sesame"]),
        encode(&["SET", "k", "late"]),
        encode(&["GET", "k"]),
        encode(&["GET", "l"]),
    ];
    client.send(&pipeline.concat());
    for expected in [NO_AUTH, NO_AUTH, NO_AUTH, "+OK", "+OK", "$4 late", "$-1"] {
        assert_eq!(client.reply(), expected);
    }
}

#[test]
fn hello_logs_in_and_changes_nothing_if_it_fails() {
    let server = guarded();
    let mut client = Client::connect(&server);
    for line in ["HELLO", "HELLO 3", "HELLO 3 SETNAME me"] {
        let reply = client.ask(line);
        assert!(reply.starts_with("-NOAUTH HELLO must be called with"), "{line}: {reply}");
    }
    client.expect(&[
        ("HELLO 3 AUTH default wrong SETNAME me", WRONG),
        ("HELLO 3 AUTH sesame", "-ERR Syntax error in HELLO option 'AUTH'"),
    ]);
    assert!(client.ask("HELLO 2 AUTH default sesame SETNAME me").starts_with("*14 "));
    client.expect(&[("CLIENT GETNAME", "$2 me"), ("GET k", "$-1")]);
    let mut other = Client::connect(&server);
    other.expect(&[("QUIT", "+OK")]);
    assert_eq!(other.try_reply(), None);
}

#[test]
fn unauthenticated_clients_may_send_little() {
    let server = guarded();
    let long = "x".repeat((16 << 10) + 1);
    for (request, what) in [
        (encode(&["AUTH", &long]), "unauthenticated bulk length"),
        (encode(&["SET"; 11]), "unauthenticated multibulk length"),
        (b"*1048576\r\n".to_vec(), "unauthenticated multibulk length"),
        (b"*2\r\n$4\r\nAUTH\r\n$1000000000\r\n".to_vec(), "unauthenticated bulk length"),
    ] {
        let mut stranger = Client::connect(&server);
        stranger.send(&request);
        assert_eq!(stranger.reply(), format!("-ERR Protocol error: {what}"));
        assert_eq!(stranger.try_reply(), None, "{what}");
    }
    let mut client = Client::connect(&server);
    client.expect(&[("AUTH sesame", "+OK")]);
    assert_eq!(client.call(&["SET", "k", &long]), "+OK");
    client.expect(&[("RESET", "+RESET")]);
    client.send(&encode(&["SET"; 11]));
    assert_eq!(client.reply(), "-ERR Protocol error: unauthenticated multibulk length");
}

#[test]
fn without_a_password_auth_is_as_in_redis() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    client.expect(&[
        (
            "AUTH sesame",
            "-ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        ),
        ("AUTH default whatever", "+OK"),
        ("AUTH admin whatever", WRONG),
        ("ACL WHOAMI", "$7 default"),
        ("RESET", "+RESET"),
        ("GET k", "$-1"),
    ]);
    assert!(client.ask("HELLO 2 AUTH default whatever").starts_with("*14 "));
}

#[test]
fn a_reachable_address_is_refused_without_a_password() {
    let listen = |address: &str, options: ServerOptions| {
        Server::start(address, Arc::new(MemStore::default()), options).map(Server::shutdown)
    };
    for address in ["0.0.0.0:0", "[::]:0"] {
        let error = listen(address, ServerOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.context().contains("--password-file"), "{error}");
    }
    let password = Password::new(b"sesame").ok();
    let open = ServerOptions { allow_unauthenticated: true, ..ServerOptions::default() };
    let guarded = ServerOptions { password, ..ServerOptions::default() };
    for options in [open, guarded] {
        assert!(listen("0.0.0.0:0", options).unwrap());
    }
    assert!(listen("127.0.0.9:0", ServerOptions::default()).unwrap());
}
