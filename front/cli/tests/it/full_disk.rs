//! The server on a real file system of 64 MiB that fills: tmpfs, and ext4 in a file.
//!
//! Each test mounts its file system in a mount namespace of its own (`unshare -m`) and runs itself
//! in it, so that nothing stays mounted. If mounting is not allowed, the test prints that it was
//! skipped. The tests of `crates/engine/tests/it/full_disk.rs` need no mount.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use archipelago_base::clock::SystemClock;

/// Environment variable with the mounted directory, in the process within the mount namespace.
const MOUNTED: &str = "ARCHIPELAGO_FULL_DISK_DIR";
/// Exit code of the shell if the file system could not be mounted.
const NOT_MOUNTED: i32 = 77;
const VALUE_BYTES: usize = 1000;
/// Number of SETs that are sent before their replies are read.
const PIPELINE: u32 = 64;
const PATIENCE_NS: u64 = 120_000_000_000;

/// Runs `body` in a directory with a file system of 64 MiB. The shell line `mount` makes and mounts
/// it, and `$0` is the directory.
fn on_small_disk(test: &str, mount: &str, body: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        return body(Path::new(&dir));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("({mount}) >/dev/null 2>&1 || exit {NOT_MOUNTED}; exec \"$@\"");
    let inside = dir.path().join("mounted");
    std::fs::create_dir(&inside).expect("a directory to mount at");
    let ended = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .arg(&inside)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("full_disk::{test}"), "--nocapture"])
        .env(MOUNTED, &inside)
        .status();
    match ended {
        Ok(status) if status.success() => {}
        Ok(status)
            if status.code() == Some(NOT_MOUNTED) || status.code() == Some(1) && !may_unshare() =>
        {
            println!("{test}: skipped, because a file system cannot be mounted here");
        }
        Ok(status) => panic!("{test} failed within its mount namespace: {status}"),
        Err(error) => println!("{test}: skipped, because unshare cannot be run: {error}"),
    }
}

fn may_unshare() -> bool {
    let status = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A running server, killed when dropped.
struct Server {
    child: Child,
    stream: BufReader<TcpStream>,
    /// Kept open, so that the child can still print.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(dir: &Path, sync: bool) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_archipelago"));
        command.arg("serve").arg("--dir").arg(dir.join("db")).args(["--listen", "127.0.0.1:0"]);
        if sync {
            command.arg("--sync");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next().expect("it says where it listens").expect("text");
        let address = line.rsplit(' ').next().expect("an address").to_owned();
        let stream = BufReader::new(TcpStream::connect(address).expect("it listens"));
        Self { child, stream, _lines: lines }
    }

    /// Kills the server with `SIGKILL`.
    fn kill(self) {
        drop(self);
    }

    fn send(&mut self, words: &[&[u8]]) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes).expect("it reads");
    }

    /// One reply: its line, or the bytes of a bulk string.
    fn reply(&mut self) -> Vec<u8> {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("it answers");
        let line = line.trim_end();
        match line.strip_prefix('$').map(|len| len.parse::<usize>()) {
            Some(Ok(len)) => {
                let mut bytes = vec![0; len + 2];
                self.stream.read_exact(&mut bytes).expect("it answers in full");
                bytes.truncate(len);
                bytes
            }
            _ => line.as_bytes().to_vec(),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> String {
        self.send(words);
        String::from_utf8_lossy(&self.reply()).into_owned()
    }

    fn set(&mut self, number: u32) -> String {
        self.ask(&[b"SET", &key(number), &value(number)])
    }

    /// Sends SETs of the keys from `from` on until one is refused. Returns which were accepted, and
    /// the first refusal.
    fn fill(&mut self, from: u32) -> (Vec<u32>, String) {
        let mut taken = Vec::new();
        let mut refusal = None;
        for first in (from..).step_by(PIPELINE as usize) {
            let numbers = first..first + PIPELINE;
            numbers.clone().for_each(|n| self.send(&[b"SET", &key(n), &value(n)]));
            for number in numbers {
                let reply = String::from_utf8_lossy(&self.reply()).into_owned();
                match reply.as_str() {
                    "+OK" => taken.push(number),
                    _ => drop(refusal.get_or_insert(reply)),
                }
            }
            if let Some(refusal) = refusal {
                return (taken, refusal);
            }
            assert!(first - from < 200_000, "the disk is never full");
        }
        unreachable!("the loop has no end");
    }

    #[track_caller]
    fn expect_values(&mut self, numbers: &[u32], what: &str) {
        for chunk in numbers.chunks(PIPELINE as usize) {
            chunk.iter().for_each(|number| self.send(&[b"GET", &key(*number)]));
            for number in chunk {
                assert!(self.reply() == value(*number), "{what}: key {number} has another value");
            }
        }
    }

    /// Sets keys from `from` on until `count` of them were accepted.
    fn set_eventually(&mut self, from: u32, count: u32) {
        let clock = SystemClock::shared();
        let start = clock.now_ns();
        let mut number = from;
        while number < from + count {
            let reply = self.set(number);
            if reply == "+OK" {
                number += 1;
                continue;
            }
            assert!(is_full(&reply), "{reply}");
            let info = || format!("{} of {count} writes were taken: {reply}", number - from);
            assert!(clock.now_ns() - start < PATIENCE_NS, "{}", info());
            clock.sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key:{number:08}").into_bytes()
}

/// Bytes that do not compress.
fn value(number: u32) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..VALUE_BYTES).map(|_| next()).collect()
}

fn is_full(reply: &str) -> bool {
    let tells = reply.starts_with("-MISCONF") && reply.contains("the disk of");
    tells && reply.contains("is full") && !reply.to_lowercase().contains("resume")
}

/// Fills the free space in one step, as another program would. A program that kept taking freed
/// space would also take the reserve when the database gives it up.
#[expect(clippy::disallowed_methods, reason = "another program's file")]
fn take_all_room(path: &Path) {
    use rustix::fs::{FallocateFlags, fallocate, statvfs};
    let file = std::fs::File::create(path).expect("a file");
    // The database may take some of the space between the two calls.
    for spare in (0..64).map(|step| step * (64 << 10)) {
        let room = statvfs(path).expect("a file system");
        let free = (room.f_bavail * room.f_frsize).saturating_sub(spare);
        if free == 0 || fallocate(&file, FallocateFlags::empty(), 0, free).is_ok() {
            return;
        }
    }
    panic!("the room cannot be taken");
}

#[expect(clippy::disallowed_methods, reason = "another program's file")]
fn give_room_back(path: &Path) {
    std::fs::remove_file(path).expect("it is there");
}

/// Goes through all states of a full disk, from the first SET to the last.
fn story(dir: &Path, sync: bool) {
    let mut server = Server::start(dir, sync);
    let (mut taken, refusal) = server.fill(0);
    assert!(is_full(&refusal), "{refusal}");
    assert!(taken.len() > 30_000, "{} values of 1 KB on 64 MiB", taken.len());
    server.expect_values(&taken, "full");
    server.kill();

    let mut server = Server::start(dir, sync);
    server.expect_values(&taken, "after a kill on a full disk");
    assert_eq!(server.ask(&[b"EXPIRE", &key(taken[0]), b"100000"]), ":1");
    let gone: Vec<u32> = taken.iter().copied().filter(|number| number % 3 > 0).collect();
    for numbers in gone.chunks(16) {
        let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
        let mut words: Vec<&[u8]> = vec![b"DEL"];
        words.extend(keys.iter().map(Vec::as_slice));
        assert_eq!(server.ask(&words), format!(":{}", numbers.len()), "DEL of {numbers:?}");
    }
    taken.retain(|number| number % 3 == 0);
    let more = gone.len() as u32 / 2;
    server.set_eventually(1_000_000, more);
    taken.extend(1_000_000..1_000_000 + more);
    server.expect_values(&taken, "after deletes and further writes");

    take_all_room(&dir.join("other"));
    let (further, refusal) = server.fill(2_000_000);
    assert!(refusal.starts_with("-MISCONF"), "{refusal}");
    taken.extend(further);
    let last = taken.pop().expect("there are keys");
    assert_eq!(server.ask(&[b"DEL", &key(last)]), ":1", "the reserve takes deletes");
    server.kill();
    let mut server = Server::start(dir, sync);
    server.expect_values(&taken, "after a kill on a disk that others have filled");
    give_room_back(&dir.join("other"));
    server.set_eventually(3_000_000, 100);
    taken.extend(3_000_000..3_000_100);
    server.expect_values(&taken, "with room again");
    assert_eq!(server.ask(&[b"RESUME"]), "+OK");
    server.kill();
}

const TMPFS: &str = "mount -t tmpfs -o size=64m none \"$0\"";
const EXT4: &str = "truncate -s 64M \"$0.img\" && mkfs.ext4 -q -m 0 \"$0.img\" && \
                    mount -o loop \"$0.img\" \"$0\"";

#[test]
fn server_survives_a_full_tmpfs() {
    on_small_disk("server_survives_a_full_tmpfs", TMPFS, |dir| story(dir, false));
}

#[test]
fn synced_server_survives_a_full_tmpfs() {
    on_small_disk("synced_server_survives_a_full_tmpfs", TMPFS, |dir| story(dir, true));
}

#[test]
fn server_survives_a_full_ext4() {
    on_small_disk("server_survives_a_full_ext4", EXT4, |dir| story(dir, false));
}

#[test]
fn synced_server_survives_a_full_ext4() {
    on_small_disk("synced_server_survives_a_full_ext4", EXT4, |dir| story(dir, true));
}
