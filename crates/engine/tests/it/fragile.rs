//! Extensions that behave like the built-in ones, and panic on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_engine::event::{Event, EventListener};
use archipelago_engine::extension::{
    AppendMerge, CompactionFilter, CounterMerge, FilterDecision, MergeOperator, Registry, TtlFilter,
};

/// Sets when the extensions of a database panic. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Fragile {
    /// Calls of a merge operator or filter until one panics; 0 disables the panic.
    calls: Arc<AtomicU64>,
    /// Events until the listener panics; 0 disables the panic.
    events: Arc<AtomicU64>,
    seen: Arc<AtomicU64>,
    panicked: Arc<AtomicU64>,
    paused: Arc<AtomicBool>,
}

impl Fragile {
    /// The built-in extensions, each with the panics.
    pub(crate) fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let operators: [Arc<dyn MergeOperator>; 2] =
            [Arc::new(CounterMerge), Arc::new(AppendMerge)];
        for operator in operators {
            registry.add_merge_operator(Arc::new(FragileMerge(self.clone(), operator)));
        }
        registry.add_compaction_filter(Arc::new(FragileTtl(self.clone())));
        registry
    }

    /// Makes the `nth` call from now on panic; 0 disables the panic.
    pub(crate) fn arm(&self, nth: u64) {
        self.calls.store(nth, Ordering::SeqCst);
    }

    /// Makes the listener panic at the `nth` event from now on.
    pub(crate) fn arm_listener(&self, nth: u64) {
        self.events.store(nth, Ordering::SeqCst);
    }

    /// While `paused` is set, calls do not count.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    /// Number of calls that counted so far.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }

    /// Number of panics of operators and filters.
    pub(crate) fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::SeqCst)
    }

    /// Whether the error has the form that such a panic must cause.
    pub(crate) fn is_named_in(error: &Error) -> bool {
        let text = error.to_string();
        let named = ["merge operator \"", "compaction filter \""];
        error.kind() == ErrorKind::Internal
            && named.iter().any(|name| text.contains(name))
            && text.contains(" of column family \"")
            && text.contains("panicked")
            && text.contains("on purpose")
    }

    fn called(&self) {
        if self.paused.load(Ordering::SeqCst) {
            return;
        }
        self.seen.fetch_add(1, Ordering::SeqCst);
        if counted_down(&self.calls) {
            self.panicked.fetch_add(1, Ordering::SeqCst);
            panic!("on purpose");
        }
    }
}

fn counted_down(left: &AtomicU64) -> bool {
    let down = |left: u64| left.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, down) == Ok(1)
}

struct FragileMerge(Fragile, Arc<dyn MergeOperator>);

impl MergeOperator for FragileMerge {
    fn name(&self) -> &str {
        self.1.name()
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Vec<u8>> {
        self.0.called();
        self.1.full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.0.called();
        self.1.partial_merge(key, operands)
    }
}

struct FragileTtl(Fragile);

impl CompactionFilter for FragileTtl {
    fn name(&self) -> &str {
        TtlFilter.name()
    }

    fn filter(&self, key: &[u8], value: &[u8], expiry: Option<u64>, now: u64) -> FilterDecision {
        self.0.called();
        TtlFilter.filter(key, value, expiry, now)
    }
}

impl EventListener for Fragile {
    fn on_event(&self, _event: &Event) {
        assert!(!counted_down(&self.events), "on purpose");
    }
}
