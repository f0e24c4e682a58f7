//! What was written and acknowledged, by everybody, and what a reader may see.
//!
//! Each word of a block has a counter of writes; a write stores its number. Writers take numbers in
//! the order in which they begin. A reader that begins after a number was acknowledged must see it
//! or a later one that somebody began.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_base::Epoch;
use archipelago_pool::{BlockId, ClientId};
use parking_lot::Mutex;

/// A word: of which block, in which of its lives, where.
pub(crate) type Word = (BlockId, Epoch, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    begun: u64,
    acknowledged: u64,
}

#[derive(Debug, Default)]
struct State {
    words: BTreeMap<Word, Numbers>,
    /// Clients of which somebody was told that they are gone, and blocks for which that says
    /// nothing: the manager that said so had not heard of them. `None` until the world has looked.
    gone: BTreeMap<ClientId, Option<BTreeSet<BlockId>>>,
    /// What clients wrote that were gone when they began.
    late: Vec<(ClientId, BlockId)>,
    violations: Vec<String>,
    acknowledged: u64,
    reads: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Oracle(Mutex<State>);

impl Oracle {
    /// A write begins; its number.
    pub(crate) fn begin(&self, word: Word) -> u64 {
        let mut state = self.0.lock();
        let numbers = state.words.entry(word).or_default();
        numbers.begun += 1;
        numbers.begun
    }

    /// Somebody was told that none of the client's writes can take place any more.
    pub(crate) fn evicted(&self, client: ClientId) {
        self.0.lock().gone.entry(client).or_default();
    }

    /// Of clients that are gone since the last call: `unheard` are the blocks that the manager has
    /// not heard of.
    pub(crate) fn look_at_evictions(&self, unheard: impl FnOnce() -> BTreeSet<BlockId>) {
        let mut state = self.0.lock();
        if state.gone.values().any(Option::is_none) {
            let unheard = unheard();
            for excepted in state.gone.values_mut() {
                excepted.get_or_insert_with(|| unheard.clone());
            }
        }
    }

    /// Whether somebody was told that `client` is gone.
    pub(crate) fn is_gone(&self, client: ClientId) -> bool {
        self.0.lock().gone.contains_key(&client)
    }

    /// Whether that was said of `block`, too.
    pub(crate) fn is_out_of_reach(&self, client: ClientId, block: BlockId) -> bool {
        let state = self.0.lock();
        let excepted = state.gone.get(&client).and_then(Option::as_ref);
        excepted.is_some_and(|excepted| !excepted.contains(&block))
    }

    /// A client that was gone when it began has written.
    pub(crate) fn wrote_late(&self, client: ClientId, block: BlockId) {
        self.0.lock().late.push((client, block));
    }

    /// What clients wrote that were gone.
    pub(crate) fn late(&self) -> Vec<(ClientId, BlockId)> {
        self.0.lock().late.clone()
    }

    /// Clients that are gone.
    pub(crate) fn evictions(&self) -> u64 {
        self.0.lock().gone.len() as u64
    }

    /// The write of that number was acknowledged.
    pub(crate) fn acknowledge(&self, word: Word, number: u64) {
        let mut state = self.0.lock();
        state.acknowledged += 1;
        let numbers = state.words.entry(word).or_default();
        numbers.acknowledged = numbers.acknowledged.max(number);
    }

    /// What a read that begins now must see at least.
    pub(crate) fn floor(&self, word: Word) -> u64 {
        self.0.lock().words.get(&word).map_or(0, |numbers| numbers.acknowledged)
    }

    /// A read saw `number`.
    pub(crate) fn saw(&self, word: Word, floor: u64, number: u64, who: &str) {
        let mut state = self.0.lock();
        state.reads += 1;
        let begun = state.words.get(&word).map_or(0, |numbers| numbers.begun);
        if number < floor || number > begun {
            let (block, _, at) = word;
            state.violations.push(format!(
                "{who} saw {number} in word {at} of block {block}: {floor} was acknowledged, {begun} begun"
            ));
        }
    }

    pub(crate) fn violation(&self, what: String) {
        let mut state = self.0.lock();
        if !state.violations.contains(&what) {
            state.violations.push(what);
        }
    }

    /// The words of a block and what each must hold at least.
    pub(crate) fn words(&self, block: BlockId, born: Epoch) -> Vec<(Word, u64)> {
        let state = self.0.lock();
        let range = (block, born, 0)..=(block, born, u64::MAX);
        state.words.range(range).map(|(word, numbers)| (*word, numbers.acknowledged)).collect()
    }

    /// Blocks that something was acknowledged in.
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

    /// Writes acknowledged, reads checked.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.0.lock();
        (state.acknowledged, state.reads)
    }
}
