//! The node's end of a link over a stream. One thread reads frames, executes them and writes the
//! outcomes. It executes all frames of one read before it answers them with one write.
//!
//! Invariants:
//! 1. No input ends the node. A malformed frame closes this link, and the client gets the reason.
//! 2. The node stops reading from a client that does not read. Such a client occupies at most
//!    [`OUT_BYTES_MAX`], one batch, the answers that the node remembers anyway, and the
//!    reservations of its idempotent and bulk requests. A link that is quiet for [`QUIET`] holds no
//!    buffer.
//! 3. The thread that makes a late answer sends it, unless this thread is busy and will send it.
//!
//! Thread-safety: one thread serves the link, and any thread may send answers.
//! Failure: a stream that ends or breaks ends the link.
//! Cost: one system call receives all frames that have arrived, and one sends their answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use archipelago_base::Epoch;
use archipelago_base::wire::Malformed;
use parking_lot::Mutex;

use super::{Arrived, Incoming, Outgoing, Stream, Taken};
use crate::ids::ClientId;
use crate::node::{
    Access, Answer, AtomicPath, Delivery, LinkBudget, LinkEnd, Node, Question, Request,
};
use crate::refusal::{Reason, Refusal};
use crate::wire::{
    Ask, Frame, Hello, Kind, Opened, Welcome, WireAction, WireOp, decode_key, decode_ops,
    put_answer, put_done, put_done_read, put_frame, put_refused,
};

/// Number of unsent bytes above which the node reads nothing more from the client.
const OUT_BYTES_MAX: usize = 4 << 20;

/// Time without a frame after which a link frees its buffers.
const QUIET: Duration = Duration::from_secs(1);

/// The path of a link's one-sided operations.
pub(crate) enum OneSided {
    /// Operations and attachments do not use this stream.
    Elsewhere,
    /// Operations arrive as frames, which this thread executes.
    Frames,
    /// Operations reach registered memory directly. This thread answers attachments.
    #[cfg(feature = "ofi")]
    Registered(Box<dyn Registrar>),
}

/// Registers memory for the client of a link.
#[cfg(feature = "ofi")]
pub(crate) trait Registrar: Send + Sync {
    /// Registers the region of `key`, and appends the answer or a refusal. Returns whether the
    /// region is registered.
    fn attach(&self, node: &Node, key: &crate::ids::RemoteKey, out: &mut Vec<u8>) -> bool;
}

/// The two sides of a greeting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeted {
    pub(crate) client: ClientId,
    /// Life of the node that welcomed the client.
    pub(crate) epoch: Epoch,
}

impl Greeted {
    pub(crate) fn new(hello: &Hello, welcome: &Welcome) -> Self {
        Self { client: hello.client, epoch: welcome.epoch }
    }
}

pub(crate) struct Responder<S> {
    stream: S,
    client: ClientId,
    /// Life of the node that welcomed the client.
    epoch: Epoch,
    path: AtomicPath,
    one_sided: OneSided,
    out: Mutex<Outgoing>,
    taken: Taken,
    busy: AtomicBool,
    /// Number of the link's arrival at the node.
    arrival: AtomicU64,
    closing: Mutex<Option<Refusal>>,
    /// Whether the client has sent a frame since its greeting.
    has_spoken: AtomicBool,
    budget: Arc<LinkBudget>,
    me: Weak<Self>,
}

impl<S: Stream> Responder<S> {
    pub(crate) fn new(
        stream: S,
        greeted: Greeted,
        path: AtomicPath,
        one_sided: OneSided,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            stream,
            client: greeted.client,
            epoch: greeted.epoch,
            path,
            one_sided,
            out: Mutex::new(Outgoing::default()),
            taken: Taken::default(),
            busy: AtomicBool::new(false),
            arrival: AtomicU64::new(0),
            closing: Mutex::new(None),
            has_spoken: AtomicBool::new(false),
            budget: Arc::default(),
            me: Weak::clone(me),
        })
    }

    /// Records the number of the link's arrival, before the link is served.
    pub(crate) fn arrived(&self, arrival: u64) {
        self.arrival.store(arrival, Ordering::Relaxed);
    }

    /// Whether the client has sent no frame since its greeting, and the link is not being closed.
    /// The answer is false if operations use another path, because this thread does not see them.
    pub(crate) fn is_silent(&self) -> bool {
        let elsewhere = matches!(self.one_sided, OneSided::Elsewhere);
        let silent = !elsewhere && !self.has_spoken.load(Ordering::Relaxed);
        silent && self.closing.lock().is_none()
    }

    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// Serves the link until it is down. `incoming` has the bytes after the greeting.
    pub(crate) fn run(&self, node: &Arc<Node>, mut incoming: Incoming) {
        while self.round(node, &mut incoming) {}
        self.stream.shut();
    }

    /// Serves the frames that have arrived, sends, and waits. Returns whether the link is up.
    fn round(&self, node: &Arc<Node>, incoming: &mut Incoming) -> bool {
        self.busy.store(true, Ordering::SeqCst);
        let served = self.serve_frames(node, incoming);
        self.busy.store(false, Ordering::SeqCst);
        let full = match served {
            Ok(full) => full,
            Err(malformed) => {
                node.counters.malformed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(client = %self.client, %malformed, "a client broke the protocol: its link is closed");
                self.goodbye(Reason::Protocol.into(), malformed.0);
                return false;
            }
        };
        let waiting = {
            let mut out = self.out.lock();
            if out.flush(&self.stream, &self.taken).is_err() {
                return false;
            }
            out.waiting()
        };
        if let Some(refusal) = *self.closing.lock() {
            self.goodbye(refusal, "the node closed the link");
            return false;
        }
        let room = waiting < OUT_BYTES_MAX;
        if room && full {
            return true;
        }
        let holds_buffers = incoming.holds_buffer() || waiting > 0;
        self.stream.wait(room, waiting > 0, holds_buffers.then_some(QUIET));
        let arrived = if room { incoming.fill(&self.stream) } else { Arrived::Bytes };
        if arrived == Arrived::Nothing {
            incoming.release();
            self.out.lock().release();
        }
        arrived != Arrived::End
    }

    /// Serves complete frames. Returns true if it stopped because too many bytes are unsent.
    fn serve_frames(&self, node: &Arc<Node>, incoming: &mut Incoming) -> Result<bool, Malformed> {
        while let Some((frame, bytes)) = incoming.frame()? {
            if self.out.lock().waiting() >= OUT_BYTES_MAX {
                return Ok(true);
            }
            if !self.has_spoken.load(Ordering::Relaxed) {
                self.has_spoken.store(true, Ordering::Relaxed);
            }
            let epoch = node.epoch();
            if epoch != self.epoch {
                // Frames for an earlier epoch are not executed in this one.
                self.close(Refusal::at(Reason::StaleEpoch, epoch.0));
                return Ok(false);
            }
            self.serve_frame(node, &frame)?;
            incoming.consume(bytes);
        }
        Ok(false)
    }

    fn serve_frame(&self, node: &Arc<Node>, frame: &Frame<'_>) -> Result<(), Malformed> {
        match frame.kind {
            Kind::Batch if matches!(self.one_sided, OneSided::Frames) => self.batch(node, frame),
            Kind::Attach => self.attach(node, frame),
            Kind::Detach if !matches!(self.one_sided, OneSided::Elsewhere) => Ok(()),
            Kind::Request => {
                let ask = Ask::decode(frame.body)?;
                ask.check_once()?;
                let arrival = self.arrival.load(Ordering::Relaxed);
                let delivery = Delivery { arrival, oldest: ask.oldest, retry: ask.retry };
                let request = self.request(frame.number, &ask);
                if let Some(answer) = node.request(request, delivery, &self.budget) {
                    self.put(Kind::Answer, frame.number, |out| put_answer(out, &answer));
                }
                Ok(())
            }
            Kind::Idempotent => {
                let ask = Ask::decode(frame.body)?;
                ask.check_idempotent()?;
                let link: Weak<dyn LinkEnd> = Weak::<Self>::clone(&self.me);
                let request = self.request(frame.number, &ask);
                if let Some(answer) = node.idempotent(request, link, &self.budget) {
                    self.put(Kind::IdempotentAnswer, frame.number, |out| put_answer(out, &answer));
                }
                Ok(())
            }
            _ => Err(NOT_HERE),
        }
    }

    fn request<'a>(&self, number: u64, ask: &Ask<'a>) -> Request<'a> {
        let (client, deadline, body) = (self.client, ask.deadline, ask.body);
        Request { client, number, deadline, answer_bytes_max: ask.answer_bytes_max, body }
    }

    fn attach(&self, node: &Node, frame: &Frame<'_>) -> Result<(), Malformed> {
        let key = decode_key(frame.body)?;
        let done = match &self.one_sided {
            OneSided::Elsewhere => return Err(NOT_HERE),
            OneSided::Frames => {
                let opened = node.attach(&key, self.path);
                let opened = opened.map(|(len, rights, _)| Opened { len, rights });
                self.put(Kind::Attached, frame.number, |out| Opened::encode(&opened, out));
                opened.is_ok()
            }
            #[cfg(feature = "ofi")]
            OneSided::Registered(registrar) => {
                let mut done = false;
                let attach = |out: &mut Vec<u8>| done = registrar.attach(node, &key, out);
                self.put(Kind::Attached, frame.number, attach);
                done
            }
        };
        if !done {
            node.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn batch(&self, node: &Arc<Node>, frame: &Frame<'_>) -> Result<(), Malformed> {
        let mut ops = Vec::new();
        decode_ops(frame.body, &mut ops)?;
        self.put(Kind::Done, frame.number, |out| {
            let keys = node.keys();
            for op in &ops {
                let before = out.len();
                if let Err(refusal) = self.execute(node, &keys, op, out) {
                    out.truncate(before);
                    put_refused(out, refusal);
                    node.counters.refused.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
            crate::memory::publish();
        });
        Ok(())
    }

    fn execute(
        &self,
        node: &Node,
        keys: &crate::node::Keys<'_>,
        op: &WireOp<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let offset = op.offset;
        let run = |access| node.execute(keys, op.region, op.tag, self.path, access);
        match op.action {
            WireAction::Read(len) => {
                let at = put_done_read(out, len);
                run(Access::Read { offset, into: &mut out[at..] })?;
            }
            WireAction::Write(bytes) => {
                run(Access::Write { offset, bytes })?;
                put_done(out, None);
            }
            WireAction::CompareSwap(expect, new) => {
                let word = run(Access::CompareSwap { offset, expect, new })?;
                put_done(out, Some(word));
            }
            WireAction::FetchAdd(add) => {
                let word = run(Access::FetchAdd { offset, add })?;
                put_done(out, Some(word));
            }
        }
        Ok(())
    }

    fn put(&self, kind: Kind, number: u64, fill: impl FnOnce(&mut Vec<u8>)) {
        put_frame(self.out.lock().buffer(), kind, number, fill);
    }

    fn goodbye(&self, refusal: Refusal, text: &str) {
        let mut frame = Vec::new();
        put_frame(&mut frame, Kind::Goodbye, 0, |body| {
            put_refused(body, refusal);
            body.extend_from_slice(text.as_bytes());
        });
        if self.stream.say_last(&frame) {
            return;
        }
        let mut out = self.out.lock();
        out.buffer().extend_from_slice(&frame);
        // The goodbye is best effort: a client that does not read does not get it.
        let _sent = out.flush(&self.stream, &self.taken);
    }
}

const NOT_HERE: Malformed = Malformed("a frame that a client does not send here");

impl<S: Stream> LinkEnd for Responder<S> {
    fn answer(&self, question: Question, answer: &Answer) {
        let (kind, number) = match question {
            Question::Once(number) => (Kind::Answer, number),
            Question::Idempotent(number) => (Kind::IdempotentAnswer, number),
        };
        let mut out = self.out.lock();
        put_frame(out.buffer(), kind, number, |body| put_answer(body, answer));
        // The service thread sends it if it is busy.
        if !self.busy.load(Ordering::SeqCst) {
            // The service thread notices a broken stream.
            let _sent = out.flush(&self.stream, &self.taken);
            if out.waiting() > 0 {
                self.stream.nudge();
            }
        }
    }

    fn close(&self, refusal: Refusal) {
        self.closing.lock().get_or_insert(refusal);
        self.stream.nudge();
    }
}
