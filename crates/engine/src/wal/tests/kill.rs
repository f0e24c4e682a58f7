//! A child process appends numbered records and reports each over a pipe. It is killed at a random
//! moment. Every reported record must exist.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

const DIR: &str = "ARCHIPELAGO_WAL_KILL_DIR";

/// The program of the child, and no test. It does nothing without the variable.
#[test]
fn child_appends_until_it_is_killed() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = PathBuf::from(dir);
    let fs: Arc<dyn FileSystem> = Arc::new(LocalFs::new());
    let config = LogConfig {
        database_id: DATABASE,
        segment_bytes: 3 << 20,
        seed: 1,
        manifest: ManifestPosition::default(),
    };
    let path = |no: u64| dir.join(format!("{no}.log"));
    let mut writer =
        LogWriter::create(Arc::clone(&fs), config, &path(1), FileNo(1), None, None).unwrap();
    let (mut seq, mut no) = (1, 1);
    let mut reports = std::io::stdout();
    loop {
        append(&mut writer, seq);
        if seq % 64 < 3 {
            reports.write_all(format!("\n@{seq}\n").as_bytes()).unwrap();
        }
        seq += ops_of(seq);
        if writer.should_rotate() {
            no += 1;
            writer.rotate(&path(no), FileNo(no), None).unwrap();
        }
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let mut rng = Rng::with_seed(archipelago_base::random::entropy_seed());
    let (mut total, mut from_ring) = (0, 0);
    for _ in 0..8 {
        let bench = Bench::disk();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "wal::tests::kill::child_appends_until_it_is_killed", "--nocapture"])
            .env(DIR, &bench.dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let reports = BufReader::new(child.stdout.take().unwrap());
        let mut acknowledged = 0;
        let stop_at = rng.u64(1..120_000);
        let mut killed = false;
        for line in reports.lines() {
            let line = line.unwrap();
            let Some(seq) = line.strip_prefix('@').and_then(|seq| seq.parse::<u64>().ok()) else {
                continue;
            };
            acknowledged = seq;
            if seq >= stop_at && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        child.wait().unwrap();
        let nos: Vec<u64> =
            (1..).take_while(|&no| bench.fs.exists(&bench.path(no)).unwrap()).collect();
        let mut next = 1;
        let segments: Vec<SegmentFile> = nos.iter().map(|&no| bench.file(no)).collect();
        let mode = RecoveryMode::Strict;
        let chain = LogChain { segments: &segments, floor: FileNo(0), mode, database_id: DATABASE };
        let log = recover(&*bench.fs, &chain, &mut |seq, batch| {
            assert_eq!(seq.0, next, "no record may be missing");
            next += batch.len() as u64;
            Ok(())
        })
        .unwrap();
        assert!(next > acknowledged, "{acknowledged} was acknowledged, {next} is missing");
        let last = segments.last().unwrap();
        let in_file = bench.fs.len(&last.path).unwrap();
        from_ring += u32::from(in_file < log.previous.unwrap().len);
        total += acknowledged;
    }
    assert!(total > 0 && from_ring > 0, "{total} records, {from_ring} logs ended in a ring");
}
