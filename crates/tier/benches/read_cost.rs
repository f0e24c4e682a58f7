//! Reads a file many times through the local file system or through tiers of one device, so that a
//! profiler can count the instructions of a read. `cargo bench -p archipelago-tier --bench
//! read_cost --no-run` prints the path of the program. Then: `valgrind --tool=callgrind PATH
//! local|tiers READS`.

use std::path::Path;
use std::sync::Arc;

use archipelago_base::{Error, Result};
use archipelago_env::local::LocalFs;
use archipelago_env::{CreateOptions, FileSystem, IoContext, IoPurpose, OpenOptions};
use archipelago_tier::{Components, DeviceKind, DeviceSettings, TieredFs};

const FILE_BYTES: u64 = 1 << 20;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let how = arguments.next().unwrap_or_default();
    let reads: u64 = arguments.next().and_then(|reads| reads.parse().ok()).unwrap_or(10_000);
    let dir = std::env::temp_dir().join(format!("archipelago-read-cost-{}", std::process::id()));
    let local = LocalFs::shared();
    local.create_dir_all(&dir)?;
    let (fs, path) = match how.as_str() {
        "local" => (Arc::clone(&local), dir.join("1.sst")),
        "tiers" => {
            let device = DeviceSettings::new(dir.join("device"), DeviceKind::Directory).creating();
            let components = Components { spawn: None, ..Components::default() };
            let tiers = TieredFs::open("tiers:", &[device], components)?;
            tiers.create_dir_all(Path::new("tiers:"))?;
            (tiers as Arc<dyn FileSystem>, Path::new("tiers:").join("1.sst"))
        }
        _ => return Err(Error::invalid("the first argument is `local` or `tiers`")),
    };
    let context = IoContext::sst(IoPurpose::ForegroundRead, 0);
    let mut file = fs.create(&path, context, CreateOptions::default())?;
    file.append(&vec![7; FILE_BYTES as usize])?;
    file.sync()?;
    drop(file);
    let file = fs.open(&path, context, OpenOptions::default())?;
    let mut buf = [0; 4096];
    let mut at = 0;
    for _ in 0..reads {
        file.read_exact_at(at, &mut buf, context)?;
        at = (at + 8191) % (FILE_BYTES - 4096);
    }
    drop(file);
    drop(fs);
    local.remove_dir_all(&dir)
}
