use std::sync::mpsc;

use super::*;

const DEEP: Kind = Kind::Compaction(6);

/// Begins in threads of their own, one after another; each tells its kind when its turn comes,
/// and hands the turn over.
struct World {
    slots: Arc<WriteSlots>,
    tell: mpsc::Sender<(Kind, WriteSlot)>,
    told: mpsc::Receiver<(Kind, WriteSlot)>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl World {
    fn new() -> Self {
        let (tell, told) = mpsc::channel();
        Self { slots: Arc::default(), tell, told, threads: Vec::new() }
    }

    #[expect(clippy::disallowed_methods, reason = "a test of threads")]
    fn ask(&mut self, kind: Kind, limit: u32) {
        let (slots, tell) = (Arc::clone(&self.slots), self.tell.clone());
        let asked = self.slots.state.lock().next_ticket;
        self.threads.push(thread::spawn(move || {
            let turn = slots.begin(kind, limit);
            tell.send((kind, turn)).expect("the test listens");
        }));
        while self.slots.state.lock().next_ticket == asked {
            thread::yield_now();
        }
    }

    fn next(&self) -> (Kind, WriteSlot) {
        self.told.recv().expect("a turn")
    }

    /// Whose turn it became, in order, while so many wait on.
    fn began(&self, kinds: &[Kind], waiting: usize) -> Vec<WriteSlot> {
        let slots = kinds.iter().map(|&kind| {
            let (began, turn) = self.next();
            assert_eq!(began, kind);
            turn
        });
        let slots = slots.collect();
        assert_eq!(self.slots.waiting(), waiting);
        slots
    }

    fn end(self) {
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let state = self.slots.state.lock();
        let left = (state.urgent, state.flushes, state.compactions, state.writing.len());
        assert_eq!((left, state.waiting.len()), ((0, 0, 0, 0), 0));
    }
}

const LIMIT: u32 = 4;

#[test]
fn tables_wait_for_one_another_flushes_go_first_and_then_the_highest_level() {
    let mut world = World::new();
    let log = world.slots.begin(Kind::Urgent, LIMIT);
    for level in [6, 5, 6, 4] {
        world.ask(Kind::Compaction(level), LIMIT);
    }
    let (deep, next) = (Kind::Compaction(6), Kind::Compaction(5));
    let mut first = world.began(&[deep, next], 2);
    for _ in 0..3 {
        world.ask(Kind::Flush, LIMIT);
    }
    let mut flush = world.began(&[Kind::Flush], 4);
    first.pop();
    let second = world.began(&[Kind::Flush], 3);
    flush.clear();
    let third = world.began(&[Kind::Flush], 2);
    drop(third);
    let fourth = world.began(&[Kind::Compaction(4)], 1);
    drop(first);
    let last = world.began(&[deep], 0);
    drop((log, second, fourth, last));
    world.end();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test of threads")]
fn a_job_that_has_begun_goes_on_before_another_begins() {
    let mut world = World::new();
    let (slots, tell) = (Arc::clone(&world.slots), world.tell.clone());
    let (again, may) = mpsc::channel();
    world.threads.push(thread::spawn(move || {
        tell.send((Kind::Flush, slots.begin(DEEP, 1))).expect("the test listens");
        may.recv().expect("the test goes on");
        tell.send((Kind::Flush, slots.begin(DEEP, 1))).expect("the test listens");
    }));
    drop(world.began(&[Kind::Flush], 0));
    world.ask(DEEP, 1);
    let blocker = world.began(&[DEEP], 0);
    world.ask(DEEP, 1);
    again.send(()).expect("it waits");
    while world.slots.waiting() < 2 {
        thread::yield_now();
    }
    drop(blocker);
    drop(world.began(&[Kind::Flush], 1));
    drop(world.next());
    world.end();
}

#[test]
fn as_many_go_on_as_write_at_once() {
    let ids = [(); 3].map(|()| thread::scope(|s| s.spawn(|| thread::current().id()).join()));
    let [one, two, three] = ids.map(|id| id.expect("no panic"));
    let mut state = State::default();
    for thread in [one, two, one, three] {
        state.goes_on(thread, 2);
    }
    assert_eq!(state.going_on, [one, three]);
    state.goes_on(two, 1);
    assert_eq!(state.going_on, [two]);
}

#[test]
fn a_flush_and_a_compaction_write_whatever_else_does() {
    let mut world = World::new();
    let others: Vec<WriteSlot> = (0..9).map(|_| world.slots.begin(Kind::Urgent, LIMIT)).collect();
    world.ask(Kind::Flush, LIMIT);
    let flush = world.began(&[Kind::Flush], 0);
    world.ask(Kind::Flush, LIMIT);
    // A compaction beside flushes that wait, one into L0 too, and only one.
    world.ask(Kind::Compaction(0), LIMIT);
    let compaction = world.began(&[Kind::Compaction(0)], 1);
    world.ask(DEEP, LIMIT);
    assert_eq!(world.slots.waiting(), 2);
    drop(flush);
    let flush = world.began(&[Kind::Flush], 1);
    drop(compaction);
    drop((world.began(&[DEEP], 0), flush, others));
    world.end();
}

#[test]
fn a_thread_gets_its_second_turn_at_once_and_patience_ends() {
    let mut world = World::new();
    let patience = Duration::from_millis(20);
    world.slots = Arc::new(WriteSlots { patience, ..WriteSlots::default() });
    let held = [world.slots.begin(DEEP, 1), world.slots.begin(DEEP, 1)];
    assert_eq!(world.slots.state.lock().compactions, 2);
    world.ask(DEEP, 1);
    let (_, turn) = world.next();
    drop((held, turn));
    world.end();
}

#[test]
fn what_counts_as_what() {
    let of = |class, purpose| kind_of(IoContext::new(class, purpose));
    let compaction = IoPurpose::Compaction { from: 4, to: 5 };
    assert_eq!(of(FileClass::Wal, IoPurpose::ForegroundWrite), Some(Kind::Urgent));
    assert_eq!(of(FileClass::Sst, IoPurpose::Flush), Some(Kind::Flush));
    assert_eq!(of(FileClass::Sst, compaction), Some(Kind::Compaction(5)));
    assert_eq!(of(FileClass::Sst, IoPurpose::Ingest), Some(Kind::Urgent));
    assert_eq!(of(FileClass::Manifest, IoPurpose::Flush), None);
}
