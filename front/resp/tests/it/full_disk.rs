//! A server on a small disk that fills, as clients see it.

use std::path::Path;
use std::sync::Arc;

use archipelago_engine::db::{Components, Db};
use archipelago_engine::options::{CfOptions, DbOptions, WriteOptions};
use archipelago_env::capacity::CapacityFs;
use archipelago_env::mem::MemFs;
use archipelago_resp::engine_store::EngineStore;
use archipelago_resp::{Server, ServerOptions};

use crate::client::{Client, encode};

#[test]
fn clients_of_a_full_disk_can_delete_expire_and_go_on() {
    let disk = CapacityFs::new(Arc::new(MemFs::new()), Path::new("/data"), 12 << 20).unwrap();
    let family = CfOptions { write_buffer_bytes: 1 << 20, ..CfOptions::default() };
    let components = Components {
        fs: Arc::new(disk),
        families: [("default".to_owned(), family)].into_iter().collect(),
        ..Components::default()
    };
    let db = Db::open_with("/data", DbOptions::default(), components).unwrap();
    let store = Arc::new(EngineStore::new(db.clone(), WriteOptions::default()).unwrap());
    let server = Server::start("127.0.0.1:0", store, ServerOptions::default()).unwrap();
    let mut client = Client::connect(&server);
    let value = |n: u32| -> String {
        // These values hardly compress, so the disk fills.
        let mut rng = archipelago_base::random::Rng::with_seed(u64::from(n));
        (0..700).map(|_| char::from(rng.u8(33..127))).collect()
    };
    let mut taken = 0;
    let refusal = loop {
        client.send(&encode(&["SET", &format!("k{taken:06}"), &value(taken)]));
        let reply = client.reply();
        if reply != "+OK" {
            break reply;
        }
        taken += 1;
        assert!(taken < 100_000, "the disk is never full");
    };
    assert!(refusal.starts_with("-MISCONF"), "{refusal}");
    assert!(refusal.contains("the disk of /data is full"), "{refusal}");
    assert!(!refusal.to_lowercase().contains("resume"), "{refusal}");
    let long = value(1).repeat(90);
    client.send(&encode(&["MSET", "k000001", "v", "new", &long]));
    assert!(client.reply().starts_with("-MISCONF"));
    client.expect(&[
        ("EXISTS new k000001", ":1"),
        ("EXPIRE k000002 1000", ":1"),
        ("PERSIST k000002", ":1"),
        ("DEL k000003 k000004", ":2"),
        ("GETDEL none", "$-1"),
    ]);
    expect_transaction_that_frees_space(&mut client, &long);
    expect_full(&mut client, &long);
    client.expect(&[("FLUSHALL", "+OK"), ("DBSIZE", ":0")]);
    db.wait_for_background().unwrap();
    let clock = archipelago_base::clock::SystemClock::shared();
    let start = clock.now_ns();
    loop {
        client.send(&encode(&["SET", "again", &long]));
        let reply = client.reply();
        if reply == "+OK" {
            break;
        }
        assert!(clock.now_ns() - start < 60_000_000_000, "{reply}");
        clock.sleep(std::time::Duration::from_millis(20));
    }
    client.expect(&[("RESUME", "+OK"), ("STRLEN again", &format!(":{}", long.len()))]);
    assert!(server.shutdown());
}

/// On a full disk, a transaction that writes a value is refused, even if it sets the expiry of that
/// value. A transaction that only deletes and changes expiry is executed after that.
fn expect_transaction_that_frees_space(client: &mut Client, value: &str) {
    // Background work may free space at any moment. Then the disk is filled again.
    let refusal = (0..100_000).find_map(|number| {
        client.expect(&[
            ("MULTI", "+OK"),
            (&format!("SET large{number} {value}"), "+QUEUED"),
            (&format!("EXPIRE large{number} 1000"), "+QUEUED"),
        ]);
        Some(client.ask("EXEC")).filter(|reply| reply != "*2 +OK :1")
    });
    let refusal = refusal.expect("a full disk");
    assert!(refusal.starts_with("-MISCONF"), "{refusal}");
    client.expect(&[
        ("MULTI", "+OK"),
        ("EXPIRE k000005 1000", "+QUEUED"),
        ("PERSIST k000005", "+QUEUED"),
        ("GETEX k000006 EX 1000", "+QUEUED"),
        ("DEL k000007", "+QUEUED"),
    ]);
    let reply = client.ask("EXEC");
    assert!(reply.starts_with("*4 :1 :1 $700 ") && reply.ends_with(" :1"), "{reply}");
    client.expect(&[("PERSIST k000006", ":1"), ("EXISTS k000005 k000007", ":1")]);
}

/// After a refusal INFO says that the disk is full. Background work may free space at any moment.
/// Then the disk is filled again.
fn expect_full(client: &mut Client, value: &str) {
    for number in 0..100_000 {
        client.send(&encode(&["SET", &format!("more{number}"), value]));
        if client.reply() == "+OK" {
            continue;
        }
        let info = client.ask("INFO archipelago");
        assert!(
            info.contains("disk_free_bytes:") && info.contains("disk_reserve_bytes:"),
            "{info}"
        );
        let health = "health:the disk is full: ";
        if info.contains("disk_state:low") && info.contains(health) {
            assert!(info.contains("deletes are taken"), "{info}");
            return;
        }
    }
    panic!("INFO never says that the disk is full");
}

#[test]
fn resume_is_refused_if_nothing_failed() {
    let (server, _) = crate::client::start();
    let mut client = Client::connect(&server);
    let reply = client.ask("RESUME");
    assert!(reply.starts_with("-ERR unsupported"), "{reply}");
}
