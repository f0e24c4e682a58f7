use archipelago_base::CfId;

use super::*;
use crate::file_meta::FileMeta;
use crate::options::CfOptions;
use crate::version::tests::meta;
use crate::version::{Built, Version, VersionBuilder};

/// A value file with `records` records of 100 bytes.
fn value_file(no: u64, records: u64) -> ValueFileMeta {
    ValueFileMeta {
        no,
        unique_id: [no as u8; 16],
        size_bytes: records * 105 + 500,
        checksum: 1,
        keys_offset: records * 105,
        smallest: b"a".to_vec(),
        largest: b"z".to_vec(),
        smallest_seq: 1,
        largest_seq: 9,
        records,
        created_unix_ms: 1,
        basis: 0,
    }
}

/// A table of one key with the given numbers of references to each value file.
fn table(no: u64, key: &[u8], refs: &[(u64, u64)]) -> FileMeta {
    let mut table = meta(no, key, key, (1, 2));
    for &(file, records) in refs {
        (0..records).for_each(|_| table.refs.add(file, 100));
    }
    table
}

/// A column family that is changed step by step.
struct Family {
    version: Arc<Version>,
    held: HeldNumbers,
    trash: Arc<Trash>,
}

impl Family {
    fn new() -> Self {
        let version = Version::empty(CfId(1), Arc::new(CfOptions::default()));
        Self { version, held: HeldNumbers::default(), trash: Arc::default() }
    }

    fn change(&mut self, edit: impl FnOnce(&mut VersionBuilder)) -> Built {
        let mut builder = VersionBuilder::new(&self.version);
        edit(&mut builder);
        let built = builder.finish_holding(&self.trash, &self.held).expect("possible");
        built.version.check().expect("sound");
        self.version = Arc::clone(&built.version);
        built
    }

    fn values(&self) -> &ValueFiles {
        self.version.values()
    }

    fn heirs(&self) -> Vec<(u64, u64)> {
        self.values().heirs().collect()
    }

    /// A garbage collection replaces `old` by the new file `heir`.
    fn collect(&mut self, old: &[u64], heir: ValueFileMeta) {
        self.change(|edit| {
            let no = heir.no;
            edit.add_value_file(heir).expect("new");
            for &old in old {
                edit.remove_value_file(old).expect("exists");
                edit.inherit(old, no).expect("first heir");
            }
        });
    }
}

/// Two tables over the value files 10 and 11.
fn two_tables() -> Family {
    let mut family = Family::new();
    family.change(|edit| {
        edit.add_value_file(value_file(10, 5)).expect("new");
        edit.add_value_file(value_file(11, 4)).expect("new");
        edit.add(1, table(1, b"a", &[(10, 2)])).expect("new");
        edit.add(1, table(2, b"b", &[(10, 1), (11, 4)])).expect("new");
    });
    family
}

#[test]
fn garbage_follows_from_the_references_of_tables() {
    let family = two_tables();
    let values = family.values();
    assert_eq!(values.refs(10), ReferenceSum { tables: 2, records: 3, bytes: 315 });
    assert_eq!(values.refs(11), ReferenceSum { tables: 1, records: 4, bytes: 420 });
    assert_eq!((values.value_bytes(), values.exposed_bytes()), (945, 210));
    assert_eq!((values.referenced_records(), values.referenced_bytes()), (7, 735));
    assert_eq!(values.reference_entries(), 3);
}

#[test]
fn file_without_references_goes_with_the_edit_that_took_the_last() {
    let mut family = two_tables();
    let built = family.change(|edit| edit.remove(1, 2).expect("exists"));
    assert_eq!(built.unreferenced, [11]);
    assert_eq!(built.removed_values.iter().map(|file| file.no).collect::<Vec<_>>(), [11]);
    assert!(family.values().get(11).is_none() && family.values().get(10).is_some());
    let built = family.change(|edit| edit.remove(1, 1).expect("exists"));
    assert_eq!(built.unreferenced, [10]);
    assert!(family.values().is_empty() && family.values().exposed_bytes() == 0);
}

#[test]
fn chain_of_heirs_is_one_step() {
    let mut family = two_tables();
    family.collect(&[10], value_file(20, 3));
    family.collect(&[20, 11], value_file(30, 7));
    assert_eq!(family.heirs(), [(10, 30), (11, 30), (20, 30)]);
    assert_eq!(family.values().resolve(10).expect("live").no, 30);
    assert_eq!(family.values().refs(30), ReferenceSum { tables: 3, records: 7, bytes: 735 });
    assert_eq!(family.values().ancestors(30).collect::<Vec<_>>(), [10, 11, 20]);
    assert_eq!(family.values().exposed_bytes(), 0);
}

#[test]
fn heir_of_a_number_that_no_table_names_is_pruned_one_edit_later() {
    let mut family = two_tables();
    family.collect(&[10], value_file(20, 3));
    family.collect(&[20], value_file(30, 3));
    // No table names 20. The entry is new in this edit, so a job may be about to hold it.
    assert_eq!(family.heirs(), [(10, 30), (20, 30)]);
    let hold = family.held.hold([20]);
    family.change(|_| {});
    assert_eq!(family.heirs(), [(10, 30), (20, 30)], "a running job may still install 20");
    drop(hold);
    family.change(|_| {});
    assert_eq!(family.heirs(), [(10, 30)], "tables name 10");
}

#[test]
fn job_that_names_a_replaced_file_resolves_after_its_install() {
    let mut family = two_tables();
    family.collect(&[10], value_file(20, 3));
    let _hold = family.held.hold([10, 20]);
    family.collect(&[20], value_file(30, 3));
    family.change(|_| {});
    family.change(|edit| {
        edit.remove(1, 1).expect("exists");
        edit.add(1, table(3, b"a", &[(20, 2)])).expect("new");
    });
    assert_eq!(family.values().resolve(20).expect("live").no, 30);
    assert_eq!(family.values().refs(30).records, 3);
}

#[test]
fn invalid_file_keeps_the_heirs_of_the_numbers_that_it_names() {
    let mut family = two_tables();
    let invalid = |no, install_no, names: &[u64]| InvalidFileMeta {
        no,
        unique_id: [0; 16],
        size_bytes: 1,
        checksum: 1,
        records: 1,
        install_no,
        names: names.to_vec(),
    };
    family.collect(&[10], value_file(20, 3));
    family.change(|edit| edit.add_invalid_file(invalid(50, 4, &[20])).expect("new"));
    family.collect(&[20], ValueFileMeta { basis: 6, ..value_file(30, 3) });
    family.change(|_| {});
    assert_eq!(family.heirs(), [(10, 30), (20, 30)]);
    assert_eq!(family.values().installs(), 6);
    let built = family.change(|edit| edit.remove_invalid_file(50).expect("exists"));
    assert_eq!(built.removed_invalid.len(), 1);
    assert_eq!(family.heirs(), [(10, 30)]);
}

#[test]
fn impossible_changes_are_corrupt() {
    let family = two_tables();
    let refused = |edit: &dyn Fn(&mut VersionBuilder) -> Result<()>| {
        let mut builder = VersionBuilder::new(&family.version);
        let made = edit(&mut builder).and_then(|()| builder.finish(&family.trash).map(|_| ()));
        made.expect_err("impossible").to_string()
    };
    assert!(refused(&|edit| edit.remove_value_file(12)).contains("does not exist"));
    assert!(refused(&|edit| edit.add_value_file(value_file(10, 1))).contains("twice"));
    assert!(refused(&|edit| edit.inherit(10, 10)).contains("inherits twice"));
    assert!(refused(&|edit| edit.add_value_file(value_file(12, 0))).contains("bounds"));
    // A reference to a file that does not exist, and more references than the file has records.
    assert!(refused(&|edit| edit.add(1, table(3, b"c", &[(99, 1)]))).contains("does not exist"));
    assert!(refused(&|edit| edit.add(1, table(3, b"c", &[(11, 1)]))).contains("are referenced"));
    // A file that tables reference cannot be removed without an heir.
    assert!(refused(&|edit| edit.remove_value_file(10)).contains("does not exist"));
}

#[test]
fn version_without_value_files_shares_them_with_the_next() {
    let mut family = Family::new();
    let before = Arc::clone(family.version.values());
    family.change(|edit| edit.add(1, table(1, b"a", &[])).expect("new"));
    assert!(Arc::ptr_eq(&before, family.version.values()));
}

#[test]
fn unnamed_value_files_are_for_readers_alone() {
    let mut family = two_tables();
    let written = || table(3, b"c", &[(12, 2)]);
    let tables = [family.trash.unnamed_table(written())];
    let files = [family.trash.unnamed_value_file(value_file(12, 3))];
    let readable =
        |base: &Arc<Version>| VersionBuilder::with_unnamed(base, &tables, &files).expect("sound");
    let before = readable(&family.version);
    before.check().expect("every reference resolves");
    assert_eq!(before.values().refs(12), ReferenceSum { tables: 1, records: 2, bytes: 210 });
    assert_eq!(before.values().exposed_bytes(), 210 + 105);
    assert!(family.values().get(12).is_none(), "no job finds the file");
    // A garbage collection is installed before the edit of the flush.
    family.collect(&[10], value_file(20, 3));
    readable(&family.version).check().expect("every reference resolves");
    family.change(|edit| {
        edit.add(0, written()).expect("new");
        edit.add_value_file(value_file(12, 3)).expect("new");
    });
    let named = family.values().get(12).expect("the edit names it");
    assert!(Arc::ptr_eq(named, &files[0]), "readers and the version share the file");
}
