//! Repairs a directory whose table, log segment or manifest has arbitrary bytes: the report may
//! call everything lost, and nothing panics.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use archipelago_engine::repair::{RepairOptions, repair, verify_files};
use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, FileClass, FileSystem, IoContext, IoPurpose};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for name in ["000002.sst", "000003.log", "MANIFEST-000001"] {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
        let (source, target) = (Path::new("/db"), Path::new("/repaired"));
        fs.create_dir_all(source).expect("memory");
        let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
        let mut file = fs
            .create(&source.join(name), context, CreateOptions::default())
            .expect("a new file");
        file.append(bytes).and_then(|()| file.sync()).expect("memory");
        let _ = verify_files(&fs, source, |_| {});
        let options = RepairOptions { seed: Some(1), ..RepairOptions::default() };
        if repair(&fs, source, target, options, |_| {}).is_ok() {
            let report = verify_files(&fs, target, |_| {}).expect("a readable directory");
            assert!(report.is_clean(), "{:?}", report.errors);
        }
    }
});
