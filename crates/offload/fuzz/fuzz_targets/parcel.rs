//! Parcels of owners and executors: a decoded parcel is equal after it is encoded and decoded
//! again.
#![no_main]

use archipelago_offload::parcel::JobParcel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(parcel) = JobParcel::decode(bytes) {
        assert_eq!(JobParcel::decode(&parcel.encode()), Ok(parcel));
    }
});
