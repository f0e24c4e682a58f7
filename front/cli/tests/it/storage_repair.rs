//! Repairs as operators see them: a node that dies for good, a drain, and the metrics of a cluster
//! that one command starts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::cluster::{Process, until};
use crate::{archipelago, text};

/// A manager that counts silent nodes as lost soon, and its storage nodes.
struct Cluster {
    address: String,
    nodes: Vec<Process>,
    _dir: tempfile::TempDir,
    _manager: Process,
}

impl Cluster {
    fn start(count: u64) -> Self {
        let flags = ["node", "manager", "--listen", "127.0.0.1:0", "--lost-after", "4"];
        let mut manager = Process::start(archipelago().args(flags));
        let said = manager.line();
        let address = said.rsplit("tcp:").next().unwrap().to_owned();
        let dir = tempfile::tempdir().unwrap();
        let nodes = (1..=count).map(|number| node(&address, dir.path(), number)).collect();
        let cluster = Self { address, nodes, _dir: dir, _manager: manager };
        until("the cluster is founded", || cluster.status().contains("root set: nodes"));
        cluster
    }

    fn command(&self, words: &[&str]) -> String {
        let words = [&["cluster"], words, &["--manager", &self.address]].concat();
        text(&archipelago().args(words).output().unwrap())
    }

    fn status(&self) -> String {
        self.command(&["status"])
    }

    fn db(&self, tool: &[&str]) -> String {
        let flags = ["db", "--store", &self.address, "--volume", "reef"];
        text(&archipelago().args([&flags[..], tool].concat()).output().unwrap())
    }

    /// Creates the volume, and fills it with tables.
    fn fill(&self) {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", &self.address];
        let mut owner = Process::start(archipelago().args(serve).args(["--volume", "reef"]));
        assert!(owner.line().starts_with("Archipelago serves volume reef"));
        owner.end();
        for number in 0..3 {
            self.db(&["put", &format!("reef:{number}"), "coral"]);
            self.db(&["compact"]);
        }
    }

    /// Number of chunks of a node, as the status shows it.
    fn chunks(&self, number: usize) -> usize {
        let status = self.status();
        let lines = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let is_row = |words: &Vec<&str>| {
            words.first() == Some(&number.to_string().as_str())
                && words.last().unwrap().contains("tcp:")
        };
        let mut rows = lines.filter(is_row);
        let row = rows.next().unwrap_or_else(|| panic!("node {number} in {status}"));
        // The column follows two sizes, which are two words each.
        row[8].parse().unwrap_or_else(|_| panic!("{row:?}"))
    }
}

fn node(manager: &str, dir: &Path, number: u64) -> Process {
    let dir = dir.join(format!("node{number}"));
    let number = number.to_string();
    let mut process = Process::start(
        archipelago()
            .args(["node", "storage", "--id", &number, "--domain", &format!("rack{number}")])
            .args(["--manager", manager, "--dir"])
            .arg(dir),
    );
    assert!(process.line().starts_with(&format!("Storage node {number} ")));
    process
}

#[test]
fn lost_node_is_repaired_and_a_drained_one_gives_its_chunks_away() {
    let mut cluster = Cluster::start(5);
    cluster.fill();
    let space = cluster.command(&["status", "--by-node"]);
    let quotas = space.lines().filter(|line| line.contains("of them for other files"));
    assert_eq!(quotas.count(), 5, "{space}");
    assert!(space.contains(" GARBAGE  LIMIT"), "{space}");
    assert_eq!(space.lines().filter(|line| line.contains("; metadata: ")).count(), 5, "{space}");
    assert!(!cluster.status().contains("of them for other files"));
    let chunks = |cluster: &Cluster, number: u64| cluster.chunks(number as usize);
    let lost = (1..=5).max_by_key(|number| chunks(&cluster, *number)).unwrap();
    assert!(chunks(&cluster, lost) > 0);
    cluster.nodes[lost as usize - 1].kill();
    until("the copies are made again", || {
        let status = cluster.status();
        status.contains(" lost ")
            && status.contains("Repair: nothing is left")
            && !status.contains("; 0 chunks")
    });
    let up: Vec<u64> = (1..=5).filter(|number| *number != lost).collect();
    let leaving = up.iter().copied().max_by_key(|number| chunks(&cluster, *number)).unwrap();
    let said = cluster.command(&["drain", &leaving.to_string(), "--no-wait"]);
    assert!(said.contains("is being emptied"), "{said}");
    until("the chunks have left", || chunks(&cluster, leaving) == 0);
    assert_eq!(cluster.db(&["get", "reef:2"]), "coral\n");
}

#[test]
fn cluster_up_names_the_metrics_of_every_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = Process::start(
        archipelago()
            .args(["cluster", "up", "--storage", "3", "--manager", "127.0.0.1:0"])
            .args(["--metrics", "127.0.0.1:0", "--dir"])
            .arg(dir.path()),
    );
    let mut urls = Vec::new();
    loop {
        let line = up.line();
        if let Some(rest) = line.strip_prefix("Metrics of ") {
            urls.push(rest.to_owned());
        }
        if line.starts_with("Ctrl-C") {
            break;
        }
    }
    assert_eq!(urls.len(), 4, "{urls:?}");
    assert!(urls[0].starts_with("Manager"), "{urls:?}");
    for (url, wanted) in urls.iter().zip(["storage_cluster_repair_known", "storage_node_chunks"]) {
        let address = url.split("http://").nth(1).unwrap().trim_end_matches("/metrics");
        let mut stream = TcpStream::connect(address).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: reef\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut body = String::new();
        stream.read_to_string(&mut body).unwrap();
        assert!(body.contains(wanted), "{url}: {body}");
    }
    let rest = up.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
    let taken = archipelago()
        .args(["cluster", "up", "--storage", "1", "--metrics", "nowhere"])
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && why.contains("--metrics nowhere"), "{why}");
}
