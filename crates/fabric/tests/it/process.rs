//! Helper processes: this test program, started again as a node or a client that a test can stop
//! and kill.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use archipelago_base::Epoch;
use archipelago_base::codec::Reader;
use archipelago_fabric::{Batch, Node, NodeId, RemoteKey, Rights, Session};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::world::{Backwards, REGION_BYTES, provider, read, to, write};

const VARIABLE: &str = "ARCHIPELAGO_FABRIC_HELPER";

/// A process that is killed when this is dropped.
pub(crate) struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    pub(crate) fn start(words: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::helper", "--nocapture"])
            .env(VARIABLE, words.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// The next line of the helper, without the output of the test framework.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the helper ended");
            if let Some((_, said)) = line.split_once('@') {
                return said.trim().to_owned();
            }
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process, and waits until it has stopped.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Starts a node in a process of its own. Returns its address and the key of its region.
pub(crate) fn node(name: &str, address: &str, epoch: u64) -> (Helper, String, RemoteKey) {
    let mut helper = Helper::start(&["serve", name, address, &epoch.to_string()]);
    let said = helper.hear();
    let (address, key) = said.split_once(' ').unwrap();
    (helper, address.to_owned(), key_of(key))
}

pub(crate) fn key_of(hex: &str) -> RemoteKey {
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
    RemoteKey::decode(&mut Reader::new(&bytes)).unwrap()
}

pub(crate) fn hex_of(key: &RemoteKey) -> String {
    let mut bytes = Vec::new();
    key.encode(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tell(line: &str) {
    println!("@{line}");
}

/// Entry point of a helper process. As a test it does nothing.
#[test]
fn helper() {
    let Ok(told) = std::env::var(VARIABLE) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    match words[..] {
        ["serve", name, address, epoch] => serve(name, address, epoch.parse().unwrap()),
        ["count", name, address, key, rounds] => count(name, address, key, rounds.parse().unwrap()),
        ["write", name, address, key] => write_for_ever(name, address, key),
        ["hold", name, address, key] => hold(name, address, key),
        _ => panic!("no helper does {told}"),
    }
    std::process::exit(0);
}

fn serve(name: &str, address: &str, epoch: u64) {
    let provider = provider(name);
    let node = Node::new(NodeId(1), Epoch(epoch), Some(Box::new(Backwards))).unwrap();
    let region = node.allocate(REGION_BYTES, provider.atomic_path()).unwrap();
    let key = region.grant(Rights::ALL).unwrap();
    let listener = provider.serve(&node, address).unwrap();
    tell(&format!("{} {}", listener.address(), hex_of(&key)));
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "revoke" => {
                node.revoke(&key);
                tell("revoked");
            }
            other => panic!("a node does not {other}"),
        }
    }
}

/// Adds to one word by fetch-and-add and to another by compare-and-swap, after "go". Prints how
/// many compare-and-swaps found a value that this process did not write: other processes were
/// faster.
fn count(name: &str, address: &str, key: &str, rounds: u64) {
    let link = provider(name).connect(to(address, &Session::fresh())).wait().unwrap();
    let region = link.attach(&key_of(key)).wait().unwrap();
    tell("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "go");
    let one = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        fill(&mut batch);
        link.post(batch).wait().word(0).unwrap()
    };
    let mut seen = one(&|batch| _ = batch.fetch_add(region, 8, 0));
    let mut failed = 0_u64;
    for _ in 0..rounds {
        one(&|batch| _ = batch.fetch_add(region, 0, 1));
        loop {
            let old = one(&|batch| _ = batch.compare_swap(region, 8, seen, seen + 1));
            if old == seen {
                break;
            }
            failed += 1;
            seen = old;
        }
        seen += 1;
    }
    tell(&format!("done {failed}"));
}

/// Writes until the process is killed.
fn write_for_ever(name: &str, address: &str, key: &str) {
    let link = provider(name).connect(to(address, &Session::fresh())).wait().unwrap();
    let region = link.attach(&key_of(key)).wait().unwrap();
    for round in 0_u64.. {
        write(&*link, region, 64, &[round as u8; 4096]);
        if round == 100 {
            tell("writing");
        }
    }
}

/// Attaches, and detaches on request.
fn hold(name: &str, address: &str, key: &str) {
    let link = provider(name).connect(to(address, &Session::fresh())).wait().unwrap();
    let region = link.attach(&key_of(key)).wait().unwrap();
    read(&*link, region, 0, 8);
    tell("attached");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    link.detach(region);
    tell("detached");
    std::io::stdin().read_line(&mut line).unwrap();
}
