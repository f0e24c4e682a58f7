use super::*;

/// Flags from words, as a test wants them.
pub(crate) fn flags(words: &[&str]) -> Flags {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    match read(&args) {
        Ok((flags, _)) => flags,
        Err(stop) => panic!("{words:?}: {stop:?}"),
    }
}

fn refusal(words: &[&str]) -> String {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    match read(&args) {
        Ok(_) => panic!("{words:?} was taken"),
        Err(Stop::Clap(error)) => error.to_string(),
        Err(Stop::Usage(text)) => text,
    }
}

#[test]
fn flags_are_spelled_as_in_db_bench() {
    let given = flags(&[
        "--benchmarks=fillrandom,readrandom",
        "-num=5000",
        "--reads",
        "70",
        "-threads=2",
        "--sync=1",
        "--histogram",
        "--nouse_existing_db",
        "--cache_size=1000000",
        "--compression_type=none",
        "--bloom_bits=-1",
        "--sine_a=-4.5",
    ]);
    assert_eq!(given.benchmarks, ["fillrandom", "readrandom"]);
    assert_eq!((given.load.num, given.reads(), given.writes()), (5000, 70, 5000));
    assert!(given.load.sync && given.output.histogram && !given.storage.use_existing_db);
    assert_eq!(given.storage.cache_size, 1_000_000);
    assert_eq!(given.storage.compression_type, CompressionType::None);
    assert_eq!(given.mixgraph.sine_a, -4.5);
}

#[test]
fn booleans_take_what_gflags_takes() {
    for (text, wanted) in [
        ("--sync", true),
        ("--sync=true", true),
        ("-sync=1", true),
        ("--sync=0", false),
        ("--sync=false", false),
        ("--nosync", false),
    ] {
        assert_eq!(flags(&[text]).load.sync, wanted, "{text}");
    }
    assert!(refusal(&["--sync=maybe"]).contains("true, false, 1 or 0"));
}

#[test]
fn what_has_no_meaning_here_is_left_out_and_named() {
    let args: Vec<OsString> =
        ["--num_levels=7", "-perf_level", "2", "--noverify_checksum", "--num=7"]
            .map(OsString::from)
            .into();
    let (given, ignored) = read(&args).expect("known flags");
    assert_eq!(given.load.num, 7);
    assert_eq!(ignored, ["num_levels", "perf_level", "noverify_checksum"]);
}

#[test]
fn errors_say_what_is_wrong() {
    assert!(refusal(&["--use_blob_db=1"]).contains("is a flag of db_bench"));
    assert!(refusal(&["--nosuchthing=1"]).contains("--nosuchthing"));
    assert!(refusal(&["--compression_type=snappy"]).contains("use none, lz4"));
    assert!(refusal(&["--num=0"]).contains("--num"));
    assert!(refusal(&["--key_size=0"]).contains("--key_size is 0"));
    assert!(refusal(&["--mix_get_ratio=0"]).contains("one must be above 0"));
    assert!(refusal(&["--sync", "--disable_wal"]).contains("--disable_wal"));
    assert!(refusal(&["--ycsb_theta=1"]).contains("between 0 and 1"));
}

#[test]
fn help_teaches_every_benchmark() {
    let help = refusal(&["--help"]);
    for name in crate::workloads::NAMES {
        let family = if name.starts_with("ycsb") { "ycsb" } else { name };
        assert!(help.contains(family), "{name} is missing in --help");
    }
}

#[test]
fn compare_takes_the_flags_of_both() {
    let args: Vec<OsString> =
        ["--runs=3", "--num=10", "--markdown", "--db_bench_flags=--cache_index_and_filter_blocks"]
            .map(OsString::from)
            .into();
    let (given, _) = read_compare(&args).expect("known flags");
    assert_eq!((given.runs, given.bench.load.num, given.markdown), (3, 10, true));
    assert_eq!(given.db_bench_flags, "--cache_index_and_filter_blocks");
}
