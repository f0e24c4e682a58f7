use std::sync::mpsc;

use super::*;

const DEEP: SlotKind = SlotKind::Compaction(6);

/// Threads that ask for slots one after another. A thread that gets a slot sends it to the test.
struct World {
    slots: Arc<WriteSlots>,
    tell: mpsc::Sender<(SlotKind, WriteSlot)>,
    told: mpsc::Receiver<(SlotKind, WriteSlot)>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl World {
    fn new() -> Self {
        let (tell, told) = mpsc::channel();
        // The limit is long, so that a pause of the machine does not end a wait.
        let patience = Duration::from_secs(3600);
        let slots = Arc::new(WriteSlots { patience, ..WriteSlots::new(Arc::default()) });
        Self { slots, tell, told, threads: Vec::new() }
    }

    #[expect(clippy::disallowed_methods, reason = "a test of threads")]
    fn ask(&mut self, kind: SlotKind, limit: u32) {
        let (slots, tell) = (Arc::clone(&self.slots), self.tell.clone());
        let asked = self.slots.state.lock().next_ticket;
        self.threads.push(thread::spawn(move || {
            let slot = slots.begin(kind, limit);
            tell.send((kind, slot)).expect("the test listens");
        }));
        while self.slots.state.lock().next_ticket == asked {
            thread::yield_now();
        }
    }

    fn next(&self) -> (SlotKind, WriteSlot) {
        self.told.recv().expect("a slot")
    }

    /// Receives slots of these kinds, in this order. Afterwards `waiting` threads still wait.
    fn began(&self, kinds: &[SlotKind], waiting: usize) -> Vec<WriteSlot> {
        let slots = kinds.iter().map(|&kind| {
            let (began, slot) = self.next();
            assert_eq!(began, kind);
            slot
        });
        let slots = slots.collect();
        assert_eq!(self.slots.waiting(), waiting);
        slots
    }

    fn end(self) {
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let state = self.slots.state.lock();
        let jobs = (state.flushes, state.compactions, state.collections);
        assert_eq!((state.urgent, jobs, state.waiting.len()), (0, (0, 0, 0), 0));
        assert!(self.slots.threads.writing.lock().is_empty());
    }
}

const LIMIT: u32 = 4;

#[test]
fn flushes_begin_before_compactions_in_order_of_level() {
    let mut world = World::new();
    let log = world.slots.begin(SlotKind::Urgent, LIMIT);
    let (deep, next) = (SlotKind::Compaction(6), SlotKind::Compaction(5));
    let mut first = Vec::new();
    for kind in [deep, next] {
        // Each thread begins before the next one asks, because two threads may send their slots in
        // any order.
        world.ask(kind, LIMIT);
        first.extend(world.began(&[kind], 0));
    }
    for kind in [deep, SlotKind::Compaction(4)] {
        world.ask(kind, LIMIT);
    }
    assert_eq!(world.slots.waiting(), 2);
    for _ in 0..3 {
        world.ask(SlotKind::Flush, LIMIT);
    }
    let mut flush = world.began(&[SlotKind::Flush], 4);
    first.pop();
    let second = world.began(&[SlotKind::Flush], 3);
    flush.clear();
    let third = world.began(&[SlotKind::Flush], 2);
    drop(third);
    let fourth = world.began(&[SlotKind::Compaction(4)], 1);
    drop(first);
    let last = world.began(&[deep], 0);
    drop((log, second, fourth, last));
    world.end();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test of threads")]
fn running_job_writes_its_next_table_before_another_job_begins() {
    let mut world = World::new();
    let (slots, tell) = (Arc::clone(&world.slots), world.tell.clone());
    let (again, may) = mpsc::channel();
    world.threads.push(thread::spawn(move || {
        tell.send((SlotKind::Flush, slots.begin(DEEP, 1))).expect("the test listens");
        may.recv().expect("the test goes on");
        tell.send((SlotKind::Flush, slots.begin(DEEP, 1))).expect("the test listens");
    }));
    drop(world.began(&[SlotKind::Flush], 0));
    world.ask(DEEP, 1);
    let blocker = world.began(&[DEEP], 0);
    world.ask(DEEP, 1);
    again.send(()).expect("it waits");
    while world.slots.waiting() < 2 {
        thread::yield_now();
    }
    drop(blocker);
    drop(world.began(&[SlotKind::Flush], 1));
    drop(world.next());
    world.end();
}

#[test]
fn compactions_that_continue_are_bounded_by_those_that_write() {
    let ids = [(); 3].map(|()| thread::scope(|s| s.spawn(|| thread::current().id()).join()));
    let [one, two, three] = ids.map(|id| id.expect("no panic"));
    let mut state = SlotState::default();
    for thread in [one, two, one, three] {
        state.note_continuing(thread, 2);
    }
    assert_eq!(state.continuing, [one, three]);
    state.note_continuing(two, 1);
    assert_eq!(state.continuing, [two]);
}

#[test]
fn one_flush_and_one_compaction_write_on_a_busy_device() {
    let mut world = World::new();
    let others: Vec<WriteSlot> =
        (0..9).map(|_| world.slots.begin(SlotKind::Urgent, LIMIT)).collect();
    world.ask(SlotKind::Flush, LIMIT);
    let flush = world.began(&[SlotKind::Flush], 0);
    world.ask(SlotKind::Flush, LIMIT);
    // While a flush waits one compaction writes, also into L0.
    world.ask(SlotKind::Compaction(0), LIMIT);
    let compaction = world.began(&[SlotKind::Compaction(0)], 1);
    world.ask(DEEP, LIMIT);
    assert_eq!(world.slots.waiting(), 2);
    drop(flush);
    let flush = world.began(&[SlotKind::Flush], 1);
    drop(compaction);
    drop((world.began(&[DEEP], 0), flush, others));
    world.end();
}

#[test]
fn second_slot_of_a_thread_does_not_wait_and_waits_are_bounded() {
    let mut world = World::new();
    let patience = Duration::from_millis(20);
    world.slots = Arc::new(WriteSlots { patience, ..WriteSlots::new(Arc::default()) });
    let held = [world.slots.begin(DEEP, 1), world.slots.begin(DEEP, 1)];
    assert_eq!(world.slots.state.lock().compactions, 2);
    world.ask(DEEP, 1);
    let (_, slot) = world.next();
    drop((held, slot));
    world.end();
}

#[test]
fn one_garbage_collection_writes_beside_compactions() {
    let mut world = World::new();
    let others: Vec<WriteSlot> =
        (0..9).map(|_| world.slots.begin(SlotKind::Urgent, LIMIT)).collect();
    world.ask(DEEP, LIMIT);
    let compaction = world.began(&[DEEP], 0);
    world.ask(DEEP, LIMIT);
    world.ask(SlotKind::Gc, LIMIT);
    let collection = world.began(&[SlotKind::Gc], 1);
    world.ask(SlotKind::Gc, LIMIT);
    assert_eq!(world.slots.waiting(), 2);
    drop(collection);
    let collection = world.began(&[SlotKind::Gc], 1);
    drop(compaction);
    drop((world.began(&[DEEP], 0), collection, others));
    world.end();
}

#[test]
fn waiting_compaction_begins_before_garbage_collection() {
    let mut world = World::new();
    let log = world.slots.begin(SlotKind::Urgent, LIMIT);
    world.ask(SlotKind::Gc, LIMIT);
    let collection = world.began(&[SlotKind::Gc], 0);
    world.ask(DEEP, LIMIT);
    let compaction = world.began(&[DEEP], 0);
    world.ask(SlotKind::Gc, LIMIT);
    world.ask(DEEP, LIMIT);
    assert_eq!(world.slots.waiting(), 2);
    drop(log);
    let second = world.began(&[DEEP], 1);
    drop(compaction);
    drop((world.began(&[SlotKind::Gc], 0), second, collection));
    world.end();
}

#[test]
fn job_with_a_table_on_one_device_does_not_wait_on_another() {
    let threads = Arc::new(JobThreads::default());
    let other = Arc::new(WriteSlots::new(Arc::clone(&threads)));
    let mut world = World::new();
    world.slots = Arc::new(WriteSlots::new(threads));
    world.ask(DEEP, 1);
    let blocker = world.began(&[DEEP], 0);
    let table = other.begin(DEEP, 1);
    // The value file of the same job lies on the device of the blocker.
    let values = world.slots.begin(DEEP, 1);
    assert!(!table.waited && !values.waited);
    drop((values, table, blocker));
    world.end();
}

#[test]
fn kind_follows_class_and_purpose() {
    let of = |class, purpose| kind_of(IoContext::new(class, purpose));
    let compaction = IoPurpose::Compaction { from: 4, to: 5 };
    assert_eq!(of(FileClass::Wal, IoPurpose::ForegroundWrite), Some(SlotKind::Urgent));
    assert_eq!(of(FileClass::Sst, IoPurpose::Flush), Some(SlotKind::Flush));
    assert_eq!(of(FileClass::Sst, compaction), Some(SlotKind::Compaction(5)));
    assert_eq!(of(FileClass::Sst, IoPurpose::Ingest), Some(SlotKind::Urgent));
    assert_eq!(of(FileClass::Manifest, IoPurpose::Flush), None);
    assert_eq!(of(FileClass::ValueSst, IoPurpose::Flush), Some(SlotKind::Flush));
    assert_eq!(of(FileClass::ValueSst, compaction), Some(SlotKind::Compaction(5)));
    assert_eq!(of(FileClass::ValueSst, IoPurpose::Gc), Some(SlotKind::Gc));
    assert_eq!(of(FileClass::ValueSst, IoPurpose::Maintenance), Some(SlotKind::Urgent));
}
