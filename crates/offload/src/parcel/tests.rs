//! Golden bytes of the parcels, and parcels that are encoded and decoded.

use archipelago_base::Epoch;
use archipelago_base::random::Rng;
use archipelago_base::wire::Wire;
use archipelago_env::FileClass;
use archipelago_fabric::{NodeId, RegionId, RemoteKey, Rights};
use archipelago_store::{
    BlobGrant, BlobId, BlobRef, NamedBlob, VolumeId, WrittenBlobs, WrittenFile,
};

use super::{ImageNode, ImagePlace, ImageUse, JobImages, JobParcel};
use crate::ids::{NodeLife, OffloadDb};
use crate::job::Payload;
use crate::wire::shard::{ShardName, ShardPlace};

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
    let used = ImageUse { in_place: 1, fetched: 2, fetched_bytes: 3, open_ns: 4, run_ns: 5 };
    vec![
        JobParcel::Package { spec: spec.clone(), grant: None, images: None, bytes_per_s: 0 },
        JobParcel::Package {
            spec: spec.clone(),
            grant: Some(grant),
            images: None,
            bytes_per_s: 0x13,
        },
        JobParcel::Return { output: output.clone(), written: None, images: None, limited_bytes: 0 },
        JobParcel::Return {
            output: output.clone(),
            written: Some(written),
            images: None,
            limited_bytes: 0x14,
        },
        JobParcel::Package { spec, grant: None, images: Some(images()), bytes_per_s: 0 },
        JobParcel::Return { output, written: None, images: Some(used), limited_bytes: 0 },
    ]
}

fn images() -> JobImages {
    let at = NodeLife { node: NodeId(0x0b), life: Epoch(0x0c) };
    let key = RemoteKey {
        node: at.node,
        epoch: at.life,
        region: RegionId(0x0d),
        tag: 0x0e,
        len: 0x0f,
        rights: Rights::READ,
    };
    let name = ShardName { epoch: Epoch(3), memtable: 4, shard: 5 };
    let place = ShardPlace { key, at: 0x10, bytes: 0x11 };
    JobImages {
        db: OffloadDb([0xd0; 16]),
        nodes: vec![ImageNode { at, endpoints: vec!["tcp:a".to_owned()] }],
        images: vec![ImagePlace { name, place, head_sum: 0x12 }],
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn word(low: &str) -> String {
    format!("{low:0<16}")
}

#[test]
fn parcels_have_golden_bytes() {
    let [bare, package, bare_return, returned, ..] = &samples()[..] else { panic!("samples") };
    assert_eq!(hex(&bare.encode()), ["0301030102030000", &word("")].concat());
    let blob = |byte: &str| [&byte.repeat(16), "0201000000000000", "020708"].concat();
    let expected = [
        "0301",
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
        "00",
        &word("13"),
    ];
    assert_eq!(hex(&package.encode()), expected.concat());
    assert_eq!(hex(&bare_return.encode()), ["030201040000", &word("")].concat());
    let class = format!("{:02x}", FileClass::Sst.code());
    let expected = [
        "0302",
        "0104",
        "01",
        "02000000",
        "01",
        "05322e737374",
        &class,
        &blob("c1"),
        "00",
        &word("14"),
    ]
    .concat();
    assert_eq!(hex(&returned.encode()), expected);
}

#[test]
fn parcels_of_flushes_have_golden_bytes() {
    let [.., package, returned] = &samples()[..] else { panic!("samples") };
    let mut key = Vec::new();
    Wire::put(&images().images[0].place.key, &mut key);
    let expected = [
        "0301",
        "0301020300",
        "01",
        &"d0".repeat(16),
        "01",
        &word("0b"),
        &word("0c"),
        "01057463703a61",
        "01",
        &word("03"),
        &word("04"),
        "05000000",
        &hex(&key),
        &word("10"),
        &word("11"),
        &word("12"),
        &word(""),
    ];
    assert_eq!(hex(&package.encode()), expected.concat());
    let times = [word("03"), word("04"), word("05"), word("")].concat();
    let expected = ["0302", "010400", "01", "0100000002000000", &times].concat();
    assert_eq!(hex(&returned.encode()), expected);
    let places = images().places();
    assert_eq!((places.len(), places[0].bytes, images().bytes()), (1, 0x11, 0x11));
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
