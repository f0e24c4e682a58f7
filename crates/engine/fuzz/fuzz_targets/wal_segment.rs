//! Log segments: recovery reads any bytes without a panic.
#![no_main]

use std::path::Path;

use archipelago_base::{FileNo, SeqNo};
use archipelago_engine::options::RecoveryMode;
use archipelago_engine::wal::{ReadRequest, SegmentFile, read_segment};
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let fs = MemFs::new();
    let path = Path::new("/1.log");
    let context = IoContext::new(FileClass::Wal, IoPurpose::Recovery);
    let mut file = fs.create(path, context, CreateOptions::default()).expect("a new file");
    file.append(bytes).and_then(|()| file.flush()).expect("memory");
    let segment = SegmentFile { no: FileNo(1), path: path.to_owned() };
    let modes =
        [RecoveryMode::TolerateTornTail, RecoveryMode::Strict, RecoveryMode::AssumePowerLoss];
    for mode in modes {
        let database_id = *b"a test database!";
        let request = ReadRequest { mode, database_id, known_len: None, after: SeqNo::ZERO };
        let _ = read_segment(&fs, &segment, &request, &mut |_, batch| {
            batch.iter().try_for_each(|op| op.map(|_| ()))
        });
    }
});
