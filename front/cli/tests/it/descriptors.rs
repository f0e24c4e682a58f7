//! A server whose process may open few files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Files that the process of the server may open.
const LIMIT: usize = 64;
/// Clients that fit: the limit less two fifths for tables and 16 for files that are written.
const CLIENTS: usize = 24;

struct Limited {
    child: Child,
    address: String,
}

impl Limited {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        Self::start_within(&format!("ulimit -n {LIMIT}"), dir, arguments)
    }

    /// Starts the server in a shell that has set its limits.
    fn start_within(limits: &str, dir: &Path, arguments: &[&str]) -> Self {
        let script = format!("{limits}; exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_archipelago")])
            .args(["serve", "--listen", "127.0.0.1:0", "--dir"])
            .arg(dir)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        let address = first.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    /// Ends the server and returns its log.
    fn end(mut self) -> String {
        // A client that has just left may still count, but the end of the server does not depend on
        // it.
        while let Some(refused) = self.ask(&["SHUTDOWN"]) {
            assert_eq!(refused, "-ERR max number of clients reached");
            std::thread::yield_now();
        }
        let mut log = String::new();
        let stderr = self.child.stderr.take().unwrap();
        Read::read_to_string(&mut BufReader::new(stderr), &mut log).unwrap();
        assert!(self.child.wait().unwrap().success(), "{log}");
        log
    }

    fn ask(&self, words: &[&str]) -> Option<String> {
        Client::connect(&self.address).ask(words)
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: &str) -> Self {
        Self(BufReader::new(TcpStream::connect(address).unwrap()))
    }

    /// The first line of the reply; `None` if the server closed the connection.
    fn ask(&mut self, words: &[&str]) -> Option<String> {
        // The server may have closed the connection before the client asks.
        let _ = self.0.get_mut().write_all(format!("{}\r\n", words.join(" ")).as_bytes());
        self.line()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
        }
    }
}

#[test]
fn clients_over_the_limit_get_an_error_and_others_are_served() {
    let root = tempfile::tempdir().unwrap();
    let served = Limited::start(&root.path().join("data"), &[]);
    let mut clients: Vec<Client> = Vec::new();
    for at in 0..CLIENTS {
        let mut client = Client::connect(&served.address);
        let key = format!("k{at}");
        assert_eq!(client.ask(&["SET", &key, "v"]).as_deref(), Some("+OK"), "client {at}");
        clients.push(client);
    }
    for _more in 0..200 {
        let refused = Client::connect(&served.address).line();
        assert_eq!(refused.as_deref(), Some("-ERR max number of clients reached"));
    }
    for (at, client) in clients.iter_mut().enumerate() {
        let key = format!("k{at}");
        assert_eq!(client.ask(&["STRLEN", &key]).as_deref(), Some(":1"));
    }
    let mut first = clients.swap_remove(0);
    assert_eq!(first.ask(&["CONFIG", "GET", "maxclients"]).as_deref(), Some("*2"));
    drop((first, clients));
    while served.ask(&["PING"]).as_deref() != Some("+PONG") {
        std::thread::yield_now();
    }
    let log = served.end();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains(&format!("at most {CLIENTS} clients")), "{log}");
}

#[test]
fn soft_limit_is_raised_for_clients() {
    let root = tempfile::tempdir().unwrap();
    let limits = format!("ulimit -S -n {LIMIT}; ulimit -H -n 400");
    let served = Limited::start_within(&limits, &root.path().join("data"), &[]);
    let mut clients: Vec<Client> = Vec::new();
    for at in 0..2 * LIMIT {
        let mut client = Client::connect(&served.address);
        let key = format!("k{at}");
        assert_eq!(client.ask(&["SET", &key, "v"]).as_deref(), Some("+OK"), "client {at}");
        clients.push(client);
    }
    for (at, client) in clients.iter_mut().enumerate() {
        let key = format!("k{at}");
        assert_eq!(client.ask(&["STRLEN", &key]).as_deref(), Some(":1"));
    }
    let mut first = clients.swap_remove(0);
    assert_eq!(first.ask(&["CONFIG", "GET", "maxclients"]).as_deref(), Some("*2"));
    let told = first.0.by_ref().lines().take(4).map(Result::unwrap).last().unwrap();
    let most: usize = told.parse().unwrap();
    assert!((2 * LIMIT..400).contains(&most), "{most}");
    drop((first, clients));
    while served.ask(&["PING"]).as_deref() != Some("+PONG") {
        std::thread::yield_now();
    }
    let log = served.end();
    assert!(log.contains(&format!("at most {most} clients")), "{log}");
}

#[test]
fn lower_number_of_clients_is_respected() {
    let root = tempfile::tempdir().unwrap();
    let served = Limited::start(&root.path().join("data"), &["--max-clients", "2"]);
    let mut first = Client::connect(&served.address);
    assert_eq!(first.ask(&["PING"]).as_deref(), Some("+PONG"));
    let mut second = Client::connect(&served.address);
    assert_eq!(second.ask(&["PING"]).as_deref(), Some("+PONG"));
    let refused = Client::connect(&served.address).line();
    assert_eq!(refused.as_deref(), Some("-ERR max number of clients reached"));
    drop((first, second));
    while served.ask(&["PING"]).as_deref() != Some("+PONG") {
        std::thread::yield_now();
    }
    assert_eq!(served.end(), "");
}
