//! Random edits against a model, with a reopen after each.

use std::collections::BTreeMap;

use archipelago_base::random::Rng;

use super::*;
use crate::version::FlushedThrough;

#[derive(Clone, Debug, Default, PartialEq)]
struct ModelCf {
    name: String,
    files: BTreeMap<u64, (usize, FileMeta)>,
    map: BucketMap,
    flushed: FlushedThrough,
}

type Model = BTreeMap<CfId, ModelCf>;

fn seen(set: &VersionSet) -> Model {
    let cfs = set.column_families().map(|(cf, name, version)| {
        version.check().expect("sound");
        let files = version.files().map(|(level, f)| (f.no, (level, f.meta().clone()))).collect();
        let map = version.map().as_ref().clone();
        let flushed = version.flushed_through().clone();
        (cf, ModelCf { name: name.to_owned(), files, map, flushed })
    });
    cfs.collect()
}

fn random_key(rng: &mut Rng) -> Vec<u8> {
    vec![b'a' + rng.u8(..26), b'a' + rng.u8(..26)]
}

/// One random change of a column family, in the edit and in the model.
fn change(
    rng: &mut Rng,
    fs: &dyn FileSystem,
    set: &VersionSet,
    cf: CfId,
    model: &mut ModelCf,
    edit: &mut VersionEdit,
) {
    match rng.u8(..8) {
        0..4 => {
            let level = rng.usize(..7);
            let bucket = rng.usize(..model.map.len());
            let mut bounds = [random_key(rng), random_key(rng)];
            bounds.sort();
            let meta = file(fs, set, &bounds[0], &bounds[1]);
            let fits = match level {
                0 => meta.within(&model.map.range(bucket)),
                _ => model.files.values().all(|(at, f)| *at != level || !f.overlaps_file(&meta)),
            };
            if fits {
                edit.add_file(cf, level, meta.clone());
                model.files.insert(meta.no, (level, meta));
            }
        }
        4..6 => {
            let numbers: Vec<u64> = model.files.keys().copied().collect();
            if let Some(&no) = rng.choice(&numbers)
                && let Some((level, _)) = model.files.remove(&no)
            {
                // A file that the same edit added may be removed again.
                edit.remove_file(cf, level, FileNo(no));
                edit.changes.retain(|change| match change {
                    Change::AddFile { meta, .. } => meta.no != no,
                    Change::RemoveFile { no: n, .. } => n.0 != no || set_has(set, cf, no),
                    _ => true,
                });
            }
        }
        6 => {
            let epoch = Epoch(model.map.epoch().0 + 1);
            let merged = rng.bool().then(|| model.map.merge(rng.usize(..4)).ok()).flatten();
            let split = model.map.split(&[random_key(rng)]).ok();
            let Some(map) = merged.or(split) else { return };
            assert_eq!(map.epoch(), epoch);
            let within = |meta: &FileMeta| meta.within(&map.range(map.bucket_of(&meta.smallest)));
            if model.files.values().all(|(level, meta)| *level > 0 || within(meta)) {
                edit.push(Change::SetBucketMap { cf, map: map.clone() });
                model.map = map;
            }
        }
        _ => {
            let mut bounds = [random_key(rng), random_key(rng)];
            bounds.sort();
            let [start, end] = bounds;
            let range = KeyRange { start, end: rng.bool().then_some(end) };
            let seq = SeqNo(rng.u64(..1000));
            edit.flushed_through(cf, range.clone(), seq);
            model.flushed.raise(&range, seq);
        }
    }
}

fn set_has(set: &VersionSet, cf: CfId, no: u64) -> bool {
    set.version(cf).is_some_and(|version| version.files().any(|(_, file)| file.no == no))
}

#[test]
fn random_edits_agree_with_a_model_after_every_reopen() {
    for seed in 0..12 {
        let (_, fs) = mem();
        let mut rng = Rng::with_seed(seed);
        let mut set = create(&fs).expect("creates");
        let mut model = seen(&set);
        for round in 0..60 {
            let mut edit = VersionEdit::new();
            let mut next = model.clone();
            let cfs: Vec<CfId> = model.keys().copied().collect();
            for _ in 0..rng.usize(1..5) {
                let cf = *rng.choice(&cfs).expect("the default one");
                let model = next.get_mut(&cf).expect("there");
                change(&mut rng, fs.as_ref(), &set, cf, model, &mut edit);
            }
            if rng.u8(..10) == 0 {
                let (cf, name) = (set.next_cf_id(), format!("cf {seed} {round}"));
                let options = Box::new(CfOptions::default());
                edit.push(Change::CreateCf { cf, name: name.clone(), options });
                next.insert(cf, ModelCf { name, ..ModelCf::default() });
            }
            if rng.u8(..20) == 0
                && let Some(&cf) = cfs.iter().rfind(|cf| cf.0 > 0)
            {
                edit.push(Change::DropCf { cf });
                next.remove(&cf);
            }
            set.apply(edit).expect("possible");
            model = next;
            assert_eq!(seen(&set), model, "seed {seed} round {round}");
            if rng.bool() {
                set = recover(&fs).expect("recovers");
                assert_eq!(seen(&set), model, "seed {seed} round {round}, reopened");
            }
        }
    }
}
