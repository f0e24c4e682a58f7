//! Tests of commands whose large replies wait for memory, without a socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::budget::ByteBudget;
use archipelago_base::clock::SystemClock;

use super::*;
use crate::clients::Socket;
use crate::commands;
use crate::mem_store::MemStore;
use crate::memory::Share;
use crate::options::ServerOptions;
use crate::server_state::ServerState;

/// A pipeline without a socket. The key `large` has 100,000 bytes, and the key `medium` 20,000.
struct Conversation {
    session: Session,
    pipeline: Pipeline,
}

impl Conversation {
    fn begin() -> Self {
        let options =
            ServerOptions { budget: ByteBudget::new(16 << 20), ..ServerOptions::default() };
        let store = Arc::new(MemStore::new(SystemClock::shared()));
        let state = Arc::new(ServerState::new(store, options, 0, commands::list()));
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let socket = Socket { peer: address, local: address, descriptor: 0 };
        let client = state.clients.enter(socket, 0, 1).ok().expect("the first client");
        let session = Session::new(state, client, commands::table());
        let pipeline = Pipeline::new(&session);
        let mut conversation = Self { session, pipeline };
        let lines = ["SETRANGE large 99999 x", "SETRANGE medium 19999 x"];
        assert_eq!(conversation.run(&lines), PipelineProgress::All);
        assert_eq!(conversation.sent(), ":100000\r\n:20000\r\n");
        conversation
    }

    fn run(&mut self, lines: &[&str]) -> PipelineProgress {
        self.pipeline.tidy();
        for line in lines {
            self.pipeline.input.extend_from_slice(format!("{line}\r\n").as_bytes());
        }
        self.pipeline.run(&self.session, false)
    }

    /// Takes the output as the socket does.
    fn sent(&mut self) -> String {
        let output = String::from_utf8_lossy(self.pipeline.output.reply().bytes()).into_owned();
        self.pipeline.sent();
        output
    }

    fn share(&self) -> &Share {
        &self.session.shared.memory.outgoing
    }

    /// Holds all free memory of the share for replies.
    fn hold_rest(&self) -> Held {
        let (share, mut held) = (self.share(), Held::default());
        assert!(share.try_hold(&mut held, share.limit_bytes() - share.held_bytes()));
        held
    }

    /// Length and expiry of the value at `key`.
    fn stored(&self, key: &str) -> Option<(usize, Option<u64>)> {
        let value = self.session.shared.store.get(key.as_bytes()).expect("it is in memory");
        value.map(|value| (value.value.len(), value.expires_at_ms))
    }
}

/// Runs `lines`, of which the last has a large reply, without memory and then with it. Returns
/// the replies that were sent at last.
fn run_late(conversation: &mut Conversation, lines: &[&str]) -> String {
    let rest = conversation.hold_rest();
    let PipelineProgress::WaitsFor(bytes) = conversation.run(lines) else {
        panic!("{lines:?} has run without memory");
    };
    assert!((100_000..101_000).contains(&bytes), "{bytes} bytes for {lines:?}");
    let _replies_before = conversation.sent();
    assert_eq!(conversation.stored("large"), Some((100_000, None)), "{lines:?}");
    assert_eq!(conversation.stored("new"), None, "{lines:?}");
    drop(rest);
    let mut held = Held::default();
    assert!(conversation.share().try_hold(&mut held, bytes));
    conversation.pipeline.output.held_mut().merge(held);
    let rest = conversation.hold_rest();
    assert_eq!(conversation.pipeline.run(&conversation.session, false), PipelineProgress::All);
    assert!(!conversation.share().is_overdrawn(), "{lines:?}");
    drop(rest);
    assert!(conversation.share().held_bytes() >= 100_000, "{lines:?}");
    let output = conversation.sent();
    assert_eq!(conversation.share().held_bytes(), 0, "{lines:?}");
    output
}

#[test]
fn command_changes_nothing_before_its_reply_has_memory() {
    let read = ["MULTI", "SET new 1", "GET large", "EXEC"];
    let many = ["MULTI", "SET new 1", "GET medium", "GET medium", "GET medium", "GET medium"];
    let many = [&many[..], &["GET medium", "EXEC"]].concat();
    let loud = ["CLIENT REPLY OFF", "MULTI", "CLIENT REPLY ON", "GETEX large PERSIST", "EXEC"];
    for (lines, start) in [
        (&["GETDEL large"][..], "$100000\r\n"),
        (&["GETSET large other"][..], "$100000\r\n"),
        (&["SET large other GET"][..], "$100000\r\n"),
        (&["GETEX large EX 100"][..], "$100000\r\n"),
        (&read[..], "*2\r\n+OK\r\n$100000\r\n"),
        (&many[..], "*6\r\n+OK\r\n$20000\r\n"),
        (&loud[..], "+OK\r\n$100000\r\n"),
    ] {
        let output = run_late(&mut Conversation::begin(), lines);
        assert!(output.starts_with(start), "{output:.40} for {lines:?}");
    }
}

#[test]
fn refused_command_has_changed_nothing() {
    let oom = "-OOM 100032 bytes for the reply of this command do not fit into the memory for";
    let abort = "-EXECABORT Transaction discarded because of: OOM ";
    for (lines, refusal) in [
        (&["GETDEL large"][..], oom),
        (&["MULTI", "SET new 1", "GETDEL large", "EXEC"][..], abort),
        (&["MULTI", "CONFIG SET timeout 7", "GETDEL large", "EXEC"][..], abort),
        (&["MULTI", "HELLO 3", "GETDEL large", "EXEC"][..], abort),
        (&["MULTI", "HELLO 3 SETNAME reef", "GETDEL large", "EXEC"][..], abort),
    ] {
        let mut conversation = Conversation::begin();
        let rest = conversation.hold_rest();
        let PipelineProgress::WaitsFor(bytes) = conversation.run(lines) else {
            panic!("{lines:?} has run without memory");
        };
        let _replies_before = conversation.sent();
        let refused = conversation.share().refusal(bytes);
        conversation.pipeline.give_up(&conversation.session, refused);
        let output = conversation.sent();
        assert!(output.starts_with(refusal), "{output}");
        assert_eq!(conversation.stored("large"), Some((100_000, None)));
        drop(rest);
        assert_eq!(conversation.run(&["EXEC", "EXISTS new"]), PipelineProgress::All);
        assert_eq!(conversation.sent(), "-ERR EXEC without MULTI\r\n:0\r\n");
        assert_eq!(conversation.session.shared.settings.idle_timeout(), None);
        let client = &conversation.session.client;
        assert_eq!(client.names.lock().name, "", "{lines:?}");
        assert_eq!(client.version.load(Ordering::Relaxed), 2, "{lines:?}");
    }
}

#[test]
fn transaction_whose_reply_never_fits_does_not_act_on_the_server() {
    let mut conversation = Conversation::begin();
    let limit_bytes = conversation.share().limit_bytes();
    let gets = vec!["GET large"; usize::try_from(limit_bytes / 100_000).unwrap() + 1];
    let lines = [&["MULTI", "CONFIG SET timeout 7"][..], &gets[..], &["EXEC"]].concat();
    assert_eq!(conversation.run(&lines), PipelineProgress::All);
    let output = conversation.sent();
    let refusal = "-EXECABORT Transaction discarded because of: ERR ";
    let (_queued, refused) = output.split_once(refusal).expect("a refusal");
    let limit = format!("answers with more than {limit_bytes}\r\n");
    assert!(refused.ends_with(&limit), "{refused}");
    assert_eq!(conversation.session.shared.settings.idle_timeout(), None);
    assert_eq!(conversation.share().held_bytes(), 0);
}
