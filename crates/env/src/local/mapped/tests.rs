use archipelago_base::random::Rng;

use super::*;
use crate::context::{FileClass, IoPurpose};

const TABLE: IoContext =
    IoContext { level: Some(0), ..IoContext::new(FileClass::Sst, IoPurpose::Flush) };

#[test]
fn bytes_written_through_windows_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.sst");
    let fs = MappedFs::new();
    let mut rng = Rng::with_seed(7);
    let mut expected = Vec::new();
    let mut file = fs.create(&path, TABLE, CreateOptions::default()).unwrap();
    while expected.len() < 2 * WINDOW_BYTES as usize + 999 {
        let piece: Vec<u8> = (0..rng.usize(1..300_000)).map(|_| rng.u8(..)).collect();
        file.append(&piece).unwrap();
        expected.extend_from_slice(&piece);
        match rng.u32(..8) {
            0 => file.sync().unwrap(),
            1 => file.flush().unwrap(),
            _ => continue,
        }
        assert_eq!(fs.len(&path).unwrap(), expected.len() as u64);
    }
    drop(file);
    let file = fs.open(&path, TABLE, OpenOptions::default()).unwrap();
    assert_eq!(file.len(), expected.len() as u64);
    for _ in 0..200 {
        let from = rng.usize(..expected.len());
        let mut buf = vec![0; rng.usize(..(expected.len() - from).min(100_000))];
        file.read_exact_at(from as u64, &mut buf, TABLE).unwrap();
        assert_eq!(buf, expected[from..from + buf.len()]);
    }
    let error = file.read_exact_at(file.len() - 1, &mut [0; 2], TABLE).unwrap_err();
    assert!(error.to_string().contains("past the end"), "{error}");
}

#[test]
fn empty_table_can_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.sst");
    let fs = MappedFs::new();
    drop(fs.create(&path, TABLE, CreateOptions::default()).unwrap());
    let file = fs.open(&path, TABLE, OpenOptions::default()).unwrap();
    assert!(file.is_empty());
    file.read_exact_at(0, &mut [], TABLE).unwrap();
    assert!(file.read_exact_at(0, &mut [0], TABLE).is_err());
}
