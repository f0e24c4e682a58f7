//! Golden bytes of the parcels, and parcels that are encoded and decoded.

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_env::FileClass;
use archipelago_store::{
    BlobGrant, BlobId, BlobRef, NamedBlob, VolumeId, WrittenBlobs, WrittenFile,
};

use super::JobParcel;
use crate::job::Payload;

fn blob(byte: u8) -> BlobRef {
    BlobRef { id: BlobId([byte; 16]), len_bytes: 0x0102, hint: vec![7, 8] }
}

fn samples() -> Vec<JobParcel> {
    let input = NamedBlob { name: "1.sst".to_owned(), blob: blob(0xb1) };
    let grant = BlobGrant {
        volume: VolumeId([0xa0; 16]),
        epoch: Epoch(3),
        inputs: vec![input],
        outputs: vec![BlobId([0xc1; 16]), BlobId([0xc2; 16])],
    };
    let file = WrittenFile { name: "2.sst".to_owned(), class: FileClass::Sst, blob: blob(0xc1) };
    let written = WrittenBlobs { begun: 2, files: vec![file] };
    let (spec, output): (Payload, Payload) = (vec![1, 2, 3].into(), vec![4].into());
    vec![
        JobParcel::Package { spec: spec.clone(), grant: None },
        JobParcel::Package { spec, grant: Some(grant) },
        JobParcel::Return { output: output.clone(), written: None },
        JobParcel::Return { output, written: Some(written) },
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn parcels_have_golden_bytes() {
    let [bare, package, bare_return, returned] = &samples()[..] else { panic!("four samples") };
    assert_eq!(hex(&bare.encode()), "01010301020300");
    let blob = |byte: &str| [&byte.repeat(16), "0201000000000000", "020708"].concat();
    let expected = [
        "0101",
        "03010203",
        "01",
        &"a0".repeat(16),
        "0300000000000000",
        "01",
        "05312e737374",
        &blob("b1"),
        "02",
        &"c1".repeat(16),
        &"c2".repeat(16),
    ];
    assert_eq!(hex(&package.encode()), expected.concat());
    assert_eq!(hex(&bare_return.encode()), "0102010400");
    let class = format!("{:02x}", FileClass::Sst.code());
    let expected =
        ["0102", "0104", "01", "02000000", "01", "05322e737374", &class, &blob("c1")].concat();
    assert_eq!(hex(&returned.encode()), expected);
}

#[test]
fn every_parcel_is_equal_after_encoding_and_decoding() {
    for parcel in samples() {
        let bytes = parcel.encode();
        assert_eq!(JobParcel::decode(&bytes), Ok(parcel.clone()), "{}", parcel.name());
        for cut in 0..bytes.len() {
            assert!(JobParcel::decode(&bytes[..cut]).is_err(), "{} of {cut} bytes", parcel.name());
        }
    }
}

#[test]
fn damaged_parcels_are_refused_or_read_as_others() {
    let mut rng = Rng::with_seed(43);
    for parcel in samples() {
        for _ in 0..200 {
            let mut bytes = parcel.encode();
            let at = rng.usize(..bytes.len());
            bytes[at] ^= rng.u32(1..256) as u8;
            if let Ok(other) = JobParcel::decode(&bytes) {
                assert_eq!(JobParcel::decode(&other.encode()), Ok(other));
            }
        }
    }
}
