//! The conformance suite of file systems over a volume.

use std::path::Path;
use std::sync::Arc;

use archipelago_env::FileSystem;
use archipelago_env::suite::conforms;
use archipelago_store::Sabotage;
use archipelago_store::memory::MemoryPool;

use crate::owner::Owner;

#[test]
fn store_conforms() {
    let owner = Owner::of_new_volume(MemoryPool::new(1), Sabotage::default(), 1);
    let fs = Arc::clone(&owner.fs) as Arc<dyn FileSystem>;
    conforms(&fs, Path::new("/db"), false);
    conforms(&fs, Path::new("relative"), false);
}

#[test]
fn store_conforms_after_a_take_over() {
    let first = Owner::of_new_volume(MemoryPool::new(2), Sabotage::default(), 1);
    conforms(&(Arc::clone(&first.fs) as Arc<dyn FileSystem>), Path::new("/first"), false);
    let second = Owner::take_over(first.pool, Sabotage::default(), 3).unwrap();
    conforms(&(Arc::clone(&second.fs) as Arc<dyn FileSystem>), Path::new("/second"), true);
}
