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
fn flags_without_effect_are_dropped_and_named() {
    let args: Vec<OsString> =
        ["--num_levels=7", "-perf_level", "2", "--noverify_checksum", "--num=7"]
            .map(OsString::from)
            .into();
    let (given, ignored) = read(&args).expect("known flags");
    assert_eq!(given.load.num, 7);
    assert_eq!(ignored, ["num_levels", "perf_level", "noverify_checksum"]);
}

#[test]
fn errors_name_the_flag_and_its_value() {
    assert!(refusal(&["--use_blob_db=1"]).contains("is a flag of db_bench"));
    assert!(refusal(&["--nosuchthing=1"]).contains("--nosuchthing"));
    assert!(refusal(&["--compression_type=snappy"]).contains("use none, lz4"));
    assert!(refusal(&["--num=0"]).contains("--num"));
    assert!(refusal(&["--key_size=0"]).contains("--key_size is 0"));
    assert!(refusal(&["--mix_get_ratio=0"]).contains("one must be above 0"));
    assert!(refusal(&["--sync", "--disable_wal"]).contains("--disable_wal"));
    assert!(refusal(&["--ycsb_theta=1"]).contains("between 0 and 1"));
    assert!(refusal(&["--open_loop"]).contains("--benchmark_write_rate_limit"));
    let open = ["--open_loop", "--benchmark_write_rate_limit=1", "--benchmarks=mixgraph"];
    assert!(refusal(&open).contains("mixgraph"));
}

#[test]
fn blob_flags_become_settings_of_separation() {
    let none = flags(&[]).separation;
    assert_eq!((none.threshold_bytes(), none.file_bytes(), none.space_bound()), (None, None, None));
    assert_eq!(flags(&["--value_separation_bytes"]).separation.threshold_bytes(), Some(512));
    let blobs = ["--enable_blob_files", "--min_blob_size=512", "--blob_file_size=8388608"];
    let given = flags(&blobs).separation;
    assert_eq!(given.threshold_bytes(), Some(512));
    assert_eq!(given.file_bytes(), Some(8 << 20));
    assert_eq!(given.space_bound(), Some(0.0), "without collection there is no bound");
    let all = flags(&["--enable_blob_files=true"]).separation;
    assert_eq!(all.threshold_bytes(), Some(1), "db_bench separates every value by default");
    let collected = flags(&["--enable_blob_files", "--enable_blob_garbage_collection"]).separation;
    assert_eq!(collected.space_bound(), None);
    let own = ["--value_separation_bytes=64", "--value_file_bytes=4096"];
    let own = flags(&[own[0], own[1], "--space_amplification_max=1.25"]).separation;
    assert_eq!((own.threshold_bytes(), own.file_bytes()), (Some(64), Some(4096)));
    assert_eq!(own.space_bound(), Some(1.25));
}

#[test]
fn contradictory_or_foreign_blob_flags_are_refused() {
    let two = refusal(&["--enable_blob_files", "--value_separation_bytes=512"]);
    assert!(two.contains("leave one out"), "{two}");
    let other = refusal(&["--compression_type=none", "--blob_compression_type=lz4"]);
    assert!(other.contains("the same as --compression_type"), "{other}");
    assert!(
        refusal(&["--enable_blob_files", "--space_amplification_max=1.5"])
            .contains("--enable_blob_garbage_collection")
    );
    let age = refusal(&["--blob_garbage_collection_age_cutoff=1.0"]);
    assert!(age.contains("most garbage") && age.contains("compare"), "{age}");
    assert!(refusal(&["--nouse_blob_cache"]).contains("--cache_size"));
    let sizes = refusal(&["--value_size_min=9", "--value_size_max=8"]);
    assert!(sizes.contains("must not be above"), "{sizes}");
}

#[test]
fn comparison_hands_blobdb_flags_to_db_bench_alone() {
    let args: Vec<OsString> = [
        "--enable_blob_files",
        "--blob_garbage_collection_age_cutoff=1.0",
        "-blob_garbage_collection_force_threshold",
        "0.5",
        "--use_blob_cache",
        "--num=10",
    ]
    .map(OsString::from)
    .into();
    let (given, spelled) = read_compare(&args).expect("known flags");
    let words: Vec<&str> = given.db_bench_flags.split_whitespace().collect();
    let wanted = [
        "--blob_garbage_collection_age_cutoff=1.0",
        "--blob_garbage_collection_force_threshold=0.5",
        "--use_blob_cache",
    ];
    assert_eq!(words, wanted);
    assert_eq!(spelled.args, ["--enable_blob_files", "--num=10"]);
    assert!(given.bench.separation.enable_blob_files);
    let own: Vec<OsString> = ["--value_separation_bytes=512"].map(OsString::from).into();
    assert!(matches!(read_compare(&own), Err(Stop::Usage(text)) if text.contains("both sides")));
}

#[test]
fn help_teaches_every_benchmark() {
    let help = refusal(&["--help"]);
    for name in crate::workloads::NAMES {
        let is_phase = crate::workloads::terark::is_one(name);
        let family = match name {
            _ if name.starts_with("ycsb") => "ycsb",
            _ if is_phase => name.split_inclusive('k').next().unwrap_or(name),
            _ => name,
        };
        assert!(help.contains(family), "{name} is missing in --help");
    }
}

#[test]
fn help_says_which_flags_take_a_name() {
    let help = refusal(&["--help"]);
    let named = [
        "--compression_type",
        "--blob_compression_type",
        "--bucket_boundaries",
        "--value_size_distribution_type",
    ];
    for flag in named {
        assert!(help.contains(&format!("{flag} <NAME>")), "{flag}: {help}");
    }
    assert!(help.contains("--num <N>"), "{help}");
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

#[test]
fn network_is_emulated_in_front_of_storage_nodes() {
    let store = ["--store=127.0.0.1:7700", "--volume=reef"];
    let emulated = ["--network_bytes_per_s=125000000", "--network_round_trip_us=2000"];
    let modes = ["--redundancy=by_class", "--log_writing=striped", "--take_over"];
    let given = flags(&[&store[..], &emulated, &modes].concat()).volume;
    let card = given.card();
    assert_eq!((card.out_bytes_per_s, card.in_bytes_per_s), (125_000_000, 125_000_000));
    assert_eq!((card.stream_bytes_per_s, card.latency.as_micros()), (0, 1000));
    assert!(given.take_over && given.redundancy.is_some() && given.log_writing.is_some());
    let plain = flags(&store).volume.card();
    assert_eq!((plain.out_bytes_per_s, plain.latency.as_micros()), (0, 0));
    assert!(refusal(&emulated).contains("need --store"));
    assert!(refusal(&["--redundancy=coded"]).contains("--store"));
}
