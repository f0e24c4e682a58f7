//! Messages of offloading at which a fault hits, and the trigger in the process that receives them.
//!
//! The processes of a run set the hook of the module `message_points`, which is called when a
//! message was received and when it was handled. The parent arms one server, or gives an owner the
//! message on its command line. A server that is armed ends, stops, or lets the thread at the
//! message wait until the parent has acted.
//!
//! Invariants:
//! 1. An armed server fires at most once.
//! 2. The server prints [`AT_STEP`] before it ends, stops or waits.
//! 3. A server that has printed [`DISARMED`] does not fire until it is armed again.
//!
//! Thread-safety: any thread may note a message. Only the thread at the message waits.
//! Failure: the system ends a server whose parent has ended, so no thread waits for ever.
//! Cost: a short lock per message of a server.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use archipelago_offload::message_points::{MessageMoment, MessagePoint, MessageProtocol, set_hook};

use super::trigger::{AT_STEP, AtStep, GO_ON, react, say};
use super::words::chosen;

/// Begin of the line with which the parent arms a server.
const ARM: &str = "arm ";
/// Line with which the parent disarms a server.
pub(crate) const DISARM: &str = "disarm";
/// Line that a server prints when it is disarmed. It comes after [`AT_STEP`] if a message was
/// earlier.
pub(crate) const DISARMED: &str = "disarmed";

/// The kind of process that receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    Owner,
    Memory,
    Executor,
    Manager,
}

/// The moment of a run at which a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivesAt {
    /// Under the load of an owner.
    Load,
    /// While the next owner opens a database with memtables at memory nodes.
    TakeOver,
}

/// A message of the protocols of offloading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) receiver: Receiver,
    protocol: MessageProtocol,
    name: &'static str,
    pub(crate) arrives: ArrivesAt,
    /// Number of messages of this kind among which a run chooses one.
    pub(crate) moments: u64,
}

const fn jobs(receiver: Receiver, name: &'static str, moments: u64) -> Message {
    let (protocol, arrives) = (MessageProtocol::Jobs, ArrivesAt::Load);
    Message { receiver, protocol, name, arrives, moments }
}

const fn shards(receiver: Receiver, name: &'static str, moments: u64) -> Message {
    let (protocol, arrives) = (MessageProtocol::Shards, ArrivesAt::Load);
    Message { receiver, protocol, name, arrives, moments }
}

const fn take_over(receiver: Receiver, name: &'static str) -> Message {
    let (protocol, arrives) = (MessageProtocol::Shards, ArrivesAt::TakeOver);
    Message { receiver, protocol, name, arrives, moments: 1 }
}

/// Messages that [`MESSAGES`] leaves out, because they need a refusal or another fault before.
/// Scenario `offload` of `archipelago-sim` has them.
pub(crate) const RARE: &str = "jobs GiveBack, CancelJob, Cancel, Stale, Decline, NotMine, Abort, \
                               Noted; shards MultiGet, GiveBack";

/// The messages of a run, in the order of the summary.
pub(crate) static MESSAGES: [Message; 29] = [
    jobs(Receiver::Manager, "Greet", 2),
    jobs(Receiver::Manager, "Prepare", 4),
    jobs(Receiver::Manager, "Accept", 4),
    jobs(Receiver::Manager, "Started", 4),
    jobs(Receiver::Manager, "Beat", 6),
    jobs(Receiver::Manager, "Commit", 4),
    jobs(Receiver::Manager, "Decided", 4),
    jobs(Receiver::Executor, "Assign", 2),
    jobs(Receiver::Executor, "Package", 2),
    jobs(Receiver::Executor, "Decided", 2),
    jobs(Receiver::Executor, "Heard", 6),
    jobs(Receiver::Owner, "Lives", 2),
    jobs(Receiver::Owner, "Queued", 4),
    jobs(Receiver::Owner, "Done", 4),
    shards(Receiver::Memory, "Begin", 2),
    shards(Receiver::Memory, "Land", 4),
    shards(Receiver::Memory, "Register", 4),
    shards(Receiver::Memory, "Release", 4),
    shards(Receiver::Memory, "Get", 8),
    shards(Receiver::Memory, "Scan", 4),
    take_over(Receiver::Memory, "List"),
    take_over(Receiver::Memory, "Adopt"),
    take_over(Receiver::Memory, "Purge"),
    shards(Receiver::Owner, "Begun", 2),
    shards(Receiver::Owner, "Landing", 4),
    shards(Receiver::Owner, "Registered", 4),
    shards(Receiver::Owner, "Versions", 8),
    shards(Receiver::Owner, "Page", 4),
    take_over(Receiver::Owner, "Listed"),
];

impl Message {
    /// Whether `point` is this message at this moment.
    pub(crate) fn is_at(&self, moment: MessageMoment, point: MessagePoint) -> bool {
        (point.protocol, point.name, point.moment) == (self.protocol, self.name, moment)
    }

    /// The moments that the process notes. Owners do not note when they have handled an answer of a
    /// memory node.
    pub(crate) fn noted(&self) -> &'static [MessageMoment] {
        match (self.protocol, self.receiver) {
            (MessageProtocol::Shards, Receiver::Owner) => &[MessageMoment::Received],
            _ => &MOMENTS,
        }
    }
}

/// Both moments of a message, by their numbers on a command line.
pub(crate) const MOMENTS: [MessageMoment; 2] = [MessageMoment::Received, MessageMoment::Handled];

/// Number of a moment on a command line.
pub(crate) fn moment_number(moment: MessageMoment) -> usize {
    usize::from(moment == MessageMoment::Handled)
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let receiver = match self.receiver {
            Receiver::Owner => "owner",
            Receiver::Memory => "memory node",
            Receiver::Executor => "executor",
            Receiver::Manager => "manager",
        };
        write!(f, "{} at {receiver}", self.name)
    }
}

/// A message that a server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArmedMessage {
    /// Index in [`MESSAGES`].
    pub(crate) index: usize,
    pub(crate) moment: MessageMoment,
    /// Number of such messages that pass before.
    pub(crate) after: u64,
    pub(crate) reaction: AtStep,
}

impl ArmedMessage {
    /// The line that arms a server.
    pub(crate) fn line(&self) -> String {
        let reaction = AtStep::ALL.iter().position(|way| *way == self.reaction);
        let reaction = reaction.unwrap_or(AtStep::ALL.len());
        format!("{ARM}{} {} {} {reaction}", self.index, moment_number(self.moment), self.after)
    }

    /// Reads the line; `None` for another line.
    fn parse(line: &str) -> Option<Self> {
        let numbers = line.strip_prefix(ARM)?.split(' ').map(|word| word.parse::<u64>().ok());
        let [index, moment, after, reaction] =
            numbers.collect::<Option<Vec<u64>>>()?.try_into().ok()?;
        chosen(&MESSAGES, index).ok()?;
        Some(Self {
            index: index as usize,
            moment: chosen(&MOMENTS, moment).ok()?,
            after,
            reaction: chosen(&AtStep::ALL, reaction).ok()?,
        })
    }
}

#[derive(Debug, Default)]
struct TriggerState {
    armed: Option<ArmedMessage>,
    /// Whether a thread waits at a message.
    is_waiting: bool,
}

/// Waits for the message for which the parent arms the process.
#[derive(Debug, Default)]
struct MessageTrigger {
    state: Mutex<TriggerState>,
    changed: Condvar,
}

impl MessageTrigger {
    fn lock(&self) -> MutexGuard<'_, TriggerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, point: MessagePoint) {
        let mut state = self.lock();
        let Some(armed) = &mut state.armed else { return };
        if !MESSAGES[armed.index].is_at(armed.moment, point) {
            return;
        }
        if armed.after > 0 {
            armed.after -= 1;
            return;
        }
        let reaction = armed.reaction;
        state.armed = None;
        if reaction != AtStep::Ask {
            // The lock keeps the answer to a disarmed server back until this is printed.
            react(reaction);
            drop(state);
            return;
        }
        // The input of the process has a reader, so this thread waits for it.
        state.is_waiting = true;
        say(AT_STEP);
        while state.is_waiting {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets a waiting thread go on.
    fn go_on(&self) {
        self.lock().is_waiting = false;
        self.changed.notify_all();
    }

    /// Takes a line of the parent. Returns whether it was for the trigger.
    fn take(&self, line: &str) -> bool {
        match line {
            GO_ON => self.go_on(),
            DISARM => {
                self.lock().armed = None;
                say(DISARMED);
            }
            _ => match ArmedMessage::parse(line) {
                Some(armed) => self.lock().armed = Some(armed),
                None => return false,
            },
        }
        true
    }
}

/// Waits until the parent closes the input of this server, and is armed by its lines meanwhile.
/// `other` gets all other lines.
pub(crate) fn follow_input(mut other: impl FnMut(&str)) {
    let trigger = Arc::new(MessageTrigger::default());
    let noting = Arc::clone(&trigger);
    set_hook(move |point| noting.note(point));
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let text = line.trim_end();
        if !trigger.take(text) {
            other(text);
        }
        line.clear();
    }
    // A thread that waits would keep the process from its end.
    trigger.go_on();
}

/// Calls `note` whenever this process, which is an owner, is at the message.
pub(crate) fn note_message(
    index: usize,
    moment: MessageMoment,
    note: impl Fn() + Send + Sync + 'static,
) {
    set_hook(move |point| {
        if MESSAGES[index].is_at(moment, point) {
            note();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &'static str, moment: MessageMoment) -> MessagePoint {
        MessagePoint { protocol: MessageProtocol::Jobs, name, moment }
    }

    #[test]
    fn armed_message_returns_from_its_line() {
        let (moment, reaction) = (MessageMoment::Handled, AtStep::Halt);
        let armed = ArmedMessage { index: 7, moment, after: 3, reaction };
        assert_eq!(ArmedMessage::parse(&armed.line()), Some(armed));
        assert_eq!(ArmedMessage::parse("arm 99 0 0 0"), None, "there is no such message");
        assert_eq!(ArmedMessage::parse(GO_ON), None);
    }

    #[test]
    fn trigger_fires_once_after_the_messages_before() {
        let trigger = MessageTrigger::default();
        let (moment, reaction) = (MessageMoment::Received, AtStep::Nothing);
        let armed = ArmedMessage { index: 1, moment, after: 1, reaction };
        assert!(trigger.take(&armed.line()));
        trigger.note(point("Prepare", MessageMoment::Handled));
        trigger.note(point("Prepare", moment));
        assert_eq!(trigger.lock().armed.map(|armed| armed.after), Some(0));
        trigger.note(point("Prepare", moment));
        assert_eq!(trigger.lock().armed, None);
        assert!(trigger.take(&armed.line()) && trigger.take(DISARM));
        assert_eq!(trigger.lock().armed, None);
        assert!(!trigger.take("what is left?"));
    }

    #[test]
    fn same_name_of_another_protocol_is_another_message() {
        let done = MESSAGES.iter().find(|message| message.name == "Done").unwrap();
        let moment = MessageMoment::Received;
        assert!(done.is_at(moment, point("Done", moment)));
        let of_shards = MessagePoint { protocol: MessageProtocol::Shards, ..point("Done", moment) };
        assert!(!done.is_at(moment, of_shards));
    }
}
