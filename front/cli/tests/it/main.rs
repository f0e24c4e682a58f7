//! The program as a person uses it: serve, send commands, kill the server, look into its files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;
mod descriptors;
mod full_disk;
mod held_port;
mod log_dir;
mod memory;
mod metrics;
mod offload;
mod offload_all;
mod offload_hosts;
mod offload_jobs;
mod offload_memtables;
mod offload_volume;
mod port;
mod secret;
mod storage;
mod storage_repair;
mod store;
mod tiers;
mod values;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) fn archipelago() -> Command {
    Command::new(env!("CARGO_BIN_EXE_archipelago"))
}

/// A served store, which is killed when this is dropped.
struct Served {
    child: Child,
    address: String,
    /// Kept open, so that the child can still print.
    _lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Served {
    fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[])
    }

    fn start_with(dir: &Path, more: &[&str]) -> Self {
        let mut child = archipelago()
            .args(["serve", "--listen", "127.0.0.1:0", "--dir"])
            .arg(dir)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.rsplit(' ').next().unwrap().to_owned();
        let second = lines.next().unwrap().unwrap();
        assert!(second.starts_with("Connect with: redis-cli -h 127.0.0.1 -p "), "{second}");
        Self { child, address, _lines: lines }
    }

    /// Sends inline commands, and returns the expected number of bytes of replies.
    fn say(&self, commands: &str, expected: &str) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(commands.as_bytes()).unwrap();
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), expected);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn db(dir: &Path, args: &[&str]) -> Output {
    archipelago().arg("db").arg("--dir").arg(dir).args(args).output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Error text of a command that fails.
#[track_caller]
pub(crate) fn error_text(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Error text of `archipelago WORDS`, which fails.
#[track_caller]
pub(crate) fn refused(words: &[&str]) -> String {
    let output = archipelago().args(words).output().unwrap();
    assert!(!output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    error_text(&output)
}

/// A standard output or standard error on which every write fails for lack of space.
pub(crate) fn full_output() -> Stdio {
    std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let mut served = Served::start(&dir);
    served.say("SET reef coral\r\nINCR visits\r\nINCR visits\r\n", "+OK\r\n:1\r\n:2\r\n");
    let busy = db(&dir, &["get", "reef"]);
    assert!(!busy.status.success());
    let why = String::from_utf8_lossy(&busy.stderr);
    assert!(why.contains("LOCK") && why.contains(&served.child.id().to_string()), "{why}");
    let verified = text(&db(&dir, &["verify"]));
    assert!(verified.ends_with("all undamaged\n"), "beside the server: {verified}");
    served.signal(Signal::KILL);
    served.child.wait().unwrap();
    assert_eq!(text(&db(&dir, &["get", "reef"])), "coral\n");
    assert_eq!(text(&db(&dir, &["scan"])), "reef\tcoral\nvisits\t2\n");
    text(&db(&dir, &["put", "a\\x00b", "bytes"]));
    assert_eq!(text(&db(&dir, &["scan", "--prefix", "a", "--keys-only"])), "a\\x00b\n");
    text(&db(&dir, &["delete", "reef"]));
    text(&db(&dir, &["compact"]));
    assert!(text(&db(&dir, &["verify"])).ends_with("all undamaged\n"));
    let copy = root.path().join("copy");
    text(&db(&dir, &["checkpoint", copy.to_str().unwrap()]));
    assert_eq!(text(&db(&copy, &["scan"])), "a\\x00b\tbytes\nvisits\t2\n");
    assert!(text(&db(&dir, &["manifest", "dump"])).contains("create column family 0"));
    assert!(text(&db(&dir, &["stats"])).contains("write amplification"));
    let missing = db(&dir, &["get", "reef"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("there is no key \"reef\""));
}

#[test]
fn sigterm_stops_the_server_in_order_and_buckets_can_be_split() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let mut served = Served::start(&dir);
    served.say("MSET a 1 b 2 c 3 d 4\r\n", "+OK\r\n");
    served.signal(Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    text(&db(&dir, &["compact"]));
    text(&db(&dir, &["compact", "--from", "a", "--to", "c", "--force"]));
    text(&db(&dir, &["buckets", "merge", "0"]));
    let refused = db(&dir, &["buckets", "merge", "0"]);
    assert!(!refused.status.success());
    text(&db(&dir, &["buckets", "split", "0", "--at", "c"]));
    assert_eq!(text(&db(&dir, &["buckets"])).lines().count(), 3);
    assert_eq!(text(&db(&dir, &["scan"])), "a\t1\nb\t2\nc\t3\nd\t4\n");
}

#[test]
fn wrong_flags_are_explained_and_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let nothing = root.path().join("nothing");
    let missing = db(&nothing, &["scan"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("has no database"));
    assert!(!nothing.exists());
    let listen = archipelago()
        .args(["serve", "--listen", "nowhere", "--dir"])
        .arg(&nothing)
        .output()
        .unwrap();
    assert!(!listen.status.success());
    assert!(!nothing.exists());
    let settings = archipelago().args(["serve", "--print-settings"]).output().unwrap();
    let path = root.path().join("settings.toml");
    let mut file = text(&settings);
    assert!(file.contains("max_background_jobs = 2"), "{file}");
    file = file.replace("max_background_jobs = 2", "max_background_jobs = 0");
    #[expect(clippy::disallowed_methods, reason = "an operator's file")]
    std::fs::write(&path, file).unwrap();
    let wrong = archipelago()
        .args(["serve", "--dir"])
        .arg(&nothing)
        .arg("--config")
        .arg(&path)
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(why.contains("max_background_jobs is 0: it must be at least 1"), "{why}");
    assert!(!nothing.exists());
}

#[test]
fn tool_that_cannot_print_its_result_fails() {
    let root = tempfile::tempdir().unwrap();
    let secret = root.path().join("secret");
    let tools: [&[&str]; 2] =
        [&["serve", "--print-settings"], &["cluster", "secret", secret.to_str().unwrap()]];
    for tool in tools {
        let output = archipelago().args(tool).stdout(full_output()).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{tool:?}: {why}");
        assert!(why.contains("cannot write to standard output"), "{tool:?}: {why}");
    }
    assert!(secret.exists());
}

#[test]
fn exit_code_is_1_if_the_error_cannot_be_printed() {
    let root = tempfile::tempdir().unwrap();
    let output = archipelago()
        .args(["db", "get", "reef", "--dir"])
        .arg(root.path().join("nothing"))
        .stderr(full_output())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
}

#[test]
fn help_of_db_names_the_keyspace_of_the_default_family() {
    let help = text(&archipelago().args(["db", "--help"]).output().unwrap());
    // The width of the terminal decides where the lines of the text end.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "The family `default` is keyspace 0: Redis database 0 until a SWAPDB";
    assert!(help.contains(said), "{help}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test damages files behind the store's back")]
fn checkpoint_of_a_served_database_is_restored() {
    let root = tempfile::tempdir().unwrap();
    let (dir, base) = (root.path().join("data"), root.path().join("checkpoints"));
    let serve = |base: &Path| {
        let (dir, base) = (dir.to_str().unwrap(), base.to_str().unwrap());
        let args = ["serve", "--listen", "127.0.0.1:0", "--dir", dir, "--checkpoints", base];
        archipelago().args(args).output().unwrap()
    };
    let missing = String::from_utf8(serve(&base).stderr).unwrap();
    assert!(missing.contains("--checkpoints (create the directory first)"), "{missing}");
    assert!(!dir.exists(), "a refused start leaves nothing behind");
    std::fs::create_dir_all(dir.join("inside")).unwrap();
    let inside = String::from_utf8(serve(&dir.join("inside")).stderr).unwrap();
    assert!(inside.contains("lies in the directory of the data"), "{inside}");
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::create_dir(&base).unwrap();
    let served = Served::start_with(&dir, &["--checkpoints", base.to_str().unwrap()]);
    served.say("MSET a 1 b 2\r\nCHECKPOINT monday\r\nSET a 3\r\n", "+OK\r\n+OK\r\n+OK\r\n");
    let below = base.canonicalize().unwrap().join("tuesday");
    served.say(&format!("CHECKPOINT {}\r\n", below.display()), "+OK\r\n");
    for path in ["..", "../data2", "/tmp/elsewhere", ".", "x/../../y"] {
        served.say(&format!("CHECKPOINT {path}\r\n"), "-ERR a checkpoint is named by a path below");
    }
    served.say("CHECKPOINT monday\r\n", "-ERR ");
    drop(served);
    let (monday, copy) = (base.join("monday"), root.path().join("restored"));
    let told = text(&db(&copy, &["restore", monday.to_str().unwrap()]));
    assert!(told.starts_with("Restored "), "{told}");
    assert_eq!(text(&db(&copy, &["scan"])), "a\t1\nb\t2\n");
    text(&db(&copy, &["put", "c", "4"]));
    assert_eq!(text(&db(&monday, &["scan"])), "a\t1\nb\t2\n");
    // An existing database is never overwritten.
    let again = db(&copy, &["restore", below.to_str().unwrap()]);
    let why = String::from_utf8(again.stderr).unwrap();
    assert!(!again.status.success() && why.contains("move it away first"), "{why}");
    assert_eq!(text(&db(&copy, &["get", "c"])), "4\n");
    // A damaged checkpoint restores nothing.
    let mut paths = std::fs::read_dir(&below).unwrap().map(|entry| entry.unwrap().path());
    let table = paths.find(|path| path.extension().is_some_and(|end| end == "sst")).unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[10] ^= 1;
    std::fs::remove_file(&table).unwrap();
    std::fs::write(&table, bytes).unwrap();
    let target = root.path().join("never");
    let refused = db(&target, &["restore", below.to_str().unwrap()]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("nothing was restored"), "{why}");
    assert!(!target.exists());
    let nothing = db(&target, &["restore", root.path().join("nothing").to_str().unwrap()]);
    assert!(!nothing.status.success() && !target.exists());
}

#[test]
fn verify_names_damage_and_repair_saves_undamaged_data() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let served = Served::start(&dir);
    served.say("MSET a 1 b 2 c 3 d 4\r\n", "+OK\r\n");
    drop(served);
    text(&db(&dir, &["compact"]));
    text(&db(&dir, &["put", "e", "5"]));
    let clean = text(&db(&dir, &["repair", "--dry-run"]));
    assert!(clean.contains("Nothing is lost.") && clean.contains("--dry-run"), "{clean}");
    let fs = archipelago::env::local::LocalFs::new();
    let names = archipelago::env::FileSystem::list(&fs, &dir).unwrap();
    for name in names.iter().filter(|entry| entry.name.starts_with("MANIFEST-")) {
        archipelago::env::FileSystem::remove(&fs, &dir.join(&name.name)).unwrap();
    }
    let damaged = db(&dir, &["verify"]);
    assert!(!damaged.status.success());
    let why = String::from_utf8_lossy(&damaged.stderr).into_owned();
    assert!(why.contains("MANIFEST-") && why.contains("archipelago db repair"), "{why}");
    let report = text(&db(&dir, &["repair"]));
    let repaired = root.path().join("data-repaired");
    assert!(report.contains("STALE") && report.contains("data-repaired"), "{report}");
    assert_eq!(text(&db(&repaired, &["scan"])), "a\t1\nb\t2\nc\t3\nd\t4\ne\t5\n");
    assert!(text(&db(&repaired, &["verify"])).ends_with("all undamaged\n"));
    let again = db(&dir, &["repair"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("not empty"));
    let help = text(&db(&dir, &["repair", "--help"]));
    assert!(help.contains("Begin with --dry-run"), "{help}");
}
