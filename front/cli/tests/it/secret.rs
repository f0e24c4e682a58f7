//! The secret of a cluster as operators use it: made, given to processes, forgotten and mixed up.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use archipelago_fabric::{Endpoints, Secret, endpoint};
use archipelago_pool::{Address, Pool, PoolOptions, Sharing};

use crate::cluster::{Process, until};
use crate::{archipelago, refused};

/// Runs a command. Returns whether it succeeded, and its two outputs.
fn run(args: &[&str]) -> (bool, String, String) {
    let output = archipelago().args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Makes a secret in `dir`. Returns the path of its file.
fn made(dir: &Path, name: &str) -> String {
    let file = dir.join(name).display().to_string();
    let (succeeded, said, error) = run(&["cluster", "secret", &file]);
    assert!(succeeded && said.contains(&file), "{said}{error}");
    file
}

#[test]
fn made_secret_is_private_and_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = made(dir.path(), "secret");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(refused(&["cluster", "secret", &file]).contains(&file));
    let manager = ["node", "manager", "--listen", "127.0.0.1:0", "--secret-file", &file];
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(refused(&manager).contains("chmod 600"));
    let missing = dir.path().join("missing").display().to_string();
    let manager = ["node", "manager", "--listen", "127.0.0.1:0", "--secret-file", &missing];
    assert!(refused(&manager).contains("archipelago cluster secret FILE"));
}

#[test]
fn node_without_a_secret_listens_on_loopback_only() {
    let error = refused(&["node", "manager", "--listen", "0.0.0.0:0"]);
    assert!(error.contains("without a secret") && error.contains("--secret-file FILE"), "{error}");
    let advertised = ["node", "memory", "--listen", "0.0.0.0:0", "--advertise", "10.0.0.1:7701"];
    assert!(refused(&advertised).contains("--secret-file FILE"));
    let mut manager =
        Process::start(archipelago().args(["node", "manager", "--listen", "127.0.0.1:0"]));
    let said = [manager.line(), manager.line(), manager.line()];
    assert!(said[2].contains("only processes of this machine"), "{said:?}");
}

#[test]
fn members_with_the_secret_find_each_other_and_others_get_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (made(dir.path(), "ours"), made(dir.path(), "theirs"));
    let mut manager =
        Process::start(
            archipelago()
                .args(["node", "manager", "--listen", "0.0.0.0:0", "--copies", "1"])
                .args(["--lease-ms", "3000", "--node-lease-ms", "2000", "--secret-file", &ours]),
        );
    let said = manager.line();
    let port = said.rsplit(':').next().unwrap().to_owned();
    let at = format!("127.0.0.1:{port}");
    let memory = ["node", "memory", "--size", "8MiB", "--block", "1MiB", "--manager", &at];
    let mut node = Process::start(archipelago().args(memory).args(["--secret-file", &ours]));
    assert!(node.line().starts_with("Memory node 1 lends"));
    let status = ["cluster", "status", "--manager", &at];
    until("the node has registered", || {
        let (succeeded, said, _) = run(&[&status[..], &["--secret-file", &ours]].concat());
        succeeded && said.lines().any(|line| line.starts_with("1 ") && line.contains(" up "))
    });
    // A client of the pool reaches manager and node with the secret. Without it the client does not
    // join.
    let mut options = PoolOptions::new(endpoint(&at).unwrap(), 5);
    options.patience = Duration::from_secs(60);
    let endpoints = Endpoints::new().with_secret(Some(Secret::read(Path::new(&ours)).unwrap()));
    let pool = Pool::join_over(options.clone(), endpoints).unwrap();
    let block = pool.allocate(Sharing::Owner).unwrap();
    pool.write(Address { block, offset: 0 }, b"coral").unwrap();
    assert_eq!(pool.read(Address { block, offset: 0 }, 5).unwrap(), b"coral");
    options.patience = Duration::from_millis(200);
    Pool::join(options).unwrap_err();
    let without = refused(&status);
    assert!(without.contains("this client has none"), "{without}");
    assert!(without.contains("--secret-file FILE"), "{without}");
    let other = refused(&[&status[..], &["--secret-file", &theirs]].concat());
    assert!(other.contains("different clusters"), "{other}");
    // A secret of the right cluster with another key, as after a damaged copy.
    let text = std::fs::read_to_string(&ours).unwrap();
    let last = if text.ends_with("0\n") { "1\n" } else { "0\n" };
    let damaged = dir.path().join("damaged");
    std::fs::copy(&ours, &damaged).unwrap();
    {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().write(true).open(&damaged).unwrap();
        file.write_all(format!("{}{last}", &text[..text.len() - 2]).as_bytes()).unwrap();
    }
    let damaged = damaged.display().to_string();
    let wrong = refused(&[&status[..], &["--secret-file", &damaged]].concat());
    assert!(wrong.contains("different secrets"), "{wrong}");
}

#[test]
fn cluster_that_others_can_reach_gets_a_secret() {
    let mut cluster = Process::start(
        archipelago()
            .args(["cluster", "up", "--manager", "0.0.0.0:0", "--managers", "1"])
            .args(["--memory", "1", "--size", "8MiB", "--block", "1MiB"]),
    );
    let first = cluster.line();
    let port = first.split_whitespace().nth(1).unwrap().rsplit(':').next().unwrap().to_owned();
    let at = format!("127.0.0.1:{port}");
    assert!(cluster.line().starts_with("Memory node 1"));
    assert!(cluster.line().contains("new secret"));
    let look = cluster.line();
    let file = look.rsplit_once("--secret-file ").unwrap().1.to_owned();
    let status = ["cluster", "status", "--manager", &at];
    assert!(refused(&status).contains("this client has none"));
    until("the node has registered", || {
        let (succeeded, said, _) = run(&[&status[..], &["--secret-file", &file]].concat());
        succeeded && said.lines().any(|line| line.starts_with("1 ") && line.contains(" up "))
    });
    cluster.end();
    assert!(!Path::new(&file).exists(), "the secret is removed with the cluster");
}
