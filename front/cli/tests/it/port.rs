//! Tests of the listening port: the server refuses unsafe or impossible starts and leaves no files
//! behind, and it serves only the clients that it should.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cluster::Process;
use crate::{archipelago, error_text, full_output};

/// A command `serve` of a database in `dir`, which does not exist.
fn serve(dir: &Path, args: &[&str]) -> Command {
    let mut command = archipelago();
    command.arg("serve").arg("--dir").arg(dir).args(args);
    command
}

fn write(path: &Path, text: &str) {
    #[expect(clippy::disallowed_methods, reason = "an operator's file")]
    std::fs::write(path, text).unwrap();
}

#[test]
fn refused_start_leaves_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("settings.toml");
    let dir = root.path().join("deep/data");
    let device = root.path().join("device");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = ["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let tiers = |create: &str| format!("[[tiers]]\npath = \"{}\"\n{create}", device.display());
    let unknown = "[families.unknown]\nbuckets = 2\n";
    for (args, settings, why) in [
        (&["--listen", &address][..], "", "choose another with --listen HOST:PORT"),
        (&["--listen", "127.0.0.1:0", "--clients-max", "0"], "", "clients_max is 0"),
        (&["--port", "7000"], "", "--listen 127.0.0.1:7000"),
        (&["--bind", "10.0.0.1"], "", "--listen 10.0.0.1:6379"),
        (&["--listen", "0.0.0.0:0"], "", "--password-file FILE"),
        (&["--requirepass", "sesame"], "", "give --password-file FILE"),
        (&["--listen", "127.0.0.1:0", "--password-file", "/missing/file"], "", "/missing/file"),
        (
            &["--listen", "127.0.0.1:0", "--tls-cert", "/missing/c", "--tls-key", "/missing/k"],
            "",
            "/missing/c cannot be used",
        ),
        (&["--listen", "127.0.0.1:0", "--tls-cert", "/missing/c"], "", "--tls-key"),
        (&config, unknown, "\"unknown\", which does not exist"),
        (&config, "[database]\nbackground = \"manual\"\n", "unknown field `background`"),
        (&config, &tiers(""), "create = true"),
        (&config, &format!("{}{unknown}", tiers("create = true\n")), "\"unknown\", which"),
    ] {
        write(&file, settings);
        let why_not = error_text(&serve(&dir, args).output().unwrap());
        assert!(why_not.contains(why), "{args:?}: {why_not}");
        let names = root.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["settings.toml"], "{args:?}");
    }
}

#[test]
fn cluster_up_names_the_taken_port_and_starts_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let up = |args: &[&str]| {
        let all = ["cluster", "up", "--size", "16MiB", "--memory", "1", "--compute", "1"];
        error_text(&archipelago().args(all).args(args).output().unwrap())
    };
    let manager = up(&["--manager", &address, "--resp", "127.0.0.1:0"]);
    let named = format!("the manager cannot listen on {address}");
    assert!(manager.contains(&named) && manager.contains("--manager HOST:PORT"), "{manager}");
    let resp = up(&["--manager", "127.0.0.1:0", "--resp", &address]);
    let named = format!("compute node 1 cannot listen on {address}");
    assert!(resp.contains(&named) && resp.contains("--resp HOST:PORT"), "{resp}");
}

/// A served store and its address.
fn started(command: &mut Command) -> (Process, String) {
    let mut process = Process::start(command);
    let address = process.line().rsplit(' ').next().unwrap().to_owned();
    (process, address)
}

/// The reply lines to `commands`, which end with QUIT.
fn ask(address: &str, commands: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    replies
}

const UNKNOWN: &str = "GET reef\r\nAUTH open\r\nQUIT\r\n";
const UNKNOWN_IS_TOLD: &str = "-NOAUTH Authentication required.\r\n\
     -WRONGPASS invalid username-password pair or user is disabled.\r\n+OK\r\n";
const KNOWN: &str = "AUTH open-sesame\r\nPING\r\nQUIT\r\n";

#[test]
fn password_comes_from_a_file_or_the_environment() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("password");
    write(&file, "open-sesame\n");
    // Then an address that other machines reach is allowed.
    let mut by_file = serve(&root.path().join("a"), &["--listen", "0.0.0.0:0"]);
    by_file.arg("--password-file").arg(&file);
    let mut by_variable = serve(&root.path().join("b"), &["--listen", "127.0.0.1:0"]);
    by_variable.env("ARCHIPELAGO_PASSWORD", "open-sesame");
    for command in [&mut by_file, &mut by_variable] {
        let (mut process, address) = started(command);
        let address = address.replace("0.0.0.0", "127.0.0.1");
        assert_eq!(ask(&address, UNKNOWN), UNKNOWN_IS_TOLD);
        assert_eq!(ask(&address, KNOWN), "+OK\r\n+PONG\r\n+OK\r\n");
        process.end();
    }
    by_file.env("ARCHIPELAGO_PASSWORD", "open-sesame");
    assert!(error_text(&by_file.output().unwrap()).contains("two passwords"));
}

#[test]
fn cluster_hands_its_password_to_compute_nodes() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("password");
    write(&file, "open-sesame");
    let up = || {
        let mut up = archipelago();
        up.args(["cluster", "up", "--size", "16MiB", "--block", "1MiB", "--partitions", "64"])
            .args(["--memory", "1", "--compute", "1", "--manager", "127.0.0.1:0", "--resp"]);
        up
    };
    let open = error_text(&up().arg("0.0.0.0:0").output().unwrap());
    assert!(open.contains("--password-file FILE"), "{open}");
    let mut process = Process::start(up().arg("127.0.0.1:0").arg("--password-file").arg(&file));
    let node = (0..3).map(|_| process.line()).last().unwrap();
    let address = node.split_whitespace().nth(3).unwrap().to_owned();
    assert_eq!(ask(&address, UNKNOWN), UNKNOWN_IS_TOLD);
    assert_eq!(ask(&address, KNOWN), "+OK\r\n+PONG\r\n+OK\r\n");
    process.end();
}

#[test]
fn tls_is_spoken_with_a_certificate_and_key() {
    let root = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("{}/../resp/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let (certificate, key) = (file("server.pem"), file("server-key.pem"));
    let mut command = serve(&root.path().join("data"), &["--listen", "127.0.0.1:0"]);
    command.args(["--tls-cert", &certificate, "--tls-key", &key]);
    let (mut process, address) = started(&mut command);
    assert!(process.line().ends_with(" --tls --cacert CA"));
    let mut plain = TcpStream::connect(&address).unwrap();
    plain.write_all(b"PING\r\n").unwrap();
    let mut reply = Vec::new();
    // The end of the stream, or a reset because the server did not read everything.
    let _ended = plain.read_to_end(&mut reply);
    // An alert of TLS that says that this is no handshake.
    assert_eq!(reply.first(), Some(&21), "{reply:?}");
    process.end();
}

#[test]
fn http_is_logged_once_in_a_storm() {
    let root = tempfile::tempdir().unwrap();
    let mut child = serve(&root.path().join("data"), &["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut first).unwrap();
    let address = first.trim().rsplit(' ').next().unwrap().to_owned();
    for _request in 0..50 {
        let mut browser = TcpStream::connect(&address).unwrap();
        browser.write_all(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nFLUSHALL\r\n").unwrap();
        let mut reply = String::new();
        browser.read_to_string(&mut reply).unwrap();
        assert!(reply.contains("not HTTP"), "{reply}");
    }
    let mut client = TcpStream::connect(&address).unwrap();
    client.write_all(b"SHUTDOWN\r\n").unwrap();
    let ended = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("HTTP was refused"), "{log}");
}

#[test]
fn server_runs_on_if_its_log_cannot_be_written() {
    let root = tempfile::tempdir().unwrap();
    let mut command = serve(&root.path().join("data"), &["--listen", "127.0.0.1:0"]);
    let (mut process, address) = started(command.stderr(full_output()));
    // The server logs this request.
    let mut scanner = TcpStream::connect(&address).unwrap();
    scanner.write_all(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut reply = String::new();
    scanner.read_to_string(&mut reply).unwrap();
    assert!(reply.contains("not HTTP"), "{reply}");
    assert_eq!(ask(&address, "PING\r\nQUIT\r\n"), "+PONG\r\n+OK\r\n");
    process.end();
}
