//! Child processes of a run over a cluster. Each is this program again, in a role.
//!
//! | module | purpose |
//! | --- | --- |
//! | `words` | the command line of a child process |
//! | `process` | a child process: its lines, its signals and its end |
//! | `server` | a server as a child process, taken away and brought back |
//! | `manager` | the manager of a cluster |
//! | `owner` | an owner as a child process that comes to a step |
//! | `messages` | messages of offloading at which a process meets a fault |
//! | `trigger` | the moment of a step at which a child process meets a fault |
//! | `cases` | the faults of a run, and how often each was hit |

mod cases;
mod manager;
mod messages;
mod owner;
mod process;
mod server;
mod trigger;
mod words;

pub(crate) use cases::{Deck, FaultCase, Tally};
pub(crate) use manager::ManagerRole;
pub(crate) use messages::{
    ArmedMessage, ArrivesAt, DISARM, DISARMED, MESSAGES, MOMENTS, Message, RARE, Receiver,
    follow_input, moment_number, note_message,
};
pub(crate) use owner::{AtStepSeen, OPENED, OPENING, Owner, Share, await_step, stop_at};
pub(crate) use process::{Heard, Process};
pub(crate) use server::{Fault, PATIENCE, READY, Server, wait_for_end_of_input};
pub(crate) use trigger::{AT_STEP, AtStep, GO_ON, StepMoment, StepTrigger, say};
pub(crate) use words::{ROLE, Words, chosen};

/// Exit code of an owner that has lost its volume.
pub(crate) const FENCED: u8 = 3;
/// Exit code of an owner that found the volume in use, or whose call had to wait for too long.
pub(crate) const BUSY: u8 = 4;
