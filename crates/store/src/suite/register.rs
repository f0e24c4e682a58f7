//! Checks of [`Register`].

use crate::register::{Register, Swap, Versioned};

/// Number of threads that count in one value.
const THREADS: u64 = 4;
/// Number of increments of each thread.
const INCREMENTS: u64 = 50;

/// Checks everything that the head of [`register`](crate::register) promises. All names begin with
/// `prefix`, below which the register has no value.
///
/// # Panics
///
/// It panics if the backend breaks a promise.
pub fn register_conforms(register: &dyn Register, prefix: &str) {
    swap_needs_the_version(register, &format!("{prefix}/swapped"));
    removed_name_has_larger_versions(register, &format!("{prefix}/removed"));
    names_are_listed_sorted(register, &format!("{prefix}/listed"));
    counters_count_every_increment(register, &format!("{prefix}/counted"));
}

fn read(register: &dyn Register, name: &str) -> Option<Versioned> {
    register.read(name).unwrap()
}

fn versioned(version: u64, value: &[u8]) -> Versioned {
    Versioned { version, value: value.to_vec() }
}

fn swap_needs_the_version(register: &dyn Register, name: &str) {
    assert_eq!(read(register, name), None);
    assert_eq!(register.compare_and_swap(name, 1, b"x").unwrap(), Swap::Lost(None));
    assert_eq!(register.compare_and_swap(name, 0, b"one").unwrap(), Swap::Done(1));
    let first = versioned(1, b"one");
    assert_eq!(read(register, name), Some(first.clone()));
    let lost = Swap::Lost(Some(first));
    assert_eq!(register.compare_and_swap(name, 0, b"two").unwrap(), lost);
    assert_eq!(register.compare_and_swap(name, 2, b"two").unwrap(), lost);
    let Swap::Done(second) = register.compare_and_swap(name, 1, b"").unwrap() else {
        panic!("the swap of the right version was lost");
    };
    assert!(second > 1, "{second}");
    assert_eq!(read(register, name), Some(versioned(second, b"")), "an empty value is a value");
    let long = vec![7; 4096];
    let Swap::Done(third) = register.compare_and_swap(name, second, &long).unwrap() else {
        panic!("the swap of the right version was lost");
    };
    assert_eq!(read(register, name), Some(versioned(third, &long)));
}

fn removed_name_has_larger_versions(register: &dyn Register, name: &str) {
    assert_eq!(register.remove(name, 0).unwrap(), Swap::Lost(None), "nothing is there");
    assert_eq!(register.compare_and_swap(name, 0, b"old").unwrap(), Swap::Done(1));
    let lost = Swap::Lost(Some(versioned(1, b"old")));
    assert_eq!(register.remove(name, 2).unwrap(), lost);
    assert!(matches!(register.remove(name, 1).unwrap(), Swap::Done(_)));
    assert_eq!(read(register, name), None);
    assert_eq!(register.remove(name, 1).unwrap(), Swap::Lost(None));
    let Swap::Done(version) = register.compare_and_swap(name, 0, b"new").unwrap() else {
        panic!("a name that was removed is not free");
    };
    assert!(version > 1, "a process that saw version 1 would take the new value for the old one");
}

fn names_are_listed_sorted(register: &dyn Register, prefix: &str) {
    let names = ["b", "a", "c/d", "removed"].map(|name| format!("{prefix}/{name}"));
    for name in &names {
        assert_eq!(register.compare_and_swap(name, 0, b"1").unwrap(), Swap::Done(1));
    }
    assert!(matches!(register.remove(&names[3], 1).unwrap(), Swap::Done(_)));
    let expected = ["a", "b", "c/d"].map(|name| format!("{prefix}/{name}"));
    assert_eq!(register.list(&format!("{prefix}/")).unwrap(), expected);
    assert_eq!(register.list(&format!("{prefix}/c")).unwrap(), expected[2..]);
    assert!(register.list(&format!("{prefix}/none")).unwrap().is_empty());
}

fn counters_count_every_increment(register: &dyn Register, name: &str) {
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..INCREMENTS).for_each(|_| increment(register, name)));
        }
    });
    let counter = read(register, name).unwrap();
    assert_eq!(counter.value, (THREADS * INCREMENTS).to_le_bytes(), "an increment was lost");
}

/// Adds 1 to the counter `name`.
fn increment(register: &dyn Register, name: &str) {
    let mut observed = read(register, name);
    loop {
        let (version, count) = match &observed {
            Some(now) => (now.version, u64::from_le_bytes(now.value[..].try_into().unwrap())),
            None => (0, 0),
        };
        match register.compare_and_swap(name, version, &(count + 1).to_le_bytes()).unwrap() {
            Swap::Done(new) => {
                assert!(new > version, "version {new} replaced {version}");
                return;
            }
            Swap::Lost(now) => {
                let at = now.as_ref().map_or(0, |now| now.version);
                assert!(at > version, "a swap of the version {version} was lost to {at}");
                observed = now;
            }
        }
    }
}
