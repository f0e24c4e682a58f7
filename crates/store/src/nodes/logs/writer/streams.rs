//! The task that sends a log to its replicas.
//!
//! One task per log has the requests to all replicas under way. It feeds each answer to the stream
//! of its replica and to the quorum writer. Then it asks all streams for their next messages.
//!
//! Invariants:
//! 1. The requests to one replica leave in the order of its stream.
//! 2. The task ends after an error, and when no handle of the log is left. If the log has finished,
//!    it ends when the replicas are complete or have failed.
//!
//! Failure: as the head of the module `writer` says.
//! Cost: a wake-up polls the requests under way, and takes one lock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use archipelago_base::runtime::Boxed;

use super::super::super::log::ReplicaId;
use super::super::super::log::quorum::{Refusal, ReplicaProgress};
use super::super::call_set::CallSet;
use super::super::replica_stream::{APPEND_BYTES_MAX, StreamMessage, StreamStep, StreamVerdict};
use super::super::requests::{LogFailure, LogPromise, WritePlace};
use super::super::send_ring::LogBytes;
use super::{Effects, LogCore, LogState, fail};

/// The replica and the message of a request.
type StreamCall = (ReplicaId, StreamMessage);

/// A request that ended.
type EndedCall = (StreamCall, Result<ReplicaProgress, LogFailure>);

/// A request that should leave.
struct StreamSend {
    to: ReplicaId,
    extent_start: u64,
    message: StreamMessage,
    bytes: LogBytes,
}

/// The next step of the task, after it has noted all answers.
struct SendPlan {
    sends: Vec<StreamSend>,
    /// Time at which a stream sends again after a failure.
    resume_ns: Option<u64>,
    /// Replicas that need bytes which the ring does not have any more.
    lost: Vec<ReplicaId>,
    is_over: bool,
}

/// State that the task owns.
#[derive(Default)]
struct Sender {
    calls: CallSet<StreamCall, Result<ReplicaProgress, LogFailure>>,
    pause: Option<Boxed<'static, ()>>,
}

impl LogCore {
    /// Starts the task that sends to the replicas.
    pub(super) fn spawn_sender(self: &Arc<Self>) {
        let core = Arc::clone(self);
        let task = Box::pin(async move {
            let mut sender = Sender::default();
            poll_fn(|context| core.poll_sender(&mut sender, context)).await;
        });
        self.requests.runtime().spawn("log-sender", task);
    }

    fn poll_sender(self: &Arc<Self>, sender: &mut Sender, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut ended = Vec::new();
            while let Poll::Ready(call) = sender.calls.poll_ended(context) {
                ended.push(call);
            }
            let plan = self.plan(ended, context.waker());
            if plan.is_over {
                return Poll::Ready(());
            }
            let has_sent = !plan.sends.is_empty();
            for send in plan.sends {
                let call = self.call(&send);
                sender.calls.push((send.to, send.message), call);
            }
            if has_sent {
                // The next round polls the requests, so that they leave.
                continue;
            }
            let Some(resume_ns) = plan.resume_ns else {
                sender.pause = None;
                return Poll::Pending;
            };
            let left = Duration::from_nanos(resume_ns.saturating_sub(self.now_ns()));
            let pause = sender.pause.insert(self.requests.runtime().sleep(left));
            if Pin::new(pause).poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn call(&self, send: &StreamSend) -> LogPromise<ReplicaProgress> {
        let StreamSend { to, extent_start, message, bytes } = send;
        match *message {
            StreamMessage::Append { start, is_synced, .. } => {
                let place = WritePlace { to: *to, extent_start: *extent_start, start };
                self.requests.append(place, is_synced, bytes.clone())
            }
            StreamMessage::Sync => self.requests.sync(*to),
            StreamMessage::Seal { end } => self.requests.seal(*to, *extent_start, end),
        }
    }

    /// Notes the answers, and decides what leaves.
    fn plan(self: &Arc<Self>, ended: Vec<EndedCall>, sender: &Waker) -> SendPlan {
        let now_ns = self.now_ns();
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        for (call, answer) in ended {
            self.note(&mut state, &call, answer, now_ns);
        }
        self.carry_out(&mut state, &mut effects);
        let mut plan =
            SendPlan { sends: Vec::new(), resume_ns: None, lost: Vec::new(), is_over: false };
        plan.fill(&mut state, now_ns);
        if !plan.lost.is_empty() {
            for replica in std::mem::take(&mut plan.lost) {
                let (log, extent, node) = (self.requests.log, replica.extent, replica.node);
                tracing::error!(%log, extent, %node, "a replica of a log lost bytes that it had confirmed");
                state.writer.failed(replica, now_ns);
            }
            self.carry_out(&mut state, &mut effects);
            plan.fill(&mut state, now_ns);
        }
        let is_busy = state.streams.values().any(|stream| stream.is_busy());
        let is_done = state.is_released && (state.finished.is_none() || !is_busy);
        plan.is_over = state.error.is_some() || is_done;
        state.sender = Some(sender.clone());
        drop(state);
        self.apply(effects);
        plan
    }

    /// Notes how a request to a replica ended.
    fn note(
        &self,
        state: &mut LogState,
        call: &StreamCall,
        answer: Result<ReplicaProgress, LogFailure>,
        now_ns: u64,
    ) {
        let (to, message) = call;
        let Some(stream) = state.streams.get_mut(to).filter(|_| state.error.is_none()) else {
            return;
        };
        match stream.answered(message, answer, now_ns, self.options.patience) {
            StreamVerdict::Progress(progress) => state.writer.answered(*to, progress, now_ns),
            StreamVerdict::Repeat => state.writer.tick(now_ns),
            StreamVerdict::Fenced(text) => {
                state.writer.refused(*to, Refusal::Fenced, now_ns);
                fail(state, self.fenced(&format!("node {}: {text}", to.node)));
            }
            StreamVerdict::Failed(text) => {
                let (log, extent, node) = (self.requests.log, to.extent, to.node);
                tracing::warn!(%log, extent, %node, why = text, "a replica of a log failed");
                if let StreamMessage::Seal { end } = *message
                    && !state.layout.extents.iter().any(|it| it.number == extent)
                {
                    state.note_left_empty(*to, end);
                }
                state.writer.failed(*to, now_ns);
            }
        }
    }
}

impl SendPlan {
    /// Takes the next messages of all streams.
    fn fill(&mut self, state: &mut LogState, now_ns: u64) {
        let LogState { streams, ring, .. } = state;
        for stream in streams.values_mut() {
            loop {
                match stream.step(now_ns) {
                    StreamStep::Send(message) => {
                        let bytes = match message {
                            StreamMessage::Append { start, end, .. } => {
                                ring.take(start..end, APPEND_BYTES_MAX as usize)
                            }
                            StreamMessage::Sync | StreamMessage::Seal { .. } => {
                                Some(LogBytes::empty())
                            }
                        };
                        let Some(bytes) = bytes else {
                            stream.end();
                            self.lost.push(stream.to());
                            break;
                        };
                        let (to, extent_start) = (stream.to(), stream.extent_start());
                        self.sends.push(StreamSend { to, extent_start, message, bytes });
                    }
                    StreamStep::Pause { until_ns } => {
                        let earlier = self.resume_ns.is_none_or(|resume_ns| until_ns < resume_ns);
                        self.resume_ns = if earlier { Some(until_ns) } else { self.resume_ns };
                        break;
                    }
                    StreamStep::Wait | StreamStep::Over => break,
                }
            }
        }
    }
}
