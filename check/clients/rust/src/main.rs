//! Checks redis-rs against the server on the port of the first argument; ../../README.md says what
//! it checks.

use std::collections::BTreeSet;
use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use redis::{Client, Commands, Connection, SetExpiry, SetOptions, pipe};

fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).ok_or("the port is missing")?;
    let server = Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut client = server.get_connection()?;
    let () = client.set("coral", "reef")?;
    assert_eq!(client.get::<_, String>("coral")?, "reef");
    println!("ok connect");

    let sums: (i64,) = pipe().set("dives", 40).ignore().incr("dives", 2).query(&mut client)?;
    assert_eq!(sums, (42,));
    println!("ok pipeline");

    let mut other = server.get_connection()?;
    let mut tries = 0;
    let sums: (i64,) = redis::transaction(&mut client, &["dives"], |client, transaction| {
        tries += 1;
        if tries == 1 {
            // The first EXEC does nothing because of this.
            let () = other.incr("dives", 1)?;
        }
        transaction.incr("dives", 1).query(client)
    })?;
    assert_eq!((tries, sums), (2, (44,)));
    println!("ok transaction");

    let keys: BTreeSet<String> = (0..1000).map(|number| format!("reef:{number}")).collect();
    let mut sets = pipe();
    for key in &keys {
        sets.set(key, "x").ignore();
    }
    let () = sets.query(&mut client)?;
    let (mut cursor, mut found) = scan(&mut client, 0)?;
    println!("restart");
    std::io::stdin().read_line(&mut String::new())?;
    // A plain connection of redis-rs does not connect anew.
    client = server.get_connection()?;
    while cursor != 0 {
        let (next, some) = scan(&mut client, cursor)?;
        cursor = next;
        found.extend(some);
    }
    assert_eq!(found.len(), keys.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), keys);
    println!("ok scan");

    let px = SetOptions::default().with_expiration(SetExpiry::PX(50));
    let () = client.set_options("tide", "low", px)?;
    let () = client.set_ex("coral", "reef", 100)?;
    assert!((98..=100).contains(&client.ttl::<_, i64>("coral")?));
    while client.exists("tide")? {
        sleep(Duration::from_millis(10));
    }
    println!("ok expiry");
    Ok(())
}

fn scan(client: &mut Connection, cursor: u64) -> redis::RedisResult<(u64, Vec<String>)> {
    redis::cmd("SCAN").arg(cursor).arg(&["MATCH", "reef:*", "COUNT", "100"]).query(client)
}
