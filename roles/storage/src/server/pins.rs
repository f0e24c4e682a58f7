//! Pins: the device whose lanes take the requests of an object, while any of them waits or runs.
//!
//! The node chooses the device of a new object, and an object may continue on another device. Its
//! requests keep their order only within one lane. So the first request of an object pins it to a
//! device, and the object stays there until none of its requests waits or runs.
//!
//! Invariant: all requests of an object that wait or run are in the lanes of one device.
//!
//! Thread-safety: any thread may call any method. One lock, which is never held over I/O.
//! Failure: none. Cost: two short locks and look-ups per request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;

use super::lane::LaneKey;

#[derive(Clone, Copy, Debug)]
struct Pin {
    /// Place of the device among the present ones.
    place: usize,
    /// Requests that wait or run.
    requests: usize,
}

/// The pins of all objects with requests.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pins: Mutex<HashMap<LaneKey, Pin>>,
}

impl Pins {
    /// The place of the device for a request of an object. `choose` is called if no other request
    /// of the object waits or runs. [`Pins::release`] follows when the request has run.
    pub(super) fn pin(&self, key: LaneKey, choose: impl FnOnce() -> usize) -> usize {
        match self.pins.lock().entry(key) {
            Entry::Occupied(mut pinned) => {
                let pin = pinned.get_mut();
                pin.requests += 1;
                pin.place
            }
            Entry::Vacant(free) => free.insert(Pin { place: choose(), requests: 1 }).place,
        }
    }

    /// Notes that a request of an object has run, or was not taken.
    pub(super) fn release(&self, key: LaneKey) {
        if let Entry::Occupied(mut pinned) = self.pins.lock().entry(key) {
            pinned.get_mut().requests -= 1;
            if pinned.get().requests == 0 {
                pinned.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_store::nodes::wire::ExtentAt;

    use super::*;

    #[test]
    fn object_stays_on_its_device_while_a_request_is_there() {
        let pins = Pins::default();
        let key = LaneKey::Extent(ExtentAt::default());
        let other = LaneKey::Extent(ExtentAt { extent: 1, ..ExtentAt::default() });
        assert_eq!(pins.pin(key, || 1), 1);
        assert_eq!(pins.pin(key, || 0), 1);
        assert_eq!(pins.pin(other, || 0), 0);
        pins.release(key);
        assert_eq!(pins.pin(key, || 0), 1, "one request is still there");
        pins.release(key);
        pins.release(key);
        assert_eq!(pins.pin(key, || 0), 0, "the node has moved it meanwhile");
    }
}
