//! The same operations under many settings: every read must answer the same, byte for byte.
//! `ARCHIPELAGO_MODEL_SECONDS=n` runs fresh cases for that long.

use std::path::Path;
use std::sync::Arc;

use archipelago_engine::db::BackgroundMode;
use archipelago_engine::options::{CfOptions, Compression, DbOptions};
use archipelago_env::local::LocalFs;

use crate::away::{Mood, Stays, Whim};
use crate::disk::TestDisk;
use crate::model::{Disk, Generator, Runner, Setting, Tiered, seeds};
use crate::separation::Separation;
use crate::support::{small_db, small_family};

const SEEDS: std::ops::Range<u64> = 1000..1005;
const STEPS: usize = 280;

/// Compactions out of L0 that are large enough to be cut into parts.
fn one_bucket_of_small_files() -> CfOptions {
    CfOptions {
        buckets: 1,
        target_file_bytes: 4 << 10,
        block_bytes: 256,
        l0_compaction_trigger: 2,
        compression: Compression::None,
        compression_last: Compression::None,
        ..small_family()
    }
}

fn over_tiers(family: CfOptions) -> Setting {
    let disk = Disk::Tiers(Tiered::new(1));
    let separation = Separation::OFF;
    let (background, db) = (BackgroundMode::Manual, small_db());
    Setting { background, db, family, separation, disk, away: None }
}

fn over_nodes(setting: Setting, mood: Mood) -> Setting {
    Setting { away: Some(mood), ..setting }
}

/// The log bypasses the page cache too.
fn direct_db() -> DbOptions {
    DbOptions {
        direct_reads: true,
        direct_background_io: true,
        log_write_through: true,
        ..small_db()
    }
}

fn memory(db: DbOptions, family: CfOptions) -> Setting {
    let disk = Disk::Memory(TestDisk::new());
    let separation = Separation::OFF;
    Setting { background: BackgroundMode::Manual, db, family, separation, disk, away: None }
}

/// Options of a family whose every table and memtable is tiny.
fn tiny() -> CfOptions {
    CfOptions {
        write_buffer_bytes: 4 << 10,
        level_base_bytes: 4 << 10,
        target_file_bytes: 4 << 10,
        level_multiplier: 2,
        l0_compaction_trigger: 1,
        block_bytes: 256,
        ..small_family()
    }
}

fn threads(setting: Setting) -> Setting {
    Setting { background: BackgroundMode::Threads, ..setting }
}

/// The settings under which memtable shards are offloaded, each with a name.
fn settings_with_nodes() -> Vec<(&'static str, Setting)> {
    vec![
        ("tiny, memory nodes", over_nodes(memory(small_db(), tiny()), Mood::default())),
        (
            "16 buckets, few bytes at nodes that refuse",
            over_nodes(
                memory(small_db(), CfOptions { buckets: 16, ..small_family() }),
                Mood { limit_bytes: 64 << 10, refuse: 3, silence: 3, ..Mood::default() },
            ),
        ),
        (
            "tiny, threads, nodes that are lost",
            threads(over_nodes(
                memory(DbOptions { max_background_jobs: 4, ..small_db() }, tiny()),
                Mood { refuse: 10, silence: 3, lose: 60, ..Mood::default() },
            )),
        ),
        (
            "tiny, an executor at the nodes",
            over_nodes(
                memory(small_db(), tiny()),
                Mood { whim: Some(Whim::SOUND), stays: Stays::Count(2), ..Mood::default() },
            ),
        ),
        (
            "16 buckets, threads, an executor that misbehaves",
            threads(over_nodes(
                memory(
                    DbOptions { max_background_jobs: 2, ..small_db() },
                    CfOptions { buckets: 16, ..small_family() },
                ),
                Mood { limit_bytes: 64 << 10, whim: Some(Whim::ILL), ..Mood::default() },
            )),
        ),
    ]
}

/// The settings, each with a name; `dir` is for those that use the real file system.
fn settings(dir: &Path) -> Vec<(&'static str, Setting)> {
    let local = |name: &str, db: DbOptions, family: CfOptions| Setting {
        background: BackgroundMode::Manual,
        db,
        family,
        separation: Separation::OFF,
        disk: Disk::Local(Arc::new(LocalFs::new()), dir.join(name)),
        away: None,
    };
    let parts = |subcompactions_max, db| DbOptions { subcompactions_max, ..db };
    let direct = direct_db();
    let family = |change: fn(&mut CfOptions)| {
        let mut family = small_family();
        change(&mut family);
        family
    };
    let without_nodes = vec![
        ("defaults", memory(DbOptions::default(), CfOptions::default())),
        ("one bucket, 8 parts", memory(parts(8, small_db()), one_bucket_of_small_files())),
        ("16 buckets", memory(small_db(), family(|f| f.buckets = 16))),
        ("tiny", memory(small_db(), tiny())),
        ("tiny, 16 buckets that move", memory(small_db(), CfOptions { buckets: 16, ..tiny() })),
        (
            "tiny, 4 buckets that stay",
            memory(small_db(), CfOptions { buckets: 4, buckets_dynamic: false, ..tiny() }),
        ),
        ("tiny, one bucket", memory(small_db(), CfOptions { buckets: 1, ..tiny() })),
        (
            "tiny, threads, 3 parts",
            threads(memory(DbOptions { max_background_jobs: 4, ..parts(3, small_db()) }, tiny())),
        ),
        (
            "zstd, no filters, large blocks",
            memory(
                small_db(),
                family(|f| {
                    f.compression = Compression::Zstd;
                    f.bloom_bits_per_key = 0;
                    f.block_bytes = 4096;
                }),
            ),
        ),
        (
            "no compression, no cache, timed",
            memory(
                DbOptions { block_cache_bytes: 0, latency_histograms: true, ..small_db() },
                family(|f| {
                    f.compression = Compression::None;
                    f.compression_last = Compression::None;
                }),
            ),
        ),
        ("tiny, over tiers", over_tiers(tiny())),
        ("files", local("files", small_db(), tiny())),
        ("files, direct", local("direct", direct, tiny())),
        (
            "files, threads, 3 parts",
            threads(local("threads", parts(3, small_db()), small_family())),
        ),
    ];
    without_nodes.into_iter().chain(settings_with_nodes()).collect()
}

#[test]
fn settings_change_no_answer() {
    let (mut parts, mut collected, mut flat_hits) = (0, 0, [0, 0]);
    for seed in seeds(SEEDS) {
        let dir = tempfile::tempdir().unwrap();
        let mut first: Option<(&str, Vec<u64>)> = None;
        let (mut by_hand, mut by_load) = (0, 0);
        for (at, (name, mut setting)) in settings(dir.path()).into_iter().enumerate() {
            // The first setting has no separation, and the others use the combinations in turn.
            if at > 0 {
                setting.separation = Separation::nth(seed * 5 + at as u64);
            }
            eprintln!("seed {seed}, {name}, {:?}", setting.separation);
            let flat_index = setting.separation.flat_index;
            let mut generator = Generator::new(seed, false);
            let mut runner = Runner::new(setting);
            (0..STEPS).for_each(|_| runner.run(&generator.step()));
            runner.check_all();
            runner.check_ordered_space();
            runner.check_values_at_rest();
            collected += runner.collected();
            flat_hits[usize::from(flat_index)] += runner.flat_lookups().0;
            parts += runner.parts();
            eprintln!("{parts} parts so far");
            let moved = runner.moved();
            assert!(!name.ends_with("that stay") || moved.1 == 0, "{moved:?}");
            (by_hand, by_load) = (by_hand + moved.0, by_load + moved.1);
            let answers = std::mem::take(&mut runner.transcript);
            assert!(answers.len() > STEPS / 5);
            match &first {
                None => first = Some((name, answers)),
                Some((other, expected)) => {
                    assert!(answers == *expected, "seed {seed}: \"{name}\" is not \"{other}\"");
                }
            }
        }
        eprintln!("bucket boundaries moved {by_hand} times by hand, {by_load} by the load");
        assert!(by_hand > 0 && by_load > 0);
    }
    assert!(parts > 0, "no compaction was cut into parts");
    assert!(collected > 0, "no garbage was collected");
    assert!(flat_hits[0] == 0 && flat_hits[1] > 0, "hits without and with pieces: {flat_hits:?}");
}
