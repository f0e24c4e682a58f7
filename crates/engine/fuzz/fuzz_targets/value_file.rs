//! Opens arbitrary bytes as a value file and uses it: errors are fine, panics are not.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, FileNo, Result};
use archipelago_engine::sst::{DumpedRecords, dump_file, read_foreign_value_file};
use archipelago_env::{FileClass, IoContext, IoPurpose, RandomFile};
use libfuzzer_sys::fuzz_target;

#[derive(Debug)]
struct Bytes(Vec<u8>);

impl RandomFile for Bytes {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8], _: IoContext) -> Result<()> {
        let start = offset as usize;
        let part = self.0.get(start..start.saturating_add(buf.len()));
        buf.copy_from_slice(part.ok_or_else(|| Error::invalid("read past the end"))?);
        Ok(())
    }
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

fuzz_target!(|bytes: &[u8]| {
    let file: Arc<dyn RandomFile> = Arc::new(Bytes(bytes.to_vec()));
    let path = Path::new("fuzz.vsst");
    let context = IoContext::new(FileClass::ValueSst, IoPurpose::Maintenance);
    let _ = read_foreign_value_file(&file, path, FileNo(1));
    let shown = DumpedRecords { records_max: usize::MAX, with_values: true };
    let _ = dump_file(&file, path, shown, context);
});
