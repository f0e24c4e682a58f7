//! The client's end of `ofi`: attached regions, the checks before an operation leaves, and the
//! engines for operations and messages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use archipelago_base::Result;
use parking_lot::RwLock;

use super::control::Control;
use super::engine::{Engine, Target};
use super::flight::Known;
use super::messages::Messages;
use super::{Ofi, unusable};
use crate::batch::{Attached, Batch, Op, Outcome};
use crate::body::Body;
use crate::ids::{RemoteKey, Rights};
use crate::link::{Call, Connect, Link, LinkStats, Peer, Session};
use crate::node::{allowed, key_of};
use crate::promise::Promise;
use crate::refusal::{Reason, Refusal};
use crate::stream::{Incoming, Initiator, call};
use crate::tcp::dial;
use crate::tcp::socket::Socket;
use crate::wire::Opened;
use crate::wire::ofi::{Endpoints, OpenedOnCard};

type Regions = Vec<Option<Arc<Known>>>;

pub(super) struct OfiLink {
    number: u32,
    peer: Peer,
    regions: Arc<RwLock<Regions>>,
    core: Arc<Initiator<Messages>>,
    engine: Arc<Engine>,
}

impl fmt::Debug for OfiLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfiLink(node {} in epoch {})", self.peer.node, self.peer.epoch)
    }
}

impl OfiLink {
    pub(super) fn connect(ofi: &Ofi, to: &Connect) -> Result<Self> {
        let what = format!("cannot link to the node at {}", to.address);
        let refused = |refusal: Refusal| refusal.error(&what);
        let socket = Socket::new(dial(to)?)?;
        let local = socket.local().map_err(|source| {
            archipelago_base::Error::with_source(archipelago_base::ErrorKind::Io, &*what, source)
        })?;
        let called = call(&socket, &*ofi.clock, to, ofi.secret.as_ref());
        let called = called.map_err(|refusal| ofi.report.of_client(&to.address, refusal));
        let (peer, incoming) = called.map_err(refused)?;
        let domain = ofi.domain(local)?;
        let messages = Messages::open(&domain)?;
        let control = Arc::new(Control::new(socket, incoming)?);
        let mine = Endpoints {
            provider: ofi.name.to_string(),
            operations: Vec::new(),
            messages: messages.name().map_err(unusable)?,
        };
        let theirs = control.hear(&*ofi.clock, to.deadline).map_err(refused)?;
        if theirs.provider != mine.provider {
            let other = format!("{what}: it is served over libfabric's {}", theirs.provider);
            return Err(archipelago_base::Error::invalid(other));
        }
        control.tell(Vec::new(), &mine).map_err(refused)?;
        let messages = Messages::new(messages, Arc::clone(&control));
        messages.join(&theirs.messages).map_err(unusable)?;
        let end_ns = ofi.clock.now_ns().saturating_add(to.deadline.as_nanos() as u64);
        let clock = &*ofi.clock;
        messages.knock(clock, end_ns).map_err(refused)?;
        let (session, clock) = (Arc::clone(&to.session), Arc::clone(&ofi.clock));
        let core = Initiator::new(messages, session, clock, to.deadline, Incoming::new());
        let target = Target { domain, name: theirs.operations };
        let engine = Engine::connect(target, &control, &core, &ofi.clock, to.deadline)?;
        Ok(Self { number: crate::link::number(), peer, regions: Arc::default(), core, engine })
    }

    /// The regions of the operations before the first one that is refused here, and that refusal.
    fn checked(&self, batch: &Batch) -> (Vec<Arc<Known>>, Option<Refusal>) {
        let regions = self.regions.read();
        let mut checked = Vec::with_capacity(batch.len());
        for &op in batch.ops() {
            match check(&regions, self.number, op) {
                Ok(known) => checked.push(Arc::clone(known)),
                Err(refusal) => return (checked, Some(refusal)),
            }
        }
        (checked, None)
    }

    fn live(&self) -> Result<(), Refusal> {
        self.core.down().or_else(|| self.engine.down()).map_or(Ok(()), Err)
    }
}

fn check(regions: &Regions, link: u32, op: Op) -> Result<&Arc<Known>, Refusal> {
    let region = op.region();
    let known = regions.get(region.index as usize).and_then(Option::as_ref);
    let known = known.filter(|_| region.link == link).ok_or(Reason::NotAttached)?;
    let (need, offset, len) = match op {
        Op::Read { offset, len, .. } => (Rights::READ, offset, u64::from(len)),
        Op::Write { offset, len, .. } => (Rights::WRITE, offset, u64::from(len)),
        Op::CompareSwap { offset, .. } | Op::FetchAdd { offset, .. } => (Rights::ATOMIC, offset, 8),
    };
    allowed(known.rights, known.bytes, need, offset, len)?;
    Ok(known)
}

impl Link for OfiLink {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn session(&self) -> &Arc<Session> {
        self.core.session()
    }

    fn attach(&self, key: &RemoteKey) -> Promise<Result<Attached, Refusal>> {
        if let Err(refusal) = key_of(key, self.peer.node, self.peer.epoch) {
            return Promise::ready(Err(refusal));
        }
        let (regions, link, key) = (Arc::clone(&self.regions), self.number, *key);
        self.core.attach(
            |out| key.encode(out),
            move |body| {
                let opened = OpenedOnCard::decode(body)?;
                Ok(opened.map(|OpenedOnCard { opened: Opened { len: bytes, rights }, place }| {
                    let mut regions = regions.write();
                    regions.push(Some(Arc::new(Known { key, bytes, rights, place })));
                    Attached { link, index: regions.len() as u32 - 1 }
                }))
            },
        )
    }

    fn detach(&self, region: Attached) {
        if region.link == self.number
            && let Some(slot) = self.regions.write().get_mut(region.index as usize)
        {
            *slot = None;
        }
    }

    fn post(&self, mut batch: Batch) -> Promise<Batch> {
        if let Err(refusal) = batch.begin().and_then(|()| self.live()) {
            batch.refuse_all(refusal);
            return Promise::ready(batch);
        }
        let (regions, refused) = self.checked(&batch);
        if let Some(refusal) = refused.filter(|refusal| refusal.reason == Reason::NotAttached) {
            // Nothing is sent, so the operations before it are not tried either.
            batch.refuse_all(Reason::Skipped.into());
            batch.finish(regions.len(), Outcome::Refused(refusal));
            return Promise::ready(batch);
        }
        self.engine.post(batch, regions, refused)
    }

    fn request(&self, call: Call<'_>) -> Promise<Result<Body, Refusal>> {
        self.core.request(call)
    }

    fn flush(&self) {
        self.core.send_or_nudge();
    }

    fn closed(&self) -> Option<Refusal> {
        self.live().err()
    }

    fn close(&self) {
        self.core.close();
        self.engine.close();
    }

    fn stats(&self) -> LinkStats {
        let messages = self.core.stats();
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        LinkStats {
            batches: get(&self.engine.batches),
            operations: get(&self.engine.operations),
            packets: messages.packets + get(&self.engine.posted),
            sent_bytes: messages.sent_bytes + get(&self.engine.posted_bytes),
        }
    }
}

impl Drop for OfiLink {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use archipelago_base::Epoch;

    use super::*;
    use crate::ids::NodeId;
    use crate::node::{AtomicPath, Node};
    use crate::{Provider, Region};

    const BYTES: usize = 4096;
    const END: u64 = BYTES as u64;

    type Fill = fn(&mut Batch, Attached);

    /// A link whose client wrongly believes that a key of `rights` permits everything.
    fn lying(ofi: &Ofi, address: &str, region: &Region, rights: Rights) -> (OfiLink, Attached) {
        let mut to = Connect::to(address, &Session::fresh());
        to.deadline = Duration::from_secs(30);
        let link = OfiLink::connect(ofi, &to).expect("a link");
        let key = region.grant(rights).expect("room");
        let attached = link.attach(&key).wait().expect("attached");
        {
            let mut regions = link.regions.write();
            let known = regions[0].as_ref().expect("attached");
            let lie = Known { key, bytes: u64::MAX, rights: Rights::ALL, place: known.place };
            regions[0] = Some(Arc::new(lie));
        }
        (link, attached)
    }

    #[test]
    fn registration_stops_a_client_without_checks() {
        let ofi = Ofi::over("tcp;ofi_rxm");
        let node = Node::new(NodeId(1), Epoch(1), None).expect("a node");
        let region = node.allocate(BYTES, AtomicPath::Card).expect("memory");
        let listener = ofi.serve(&node, "127.0.0.1:0").expect("a listener");
        let lies: [(Rights, Fill); 7] = [
            (Rights::READ, |batch, at| _ = batch.write(at, 0, &[7; 8])),
            (Rights::READ, |batch, at| _ = batch.fetch_add(at, 0, 1)),
            (Rights::WRITE, |batch, at| _ = batch.read(at, 0, 8)),
            (Rights::WRITE, |batch, at| _ = batch.compare_swap(at, 0, 0, 1)),
            (Rights::ALL, |batch, at| _ = batch.read(at, END, 8)),
            (Rights::ALL, |batch, at| _ = batch.write(at, END - 4, &[7; 8])),
            (Rights::ALL, |batch, at| _ = batch.fetch_add(at, END, 1)),
        ];
        for (count, (rights, fill)) in lies.into_iter().enumerate() {
            let (link, attached) = lying(&ofi, listener.address(), &region, rights);
            let mut batch = Batch::new();
            fill(&mut batch, attached);
            let batch = link.post(batch).wait();
            // The key is valid, so the cause is unknown and the link ends.
            let refusal = batch.refusal().map(|(_, refusal)| refusal.reason);
            assert_eq!(refusal, Some(Reason::Disconnected), "lie {count}");
            assert!(link.closed().is_some(), "lie {count}");
            let mut all = [0; BYTES];
            region.read(0, &mut all).expect("in range");
            assert_eq!(all, [0; BYTES], "lie {count}");
        }
    }
}
