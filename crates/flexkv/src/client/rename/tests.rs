use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use archipelago_base::ErrorKind;
use archipelago_base::runtime::block_on;

use super::*;
use crate::client::Version;
use crate::format::Slot;
use crate::write_error::WriteEffect;

const FROM: &[u8] = b"from";
const TO: &[u8] = b"to";

/// Time for which a version names one record alone.
const ADDRESS_USE_NS: u64 = 1000;

type Script = fn(&Scripted, usize);

/// Keys that other clients change before the writes of a move, as a script says.
struct Scripted {
    there: RefCell<BTreeMap<Vec<u8>, Value>>,
    versions: Cell<u64>,
    writes: Cell<usize>,
    now_ns: Cell<u64>,
    before: Script,
    /// The write that ends with an error.
    fails: usize,
}

impl Scripted {
    fn new(before: Script) -> Self {
        let keys = Self {
            there: RefCell::default(),
            versions: Cell::new(0),
            writes: Cell::new(0),
            now_ns: Cell::new(0),
            before,
            fails: usize::MAX,
        };
        keys.put(FROM, "1", 7);
        keys
    }

    fn put(&self, key: &[u8], value: &str, expires_ms: u64) {
        self.versions.set(self.versions.get() + 1);
        let slot = Slot(self.versions.get());
        let version = Version { slot, until_ns: 0 };
        let value = Value { bytes: value.as_bytes().to_vec(), expires_ms, version };
        self.there.borrow_mut().insert(key.to_vec(), value);
    }

    fn remove(&self, key: &[u8]) {
        self.there.borrow_mut().remove(key);
    }

    fn shows(&self, key: &[u8]) -> Option<(String, u64)> {
        let there = self.there.borrow();
        let text = |value: &Value| String::from_utf8(value.bytes.clone()).expect("text");
        there.get(key).map(|value| (text(value), value.expires_ms))
    }

    fn rename(&self, destination: Destination) -> Result<Renamed, WriteError> {
        block_on(rename(self, FROM, TO, destination))
    }
}

impl Keys for Scripted {
    async fn read_key(&self, key: &[u8]) -> Result<Option<Value>> {
        let until_ns = self.now_ns.get() + ADDRESS_USE_NS;
        let read = self.there.borrow().get(key).cloned();
        Ok(read.map(|value| Value { version: Version { until_ns, ..value.version }, ..value }))
    }

    async fn write_key(
        &self,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        when: If,
    ) -> Result<bool, WriteError> {
        let nth = self.writes.replace(self.writes.get() + 1);
        (self.before)(self, nth);
        if nth == self.fails {
            return Err(WriteError::without_effect(Error::busy("no room")));
        }
        let there = self.there.borrow().get(key).map(|value| value.version.slot);
        let applies = when.applies(there, self.now_ns.get());
        match value {
            _ if !applies => {}
            Some((bytes, at_ms)) => {
                self.put(key, std::str::from_utf8(bytes).expect("text"), at_ms);
            }
            None => self.remove(key),
        }
        Ok(applies)
    }
}

const BOTH: [Destination; 2] = [Destination::Overwritten, Destination::Kept];

fn value(text: &str, expires_ms: u64) -> Option<(String, u64)> {
    Some((text.to_owned(), expires_ms))
}

#[test]
fn value_and_expiry_move_to_the_destination() {
    for destination in BOTH {
        let keys = Scripted::new(|_, _| {});
        assert_eq!(keys.rename(destination).expect("done"), Renamed::Moved);
        assert_eq!((keys.shows(FROM), keys.shows(TO)), (None, value("1", 7)));
        assert_eq!(keys.rename(destination).expect("done"), Renamed::NoSource);
        assert_eq!(keys.shows(TO), value("1", 7));
    }
}

#[test]
fn existing_destination_is_overwritten_or_kept_as_asked() {
    let keys = Scripted::new(|_, _| {});
    keys.put(TO, "old", 0);
    assert_eq!(keys.rename(Destination::Kept).expect("done"), Renamed::DestinationExists);
    assert_eq!((keys.shows(FROM), keys.shows(TO)), (value("1", 7), value("old", 0)));
    assert_eq!(keys.rename(Destination::Overwritten).expect("done"), Renamed::Moved);
    assert_eq!((keys.shows(FROM), keys.shows(TO)), (None, value("1", 7)));
}

#[test]
fn source_that_changes_meanwhile_moves_in_its_newest_version() {
    for destination in BOTH {
        let keys = Scripted::new(|keys, nth| match nth {
            1 => keys.put(FROM, "2", 8),
            // The same value in another version.
            3 => keys.put(FROM, "2", 8),
            _ => {}
        });
        assert_eq!(keys.rename(destination).expect("done"), Renamed::Moved);
        assert_eq!((keys.shows(FROM), keys.shows(TO)), (None, value("2", 8)));
        assert_eq!(keys.writes.get(), 6, "the same value is written again, too");
    }
}

#[test]
fn value_that_is_moved_back_meanwhile_is_not_lost() {
    // Another move, from the destination to the source, has read the destination in version 2, and
    // writes the source before this one deletes it.
    let keys = Scripted::new(|keys, nth| {
        if nth == 1 {
            keys.put(FROM, "1", 7);
        }
    });
    assert_eq!(keys.rename(Destination::Overwritten).expect("done"), Renamed::Moved);
    assert_eq!((keys.shows(FROM), keys.shows(TO)), (None, value("1", 7)));
    let version = keys.there.borrow().get(TO).map(|value| value.version.slot);
    assert_ne!(version, Some(Slot(2)), "the other move would delete the last copy");
}

#[test]
fn newer_source_under_the_word_of_the_old_one_is_not_lost() {
    for destination in BOTH {
        let keys = Scripted::new(|keys, nth| {
            if nth == 1 {
                // The record was freed, and its memory used again for a newer value.
                keys.now_ns.set(keys.now_ns.get() + ADDRESS_USE_NS);
                keys.versions.set(0);
                keys.put(FROM, "2", 8);
                keys.versions.set(100);
            }
        });
        assert_eq!(keys.rename(destination).expect("done"), Renamed::Moved);
        assert_eq!((keys.shows(FROM), keys.shows(TO)), (None, value("2", 8)));
    }
}

#[test]
fn source_that_others_delete_meanwhile_counts_as_moved() {
    for destination in BOTH {
        let keys = Scripted::new(|keys, nth| {
            if nth == 1 {
                keys.remove(FROM);
            }
        });
        assert_eq!(keys.rename(destination).expect("done"), Renamed::Moved);
        assert_eq!((keys.shows(FROM), keys.shows(TO)), (None, value("1", 7)));
    }
}

#[test]
fn kept_destination_written_meanwhile_is_not_overwritten() {
    for (nth, there) in [(1, "theirs"), (2, "theirs")] {
        let script: Script = match nth {
            1 => |keys, nth| {
                if nth == 1 {
                    keys.put(FROM, "2", 0);
                    keys.put(TO, "theirs", 0);
                }
            },
            _ => |keys, nth| match nth {
                1 => keys.put(FROM, "2", 0),
                2 => keys.put(TO, "theirs", 0),
                _ => {}
            },
        };
        let keys = Scripted::new(script);
        let failed = keys.rename(Destination::Kept).expect_err("both changed");
        assert_eq!(failed.effect(), WriteEffect::Unknown);
        assert_eq!((keys.shows(FROM), keys.shows(TO)), (value("2", 0), value(there, 0)));
    }
}

#[test]
fn error_says_whether_the_destination_was_written() {
    for (fails, effect) in [(0, WriteEffect::None), (1, WriteEffect::Unknown)] {
        let keys = Scripted { fails, ..Scripted::new(|_, _| {}) };
        let failed = keys.rename(Destination::Overwritten).expect_err("no room");
        assert_eq!((failed.kind(), failed.effect()), (ErrorKind::Busy, effect));
        assert!(failed.to_string().contains("no room"), "{failed}");
        assert_eq!(keys.shows(FROM), value("1", 7), "the value is not lost");
    }
    let keys = Scripted::new(|keys, _| keys.put(FROM, &keys.versions.get().to_string(), 0));
    let failed = keys.rename(Destination::Overwritten).expect_err("never at rest");
    assert_eq!(failed.effect(), WriteEffect::Unknown);
    assert!(failed.to_string().contains("100 times"), "{failed}");
}
