//! Reads of shards at memory nodes, on the threads of their callers: look-ups, pages and whole
//! images.
//!
//! A read that gets no answer, or is refused as busy, is repeated until its shards are lost or
//! [`OwnerTerms::patience`](super::OwnerTerms::patience) has passed. If a node does not answer, and
//! another one has a copy of a shard, the repetition and later reads go to that node, with a
//! patience of its own. All steps of a look-up or a page end at the deadline of the caller
//! ([`LookupAsk::time_left`]). A look-up may go to several nodes, and the owner merges their
//! answers. A page comes from one node. If the shards of a page lie at several nodes by now, the
//! owner notifies the database, which requests one page for each node.
//!
//! If the node does not know one shard, only that shard is lost there. The read then ends as busy,
//! and the database repeats it for the other shards. If a node returns wrong bytes, the read is
//! repeated once. After a second wrong answer the shards are lost at that node, because the
//! database can rebuild them.
//!
//! The node names values longer than [`inline_max`] by their places, and the owner reads them
//! one-sided.
//!
//! Cost: one round trip for a lookup, and one more if it finds long values.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::runtime::join_all;
use archipelago_engine::key::Kind;
use archipelago_engine::memtable::SealedImage;
use archipelago_engine::remote::{
    AwayError, KeyAsk, KeyVersions, LookupAnswer, LookupAsk, ScanAsk, ScanPage, ShardId,
};
use archipelago_fabric::MESSAGE_BYTES_MAX;

use super::counters::count;
use super::driver::OwnerDriver;
use super::links::{NoAnswer, NodeLinks, OneSidedFailure, PARALLEL_BYTES, Way};
use super::page::{self, PageReader};
use super::search::{Contradiction, Search};
use super::sends::head_sum;
use super::state::{ReadRoute, ReadTarget, ReadableShard};
use super::within::within;
use crate::decide::inline_max;
use crate::wire::shard::{ShardMessage, ShardRefusal, ShardWhy};

/// Limit of the values in the answer to a probe, in bytes. Probes keep the speed of long answers
/// measured.
const PROBE_BYTES: u32 = 16 << 10;
/// Largest answer about one key, in bytes: the longest value of an answer, and some merge operands.
const GET_BYTES_MAX: usize = 80 << 10;
/// Bytes that a page may have in addition to those that the reader wants.
const PAGE_BYTES_BESIDE: usize = 4096;
/// Number of long values that one read fetches at the same time.
const RECORDS_IN_PARALLEL: usize = 8;
/// Number of wrong answers after which the shards are lost.
const WRONG_MAX: u32 = 2;

/// Reason for which one attempt of a read failed.
enum ReadFailure {
    NoAnswer(NoAnswer),
    Refused(ShardRefusal),
    Wrong(&'static str),
}

impl From<NoAnswer> for ReadFailure {
    fn from(none: NoAnswer) -> Self {
        if none.is_malformed { Self::Wrong("unreadable bytes") } else { Self::NoAnswer(none) }
    }
}

impl From<Contradiction> for ReadFailure {
    fn from(Contradiction(what): Contradiction) -> Self {
        Self::Wrong(what)
    }
}

impl From<OneSidedFailure> for ReadFailure {
    fn from(failure: OneSidedFailure) -> Self {
        match failure {
            OneSidedFailure::NoAnswer(none) => none.into(),
            OneSidedFailure::Refused(_) => Self::Wrong("a place that cannot be read"),
        }
    }
}

/// The failure of a step that the deadline of its read has ended.
fn late() -> ReadFailure {
    ReadFailure::NoAnswer(NoAnswer::late())
}

/// The repetitions of one read.
struct ReadAttempts {
    /// Time after which the read is not repeated.
    until_ns: u64,
    /// Deadline of the caller, at which a step in progress ends as well.
    end_ns: u64,
    wrong: u32,
    /// Whether the read has changed to the other copy of a shard.
    has_moved: bool,
}

/// A node that answers for shards of a read, and the links to it.
struct LinkedRoute {
    route: ReadRoute,
    links: Arc<NodeLinks>,
}

/// The part of a look-up that one node answers.
struct AskPart<'a> {
    ask: LookupAsk<'a>,
    /// Positions of its keys in the whole look-up.
    keys: Vec<usize>,
}

/// Makes the part of a look-up that the node of `route` answers.
fn part_at<'a>(ask: &LookupAsk<'a>, route: &ReadRoute) -> AskPart<'a> {
    let mut part = AskPart {
        ask: LookupAsk {
            node: route.node,
            shards: route.shards.clone(),
            keys: Vec::new(),
            snapshot: ask.snapshot,
            keys_only: ask.keys_only,
            time_left: ask.time_left,
        },
        keys: Vec::new(),
    };
    for (position, asked) in ask.keys.iter().enumerate() {
        let here = asked.within.iter().filter_map(|at| {
            let shard = ask.shards.get(*at as usize)?;
            route.shards.iter().position(|known| known == shard)
        });
        let within: Vec<u32> = here.map(|at| at as u32).collect();
        if !within.is_empty() {
            part.ask.keys.push(KeyAsk { within, ..asked.clone() });
            part.keys.push(position);
        }
    }
    part
}

/// The versions of several shards, newest first, through the first that is no merge operand.
fn merged(mut found: KeyVersions) -> KeyVersions {
    found.versions.sort_by_key(|version| std::cmp::Reverse(version.seq));
    let last = found.versions.iter().position(|version| version.kind != Kind::Merge);
    found.versions.truncate(last.map_or(found.versions.len(), |last| last + 1));
    found
}

impl OwnerDriver {
    /// The attempts of a read that ends at `end_ns`.
    fn attempts(&self, end_ns: u64) -> ReadAttempts {
        let patience_ns = self.now_ns() + self.terms().patience.as_nanos() as u64;
        ReadAttempts { until_ns: patience_ns.min(end_ns), end_ns, wrong: 0, has_moved: false }
    }

    /// The time of this owner at which a read ends that has `left`.
    pub(super) fn end_of(&self, left: Duration) -> u64 {
        self.now_ns().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Runs a step of a read. The result is `None` if the step has not ended at `end_ns`. A step
    /// takes no more than `longest`, so most steps need no timer.
    pub(super) async fn in_time<T>(
        &self,
        end_ns: u64,
        longest: Duration,
        step: impl Future<Output = T>,
    ) -> Option<T> {
        let left = Duration::from_nanos(end_ns.saturating_sub(self.now_ns()));
        if left >= longest {
            return Some(step.await);
        }
        within(&*self.parts.runtime, left, step).await
    }

    /// The nodes that answer for these shards, and the links to them.
    fn routes(&self, shards: &[ShardId]) -> Result<Vec<LinkedRoute>, AwayError> {
        let linked = |route: ReadRoute| {
            let links = self.links(route.node)?;
            Some(LinkedRoute { route, links })
        };
        // The life of a node may end between the two look-ups. The state then knows the other
        // copies already.
        for _ in 0..2 {
            let routes = self.state.lock().routes(shards)?;
            let linked: Option<Vec<LinkedRoute>> = routes.into_iter().map(linked).collect();
            if let Some(routes) = linked {
                return Ok(routes);
            }
        }
        Err(AwayError::Lost("the life of their memory node is over".to_owned()))
    }

    /// The node that answers for one shard.
    fn route(&self, shard: ShardId) -> Result<LinkedRoute, AwayError> {
        let gone = || AwayError::Lost(format!("no memory node has shard {shard} any more"));
        self.routes(&[shard])?.pop().ok_or_else(gone)
    }

    /// Notes that a node did not answer a read. Returns whether the read changes to other copies of
    /// its shards for the first time. It then has a new patience.
    fn has_moved(&self, attempts: &mut ReadAttempts, scope: &ReadRoute) -> bool {
        let has_moved = self.state.lock().avoid(scope.node, &scope.shards);
        self.tell_news();
        if !has_moved || attempts.has_moved {
            return false;
        }
        *attempts = ReadAttempts { has_moved: true, ..self.attempts(attempts.end_ns) };
        true
    }

    /// Decides whether a read is repeated. An error ends it.
    async fn after(
        &self,
        attempts: &mut ReadAttempts,
        scope: &ReadRoute,
        failure: ReadFailure,
    ) -> Result<(), AwayError> {
        let lost = |why: String| {
            self.state.lock().lose(scope.node, &scope.shards);
            self.tell_news();
            // Another node may have all of these shards.
            let is_elsewhere = self.state.lock().routes(&scope.shards).is_ok();
            if is_elsewhere { Ok(()) } else { Err(AwayError::Lost(why)) }
        };
        let why = match failure {
            ReadFailure::NoAnswer(none) => {
                // A step that the deadline has cut short says nothing about the node.
                let is_late = self.now_ns() >= attempts.end_ns;
                if !is_late && self.has_moved(attempts, scope) {
                    count(&self.tally.repeated, 1);
                    return Ok(());
                }
                none.why
            }
            ReadFailure::Refused(ShardRefusal { why: ShardWhy::UnknownShard, shard, .. }) => {
                let named = shard.and_then(|name| self.state.lock().id_of(name));
                let Some(id) = named.filter(|id| scope.shards.contains(id)) else {
                    return lost("their memory node does not have them".to_owned());
                };
                // The node may still have the other shards. The next attempt reports the lost shard
                // to the caller.
                self.state.lock().lose(scope.node, &[id]);
                self.ring(scope.node);
                self.tell_news();
                return Ok(());
            }
            ReadFailure::Refused(refusal) => {
                self.state.lock().on_refused(self.now_ns(), scope.node, &refusal);
                self.ring(scope.node);
                self.tell_news();
                match refusal.why {
                    // If the node has forgotten the owner, the next attempt finds the shards lost.
                    ShardWhy::Busy | ShardWhy::NotBegun => {}
                    ShardWhy::OldEpoch | ShardWhy::OtherToken => {
                        return lost(refusal.to_string());
                    }
                    _ => {
                        tracing::error!(%refusal, "a memory node refused a read");
                        return lost(refusal.to_string());
                    }
                }
                refusal.to_string()
            }
            ReadFailure::Wrong(what) => {
                tracing::error!(node = %scope.node, what, "a memory node gave a wrong answer");
                attempts.wrong += 1;
                if attempts.wrong >= WRONG_MAX {
                    attempts.wrong = 0;
                    return lost(format!("a memory node gave {what}"));
                }
                what.to_owned()
            }
        };
        count(&self.tally.repeated, 1);
        if self.now_ns() >= attempts.until_ns {
            count(&self.tally.busy, 1);
            return Err(AwayError::Busy(why));
        }
        self.pause().await;
        Ok(())
    }

    /// Looks keys up, for all asks in parallel.
    pub(super) async fn look_up(
        &self,
        asks: &[LookupAsk<'_>],
    ) -> Vec<Result<LookupAnswer, AwayError>> {
        match asks {
            [ask] => vec![self.look_up_one(ask).await],
            asks => join_all(asks.iter().map(|ask| self.look_up_one(ask))).await,
        }
    }

    /// Requests all keys from the node. The read ends at `end_ns`.
    pub(super) async fn ask_node(
        &self,
        ask: &LookupAsk<'_>,
        end_ns: u64,
    ) -> Result<LookupAnswer, AwayError> {
        let mut attempts = self.attempts(end_ns);
        loop {
            let routes = self.routes(&ask.shards)?;
            let tried = match &routes[..] {
                [at] => {
                    let tried = self.try_lookup(ask, at, end_ns).await;
                    tried.map_err(|failure| (&at.route, failure))
                }
                routes => self.try_parts(ask, routes, end_ns).await,
            };
            match tried {
                Ok(answer) => {
                    count(&self.tally.keys, ask.keys.len() as u64);
                    return Ok(answer);
                }
                Err((route, failure)) => self.after(&mut attempts, route, failure).await?,
            }
        }
    }

    /// Looks keys up at several nodes, and merges their answers. A failure names its route.
    async fn try_parts<'a>(
        &self,
        ask: &LookupAsk<'_>,
        routes: &'a [LinkedRoute],
        end_ns: u64,
    ) -> Result<LookupAnswer, (&'a ReadRoute, ReadFailure)> {
        let parts: Vec<AskPart<'_>> = routes.iter().map(|at| part_at(ask, &at.route)).collect();
        let asks = routes.iter().zip(&parts).map(async |(at, part)| match part.keys.is_empty() {
            true => Ok(LookupAnswer::default()),
            false => self.try_lookup(&part.ask, at, end_ns).await,
        });
        let answers = join_all(asks).await;
        let mut found = vec![KeyVersions::default(); ask.keys.len()];
        for ((at, part), answer) in routes.iter().zip(&parts).zip(answers) {
            let answer = answer.map_err(|failure| (&at.route, failure))?;
            for (key, versions) in part.keys.iter().zip(answer.keys) {
                found[*key].versions.extend(versions.versions);
            }
        }
        Ok(LookupAnswer { keys: found.into_iter().map(merged).collect() })
    }

    async fn try_lookup(
        &self,
        ask: &LookupAsk<'_>,
        at: &LinkedRoute,
        end_ns: u64,
    ) -> Result<LookupAnswer, ReadFailure> {
        let (target, links) = (&at.route.target, &*at.links);
        let meter = links.meter();
        let inline_max = inline_max(&meter.figures_of_answers());
        let inline_max =
            if meter.is_answer_probe() { inline_max.max(PROBE_BYTES) } else { inline_max };
        let wants_place = self.wants_places();
        let mut search = Search::new(self.owner, ask, &target.names, inline_max, wants_place);
        while let Some(request) = search.next_request() {
            let bytes_max = match request {
                ShardMessage::Get { .. } => GET_BYTES_MAX,
                _ => MESSAGE_BYTES_MAX,
            };
            let answer = self.answer(links, &request, bytes_max, end_ns).await?;
            if let ShardMessage::Refused { refusal } = answer {
                return Err(ReadFailure::Refused(refusal));
            }
            search.on_answer(answer)?;
        }
        let records = search.records().to_vec();
        for some in records.chunks(RECORDS_IN_PARALLEL) {
            let reads = some.iter().map(|record| {
                let shard = target.shards.get(record.shard);
                self.record(links, shard, record.at, record.len)
            });
            let longest = self.longest_record(some.iter().map(|record| record.len));
            let read = self.in_time(end_ns, longest, join_all(reads)).await;
            for (record, bytes) in some.iter().zip(read.ok_or_else(late)?) {
                if !search.on_record(*record, &bytes?) {
                    return Err(ReadFailure::Wrong("another record than it named"));
                }
            }
        }
        self.learn(ask, search.newest());
        Ok(search.finish())
    }

    /// The answer of a node to a request of a read that ends at `end_ns`.
    async fn answer(
        &self,
        links: &NodeLinks,
        request: &ShardMessage,
        bytes_max: usize,
        end_ns: u64,
    ) -> Result<ShardMessage, ReadFailure> {
        // A request may wait for a link, and then for the answer.
        let longest = 2 * self.terms().request;
        let answer = links.ask(Way::Asks, request, bytes_max);
        Ok(self.in_time(end_ns, longest, answer).await.ok_or_else(late)??)
    }

    /// Longest time of [`OwnerDriver::record`] for records of these lengths: for a link, a region
    /// and the bytes. It is unknown for records whose parts wait for each other.
    fn longest_record(&self, mut lens: impl Iterator<Item = u64>) -> Duration {
        match lens.all(|len| len <= PARALLEL_BYTES) {
            true => 2 * self.terms().request + self.terms().patience,
            false => Duration::MAX,
        }
    }

    /// Reads a record of an image one-sided.
    async fn record(
        &self,
        links: &NodeLinks,
        shard: Option<&ReadableShard>,
        at: u64,
        len: u64,
    ) -> Result<Vec<u8>, ReadFailure> {
        let place = shard.map(|shard| shard.place);
        let fits = |bytes: u64| at.checked_add(len).is_some_and(|end| end <= bytes);
        let Some(place) = place.filter(|place| fits(place.bytes)) else {
            return Err(ReadFailure::Wrong("the place of a record outside of its image"));
        };
        count(&self.tally.records, 1);
        Ok(links.read(&place.key, place.at + at, len).await?)
    }

    /// A page of a scan.
    pub(super) async fn scan(&self, ask: &ScanAsk<'_>) -> Result<ScanPage, AwayError> {
        let mut attempts = self.attempts(self.end_of(ask.time_left));
        loop {
            let routes = self.routes(ask.shards)?;
            let [at] = &routes[..] else {
                self.state.lock().tell_places(ask.shards);
                self.tell_news();
                let why = "the shards now lie at several memory nodes: request one page for each";
                return Err(AwayError::Busy(why.to_owned()));
            };
            match self.try_page(ask, at, attempts.end_ns).await {
                Ok(page) => {
                    count(&self.tally.pages, 1);
                    return Ok(page);
                }
                Err(failure) => self.after(&mut attempts, &at.route, failure).await?,
            }
        }
    }

    async fn try_page(
        &self,
        ask: &ScanAsk<'_>,
        at: &LinkedRoute,
        end_ns: u64,
    ) -> Result<ScanPage, ReadFailure> {
        let (target, links) = (&at.route.target, &*at.links);
        // A page has at least one record, whose key may be long.
        let bytes_max = ask.bytes_max.min(MESSAGE_BYTES_MAX - PAGE_BYTES_BESIDE);
        let wanted = u32::try_from(bytes_max).unwrap_or(u32::MAX);
        let inline_max = inline_max(&links.meter().figures_of_answers());
        let request = page::request(self.owner, ask, &target.names, wanted, inline_max);
        let answer = self.answer(links, &request, MESSAGE_BYTES_MAX, end_ns).await?;
        if let ShardMessage::Refused { refusal } = answer {
            return Err(ReadFailure::Refused(refusal));
        }
        let mut reader = PageReader::new(ask, answer)?;
        let records = reader.records().to_vec();
        for some in records.chunks(RECORDS_IN_PARALLEL) {
            let reads = some.iter().map(|record| {
                let shard = target.shards.get(record.shard);
                self.record(links, shard, record.at, record.len)
            });
            let longest = self.longest_record(some.iter().map(|record| record.len));
            let read = self.in_time(end_ns, longest, join_all(reads)).await;
            for (record, bytes) in some.iter().zip(read.ok_or_else(late)?) {
                if !reader.on_record(*record, &bytes?) {
                    return Err(ReadFailure::Wrong("another record than it named"));
                }
            }
        }
        Ok(reader.finish())
    }

    /// The whole image of a shard.
    pub(super) async fn fetch(&self, id: ShardId) -> Result<Arc<SealedImage>, AwayError> {
        // A flush has no deadline. The time for an image limits each attempt.
        let mut attempts = self.attempts(u64::MAX);
        let begin_ns = self.now_ns();
        loop {
            let LinkedRoute { route, links } = self.route(id)?;
            let bytes: u64 = route.target.shards.iter().map(|shard| shard.place.bytes).sum();
            let end_ns = begin_ns + self.terms().image(bytes).as_nanos() as u64;
            match self.fetch_image(&route.target, &links, end_ns).await {
                Ok(image) => {
                    count(&self.tally.fetched, 1);
                    count(&self.tally.fetched_bytes, bytes);
                    return Ok(image);
                }
                Err(failure) => self.after(&mut attempts, &route, failure).await?,
            }
        }
    }

    /// Reads a whole image one-sided. The read fails at `end_ns`.
    async fn fetch_image(
        &self,
        target: &ReadTarget,
        links: &NodeLinks,
        end_ns: u64,
    ) -> Result<Arc<SealedImage>, ReadFailure> {
        let [shard] = target.shards[..] else {
            return Err(ReadFailure::Wrong("another number of images"));
        };
        let place = shard.place;
        let bytes = self.until(end_ns, links.read(&place.key, place.at, place.bytes)).await?;
        if head_sum(&bytes) != shard.head_sum {
            return Err(ReadFailure::Wrong("another image than the one that was sent"));
        }
        SealedImage::open(bytes).map_err(|_| ReadFailure::Wrong("a damaged image"))
    }
}
