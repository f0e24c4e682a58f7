//! The oracle: it records which writes were acknowledged, and decides which values a reader may
//! see.
//!
//! Each word of a block has a counter of writes, and a write stores its number. Writers take
//! numbers in the order in which they begin. A read that begins after a number was acknowledged
//! must see that number or a later one that a writer has begun.
//!
//! Thread-safety: any thread may call any method. Failure: violations are collected, and the run
//! reports them at its end.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Epoch;
use archipelago_pool::{BlockId, ClientId};
use parking_lot::Mutex;

/// A word: its block, the epoch in which the block was born, and its place in the block.
pub(crate) type Word = (BlockId, Epoch, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    begun: u64,
    acknowledged: u64,
}

#[derive(Debug, Default)]
struct OracleState {
    words: BTreeMap<Word, Numbers>,
    /// Clients that the manager reported as evicted. The report does not cover blocks that no node
    /// had reported to the manager. `None` until the run has collected those blocks.
    gone: BTreeMap<ClientId, Option<BTreeSet<BlockId>>>,
    /// Blocks to which a client wrote after it was reported as evicted.
    late: Vec<(ClientId, BlockId)>,
    violations: Vec<String>,
    acknowledged: u64,
    reads: u64,
}

/// Judge of the values that clients write and read.
#[derive(Debug, Default)]
pub(crate) struct Oracle(Mutex<OracleState>);

impl Oracle {
    /// Begins a write, and returns its number.
    pub(crate) fn begin(&self, word: Word) -> u64 {
        let mut state = self.0.lock();
        let numbers = state.words.entry(word).or_default();
        numbers.begun += 1;
        numbers.begun
    }

    /// Records the report that no write of the client can take place any more.
    pub(crate) fn evicted(&self, client: ClientId) {
        self.0.lock().gone.entry(client).or_default();
    }

    /// Collects the blocks that no node has reported to the manager, for clients that were evicted
    /// since the last call.
    pub(crate) fn look_at_evictions(&self, unheard: impl FnOnce() -> BTreeSet<BlockId>) {
        let mut state = self.0.lock();
        if state.gone.values().any(Option::is_none) {
            let unheard = unheard();
            for excepted in state.gone.values_mut() {
                excepted.get_or_insert_with(|| unheard.clone());
            }
        }
    }

    /// Whether `client` was reported as evicted.
    pub(crate) fn is_gone(&self, client: ClientId) -> bool {
        self.0.lock().gone.contains_key(&client)
    }

    /// Whether the report about `client` covers `block`.
    pub(crate) fn is_out_of_reach(&self, client: ClientId, block: BlockId) -> bool {
        let state = self.0.lock();
        let excepted = state.gone.get(&client).and_then(Option::as_ref);
        excepted.is_some_and(|excepted| !excepted.contains(&block))
    }

    /// Records a write of a client that was evicted before the write began.
    pub(crate) fn wrote_late(&self, client: ClientId, block: BlockId) {
        self.0.lock().late.push((client, block));
    }

    /// Writes of clients that were evicted before.
    pub(crate) fn late(&self) -> Vec<(ClientId, BlockId)> {
        self.0.lock().late.clone()
    }

    /// Number of evicted clients.
    pub(crate) fn evictions(&self) -> u64 {
        self.0.lock().gone.len() as u64
    }

    /// Records that the write of that number was acknowledged.
    pub(crate) fn acknowledge(&self, word: Word, number: u64) {
        let mut state = self.0.lock();
        state.acknowledged += 1;
        let numbers = state.words.entry(word).or_default();
        numbers.acknowledged = numbers.acknowledged.max(number);
    }

    /// Smallest number that a read may see if it begins now.
    pub(crate) fn floor(&self, word: Word) -> u64 {
        self.0.lock().words.get(&word).map_or(0, |numbers| numbers.acknowledged)
    }

    /// Checks that a read may see `number`.
    pub(crate) fn saw(&self, word: Word, floor: u64, number: u64, who: &str) {
        let mut state = self.0.lock();
        state.reads += 1;
        let begun = state.words.get(&word).map_or(0, |numbers| numbers.begun);
        if number < floor || number > begun {
            let (block, _, at) = word;
            state.violations.push(format!(
                "{who} saw {number} in word {at} of block {block}: {floor} was acknowledged, and {begun} \
                 was begun"
            ));
        }
    }

    pub(crate) fn violation(&self, what: String) {
        let mut state = self.0.lock();
        if !state.violations.contains(&what) {
            state.violations.push(what);
        }
    }

    /// The words of a block, and the smallest number that each of them may hold.
    pub(crate) fn words(&self, block: BlockId, born: Epoch) -> Vec<(Word, u64)> {
        let state = self.0.lock();
        let range = (block, born, 0)..=(block, born, u64::MAX);
        state.words.range(range).map(|(word, numbers)| (*word, numbers.acknowledged)).collect()
    }

    /// Blocks with at least one acknowledged write.
    pub(crate) fn blocks(&self) -> Vec<(BlockId, Epoch)> {
        let state = self.0.lock();
        let written = state.words.iter().filter(|(_, numbers)| numbers.acknowledged > 0);
        let mut blocks: Vec<_> = written.map(|((block, born, _), _)| (*block, *born)).collect();
        blocks.dedup();
        blocks
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    /// Number of acknowledged writes, and of checked reads.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.0.lock();
        (state.acknowledged, state.reads)
    }
}
