//! Job messages: a message that decodes must encode to the same bytes again.
#![no_main]

use archipelago_engine::compaction::job::CompactionSpec;
use archipelago_engine::executor::wire;
use archipelago_engine::flush::FlushSpec;
use archipelago_engine::job::JobOutput;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::decode::<FlushSpec>(bytes);
    let _ = wire::decode::<CompactionSpec>(bytes);
    if let Ok(output) = wire::decode::<JobOutput>(bytes) {
        let again = wire::encode(&output).expect("it has no paths");
        assert_eq!(wire::decode::<JobOutput>(&again).expect("just encoded"), output);
    }
});
