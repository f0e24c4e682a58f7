//! A server with a budget of 64 MiB stays below 128 MiB, whatever clients ask of it.
//!
//! Each test puts the server into a control group of 128 MiB without swap, in which the kernel
//! kills a server that needs more. If no group can be made, the test compares the peak of its
//! resident memory with 128 MiB. The tests print which of the two they did.

mod group;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use self::group::Group;

/// Bytes that the process may take.
const LIMIT_BYTES: u64 = 128 << 20;

/// A server, which is killed when this is dropped, before its group is removed.
struct Bounded {
    child: Child,
    address: String,
    group: Option<Group>,
}

impl Bounded {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        // A group counts the files of a file system in memory as memory of the process.
        const TMPFS: u64 = 0x0102_1994;
        let is_on_disk = rustix::fs::statfs(dir).unwrap().f_type as u64 != TMPFS;
        let group = is_on_disk.then(|| Group::make(LIMIT_BYTES)).flatten();
        let enter = group.as_ref().map_or_else(String::new, Group::enter);
        let mut child = Command::new("sh")
            .args(["-c", &format!("{enter} exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_archipelago"))
            .args(["serve", "--listen", "127.0.0.1:0", "--dir"])
            .arg(dir)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        let address = first.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, address, group }
    }

    /// Runs `client` on a thread for each number below `clients`.
    fn load(&self, clients: u64, client: impl Fn(&mut Client, u64) + Sync) {
        std::thread::scope(|scope| {
            for number in 0..clients {
                let client = &client;
                scope.spawn(move || client(&mut Client::connect(&self.address), number));
            }
        });
    }

    /// Checks that the server has stayed below the limit.
    fn check(&mut self, load: &str) {
        let peak_bytes = peak_bytes(self.child.id());
        assert!(self.child.try_wait().unwrap().is_none(), "{load}: the server has ended");
        match &self.group {
            Some(group) => {
                let version = group.version();
                println!("{load}: in a control group of {version}, resident peak {peak_bytes}");
                assert_eq!(group.kills(), 0, "{load}: the kernel has killed a process");
            }
            None => {
                println!("{load}: without a control group, resident peak {peak_bytes}");
                assert!(peak_bytes < LIMIT_BYTES, "{load}: {peak_bytes} bytes were resident");
            }
        }
    }

    /// A figure of the section Memory of INFO.
    fn info(&self, name: &str) -> u64 {
        let text = Client::connect(&self.address).ask(&[b"INFO", b"memory"]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

/// Highest resident memory of a process, including the pages of its program.
pub(crate) fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

impl Drop for Bounded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that repeats commands that the server refuses because memory is short.
struct Client {
    address: String,
    stream: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the server lives");
        Self { address: address.to_owned(), stream: BufReader::new(stream) }
    }

    fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// One reply: the status, the bytes of a value, or the bytes of all values of a list.
    fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let count = |text: &str| text.parse::<usize>().map_err(io::Error::other);
        match line.split_at(1) {
            ("$", len) => {
                let mut value = vec![0; count(len)? + 2];
                self.stream.read_exact(&mut value)?;
                value.truncate(value.len() - 2);
                Ok(value)
            }
            ("*", len) => {
                let values: io::Result<Vec<_>> = (0..count(len)?).map(|_| self.reply()).collect();
                Ok(values?.concat())
            }
            ("-", error) => Err(io::Error::other(error.to_owned())),
            (_, status) => Ok(status.as_bytes().to_vec()),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.send(words)?;
        self.reply()
    }

    /// The reply to a command that may be repeated. A server without memory for it refuses it or
    /// closes the connection, and this client tries again.
    fn insist(&mut self, words: &[&[u8]]) -> Vec<u8> {
        loop {
            match self.ask(words) {
                Ok(reply) => return reply,
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    let text = error.to_string();
                    assert!(text.starts_with("OOM "), "{text}");
                }
                // The server closed the connection.
                Err(_) => {}
            }
            *self = Self::connect(&self.address);
        }
    }
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| byte()).collect()
}

/// A directory on the disk of the build, not in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn writes_of_1_kb_stay_below_128_mib_with_64_mib() {
    const IN_FLIGHT: usize = 128;
    let dir = directory();
    let mut server = Bounded::start(dir.path(), &["--memory-mib", "64"]);
    server.load(8, |client, writer| {
        let value = noise(writer + 1, 1024);
        for round in 0..100 {
            let key = |number: usize| format!("small:{writer}:{round}:{number}").into_bytes();
            let keys: Vec<Vec<u8>> = (0..IN_FLIGHT).map(key).collect();
            keys.iter().for_each(|key| client.send(&[b"SET", key, &value]).unwrap());
            keys.iter().for_each(|_| assert_eq!(client.reply().unwrap(), b"OK"));
            let first = format!("small:{writer}:{}:0", round / 2).into_bytes();
            assert_eq!(client.ask(&[b"GET", &first]).unwrap(), value);
        }
    });
    server.check("8 clients with values of 1 KB");
    assert_eq!(server.info("maxmemory"), 64 << 20);
    let parts = ["maxmemory_budget", "maxmemory_uncounted"].map(|name| server.info(name));
    assert_eq!(parts, [48 << 20, 16 << 20]);
    assert_eq!(server.info("maxmemory_memtable"), 24 << 20);
    assert_eq!(server.info("maxmemory_block_cache"), 24 << 20);
}

#[test]
fn clients_with_1_mb_values_stay_below_128_mib_with_64_mib() {
    let dir = directory();
    let mut server = Bounded::start(dir.path(), &["--memory-mib", "64"]);
    server.load(50, |client, writer| {
        let value = noise(writer + 1, 1 << 20);
        for round in 0..3 {
            let key = format!("large:{writer}:{round}").into_bytes();
            assert_eq!(client.insist(&[b"SET", &key, &value]), b"OK");
            assert_eq!(client.insist(&[b"GET", &key]), value, "another value");
        }
        let keys: Vec<Vec<u8>> =
            (0..3).map(|round| format!("large:{writer}:{round}").into_bytes()).collect();
        let words: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
        assert!(client.insist(&words) == value.repeat(3), "other values");
    });
    server.check("50 clients with values of 1 MB");
}

#[test]
fn server_takes_half_of_what_its_control_group_allows() {
    let dir = directory();
    let server = Bounded::start(dir.path(), &[]);
    let allowed = match &server.group {
        // The limit belongs to the group above that of the server.
        Some(_) => LIMIT_BYTES,
        None => archipelago_env::host::memory_bytes().unwrap(),
    };
    println!("in a control group: {}", server.group.is_some());
    assert_eq!(server.info("maxmemory"), allowed / 2);
}
