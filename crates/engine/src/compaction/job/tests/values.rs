//! Compactions of tables whose values lie in value files.

use archipelago_base::FileNo;
use archipelago_env::{CreateOptions, IoPurpose};

use super::*;
use crate::executor::check_compaction;
use crate::extension::{CompactionFilter, FilterDecision};
use crate::file_meta::value_file_name;
use crate::job::spec::{CurrentNumber, ValueSpec};
use crate::sst::TableOptions;
use crate::value::ValueTableBuilder;
use crate::value_ref::{Reference, ValueFileMeta};

/// Flushed files, and the value files that they name.
#[derive(Default)]
struct Flushed {
    inputs: Vec<Input>,
    values: Vec<ValueFileMeta>,
}

impl Flushed {
    fn add(&mut self, executor: &mut Executor, records: &[Record], separation_bytes: u64) {
        let no = self.inputs.len() as u64 + 100;
        let shard = executor.memtable(no, records, &[]);
        let mut spec = executor.flush_spec(vec![shard]);
        spec.output.values = value_spec(separation_bytes, &[]);
        spec.retention.now_ms = 500;
        let output = run_flush(&spec, &executor.context()).unwrap();
        self.inputs.extend(inputs(0, &output.files));
        self.values.extend(output.value_files);
    }

    /// A compaction of everything that separates values from `separation_bytes` on.
    fn spec(&self, executor: &Executor, separation_bytes: u64) -> CompactionSpec {
        let mut spec = executor.compaction_spec(self.inputs.clone());
        spec.output.values = value_spec(separation_bytes, &self.values);
        spec
    }
}

/// The compaction's output, which an owner would install.
fn run(executor: &Executor, spec: &CompactionSpec) -> JobOutput {
    let output = run_compaction(spec, &executor.context()).unwrap();
    check_compaction(&output, spec).unwrap();
    output
}

/// All records of an output, first as stored and then with their values.
fn both(executor: &Executor, spec: &CompactionSpec, output: &JobOutput) -> [Vec<Record>; 2] {
    let (stored, _) = all(executor, &output.files);
    let files: Vec<ValueFileMeta> =
        spec.output.values.files.iter().chain(&output.value_files).cloned().collect();
    let resolved = executor.resolved(&stored, &value_spec(1, &files));
    [stored, resolved]
}

fn references(stored: &[Record]) -> Vec<Reference> {
    let stored = stored.iter().filter(|record| record.2 == Kind::Indirect);
    stored.map(|record| Reference::decode(&record.3).unwrap()).collect()
}

fn remove_values(executor: &Executor, files: &[ValueFileMeta]) {
    for file in files {
        executor
            .fs
            .remove(&std::path::Path::new(DIR).join(value_file_name(file.file_no())))
            .unwrap();
    }
}

fn long(text: &str) -> String {
    text.repeat(100)
}

#[test]
fn references_are_copied_without_reading_values() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    let old = [put("a", 1, &long("a")), put("b", 2, &long("b")), put("c", 3, &long("c"))];
    flushed.add(&mut executor, &old, 64);
    let gone = expiring("d", 12, 900, &long("d"));
    let new = [put("a", 10, &long("A")), record("b", 11, Kind::Delete, ""), gone];
    flushed.add(&mut executor, &new, 64);
    let mut spec = flushed.spec(&executor, 64);
    spec.retention.compaction_filter = Some("ttl".into());
    remove_values(&executor, &flushed.values);
    let output = run(&executor, &spec);
    assert_eq!(output.value_files, []);
    let (stored, _) = all(&executor, &output.files);
    let keys: Vec<u8> = stored.iter().map(|record| record.0[0]).collect();
    assert_eq!(keys, b"ac");
    let named: Vec<u64> = references(&stored).iter().map(|at| at.file_no.0).collect();
    assert_eq!(named, [flushed.values[1].no, flushed.values[0].no]);
    assert!(references(&stored).iter().all(|at| at.offset.is_some()), "hints stay true");
    let dropped = &output.counts.dropped;
    assert_eq!((dropped.shadowed, dropped.deletes, dropped.expired), (2, 1, 1));
}

/// Writes `records` of value files to a new one, as a garbage collection would.
fn heir(executor: &Executor, no: u64, records: &[Record]) -> ValueFileMeta {
    let path = std::path::Path::new(DIR).join(value_file_name(FileNo(no)));
    let io = IoContext::sst(IoPurpose::Gc, 0);
    let file = executor.fs.create(&path, io, CreateOptions::default()).unwrap();
    let options =
        TableOptions { compression: crate::options::Compression::None, ..TableOptions::default() };
    let mut builder = ValueTableBuilder::new(file, &path, FileNo(no), [7; 16], options);
    for (key, seq, _, value) in records {
        builder.add(key, SeqNo(*seq), value).unwrap();
    }
    builder.finish().unwrap()
}

#[test]
fn moved_values_get_the_current_number_without_offset() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    let old = [put("a", 1, &long("a")), put("b", 2, &long("b"))];
    flushed.add(&mut executor, &old, 64);
    flushed.add(&mut executor, &[put("c", 10, &long("c"))], 64);
    let mut spec = flushed.spec(&executor, 64);
    let moved = heir(&executor, 99_000, &old);
    let values = &mut spec.output.values;
    values.current[0].current = 99_000;
    values.files = vec![values.files[1].clone(), moved];
    remove_values(&executor, &flushed.values[..1]);
    let output = run(&executor, &spec);
    let [stored, resolved] = both(&executor, &spec, &output);
    let named: Vec<_> =
        references(&stored).iter().map(|at| (at.file_no.0, at.offset.is_some())).collect();
    assert_eq!(named, [(99_000, false), (99_000, false), (flushed.values[1].no, true)]);
    assert_eq!(resolved, [old[0].clone(), old[1].clone(), put("c", 10, &long("c"))]);
}

/// A compaction of 2000 records whose values a garbage collection has moved to an heir, the records
/// and the heir. The heir has garbage as well.
fn moved(executor: &mut Executor) -> (CompactionSpec, Vec<Record>, ValueFileMeta) {
    let mut flushed = Flushed::default();
    let records: Vec<Record> =
        (0..2_000).map(|i| put(&format!("k{i:05}"), i + 1, &long("v"))).collect();
    flushed.add(executor, &records, 64);
    let garbage = (0..500).map(|i| put(&format!("k{:05}+", 4 * i), i + 1, &long("g")));
    let mut copied: Vec<Record> = records.iter().cloned().chain(garbage).collect();
    copied.sort_by(|one, other| one.0.cmp(&other.0));
    let heir = heir(executor, 99_000, &copied);
    let mut spec = flushed.spec(executor, 64);
    spec.output.values.current[0].current = heir.no;
    spec.output.values.files = vec![heir.clone()];
    (spec, records, heir)
}

#[test]
fn many_moved_values_get_their_offsets_by_few_reads() {
    let fs = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 1));
    let mut executor = Executor::over(Arc::clone(&fs) as _);
    let (spec, records, heir) = moved(&mut executor);
    let before = fs.seen(Operation::Read);
    let output = run(&executor, &spec);
    let reads = fs.seen(Operation::Read) - before;
    let [stored, resolved] = both(&executor, &spec, &output);
    let moved = references(&stored);
    assert_eq!(moved.len(), 2_000);
    assert!(moved.iter().all(|at| at.file_no.0 == heir.no && at.offset.is_some()), "an offset");
    assert_eq!(resolved, records);
    assert!(reads <= 2_000 / 64, "{reads} reads of a table and of the keys of an heir");
}

#[test]
fn damaged_keys_of_an_heir_cost_the_offsets_alone() {
    let mut executor = Executor::new();
    let (spec, _, heir) = moved(&mut executor);
    let path = std::path::Path::new(DIR).join(value_file_name(heir.file_no()));
    let io = IoContext::sst(IoPurpose::Maintenance, 0);
    let mut bytes = executor.fs.read(&path, io).unwrap();
    bytes[heir.keys_offset as usize + 3] ^= 1;
    executor.fs.write_atomic(&path, &bytes, io).unwrap();
    let output = run(&executor, &spec);
    let (stored, _) = all(&executor, &output.files);
    let moved = references(&stored);
    assert_eq!(moved.len(), 2_000);
    assert!(moved.iter().all(|at| at.file_no.0 == heir.no && at.offset.is_none()));
}

#[test]
fn number_that_the_spec_does_not_resolve_is_refused() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    flushed.add(&mut executor, &[put("a", 1, &long("a"))], 64);
    let mut spec = flushed.spec(&executor, 64);
    spec.output.values = value_spec(64, &[]);
    let error = run_compaction(&spec, &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.context().contains("does not say where its values lie"), "{error}");
    let mut unknown = flushed.spec(&executor, 64);
    unknown.output.values.current =
        vec![CurrentNumber { named: flushed.values[0].no, current: 999 }];
    let error = run_compaction(&unknown, &executor.context()).unwrap_err();
    assert!(error.context().contains("999"), "{error}");
}

#[test]
fn inline_values_over_the_threshold_are_separated() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    let records = [put("a", 1, &long("a")), put("b", 2, "b"), expiring("c", 3, 5_000, &long("c"))];
    flushed.add(&mut executor, &records, 0);
    let spec = flushed.spec(&executor, 64);
    let output = run(&executor, &spec);
    let [stored, resolved] = both(&executor, &spec, &output);
    assert_eq!(references(&stored).len(), 2);
    assert_eq!(output.value_files[0].records, 2);
    assert_eq!(resolved, records);
}

#[test]
fn switching_off_puts_values_back_inline() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    let records: Vec<Record> = (0..200)
        .map(|i| match i % 3 {
            0 => expiring(&format!("k{i:03}"), i + 1, 5_000, &"e".repeat(100 + i as usize * 50)),
            _ => put(&format!("k{i:03}"), i + 1, &"p".repeat(100 + i as usize * 50)),
        })
        .collect();
    flushed.add(&mut executor, &records, 64);
    // Records above the newest visible one are put back too.
    let mut spec = flushed.spec(&executor, 0);
    spec.retention.visible_seq = 150;
    let output = run(&executor, &spec);
    assert_eq!(output.value_files, []);
    assert_eq!(all(&executor, &output.files).0, records);
    assert!(output.files.iter().all(|file| file.refs.is_empty()));
    assert!(output.bytes_read >= flushed.values[0].value_bytes());
}

#[test]
fn operands_are_folded_over_referenced_bases() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    let old = [
        expiring("expired", 1, 900, &long("x")),
        expiring("live", 2, 5_000, &long("l")),
        put("put", 3, &long("p")),
    ];
    flushed.add(&mut executor, &old, 64);
    let new = [
        record("expired", 11, Kind::Merge, "+"),
        record("live", 12, Kind::Merge, "+"),
        record("put", 13, Kind::Merge, "+"),
    ];
    flushed.add(&mut executor, &new, 64);
    let spec = flushed.spec(&executor, 64);
    let output = run(&executor, &spec);
    let [stored, resolved] = both(&executor, &spec, &output);
    let expected = vec![
        put("expired", 11, "+"),
        record("live", 12, Kind::Merge, "+"),
        old[1].clone(),
        put("put", 13, &(long("p") + "+")),
    ];
    assert_eq!(resolved, expected);
    let named: Vec<u64> = references(&stored).iter().map(|at| at.file_no.0).collect();
    let merged = output.value_files[0].no;
    assert_eq!(named, [flushed.values[0].no, merged], "what was merged is separated again");
    assert_eq!(output.counts.dropped.merged, 2);

    let mut failing = flushed.spec(&executor, 64);
    failing.retention.merge_operator = Some("u64-counter".into());
    let output = run(&executor, &failing);
    let [_, resolved] = both(&executor, &failing, &output);
    assert_eq!(output.counts.merge_errors, 2);
    assert_eq!(resolved[0], new[0], "an expired base goes");
    assert_eq!(resolved[resolved.len() - 2..], [new[2].clone(), old[2].clone()]);
}

/// Acts by the first byte of the key: keeps, removes or changes the record.
struct ByKey {
    wants_value: bool,
}

impl CompactionFilter for ByKey {
    fn name(&self) -> &str {
        "by key"
    }
    fn wants_value(&self) -> bool {
        self.wants_value
    }
    fn filter(&self, key: &[u8], value: &[u8], _: Option<u64>, _: u64) -> FilterDecision {
        assert_eq!(value.is_empty(), !self.wants_value);
        match key[0] {
            b'c' => FilterDecision::Change(value.iter().copied().chain(*b"!!!").collect()),
            b'r' => FilterDecision::Remove,
            _ => FilterDecision::Keep,
        }
    }
}

#[test]
fn filters_see_referenced_values_if_they_want_them() {
    for (wants_value, separation_bytes) in [(true, 64), (false, 64), (true, 0), (false, 0)] {
        let mut executor = Executor::new();
        let mut flushed = Flushed::default();
        let records = [
            put("change", 1, &long("c")),
            expiring("change too", 2, 5_000, &long("d")),
            put("inline", 3, "small"),
            put("keep", 4, &long("k")),
            put("remove", 5, &long("r")),
        ];
        flushed.add(&mut executor, &records, 64);
        let mut spec = flushed.spec(&executor, separation_bytes);
        spec.retention.compaction_filter = Some("by key".into());
        if !wants_value && separation_bytes > 0 {
            remove_values(&executor, &flushed.values);
        }
        let mut context = executor.context();
        context.registry.add_compaction_filter(Arc::new(ByKey { wants_value }));
        let output = run_compaction(&spec, &context).unwrap();
        check_compaction(&output, &spec).unwrap();
        assert_eq!((output.counts.dropped.filtered, output.counts.records_out), (1, 4));
        let changed = |value: &str| if wants_value { long(value) + "!!!" } else { "!!!".into() };
        let expected = [
            put("change", 1, &changed("c")),
            expiring("change too", 2, 5_000, &changed("d")),
            put("inline", 3, "small"),
        ];
        let (stored, _) = all(&executor, &output.files);
        if wants_value || separation_bytes == 0 {
            let [_, resolved] = both(&executor, &spec, &output);
            assert_eq!(resolved[..3], expected);
            assert_eq!(resolved[3..], records[3..4]);
        } else {
            assert_eq!(stored[..3], expected);
            assert_eq!(references(&stored)[0].file_no.0, flushed.values[0].no);
        }
        assert_eq!(output.value_files.len(), usize::from(wants_value && separation_bytes > 0));
    }
}

#[test]
fn failed_compaction_with_values_leaves_its_inputs() {
    for separation_bytes in [0, 64] {
        for operation in [Operation::Open, Operation::Read, Operation::Append, Operation::Sync] {
            for nth in 1.. {
                let fs = Arc::new(FaultFs::new(Arc::new(MemFs::new()), 1));
                let mut executor = Executor::over(Arc::clone(&fs) as _);
                let mut flushed = Flushed::default();
                for (part, separated) in [(0, 64), (1, 0)] {
                    let record =
                        |i: u64| put(&format!("k{i:02}"), part * 50 + i + 1, &"v".repeat(20_000));
                    let records: Vec<Record> = (part * 5..part * 5 + 10).map(record).collect();
                    flushed.add(&mut executor, &records, separated);
                }
                let before = executor.tables();
                let mut spec = flushed.spec(&executor, separation_bytes);
                spec.output.values.value_file_bytes = 100_000;
                fs.add(Rule::on(operation).nth(nth).fault(Fault::Io));
                let result = run_compaction(&spec, &executor.context());
                if fs.fired_total() == 0 {
                    assert!(result.is_ok() && nth > 1, "{operation:?}");
                    break;
                }
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Io, "{operation:?} {nth}");
                assert_eq!(executor.tables(), before, "{operation:?} {nth}");
            }
        }
    }
}

#[test]
fn damaged_value_is_named_by_file_and_offset() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    let records = [put("a", 1, &long("a")), put("b", 2, &long("b"))];
    flushed.add(&mut executor, &records, 64);
    let name = value_file_name(flushed.values[0].file_no());
    let path = std::path::Path::new(DIR).join(&name);
    let io = IoContext::sst(IoPurpose::Maintenance, 0);
    let mut bytes = executor.fs.read(&path, io).unwrap();
    bytes[150] ^= 1;
    executor.fs.write_atomic(&path, &bytes, io).unwrap();
    let error = run_compaction(&flushed.spec(&executor, 0), &executor.context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains(&name) && text.contains("105"), "{text}");
    assert_eq!(executor.tables().len(), 2);
    // A compaction that does not need the value does not meet the damage.
    run(&executor, &flushed.spec(&executor, 64));
}

#[test]
fn parts_of_a_compaction_separate_values_by_themselves() {
    let mut executor = Executor::new();
    let mut flushed = Flushed::default();
    let records = |from: u64, seq: u64| -> Vec<Record> {
        (from..from + 20).map(|i| put(&format!("k{i:02}"), seq + i, &"v".repeat(100))).collect()
    };
    flushed.add(&mut executor, &records(0, 1), 64);
    flushed.add(&mut executor, &records(10, 100), 0);
    let whole = flushed.spec(&executor, 64);
    let mut shown = Vec::new();
    for (part, separated) in [(range("", Some("k15")), 5), (range("k15", None), 15)] {
        let mut spec = CompactionSpec { subrange: Some(part), ..whole.clone() };
        spec.output.file_numbers = executor.output_spec(1).file_numbers;
        let output = run(&executor, &spec);
        assert_eq!(output.value_files[0].records, separated);
        let [_, resolved] = both(&executor, &spec, &output);
        shown.extend(resolved);
    }
    assert_eq!(shown, [&records(0, 1)[..10], &records(10, 100)].concat());
}

/// What one step of a history does.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    Expiring(u8, usize, bool),
    Delete(u8),
    Merge(u8, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![Just(0usize), 1..100usize, 500..600usize];
    prop_oneof![
        4 => (0u8..20, bytes()).prop_map(|(key, bytes)| Step::Put(key, bytes)),
        2 => (0u8..20, bytes(), any::<bool>())
            .prop_map(|(key, bytes, lives)| Step::Expiring(key, bytes, lives)),
        2 => (0u8..20).prop_map(Step::Delete),
        2 => (0u8..20, bytes()).prop_map(|(key, bytes)| Step::Merge(key, bytes)),
    ]
}

fn record_of(step: &Step, seq: u64) -> Record {
    let value = |bytes: usize| vec![seq as u8; bytes];
    match *step {
        Step::Put(key, bytes) => (vec![key], seq, Kind::Put, value(bytes)),
        Step::Expiring(key, bytes, lives) => {
            let expiry: u64 = if lives { 5_000 } else { 900 };
            let stored = [&expiry.to_le_bytes()[..], &value(bytes)].concat();
            (vec![key], seq, Kind::PutExpiring, stored)
        }
        Step::Delete(key) => (vec![key], seq, Kind::Delete, vec![]),
        Step::Merge(key, bytes) => (vec![key], seq, Kind::Merge, value(bytes)),
    }
}

/// A tree that one history made, and the counts of its compactions.
struct Tree {
    executor: Executor,
    output: JobOutput,
    spec: CompactionSpec,
    flushed: Vec<crate::job::Counts>,
}

/// Flushes the history in parts, each with one of `thresholds`, and compacts everything.
fn tree(history: &[Step], snapshots: &[u64], thresholds: [u64; 3], deleted: (u8, u8, u64)) -> Tree {
    let mut executor = Executor::new();
    let mut all = Flushed::default();
    let mut flushed = Vec::new();
    let share = history.len().div_ceil(2).max(1);
    for (no, part) in history.chunks(share).enumerate() {
        let numbered = part.iter().zip((no * share) as u64 + 1..);
        let records: Vec<Record> = numbered.map(|(step, seq)| record_of(step, seq)).collect();
        let (start, end, seq) = deleted;
        let range = RangeTombstone { start: [start].into(), end: [end].into(), seq: SeqNo(seq) };
        let tombstones = if no == 1 { vec![range] } else { vec![] };
        let shard = executor.memtable(no as u64, &records, &tombstones);
        let mut spec = executor.flush_spec(vec![shard]);
        spec.retention.snapshots = snapshots.to_vec();
        spec.retention.now_ms = 500;
        spec.output.values = ValueSpec { value_file_bytes: 700, ..value_spec(thresholds[no], &[]) };
        let output = run_flush(&spec, &executor.context()).unwrap();
        crate::executor::check(&output, &spec.range, &spec.output).unwrap();
        all.inputs.extend(inputs(0, &output.files));
        all.values.extend(output.value_files);
        flushed.push(output.counts);
    }
    let mut spec = all.spec(&executor, thresholds[2]);
    spec.retention.snapshots = snapshots.to_vec();
    spec.output.values.value_file_bytes = 700;
    spec.output.cuts = vec![vec![5], vec![10], vec![15]];
    let output = run(&executor, &spec);
    Tree { executor, output, spec, flushed }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn separation_does_not_change_what_jobs_write(
        history in prop::collection::vec(step(), 2..80),
        snapshot in 0u64..80,
        thresholds in prop::array::uniform3(prop::sample::select(vec![0u64, 1, 64, 512])),
        start in 0u8..20, len in 1u8..6, seq in 41u64..120,
    ) {
        let deleted = (start, start + len, 1_000 + seq);
        let snapshots = [snapshot, 1_000];
        let plain = tree(&history, &snapshots, [0; 3], deleted);
        let separated = tree(&history, &snapshots, thresholds, deleted);
        let (expected, tombstones) = all(&plain.executor, &plain.output.files);
        let Tree { executor, output, spec, flushed } = &separated;
        let (stored, same) = all(executor, &output.files);
        prop_assert_eq!(same, tombstones);
        if !output.files.is_empty() {
            let [_, resolved] = both(executor, spec, output);
            prop_assert_eq!(resolved, expected);
        }
        let large = |value: usize| thresholds[2] > 0 && value as u64 >= thresholds[2];
        for (key, seq, kind, value) in &stored {
            let inline = match kind {
                Kind::Put => value.len(),
                Kind::PutExpiring => value.len() - 8,
                _ => 0,
            };
            prop_assert!(!large(inline), "{key:?} @{seq}");
            prop_assert!(*kind != Kind::Indirect || thresholds[2] > 0);
        }
        prop_assert_eq!(flushed, &plain.flushed);
        let counts = |counts: &crate::job::Counts| {
            (counts.records_in, counts.records_out, counts.dropped, counts.merge_errors)
        };
        prop_assert_eq!(counts(&output.counts), counts(&plain.output.counts));
    }
}
