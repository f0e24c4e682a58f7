//! Metrics of real processes during load: every scrape follows the format, agrees with the load,
//! and has what the catalogue promises.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use archipelago_base::clock::SystemClock;
use archipelago_metrics::catalogue::groups;
use archipelago_metrics::parser::{Scrape, parse};

use crate::archipelago;
use crate::cluster::{Process, until};
use crate::held_port::HeldPort;

/// Reads lines of a process up to the one that says where its metrics are. Returns their address.
pub(crate) fn metrics_of(process: &mut Process) -> String {
    loop {
        let line = process.line();
        if let Some((_, rest)) = line.split_once("Metrics for Prometheus: http://") {
            return rest.strip_suffix("/metrics").expect("the path").to_owned();
        }
    }
}

/// One scrape, as Prometheus makes it.
pub(crate) fn scrape(address: &str) -> Scrape {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(
            b"GET /metrics HTTP/1.1\r\nHost: reef\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n",
        )
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    parse(body).unwrap_or_else(|why| panic!("{why}\n{body}"))
}

/// Scrapes until `done` is true of a scrape. Figures are collected ten times a second at most.
fn scrape_until(address: &str, what: &str, done: impl Fn(&Scrape) -> bool) -> Scrape {
    let mut last = scrape(address);
    until(what, || {
        let is_done = done(&last);
        if !is_done {
            SystemClock::shared().sleep(Duration::from_millis(100));
            last = scrape(address);
        }
        is_done
    });
    last
}

/// Asserts that a scrape has every metric of these groups whose name contains `part`, apart from
/// the `optional` ones.
fn assert_complete(scrape: &Scrape, titles: &[&str], part: &str, optional: &[&str]) {
    let wanted = groups().into_iter().filter(|group| titles.contains(&group.title));
    for metric in wanted.flat_map(|group| group.metrics) {
        let (name, is_known) = (metric.name, scrape.families.contains_key(metric.name));
        assert!(is_known || !name.contains(part) || optional.contains(&name), "{name} is missing");
    }
}

/// Asserts that the scrape has metrics of the catalogue alone.
fn assert_described(scrape: &Scrape) {
    let known: BTreeSet<&str> =
        groups().into_iter().flat_map(|group| group.metrics).map(|metric| metric.name).collect();
    for (name, family) in &scrape.families {
        assert!(known.contains(name.as_str()), "{name} is not in the catalogue");
        assert!(family.help.is_some(), "{name} has no help");
    }
}

/// A server of a database in `dir` with metrics at `metrics`. Returns its address, and that of its
/// metrics.
fn serve(dir: &std::path::Path, metrics: &str, more: &[&str]) -> (Process, String, String) {
    let mut command = archipelago();
    command.args(["serve", "--listen", "127.0.0.1:0", "--metrics", metrics, "--dir"]);
    let mut process = Process::start(command.arg(dir).args(more));
    let address = process.line().rsplit(' ').next().unwrap().to_owned();
    let metrics = metrics_of(&mut process);
    (process, address, metrics)
}

/// Sends inline commands until `stop`, each with its reply of one line. Counts them.
fn load(address: &str, stop: &AtomicBool, sent: &AtomicU64) {
    set_keys(address, sent, |_| !stop.load(Ordering::SeqCst));
}

/// Sets 100 keys in turn while `goes_on` is true of the number of commands. Counts them.
fn set_keys(address: &str, sent: &AtomicU64, goes_on: impl Fn(u64) -> bool) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut number = 0_u64;
    let mut reply = [0; 256];
    while goes_on(number) {
        let (key, value) = (number % 100, "v".repeat(200));
        stream.write_all(format!("SET key:{key} {value}\r\n").as_bytes()).unwrap();
        let read = stream.read(&mut reply).unwrap();
        assert_eq!(&reply[..read], b"+OK\r\n");
        sent.fetch_add(1, Ordering::SeqCst);
        number += 1;
    }
}

/// Commands of one scrape.
fn calls(scrape: &Scrape, command: &str) -> f64 {
    let name = "archipelago_redis_command_duration_seconds_count";
    scrape.value(name, &[("command", command)]).unwrap_or(0.0)
}

#[test]
fn served_database_is_scraped_during_load() {
    let root = tempfile::tempdir().unwrap();
    let port = HeldPort::take();
    let (mut server, address, metrics) = serve(&root.path().join("data"), &port.address(), &[]);
    assert_eq!(metrics, port.address());
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    // The number of keys is estimated once a minute, and exactly only for few records.
    set_keys(&address, &sent, |number| number < 100);
    let first = scrape(&metrics);
    assert_eq!(first.value("archipelago_engine_keys", &[("family", "default")]), Some(100.0));
    std::thread::scope(|scope| {
        scope.spawn(|| load(&address, &stop, &sent));
        let mut last: Option<Scrape> = None;
        for _ in 0..8 {
            let before = sent.load(Ordering::SeqCst) as f64;
            SystemClock::shared().sleep(Duration::from_millis(120));
            let now = scrape(&metrics);
            assert_described(&now);
            assert!(calls(&now, "set") >= before, "a scrape is at most 100 ms old");
            if let Some(last) = &last {
                assert_counters_grow(last, &now);
            }
            last = Some(now);
        }
        stop.store(true, Ordering::SeqCst);
    });
    let sent = sent.load(Ordering::SeqCst) as f64;
    let found = scrape_until(&metrics, "all calls are counted", |now| calls(now, "set") == sent);
    assert_eq!(found.value("archipelago_engine_records_written_total", &[]), Some(sent));
    let labels = [("role", "serve"), ("node", "")];
    assert_eq!(found.value("archipelago_process_info", &labels), Some(1.0));
    let optional = [
        "archipelago_engine_hottest_bucket_load",
        "archipelago_engine_space_allowed_bytes",
        "archipelago_engine_space_debt_bytes",
        "archipelago_engine_space_bound_exceeded",
        "archipelago_redis_error_replies",
    ];
    assert_complete(&found, &["Process and endpoint", "Redis server", "Engine"], "", &optional);
    let rest = server.end();
    assert!(rest.ends_with("Stopped\n"), "{rest}");
    assert!(TcpStream::connect(&metrics).is_err(), "the port is closed");
}

/// Asserts that no counter and no histogram shrank between two scrapes.
fn assert_counters_grow(before: &Scrape, after: &Scrape) {
    for sample in &before.samples {
        let stem = sample.name.trim_end_matches("_total");
        let is_counter = sample.name.ends_with("_total")
            && before.families.get(stem).is_some_and(|family| family.kind == "counter");
        if is_counter || sample.name.ends_with("_bucket") || sample.name.ends_with("_count") {
            let labels: Vec<(&str, &str)> =
                sample.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let now = after.value(&sample.name, &labels);
            assert!(now.is_some_and(|now| now >= sample.value), "{sample:?} became {now:?}");
        }
    }
}

#[test]
fn errors_and_wrong_passwords_are_counted_by_code() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("password");
    #[expect(clippy::disallowed_methods, reason = "an operator's file")]
    std::fs::write(&file, "coral\n").unwrap();
    let more = ["--password-file", file.to_str().unwrap()];
    let (_server, address, metrics) = serve(&root.path().join("data"), "127.0.0.1:0", &more);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET reef\r\nAUTH wrong\r\n").unwrap();
    let mut replies = [0; 512];
    let mut got = 0;
    while replies[..got].iter().filter(|byte| **byte == b'\n').count() < 2 {
        got += stream.read(&mut replies[got..]).unwrap();
    }
    let found = scrape_until(&metrics, "two errors are counted", |now| {
        now.sum("archipelago_redis_error_replies_total") >= 2.0
    });
    let code = |code| found.value("archipelago_redis_error_replies_total", &[("code", code)]);
    assert_eq!((code("NOAUTH"), code("WRONGPASS")), (Some(1.0), Some(1.0)));
    assert_eq!(found.value("archipelago_redis_denied_authentications_total", &[]), Some(1.0));
}

#[test]
fn taken_port_for_metrics_leaves_no_database() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let mut command = archipelago();
    command.args(["serve", "--listen", "127.0.0.1:0", "--metrics", &port, "--dir"]).arg(&dir);
    let refused = command.output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("--metrics") && why.contains(&port), "{why}");
    assert!(!dir.exists());
    let wrong = archipelago().args(["node", "memory", "--metrics", "9121"]).output().unwrap();
    let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && why.contains("HOST:PORT"), "{why}");
}

/// A manager and its address, with that of its metrics. It declares members dead only after
/// seconds, because a busy machine may stop one for long.
fn manager() -> (Process, String, String) {
    let mut process = Process::start(
        archipelago()
            .args(["node", "manager", "--listen", "127.0.0.1:0", "--copies", "2"])
            .args(["--lease-ms", "4000", "--node-lease-ms", "3000", "--partitions", "16"])
            .args(["--metrics", "127.0.0.1:0"]),
    );
    let address = process.line().rsplit("tcp:").next().unwrap().to_owned();
    let metrics = metrics_of(&mut process);
    (process, address, metrics)
}

/// A memory node, and the address of its metrics.
fn memory(id: &str, manager: &str) -> (Process, String) {
    let mut process = Process::start(
        archipelago()
            .args(["node", "memory", "--size", "64MiB", "--block", "1MiB", "--id", id])
            .args(["--manager", manager, "--metrics", "127.0.0.1:0"]),
    );
    let metrics = metrics_of(&mut process);
    (process, metrics)
}

#[test]
fn nodes_of_a_cluster_are_scraped_during_load() {
    let (mut office, manager_at, manager_metrics) = manager();
    let (mut first, first_metrics) = memory("1", &manager_at);
    let (_second, second_metrics) = memory("2", &manager_at);
    let mut compute = Process::start(
        archipelago().args(["serve", "--engine", "flexkv", "--manager", &manager_at]).args([
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
        ]),
    );
    let address = compute.line().rsplit(' ').next().unwrap().to_owned();
    let compute_metrics = metrics_of(&mut compute);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| load(&address, &stop, &sent));
        for _ in 0..5 {
            SystemClock::shared().sleep(Duration::from_millis(150));
            for at in [&manager_metrics, &first_metrics, &second_metrics, &compute_metrics] {
                assert_described(&scrape(at));
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    let node = scrape_until(&first_metrics, "the node has blocks and a manager", |now| {
        now.sum("archipelago_memory_node_blocks_used") >= 1.0
            && now.value("archipelago_memory_node_manager_silence_seconds", &[]).is_some()
    });
    let labels = [("role", "memory"), ("node", "1")];
    assert_eq!(node.value("archipelago_process_info", &labels), Some(1.0));
    assert_eq!(node.value("archipelago_memory_node_blocks_limit", &[]), Some(64.0));
    assert!(node.sum("archipelago_fabric_links") >= 1.0);
    let optional = ["archipelago_memory_node_refusals", "archipelago_memory_node_database_bytes"];
    assert_complete(&node, &["Pool of memory"], "memory_node", &optional);
    assert_complete(&node, &["Pool of memory"], "fabric", &[]);
    let pool = scrape_until(&manager_metrics, "two nodes are up", |now| {
        now.sum("archipelago_pool_node_up") == 2.0
    });
    assert_eq!(pool.value("archipelago_pool_manager_acting", &[]), Some(1.0));
    assert_complete(&pool, &["Pool of memory"], "_pool_", &[]);
    assert_complete(&pool, &["FlexKV"], "flexkv_store", &[]);
    assert_eq!(pool.value("archipelago_flexkv_store_partitions", &[]), Some(16.0));
    let store = scrape(&compute_metrics);
    assert_complete(&store, &["FlexKV"], "flexkv_node", &[]);
    assert_eq!(store.value("archipelago_flexkv_node_joined", &[]), Some(1.0));
    let writes = [("operation", "write")];
    let counted = store.value("archipelago_flexkv_node_operations_total", &writes);
    assert!(counted.is_some_and(|counted| counted > 0.0), "{counted:?}");
    let fast_sets = [("operation", "fast_set")];
    assert!(store.value("archipelago_flexkv_node_operations_total", &fast_sets).is_some());
    // The manager notices that a node is gone, and the figures say so.
    first.kill();
    scrape_until(&manager_metrics, "node 1 alone is silent", |now| {
        let is_up = |node| now.value("archipelago_pool_node_up", &[("node", node)]);
        (is_up("1"), is_up("2")) == (Some(0.0), Some(1.0))
    });
    drop(compute);
    assert!(office.end().contains("Stopped"));
}

#[test]
fn executor_is_scraped_and_listed_with_its_address_and_build() {
    let share = tempfile::tempdir().unwrap();
    let (mut office, manager_at, manager_metrics) = manager();
    let mut executor = Process::start(
        archipelago()
            .args(["node", "executor", "--slots", "3", "--manager", &manager_at])
            .args(["--metrics", "127.0.0.1:0", "--share"])
            .arg(share.path()),
    );
    let metrics = metrics_of(&mut executor);
    let now = scrape(&metrics);
    assert_described(&now);
    assert_complete(&now, &["Executors"], "executor", &["archipelago_executor_jobs_failed"]);
    assert_eq!(now.value("archipelago_executor_slots", &[]), Some(3.0));
    assert_eq!(now.value("archipelago_executor_jobs_done_total", &[]), Some(0.0));
    until("the manager lists the executor", || {
        let asked = archipelago().args(["cluster", "status", "--manager", &manager_at]).output();
        let text = String::from_utf8_lossy(&asked.unwrap().stdout).into_owned();
        text.contains("(process ") && text.contains("  build ")
    });
    let scheduler = scrape_until(&manager_metrics, "the scheduler has the slots", |now| {
        now.value("archipelago_scheduler_executor_slots", &[]) == Some(3.0)
    });
    assert_described(&scheduler);
    assert_complete(&scheduler, &["Scheduler of jobs"], "", &[]);
    assert_eq!(scheduler.value("archipelago_scheduler_executors", &[]), Some(1.0));
    assert_eq!(scheduler.sum("archipelago_scheduler_waiting_jobs"), 0.0);
    assert!(executor.end().contains("0 jobs succeeded"));
    assert!(office.end().contains("Stopped"));
}

/// A storage node with its data below `root`, and the address of its metrics.
fn storage(number: u64, manager: &str, root: &std::path::Path) -> (Process, String) {
    let (id, domain) = (number.to_string(), format!("rack{number}"));
    let mut command = archipelago();
    command.args(["node", "storage", "--id", &id, "--domain", &domain, "--manager", manager]);
    command.args(["--metrics", "127.0.0.1:0", "--dir"]).arg(root.join(&domain));
    let mut process = Process::start(&mut command);
    let metrics = metrics_of(&mut process);
    (process, metrics)
}

#[test]
fn storage_nodes_and_a_volume_are_scraped_during_load() {
    let root = tempfile::tempdir().unwrap();
    let (mut office, manager_at, manager_metrics) = manager();
    let mut nodes: Vec<(Process, String)> =
        (1..=3).map(|number| storage(number, &manager_at, root.path())).collect();
    let mut command = archipelago();
    command.args(["serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    command.args(["--store", &manager_at, "--volume", "reef"]);
    let mut server = Process::start(&mut command);
    let address = server.line().rsplit(' ').next().unwrap().to_owned();
    let metrics = metrics_of(&mut server);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| load(&address, &stop, &sent));
        for _ in 0..5 {
            SystemClock::shared().sleep(Duration::from_millis(150));
            assert_described(&scrape(&manager_metrics));
            assert_described(&scrape(&metrics));
            nodes.iter().for_each(|(_, at)| assert_described(&scrape(at)));
        }
        stop.store(true, Ordering::SeqCst);
    });
    let title = ["Storage nodes and volumes"];
    let client = scrape(&metrics);
    assert_eq!(client.value("archipelago_volume_lease_held", &[("volume", "reef")]), Some(1.0));
    assert!(client.sum("archipelago_store_client_calls_total") >= 3.0);
    let appends = [("operation", "append"), ("class", "wal"), ("scheme", "replicated")];
    let timed = "archipelago_store_client_operation_duration_seconds_count";
    let appended = client.value(timed, &appends);
    assert!(appended.is_some_and(|appended| appended > 0.0), "{appended:?}");
    assert_complete(
        &client,
        &title,
        "_volume_",
        &["archipelago_storage_node_volume_bytes", "archipelago_storage_node_volume_logical_bytes"],
    );
    assert_complete(&client, &title, "store_client", &["archipelago_store_client_events"]);
    let node = scrape_until(&nodes[0].1, "the node has a part of the log", |now| {
        now.sum("archipelago_storage_node_extents") >= 1.0
    });
    assert_complete(&node, &title, "storage_node", &[]);
    let written = [("class", "wal"), ("direction", "write")];
    let bytes = node.value("archipelago_storage_node_traffic_bytes_total", &written);
    assert!(bytes.is_some_and(|bytes| bytes > 0.0), "{bytes:?}");
    let states = |scrape: &Scrape, state: &str| {
        let of = |sample: &&archipelago_metrics::parser::Sample| {
            sample.name == "archipelago_storage_cluster_node_state"
                && sample.labels.get("state").is_some_and(|found| found == state)
        };
        scrape.samples.iter().filter(of).map(|sample| sample.value).sum::<f64>()
    };
    let cluster = scrape_until(&manager_metrics, "three storage nodes are up", |now| {
        states(now, "up") == 3.0
    });
    assert_complete(&cluster, &title, "storage_cluster", &[]);
    assert_eq!(cluster.value("archipelago_storage_cluster_founded", &[]), Some(1.0));
    // The figures say that a node is gone.
    nodes[2].0.kill();
    scrape_until(&manager_metrics, "a storage node is silent", |now| states(now, "silent") == 1.0);
    assert!(server.end().contains("Stopped"));
    drop(nodes);
    assert!(office.end().contains("Stopped"));
}
