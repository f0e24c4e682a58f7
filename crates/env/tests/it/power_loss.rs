//! Random operations on `MemFs`, then power loss. A model knows the bytes that must survive and
//! those that may.

use std::path::Path;

use archipelago_env::FileSystem;
use archipelago_env::mem::MemFs;
use archipelago_env::suite::power_loss::{CrashTested, Guarantees, PowerLossModel, Step};
use proptest::prelude::*;

fn step() -> impl Strategy<Value = Step> {
    let name = 0..4u8;
    prop_oneof![
        3 => name.clone().prop_map(Step::Create),
        6 => (name.clone(), 1..2000u16).prop_map(|(name, len)| Step::Append(name, len)),
        2 => name.clone().prop_map(Step::Flush),
        3 => name.clone().prop_map(Step::Sync),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => name.prop_map(Step::Remove),
        2 => Just(Step::SyncDir),
        1 => Just(Step::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    })]

    #[test]
    fn synced_bytes_survive_and_no_others_appear(
        steps in prop::collection::vec(step(), 1..60),
        seed in 0..u64::MAX / 2,
    ) {
        let mut model = PowerLossModel::new(MemFs::new(), Guarantees::LOCAL);
        for step in &steps {
            model.run(step);
        }
        model.check(seed);
    }
}

/// A disk that forgets the files of its directory when it loses power.
#[derive(Debug)]
struct ForgetfulDisk(MemFs);

impl CrashTested for ForgetfulDisk {
    fn fs(&self) -> &dyn FileSystem {
        &self.0
    }

    fn kill_clone(&self) -> Self {
        Self(self.0.kill_clone())
    }

    fn crash_clone(&self, _seed: u64) -> Self {
        let empty = MemFs::new();
        empty.create_dir_all(Path::new("/db")).unwrap();
        Self(empty)
    }
}

#[test]
#[should_panic(expected = "after power loss")]
fn model_notices_a_lost_file() {
    let mut model = PowerLossModel::new(ForgetfulDisk(MemFs::new()), Guarantees::LOCAL);
    let steps = [Step::Create(1), Step::Append(1, 10), Step::Sync(1), Step::SyncDir];
    steps.iter().for_each(|step| model.run(step));
    model.check(0);
}
