//! The list of the items that the crate offers.
//!
//! The crate offers no item by accident: a new `pub use` fails this test until the item stands in
//! [`OFFERED`]. An item that leaves the list breaks programs.

/// Every item that `front/api/src/lib.rs` offers, by its path, sorted.
const OFFERED: &str = "
    BucketChange BucketInfo ByteBudget Cancel CfId CfOptions Clock ColumnFamily
    CompactRangeOptions CompactionFilter Components Compression ComputeNode Conflict
    DatabaseReport Db
    DbOptions DiskReport Error ErrorKind Event EventListener FamilyReport FilterDecision GroupAccess
    HealthState IngestOptions Isolation Iter JobKind Joiner KeyRange KeyWatch LastLevel LevelInfo Listeners
    LockMode Locking ManualClock MemoryClass MergeOperator OnProgress PinnedInfo PinnedSlice
    ReadOptions RecoveryMode Registry Result Rng SeqNo Settings Snapshot SpaceInfo
    SpaceState SpaceUse Spawn SstWriter Statistics Storage Summary SystemClock SystemSpawn
    TableOptions Ticker Timer
    Transaction TransactionIter TransactionOptions ValueEntry ValueFileInfo ValuesReport VerifyReport
    WriteBatch WriteOptions
    default_dir entropy_seed env::FileClass env::FileSystem env::IoContext env::IoPurpose
    env::local::LocalFs inspect::DumpedRecords inspect::dump_manifest inspect::dump_sst
    inspect::lock load_settings
    repair::DamageReport repair::LinkTables repair::LogAfterDamage repair::Loss
    repair::LossEffect repair::LossScope repair::RepairOptions repair::RepairProgress
    repair::RepairReport repair::RepairedFamily repair::repair repair::verify_files
    running_extension storage::DATABASE storage::TIERS_ROOT storage::devices_of
    storage::remove_device tier::Components tier::DeviceKind
    tier::DeviceSettings tier::ExclusiveDevices tier::Policy tier::TieredFs tier::profile
    tier::scheme::DeviceProfile tier::scheme::ObservedLoad tier::scheme::Scheme
    volume::LogWriting volume::RedundancyMode volume::Secret volume::VolumeSettings volume::VolumeStorage
";

#[test]
fn crate_offers_the_listed_items_only() {
    let mut offered = offered_by(include_str!("../../src/lib.rs"));
    offered.sort_unstable();
    let mut listed: Vec<&str> = OFFERED.split_whitespace().collect();
    listed.sort_unstable();
    assert_eq!(offered, listed);
}

/// The paths of the public items of a file whose modules stand in the file itself. The file is
/// formatted by rustfmt, so a module ends at a brace that is indented as its beginning is.
fn offered_by(source: &str) -> Vec<String> {
    let (mut modules, mut offered) = (Vec::<&str>::new(), Vec::new());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code == "}" && !modules.is_empty() && indent == 4 * (modules.len() - 1) {
            modules.pop();
        } else if let Some(module) = code.strip_prefix("pub mod ") {
            modules.push(module.trim_end_matches(" {"));
        } else if let Some(function) = code.strip_prefix("pub fn ") {
            offered.push(path_of(&modules, function.split('(').next().unwrap()));
        } else if let Some(beginning) = code.strip_prefix("pub use ") {
            let mut items = beginning.to_owned();
            while !items.ends_with(';') {
                items += lines.next().unwrap().trim_start();
            }
            offered.extend(names_of(&items).map(|name| path_of(&modules, name)));
        }
    }
    offered
}

/// The names that `a::b`, `a::b as c` or `a::{b, c}` brings in.
fn names_of(items: &str) -> impl Iterator<Item = &str> {
    let list = items.split_once('{').map_or(items, |(_, list)| list);
    let names = list.trim_end_matches([';', '}']).split(',').filter(|name| !name.is_empty());
    names.map(|name| name.rsplit([':', ' ']).next().unwrap())
}

fn path_of(modules: &[&str], name: &str) -> String {
    modules.iter().copied().chain([name]).collect::<Vec<_>>().join("::")
}
