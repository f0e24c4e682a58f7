//! Commands about the connection and the server, in both protocol versions.

use crate::client::{Client, start, start_with};

#[test]
fn both_versions() {
    let (server, _clock) = start();
    let mut two = Client::connect(&server);
    two.expect(
        &[
            ("PING", "+PONG"),
            ("PING hi", "$2 hi"),
            ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
            ("ECHO hi", "$2 hi"),
            ("GET absent", "$-1"),
            ("CONFIG GET save", "*2 $4 save $0 "),
            ("CLIENT GETNAME", "$-1"),
            ("TIME", "*2 $7 1000000 $1 0"),
            ("WAIT 1 0", ":0"),
            ("SELECT 0", "+OK"),
            ("SELECT 16", "-ERR DB index is out of range"),
            ("SELECT x", "-ERR value is not an integer or out of range"),
        ]
        .map(|(line, reply)| (line, reply.trim_end())),
    );
    assert!(two.ask("INFO").starts_with('$'));
    let mut three = Client::resp3(&server);
    three.expect(&[
        ("GET absent", "_"),
        ("MGET absent", "*1 _"),
        ("CONFIG GET databases", "%1 $9 databases $2 16"),
        ("CLIENT GETNAME", "_"),
        ("SET k v XX", "_"),
    ]);
    assert!(three.ask("INFO server").starts_with('='));
    assert!(three.ask("CLIENT LIST").starts_with('='));
    assert!(
        three.ask("COMMAND INFO get").starts_with("*1 *10 $3 get :2 ~2 +readonly +fast :1 :1 :1")
    );
    assert!(three.ask("COMMAND DOCS get").starts_with("%1 $3 get %3 $7 summary"));
}

#[test]
fn hello() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let reply = client.ask("HELLO");
    assert!(reply.starts_with("*14 $6 server $5 redis $7 version"), "{reply}");
    assert!(reply.contains("$5 proto :2 $2 id :1 $4 mode $10 standalone $4 role $6 master"));
    client.expect(&[
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'"),
        ("CLIENT GETNAME", "$-1"),
    ]);
    assert!(client.ask("AUTH secret").starts_with("-ERR AUTH <password> called"));
    assert!(client.ask("HELLO 2 SETNAME me").starts_with("*14 "));
    client.expect(&[("CLIENT GETNAME", "$2 me"), ("RESET", "+RESET"), ("CLIENT GETNAME", "$-1")]);
}

#[test]
fn client_and_its_subcommands() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let mut other = Client::connect(&server);
    other.expect(&[("CLIENT ID", ":2"), ("CLIENT SETNAME other", "+OK")]);
    client.expect(&[
        ("CLIENT ID", ":1"),
        ("CLIENT SETINFO LIB-NAME redis-rs", "+OK"),
        ("CLIENT SETINFO LIB-VER 1.0", "+OK"),
        ("CLIENT SETINFO COLOUR blue", "-ERR Unrecognized option 'COLOUR'"),
        ("CLIENT NO-EVICT on", "+OK"),
        ("CLIENT NO-TOUCH off", "+OK"),
        ("CLIENT NO-TOUCH maybe", "-ERR syntax error"),
        ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command"),
        ("CLIENT TELEPORT", "-ERR unknown subcommand 'TELEPORT'. Try CLIENT HELP."),
    ]);
    assert!(client.call(&["CLIENT", "SETNAME", "a b"]).starts_with("-ERR Client names cannot"));
    let info = client.ask("CLIENT INFO");
    assert!(info.contains("id=1 ") && info.contains("lib-name=redis-rs lib-ver=1.0"), "{info}");
    let list = client.ask("CLIENT LIST");
    assert!(list.contains("id=1 ") && list.contains("name=other"), "{list}");
    assert!(!client.ask("CLIENT LIST ID 2").contains("id=1 "));
    client.expect(&[("CLIENT KILL ID 2", ":1"), ("CLIENT KILL ID 2000", ":0")]);
    assert_eq!(other.try_reply(), None);
}

#[test]
fn reply_modes() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    for line in ["CLIENT REPLY SKIP", "PING", "ECHO 1", "CLIENT REPLY OFF", "SET k v", "NOPE"] {
        client.send_words(&line.split(' ').collect::<Vec<_>>());
    }
    assert_eq!(client.reply(), "$1 1");
    client.expect(&[("CLIENT REPLY ON", "+OK"), ("GET k", "$1 v")]);
    // Each SKIP concerns the command after it, so two in a row skip one command besides themselves.
    send_all(&mut client, &["CLIENT REPLY SKIP", "CLIENT REPLY SKIP", "PING", "ECHO 2"]);
    assert_eq!(client.reply(), "$1 2");
    send_all(&mut client, &["CLIENT REPLY SKIP", "CLIENT REPLY SKIP", "CLIENT REPLY ON", "ECHO 3"]);
    assert_eq!([client.reply(), client.reply()], ["+OK", "$1 3"]);
    // OFF lasts until ON.
    send_all(&mut client, &["CLIENT REPLY OFF", "CLIENT REPLY SKIP", "PING", "ECHO 4"]);
    client.expect(&[("CLIENT REPLY ON", "+OK"), ("ECHO 5", "$1 5")]);
}

#[test]
fn command_describes_the_table() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let count: usize = client.ask("COMMAND COUNT")[1..].parse().unwrap();
    assert!(client.ask("COMMAND").starts_with(&format!("*{count} *10 ")));
    assert!(client.ask("COMMAND LIST").starts_with(&format!("*{count} ")));
    client.expect(&[
        ("COMMAND LIST FILTERBY PATTERN PEXPIRE*", "*3 $7 pexpire $9 pexpireat $11 pexpiretime"),
        ("COMMAND INFO nope", "*1 $-1"),
        ("COMMAND GETKEYS MSET a 1 b 2", "*2 $1 a $1 b"),
        ("COMMAND GETKEYS DEL a b c", "*3 $1 a $1 b $1 c"),
        ("COMMAND GETKEYS PING", "-ERR The command has no key arguments"),
        ("COMMAND GETKEYS OBJECT ENCODING a", "*1 $1 a"),
        ("COMMAND GETKEYS OBJECT HELP", "-ERR Invalid number of arguments specified for command"),
        ("COMMAND GETKEYS MEMORY DOCTOR", "-ERR Invalid number of arguments specified for command"),
        ("COMMAND DANCE", "-ERR unknown subcommand 'DANCE'. Try COMMAND HELP."),
    ]);
}

#[test]
fn info_and_config() {
    let (server, _clock) = start_with(|options| options.clients_max = 77);
    let mut client = Client::connect(&server);
    client.expect(&[("SET k v", "+OK"), ("GET k", "$1 v"), ("GET absent", "$-1")]);
    let info = client.ask("INFO");
    for part in [
        "# Server redis_version:",
        "# Clients connected_clients:1 ",
        "maxclients:77 ",
        "# Memory used_memory:",
        "used_memory_request:",
        "# Stats total_connections_received:1 total_commands_processed:4 ",
        "keyspace_hits:1 keyspace_misses:1 ",
        "# Keyspace db0:keys=1,",
        "# Archipelago engine:memory ",
    ] {
        assert!(info.contains(part), "{part} in {info}");
    }
    let stats = client.ask("INFO stats keyspace");
    assert!(
        stats.contains("# Stats") && stats.contains("# Keyspace") && !stats.contains("# Server")
    );
    client.expect(&[
        ("CONFIG GET maxclients appendonly", "*4 $10 appendonly $3 yes $10 maxclients $2 77"),
        ("CONFIG GET MAXMEMORY", "*2 $9 maxmemory $1 0"),
        ("CONFIG GET nothing", "*0"),
        ("CONFIG GET", "-ERR wrong number of arguments for 'config|get' command"),
        ("CONFIG RESETSTAT", "+OK"),
        ("CONFIG POKE", "-ERR unknown subcommand 'POKE'. Try CONFIG HELP."),
    ]);
    assert!(client.ask("CONFIG SET save 1").contains("can't set immutable config"));
    assert!(client.ask("CONFIG SET daemonize yes").contains("can't set immutable config"));
    client.expect(&[
        // Tools set values that they need, whether or not the server has them already.
        ("CONFIG SET appendonly yes maxmemory-policy noeviction", "+OK"),
        ("CONFIG GET *of", "*4 $9 replicaof $0  $7 slaveof $0"),
        (
            "CONFIG SET slowlog-max-len 1 slowlog-log-slower-than 5 Slowlog-Max-Len 2",
            "-ERR CONFIG SET failed (possibly related to argument 'slowlog-max-len') - \
             duplicate parameter",
        ),
        ("CONFIG GET slowlog-max-len", "*2 $15 slowlog-max-len $3 128"),
    ]);
    assert!(client.ask("CONFIG GET *").contains("$4 save"));
    assert!(client.ask("INFO stats").contains("total_connections_received:0"));
}

#[test]
fn client_kill_takes_filters() {
    let (server, clock) = start();
    let mut old = Client::connect(&server);
    old.expect(&[("PING", "+PONG")]);
    clock.advance(std::time::Duration::from_secs(60));
    let mut new = Client::connect(&server);
    new.expect(&[
        ("CLIENT KILL TYPE pubsub", ":0"),
        ("CLIENT KILL USER default MAXAGE 61", ":0"),
        ("CLIENT KILL ADDR 1.2.3.4:5", ":0"),
        ("CLIENT KILL 1.2.3.4:5", "-ERR No such client"),
        ("CLIENT KILL ID 0", "-ERR client-id should be greater than 0"),
        ("CLIENT KILL ID", "-ERR No such client"),
        ("CLIENT KILL ID 1 TYPE", "-ERR syntax error"),
        ("CLIENT KILL NOPE 1", "-ERR syntax error"),
        ("CLIENT KILL USER nobody", "-ERR No such user 'nobody'"),
        ("CLIENT KILL TYPE nope", "-ERR Unknown client type 'nope'"),
        ("CLIENT KILL ID 2", ":0"),
        ("CLIENT KILL TYPE normal MAXAGE 60 SKIPME no", ":1"),
        ("PING", "+PONG"),
    ]);
    assert_eq!(old.try_reply(), None);
    let local = server.local_addr().to_string();
    new.expect(&[("CLIENT KILL LADDR", "-ERR No such client")]);
    let mut third = Client::connect(&server);
    third.expect(&[("PING", "+PONG")]);
    assert_eq!(new.ask(&format!("CLIENT KILL LADDR {local} SKIPME no")), ":2");
    assert_eq!((new.try_reply(), third.try_reply()), (None, None));
}

#[test]
fn client_list_shows_what_redis_shows() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let mut other = Client::connect(&server);
    other.expect(&[("SET k v", "+OK"), ("MULTI", "+OK"), ("SET k w", "+QUEUED")]);
    other.send(b"*2\r\n$4\r\nEC");
    let line = client.ask("CLIENT INFO");
    let names: Vec<&str> =
        line.split(' ').filter_map(|field| field.split_once('=')).map(|it| it.0).collect();
    assert_eq!(
        names.join(" "),
        "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem \
         multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp lib-name lib-ver watch \
         tot-cmds"
    );
    // The figure counts the request itself: "*2 $6 CLIENT $4 INFO" with its line ends.
    assert!(line.contains("qbuf=26 ") && line.contains("cmd=client|info "), "{line}");
    assert!(line.contains("multi=-1 ") && line.contains("multi-mem=0 "), "{line}");
    let line = loop {
        let line = client.ask("CLIENT LIST ID 2");
        if line.contains("qbuf=10 ") {
            break line;
        }
    };
    assert!(line.contains("multi=1 ") && !line.contains("multi-mem=0 "), "{line}");
    assert!(line.contains("flags=x "), "{line}");
    assert!(line.contains("cmd=multi "), "{line}");
    client.call(&["CLIENT", "a b\nid=7"]);
    let mut third = Client::connect(&server);
    let lines = third.ask("CLIENT LIST");
    assert!(lines.contains("cmd=client user=") && lines.contains("cmd=client|list "), "{lines}");
    let mut fourth = Client::connect(&server);
    fourth.expect(&[("GET k", "$1 v"), ("SET k v", "+OK")]);
    assert!(third.ask("CLIENT LIST ID 4").contains("cmd=set "));
}

#[test]
fn help_lists_subcommands() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    for name in ["ACL", "CLIENT", "COMMAND", "CONFIG", "LATENCY", "MEMORY", "OBJECT", "SLOWLOG"] {
        let help = client.ask(&format!("{name} help"));
        assert!(
            help.starts_with('*') && help.contains(&format!("+{name} <subcommand> ")),
            "{help}"
        );
        let unknown = format!("-ERR unknown subcommand 'DANCE'. Try {name} HELP.");
        assert_eq!(client.ask(&format!("{name} DANCE")), unknown);
        assert!(client.ask(&format!("{name} HELP me")).starts_with("-ERR "));
    }
}

/// Sends each line without waiting for a reply.
fn send_all(client: &mut Client, lines: &[&str]) {
    for line in lines {
        client.send_words(&line.split(' ').collect::<Vec<_>>());
    }
}

#[test]
fn reply_modes_hold_through_a_transaction() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let transaction = ["MULTI", "SET k 1", "ECHO in", "EXEC"];
    // OFF also lasts after EXEC.
    send_all(&mut client, &["CLIENT REPLY OFF"]);
    send_all(&mut client, &transaction);
    send_all(&mut client, &["ECHO 1", "CLIENT REPLY ON"]);
    assert_eq!(client.reply(), "+OK");
    client.expect(&[("GET k", "$1 1")]);
    // SKIP leaves out the reply of EXEC, and no other, if it precedes EXEC.
    send_all(&mut client, &["CLIENT REPLY SKIP"]);
    send_all(&mut client, &transaction);
    assert_eq!([client.reply(), client.reply()], ["+QUEUED", "+QUEUED"], "MULTI is skipped");
    assert_eq!(client.reply(), "*2 +OK $2 in");
    client.expect(&[("ECHO 2", "$1 2")]);
}

#[test]
fn reply_modes_said_in_a_transaction_follow_redis() {
    let (server, _clock) = start();
    let mut client = Client::connect(&server);
    let queue = |client: &mut Client, lines: &[&str]| {
        client.expect(&[("MULTI", "+OK")]);
        lines.iter().for_each(|line| client.expect(&[(line, "+QUEUED")]));
    };
    // ON is answered, and so are the commands after it.
    send_all(&mut client, &["CLIENT REPLY OFF", "MULTI", "ECHO 1", "CLIENT REPLY ON", "ECHO 2"]);
    send_all(&mut client, &["EXEC", "ECHO 3"]);
    assert_eq!([client.reply(), client.reply(), client.reply()], ["+OK", "$1 2", "$1 3"]);
    // EXEC has promised three replies when OFF stops them. As in Redis, the client completes them
    // by the commands that it sends after ON.
    queue(&mut client, &["ECHO 1", "CLIENT REPLY OFF", "ECHO 2"]);
    send_all(&mut client, &["EXEC", "ECHO 3", "CLIENT REPLY ON", "ECHO 4"]);
    assert_eq!(client.reply(), "*3 $1 1 +OK $1 4");
    // SKIP has no reply itself, and skips the command after EXEC.
    queue(&mut client, &["CLIENT REPLY SKIP", "ECHO 1"]);
    send_all(&mut client, &["EXEC", "ECHO 2", "ECHO 3", "ECHO 4"]);
    assert_eq!([client.reply(), client.reply()], ["*2 $1 1 $1 3", "$1 4"]);
    queue(&mut client, &["CLIENT REPLY SKIP", "CLIENT REPLY SKIP", "ECHO 1"]);
    send_all(&mut client, &["EXEC", "ECHO 2", "ECHO 3", "ECHO 4", "ECHO 5"]);
    assert_eq!([client.reply(), client.reply()], ["*3 $1 1 $1 3 $1 4", "$1 5"]);
}
